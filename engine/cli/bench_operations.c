/* The second table of `trine bench kernels`: operations other than products, in GB/s of what they must read and write. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/cli/cmd_bench_int.h"

/* Tensors that every operation of the table uses as it needs; made once for a dtype. */
typedef struct tensors {
    tr_dtype dtype;
    void *wide[4];       /* [rows, F] in dtype */
    void *logits;        /* [rows, V] in dtype */
    void *table;         /* [V, H] in dtype */
    float *fp32[2];      /* [rows, H] */
    float *parameter[4]; /* [F, H, 4]: grad, master, m, v */
    float *row[2];       /* [rows, heads]: mean or lse, rstd */
    float *pair;         /* [rows, 2] */
    float *weight[2];    /* [H] fp32: gradients */
    float *cos_sin;      /* [T, D] */
    int32_t *ids;        /* [rows] */
    tr_step_state *step;
    unsigned char *memory;
    size_t bytes;
} tensors;

enum { PARAMETERS = 4 * BENCH_F * BENCH_H };

/* Lays the tensors out from `base`, or only counts (base NULL); returns the bytes. */
static size_t tensors_place(tensors *t, unsigned char *base)
{
    size_t size = tr_dtype_size(t->dtype), used = 0;
#define PLACE(field, bytes_)                                                                       \
    do {                                                                                           \
        (field) = base == NULL ? NULL : (void *)(base + used);                                     \
        used += ((size_t)(bytes_) + 255) & ~(size_t)255;                                           \
    } while (0)
    for (int i = 0; i < 4; i++)
        PLACE(t->wide[i], (size_t)BENCH_ROWS * BENCH_F * size);
    PLACE(t->logits, (size_t)BENCH_ROWS * BENCH_V * size);
    PLACE(t->table, (size_t)BENCH_V * BENCH_H * size);
    for (int i = 0; i < 2; i++)
        PLACE(t->fp32[i], (size_t)BENCH_ROWS * BENCH_H * 4);
    for (int i = 0; i < 4; i++)
        PLACE(t->parameter[i], (size_t)PARAMETERS * 4);
    for (int i = 0; i < 2; i++)
        PLACE(t->row[i], (size_t)BENCH_ROWS * BENCH_HEADS * 4);
    PLACE(t->pair, (size_t)BENCH_ROWS * 2 * 4);
    for (int i = 0; i < 2; i++)
        PLACE(t->weight[i], (size_t)BENCH_H * 4);
    PLACE(t->cos_sin, (size_t)BENCH_T * BENCH_D * 4);
    PLACE(t->ids, (size_t)BENCH_ROWS * 4);
    PLACE(t->step, sizeof *t->step);
#undef PLACE
    return used;
}

static tr_status fill(const bench *b, tr_dtype dtype, void *dst, int64_t n, float *scratch)
{
    enum { RUN = 1 << 16 };
    for (int64_t i = 0; i < RUN; i++)
        scratch[i] = (float)((i * 7919) % 1000) * 0.002f - 1.0f;
    for (int64_t i = 0; i < n; i += RUN)
        TR_TRY(b->device->ops->convert(b->device, n - i < RUN ? n - i : RUN, TR_F32, scratch, dtype,
                                       (char *)dst + (size_t)i * tr_dtype_size(dtype)));
    return TR_OK;
}

static tr_status tensors_create(const bench *b, tr_dtype dtype, tensors *t)
{
    memset(t, 0, sizeof *t);
    t->dtype = dtype;
    t->bytes = tensors_place(t, NULL);
    void *memory;
    TR_TRY(b->device->memory_create(b->device, TR_MEMORY_DEVICE, t->bytes, &memory));
    t->memory = memory;
    tensors_place(t, t->memory);
    float *scratch = t->parameter[3];
    for (int i = 0; i < 4; i++)
        TR_TRY(fill(b, dtype, t->wide[i], (int64_t)BENCH_ROWS * BENCH_F, scratch));
    TR_TRY(fill(b, dtype, t->logits, (int64_t)BENCH_ROWS * BENCH_V, scratch));
    TR_TRY(fill(b, dtype, t->table, (int64_t)BENCH_V * BENCH_H, scratch));
    for (int i = 0; i < 2; i++)
        TR_TRY(fill(b, TR_F32, t->fp32[i], (int64_t)BENCH_ROWS * BENCH_H, scratch));
    for (int i = 0; i < 2; i++)
        TR_TRY(fill(b, TR_F32, t->parameter[i], PARAMETERS, scratch));
    for (int64_t i = 0; i < BENCH_T * BENCH_D; i++)
        t->cos_sin[i] = (float)(i % 2);
    for (int64_t i = 0; i < BENCH_ROWS; i++) {
        t->ids[i] = (int32_t)(i * 7919 % BENCH_V);
        t->row[1][i] = 1.0f;
    }
    *t->step = (tr_step_state){
        .grad_scale = 1.0f, .lr = 1e-4f, .bias1 = 0.5f, .bias2 = 0.5f, .backward_scale = 1.0f};
    return TR_OK;
}

