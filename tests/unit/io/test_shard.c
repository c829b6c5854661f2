/* Shard files and their codec: what is written comes back bit for bit; no damaged file is believed. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/plane_codec.h"
#include "io/shard_int.h"
#include "io/shard_read.h"
#include "io/shard_verify.h"
#include "tests/unit/io/io_scratch.h"

static uint32_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

/* Sorts of values: noise like weights, zeros, ones, any bits (NaN with payload among them). */
static void fill(float *values, int64_t count, int sort)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = random_bits();
        if (sort == 0)
            values[i] = ((float)(random_bits() & 0xffffff) - 8388608.0f) * 0x1p-28f;
        else if (sort == 1 || sort == 2)
            values[i] = (float)(sort - 1);
        else
            memcpy(&values[i], &bits, sizeof bits);
    }
}

static int parts_make(tr_shard_part *parts, int num_parts)
{
    for (int i = 0; i < num_parts; i++) {
        parts[i] = (tr_shard_part){.tensor = i};
        parts[i].kind = (tr_shard_kind)(i % 3);
        parts[i].box = i % 2 == 0 ? tr_box_1d(random_bits() % 100, 1 + random_bits() % 300)
                                  : tr_box_2d(random_bits() % 9, 1 + random_bits() % 20,
                                              random_bits() % 9, 1 + random_bits() % 20);
        int64_t volume = tr_box_volume(&parts[i].box);
        float *values = calloc((size_t)volume, sizeof(float));
        fill(values, volume, i % 4);
        parts[i].values = values;
    }
    return num_parts;
}

static void parts_free(tr_shard_part *parts, int num_parts)
{
    for (int i = 0; i < num_parts; i++)
        free((void *)(uintptr_t)parts[i].values);
}

static const char *shard_make(int num_parts, int level, int chunk_bytes)
{
    tr_shard_part parts[32];
    tr_shard_summary summary;
    const char *path = scratch_path("shard-00000.bin");
    parts_make(parts, num_parts);
    assert_int_equal(tr_shard_write(path, parts, num_parts, level, chunk_bytes, &summary), TR_OK);
    parts_free(parts, num_parts);
    return path;
}

/* Every value of the shard, found through the chunks' pieces, equals the part it came from. */
static void expect_parts(tr_shard *shard, const tr_shard_part *parts, int num_parts)
{
    tr_shard_scratch *scratch = tr_shard_scratch_create();
    assert_int_equal(tr_shard_num_boxes(shard), num_parts);
    for (int i = 0; i < num_parts; i++) {
        const tr_shard_box *box = tr_shard_get_box(shard, i);
        int64_t volume = tr_box_volume(&parts[i].box), seen = 0;
        float *values = calloc((size_t)volume, sizeof(float));
        assert_int_equal(box->tensor, parts[i].tensor);
        assert_int_equal(box->kind, parts[i].kind);
        assert_true(tr_box_equal(&box->box, &parts[i].box));
        for (int k = 0; k < box->num_chunks; k++) {
            tr_box pieces[TR_BOX_MAX_PIECES];
            const float *chunk = NULL;
            int count = tr_shard_chunk_pieces(shard, box, k, pieces);
            assert_int_equal(tr_shard_read_chunk(shard, box->first_chunk + k, scratch, &chunk),
                             TR_OK);
            for (int p = 0; p < count; p++) {
                int64_t copied = tr_box_copy(sizeof(float), &pieces[p], chunk, &box->box, values);
                seen += copied;
                chunk += copied;
            }
        }
        assert_int_equal(seen, volume);
        assert_memory_equal(values, parts[i].values, (size_t)volume * sizeof(float));
        free(values);
    }
    tr_shard_scratch_destroy(scratch);
}

static void bytes_count(void *context, int64_t bytes)
{
    *(int64_t *)context += bytes;
}

/* On any number of threads: the hash of the file, and every byte of it told of once. */
static void expect_verified(tr_shard *shard, tr_hash128 of_bytes, tr_hash128 of_summary)
{
    for (int num_threads = 1; num_threads <= 3; num_threads++) {
        tr_shard_verifier *verifier = NULL;
        tr_hash128 hash;
        int64_t seen = 0;
        assert_int_equal(tr_shard_verifier_create(num_threads, &verifier), TR_OK);
        assert_int_equal(tr_shard_verify(verifier, shard, bytes_count, &seen, &hash), TR_OK);
        assert_true(tr_hash128_equal(hash, of_summary));
        assert_true(tr_hash128_equal(hash, of_bytes));
        assert_int_equal(seen, tr_shard_bytes(shard));
        tr_shard_verifier_destroy(verifier);
    }
}

