/* Attention forward, by panels of `columns` queries of one head (a register tile's width).
 *
 * First the keys and values of a sequence are widened and packed, each head once. Then, for each panel of queries, the scores are
 * computed transposed, S^T[key][query], with exactly the layout in which the second product reads P^T:
 *     S^T = K Q^T (row panels of keys times a column panel of queries);  P^T = exp(scale S^T - max), query by query in vector lanes;
 *     out^T[d][query] = V^T P^T, divided by the sum of P over keys.
 * Keys beyond the panel's last query are never computed. Pieces of the grid are (head, block of queries), long rows first. */
#include "kernels/cpu/cpu_attention_int.h"
#include "kernels/cpu/cpu_dropout.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_widen.h"

#include <math.h>

enum {
    KEYS_CHUNK = 256
}; /* depth of the second product at a time: P^T of a chunk stays in the first-level cache */

typedef struct forward_job {
    const tr_attention *args;
    const tr_cpu_tile *tile;
    tr_cpu_attention_forward_plan plan;
    int64_t b;
    float *shared, *threads;
} forward_job;

/* One key/value head's keys (even pieces) or values (odd pieces). */
static void pack_piece(void *ctx, int64_t piece, int thread)
{
    const forward_job *job = ctx;
    const tr_attention *args = job->args;
    int64_t head = piece / 2, T = args->T, D = args->D;
    float *k = job->shared + head * (job->plan.k_head + job->plan.v_head);
    (void)thread;
    if (piece % 2 == 0) {
        tr_cpu_operand rows = tr_cpu_head_rows(args->dtype, args->k, T, args->K, D, job->b, head);
        tr_cpu_pack(&rows, 0, T, 0, D, job->tile->rows, k);
    } else {
        tr_cpu_operand columns =
            tr_cpu_head_columns(args->dtype, args->v, T, args->K, D, job->b, head);
        tr_cpu_pack(&columns, 0, D, 0, T, job->tile->rows, k + job->plan.k_head);
    }
}

/* Running maximum of keys [0, num_keys) of a vector of queries, the first being `query`: keys above a query do not count. */
TR_VEC_INLINE tr_vec score_max(const float *scores, int64_t columns, int64_t num_keys,
                               int64_t query)
{
    tr_vec top = tr_vec_load_f32(scores), other = top;
    int64_t all = query + 1 < num_keys ? query + 1 : num_keys;
    int64_t key = 0;
    for (; key + 2 <= all; key += 2) {
        top = tr_vec_max(top, tr_vec_load_f32(scores + key * columns));
        other = tr_vec_max(other, tr_vec_load_f32(scores + (key + 1) * columns));
    }
    for (; key < num_keys; key++) {
        tr_vec_int valid = tr_vec_index() + (int32_t)query >= (int32_t)key;
        tr_vec masked =
            tr_vec_select(valid, tr_vec_load_f32(scores + key * columns), tr_vec_set(-INFINITY));
        top = tr_vec_max(top, masked);
    }
    return tr_vec_max(top, other);
}

/* Scores become exp(scale S - max), zero above the diagonal; returns their sums over keys: those before `panel`, the first query of the panel, in
 * four partial sums, so that the order does not depend on the width of a vector. */
