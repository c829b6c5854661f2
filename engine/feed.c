#include "engine/feed.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/permute.h"
#include "io/token_file.h"

enum { MESSAGE_BYTES = 2048 };

/* A step in the queue. */
typedef struct feed_slot {
    int32_t *tokens, *labels; /* [M][B][T] */
    uint64_t *samples;        /* [M][B] */
    uint64_t first_sample, num_counted, first_epoch, last_epoch;
    tr_status status; /* when not TR_OK, the loader has ended with this slot */
} feed_slot;

/* Steps are numbered from 0 at open; step s stands in slot s mod num_slots. */
struct tr_feed {
    tr_feed_options options;
    tr_feed_info info;
    tr_token_file *file;
    int *microbatches;           /* [M] */
    unsigned char *storage;      /* of all slots and the row */
    int32_t *row;                /* [T + 1], the loader's */
    uint64_t key_epoch, key;     /* the loader's: the permutation key of one epoch */
    char message[MESSAGE_BYTES]; /* of the step that failed */

    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t filled, freed;
    uint64_t num_filled; /* steps read by the loader */
    uint64_t num_taken;  /* steps handed out */
    uint64_t num_freed;  /* steps whose slot may be used again: num_taken or num_taken - 1 */
    bool stop;

    int num_slots;
    feed_slot slots[];
};

static size_t num_rows(const tr_feed_options *options)
{
    return (size_t)options->num_microbatches * (size_t)options->micro_batch;
}

/* One more than are read ahead: the one in use. */
static int count_slots(const tr_feed_options *options)
{
    return options->prefetch + 1;
}

static size_t slot_bytes(const tr_feed_options *options)
{
    return num_rows(options) * (sizeof(uint64_t) + 2 * sizeof(int32_t) * (size_t)options->seq_len);
}

size_t tr_feed_bytes(const tr_feed_options *options)
{
    return (size_t)count_slots(options) * slot_bytes(options) +
           ((size_t)options->seq_len + 1) * sizeof(int32_t);
}

/* 64-bit numbers of all slots come first, so that everything is aligned. */
static void lay_out(tr_feed *feed)
{
    size_t rows = num_rows(&feed->options);
    size_t tokens = rows * (size_t)feed->options.seq_len;
    feed->storage = tr_alloc(1, tr_feed_bytes(&feed->options));
    uint64_t *samples = (uint64_t *)(void *)feed->storage;
    int32_t *next = (int32_t *)(void *)(samples + rows * (size_t)feed->num_slots);
    for (int i = 0; i < feed->num_slots; i++) {
        feed->slots[i].samples = samples + rows * (size_t)i;
        feed->slots[i].tokens = next;
        feed->slots[i].labels = next + tokens;
        next += 2 * tokens;
    }
    feed->row = next;
}

/* Where global sample number n of a shuffled run lies in the file. */
static uint64_t shuffled_index(tr_feed *feed, uint64_t n)
{
    uint64_t epoch = n / feed->info.num_samples;
    if (epoch != feed->key_epoch) {
        char name[24];
        snprintf(name, sizeof name, "%" PRIu64, epoch);
        feed->key = tr_hash_key(feed->options.seed, "data order", name);
        feed->key_epoch = epoch;
    }
    return tr_permute(feed->key, feed->info.num_samples, n % feed->info.num_samples);
}

static tr_status check_ids(const tr_feed *feed, uint64_t first)
{
    int32_t vocab = feed->options.vocab;
    for (int i = 0; i <= feed->options.seq_len; i++) {
        if (feed->row[i] < vocab)
            continue;
        tr_token_document document;
        uint64_t token = first + (uint64_t)i;
        tr_token_file_locate(feed->file, token, &document);
        return tr_fail(TR_ERR_DATA,
                       "%s: document %" PRIu64 ", position %" PRIu64
                       " in it: token id %d, but the model's vocabulary is %d (ids 0 to %d); the "
                       "file and model.vocab do not "
                       "belong together",
                       feed->info.path, document.index, token - document.first_token, feed->row[i],
                       vocab, vocab - 1);
    }
    return TR_OK;
}

static tr_status load_row(tr_feed *feed, uint64_t index, int32_t *tokens, int32_t *labels)
{
    size_t length = (size_t)feed->options.seq_len;
    uint64_t first = index * length;
    TR_TRY(tr_token_file_read(feed->file, first, length + 1, feed->row));
    TR_TRY(check_ids(feed, first));
    memcpy(tokens, feed->row, length * sizeof *tokens);
    memcpy(labels, feed->row + 1, length * sizeof *labels);
    return TR_OK;
}

