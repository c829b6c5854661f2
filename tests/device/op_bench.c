/* Each operation's time on a device against the time below which its bytes and its matrix FLOP cannot be moved and done:
 *
 *     op_bench [--device cuda|cpu] [--small] [--gb-s N] [--tflop-s N]
 *
 * Shapes are those of docs/roofline.md, a microbatch of a 1.3B Llama in bf16 (--small: tiny ones, to see that all runs). The rates of the floor are
 * an H200's datasheet (4800 GB/s, 989 TFLOP/s) unless given; the first lines show what a plain copy and a large product reach. A time
 * is the mean of calls enqueued one after the other, at least 30 ms of them after a warm-up, by the host's clock: launches of less than some
 * microseconds show the host's rate. Memory holds random values, never zeros, which run faster. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device.h"
#include "kernels/device_host.h"

typedef struct shapes {
    int64_t B, T, H, F, A, K, D, V, n;
} shapes;

static const shapes full = {4, 2048, 2048, 5504, 16, 16, 128, 32000, (int64_t)1 << 28};
static const shapes small = {2, 64, 64, 176, 4, 2, 16, 512, 1 << 16};

enum { NUM_BUFFERS = 6, NUM_SUMMED = 4 };

/* Six buffers as large as the largest operand; each case takes those that it needs. */
typedef struct bench {
    tr_device *device;
    shapes s;
    int64_t R;
    double bytes_per_second, flop_per_second;
    size_t buffer_bytes;
    char *memory, *workspace;
    size_t workspace_bytes;
    void *buffer[NUM_BUFFERS];
    int32_t *ids;   /* [R]; labels too */
    float *rows;    /* [B,A,T] at least, four times */
    float *cos_sin; /* [T, D/2, 2] */
    int64_t *limbs; /* zeros */
    tr_step_state *step;
    uint64_t *samples;
    tr_dropout off, on;
    tr_attention attention;
    tr_matmul product;
} bench;

typedef tr_status (*operation)(bench *b);

static void check(const char *what, tr_status status)
{
    if (status == TR_OK)
        return;
    fprintf(stderr, "error: op_bench: %s: %s\n", what, tr_error_message());
    exit(1);
}

/* Seconds of one call. */
static double time_of(bench *b, const char *name, operation run)
{
    tr_device *device = b->device;
    int64_t calls = 2;
    double least = b->s.n == small.n ? 0.0 : 0.03;
    for (;;) {
        check(name, device->synchronize(device, TR_STREAM_COMPUTE));
        double begin = tr_clock_seconds();
        for (int64_t i = 0; i < calls; i++)
            check(name, run(b));
        check(name, device->synchronize(device, TR_STREAM_COMPUTE));
        double seconds = tr_clock_seconds() - begin;
        if (seconds >= least && calls > 2)
            return seconds / (double)calls;
        double more = seconds > 0 ? 1.3 * least / seconds : 1000;
        calls = (int64_t)((double)calls * (more < 1 ? 1 : more > 1000 ? 1000 : more)) + 1;
    }
}

/* bytes and flop: what the operation must move and do on the matrix units. */
static void line(bench *b, const char *name, double bytes, double flop, operation run)
{
    double seconds = time_of(b, name, run);
    double floor = fmax(bytes / b->bytes_per_second, flop / b->flop_per_second);
    printf("%-30s %10.1f us %8.0f GB/s %8.1f TFLOP/s   floor %9.1f us   %5.1f%% of it\n", name,
           seconds * 1e6, bytes / seconds * 1e-9, flop / seconds * 1e-12, floor * 1e6,
           100 * floor / seconds);
    fflush(stdout);
}

#define OP(b, entry, ...) (b)->device->ops->entry((b)->device, __VA_ARGS__)

