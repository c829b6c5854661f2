/* Which instruction set the vector operations of the CPU device use.
 *
 * Each source of the list below is compiled once per instruction set (kernels/cpu/CMakeLists.txt), with TR_CPU_ISA naming
 * it, and exports one function that puts its entries into a table of operations. One table is chosen at start-up, so that
 * no operation asks again. The bits of operations may differ between instruction sets (only some fuse multiply and add);
 * the name of the set is part of the numerics id. Everything here is pure and thread-safe. */
#ifndef TR_KERNELS_CPU_ISA_H
#define TR_KERNELS_CPU_ISA_H

#include <stdbool.h>

#include "kernels/ops.h"

/* enum, suffix and text */
#if defined(__x86_64__)
#define TR_CPU_ISA_LIST(X)                                                                         \
    X(BASELINE, baseline)                                                                          \
    X(AVX2, avx2)                                                                                  \
    X(AVX512, avx512)
#else
#define TR_CPU_ISA_LIST(X) X(BASELINE, baseline)
#endif

typedef enum tr_cpu_isa {
#define TR_CPU_ISA_ENUM(name, suffix) TR_CPU_ISA_##name,
    TR_CPU_ISA_LIST(TR_CPU_ISA_ENUM)
#undef TR_CPU_ISA_ENUM
        TR_CPU_ISA_NUM
} tr_cpu_isa;

/* Whether this processor (and its operating system) runs code of the set. */
bool tr_cpu_isa_supported(tr_cpu_isa isa);
/* The widest supported set. */
tr_cpu_isa tr_cpu_isa_best(void);
/* "baseline", "avx2", "avx512". */
const char *tr_cpu_isa_name(tr_cpu_isa isa);

/* Sets the entries that the vector sources implement, compiled for `isa`; leaves the others as they are. */
void tr_cpu_vector_ops(tr_ops *ops, tr_cpu_isa isa);

/* The vector sources: cpu_<name>.c with tr_cpu_<name>_ops_<isa>. */
#define TR_CPU_VECTOR_LIST(X, suffix)                                                              \
    X(activation, suffix)                                                                          \
    X(attention, suffix)                                                                           \
    X(attention_backward, suffix)                                                                  \
    X(convert, suffix)                                                                             \
    X(embed, suffix)                                                                               \
    X(norm, suffix)                                                                                \
    X(optimizer, suffix)                                                                           \
    X(reduce, suffix)                                                                              \
    X(residual, suffix)                                                                            \
    X(rope, suffix)                                                                                \
    X(xent, suffix)

#define TR_CPU_VECTOR_DECLARE(name, suffix) void tr_cpu_##name##_ops_##suffix(tr_ops *ops);
#define TR_CPU_ISA_DECLARE(name, suffix) TR_CPU_VECTOR_LIST(TR_CPU_VECTOR_DECLARE, suffix)
TR_CPU_ISA_LIST(TR_CPU_ISA_DECLARE)
#undef TR_CPU_ISA_DECLARE
#undef TR_CPU_VECTOR_DECLARE

/* Inside a vector source: the name with the suffix of the set that it is compiled for. */
#ifdef TR_CPU_ISA
#define TR_ISA_NAME(name) TR_ISA_NAME_2(name, TR_CPU_ISA)
#define TR_ISA_NAME_2(name, suffix) TR_ISA_NAME_3(name, suffix)
#define TR_ISA_NAME_3(name, suffix) name##_##suffix
#endif

#endif
