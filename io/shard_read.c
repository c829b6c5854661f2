#include "io/shard_read.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/plane_codec.h"
#include "io/shard_int.h"

enum { MOST_VALUE_BITS = 60 }; /* elements of a box: their bytes stay below 2^62 */

struct tr_shard {
    char *path;
    int fd; /* -1 at rest */
    int64_t bytes;
    int num_boxes, num_chunks, chunk_bytes;
    tr_shard_box *boxes;
    tr_shard_chunk *chunks;
    int64_t table_offset;
    tr_hash128 table_hash;
};

struct tr_shard_scratch {
    unsigned char *stored;
    float *raw;
    tr_plane_codec *codec;
    size_t capacity; /* bytes of each */
};

tr_shard_scratch *tr_shard_scratch_create(void)
{
    return TR_NEW(tr_shard_scratch);
}

static void scratch_clear(tr_shard_scratch *scratch)
{
    tr_free(scratch->stored);
    tr_free(scratch->raw);
    tr_plane_codec_destroy(scratch->codec);
    *scratch = (tr_shard_scratch){0};
}

void tr_shard_scratch_destroy(tr_shard_scratch *scratch)
{
    if (scratch == NULL)
        return;
    scratch_clear(scratch);
    tr_free(scratch);
}

static void scratch_fit(tr_shard_scratch *scratch, size_t bytes)
{
    if (scratch->capacity >= bytes)
        return;
    scratch_clear(scratch);
    scratch->stored = TR_NEW_ARRAY(unsigned char, bytes);
    scratch->codec = tr_plane_codec_create(bytes / sizeof(float));
    scratch->capacity = bytes;
}

const unsigned char *tr_shard_scratch_stored(const tr_shard_scratch *scratch)
{
    return scratch->stored;
}

static tr_status damaged(const tr_shard *shard, const char *what)
{
    return tr_fail(TR_ERR_CHECKPOINT, "%s: damaged: %s", shard->path, what);
}

/* ---- the file ---- */

