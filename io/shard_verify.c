/* Chunks go through in batches of one a thread. While a batch is decoded, the stored bytes of the
 * batch before it are added to the hash of the file, in order, by whichever thread is free; so there
 * are two sets of scratches, and they change places. */
#include "io/shard_verify.h"

#include "base/alloc.h"
#include "base/thread_pool.h"
#include "io/shard_int.h"

typedef struct slot {
    tr_shard_scratch *scratch;
    int chunk; /* whose stored bytes lie in the scratch */
    tr_status status;
    char *message; /* of a failure; messages belong to threads. tr_free */
} slot;

typedef struct batch {
    slot *slots; /* [threads] */
    int count;   /* slots in use */
} batch;

struct tr_shard_verifier {
    tr_thread_pool *pool;
    int num_threads;
    batch sides[2];
    tr_hash_stream *stream;
    tr_shard *shard;
    batch *decoded, *hashed; /* what this round does with which side */
};

tr_status tr_shard_verifier_create(int num_threads, tr_shard_verifier **verifier)
{
    tr_thread_pool *pool;
    TR_TRY(tr_thread_pool_create(num_threads, &pool));
    tr_shard_verifier *v = TR_NEW(tr_shard_verifier);
    v->pool = pool;
    v->num_threads = num_threads;
    v->stream = tr_hash_stream_create();
    for (int side = 0; side < 2; side++) {
        v->sides[side].slots = TR_NEW_ARRAY(slot, (size_t)num_threads);
        for (int i = 0; i < num_threads; i++)
            v->sides[side].slots[i].scratch = tr_shard_scratch_create();
    }
    *verifier = v;
    return TR_OK;
}

void tr_shard_verifier_destroy(tr_shard_verifier *verifier)
{
    if (verifier == NULL)
        return;
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < verifier->num_threads; i++)
            tr_shard_scratch_destroy(verifier->sides[side].slots[i].scratch);
        tr_free(verifier->sides[side].slots);
    }
    tr_hash_stream_destroy(verifier->stream);
    tr_thread_pool_destroy(verifier->pool);
    tr_free(verifier);
}

static void batch_hash(tr_shard_verifier *v, const batch *b)
{
    for (int i = 0; i < b->count; i++)
        tr_hash_stream_add(v->stream, tr_shard_scratch_stored(b->slots[i].scratch),
                           (size_t)tr_shard_get_chunk(v->shard, b->slots[i].chunk)->stored_bytes);
}

/* Piece 0 hashes the batch before; piece i decodes slot i - 1. */
static void piece_run(void *context, int piece, int thread)
{
    tr_shard_verifier *v = context;
    const float *values;
    (void)thread;
    if (piece == 0) {
        batch_hash(v, v->hashed);
        return;
    }
    slot *s = &v->decoded->slots[piece - 1];
    s->status = tr_shard_read_chunk(v->shard, s->chunk, s->scratch, &values);
    if (s->status != TR_OK)
        s->message = tr_strdup(tr_error_message());
}

/* The failure of the first chunk of the batch that has one, as the calling thread's. */
static tr_status batch_status(batch *b)
{
    tr_status status = TR_OK;
    for (int i = 0; i < b->count; i++) {
        if (b->slots[i].status != TR_OK && status == TR_OK)
            status = tr_fail(b->slots[i].status, "%s", b->slots[i].message);
        tr_free(b->slots[i].message);
        b->slots[i].message = NULL;
    }
    return status;
}

static tr_status chunks_verify(tr_shard_verifier *v, tr_shard_progress progress, void *context)
{
    int num_chunks = tr_shard_num_chunks(v->shard);
    v->decoded = &v->sides[0];
    v->hashed = &v->sides[1];
    v->hashed->count = 0;
    for (int next = 0; next < num_chunks;) {
        batch *b = v->decoded;
        int64_t bytes = 0;
        for (b->count = 0; b->count < v->num_threads && next < num_chunks; b->count++, next++) {
            b->slots[b->count].chunk = next;
            bytes += tr_shard_get_chunk(v->shard, next)->stored_bytes;
        }
        tr_thread_pool_run(v->pool, b->count + 1, piece_run, v);
        TR_TRY(batch_status(b));
        if (progress != NULL)
            progress(context, bytes);
        v->decoded = v->hashed;
        v->hashed = b;
    }
    batch_hash(v, v->hashed);
    return TR_OK;
}

/* Adds an interval of the file that holds no chunk (header, tables) to the hash. */
static tr_status interval_hash(tr_shard_verifier *v, int64_t begin, int64_t end)
{
    unsigned char bytes[1 << 14];
    while (begin < end) {
        int64_t size = end - begin < (int64_t)sizeof bytes ? end - begin : (int64_t)sizeof bytes;
        TR_TRY(tr_shard_read_bytes(v->shard, begin, bytes, (size_t)size));
        tr_hash_stream_add(v->stream, bytes, (size_t)size);
        begin += size;
    }
    return TR_OK;
}

static tr_status file_verify(tr_shard_verifier *v, tr_shard_progress progress, void *context)
{
    int64_t bytes = tr_shard_bytes(v->shard), table_offset = tr_shard_table_offset(v->shard);
    TR_TRY(tr_shard_wake(v->shard));
    TR_TRY(interval_hash(v, 0, SHARD_HEADER_BYTES));
    TR_TRY(chunks_verify(v, progress, context));
    TR_TRY(interval_hash(v, table_offset, bytes));
    if (progress != NULL)
        progress(context, SHARD_HEADER_BYTES + bytes - table_offset);
    return TR_OK;
}

tr_status tr_shard_verify(tr_shard_verifier *verifier, tr_shard *shard, tr_shard_progress progress,
                          void *context, tr_hash128 *hash)
{
    tr_hash_stream_reset(verifier->stream);
    verifier->shard = shard;
    tr_status status = file_verify(verifier, progress, context);
    tr_shard_rest(shard);
    if (status == TR_OK)
        *hash = tr_hash_stream_get(verifier->stream);
    return status;
}
