#include "io/shard_write.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>

#include "base/alloc.h"
#include "base/background.h"
#include "base/clock.h"
#include "io/chunk_queue.h"
#include "io/file_commit.h"
#include "io/plane_codec.h"
#include "io/shard_int.h"

/* What the encoders of a file share. Whose chunk is next in the file has fd, offset and stream. */
typedef struct writer {
    const char *path;
    tr_chunk_queue *queue;
    int fd;
    int level;
    tr_trace_lanes *trace;  /* NULL: nobody records */
    int64_t offset;         /* bytes written so far */
    double disk_seconds;    /* of that, and of the flush */
    tr_hash_stream *stream; /* of them */
    unsigned char *chunk_rows;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t turned; /* turn or failed changed */
    int64_t turn;          /* chunk that is appended next */
    bool failed;           /* some encoder's chunk is not to be had: nobody waits for a turn */
} writer;

typedef struct encoder {
    writer *w;
    int lane;              /* of the trace */
    tr_plane_codec *codec; /* NULL at level 0 */
    float *values;         /* [chunk] a chunk taken; NULL where the queue needs no buffer */
    unsigned char *stored; /* [chunk] an encoded chunk */
} encoder;

const char *tr_shard_kind_name(tr_shard_kind kind)
{
    static const char *const names[TR_SHARD_NUM_KINDS] = {"master", "m", "v"};
    return names[kind];
}

static tr_status append(writer *w, const void *bytes, size_t size)
{
    double begin = tr_clock_seconds();
    TR_TRY(tr_file_write_all(w->fd, bytes, size, w->path));
    w->disk_seconds += tr_clock_seconds() - begin;
    tr_hash_stream_add(w->stream, bytes, size);
    w->offset += (int64_t)size;
    return TR_OK;
}

/* ---- encoders ---- */

static bool all_finite(const float *values, size_t count)
{
    bool finite = true;
    for (size_t i = 0; i < count; i++)
        finite &= (bool)isfinite(values[i]);
    return finite;
}

/* Fills the chunk's row but for its place; *bytes: what is to be stored. */
static tr_status chunk_encode(encoder *e, const tr_queued_chunk *chunk, const void **bytes,
                              size_t *size)
{
    size_t raw = chunk->num_values * sizeof(float), stored = 0;
    const tr_shard_part *part = chunk->part;
    if (part->name != NULL && !all_finite(chunk->values, chunk->num_values))
        return tr_fail(TR_ERR_IO, "tensor %s (%s) holds values that are not finite", part->name,
                       tr_shard_kind_name(part->kind));
    if (e->codec != NULL) /* must be smaller than raw: a byte less room */
        stored = tr_plane_encode(e->codec, e->w->level, chunk->values, chunk->num_values, e->stored,
                                 raw - 1);
    *bytes = stored > 0 ? (const void *)e->stored : chunk->values;
    *size = stored > 0 ? stored : raw;
    unsigned char *row = e->w->chunk_rows + (size_t)chunk->index * SHARD_CHUNK_BYTES;
    le_put(row + CHUNK_CODEC, stored > 0 ? TR_SHARD_CODEC_PLANES : TR_SHARD_CODEC_RAW, 4);
    le_put(row + CHUNK_RAW, raw, 4);
    le_put(row + CHUNK_STORED, *size, 4);
    le_put_hash(row + CHUNK_HASH, tr_hash128_compute(*bytes, *size));
    return TR_OK;
}

/* Until the chunk is next in the file; false when the file has failed. */
static bool turn_await(writer *w, int64_t index)
{
    pthread_mutex_lock(&w->mutex);
    while (!w->failed && w->turn != index)
        pthread_cond_wait(&w->turned, &w->mutex);
    bool mine = !w->failed;
    pthread_mutex_unlock(&w->mutex);
    return mine;
}

/* Gives the turn to the next chunk, or lets the file fail. */
static void turn_end(writer *w, bool failed)
{
    pthread_mutex_lock(&w->mutex);
    if (failed)
        w->failed = true;
    else
        w->turn++;
    pthread_cond_broadcast(&w->turned);
    pthread_mutex_unlock(&w->mutex);
}

