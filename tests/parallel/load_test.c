/* Loading checkpoints on many ranks: any layout takes what any other wrote; the ranks of a node read every chunk once; memory
 * beyond the state is bounded; a rank that cannot read ends it for all.
 *
 *     load_test [case]           on 8 ranks
 *     load_test two_nodes        on 4 ranks of two nodes (MPIR_CVAR_NUM_CLIQUES=2), that case alone */
#include "tests/parallel/run_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/checkpoint.h"
#include "engine/checkpoint_node.h"
#include "tests/parallel/covering.h"

static char folder[FX_FOLDER]; /* the same on all ranks */

/* Resumes what is there, after step `step`. */
static void resume(fx_run *fx, int64_t step)
{
    bool resumed = false;
    if (fx->run == NULL)
        return;
    fx_need(fx->job, tr_run_resume(fx->run, &resumed));
    fx_check(fx->job, resumed && tr_run_steps_done(fx->run) == step, "resumed %d, at step %lld",
             resumed, (long long)tr_run_steps_done(fx->run));
}

static void save(fx_run *fx)
{
    if (fx->run == NULL)
        return;
    fx_need(fx->job, tr_run_save(fx->run));
    fx_need(fx->job, tr_run_save_wait(fx->run));
    fx_check(fx->job, !tr_run_save_failed(fx->run), "a save failed");
}

/* A run of two steps in a plain layout, saved in FOLDER/NAME. */
static void source_make(fx_job *job, const char *name, const char *model, const char *settings)
{
    tr_metrics metrics;
    fx_run fx;
    char *text =
        tr_format("checkpoint.async=false checkpoint.dir=%s/%s %s", folder, name, settings);
    fx_open(job, &fx, model, text, NULL, NULL);
    for (int s = 0; s < 2; s++)
        fx_step(&fx, &metrics);
    save(&fx);
    fx_close(&fx);
    tr_free(text);
}

/* Stored bytes of all chunks of a checkpoint (masters only: of those), and of its tables. */
static int64_t stored_bytes(fx_job *job, const char *path, bool masters, int64_t *tables)
{
    tr_checkpoint *checkpoint = NULL;
    int64_t sum = 0;
    fx_need(job, tr_checkpoint_open(&checkpoint, path));
    *tables = 0;
    for (int s = 0; s < tr_checkpoint_manifest(checkpoint)->num_files; s++) {
        const tr_shard *shard = tr_checkpoint_shard(checkpoint, s);
        *tables += tr_shard_bytes(shard);
        for (int b = 0; b < tr_shard_num_boxes(shard); b++) {
            const tr_shard_box *box = tr_shard_get_box(shard, b);
            for (int c = 0; c < box->num_chunks; c++) {
                int bytes = tr_shard_get_chunk(shard, box->first_chunk + c)->stored_bytes;
                *tables -= bytes;
                sum += masters && box->kind != TR_SHARD_MASTER ? 0 : bytes;
            }
        }
    }
    tr_checkpoint_close(checkpoint);
    return sum;
}

/* ---- any layout ---- */

enum { MODEL, DATA, TENSOR, PIPELINE, ZERO, SHARD, VIRTUAL, NUM_FACTORS };
enum { LAYERS = 8 };
static const int tensors[] = {1, 2, 4};

static bool row_legal(const tr_covering_row *row)
{
    int data = row->level[DATA] + 1, pipeline = row->level[PIPELINE] + 1;
    return data * tensors[row->level[TENSOR]] * pipeline <= FX_MAX_RANKS &&
           (row->level[VIRTUAL] == 0 || (pipeline > 1 && 2 * pipeline <= LAYERS));
}

/* Ranks that share state: all data ranks, the fewest that are more than one, the most that are fewer than all. */
static int shard_ranks_of(const tr_covering_row *row)
{
    int data = row->level[DATA] + 1, found = data;
    for (int s = 2; s < data; s++)
        if (data % s == 0 && row->level[SHARD] > 0 && (row->level[SHARD] == 2 || found == data))
            found = s;
    return found;
}

