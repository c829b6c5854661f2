/* What the tests of operations share: devices of every instruction set and thread count, tensors with guards and with
 * their values in double, random data, comparison, and gradients by finite differences.
 *
 * A test of an operation is a case: a function that makes inputs, runs the operation, compares with a reference in double and
 * records its outputs. op_run_case runs it on every instruction set of this processor with 1, 2 and 3 threads, and fails when
 * the recorded bits depend on the threads. One thread only. */
#ifndef TR_TESTS_OP_TEST_UTIL_H
#define TR_TESTS_OP_TEST_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/device.h"
#include "memory/dtype.h"

enum { OP_MAX_TENSORS = 32, OP_NUM_DTYPES = 3, OP_NUM_SIZES = 8 };

/* fp32, bf16, fp16 */
extern const tr_dtype op_dtypes[OP_NUM_DTYPES];
/* Lengths of rows that meet every kind of tail: 1, 3, 7, 31, 63, 65, 257, 768. */
extern const int64_t op_sizes[OP_NUM_SIZES];

typedef struct op_env {
    tr_device *device;
    tr_ops ops; /* the device's, with the vector operations of `isa` */
    tr_cpu_isa isa;
    int num_threads;
    uint64_t recorded; /* hash of the outputs so far */
    void *memory[OP_MAX_TENSORS];
    int64_t bytes[OP_MAX_TENSORS];
    int num_memory;
} op_env;

/* A tensor of n elements of `dtype` with guard bytes on both sides, and its values. Lives until the case ends. */
typedef struct op_tensor {
    tr_dtype dtype;
    int64_t n;
    void *data;
} op_tensor;

typedef void (*op_case)(op_env *env, void *context);
/* Runs the case in every variant; checks guards, and that threads do not change recorded bits, nor AVX-512 those of AVX2. */
void op_run_case(op_case run, void *context);

/* Filled with NaN, so that reading what nobody wrote shows. */
op_tensor op_tensor_new(op_env *env, tr_dtype dtype, int64_t n);
/* Values uniform in [center - width, center + width), rounded to the dtype; a function of seed and index. */
op_tensor op_tensor_random(op_env *env, tr_dtype dtype, int64_t n, uint64_t seed, double center,
                           double width);
/* Frees the tensors made since env->num_memory was `mark`, after a look at their guards. */
void op_release(op_env *env, int mark);
op_tensor op_tensor_copy(op_env *env, const op_tensor *other);
double op_get(const op_tensor *tensor, int64_t i);
void op_set(op_tensor *tensor, int64_t i, double value);
/* The values in double; free with op_free. */
double *op_values(const op_tensor *tensor);
double *op_zeros(int64_t n);
void op_free(double *values);

double op_random(uint64_t seed, uint64_t index); /* uniform in [0, 1) */

/* Gives the device exactly the workspace that it asks for operations up to `need`, guarded; it lives as long as a tensor made now. */
void op_workspace(op_env *env, const tr_workspace_need *need);

/* The outputs that must not depend on threads. */
void op_record(op_env *env, const op_tensor *tensor);

/* Fails unless |actual - expected| <= absolute + (relative + rounding of the dtype) |expected| for every element. */
void op_expect_close(const char *what, const op_tensor *actual, const double *expected,
                     double relative, double absolute);
void op_expect_same_bits(const char *what, const op_tensor *a, const op_tensor *b);

/* gradient[i] = d loss / d values[i], by central differences; loss reads `values`, which come back unchanged. */
void op_finite_difference(double (*loss)(void *context), void *context, double *values, int64_t n,
                          double *gradient);

#endif
