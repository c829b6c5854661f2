#include "engine/memory_fit.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "engine/plan.h"

/* The number in a file, or SIZE_MAX when there is no such file or it says "max". */
static size_t file_number(const char *path)
{
    unsigned long long number;
    FILE *file = fopen(path, "r");
    bool read = file != NULL && fscanf(file, "%llu", &number) == 1;
    if (file != NULL)
        fclose(file);
    return read ? (size_t)number : SIZE_MAX;
}

/* Bytes of files in a control group's page cache, which the system gives up when memory is asked for. */
static size_t container_cache(void)
{
    char line[256];
    unsigned long long bytes;
    size_t cache = 0,
           shared = 0; /* files in memory (tmpfs) and shared memory count as cache, but stay */
    FILE *file = fopen("/sys/fs/cgroup/memory.stat", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "file %llu", &bytes) == 1)
            cache = (size_t)bytes;
        if (sscanf(line, "shmem %llu", &bytes) == 1)
            shared = (size_t)bytes;
    }
    if (file != NULL)
        fclose(file);
    return cache > shared ? cache - shared : 0;
}

/* What the control group that a container's processes see as their root leaves (cgroup v2), or SIZE_MAX. */
static size_t container_available(void)
{
    size_t limit = file_number("/sys/fs/cgroup/memory.max");
    size_t usage = file_number("/sys/fs/cgroup/memory.current"), cache = container_cache();
    if (limit == SIZE_MAX || usage == SIZE_MAX)
        return SIZE_MAX;
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

/* Bytes of "MemAvailable" on this node, or SIZE_MAX when the system does not say. */
static size_t node_available(void)
{
    char line[256];
    unsigned long long kib;
    size_t bytes = SIZE_MAX;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            bytes = (size_t)kib * 1024;
    if (file != NULL)
        fclose(file);
    return bytes;
}

/* Address space that is left under RLIMIT_AS, or SIZE_MAX. */
static size_t address_space_left(void)
{
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return SIZE_MAX;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%llu", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    size_t used = (size_t)pages * 4096;
    return limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0;
}

enum { LIMIT_TEXT = 128 }; /* what a limit is, as an error names it */

/* What the host's memory leaves for a rank. */
static size_t host_limit(const tr_run *run, char text[LIMIT_TEXT])
{
    size_t ranks = (size_t)tr_world_local_size(run->world), limit = node_available() / ranks;
    const char *what = "this rank's share of the node's available memory";
    size_t container = container_available() / ranks;
    if (container < limit) {
        limit = container;
        what = "this rank's share of what the container's memory limit leaves";
    }
    size_t space = address_space_left();
    if (space < limit) {
        limit = space;
        what = "what RLIMIT_AS leaves (ulimit -v)";
    }
    snprintf(text, LIMIT_TEXT, "%s", what);
    return limit;
}

/* What the GPU leaves for a rank. Kept back is what the vendor's libraries take later without asking: kernels that are loaded at their first use,
 * and the channels between stages, whose communicators are made last: up to six to a rank, some 100 MB each. */
static size_t device_limit(const tr_run *run, char text[LIMIT_TEXT])
{
    size_t mib = run->mesh.pipeline_size > 1 ? 1024 : 512, kept_back = mib << 20;
    int sharers = tr_world_device_sharers(run->world);
    size_t share = run->device->memory_free(run->device) / (size_t)sharers;
    snprintf(text, LIMIT_TEXT, "%swhat is free on its GPU, less %zu MiB for the libraries",
             sharers > 1 ? "this rank's share of " : "", mib);
    return share > kept_back ? share - kept_back : 0;
}

static size_t limit_of(const tr_run *run, char text[LIMIT_TEXT])
{
    size_t limit =
        run->device->memory_free == NULL ? host_limit(run, text) : device_limit(run, text);
    if (run->cfg.memory.limit_gb > 0) {
        size_t asked = (size_t)(run->cfg.memory.limit_gb * 1e9);
        if (asked < limit) {
            limit = asked;
            snprintf(text, LIMIT_TEXT, "memory.limit_gb");
        }
    }
    return limit;
}

typedef struct remedies {
    tr_device *device;
    size_t limit;
    char *text;
    size_t text_bytes;
} remedies;

/* Appends "setting (bytes)" to the text when the change makes every rank fit: another may be the largest then. */
static void remedy_try(remedies *list, const tr_config *changed, const char *setting)
{
    int num_ranks = (int)changed->derived.num_ranks;
    tr_plan_rank *ranks = TR_NEW_ARRAY(tr_plan_rank, (size_t)num_ranks);
    bool counted = tr_plan_count(changed, list->device, ranks) == TR_OK;
    size_t most = ranks[tr_plan_largest(ranks, num_ranks)].total, used = strlen(list->text);
    tr_free(ranks);
    if (counted && most <= list->limit)
        snprintf(list->text + used, list->text_bytes - used, "%s%s (%zu bytes)",
                 used > 0 ? ", " : "", setting, most);
}

/* Another ZeRO stage, in the order of sums that a new run would take unless it is recorded or asked for. */
static void zero_set(tr_config *changed, const tr_config *cfg, int64_t zero)
{
    changed->parallel.zero = zero;
    if (!tr_config_is_set(cfg, "train.reduction_order"))
        changed->train.reduction_order = tr_config_natural_order(changed);
}

void tr_memory_fit_remedies(const tr_config *cfg, tr_device *device, size_t limit, char *text,
                            size_t text_bytes)
{
    remedies list = {device, limit, text, text_bytes};
    tr_config changed = *cfg; /* shallow: read only, not cleared */
    text[0] = '\0';
    /* Higher ZeRO stages, each alone. Stage 0 takes any shard_ranks. */
    bool shards = cfg->parallel.data > 1 && cfg->parallel.data % cfg->parallel.shard_ranks == 0;
    for (int64_t zero = cfg->parallel.zero + 1; zero <= 3 && shards; zero++) {
        char setting[32];
        snprintf(setting, sizeof setting, "parallel.zero=%d", (int)zero);
        zero_set(&changed, cfg, zero);
        remedy_try(&list, &changed, setting);
    }
    changed = *cfg;
    changed.parallel.shard_ranks = cfg->parallel.data;
    if (cfg->parallel.zero > 0 && shards && cfg->parallel.shard_ranks < cfg->parallel.data) {
        char setting[48];
        snprintf(setting, sizeof setting, "parallel.shard_ranks=%lld",
                 (long long)cfg->parallel.data);
        remedy_try(&list, &changed, setting);
    }
    changed = *cfg;
    changed.checkpoint.snapshot_mb = 0;
    if (cfg->checkpoint.async_ && cfg->checkpoint.every > 0 && cfg->checkpoint.snapshot_mb > 0)
        remedy_try(&list, &changed, "checkpoint.snapshot_mb=0");
    changed = *cfg;
    changed.memory.recompute = TR_RECOMPUTE_SELECTIVE;
    if (cfg->memory.recompute == TR_RECOMPUTE_NONE)
        remedy_try(&list, &changed, "memory.recompute=selective");
    changed.memory.recompute = TR_RECOMPUTE_FULL;
    if (cfg->memory.recompute != TR_RECOMPUTE_FULL)
        remedy_try(&list, &changed, "memory.recompute=full");
    zero_set(&changed, cfg, 3);
    if (text[0] == '\0' && shards && cfg->parallel.zero < 3 &&
        cfg->memory.recompute != TR_RECOMPUTE_FULL)
        remedy_try(&list, &changed, "parallel.zero=3 with memory.recompute=full");
    if (text[0] == '\0')
        snprintf(
            text, text_bytes,
            "none of zero and recompute, alone or together; use more ranks with parallel.tensor or "
            "parallel.pipeline, or a smaller train.micro_batch");
}

tr_status tr_memory_fit_check(tr_run *run)
{
    char what[LIMIT_TEXT];
    size_t limit = limit_of(run, what), total = tr_run_memory_total(run);
    int64_t shortfall = total > limit ? (int64_t)(total - limit) : 0, worst = shortfall;
    TR_TRY(tr_run_max(run, &worst, 1));
    if (worst == 0)
        return TR_OK;
    /* The rank that is shortest speaks; the others fail with it. */
    int64_t speaker = shortfall == worst ? run->mesh.rank : INT64_MAX;
    TR_TRY(tr_run_min(run, &speaker, 1));
    if (speaker != run->mesh.rank)
        return tr_fail(TR_ERR_MEMORY, "not enough memory on rank %lld", (long long)speaker);
    char table[512] = "", fitting[512];
    for (int c = 0; c < TR_MEM_NUM; c++)
        if (run->bytes[c] > 0) {
            size_t used = strlen(table);
            bool host = c == TR_MEM_SNAPSHOT && !run->device->unified;
            snprintf(table + used, sizeof table - used, "\n  %-14s %15zu bytes%s",
                     tr_mem_category_name((tr_mem_category)c), run->bytes[c],
                     host ? " of the host's memory, not counted" : "");
        }
    tr_memory_fit_remedies(&run->cfg, run->device, limit, fitting, sizeof fitting);
    return tr_fail(TR_ERR_MEMORY,
                   "not enough memory on rank %d (data %d, tensor %d, pipeline %d): the run needs "
                   "%zu bytes, %s is %zu bytes, %lld short; would fit: %s%s",
                   run->mesh.rank, run->mesh.data, run->mesh.tensor, run->mesh.pipeline, total,
                   what, limit, (long long)shortfall, fitting, table);
}
