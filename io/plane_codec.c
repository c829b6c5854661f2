#include "io/plane_codec.h"

#include <string.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/status.h"
#include "io/shard_int.h"

enum {
    NUM_PLANES = 4,
    TRIAL_BYTES = 16384,
    GAIN = 32 /* a plane is compressed when that saves at least 1/32 of it */
};

struct tr_plane_codec {
    size_t max_values;
    unsigned char *planes; /* [NUM_PLANES][max_values]; plane p holds byte p of the rotated bits */
    unsigned char *trial;
    ZSTD_CCtx *compress;
    ZSTD_DCtx *decompress;
};

tr_plane_codec *tr_plane_codec_create(size_t max_values)
{
    tr_plane_codec *codec = TR_NEW(tr_plane_codec);
    codec->max_values = max_values;
    codec->planes = TR_NEW_ARRAY(unsigned char, NUM_PLANES *max_values);
    codec->trial = TR_NEW_ARRAY(unsigned char, TRIAL_BYTES);
    codec->compress = ZSTD_createCCtx();
    codec->decompress = ZSTD_createDCtx();
    TR_ASSERT(codec->compress != NULL && codec->decompress != NULL);
    return codec;
}

void tr_plane_codec_destroy(tr_plane_codec *codec)
{
    if (codec == NULL)
        return;
    ZSTD_freeCCtx(codec->compress);
    ZSTD_freeDCtx(codec->decompress);
    tr_free(codec->trial);
    tr_free(codec->planes);
    tr_free(codec);
}

static void planes_split(const float *src, size_t n, unsigned char *planes, size_t stride)
{
    unsigned char *p0 = planes, *p1 = p0 + stride, *p2 = p1 + stride, *p3 = p2 + stride;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, src + i, sizeof bits);
        bits = bits << 1 | bits >> 31;
        p0[i] = (unsigned char)bits;
        p1[i] = (unsigned char)(bits >> 8);
        p2[i] = (unsigned char)(bits >> 16);
        p3[i] = (unsigned char)(bits >> 24);
    }
}

static void planes_join(const unsigned char *const planes[NUM_PLANES], size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)planes[0][i] | (uint32_t)planes[1][i] << 8 |
                        (uint32_t)planes[2][i] << 16 | (uint32_t)planes[3][i] << 24;
        bits = bits >> 1 | bits << 31;
        memcpy(dst + i, &bits, sizeof bits);
    }
}

/* zstd's result, or 0 when it saves less than 1/GAIN. */
static size_t plane_compress(tr_plane_codec *codec, int level, const unsigned char *plane, size_t n,
                             unsigned char *dst, size_t room)
{
    size_t most = n - n / GAIN - 1;
    size_t stored =
        ZSTD_compressCCtx(codec->compress, dst, room < most ? room : most, plane, n, level);
    return ZSTD_isError(stored) ? 0 : stored;
}

static bool trial_gains(tr_plane_codec *codec, int level, const unsigned char *plane, size_t n)
{
    size_t bytes = n < TRIAL_BYTES ? n : TRIAL_BYTES;
    return plane_compress(codec, level, plane, bytes, codec->trial, TRIAL_BYTES) > 0;
}

size_t tr_plane_encode(tr_plane_codec *codec, int level, const float *src, size_t num_values,
                       void *dst, size_t room)
{
    unsigned char *out = dst;
    size_t used = TR_PLANE_HEADER;
    TR_ASSERT(num_values > 0 && num_values <= codec->max_values);
    if (room < used)
        return 0;
    planes_split(src, num_values, codec->planes, codec->max_values);
    for (int p = NUM_PLANES - 1; p >= 0; p--) {
        const unsigned char *plane = codec->planes + (size_t)p * codec->max_values;
        size_t stored = 0;
        if (p == NUM_PLANES - 1 || trial_gains(codec, level, plane, num_values))
            stored = plane_compress(codec, level, plane, num_values, out + used, room - used);
        if (stored == 0) {
            stored = num_values;
            if (room - used < stored)
                return 0;
            memcpy(out + used, plane, stored);
        }
        le_put(out + 4 * (NUM_PLANES - 1 - p), stored, 4);
        used += stored;
    }
    return used;
}

bool tr_plane_decode(tr_plane_codec *codec, const void *src, size_t stored, float *dst,
                     size_t num_values)
{
    const unsigned char *in = src;
    const unsigned char *planes[NUM_PLANES];
    size_t used = TR_PLANE_HEADER;
    TR_ASSERT(num_values > 0 && num_values <= codec->max_values);
    if (stored < used)
        return false;
    for (int p = NUM_PLANES - 1; p >= 0; p--) {
        size_t size = (size_t)le_get(in + 4 * (NUM_PLANES - 1 - p), 4);
        if (size > num_values || size > stored - used)
            return false;
        planes[p] = in + used;
        if (size < num_values) {
            unsigned char *plane = codec->planes + (size_t)p * codec->max_values;
            size_t got = ZSTD_decompressDCtx(codec->decompress, plane, num_values, in + used, size);
            if (ZSTD_isError(got) || got != num_values)
                return false;
            planes[p] = plane;
        }
        used += size;
    }
    if (used != stored)
        return false;
    planes_join(planes, num_values, dst);
    return true;
}
