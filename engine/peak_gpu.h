/* What a GPU can do at best by its vendor's word: the denominator of model FLOP/s utilisation (mfu) on the CUDA device.
 *
 * Rates are dense (without structured sparsity, which doubles what datasheets print first) and, for bf16 and fp16, those of sums in fp32. Sources:
 * NVIDIA's datasheets of A100, A800, A30, A40, A10, L4, L40, L40S, H100 (SXM, PCIe, NVL), H200 (SXM, NVL), H800, H20, GH200, HGX B200 and
 * GB200 NVL72; of RTX cards the appendices of the architecture papers GA102 (RTX 3090, RTX A6000), Ada (RTX 4090, RTX 6000 Ada) and RTX
 * Blackwell (RTX 5090). H800 and A800 differ from H100 and A100 in NVLink and fp64 only. */
#ifndef TR_ENGINE_PEAK_GPU_H
#define TR_ENGINE_PEAK_GPU_H

#include <stdbool.h>

#include "memory/dtype.h"

/* FLOP/s of one GPU for products in `dtype`, fp32 ones rounding their inputs to TF32 where `tf32` says so; 0 when the name, as the driver has it, is not
 * that of a whole GPU in the table. Pure. */
double tr_peak_gpu_flops(const char *name, tr_dtype dtype, bool tf32);

#endif
