#include "engine/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/run_int.h"
#include "io/file_commit.h"
#include "io/trace_json.h"
#include "parallel/clock_offset.h"

/* ---- which steps ---- */

/* log.trace, checked when it was read: "none", or steps and ranges of steps with commas. */
static bool traces_step(const tr_config *cfg, int64_t step)
{
    const char *at = cfg->log.trace;
    while (*at >= '0' && *at <= '9') {
        char *end;
        int64_t first = strtoll(at, &end, 10), last = first;
        if (*end == '-')
            last = strtoll(end + 1, &end, 10);
        if (step >= first && step <= last)
            return true;
        at = *end == ',' ? end + 1 : end;
    }
    return false;
}

bool tr_trace_any(const tr_config *cfg)
{
    return cfg->log.trace[0] >= '0' && cfg->log.trace[0] <= '9';
}

/* ---- memory ---- */

/* Events of a layer in a microbatch, forward and backward: its own; each operation of the tensor group with a wait or two; the
 * parameters' gathers and the gradients' reductions. More than there are, so that a step fits; what does not is said in the trace. */
enum {
    LAYER_EVENTS = 8,
    LAYER_TENSOR_EVENTS = 96,
    LAYER_DATA_EVENTS = 24,
    ACTION_EVENTS = 24,
    STEP_EVENTS = 512
};

static int64_t events_most(const tr_config *cfg, const tr_mesh *mesh)
{
    int64_t microbatches = cfg->derived.microbatches / mesh->data_size, layers = 0;
    for (int c = 0; c < cfg->derived.num_chunks; c++)
        if (tr_chunk_stage(cfg->derived.placement, mesh->pipeline_size, c) == mesh->pipeline)
            layers += cfg->derived.chunk_layers[c] + 2; /* the ends of the model */
    int64_t per_layer = LAYER_EVENTS + (mesh->tensor_size > 1 ? LAYER_TENSOR_EVENTS : 0) +
                        (mesh->data_size > 1 ? LAYER_DATA_EVENTS : 0);
    return STEP_EVENTS +
           microbatches * (layers * per_layer + cfg->parallel.virtual_ * ACTION_EVENTS);
}

void tr_trace_layout(tr_trace_ring *ring, const tr_config *cfg, const tr_mesh *mesh,
                     tr_arena *arena)
{
    *ring = (tr_trace_ring){0};
    if (!tr_trace_any(cfg))
        return;
    int64_t capacity = events_most(cfg, mesh);
    tr_trace_ring_init(ring, tr_arena_alloc(arena, (size_t)capacity * sizeof(tr_trace_event)),
                       capacity);
}

/* ---- around a step ---- */

tr_status tr_trace_step_begin(tr_run *run)
{
    tr_tracer *tracer = &run->tracer;
    tracer->is_traced = traces_step(&run->cfg, run->step + 1);
    if (!tracer->is_traced) {
        tr_trace_lanes_stop(&run->saver.trace);
        return TR_OK;
    }
    if (run->all != NULL)
        TR_TRY(tr_group_clock_offset(run->all, &tracer->clock_offset, &tracer->clock_error));
    if (tracer->origin == 0)
        tracer->origin = tr_clock_seconds();
    tr_trace_ring_start(&run->stage.trace);
    tr_trace_lanes_start(&run->saver.trace);
    return TR_OK;
}

/* ---- from all ranks to rank 0 ---- */

typedef struct rank_header {
    int64_t num_events, num_lost;
    double clock_offset, clock_error;
    int num_tracks;
    char tracks[TR_TRACE_TRACKS][TR_TRACE_NAME];
} rank_header;

enum { PIECE_EVENTS = 128, LANES = 100 };

/* writer: what those that write checkpoints did. */
static rank_header header_of(const tr_run *run, const tr_trace_ring *writer)
{
    const tr_trace_ring *ring = &run->stage.trace;
    rank_header header = {.num_events = tr_trace_ring_count(ring) + tr_trace_ring_count(writer),
                          .num_lost = tr_trace_ring_num_lost(ring) + tr_trace_ring_num_lost(writer),
                          .clock_offset = run->tracer.clock_offset,
                          .clock_error = run->tracer.clock_error,
                          .num_tracks = ring->num_tracks};
    for (int i = 0; i < ring->num_tracks; i++)
        strncpy(header.tracks[i], ring->tracks[i], TR_TRACE_NAME - 1);
    return header;
}

