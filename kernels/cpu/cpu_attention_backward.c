/* Attention backward: one task per sequence and key/value head (or part of one), which walks its query heads in order.
 *
 * For a block of queries, with probabilities recomputed from lse (Dao et al. 2022, algorithm 4):
 *     P = exp(scale Q K^T - lse);  M = kept / (1 - p) or 0 (dropout);  dP = M (dO V^T);  delta = sum over keys of P dP
 *     dS = scale P (dP - delta);  dV += (M P)^T dO;  dK += dS^T Q;  dQ = dS K
 * delta comes from fp32 scores and not from the rounded output (dO O), which would leave rows of dS that do not sum to zero, an error that
 * sums over positions (key biases) collect. P and dP of the block's whole rows are therefore kept until delta is known, as column panels of
 * keys, [key panel][query][columns], in which the products with dO and Q read them; for dQ they are turned into column panels of queries.
 * dK and dV are summed in fp32 over all queries of the task in a fixed order and rounded once. Rows above the diagonal are skipped, key
 * panel by key panel. */
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
    int64_t gradient_head;        /* of dk and dv: the key/value head, or the part of one */
    int64_t columns, rows, depth; /* of tiles; D padded to whole tiles */
    int64_t query, num_queries;   /* the block at hand */
    float *k_columns, *v_columns, *k_rows, *dk, *dv;
    float *q_rows, *do_rows, *q_columns, *do_columns;
    float *p, *ds, *ds_turned, *dq, *turned;
    uint32_t *words;                  /* of one query's keys */
    float *lse, *delta, *delta_lanes; /* of the block's queries; lanes: [queries][columns] */
    float kept_scale;
} backward_task;

/* Heads of dk and dv. */
static int64_t gradient_heads(const tr_attention *args)
{
    return args->kv_parts > 1 ? args->K * args->kv_parts : args->K;
}

