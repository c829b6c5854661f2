/* Set-up allocations: host memory for plans, tables and names, never for tensors (those come from arenas).
 *
 * The functions never return NULL for a positive size: when memory ends they print one error line and end the
 * process with exit code 6, since set-up cannot go on. Memory is zeroed. Free with tr_free. Thread-safe. */
#ifndef TR_BASE_ALLOC_H
#define TR_BASE_ALLOC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void *tr_alloc(size_t count, size_t size);
/* The same at a multiple of `alignment` (a power of two, at least 8). */
void *tr_alloc_aligned(size_t count, size_t size, size_t alignment);
/* Grows or shrinks; new bytes are not zeroed. `pointer` may be NULL. */
void *tr_realloc(void *pointer, size_t count, size_t size);
char *tr_strdup(const char *text);
/* printf into a new string. */
char *tr_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tr_free(void *pointer);

#define TR_NEW(type) ((type *)tr_alloc(1, sizeof(type)))
#define TR_NEW_ALIGNED(type) ((type *)tr_alloc_aligned(1, sizeof(type), _Alignof(type)))
#define TR_NEW_ARRAY(type, count) ((type *)tr_alloc((count), sizeof(type)))

#ifdef __cplusplus
}
#endif

#endif
