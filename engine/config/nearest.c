/* What a refusal offers instead: the nearest word, the nearest multiple, the nearest divisor. */
#include "engine/config/nearest.h"

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

int tr_edit_limit(const char *given)
{
    int third = (int)strlen(given) / 3;
    return third < 2 ? (strlen(given) > 2 ? 2 : 1) : third;
}

const char *tr_nearest_word(const char *given, const char *const *words, size_t num_words)
{
    const char *best = NULL;
    int best_distance = tr_edit_limit(given) + 1;
    for (size_t i = 0; i < num_words; i++) {
        int distance = tr_edit_distance(given, words[i]);
        if (distance < best_distance && distance < (int)strlen(words[i])) {
            best_distance = distance;
            best = words[i];
        }
    }
    return best;
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
