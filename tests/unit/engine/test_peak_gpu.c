/* Vendor peaks by the names that drivers report: no name is taken for another one that contains it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/peak_gpu.h"

static void test_names(void **state)
{
    static const struct {
        const char *name;
        double half, tf32, single; /* TFLOP/s */
    } rows[] = {
        {"NVIDIA H200", 989.4, 494.7, 67},
        {"NVIDIA H200 NVL", 835.5, 417.5, 60},
        {"NVIDIA H20", 148, 74, 44},
        {"NVIDIA H100 80GB HBM3", 989.4, 494.7, 67},
        {"NVIDIA H100 PCIe", 756, 378, 51},
        {"NVIDIA GH200 480GB", 989.4, 494.7, 67},
        {"NVIDIA H800", 989.4, 494.7, 67},
        {"NVIDIA A100-SXM4-80GB", 312, 156, 19.5},
        {"NVIDIA A100 80GB PCIe", 312, 156, 19.5},
        {"A100-PCIE-40GB", 312, 156, 19.5},
        {"NVIDIA A800-SXM4-80GB", 312, 156, 19.5},
        {"NVIDIA A10", 125, 62.5, 31.2},
        {"NVIDIA B200", 2250, 1125, 75},
        {"NVIDIA GB200", 2500, 1250, 80},
        {"NVIDIA L40S", 362.05, 183, 91.6},
        {"NVIDIA L40", 181.05, 90.5, 90.5},
        {"NVIDIA L4", 121, 60, 30.3},
        {"NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6},
        {"NVIDIA RTX 6000 Ada Generation", 364.2, 182.1, 91.1},
        {"NVIDIA RTX A6000", 154.8, 77.4, 38.7},
        /* not in the table, or not whole */
        {"NVIDIA A10G", 0, 0, 0},
        {"NVIDIA GeForce RTX 4090 Laptop GPU", 0, 0, 0},
        {"NVIDIA GeForce RTX 4090 D", 0, 0, 0},
        {"NVIDIA GeForce RTX 3090 Ti", 0, 0, 0},
        {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0, 0, 0},
        {"Quadro RTX 6000", 0, 0, 0},
        {"simulated GPU", 0, 0, 0},
        {"", 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const double flops[] = {tr_peak_gpu_flops(rows[i].name, TR_BF16, false),
                                tr_peak_gpu_flops(rows[i].name, TR_F16, true),
                                tr_peak_gpu_flops(rows[i].name, TR_F32, true),
                                tr_peak_gpu_flops(rows[i].name, TR_F32, false)};
        const double expected[] = {rows[i].half, rows[i].half, rows[i].tf32, rows[i].single};
        for (int r = 0; r < 4; r++)
            if (flops[r] != expected[r] * 1e12)
                fail_msg("%s: rate %d is %g, expected %g", rows[i].name, r, flops[r],
                         expected[r] * 1e12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
