/* The ordered sum: the only way in which Trine adds floating-point numbers that come from different places.
 *
 * The tree over n things splits them at the largest power of two below n, so that a rank that owns a power of two of
 * neighbouring things owns a subtree (DESIGN section 1, "The reduction tree"). Every addition is one fp32 addition, rounded to
 * nearest even. Recorded mathematics: never change. Thread-safe, no memory but the stack. */
#ifndef TR_BASE_TREE_SUM_H
#define TR_BASE_TREE_SUM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { TR_TREE_SUM_MAX = 4096 }; /* most sources of one sum */

/* The largest power of two below n, for n >= 2: things 0 ... split-1 are the left subtree of n things, the rest the right. */
int tr_tree_split(int n);

/* dst[i] = tree sum over k of src[k][i] for i in [0, n); 1 <= count <= TR_TREE_SUM_MAX. dst may be one of the sources, and must
 * not overlap any of them otherwise. */
void tr_tree_sum(int64_t n, int count, const float *const *src, float *dst);

#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
}
#endif

#endif
