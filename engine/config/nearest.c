/* What a refusal offers instead: the nearest word, the nearest multiple, the nearest divisor. */
#include "engine/config/settings_int.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

enum { MAX_WORD = 63 };

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Optimal string alignment distance, three rows of the table at a time. */
int tr_edit_distance(const char *a, const char *b)
{
    int num_a = min_int((int)strlen(a), MAX_WORD), num_b = min_int((int)strlen(b), MAX_WORD);
    int before[MAX_WORD + 1] = {0}, last[MAX_WORD + 1], now[MAX_WORD + 1];
    for (int j = 0; j <= num_b; j++)
        last[j] = j;
    for (int i = 1; i <= num_a; i++) {
        now[0] = i;
        for (int j = 1; j <= num_b; j++) {
            int cost = a[i - 1] != b[j - 1];
            now[j] = min_int(min_int(last[j] + 1, now[j - 1] + 1), last[j - 1] + cost);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = min_int(now[j], before[j - 2] + 1);
        }
        memcpy(before, last, sizeof before);
        memcpy(last, now, sizeof last);
    }
    return last[num_b];
}

/* Edits up to which two words count as close. */
static int close_enough(const char *given)
{
    int third = (int)strlen(given) / 3;
    return third < 2 ? (strlen(given) > 2 ? 2 : 1) : third;
}

const char *tr_nearest_word(const char *given, const char *const *words, size_t num_words)
{
    const char *best = NULL;
    int best_distance = close_enough(given) + 1;
    for (size_t i = 0; i < num_words; i++) {
        int distance = tr_edit_distance(given, words[i]);
        if (distance < best_distance && distance < (int)strlen(words[i])) {
            best_distance = distance;
            best = words[i];
        }
    }
    return best;
}

/* Distance of a given name to a setting: as it stands, or by the part behind the section when the
 * given name has none or the wrong one; that counts one more, so that the same section wins. */
static int name_distance(const char *given, const char *name)
{
    int whole = tr_edit_distance(given, name);
    if (whole > close_enough(given))
        whole = MAX_WORD;
    const char *given_key = strrchr(given, '.');
    given_key = given_key ? given_key + 1 : given;
    int key = tr_edit_distance(given_key, strchr(name, '.') + 1);
    if (key > (int)strlen(given_key) / 4)
        key = MAX_WORD;
    return min_int(whole, key + 1);
}

tr_status tr_setting_unknown(const char *where, const char *name)
{
    for (size_t i = 0; tr_settings_later[i]; i++)
        if (strcmp(tr_settings_later[i], name) == 0)
            return tr_fail(TR_ERR_SETTINGS, "%s: %s is not in this version; leave it out", where,
                           name);
    const char *best = NULL;
    int best_distance = MAX_WORD;
    for (size_t i = 0; i < tr_num_settings; i++) {
        int distance = name_distance(name, tr_settings[i].name);
        if (distance < best_distance) {
            best_distance = distance;
            best = tr_settings[i].name;
        }
    }
    if (best)
        return tr_fail(TR_ERR_SETTINGS, "%s: unknown setting %s; did you mean %s?", where, name,
                       best);
    return tr_fail(TR_ERR_SETTINGS, "%s: unknown setting %s; `trine config` lists all settings",
                   where, name);
}

static char *one_or_two(int64_t below, int64_t above)
{
    if (below == above || above == 0)
        return tr_format("%" PRId64, below);
    if (below == 0)
        return tr_format("%" PRId64, above);
    return tr_format("%" PRId64 " or %" PRId64, below, above);
}

char *tr_nearest_multiples(int64_t n, int64_t step)
{
    int64_t below = n / step * step;
    return one_or_two(below, below == n ? n : below + step);
}

char *tr_nearest_divisors(int64_t n, int64_t total)
{
    int64_t below = 0, above = 0;
    for (int64_t d = 1; d <= total / d; d++) {
        if (total % d != 0)
            continue;
        int64_t pair[2] = {d, total / d};
        for (int i = 0; i < 2; i++) {
            if (pair[i] <= n && pair[i] > below)
                below = pair[i];
            if (pair[i] >= n && (above == 0 || pair[i] < above))
                above = pair[i];
        }
    }
    return one_or_two(below, above);
}
