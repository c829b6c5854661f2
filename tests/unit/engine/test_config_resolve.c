/* engine/config: what is derived, and the refusals of layouts that fit neither ranks, batch nor
 * model, with their numbers and the nearest values that fit. */
#include "tests/unit/engine/config_fixture.h"

#include "base/alloc.h"

static void refuses(const char *overrides, int64_t num_ranks, const char *const *parts)
{
    tr_config cfg;
    if (fixture_resolve(&cfg, overrides, num_ranks) != TR_ERR_SETTINGS)
        fail_msg("accepted on %d ranks: %s", (int)num_ranks, overrides);
    assert_message_parts(parts);
    tr_config_clear(&cfg);
}
#define refuses(overrides, num_ranks, ...)                                                         \
    refuses(overrides, num_ranks, (const char *const[]){__VA_ARGS__, NULL})

static void resolves(tr_config *cfg, const char *overrides, int64_t num_ranks)
{
    if (fixture_resolve(cfg, overrides, num_ranks) != TR_OK)
        fail_msg("%s: %s", overrides, tr_error_message());
}

static void accepts(const char *overrides, int64_t num_ranks)
{
    tr_config cfg;
    resolves(&cfg, overrides, num_ranks);
    tr_config_clear(&cfg);
}

static void test_open_ends_are_derived(void **state)
{
    (void)state;
    tr_config cfg;
    resolves(&cfg, "train.lr=1e-3 parallel.tensor=2 parallel.pipeline=2", 8);
    assert_int_equal(cfg.model.kv_heads, 4);
    assert_int_equal(cfg.model.head_dim, 16);
    assert_int_equal(cfg.model.max_positions, 32);
    assert_true(cfg.train.min_lr == 1e-3 / 10);
    assert_int_equal(cfg.parallel.data, 2);
    assert_int_equal(cfg.derived.num_ranks, 8);
    assert_int_equal(cfg.derived.microbatches, 24);
    assert_int_equal(cfg.train.reduction_leaves, 2);
    assert_int_equal(cfg.derived.leaves, 2);
    assert_int_equal(cfg.derived.num_chunks, 2);
    assert_int_equal(cfg.derived.chunk_layers[0] + cfg.derived.chunk_layers[1], 4);
    assert_string_equal(cfg.run.name, "run");
    assert_null(cfg.derived.warnings);
    tr_config_clear(&cfg);
}

static void test_number_of_ranks_may_be_unknown(void **state)
{
    (void)state;
    tr_config cfg;
    resolves(&cfg, "parallel.data=3 parallel.tensor=2", 0);
    assert_int_equal(cfg.derived.num_ranks, 6);
    tr_config_clear(&cfg);
    resolves(&cfg, "parallel.tensor=2", 0);
    assert_int_equal(cfg.derived.num_ranks, 2);
    assert_int_equal(cfg.parallel.data, 1);
    tr_config_clear(&cfg);
}

static void test_missing_settings_are_listed(void **state)
{
    (void)state;
    tr_config cfg;
    tr_config_init(&cfg);
    assert_int_equal(tr_config_override(&cfg, "model.layers=2"), TR_OK);
    assert_int_equal(tr_config_resolve(&cfg, 1), TR_ERR_SETTINGS);
    assert_message("must be set", "model.hidden", "model.vocab", "train.steps", "train.seq_len",
                   "train.global_batch");
    assert_null(strstr(tr_error_message(), "model.layers"));
    assert_null(strstr(tr_error_message(), "kv_heads"));
    tr_config_clear(&cfg);
}

static void test_ranks(void **state)
{
    (void)state;
    refuses("parallel.tensor=2 parallel.pipeline=2", 6, "6 ranks", "2 x", "multiple of 4",
            "mpiexec -n 4 or -n 8", "parallel.tensor = 1", "parallel.pipeline = 1 or 3");
    refuses("parallel.tensor=2", 1, "1 rank (started without mpiexec?)", "multiple of 2",
            "mpiexec -n 2", "parallel.tensor = 1");
    refuses("parallel.tensor=3 model.kv_heads=2", 8, "8 ranks", "multiple of 3",
            "mpiexec -n 6 or -n 9", "parallel.tensor = 2 or 4");
    refuses("parallel.data=2 parallel.tensor=2", 6, "6 ranks", "= 4 ranks", "mpiexec -n 4",
            "parallel.data = 3");
    accepts("parallel.data=2 parallel.tensor=2", 4);
    accepts("parallel.data=3 parallel.tensor=2", 6);
}

