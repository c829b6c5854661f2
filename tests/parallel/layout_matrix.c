/* Many layouts of the models G and L, in one job of 8 ranks, compared with the plainest layout of the same mathematics:
 *
 *     layout_matrix pairs|triples|wide|gpus
 *
 * pairs, triples: a covering array over the mesh (every product of axes up to 8 ranks) and all settings of the layout: any two, or three,
 * of their values stand together in some row. gpus: pairs on up to 4 ranks with a GPU each. wide: a few layouts of a model wide enough for several pieces in a product.
 *
 * Losses, norms, step-1 gradients, weights after the last step and an evaluation must have the bits of the reference with the same tensor
 * size and sequence setting on one data rank (E1, E2, and E3: the data size follows the recorded tree); in tensor slices those of one rank in
 * these slices, whatever the tensor size and sequence setting (E4). References among themselves, which differ in tensor size, sequence
 * parallel, slices or the tree, agree within rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "tests/parallel/covering.h"
#include "tests/parallel/run_fixture.h"

typedef struct mesh_level {
    int data, tensor, pipeline;
} mesh_level;

/* Products of 1, 2 and 4 heads per rank with up to 8 ranks; the last seven not in pairs. */
static const mesh_level meshes[] = {
    {1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {5, 1, 1}, {7, 1, 1}, {8, 1, 1}, {1, 1, 2},
    {1, 1, 4}, {1, 1, 5}, {1, 1, 8}, {2, 1, 2}, {4, 1, 2}, {2, 1, 3}, {2, 1, 4}, {1, 2, 1},
    {2, 2, 1}, {3, 2, 1}, {4, 2, 1}, {1, 2, 2}, {2, 2, 2}, {1, 4, 1}, {2, 4, 1}, {1, 4, 2},
    {6, 1, 1}, {1, 1, 3}, {1, 1, 6}, {1, 1, 7}, {3, 1, 2}, {1, 2, 3}, {1, 2, 4}};
enum { NUM_PAIR_MESHES = sizeof meshes / sizeof meshes[0] - 7 };
static const mesh_level gpu_meshes[] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {1, 2, 1},
                                        {2, 2, 1}, {1, 4, 1}, {1, 1, 2}, {2, 1, 2},
                                        {1, 2, 2}, {1, 1, 3}, {1, 1, 4}};
static const struct {
    const char *schedule;
    int chunks;
} pipes[] = {{"1f1b", 1},  {"gpipe", 1}, {"interleaved", 2},
             {"gpipe", 2}, {"zb-h1", 1}, {"zb-v", 2}};
static const struct {
    const char *precision;
    double dropout;
} numerics[] = {{"fp32", 0.1}, {"bf16", 0}, {"fp16", 0.1}, {"fp32", 0}}; /* pairs: the first two */
static const char *const models[] = {"g", "l"}, *const recomputes[] = {"none", "selective", "full"},
                         *const buckets[] = {"0.0005", "0.037", "64"},
                         *const switches[] = {"false", "true"},
                         *const transports[] = {"shm", "mpi"},
                         *const orders[] = {"blocks", "rounds"};
static const int slices[] = {
    0, 4}; /* none; as many as the largest tensor size, so that all may follow */

enum {
    MODEL,
    NUMERICS,
    MESH,
    PIPE,
    RECOMPUTE,
    ORDER,
    ZERO,
    SHARD,
    BUCKET,
    OVERLAP,
    THREADS,
    SEQUENCE,
    INSIDE,
    SLICES,
    NUM_FACTORS
};
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum { ODD_MICRO_BATCH = 4 };

/* What a mode covers, and the model and the step that it does it with. */
typedef struct coverage {
    const char *name;
    int strength, num_numerics;
    const mesh_level *meshes;
    int num_meshes, num_threads, num_transports;
    int layers, batch, leaves; /* leaves: of the tree where it may be any */
    const char *device;
} coverage;

static const coverage coverages[] = {
    {"pairs", 2, 2, meshes, NUM_PAIR_MESHES, 2, 2, 10, 24, 8, ""},
    {"triples", 3, COUNT(numerics), meshes, COUNT(meshes), 2, 2, 10, 24, 8, ""},
    {"gpus", 2, 2, gpu_meshes, COUNT(gpu_meshes), 1, 1, 8, 8, 4,
     "device.kind=cuda train.seq_len=16"}};
static const coverage *mode = &coverages[0];

static const mesh_level *mesh_of(const tr_covering_row *row)
{
    return &mode->meshes[row->level[MESH]];
}

