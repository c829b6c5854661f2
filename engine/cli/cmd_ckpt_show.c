/* trine ckpt show and verify: one checkpoint from inside. Reads panels and chunks, so that the size
 * of the checkpoint does not matter. */
#include "engine/cli/cmd_ckpt_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/cli/cli.h"
#include "io/checkpoint_read.h"

/* ---- show ---- */

static void summary_print(const tr_checkpoint *checkpoint)
{
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    double values = 0, bytes = 0;
    char size[24], raw[24];
    int num_kinds = 0, num_tied = 0;
    for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++)
        num_kinds += manifest->kinds[kind];
    for (int i = 0; i < manifest->num_params; i++) {
        const tr_manifest_param *param = &manifest->params[i];
        num_tied += param->tied_to >= 0;
        if (param->tied_to < 0)
            values += (double)param->shape[0] * (double)param->shape[1];
    }
    for (int i = 0; i < manifest->num_files; i++)
        bytes += (double)manifest->files[i].bytes;
    tr_ckpt_size_format(size, bytes);
    tr_ckpt_size_format(raw, values * num_kinds * 4);
    printf("checkpoint    %s\n", tr_checkpoint_path(checkpoint));
    printf("step          %" PRId64 " (updates %" PRId64 ", skipped in a row %" PRId64 ")\n",
           manifest->step, manifest->updates, manifest->skips_in_row);
    printf("samples       %" PRId64 "\n", manifest->samples);
    if (!isnan(manifest->loss))
        printf("loss          %.6f\n", manifest->loss);
    printf("loss scale    %g (%" PRId64 " finite steps)\n", manifest->scale, manifest->good_steps);
    printf("seed          %" PRIu64 "\n", manifest->seed);
    printf("tensors       %d, %.0f parameters, %d tied; stored of each:", manifest->num_params,
           values, num_tied);
    for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++)
        if (manifest->kinds[kind])
            printf(" %s", tr_shard_kind_name((tr_shard_kind)kind));
    printf("\nfiles         %d, %s for %s of values\n", manifest->num_files, size, raw);
    printf("arithmetic    %s\n", manifest->numerics);
    printf("configuration\n");
    for (const char *line = manifest->config; *line != '\0';) {
        int length = (int)strcspn(line, "\n");
        printf("  %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}

typedef struct named_tensor {
    const char *name;
    int row;
} named_tensor;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const named_tensor *)a)->name, ((const named_tensor *)b)->name);
}

/* Sorted by kind, then by name, as `sort` would in the C locale: m < master < v. */
static tr_status hashes_print(tr_checkpoint *checkpoint)
{
    static const tr_shard_kind kinds[] = {TR_SHARD_M, TR_SHARD_MASTER, TR_SHARD_V};
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    named_tensor *tensors = TR_NEW_ARRAY(named_tensor, (size_t)manifest->num_params);
    size_t count = 0;
    tr_status status = TR_OK;
    for (int i = 0; i < manifest->num_params; i++)
        if (manifest->params[i].tied_to < 0)
            tensors[count++] = (named_tensor){manifest->params[i].name, i};
    qsort(tensors, count, sizeof tensors[0], by_name);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t i = 0; i < count && status == TR_OK && manifest->kinds[kinds[k]]; i++) {
            tr_hash128 hash;
            char text[TR_HASH128_TEXT];
            status = tr_checkpoint_hash(checkpoint, tensors[i].row, kinds[k], &hash);
            if (status != TR_OK)
                break;
            tr_hash128_to_text(hash, text);
            printf("%s %s %s\n", tr_shard_kind_name(kinds[k]), tensors[i].name, text);
        }
    tr_free(tensors);
    return status;
}

tr_status tr_ckpt_show_run(int argc, char **argv)
{
    tr_checkpoint *checkpoint;
    bool hash = tr_cli_flag(&argc, argv, "--hash");
    TR_TRY(tr_cli_words(argc, argv, 1, 1));
    TR_TRY(tr_checkpoint_open(&checkpoint, argv[1]));
    tr_status status = TR_OK;
    if (hash)
        status = hashes_print(checkpoint);
    else
        summary_print(checkpoint);
    tr_checkpoint_close(checkpoint);
    return status;
}

/* ---- verify ---- */

/* A line at most each second on a terminal, nothing elsewhere. */
static void progress_print(double done, double total, double *last)
{
    double now = tr_clock_seconds();
    if (!isatty(STDOUT_FILENO) || (now - *last < 1 && done < total))
        return;
    char done_text[24], total_text[24];
    tr_ckpt_size_format(done_text, done);
    tr_ckpt_size_format(total_text, total);
    tr_log_status_line("%3.0f%%  %s of %s", total > 0 ? 100 * done / total : 100, done_text,
                       total_text);
    *last = now;
}

static tr_status files_verify(tr_checkpoint *checkpoint, double *total)
{
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    tr_shard_scratch *scratch = tr_shard_scratch_create();
    double done = 0, last = tr_clock_seconds();
    tr_status status = TR_OK;
    *total = 0;
    for (int i = 0; i < manifest->num_files; i++)
        *total += (double)manifest->files[i].bytes;
    for (int i = 0; i < manifest->num_files && status == TR_OK; i++) {
        tr_shard *shard = tr_checkpoint_shard(checkpoint, i);
        tr_hash128 hash;
        status = tr_shard_verify(shard, scratch, &hash);
        tr_shard_rest(shard);
        if (status == TR_OK && !tr_hash128_equal(hash, manifest->files[i].hash))
            status = tr_fail(TR_ERR_CHECKPOINT, "%s: its hash is not the one in the manifest",
                             tr_shard_path(shard));
        done += (double)manifest->files[i].bytes;
        progress_print(done, *total, &last);
    }
    tr_shard_scratch_destroy(scratch);
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

tr_status tr_ckpt_verify_run(int argc, char **argv)
{
    tr_checkpoint *checkpoint;
    double bytes;
    int num_tensors;
    char size[24];
    TR_TRY(tr_cli_words(argc, argv, 1, 1));
    TR_TRY(tr_checkpoint_open(&checkpoint, argv[1]));
    tr_status status = cover_verify(checkpoint, &num_tensors);
    if (status == TR_OK)
        status = files_verify(checkpoint, &bytes);
    if (status == TR_OK) {
        tr_ckpt_size_format(size, bytes);
        tr_log_info("%s is whole: %d files, %s, every hash; %d tensors, every element once",
                    argv[1], tr_checkpoint_manifest(checkpoint)->num_files, size, num_tensors);
    }
    tr_checkpoint_close(checkpoint);
    return status;
}