static tr_status run_copy(bench *b)
{
    tr_copy copy = {b->buffer[1], b->buffer[0], b->buffer_bytes};
    return OP(b, copy_many, 1, &copy);
}
static tr_status run_zero(bench *b)
{
    return OP(b, fill_zero, b->buffer[5], 4 * b->s.V * b->s.H);
}
static tr_status run_convert(bench *b)
{
    return OP(b, convert, b->s.n, TR_F32, b->buffer[0], TR_BF16, b->buffer[1]);
}
static tr_status run_product(bench *b)
{
    return OP(b, matmul, &b->product);
}
static tr_status run_embed_forward(bench *b)
{
    return OP(b, embed_forward, TR_BF16, b->R, b->s.H, b->s.V, 0, b->ids, b->buffer[0],
              b->buffer[1]);
}
static tr_status run_embed_finish(bench *b)
{
    return OP(b, embed_finish, TR_BF16, b->R, b->s.H, 0, b->buffer[0], NULL, &b->off, b->buffer[1]);
}
static tr_status run_embed_backward(bench *b)
{
    return OP(b, embed_backward, TR_BF16, b->R, b->s.H, b->s.V, 0, b->ids, b->buffer[0],
              b->buffer[5], true);
}
static tr_status run_position_backward(bench *b)
{
    return OP(b, position_backward, TR_BF16, b->s.B, b->s.T, b->s.H, b->buffer[0], b->buffer[5],
              true);
}
static tr_status run_norm_forward(bench *b)
{
    return OP(b, norm_forward, TR_NORM_KIND_RMS, TR_BF16, b->R, b->s.H, 1e-5f, b->buffer[0],
              b->buffer[2], NULL, b->buffer[1], NULL, b->rows);
}
static tr_status run_norm_backward(bench *b)
{
    return OP(b, norm_backward, TR_NORM_KIND_RMS, TR_BF16, b->R, b->s.H, b->buffer[0], b->buffer[1],
              b->buffer[2], NULL, b->rows, b->buffer[3], b->buffer[4], b->buffer[5], NULL, true);
}
static tr_status run_residual_add(bench *b)
{
    return OP(b, residual_add, TR_BF16, b->R, b->s.H, 0, b->buffer[0], b->buffer[1], NULL, &b->off,
              b->buffer[2]);
}
static tr_status run_residual_add_dropout(bench *b)
{
    return OP(b, residual_add, TR_BF16, b->R, b->s.H, 0, b->buffer[0], b->buffer[1], NULL, &b->on,
              b->buffer[2]);
}
static tr_status run_residual_norm(bench *b)
{
    const tr_residual_norm args = {.kind = TR_NORM_KIND_RMS,
                                   .dtype = TR_BF16,
                                   .R = b->R,
                                   .H = b->s.H,
                                   .x = b->buffer[0],
                                   .y = b->buffer[1],
                                   .out = b->buffer[2],
                                   .eps = 1e-5f,
                                   .weight = b->buffer[3],
                                   .normed = b->buffer[4],
                                   .rstd = b->rows};
    return OP(b, residual_norm, &args);
}
static tr_status run_dropout_backward(bench *b)
{
    return OP(b, dropout_backward, TR_BF16, b->R, b->s.H, 0, b->buffer[0], &b->on, b->buffer[2]);
}
static tr_status run_column_sum(bench *b)
{
    return OP(b, column_sum, TR_BF16, b->R, 3 * b->s.H, b->buffer[0], b->buffer[5], true);
}
static tr_status run_rope(bench *b)
{
    return OP(b, rope, TR_BF16, b->s.B, b->s.T, b->s.A, b->s.D, b->cos_sin, false, b->buffer[5]);
}
static tr_status run_attention_forward(bench *b)
{
    return OP(b, attention_forward, &b->attention);
}
static tr_status run_attention_backward(bench *b)
{
    return OP(b, attention_backward, &b->attention);
}
static tr_status run_swiglu_forward(bench *b)
{
    return OP(b, swiglu_forward, TR_BF16, b->R * b->s.F, b->buffer[0], b->buffer[1], b->buffer[2]);
}
static tr_status run_swiglu_backward(bench *b)
{
    return OP(b, swiglu_backward, TR_BF16, b->R * b->s.F, b->buffer[0], b->buffer[1], b->buffer[2],
              b->buffer[3], b->buffer[4]);
}
static tr_status run_gelu_forward(bench *b)
{
    return OP(b, gelu_forward, TR_BF16, b->R * b->s.F, b->buffer[0], b->buffer[1]);
}
static tr_status run_gelu_backward(bench *b)
{
    return OP(b, gelu_backward, TR_BF16, b->R * b->s.F, b->buffer[0], b->buffer[1], b->buffer[2]);
}
static tr_status run_xent_max(bench *b)
{
    return OP(b, xent_max, TR_BF16, b->R, b->s.V, b->s.V, b->buffer[5], b->rows);
}
static tr_status run_xent_sum(bench *b)
{
    return OP(b, xent_sum, TR_BF16, b->R, b->s.V, b->s.V, 0, b->buffer[5], b->ids, b->rows,
              b->rows + b->R);
}
static tr_status run_xent_backward(bench *b)
{
    return OP(b, xent_backward, TR_BF16, b->R, b->s.V, b->s.V, 0, b->buffer[5], b->ids, b->rows,
              b->rows + b->R, &b->step->backward_scale);
}
static tr_status run_loss_sum(bench *b)
{
    return OP(b, loss_sum, b->R, b->ids, b->rows, b->rows + b->R, b->limbs);
}
static tr_status run_square_sum(bench *b)
{
    return OP(b, square_sum, b->s.n, b->buffer[0], b->limbs);
}
static tr_status run_tree_sum(bench *b)
{
    const float *sources[NUM_SUMMED] = {b->buffer[0], b->buffer[1], b->buffer[2], b->buffer[3]};
    return OP(b, tree_sum, b->s.n, NUM_SUMMED, sources, b->buffer[4]);
}
static tr_status run_decide(bench *b)
{
    const tr_decision args = {.num_parts = 1,
                              .sums = b->limbs,
                              .token_scale = 1.0,
                              .clip = 1.0,
                              .lr = 1e-4f,
                              .bias1 = 0.1f,
                              .bias2 = 0.05f,
                              .state = b->step};
    return OP(b, decide, &args);
}
static tr_status run_adamw(bench *b)
{
    tr_adamw args = {.n = b->s.n,
                     .master = b->buffer[0],
                     .m = b->buffer[1],
                     .v = b->buffer[2],
                     .grad = b->buffer[3],
                     .step = b->step,
                     .beta1 = 0.9f,
                     .beta2 = 0.95f,
                     .eps = 1e-8f,
                     .weight_decay = 0.1f,
                     .compute = b->buffer[4],
                     .dtype = TR_BF16};
    return OP(b, adamw, &args);
}

