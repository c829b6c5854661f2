/* Token files: one read-only stream of token ids over the formats that trainers use.
 *
 * Formats, recognised by content: Megatron's indexed dataset (PREFIX.bin and PREFIX.idx; dtypes
 * u8, i16, i32, i64, u16) and llm.c's .bin (u16, and u32 of its Llama 3 files). The sequences of
 * a file, in their order, make one stream of num_tokens ids; Megatron pointers are followed and
 * may lie anywhere in the .bin. All positions and sizes are 64 bit.
 *
 * The files are memory-mapped and every header field is checked at open against the real file
 * size, so that no later read can leave the map. The files must not be cut while they are open.
 * A tr_token_file does not change after open: any number of threads may read it at once. Errors
 * of the file are TR_ERR_DATA and name the file and what was expected. */
#ifndef TR_IO_TOKEN_FILE_H
#define TR_IO_TOKEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tr_token_file tr_token_file;

typedef struct tr_token_info {
    const char *path;   /* of the file that holds the tokens; owned by the tr_token_file */
    const char *format; /* "megatron", "llm.c" */
    const char *dtype;  /* "u8", "u16", "i16", "i32", "u32", "i64" */
    size_t item_size;   /* bytes of a stored token */
    uint64_t num_tokens;
    uint64_t num_sequences;
    uint64_t num_documents; /* 1 where the format does not record documents */
    bool has_documents;     /* whether the format records documents */
} tr_token_info;

typedef struct tr_token_document {
    uint64_t index;       /* from 0 */
    uint64_t first_token; /* position in the stream */
    uint64_t num_tokens;
} tr_token_document;

/* `path` is PREFIX, PREFIX.bin or PREFIX.idx of a Megatron pair, or an llm.c file. On success
 * *out is to be closed. */
tr_status tr_token_file_open(tr_token_file **out, const char *path);
void tr_token_file_close(tr_token_file *file);

const tr_token_info *tr_token_file_info(const tr_token_file *file);

/* Ids at stream positions first ... first + count - 1 into dst, across sequences and documents.
 * The range must lie inside the stream. An id below 0 or above 2^31 - 1 is TR_ERR_DATA, with its
 * document and position. */
tr_status tr_token_file_read(const tr_token_file *file, uint64_t first, uint64_t count,
                             int32_t *dst);

/* A hash of the token data's size and of stretches spread over it, its first and last bytes among them: copies of one file have the same one. */
uint64_t tr_token_file_fingerprint(const tr_token_file *file);

/* The document that holds the token at stream position `token` (must be below num_tokens). */
void tr_token_file_locate(const tr_token_file *file, uint64_t token, tr_token_document *document);

/* Document `index` (must be below num_documents); it may be empty. */
void tr_token_file_document(const tr_token_file *file, uint64_t index, tr_token_document *document);

#endif
