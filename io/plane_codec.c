#include "io/plane_codec.h"

#include <stdint.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode */
#include <zstd.h>

#include "base/alloc.h"
#include "base/status.h"
#include "io/plane_split.h"
#include "io/shard_int.h"

enum {
    TRIAL_VALUES = 4096,
    GAIN = 32 /* a plane is compressed when that saves at least 1/32 of it */
};
#define UNEVEN 1.12 /* is_uneven; between 1 and 1.19 */

struct tr_plane_codec {
    size_t max_values;
    unsigned char *planes; /* [TR_NUM_PLANES][max_values] */
    ZSTD_CCtx *compress;
    ZSTD_CCtx *entropy; /* level 1 of the exponent plane */
    ZSTD_DCtx *decompress;
};

/* Exponents in their order are noise: Huffman coding is all that gains, with a table for each 32 KiB,
 * since rows differ. Matches (rows without a gradient) are looked for at every 64th byte only. zstd
 * leaves literals uncoded when it searches so little, unless it is told otherwise; a version that
 * does not know that parameter searches every byte. */
static ZSTD_CCtx *entropy_create(void)
{
    static const struct {
        ZSTD_cParameter parameter;
        int value;
    } settings[] = {
        {ZSTD_c_compressionLevel, 1}, {ZSTD_c_strategy, ZSTD_fast}, {ZSTD_c_windowLog, 15},
        {ZSTD_c_hashLog, 6},          {ZSTD_c_minMatch, 7},
    };
    ZSTD_CCtx *context = ZSTD_createCCtx();
    if (context == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        TR_ASSERT(!ZSTD_isError(
            ZSTD_CCtx_setParameter(context, settings[i].parameter, settings[i].value)));
    if (!ZSTD_isError(
            ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, ZSTD_ps_enable)))
        TR_ASSERT(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_targetLength, 64)));
    return context;
}

tr_plane_codec *tr_plane_codec_create(size_t max_values)
{
    tr_plane_codec *codec = TR_NEW(tr_plane_codec);
    codec->max_values = max_values;
    codec->planes = TR_NEW_ARRAY(unsigned char, TR_NUM_PLANES *max_values);
    codec->compress = ZSTD_createCCtx();
    codec->entropy = entropy_create();
    codec->decompress = ZSTD_createDCtx();
    TR_ASSERT(codec->compress != NULL && codec->entropy != NULL && codec->decompress != NULL);
    return codec;
}

void tr_plane_codec_destroy(tr_plane_codec *codec)
{
    if (codec == NULL)
        return;
    ZSTD_freeCCtx(codec->compress);
    ZSTD_freeCCtx(codec->entropy);
    ZSTD_freeDCtx(codec->decompress);
    tr_free(codec->planes);
    tr_free(codec);
}

/* ---- encoding ---- */

/* zstd's result, or 0 when it saves less than 1/GAIN. */
static size_t plane_compress(tr_plane_codec *codec, int level, const unsigned char *plane, size_t n,
                             unsigned char *dst, size_t room)
{
    size_t most = n - n / GAIN - 1;
    size_t stored =
        ZSTD_compressCCtx(codec->compress, dst, room < most ? room : most, plane, n, level);
    return ZSTD_isError(stored) ? 0 : stored;
}

/* The exponent plane. */
static size_t exponents_compress(tr_plane_codec *codec, int level, const unsigned char *plane,
                                 size_t n, unsigned char *dst, size_t room)
{
    if (level > 1)
        return plane_compress(codec, level, plane, n, dst, room);
    size_t most = n - n / GAIN - 1;
    size_t stored = ZSTD_compress2(codec->entropy, dst, room < most ? room : most, plane, n);
    return ZSTD_isError(stored) ? 0 : stored;
}

/* Whether the values of a plane's beginning are so unequally many that zstd may gain by them. Of
 * bytes that are all equally likely, the squares of their counts sum to about n + n(n - 1)/256;
 * what an order-0 code can shorten by 1/32 has at least 1.19 of the second part. */
static bool is_uneven(const unsigned char *plane, size_t n)
{
    uint32_t counts[256] = {0};
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        counts[plane[i]]++;
    for (int i = 0; i < 256; i++)
        squares += (double)counts[i] * counts[i];
    return squares > (double)n + UNEVEN * (double)n * (double)(n - 1) / 256;
}

