/* The shard reader on any bytes, and the checkpoint reader above it. Half of the inputs get the
 * hashes that their tables and chunks should have, so that what is behind those checks is reached:
 * the first byte decides, the rest is the file. What opens is verified, and read through a manifest
 * of two tensors. */
#include <string.h>

#include "io/checkpoint_read.h"
#include "io/shard_int.h"
#include "io/shard_verify.h"
#include "tests/fuzz/fuzz_file.h"

enum { ROWS = 37, COLUMNS = 22, VECTOR = 129 };

static void chunks_sign(unsigned char *bytes, size_t table, const unsigned char *trailer)
{
    uint64_t num_boxes = le_get(bytes + HEADER_NUM_BOXES, 4);
    uint64_t begin = table + num_boxes * SHARD_BOX_BYTES, end = (uint64_t)(trailer - bytes);
    for (uint64_t at = begin; at + SHARD_CHUNK_BYTES <= end; at += SHARD_CHUNK_BYTES) {
        uint64_t offset = le_get(bytes + at + CHUNK_OFFSET, 8);
        uint64_t stored = le_get(bytes + at + CHUNK_STORED, 4);
        if (offset < table && stored <= table - offset)
            le_put_hash(bytes + at + CHUNK_HASH,
                        tr_hash128_compute(bytes + offset, (size_t)stored));
    }
}

static void sign(unsigned char *bytes, size_t size)
{
    if (size < SHARD_HEADER_BYTES + SHARD_TRAILER_BYTES)
        return;
    unsigned char *trailer = bytes + size - SHARD_TRAILER_BYTES;
    size_t tables_end = size - SHARD_TRAILER_BYTES;
    uint64_t table = le_get(trailer + TRAILER_TABLE_OFFSET, 8);
    if (table < SHARD_HEADER_BYTES || table > tables_end)
        return;
    chunks_sign(bytes, (size_t)table, trailer);
    tr_hash_stream *stream = tr_hash_stream_create();
    tr_hash_stream_add(stream, bytes, SHARD_HEADER_BYTES);
    tr_hash_stream_add(stream, bytes + table, tables_end - table);
    tr_hash_stream_add(stream, trailer, SHARD_TRAILER_HASHED);
    le_put_hash(trailer + TRAILER_HASH, tr_hash_stream_get(stream));
    tr_hash_stream_destroy(stream);
}

/* The folder of a checkpoint whose one shard is `bytes`. */
static const char *folder_fill(const void *bytes, size_t size, const tr_shard *shard)
{
    static char folder[256], shard_path[300], manifest_path[300];
    static char numerics[] = "fuzz", config[] = "train:\n  steps: 1\n";
    tr_manifest_param params[] = {{"a.weight", 2, {ROWS, COLUMNS}, -1},
                                  {"b.bias", 1, {VECTOR, 1}, -1}};
    tr_manifest_file file = {"shard-00000.bin", (int64_t)size, tr_hash128_compute(bytes, size),
                             tr_shard_table_hash(shard)};
    tr_manifest manifest = {.scale = 1,
                            .numerics = numerics,
                            .config = config,
                            .kinds = {true, true, true},
                            .params = params,
                            .num_params = 2,
                            .files = &file,
                            .num_files = 1};
    if (folder[0] == '\0') {
        fuzz_template_fill(folder);
        if (mkdtemp(folder) == NULL)
            abort();
        snprintf(shard_path, sizeof shard_path, "%s/shard-00000.bin", folder);
        snprintf(manifest_path, sizeof manifest_path, "%s/" TR_MANIFEST_FILE_NAME, folder);
    }
    FILE *out = fopen(shard_path, "wb");
    if (out == NULL || fwrite(bytes, 1, size, out) != size || fclose(out) != 0 ||
        tr_manifest_write(manifest_path, &manifest) != TR_OK)
        abort();
    return folder;
}

static void checkpoint_read(const char *folder)
{
    static float values[ROWS * COLUMNS];
    tr_checkpoint *checkpoint;
    if (tr_checkpoint_open(&checkpoint, folder) != TR_OK)
        return;
    for (int tensor = 0; tensor < 2; tensor++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++) {
            tr_box whole = tr_checkpoint_tensor_box(checkpoint, tensor);
            tr_hash128 hash;
            tr_checkpoint_read(checkpoint, tensor, (tr_shard_kind)kind, &whole, 1, values);
            tr_checkpoint_hash(checkpoint, tensor, (tr_shard_kind)kind, &hash);
        }
    tr_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tr_shard_verifier *verifier;
    tr_shard *shard;
    tr_hash128 hash;
    if (verifier == NULL && tr_shard_verifier_create(1, &verifier) != TR_OK)
        abort();
    if (size == 0)
        return 0;
    size_t length = size - 1;
    unsigned char *bytes = malloc(length + 1);
    memcpy(bytes, data + 1, length);
    if (data[0] % 2 == 1)
        sign(bytes, length);
    if (tr_shard_open(&shard, fuzz_file_fill(bytes, length)) == TR_OK) {
        if (tr_shard_verify(verifier, shard, NULL, NULL, &hash) == TR_OK &&
            !tr_hash128_equal(hash, tr_hash128_compute(bytes, length)))
            abort();
        checkpoint_read(folder_fill(bytes, length, shard));
        tr_shard_close(shard);
    }
    free(bytes);
    return 0;
}
