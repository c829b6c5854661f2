/* Attention backward: one task per sequence and key/value head, which walks the query heads of its group in order.
 *
 * For a block of queries and a block of keys, with probabilities recomputed from lse (Dao et al. 2022, algorithm 4):
 *     P = exp(scale Q K^T - lse);  M = kept / (1 - p) or 0 (dropout);  dP = M (dO V^T);  delta = sum over keys of P dP
 *     dS = scale P (dP - delta);  dV += (M P)^T dO;  dK += dS^T Q;  dQ = sum over key blocks of dS K
 * P and dS are kept as column panels of keys, [key panel][query][columns], in which the products with dO and Q read them; for dQ
 * they are turned into column panels of queries. dK and dV are summed in fp32 over all queries of the group in a fixed order and
 * rounded once. Rows above the diagonal are skipped, key panel by key panel. */
#include "kernels/cpu/cpu_attention_int.h"
#include "kernels/cpu/cpu_dropout.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_widen.h"

typedef struct backward_job {
    const tr_attention *args;
    const tr_cpu_tile *tile;
    tr_cpu_attention_backward_plan plan;
    float *threads;
} backward_job;

/* A task: one key/value head, with the scratch of its thread. */
typedef struct backward_task {
    const tr_attention *args;
    const tr_cpu_tile *tile;
    int64_t b, kv_head, head;
    int64_t columns, rows, depth; /* of tiles; D padded to whole tiles */
    int64_t query, num_queries;   /* the block at hand */
    float *k_columns, *v_columns, *k_rows, *dk, *dv;
    float *q_rows, *do_rows, *q_columns, *do_columns;
    float *p, *ds, *ds_turned, *dq, *turned;
    uint32_t *words; /* of one query's keys */
    float *lse, *delta;
} backward_task;

static backward_task make_task(const backward_job *job, int64_t index, int thread)
{
    const tr_cpu_attention_backward_plan *plan = &job->plan;
    backward_task task = {.args = job->args, .tile = job->tile};
    float *at = job->threads + thread * plan->thread;
    task.b = index / job->args->K;
    task.kv_head = index % job->args->K;
    task.columns = job->tile->columns;
    task.rows = job->tile->rows;
    task.depth = tr_cpu_round_up(job->args->D, job->tile->rows);
    task.k_columns = at;
    task.v_columns = at += plan->k_columns;
    task.k_rows = at += plan->v_columns;
    task.dk = at += plan->k_rows;
    task.dv = at += plan->dk;
    task.q_rows = at += plan->dv;
    task.do_rows = at += plan->q_rows;
    task.q_columns = at += plan->do_rows;
    task.do_columns = at += plan->q_columns;
    task.p = at += plan->do_columns;
    task.ds = at += plan->p;
    task.ds_turned = at += plan->ds;
    task.dq = at += plan->ds_turned;
    task.turned = at += plan->dq;
    task.words = (uint32_t *)(at += plan->rows);
    task.lse = at += plan->words;
    task.delta = task.lse + TR_ATTENTION_QUERIES;
    return task;
}

static void pack_keys(backward_task *task)
{
    const tr_attention *args = task->args;
    tr_dtype dtype = args->dtype;
    int64_t T = args->T, K = args->K, D = args->D, b = task->b, head = task->kv_head;
    tr_cpu_operand k = tr_cpu_head_rows(dtype, args->k, T, K, D, b, head);
    tr_cpu_operand v = tr_cpu_head_rows(dtype, args->v, T, K, D, b, head);
    tr_cpu_operand k_turned = tr_cpu_head_columns(dtype, args->k, T, K, D, b, head);
    tr_cpu_pack(&k, 0, T, 0, D, (int)task->columns, task->k_columns);
    tr_cpu_pack(&v, 0, T, 0, D, (int)task->columns, task->v_columns);
    tr_cpu_pack(&k_turned, 0, D, 0, T, (int)task->rows, task->k_rows);
    size_t sums = (size_t)(tr_cpu_round_up(T, task->columns) * task->depth) * sizeof(float);
    memset(task->dk, 0, sums);
    memset(task->dv, 0, sums);
}

