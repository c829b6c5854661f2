#include "tests/bench/op_times.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

typedef struct op_row {
    const char *name;
    int64_t M, N, K; /* products only */
    int64_t calls;
    double seconds, processor, flops;
} op_row;

/* When an operation began. */
typedef struct mark {
    double seconds, processor;
} mark;

enum { MAX_ROWS = 96 };
static op_row rows[MAX_ROWS];
static int num_rows;
static const tr_ops *original;
static tr_ops timed;

static mark mark_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (mark){tr_clock_seconds(), (double)t.tv_sec + 1e-9 * (double)t.tv_nsec};
}

static void note(const char *name, int64_t M, int64_t N, int64_t K, double flops, mark begin)
{
    mark end = mark_now();
    int i = 0;
    while (i < num_rows &&
           (rows[i].name != name || rows[i].M != M || rows[i].N != N || rows[i].K != K))
        i++;
    TR_ASSERT(i < MAX_ROWS);
    if (i == num_rows)
        rows[num_rows++] = (op_row){.name = name, .M = M, .N = N, .K = K};
    rows[i].calls++;
    rows[i].seconds += end.seconds - begin.seconds;
    rows[i].processor += end.processor - begin.processor;
    rows[i].flops += flops;
}

static tr_status timed_matmul(tr_device *device, const tr_matmul *args)
{
    static const char *const names[3][2] = {
        [TR_MATMUL_NT] = {"product", "product, added"},
        [TR_MATMUL_NN] = {"input gradient", "input gradient, added"},
        [TR_MATMUL_TN] = {"weight gradient", "weight gradient, added"}};
    mark begin = mark_now();
    tr_status status = original->matmul(device, args);
    note(names[args->form][args->accumulate], args->M, args->N, args->K,
         2.0 * (double)args->M * (double)args->N * (double)args->K, begin);
    return status;
}

/* Causal: half of the score matrix. Forward multiplies by it twice, backward five times. */
static double attention_flops(const tr_attention *args, double products)
{
    return products * (double)(args->B * args->A * args->D) * (double)(args->T * args->T);
}

static tr_status timed_attention_forward(tr_device *device, const tr_attention *args)
{
    mark begin = mark_now();
    tr_status status = original->attention_forward(device, args);
    note("attention forward", 0, 0, 0, attention_flops(args, 2), begin);
    return status;
}

static tr_status timed_attention_backward(tr_device *device, const tr_attention *args)
{
    mark begin = mark_now();
    tr_status status = original->attention_backward(device, args);
    note("attention backward", 0, 0, 0, attention_flops(args, 5), begin);
    return status;
}

