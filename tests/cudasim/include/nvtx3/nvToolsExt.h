/* The part of NVTX 3 that the CUDA device calls, for the simulator (runtime/sim_range.c). */
#ifndef TR_TESTS_SIM_NVTX_H
#define TR_TESTS_SIM_NVTX_H

#ifdef __cplusplus
extern "C" {
#endif

/* The depth of the range that it opens or closes, from 0. */
int nvtxRangePushA(const char *message);
int nvtxRangePop(void);

#ifdef __cplusplus
}
#endif

#endif
