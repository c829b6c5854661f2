/* The CUDA device beside the CPU device: every operation on the same inputs, over odd shapes and addresses.
 *
 * The device is reached as the engine reaches it, by uploads, operations and downloads, so that the same sources test the simulated
 * device (tests/cudasim, in ctest) and a real GPU (built as tests/device/NAME where TRINE_CUDA is on). A case makes tensors, calls the
 * operation on both devices and compares. A tensor has guard bytes on both sides in both memories; what is written to them fails the
 * case, and outputs begin as NaN. One thread only. */
#ifndef TR_TESTS_OP_PARITY_H
#define TR_TESTS_OP_PARITY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/device.h"
#include "memory/dtype.h"

enum { OP_CPU, OP_CUDA, OP_SIDES };
enum { OP_MOST_TENSORS = 96, OP_DTYPES = 3, OP_SIZES = 8 };

/* fp32, bf16, fp16 */
extern const tr_dtype op_dtypes[OP_DTYPES];
/* 1, 3, 7, 31, 63, 65, 257, 768 */
extern const int64_t op_sizes[OP_SIZES];

/* A tensor of n elements in both memories. data: of each side. */
typedef struct op_tensor {
    tr_dtype dtype;
    int64_t n;
    void *data[OP_SIDES];
} op_tensor;

/* The devices; [OP_CUDA] is the one under test. */
extern tr_device *op_device[OP_SIDES];

/* Runs the cmocka tests with both devices; what main returns: 77, skipped, without a GPU. */
int op_parity_main(const char *group, const struct CMUnitTest *tests, size_t count);

/* Calls entry(device, arguments ...) on both sides; in arguments, `side` is the side. */
#define op_both(entry, ...)                                                                        \
    do {                                                                                           \
        for (int side = 0; side < OP_SIDES; side++)                                                \
            op_check_status(#entry, op_device[side]->ops->entry(op_device[side], __VA_ARGS__));    \
    } while (0)
void op_check_status(const char *what, tr_status status);

/* Tensors live until op_release. `begin`: elements between a 256-byte boundary and the first one. */
op_tensor op_new(tr_dtype dtype, int64_t n, int64_t begin); /* NaN */
/* Uniform in [center - width, center + width), a function of seed and index. */
op_tensor op_random(tr_dtype dtype, int64_t n, int64_t begin, uint64_t seed, double center,
                    double width);
/* The bytes of `values`. */
op_tensor op_from(tr_dtype dtype, int64_t n, int64_t begin, const void *values);
/* Another one with the same values. */
op_tensor op_copy(const op_tensor *other);
void op_release(void); /* looks at all guards */

/* Exactly the workspace that each device asks for. */
void op_workspace(const tr_workspace_need *need);

/* Fails unless |cuda - cpu| <= tolerance |cpu| in the L2 norm, and each element is within a few times that of the tensor's
 * largest. NaN and infinities must be in the same places. tolerance 0: op_tolerance of the dtype. */
void op_expect_close(const char *what, const op_tensor *tensor, double tolerance);
double op_tolerance(tr_dtype dtype); /* 1e-5 fp32, 1e-2 bf16 and fp16 */
/* The same bits on both sides; NaN of any bits where `nan` says so. */
void op_expect_equal(const char *what, const op_tensor *tensor);
/* The bits that the device holds, which a second call with other addresses must give again. */
uint64_t op_device_hash(const op_tensor *tensor);
/* The device's bytes, and one element of them. */
void op_download(const op_tensor *tensor, void *values);
double op_element(tr_dtype dtype, const void *values, int64_t i);

#endif
