/* What is asked of text in many places. Pure. */
#ifndef TR_BASE_TEXT_H
#define TR_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>

static inline bool tr_ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

#endif