/* ---- set-up ---- */

/* Random values that are fine as bf16 and as fp32: magnitudes of 2^-7 to 1, of both signs. */
static void fill_random(bench *b)
{
    const size_t chunk = (size_t)1 << 20;
    uint16_t *values = TR_NEW_ARRAY(uint16_t, chunk / 2);
    for (int k = 0; k < NUM_BUFFERS; k++) {
        for (size_t i = 0; i < chunk / 2; i++) {
            uint64_t noise = tr_hash_mix((uint64_t)k, i);
            values[i] = (uint16_t)((noise & 0x807f) | (120 + (noise >> 16) % 7) << 7);
        }
        char *dst = b->buffer[k];
        size_t first = b->buffer_bytes < chunk ? b->buffer_bytes : chunk;
        check("upload", tr_device_write(b->device, dst, values, first));
        for (size_t have = first, more; have < b->buffer_bytes; have += more) {
            more = b->buffer_bytes - have < have ? b->buffer_bytes - have : have;
            tr_copy copy = {dst + have, dst, more};
            check("copy_many", OP(b, copy_many, 1, &copy));
        }
    }
    tr_free(values);
}

static void upload_small(bench *b)
{
    int32_t *ids = TR_NEW_ARRAY(int32_t, (size_t)b->R);
    for (int64_t r = 0; r < b->R; r++)
        ids[r] = (int32_t)(tr_hash_mix(99, (uint64_t)r) % (uint64_t)b->s.V);
    check("upload", tr_device_write(b->device, b->ids, ids, (size_t)b->R * sizeof *ids));
    tr_free(ids);
    int64_t angles = b->s.T * b->s.D;
    float *cos_sin = TR_NEW_ARRAY(float, (size_t)angles);
    for (int64_t i = 0; i < angles; i += 2) {
        cos_sin[i] = cosf((float)i);
        cos_sin[i + 1] = sinf((float)i);
    }
    check("upload", tr_device_write(b->device, b->cos_sin, cos_sin, (size_t)angles * 4));
    tr_free(cos_sin);
    uint64_t *samples = TR_NEW_ARRAY(uint64_t, (size_t)b->s.B);
    for (int64_t i = 0; i < b->s.B; i++)
        samples[i] = (uint64_t)i;
    check("upload", tr_device_write(b->device, b->samples, samples, (size_t)b->s.B * 8));
    tr_free(samples);
    const tr_step_state step = {.loss_scale = 1.0,
                                .grad_scale = 1.0f,
                                .lr = 1e-4f,
                                .bias1 = 0.1f,
                                .bias2 = 0.05f,
                                .backward_scale = 1.0f / (float)b->R};
    check("upload", tr_device_write(b->device, b->step, &step, sizeof step));
}

