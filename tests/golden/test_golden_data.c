/* tests/golden/golden_data: the C values are those of make_golden.py, damaged files are refused, the measure is right.
 * The files that PyTorch wrote are the witness for values and reader; small files made here for the rest. */
#include "tests/golden/golden_data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"

static const char file_g[] = TRINE_GOLDEN_DIR "/golden_g.safetensors";
static const char file_l[] = TRINE_GOLDEN_DIR "/golden_l.safetensors";

/* Every parameter's values against the weighted sum that the script stored. Returns how many there were. */
static int check_weights(const char *path)
{
    tr_golden_file file;
    int num_parameters = 0;
    assert_int_equal(tr_golden_file_open(path, &file), TR_OK);
    for (int i = 0; i < file.num_tensors; i++) {
        const tr_golden_tensor *grad = &file.tensors[i];
        const char *name = tr_golden_tensor_parameter(grad);
        if (!name)
            continue;
        num_parameters++;
        char *key = tr_format("weight_check.%s", name);
        const double *want;
        assert_int_equal(tr_golden_file_f64(&file, key, 1, &want), TR_OK);
        tr_free(key);
        float *weight = TR_NEW_ARRAY(float, (size_t)grad->count);
        tr_golden_weight_fill(name, grad->num_dims, 0, grad->count, weight);
        double sum = 0.0, size = 0.0;
        for (int64_t k = 0; k < grad->count; k++) {
            sum += (double)(k + 1) * (double)weight[k];
            size += (double)(k + 1) * fabs((double)weight[k]);
        }
        assert_true(fabs(sum - *want) <= 1e-13 * size);
        tr_free(weight);
    }
    tr_golden_file_close(&file);
    return num_parameters;
}

static void test_weights_are_those_of_the_script(void **state)
{
    (void)state;
    assert_int_equal(check_weights(file_g), 4 + 4 * 16);
    assert_int_equal(check_weights(file_l), 3 + 4 * 9);
}

static void test_a_part_of_a_weight_is_a_part_of_the_whole(void **state)
{
    (void)state;
    float whole[100], part[40];
    tr_golden_weight_fill("h.1.mlp.c_fc.weight", 2, 0, 100, whole);
    tr_golden_weight_fill("h.1.mlp.c_fc.weight", 2, 37, 40, part);
    assert_memory_equal(part, whole + 37, sizeof part);
    assert_true(whole[0] != whole[37]);
}

static void check_tokens(const tr_golden_file *file, int step, int64_t count)
{
    int32_t made[8 * 33];
    const int32_t *want;
    char *key = tr_format("tokens.%d", step);
    assert_int_equal(tr_golden_file_i32(file, key, count, &want), TR_OK);
    tr_free(key);
    tr_golden_tokens_fill(step, count, made);
    assert_memory_equal(made, want, (size_t)count * sizeof *made);
}

static void test_tokens_are_those_of_the_script(void **state)
{
    (void)state;
    tr_golden_file file;
    assert_int_equal(tr_golden_file_open(file_g, &file), TR_OK);
    check_tokens(&file, 0, 2 * 33);
    check_tokens(&file, 20, 8 * 33);
    tr_golden_file_close(&file);
}

/* Two facts that tie the tensors of a file together, so that a reader that mixes them up is seen. */
static void test_loss_is_the_mean_of_token_losses_from_logits(void **state)
{
    (void)state;
    tr_golden_file file;
    const float *logits;
    const double *loss, *token_loss;
    int32_t tokens[2 * 33];
    assert_int_equal(tr_golden_file_open(file_l, &file), TR_OK);
    assert_int_equal(tr_golden_file_f32(&file, "logits", 2 * 32 * 257, &logits), TR_OK);
    assert_int_equal(tr_golden_file_f64(&file, "token_loss", 2 * 32, &token_loss), TR_OK);
    assert_int_equal(tr_golden_file_f64(&file, "loss", 1, &loss), TR_OK);
    tr_golden_tokens_fill(0, 2 * 33, tokens);
    double mean = 0.0;
    for (int i = 0; i < 2 * 32; i++) {
        const float *row = logits + (ptrdiff_t)i * 257;
        double sum = 0.0;
        for (int v = 0; v < 257; v++)
            sum += exp((double)row[v]);
        double each = log(sum) - (double)row[tokens[i / 32 * 33 + i % 32 + 1]];
        assert_true(fabs(each - token_loss[i]) <= 1e-6);
        mean += token_loss[i] / 64.0;
    }
    assert_true(fabs(mean - *loss) <= 1e-12);
    const tr_golden_tensor *tensor = tr_golden_file_find(&file, "logits");
    assert_int_equal(tensor->num_dims, 3);
    assert_int_equal(tensor->dims[2], 257);
    assert_int_equal(tr_golden_file_find(&file, "loss")->num_dims, 0);
    tr_golden_file_close(&file);
}

static void test_asking_for_what_is_not_there(void **state)
{
    (void)state;
    tr_golden_file file;
    const float *data = NULL;
    assert_int_equal(tr_golden_file_open(file_l, &file), TR_OK);
    assert_null(tr_golden_file_find(&file, "grad.wte.weight"));
    assert_int_equal(tr_golden_file_f32(&file, "grad.wte.weight", 1, &data), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "grad.wte.weight"));
    assert_int_equal(tr_golden_file_f32(&file, "logits", 257, &data), TR_ERR_DATA);
    assert_int_equal(tr_golden_file_f32(&file, "loss", 1, &data), TR_ERR_DATA);
    assert_null(data);
    tr_golden_file_close(&file);
    assert_int_equal(tr_golden_file_open("/nonexistent/golden", &file), TR_ERR_IO);
}