/* What rank 0 knows while it writes the events of one rank. */
typedef struct rank_writer {
    tr_trace_file *file;
    int rank;
    double origin; /* on rank 0's clock */
    const rank_header *header;
    bool named[TR_TRACE_TRACKS][LANES];
} rank_writer;

/* Threads are numbered in the order in which they are to be seen. */
static int thread_of(int track, int lane)
{
    return track <= TR_TRACE_COMPUTE ? 1 + track : track * LANES + lane;
}

static void thread_name(rank_writer *writer, int track, int lane)
{
    if (writer->named[track][lane])
        return;
    writer->named[track][lane] = true;
    char
        name[TR_TRACE_TRACKS * TR_TRACE_NAME + 32]; /* the compiler takes all tracks for one text */
    const char *text = writer->header->tracks[track];
    if (track <= TR_TRACE_COMPUTE || (track == TR_TRACE_WRITER && lane == 0))
        snprintf(name, sizeof name, "%s", text);
    else if (track == TR_TRACE_WRITER)
        snprintf(name, sizeof name, "%s: encoder %d", text, lane + 1);
    else if (lane == TR_GROUP_LANE_WAITS)
        snprintf(name, sizeof name, "%s: waits", text);
    else if (lane == TR_GROUP_LANE_SMALL)
        snprintf(name, sizeof name, "%s: small operations", text);
    else if (lane < TR_GROUP_LANE_MOVES)
        snprintf(name, sizeof name, "%s: sums %d", text, lane - TR_GROUP_LANE_SUMS + 1);
    else
        snprintf(name, sizeof name, "%s: moves %d", text, lane - TR_GROUP_LANE_MOVES + 1);
    tr_trace_file_thread(writer->file, writer->rank, thread_of(track, lane), name);
}

/* "0F3" for an action of the schedule, "reduce_scatter bucket 2", "layer 5", "encode 7". */
static void name_format(const tr_trace_event *event, char *text, size_t bytes)
{
    if (event->chunk >= 0)
        snprintf(text, bytes, "%d%s%d", event->chunk, event->name, event->microbatch);
    else if (event->label[0] != '\0')
        snprintf(text, bytes, "%s %s %d", event->name, event->label, event->number);
    else if (event->number >= 0)
        snprintf(text, bytes, "%s %d", event->name, event->number);
    else
        snprintf(text, bytes, "%s", event->name);
}

static void arg_put(tr_trace_slice *slice, const char *name, int64_t value)
{
    if (value >= 0)
        slice->args[slice->num_args++] = (tr_trace_arg){name, value};
}

/* A transfer's arrow leaves the sender's slice at the post and enters the receiver's at its end. */
static void arrow_write(const rank_writer *writer, const tr_trace_event *event, int thread,
                        double begin, double end)
{
    bool is_send = strcmp(event->name, "send") == 0;
    if (!is_send && strcmp(event->name, "recv") != 0)
        return;
    int64_t track_and_ends[] = {(int64_t)event->track, is_send ? writer->rank : event->peer,
                                is_send ? event->peer : writer->rank, event->sequence};
    uint64_t id = tr_hash64(track_and_ends, sizeof track_and_ends, 0) >> 16;
    tr_trace_file_arrow(writer->file, is_send, writer->rank, thread, is_send ? begin : end, id);
}

static void event_write(rank_writer *writer, const tr_trace_event *event)
{
    char name[3 * TR_TRACE_NAME];
    double start = writer->origin + writer->header->clock_offset;
    bool moves_bytes = event->track > TR_TRACE_COMPUTE;
    name_format(event, name, sizeof name);
    tr_trace_slice slice = {.process = writer->rank,
                            .thread = thread_of(event->track, event->lane),
                            .name = name,
                            .begin = (event->begin - start) * 1e6,
                            .end = (event->end - start) * 1e6};
    arg_put(&slice, "chunk", event->chunk);
    arg_put(&slice, "microbatch", event->microbatch);
    arg_put(&slice, "peer", event->peer);
    arg_put(&slice, "sequence", event->sequence);
    arg_put(&slice, "bytes", moves_bytes ? event->bytes : -1);
    thread_name(writer, event->track, event->lane);
    tr_trace_file_slice(writer->file, &slice);
    if (event->track > TR_TRACE_WRITER && event->lane >= TR_GROUP_LANE_MOVES)
        arrow_write(writer, event, slice.thread, slice.begin, slice.end);
}

