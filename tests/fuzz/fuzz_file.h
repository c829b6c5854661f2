/* Bytes of the fuzzer as a file with a path: one file in memory (memfd) for the whole process. */
#ifndef TR_TESTS_FUZZ_FILE_H
#define TR_TESTS_FUZZ_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Writes the bytes over what the file held. The path stays the same. */
static inline const char *fuzz_file_fill(const void *bytes, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, bytes, size, 0) != (ssize_t)size)
        abort();
    return path;
}

/* "$TMPDIR/trine-fuzz-XXXXXX" for mkstemp and mkdtemp. */
static inline void fuzz_template_fill(char path[256])
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, 256, "%s/trine-fuzz-XXXXXX", folder != NULL ? folder : "/tmp");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
