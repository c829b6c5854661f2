#include "tests/cudasim/runtime/sim_nccl_work.h"

#include <algorithm>

#include <stdio.h>
#include <string.h>

#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_nccl.h"

enum part_kind {
    PART_SEND,
    PART_RECV,
    PART_ADD, /* receives, and combines with what came before */
    PART_OWN, /* combines the sum with this rank's own elements into memory */
    PART_COPY
};

enum { NONE = -1 };

/* A piece of a call between this rank and a peer, or of this rank alone. */
struct part {
    part_kind does;
    int peer;
    sim_nccl_message message;
    unsigned char *memory;
    const unsigned char *own; /* OWN, COPY: what is combined or copied */
    size_t bytes, moved;
    int after;    /* the part that has to be done before this one begins, or NONE */
    int previous; /* the part before it on the same ring in the same direction, or NONE */
    std::shared_ptr<std::vector<float>> sum; /* ADD, OWN */
    bool early;      /* SEND: reads its source before the receiver has come */
    bool begun;      /* SEND: the first chunk has gone; else: it was asked for */
    bool passed;     /* the last chunk has gone or come; there is one also of no bytes */
    bool done;       /* SEND: and was taken */
    uint64_t put_at; /* SEND: chunks of its ring up to its last one */
};

struct work {
    std::shared_ptr<sim_nccl_link> link;
    uint64_t number; /* of the link's works */
    std::vector<part> parts;
};

static int64_t num_works; /* that have run */

sim_nccl_link::~sim_nccl_link()
{
    sim_nccl_segment_unmap(segment, num_ranks);
}

/* ---- calls ---- */

static const struct {
    const char *name;
    size_t bytes;
} types[ncclNumTypes] = {{"int8", 1},    {"uint8", 1},    {"int32", 4},      {"uint32", 4},
                         {"int64", 8},   {"uint64", 8},   {"float16", 2},    {"float32", 4},
                         {"float64", 8}, {"bfloat16", 2}, {"float8e4m3", 1}, {"float8e5m2", 1}};

size_t sim_nccl_type_bytes(ncclDataType_t type)
{
    return (int)type >= 0 && type < ncclNumTypes ? types[type].bytes : 0;
}

const char *sim_nccl_call_name(sim_nccl_kind kind)
{
    static const char *const names[] = {"ncclSend", "ncclRecv", "ncclAllGather", "ncclReduce",
                                        "ncclReduceScatter"};
    return names[kind];
}

bool sim_nccl_is_sum(sim_nccl_kind kind)
{
    return kind == SIM_NCCL_REDUCE || kind == SIM_NCCL_REDUCE_SCATTER;
}

sim_range sim_nccl_reads(const sim_nccl_call *call, int num_ranks)
{
    size_t times = call->kind == SIM_NCCL_REDUCE_SCATTER ? (size_t)num_ranks : 1;
    return {call->src, call->src == NULL ? 0 : call->count * times * types[call->type].bytes};
}

sim_range sim_nccl_writes(const sim_nccl_call *call, int num_ranks)
{
    size_t times = call->kind == SIM_NCCL_ALL_GATHER ? (size_t)num_ranks : 1;
    return {call->dst, call->dst == NULL ? 0 : call->count * times * types[call->type].bytes};
}

/* ---- calls into parts ---- */

static int part_add(work *w, part_kind does, const sim_nccl_call *call, int peer,
                    const unsigned char *memory, size_t bytes)
{
    bool sends = does == PART_SEND, receives = does == PART_RECV || does == PART_ADD;
    part p = {};
    p.does = does;
    p.peer = peer;
    p.message = {call->kind == SIM_NCCL_RECV ? SIM_NCCL_SEND : call->kind, call->type, call->op,
                 call->count};
    p.memory = const_cast<unsigned char *>(memory);
    p.bytes = bytes;
    p.after = p.previous = NONE;
    p.early = sim_draw(4) == 0;
    for (size_t i = 0; i < w->parts.size() && (sends || receives); i++) {
        const part &other = w->parts[i];
        bool same =
            sends ? other.does == PART_SEND : other.does == PART_RECV || other.does == PART_ADD;
        if (same && other.peer == peer)
            p.previous = (int)i;
    }
    w->parts.push_back(p);
    return (int)w->parts.size() - 1;
}

