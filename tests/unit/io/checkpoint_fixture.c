#include "tests/unit/io/checkpoint_fixture.h"

#include <ftw.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *ftw)
{
    (void)about;
    (void)type;
    (void)ftw;
    return remove(path);
}

void fixture_folder_make(char folder[64])
{
    strcpy(folder, "/tmp/trine-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

void fixture_folder_remove(const char *folder)
{
    assert_int_equal(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

void fixture_values(int tensor, tr_shard_kind kind, float *values)
{
    int count = tensor == 0 ? FIXTURE_ROWS * FIXTURE_COLUMNS : FIXTURE_VECTOR;
    for (int i = 0; i < count; i++)
        values[i] = sinf((float)(i + 1) * (float)(1 + tensor)) * powf(10, -(float)kind);
}

/* Packs the box out of the global tensor. */
static float *box_values(int tensor, tr_shard_kind kind, const tr_box *box, fixture_fault fault)
{
    static const int64_t shapes[2][2] = {{FIXTURE_ROWS, FIXTURE_COLUMNS}, {FIXTURE_VECTOR, 1}};
    static float whole[FIXTURE_ROWS * FIXTURE_COLUMNS];
    tr_box all = tr_box_of_shape(box->num_dims, shapes[tensor]);
    float *values = calloc((size_t)tr_box_volume(box), sizeof(float));
    fixture_values(tensor, kind, whole);
    tr_box_copy(sizeof(float), &all, whole, box, values);
    values[0] += fault == FIXTURE_OTHER ? 1.0f : 0.0f;
    return values;
}

/* Rank r: tensor rank r % 2 holds half of the columns, data rank r / 2 an interval of that cut. */
static int rank_parts(int rank, fixture_fault fault, tr_shard_part *parts)
{
    int num_parts = 0, half = FIXTURE_COLUMNS / 2, split = 200;
    tr_box cut = tr_box_2d(0, FIXTURE_ROWS, rank % 2 * half, half), pieces[TR_BOX_MAX_PIECES];
    int64_t begin = rank / 2 == 0 ? 0 : split;
    int64_t end = rank / 2 == 0 ? split : FIXTURE_ROWS * half;
    if (rank == 3 && fault == FIXTURE_OVERLAP)
        begin--;
    if (rank == 3 && fault == FIXTURE_GAP)
        begin++;
    int num_pieces = tr_box_from_interval(&cut, begin, end, pieces);
    for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++) {
        for (int p = 0; p < num_pieces; p++)
            parts[num_parts++] =
                (tr_shard_part){0, (tr_shard_kind)kind, pieces[p],
                                box_values(0, (tr_shard_kind)kind, &pieces[p], fault), NULL};
        tr_box quarter = tr_box_1d(rank * 33, rank == 3 ? FIXTURE_VECTOR - 99 : 33);
        parts[num_parts++] =
            (tr_shard_part){1, (tr_shard_kind)kind, quarter,
                            box_values(1, (tr_shard_kind)kind, &quarter, fault), NULL};
    }
    return num_parts;
}

void fixture_checkpoint_write(const char *folder, int level, fixture_fault fault)
{
    static char numerics[] = "cpu test", config[] = "train:\n  steps: 10\n";
    tr_manifest_param params[] = {{"a.weight", 2, {FIXTURE_ROWS, FIXTURE_COLUMNS}, -1},
                                  {"b.bias", 1, {FIXTURE_VECTOR, 1}, -1},
                                  {"c.weight", 2, {FIXTURE_ROWS, FIXTURE_COLUMNS}, 0}};
    tr_manifest_file files[FIXTURE_RANKS];
    char path[512];
    for (int rank = 0; rank < FIXTURE_RANKS; rank++) {
        tr_shard_part parts[16];
        tr_shard_summary summary;
        int num_parts = rank_parts(rank, fault, parts);
        tr_manifest_file_name(rank, files[rank].name);
        snprintf(path, sizeof path, "%s/%s", folder, files[rank].name);
        assert_int_equal(tr_shard_write(path, parts, num_parts, level, 256, &summary), TR_OK);
        files[rank].bytes = summary.bytes;
        files[rank].hash = summary.hash;
        files[rank].table_hash = summary.table_hash;
        for (int i = 0; i < num_parts; i++)
            free((void *)(uintptr_t)parts[i].values);
    }
    tr_manifest manifest = {.step = 7,
                            .samples = 56,
                            .updates = 6,
                            .skips_in_row = 1,
                            .seed = UINT64_MAX,
                            .scale = 1024,
                            .good_steps = 3,
                            .loss = 2.5,
                            .numerics = numerics,
                            .config = config,
                            .kinds = {true, true, true},
                            .params = params,
                            .num_params = 3,
                            .files = files,
                            .num_files = FIXTURE_RANKS};
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    assert_int_equal(tr_manifest_write(path, &manifest), TR_OK);
}
