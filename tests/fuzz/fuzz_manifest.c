/* The manifest reader on any bytes. Half of the inputs get the hash that their last line should be,
 * so that what is behind that check is reached: the first byte decides, the rest is the file. What
 * is accepted must be written and read back. */
#include <string.h>

#include "io/manifest.h"
#include "tests/fuzz/fuzz_file.h"

static void accepted(const tr_manifest *manifest)
{
    tr_manifest again;
    char path[256];
    fuzz_template_fill(path);
    int fd = mkstemp(path);
    if (fd < 0 || tr_manifest_write(path, manifest) != TR_OK)
        abort();
    close(fd);
    if (tr_manifest_read(path, &again) != TR_OK || again.num_params != manifest->num_params ||
        again.num_files != manifest->num_files || again.step != manifest->step)
        abort();
    unlink(path);
    for (int i = 0; i < again.num_params; i++)
        if (tr_manifest_find(manifest, again.params[i].name) != i)
            abort();
    tr_manifest_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_manifest manifest;
    if (size == 0)
        return 0;
    bool sign = data[0] % 2 == 1;
    char *bytes = malloc(size + TR_HASH128_TEXT), hash[TR_HASH128_TEXT];
    size_t length = size - 1;
    memcpy(bytes, data + 1, length);
    if (sign) {
        tr_hash128_to_text(tr_hash128_compute(bytes, length), hash);
        memcpy(bytes + length, hash, TR_HASH128_TEXT - 1);
        bytes[length + TR_HASH128_TEXT - 1] = '\n';
        length += TR_HASH128_TEXT;
    }
    if (tr_manifest_read(fuzz_file_fill(bytes, length), &manifest) == TR_OK) {
        accepted(&manifest);
        tr_manifest_clear(&manifest);
    }
    free(bytes);
    return 0;
}