static backward_task make_task(const backward_job *job, int64_t index, int thread)
{
    const tr_cpu_attention_backward_plan *plan = &job->plan;
    backward_task task = {.args = job->args, .tile = job->tile};
    float *at = job->threads + thread * plan->thread;
    int64_t heads = gradient_heads(job->args);
    task.b = index / heads;
    task.gradient_head = index % heads;
    task.kv_head = task.gradient_head / (heads / job->args->K);
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
    task.delta_lanes = task.delta + TR_ATTENTION_QUERIES;
    task.kept_scale = tr_dropout_scale(job->args->dropout.probability);
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

/* The first row, counted in whole tiles, that has keys of the panel at `key` at or below the diagonal. */
static int64_t first_query(const backward_task *task, int64_t key)
{
    return key > task->query ? (key - task->query) / task->rows * task->rows : 0;
}

/* Dropout of a row's keys; off: no words are read. */
typedef struct row_dropout {
    bool on;
    uint32_t threshold;
} row_dropout;

/* A row of one key panel: scores become P, dO V^T becomes dP, and P dP is added to the lanes of delta of query i. P is not negative:
 * a dropped one is kept with its sign turned. */
TR_VEC_INLINE void probability_row(backward_task *task, int64_t i, int64_t key, float *p, float *dp,
                                   row_dropout dropout)
{
    tr_vec lse = tr_vec_set(task->lse[i]);
    float *lanes = task->delta_lanes + i * task->columns;
    for (int64_t c = 0; c < task->columns; c += TR_VEC_LANES) {
        tr_vec prob = tr_vec_exp(tr_vec_load_f32(p + c) * task->args->scale - lse);
        tr_vec_int valid = tr_vec_index() + (int32_t)(key + c) <= (int32_t)(task->query + i);
        tr_vec grad = tr_vec_load_f32(dp + c);
        prob = tr_vec_select(valid, prob, tr_vec_zero());
        tr_vec stored = prob;
        if (dropout.on) {
            tr_vec_uint words;
            memcpy(&words, task->words + c, sizeof words);
            tr_vec_int kept = (tr_vec_int)(words >= dropout.threshold);
            grad = tr_vec_select(kept, grad * task->kept_scale, tr_vec_zero());
            stored = tr_vec_select(kept, prob, -prob);
        }
        tr_vec_store_f32(lanes + c, tr_vec_fma(prob, grad, tr_vec_load_f32(lanes + c)));
        tr_vec_store_f32(p + c, stored);
        tr_vec_store_f32(dp + c, grad);
    }
}

/* P and dP of the panel of keys at `key`. Queries before the panel's first lie above its diagonal. */
static void probability_panel(backward_task *task, int64_t key, float *p, float *dp)
{
    const tr_cpu_tile *tile = task->tile;
    const tr_dropout *dropout = &task->args->dropout;
    int64_t D = task->args->D, columns = task->columns, first = first_query(task, key);
    for (int64_t i = first; i < task->num_queries; i += task->rows) {
        tile->multiply(D, task->q_rows + i * D, task->k_columns + key * D, p + i * columns, columns,
                       false);
        tile->multiply(D, task->do_rows + i * D, task->v_columns + key * D, dp + i * columns,
                       columns, false);
    }
    row_dropout row = {.on = dropout->probability > 0.0f};
    uint64_t sample = row.on ? dropout->samples[task->b] : 0;
    uint64_t sample_key = tr_dropout_key(dropout->key, sample);
    row.threshold = tr_dropout_threshold(dropout->probability);
    for (int64_t i = first; i < task->num_queries; i++) {
        if (row.on)
            tr_cpu_dropout_words(sample_key, (uint32_t)sample,
                                 (uint32_t)(task->args->head_offset + task->head),
                                 (uint32_t)(task->query + i), key, columns, task->words);
        probability_row(task, i, key, p + i * columns, dp + i * columns, row);
    }
}

/* delta[i]: the sum of its lanes, by halving. */
static void sum_delta(backward_task *task)
{
    for (int64_t i = 0; i < task->num_queries; i++) {
        float *lanes = task->delta_lanes + i * task->columns;
        for (int64_t half = task->columns / 2; half > 0; half /= 2)
            for (int64_t c = 0; c < half; c++)
                lanes[c] += lanes[c + half];
        task->delta[i] = lanes[0];
    }
}

/* A row of one key panel: P and dP become M P and dS. */
TR_VEC_INLINE void gradient_row(const backward_task *task, int64_t i, float *p, float *ds)
{
    tr_vec delta = tr_vec_set(task->delta[i]);
    float scale = task->args->scale;
    for (int64_t c = 0; c < task->columns; c += TR_VEC_LANES) {
        tr_vec stored = tr_vec_load_f32(p + c);
        tr_vec prob = (tr_vec)((tr_vec_int)stored & 0x7fffffff);
        tr_vec kept = tr_vec_max(stored, tr_vec_zero()) * task->kept_scale;
        tr_vec_store_f32(p + c, kept);
        tr_vec_store_f32(ds + c, prob * (tr_vec_load_f32(ds + c) - delta) * scale);
    }
}

/* dS of the panel of keys at `key`, and what it adds to dK and dV. */
static void gradient_panel(backward_task *task, int64_t key, float *p, float *ds)
{
    const tr_cpu_tile *tile = task->tile;
    int64_t D = task->args->D, columns = task->columns, rows = task->rows;
    int64_t count = task->num_queries, first = first_query(task, key);
    for (int64_t i = first; i < count; i++)
        gradient_row(task, i, p + i * columns, ds + i * columns);
    float *dk = task->dk + key * task->depth, *dv = task->dv + key * task->depth;
    for (int64_t d = 0; d < D; d += rows) {
        int64_t at = d * count + first * rows;
        tile->multiply(count - first, task->do_columns + at, p + first * columns, dv + d * columns,
                       columns, true);
        tile->multiply(count - first, task->q_columns + at, ds + first * columns, dk + d * columns,
                       columns, true);
    }
}

/* dQ (+)= dS K over the block of keys that begins at `key` and has `num_panels` panels. A panel of queries takes the keys up to its own
 * diagonal block, whose rows are all written; queries past the sequence's end are lanes that nobody stores. */
static void backward_queries(backward_task *task, int64_t key, int64_t num_panels, const float *ds)
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
            tr_cpu_turn(ds + (panel * TR_ATTENTION_QUERIES + i) * columns, columns, columns,
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
    memset(task->delta_lanes, 0, (size_t)(task->num_queries * columns) * sizeof(float));
    for (int64_t key = 0; key < end; key += columns) {
        int64_t offset = key * TR_ATTENTION_QUERIES;
        probability_panel(task, key, task->p + offset, task->ds + offset);
    }
    sum_delta(task);
    for (int64_t key = 0; key < end; key += TR_ATTENTION_KEYS) {
        int64_t keys = end - key < TR_ATTENTION_KEYS ? end - key : TR_ATTENTION_KEYS;
        int64_t num_panels = (keys + columns - 1) / columns;
        for (int64_t panel = 0; panel < num_panels; panel++) {
            int64_t offset = (key + panel * columns) * TR_ATTENTION_QUERIES;
            gradient_panel(task, key + panel * columns, task->p + offset, task->ds + offset);
        }
        backward_queries(task, key, num_panels, task->ds + key * TR_ATTENTION_QUERIES);
    }
    store_rows(task, task->dq, task->query, task->num_queries, task->args->A, task->head,
               task->args->dq);
}

static void backward_piece(void *ctx, int64_t index, int thread)
{
    const backward_job *job = ctx;
    const tr_attention *args = job->args;
    backward_task task = make_task(job, index, thread);
    int64_t heads = gradient_heads(args), group = args->A / heads;
    pack_keys(&task);
    for (int64_t h = 0; h < group; h++) {
        task.head = task.gradient_head * group + h;
        for (task.query = 0; task.query < args->T; task.query += TR_ATTENTION_QUERIES) {
            int64_t left = args->T - task.query;
            task.num_queries = left < TR_ATTENTION_QUERIES ? left : TR_ATTENTION_QUERIES;
            backward_queries_block(&task);
        }
    }
    store_rows(&task, task.dk, 0, args->T, heads, task.gradient_head, args->dk);
    store_rows(&task, task.dv, 0, args->T, heads, task.gradient_head, args->dv);
}

static tr_status attention_backward(tr_device *device, const tr_attention *args)
{
    TR_ASSERT(args->A % args->K == 0 && args->A % gradient_heads(args) == 0);
    backward_job job = {.args = args, .tile = tr_cpu_tile_get()};
    job.plan = tr_cpu_attention_plan_backward(job.tile, args->T, args->D);
    job.threads = tr_cpu_workspace(device, sizeof(float) * (size_t)tr_cpu_num_threads(device) *
                                               (size_t)job.plan.thread);
    tr_cpu_parallel_for(device, args->B * gradient_heads(args), backward_piece, &job);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_attention_backward_ops)(tr_ops *ops)
{
    ops->attention_backward = attention_backward;
}
