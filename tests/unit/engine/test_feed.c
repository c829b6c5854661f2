/* engine/feed: how the stream is cut, in which order samples come, on which rank, and the loader
 * thread. */
#include "engine/feed.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/permute.h"
#include "io/token_file.h"
#include "io/token_write.h"
#include "tests/unit/io/io_scratch.h"

static _Atomic int num_heap_calls, num_reads;
static _Atomic double read_delay_s;
static uint64_t read_log[1 << 16]; /* stream position of each read, in order */

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
tr_status __real_tr_token_file_read(const tr_token_file *file, uint64_t first, uint64_t count,
                                    int32_t *dst);
tr_status __wrap_tr_token_file_read(const tr_token_file *file, uint64_t first, uint64_t count,
                                    int32_t *dst);

void *__wrap_malloc(size_t size)
{
    num_heap_calls++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    num_heap_calls++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    num_heap_calls++;
    return __real_realloc(pointer, size);
}

tr_status __wrap_tr_token_file_read(const tr_token_file *file, uint64_t first, uint64_t count,
                                    int32_t *dst)
{
    tr_clock_sleep(read_delay_s);
    read_log[num_reads % (1 << 16)] = first;
    num_reads++;
    return __real_tr_token_file_read(file, first, count, dst);
}

/* Tokens 0, 1, 2, ... in documents of 10. */
static void write_counting(const char *name, int32_t num_tokens)
{
    tr_token_writer *writer;
    const tr_token_writer_options options = {scratch_path(name), 1 << 20, TR_TOKEN_STORE_AUTO};
    assert_int_equal(tr_token_writer_open(&writer, &options), TR_OK);
    for (int32_t i = 0; i < num_tokens; i++) {
        assert_int_equal(tr_token_writer_append(writer, &i, 1), TR_OK);
        if (i % 10 == 9 || i == num_tokens - 1)
            assert_int_equal(tr_token_writer_end_document(writer), TR_OK);
    }
    assert_int_equal(tr_token_writer_commit(writer), TR_OK);
    tr_token_writer_close(writer);
}

/* 0, 1, 2, ... */
static const int *numbers_from(int first)
{
    static int numbers[256];
    for (int i = 0; i < 256; i++)
        numbers[i] = i;
    return numbers + first;
}

static tr_feed_options one_rank(const char *name, int seq_len, int global_batch)
{
    return (tr_feed_options){
        .path = scratch_path(name),
        .seq_len = seq_len,
        .micro_batch = 1,
        .global_batch = global_batch,
        .microbatches = numbers_from(0),
        .num_microbatches = global_batch,
        .vocab = 1 << 20,
        .prefetch = 2,
        .shuffle = true,
        .seed = 7,
    };
}

static tr_feed *open_feed(const tr_feed_options *options)
{
    tr_feed *feed;
    tr_status status = tr_feed_open(&feed, options);
    if (status != TR_OK)
        fail_msg("%s", tr_error_message());
    return feed;
}

static tr_batch next(tr_feed *feed)
{
    tr_batch batch;
    tr_status status = tr_feed_next(feed, &batch);
    if (status != TR_OK)
        fail_msg("%s", tr_error_message());
    return batch;
}

/* The sample that row r of a counting batch holds; checks all its tokens and labels. */
static uint64_t sample_of(const tr_batch *batch, size_t r, int seq_len)
{
    const int32_t *tokens = batch->tokens + r * (size_t)seq_len;
    const int32_t *labels = batch->labels + r * (size_t)seq_len;
    assert_int_equal(tokens[0] % seq_len, 0);
    for (int t = 0; t < seq_len; t++) {
        assert_int_equal(tokens[t], tokens[0] + t);
        assert_int_equal(labels[t], tokens[0] + t + 1);
    }
    return (uint64_t)(tokens[0] / seq_len);
}

/* In order: sample k begins at k * T, inputs and labels cover the stream, and the last sample
 * ends at its last usable token. */