tr_status tr_shard_wake(tr_shard *shard)
{
    if (shard->fd >= 0)
        return TR_OK;
    shard->fd = open(shard->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* waits for no pipe */
    if (shard->fd < 0)
        return tr_fail_errno(TR_ERR_CHECKPOINT, errno, "%s: cannot open the file of the checkpoint",
                             shard->path);
    return TR_OK;
}

tr_status tr_shard_read_bytes(tr_shard *shard, int64_t offset, void *dst, size_t size)
{
    unsigned char *next = dst;
    TR_TRY(tr_shard_wake(shard));
    while (size > 0) {
        ssize_t got = pread(shard->fd, next, size, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tr_fail_errno(TR_ERR_CHECKPOINT, errno, "%s: reading at byte %" PRId64 " failed",
                                 shard->path, offset);
        if (got == 0)
            return tr_fail(TR_ERR_CHECKPOINT, "%s: the file ends at byte %" PRId64 " of %" PRId64,
                           shard->path, offset, shard->bytes);
        next += got;
        offset += got;
        size -= (size_t)got;
    }
    return TR_OK;
}

void tr_shard_rest(tr_shard *shard)
{
    if (shard->fd >= 0)
        close(shard->fd);
    shard->fd = -1;
}

/* ---- header, tables, trailer ---- */

static tr_status header_read(tr_shard *shard, unsigned char header[SHARD_HEADER_BYTES])
{
    static const unsigned char zeros[SHARD_HEADER_BYTES];
    if (shard->bytes < SHARD_HEADER_BYTES + SHARD_TRAILER_BYTES)
        return tr_fail(TR_ERR_CHECKPOINT, "%s: %" PRId64 " bytes are no shard of a checkpoint",
                       shard->path, shard->bytes);
    TR_TRY(tr_shard_read_bytes(shard, 0, header, SHARD_HEADER_BYTES));
    if (memcmp(header, SHARD_MAGIC, 8) != 0)
        return damaged(shard, "it does not begin like a shard of a checkpoint");
    uint64_t version = le_get(header + HEADER_VERSION, 4);
    if (version != SHARD_VERSION)
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: shard format %" PRIu64 "; this version of trine reads format %d",
                       shard->path, version, SHARD_VERSION);
    uint64_t num_boxes = le_get(header + HEADER_NUM_BOXES, 4);
    uint64_t num_chunks = le_get(header + HEADER_NUM_CHUNKS, 4);
    uint64_t chunk_bytes = le_get(header + HEADER_CHUNK_BYTES, 4);
    if (chunk_bytes == 0 || chunk_bytes % 4 != 0 || chunk_bytes > TR_SHARD_CHUNK_MOST)
        return damaged(shard, "impossible chunk size");
    if (memcmp(header + HEADER_REST, zeros, SHARD_HEADER_BYTES - HEADER_REST) != 0)
        return damaged(shard, "unknown fields in the header");
    uint64_t table = num_boxes * SHARD_BOX_BYTES + num_chunks * SHARD_CHUNK_BYTES;
    uint64_t rest = (uint64_t)shard->bytes - SHARD_HEADER_BYTES - SHARD_TRAILER_BYTES;
    if (table > rest || num_boxes > INT32_MAX || num_chunks > INT32_MAX)
        return damaged(shard, "its tables are larger than the file; it may have been cut short");
    shard->num_boxes = (int)num_boxes;
    shard->num_chunks = (int)num_chunks;
    shard->chunk_bytes = (int)chunk_bytes;
    shard->table_offset = shard->bytes - SHARD_TRAILER_BYTES - (int64_t)table;
    return TR_OK;
}

static tr_status trailer_check(tr_shard *shard, const unsigned char *header,
                               const unsigned char *table, size_t table_bytes,
                               const unsigned char *trailer)
{
    if (memcmp(trailer, SHARD_END_MAGIC, 8) != 0)
        return damaged(shard, "it does not end like a shard; it may have been cut short");
    if (le_get(trailer + TRAILER_TABLE_OFFSET, 8) != (uint64_t)shard->table_offset ||
        le_get(trailer + TRAILER_TABLE_BYTES, 8) != table_bytes ||
        le_get(trailer + TRAILER_FILE_BYTES, 8) != (uint64_t)shard->bytes ||
        le_get(trailer + TRAILER_REST, 8) != 0)
        return damaged(shard, "header, trailer and file size do not agree");
    tr_hash_stream *stream = tr_hash_stream_create();
    tr_hash_stream_add(stream, header, SHARD_HEADER_BYTES);
    tr_hash_stream_add(stream, table, table_bytes);
    tr_hash_stream_add(stream, trailer, SHARD_TRAILER_HASHED);
    shard->table_hash = tr_hash_stream_get(stream);
    tr_hash_stream_destroy(stream);
    if (!tr_hash128_equal(shard->table_hash, le_get_hash(trailer + TRAILER_HASH)))
        return damaged(shard, "the hash of its tables differs");
    return TR_OK;
}

/* `next_chunk`: chunks of the boxes before it. */
static tr_status box_parse(const tr_shard *shard, const unsigned char *row, uint64_t next_chunk,
                           tr_shard_box *box)
{
    static const int64_t all[TR_BOX_MAX_DIMS] = {INT64_MAX, INT64_MAX, INT64_MAX};
    uint64_t tensor = le_get(row + BOX_TENSOR, 4);
    int num_dims = row[BOX_NUM_DIMS];
    if (tensor > INT32_MAX || row[BOX_KIND] >= TR_SHARD_NUM_KINDS || num_dims < 1 || num_dims > 2 ||
        le_get(row + BOX_ELEMENT, 2) != SHARD_ELEMENT_F32)
        return damaged(shard, "a box of unknown kind");
    *box = (tr_shard_box){
        .tensor = (int)tensor, .kind = (tr_shard_kind)row[BOX_KIND], .box = {.num_dims = num_dims}};
    for (int d = 0; d < TR_BOX_MAX_DIMS; d++) {
        uint64_t start = le_get(row + BOX_START + 8 * d, 8);
        uint64_t extent = le_get(row + BOX_EXTENT + 8 * d, 8);
        if (start > INT64_MAX || extent > INT64_MAX ||
            (d < num_dims ? extent == 0 : (start | extent) != 0))
            return damaged(shard, "a box of impossible size");
        box->box.start[d] = (int64_t)start;
        box->box.extent[d] = (int64_t)extent;
    }
    if (!tr_box_fits(&box->box, num_dims, all))
        return damaged(shard, "a box of impossible size");
    int64_t volume = tr_box_volume(&box->box), values = tr_shard_chunk_values(shard);
    uint64_t num_chunks = le_get(row + BOX_NUM_CHUNKS, 4);
    if (volume >> MOST_VALUE_BITS != 0 || (uint64_t)((volume - 1) / values + 1) != num_chunks ||
        le_get(row + BOX_FIRST_CHUNK, 4) != next_chunk ||
        next_chunk + num_chunks > (uint64_t)shard->num_chunks)
        return damaged(shard, "the chunks of a box do not fit its size");
    box->first_chunk = (int)next_chunk;
    box->num_chunks = (int)num_chunks;
    return TR_OK;
}

/* raw_bytes: what the chunk's place in its box makes it; offset: the end of the chunk before. */
static tr_status chunk_parse(const tr_shard *shard, const unsigned char *row, int64_t raw_bytes,
                             int64_t offset, tr_shard_chunk *chunk)
{
    uint64_t stored = le_get(row + CHUNK_STORED, 4), codec = le_get(row + CHUNK_CODEC, 4);
    bool fits = codec == TR_SHARD_CODEC_RAW ? stored == (uint64_t)raw_bytes
                                            : stored > 0 && stored < (uint64_t)raw_bytes;
    if (codec >= TR_SHARD_NUM_CODECS)
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: a chunk with codec %" PRIu64
                       ", which this version of trine does not have",
                       shard->path, codec);
    if (!fits || le_get(row + CHUNK_RAW, 4) != (uint64_t)raw_bytes ||
        le_get(row + CHUNK_OFFSET, 8) != (uint64_t)offset || le_get(row + CHUNK_REST, 4) != 0 ||
        (int64_t)stored > shard->table_offset - offset)
        return damaged(shard, "a chunk that does not follow the one before it");
    *chunk = (tr_shard_chunk){.offset = offset,
                              .raw_bytes = (int)raw_bytes,
                              .stored_bytes = (int)stored,
                              .codec = (int)codec,
                              .hash = le_get_hash(row + CHUNK_HASH)};
    return TR_OK;
}