/* Sequences of a step; where the mode's do not divide, two microbatches of several for each leaf, and that many in one step. */
static int batch_of(const mesh_level *mesh)
{
    return mesh->data == 5 || mesh->data == 7 ? 4 * mesh->data * ODD_MICRO_BATCH : mode->batch;
}

static bool row_legal(const tr_covering_row *row)
{
    return mesh_of(row)->pipeline * pipes[row->level[PIPE]].chunks <= mode->layers;
}

/* The tree that covers the data size and 1. */
static int leaves_of(const mesh_level *mesh)
{
    switch (mesh->data) {
    case 5:
        return 10;
    case 7:
        return 14;
    case 3:
    case 6:
        return 24;
    default:
        return mode->leaves;
    }
}

/* Sharding groups: of all data ranks, the smallest and the largest that are fewer, where there are such. */
static int shard_ranks_of(const mesh_level *mesh, int level)
{
    int found = mesh->data;
    for (int s = 2; s < mesh->data; s++)
        if (mesh->data % s == 0 && level > 0 && (level == 2 || found == mesh->data))
            found = s;
    return found;
}

/* What fixes the bits: reference runs are made for each. Sorted in this order, the less significant last. */
typedef struct math_key {
    int model, numerics, batch, order, leaves, slices, tensor, sequence;
} math_key;

static math_key key_of(const tr_covering_row *row)
{
    const mesh_level *mesh = mesh_of(row);
    int in_slices = slices[row->level[SLICES]];
    int tensor = in_slices > 0 ? 1 : mesh->tensor;
    return (math_key){row->level[MODEL],
                      row->level[NUMERICS],
                      batch_of(mesh),
                      row->level[ORDER],
                      leaves_of(mesh),
                      in_slices,
                      tensor,
                      tensor > 1 ? row->level[SEQUENCE] : 0};
}

static int key_compare(const math_key *a, const math_key *b)
{
    return memcmp(a, b, sizeof *a) == 0 ? 0
           : a->model != b->model       ? a->model - b->model
           : a->numerics != b->numerics ? a->numerics - b->numerics
           : a->batch != b->batch       ? a->batch - b->batch
           : a->order != b->order       ? a->order - b->order
           : a->leaves != b->leaves     ? a->leaves - b->leaves
           : a->slices != b->slices     ? a->slices - b->slices
           : a->tensor != b->tensor     ? a->tensor - b->tensor
                                        : a->sequence - b->sequence;
}

static int row_compare(const void *a, const void *b)
{
    math_key x = key_of(a), y = key_of(b);
    return key_compare(&x, &y);
}

/* The mathematics of a key, and its plainest layout; what follows it may be another layout. */
static char *math_text(const math_key *key)
{
    return tr_format("%s model.layers=%d train.precision=%s model.dropout=%g train.global_batch=%d "
                     "train.micro_batch=%d train.reduction_order=%s train.reduction_leaves=%d "
                     "train.tensor_slices=%d train.clip=0.5 train.eval_batches=1 "
                     "parallel.tensor=%d parallel.sequence=%s",
                     mode->device, mode->layers, numerics[key->numerics].precision,
                     numerics[key->numerics].dropout, key->batch,
                     key->batch == mode->batch ? 1 : ODD_MICRO_BATCH, orders[key->order],
                     key->leaves, key->slices, key->tensor, switches[key->sequence]);
}

static char *row_text(const tr_covering_row *row)
{
    const int *level = row->level;
    const mesh_level *mesh = mesh_of(row);
    return tr_format(
        "parallel.data=%d parallel.pipeline=%d parallel.schedule=%s "
        "parallel.virtual=%d memory.recompute=%s parallel.zero=%d "
        "parallel.shard_ranks=%d parallel.bucket_mb=%s parallel.overlap=%s device.threads=%d "
        "parallel.tensor=%d parallel.sequence=%s parallel.inside=%s",
        mesh->data, mesh->pipeline, pipes[level[PIPE]].schedule, pipes[level[PIPE]].chunks,
        recomputes[level[RECOMPUTE]], level[ZERO], shard_ranks_of(mesh, level[SHARD]),
        buckets[level[BUCKET]], switches[level[OVERLAP]], 1 + level[THREADS], mesh->tensor,
        switches[level[SEQUENCE]], mode->num_transports > 1 ? transports[level[INSIDE]] : "auto");
}

