/* Codec 1 of checkpoint chunks: fp32 values as four byte planes, the exponent plane through zstd.
 *
 * Each value's bits are rotated left by one, which brings the sign to the end and puts the whole
 * exponent into the highest byte. Trained weights and moments use few exponents, so that this plane
 * compresses well; mantissa planes are noise and stay as they are, unless the values of their
 * beginning are unequally many (zeros, ones, small integers). Lossless, NaN included.
 *
 * Stored: four sizes of 4 bytes, little-endian, then the four planes, the highest byte's first. A
 * size equal to the number of values is a plane as it is, a smaller one a zstd frame.
 *
 * A codec is working memory for one thread at a time. */
#ifndef TR_IO_PLANE_CODEC_H
#define TR_IO_PLANE_CODEC_H

#include <stdbool.h>
#include <stddef.h>

enum { TR_PLANE_HEADER = 16 };

typedef struct tr_plane_codec tr_plane_codec;

/* For chunks of up to max_values values. */
tr_plane_codec *tr_plane_codec_create(size_t max_values);
void tr_plane_codec_destroy(tr_plane_codec *codec);

/* Writes num_values (at least 1) values of `src` to `dst`, which has room for `room` bytes. level:
 * zstd's, 1 to 19. Returns the stored size, or 0 when it does not fit: with room for less than the
 * raw bytes, that is a chunk that is better stored raw. */
size_t tr_plane_encode(tr_plane_codec *codec, int level, const float *src, size_t num_values,
                       void *dst, size_t room);

/* Reads exactly num_values values back. False when the bytes are no such chunk: any bytes are safe
 * to ask about. */
bool tr_plane_decode(tr_plane_codec *codec, const void *src, size_t stored, float *dst,
                     size_t num_values);

#endif
