/* io/yaml_reader: places, lists, quoting, hostile text. */
#include "io/yaml_reader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void read_ok(tr_yaml *yaml, const char *text)
{
    if (tr_yaml_read_text(yaml, "t", text, strlen(text)) != TR_OK)
        fail_msg("%s", tr_error_message());
}

static void refuses(const char *text, size_t length, const char *start, const char *part)
{
    tr_yaml yaml;
    assert_int_equal(tr_yaml_read_text(&yaml, "t", text, length), TR_ERR_SETTINGS);
    if (strncmp(tr_error_message(), start, strlen(start)) != 0)
        fail_msg("does not start with %s: %s", start, tr_error_message());
    if (strstr(tr_error_message(), part) == NULL)
        fail_msg("'%s' is not in: %s", part, tr_error_message());
}

static void test_flat_list_with_places(void **state)
{
    (void)state;
    tr_yaml yaml;
    read_ok(&yaml, "a:\n  b: 1\n  c: {d: x y, e: \"\"}\nf: ~\n");
    assert_int_equal(yaml.num_items, 4);
    static const struct {
        const char *key, *value;
        bool quoted;
        int line, column;
    } expected[] = {{"a.b", "1", false, 2, 6},
                    {"a.c.d", "x y", false, 3, 10},
                    {"a.c.e", "", true, 3, 18},
                    {"f", "~", false, 4, 4}};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(yaml.items[i].key, expected[i].key);
        assert_string_equal(yaml.items[i].value, expected[i].value);
        assert_int_equal(yaml.items[i].quoted, expected[i].quoted);
        assert_int_equal(yaml.items[i].line, expected[i].line);
        assert_int_equal(yaml.items[i].column, expected[i].column);
    }
    assert_ptr_equal(tr_yaml_find(&yaml, "a.c.d"), &yaml.items[1]);
    assert_null(tr_yaml_find(&yaml, "a.c"));
    tr_yaml_clear(&yaml);
    assert_null(yaml.items);
}

static void test_lists_keep_their_length(void **state)
{
    (void)state;
    tr_yaml yaml;
    read_ok(&yaml, "a:\n- 1\n- {p: q}\n- [2, 3]\nb: []\n");
    static const char *const keys[] = {"a", "a.0", "a.1.p", "a.2", "a.2.0", "a.2.1", "b"};
    assert_int_equal(yaml.num_items, 7);
    for (int i = 0; i < 7; i++)
        assert_string_equal(yaml.items[i].key, keys[i]);
    assert_null(yaml.items[0].value);
    assert_int_equal(yaml.items[0].num_values, 3);
    assert_int_equal(yaml.items[3].num_values, 2);
    assert_int_equal(yaml.items[6].num_values, 0);
    tr_yaml_clear(&yaml);
}

static void test_empty_text(void **state)
{
    (void)state;
    tr_yaml yaml;
    read_ok(&yaml, "");
    assert_int_equal(yaml.num_items, 0);
    tr_yaml_clear(&yaml);
    read_ok(&yaml, "# only a comment\n");
    assert_int_equal(yaml.num_items, 0);
    tr_yaml_clear(&yaml);
    read_ok(&yaml, "---\n");
    assert_int_equal(yaml.num_items, 0);
    tr_yaml_clear(&yaml);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *start, *part;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "t:3:1: ", "a stands twice, first in line 1"},
        {"a:\n  b: 1\n  b: 2\n", "t:3:3: ", "a.b stands twice"},
        {"a.b: 1\na:\n  b: 2\n", "t:3:3: ", "a.b stands twice"},
        {"[1]\n", "t:1:1: ", "sections"},
        {"word\n", "t:1:1: ", "sections"},
        {"? [a]\n: b\n", "t:1:3: ", "a key must be"},
        {"a: &x 1\nb: *x\n", "t:2:4: ", "aliases"},
        {"a: 1\n--- \nb: 1\n", "t:2:1: ", "second document"},
        {"a: 'x\n", "t:", "not YAML"},
        {"\ta: 1\n", "t:1:1: ", "not YAML"},
        {"a: \"\\0\"\n", "t:1:4: ", "zero byte"},
        {"a: \xff\xfe\n", "t: byte 3: ", "not YAML"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(cases[i].text, strlen(cases[i].text), cases[i].start, cases[i].part);
    char deep[200];
    memset(deep, '{', sizeof deep);
    refuses(deep, sizeof deep, "t:", "");
    memcpy(deep, "a: ", 3);
    memset(deep + 3, '[', sizeof deep - 3);
    refuses(deep, sizeof deep, "t:1:", "nested too deeply");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flat_list_with_places),
        cmocka_unit_test(test_lists_keep_their_length),
        cmocka_unit_test(test_empty_text),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