static void test_next_token_shift_and_sample_edges(void **state)
{
    (void)state;
    static const struct {
        int num_tokens, seq_len, num_samples;
    } rows[] = {{33, 8, 4}, {32, 8, 3}, {40, 8, 4}, {41, 8, 5}, {9, 8, 1}, {5, 1, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_counting("c", rows[i].num_tokens);
        tr_feed_options options = one_rank("c", rows[i].seq_len, 1);
        options.shuffle = false;
        tr_feed *feed = open_feed(&options);
        assert_int_equal(tr_feed_get_info(feed)->num_samples, rows[i].num_samples);
        assert_int_equal(tr_feed_get_info(feed)->pass_steps, rows[i].num_samples);
        assert_int_equal(tr_feed_get_info(feed)->num_tokens, rows[i].num_tokens);
        for (int k = 0; k < rows[i].num_samples; k++) {
            tr_batch batch = next(feed);
            assert_int_equal(sample_of(&batch, 0, rows[i].seq_len), k);
            assert_int_equal(batch.samples[0], k);
        }
        tr_feed_close(feed);
    }
}

/* The order is recorded mathematics: permutation by a key of seed and epoch. */
static void test_order_is_the_keyed_permutation(void **state)
{
    (void)state;
    write_counting("c", 8 * 37 + 1);
    tr_feed_options options = one_rank("c", 8, 5);
    tr_feed *feed = open_feed(&options);
    for (uint64_t n = 0; n < 100;) {
        tr_batch batch = next(feed);
        assert_int_equal(batch.first_sample, n);
        for (size_t r = 0; r < 5; r++, n++) {
            char epoch[8];
            snprintf(epoch, sizeof epoch, "%d", (int)(n / 37));
            uint64_t key = tr_hash_key(7, "data order", epoch);
            assert_int_equal(batch.samples[r], n);
            assert_int_equal(sample_of(&batch, r, 8), tr_permute(key, 37, n % 37));
        }
    }
    tr_feed_close(feed);
}

/* Collects global sample n -> sample of the file over all data ranks, for `steps` steps. A rank's microbatches follow each other, or stand apart. */
static void collect(uint64_t *order, int data_ranks, int micro_batch, bool apart, int global_batch,
                    int steps)
{
    for (int rank = 0; rank < data_ranks; rank++) {
        tr_feed_options options = one_rank("c", 8, global_batch);
        options.micro_batch = micro_batch;
        options.num_microbatches = global_batch / micro_batch / data_ranks;
        int numbers[64];
        for (int m = 0; m < options.num_microbatches; m++)
            numbers[m] = apart ? m * data_ranks + rank : rank * options.num_microbatches + m;
        options.microbatches = numbers;
        tr_feed *feed = open_feed(&options);
        for (int step = 0; step < steps; step++) {
            tr_batch batch = next(feed);
            size_t rows = (size_t)(options.num_microbatches * micro_batch);
            for (size_t r = 0; r < rows; r++) {
                size_t B = (size_t)micro_batch;
                assert_int_equal(batch.samples[r], (size_t)step * (size_t)global_batch +
                                                       (size_t)numbers[r / B] * B + r % B);
                assert_true(order[batch.samples[r]] == UINT64_MAX);
                order[batch.samples[r]] = sample_of(&batch, r, 8);
            }
        }
        tr_feed_close(feed);
    }
}

static void test_each_sample_once_per_epoch_whatever_the_layout(void **state)
{
    (void)state;
    enum { SAMPLES = 48, BATCH = 8, STEPS = 2 * SAMPLES / BATCH };
    static const int layouts[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2},
                                     {4, 1}, {4, 2}, {8, 1}, {1, 8}};
    uint64_t first[2 * SAMPLES], order[2 * SAMPLES];
    write_counting("c", 8 * SAMPLES + 1);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        memset(order, 0xff, sizeof order);
        collect(order, layouts[i][0], layouts[i][1], i % 2 == 1, BATCH, STEPS);
        if (i == 0)
            memcpy(first, order, sizeof first);
        assert_memory_equal(order, first, sizeof first); /* so also the set of each step */
    }
    int same_place = 0, in_file_order = 0;
    for (int epoch = 0; epoch < 2; epoch++) {
        int seen[SAMPLES] = {0};
        for (int i = 0; i < SAMPLES; i++) {
            assert_true(first[epoch * SAMPLES + i] < SAMPLES);
            seen[first[epoch * SAMPLES + i]]++;
            in_file_order += first[epoch * SAMPLES + i] == (uint64_t)i;
        }
        for (int i = 0; i < SAMPLES; i++)
            assert_int_equal(seen[i], 1);
    }
    for (int i = 0; i < SAMPLES; i++)
        same_place += first[i] == first[SAMPLES + i];
    assert_true(same_place < SAMPLES / 4);
    assert_true(in_file_order < SAMPLES / 4);
}