static void test_batch(void **state)
{
    (void)state;
    refuses("train.global_batch=10 train.micro_batch=4 parallel.data=2", 2,
            "train.global_batch (command line) = 10", "parallel.data 2",
            "train.micro_batch (command line) 4", "= 8 sequences", "train.global_batch = 8 or 16",
            "train.micro_batch = 1 or 5");
    refuses("train.global_batch=5", 8, "= 8 sequences", "train.global_batch = 8",
            "parallel.data = 5");
    accepts("train.global_batch=16 train.micro_batch=4", 2);
}

static void test_reduction_tree(void **state)
{
    (void)state;
    tr_config cfg;
    refuses("train.reduction_leaves=5", 1, "train.reduction_leaves (command line) = 5",
            "24 microbatches", "train.reduction_leaves = 4 or 6");
    /* Eight leaves cover the data sizes 1, 2, 4, 8; three ranks run their own tree and say so. */
    static const struct {
        int64_t data, leaves;
        bool warned;
    } cases[] = {{1, 8, false}, {2, 8, false}, {4, 8, false}, {8, 8, false},
                 {3, 3, true},  {6, 6, true},  {24, 24, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        resolves(&cfg, "train.reduction_leaves=8", cases[i].data);
        assert_int_equal(cfg.train.reduction_leaves, 8);
        assert_int_equal(cfg.derived.leaves, cases[i].leaves);
        bool warned =
            cfg.derived.warnings && strstr(cfg.derived.warnings, "reduction_leaves") != NULL;
        assert_int_equal(warned, cases[i].warned);
        tr_config_clear(&cfg);
    }
    /* A multiple is not enough: 24 / 8 is no power of two. */
    resolves(&cfg, "train.reduction_leaves=24", 8);
    assert_int_equal(cfg.derived.leaves, 8);
    tr_config_clear(&cfg);
}

/* What is open becomes what the first layout follows at no cost; rounds cover more data sizes. */
static void test_reduction_order(void **state)
{
    (void)state;
    tr_config cfg;
    static const struct {
        const char *text;
        tr_reduction_order order;
    } opens[] = {{"parallel.zero=0", TR_REDUCTION_BLOCKS},
                 {"", TR_REDUCTION_BLOCKS},
                 {"parallel.zero=2", TR_REDUCTION_ROUNDS},
                 {"parallel.zero=3", TR_REDUCTION_ROUNDS},
                 {"parallel.zero=2 train.reduction_order=blocks", TR_REDUCTION_BLOCKS}};
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
        resolves(&cfg, opens[i].text, 4);
        assert_int_equal(cfg.train.reduction_order, opens[i].order);
        assert_int_equal(cfg.train.reduction_leaves, 4);
        tr_config_clear(&cfg);
    }
    resolves(&cfg, "train.reduction_order=rounds train.reduction_leaves=24", 8);
    assert_true(cfg.derived.leaves == 24 && cfg.derived.warnings == NULL);
    tr_config_clear(&cfg);
    resolves(&cfg, "train.reduction_order=rounds train.reduction_leaves=8", 3);
    assert_int_equal(cfg.derived.leaves, 3);
    assert_non_null(strstr(cfg.derived.warnings, "in order rounds it covers 1, 2, 4 and 8"));
    tr_config_clear(&cfg);
    resolves(&cfg, "train.reduction_order=native", 4);
    assert_true(cfg.derived.leaves == 4 && cfg.derived.warnings == NULL);
    tr_config_clear(&cfg);
    resolves(&cfg, "train.reduction_order=native train.reduction_leaves=8", 4);
    assert_int_equal(cfg.derived.leaves, 4);
    assert_non_null(strstr(cfg.derived.warnings, "train.reduction_leaves = 8 has no effect"));
    tr_config_clear(&cfg);
}

