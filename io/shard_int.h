/* The bytes of a shard file, shared by its writer and its reader (docs/checkpoint-format.md).
 *
 * header | chunks | table of boxes | table of chunks | trailer. Everything is little-endian, and so
 * are the machines this runs on: values go to the file as they lie in memory. */
#ifndef TR_IO_SHARD_INT_H
#define TR_IO_SHARD_INT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shard files are little-endian");

#define SHARD_MAGIC "TRSHARD\n"
#define SHARD_END_MAGIC "TRSHEND\n"

enum {
    SHARD_VERSION = 1,
    SHARD_HEADER_BYTES = 64,
    SHARD_BOX_BYTES = 64,
    SHARD_CHUNK_BYTES = 40,
    SHARD_TRAILER_BYTES = 64,
    SHARD_TRAILER_HASHED = 48 /* bytes of the trailer in front of its hash */
};

/* Places inside the records. */
enum {
    HEADER_MAGIC = 0,
    HEADER_VERSION = 8,
    HEADER_NUM_BOXES = 12,
    HEADER_NUM_CHUNKS = 16,
    HEADER_CHUNK_BYTES = 20,
    HEADER_REST = 24, /* zeros */

    BOX_TENSOR = 0,
    BOX_KIND = 4,
    BOX_NUM_DIMS = 5,
    BOX_ELEMENT = 6, /* 2 bytes: 1 = fp32 */
    BOX_START = 8,   /* 3 x 8 */
    BOX_EXTENT = 32, /* 3 x 8 */
    BOX_FIRST_CHUNK = 56,
    BOX_NUM_CHUNKS = 60,

    CHUNK_OFFSET = 0,
    CHUNK_RAW = 8,
    CHUNK_STORED = 12,
    CHUNK_CODEC = 16,
    CHUNK_REST = 20, /* zeros */
    CHUNK_HASH = 24, /* low half, high half */

    TRAILER_MAGIC = 0,
    TRAILER_TABLE_OFFSET = 8,
    TRAILER_TABLE_BYTES = 16,
    TRAILER_FILE_BYTES = 24,
    TRAILER_RAW_BYTES = 32,
    TRAILER_REST = 40, /* zeros */
    TRAILER_HASH = 48
};

enum { SHARD_ELEMENT_F32 = 1 };

static inline void le_put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static inline uint64_t le_get(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static inline void le_put_hash(unsigned char *at, tr_hash128 hash)
{
    le_put(at, hash.low, 8);
    le_put(at + 8, hash.high, 8);
}

static inline tr_hash128 le_get_hash(const unsigned char *at)
{
    return (tr_hash128){.low = le_get(at, 8), .high = le_get(at + 8, 8)};
}

#endif
