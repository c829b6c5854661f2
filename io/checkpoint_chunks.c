#include "io/checkpoint_chunks.h"

#include <string.h>

#include "io/checkpoint_read_int.h"

enum { WORD_BITS = 64 };

int64_t tr_checkpoint_num_chunks(const tr_checkpoint *checkpoint)
{
    return checkpoint->first_chunk[checkpoint->manifest.num_files];
}

/* The file of a chunk: the last one whose first chunk is not behind it. */
static int shard_of(const tr_checkpoint *checkpoint, int64_t number)
{
    int low = 0, high = checkpoint->manifest.num_files;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (checkpoint->first_chunk[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static const tr_shard_box *box_of(const tr_shard *shard, int chunk)
{
    int low = 0, high = tr_shard_num_boxes(shard);
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (tr_shard_get_box(shard, middle)->first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return tr_shard_get_box(shard, low);
}

static const tr_shard_chunk *table_row(const tr_checkpoint *checkpoint, int64_t number)
{
    int shard = shard_of(checkpoint, number);
    return tr_shard_get_chunk(checkpoint->shards[shard],
                              (int)(number - checkpoint->first_chunk[shard]));
}

int tr_checkpoint_largest_chunk(const tr_checkpoint *checkpoint)
{
    int most = 0;
    for (int s = 0; s < checkpoint->manifest.num_files; s++)
        for (int c = 0; c < tr_shard_num_chunks(checkpoint->shards[s]); c++) {
            int bytes = tr_shard_get_chunk(checkpoint->shards[s], c)->raw_bytes;
            most = bytes > most ? bytes : most;
        }
    return most;
}

void tr_checkpoint_get_chunk(const tr_checkpoint *checkpoint, int64_t number,
                             tr_numbered_chunk *chunk)
{
    int shard = shard_of(checkpoint, number);
    const tr_shard *tables = checkpoint->shards[shard];
    int in_file = (int)(number - checkpoint->first_chunk[shard]);
    const tr_shard_box *box = box_of(tables, in_file);
    const tr_shard_chunk *row = tr_shard_get_chunk(tables, in_file);
    chunk->tensor = box->tensor;
    chunk->kind = box->kind;
    chunk->num_pieces =
        tr_shard_chunk_pieces(tables, box, in_file - box->first_chunk, chunk->pieces);
    chunk->raw_bytes = row->raw_bytes;
    chunk->stored_bytes = row->stored_bytes;
}

/* ---- sets ---- */

size_t tr_checkpoint_set_words(const tr_checkpoint *checkpoint)
{
    return (size_t)(tr_checkpoint_num_chunks(checkpoint) / WORD_BITS + 1);
}

static void box_mark(const tr_checkpoint *checkpoint, const tr_placed_box *placed,
                     const tr_box *wanted, int num_wanted, tr_chunk_word *set)
{
    const tr_shard *tables = checkpoint->shards[placed->shard];
    tr_box pieces[TR_BOX_MAX_PIECES];
    for (int k = 0; k < placed->box->num_chunks; k++) {
        int num_pieces = tr_shard_chunk_pieces(tables, placed->box, k, pieces);
        int64_t number = checkpoint->first_chunk[placed->shard] + placed->box->first_chunk + k;
        if (tr_boxes_meet(wanted, num_wanted, pieces, num_pieces))
            atomic_fetch_or_explicit(&set[number / WORD_BITS], (uint64_t)1 << (number % WORD_BITS),
                                     memory_order_relaxed);
    }
}

void tr_checkpoint_mark(const tr_checkpoint *checkpoint, int tensor, tr_shard_kind kind,
                        const tr_box *wanted, int num_wanted, tr_chunk_word *set)
{
    int end = tr_checkpoint_lower_bound(checkpoint, tensor, (int)kind + 1);
    for (int i = tr_checkpoint_lower_bound(checkpoint, tensor, (int)kind); i < end; i++)
        if (tr_boxes_meet(wanted, num_wanted, &checkpoint->boxes[i].box->box, 1))
            box_mark(checkpoint, &checkpoint->boxes[i], wanted, num_wanted, set);
}

/* First marked number in [number, end), or -1. */
static int64_t find_marked(const tr_chunk_word *set, int64_t number, int64_t end)
{
    while (number < end) {
        uint64_t word = atomic_load_explicit(&set[number / WORD_BITS], memory_order_relaxed) >>
                        (number % WORD_BITS);
        if (word != 0) {
            number += __builtin_ctzll(word);
            return number < end ? number : -1;
        }
        number += WORD_BITS - number % WORD_BITS;
    }
    return -1;
}

tr_chunk_sums tr_checkpoint_set_sums(const tr_checkpoint *checkpoint, const tr_chunk_word *set)
{
    int64_t end = tr_checkpoint_num_chunks(checkpoint);
    tr_chunk_sums sums = {0, 0};
    for (int64_t c = find_marked(set, 0, end); c >= 0; c = find_marked(set, c + 1, end)) {
        const tr_shard_chunk *row = table_row(checkpoint, c);
        sums.raw += row->raw_bytes;
        sums.stored += row->stored_bytes;
    }
    return sums;
}

/* ---- portions ---- */

bool tr_checkpoint_portion_next(const tr_checkpoint *checkpoint, const tr_chunk_word *set,
                                int64_t room, tr_chunk_portion *portion)
{
    int64_t end = tr_checkpoint_num_chunks(checkpoint), bytes = 0;
    int64_t first = find_marked(set, portion->end, end);
    if (first < 0)
        return false;
    *portion = (tr_chunk_portion){first, first};
    for (int64_t c = first; c >= 0; c = find_marked(set, c + 1, end)) {
        bytes += table_row(checkpoint, c)->raw_bytes;
        if (bytes > room && c > first)
            break;
        portion->end = c + 1;
    }
    return true;
}

int64_t tr_chunk_portion_find(const tr_chunk_portion *portion, const tr_chunk_word *set,
                              int64_t number)
{
    return find_marked(set, number, portion->end);
}

/* ---- readers ---- */

void tr_chunk_reader_init(tr_chunk_reader *reader, tr_checkpoint *checkpoint)
{
    *reader = (tr_chunk_reader){
        .checkpoint = checkpoint, .scratch = tr_shard_scratch_create(), .shard = -1};
}

/* A file is open as long as some reader is at it. */
static void shard_leave(tr_chunk_reader *reader)
{
    tr_checkpoint *checkpoint = reader->checkpoint;
    if (reader->shard < 0)
        return;
    pthread_mutex_lock(&checkpoint->lock);
    if (--checkpoint->num_users[reader->shard] == 0)
        tr_shard_rest(checkpoint->shards[reader->shard]);
    pthread_mutex_unlock(&checkpoint->lock);
    reader->shard = -1;
}

void tr_chunk_reader_clear(tr_chunk_reader *reader)
{
    if (reader->checkpoint == NULL)
        return;
    shard_leave(reader);
    tr_shard_scratch_destroy(reader->scratch);
    *reader = (tr_chunk_reader){0};
}

tr_status tr_chunk_reader_turn(tr_chunk_reader *reader, int index, tr_shard **shard)
{
    tr_checkpoint *checkpoint = reader->checkpoint;
    *shard = checkpoint->shards[index];
    if (reader->shard == index)
        return TR_OK;
    shard_leave(reader);
    pthread_mutex_lock(&checkpoint->lock);
    tr_status status = tr_shard_wake(*shard);
    if (status == TR_OK) {
        checkpoint->num_users[index]++;
        reader->shard = index;
    }
    pthread_mutex_unlock(&checkpoint->lock);
    return status;
}

tr_status tr_chunk_portion_read(tr_chunk_reader *reader, const tr_chunk_word *set,
                                const tr_chunk_portion *portion, float *dst)
{
    const tr_checkpoint *checkpoint = reader->checkpoint;
    for (int64_t c = tr_chunk_portion_find(portion, set, portion->begin); c >= 0;
         c = tr_chunk_portion_find(portion, set, c + 1)) {
        int index = shard_of(checkpoint, c);
        int in_file = (int)(c - checkpoint->first_chunk[index]);
        tr_shard *shard;
        TR_TRY(tr_chunk_reader_turn(reader, index, &shard));
        const tr_shard_chunk *row = tr_shard_get_chunk(shard, in_file);
        reader->bytes_read += row->stored_bytes;
        if (dst == NULL) {
            TR_TRY(tr_shard_check_chunk(shard, in_file, reader->scratch));
            continue;
        }
        TR_TRY(tr_shard_decode_chunk(shard, in_file, reader->scratch, dst));
        dst += row->raw_bytes / (int)sizeof(float);
    }
    return TR_OK;
}
