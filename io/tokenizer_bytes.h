/* The tokenizer `bytes`: each byte of the text is its own id (0 to 255), and id 256 ends a
 * document. It loses nothing and needs no file. No state: any thread may call. */
#ifndef TR_IO_TOKENIZER_BYTES_H
#define TR_IO_TOKENIZER_BYTES_H

#include <stddef.h>
#include <stdint.h>

enum { TR_BYTES_EOD = 256, TR_BYTES_VOCAB = 257 };

/* dst[i] = text[i] for i < size. */
void tr_tokenizer_bytes_encode(const unsigned char *text, size_t size, int32_t *dst);

/* The text of `count` ids into dst (room for `count` bytes); ids that are no byte (end of
 * document) give no text. Returns the bytes written. */
size_t tr_tokenizer_bytes_decode(const int32_t *ids, size_t count, unsigned char *dst);

#endif