/* What rounding may do to a step-1 gradient. */
static double tolerance(int numerics_level)
{
    const char *precision = numerics[numerics_level].precision;
    return strcmp(precision, "fp32") == 0 ? 1e-5 : strcmp(precision, "fp16") == 0 ? 2e-2 : 1e-1;
}

/* The references of the key in use: on one tensor rank without slices, with its own tensor setting or slices when these are others, and that of the same
 * batch with another tree, when there was one. */
typedef struct references {
    bool known, has_other;
    int num_made;
    math_key key;
    fx_outcome whole, own, other;
} references;

static int steps_of(const math_key *key)
{
    return key->batch == mode->batch ? 2 : 1;
}

static void reference_measure(fx_job *job, references *r, const math_key *key, fx_outcome *outcome)
{
    r->num_made++;
    char *text = math_text(key);
    fx_outcome_clear(outcome);
    fx_measure(job, models[key->model], text, steps_of(key), NULL, outcome);
    tr_free(text);
}

static void rounding_check(fx_job *job, const math_key *key, const fx_outcome *a,
                           const fx_outcome *b)
{
    char *text = math_text(key);
    double difference = fx_grad_difference(job, a, b);
    fx_check(job, difference <= tolerance(key->numerics), "%s %s: gradients differ by %g",
             models[key->model], text, difference);
    double expected = a->metrics[0].grad_norm, norm = b->metrics[0].grad_norm;
    fx_check(job, job->rank > 0 || fabs(norm - expected) <= tolerance(key->numerics) * expected,
             "%s %s: norm %g, not %g", models[key->model], text, norm, expected);
    tr_free(text);
}

/* Whether the key's bits are not those of `whole`. */
static bool has_own(const math_key *key)
{
    return key->tensor > 1 || key->slices > 0;
}

/* Makes the references of a key where they are not there yet. */
static void references_turn(fx_job *job, references *r, const math_key *key)
{
    if (r->known && key_compare(&r->key, key) == 0)
        return;
    math_key whole = *key;
    whole.tensor = 1;
    whole.sequence = whole.slices = 0;
    bool same_batch = r->known && r->key.model == key->model && r->key.numerics == key->numerics &&
                      r->key.batch == key->batch;
    if (!same_batch) {
        r->has_other = false;
        reference_measure(job, r, &whole, &r->whole);
    } else if (r->key.order != key->order || r->key.leaves != key->leaves) {
        if (!r->has_other) {
            fx_outcome_clear(&r->other);
            r->other = r->whole;
            r->whole = (fx_outcome){0};
            r->has_other = true;
        }
        reference_measure(job, r, &whole, &r->whole);
        rounding_check(job, &whole, &r->other, &r->whole);
    }
    if (has_own(key)) {
        reference_measure(job, r, key, &r->own);
        rounding_check(job, key, &r->whole, &r->own);
    }
    r->key = *key;
    r->known = true;
}

static void row_run(fx_job *job, references *r, const tr_covering_row *row)
{
    math_key key = key_of(row);
    references_turn(job, r, &key);
    char *math = math_text(&key), *layout = row_text(row);
    char *both = tr_format("%s %s", math, layout);
    char *what = tr_format("%s %s", models[key.model], both);
    fx_outcome outcome;
    fx_measure(job, models[key.model], both, steps_of(&key), NULL, &outcome);
    fx_check_equal(job, has_own(&key) ? &r->own : &r->whole, &outcome, what);
    fx_outcome_clear(&outcome);
    tr_free(what);
    tr_free(both);
    tr_free(layout);
    tr_free(math);
}

static void covering_run(fx_job *job)
{
    const tr_covering covering = {.num_factors = NUM_FACTORS,
                                  .num_levels = {[MODEL] = COUNT(models),
                                                 [NUMERICS] = mode->num_numerics,
                                                 [MESH] = mode->num_meshes,
                                                 [PIPE] = COUNT(pipes),
                                                 [RECOMPUTE] = COUNT(recomputes),
                                                 [ORDER] = COUNT(orders),
                                                 [ZERO] = 4,
                                                 [SHARD] = 3,
                                                 [BUCKET] = COUNT(buckets),
                                                 [OVERLAP] = 2,
                                                 [THREADS] = mode->num_threads,
                                                 [SEQUENCE] = 2,
                                                 [INSIDE] = mode->num_transports,
                                                 [SLICES] = COUNT(slices)},
                                  .strength = mode->strength,
                                  .legal = row_legal};
    int num_rows, num_missed;
    tr_covering_row *rows = tr_covering_make(&covering, &num_rows, &num_missed);
    qsort(rows, (size_t)num_rows, sizeof *rows, row_compare);
    if (job->rank == 0)
        printf("%d layouts; %d combinations are not legal\n", num_rows, num_missed);
    references r = {0};
    double begin = tr_clock_seconds();
    for (int i = 0; i < num_rows; i++) {
        row_run(job, &r, &rows[i]);
        if (job->rank == 0 && (i + 1) % 16 == 0) {
            printf("%d of %d after %.0f s, with %d references\n", i + 1, num_rows,
                   tr_clock_seconds() - begin, r.num_made);
            fflush(stdout);
        }
    }
    fx_outcome_clear(&r.whole);
    fx_outcome_clear(&r.own);
    fx_outcome_clear(&r.other);
    tr_free(rows);
}