static void load_lse(backward_task *task)
{
    const tr_attention *args = task->args;
    const float *lse = args->lse + (task->b * args->A + task->head) * args->T + task->query;
    memcpy(task->lse, lse, (size_t)task->num_queries * sizeof *lse);
}

static void pack_queries(backward_task *task)
{
    const tr_attention *args = task->args;
    tr_dtype dtype = args->dtype;
    int64_t T = args->T, A = args->A, D = args->D, b = task->b, head = task->head;
    int64_t first = task->query, count = task->num_queries;
    int rows = (int)task->rows;
    tr_cpu_operand q = tr_cpu_head_rows(dtype, args->q, T, A, D, b, head);
    tr_cpu_operand dout = tr_cpu_head_rows(dtype, args->dout, T, A, D, b, head);
    tr_cpu_operand q_turned = tr_cpu_head_columns(dtype, args->q, T, A, D, b, head);
    tr_cpu_operand dout_turned = tr_cpu_head_columns(dtype, args->dout, T, A, D, b, head);
    tr_cpu_pack(&q, first, count, 0, D, rows, task->q_rows);
    tr_cpu_pack(&dout, first, count, 0, D, rows, task->do_rows);
    tr_cpu_pack(&q_turned, 0, D, first, count, rows, task->q_columns);
    tr_cpu_pack(&dout_turned, 0, D, first, count, rows, task->do_columns);
}

/* Dropout of one row's keys; off: no words are read. */
typedef struct row_dropout {
    bool on;
    uint32_t threshold;
    float kept_scale;
} row_dropout;

/* Probabilities of query i and keys key + c ..., 0 above the diagonal. */
TR_VEC_INLINE tr_vec probabilities(const backward_task *task, int64_t i, int64_t key, int64_t c,
                                   const float *scores)
{
    tr_vec lse = tr_vec_set(task->lse[i]);
    tr_vec prob = tr_vec_exp(tr_vec_load_f32(scores + c) * task->args->scale - lse);
    tr_vec_int valid = tr_vec_index() + (int32_t)(key + c) <= (int32_t)(task->query + i);
    return tr_vec_select(valid, prob, tr_vec_zero());
}

/* A row of one key panel: what it adds to delta of query i. */
TR_VEC_INLINE void delta_row(backward_task *task, int64_t i, int64_t key, const float *p,
                             const float *dp, row_dropout dropout)
{
    tr_vec sum = tr_vec_zero();
    for (int64_t c = 0; c < task->columns; c += TR_VEC_LANES) {
        tr_vec prob = probabilities(task, i, key, c, p), grad = tr_vec_load_f32(dp + c);
        if (dropout.on)
            grad =
                tr_cpu_dropout_apply(grad, task->words + c, dropout.threshold, dropout.kept_scale);
        sum = tr_vec_fma(prob, grad, sum);
    }
    task->delta[i] += tr_vec_sum(sum);
}

/* A row of one key panel: scores and dO V^T of query i become M P and dS. */
TR_VEC_INLINE void score_row(backward_task *task, int64_t i, int64_t key, float *p, float *ds,
                             row_dropout dropout)
{
    tr_vec delta = tr_vec_set(task->delta[i]);
    float scale = task->args->scale;
    for (int64_t c = 0; c < task->columns; c += TR_VEC_LANES) {
        tr_vec prob = probabilities(task, i, key, c, p);
        tr_vec grad = tr_vec_load_f32(ds + c), kept = prob;
        if (dropout.on) {
            const uint32_t *words = task->words + c;
            grad = tr_cpu_dropout_apply(grad, words, dropout.threshold, dropout.kept_scale);
            kept = tr_cpu_dropout_apply(prob, words, dropout.threshold, dropout.kept_scale);
        }
        tr_vec_store_f32(p + c, kept);
        tr_vec_store_f32(ds + c, prob * (grad - delta) * scale);
    }
}