static void test_another_seed_is_another_order(void **state)
{
    (void)state;
    int same = 0;
    write_counting("c", 8 * 64 + 1);
    tr_feed_options options = one_rank("c", 8, 64);
    tr_feed *feed = open_feed(&options);
    options.seed = 8;
    tr_feed *other = open_feed(&options);
    tr_batch a = next(feed), b = next(other);
    for (size_t r = 0; r < 64; r++)
        same += sample_of(&a, r, 8) == sample_of(&b, r, 8);
    assert_true(same < 16);
    tr_feed_close(feed);
    tr_feed_close(other);
}

/* 5 batches of data, 30 steps: it goes on, and the epoch is reported where it changes. */
static void test_data_shorter_than_the_run_begins_a_new_epoch(void **state)
{
    (void)state;
    write_counting("c", 8 * 17 + 1); /* 17 samples: 4.25 batches of 4 */
    tr_feed_options options = one_rank("c", 8, 4);
    tr_feed *feed = open_feed(&options);
    for (uint64_t step = 0; step < 30; step++) {
        tr_batch batch = next(feed);
        assert_int_equal(batch.first_sample, 4 * step);
        assert_int_equal(batch.first_epoch, 4 * step / 17);
        assert_int_equal(batch.last_epoch, (4 * step + 3) / 17);
        assert_int_equal(batch.num_counted, 4);
    }
    tr_feed_close(feed);
}

static void test_a_set_smaller_than_a_batch_repeats(void **state)
{
    (void)state;
    int seen[3] = {0};
    write_counting("c", 8 * 3 + 1);
    tr_feed_options options = one_rank("c", 8, 24);
    tr_feed *feed = open_feed(&options);
    tr_batch batch = next(feed);
    for (size_t r = 0; r < 24; r++)
        seen[sample_of(&batch, r, 8)]++;
    for (int i = 0; i < 3; i++)
        assert_int_equal(seen[i], 8);
    assert_int_equal(batch.first_epoch, 0);
    assert_int_equal(batch.last_epoch, 7);
    tr_feed_close(feed);
}

static void test_too_little_data_is_refused_with_numbers(void **state)
{
    (void)state;
    static const int counts[] = {10, 32, 1};
    for (int i = 0; i < 3; i++) {
        char have[32];
        tr_feed *feed = NULL;
        write_counting("c", counts[i]);
        snprintf(have, sizeof have, "has %d tokens", counts[i]);
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            tr_feed_options options = one_rank("c", 32, 4);
            options.shuffle = shuffle;
            assert_int_equal(tr_feed_open(&feed, &options), TR_ERR_DATA);
            assert_non_null(strstr(tr_error_message(), have));
            assert_non_null(strstr(tr_error_message(), "needs 33"));
            assert_null(feed);
        }
    }
    tr_feed_options options = one_rank("not-there", 32, 4);
    tr_feed *feed;
    assert_int_equal(tr_feed_open(&feed, &options), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "not-there"));
}

static void test_a_resumed_feed_goes_on_where_it_stood(void **state)
{
    (void)state;
    write_counting("c", 8 * 29 + 1);
    tr_feed_options options = one_rank("c", 8, 6);
    tr_feed *whole = open_feed(&options);
    for (int step = 0; step < 5; step++)
        next(whole);
    options.first_sample = 30;
    tr_feed *resumed = open_feed(&options);
    for (int step = 5; step < 12; step++) {
        tr_batch a = next(whole), b = next(resumed);
        assert_memory_equal(a.tokens, b.tokens, 6 * 8 * sizeof(int32_t));
        assert_memory_equal(a.samples, b.samples, 6 * sizeof(uint64_t));
        assert_int_equal(a.first_epoch, b.first_epoch);
    }
    tr_feed_close(whole);
    tr_feed_close(resumed);
}

/* 11 samples in batches of 4 on two ranks: the third batch has 3 and one padded sequence; then
 * it starts again. */
static void test_evaluation_counts_each_sample_once(void **state)
{
    (void)state;
    write_counting("c", 8 * 11 + 1);
    for (int rank = 0; rank < 2; rank++) {
        tr_feed_options options = one_rank("c", 8, 4);
        options.shuffle = false;
        options.num_microbatches = 2;
        options.microbatches = numbers_from(2 * rank);
        tr_feed *feed = open_feed(&options);
        assert_int_equal(tr_feed_get_info(feed)->pass_steps, 3);
        for (int pass = 0; pass < 2; pass++) {
            for (uint64_t step = 0; step < 3; step++) {
                tr_batch batch = next(feed);
                assert_int_equal(batch.first_sample, 4 * step);
                assert_int_equal(batch.num_counted, step < 2 ? 4 : 3);
                assert_int_equal(batch.first_epoch, pass);
                for (size_t r = 0; r < 2; r++) {
                    uint64_t k = 4 * step + 2 * (uint64_t)rank + r;
                    assert_int_equal(batch.samples[r], k);
                    if (k < 11) {
                        assert_int_equal(sample_of(&batch, r, 8), k);
                        continue;
                    }
                    for (int t = 0; t < 8; t++) {
                        assert_int_equal(batch.tokens[8 * r + (size_t)t], 0);
                        assert_int_equal(batch.labels[8 * r + (size_t)t], -1);
                    }
                }
            }
        }
        tr_feed_close(feed);
    }
}

