/* What a world asks of NCCL; a build without NCCL answers in group_nccl_absent.c. */
#ifndef TR_PARALLEL_GROUP_NCCL_H
#define TR_PARALLEL_GROUP_NCCL_H

#include "parallel/group_int.h"

/* Opens the library for the world. shares_device: some ranks use one GPU; then environment variables of NCCL are set, unless they are already. TR_ERR_MEMORY when it is missing. */
tr_status tr_nccl_open(tr_world *world, bool shares_device);
/* Asks all communicators whether they have failed meanwhile: TR_ERR_TRANSPORT. */
tr_status tr_nccl_check_all(tr_world *world);
void tr_nccl_close(tr_world *world);

#endif
