/* base/hash: known values, the documented bytes of keys, streams. */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* XXH3 of the empty input and of "abc", as `xxhsum -H3` and `xxhsum -H2` print them. */
static void test_known_values(void **state)
{
    (void)state;
    assert_true(tr_hash64("", 0, 0) == 0x2d06800538d394c2u);
    assert_true(tr_hash64("abc", 3, 0) == 0x78af5f94892f3950u);
    char text[TR_HASH128_TEXT];
    tr_hash128_to_text(tr_hash128_compute("abc", 3), text);
    assert_string_equal(text, "06b05ab6733a618578af5f94892f3950");
}

static void test_key_is_the_documented_bytes(void **state)
{
    (void)state;
    const unsigned char bytes[] = {0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,
                                   'i',  'n',  'i',  't',  0,    'w',  0};
    assert_true(tr_hash_key(0x0102030405060708u, "init", "w") == tr_hash64(bytes, sizeof bytes, 0));
    const unsigned char number[] = {0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01};
    assert_true(tr_hash_mix(99, 0x0102030405060708u) == tr_hash64(number, 8, 99));
}

static void test_keys_differ(void **state)
{
    (void)state;
    uint64_t keys[] = {
        tr_hash_key(1, "init", "ab"),
        tr_hash_key(2, "init", "ab"),
        tr_hash_key(1, "inita", "b"),
        tr_hash_key(1, "", "initab"),
        tr_hash_key(1, "initab", ""),
        tr_hash_mix(tr_hash_key(1, "init", "ab"), 0),
        tr_hash_mix(tr_hash_key(1, "init", "ab"), 1),
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(keys[i] != keys[j]);
}

static void test_stream_equals_whole(void **state)
{
    (void)state;
    static unsigned char data[100000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    tr_hash128 whole = tr_hash128_compute(data, sizeof data);
    char text[TR_HASH128_TEXT];
    tr_hash128_to_text(whole, text);
    assert_string_equal(text, "18580bb0190de1db1d43ec753d462301"); /* as libxxhash has it */
    tr_hash_stream *stream = tr_hash_stream_create();
    tr_hash_stream_add(stream, "dirt", 4);
    tr_hash_stream_reset(stream);
    for (size_t at = 0, step = 1; at < sizeof data; at += step, step = step * 3 % 4099 + 1) {
        if (step > sizeof data - at)
            step = sizeof data - at;
        tr_hash_stream_add(stream, data + at, step);
        if (at + step == sizeof data)
            break;
        assert_false(tr_hash128_equal(tr_hash_stream_get(stream), whole));
    }
    assert_true(tr_hash128_equal(tr_hash_stream_get(stream), whole));
    tr_hash_stream_destroy(stream);
    tr_hash_stream_destroy(NULL);
}

static void test_text_is_read_back(void **state)
{
    (void)state;
    tr_hash128 hash = {.low = 0x0123456789abcdefu, .high = 0xfedcba9876543210u}, back = {0};
    char text[TR_HASH128_TEXT];
    tr_hash128_to_text(hash, text);
    assert_string_equal(text, "fedcba98765432100123456789abcdef");
    assert_true(tr_hash128_from_text("FEDCBA98765432100123456789ABCDEF", &back));
    assert_true(tr_hash128_equal(back, hash));
    tr_hash128 kept = back;
    assert_false(tr_hash128_from_text("", &back));
    assert_false(tr_hash128_from_text("fedcba98765432100123456789abcde", &back));
    assert_false(tr_hash128_from_text("fedcba98765432100123456789abcdef0", &back));
    assert_false(tr_hash128_from_text("fedcba98765432100123456789abcdeg", &back));
    assert_true(tr_hash128_equal(back, kept));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_key_is_the_documented_bytes),
        cmocka_unit_test(test_keys_differ),
        cmocka_unit_test(test_stream_equals_whole),
        cmocka_unit_test(test_text_is_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