static char *layout_text(const tr_covering_row *row)
{
    int data = row->level[DATA] + 1, zero = row->level[ZERO];
    char shard[64] = "";
    if (zero > 0)
        snprintf(shard, sizeof shard, "parallel.shard_ranks=%d", shard_ranks_of(row));
    return tr_format(
        "model.layers=%d train.global_batch=%d train.micro_batch=1 parallel.data=%d "
        "parallel.tensor=%d parallel.pipeline=%d parallel.zero=%d %s %s",
        LAYERS, 8 * data, data, tensors[row->level[TENSOR]], row->level[PIPELINE] + 1, zero, shard,
        row->level[VIRTUAL] > 0 ? "parallel.virtual=2 parallel.schedule=interleaved" : "");
}

/* Hashes of all global tensors, [params][kinds]; tr_free. Rank 0; NULL elsewhere. */
static tr_hash128 *hashes_take(fx_job *job, const char *path)
{
    tr_checkpoint *checkpoint = NULL;
    if (job->rank != 0)
        return NULL;
    fx_need(job, tr_checkpoint_open(&checkpoint, path));
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    tr_hash128 *hashes =
        TR_NEW_ARRAY(tr_hash128, (size_t)manifest->num_params * TR_SHARD_NUM_KINDS);
    for (int i = 0; i < manifest->num_params; i++)
        for (int k = 0; k < TR_SHARD_NUM_KINDS && manifest->params[i].tied_to < 0; k++)
            fx_need(job, tr_checkpoint_hash(checkpoint, i, (tr_shard_kind)k,
                                            &hashes[i * TR_SHARD_NUM_KINDS + k]));
    tr_checkpoint_close(checkpoint);
    return hashes;
}

static void hashes_compare(fx_job *job, const char *path, const tr_hash128 *expected,
                           const char *what)
{
    tr_hash128 *got = hashes_take(job, path);
    tr_checkpoint *checkpoint = NULL;
    if (job->rank != 0)
        return;
    fx_need(job, tr_checkpoint_open(&checkpoint, path));
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    for (int i = 0; i < manifest->num_params; i++)
        for (int k = 0; k < TR_SHARD_NUM_KINDS; k++)
            fx_check(job,
                     tr_hash128_equal(got[i * TR_SHARD_NUM_KINDS + k],
                                      expected[i * TR_SHARD_NUM_KINDS + k]),
                     "%s: %s (%s) differs", what, manifest->params[i].name,
                     tr_shard_kind_name((tr_shard_kind)k));
    tr_checkpoint_close(checkpoint);
    tr_free(got);
}

/* Loads `from` in the layout, saves it at once in FOLDER/NAME. Ranks need not have as many threads as each other. */
static void layout_pass(fx_job *job, const tr_covering_row *row, int number, const char *from,
                        const char *name)
{
    fx_run fx;
    char *layout = layout_text(row);
    char *text = tr_format("%s checkpoint.async=false checkpoint.level=%d checkpoint.resume=%s "
                           "checkpoint.dir=%s/%s device.threads=%d",
                           layout, number % 3, from, folder, name,
                           1 + (number % 4 < 2 ? number : job->rank) % 2);
    fx_open(job, &fx, row->level[MODEL] == 0 ? "g" : "l", text, NULL, NULL);
    resume(&fx, 2);
    if (job->rank == 0) {
        int64_t tables, stored = stored_bytes(job, from, false, &tables);
        const tr_load_counts *loaded = &fx.run->loaded;
        fx_check(job,
                 loaded->needed == stored && loaded->read == stored && loaded->checked == stored,
                 "%s: %lld stored bytes, needed %lld, checked %lld, read %lld", layout,
                 (long long)stored, (long long)loaded->needed, (long long)loaded->checked,
                 (long long)loaded->read);
    }
    save(&fx);
    fx_close(&fx);
    tr_free(text);
    tr_free(layout);
}

