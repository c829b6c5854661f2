#include "base/hash.h"

#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* the size of XXH3_state_t, for streams on the stack */
#include <xxhash.h>

#include "base/alloc.h"
#include "base/hash_int.h"
#include "base/status.h"

struct tr_hash_stream {
    XXH3_state_t *state;
};

static void put_u64(unsigned char bytes[8], uint64_t value)
{
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
}

uint64_t tr_hash64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

uint64_t tr_hash_key(uint64_t seed, const char *purpose, const char *name)
{
    unsigned char seed_bytes[8];
    put_u64(seed_bytes, seed);
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, seed_bytes, sizeof seed_bytes);
    XXH3_64bits_update(&state, purpose, strlen(purpose) + 1);
    XXH3_64bits_update(&state, name, strlen(name) + 1);
    return XXH3_64bits_digest(&state);
}

uint64_t tr_hash_mix(uint64_t key, uint64_t value)
{
    unsigned char bytes[8];
    put_u64(bytes, value);
    return XXH3_64bits_withSeed(bytes, sizeof bytes, key);
}

tr_hash128 tr_hash128_compute(const void *data, size_t bytes)
{
    const tr_hash_functions *wide = tr_hash_avx2();
    if (wide != NULL)
        return wide->compute(data, bytes);
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    return (tr_hash128){.low = hash.low64, .high = hash.high64};
}

bool tr_hash128_equal(tr_hash128 a, tr_hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

void tr_hash128_to_text(tr_hash128 hash, char text[TR_HASH128_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        text[i] = digits[hash.high >> (60 - 4 * i) & 15u];
        text[16 + i] = digits[hash.low >> (60 - 4 * i) & 15u];
    }
    text[32] = '\0';
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool tr_hash128_from_text(const char *text, tr_hash128 *hash)
{
    uint64_t half[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        int value = digit_value(text[i]); /* the final zero is no digit either */
        if (value < 0)
            return false;
        half[i / 16] = half[i / 16] << 4 | (uint64_t)value;
    }
    if (text[32] != '\0')
        return false;
    *hash = (tr_hash128){.low = half[1], .high = half[0]};
    return true;
}

tr_hash_stream *tr_hash_stream_create(void)
{
    tr_hash_stream *stream = TR_NEW(tr_hash_stream);
    stream->state = XXH3_createState(); /* aligned to 64 bytes */
    TR_ASSERT(stream->state != NULL);
    tr_hash_stream_reset(stream);
    return stream;
}

void tr_hash_stream_destroy(tr_hash_stream *stream)
{
    if (stream == NULL)
        return;
    XXH3_freeState(stream->state);
    tr_free(stream);
}

void tr_hash_stream_reset(tr_hash_stream *stream)
{
    XXH3_128bits_reset(stream->state);
}

void tr_hash_stream_add(tr_hash_stream *stream, const void *data, size_t bytes)
{
    const tr_hash_functions *wide = tr_hash_avx2();
    if (wide != NULL)
        wide->add(stream->state, data, bytes);
    else
        XXH3_128bits_update(stream->state, data, bytes);
}

tr_hash128 tr_hash_stream_get(const tr_hash_stream *stream)
{
    XXH128_hash_t hash = XXH3_128bits_digest(stream->state);
    return (tr_hash128){.low = hash.low64, .high = hash.high64};
}