static void pad_row(const tr_feed *feed, int32_t *tokens, int32_t *labels)
{
    for (int i = 0; i < feed->options.seq_len; i++) {
        tokens[i] = 0;
        labels[i] = -1;
    }
}

/* What a step is, apart from its tokens. */
static void describe(const tr_feed *feed, uint64_t step, feed_slot *slot)
{
    uint64_t batch = (uint64_t)feed->options.global_batch, samples = feed->info.num_samples;
    if (feed->options.shuffle) {
        slot->first_sample = feed->options.first_sample + step * batch;
        slot->num_counted = batch;
        slot->first_epoch = slot->first_sample / samples;
        slot->last_epoch = (slot->first_sample + batch - 1) / samples;
        return;
    }
    slot->first_sample = step % feed->info.pass_steps * batch;
    slot->num_counted = samples - slot->first_sample < batch ? samples - slot->first_sample : batch;
    slot->first_epoch = slot->last_epoch = step / feed->info.pass_steps;
}

static tr_status load_step(tr_feed *feed, uint64_t step, feed_slot *slot)
{
    const tr_feed_options *options = &feed->options;
    size_t length = (size_t)options->seq_len;
    describe(feed, step, slot);
    size_t rows = (size_t)options->micro_batch;
    for (size_t r = 0; r < num_rows(options); r++) {
        uint64_t n = slot->first_sample + (uint64_t)feed->microbatches[r / rows] * rows + r % rows;
        int32_t *tokens = slot->tokens + r * length, *labels = slot->labels + r * length;
        slot->samples[r] = n;
        if (options->shuffle)
            TR_TRY(load_row(feed, shuffled_index(feed, n), tokens, labels));
        else if (n < feed->info.num_samples)
            TR_TRY(load_row(feed, n, tokens, labels));
        else
            pad_row(feed, tokens, labels);
    }
    return TR_OK;
}

/* Waits until the slot of `step` is free; false when the feed is being closed. */
static bool await_slot(tr_feed *feed, uint64_t step)
{
    pthread_mutex_lock(&feed->mutex);
    while (!feed->stop && step - feed->num_freed >= (uint64_t)feed->num_slots)
        pthread_cond_wait(&feed->freed, &feed->mutex);
    bool go_on = !feed->stop;
    pthread_mutex_unlock(&feed->mutex);
    return go_on;
}

static void *loader_main(void *context)
{
    tr_feed *feed = context;
    tr_status status = TR_OK;
    for (uint64_t step = 0; status == TR_OK && await_slot(feed, step); step++) {
        feed_slot *slot = &feed->slots[step % (uint64_t)feed->num_slots];
        status = load_step(feed, step, slot);
        if (status != TR_OK)
            snprintf(feed->message, sizeof feed->message, "%s", tr_error_message());
        slot->status = status;
        pthread_mutex_lock(&feed->mutex);
        feed->num_filled++;
        pthread_cond_signal(&feed->filled);
        pthread_mutex_unlock(&feed->mutex);
    }
    return NULL;
}

static tr_status start_loader(tr_feed *feed)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old); /* the new thread inherits it */
    int errnum = pthread_create(&feed->thread, NULL, loader_main, feed);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (errnum != 0)
        return tr_fail_errno(TR_ERR_MEMORY, errnum, "cannot start the data loader's thread");
    feed->thread_runs = true;
    return TR_OK;
}

static tr_status open_data(tr_feed *feed)
{
    const tr_feed_options *options = &feed->options;
    TR_TRY(tr_token_file_open(&feed->file, options->path));
    const tr_token_info *file = tr_token_file_info(feed->file);
    uint64_t length = (uint64_t)options->seq_len, batch = (uint64_t)options->global_batch;
    feed->info.path = file->path;
    feed->options.path = file->path; /* the caller's need not last */
    feed->info.num_tokens = file->num_tokens;
    if (file->num_tokens < length + 1)
        return tr_fail(TR_ERR_DATA,
                       "%s: has %" PRIu64 " tokens, but one sequence needs %" PRIu64
                       " (train.seq_len %d, and the label of the last); use more data or a shorter "
                       "train.seq_len",
                       file->path, file->num_tokens, length + 1, options->seq_len);
    feed->info.num_samples = (file->num_tokens - 1) / length;
    if (!options->shuffle) {
        uint64_t all = (feed->info.num_samples - 1) / batch + 1;
        feed->info.pass_steps =
            options->pass_steps == 0 || options->pass_steps > all ? all : options->pass_steps;
    }
    return TR_OK;
}

