/* engine/config: the table covers the struct, presets, and the dump that says who set what and
 * reads back. */
#include "tests/unit/engine/config_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "engine/config/settings_int.h"

static size_t size_of_type(tr_setting_type type)
{
    switch (type) {
    case TR_SETTING_INT:
        return sizeof(int64_t);
    case TR_SETTING_U64:
        return sizeof(uint64_t);
    case TR_SETTING_REAL:
        return sizeof(double);
    case TR_SETTING_BOOL:
        return sizeof(bool);
    case TR_SETTING_CHOICE:
        return sizeof(int);
    case TR_SETTING_TEXT:
    case TR_SETTING_DATA:
    case TR_SETTING_LIST:
        return sizeof(char *);
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    size_t x = (*(const tr_setting *const *)a)->offset, y = (*(const tr_setting *const *)b)->offset;
    return (x > y) - (x < y);
}

/* Rows in the order of memory follow each other with nothing but padding between, and reach to the
 * derived part: a field without a row leaves a hole, a wrong offset an overlap. */
static void test_each_field_has_a_row(void **state)
{
    (void)state;
    const tr_setting **rows = TR_NEW_ARRAY(const tr_setting *, tr_num_settings);
    for (size_t i = 0; i < tr_num_settings; i++)
        rows[i] = &tr_settings[i];
    qsort(rows, tr_num_settings, sizeof *rows, by_offset);
    size_t end = 0;
    for (size_t i = 0; i < tr_num_settings; i++) {
        size_t size = size_of_type(rows[i]->type);
        size_t aligned = (end + size - 1) / size * size;
        /* A section starts at the alignment of its largest member. */
        size_t section = (end + 7) / 8 * 8;
        if (rows[i]->offset != aligned && rows[i]->offset != section)
            fail_msg("%s lies at %zu, expected %zu: a field in front of it has no row",
                     rows[i]->name, rows[i]->offset, aligned);
        end = rows[i]->offset + size;
    }
    assert_int_equal((end + 7) / 8 * 8, offsetof(tr_config, derived));
    tr_free(rows);
}

static void test_rows_are_complete(void **state)
{
    (void)state;
    tr_config cfg;
    tr_config_init(&cfg);
    for (size_t i = 0; i < tr_num_settings; i++) {
        const tr_setting *row = &tr_settings[i];
        assert_non_null(strchr(row->name, '.'));
        assert_true(strlen(row->meaning) > 5);
        assert_ptr_equal(tr_setting_find(row->name), row);
        bool mathematics = strncmp(row->name, "model.", 6) == 0 ||
                           strncmp(row->name, "data.", 5) == 0 ||
                           strncmp(row->name, "train.", 6) == 0;
        assert_int_equal(row->half, mathematics ? TR_HALF_MATHEMATICS : TR_HALF_LAYOUT);
        /* The default of the manual is what a fresh configuration has. */
        char *value = tr_config_get(&cfg, row->name);
        assert_int_equal(value == NULL, row->initial == NULL);
        tr_free(value);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(tr_settings[j].name, row->name);
    }
    for (size_t i = 0; tr_settings_later[i]; i++)
        assert_null(tr_setting_find(tr_settings_later[i]));
    tr_config_clear(&cfg);
}

static void test_defaults(void **state)
{
    (void)state;
    static const char *const defaults[][2] = {
        {"train.micro_batch", "1"},    {"train.seed", "1"},
        {"train.precision", "bf16"},   {"train.loss_scale", "dynamic"},
        {"train.optimizer", "adamw"},  {"train.lr", "0.0003"},
        {"train.schedule", "cosine"},  {"train.beta2", "0.95"},
        {"train.eps", "1e-08"},        {"train.weight_decay", "0.1"},
        {"train.clip", "1"},           {"train.max_skips", "20"},
        {"model.init_std", "0.02"},    {"parallel.schedule", "1f1b"},
        {"parallel.zero", "1"},        {"parallel.sequence", "true"},
        {"parallel.bucket_mb", "32"},  {"parallel.timeout_s", "600"},
        {"memory.recompute", "none"},  {"memory.limit_gb", "device"},
        {"checkpoint.every", "0"},     {"checkpoint.keep_every", "0"},
        {"checkpoint.keep", "3"},      {"checkpoint.level", "1"},
        {"checkpoint.resume", "auto"}, {"checkpoint.async", "true"},
        {"device.threads", "auto"},    {"data.valid", "none"},
    };
    tr_config cfg;
    tr_config_init(&cfg);
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        char *value = tr_config_get(&cfg, defaults[i][0]);
        assert_string_equal(value, defaults[i][1]);
        tr_free(value);
    }
    tr_config_clear(&cfg);
}

static void test_presets_set_switches(void **state)
{
    (void)state;
    tr_config cfg;
    assert_int_equal(fixture_resolve(&cfg, "model.preset=gpt2", 1), TR_OK);
    assert_int_equal(cfg.model.norm, TR_NORM_LAYER);
    assert_int_equal(cfg.model.position, TR_POSITION_LEARNED);
    assert_int_equal(cfg.model.mlp, TR_MLP_GELU);
    assert_true(cfg.model.bias && cfg.model.qkv_bias && cfg.model.tied);
    assert_true(cfg.model.norm_eps == 1e-5);
    tr_config_clear(&cfg);
    assert_int_equal(fixture_resolve(&cfg, "", 1), TR_OK);
    assert_int_equal(cfg.model.preset, TR_PRESET_LLAMA);
    assert_int_equal(cfg.model.norm, TR_NORM_RMS);
    assert_int_equal(cfg.model.position, TR_POSITION_ROPE);
    assert_true(cfg.model.rope_theta == 10000);
    assert_int_equal(cfg.model.mlp, TR_MLP_SWIGLU);
    assert_false(cfg.model.bias || cfg.model.qkv_bias || cfg.model.tied);
    assert_true(cfg.model.norm_eps == 1e-5);
    tr_config_clear(&cfg);
}