/* An entry that only moves and transforms elements: its arguments in brackets, then their names. */
#define TIMED(entry, parameters, arguments)                                                        \
    static tr_status timed_##entry parameters                                                      \
    {                                                                                              \
        mark begin = mark_now();                                                                   \
        tr_status status = original->entry arguments;                                              \
        note(#entry, 0, 0, 0, 0, begin);                                                           \
        return status;                                                                             \
    }

/* clang-format off */
TIMED(embed_forward, (tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V, int64_t vocab_begin,
                      const int32_t *ids, const void *table, float *out),
      (device, dtype, R, H, V, vocab_begin, ids, table, out))
TIMED(embed_finish, (tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t row_begin, const float *in,
                     const void *positions, const tr_dropout *dropout, void *out),
      (device, dtype, R, H, row_begin, in, positions, dropout, out))
TIMED(embed_backward, (tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V, int64_t vocab_begin,
                       const int32_t *ids, const void *dx, float *dtable, bool accumulate),
      (device, dtype, R, H, V, vocab_begin, ids, dx, dtable, accumulate))
TIMED(position_backward, (tr_device *device, tr_dtype dtype, int64_t B, int64_t T, int64_t H, const void *dx,
                          float *dpositions, bool accumulate),
      (device, dtype, B, T, H, dx, dpositions, accumulate))
TIMED(norm_forward, (tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R, int64_t H, float eps,
                     const void *x, const void *weight, const void *bias, void *out, float *mean, float *rstd),
      (device, kind, dtype, R, H, eps, x, weight, bias, out, mean, rstd))
TIMED(norm_backward, (tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R, int64_t H, const float *dy,
                      const void *x, const void *weight, const float *mean, const float *rstd,
                      const void *dresidual, void *dx, float *dweight, float *dbias, bool accumulate),
      (device, kind, dtype, R, H, dy, x, weight, mean, rstd, dresidual, dx, dweight, dbias, accumulate))
TIMED(residual_add, (tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t row_begin, const void *x,
                     const float *y, const void *bias, const tr_dropout *dropout, void *out),
      (device, dtype, R, H, row_begin, x, y, bias, dropout, out))
TIMED(dropout_backward, (tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t row_begin,
                         const void *dy, const tr_dropout *dropout, void *out),
      (device, dtype, R, H, row_begin, dy, dropout, out))
TIMED(column_sum, (tr_device *device, tr_dtype dtype, int64_t R, int64_t N, const void *dy, float *out,
                   bool accumulate),
      (device, dtype, R, N, dy, out, accumulate))
TIMED(rope, (tr_device *device, tr_dtype dtype, int64_t B, int64_t T, int64_t heads, int64_t D,
             const float *cos_sin, bool backward, void *x),
      (device, dtype, B, T, heads, D, cos_sin, backward, x))
TIMED(swiglu_forward, (tr_device *device, tr_dtype dtype, int64_t n, const void *gate, const void *up, void *out),
      (device, dtype, n, gate, up, out))
TIMED(swiglu_backward, (tr_device *device, tr_dtype dtype, int64_t n, const void *gate, const void *up,
                        const void *dout, void *dgate, void *dup),
      (device, dtype, n, gate, up, dout, dgate, dup))
TIMED(gelu_forward, (tr_device *device, tr_dtype dtype, int64_t n, const void *x, void *out),
      (device, dtype, n, x, out))
TIMED(gelu_backward, (tr_device *device, tr_dtype dtype, int64_t n, const void *x, const void *dout, void *dx),
      (device, dtype, n, x, dout, dx))
TIMED(xent_max, (tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride, const void *logits,
                 float *max),
      (device, dtype, R, V, stride, logits, max))
TIMED(xent_sum, (tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride, int64_t vocab_begin,
                 const void *logits, const int32_t *labels, const float *max, float *sum_target),
      (device, dtype, R, V, stride, vocab_begin, logits, labels, max, sum_target))
TIMED(xent_backward, (tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                      int64_t vocab_begin, void *logits, const int32_t *labels, const float *max,
                      const float *sum_target, const float *scale),
      (device, dtype, R, V, stride, vocab_begin, logits, labels, max, sum_target, scale))
TIMED(loss_sum, (tr_device *device, int64_t R, const int32_t *labels, const float *max, const float *sum_target,
                 int64_t *limbs),
      (device, R, labels, max, sum_target, limbs))
TIMED(decide, (tr_device *device, const tr_decision *args), (device, args))
TIMED(adamw, (tr_device *device, const tr_adamw *args), (device, args))
TIMED(sgd, (tr_device *device, const tr_adamw *args), (device, args))
TIMED(square_sum, (tr_device *device, int64_t n, const float *x, int64_t *limbs), (device, n, x, limbs))
TIMED(convert, (tr_device *device, int64_t n, tr_dtype src_dtype, const void *src, tr_dtype dst_dtype, void *dst),
      (device, n, src_dtype, src, dst_dtype, dst))
TIMED(fill_zero, (tr_device *device, void *dst, int64_t bytes), (device, dst, bytes))
TIMED(tree_sum, (tr_device *device, int64_t n, int count, const float *const *src, float *dst),
      (device, n, count, src, dst))
/* clang-format on */

void op_times_wrap(void *context, tr_device *device)
{
    (void)context;
    original = device->ops;
    timed = (tr_ops){.name = original->name,
                     .matmul = timed_matmul,
                     .embed_forward = timed_embed_forward,
                     .embed_finish = timed_embed_finish,
                     .embed_backward = timed_embed_backward,
                     .position_backward = timed_position_backward,
                     .norm_forward = timed_norm_forward,
                     .norm_backward = timed_norm_backward,
                     .residual_add = timed_residual_add,
                     .residual_norm = original->residual_norm, /* its two parts are timed */
                     .dropout_backward = timed_dropout_backward,
                     .column_sum = timed_column_sum,
                     .rope = timed_rope,
                     .attention_forward = timed_attention_forward,
                     .attention_backward = timed_attention_backward,
                     .swiglu_forward = timed_swiglu_forward,
                     .swiglu_backward = timed_swiglu_backward,
                     .gelu_forward = timed_gelu_forward,
                     .gelu_backward = timed_gelu_backward,
                     .xent_max = timed_xent_max,
                     .xent_sum = timed_xent_sum,
                     .xent_backward = timed_xent_backward,
                     .loss_sum = timed_loss_sum,
                     .decide = timed_decide,
                     .adamw = timed_adamw,
                     .sgd = timed_sgd,
                     .square_sum = timed_square_sum,
                     .convert = timed_convert,
                     .fill_zero = timed_fill_zero,
                     .tree_sum = timed_tree_sum};
    device->ops = &timed;
}

void op_times_reset(void)
{
    num_rows = 0;
}

double op_times_total(void)
{
    double total = 0;
    for (int i = 0; i < num_rows; i++)
        total += rows[i].seconds;
    return total;
}

static int compare_rows(const void *a, const void *b)
{
    double x = ((const op_row *)a)->seconds, y = ((const op_row *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

void op_times_print(FILE *file, int steps, double step_seconds)
{
    qsort(rows, (size_t)num_rows, sizeof *rows, compare_rows);
    fprintf(file, "  %-23s %21s %5s %9s %7s %9s %9s\n", "operation", "M x     N x    K", "calls",
            "ms", "share", "GFLOP/s", "cpu ms");
    for (int i = 0; i < num_rows; i++) {
        const op_row *row = &rows[i];
        double seconds = row->seconds / steps;
        char size[40] = "", rate[16] = "";
        if (row->M > 0)
            snprintf(size, sizeof size, "%5lld x %5lld x %5lld", (long long)row->M,
                     (long long)row->N, (long long)row->K);
        if (row->flops > 0)
            snprintf(rate, sizeof rate, "%.1f", row->flops / row->seconds * 1e-9);
        fprintf(file, "  %-23s %21s %5lld %9.1f %6.1f%% %9s %9.1f\n", row->name, size,
                (long long)(row->calls / steps), seconds * 1e3, 100 * seconds / step_seconds, rate,
                row->processor / steps * 1e3);
    }
    double rest = step_seconds - op_times_total() / steps;
    fprintf(file, "  %-23s %21s %5s %9.1f %6.1f%%\n", "outside of operations", "", "", rest * 1e3,
            100 * rest / step_seconds);
}