static void test_what_is_written_comes_back(void **state)
{
    (void)state;
    static const int chunk_sizes[] = {4, 64, 1000, TR_SHARD_CHUNK_DEFAULT};
    for (int round = 0; round < 24; round++) {
        tr_shard_part parts[32];
        tr_shard *shard = NULL;
        tr_shard_summary summary;
        const char *path = scratch_path("shard-00000.bin");
        int num_parts = parts_make(parts, round == 0 ? 0 : 1 + (int)(random_bits() % 32));
        assert_int_equal(
            tr_shard_write(path, parts, num_parts, round % 3, chunk_sizes[round % 4], &summary),
            TR_OK);
        assert_int_equal(tr_shard_open(&shard, path), TR_OK);
        assert_int_equal(tr_shard_bytes(shard), summary.bytes);
        assert_true(tr_hash128_equal(tr_shard_table_hash(shard), summary.table_hash));
        expect_parts(shard, parts, num_parts);

        size_t size;
        unsigned char *bytes = scratch_read(path, &size);
        expect_verified(shard, tr_hash128_compute(bytes, size), summary.hash);
        free(bytes);
        tr_shard_close(shard);
        parts_free(parts, num_parts);
    }
}

static int64_t stored_bytes(int sort, int level)
{
    enum { COUNT = 100000 };
    static float values[COUNT];
    tr_shard_part part = {0, TR_SHARD_MASTER, tr_box_1d(0, COUNT), values, NULL};
    tr_shard_summary summary;
    fill(values, COUNT, sort);
    assert_int_equal(tr_shard_write(scratch_path("shard-00001.bin"), &part, 1, level,
                                    TR_SHARD_CHUNK_DEFAULT, &summary),
                     TR_OK);
    assert_int_equal(summary.raw_bytes, 4 * COUNT);
    return summary.bytes;
}

static void test_levels_compress_what_can_be(void **state)
{
    (void)state;
    assert_true(stored_bytes(0, 0) > 400000);
    assert_true(stored_bytes(0, 1) < 350000); /* weights: the exponent plane */
    assert_true(stored_bytes(1, 1) < 2000);   /* zeros: every plane, found by the trial */
    assert_true(stored_bytes(3, 1) <= stored_bytes(3, 0)); /* noise is stored raw */
}

/* Opens and verifies; TR_OK only when both passed. */
static tr_status try_file(const char *path)
{
    static tr_shard_verifier *verifier;
    if (verifier == NULL)
        assert_int_equal(tr_shard_verifier_create(2, &verifier), TR_OK);
    tr_shard *shard = NULL;
    tr_hash128 hash;
    tr_status status = tr_shard_open(&shard, path);
    if (status != TR_OK)
        return status;
    status = tr_shard_verify(verifier, shard, NULL, NULL, &hash);
    tr_shard_close(shard);
    return status;
}

static void expect_damage_named(const char *path)
{
    assert_int_equal(try_file(path), TR_ERR_CHECKPOINT);
    assert_non_null(strstr(tr_error_message(), path));
}

/* Writes over the start of a file in place: much quicker than a new file for each of thousands. */
static void patch(const char *path, size_t at, const unsigned char *bytes, size_t size)
{
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes + at, size, (off_t)at), size);
    close(fd);
}

static void test_every_flipped_byte_is_found(void **state)
{
    (void)state;
    for (int level = 0; level < 2; level++) {
        size_t size;
        const char *path = shard_make(4, level, 256);
        unsigned char *bytes = scratch_read(path, &size);
        for (size_t at = 0; at < size; at++) {
            bytes[at] ^= (unsigned char)(1u << at % 8);
            patch(path, at, bytes, 1);
            expect_damage_named(path);
            bytes[at] ^= (unsigned char)(1u << at % 8);
            patch(path, at, bytes, 1);
        }
        assert_int_equal(try_file(path), TR_OK);
        free(bytes);
    }
}

static void test_every_cut_is_found(void **state)
{
    (void)state;
    size_t size;
    const char *path = shard_make(3, 1, 256);
    free(scratch_read(path, &size));
    for (size_t length = size; length-- > 0;) {
        assert_int_equal(truncate(path, (off_t)length), 0);
        expect_damage_named(path);
    }
    unlink(path);
    expect_damage_named(path);
}

/* Makes the hash of the tables right again after a change in them. */
static void tables_sign(unsigned char *bytes, size_t size)
{
    size_t table = (size_t)le_get(bytes + size - SHARD_TRAILER_BYTES + TRAILER_TABLE_OFFSET, 8);
    tr_hash_stream *stream = tr_hash_stream_create();
    tr_hash_stream_add(stream, bytes, SHARD_HEADER_BYTES);
    tr_hash_stream_add(stream, bytes + table, size - 16 - table);
    le_put_hash(bytes + size - 16, tr_hash_stream_get(stream));
    tr_hash_stream_destroy(stream);
}

