/* The plane codec: any bytes may be decoded, and any values come back from what encoding makes of
 * them. The first two bytes are the number of values (less one), the third the level. */
#include <string.h>

#include "io/plane_codec.h"
#include "tests/fuzz/fuzz_file.h"

enum { MOST = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tr_plane_codec *codec;
    static float decoded[MOST];
    static unsigned char stored[4 * MOST];
    if (codec == NULL)
        codec = tr_plane_codec_create(MOST);
    if (size < 3)
        return 0;
    size_t num_values = 1 + (data[0] | (size_t)data[1] << 8), bytes = size - 3;
    unsigned char *block = malloc(bytes + 1); /* its own block: reading past its end is seen */
    memcpy(block, data + 3, bytes);
    tr_plane_decode(codec, block, bytes, decoded, num_values);
    if (bytes >= sizeof(float)) {
        size_t count = bytes / sizeof(float);
        float *values = malloc(count * sizeof(float));
        count = count < MOST ? count : MOST;
        memcpy(values, block, count * sizeof(float));
        size_t used = tr_plane_encode(codec, 1 + data[2] % 3, values, count, stored, sizeof stored);
        if (used > 0 && (!tr_plane_decode(codec, stored, used, decoded, count) ||
                         memcmp(values, decoded, count * sizeof(float)) != 0))
            abort();
        free(values);
    }
    free(block);
    return 0;
}
