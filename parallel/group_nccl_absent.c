/* Groups of GPUs in a build without NCCL: there are none. */
#include "parallel/group_nccl.h"

tr_status tr_nccl_open(tr_world *world, bool shares_device)
{
    (void)world;
    (void)shares_device;
    return tr_fail(TR_ERR_MEMORY,
                   "this build of trine has no NCCL, which several ranks with device.kind=cuda "
                   "exchange tensors by: CMake found no nccl.h; install NCCL with its header and "
                   "configure again, use one rank, or device.kind=cpu");
}

tr_status tr_nccl_check_all(tr_world *world)
{
    (void)world;
    return TR_OK;
}

void tr_nccl_close(tr_world *world)
{
    (void)world;
}

/* Never of a group: tr_nccl_open comes first. */
const tr_group_transport tr_group_transport_nccl = {.name = "nccl"};