static size_t align(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

static void set_up(bench *b)
{
    const shapes *s = &b->s;
    b->R = s->B * s->T;
    int64_t largest = 4 * s->n;
    int64_t others[] = {2 * b->R * s->V, 4 * s->V * s->H, 2 * b->R * s->F, 12 * b->R * s->H};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        largest = others[i] > largest ? others[i] : largest;
    b->buffer_bytes = align((size_t)largest);
    tr_workspace_need need = {TR_BF16, s->B, s->T, s->H,
                              s->A,    s->K, s->D, s->V > s->F ? s->V : s->F};
    b->workspace_bytes = align(b->device->workspace_bytes(b->device, &need));
    size_t rows = align(4 * sizeof(float) * (size_t)(b->R * s->A)), ids = align((size_t)b->R * 4);
    size_t angles = align((size_t)(s->T * s->D) * 4), samples = align((size_t)s->B * 8);
    size_t limbs = align(sizeof(int64_t) * TR_STEP_SUMS), step = align(sizeof(tr_step_state));
    size_t bytes = NUM_BUFFERS * b->buffer_bytes + b->workspace_bytes + rows + ids + angles +
                   samples + limbs + step;
    void *memory;
    check("memory", b->device->memory_create(b->device, TR_MEMORY_DEVICE, bytes, &memory));
    b->memory = memory;
    char *at = b->memory;
    for (int k = 0; k < NUM_BUFFERS; k++, at += b->buffer_bytes)
        b->buffer[k] = at;
    b->rows = (float *)(void *)at, at += rows;
    b->ids = (int32_t *)(void *)at, at += ids;
    b->cos_sin = (float *)(void *)at, at += angles;
    b->samples = (uint64_t *)(void *)at, at += samples;
    b->limbs = (int64_t *)(void *)at, at += limbs;
    b->step = (tr_step_state *)(void *)at, at += step;
    b->device->workspace_set(b->device, at, b->workspace_bytes);
    fill_random(b);
    upload_small(b);
    b->off = (tr_dropout){0.0f, 1, b->samples, s->T};
    b->on = (tr_dropout){0.1f, 1, b->samples, s->T};
    b->attention = (tr_attention){.B = s->B,
                                  .T = s->T,
                                  .A = s->A,
                                  .K = s->K,
                                  .D = s->D,
                                  .dtype = TR_BF16,
                                  .scale = 1.0f / sqrtf((float)s->D),
                                  .dropout = b->off,
                                  .q = b->buffer[0],
                                  .k = b->buffer[1],
                                  .v = b->buffer[2],
                                  .out = b->buffer[3],
                                  .lse = b->rows};
}

/* ---- the table ---- */

static void product_line(bench *b, const char *name, tr_matmul_form form, int64_t M, int64_t N,
                         int64_t K)
{
    bool gradient = form == TR_MATMUL_TN;
    b->product = (tr_matmul){.form = form,
                             .M = M,
                             .N = N,
                             .K = K,
                             .dtype = TR_BF16,
                             .c_dtype = gradient ? TR_F32 : TR_BF16,
                             .A = b->buffer[0],
                             .lda = form == TR_MATMUL_TN ? M : K,
                             .B = b->buffer[1],
                             .ldb = form == TR_MATMUL_NT ? K : N,
                             .C = b->buffer[2],
                             .ldc = N,
                             .accumulate = gradient};
    double m = (double)M, n = (double)N, k = (double)K;
    line(b, name, 2 * (m * k + n * k) + (gradient ? 8 : 2) * m * n, 2 * m * n * k, run_product);
}

static void products(bench *b)
{
    static const struct {
        const char *name;
        int rows; /* 0: head, 1: qkv, 2: out, 3: up, 4: down */
    } layers[] = {{"qkv", 1}, {"attention out", 2}, {"mlp up", 3}, {"mlp down", 4}, {"head", 0}};
    const shapes *s = &b->s;
    const int64_t out[] = {s->V, 3 * s->H, s->H, s->F, s->H}, in[] = {s->H, s->H, s->H, s->H, s->F};
    char name[64];
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        int64_t N = out[layers[i].rows], K = in[layers[i].rows];
        product_line(b, layers[i].name, TR_MATMUL_NT, b->R, N, K);
        snprintf(name, sizeof name, "%s, input gradient", layers[i].name);
        product_line(b, name, TR_MATMUL_NN, b->R, K, N);
        snprintf(name, sizeof name, "%s, weight gradient", layers[i].name);
        product_line(b, name, TR_MATMUL_TN, N, K, b->R);
    }
}

