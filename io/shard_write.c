#include "io/shard_write.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file_commit.h"
#include "io/plane_codec.h"
#include "io/shard_int.h"

typedef struct writer {
    const char *path;
    int fd;
    int level, chunk_bytes;
    int64_t offset;         /* bytes written so far */
    tr_hash_stream *stream; /* of them */
    tr_plane_codec *codec;  /* NULL at level 0 */
    unsigned char *stored;  /* [chunk_bytes] an encoded chunk */
    unsigned char *chunk_rows;
    uint32_t num_chunks; /* rows so far */
} writer;

const char *tr_shard_kind_name(tr_shard_kind kind)
{
    static const char *const names[TR_SHARD_NUM_KINDS] = {"master", "m", "v"};
    return names[kind];
}

static tr_status append(writer *w, const void *bytes, size_t size)
{
    TR_TRY(tr_file_write_all(w->fd, bytes, size, w->path));
    tr_hash_stream_add(w->stream, bytes, size);
    w->offset += (int64_t)size;
    return TR_OK;
}

static int64_t part_chunks(const tr_shard_part *part, int chunk_bytes)
{
    int64_t values = chunk_bytes / (int64_t)sizeof(float);
    return (tr_box_volume(&part->box) + values - 1) / values;
}

static tr_status chunk_write(writer *w, const float *values, size_t num_values)
{
    size_t raw = num_values * sizeof(float), stored = 0;
    const void *bytes = values;
    if (w->codec != NULL) /* must be smaller than raw: a byte less room */
        stored = tr_plane_encode(w->codec, w->level, values, num_values, w->stored, raw - 1);
    unsigned char *row = w->chunk_rows + (size_t)w->num_chunks++ * SHARD_CHUNK_BYTES;
    le_put(row + CHUNK_CODEC, stored > 0 ? TR_SHARD_CODEC_PLANES : TR_SHARD_CODEC_RAW, 4);
    if (stored > 0)
        bytes = w->stored;
    else
        stored = raw;
    le_put(row + CHUNK_OFFSET, (uint64_t)w->offset, 8);
    le_put(row + CHUNK_RAW, raw, 4);
    le_put(row + CHUNK_STORED, stored, 4);
    le_put_hash(row + CHUNK_HASH, tr_hash128_compute(bytes, stored));
    return append(w, bytes, stored);
}

static tr_status part_write(writer *w, const tr_shard_part *part)
{
    int64_t most = w->chunk_bytes / (int64_t)sizeof(float), volume = tr_box_volume(&part->box);
    for (int64_t at = 0; at < volume; at += most)
        TR_TRY(
            chunk_write(w, part->values + at, (size_t)(volume - at < most ? volume - at : most)));
    return TR_OK;
}

static void box_row_fill(unsigned char *row, const tr_shard_part *part, uint32_t first_chunk,
                         uint32_t num_chunks)
{
    le_put(row + BOX_TENSOR, (uint32_t)part->tensor, 4);
    row[BOX_KIND] = (unsigned char)part->kind;
    row[BOX_NUM_DIMS] = (unsigned char)part->box.num_dims;
    le_put(row + BOX_ELEMENT, SHARD_ELEMENT_F32, 2);
    for (int d = 0; d < part->box.num_dims; d++) {
        le_put(row + BOX_START + 8 * d, (uint64_t)part->box.start[d], 8);
        le_put(row + BOX_EXTENT + 8 * d, (uint64_t)part->box.extent[d], 8);
    }
    le_put(row + BOX_FIRST_CHUNK, first_chunk, 4);
    le_put(row + BOX_NUM_CHUNKS, num_chunks, 4);
}