static int by_model(const void *a, const void *b)
{
    const tr_covering_row *x = a, *y = b;
    return x->level[MODEL] - y->level[MODEL];
}

/* A covering array of layouts: each loads what the one before it wrote; nobody makes a step. */
static void test_any_layout(fx_job *job)
{
    const tr_covering covering = {NUM_FACTORS, {2, 8, 3, 4, 4, 3, 2}, 2, row_legal};
    int num_rows, num_missed, model = -1;
    tr_covering_row *rows = tr_covering_make(&covering, &num_rows, &num_missed);
    char *from = NULL;
    tr_hash128 *hashes = NULL;
    qsort(rows, (size_t)num_rows, sizeof *rows, by_model);
    if (job->rank == 0)
        printf("%d layouts\n", num_rows);
    for (int i = 0; i < num_rows; i++) {
        char *name = tr_format("any-%d", i);
        if (rows[i].level[MODEL] != model) {
            model = rows[i].level[MODEL];
            char *source = tr_format("any-source-%d", model);
            source_make(job, source, model == 0 ? "g" : "l",
                        "model.layers=8 parallel.data=2 parallel.pipeline=2");
            tr_free(from);
            tr_free(hashes);
            from = tr_format("%s/%s/step-00000002", folder, source);
            hashes = hashes_take(job, from);
            tr_free(source);
        }
        layout_pass(job, &rows[i], i, from, name);
        tr_free(from);
        from = tr_format("%s/%s/step-00000002", folder, name);
        char *layout = layout_text(&rows[i]);
        hashes_compare(job, from, hashes, layout);
        tr_free(layout);
        tr_free(name);
    }
    tr_free(from);
    tr_free(hashes);
    tr_free(rows);
}

/* ---- how much is read ---- */

/* Bytes that this process has read from files, as the system counts them. */
static int64_t process_bytes_read(void)
{
    long long bytes = -1;
    FILE *file = fopen("/proc/self/io", "r");
    if (file == NULL || fscanf(file, "rchar: %lld", &bytes) != 1)
        abort();
    fclose(file);
    return bytes;
}

