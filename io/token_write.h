/* Writes Megatron's indexed dataset (PREFIX.bin and PREFIX.idx), document by document, in
 * bounded memory.
 *
 * Tokens are appended to the open document; ending it makes one sequence and one document of the
 * file, whose length counts every appended token (an end-of-document id too). Nothing appears
 * under the final names before commit: both files are written beside them, flushed and renamed,
 * the index last. One thread per writer. */
#ifndef TR_IO_TOKEN_WRITE_H
#define TR_IO_TOKEN_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tr_token_writer tr_token_writer;

/* Bytes per token on disk. AUTO: u16 when the vocabulary is below 65500, as Megatron's own tools
 * choose, else i32. */
typedef enum tr_token_store {
    TR_TOKEN_STORE_AUTO = 0,
    TR_TOKEN_STORE_U16 = 2,
    TR_TOKEN_STORE_I32 = 4
} tr_token_store;

typedef struct tr_token_writer_options {
    const char *prefix;
    uint64_t vocab; /* ids are 0 to vocab - 1 */
    tr_token_store store;
} tr_token_writer_options;

tr_status tr_token_writer_open(tr_token_writer **out, const tr_token_writer_options *options);

/* Adds `count` ids to the open document. An id outside the vocabulary, or too big for the width,
 * is TR_ERR_DATA and names the id. */
tr_status tr_token_writer_append(tr_token_writer *writer, const int32_t *ids, size_t count);

/* Ends the open document (a document without tokens is written as such). TR_ERR_DATA above 2^31
 * - 1 tokens. */
tr_status tr_token_writer_end_document(tr_token_writer *writer);

/* Takes back what was appended since the last end: as if the open document had not been begun. */
tr_status tr_token_writer_discard_document(tr_token_writer *writer);

/* Writes the index and gives both files their names. The open document must be empty. Only
 * tr_token_writer_close may follow. */
tr_status tr_token_writer_commit(tr_token_writer *writer);

/* Frees the writer; without a commit the temporary files are removed and files of the final
 * names stay as they were. */
void tr_token_writer_close(tr_token_writer *writer);

uint64_t tr_token_writer_num_tokens(const tr_token_writer *writer);    /* the open document's too */
uint64_t tr_token_writer_num_documents(const tr_token_writer *writer); /* ended ones */
size_t tr_token_writer_item_size(const tr_token_writer *writer);       /* bytes per token */

#endif