/* Layouts of one mathematics, which includes what fixes the bits of tensor ranks; the reference is `plain` of it. */
typedef struct wide_part {
    const char *math, *plain, *layouts[6];
} wide_part;

static const wide_part wide_parts[] = {
    {"train.global_batch=8 train.reduction_leaves=8",
     "",
     {"parallel.data=2 parallel.pipeline=2 memory.recompute=selective",
      "parallel.data=4 parallel.zero=0 parallel.bucket_mb=1 device.threads=2",
      "parallel.data=8 parallel.overlap=false memory.recompute=full",
      "parallel.data=4 parallel.zero=2 parallel.shard_ranks=2",
      "parallel.pipeline=2 parallel.schedule=gpipe device.threads=2"}},
    {"train.global_batch=4 train.reduction_leaves=4",
     "parallel.tensor=2",
     {"parallel.tensor=2 parallel.data=4 parallel.zero=3 parallel.bucket_mb=1",
      "parallel.tensor=2 parallel.pipeline=2 parallel.data=2 memory.recompute=selective"}},
    {"train.global_batch=4 train.reduction_leaves=4",
     "parallel.tensor=2 parallel.sequence=false",
     {"parallel.tensor=2 parallel.sequence=false parallel.data=2 parallel.zero=2 "
      "device.threads=2",
      "parallel.tensor=2 parallel.sequence=false parallel.overlap=false parallel.pipeline=2"}},
    {"train.global_batch=4 train.reduction_leaves=4 train.tensor_slices=4",
     "",
     {"parallel.tensor=2 parallel.data=2 parallel.zero=3",
      "parallel.tensor=4 parallel.sequence=false parallel.data=2 memory.recompute=full",
      "parallel.tensor=4 parallel.pipeline=2 device.threads=2", "parallel.data=4 parallel.zero=1"}},
};

/* E2, E3 and E4 where products have several pieces and sums many terms. */
static void wide_run(fx_job *job)
{
    static const char shape[] =
        "model.layers=2 model.hidden=768 model.heads=12 model.kv_heads=12 model.ffn=2048 "
        "model.vocab=1003 train.seq_len=512 train.precision=bf16 train.eval_batches=1";
    double begin = tr_clock_seconds();
    for (int m = 0; m < COUNT(models) * COUNT(wide_parts); m++) {
        const char *model = models[m / COUNT(wide_parts)];
        const wide_part *part = &wide_parts[m % COUNT(wide_parts)];
        fx_outcome reference, outcome;
        char *plain = tr_format("%s %s %s", shape, part->math, part->plain);
        fx_measure(job, model, plain, 2, NULL, &reference);
        for (int i = 0; i < COUNT(part->layouts) && part->layouts[i] != NULL; i++) {
            char *both = tr_format("%s %s %s", shape, part->math, part->layouts[i]);
            char *what = tr_format("%s %s %s", model, part->math, part->layouts[i]);
            fx_measure(job, model, both, 2, NULL, &outcome);
            fx_check_equal(job, &reference, &outcome, what);
            fx_outcome_clear(&outcome);
            tr_free(what);
            tr_free(both);
        }
        fx_outcome_clear(&reference);
        tr_free(plain);
        if (job->rank == 0) {
            printf("%d of %d parts after %.0f s\n", m + 1, COUNT(models) * COUNT(wide_parts),
                   tr_clock_seconds() - begin);
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    const char *name = argc > 1 ? argv[1] : mode->name;
    for (int i = 0; i < COUNT(coverages); i++)
        if (strcmp(coverages[i].name, name) == 0)
            mode = &coverages[i];
    if (fx_case(&job, name)) {
        if (strcmp(name, "wide") == 0)
            wide_run(&job);
        else
            covering_run(&job);
    }
    return fx_end(&job);
}
