/* Shapes of scratch that attention's forward and backward share with the device's sizing of the workspace.
 *
 * Both work on packed tiles (cpu_tile.h) of `rows` x `columns`; scratch is padded to whole tiles, so that no tile has an edge. */
#ifndef TR_KERNELS_CPU_ATTENTION_INT_H
#define TR_KERNELS_CPU_ATTENTION_INT_H

#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_tile.h"

/* Sizes in floats; every part keeps 64-byte alignment and has room for the packing's run-over. */
typedef struct tr_cpu_attention_forward_plan {
    int64_t k_head, v_head; /* of one key/value head: keys as row panels, values transposed */
    int64_t scores, query, out, rows; /* of one thread */
    int64_t shared, thread;           /* sums: of one sequence, of one thread */
} tr_cpu_attention_forward_plan;

typedef struct tr_cpu_attention_backward_plan {
    int64_t k_columns, v_columns, k_rows; /* key and value panels as the products need them */
    int64_t dk, dv;                       /* sums over queries, [T / columns][D padded][columns] */
    int64_t q_rows, do_rows, q_columns, do_columns; /* of a block of queries */
    int64_t p, ds, ds_turned;                       /* of a block of queries and keys */
    int64_t dq, rows, words, stats;
    int64_t thread; /* the sum of all */
} tr_cpu_attention_backward_plan;

/* Queries of one piece of the forward grid, and blocks of the backward walk; multiples of every tile's rows and columns. */
enum { TR_ATTENTION_PIECE = 96, TR_ATTENTION_QUERIES = 48, TR_ATTENTION_KEYS = 128 };

tr_cpu_attention_forward_plan tr_cpu_attention_plan_forward(const tr_cpu_tile *tile, int64_t T,
                                                            int64_t K, int64_t D);
tr_cpu_attention_backward_plan tr_cpu_attention_plan_backward(const tr_cpu_tile *tile, int64_t T,
                                                              int64_t D);

static inline int64_t tr_cpu_round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* The operand of rows [heads of one sequence]: element (position, d) of head `head`. */
static inline tr_cpu_operand tr_cpu_head_rows(tr_dtype dtype, const void *base, int64_t T,
                                              int64_t heads, int64_t D, int64_t b, int64_t head)
{
    int64_t offset = (b * T * heads + head) * D * (int64_t)tr_dtype_size(dtype);
    return (tr_cpu_operand){(const char *)base + offset, dtype, heads * D, false};
}

/* The same, transposed: element (d, position). */
static inline tr_cpu_operand tr_cpu_head_columns(tr_dtype dtype, const void *base, int64_t T,
                                                 int64_t heads, int64_t D, int64_t b, int64_t head)
{
    tr_cpu_operand operand = tr_cpu_head_rows(dtype, base, T, heads, D, b, head);
    operand.k_outer = true;
    return operand;
}

#endif
