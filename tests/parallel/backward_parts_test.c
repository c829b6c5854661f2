/* Backward whose weight gradients come later than its input gradients has the bits of one call for both: losses, norms, gradients, weights.
 *
 * The schedules are those of the product, in which each rank's weight gradients wait (tr_schedule_place is wrapped): for a number of input gradients of
 * their chunk, or for the end of the list. Job of 4 ranks. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "parallel/schedule_int.h"
#include "tests/parallel/run_fixture.h"

static int delay; /* weight gradients that wait in each chunk; 0 = the schedule as it is */

void __real_tr_schedule_place(tr_schedule *schedule);
void __wrap_tr_schedule_place(tr_schedule *schedule);

/* Lets W of a chunk wait until `delay` later B have been. */
static void weights_delay(tr_schedule *schedule, tr_action_list *list)
{
    int num_chunks = schedule->num_stages * schedule->num_virtual, count = 0;
    int *begun = TR_NEW_ARRAY(int, (size_t)num_chunks),
        *done = TR_NEW_ARRAY(int, (size_t)num_chunks);
    tr_action *moved = TR_NEW_ARRAY(tr_action, (size_t)list->num_actions);
    for (int i = 0; i <= list->num_actions; i++) {
        bool end = i == list->num_actions;
        if (!end && list->actions[i].kind != TR_ACTION_WEIGHT) {
            moved[count++] = list->actions[i];
            begun[list->actions[i].chunk] += list->actions[i].kind == TR_ACTION_BACKWARD;
        }
        for (int c = num_chunks - 1; c >= 0; c--)
            while (begun[c] - done[c] > (end ? 0 : delay))
                moved[count++] = (tr_action){
                    .kind = TR_ACTION_WEIGHT, .chunk = c, .microbatch = done[c]++, .buffer = -1};
    }
    TR_ASSERT(count == list->num_actions);
    memcpy(list->actions, moved, (size_t)count * sizeof *moved);
    tr_free(moved);
    tr_free(begun);
    tr_free(done);
}

void __wrap_tr_schedule_place(tr_schedule *schedule)
{
    if (delay > 0 && schedule->trains) {
        for (int rank = 0; rank < schedule->num_stages; rank++)
            weights_delay(schedule, &schedule->ranks[rank]);
        schedule->kind =
            TR_SCHEDULE_LISTED; /* of its own kind's limit of live activations no more */
    }
    __real_tr_schedule_place(schedule);
}

/* Pending sets of all chunks of rank 0 of a run. */
static int pending_sets(fx_job *job, const char *model, const char *settings)
{
    fx_run fx;
    int count = 0;
    fx_open(job, &fx, model, settings, NULL, NULL);
    for (int c = 0; fx.run != NULL && c < fx.run->stage.num_chunks; c++)
        count += fx.run->stage.chunks[c].num_pending;
    fx_close(&fx);
    return count;
}

/* Runs the settings with and without waiting weight gradients. */
static void compare(fx_job *job, const char *model, const char *settings, int wait)
{
    fx_outcome together, apart;
    char *what = tr_format("%s %s, %d waiting", model, settings, wait);
    delay = 0;
    fx_measure(job, model, settings, 2, NULL, &together);
    fx_check(job, pending_sets(job, model, settings) == 0, "%s: sets for nothing", what);
    delay = wait;
    fx_measure(job, model, settings, 2, NULL, &apart);
    int sets = pending_sets(job, model, settings);
    fx_check(job, job->rank > 0 || sets > 1, "%s: %d sets", what, sets);
    delay = 0;
    fx_check_equal(job, &together, &apart, what);
    fx_outcome_clear(&together);
    fx_outcome_clear(&apart);
    tr_free(what);
}

static void all_parts(fx_job *job)
{
    static const char *const recomputes[] = {"none", "selective", "full"};
    static const char *const layouts[] = {"", "parallel.tensor=2 parallel.sequence=false",
                                          "parallel.tensor=2 parallel.pipeline=2",
                                          "parallel.data=2 parallel.pipeline=2"};
    static const char *const numerics[] = {"model.dropout=0.1", "train.precision=bf16"};
    for (int m = 0; m < 2; m++)
        for (int r = 0; r < 3; r++)
            for (int l = 0; l < 4; l++) {
                int mix = m + r + l;
                char *settings = tr_format("train.global_batch=8 train.eval_batches=1 "
                                           "model.tied=%s memory.recompute=%s %s %s",
                                           (m == 0) == (l < 3) ? "true" : "false", recomputes[r],
                                           numerics[mix % 2], layouts[l]);
                compare(job, m == 0 ? "g" : "l", settings, mix % 3 == 0 ? 100 : 1 + mix % 3);
                tr_free(settings);
            }
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    if (fx_case(&job, "parts_apart"))
        all_parts(&job);
    if (fx_case(&job, "interleaved"))
        compare(&job, "g",
                "train.global_batch=8 train.eval_batches=1 parallel.pipeline=2 parallel.virtual=2 "
                "parallel.schedule=interleaved",
                2);
    return fx_end(&job);
}
