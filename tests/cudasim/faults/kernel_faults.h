/* Kernels with a fault planted in each, and the same kernels without it. */
#ifndef TR_TESTS_CUDASIM_KERNEL_FAULTS_H
#define TR_TESTS_CUDASIM_KERNEL_FAULTS_H

struct kernel_fault {
    const char *name;
    /* Runs the kernel, with or without the fault, and returns true when its result is right. */
    bool (*run)(bool planted);
    /* Part of the message that the fault makes in every order of the threads; NULL: it makes the result wrong in some order. */
    const char *message;
};

extern const kernel_fault kernel_faults[];
extern const int num_kernel_faults;

#endif
