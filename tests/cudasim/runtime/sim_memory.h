/* Memory inside the stand-ins: its gate, which keeps the host out of device memory. */
#ifndef TR_TESTS_SIM_MEMORY_H
#define TR_TESTS_SIM_MEMORY_H

#include <stddef.h>

/* Opens device memory to this process, and closes it; nested. */
void sim_memory_open();
void sim_memory_close();

typedef enum sim_side { SIM_NOWHERE, SIM_DEVICE, SIM_HOST } sim_side;
/* Where the bytes lie: wholly in one living allocation of the device or of pinned memory, or nowhere. */
sim_side sim_memory_side(const void *pointer, size_t bytes);

#endif