static void test_switches_win_over_the_preset(void **state)
{
    (void)state;
    tr_config cfg;
    /* In either order: a preset does not undo what was set before it. */
    assert_int_equal(fixture_resolve(&cfg, "model.norm=rms model.tied=false model.preset=gpt2", 1),
                     TR_OK);
    assert_int_equal(cfg.model.norm, TR_NORM_RMS);
    assert_false(cfg.model.tied);
    assert_true(cfg.model.bias);
    tr_config_clear(&cfg);
}

static void test_dump_reads_back(void **state)
{
    (void)state;
    static const char *const layouts[] = {
        "",
        "model.preset=gpt2 train.lr=0.1 train.min_lr=0.033333333333333333 "
        "train.seed=18446744073709551615",
        "parallel.pipeline=2 parallel.stages=1,3 train.precision=fp16 train.loss_scale=1024 "
        "parallel.inside=mpi memory.limit_gb=1.5 data.train=a,b:c run.name=#x\"y\\ "
        "device.threads=2",
    };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        tr_config cfg, back;
        assert_int_equal(fixture_resolve(&cfg, layouts[i], 2), TR_OK);
        char *yaml = tr_config_dump(&cfg);
        if (fixture_read(&back, yaml) != TR_OK)
            fail_msg("%s\n%s", tr_error_message(), yaml);
        assert_null(tr_config_diff(&cfg, &back, TR_HALF_MATHEMATICS));
        assert_null(tr_config_diff(&cfg, &back, TR_HALF_LAYOUT));
        assert_true(cfg.train.lr == back.train.lr && cfg.train.min_lr == back.train.min_lr);
        assert_int_equal(tr_config_resolve(&back, 2), TR_OK);
        char *again = tr_config_dump(&back);
        /* All is set by the file now; the values are the same. */
        assert_null(strstr(again, "# resolved"));
        tr_free(again);
        tr_free(yaml);
        tr_config_clear(&back);
        tr_config_clear(&cfg);
    }
}

static void test_dump_says_who_set_what(void **state)
{
    (void)state;
    tr_config cfg;
    assert_int_equal(fixture_resolve(&cfg, "train.lr=6e-4", 3), TR_OK);
    char *yaml = tr_config_dump(&cfg);
    static const char *const lines[] = {
        "  layers: 4 # t.yaml:2\n",      "  seq_len: 32 # t.yaml:9\n",
        "  lr: 0.0006 # command line\n", "  beta1: 0.9 # default\n",
        "  norm: rms # preset llama\n",  "  data: 3 # resolved\n",
        "  kv_heads: 4 # resolved\n",    "  dir: runs/run # resolved\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (strstr(yaml, lines[i]) == NULL)
            fail_msg("'%s' is not in:\n%s", lines[i], yaml);
    tr_free(yaml);
    tr_config_clear(&cfg);
}

static void test_diff_names_both_values(void **state)
{
    (void)state;
    tr_config a, b;
    assert_int_equal(fixture_resolve(&a, "train.lr=6e-4 train.min_lr=0", 2), TR_OK);
    assert_int_equal(
        fixture_resolve(&b, "parallel.tensor=2 train.min_lr=0 train.reduction_leaves=2", 2), TR_OK);
    char *mathematics = tr_config_diff(&a, &b, TR_HALF_MATHEMATICS);
    assert_string_equal(mathematics, "train.lr: 0.0006 / 0.0003");
    char *layout = tr_config_diff(&a, &b, TR_HALF_LAYOUT);
    assert_string_equal(
        layout, "parallel.data: 2 / 1\nparallel.tensor: 1 / 2\nparallel.shard_ranks: 2 / 1");
    tr_free(mathematics);
    tr_free(layout);
    tr_config_clear(&a);
    tr_config_clear(&b);
}

static void test_copy_is_deep(void **state)
{
    (void)state;
    tr_config a, b;
    assert_int_equal(
        fixture_resolve(&a, "data.train=x parallel.pipeline=4 train.global_batch=2", 4), TR_OK);
    char *before = tr_config_dump(&a);
    tr_config_copy(&b, &a);
    assert_ptr_not_equal(a.derived.chunk_layers, b.derived.chunk_layers);
    assert_int_equal(a.derived.chunk_layers[3], b.derived.chunk_layers[3]);
    assert_string_equal(a.derived.warnings, b.derived.warnings);
    tr_config_clear(&a);
    char *after = tr_config_dump(&b);
    assert_string_equal(before, after);
    tr_free(before);
    tr_free(after);
    tr_config_clear(&b);
}

static void test_manual_has_each_setting(void **state)
{
    (void)state;
    for (int markdown = 0; markdown < 2; markdown++) {
        char *text = NULL;
        size_t length = 0;
        FILE *out = open_memstream(&text, &length);
        tr_config_manual(out, markdown);
        fclose(out);
        for (size_t i = 0; i < tr_num_settings; i++) {
            assert_non_null(strstr(text, tr_settings[i].name));
            assert_non_null(strstr(text, tr_settings[i].meaning));
        }
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_field_has_a_row),
        cmocka_unit_test(test_rows_are_complete),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_presets_set_switches),
        cmocka_unit_test(test_switches_win_over_the_preset),
        cmocka_unit_test(test_dump_reads_back),
        cmocka_unit_test(test_dump_says_who_set_what),
        cmocka_unit_test(test_diff_names_both_values),
        cmocka_unit_test(test_copy_is_deep),
        cmocka_unit_test(test_manual_has_each_setting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
