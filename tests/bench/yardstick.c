#include "tests/bench/yardstick.h"

#include "base/alloc.h"
#include "base/clock.h"

enum { NUM_PRODUCTS = 6 };

typedef struct product {
    tr_matmul args, args_f32;
    tr_cpu_library_product *onednn, *onednn_f32;
} product;

struct yardstick {
    tr_device *device;
    void *memory;
    size_t bytes;
    product products[NUM_PRODUCTS];
    yardstick_rates best;
};

static size_t rounded(int64_t elements)
{
    return ((size_t)elements * sizeof(float) + 255) & ~(size_t)255;
}

/* The two products of an MLP's width and that of the head, forward and weight gradient. */
static void shapes_make(tr_matmul shapes[NUM_PRODUCTS], int64_t rows, int64_t hidden, int64_t ffn,
                        int64_t vocab)
{
    const int64_t widths[3][2] = {{ffn, hidden}, {hidden, ffn}, {vocab, hidden}};
    for (int i = 0; i < 3; i++) {
        int64_t out = widths[i][0], in = widths[i][1];
        shapes[2 * i] = (tr_matmul){
            .form = TR_MATMUL_NT, .M = rows, .N = out, .K = in, .lda = in, .ldb = in, .ldc = out};
        shapes[2 * i + 1] = (tr_matmul){
            .form = TR_MATMUL_TN, .M = out, .N = in, .K = rows, .lda = out, .ldb = in, .ldc = in};
    }
}

static tr_status products_create(yardstick *y, tr_dtype dtype, int num_threads,
                                 const tr_matmul shapes[NUM_PRODUCTS], size_t largest)
{
    char *at = (char *)y->memory;
    for (int i = 0; i < NUM_PRODUCTS; i++) {
        product *p = &y->products[i];
        p->args = shapes[i];
        p->args.A = at;
        p->args.B = at + largest;
        p->args.C = at + 2 * largest;
        p->args_f32 = p->args;
        p->args.dtype = dtype;
        p->args_f32.dtype = TR_F32;
        p->args_f32.c_dtype = TR_F32;
        p->args.c_dtype = p->args.form == TR_MATMUL_TN ? TR_F32 : dtype;
        TR_TRY(tr_cpu_library_product_create(&p->onednn_f32, &p->args_f32, num_threads));
        if (dtype != TR_F32)
            TR_TRY(tr_cpu_library_product_create(&p->onednn, &p->args, num_threads));
    }
    return TR_OK;
}

tr_status yardstick_create(yardstick **out, tr_dtype dtype, int num_threads, int64_t rows,
                           int64_t hidden, int64_t ffn, int64_t vocab)
{
    yardstick *y = TR_NEW(yardstick);
    tr_matmul shapes[NUM_PRODUCTS];
    tr_status status;
    size_t largest = 0;
    int64_t widest = 0;
    shapes_make(shapes, rows, hidden, ffn, vocab);
    for (int i = 0; i < NUM_PRODUCTS; i++) {
        const int64_t sizes[3] = {shapes[i].M, shapes[i].N, shapes[i].K};
        for (int a = 0; a < 3; a++) {
            size_t bytes = rounded(sizes[a] * sizes[(a + 1) % 3]);
            largest = bytes > largest ? bytes : largest;
            widest = sizes[a] > widest ? sizes[a] : widest;
        }
    }
    TR_TRY_GOTO(status, tr_cpu_device_create(&y->device, num_threads), fail);
    const tr_workspace_need need = {.dtype = dtype, .max_matmul = widest};
    size_t scratch = y->device->workspace_bytes(y->device, &need);
    y->bytes = 3 * largest + scratch;
    TR_TRY_GOTO(status, y->device->memory_create(y->device, TR_MEMORY_DEVICE, y->bytes, &y->memory),
                fail);
    y->device->workspace_set(y->device, (char *)y->memory + 3 * largest, scratch);
    /* 0x3d3d is a normal number in every dtype, whichever half of a word is read. */
    for (size_t i = 0; i < 2 * largest / sizeof(uint32_t); i++)
        ((uint32_t *)y->memory)[i] = 0x3d3d3d3du + (uint32_t)(i % 13) * 0x00010001u;
    TR_TRY_GOTO(status, products_create(y, dtype, num_threads, shapes, largest), fail);
    *out = y;
    return TR_OK;
fail:
    yardstick_destroy(y);
    return status;
}

void yardstick_destroy(yardstick *y)
{
    if (y == NULL)
        return;
    for (int i = 0; i < NUM_PRODUCTS; i++) {
        tr_cpu_library_product_destroy(y->products[i].onednn);
        tr_cpu_library_product_destroy(y->products[i].onednn_f32);
    }
    if (y->memory != NULL)
        y->device->memory_destroy(y->device, TR_MEMORY_DEVICE, y->memory, y->bytes);
    tr_device_destroy(y->device);
    tr_free(y);
}

static void rate_keep(double *best, const tr_matmul *args, double seconds)
{
    double rate = 2.0 * (double)args->M * (double)args->N * (double)args->K / seconds;
    *best = rate > *best ? rate : *best;
}

static tr_status library_run(tr_cpu_library_product *library, const tr_matmul *args, double *best)
{
    if (library == NULL)
        return TR_OK;
    double begin = tr_clock_seconds();
    TR_TRY(tr_cpu_library_product_run(library));
    rate_keep(best, args, tr_clock_seconds() - begin);
    return TR_OK;
}

tr_status yardstick_run(yardstick *y)
{
    for (int i = 0; i < NUM_PRODUCTS; i++) {
        const product *p = &y->products[i];
        TR_TRY(library_run(p->onednn_f32, &p->args_f32, &y->best.onednn_f32));
        TR_TRY(library_run(p->onednn, &p->args, &y->best.onednn));
        double begin = tr_clock_seconds();
        TR_TRY(y->device->ops->matmul(y->device, &p->args));
        rate_keep(&y->best.ours, &p->args, tr_clock_seconds() - begin);
    }
    if (y->products[0].args.dtype == TR_F32)
        y->best.onednn = y->best.onednn_f32;
    return TR_OK;
}

yardstick_rates yardstick_best(const yardstick *y)
{
    return y->best;
}
