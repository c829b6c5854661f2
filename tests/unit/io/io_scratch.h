/* What the tests of io/ share: a scratch folder per program, whole files in and out, token files
 * made by hand. */
#ifndef TR_TESTS_IO_SCRATCH_H
#define TR_TESTS_IO_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

/* Makes the folder (setup of a cmocka group) and removes it with what is in it. */
int scratch_make(void **state);
int scratch_remove(void **state);

/* "FOLDER/name"; each of the last 8 results stays valid. */
const char *scratch_path(const char *name);

void scratch_write(const char *path, const void *bytes, size_t size);
/* The file's bytes with a zero byte behind them; to be freed. */
unsigned char *scratch_read(const char *path, size_t *size);
int scratch_exists(const char *path);

/* Little-endian stores at any address. */
void put_le(unsigned char *at, uint64_t value, int bytes);

#endif
