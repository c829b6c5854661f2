/* What the emulator's files share. */
#ifndef TR_TESTS_CUDASIM_SIMT_INT_H
#define TR_TESTS_CUDASIM_SIMT_INT_H

#include "tests/cudasim/simt.h"
#include "tests/cudasim/simt_fiber.h"

/* Number of the grid that runs, from 1. */
extern uint64_t simt_launch_number;

/* Time as barriers cut it: it goes on at the start of every grid and block and when a barrier opens. */
extern uint32_t simt_now, simt_block_start, simt_launch_start;

extern simt_fiber *simt_running_fiber;

/* Index of the running thread in its block, -1 when none runs. */
extern int simt_running;

/* Barriers of the running thread's warp since the last barrier of its block. */
uint16_t simt_warp_barriers();

/* Shared memory and copies (simt_shared.cpp): for each grid, for each block of it, and for a thread that ends. */
void simt_shared_launch(size_t dynamic_bytes);
void simt_shared_block();
void simt_copy_thread_end();

#endif
