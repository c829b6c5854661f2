/* trine bench checkpoint: what a checkpoint costs on this machine, measured on the state of a real
 * training run: its size, the codec's speed in memory, and files beside plain writes and reads. */
#include "engine/cli/bench_checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "engine/cli/cli.h"
#include "engine/cli/cmd_bench_int.h"
#include "engine/cli/cmd_ckpt_int.h"
#include "engine/peak.h"

typedef struct options {
    bench_setup setup;
    const char *state; /* a checkpoint's folder; NULL: train */
    int64_t most_mb;
} options;

static tr_status options_take(options *o, int *argc, char **argv)
{
    int64_t threads = tr_peak_num_cores(), runs = 5, level = 1;
    o->most_mb = 512;
    o->setup.dir = ".";
    TR_TRY(tr_cli_value(argc, argv, "--state", &o->state));
    TR_TRY(tr_cli_value(argc, argv, "--dir", &o->setup.dir));
    TR_TRY(tr_cli_int(argc, argv, "--threads", 1, 256, &threads));
    TR_TRY(tr_cli_int(argc, argv, "--runs", 1, BENCH_RUNS_MAX, &runs));
    TR_TRY(tr_cli_int(argc, argv, "--level", 1, 19, &level));
    TR_TRY(tr_cli_int(argc, argv, "--mb", 1, 1 << 20, &o->most_mb));
    o->setup.num_threads = (int)threads;
    o->setup.runs = (int)runs;
    o->setup.level = (int)level;
    TR_TRY(tr_cli_words(*argc, argv, 1, -1));
    if ((o->state != NULL) == (*argc > 2))
        return tr_fail(TR_ERR_SETTINGS,
                       "trine bench checkpoint needs either a configuration to train or --state "
                       "STEP_DIR; see trine bench --help");
    return TR_OK;
}

static tr_status state_measure(const options *o, const char *path)
{
    bench_state state;
    char size[24];
    TR_TRY(bench_state_load(&state, path, o->most_mb * 1000000));
    tr_ckpt_size_format(size, (double)state.num_values * sizeof(float));
    printf("state      %s of fp32 values in %d boxes, from %s\n", size, state.num_parts, path);
    tr_status status = bench_codec(&state, &o->setup);
    if (status == TR_OK)
        status = bench_files(&state, &o->setup);
    bench_state_clear(&state);
    return status;
}

tr_status bench_checkpoint(int argc, char **argv)
{
    options o = {.state = NULL};
    TR_TRY(options_take(&o, &argc, argv));
    if (o.state != NULL)
        return state_measure(&o, o.state);
    char *path = NULL, *dir = tr_format("%s/trine-bench-state", o.setup.dir);
    tr_status status = bench_state_train(argc - 1, argv + 1, dir, &path);
    if (status == TR_OK) {
        tr_log_info("trained; the state is kept, for --state %s", path);
        status = state_measure(&o, path);
    }
    tr_free(path);
    tr_free(dir);
    return status;
}