static void rank_write_begin(const tr_run *run, rank_writer *writer)
{
    char name[128];
    tr_mesh mesh = tr_config_mesh(&run->cfg, writer->rank);
    snprintf(name, sizeof name, "rank %d (data %d, tensor %d, pipeline %d)%s", writer->rank,
             mesh.data, mesh.tensor, mesh.pipeline,
             writer->header->num_lost > 0 ? ", its first events did not fit" : "");
    tr_trace_file_process(writer->file, writer->rank, name);
}

/* All ranks hand the events of one of them on, in pieces; rank 0 (writer not NULL) writes them. */
static tr_status rank_gather(tr_run *run, int rank, const tr_trace_ring *by_writer,
                             tr_trace_file *file)
{
    tr_trace_event piece[PIECE_EVENTS];
    const tr_trace_ring *ring = &run->stage.trace;
    int64_t num_first = tr_trace_ring_count(ring);
    bool is_mine = run->mesh.rank == rank;
    rank_header header = is_mine ? header_of(run, by_writer) : (rank_header){0};
    if (run->all != NULL)
        TR_TRY(tr_group_broadcast(run->all, rank, &header, sizeof header));
    rank_writer writer = {
        .file = file, .rank = rank, .origin = run->tracer.origin, .header = &header};
    if (file != NULL)
        rank_write_begin(run, &writer);
    for (int64_t first = 0; first < header.num_events; first += PIECE_EVENTS) {
        int64_t left = header.num_events - first;
        int count = left < PIECE_EVENTS ? (int)left : PIECE_EVENTS;
        for (int i = 0; is_mine && i < count; i++)
            piece[i] = first + i < num_first ? *tr_trace_ring_at(ring, first + i)
                                             : *tr_trace_ring_at(by_writer, first + i - num_first);
        if (run->all != NULL)
            TR_TRY(tr_group_broadcast(run->all, rank, piece, (size_t)count * sizeof piece[0]));
        for (int i = 0; file != NULL && i < count; i++)
            event_write(&writer, &piece[i]);
    }
    return TR_OK;
}

/* ---- the file ---- */

static void give_up(tr_tracer *tracer)
{
    tracer->failed = true;
    tr_log_warning("%s; training goes on without a trace", tr_error_message());
    tr_trace_file_close(tracer->file);
    tracer->file = NULL;
}

static void file_open(tr_run *run)
{
    tr_tracer *tracer = &run->tracer;
    if (run->mesh.rank != 0 || tracer->file != NULL || tracer->failed)
        return;
    char *path = tr_format("%s/trace.json", run->cfg.run.dir);
    tr_status status = tr_folders_make(run->cfg.run.dir);
    if (status == TR_OK)
        status = tr_trace_file_create(&tracer->file, path);
    tr_free(path);
    if (status != TR_OK)
        give_up(tracer);
}

tr_status tr_trace_step_end(tr_run *run, bool *written)
{
    tr_tracer *tracer = &run->tracer;
    *written = false;
    if (!tracer->is_traced)
        return TR_OK;
    tr_trace_ring_stop(&run->stage.trace);
    const tr_trace_ring *by_writer = tr_trace_lanes_cut(&run->saver.trace);
    file_open(run);
    int num_ranks = run->mesh.data_size * run->mesh.tensor_size * run->mesh.pipeline_size;
    for (int rank = 0; rank < num_ranks; rank++)
        TR_TRY(rank_gather(run, rank, by_writer, tracer->file));
    if (tracer->file != NULL && tr_trace_file_flush(tracer->file) != TR_OK)
        give_up(tracer);
    *written = tracer->file != NULL;
    return TR_OK;
}

void tr_trace_close(tr_tracer *tracer)
{
    tr_trace_file_close(tracer->file);
    *tracer = (tr_tracer){0};
}
