/* Checks of every access that a kernel makes, where the kernel was compiled for it (-fsanitize=thread, whose calls this file's
 * source answers itself).
 *
 * Found, each an error that names the accesses: a race, that is two threads at one place, one of them writing, with no barrier between
 * them (between lanes of a warp __syncwarp is one, a shuffle is not; between blocks nothing is); a read of shared memory that no
 * thread of the block has written; any access to the destination of a copy on its way; memory that the sanitizer knows to be out of
 * bounds; and, in kernels that TR_LAUNCH starts, memory of the host. Places are two bytes wide: two threads that write the two
 * halves of one are reported.
 *
 * Cost: some tens of nanoseconds per access. Kernels compiled without the option are not checked. */
#ifndef TR_TESTS_CUDASIM_SIMT_ACCESS_H
#define TR_TESTS_CUDASIM_SIMT_ACCESS_H

#include <stddef.h>
#include <stdint.h>

enum simt_access_kind { SIMT_READ, SIMT_WRITE, SIMT_ATOMIC };

/* What happens now is this access by the running thread. For what the compiler does not see as an access. pc: for messages. */
void simt_access(simt_access_kind kind, const void *memory, size_t bytes, const void *pc);

/* The memory becomes the destination of a copy on its way, and ceases to be it. */
void simt_access_copy_begin(const void *memory, size_t bytes, const void *pc);
void simt_access_copy_end(const void *memory, size_t bytes, const void *pc);

/* From here on the running thread may touch only device memory, shared memory and its own stack. */
void simt_access_kernel_begin();

/* For the scheduler: a grid begins; a thread of it begins. */
void simt_access_launch();
void simt_access_thread();

#endif
