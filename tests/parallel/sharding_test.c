/* Every ZeRO stage, sharding group and order of sums on 2 to 8 data ranks has the bits of one rank with the same order (E2, E3): losses, norms, gradients and
 * weights after three steps. The model is so small that most tensors have fewer intervals than a group has ranks; one part has tensor ranks with shared key/value
 * heads and stages beside the data ranks. */
#include <string.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

enum { STEPS = 3 };

static const char shape[] = "model.layers=4 model.hidden=16 model.heads=2 model.kv_heads=1 "
                            "model.ffn=24 train.eval_batches=1";

static void layout_check(fx_job *job, const fx_outcome *expected, const char *model,
                         const char *math, int data, int zero, int shard_ranks, const char *more)
{
    static int turn;
    char *layout = tr_format("%s parallel.data=%d parallel.zero=%d parallel.shard_ranks=%d "
                             "parallel.inside=%s parallel.overlap=%s parallel.bucket_mb=%s %s",
                             math, data, zero, shard_ranks, turn % 2 ? "mpi" : "shm",
                             turn % 3 ? "true" : "false", turn % 5 < 2 ? "0.001" : "32", more);
    fx_outcome outcome;
    turn++;
    fx_measure(job, model, layout, STEPS, NULL, &outcome);
    fx_check_equal(job, expected, &outcome, layout);
    fx_outcome_clear(&outcome);
    tr_free(layout);
}

/* All layouts of a data size that follow one order of sums. */
static void order_check(fx_job *job, const char *model, const char *order, int data, int leaves,
                        int batch, const char *more)
{
    char *math = tr_format("%s train.global_batch=%d train.reduction_order=%s "
                           "train.reduction_leaves=%d train.precision=%s",
                           shape, batch, order, leaves, data % 2 ? "bf16" : "fp32");
    char *plain = tr_format("%s %s", math, strstr(more, "tensor") ? more : "");
    fx_outcome expected;
    fx_measure(job, model, plain, STEPS, NULL, &expected);
    for (int zero = 0; zero <= 3; zero++)
        for (int shard_ranks = 1; shard_ranks <= data; shard_ranks++)
            if (data % shard_ranks == 0 && (zero > 0 || shard_ranks == 1))
                layout_check(job, &expected, model, math, data, zero, shard_ranks, more);
    fx_outcome_clear(&expected);
    tr_free(plain);
    tr_free(math);
}

int main(int argc, char **argv)
{
    static const char *const orders[] = {"blocks", "rounds"};
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    for (int data = 2; data <= 8; data++) {
        char name[32];
        snprintf(name, sizeof name, "%d data ranks", data);
        if (!fx_case(&job, name))
            continue;
        for (int o = 0; o < 2; o++) {
            order_check(&job, data % 2 ? "g" : "l", orders[o], data, data, 2 * data, "");
            order_check(&job, data % 2 ? "l" : "g", orders[o], data, 2 * data, 4 * data, "");
        }
    }
    if (fx_case(&job, "beside tensor ranks"))
        for (int o = 0; o < 2; o++)
            order_check(&job, o ? "g" : "l", orders[o], 4, 4, 8, "parallel.tensor=2");
    if (fx_case(&job, "beside stages"))
        for (int o = 0; o < 2; o++)
            order_check(&job, o ? "l" : "g", orders[o], 4, 4, 8, "parallel.pipeline=2");
    if (fx_case(&job, "beside chunks whose weight gradients come late"))
        for (int o = 0; o < 2; o++)
            order_check(&job, o ? "g" : "l", orders[o], 4, 4, 16,
                        o ? "parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v"
                          : "parallel.pipeline=2 parallel.schedule=zb-h1");
    return fx_end(&job);
}
