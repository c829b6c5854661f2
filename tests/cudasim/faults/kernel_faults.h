/* Kernels with a fault planted in each, and the same kernels without it. */
#ifndef TR_TESTS_CUDASIM_KERNEL_FAULTS_H
#define TR_TESTS_CUDASIM_KERNEL_FAULTS_H

/* What finds a fault: an error whose message has this part, in every order of the threads; or one of these. */
extern const char *const WRONG_RESULT; /* in some order */
extern const char
    *const NOTHING; /* the result is right in every order of whole pieces between barriers */

struct kernel_fault {
    const char *name;
    /* Runs the kernel, with or without the fault, and returns true when its result is right. */
    bool (*run)(bool planted);
    const char *found_by;         /* in kernels compiled with AddressSanitizer */
    const char *found_by_checked; /* in kernels with every access checked (simt_access.h) */
};

extern const kernel_fault kernel_faults[];
extern const int num_kernel_faults;

#endif