/* Which mantissa planes are worth compressing, judged by the first values; whether any is. */
static bool mantissas_gain(const float *src, size_t n, unsigned char *const planes[TR_NUM_PLANES],
                           bool gains[TR_NUM_PLANES])
{
    size_t count = n < TRIAL_VALUES ? n : TRIAL_VALUES;
    tr_plane_take_mantissas(src, count, planes[0], planes[1], planes[2]);
    for (int p = 0; p < TR_NUM_PLANES - 1; p++)
        gains[p] = is_uneven(planes[p], count);
    return gains[0] || gains[1] || gains[2];
}

/* Where the sizes and the planes of a chunk go. */
typedef struct chunk_out {
    unsigned char *dst;
    size_t room, used;
    int num_planes; /* so far */
} chunk_out;

/* Counts a plane of `stored` bytes that lie at dst + used already. */
static void plane_done(chunk_out *out, size_t stored)
{
    le_put(out->dst + 4 * out->num_planes++, stored, 4);
    out->used += stored;
}

/* A plane whose compressed form, of `stored` bytes, lies at dst + used, or is none (0). */
static bool plane_end(chunk_out *out, size_t stored, const unsigned char *plane, size_t n)
{
    if (stored == 0) {
        if (out->room - out->used < n)
            return false;
        memcpy(out->dst + out->used, plane, n);
        stored = n;
    }
    plane_done(out, stored);
    return true;
}

/* Planes 2, 1, 0, some of them compressed. */
static bool mantissas_compress(tr_plane_codec *codec, int level, const float *src, size_t n,
                               unsigned char *const planes[TR_NUM_PLANES],
                               const bool gains[TR_NUM_PLANES], chunk_out *out)
{
    tr_plane_take_mantissas(src, n, planes[0], planes[1], planes[2]);
    for (int p = TR_NUM_PLANES - 2; p >= 0; p--) {
        size_t stored = 0;
        if (gains[p])
            stored = plane_compress(codec, level, planes[p], n, out->dst + out->used,
                                    out->room - out->used);
        if (!plane_end(out, stored, planes[p], n))
            return false;
    }
    return true;
}

/* Planes 2, 1, 0 as they are, straight to their places. */
static bool mantissas_place(const float *src, size_t n, chunk_out *out)
{
    unsigned char *at = out->dst + out->used;
    if (out->room - out->used < (TR_NUM_PLANES - 1) * n)
        return false;
    tr_plane_take_mantissas(src, n, at + 2 * n, at + n, at);
    for (int p = TR_NUM_PLANES - 2; p >= 0; p--)
        plane_done(out, n);
    return true;
}

size_t tr_plane_encode(tr_plane_codec *codec, int level, const float *src, size_t num_values,
                       void *dst, size_t room)
{
    chunk_out out = {.dst = dst, .room = room, .used = TR_PLANE_HEADER};
    unsigned char *planes[TR_NUM_PLANES];
    bool gains[TR_NUM_PLANES];
    TR_ASSERT(num_values > 0 && num_values <= codec->max_values);
    if (room < out.used)
        return 0;
    for (int p = 0; p < TR_NUM_PLANES; p++)
        planes[p] = codec->planes + (size_t)p * codec->max_values;
    tr_plane_take_exponents(src, num_values, planes[3]);
    size_t stored = exponents_compress(codec, level, planes[3], num_values, out.dst + out.used,
                                       room - out.used);
    if (!plane_end(&out, stored, planes[3], num_values))
        return 0;
    bool done = mantissas_gain(src, num_values, planes, gains)
                    ? mantissas_compress(codec, level, src, num_values, planes, gains, &out)
                    : mantissas_place(src, num_values, &out);
    return done ? out.used : 0;
}

/* ---- decoding ---- */

bool tr_plane_decode(tr_plane_codec *codec, const void *src, size_t stored, float *dst,
                     size_t num_values)
{
    const unsigned char *in = src;
    const unsigned char *planes[TR_NUM_PLANES];
    size_t used = TR_PLANE_HEADER;
    TR_ASSERT(num_values > 0 && num_values <= codec->max_values);
    if (stored < used)
        return false;
    for (int p = TR_NUM_PLANES - 1; p >= 0; p--) {
        size_t size = (size_t)le_get(in + 4 * (TR_NUM_PLANES - 1 - p), 4);
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
    tr_plane_join(planes, num_values, dst);
    return true;
}