/* What a box is of, and where it begins, is checked by whoever knows the tensors. */
static bool is_free_field(size_t in_box)
{
    return in_box < BOX_NUM_DIMS || (in_box >= BOX_START && in_box < BOX_EXTENT);
}

static void test_every_wrong_field_with_a_right_hash_is_found(void **state)
{
    (void)state;
    static const unsigned char changes[] = {0x01, 0x80, 0xff, 0x7f};
    size_t size, num_boxes = 4;
    const char *path = shard_make((int)num_boxes, 1, 256);
    unsigned char *bytes = scratch_read(path, &size);
    size_t trailer = size - SHARD_TRAILER_BYTES;
    size_t table = (size_t)le_get(bytes + trailer + TRAILER_TABLE_OFFSET, 8);
    for (size_t at = 0; at < trailer + SHARD_TRAILER_HASHED; at++) {
        if (at == SHARD_HEADER_BYTES)
            at = table;
        size_t in_table = at - table;
        bool in_box = at >= table && in_table < num_boxes * SHARD_BOX_BYTES;
        for (size_t c = 0; c < sizeof changes; c++) {
            unsigned char *copy = malloc(size);
            memcpy(copy, bytes, size);
            copy[at] ^= changes[c];
            if (at < trailer || at >= trailer + TRAILER_TABLE_BYTES)
                tables_sign(copy, size);
            patch(path, 0, copy, size);
            tr_status status = try_file(path);
            if (!in_box || !is_free_field(in_table % SHARD_BOX_BYTES))
                assert_int_equal(status, TR_ERR_CHECKPOINT);
            free(copy);
        }
    }
    free(bytes);
}

static void test_decoding_any_bytes_is_safe(void **state)
{
    (void)state;
    enum { COUNT = 1000, ROOM = 4 * COUNT };
    float *values = calloc(COUNT, sizeof(float)), *decoded = calloc(COUNT, sizeof(float));
    tr_plane_codec *codec = tr_plane_codec_create(COUNT);
    fill(values, COUNT, 0);
    unsigned char *good = malloc(ROOM);
    size_t stored = tr_plane_encode(codec, 1, values, COUNT, good, ROOM);
    assert_true(stored > 0 && stored < ROOM);
    assert_true(tr_plane_decode(codec, good, stored, decoded, COUNT));
    assert_memory_equal(values, decoded, COUNT * sizeof(float));
    for (int round = 0; round < 20000; round++) {
        size_t size = round % 2 == 0 ? stored : random_bits() % (stored + 1);
        unsigned char *bad = malloc(size + 1); /* its own block: reading past its end is seen */
        memcpy(bad, good, size);
        for (int n = 0; n < 3 && size > 0; n++)
            bad[random_bits() % (n == 0 && size > 20 ? 20 : size)] ^=
                (unsigned char)(1u << random_bits() % 8);
        size_t count = round % 3 == 0 ? 1 + random_bits() % COUNT : COUNT;
        if (size < stored)
            assert_false(tr_plane_decode(codec, bad, size, decoded, COUNT));
        else
            tr_plane_decode(codec, bad, size, decoded, count);
        free(bad);
    }
    /* No room for a gain: the caller stores raw. */
    fill(values, COUNT, 3);
    assert_int_equal(tr_plane_encode(codec, 1, values, COUNT, good, ROOM - 1), 0);
    tr_plane_codec_destroy(codec);
    free(good);
    free(values);
    free(decoded);
}

static void test_a_failed_write_leaves_no_file(void **state)
{
    (void)state;
    static float values[5000];
    tr_shard_part part = {0, TR_SHARD_MASTER, tr_box_1d(0, 5000), values, NULL};
    tr_shard_summary summary;
    struct rlimit before, small = {10000, RLIM_INFINITY};
    const char *path = scratch_path("shard-00002.bin");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    tr_status status = tr_shard_write(path, &part, 1, 0, TR_SHARD_CHUNK_DEFAULT, &summary);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), path));
    assert_false(scratch_exists(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_comes_back),
        cmocka_unit_test(test_levels_compress_what_can_be),
        cmocka_unit_test(test_every_flipped_byte_is_found),
        cmocka_unit_test(test_every_cut_is_found),
        cmocka_unit_test(test_every_wrong_field_with_a_right_hash_is_found),
        cmocka_unit_test(test_decoding_any_bytes_is_safe),
        cmocka_unit_test(test_a_failed_write_leaves_no_file),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