static tr_status tables_parse(tr_shard *shard, const unsigned char *table,
                              const unsigned char *trailer)
{
    const unsigned char *chunk_rows = table + (size_t)shard->num_boxes * SHARD_BOX_BYTES;
    int64_t next = 0, offset = SHARD_HEADER_BYTES, raw_total = 0;
    shard->boxes = TR_NEW_ARRAY(tr_shard_box, (size_t)shard->num_boxes + 1);
    shard->chunks = TR_NEW_ARRAY(tr_shard_chunk, (size_t)shard->num_chunks + 1);
    for (int i = 0; i < shard->num_boxes; i++) {
        tr_shard_box *box = &shard->boxes[i];
        TR_TRY(box_parse(shard, table + (size_t)i * SHARD_BOX_BYTES, (uint64_t)next, box));
        int64_t left = tr_box_volume(&box->box) * (int64_t)sizeof(float);
        for (int k = 0; k < box->num_chunks; k++, next++) {
            int64_t raw = left < shard->chunk_bytes ? left : shard->chunk_bytes;
            TR_TRY(chunk_parse(shard, chunk_rows + (size_t)next * SHARD_CHUNK_BYTES, raw, offset,
                               &shard->chunks[next]));
            offset += shard->chunks[next].stored_bytes;
            raw_total += raw;
            left -= raw;
        }
    }
    if (next != shard->num_chunks || offset != shard->table_offset ||
        le_get(trailer + TRAILER_RAW_BYTES, 8) != (uint64_t)raw_total)
        return damaged(shard, "boxes, chunks and file size do not agree");
    return TR_OK;
}

static tr_status tables_read(tr_shard *shard)
{
    unsigned char header[SHARD_HEADER_BYTES];
    TR_TRY(header_read(shard, header));
    size_t bytes = (size_t)(shard->bytes - shard->table_offset);
    size_t table_bytes = bytes - SHARD_TRAILER_BYTES;
    unsigned char *table = TR_NEW_ARRAY(unsigned char, bytes);
    tr_status status = tr_shard_read_bytes(shard, shard->table_offset, table, bytes);
    if (status == TR_OK)
        status = trailer_check(shard, header, table, table_bytes, table + table_bytes);
    if (status == TR_OK)
        status = tables_parse(shard, table, table + table_bytes);
    tr_free(table);
    return status;
}

