/* What the emulator's files share. */
#ifndef TR_TESTS_CUDASIM_SIMT_INT_H
#define TR_TESTS_CUDASIM_SIMT_INT_H

#include "tests/cudasim/simt.h"

/* Number of the grid that runs, from 1. */
extern uint64_t simt_launch_number;

/* Index of the running thread in its block. */
int simt_thread_index();

/* Shared memory and copies (simt_shared.cpp): for each grid, for each block of it, and for a thread that ends. */
void simt_shared_launch(size_t dynamic_bytes);
void simt_shared_block();
void simt_copy_thread_end();

#endif
