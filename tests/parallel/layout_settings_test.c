/* Every setting of the layout does what it says. Equal bits under all layouts cannot tell a setting that is obeyed from one that is
 * ignored; what can is bytes sent, operations counted, bytes planned, microbatches in flight, and waits that end.
 *
 *     setting                  what would not change if it were ignored
 *     parallel.data            products per rank; bytes on the data group
 *     parallel.tensor          multiply-adds per rank; bytes on the tensor group; bytes of parameters
 *     parallel.pipeline        blocks per rank; bytes on the pipeline group
 *     parallel.virtual         bytes on the pipeline group
 *     parallel.schedule        microbatches in flight
 *     parallel.stages          blocks per rank
 *     parallel.zero            bytes of the optimizer and of gradients; bytes on the data group
 *     parallel.shard_ranks     bytes of the optimizer; bytes on the groups inside and across
 *     train.reduction_order    bytes on the data group (what it does to the bits: layout_matrix.c)
 *     parallel.sequence        rows of a norm; operations of the tensor group; bytes of activations
 *     parallel.bucket_mb       operations of the data group; bytes of communication memory
 *     parallel.overlap         operations of the data group when the last weight gradient is computed, and at the fourth attention
 *     parallel.inside          the transport's name
 *     parallel.timeout_s       a step with a rank that sleeps ends in time, or not
 *     memory.recompute         forward operations of a step; bytes of activations
 *     memory.limit_gb          a run that is refused
 *     device.threads           threads of the process
 *
 * parallel.across has one value on one node. checkpoint.*: resume_test.c. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

/* ---- a device that counts, and sleeps when told to ---- */

static struct {
    const tr_ops *real;
    tr_ops ops;
    fx_run *fx;
    int64_t weight_products, attentions, activations, norm_rows;
    double multiplies;
    uint64_t data_operations;    /* of the data group when the last weight gradient was computed */
    uint64_t forward_operations; /* of the data group when the fourth attention was computed */
    int sleep_s;                 /* before the next weight gradient */
} counted;

static tr_status counted_matmul(tr_device *device, const tr_matmul *args)
{
    counted.multiplies += (double)args->M * (double)args->N * (double)args->K;
    if (args->form == TR_MATMUL_TN) {
        if (counted.sleep_s > 0)
            nanosleep(&(struct timespec){.tv_sec = counted.sleep_s}, NULL);
        counted.sleep_s = 0;
        counted.weight_products++;
        if (counted.fx->run != NULL && counted.fx->run->data != NULL)
            counted.data_operations = tr_group_get_stats(counted.fx->run->data)->num_operations;
    }
    return counted.real->matmul(device, args);
}

static tr_status counted_attention(tr_device *device, const tr_attention *args)
{
    if (++counted.attentions == 4 && counted.fx->run != NULL && counted.fx->run->data != NULL)
        counted.forward_operations = tr_group_get_stats(counted.fx->run->data)->num_operations;
    return counted.real->attention_forward(device, args);
}

static tr_status counted_swiglu(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                const void *up, void *out)
{
    counted.activations++;
    return counted.real->swiglu_forward(device, dtype, n, gate, up, out);
}

static tr_status counted_norm(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                              int64_t H, float eps, const void *x, const void *weight,
                              const void *bias, void *out, float *mean, float *rstd)
{
    counted.norm_rows = R;
    return counted.real->norm_forward(device, kind, dtype, R, H, eps, x, weight, bias, out, mean,
                                      rstd);
}

static void count_install(void *context, tr_device *device)
{
    counted.fx = context;
    counted.real = device->ops;
    counted.ops = *device->ops;
    counted.ops.matmul = counted_matmul;
    counted.ops.attention_forward = counted_attention;
    counted.ops.swiglu_forward = counted_swiglu;
    counted.ops.norm_forward = counted_norm;
    device->ops = &counted.ops;
}

/* ---- what one step of a layout does on a rank ---- */

typedef struct group_counts {
    double bytes, operations;
} group_counts;

typedef struct footprint {
    double weight_products, multiplies, attentions, activations, norm_rows;
    double early_operations;   /* of the data group, posted before the last weight gradient */
    double forward_operations; /* of the data group, posted before the fourth attention */
    group_counts data, shard, replica, tensor, pipeline;
    double in_flight;
    double memory[TR_MEM_NUM];
    double threads;
    const char *transport;
} footprint;