TR_VEC_INLINE tr_vec score_exp(float *scores, int64_t columns, int64_t num_keys, int64_t panel,
                               int64_t query, float scale, tr_vec max)
{
    tr_vec sum[4] = {tr_vec_zero(), tr_vec_zero(), tr_vec_zero(), tr_vec_zero()};
    int64_t all = panel / 4 * 4;
    for (int64_t key = 0; key < all; key += 4)
        for (int i = 0; i < 4; i++) {
            float *at = scores + (key + i) * columns;
            tr_vec p = tr_vec_exp(tr_vec_load_f32(at) * scale - max);
            sum[i] += p;
            tr_vec_store_f32(at, p);
        }
    for (int64_t key = all; key < num_keys; key++) {
        float *at = scores + key * columns;
        tr_vec_int valid = tr_vec_index() + (int32_t)query >= (int32_t)key;
        tr_vec p = tr_vec_exp(tr_vec_load_f32(at) * scale - max);
        p = tr_vec_select(valid, p, tr_vec_zero());
        sum[0] += p;
        tr_vec_store_f32(at, p);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Zeroes the dropped ones of P^T. */
TR_VEC_INLINE void score_dropout(const tr_attention *args, int64_t b, int64_t head, float *scores,
                                 int64_t columns, int64_t num_keys, int64_t query)
{
    uint64_t sample = args->dropout.samples[b];
    uint64_t key = tr_dropout_key(args->dropout.key, sample);
    uint32_t threshold = tr_dropout_threshold(args->dropout.probability);
    const tr_vec_uint zero = {0};
    for (int64_t k = 0; k < num_keys; k += 4) {
        tr_vec_uint words[4] = {
            zero + (uint32_t)sample, zero + (uint32_t)(args->head_offset + head),
            (tr_vec_uint)(tr_vec_index() + (int32_t)query), zero + (uint32_t)(k / 4)};
        tr_cpu_philox(key, words);
        for (int i = 0; i < 4 && k + i < num_keys; i++) {
            float *at = scores + (k + i) * columns;
            tr_vec_int kept = (tr_vec_int)(words[i] >= threshold);
            tr_vec_store_f32(at, tr_vec_select(kept, tr_vec_load_f32(at), tr_vec_zero()));
        }
    }
}

/* Softmax and dropout of a panel; factor[query] is what out^T is multiplied by. */
static void softmax_panel(const forward_job *job, int64_t head, int64_t query, int64_t num_keys,
                          float *scores, float *factor)
{
    const tr_attention *args = job->args;
    int64_t columns = job->tile->columns;
    float max[TR_TILE_COLUMNS_MAX], sum[TR_TILE_COLUMNS_MAX];
    float kept_scale = 1.0f;
    for (int64_t c = 0; c < columns; c += TR_VEC_LANES) {
        tr_vec top = score_max(scores + c, columns, num_keys, query + c) * args->scale;
        tr_vec_store_f32(max + c, top);
        tr_vec_store_f32(
            sum + c, score_exp(scores + c, columns, num_keys, query, query + c, args->scale, top));
        if (args->dropout.probability > 0.0f)
            score_dropout(args, job->b, head, scores + c, columns, num_keys, query + c);
    }
    if (args->dropout.probability > 0.0f)
        kept_scale = tr_dropout_scale(args->dropout.probability);
    for (int64_t c = 0; c < columns; c++)
        factor[c] = kept_scale / sum[c];
    float *lse = args->lse + (job->b * args->A + head) * args->T;
    for (int64_t c = 0; c < columns && query + c < args->T; c++)
        lse[query + c] = max[c] + logf(sum[c]);
}

/* out^T = V^T P^T in chunks of keys. */
static void multiply_values(const forward_job *job, const float *v, const float *scores,
                            int64_t num_keys, float *out)
{
    const tr_cpu_tile *tile = job->tile;
    int64_t T = job->args->T, D = job->args->D;
    for (int64_t key = 0; key < num_keys; key += KEYS_CHUNK) {
        int64_t depth = num_keys - key < KEYS_CHUNK ? num_keys - key : KEYS_CHUNK;
        for (int64_t d = 0; d < D; d += tile->rows)
            tile->multiply(depth, v + d * T + key * tile->rows, scores + key * tile->columns,
                           out + d * tile->columns, tile->columns, key > 0);
    }
}

static void forward_panel(const forward_job *job, int64_t head, int64_t query, float *scratch)
{
    const tr_attention *args = job->args;
    const tr_cpu_tile *tile = job->tile;
    int64_t T = args->T, D = args->D, columns = tile->columns;
    int64_t count = T - query < columns ? T - query : columns;
    int64_t num_keys = query + count;
    const float *k =
        job->shared + head / (args->A / args->K) * (job->plan.k_head + job->plan.v_head);
    float *scores = scratch, *q = scores + job->plan.scores, *out = q + job->plan.query;
    float *turned = out + job->plan.out; /* [columns][D] */
    float factor[TR_TILE_COLUMNS_MAX];

    tr_cpu_operand rows = tr_cpu_head_rows(args->dtype, args->q, T, args->A, D, job->b, head);
    tr_cpu_pack(&rows, query, count, 0, D, (int)columns, q);
    for (int64_t key = 0; key < num_keys; key += tile->rows)
        tile->multiply(D, k + key * D, q, scores + key * columns, columns, false);
    softmax_panel(job, head, query, num_keys, scores, factor);
    multiply_values(job, k + job->plan.k_head, scores, num_keys, out);
    tr_cpu_turn(out, columns, D, columns, turned, D);
    for (int64_t c = 0; c < count; c++) {
        float *row = turned + c * D;
        for (int64_t d = 0; d < D; d++)
            row[d] *= factor[c];
        int64_t index = ((job->b * T + query + c) * args->A + head) * D;
        tr_cpu_narrow(args->dtype, row, D, tr_cpu_element_mut(args->dtype, args->out, index));
    }
}

static void forward_piece(void *ctx, int64_t piece, int thread)
{
    const forward_job *job = ctx;
    const tr_attention *args = job->args;
    int64_t blocks = (args->T + TR_ATTENTION_PIECE - 1) / TR_ATTENTION_PIECE;
    int64_t head = piece % args->A;
    int64_t begin = (blocks - 1 - piece / args->A) * TR_ATTENTION_PIECE;
    for (int64_t query = begin; query < args->T && query < begin + TR_ATTENTION_PIECE;
         query += job->tile->columns)
        forward_panel(job, head, query, job->threads + thread * job->plan.thread);
}

static tr_status attention_forward(tr_device *device, const tr_attention *args)
{
    TR_ASSERT(args->A % args->K == 0 && args->scale > 0.0f);
    forward_job job = {.args = args, .tile = tr_cpu_tile_get()};
    job.plan = tr_cpu_attention_plan_forward(job.tile, args->T, args->K, args->D);
    int64_t floats = job.plan.shared + tr_cpu_num_threads(device) * job.plan.thread;
    job.shared = tr_cpu_workspace(device, sizeof(float) * (size_t)floats);
    job.threads = job.shared + job.plan.shared;
    int64_t blocks = (args->T + TR_ATTENTION_PIECE - 1) / TR_ATTENTION_PIECE;
    for (job.b = 0; job.b < args->B; job.b++) {
        tr_cpu_parallel_for(device, 2 * args->K, pack_piece, &job);
        tr_cpu_parallel_for(device, args->A * blocks, forward_piece, &job);
    }
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_attention_ops)(tr_ops *ops)
{
    ops->attention_forward = attention_forward;
}
