/* The stand-in for the CUDA runtime: what tests and other stand-ins may ask of it besides the functions of cuda_runtime_api.h.
 *
 * Streams are queues. What is enqueued runs as late, and streams run in as odd an order against each other, as the declared events
 * allow: nothing has to run before the host waits for it (or, where ranks wait for each other, another rank: sim_nccl.h), and nothing but a stream's own order and its waits for events says what runs
 * first. How late and how odd is drawn anew every few calls from the seed (CUDASIM_SEED, default 1; ranks of a job draw
 * differently): from only what must run, over a random stream that runs ahead of all others, to everything at once. So a
 * dependency that is missing shows as a wrong result for some seed.
 *
 * Device memory is closed to the host (reading or writing it ends the process with the address) but while queued work runs; it is
 * filled with 0xff at first (large memory at its ends, pinned memory at its beginning) and guarded at both ends. Errors, each the end of the process with a line "cudasim: ...": handles and
 * pointers that are not alive, a double free, a free while queued work may use the memory, a copy that leaves its allocation
 * or touches pageable memory, and memory, streams or events that are left when the process ends well.
 *
 * Any thread may call; one call runs at a time, and with it the work that it makes run. */
#ifndef TR_TESTS_SIM_RUNTIME_H
#define TR_TESTS_SIM_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The machine that the runtime finds. */
typedef struct cudasim_machine {
    int driver_version;  /* 13000 is CUDA 13.0; 0: there is no driver */
    int num_devices;     /* GPUs */
    int capability;      /* 90 is compute capability 9.0 */
    size_t memory_bytes; /* of each GPU */
    const char *name;    /* of each GPU; NULL: "simulated GPU" */
    bool strange;        /* kernels were compiled for other GPUs */
} cudasim_machine;

/* Before the first device is made. The default is a whole machine: CUDA 13.0, 8 GPUs of 9.0 and 16 GiB; CUDASIM_DEVICES and CUDASIM_MEMORY_MIB name
 * another number of GPUs, and another size of their memory. */
void cudasim_machine_set(const cudasim_machine *machine);

/* Draws from another seed from now on. */
void cudasim_seed_set(uint64_t seed);

/* From now on the device is lost, as after a kernel's illegal access: queued work is dropped, and every call that would have had
 * to do with it returns `error`. cudaSuccess: it is whole again, for the next test. */
void cudasim_lose_device(cudaError_t error);

/* What the environment variable said when the driver started, which is at the first call that asks for devices: a real driver never looks
 * again. NULL: nothing, or it has not started. Only of those that a driver reads. */
const char *cudasim_variable(const char *name);

/* GPUs on which the process has made contexts: those current where work was enqueued or waited for. */
int cudasim_num_contexts(void);

/* Things alive: device and pinned allocations, streams (without the default one), events. */
typedef struct cudasim_counts {
    int64_t device_memory, host_memory, streams, events;
    int64_t launches; /* works that have run, copies and fills too */
} cudasim_counts;
cudasim_counts cudasim_count(void);

/* Ends the process unless pointer[bytes] lies in one living device allocation. what: for the message. */
void cudasim_check_device(const char *what, const void *pointer, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
