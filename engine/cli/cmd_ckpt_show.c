/* trine ckpt show: one checkpoint from inside. Reads panels, so that its size does not matter. */
#include "engine/cli/cmd_ckpt_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/cli/cli.h"
#include "io/checkpoint_read.h"

static void summary_print(const tr_checkpoint *checkpoint)
{
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    double values = 0, bytes = (double)tr_manifest_bytes(manifest);
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
    printf("\nfiles         %d, %s for %s of values; %.2f bytes per parameter\n",
           manifest->num_files, size, raw, values > 0 ? bytes / values : 0);
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
    TR_TRY(tr_ckpt_open(&checkpoint, argv[1]));
    tr_status status = TR_OK;
    if (hash)
        status = hashes_print(checkpoint);
    else
        summary_print(checkpoint);
    tr_checkpoint_close(checkpoint);
    return status;
}