/* What is done with a panel's scores and dO V^T. */
typedef enum panel_pass { PASS_DELTA, PASS_GRADIENTS } panel_pass;

/* Rows [first, num_queries) of the key panel at `key`. */
static void score_panel(backward_task *task, panel_pass pass, int64_t first, int64_t key, float *p,
                        float *ds)
{
    const tr_dropout *dropout = &task->args->dropout;
    int64_t columns = task->columns;
    row_dropout row = {.on = dropout->probability > 0.0f, .kept_scale = 1.0f};
    uint64_t sample = 0, sample_key = 0;
    if (row.on) {
        sample = dropout->samples[task->b];
        sample_key = tr_dropout_key(dropout->key, sample);
        row.threshold = tr_dropout_threshold(dropout->probability);
        row.kept_scale = tr_dropout_scale(dropout->probability);
    }
    for (int64_t i = first; i < task->num_queries; i++) {
        if (row.on)
            tr_cpu_dropout_words(sample_key, (uint32_t)sample,
                                 (uint32_t)(task->args->head_offset + task->head),
                                 (uint32_t)(task->query + i), key, columns, task->words);
        if (pass == PASS_DELTA)
            delta_row(task, i, key, p + i * columns, ds + i * columns, row);
        else
            score_row(task, i, key, p + i * columns, ds + i * columns, row);
    }
}

/* Scores and dO V^T of the panel of keys at `key`, for the queries from the returned one on; those before it lie above the diagonal. */
static int64_t panel_products(backward_task *task, int64_t key, float *p, float *ds)
{
    const tr_cpu_tile *tile = task->tile;
    int64_t D = task->args->D, columns = task->columns, rows = task->rows;
    int64_t first = key > task->query ? (key - task->query) / rows * rows : 0;
    for (int64_t i = first; i < task->num_queries; i += rows) {
        tile->multiply(D, task->q_rows + i * D, task->k_columns + key * D, p + i * columns, columns,
                       false);
        tile->multiply(D, task->do_rows + i * D, task->v_columns + key * D, ds + i * columns,
                       columns, false);
    }
    return first;
}

/* delta of the block's queries, in fp32 from the scores: taken from the rounded output instead, it would leave rows of dS that do not sum to zero, an error
 * that the sums over rows (key biases) collect. */
static void compute_delta(backward_task *task)
{
    int64_t end = task->query + task->num_queries;
    memset(task->delta, 0, (size_t)task->num_queries * sizeof *task->delta);
    for (int64_t key = 0; key < end; key += task->columns) {
        int64_t first = panel_products(task, key, task->p, task->ds);
        score_panel(task, PASS_DELTA, first, key, task->p, task->ds);
    }
}

/* Scores, their gradients, and what they add to dK and dV, for the panel of keys at `key`. Queries of other panels that share panels of columns become zero in dS. */
static void backward_panel(backward_task *task, int64_t key, float *p, float *ds)
{
    const tr_cpu_tile *tile = task->tile;
    int64_t D = task->args->D, columns = task->columns, rows = task->rows;
    int64_t count = task->num_queries, first = panel_products(task, key, p, ds);
    int64_t above = first / columns * columns, below = tr_cpu_round_up(count, columns);
    memset(ds + above * columns, 0, (size_t)((first - above) * columns) * sizeof *ds);
    memset(ds + count * columns, 0, (size_t)((below - count) * columns) * sizeof *ds);
    score_panel(task, PASS_GRADIENTS, first, key, p, ds);
    float *dk = task->dk + key * task->depth, *dv = task->dv + key * task->depth;
    for (int64_t d = 0; d < D; d += rows) {
        int64_t at = d * count + first * rows;
        tile->multiply(count - first, task->do_columns + at, p + first * columns, dv + d * columns,
                       columns, true);
        tile->multiply(count - first, task->q_columns + at, ds + first * columns, dk + d * columns,
                       columns, true);
    }
}

