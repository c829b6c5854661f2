/* A piece begins with one page that says whose it is: process and file numbers that mean something else here (another container's
 * /proc) must not be taken for the peer's memory. */
#include "parallel/shm_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "parallel/group_int.h"

enum { PAGE = 4096 };

/* What a rank tells its peers, and the first bytes of its piece. */
typedef struct piece_card {
    uint64_t nonce;
    uint64_t bytes; /* without the page */
    int32_t pid, fd;
} piece_card;

static tr_status piece_map(int fd, uint64_t bytes, char **base)
{
    void *memory = mmap(NULL, PAGE + bytes, PROT_READ | PROT_WRITE,
                        fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return tr_fail_errno(TR_ERR_MEMORY, errno, "cannot map %llu bytes of communication memory",
                             (unsigned long long)bytes);
    *base = (char *)memory + PAGE;
    return TR_OK;
}

static tr_status piece_create(piece_card *card, char **base)
{
    card->pid = (int32_t)getpid();
    card->fd = memfd_create("trine", MFD_CLOEXEC);
    if (card->fd < 0)
        return tr_fail_errno(TR_ERR_TRANSPORT, errno, "cannot make shared memory (memfd_create)");
    if (ftruncate(card->fd, (off_t)(PAGE + card->bytes)) != 0)
        return tr_fail_errno(TR_ERR_MEMORY, errno, "cannot have %llu bytes of shared memory",
                             (unsigned long long)card->bytes);
    if (getrandom(&card->nonce, sizeof card->nonce, 0) != (ssize_t)sizeof card->nonce)
        return tr_fail_errno(TR_ERR_TRANSPORT, errno, "no random numbers (getrandom)");
    TR_TRY(piece_map(card->fd, card->bytes, base));
    memcpy(*base - PAGE, card, sizeof *card);
    return TR_OK;
}

static tr_status piece_open(const piece_card *card, int peer, char **base)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", card->pid, card->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return tr_fail_errno(TR_ERR_TRANSPORT, errno,
                             "cannot open the memory of rank %d of this node through %s", peer,
                             path);
    tr_status status = piece_map(fd, card->bytes, base);
    close(fd);
    TR_TRY(status);
    if (memcmp(*base - PAGE, card, sizeof *card) == 0)
        return TR_OK;
    return tr_fail(TR_ERR_TRANSPORT,
                   "%s is not the memory of rank %d of this node (ranks in different containers?)",
                   path, peer);
}

static tr_status pieces_exchange(tr_shm_segment *segment, tr_world *world, piece_card *cards,
                                 tr_status own)
{
    TR_TRY(tr_world_agree(world, world->node_comm, own, TR_ERR_TRANSPORT,
                          "make its part of the shared memory"));
    MPI_Request request;
    piece_card card = cards[segment->own];
    TR_MPI(MPI_Iallgather(&card, sizeof card, MPI_BYTE, cards, sizeof card, MPI_BYTE,
                          world->node_comm, &request));
    TR_TRY(tr_world_wait_request(world, &request, "exchanging shared memory"));
    for (int i = 0; own == TR_OK && i < segment->num_pieces; i++) {
        segment->bytes[i] = cards[i].bytes;
        if (i != segment->own)
            own = piece_open(&cards[i], i, &segment->base[i]);
    }
    /* Also: nobody closes its file before all have opened it. */
    return tr_world_agree(world, world->node_comm, own, TR_ERR_TRANSPORT,
                          "map the shared memory of its peers");
}

static void segment_init(tr_shm_segment *segment, int num_pieces, int own, size_t bytes)
{
    *segment = (tr_shm_segment){.num_pieces = num_pieces, .own = own};
    segment->base = TR_NEW_ARRAY(char *, num_pieces);
    segment->bytes = TR_NEW_ARRAY(size_t, num_pieces);
    segment->bytes[own] = bytes;
}

tr_status tr_shm_segment_create(tr_shm_segment *segment, tr_world *world, size_t bytes)
{
    segment_init(segment, world->local_size, world->local_rank, bytes);
    piece_card *cards = TR_NEW_ARRAY(piece_card, world->local_size);
    piece_card *card = &cards[world->local_rank];
    *card = (piece_card){.bytes = bytes, .fd = -1};
    tr_status status = piece_create(card, &segment->base[world->local_rank]);
    int fd = card->fd;
    status = pieces_exchange(segment, world, cards, status);
    if (fd >= 0)
        close(fd);
    tr_free(cards);
    if (status != TR_OK)
        tr_shm_segment_clear(segment);
    return status;
}

tr_status tr_shm_segment_create_private(tr_shm_segment *segment, size_t bytes)
{
    segment_init(segment, 1, 0, bytes);
    tr_status status = piece_map(-1, bytes, &segment->base[0]);
    if (status != TR_OK)
        tr_shm_segment_clear(segment);
    return status;
}

tr_status tr_shm_segment_create_node(tr_shm_segment *segment, tr_world *world, size_t bytes)
{
    return world->shm_usable[world->rank] ? tr_shm_segment_create(segment, world, bytes)
                                          : tr_shm_segment_create_private(segment, bytes);
}

void tr_shm_segment_clear(tr_shm_segment *segment)
{
    for (int i = 0; i < segment->num_pieces; i++)
        if (segment->base[i] != NULL)
            munmap(segment->base[i] - PAGE, PAGE + segment->bytes[i]);
    tr_free(segment->base);
    tr_free(segment->bytes);
    *segment = (tr_shm_segment){0};
}
