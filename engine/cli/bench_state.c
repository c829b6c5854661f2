/* Where the state of `trine bench checkpoint` comes from: a checkpoint, or a training run of its own. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "engine/checkpoint.h"
#include "engine/cli/bench_checkpoint.h"
#include "engine/cli/cmd_ckpt_int.h"
#include "engine/cli/job.h"
#include "io/checkpoint_read.h"
#include "io/dir_commit.h"

/* ---- a checkpoint ---- */

/* Appends the values of a box, as many as there is room for. */
static tr_status box_load(bench_state *state, tr_shard *shard, const tr_shard_box *box,
                          tr_shard_scratch *scratch, int64_t room)
{
    float *begin = state->values + state->num_values;
    int64_t count = 0;
    for (int k = 0; k < box->num_chunks; k++) {
        int chunk = box->first_chunk + k;
        int64_t size = tr_shard_get_chunk(shard, chunk)->raw_bytes / (int64_t)sizeof(float);
        const float *values;
        if (size > room - count)
            break;
        TR_TRY(tr_shard_read_chunk(shard, chunk, scratch, &values));
        memcpy(begin + count, values, (size_t)size * sizeof(float));
        count += size;
    }
    if (count == 0)
        return TR_OK;
    state->parts[state->num_parts] = (tr_shard_part){
        .tensor = state->num_parts, .kind = box->kind, .box = tr_box_1d(0, count), .values = begin};
    state->num_parts++;
    state->num_values += count;
    /* bf16 weights are two bytes more for each master. */
    state->plain_bytes += (double)count * (box->kind == TR_SHARD_MASTER ? 6 : 4);
    return TR_OK;
}

static tr_status boxes_load(bench_state *state, const tr_checkpoint *checkpoint, int64_t room)
{
    tr_shard_scratch *scratch = tr_shard_scratch_create();
    tr_status status = TR_OK;
    int num_files = tr_checkpoint_manifest(checkpoint)->num_files;
    for (int s = 0; s < num_files && status == TR_OK; s++) {
        tr_shard *shard = tr_checkpoint_shard(checkpoint, s);
        for (int i = 0; i < tr_shard_num_boxes(shard) && status == TR_OK; i++)
            status = box_load(state, shard, tr_shard_get_box(shard, i), scratch,
                              room - state->num_values);
        tr_shard_rest(shard);
    }
    tr_shard_scratch_destroy(scratch);
    return status;
}

tr_status bench_state_load(bench_state *state, const char *path, int64_t most_bytes)
{
    tr_checkpoint *checkpoint;
    int64_t there = 0, room = most_bytes / (int64_t)sizeof(float);
    int num_boxes = 0;
    *state = (bench_state){.num_parts = 0};
    TR_TRY(tr_ckpt_open(&checkpoint, path));
    for (int s = 0; s < tr_checkpoint_manifest(checkpoint)->num_files; s++) {
        tr_shard *shard = tr_checkpoint_shard(checkpoint, s);
        num_boxes += tr_shard_num_boxes(shard);
        for (int i = 0; i < tr_shard_num_boxes(shard); i++)
            there += tr_box_volume(&tr_shard_get_box(shard, i)->box);
    }
    room = room < there ? room : there;
    state->values = TR_NEW_ARRAY(float, (size_t)room + 1);
    state->parts = TR_NEW_ARRAY(tr_shard_part, (size_t)num_boxes + 1);
    tr_status status = boxes_load(state, checkpoint, room);
    tr_checkpoint_close(checkpoint);
    if (status == TR_OK && state->num_values == 0)
        status = tr_fail(TR_ERR_SETTINGS,
                         "%s has no chunk of at most %lld bytes to measure: give "
                         "a larger --mb",
                         path, (long long)most_bytes);
    if (status != TR_OK)
        bench_state_clear(state);
    return status;
}

void bench_state_clear(bench_state *state)
{
    tr_free(state->values);
    tr_free(state->parts);
    *state = (bench_state){.num_parts = 0};
}

/* ---- a training run ---- */

static tr_status one_rank_check(const tr_job *job)
{
    return job->size == 1 ? TR_OK
                          : tr_fail(TR_ERR_SETTINGS, "trine bench checkpoint trains on one rank: "
                                                     "start it without mpiexec");
}

static tr_status train_and_save(tr_run *run)
{
    int64_t steps = tr_run_config(run)->train.steps;
    while (tr_run_steps_done(run) < steps) {
        tr_metrics metrics;
        TR_TRY(tr_run_step(run, &metrics));
        if (metrics.step % 20 == 0)
            tr_log_status_line("training for the state: step %lld of %lld, loss %.4f",
                               (long long)metrics.step, (long long)steps, metrics.loss);
    }
    TR_TRY(tr_run_save(run));
    TR_TRY(tr_run_save_wait(run));
    if (tr_run_save_failed(run))
        return tr_fail(TR_ERR_IO, "the state is not saved, see the warning above");
    return TR_OK;
}

tr_status bench_state_train(int argc, char **argv, const char *dir, char **path)
{
    static const char *const alone[] = {"parallel.data=1",       "parallel.tensor=1",
                                        "parallel.pipeline=1",   "parallel.virtual=1",
                                        "checkpoint.every=0",    "parallel.schedule=gpipe",
                                        "checkpoint.resume=none"};
    tr_job job;
    TR_TRY(tr_job_start(&job));
    TR_TRY(tr_job_check(&job, one_rank_check(&job)));
    TR_TRY(tr_job_read(&job, argc, argv, true));
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
        TR_TRY(tr_job_override(&job, alone[i]));
    char *folder = tr_format("checkpoint.dir=%s", dir);
    tr_status status = tr_job_override(&job, folder);
    tr_free(folder);
    TR_TRY(status);
    TR_TRY(tr_job_resolve(&job));
    TR_JOB_TRY(&job, tr_run_open(&job.run, &job.cfg, MPI_COMM_WORLD, NULL));
    TR_JOB_TRY(&job, train_and_save(job.run));
    *path = tr_step_path(dir, tr_run_steps_done(job.run));
    return tr_job_end(&job, TR_OK);
}