static void check_options(const tr_feed_options *options)
{
    TR_ASSERT(options->seq_len > 0 && options->micro_batch > 0 && options->global_batch > 0);
    TR_ASSERT(options->global_batch % options->micro_batch == 0);
    TR_ASSERT(options->num_microbatches > 0);
    for (int m = 0; m < options->num_microbatches; m++)
        TR_ASSERT(options->microbatches[m] >= 0 &&
                  options->microbatches[m] < options->global_batch / options->micro_batch);
    TR_ASSERT(options->prefetch >= 2 && options->vocab > 0);
    TR_ASSERT(options->shuffle || options->first_sample == 0);
}

tr_status tr_feed_open(tr_feed **out, const tr_feed_options *options)
{
    check_options(options);
    int num_slots = count_slots(options);
    tr_feed *feed = tr_alloc(1, sizeof *feed + (size_t)num_slots * sizeof(feed_slot));
    feed->options = *options;
    feed->num_slots = num_slots;
    feed->microbatches = TR_NEW_ARRAY(int, (size_t)options->num_microbatches);
    memcpy(feed->microbatches, options->microbatches,
           (size_t)options->num_microbatches * sizeof(int));
    feed->options.microbatches = feed->microbatches; /* the caller's need not last */
    feed->key_epoch = UINT64_MAX;
    pthread_mutex_init(&feed->mutex, NULL);
    pthread_cond_init(&feed->filled, NULL);
    pthread_cond_init(&feed->freed, NULL);
    tr_status status;
    TR_TRY_GOTO(status, open_data(feed), close_feed);
    lay_out(feed);
    TR_TRY_GOTO(status, start_loader(feed), close_feed);
    *out = feed;
    return TR_OK;

close_feed:
    tr_feed_close(feed);
    return status;
}

void tr_feed_close(tr_feed *feed)
{
    if (feed == NULL)
        return;
    if (feed->thread_runs) {
        pthread_mutex_lock(&feed->mutex);
        feed->stop = true;
        pthread_cond_signal(&feed->freed);
        pthread_mutex_unlock(&feed->mutex);
        pthread_join(feed->thread, NULL);
    }
    pthread_cond_destroy(&feed->freed);
    pthread_cond_destroy(&feed->filled);
    pthread_mutex_destroy(&feed->mutex);
    tr_token_file_close(feed->file);
    tr_free(feed->storage);
    tr_free(feed->microbatches);
    tr_free(feed);
}

/* Gives the last batch's slot back and waits for the next step's; the seconds it waited. */
static double take_step(tr_feed *feed)
{
    double waited = 0;
    pthread_mutex_lock(&feed->mutex);
    if (feed->num_freed < feed->num_taken) {
        feed->num_freed = feed->num_taken;
        pthread_cond_signal(&feed->freed);
    }
    if (feed->num_filled <= feed->num_taken) {
        double start = tr_clock_seconds();
        while (feed->num_filled <= feed->num_taken)
            pthread_cond_wait(&feed->filled, &feed->mutex);
        waited = tr_clock_seconds() - start;
    }
    pthread_mutex_unlock(&feed->mutex);
    return waited;
}

tr_status tr_feed_next(tr_feed *feed, tr_batch *batch)
{
    double waited = take_step(feed);
    const feed_slot *slot = &feed->slots[feed->num_taken % (uint64_t)feed->num_slots];
    if (slot->status != TR_OK)
        return tr_fail(slot->status, "%s", feed->message);
    feed->num_taken++; /* this thread's own; the loader reads num_freed only */
    *batch = (tr_batch){
        .tokens = slot->tokens,
        .labels = slot->labels,
        .samples = slot->samples,
        .first_sample = slot->first_sample,
        .num_counted = slot->num_counted,
        .first_epoch = slot->first_epoch,
        .last_epoch = slot->last_epoch,
        .wait_s = waited,
    };
    return TR_OK;
}

const tr_feed_info *tr_feed_get_info(const tr_feed *feed)
{
    return &feed->info;
}

uint64_t tr_feed_fingerprint(const tr_feed *feed)
{
    return tr_token_file_fingerprint(feed->file);
}
