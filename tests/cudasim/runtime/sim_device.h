/* The machine and the last error inside the stand-ins (sim_runtime.h). */
#ifndef TR_TESTS_SIM_DEVICE_H
#define TR_TESTS_SIM_DEVICE_H

#include "tests/cudasim/runtime/sim_runtime.h"

const cudasim_machine &sim_machine();

/* Sets this thread's last error; returns it. */
cudaError_t sim_error_set(cudaError_t error);

/* A call needs a context on the calling thread's current GPU: it makes one there, as the runtime does. */
void sim_context_make();

/* Makes sure that what is left is counted when the process ends. */
void sim_check_at_exit();

#endif