static int64_t sum_of(fx_job *job, int64_t value)
{
    int64_t sum;
    (void)job;
    MPI_Allreduce(&value, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

/* What the ranks read of a checkpoint that needs `stored` bytes of chunks: `times` that (0: once, and some of it twice), to check it and again
 * for its values. all: bytes that all processes read; others: what they may read beside chunks. Rank 0. */
static void reads_check(fx_job *job, const tr_load_counts *loaded, int64_t stored, int times,
                        int64_t all, int64_t others, const char *what)
{
    int64_t expected = times > 0 ? times * stored : loaded->read;
    fx_check(job, expected >= stored && (times > 0 || expected <= stored + stored / 10),
             "%s: %lld bytes read of %lld stored", what, (long long)expected, (long long)stored);
    fx_check(
        job, loaded->needed == stored && loaded->checked == expected && loaded->read == expected,
        "%s: %lld bytes expected, needed %lld, checked %lld, read %lld", what, (long long)expected,
        (long long)loaded->needed, (long long)loaded->checked, (long long)loaded->read);
    fx_check(job, all >= 2 * expected && all <= 2 * expected + others,
             "%s: the ranks read %lld bytes, 2 x %lld expected", what, (long long)all,
             (long long)expected);
}

/* Loads the checkpoint of FOLDER/reads in a layout; all of it is saved again, and compared. */
static void reads_expect(fx_job *job, const char *settings, bool masters, int times)
{
    enum { MANIFEST = 1 << 20 };
    fx_run fx;
    int64_t tables;
    char *path = tr_format("%s/reads/step-00000002", folder);
    char *back = tr_format("%s/back/step-00000002", folder);
    int64_t stored = stored_bytes(job, path, masters, &tables);
    char *text = tr_format("checkpoint.async=false checkpoint.resume=%s checkpoint.dir=%s/back "
                           "model.hidden=192 %s",
                           path, folder, settings);
    fx_open(job, &fx, "l", text, NULL, NULL);
    int64_t before = process_bytes_read();
    resume(&fx, masters ? 0 : 2);
    int64_t all = sum_of(job, process_bytes_read() - before);
    if (job->rank == 0)
        reads_check(job, &fx.run->loaded, stored, times, all,
                    fx.cfg.derived.num_ranks * (tables + MANIFEST), settings);
    if (!masters)
        save(&fx);
    fx_close(&fx);
    if (!masters) {
        tr_hash128 *hashes = hashes_take(job, path);
        hashes_compare(job, back, hashes, settings);
        tr_free(hashes);
    }
    tr_free(text);
    tr_free(back);
    tr_free(path);
}

static void reads_source(fx_job *job)
{
    source_make(job, "reads", "l", "model.hidden=192 parallel.data=2 parallel.tensor=2");
}

static void test_reads(fx_job *job)
{
    reads_source(job);
    reads_expect(job, "parallel.data=4 parallel.zero=0", false, 1); /* all need all */
    reads_expect(job, "parallel.data=8 parallel.zero=3", false, 1);
    reads_expect(job, "parallel.data=3 parallel.zero=0 device.threads=3", false, 1);
    reads_expect(job, "parallel.tensor=4 parallel.data=2 parallel.zero=0", false, 1);
    reads_expect(job, "parallel.pipeline=3", false, 1);
    reads_expect(job, "parallel.data=3 checkpoint.weights_only=true", true, 1);
    reads_expect(job, "parallel.data=1 device.threads=4", false, 1);
    /* Who shares no memory reads for itself. */
    reads_expect(job, "parallel.data=3 parallel.zero=0 parallel.inside=mpi", false, 3);
}

static void test_two_nodes(fx_job *job)
{
    reads_source(job);
    reads_expect(job, "parallel.data=4 parallel.zero=0", false, 2);
    reads_expect(job, "parallel.data=2 parallel.zero=0", false, 2); /* one rank each */
    reads_expect(job, "parallel.data=3 parallel.zero=0", false, 2);
    /* Every other rank is on the same node: either has one half of what is cut, and all of the norms. */
    reads_expect(job, "parallel.tensor=2 parallel.pipeline=2", false, 0);
    reads_expect(job, "parallel.data=4 parallel.zero=0 parallel.inside=mpi", false, 4);
}

/* ---- memory ---- */

/* A line of /proc/self/status in bytes. */
static int64_t status_bytes(const char *field)
{
    char line[256];
    long long kilobytes = -1;
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL)
        abort();
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, strlen(field)) == 0)
            sscanf(line + strlen(field), ": %lld", &kilobytes);
    fclose(file);
    return (int64_t)kilobytes * 1024;
}

/* From now on VmHWM is the peak since now. */
static void peak_reset(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file == NULL || fputs("5", file) < 0 || fclose(file) != 0)
        abort();
}

/* The largest growth of any rank of a run in resuming, beyond what a step needs, and after it. */
static void memory_expect(fx_job *job, const char *settings)
{
    enum { CHUNK = 4 << 20, SLACK = 3 << 20 };
    tr_metrics metrics;
    fx_run fx;
    int64_t growth = 0, kept = 0;
    char *text = tr_format("%s checkpoint.dir=%s/memory", settings, folder);
    fx_open(job, &fx, "l", text, NULL, NULL);
    fx_step(&fx, &metrics);
    if (fx.run != NULL) {
        int ranks = (int)fx.cfg.derived.num_ranks, threads = (int)fx.cfg.device.threads;
        int64_t steady = status_bytes("VmRSS"), state = fx.run->stage.local.num_state * 12;
        peak_reset();
        resume(&fx, 2);
        growth = status_bytes("VmHWM") - steady;
        kept = status_bytes("VmRSS") - steady;
        /* Per thread four chunks of its own; two of each other, which are mapped here. */
        int64_t bound = threads * (TR_NODE_READ_CHUNKS + 2 * (ranks - 1)) * (int64_t)CHUNK + SLACK;
        fx_check(job, state > 2 * bound, "%s: a state of %lld bytes shows nothing", settings,
                 (long long)state);
        fx_check(job, growth <= bound, "%s: resuming needed %lld bytes more, at most %lld expected",
                 settings, (long long)growth, (long long)bound);
        fx_check(job, growth >= CHUNK, "%s: resuming needed %lld bytes more: not measured",
                 settings, (long long)growth);
        fx_check(job, kept <= SLACK, "%s: %lld bytes are kept", settings, (long long)kept);
    }
    growth = fx_gather_max(job, growth);
    if (job->rank == 0)
        printf("%s: %.1f MB beyond the state while loading\n", settings, (double)growth * 1e-6);
    fx_close(&fx);
    tr_free(text);
}

