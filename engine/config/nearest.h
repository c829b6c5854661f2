/* What a refusal offers instead: the nearest word, the nearest multiple, the nearest divisor.
 *
 * Pure; texts are new strings that the caller frees with tr_free. */
#ifndef TR_ENGINE_NEAREST_H
#define TR_ENGINE_NEAREST_H

#include <stddef.h>
#include <stdint.h>

/* Number of single-letter edits (insert, delete, replace, swap of neighbours) between two words;
 * only the first 63 letters count. */
int tr_edit_distance(const char *a, const char *b);
/* Edits up to which another word counts as close to `given`. */
int tr_edit_limit(const char *given);
/* The word nearest to `given` among `words`, NULL when none is close. */
const char *tr_nearest_word(const char *given, const char *const *words, size_t num_words);

/* "6" or "4 or 8": the positive multiples of `step` nearest to n (n itself when it is one). */
char *tr_nearest_multiples(int64_t n, int64_t step);
/* "3" or "2 or 4": the divisors of `total` nearest to n. */
char *tr_nearest_divisors(int64_t n, int64_t total);

#endif
