#include "tests/cudasim/simt_fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cudasim/runtime/sim_error.h"

/* Present where the program is built with AddressSanitizer. */
extern "C" {
void __sanitizer_start_switch_fiber(void **fake_stack, const void *base, size_t bytes)
    __attribute__((weak));
void __sanitizer_finish_switch_fiber(void *fake_stack, const void **base, size_t *bytes)
    __attribute__((weak));
}

/* Saves the callee's registers on the running stack, stores the stack pointer to *save, continues at `load`. */
extern "C" void simt_fiber_swap(void **save, void *load);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl simt_fiber_swap\n"
        ".hidden simt_fiber_swap\n"
        ".type simt_fiber_swap, @function\n"
        "simt_fiber_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size simt_fiber_swap, . - simt_fiber_swap\n");
/* Words that swap pops before the return address, and the word of the return address. */
enum { FRAME_WORDS = 8, FRAME_RETURN = 6 };
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl simt_fiber_swap\n"
        ".hidden simt_fiber_swap\n"
        ".type simt_fiber_swap, %function\n"
        "simt_fiber_swap:\n"
        "    sub sp, sp, #160\n"
        "    stp x29, x30, [sp, #0]\n"
        "    stp x19, x20, [sp, #16]\n"
        "    stp x21, x22, [sp, #32]\n"
        "    stp x23, x24, [sp, #48]\n"
        "    stp x25, x26, [sp, #64]\n"
        "    stp x27, x28, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x2, sp\n"
        "    str x2, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x29, x30, [sp, #0]\n"
        "    ldp x19, x20, [sp, #16]\n"
        "    ldp x21, x22, [sp, #32]\n"
        "    ldp x23, x24, [sp, #48]\n"
        "    ldp x25, x26, [sp, #64]\n"
        "    ldp x27, x28, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size simt_fiber_swap, . - simt_fiber_swap\n");
enum { FRAME_WORDS = 20, FRAME_RETURN = 1 };
#else
#error "the emulator's fibers are written for x86-64 and arm64"
#endif

/* Stacks begin at different cache lines, or their tops would all share a few cache sets. */
enum { STACK_BYTES = 256 * 1024, COLOURS = 16, COLOUR_BYTES = 192 };

simt_fiber simt_fiber_host;

/* All stacks lie in one region, of which a page is taken when it is first touched. AddressSanitizer takes the region for one stack, so that
 * it need be told only when the process's own stack is left and entered again. */
static char *region;
static size_t region_bytes;

/* The two sides of the switch that is under way. */
static simt_fiber *leaving, *entering;
static void (*fiber_loop)();

static void switch_start()
{
    if (!__sanitizer_start_switch_fiber)
        return;
    if (leaving == &simt_fiber_host)
        __sanitizer_start_switch_fiber(&leaving->fake_stack, region, region_bytes);
    else if (entering == &simt_fiber_host)
        __sanitizer_start_switch_fiber(&leaving->fake_stack, entering->stack_base,
                                       entering->stack_bytes);
}

static void switch_finish()
{
    if (!__sanitizer_finish_switch_fiber)
        return;
    if (leaving == &simt_fiber_host) /* where the process's own stack lies becomes known here */
        __sanitizer_finish_switch_fiber(nullptr, &leaving->stack_base, &leaving->stack_bytes);
    else if (entering == &simt_fiber_host)
        __sanitizer_finish_switch_fiber(entering->fake_stack, nullptr, nullptr);
}

static void fiber_entry()
{
    switch_finish();
    fiber_loop();
    abort();
}

simt_fiber *simt_fiber_create(void (*loop)())
{
    static unsigned int num_created;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), each = STACK_BYTES + page;
    if (region == nullptr) {
        region_bytes = SIMT_MAX_FIBERS * each;
        void *memory = mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            cudasim_fail("no memory for the stacks of emulated threads");
        region = (char *)memory;
    }
    char *guard = region + each * num_created;
    if (num_created == SIMT_MAX_FIBERS || mprotect(guard, page, PROT_NONE) != 0)
        cudasim_fail("no stack for an emulated thread");
    simt_fiber *fiber = (simt_fiber *)(guard + each) - 1; /* at the stack's top */
    fiber->stack_base = guard + page;
    fiber->stack_bytes = STACK_BYTES;
    fiber_loop = loop;
    uintptr_t top = (uintptr_t)fiber / 64 * 64 - (num_created++ % COLOURS) * COLOUR_BYTES;
    void **frame = (void **)top - FRAME_WORDS; /* 16-byte aligned */
    frame[FRAME_RETURN] = (void *)fiber_entry;
    fiber->stack_pointer = frame;
    return fiber;
}

void simt_fiber_switch(simt_fiber *from, simt_fiber *to)
{
    leaving = from;
    entering = to;
    switch_start();
    simt_fiber_swap(&from->stack_pointer, to->stack_pointer);
    switch_finish();
}
