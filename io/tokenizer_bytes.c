#include "io/tokenizer_bytes.h"

void tr_tokenizer_bytes_encode(const unsigned char *text, size_t size, int32_t *dst)
{
    for (size_t i = 0; i < size; i++)
        dst[i] = text[i];
}

size_t tr_tokenizer_bytes_decode(const int32_t *ids, size_t count, unsigned char *dst)
{
    size_t size = 0;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= 0 && ids[i] < 256)
            dst[size++] = (unsigned char)ids[i];
    }
    return size;
}