static tr_attention attention_args(const tensors *t)
{
    return (tr_attention){.B = BENCH_B,
                          .T = BENCH_T,
                          .A = BENCH_HEADS,
                          .K = BENCH_HEADS,
                          .D = BENCH_D,
                          .dtype = t->dtype,
                          .scale = 0.125f,
                          .q = t->wide[0],
                          .k = t->wide[1],
                          .v = t->wide[2],
                          .out = t->wide[3],
                          .lse = t->row[0],
                          .dout = t->table,
                          .dq = t->fp32[0],
                          .dk = t->fp32[1],
                          .dv = t->logits};
}

static const tr_dropout no_dropout = {0};

/* The operations: name, bytes that must move for a dtype of `size` bytes, and the call. */
typedef struct operation {
    const char *name;
    double elements, fp32; /* numbers moved in dtype and in fp32 */
    double work;           /* floating-point operations, where they count more than bytes; else 0 */
    tr_status (*run)(const bench *b, const tensors *t);
} operation;

#define OPERATION(name, ...)                                                                       \
    static tr_status name(const bench *b, const tensors *t)                                        \
    {                                                                                              \
        const tr_ops *ops = b->device->ops;                                                        \
        return ops->__VA_ARGS__;                                                                   \
    }
#define DEVICE b->device
#define ROW_SIZES t->dtype, BENCH_ROWS, BENCH_H
enum { WIDE = BENCH_ROWS * BENCH_F, NARROW = BENCH_ROWS * BENCH_H };

static tr_status run_attention_forward(const bench *b, const tensors *t)
{
    tr_attention args = attention_args(t);
    return b->device->ops->attention_forward(b->device, &args);
}
static tr_status run_attention_backward(const bench *b, const tensors *t)
{
    tr_attention args = attention_args(t);
    return b->device->ops->attention_backward(b->device, &args);
}
static tr_status run_adamw(const bench *b, const tensors *t)
{
    const tr_adamw args = {.n = PARAMETERS,
                           .master = t->parameter[1],
                           .m = t->parameter[2],
                           .v = t->parameter[3],
                           .grad = t->parameter[0],
                           .step = t->step,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .weight_decay = 0.1f,
                           .compute = t->logits,
                           .dtype = t->dtype};
    return b->device->ops->adamw(b->device, &args);
}
OPERATION(run_rms_forward, norm_forward(DEVICE, TR_NORM_KIND_RMS, ROW_SIZES, 1e-5f, t->wide[0],
                                        t->table, NULL, t->wide[1], NULL, t->row[1]))
OPERATION(run_rms_backward,
          norm_backward(DEVICE, TR_NORM_KIND_RMS, ROW_SIZES, t->fp32[0], t->wide[0], t->table, NULL,
                        t->row[1], t->wide[2], t->wide[1], t->weight[0], NULL, true))
OPERATION(run_layer_forward, norm_forward(DEVICE, TR_NORM_KIND_LAYER, ROW_SIZES, 1e-5f, t->wide[0],
                                          t->table, t->table, t->wide[1], t->row[0], t->row[1]))
OPERATION(run_layer_backward, norm_backward(DEVICE, TR_NORM_KIND_LAYER, ROW_SIZES, t->fp32[0],
                                            t->wide[0], t->table, t->row[0], t->row[1], t->wide[2],
                                            t->wide[1], t->weight[0], t->weight[1], true))
OPERATION(run_residual,
          residual_add(DEVICE, ROW_SIZES, 0, t->wide[0], t->fp32[0], NULL, &no_dropout, t->wide[1]))
OPERATION(run_rope, rope(DEVICE, t->dtype, BENCH_B, BENCH_T, BENCH_HEADS, BENCH_D, t->cos_sin,
                         false, t->wide[0]))
OPERATION(run_swiglu_forward,
          swiglu_forward(DEVICE, t->dtype, WIDE, t->wide[0], t->wide[1], t->wide[2]))
OPERATION(run_swiglu_backward, swiglu_backward(DEVICE, t->dtype, WIDE, t->wide[0], t->wide[1],
                                               t->wide[2], t->wide[3], t->logits))
