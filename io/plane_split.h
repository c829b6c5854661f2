/* Values to byte planes and back: the inner loops of the codec (io/plane_codec.h), with AVX2 where
 * the processor has it, the same bytes everywhere.
 *
 * A value's 32 bits are rotated left by one; plane p holds byte p of the result, plane 3 the whole
 * exponent. */
#ifndef TR_IO_PLANE_SPLIT_H
#define TR_IO_PLANE_SPLIT_H

#include <stddef.h>

enum { TR_NUM_PLANES = 4 };

/* Plane 3 of n values. */
void tr_plane_take_exponents(const float *src, size_t n, unsigned char *p3);
/* Planes 0 to 2. */
void tr_plane_take_mantissas(const float *src, size_t n, unsigned char *p0, unsigned char *p1,
                             unsigned char *p2);
/* The values again. dst is none of the planes. */
void tr_plane_join(const unsigned char *const planes[TR_NUM_PLANES], size_t n, float *dst);

#endif
