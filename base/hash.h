/* Hashes: XXH3 of 64 and 128 bits (libxxhash; the 128 bits of files with AVX2 where the processor has
 * it), the same on every machine. Not cryptographic.
 *
 * 64 bits make keys of random streams and of permutations; 128 bits check files and compare tensors. All functions are
 * thread-safe; a stream belongs to one thread at a time. */
#ifndef TR_BASE_HASH_H
#define TR_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

uint64_t tr_hash64(const void *data, size_t bytes, uint64_t seed);

/* The key of a random stream: XXH3-64 (seed 0) of these bytes, in this order:
 *     8 bytes        seed, little-endian
 *     strlen         purpose, then one zero byte
 *     strlen         name, then one zero byte
 * Neither text can hold a zero byte, so that different triples are different bytes. Recorded mathematics: never change. */
uint64_t tr_hash_key(uint64_t seed, const char *purpose, const char *name);

/* A key that also depends on a number (a step, a layer, the high bits of a sample): XXH3-64 of the 8 little-endian bytes of
 * `value`, with `key` as XXH3's seed. Chains: mix(mix(key, a), b). Recorded mathematics: never change. */
uint64_t tr_hash_mix(uint64_t key, uint64_t value);

typedef struct tr_hash128 {
    uint64_t low, high;
} tr_hash128;

enum { TR_HASH128_TEXT = 33 }; /* bytes: 32 hexadecimal digits and the final zero */

tr_hash128 tr_hash128_compute(const void *data, size_t bytes);
bool tr_hash128_equal(tr_hash128 a, tr_hash128 b);
/* 32 lower-case digits, most significant first: what `xxhsum -H2` prints. */
void tr_hash128_to_text(tr_hash128 hash, char text[TR_HASH128_TEXT]);
/* Reads exactly 32 hexadecimal digits of either case; false (and *hash unchanged) for anything else. */
bool tr_hash128_from_text(const char *text, tr_hash128 *hash);

/* The 128-bit hash of bytes that come piece by piece; equal to tr_hash128_compute of their concatenation. */
typedef struct tr_hash_stream tr_hash_stream;
tr_hash_stream *tr_hash_stream_create(void);
void tr_hash_stream_destroy(tr_hash_stream *stream);
/* Starts again with no bytes. */
void tr_hash_stream_reset(tr_hash_stream *stream);
void tr_hash_stream_add(tr_hash_stream *stream, const void *data, size_t bytes);
/* The hash of the bytes so far; more may follow. */
tr_hash128 tr_hash_stream_get(const tr_hash_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