OPERATION(run_gelu_forward, gelu_forward(DEVICE, t->dtype, WIDE, t->wide[0], t->wide[1]))
OPERATION(run_gelu_backward,
          gelu_backward(DEVICE, t->dtype, WIDE, t->wide[0], t->wide[1], t->wide[2]))
OPERATION(run_embed, embed_forward(DEVICE, ROW_SIZES, BENCH_V, 0, t->ids, t->table, t->fp32[0]))
OPERATION(run_xent_max,
          xent_max(DEVICE, t->dtype, BENCH_ROWS, BENCH_V, BENCH_V, t->logits, t->row[0]))
OPERATION(run_xent_sum, xent_sum(DEVICE, t->dtype, BENCH_ROWS, BENCH_V, BENCH_V, 0, t->logits,
                                 t->ids, t->row[0], t->pair))
OPERATION(run_xent_backward,
          xent_backward(DEVICE, t->dtype, BENCH_ROWS, BENCH_V, BENCH_V, 0, t->logits, t->ids,
                        t->row[0], t->pair, &t->step->backward_scale))

#define LOGITS ((double)BENCH_ROWS * BENCH_V)
/* Half of B heads T^2 pairs; two products forward, five backward, 2 D operations each. */
#define PAIRS ((double)BENCH_B * BENCH_HEADS * BENCH_T * BENCH_T / 2)

static const operation operations[] = {
    {"attention forward", 4.0 * NARROW, 0, 2 * PAIRS * 2 * BENCH_D, run_attention_forward},
    {"attention backward", 8.0 * NARROW, 0, 5 * PAIRS * 2 * BENCH_D, run_attention_backward},
    {"rms norm forward", 2.0 * NARROW, 0, 0, run_rms_forward},
    {"rms norm backward", 3.0 * NARROW, NARROW, 0, run_rms_backward},
    {"layer norm forward", 2.0 * NARROW, 0, 0, run_layer_forward},
    {"layer norm backward", 3.0 * NARROW, NARROW, 0, run_layer_backward},
    {"residual add", 2.0 * NARROW, NARROW, 0, run_residual},
    {"rope", 2.0 * NARROW, 0, 0, run_rope},
    {"swiglu forward", 3.0 * WIDE, 0, 0, run_swiglu_forward},
    {"swiglu backward", 5.0 * WIDE, 0, 0, run_swiglu_backward},
    {"gelu forward", 2.0 * WIDE, 0, 0, run_gelu_forward},
    {"gelu backward", 3.0 * WIDE, 0, 0, run_gelu_backward},
    {"embedding forward", NARROW, NARROW, 0, run_embed},
    {"loss: maximum", LOGITS, 0, 0, run_xent_max},
    {"loss: sum", LOGITS, 0, 0, run_xent_sum},
    {"loss: gradient", 2 * LOGITS, 0, 0, run_xent_backward},
    {"adamw", PARAMETERS, 7.0 * PARAMETERS, 0, run_adamw},
};

static tr_status operation_line(const bench *b, const tensors *t, const operation *op)
{
    double seconds[BENCH_RUNS_MAX];
    for (int run = -1; run < b->runs; run++) { /* run -1 warms up */
        double begin = tr_clock_seconds();
        TR_TRY(op->run(b, t));
        if (run >= 0)
            seconds[run] = tr_clock_seconds() - begin;
    }
    double median = bench_median(seconds, b->runs);
    double bytes = op->elements * (double)tr_dtype_size(t->dtype) + 4.0 * op->fp32;
    printf("  %-31s %9.3f ms  %7.1f GB/s", op->name, median * 1e3, bytes * 1e-9 / median);
    if (op->work > 0)
        printf("  %7.1f GFLOP/s", op->work * 1e-9 / median);
    printf("\n");
    fflush(stdout);
    return TR_OK;
}

tr_status bench_operations(const bench *b, tr_dtype dtype)
{
    tensors t;
    tr_status status = tensors_create(b, dtype, &t);
    printf("\noperations in %s, %d thread%s (%d rows)\n", tr_dtype_name(dtype), b->num_threads,
           b->num_threads == 1 ? "" : "s", BENCH_ROWS);
    for (size_t i = 0; i < sizeof operations / sizeof *operations && status == TR_OK; i++)
        status = operation_line(b, &t, &operations[i]);
    if (t.memory != NULL)
        b->device->memory_destroy(b->device, TR_MEMORY_DEVICE, t.memory, t.bytes);
    return status;
}
