/* Works block by block, so that the partial sums of a block stay in the first cache levels: source k's part of a block is read
 * once, whatever the number of sources. A subtree's sum lies in the buffer of its level; the right child uses the next level
 * while the left child's sum waits in this one, so that log2(count) buffers are enough. */
#include "base/tree_sum.h"

#include <string.h>

#include "base/status.h"

enum {
    BLOCK = 2048, /* elements: 8 KiB a level */
    LEVELS = 12   /* log2(TR_TREE_SUM_MAX) */
};

typedef struct tree_block {
    const float *const *src;
    int64_t begin;
    int n; /* elements of this block */
    _Alignas(64) float sums[LEVELS][BLOCK];
} tree_block;

int tr_tree_split(int n)
{
    int split = 1;
    while (split < n - split)
        split *= 2;
    return split;
}

static void add2(int n, const float *a, const float *b, float *restrict out)
{
    for (int i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static void add3(int n, const float *a, const float *b, const float *c, float *restrict out)
{
    for (int i = 0; i < n; i++)
        out[i] = (a[i] + b[i]) + c[i];
}

static void add4(int n, const float *a, const float *b, const float *c, const float *d,
                 float *restrict out)
{
    for (int i = 0; i < n; i++)
        out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

/* sum += right. */
static void add_to(int n, const float *restrict right, float *restrict sum)
{
    for (int i = 0; i < n; i++)
        sum[i] += right[i];
}

/* The sum of sources first ... first+count-1 in this block: a source itself, or sums[level]. */
static const float *subtree(tree_block *block, int first, int count, int level)
{
    const float *const *src = block->src + first;
    int64_t begin = block->begin;
    if (count == 1)
        return src[0] + begin;
    float *sum = block->sums[level];
    if (count == 2) {
        add2(block->n, src[0] + begin, src[1] + begin, sum);
    } else if (count == 3) {
        add3(block->n, src[0] + begin, src[1] + begin, src[2] + begin, sum);
    } else if (count == 4) {
        add4(block->n, src[0] + begin, src[1] + begin, src[2] + begin, src[3] + begin, sum);
    } else {
        int split = tr_tree_split(count);
        (void)subtree(block, first, split, level);
        add_to(block->n, subtree(block, first + split, count - split, level + 1), sum);
    }
    return sum;
}

void tr_tree_sum(int64_t n, int count, const float *const *src, float *dst)
{
    TR_ASSERT(count >= 1 && count <= TR_TREE_SUM_MAX);
    if (count == 1) {
        if (dst != src[0] && n > 0)
            memcpy(dst, src[0], (size_t)n * sizeof(float));
        return;
    }
    tree_block block;
    block.src = src;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        block.begin = begin;
        block.n = n - begin < BLOCK ? (int)(n - begin) : BLOCK;
        /* Through the buffer, since dst may be a source and `restrict` is what lets the loops be vectorised. */
        memcpy(dst + begin, subtree(&block, 0, count, 0), (size_t)block.n * sizeof(float));
    }
}
