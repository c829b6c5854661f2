#include "tests/parallel/covering.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

enum { CANDIDATES = 40, ATTEMPTS = 200 };

/* `strength` factors, and which of their combinations no row has yet. */
typedef struct tuple_set {
    int factor[3];
    int size;
    bool *done; /* [size] */
} tuple_set;

typedef struct work {
    const tr_covering *covering;
    tuple_set *sets;
    int num_sets;
    uint64_t counter; /* of the random numbers */
} work;

static int random_below(work *w, int n)
{
    return (int)(tr_hash_mix(0x636f766572696e67u, w->counter++) % (uint64_t)n);
}

static void set_add(work *w, int a, int b, int c)
{
    const int *levels = w->covering->num_levels;
    tuple_set *set = &w->sets[w->num_sets++];
    *set = (tuple_set){{a, b, c}, levels[a] * levels[b] * (c < 0 ? 1 : levels[c]), NULL};
    set->done = TR_NEW_ARRAY(bool, (size_t)set->size);
}

static void sets_make(work *w)
{
    int n = w->covering->num_factors;
    w->sets = TR_NEW_ARRAY(tuple_set, (size_t)(n * n * n));
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++) {
            if (w->covering->strength == 2)
                set_add(w, a, b, -1);
            for (int c = b + 1; c < n && w->covering->strength == 3; c++)
                set_add(w, a, b, c);
        }
}

static int tuple_of(const work *w, const tuple_set *set, const tr_covering_row *row)
{
    const int *levels = w->covering->num_levels;
    int index = row->level[set->factor[0]] * levels[set->factor[1]] + row->level[set->factor[1]];
    return set->factor[2] < 0 ? index : index * levels[set->factor[2]] + row->level[set->factor[2]];
}

/* A legal row with the tuple, the other factors at random; false when none was found. */
static bool row_with(work *w, const tuple_set *set, int tuple, tr_covering_row *row)
{
    const int *levels = w->covering->num_levels;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int rest = tuple;
        for (int f = 0; f < w->covering->num_factors; f++)
            row->level[f] = random_below(w, levels[f]);
        for (int k = 2; k >= 0; k--)
            if (set->factor[k] >= 0) {
                row->level[set->factor[k]] = rest % levels[set->factor[k]];
                rest /= levels[set->factor[k]];
            }
        if (w->covering->legal(row))
            return true;
    }
    return false;
}

static int gain(const work *w, const tr_covering_row *row)
{
    int count = 0;
    for (int s = 0; s < w->num_sets; s++)
        count += !w->sets[s].done[tuple_of(w, &w->sets[s], row)];
    return count;
}

tr_covering_row *tr_covering_make(const tr_covering *covering, int *num_rows, int *num_missed)
{
    work w = {.covering = covering};
    tr_covering_row *rows = NULL;
    *num_rows = *num_missed = 0;
    sets_make(&w);
    for (int s = 0; s < w.num_sets; s++)
        for (int tuple = 0; tuple < w.sets[s].size; tuple++) {
            tr_covering_row best = {{0}}, row = {{0}};
            int most = -1;
            for (int c = 0; c < CANDIDATES && !w.sets[s].done[tuple]; c++) {
                if (!row_with(&w, &w.sets[s], tuple, &row))
                    break;
                int won = gain(&w, &row);
                if (won > most) {
                    most = won;
                    best = row;
                }
            }
            if (w.sets[s].done[tuple])
                continue;
            if (most < 0) {
                ++*num_missed;
                continue;
            }
            rows = tr_realloc(rows, (size_t)*num_rows + 1, sizeof *rows);
            rows[(*num_rows)++] = best;
            for (int k = 0; k < w.num_sets; k++)
                w.sets[k].done[tuple_of(&w, &w.sets[k], &best)] = true;
        }
    for (int s = 0; s < w.num_sets; s++)
        tr_free(w.sets[s].done);
    tr_free(w.sets);
    return rows;
}