static void test_a_short_evaluation_starts_again_at_the_first_sample(void **state)
{
    (void)state;
    static const uint64_t asked[] = {2, 3, 99}, given[] = {2, 3, 3};
    write_counting("c", 8 * 11 + 1);
    for (int i = 0; i < 3; i++) {
        tr_feed_options options = one_rank("c", 8, 4);
        options.shuffle = false;
        options.pass_steps = asked[i];
        tr_feed *feed = open_feed(&options);
        assert_int_equal(tr_feed_get_info(feed)->pass_steps, given[i]);
        for (uint64_t step = 0; step < 7; step++) {
            tr_batch batch = next(feed);
            assert_int_equal(batch.first_sample, step % given[i] * 4);
            assert_int_equal(sample_of(&batch, 0, 8), step % given[i] * 4);
        }
        tr_feed_close(feed);
    }
}

/* 20 documents of 10 tokens; one id too big in document 17. In order, T = 8, two samples a step: token
 * 174 is an input of sample 21 (168 to 176), token 176 only the last label of that sample, and an
 * input of sample 22, which is in the next step. */
static void test_an_id_outside_the_vocabulary_is_refused_before_its_step(void **state)
{
    (void)state;
    static const int32_t bad_tokens[] = {174, 176}, bad_ids[] = {257, 383};
    for (int i = 0; i < 4; i++) {
        tr_token_writer *writer;
        tr_token_writer_options write = {scratch_path("b"), 70000, TR_TOKEN_STORE_AUTO};
        char expected[128];
        assert_int_equal(tr_token_writer_open(&writer, &write), TR_OK);
        for (int32_t t = 0; t < 200; t++) {
            int32_t id = t == bad_tokens[i % 2] ? bad_ids[i / 2] : 256;
            assert_int_equal(tr_token_writer_append(writer, &id, 1), TR_OK);
            if (t % 10 == 9)
                assert_int_equal(tr_token_writer_end_document(writer), TR_OK);
        }
        assert_int_equal(tr_token_writer_commit(writer), TR_OK);
        tr_token_writer_close(writer);

        tr_feed_options options = one_rank("b", 8, 2); /* sample 21 is in step 10 */
        options.shuffle = false;
        options.vocab = 257;
        tr_feed *feed = open_feed(&options);
        tr_batch batch;
        for (int step = 0; step < 10; step++)
            next(feed);
        snprintf(
            expected, sizeof expected,
            "b.bin: document 17, position %d in it: token id %d, but the model's vocabulary is 257",
            bad_tokens[i % 2] - 170, bad_ids[i / 2]);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(tr_feed_next(feed, &batch), TR_ERR_DATA);
            if (strstr(tr_error_message(), expected) == NULL)
                fail_msg("\"%s\" does not say \"%s\"", tr_error_message(), expected);
        }
        tr_feed_close(feed);
    }
}

/* A batch takes 30 ms to read and a step 60 ms: after the first batch nothing waits; the queue
 * stays bounded. */
static void test_a_slow_disk_does_not_stall_the_step(void **state)
{
    (void)state;
    write_counting("c", 8 * 100 + 1);
    tr_feed_options options = one_rank("c", 8, 3);
    read_delay_s = 0.01;
    num_reads = 0;
    tr_feed *feed = open_feed(&options);
    tr_batch batch = next(feed);
    assert_true(batch.wait_s > 0.02); /* the wait figure is real */
    double waited = 0;
    for (int step = 0; step < 8; step++) {
        tr_clock_sleep(0.06);
        waited += next(feed).wait_s;
    }
    assert_true(waited < 0.12); /* reading in the step would make it 0.24 */
    tr_clock_sleep(0.3);
    assert_int_equal(num_reads,
                     3 * (9 + options.prefetch)); /* handed out and read ahead, no more */
    read_delay_s = 0;
    tr_feed_close(feed);
}

