#include "tests/unit/io/io_scratch.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

int scratch_make(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trine-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

int scratch_remove(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir != NULL)
        closedir(dir);
    return rmdir(folder);
}

const char *scratch_path(const char *name)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void scratch_write(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

unsigned char *scratch_read(const char *path, size_t *size)
{
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char *bytes = calloc(1, (size_t)about.st_size + 1);
    assert_int_equal(fread(bytes, 1, (size_t)about.st_size, file), about.st_size);
    fclose(file);
    if (size != NULL)
        *size = (size_t)about.st_size;
    return bytes;
}

int scratch_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

void put_le(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}