/* dQ (+)= dS K over the block of keys that begins at `key` and has `num_panels` panels. */
static void backward_queries(backward_task *task, int64_t key, int64_t num_panels)
{
    const tr_cpu_tile *tile = task->tile;
    int64_t T = task->args->T, D = task->args->D, columns = task->columns;
    for (int64_t i = 0; i < task->num_queries; i += columns) {
        int64_t depth =
            task->query + i + columns - key; /* keys at or below the panel's last query */
        if (depth > num_panels * columns)
            depth = num_panels * columns;
        if (depth > T - key)
            depth = T - key;
        for (int64_t panel = 0; panel * columns < depth; panel++)
            tr_cpu_turn(task->ds + (panel * TR_ATTENTION_QUERIES + i) * columns, columns, columns,
                        columns, task->ds_turned + panel * columns * columns, columns);
        float *dq = task->dq + i * task->depth;
        for (int64_t d = 0; depth > 0 && d < D; d += task->rows)
            tile->multiply(depth, task->k_rows + d * T + key * task->rows, task->ds_turned,
                           dq + d * columns, columns, key > 0);
    }
}

/* Column panels [position / columns][D padded][columns] become rows of `dst` from position `first` on. */
static void store_rows(const backward_task *task, const float *panels, int64_t first, int64_t count,
                       int64_t heads, int64_t head, void *dst)
{
    const tr_attention *args = task->args;
    int64_t D = args->D, columns = task->columns;
    for (int64_t i = 0; i < count; i++) {
        if (i % columns == 0)
            tr_cpu_turn(panels + i * task->depth, columns, D, columns, task->turned, D);
        int64_t index = ((task->b * args->T + first + i) * heads + head) * D;
        tr_cpu_narrow(args->dtype, task->turned + i % columns * D, D,
                      tr_cpu_element_mut(args->dtype, dst, index));
    }
}

static void backward_queries_block(backward_task *task)
{
    int64_t columns = task->columns, end = task->query + task->num_queries;
    load_lse(task);
    pack_queries(task);
    compute_delta(task);
    for (int64_t key = 0; key < end; key += TR_ATTENTION_KEYS) {
        int64_t keys = end - key < TR_ATTENTION_KEYS ? end - key : TR_ATTENTION_KEYS;
        int64_t num_panels = (keys + columns - 1) / columns;
        for (int64_t panel = 0; panel < num_panels; panel++) {
            int64_t offset = panel * TR_ATTENTION_QUERIES * columns;
            backward_panel(task, key + panel * columns, task->p + offset, task->ds + offset);
        }
        backward_queries(task, key, num_panels);
    }
    store_rows(task, task->dq, task->query, task->num_queries, task->args->A, task->head,
               task->args->dq);
}

static void backward_piece(void *ctx, int64_t index, int thread)
{
    const backward_job *job = ctx;
    const tr_attention *args = job->args;
    backward_task task = make_task(job, index, thread);
    int64_t group = args->A / args->K;
    pack_keys(&task);
    for (int64_t h = 0; h < group; h++) {
        task.head = task.kv_head * group + h;
        for (task.query = 0; task.query < args->T; task.query += TR_ATTENTION_QUERIES) {
            int64_t left = args->T - task.query;
            task.num_queries = left < TR_ATTENTION_QUERIES ? left : TR_ATTENTION_QUERIES;
            backward_queries_block(&task);
        }
    }
    store_rows(&task, task.dk, 0, args->T, args->K, task.kv_head, args->dk);
    store_rows(&task, task.dv, 0, args->T, args->K, task.kv_head, args->dv);
}

static tr_status attention_backward(tr_device *device, const tr_attention *args)
{
    TR_ASSERT(args->A % args->K == 0);
    backward_job job = {.args = args, .tile = tr_cpu_tile_get()};
    job.plan = tr_cpu_attention_plan_backward(job.tile, args->T, args->D);
    job.threads = tr_cpu_workspace(device, sizeof(float) * (size_t)tr_cpu_num_threads(device) *
                                               (size_t)job.plan.thread);
    tr_cpu_parallel_for(device, args->B * args->K, backward_piece, &job);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_attention_backward_ops)(tr_ops *ops)
{
    ops->attention_backward = attention_backward;
}