static void attention(bench *b)
{
    const shapes *s = &b->s;
    double R = (double)b->R, q = 2 * R * (double)(s->A * s->D), k = 2 * R * (double)(s->K * s->D);
    double stats = 4 * R * (double)s->A;
    double flop = 2 * (double)s->D * (double)(s->B * s->A) * (double)s->T * (double)(s->T + 1) / 2;
    line(b, "attention_forward", 2 * q + 2 * k + stats, 2 * flop, run_attention_forward);
    b->attention.dout = b->buffer[3];
    b->attention.dq = b->buffer[4];
    b->attention.dk = b->buffer[5];
    b->attention.dv = (char *)b->buffer[5] + b->buffer_bytes / 2 / 256 * 256;
    line(b, "attention_backward", 3 * q + 4 * k + 2 * stats, 5 * flop, run_attention_backward);
}

static void elementwise(bench *b)
{
    const shapes *s = &b->s;
    double x = (double)b->R * (double)s->H, f = (double)b->R * (double)s->F;
    double v = (double)b->R * (double)s->V, n = (double)s->n, rows = (double)b->R;
    line(b, "embed_forward", 6 * x, 0, run_embed_forward);
    line(b, "embed_finish", 6 * x, 0, run_embed_finish);
    line(b, "embed_backward", 10 * x, 0, run_embed_backward);
    line(b, "position_backward", 2 * x + 8 * (double)(s->T * s->H), 0, run_position_backward);
    line(b, "norm_forward", 4 * x + 4 * rows, 0, run_norm_forward);
    line(b, "norm_backward", 10 * x + 8 * rows, 0, run_norm_backward);
    line(b, "residual_add", 8 * x, 0, run_residual_add);
    line(b, "residual_add, dropout", 8 * x, 0, run_residual_add_dropout);
    line(b, "residual_norm", 10 * x + 4 * rows, 0, run_residual_norm);
    line(b, "dropout_backward", 4 * x, 0, run_dropout_backward);
    line(b, "column_sum", 6 * x, 0, run_column_sum);
    line(b, "rope", 4 * rows * (double)(s->A * s->D), 0, run_rope);
    line(b, "swiglu_forward", 6 * f, 0, run_swiglu_forward);
    line(b, "swiglu_backward", 10 * f, 0, run_swiglu_backward);
    line(b, "gelu_forward", 4 * f, 0, run_gelu_forward);
    line(b, "gelu_backward", 6 * f, 0, run_gelu_backward);
    line(b, "xent_max", 2 * v, 0, run_xent_max);
    line(b, "xent_sum", 2 * v, 0, run_xent_sum);
    line(b, "xent_backward", 4 * v, 0, run_xent_backward);
    line(b, "loss_sum", 16 * rows, 0, run_loss_sum);
    line(b, "square_sum", 4 * n, 0, run_square_sum);
    line(b, "tree_sum of 4", 20 * n, 0, run_tree_sum);
    check("fill_zero", OP(b, fill_zero, b->buffer[2], 4 * s->n)); /* a variance is not negative */
    line(b, "decide", 8 * TR_STEP_SUMS, 0, run_decide);
    line(b, "adamw", 30 * n, 0, run_adamw);
    line(b, "convert fp32 to bf16", 6 * n, 0, run_convert);
    line(b, "fill_zero", 4 * (double)(s->V * s->H), 0, run_zero);
}

