/* Optimizer steps, one pass over the state, and the exact sum of squares of gradients. Every element alone, over fixed
 * pieces; the sum of squares is integer addition, in which no order matters. */
#include "base/exact_sum.h"
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_vec.h"

enum { PIECE = 16384, SQUARE_PIECE = 1 << 18 }; /* elements */

/* Per-step constants, rounded to fp32 once. */
typedef struct update {
    const tr_adamw *args;
    float grad_scale, lr, bias1, bias2;
    float decay;      /* 1 - lr weight_decay */
    float beta1_rest; /* 1 - beta1 */
    float beta2_rest; /* 1 - beta2 */
} update;

TR_VEC_INLINE void adamw_vec(tr_dtype dtype, const update *u, int64_t begin, int64_t i, int count)
{
    const tr_adamw *a = u->args;
    tr_vec g = tr_vec_load(TR_F32, a->grad, begin + i, count) * u->grad_scale;
    tr_vec m = a->beta1 * tr_vec_load(TR_F32, a->m, begin + i, count) + u->beta1_rest * g;
    tr_vec v = a->beta2 * tr_vec_load(TR_F32, a->v, begin + i, count) + u->beta2_rest * (g * g);
    tr_vec step = u->lr * (m / u->bias1) / (tr_vec_sqrt(v / u->bias2) + a->eps);
    tr_vec master = tr_vec_load(TR_F32, a->master, begin + i, count) * u->decay - step;
    tr_vec_store(TR_F32, a->m, begin + i, count, m);
    tr_vec_store(TR_F32, a->v, begin + i, count, v);
    tr_vec_store(TR_F32, a->master, begin + i, count, master);
    if (a->compute != NULL)
        tr_vec_store(dtype, a->compute, begin + i, count, master);
}

TR_VEC_INLINE void adamw_range(tr_dtype dtype, const update *u, int64_t begin, int64_t n)
{
    TR_VEC_LOOP(n, adamw_vec, dtype, u, begin);
}

static int64_t piece_size(int64_t piece, int64_t n)
{
    return n - piece * PIECE < PIECE ? n - piece * PIECE : PIECE;
}

static void adamw_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const update *u = ctx;
    TR_VEC_DTYPE_SWITCH(u->args->dtype, adamw_range, u, piece * PIECE,
                        piece_size(piece, u->args->n));
}

static update update_init(const tr_adamw *args)
{
    const tr_step_state *step = args->step;
    return (update){.args = args,
                    .grad_scale = step->grad_scale,
                    .lr = step->lr,
                    .bias1 = step->bias1,
                    .bias2 = step->bias2,
                    .decay = (float)(1.0 - (double)step->lr * (double)args->weight_decay),
                    .beta1_rest = (float)(1.0 - (double)args->beta1),
                    .beta2_rest = (float)(1.0 - (double)args->beta2)};
}

static tr_status adamw(tr_device *device, const tr_adamw *args)
{
    if (args->step->skipped != 0)
        return TR_OK;
    update u = update_init(args);
    tr_cpu_parallel_for(device, (args->n + PIECE - 1) / PIECE, adamw_piece, &u);
    return TR_OK;
}

TR_VEC_INLINE void sgd_vec(tr_dtype dtype, const update *u, int64_t begin, int64_t i, int count)
{
    const tr_adamw *a = u->args;
    tr_vec g = tr_vec_load(TR_F32, a->grad, begin + i, count) * u->grad_scale;
    tr_vec master = tr_vec_load(TR_F32, a->master, begin + i, count);
    master -= u->lr * (g + a->weight_decay * master);
    tr_vec_store(TR_F32, a->master, begin + i, count, master);
    if (a->compute != NULL)
        tr_vec_store(dtype, a->compute, begin + i, count, master);
}

TR_VEC_INLINE void sgd_range(tr_dtype dtype, const update *u, int64_t begin, int64_t n)
{
    TR_VEC_LOOP(n, sgd_vec, dtype, u, begin);
}

static void sgd_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const update *u = ctx;
    TR_VEC_DTYPE_SWITCH(u->args->dtype, sgd_range, u, piece * PIECE, piece_size(piece, u->args->n));
}

static tr_status sgd(tr_device *device, const tr_adamw *args)
{
    if (args->step->skipped != 0)
        return TR_OK;
    update u = update_init(args);
    tr_cpu_parallel_for(device, (args->n + PIECE - 1) / PIECE, sgd_piece, &u);
    return TR_OK;
}

typedef struct square_args {
    int64_t n;
    const float *x;
    int64_t *limbs;
} square_args;

static void square_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const square_args *a = ctx;
    int64_t begin = piece * SQUARE_PIECE;
    int64_t n = a->n - begin < SQUARE_PIECE ? a->n - begin : SQUARE_PIECE;
    tr_square_sum sum;
    int64_t limbs[TR_SQUARE_SUM_LIMBS];
    tr_square_sum_init(&sum);
    tr_square_sum_add(&sum, a->x + begin, (size_t)n);
    tr_square_sum_to_limbs(&sum, limbs);
    for (int i = 0; i < TR_SQUARE_SUM_LIMBS; i++) {
        if (limbs[i] != 0)
            __atomic_fetch_add(&a->limbs[i], limbs[i], __ATOMIC_RELAXED);
    }
}

static tr_status square_sum(tr_device *device, int64_t n, const float *x, int64_t *limbs)
{
    square_args a = {n, x, limbs};
    tr_cpu_parallel_for(device, (n + SQUARE_PIECE - 1) / SQUARE_PIECE, square_piece, &a);
    /* Carry, so that any number of calls can follow: digits stay below 2^32, the flag 0 or 1. */
    for (int i = 0; i + 1 < TR_SQUARE_SUM_DIGITS; i++) {
        limbs[i + 1] += limbs[i] >> 32;
        limbs[i] &= 0xffffffff;
    }
    limbs[TR_SQUARE_SUM_DIGITS] = limbs[TR_SQUARE_SUM_DIGITS] != 0;
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_optimizer_ops)(tr_ops *ops)
{
    ops->adamw = adamw;
    ops->sgd = sgd;
    ops->square_sum = square_sum;
}
