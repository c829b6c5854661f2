#include "kernels/cpu/cpu_attention_int.h"

/* A part of scratch: floats with the run-over of packing and of the last padded panel. */
static int64_t part(int64_t floats)
{
    return tr_cpu_round_up(floats + TR_TILE_PANEL_SLACK, 64);
}

tr_cpu_attention_forward_plan tr_cpu_attention_plan_forward(const tr_cpu_tile *tile, int64_t T,
                                                            int64_t K, int64_t D)
{
    tr_cpu_attention_forward_plan plan;
    plan.k_head = part(tr_cpu_round_up(T, tile->rows) * D);
    plan.v_head = part(tr_cpu_round_up(D, tile->rows) * T);
    plan.scores = part(tr_cpu_round_up(T, tile->rows) * tile->columns);
    plan.query = part(D * tile->columns);
    plan.out = part(tr_cpu_round_up(D, tile->rows) * tile->columns);
    plan.rows = part(D * tile->columns);
    plan.shared = K * (plan.k_head + plan.v_head);
    plan.thread = plan.scores + plan.query + plan.out + plan.rows;
    return plan;
}

tr_cpu_attention_backward_plan tr_cpu_attention_plan_backward(const tr_cpu_tile *tile, int64_t T,
                                                              int64_t D)
{
    int64_t keys = tr_cpu_round_up(T, tile->columns), depth = tr_cpu_round_up(D, tile->rows);
    tr_cpu_attention_backward_plan plan;
    plan.k_columns = plan.v_columns = part(keys * D);
    plan.k_rows = part(depth * T);
    plan.dk = plan.dv = part(keys * depth);
    plan.q_rows = plan.do_rows = part((int64_t)TR_ATTENTION_QUERIES * D);
    plan.q_columns = plan.do_columns = part((int64_t)TR_ATTENTION_QUERIES * depth);
    plan.p = plan.ds = part((int64_t)TR_ATTENTION_QUERIES * keys);
    plan.ds_turned = part((int64_t)TR_ATTENTION_KEYS * tile->columns);
    plan.dq = part((int64_t)TR_ATTENTION_QUERIES * depth);
    plan.rows = part(D * tile->columns);
    plan.words = part(2 * TR_ATTENTION_KEYS);
    plan.stats = part((2 + tile->columns) * TR_ATTENTION_QUERIES);
    plan.thread = plan.k_columns + plan.v_columns + plan.k_rows + plan.dk + plan.dv + plan.q_rows +
                  plan.do_rows + plan.q_columns + plan.do_columns + plan.p + plan.ds +
                  plan.ds_turned + plan.dq + plan.rows + plan.words + plan.stats;
    return plan;
}

size_t tr_cpu_attention_workspace(const tr_workspace_need *need, int num_threads)
{
    const tr_cpu_tile *tile = tr_cpu_tile_get();
    tr_cpu_attention_forward_plan forward =
        tr_cpu_attention_plan_forward(tile, need->T, need->K, need->D);
    tr_cpu_attention_backward_plan backward =
        tr_cpu_attention_plan_backward(tile, need->T, need->D);
    int64_t forward_floats = forward.shared + num_threads * forward.thread;
    int64_t backward_floats = num_threads * backward.thread;
    return sizeof(float) *
           (size_t)(forward_floats > backward_floats ? forward_floats : backward_floats);
}
