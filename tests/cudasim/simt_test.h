/* For tests of the emulator and of kernels on it: the orders of threads in which a test is repeated. */
#ifndef TR_TESTS_CUDASIM_SIMT_TEST_H
#define TR_TESTS_CUDASIM_SIMT_TEST_H

#include "tests/cudasim/simt.h"

/* Functions that do what kernels must not, to see what the emulator does then; not checked where kernels are (simt_access.h). */
#define SIMT_TEST_UNCHECKED __attribute__((no_sanitize("thread")))

enum { SIMT_TEST_ORDERS = 8 };

/* Order `i` of SIMT_TEST_ORDERS: forward, reverse, then seeded ones. */
inline void simt_test_order_set(int i)
{
    if (i == 0)
        simt_order_set(SIMT_FORWARD, 0);
    else if (i == 1)
        simt_order_set(SIMT_REVERSE, 0);
    else
        simt_order_set(SIMT_SEEDED, (uint64_t)i);
}

/* Calls body() once in every order. */
template <typename Body> inline void simt_test_orders(Body body)
{
    for (int i = 0; i < SIMT_TEST_ORDERS; i++) {
        simt_test_order_set(i);
        body();
    }
}

#endif