static group_counts counts_of(const tr_group *group)
{
    if (group == NULL)
        return (group_counts){0};
    const tr_group_stats *stats = tr_group_get_stats(group);
    return (group_counts){(double)stats->bytes_sent, (double)stats->num_operations};
}

static group_counts counts_less(group_counts a, group_counts b)
{
    return (group_counts){a.bytes - b.bytes, a.operations - b.operations};
}

static int process_threads(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* The second step of the layout, as this rank sees it; all zero on ranks that take no part. Model L, 4 layers, 8 microbatches. */
static footprint footprint_take(fx_job *job, const char *layout)
{
    footprint f = {.transport = "none"};
    fx_run fx;
    tr_metrics metrics;
    char *text = tr_format("train.global_batch=8 device.threads=1 %s", layout);
    fx_open(job, &fx, "l", text, NULL, count_install);
    tr_free(text);
    fx_step(&fx, &metrics);
    if (fx.run != NULL) {
        tr_run *run = fx.run;
        group_counts data = counts_of(run->data), tensor = counts_of(run->tensor),
                     pipeline = counts_of(run->pipeline), shard = counts_of(run->shard),
                     replica = counts_of(run->replica);
        counted.weight_products = counted.attentions = counted.activations = 0;
        counted.multiplies = 0;
        fx_step(&fx, &metrics);
        f.weight_products = (double)counted.weight_products;
        f.multiplies = counted.multiplies;
        f.attentions = (double)counted.attentions;
        f.activations = (double)counted.activations;
        f.norm_rows = (double)counted.norm_rows;
        f.early_operations = (double)counted.data_operations - data.operations;
        f.forward_operations = (double)counted.forward_operations - data.operations;
        f.data = counts_less(counts_of(run->data), data);
        f.shard = counts_less(counts_of(run->shard), shard);
        f.replica = counts_less(counts_of(run->replica), replica);
        f.tensor = counts_less(counts_of(run->tensor), tensor);
        f.pipeline = counts_less(counts_of(run->pipeline), pipeline);
        f.in_flight = tr_pipeline_exec_peak_live(run->stage.train_exec);
        for (int c = 0; c < TR_MEM_NUM; c++)
            f.memory[c] = (double)tr_run_memory(run)[c];
        f.threads = process_threads();
        if (tr_world_size(run->world) > 1)
            f.transport = tr_world_transport_name(run->world, (const int[]){0, 1}, 2);
    }
    fx_close(&fx);
    return f;
}

/* Rank 0 compares. */
static void expect(fx_job *job, bool condition, const char *what, double a, double b)
{
    fx_check(job, job->rank != 0 || condition, "%s: %g and %g", what, a, b);
}

/* ---- the settings ---- */

static void axes(fx_job *job)
{
    if (!fx_case(job, "parallel.data, tensor, pipeline"))
        return;
    footprint one = footprint_take(job, ""), data = footprint_take(job, "parallel.data=2"),
              tensor = footprint_take(job, "parallel.tensor=2"),
              pipeline = footprint_take(job, "parallel.pipeline=2");
    expect(job, one.weight_products == 2 * data.weight_products, "data: weight products",
           one.weight_products, data.weight_products);
    expect(job, data.data.bytes > data.memory[TR_MEM_GRADIENTS] / 2.1, "data: bytes",
           data.data.bytes, data.memory[TR_MEM_GRADIENTS]);
    expect(job, tensor.multiplies < 0.55 * one.multiplies, "tensor: multiply-adds",
           tensor.multiplies, one.multiplies);
    expect(job, tensor.memory[TR_MEM_PARAMETERS] < 0.55 * one.memory[TR_MEM_PARAMETERS],
           "tensor: parameters", tensor.memory[TR_MEM_PARAMETERS], one.memory[TR_MEM_PARAMETERS]);
    expect(job, tensor.tensor.bytes > 0 && one.tensor.bytes == 0, "tensor: bytes",
           tensor.tensor.bytes, one.tensor.bytes);
    expect(job, pipeline.attentions < one.attentions && pipeline.attentions > 0, "pipeline: blocks",
           pipeline.attentions, one.attentions);
    /* Rank 0 sends 8 microbatches of 32 x 64 fp32 values forward. */
    expect(job, pipeline.pipeline.bytes == 8 * 32 * 64 * 4, "pipeline: bytes",
           pipeline.pipeline.bytes, 8 * 32 * 64 * 4);
}

static void pipeline_settings(fx_job *job)
{
    if (!fx_case(job, "parallel.virtual, schedule, stages"))
        return;
    footprint plain = footprint_take(job, "parallel.pipeline=2"),
              gpipe = footprint_take(job, "parallel.pipeline=2 parallel.schedule=gpipe"),
              chunks = footprint_take(
                  job, "parallel.pipeline=2 parallel.schedule=gpipe parallel.virtual=2"),
              interleaved = footprint_take(
                  job, "parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual=2"),
              zb_h1 = footprint_take(job, "parallel.pipeline=2 parallel.schedule=zb-h1"),
              zb_v = footprint_take(job, "parallel.pipeline=2 parallel.schedule=zb-v"),
              uneven = footprint_take(job, "parallel.pipeline=2 parallel.stages=1,3");
    /* Rank 0 now sends two chunks forward and one backward. */
    expect(job, chunks.pipeline.bytes == 3 * gpipe.pipeline.bytes, "virtual: bytes",
           chunks.pipeline.bytes, gpipe.pipeline.bytes);
    expect(job, interleaved.pipeline.bytes == chunks.pipeline.bytes, "interleaved: bytes",
           interleaved.pipeline.bytes, chunks.pipeline.bytes);
    expect(job, plain.in_flight == 2 && gpipe.in_flight == 8, "schedule: in flight",
           plain.in_flight, gpipe.in_flight);
    /* The last stage keeps as much as the first; in a V each sends one chunk up and one down. */
    fx_check(job, job->rank != 1 || (plain.in_flight == 1 && zb_h1.in_flight == 2),
             "zb-h1: %g and %g in flight", zb_h1.in_flight, plain.in_flight);
    expect(job, zb_v.pipeline.bytes == 2 * gpipe.pipeline.bytes && zb_v.in_flight == 4,
           "zb-v: bytes, in flight", zb_v.pipeline.bytes, zb_v.in_flight);
    expect(job, interleaved.in_flight < chunks.in_flight, "interleaved: in flight",
           interleaved.in_flight, chunks.in_flight);
    expect(job, plain.memory[TR_MEM_ACTIVATIONS] < gpipe.memory[TR_MEM_ACTIVATIONS],
           "schedule: activations", plain.memory[TR_MEM_ACTIVATIONS],
           gpipe.memory[TR_MEM_ACTIVATIONS]);
    expect(job, uneven.attentions == 8 && plain.attentions == 16, "stages: blocks",
           uneven.attentions, plain.attentions);
}

static void data_settings(fx_job *job)
{
    if (!fx_case(job, "parallel.zero, bucket_mb, overlap"))
        return;
    footprint one = footprint_take(job, "parallel.data=4 parallel.bucket_mb=0.02"),
              zero = footprint_take(job, "parallel.data=4 parallel.bucket_mb=0.02 parallel.zero=0"),
              large = footprint_take(job, "parallel.data=4 parallel.bucket_mb=64"),
              late = footprint_take(
                  job, "parallel.data=4 parallel.bucket_mb=0.02 parallel.overlap=false");
    expect(job, one.memory[TR_MEM_OPTIMIZER] < 0.3 * zero.memory[TR_MEM_OPTIMIZER],
           "zero: optimizer bytes", one.memory[TR_MEM_OPTIMIZER], zero.memory[TR_MEM_OPTIMIZER]);
    /* Stage 0 gathers fp32 gradients, stage 1 weights in the compute dtype: the same in fp32. */
    footprint half = footprint_take(job, "parallel.data=4 train.precision=bf16"),
              half_zero =
                  footprint_take(job, "parallel.data=4 train.precision=bf16 parallel.zero=0");
    expect(job, half.data.bytes < 0.8 * half_zero.data.bytes, "zero: bytes", half.data.bytes,
           half_zero.data.bytes);
    /* One sum, and weights of 6 units. */
    expect(job, large.data.operations == 7 && one.data.operations >= 20, "bucket_mb: operations",
           large.data.operations, one.data.operations);
    expect(job, one.memory[TR_MEM_COMMUNICATION] < 0.5 * large.memory[TR_MEM_COMMUNICATION],
           "bucket_mb: communication memory", one.memory[TR_MEM_COMMUNICATION],
           large.memory[TR_MEM_COMMUNICATION]);
    expect(job, one.early_operations >= 10 && late.early_operations == 0,
           "overlap: operations under the backward pass", one.early_operations,
           late.early_operations);
    /* Weights of the embedding and three layers at least. */
    expect(job, large.forward_operations >= 4 && late.forward_operations == 0,
           "overlap: operations under the forward pass", large.forward_operations,
           late.forward_operations);
    expect(job, one.data.operations == late.data.operations, "overlap: operations",
           one.data.operations, late.data.operations);
}

static void sharding_settings(fx_job *job)
{
    if (!fx_case(job, "parallel.zero 2, shard_ranks, train.reduction_order"))
        return;
    static const char blocks[] = "train.reduction_order=blocks train.reduction_leaves=4",
                      rounds[] = "train.reduction_order=rounds train.reduction_leaves=4";
    char *texts[4] = {tr_format("parallel.data=4 %s", blocks),
                      tr_format("parallel.data=4 %s", rounds),
                      tr_format("parallel.data=4 parallel.zero=2 %s", rounds),
                      tr_format("parallel.data=4 parallel.shard_ranks=2 %s", blocks)};
    footprint one = footprint_take(job, texts[0]), exchanged = footprint_take(job, texts[1]),
              two = footprint_take(job, texts[2]), halves = footprint_take(job, texts[3]);
    for (int i = 0; i < 4; i++)
        tr_free(texts[i]);
    expect(job, two.memory[TR_MEM_GRADIENTS] < 0.6 * one.memory[TR_MEM_GRADIENTS],
           "zero 2: gradient bytes", two.memory[TR_MEM_GRADIENTS], one.memory[TR_MEM_GRADIENTS]);
    /* Blocks: gradients and weights once each; rounds: gradients of both microbatches. */
    expect(job, exchanged.data.bytes > 1.45 * one.data.bytes, "rounds: bytes", exchanged.data.bytes,
           one.data.bytes);
    expect(job, two.data.bytes == exchanged.data.bytes, "zero 2: bytes", two.data.bytes,
           exchanged.data.bytes);
    expect(job, exchanged.memory[TR_MEM_GRADIENTS] > 1.2 * one.memory[TR_MEM_GRADIENTS],
           "rounds in whole buffers: gradient bytes", exchanged.memory[TR_MEM_GRADIENTS],
           one.memory[TR_MEM_GRADIENTS]);
    double masters = halves.memory[TR_MEM_OPTIMIZER] / one.memory[TR_MEM_OPTIMIZER];
    expect(job, masters > 1.9 && masters < 2.1, "shard_ranks: optimizer bytes",
           halves.memory[TR_MEM_OPTIMIZER], one.memory[TR_MEM_OPTIMIZER]);
    /* Inside go half of the gradients and of the weights; across a quarter of the gradients, twice. */
    expect(job, halves.data.bytes == 0 && halves.shard.bytes > 1.9 * halves.replica.bytes,
           "shard_ranks: bytes inside and across", halves.shard.bytes, halves.replica.bytes);
}

static void tensor_settings(fx_job *job)
{
    if (!fx_case(job, "parallel.sequence"))
        return;
    footprint on = footprint_take(job, "parallel.tensor=2"),
              off = footprint_take(job, "parallel.tensor=2 parallel.sequence=false");
    expect(job, on.norm_rows == 16 && off.norm_rows == 32, "sequence: rows of a norm", on.norm_rows,
           off.norm_rows);
    expect(job, on.tensor.operations > off.tensor.operations, "sequence: operations",
           on.tensor.operations, off.tensor.operations);
    expect(job, on.memory[TR_MEM_ACTIVATIONS] < off.memory[TR_MEM_ACTIVATIONS],
           "sequence: activations", on.memory[TR_MEM_ACTIVATIONS], off.memory[TR_MEM_ACTIVATIONS]);
}

/* At the size where memory matters: 8 layers, 256 positions; also on two stages. */
static void recompute(fx_job *job)
{
    if (!fx_case(job, "memory.recompute"))
        return;
    for (int stages = 1; stages <= 2; stages++) {
        footprint f[3];
        static const char *const names[] = {"none", "selective", "full"};
        for (int i = 0; i < 3; i++) {
            char *text = tr_format("model.layers=8 train.seq_len=256 train.global_batch=4 "
                                   "parallel.pipeline=%d memory.recompute=%s",
                                   stages, names[i]);
            f[i] = footprint_take(job, text);
            tr_free(text);
        }
        expect(job, f[1].activations == 2 * f[0].activations, "selective: activation products",
               f[1].activations, f[0].activations);
        expect(job, f[1].attentions == f[0].attentions, "selective: attention", f[1].attentions,
               f[0].attentions);
        expect(job, f[2].attentions == 2 * f[0].attentions, "full: attention", f[2].attentions,
               f[0].attentions);
        double none = f[0].memory[TR_MEM_ACTIVATIONS], selective = f[1].memory[TR_MEM_ACTIVATIONS],
               full = f[2].memory[TR_MEM_ACTIVATIONS];
        expect(job, selective < 0.85 * none, "selective: activations", selective, none);
        expect(job, full <= none / 4, "full: activations", full, none);
    }
}

static void inside(fx_job *job)
{
    if (!fx_case(job, "parallel.inside"))
        return;
    footprint mpi = footprint_take(job, "parallel.data=2 parallel.inside=mpi"),
              shm = footprint_take(job, "parallel.data=2 parallel.inside=shm");
    fx_check(job, job->rank > 0 || strcmp(mpi.transport, "mpi") == 0, "mpi: %s", mpi.transport);
    fx_check(job, job->rank > 0 || strcmp(shm.transport, "shm") == 0, "shm: %s", shm.transport);
}

static void threads(fx_job *job)
{
    if (!fx_case(job, "device.threads"))
        return;
    footprint one = footprint_take(job, "device.threads=1"),
              three = footprint_take(job, "device.threads=3");
    expect(job, three.threads == one.threads + 2, "threads", three.threads, one.threads);
}

static void limit(fx_job *job)
{
    if (!fx_case(job, "memory.limit_gb"))
        return;
    fx_run fx;
    /* Model G needs about 4 MB on each of the two ranks. */
    tr_status status =
        fx_try_open(job, &fx, "g", "parallel.data=2 memory.limit_gb=0.002", NULL, NULL);
    fx_check(job, status == (job->rank < 2 ? TR_ERR_MEMORY : TR_OK), "status %s",
             tr_status_text(status));
    fx_check(job,
             job->rank != 0 || strstr(tr_error_message(), "memory.limit_gb is 2000000") != NULL,
             "message: %s", tr_error_message());
    fx_gather(job);
    fx_open(job, &fx, "g", "parallel.data=2 memory.limit_gb=1", NULL, NULL);
    fx_close(&fx);
}

/* Last: a run whose wait failed cannot be closed, and its peers' waits fail with it. */
static void timeout(fx_job *job)
{
    if (!fx_case(job, "parallel.timeout_s"))
        return;
    for (int patient = 1; patient >= 0; patient--) {
        fx_run fx;
        tr_metrics metrics;
        const char *text = patient ? "parallel.data=2 parallel.inside=shm parallel.timeout_s=60"
                                   : "parallel.data=2 parallel.inside=shm parallel.timeout_s=1";
        fx_open(job, &fx, "l", text, NULL, count_install);
        counted.sleep_s = job->rank == 1 ? 4 : 0;
        tr_status status = fx.run != NULL ? tr_run_step(fx.run, &metrics) : TR_OK;
        fx_check(job, status == (patient || fx.run == NULL ? TR_OK : TR_ERR_TIMEOUT),
                 "patient %d: status %s: %s", patient, tr_status_text(status), tr_error_message());
        if (patient)
            fx_close(&fx);
        else
            fx_gather(job);
    }
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    axes(&job);
    pipeline_settings(&job);
    data_settings(&job);
    sharding_settings(&job);
    tensor_settings(&job);
    recompute(&job);
    inside(&job);
    threads(&job);
    limit(&job);
    timeout(&job);
    return fx_end(&job);
}
