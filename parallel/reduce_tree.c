/* The bits of a leaf's number are the buffers in use before it: bit b stands for a finished subtree of 2^b leaves. Finishing the leaf
 * adds one to the counter, each carry is a merge. After the last leaf of a number that is no power of two, the subtrees left over
 * are merged from the right, which is what splitting at the largest power of two does. */
#include "parallel/reduce_tree.h"

tr_leaf_step tr_leaf_step_make(int leaf, int num_leaves)
{
    tr_leaf_step step = {.slot = __builtin_popcount((unsigned)leaf)};
    step.num_merges = leaf + 1 == num_leaves ? step.slot : __builtin_ctz((unsigned)leaf + 1);
    return step;
}

int tr_leaf_num_slots(int num_leaves)
{
    int most = 0;
    for (int leaf = 0; leaf < num_leaves; leaf++) {
        int slot = tr_leaf_step_make(leaf, num_leaves).slot;
        most = slot > most ? slot : most;
    }
    return most + 1;
}

bool tr_leaf_follows(int num_leaves, int num_ranks)
{
    if (num_leaves < 1 || num_ranks < 1 || num_leaves % num_ranks != 0)
        return false;
    int each = num_leaves / num_ranks;
    return num_ranks == 1 || (each & (each - 1)) == 0;
}
