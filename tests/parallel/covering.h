/* Covering arrays: few rows of settings in which every legal combination of any `strength` factors stands together in some row
 * (Cohen et al. 1997, greedy). Deterministic. */
#ifndef TESTS_PARALLEL_COVERING_H
#define TESTS_PARALLEL_COVERING_H

#include <stdbool.h>
#include <stdint.h>

enum { TR_COVERING_MAX_FACTORS = 16 };

typedef struct tr_covering_row {
    int level[TR_COVERING_MAX_FACTORS];
} tr_covering_row;

typedef struct tr_covering {
    int num_factors;
    int num_levels[TR_COVERING_MAX_FACTORS];
    int strength; /* 2 or 3 */
    /* Whether a whole row is legal. A combination is legal when some legal row has it; random completions must find one often. */
    bool (*legal)(const tr_covering_row *row);
} tr_covering;

/* The rows, freed with tr_free; *num_missed: combinations for which no legal row was found. */
tr_covering_row *tr_covering_make(const tr_covering *covering, int *num_rows, int *num_missed);

#endif
