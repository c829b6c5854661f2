#include "kernels/cpu/cpu_isa.h"

#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_rowwise.h"

bool tr_cpu_isa_supported(tr_cpu_isa isa)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("f16c");
    if (isa == TR_CPU_ISA_AVX2)
        return avx2;
    if (isa == TR_CPU_ISA_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return isa == TR_CPU_ISA_BASELINE;
}

tr_cpu_isa tr_cpu_isa_best(void)
{
    int isa = TR_CPU_ISA_NUM - 1;
    while (!tr_cpu_isa_supported((tr_cpu_isa)isa))
        isa--;
    return (tr_cpu_isa)isa;
}

const char *tr_cpu_isa_name(tr_cpu_isa isa)
{
    static const char *const names[] = {
#define ISA_NAME(name, suffix) #suffix,
        TR_CPU_ISA_LIST(ISA_NAME)
#undef ISA_NAME
    };
    return names[isa];
}

void tr_cpu_vector_ops(tr_ops *ops, tr_cpu_isa isa)
{
#define VECTOR_SET(name, suffix) tr_cpu_##name##_ops_##suffix(ops);
#define ISA_CASE(name, suffix)                                                                     \
    case TR_CPU_ISA_##name:                                                                        \
        TR_CPU_VECTOR_LIST(VECTOR_SET, suffix)                                                     \
        break;
    switch (isa) {
        TR_CPU_ISA_LIST(ISA_CASE)
    default:
        TR_ASSERT(!"a known instruction set");
    }
#undef ISA_CASE
#undef VECTOR_SET
}

/* Part sums of the weight and bias gradients of a norm over hidden, or over the heads of queries and keys. */
size_t tr_cpu_rowwise_workspace(const tr_workspace_need *need, int num_threads)
{
    (void)num_threads;
    int64_t rows = need->B * need->T;
    int64_t heads = need->A > need->K ? need->A : need->K;
    int64_t hidden_elements = tr_row_blocks(rows) * need->H;
    int64_t head_elements = tr_row_blocks(rows * heads) * need->D;
    int64_t elements = hidden_elements > head_elements ? hidden_elements : head_elements;
    return tr_cpu_align((size_t)(2 * elements) * sizeof(float));
}
