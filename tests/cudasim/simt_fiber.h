/* Stacks and the switch between them, by which the emulator's threads give way to each other.
 *
 * A fiber is a stack that runs `loop` for ever: simt_fiber_create prepares one, simt_fiber_switch leaves the running one and
 * continues another where it left. The stack of the process's own thread takes part under the name simt_fiber_host. AddressSanitizer is
 * told which stack is used, where it is there. */
#ifndef TR_TESTS_CUDASIM_SIMT_FIBER_H
#define TR_TESTS_CUDASIM_SIMT_FIBER_H

#include <stddef.h>

enum { SIMT_MAX_FIBERS = 1024 };

struct simt_fiber {
    void *stack_pointer;    /* while it does not run */
    void *fake_stack;       /* AddressSanitizer's, while it does not run */
    const void *stack_base; /* lowest address */
    size_t stack_bytes;
};

extern simt_fiber simt_fiber_host;

/* The new fiber calls loop(), which must not return, when it is first switched to. Never freed: fibers are kept for later grids. */
simt_fiber *simt_fiber_create(void (*loop)());

/* `from` is the running fiber. Returns when something switches back to it. */
void simt_fiber_switch(simt_fiber *from, simt_fiber *to);

#endif