tr_status tr_shard_open(tr_shard **shard, const char *path)
{
    struct stat about;
    tr_shard *opened = TR_NEW(tr_shard);
    opened->path = tr_strdup(path);
    opened->fd = -1;
    tr_status status = tr_shard_wake(opened);
    if (status == TR_OK && fstat(opened->fd, &about) != 0)
        status = tr_fail_errno(TR_ERR_CHECKPOINT, errno, "%s: cannot stat the file", path);
    if (status == TR_OK && !S_ISREG(about.st_mode))
        status = tr_fail(TR_ERR_CHECKPOINT, "%s: not a file", path);
    if (status == TR_OK) {
        opened->bytes = about.st_size;
        status = tables_read(opened);
    }
    if (status != TR_OK) {
        tr_shard_close(opened);
        return status;
    }
    tr_shard_rest(opened);
    *shard = opened;
    return TR_OK;
}

void tr_shard_close(tr_shard *shard)
{
    if (shard == NULL)
        return;
    tr_shard_rest(shard);
    tr_free(shard->boxes);
    tr_free(shard->chunks);
    tr_free(shard->path);
    tr_free(shard);
}

const char *tr_shard_path(const tr_shard *shard)
{
    return shard->path;
}

int64_t tr_shard_bytes(const tr_shard *shard)
{
    return shard->bytes;
}

tr_hash128 tr_shard_table_hash(const tr_shard *shard)
{
    return shard->table_hash;
}

int tr_shard_num_boxes(const tr_shard *shard)
{
    return shard->num_boxes;
}

const tr_shard_box *tr_shard_get_box(const tr_shard *shard, int index)
{
    return &shard->boxes[index];
}

int tr_shard_num_chunks(const tr_shard *shard)
{
    return shard->num_chunks;
}

int64_t tr_shard_table_offset(const tr_shard *shard)
{
    return shard->table_offset;
}

const tr_shard_chunk *tr_shard_get_chunk(const tr_shard *shard, int index)
{
    return &shard->chunks[index];
}

int tr_shard_chunk_values(const tr_shard *shard)
{
    return shard->chunk_bytes / (int)sizeof(float);
}

/* ---- chunks ---- */

int tr_shard_chunk_pieces(const tr_shard *shard, const tr_shard_box *box, int chunk,
                          tr_box pieces[TR_BOX_MAX_PIECES])
{
    int64_t values = tr_shard_chunk_values(shard);
    int64_t begin = chunk * values;
    int64_t size = shard->chunks[box->first_chunk + chunk].raw_bytes / (int64_t)sizeof(float);
    return tr_box_from_interval(&box->box, begin, begin + size, pieces);
}

tr_status tr_shard_check_chunk(tr_shard *shard, int number, tr_shard_scratch *scratch)
{
    const tr_shard_chunk *chunk = &shard->chunks[number];
    scratch_fit(scratch, (size_t)shard->chunk_bytes);
    TR_TRY(tr_shard_read_bytes(shard, chunk->offset, scratch->stored, (size_t)chunk->stored_bytes));
    if (!tr_hash128_equal(chunk->hash,
                          tr_hash128_compute(scratch->stored, (size_t)chunk->stored_bytes)))
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: damaged: the hash of bytes %" PRId64 " to %" PRId64 " differs",
                       shard->path, chunk->offset, chunk->offset + chunk->stored_bytes);
    return TR_OK;
}

tr_status tr_shard_decode_chunk(tr_shard *shard, int number, tr_shard_scratch *scratch, float *dst)
{
    const tr_shard_chunk *chunk = &shard->chunks[number];
    TR_TRY(tr_shard_check_chunk(shard, number, scratch));
    if (chunk->codec == TR_SHARD_CODEC_RAW)
        memcpy(dst, scratch->stored, (size_t)chunk->raw_bytes);
    else if (!tr_plane_decode(scratch->codec, scratch->stored, (size_t)chunk->stored_bytes, dst,
                              (size_t)chunk->raw_bytes / sizeof(float)))
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: damaged: bytes %" PRId64 " to %" PRId64 " cannot be decoded",
                       shard->path, chunk->offset, chunk->offset + chunk->stored_bytes);
    return TR_OK;
}

tr_status tr_shard_read_chunk(tr_shard *shard, int number, tr_shard_scratch *scratch,
                              const float **values)
{
    scratch_fit(scratch, (size_t)shard->chunk_bytes);
    if (scratch->raw == NULL)
        scratch->raw = TR_NEW_ARRAY(float, scratch->capacity / sizeof(float));
    TR_TRY(tr_shard_decode_chunk(shard, number, scratch, scratch->raw));
    *values = scratch->raw;
    return TR_OK;
}
