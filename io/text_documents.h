/* Text files cut into documents, in bounded memory: neither a file nor a document nor a line is
 * ever held whole.
 *
 * Files may be plain, gzip or dictzip (told apart by content). A document never spans two files.
 * How a file is cut:
 *   FILE       the whole file is one document;
 *   LINE       each line is one; its line end (LF or CRLF) belongs to none, every other byte to
 *              one;
 *   PARAGRAPH  a document begins where text follows an empty line;
 *   ENTRY      the same, and that text must begin in the first column, as the head words of a
 *              dictionary do.
 * In PARAGRAPH and ENTRY a document also takes `min_bytes` before the next may begin, and all
 * bytes of the file, empty lines included, belong to a document: joined, the documents are the
 * file. A document without any byte other than white space is empty. */
#ifndef TR_IO_TEXT_DOCUMENTS_H
#define TR_IO_TEXT_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum tr_text_split {
    TR_TEXT_PARAGRAPH,
    TR_TEXT_ENTRY,
    TR_TEXT_LINE,
    TR_TEXT_FILE
} tr_text_split;

/* Called in order: begin, text (any number of times, `size` > 0), end. A failure ends the
 * reading and is returned. */
typedef struct tr_text_sink {
    void *context;
    /* offset: bytes of uncompressed text in front of the document, in all files read so far. */
    tr_status (*begin)(void *context, uint64_t offset);
    tr_status (*text)(void *context, const unsigned char *bytes, size_t size);
    tr_status (*end)(void *context, bool empty);
} tr_text_sink;

typedef struct tr_text_options {
    tr_text_split split;
    uint64_t min_bytes; /* PARAGRAPH and ENTRY; 0: every piece is a document */
} tr_text_options;

/* Reads `path` to its end. `offset` is advanced by the bytes of text read; it starts at 0 for
 * the first file. A missing file or a damaged or cut gzip is TR_ERR_DATA. */
tr_status tr_text_documents_read(const char *path, const tr_text_options *options,
                                 const tr_text_sink *sink, uint64_t *offset);

/* The bytes of uncompressed text in `path`, by reading it once. */
tr_status tr_text_documents_measure(const char *path, uint64_t *size);

#endif
