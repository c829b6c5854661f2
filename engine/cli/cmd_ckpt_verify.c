/* trine ckpt verify: every byte of a checkpoint read once, on all cores, with a bar on a terminal. */
#include "engine/cli/cmd_ckpt_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/cli/cli.h"
#include "engine/peak.h"
#include "io/checkpoint_read.h"
#include "io/shard_verify.h"

enum { BAR = 30, THREADS_MOST = 16 /* more wait for the disk, and for memory */ };

typedef struct progress {
    bool shown; /* stdout is a terminal */
    double begin, last;
    int64_t done, total;
} progress;

static void bar_print(const progress *p, double now)
{
    char bar[BAR + 1], done[24], total[24], rate[24];
    double share = p->total > 0 ? (double)p->done / (double)p->total : 1;
    double seconds = now - p->begin;
    for (int i = 0; i < BAR; i++)
        bar[i] = i < (int)(share * BAR) ? '=' : ' ';
    bar[BAR] = '\0';
    tr_ckpt_size_format(done, (double)p->done);
    tr_ckpt_size_format(total, (double)p->total);
    tr_ckpt_size_format(rate, seconds > 0 ? (double)p->done / seconds : 0);
    tr_log_status_line("[%s] %3.0f%%  %s of %s, %s/s, %.0f s left", bar, 100 * share, done, total,
                       rate, share > 0 ? seconds / share - seconds : 0);
}

static void progress_add(void *context, int64_t bytes)
{
    progress *p = context;
    double now = tr_clock_seconds();
    p->done += bytes;
    if (!p->shown || (now - p->last < 0.2 && p->done < p->total))
        return;
    bar_print(p, now);
    p->last = now;
}

static tr_status file_verify(const tr_checkpoint *checkpoint, int index,
                             tr_shard_verifier *verifier, progress *p)
{
    tr_shard *shard = tr_checkpoint_shard(checkpoint, index);
    tr_hash128 hash;
    TR_TRY(tr_shard_verify(verifier, shard, progress_add, p, &hash));
    if (!tr_hash128_equal(hash, tr_checkpoint_manifest(checkpoint)->files[index].hash))
        return tr_fail(TR_ERR_CHECKPOINT, "%s: its hash is not the one in the manifest",
                       tr_shard_path(shard));
    return TR_OK;
}

/* All files, so that who has a copy knows which to take from it. */
static tr_status files_verify(const tr_checkpoint *checkpoint, tr_shard_verifier *verifier,
                              progress *p)
{
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    char *first = NULL, *others = NULL;
    tr_status status = TR_OK;
    p->total = tr_manifest_bytes(manifest);
    for (int i = 0; i < manifest->num_files; i++) {
        int64_t behind = p->done + manifest->files[i].bytes;
        tr_status found = file_verify(checkpoint, i, verifier, p);
        p->done = behind;
        if (found == TR_OK)
            continue;
        if (first == NULL) {
            status = found;
            first = tr_strdup(tr_error_message());
            continue;
        }
        char *longer = tr_format("%s, %s", others ? others : "", manifest->files[i].name);
        tr_free(others);
        others = longer;
    }
    if (others != NULL)
        status = tr_fail(status, "%s; damaged too: %s", first, others + strlen(", "));
    else if (first != NULL)
        status = tr_fail(status, "%s%s", first,
                         manifest->num_files > 1 ? "; the other files are whole" : "");
    tr_free(first);
    tr_free(others);
    return status;
}

static tr_status cover_verify(const tr_checkpoint *checkpoint, int *num_tensors)
{
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    *num_tensors = 0;
    for (int i = 0; i < manifest->num_params; i++) {
        tr_box whole = tr_checkpoint_tensor_box(checkpoint, i);
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS && manifest->params[i].tied_to < 0; kind++)
            if (manifest->kinds[kind])
                TR_TRY(tr_checkpoint_cover(checkpoint, i, (tr_shard_kind)kind, &whole));
        *num_tensors += manifest->params[i].tied_to < 0;
    }
    return TR_OK;
}

static tr_status checkpoint_verify(const tr_checkpoint *checkpoint, int num_threads)
{
    progress p = {.shown = isatty(STDOUT_FILENO) != 0, .begin = tr_clock_seconds()};
    tr_shard_verifier *verifier;
    int num_tensors;
    char size[24];
    TR_TRY(cover_verify(checkpoint, &num_tensors));
    TR_TRY(tr_shard_verifier_create(num_threads, &verifier));
    tr_status status = files_verify(checkpoint, verifier, &p);
    tr_shard_verifier_destroy(verifier);
    if (status != TR_OK)
        return status;
    tr_ckpt_size_format(size, (double)p.total);
    tr_log_info("%s is whole: %d files, %s, every hash; %d tensors, every element once",
                tr_checkpoint_path(checkpoint), tr_checkpoint_manifest(checkpoint)->num_files, size,
                num_tensors);
    return TR_OK;
}

tr_status tr_ckpt_verify_run(int argc, char **argv)
{
    tr_checkpoint *checkpoint;
    int cores = tr_peak_num_cores();
    int64_t num_threads = cores < THREADS_MOST ? cores : THREADS_MOST;
    TR_TRY(tr_cli_int(&argc, argv, "--threads", 1, 1024, &num_threads));
    TR_TRY(tr_cli_words(argc, argv, 1, 1));
    TR_TRY(tr_ckpt_open(&checkpoint, argv[1]));
    tr_status status = checkpoint_verify(checkpoint, (int)num_threads);
    tr_checkpoint_close(checkpoint);
    return status;
}