/* Encodes a chunk, waits for its turn, and appends it. *given_up: another encoder failed, who tells. */
static tr_status chunk_write(encoder *e, const tr_queued_chunk *chunk, bool *given_up)
{
    writer *w = e->w;
    const void *bytes = NULL;
    size_t size = 0;
    tr_trace_lane_switch(w->trace, e->lane, "encode", chunk->index,
                         (int64_t)(chunk->num_values * sizeof(float)));
    tr_status status = chunk_encode(e, chunk, &bytes, &size);
    tr_trace_lane_switch(w->trace, e->lane, NULL, -1, -1);
    TR_TRY(status);
    *given_up = !turn_await(w, chunk->index);
    if (*given_up)
        return TR_OK;
    le_put(w->chunk_rows + (size_t)chunk->index * SHARD_CHUNK_BYTES + CHUNK_OFFSET,
           (uint64_t)w->offset, 8);
    tr_trace_lane_switch(w->trace, e->lane, "write", chunk->index, (int64_t)size);
    status = append(w, bytes, size);
    tr_trace_lane_switch(w->trace, e->lane, NULL, -1, -1);
    return status;
}

/* TR_OK also when another encoder failed. */
static tr_status chunks_write(void *context)
{
    encoder *e = context;
    tr_queued_chunk chunk;
    tr_status status = TR_OK;
    while (status == TR_OK) {
        bool taken, given_up = false;
        status = tr_chunk_queue_take(e->w->queue, e->values, &chunk, &taken);
        if (status == TR_OK && !taken)
            break;
        if (status == TR_OK)
            status = chunk_write(e, &chunk, &given_up);
        if (given_up)
            break;
        turn_end(e->w, status != TR_OK);
    }
    if (status != TR_OK)
        tr_chunk_queue_stop(e->w->queue);
    return status;
}

static void encoder_init(encoder *e, writer *w, int lane)
{
    size_t chunk_bytes = (size_t)tr_chunk_queue_get_chunk_bytes(w->queue);
    *e = (encoder){.w = w, .lane = lane};
    if (w->level > 0) {
        e->codec = tr_plane_codec_create(chunk_bytes / sizeof(float));
        e->stored = TR_NEW_ARRAY(unsigned char, chunk_bytes);
    }
    if (tr_chunk_queue_needs_buffer(w->queue))
        e->values = TR_NEW_ARRAY(float, chunk_bytes / sizeof(float));
}

static void encoder_clear(encoder *e)
{
    tr_free(e->values);
    tr_free(e->stored);
    tr_plane_codec_destroy(e->codec);
}

/* All chunks, with this thread and num_encoders - 1 others. One that cannot be started is done without. */
static tr_status encoders_run(writer *w, int num_encoders)
{
    encoder *encoders = TR_NEW_ARRAY(encoder, (size_t)num_encoders);
    tr_background **helpers = TR_NEW_ARRAY(tr_background *, (size_t)num_encoders);
    for (int i = 0; i < num_encoders; i++)
        encoder_init(&encoders[i], w, i);
    for (int i = 1; i < num_encoders; i++) {
        helpers[i] = tr_background_create();
        tr_background_start(helpers[i], chunks_write, &encoders[i], 0);
    }
    tr_status status = chunks_write(&encoders[0]);
    for (int i = 1; i < num_encoders; i++) {
        tr_status other = tr_background_finish(helpers[i]);
        tr_background_destroy(helpers[i]);
        status = status == TR_OK ? other : status;
    }
    for (int i = 0; i < num_encoders; i++)
        encoder_clear(&encoders[i]);
    tr_free(helpers);
    tr_free(encoders);
    if (status == TR_OK && w->turn < tr_chunk_queue_count(w->queue))
        status = TR_STOPPED;
    return status;
}

/* ---- the file ---- */

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