/* The batch in use must not change while the loader runs ahead. */
static void test_a_batch_holds_until_the_next_call(void **state)
{
    (void)state;
    write_counting("c", 8 * 100 + 1);
    tr_feed_options options = one_rank("c", 8, 2);
    tr_feed *feed = open_feed(&options);
    uint64_t key = tr_hash_key(7, "data order", "0");
    for (uint64_t step = 0; step < 20; step++) {
        tr_batch batch = next(feed);
        tr_clock_sleep(0.003);
        for (uint64_t r = 0; r < 2; r++)
            assert_int_equal(sample_of(&batch, r, 8), tr_permute(key, 100, 2 * step + r));
    }
    tr_feed_close(feed);
}

static void test_no_heap_after_open(void **state)
{
    (void)state;
    write_counting("c", 8 * 10 + 1);
    tr_feed_options options = one_rank("c", 8, 4);
    num_heap_calls = 0;
    tr_feed *feed = open_feed(&options);
    assert_true(num_heap_calls > 0); /* the wrapping works */
    next(feed);
    int before = num_heap_calls;
    for (int step = 0; step < 100; step++)
        next(feed);
    assert_int_equal(num_heap_calls, before);
    assert_int_equal(tr_feed_bytes(&options), 3 * 4 * (8 + 2 * 4 * 8) + 9 * 4);
    tr_feed_close(feed);
}

/* Six billion samples, and a data position beyond 2^40: the stream positions that are read. */
static void test_more_than_2_to_the_32_samples(void **state)
{
    (void)state;
    const uint64_t num_samples = 6000000000ull, first_sample = (1ull << 40) + 12345;
    unsigned char idx[34 + 12 * 4 + 8 * 2] = "MMIDIDX";
    int beyond = 0;
    put_le(idx + 9, 1, 8);
    idx[17] = 8;
    put_le(idx + 18, 4, 8);
    put_le(idx + 26, 2, 8);
    for (uint64_t i = 0; i < 4; i++) {
        put_le(idx + 34 + 4 * i, i < 3 ? 2000000000 : 1, 4);
        put_le(idx + 50 + 8 * i, i * 4000000000ull, 8);
    }
    put_le(idx + 90, 4, 8);
    scratch_write(scratch_path("big.idx"), idx, sizeof idx);
    scratch_write(scratch_path("big.bin"), "", 0);
    assert_int_equal(truncate(scratch_path("big.bin"), (off_t)(2 * (num_samples + 1))), 0);

    tr_feed_options options = one_rank("big", 1, 16);
    options.first_sample = first_sample;
    num_reads = 0;
    tr_feed *feed = open_feed(&options);
    assert_true(tr_feed_get_info(feed)->num_samples == num_samples);
    tr_batch batch = next(feed);
    assert_true(batch.samples[15] == first_sample + 15);
    assert_true(batch.first_epoch == first_sample / num_samples);
    for (uint64_t r = 0; r < 16; r++) {
        char epoch[24];
        uint64_t n = first_sample + r;
        snprintf(epoch, sizeof epoch, "%d", (int)(n / num_samples));
        uint64_t key = tr_hash_key(7, "data order", epoch);
        uint64_t index = tr_permute(key, num_samples, n % num_samples);
        assert_true(read_log[r] == index);
        beyond += index > UINT32_MAX;
    }
    assert_true(beyond > 0);
    tr_feed_close(feed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_token_shift_and_sample_edges),
        cmocka_unit_test(test_order_is_the_keyed_permutation),
        cmocka_unit_test(test_each_sample_once_per_epoch_whatever_the_layout),
        cmocka_unit_test(test_another_seed_is_another_order),
        cmocka_unit_test(test_data_shorter_than_the_run_begins_a_new_epoch),
        cmocka_unit_test(test_a_set_smaller_than_a_batch_repeats),
        cmocka_unit_test(test_too_little_data_is_refused_with_numbers),
        cmocka_unit_test(test_a_resumed_feed_goes_on_where_it_stood),
        cmocka_unit_test(test_evaluation_counts_each_sample_once),
        cmocka_unit_test(test_a_short_evaluation_starts_again_at_the_first_sample),
        cmocka_unit_test(test_an_id_outside_the_vocabulary_is_refused_before_its_step),
        cmocka_unit_test(test_a_batch_holds_until_the_next_call),
        cmocka_unit_test(test_a_slow_disk_does_not_stall_the_step),
        cmocka_unit_test(test_no_heap_after_open),
        cmocka_unit_test(test_more_than_2_to_the_32_samples),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