/* Opens a file of this header (its length field from `header_size`, -1 = the right one) and `num_floats` floats. */
static tr_status open_made(const char *header, long header_size, const float *floats,
                           int num_floats, tr_golden_file *file)
{
    char path[] = "/tmp/golden_data_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *stream = fdopen(fd, "wb");
    assert_non_null(stream);
    uint64_t length = header_size < 0 ? strlen(header) : (uint64_t)header_size;
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> (8 * i) & 255), stream);
    fputs(header, stream);
    fwrite(floats, sizeof *floats, (size_t)num_floats, stream);
    fclose(stream);
    tr_status status = tr_golden_file_open(path, file);
    unlink(path);
    return status;
}

static void test_damaged_files_are_refused(void **state)
{
    (void)state;
    static const char good[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  ";
    static const float floats[3] = {0.0f};
    /* Each is one change away from the good one, and what its message must say. */
    static const struct {
        const char *header;
        long header_size;
        int num_floats;
        const char *message;
    } cases[] = {
        {good, -1, 1, "lies at bytes 0 to 8 of 4"},
        {good, -1, 3, "tensors take 8 bytes"},
        {good, 65, 2, "too few for its header"},
        {good, 52, 2, "not a JSON object"},
        {"[\"a\",{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}]  ", -1, 2,
         "not a JSON object"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}}  ", -1, 2,
         "has dtype F16"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}  ", -1, 2,
         "expected 12"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}  ", -1, 0, "shape that"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}    ", -1, 2,
         "needs a shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,8]}}  ", -1, 2,
         "4 to 8 of 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}} ", -1, 2,
         "-8 to 0 of 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", -1, 2,
         "0 to 8 of 8"},
        /* 2^62 * 4 elements, whose number of bytes overflows to 0. */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", -1,
         0, "shape that"},
        /* Well inside the file, but not where a float may lie: the header has one byte more. */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   ", -1, 2,
         "not aligned"},
    };
    tr_golden_file file;
    assert_int_equal(open_made(good, -1, floats, 2, &file), TR_OK);
    tr_golden_file_close(&file);
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        tr_status status =
            open_made(cases[i].header, cases[i].header_size, floats, cases[i].num_floats, &file);
        if (status != TR_ERR_DATA || !strstr(tr_error_message(), cases[i].message))
            fail_msg("case %d: %s, %s", i, tr_status_text(status), tr_error_message());
        assert_int_equal(file.num_tensors, 0);
    }
}

static void test_gradient_error_is_relative_to_the_layer(void **state)
{
    (void)state;
    static const char header[] =
        "{\"grad.h.1.a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"grad.h.1.b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
        "\"grad.h.10.a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]},"
        "\"grad.h\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[24,32]}}     ";
    /* Norms 5 and 0 in layer 1, 100 in layer 10, 0 outside. */
    static const float floats[8] = {3.0f, 4.0f, 0.0f, 0.0f, 100.0f, 0.0f, 0.0f, 0.0f};
    static const float off_a[2] = {3.0f, 4.5f}, off_b[2] = {0.0f, -0.001f}, zero[2] = {0.0f};
    static const float not_a_number[2] = {3.0f, NAN};
    tr_golden_file file;
    double error = -1.0;
    assert_int_equal(open_made(header, -1, floats, 8, &file), TR_OK);
    assert_int_equal(tr_golden_gradient_error(&file, "h.1.a", off_a, 2, &error), TR_OK);
    assert_true(fabs(error - 0.1) <= 1e-15);
    assert_int_equal(tr_golden_gradient_error(&file, "h.1.b", off_b, 2, &error), TR_OK);
    assert_true(fabs(error - 0.2) <= 1e-7);
    assert_int_equal(tr_golden_gradient_error(&file, "h", off_b, 2, &error), TR_OK);
    assert_true(isinf(error));
    assert_int_equal(tr_golden_gradient_error(&file, "h", zero, 2, &error), TR_OK);
    assert_true(error == 0.0);
    assert_int_equal(tr_golden_gradient_error(&file, "h.1.a", not_a_number, 2, &error), TR_OK);
    assert_false(error <= 1e30);
    assert_int_equal(tr_golden_gradient_error(&file, "h.1.a", off_a, 1, &error), TR_ERR_DATA);
    assert_int_equal(tr_golden_gradient_error(&file, "h.1.c", off_a, 2, &error), TR_ERR_DATA);
    tr_golden_file_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_those_of_the_script),
        cmocka_unit_test(test_a_part_of_a_weight_is_a_part_of_the_whole),
        cmocka_unit_test(test_tokens_are_those_of_the_script),
        cmocka_unit_test(test_loss_is_the_mean_of_token_losses_from_logits),
        cmocka_unit_test(test_asking_for_what_is_not_there),
        cmocka_unit_test(test_damaged_files_are_refused),
        cmocka_unit_test(test_gradient_error_is_relative_to_the_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