/* Header, chunks, tables and trailer. box_rows: [parts]. */
static tr_status file_write(writer *w, int num_encoders, unsigned char *box_rows,
                            tr_shard_summary *summary)
{
    unsigned char header[SHARD_HEADER_BYTES] = {0}, trailer[SHARD_TRAILER_BYTES] = {0};
    uint64_t num_chunks = 0, raw_bytes = 0;
    int num_parts;
    const tr_shard_part *parts = tr_chunk_queue_get_parts(w->queue, &num_parts);
    TR_ASSERT(tr_chunk_queue_count(w->queue) <= UINT32_MAX);
    for (int i = 0; i < num_parts; i++) {
        uint64_t chunks = (uint64_t)tr_chunk_queue_count_part(w->queue, &parts[i]);
        box_row_fill(box_rows + (size_t)i * SHARD_BOX_BYTES, &parts[i], (uint32_t)num_chunks,
                     (uint32_t)chunks);
        num_chunks += chunks;
        raw_bytes += (uint64_t)tr_box_volume(&parts[i].box) * sizeof(float);
    }
    memcpy(header, SHARD_MAGIC, 8);
    le_put(header + HEADER_VERSION, SHARD_VERSION, 4);
    le_put(header + HEADER_NUM_BOXES, (uint64_t)num_parts, 4);
    le_put(header + HEADER_NUM_CHUNKS, num_chunks, 4);
    le_put(header + HEADER_CHUNK_BYTES, (uint64_t)tr_chunk_queue_get_chunk_bytes(w->queue), 4);
    TR_TRY(append(w, header, sizeof header));
    TR_TRY(encoders_run(w, num_encoders));

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
    tr_trace_lane_switch(w->trace, 0, "flush", -1, w->offset);
    double begin = tr_clock_seconds();
    status = tr_file_end(w->fd, w->path, status);
    w->disk_seconds += tr_clock_seconds() - begin;
    tr_trace_lane_switch(w->trace, 0, NULL, -1, -1);
    return status;
}

tr_status tr_shard_write_queue(const char *path, tr_chunk_queue *queue, int level, int num_encoders,
                               tr_trace_lanes *trace, tr_shard_summary *summary)
{
    writer w = {.path = path, .queue = queue, .level = level, .trace = trace};
    int num_parts;
    tr_chunk_queue_get_parts(queue, &num_parts);
    w.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w.fd < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot create the file", path);
    if (num_encoders > tr_chunk_queue_count(queue))
        num_encoders = (int)tr_chunk_queue_count(queue);
    num_encoders = num_encoders > 0 ? num_encoders : 1;
    w.stream = tr_hash_stream_create();
    w.chunk_rows =
        TR_NEW_ARRAY(unsigned char, (size_t)tr_chunk_queue_count(queue) * SHARD_CHUNK_BYTES + 1);
    pthread_mutex_init(&w.mutex, NULL);
    pthread_cond_init(&w.turned, NULL);
    unsigned char *box_rows = TR_NEW_ARRAY(unsigned char, (size_t)num_parts *SHARD_BOX_BYTES + 1);
    tr_shard_summary result = {0};
    tr_status status = file_close(&w, file_write(&w, num_encoders, box_rows, &result));
    if (status == TR_OK) {
        *summary = result;
        summary->disk_seconds = w.disk_seconds;
    }
    tr_free(box_rows);
    pthread_cond_destroy(&w.turned);
    pthread_mutex_destroy(&w.mutex);
    tr_free(w.chunk_rows);
    tr_hash_stream_destroy(w.stream);
    return status;
}

tr_status tr_shard_write(const char *path, const tr_shard_part *parts, int num_parts, int level,
                         int chunk_bytes, tr_shard_summary *summary)
{
    tr_chunk_queue *queue = tr_chunk_queue_create(parts, num_parts, chunk_bytes);
    tr_status status = tr_shard_write_queue(path, queue, level, 1, NULL, summary);
    tr_chunk_queue_destroy(queue);
    return status;
}