#define LARGE                                                                                      \
    "model.hidden=640 model.ffn=2560 model.layers=4 train.seq_len=16 train.global_batch=4 "        \
    "train.micro_batch=1 device.threads=1 "

static void test_memory(fx_job *job)
{
#ifdef __SANITIZE_ADDRESS__
    if (job->rank == 0)
        printf("skipped: what the address sanitizer holds back is not the program's\n");
    return;
#endif
    source_make(job, "memory", "l", LARGE "parallel.data=2 parallel.pipeline=2");
    memory_expect(job, LARGE "parallel.data=1");
    memory_expect(job, LARGE "parallel.data=1 device.threads=2");
    memory_expect(job, LARGE "parallel.data=2 parallel.zero=0");
}

/* ---- a rank that cannot read ---- */

static int this_rank, failing_rank = -1, reads_before;

tr_status __real_tr_chunk_portion_read(tr_chunk_reader *reader, const tr_chunk_word *set,
                                       const tr_chunk_portion *portion, float *dst);
tr_status __wrap_tr_chunk_portion_read(tr_chunk_reader *reader, const tr_chunk_word *set,
                                       const tr_chunk_portion *portion, float *dst);

tr_status __wrap_tr_chunk_portion_read(tr_chunk_reader *reader, const tr_chunk_word *set,
                                       const tr_chunk_portion *portion, float *dst)
{
    if (this_rank == failing_rank && dst != NULL && reads_before-- == 0)
        return tr_fail(TR_ERR_CHECKPOINT, "the disk of rank %d is gone", this_rank);
    return __real_tr_chunk_portion_read(reader, set, portion, dst);
}

/* While values are read, after all hashes were good: the run ends on all ranks with that message, and nobody waits. */
static void test_lost_disk(fx_job *job)
{
    source_make(job, "lost", "l", LARGE "parallel.data=2 parallel.pipeline=2");
    this_rank = job->rank;
    for (int rank = 0; rank < 4; rank += 3)
        for (int before = 0; before < 2; before++) {
            fx_run fx;
            bool resumed;
            char *text = tr_format(LARGE "parallel.data=4 device.threads=%d checkpoint.dir=%s/lost",
                                   1 + before, folder);
            fx_open(job, &fx, "l", text, NULL, NULL);
            failing_rank = rank;
            reads_before = before;
            if (fx.run != NULL) {
                tr_status status = tr_run_resume(fx.run, &resumed);
                char *expected = tr_format("the disk of rank %d is gone", rank);
                fx_check(job,
                         status == TR_ERR_CHECKPOINT && !resumed &&
                             strstr(tr_error_message(), expected) != NULL,
                         "rank %d failed: status %d: %s", rank, (int)status, tr_error_message());
                tr_free(expected);
            }
            failing_rank = -1;
            fx_close(&fx);
            tr_free(text);
        }
}

int main(int argc, char **argv)
{
    static const fx_named_case cases[] = {
        {"any_layout", test_any_layout},
        {"reads", test_reads},
        {"memory", test_memory},
        {"lost_disk", test_lost_disk},
    };
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    fx_cases_run(&job, cases, sizeof cases / sizeof cases[0]);
    if (job.only != NULL && fx_case(&job, "two_nodes"))
        test_two_nodes(&job);
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