static void add_all_gather(work *w, const sim_nccl_call *call)
{
    int n = w->link->num_ranks, rank = w->link->rank;
    size_t bytes = call->count * types[call->type].bytes;
    int copy = part_add(w, PART_COPY, call, rank, call->dst + (size_t)rank * bytes, bytes);
    w->parts[(size_t)copy].own = call->src;
    for (int step = 1; step < n; step++) {
        int to = (rank + step) % n, from = (rank + n - step) % n;
        part_add(w, PART_SEND, call, to, call->src, bytes);
        part_add(w, PART_RECV, call, from, call->dst + (size_t)from * bytes, bytes);
    }
}

/* The sum of the others' elements and of this rank's `own` into dst. */
static void add_sum(work *w, const sim_nccl_call *call, const unsigned char *own, size_t bytes)
{
    int n = w->link->num_ranks, rank = w->link->rank;
    auto sum = std::make_shared<std::vector<float>>(bytes / sizeof(float));
    int last = NONE;
    for (int step = 1; step < n; step++) {
        int add = part_add(w, PART_ADD, call, (rank + step) % n, NULL, bytes);
        w->parts[(size_t)add].sum = sum;
        w->parts[(size_t)add].after = last;
        last = add;
    }
    int end = part_add(w, PART_OWN, call, rank, call->dst, bytes);
    w->parts[(size_t)end].own = own;
    w->parts[(size_t)end].sum = sum;
    w->parts[(size_t)end].after = last;
}

static void add_reduce_scatter(work *w, const sim_nccl_call *call)
{
    int n = w->link->num_ranks, rank = w->link->rank;
    size_t bytes = call->count * types[call->type].bytes;
    for (int step = 1; step < n; step++) {
        int peer = (rank + step) % n;
        part_add(w, PART_SEND, call, peer, call->src + (size_t)peer * bytes, bytes);
    }
    add_sum(w, call, call->src + (size_t)rank * bytes, bytes);
}

static void add_call(work *w, const sim_nccl_call *call)
{
    size_t bytes = call->count * types[call->type].bytes;
    switch (call->kind) {
    case SIM_NCCL_SEND:
        part_add(w, PART_SEND, call, call->peer, call->src, bytes);
        break;
    case SIM_NCCL_RECV:
        part_add(w, PART_RECV, call, call->peer, call->dst, bytes);
        break;
    case SIM_NCCL_ALL_GATHER:
        add_all_gather(w, call);
        break;
    case SIM_NCCL_REDUCE:
        if (w->link->rank == call->peer)
            add_sum(w, call, call->src, bytes);
        else
            part_add(w, PART_SEND, call, call->peer, call->src, bytes);
        break;
    case SIM_NCCL_REDUCE_SCATTER:
        add_reduce_scatter(w, call);
        break;
    }
}

/* ---- running ---- */

static sim_nccl_ring *ring_of(const sim_nccl_link *link, int from, int to)
{
    return &link->segment->rings[from * link->num_ranks + to];
}

static void describe(const sim_nccl_message *m, bool receives, char *text, size_t size)
{
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg"};
    bool sums = sim_nccl_is_sum((sim_nccl_kind)m->kind);
    sim_nccl_kind kind =
        m->kind == SIM_NCCL_SEND && receives ? SIM_NCCL_RECV : (sim_nccl_kind)m->kind;
    snprintf(text, size, "%s of %llu %s%s%s", sim_nccl_call_name(kind),
             (unsigned long long)m->count, types[m->type].name, sums ? ", " : "",
             sums ? ops[m->op] : "");
}

static void check_message(const sim_nccl_link *link, const part *p, const sim_nccl_message *sent)
{
    const sim_nccl_message *own = &p->message;
    if (sent->kind == own->kind && sent->type == own->type && sent->op == own->op &&
        sent->count == own->count)
        return;
    char theirs[96], ours[96];
    describe(sent, false, theirs, sizeof theirs);
    describe(own, true, ours, sizeof ours);
    cudasim_fail("nccl: rank %d of a communicator of %d calls %s where rank %d calls %s", p->peer,
                 link->num_ranks, theirs, link->rank, ours);
}

static float combined(ncclRedOp_t op, float a, float b)
{
    if (op == ncclSum)
        return a + b;
    return a > b || a != a ? a : b;
}

static void combine_chunk(part *p, const sim_nccl_chunk *chunk)
{
    size_t first = p->moved / sizeof(float), n = chunk->bytes / sizeof(float);
    for (size_t i = 0; i < n; i++) {
        float value, *at = &(*p->sum)[first + i];
        memcpy(&value, chunk->data + i * sizeof value, sizeof value);
        *at = p->after == NONE ? value : combined((ncclRedOp_t)p->message.op, *at, value);
    }
}

