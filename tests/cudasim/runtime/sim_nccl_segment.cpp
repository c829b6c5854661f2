#include "tests/cudasim/runtime/sim_nccl_segment.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/cudasim/runtime/sim_error.h"

/* Fills ncclUniqueId. */
struct sim_nccl_id {
    uint64_t nonce;
    int32_t pid, file;
};
static_assert(sizeof(sim_nccl_id) <= sizeof(ncclUniqueId), "an id is plain bytes");

static sim_nccl_id id_of(const ncclUniqueId *id)
{
    sim_nccl_id own;
    memcpy(&own, id, sizeof own);
    return own;
}

size_t sim_nccl_segment_bytes(int num_ranks)
{
    return sizeof(sim_nccl_segment) + (size_t)num_ranks * (size_t)num_ranks * sizeof(sim_nccl_ring);
}

bool sim_nccl_id_make(ncclUniqueId *id)
{
    sim_nccl_id own = {0, getpid(), memfd_create("cudasim-nccl", MFD_CLOEXEC)};
    if (own.file < 0 || getrandom(&own.nonce, sizeof own.nonce, 0) != sizeof own.nonce ||
        pwrite(own.file, &own.nonce, sizeof own.nonce, 0) != sizeof own.nonce)
        return false;
    memset(id, 0, sizeof *id);
    memcpy(id, &own, sizeof own);
    return true;
}

sim_nccl_segment *sim_nccl_segment_map(const ncclUniqueId *id, int num_ranks)
{
    sim_nccl_id own = id_of(id);
    size_t bytes = sim_nccl_segment_bytes(num_ranks);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", own.pid, own.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    uint64_t nonce;
    if (file < 0)
        return NULL;
    if (pread(file, &nonce, sizeof nonce, 0) != sizeof nonce || nonce != own.nonce) {
        close(file); /* the number is another file's now */
        return NULL;
    }
    void *memory = MAP_FAILED;
    if (ftruncate(file, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (memory == MAP_FAILED)
        cudasim_fail("nccl: no memory to share: %zu bytes for %d ranks", bytes, num_ranks);
    close(file);
    return (sim_nccl_segment *)memory;
}

void sim_nccl_segment_unmap(sim_nccl_segment *segment, int num_ranks)
{
    munmap(segment, sim_nccl_segment_bytes(num_ranks));
}

void sim_nccl_id_release(const ncclUniqueId *id)
{
    sim_nccl_id own = id_of(id);
    if (own.pid == getpid())
        close(own.file);
}

bool sim_process_is_alive(int pid)
{
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'X';
    fclose(file);
    return state != 'Z' && state != 'X';
}
