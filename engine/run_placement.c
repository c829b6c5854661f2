/* Where the launcher has put the ranks: said at a run's start when it costs speed. */
#include "base/log.h"
#include "engine/run_int.h"

/* The first rank of the first tensor group whose ranks are on several nodes, or -1. */
static int group_apart(const tr_run *run)
{
    int size = run->mesh.tensor_size;
    for (int first = 0; first < tr_world_size(run->world); first += size)
        for (int r = first + 1; r < first + size; r++)
            if (tr_world_node_of(run->world, r) != tr_world_node_of(run->world, first))
                return first;
    return -1;
}

void tr_run_placement_tell(const tr_run *run)
{
    int first = run->mesh.rank == 0 ? group_apart(run) : -1;
    if (first < 0)
        return;
    tr_log_warning("ranks %d to %d sum with one another several times in each layer "
                   "(parallel.tensor = %d) and are on more than one node: the network will set the "
                   "pace; give each node's ranks consecutive numbers (mpiexec -hosts a:8,b:8; srun "
                   "--distribution=block), or use a parallel.tensor that divides a node's ranks",
                   first, first + run->mesh.tensor_size - 1, run->mesh.tensor_size);
}