static double number(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (*end != '\0' || !(value > 0)) {
        fprintf(stderr, "error: op_bench: %s is not a positive number\n", text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    bench b = {.s = full, .bytes_per_second = 4800e9, .flop_per_second = 989e12};
    bool cuda = true;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--small") == 0) {
            b.s = small;
        } else if (strcmp(argv[i], "--device") == 0 &&
                   (strcmp(value, "cpu") == 0 || strcmp(value, "cuda") == 0)) {
            cuda = strcmp(argv[++i], "cuda") == 0;
        } else if (strcmp(argv[i], "--gb-s") == 0) {
            b.bytes_per_second = 1e9 * number(argv[++i]);
        } else if (strcmp(argv[i], "--tflop-s") == 0) {
            b.flop_per_second = 1e12 * number(argv[++i]);
        } else {
            fprintf(stderr, "usage: op_bench [--device cuda|cpu] [--small] [--gb-s N] "
                            "[--tflop-s N]\n");
            return 2;
        }
    }
    tr_cuda_options options = {.local_size = 1};
    check("device",
          cuda ? tr_cuda_device_create(&b.device, &options) : tr_cpu_device_create(&b.device, 1));
    printf("%s; floors by %.0f GB/s and %.0f TFLOP/s\n", b.device->numerics,
           b.bytes_per_second * 1e-9, b.flop_per_second * 1e-12);
    set_up(&b);
    line(&b, "copy_many", 2 * (double)b.buffer_bytes, 0, run_copy);
    int64_t side = b.s.n == full.n ? 8192 : 64;
    product_line(&b, "large product", TR_MATMUL_NT, side, side, side);
    products(&b);
    attention(&b);
    elementwise(&b);
    size_t bytes = (size_t)((char *)b.step - b.memory);
    bytes += align(sizeof(tr_step_state)) + b.workspace_bytes;
    b.device->memory_destroy(b.device, TR_MEMORY_DEVICE, b.memory, bytes);
    tr_device_destroy(b.device);
    return 0;
}