static bool put_chunk(const sim_nccl_link *link, part *p)
{
    sim_nccl_ring *ring = ring_of(link, link->rank, p->peer);
    uint64_t put = ring->put.load(std::memory_order_relaxed);
    if (!p->begun && !p->early && ring->asked.load(std::memory_order_acquire) <= ring->begun)
        return false;
    ring->begun += !p->begun;
    p->begun = true;
    if (put - ring->taken.load(std::memory_order_acquire) == SIM_NCCL_SLOTS)
        return false;
    sim_nccl_chunk *chunk = &ring->slots[put % SIM_NCCL_SLOTS];
    chunk->message = p->message;
    chunk->bytes = (uint32_t)std::min(p->bytes - p->moved, (size_t)SIM_NCCL_CHUNK);
    memcpy(chunk->data, p->memory + p->moved, chunk->bytes);
    p->moved += chunk->bytes;
    p->put_at = put + 1;
    ring->put.store(put + 1, std::memory_order_release);
    return true;
}

static bool take_chunk(const sim_nccl_link *link, part *p)
{
    sim_nccl_ring *ring = ring_of(link, p->peer, link->rank);
    uint64_t taken = ring->taken.load(std::memory_order_relaxed);
    if (!p->begun)
        ring->asked.fetch_add(1, std::memory_order_release);
    p->begun = true;
    if (ring->put.load(std::memory_order_acquire) == taken)
        return false;
    const sim_nccl_chunk *chunk = &ring->slots[taken % SIM_NCCL_SLOTS];
    check_message(link, p, &chunk->message);
    if (p->does == PART_ADD)
        combine_chunk(p, chunk);
    else
        memcpy(p->memory + p->moved, chunk->data, chunk->bytes);
    p->moved += chunk->bytes;
    ring->taken.store(taken + 1, std::memory_order_release);
    return true;
}

static void combine_own(const sim_nccl_link *link, const part *p)
{
    for (size_t i = 0; i < p->bytes / sizeof(float); i++) {
        float value;
        memcpy(&value, p->own + i * sizeof value, sizeof value);
        if (link->num_ranks > 1)
            value = combined((ncclRedOp_t)p->message.op, (*p->sum)[i], value);
        memcpy(p->memory + i * sizeof value, &value, sizeof value);
    }
}

/* Moves a part on by at most a chunk; whether anything changed. */
static bool part_move(work *w, part *p)
{
    const sim_nccl_link *link = w->link.get();
    if (p->done || (p->after != NONE && !w->parts[(size_t)p->after].done) ||
        (p->previous != NONE && !w->parts[(size_t)p->previous].passed))
        return false;
    if (p->does == PART_SEND && p->passed) {
        p->done =
            ring_of(link, link->rank, p->peer)->taken.load(std::memory_order_acquire) >= p->put_at;
        return p->done;
    }
    if (p->does == PART_SEND || p->does == PART_RECV || p->does == PART_ADD) {
        if (!(p->does == PART_SEND ? put_chunk(link, p) : take_chunk(link, p)))
            return false;
        p->passed = p->moved == p->bytes;
        p->done = p->passed && p->does != PART_SEND;
        return true;
    }
    if (p->does == PART_OWN)
        combine_own(link, p);
    else if (p->memory != p->own)
        memcpy(p->memory, p->own, p->bytes);
    p->done = true;
    return true;
}

/* A walk over all parts from a random one on; whether anything changed. */
static bool parts_move(work *w)
{
    size_t num = w->parts.size(), first = sim_draw(num);
    bool moved = false;
    for (size_t i = 0; i < num; i++)
        moved = part_move(w, &w->parts[(first + i) % num]) || moved;
    return moved;
}

static bool step(work *w)
{
    sim_nccl_link *link = w->link.get();
    if (link->aborted)
        return true;
    if (link->stuck || link->num_done != w->number)
        return false;
    do {
        if (!parts_move(w))
            break;
        sim_note_move();
    } while (sim_draw(8) != 0);
    for (const part &p : w->parts)
        if (!p.done)
            return false;
    link->num_done++;
    num_works++;
    return true;
}

int64_t cudasim_nccl_works(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    return num_works;
}

std::function<bool()> sim_nccl_work(std::shared_ptr<sim_nccl_link> link,
                                    const std::vector<sim_nccl_call> &calls)
{
    auto w = std::make_shared<work>();
    w->number = link->num_made++;
    w->link = std::move(link);
    for (const sim_nccl_call &call : calls)
        add_call(w.get(), &call);
    return [w] { return step(w.get()); };
}
