/* CUDA's short vectors, as its header vector_types.h declares them: sizes and alignments are the device's. Only those that kernels use. */
#ifndef TR_TESTS_CUDASIM_VECTOR_TYPES_H
#define TR_TESTS_CUDASIM_VECTOR_TYPES_H

#define CUDASIM_VECTOR2(name, element, align)                                                      \
    typedef struct __attribute__((aligned(align))) name {                                          \
        element x, y;                                                                              \
    } name
#define CUDASIM_VECTOR4(name, element, align)                                                      \
    typedef struct __attribute__((aligned(align))) name {                                          \
        element x, y, z, w;                                                                        \
    } name

CUDASIM_VECTOR2(short2, short, 4);
CUDASIM_VECTOR2(ushort2, unsigned short, 4);
CUDASIM_VECTOR2(int2, int, 8);
CUDASIM_VECTOR2(uint2, unsigned int, 8);
CUDASIM_VECTOR2(float2, float, 8);
CUDASIM_VECTOR2(longlong2, long long, 16);
CUDASIM_VECTOR2(ulonglong2, unsigned long long, 16);
CUDASIM_VECTOR2(double2, double, 16);
CUDASIM_VECTOR4(ushort4, unsigned short, 8);
CUDASIM_VECTOR4(int4, int, 16);
CUDASIM_VECTOR4(uint4, unsigned int, 16);
CUDASIM_VECTOR4(float4, float, 16);

#undef CUDASIM_VECTOR2
#undef CUDASIM_VECTOR4

typedef struct uint3 {
    unsigned int x, y, z;
} uint3;

/* Sizes of a grid or block; a size that is not given is 1. */
typedef struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
        : x(vx), y(vy), z(vz)
    {
    }
#endif
} dim3;

#endif
