/* Dropout over ranks: masks agree where data are replicated and differ where data, heads, layers, places or steps differ; the same
 * masks come back when activations are recomputed; none in evaluation.
 *
 * That any layout has the masks of one rank, and any recomputation those of the first pass, is in layout_matrix.c (equal bits with dropout). */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "tests/parallel/run_fixture.h"

enum { MAX_MASKS = 64 };

/* What one rank drew in a step: masks of the stream (hashes of which values are kept), and the counters of attention's. */
static struct {
    const tr_ops *real;
    tr_ops ops;
    int num_masks, num_attentions;
    double kept, drawn;
    uint64_t masks[MAX_MASKS];
    uint64_t attention_keys[MAX_MASKS];
    int64_t attention_heads[MAX_MASKS];
    uint64_t attention_samples[MAX_MASKS];
} seen;

/* Runs the operation on zeros + dropout(ones), whose values tell what is kept. */
static tr_status seen_residual_add(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                                   int64_t row_begin, const void *x, const float *y,
                                   const void *bias, const tr_dropout *dropout, void *out)
{
    float *zeros = tr_alloc_aligned((size_t)(R * H), sizeof(float), 256);
    float *ones = tr_alloc_aligned((size_t)(R * H), sizeof(float), 256);
    float *mask = tr_alloc_aligned((size_t)(R * H), sizeof(float), 256);
    for (int64_t i = 0; i < R * H; i++)
        ones[i] = 1;
    tr_status status =
        seen.real->residual_add(device, TR_F32, R, H, row_begin, zeros, ones, NULL, dropout, mask);
    if (seen.num_masks < MAX_MASKS)
        seen.masks[seen.num_masks++] =
            tr_hash128_compute(mask, (size_t)(R * H) * sizeof(float)).low;
    for (int64_t i = 0; i < R * H; i++)
        seen.kept += mask[i] != 0;
    seen.drawn += (double)(R * H);
    tr_free(zeros);
    tr_free(ones);
    tr_free(mask);
    TR_TRY(status);
    return seen.real->residual_add(device, dtype, R, H, row_begin, x, y, bias, dropout, out);
}

static tr_status seen_attention(tr_device *device, const tr_attention *args)
{
    if (seen.num_attentions < MAX_MASKS) {
        seen.attention_keys[seen.num_attentions] = args->dropout.key;
        seen.attention_heads[seen.num_attentions] = args->head_offset;
        seen.attention_samples[seen.num_attentions++] = args->dropout.samples[0];
    }
    return seen.real->attention_forward(device, args);
}

static void see_install(void *context, tr_device *device)
{
    (void)context;
    seen.real = device->ops;
    seen.ops = *device->ops;
    seen.ops.residual_add = seen_residual_add;
    seen.ops.attention_forward = seen_attention;
    device->ops = &seen.ops;
}

static void see_nothing(void)
{
    seen.num_masks = seen.num_attentions = 0;
    seen.kept = seen.drawn = 0;
}

static bool all_differ(const uint64_t *values, int count)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (values[i] == values[j])
                return false;
    return true;
}

static void masks_over_ranks(fx_job *job, bool sequence)
{
    if (!fx_case(job, sequence ? "masks over ranks, sequence parallel" : "masks over ranks"))
        return;
    fx_run fx;
    tr_metrics metrics;
    uint64_t first[MAX_MASKS], first_keys[MAX_MASKS], all[4][MAX_MASKS];
    char *text = tr_format("model.dropout=0.5 train.global_batch=4 train.micro_batch=2 "
                           "parallel.tensor=2 parallel.data=2 parallel.sequence=%s",
                           sequence ? "true" : "false");
    fx_open(job, &fx, "g", text, NULL, see_install);
    tr_free(text);
    see_nothing();
    fx_step(&fx, &metrics);
    /* One microbatch: two masks in each of 4 layers. */
    fx_check(job, seen.num_masks == 8 && seen.num_attentions == 4, "%d masks", seen.num_masks);
    fx_check(job, all_differ(seen.masks, 8), "two sites have one mask");
    fx_check(job, all_differ(seen.attention_keys, 4), "two layers' attention has one key");
    fx_check(job, seen.kept > 0.47 * seen.drawn && seen.kept < 0.53 * seen.drawn,
             "%g of %g are kept", seen.kept, seen.drawn);
    fx_check(job, seen.attention_heads[0] == 2 * (job->rank % 2), "first head %lld",
             (long long)seen.attention_heads[0]);
    fx_check(job, seen.attention_samples[0] == 2u * (unsigned)(job->rank / 2), "first sample %llu",
             (unsigned long long)seen.attention_samples[0]);
    memcpy(first, seen.masks, sizeof first);
    memcpy(first_keys, seen.attention_keys, sizeof first_keys);
    MPI_Allgather(first, MAX_MASKS, MPI_UINT64_T, all, MAX_MASKS, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int m = 0; m < 8; m++) { /* ranks 0 and 1 share data, so do 2 and 3 */
        bool equal = all[0][m] == all[1][m] && all[2][m] == all[3][m];
        fx_check(job, equal == !sequence, "mask %d: tensor ranks %s", m,
                 equal ? "agree" : "do not agree");
        fx_check(job, all[0][m] != all[2][m] && all[1][m] != all[3][m],
                 "mask %d is that of other data", m);
    }
    see_nothing();
    fx_step(&fx, &metrics);
    for (int m = 0; m < 8; m++)
        fx_check(job, seen.masks[m] != first[m], "mask %d is that of another step", m);
    /* Other samples make other masks too; the keys must differ by themselves. */
    for (int a = 0; a < 4; a++)
        fx_check(job, seen.attention_keys[a] != first_keys[a], "attention %d has its last key", a);
    fx_close(&fx);
}

static void recomputed_masks(fx_job *job)
{
    if (!fx_case(job, "dropout and recomputation"))
        return;
    static const char *const modes[] = {"selective", "full"};
    for (int pipeline = 1; pipeline <= 2; pipeline++) {
        fx_outcome none, other, dry;
        char *text =
            tr_format("model.dropout=0.2 parallel.pipeline=%d train.eval_batches=1", pipeline);
        fx_measure(job, "l", text, 2, NULL, &none);
        for (int i = 0; i < 2; i++) {
            char *both = tr_format("%s memory.recompute=%s", text, modes[i]);
            fx_measure(job, "l", both, 2, NULL, &other);
            fx_check_equal(job, &none, &other, both);
            fx_outcome_clear(&other);
            tr_free(both);
        }
        tr_free(text);
        fx_measure(job, "l", "train.eval_batches=1", 2, NULL, &dry);
        fx_check(job, job->rank != 0 || dry.metrics[0].loss != none.metrics[0].loss,
                 "dropout does nothing");
        fx_outcome_clear(&none);
        fx_outcome_clear(&dry);
    }
}

static void none_in_evaluation(fx_job *job)
{
    if (!fx_case(job, "no dropout in evaluation"))
        return;
    double loss[2] = {0};
    for (int i = 0; i < 2; i++) {
        fx_run fx;
        fx_open(job, &fx, "g", i == 0 ? "model.dropout=0.5" : "", NULL, NULL);
        if (fx.run != NULL)
            fx_need(job, tr_run_evaluate(fx.run, &loss[i]));
        fx_close(&fx);
    }
    fx_check(job, loss[0] == loss[1], "evaluation %g with dropout, %g without", loss[0], loss[1]);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    masks_over_ranks(&job, false);
    masks_over_ranks(&job, true);
    recomputed_masks(&job);
    none_in_evaluation(&job);
    return fx_end(&job);
}