/* Four heads, two of keys and values, 256 wide, 32 tokens: 1, 2 and 4 slices. A tensor size that does not divide them runs without. */
static void test_tensor_slices(void **state)
{
    (void)state;
    tr_config cfg;
    static const struct {
        const char *text;
        int64_t slices;
        bool warned;
    } cases[] = {{"parallel.tensor=4", 0, false},
                 {"train.tensor_slices=4", 4, false},
                 {"train.tensor_slices=4 parallel.tensor=2", 4, false},
                 {"train.tensor_slices=4 parallel.tensor=4", 4, false},
                 {"train.tensor_slices=2 parallel.tensor=4", 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        resolves(&cfg, cases[i].text, 4);
        assert_int_equal(cfg.derived.tensor_slices, cases[i].slices);
        bool warned = cfg.derived.warnings && strstr(cfg.derived.warnings, "tensor_slices") != NULL;
        assert_int_equal(warned, cases[i].warned);
        tr_config_clear(&cfg);
    }
    refuses("train.tensor_slices=8", 4, "train.tensor_slices (command line) = 8", "model.heads 4",
            "train.tensor_slices = 4, or 0");
    refuses("train.tensor_slices=3", 1, "a power of two", "train.tensor_slices = 2 or 4, or 0");
    refuses("train.tensor_slices=4 train.seq_len=6", 1, "tokens of a microbatch (6)",
            "train.tensor_slices = 2, or 0");
}

static void test_sharding_groups(void **state)
{
    (void)state;
    tr_config cfg;
    refuses("parallel.shard_ranks=4", 6, "parallel.shard_ranks (command line) = 4",
            "parallel.data = 6", "parallel.shard_ranks = 3 or 6");
    resolves(&cfg, "", 6);
    assert_int_equal(cfg.parallel.shard_ranks, 6);
    tr_config_clear(&cfg);
    resolves(&cfg, "parallel.shard_ranks=2 parallel.tensor=2", 8);
    tr_mesh mesh = tr_config_mesh(&cfg, 7); /* data 3, tensor 1 */
    assert_true(mesh.shard_size == 2 && mesh.shard == 1);
    assert_true(mesh.replica_size == 2 && mesh.replica == 1);
    tr_config_clear(&cfg);
    resolves(&cfg, "parallel.zero=0 parallel.shard_ranks=4", 6); /* nothing is sharded */
    assert_int_equal(tr_config_mesh(&cfg, 0).shard_size, 1);
    tr_config_clear(&cfg);
}

static void test_model_sizes(void **state)
{
    (void)state;
    refuses("model.heads=6", 1, "model.heads (command line) = 6", "64", "4 or 8", "model.head_dim");
    accepts("model.heads=6 model.head_dim=12", 1);
    refuses("model.kv_heads=3", 1, "model.kv_heads (command line) = 3", "model.heads = 4",
            "2 or 4");
    refuses("model.head_dim=15", 1, "model.head_dim", "15", "14 or", "16", "rope");
    accepts("model.head_dim=15 model.position=learned", 1);
    refuses("model.position=learned model.max_positions=16", 1, "train.seq_len = 32",
            "model.max_positions (command line) = 16");
    accepts("model.max_positions=16", 1);
    refuses("data.tokenizer=bytes model.vocab=256", 1, "model.vocab", "256", "257");
}

static void test_training_numbers(void **state)
{
    (void)state;
    refuses("train.warmup_steps=21", 1, "train.warmup_steps (command line) = 21",
            "train.steps = 20");
    refuses("train.lr=1e-4 train.min_lr=1e-3", 1, "train.min_lr (command line) = 0.001", "0.0001");
    refuses("train.loss_scale=1024", 1, "train.loss_scale", "fp16", "bf16");
    accepts("train.loss_scale=1024 train.precision=fp16", 1);
    refuses("train.tf32=true", 1, "train.tf32 (command line) = true", "bf16",
            "train.precision = fp32");
    accepts("train.tf32=true train.precision=fp32", 1);
    accepts("train.tf32=false", 1);
    refuses("train.eval_every=10", 1, "train.eval_every (command line) = 10", "data.valid");
    accepts("train.eval_every=10 data.valid=v", 1);
    refuses("train.steps=1000000000000 train.global_batch=1000000000", 1, "2^63");
    refuses("train.steps=1000000000000 train.global_batch=1000000 train.seq_len=16777216", 1,
            "2^63");
}

static void test_tensor_cuts(void **state)
{
    (void)state;
    refuses("model.hidden=96 model.heads=6 parallel.tensor=4", 4, "model.heads (command line) = 6",
            "parallel.tensor (command line) = 4", "model.heads = 4 or 8", "parallel.tensor = 2");
    refuses("model.hidden=96 model.heads=12 model.kv_heads=3 parallel.tensor=2", 2,
            "model.kv_heads (command line) = 3", "parallel.tensor (command line) = 2",
            "model.kv_heads = 2 or 4");
    accepts("model.kv_heads=2 parallel.tensor=4", 4); /* replicated */
    refuses("model.hidden=128 model.heads=8 model.ffn=100 parallel.tensor=8", 8,
            "model.ffn (command line) = 100", "model.ffn = 96 or 104", "parallel.tensor = 4");
    refuses("train.seq_len=30 parallel.tensor=4", 4, "train.micro_batch 1",
            "train.seq_len (command line) 30", "30 tokens", "train.seq_len = 28 or 32",
            "train.micro_batch = 2", "parallel.sequence = false");
    accepts("train.seq_len=30 parallel.tensor=4 parallel.sequence=false", 4);
    accepts("train.seq_len=30 parallel.tensor=4 train.micro_batch=2", 4);
}

static void test_stages(void **state)
{
    (void)state;
    tr_config cfg;
    refuses("parallel.pipeline=5", 5, "model.layers (t.yaml:2) = 4",
            "parallel.pipeline (command line) 5", "5 chunks", "at least 5 layers",
            "parallel.pipeline = 4");
    refuses("parallel.pipeline=2 parallel.stages=1,2,1", 2, "parallel.stages", "3", "needs 2");
    refuses("parallel.pipeline=2 parallel.stages=2,3", 2, "parallel.stages", "5", "model.layers",
            "4");
    refuses("parallel.virtual=2 parallel.pipeline=2", 2, "parallel.virtual", "interleaved");
    refuses("parallel.schedule=interleaved parallel.pipeline=2", 2, "interleaved",
            "parallel.virtual", "1f1b");
    accepts("parallel.schedule=interleaved parallel.pipeline=2 parallel.virtual=2 "
            "train.global_batch=9",
            2);
    refuses("parallel.schedule=zb-h1 parallel.pipeline=2 parallel.virtual=2", 2, "zb-h1",
            "parallel.virtual 1, got 2");
    refuses("parallel.schedule=zb-v parallel.pipeline=2 parallel.virtual=1", 2, "zb-v",
            "parallel.virtual 2, got 1");
    resolves(&cfg,
             "parallel.schedule=interleaved parallel.pipeline=2 parallel.virtual=2 model.layers=7 "
             "parallel.stages=1,3,2,1",
             2);
    assert_int_equal(cfg.derived.num_chunks, 4);
    const int64_t expected[] = {1, 3, 2, 1};
    assert_memory_equal(cfg.derived.chunk_layers, expected, sizeof expected);
    tr_config_clear(&cfg);
    /* The two chunks of a V come by themselves; first and last chunk share stage 0. */
    resolves(&cfg, "parallel.schedule=zb-v parallel.pipeline=2 model.layers=8 model.vocab=2000", 2);
    assert_int_equal(cfg.parallel.virtual_, 2);
    assert_int_equal(cfg.derived.head_stage, 0);
    const int64_t around_the_head[] = {2, 2, 3, 1};
    assert_memory_equal(cfg.derived.chunk_layers, around_the_head, sizeof around_the_head);
    tr_config_clear(&cfg);
}

static void test_no_layer_is_lost(void **state)
{
    (void)state;
    for (int layers = 1; layers <= 12; layers++)
        for (int pipeline = 1; pipeline <= layers; pipeline++) {
            char overrides[100];
            snprintf(overrides, sizeof overrides, "model.layers=%d parallel.pipeline=%d", layers,
                     pipeline);
            tr_config cfg;
            resolves(&cfg, overrides, pipeline);
            int64_t sum = 0;
            for (int64_t c = 0; c < cfg.derived.num_chunks; c++) {
                assert_true(cfg.derived.chunk_layers[c] >= 1);
                sum += cfg.derived.chunk_layers[c];
            }
            assert_int_equal(sum, layers);
            tr_config_clear(&cfg);
        }
}

static void test_few_microbatches_are_pointed_out(void **state)
{
    (void)state;
    tr_config cfg;
    resolves(&cfg, "parallel.pipeline=4 train.global_batch=2", 4);
    assert_non_null(cfg.derived.warnings);
    assert_non_null(strstr(cfg.derived.warnings, "2 microbatches"));
    assert_non_null(strstr(cfg.derived.warnings, "60%")); /* 3 / (2 + 3) */
    tr_config_clear(&cfg);
    resolves(&cfg, "parallel.pipeline=4 train.global_batch=4", 4);
    assert_null(cfg.derived.warnings);
    tr_config_clear(&cfg);
}

static void test_coarse_problems_first(void **state)
{
    (void)state;
    /* Ranks, batch and cuts are all wrong: ranks are what the user must settle first. */
    refuses("parallel.tensor=3 train.global_batch=7 train.micro_batch=2", 8, "multiple of 3");
    refuses("parallel.tensor=3 train.global_batch=7 train.micro_batch=2", 9, "train.global_batch");
    refuses("parallel.tensor=3 train.global_batch=6", 9, "model.heads");
}

static void test_batch_text_has_both_ways(void **state)
{
    (void)state;
    tr_config cfg;
    resolves(&cfg, "train.micro_batch=2", 3);
    char *text = tr_config_batch_text(&cfg);
    static const char *const parts[] = {
        "24 sequences x 32 tokens = 768 tokens",
        "12 microbatches",
        "8 sequences = 256 tokens",
        "4 microbatches of 2 sequences (64 tokens)",
        "3 data ranks",
        "20 steps = 480 sequences = 15360 tokens",
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(text, parts[i]) == NULL)
            fail_msg("'%s' is not in: %s", parts[i], text);
    tr_free(text);
    tr_config_clear(&cfg);
}

/* What overflows 64 bits is refused before anything is counted with it. */
static void test_impossible_sizes_are_refused(void **state)
{
    (void)state;
    refuses("model.layers=65536 model.hidden=16777216 model.ffn=16777216 model.head_dim=2", 1,
            "the model's state comes to about", "model.layers (command line) 65536");
    refuses("model.heads=65536 model.kv_heads=65536 model.head_dim=65536 model.hidden=16777216 "
            "model.layers=256",
            1, "the model's state comes to about");
    refuses("train.seq_len=16777216 train.micro_batch=1048576 train.global_batch=1048576 "
            "train.steps=1 model.hidden=65536",
            1, "a data rank's step of 1048576 sequences (train.global_batch (command line)");
    refuses("parallel.data=1048576 parallel.tensor=8 parallel.pipeline=512 model.heads=8 "
            "model.layers=512",
            0, "= 4294967296 ranks: use at most 1048576");
    accepts("model.layers=126 model.hidden=16384 model.heads=128 model.kv_heads=8 model.ffn=53248 "
            "model.vocab=128256 train.seq_len=8192 train.global_batch=2048 parallel.data=16 "
            "parallel.tensor=8 parallel.pipeline=16",
            0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_impossible_sizes_are_refused),
        cmocka_unit_test(test_open_ends_are_derived),
        cmocka_unit_test(test_number_of_ranks_may_be_unknown),
        cmocka_unit_test(test_missing_settings_are_listed),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_reduction_tree),
        cmocka_unit_test(test_reduction_order),
        cmocka_unit_test(test_tensor_slices),
        cmocka_unit_test(test_sharding_groups),
        cmocka_unit_test(test_model_sizes),
        cmocka_unit_test(test_training_numbers),
        cmocka_unit_test(test_tensor_cuts),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_no_layer_is_lost),
        cmocka_unit_test(test_few_microbatches_are_pointed_out),
        cmocka_unit_test(test_coarse_problems_first),
        cmocka_unit_test(test_batch_text_has_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
