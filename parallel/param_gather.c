#include "parallel/param_gather.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels/copy_list.h"
#include "parallel/shard_map.h"

/* Counts the pieces' intervals; returns the largest of a rank's, and the largest piece, in elements. */
static void pieces_count(tr_param_gather *gather, int64_t *max_source, int64_t *max_total)
{
    *max_source = *max_total = 0;
    for (int p = 0; p < gather->num_pieces; p++) {
        int64_t total = 0;
        for (int r = 0; r < gather->size; r++) {
            int64_t *count = &gather->counts[p * gather->size + r];
            for (int i = gather->piece_first[p]; i < gather->piece_first[p + 1]; i++) {
                int64_t begin, end;
                tr_shard_interval(gather->tensors[i].count, gather->size, r, &begin, &end);
                *count += end - begin;
            }
            total += *count;
            if (*count > *max_source)
                *max_source = *count;
        }
        if (total > *max_total)
            *max_total = total;
    }
}

void tr_param_gather_init(tr_param_gather *gather, const tr_gather_tensor *tensors,
                          const int *piece_first, int num_pieces, int size, int rank,
                          size_t item_bytes, bool own_sources, tr_device *device, tr_arena *comm,
                          tr_arena *workspace)
{
    *gather = (tr_param_gather){.device = device,
                                .size = size,
                                .rank = rank,
                                .item_bytes = item_bytes,
                                .num_pieces = num_pieces};
    int num_tensors = piece_first[num_pieces];
    gather->piece_first = TR_NEW_ARRAY(int, (size_t)num_pieces + 1);
    memcpy(gather->piece_first, piece_first, ((size_t)num_pieces + 1) * sizeof *piece_first);
    gather->tensors = TR_NEW_ARRAY(tr_gather_tensor, (size_t)num_tensors + 1);
    memcpy(gather->tensors, tensors, (size_t)num_tensors * sizeof *tensors);
    gather->counts = TR_NEW_ARRAY(int64_t, (size_t)num_pieces * (size_t)size + 1);
    int64_t max_source, max_total;
    pieces_count(gather, &max_source, &max_total);
    for (int s = 0; own_sources && s < TR_GATHER_SOURCES; s++)
        gather->sources[s] = tr_arena_alloc(comm, (size_t)max_source * item_bytes);
    for (int g = 0; g < TR_GATHER_AHEAD; g++)
        gather->gathered[g] = tr_arena_alloc(workspace, (size_t)max_total * item_bytes);
}

void tr_param_gather_clear(tr_param_gather *gather)
{
    tr_free(gather->piece_first);
    tr_free(gather->tensors);
    tr_free(gather->counts);
    *gather = (tr_param_gather){0};
}

/* Posts the gather of the sequence's next piece. */
static tr_status next_post(tr_param_gather *gather)
{
    int number = gather->num_posted, piece = gather->sequence[number];
    int slot = number % TR_GATHER_SOURCES;
    const void *source;
    TR_TRY(tr_event_wait(&gather->events[slot]));
    TR_TRY(gather->source(gather->context, piece, gather->sources[slot], &source));
    tr_group_label(gather->group, "piece", piece);
    TR_TRY(tr_group_all_gather(gather->group, source, &gather->counts[piece * gather->size],
                               gather->item_bytes, gather->gathered[number % TR_GATHER_AHEAD],
                               &gather->events[slot]));
    gather->num_posted++;
    if (gather->num_posted - gather->num_taken > gather->most_in_flight)
        gather->most_in_flight = gather->num_posted - gather->num_taken;
    return TR_OK;
}

/* As many as may be under way. */
static tr_status ahead_post(tr_param_gather *gather)
{
    while (gather->ahead && gather->num_posted < gather->length &&
           gather->num_posted < gather->num_taken + TR_GATHER_AHEAD)
        TR_TRY(next_post(gather));
    return TR_OK;
}

tr_status tr_param_gather_begin(tr_param_gather *gather, const int *sequence, int length,
                                bool ahead)
{
    TR_ASSERT(gather->num_taken == gather->length);
    gather->sequence = sequence;
    gather->length = length;
    gather->ahead = ahead;
    gather->num_posted = gather->num_taken = 0;
    return ahead_post(gather);
}

/* From the ranks' intervals, rank by rank, to the tensors. */
static tr_status piece_copy(const tr_param_gather *gather, int piece, const unsigned char *gathered)
{
    tr_copy_list list;
    tr_copy_list_begin(&list, gather->device);
    for (int r = 0; r < gather->size; r++)
        for (int i = gather->piece_first[piece]; i < gather->piece_first[piece + 1]; i++) {
            const tr_gather_tensor *tensor = &gather->tensors[i];
            int64_t begin, end;
            tr_shard_interval(tensor->count, gather->size, r, &begin, &end);
            size_t bytes = (size_t)(end - begin) * gather->item_bytes;
            TR_TRY(tr_copy_list_add(
                &list, (unsigned char *)tensor->dst + (size_t)begin * gather->item_bytes, gathered,
                bytes));
            gathered += bytes;
        }
    return tr_copy_list_flush(&list);
}

tr_status tr_param_gather_take(tr_param_gather *gather, int piece)
{
    int number = gather->num_taken;
    if (number == gather->length || gather->sequence[number] != piece)
        return tr_fail(TR_ERR_INTERNAL,
                       "gathering parameters: piece %d is asked for, but number %d of %d in the "
                       "order that was announced is piece %d",
                       piece, number, gather->length,
                       number < gather->length ? gather->sequence[number] : -1);
    if (gather->num_posted == number)
        TR_TRY(next_post(gather));
    TR_TRY(tr_event_wait_result(&gather->events[number % TR_GATHER_SOURCES]));
    TR_TRY(piece_copy(gather, piece, gather->gathered[number % TR_GATHER_AHEAD]));
    gather->num_taken++;
    return ahead_post(gather);
}

tr_status tr_param_gather_end(tr_param_gather *gather)
{
    if (gather->num_taken < gather->length)
        return tr_fail(TR_ERR_INTERNAL,
                       "gathering parameters: only %d of %d announced pieces were taken",
                       gather->num_taken, gather->length);
    for (int s = 0; s < TR_GATHER_SOURCES; s++)
        TR_TRY(tr_event_wait(&gather->events[s]));
    return TR_OK;
}

int64_t tr_param_gather_bytes_sent(const tr_param_gather *gather, int piece)
{
    return gather->counts[piece * gather->size + gather->rank] * (int64_t)gather->item_bytes *
           (gather->size - 1);
}