static tr_status file_write(writer *w, const tr_shard_part *parts, int num_parts,
                            unsigned char *box_rows, tr_shard_summary *summary)
{
    unsigned char header[SHARD_HEADER_BYTES] = {0}, trailer[SHARD_TRAILER_BYTES] = {0};
    uint64_t num_chunks = 0, raw_bytes = 0;
    for (int i = 0; i < num_parts; i++) {
        uint64_t chunks = (uint64_t)part_chunks(&parts[i], w->chunk_bytes);
        TR_ASSERT(chunks > 0 && num_chunks + chunks <= UINT32_MAX);
        box_row_fill(box_rows + (size_t)i * SHARD_BOX_BYTES, &parts[i], (uint32_t)num_chunks,
                     (uint32_t)chunks);
        num_chunks += chunks;
        raw_bytes += (uint64_t)tr_box_volume(&parts[i].box) * sizeof(float);
    }
    memcpy(header, SHARD_MAGIC, 8);
    le_put(header + HEADER_VERSION, SHARD_VERSION, 4);
    le_put(header + HEADER_NUM_BOXES, (uint64_t)num_parts, 4);
    le_put(header + HEADER_NUM_CHUNKS, num_chunks, 4);
    le_put(header + HEADER_CHUNK_BYTES, (uint64_t)w->chunk_bytes, 4);
    w->chunk_rows = TR_NEW_ARRAY(unsigned char, (size_t)num_chunks *SHARD_CHUNK_BYTES + 1);
    TR_TRY(append(w, header, sizeof header));
    for (int i = 0; i < num_parts; i++)
        TR_TRY(part_write(w, &parts[i]));

    size_t box_bytes = (size_t)num_parts * SHARD_BOX_BYTES;
    size_t chunk_bytes = (size_t)num_chunks * SHARD_CHUNK_BYTES;
    memcpy(trailer, SHARD_END_MAGIC, 8);
    le_put(trailer + TRAILER_TABLE_OFFSET, (uint64_t)w->offset, 8);
    le_put(trailer + TRAILER_TABLE_BYTES, box_bytes + chunk_bytes, 8);
    le_put(trailer + TRAILER_FILE_BYTES,
           (uint64_t)w->offset + box_bytes + chunk_bytes + SHARD_TRAILER_BYTES, 8);
    le_put(trailer + TRAILER_RAW_BYTES, raw_bytes, 8);
    tr_hash_stream *table = tr_hash_stream_create();
    tr_hash_stream_add(table, header, sizeof header);
    tr_hash_stream_add(table, box_rows, box_bytes);
    tr_hash_stream_add(table, w->chunk_rows, chunk_bytes);
    tr_hash_stream_add(table, trailer, SHARD_TRAILER_HASHED);
    tr_hash128 table_hash = tr_hash_stream_get(table);
    tr_hash_stream_destroy(table);
    le_put_hash(trailer + TRAILER_HASH, table_hash);
    TR_TRY(append(w, box_rows, box_bytes));
    TR_TRY(append(w, w->chunk_rows, chunk_bytes));
    TR_TRY(append(w, trailer, sizeof trailer));
    *summary = (tr_shard_summary){.bytes = w->offset,
                                  .raw_bytes = (int64_t)raw_bytes,
                                  .hash = tr_hash_stream_get(w->stream),
                                  .table_hash = table_hash};
    return TR_OK;
}

/* Flushes where everything was written, and closes in every case. */
static tr_status file_close(writer *w, tr_status status)
{
    if (status == TR_OK && fsync(w->fd) != 0)
        status = tr_fail_errno(TR_ERR_IO, errno, "%s: flushing to the disk failed", w->path);
    if (close(w->fd) != 0 && status == TR_OK)
        status = tr_fail_errno(TR_ERR_IO, errno, "%s: closing failed", w->path);
    if (status != TR_OK)
        unlink(w->path);
    return status;
}

tr_status tr_shard_write(const char *path, const tr_shard_part *parts, int num_parts, int level,
                         int chunk_bytes, tr_shard_summary *summary)
{
    TR_ASSERT(chunk_bytes > 0 && chunk_bytes % 4 == 0 && chunk_bytes <= TR_SHARD_CHUNK_MOST);
    writer w = {.path = path, .level = level, .chunk_bytes = chunk_bytes};
    w.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w.fd < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot create the file", path);
    w.stream = tr_hash_stream_create();
    if (level > 0) {
        w.codec = tr_plane_codec_create((size_t)chunk_bytes / sizeof(float));
        w.stored = TR_NEW_ARRAY(unsigned char, (size_t)chunk_bytes);
    }
    unsigned char *box_rows = TR_NEW_ARRAY(unsigned char, (size_t)num_parts *SHARD_BOX_BYTES + 1);
    tr_shard_summary result = {0};
    tr_status status = file_close(&w, file_write(&w, parts, num_parts, box_rows, &result));
    if (status == TR_OK)
        *summary = result;
    tr_free(box_rows);
    tr_free(w.chunk_rows);
    tr_free(w.stored);
    tr_plane_codec_destroy(w.codec);
    tr_hash_stream_destroy(w.stream);
    return status;
}
