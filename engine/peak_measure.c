#include "engine/peak.h"

#include "base/clock.h"
#include "kernels/device.h"

enum { ROWS = 2048, COLUMNS = 2048, DEPTH = 768 };

/* The fastest of the products that fit into `seconds`, at least two; 0 when one fails. */
static double best_rate(tr_device *device, const tr_matmul *args, double seconds)
{
    double fastest = 1e30, begin = tr_clock_seconds();
    for (int run = 0; run < 2 || tr_clock_seconds() - begin < seconds; run++) {
        double start = tr_clock_seconds();
        if (device->ops->matmul(device, args) != TR_OK)
            return 0;
        double taken = tr_clock_seconds() - start;
        fastest = taken < fastest ? taken : fastest;
    }
    return 2.0 * ROWS * COLUMNS * DEPTH / fastest;
}

tr_status tr_peak_measure(tr_dtype dtype, int num_threads, double *flops)
{
    const tr_workspace_need need = {.dtype = dtype, .max_matmul = COLUMNS};
    size_t operands = sizeof(float) * (ROWS * DEPTH + COLUMNS * DEPTH + ROWS * COLUMNS);
    tr_device *device;
    void *memory;
    TR_TRY(tr_cpu_device_create(&device, num_threads));
    size_t bytes = operands + device->workspace_bytes(device, &need);
    tr_status status = device->memory_create(device, bytes, &memory);
    if (status == TR_OK) {
        char *at = memory;
        const tr_matmul args = {.form = TR_MATMUL_NT,
                                .M = ROWS,
                                .N = COLUMNS,
                                .K = DEPTH,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .A = at,
                                .lda = DEPTH,
                                .B = at + sizeof(float) * ROWS * DEPTH,
                                .ldb = DEPTH,
                                .C = at + sizeof(float) * (ROWS + COLUMNS) * DEPTH,
                                .ldc = COLUMNS};
        device->workspace_set(device, at + operands, bytes - operands);
        *flops = best_rate(device, &args, 0.3);
        device->memory_destroy(device, memory, bytes);
    }
    tr_device_destroy(device);
    return status;
}
