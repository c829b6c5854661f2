/* What all ranks must have alike before a run begins: settings, data, arithmetic. Each rank found its own for itself (a file, a command
 * line, a processor of its node), and what differs would give wrong numbers or a wait without end. Collective. */
#include "engine/run_int.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/log.h"

/* Arithmetic that differs between ranks (processors, libraries) breaks no step, but what is promised bit for bit. */
tr_status tr_run_compare_numerics(tr_run *run)
{
    const char *text = run->numerics;
    int64_t hash = (int64_t)(tr_hash64(text, strlen(text), 0) >> 1), least[2] = {hash, -hash};
    TR_TRY(tr_run_min(run, least, 2));
    if (least[0] != -least[1] && run->mesh.rank == 0)
        tr_log_warning("the ranks do not all have the arithmetic of rank 0 (%s): results agree "
                       "within rounding only, on any layout and when resumed",
                       text);
    return TR_OK;
}

/* What a rank may have for itself: its threads, and where its node keeps data. */
static bool may_differ(const char *name)
{
    static const char *const own[] = {"data.train",     "data.valid",     "data.tokenizer",
                                      "device.threads", "log.every",      "run.name",
                                      "run.dir",        "memory.limit_gb"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return false;
}

/* The setting to name among those that differ: one that was given before one that followed from it. -1: none. */
static int first_different(const tr_config *cfg, const int64_t *ends, int count)
{
    int first = -1;
    for (int i = 0; i < count; i++) {
        const char *name = tr_config_name((size_t)i);
        if (ends[2 * i] == -ends[2 * i + 1] || may_differ(name))
            continue;
        if (tr_config_is_set(cfg, name))
            return i;
        first = first < 0 ? i : first;
    }
    return first;
}

/* Every rank read the settings for itself. Other values on some of them (another file on a node, another command line) would train a
 * model that nobody described, or wait without end. */
tr_status tr_run_compare_settings(tr_run *run)
{
    enum { MOST = 1024 };
    int64_t ends[2 * MOST]; /* least hash, and least negative hash, of each value */
    int count = 0;
    for (; tr_config_name((size_t)count) != NULL; count++) {
        TR_ASSERT(count < MOST);
        char *value = tr_config_get(&run->cfg, tr_config_name((size_t)count));
        int64_t hash = value != NULL ? (int64_t)(tr_hash64(value, strlen(value), 1) >> 1) : 0;
        tr_free(value);
        ends[2 * count] = hash;
        ends[2 * count + 1] = -hash;
    }
    TR_TRY(tr_run_min(run, ends, 2 * count));
    int found = first_different(&run->cfg, ends, count);
    if (found < 0)
        return TR_OK;
    const char *name = tr_config_name((size_t)found);
    char *value = tr_config_get(&run->cfg, name);
    tr_status status = tr_fail(TR_ERR_SETTINGS,
                               "%s is not the same on all ranks (%s on this one): give every rank "
                               "the same configuration file and command line",
                               name, value != NULL ? value : "open");
    tr_free(value);
    return status;
}

/* Copies of the data on several nodes must be the same ones: the order of samples follows from their number, and stages of a pipeline would
 * else take tokens and labels of different samples. Told by the number of tokens and a fingerprint. */
tr_status tr_run_compare_data(tr_run *run)
{
    const tr_feed *feeds[] = {run->train_feed, run->valid_feed};
    static const char *const names[] = {"data.train", "data.valid"};
    for (int i = 0; i < 2; i++) {
        const tr_feed_info *info = feeds[i] != NULL ? tr_feed_get_info(feeds[i]) : NULL;
        const char *path = info != NULL ? info->path : "(none)";
        int64_t own = info != NULL ? (int64_t)info->num_tokens : -1;
        int64_t print = info != NULL ? (int64_t)(tr_feed_fingerprint(feeds[i]) >> 1) : -1;
        int64_t ends[4] = {own, -own, print, -print};
        TR_TRY(tr_run_min(run, ends, 4));
        if (ends[0] != -ends[1])
            return tr_fail(TR_ERR_DATA,
                           "%s is not the same file on all ranks: %lld tokens in %s of this one, "
                           "%lld to %lld elsewhere; give every node the same copy",
                           names[i], (long long)own, path, (long long)ends[0], (long long)-ends[1]);
        if (ends[2] != -ends[3])
            return tr_fail(TR_ERR_DATA,
                           "%s is not the same file on all ranks: other tokens than in %s of this "
                           "one, as many (%lld); give every node the same copy",
                           names[i], path, (long long)own);
    }
    return TR_OK;
}
