/* Values, files and measures of the golden tests; golden_data.h says what they are. */
#include "tests/golden/golden_data.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static const char grad_prefix[] = "grad.";

static const struct {
    const char *text;
    int64_t bytes;
} dtypes[] = {
    [TR_GOLDEN_F64] = {"F64", 8},
    [TR_GOLDEN_F32] = {"F32", 4},
    [TR_GOLDEN_I32] = {"I32", 4},
};

static tr_status parse_dtype(const json_t *entry, tr_golden_tensor *tensor, const char *path)
{
    const char *text = json_string_value(json_object_get(entry, "dtype"));
    for (int i = 0; text && i < (int)(sizeof dtypes / sizeof *dtypes); i++) {
        if (strcmp(text, dtypes[i].text) == 0) {
            tensor->dtype = (tr_golden_dtype)i;
            return TR_OK;
        }
    }
    return tr_fail(TR_ERR_DATA, "%s: tensor %s has dtype %s, expected F64, F32 or I32", path,
                   tensor->name, text ? text : "(none)");
}

static tr_status parse_shape(const json_t *entry, int64_t limit, tr_golden_tensor *tensor,
                             const char *path)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t num_dims = json_array_size(shape);
    if (!json_is_array(shape) || num_dims > TR_GOLDEN_MAX_DIMS)
        return tr_fail(TR_ERR_DATA, "%s: tensor %s needs a shape of at most %d dimensions", path,
                       tensor->name, TR_GOLDEN_MAX_DIMS);
    tensor->num_dims = (int)num_dims;
    tensor->count = 1;
    for (size_t i = 0; i < num_dims; i++) {
        int64_t dim = json_integer_value(json_array_get(shape, i));
        /* The product stays below the file's size, so that it cannot overflow. */
        if (dim < 1 || dim > limit / tensor->count)
            return tr_fail(TR_ERR_DATA, "%s: tensor %s has a shape that does not fit the file",
                           path, tensor->name);
        tensor->dims[i] = dim;
        tensor->count *= dim;
    }
    return TR_OK;
}

/* Fills everything but the name; `data` holds `size` bytes. */
static tr_status parse_tensor(const json_t *entry, const unsigned char *data, int64_t size,
                              tr_golden_tensor *tensor, const char *path)
{
    TR_TRY(parse_dtype(entry, tensor, path));
    TR_TRY(parse_shape(entry, size, tensor, path));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    int64_t end = json_integer_value(json_array_get(offsets, 1));
    int64_t bytes = dtypes[tensor->dtype].bytes;
    if (json_array_size(offsets) != 2 || begin < 0 || end < begin || end > size ||
        end - begin != tensor->count * bytes)
        return tr_fail(TR_ERR_DATA,
                       "%s: tensor %s lies at bytes %lld to %lld of %lld, expected %lld inside",
                       path, tensor->name, (long long)begin, (long long)end, (long long)size,
                       (long long)(tensor->count * bytes));
    tensor->data = data + begin;
    if ((uintptr_t)tensor->data % (uintptr_t)bytes != 0)
        return tr_fail(TR_ERR_DATA, "%s: tensor %s is not aligned to its %lld-byte elements", path,
                       tensor->name, (long long)bytes);
    return TR_OK;
}

static tr_status parse_header(json_t *header, const unsigned char *data, int64_t size,
                              tr_golden_file *file)
{
    const char *name;
    json_t *entry;
    int64_t covered = 0;
    file->tensors = TR_NEW_ARRAY(tr_golden_tensor, json_object_size(header) + 1);
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        tr_golden_tensor *tensor = &file->tensors[file->num_tensors++];
        tensor->name = tr_strdup(name);
        TR_TRY(parse_tensor(entry, data, size, tensor, file->path));
        covered += tensor->count * dtypes[tensor->dtype].bytes;
    }
    if (covered != size)
        return tr_fail(TR_ERR_DATA, "%s: tensors take %lld bytes, the file holds %lld of them",
                       file->path, (long long)covered, (long long)size);
    return TR_OK;
}

static tr_status read_bytes(const char *path, unsigned char **bytes, int64_t *size)
{
    FILE *stream = fopen(path, "rb");
    if (!stream)
        return tr_fail(TR_ERR_IO, "%s: cannot be opened", path);
    tr_status status = TR_OK;
    long length = -1;
    if (fseek(stream, 0, SEEK_END) == 0)
        length = ftell(stream);
    unsigned char *buffer = TR_NEW_ARRAY(unsigned char, length > 0 ? (size_t)length : 1);
    rewind(stream);
    if (length < 0 || fread(buffer, 1, (size_t)length, stream) != (size_t)length) {
        tr_free(buffer);
        status = tr_fail(TR_ERR_IO, "%s: cannot be read", path);
    } else {
        *bytes = buffer;
        *size = length;
    }
    fclose(stream);
    return status;
}

/* Checks the length field and parses the header of `size` bytes; the tensors' bytes follow. */
static tr_status parse_file(tr_golden_file *file, int64_t size)
{
    uint64_t header_size = 0;
    for (int i = 7; size >= 8 && i >= 0; i--)
        header_size = header_size << 8 | file->bytes[i];
    if (size < 8 || header_size > (uint64_t)(size - 8))
        return tr_fail(TR_ERR_DATA, "%s: %lld bytes are too few for its header", file->path,
                       (long long)size);
    json_error_t problem;
    json_t *header = json_loadb((const char *)file->bytes + 8, (size_t)header_size,
                                JSON_REJECT_DUPLICATES, &problem);
    if (!json_is_object(header)) {
        json_decref(header);
        return tr_fail(TR_ERR_DATA, "%s: the header is not a JSON object: %s", file->path,
                       problem.text);
    }
    int64_t data_at = 8 + (int64_t)header_size;
    tr_status status = parse_header(header, file->bytes + data_at, size - data_at, file);
    json_decref(header);
    return status;
}

tr_status tr_golden_file_open(const char *path, tr_golden_file *file)
{
    tr_golden_file opened = {0};
    int64_t size = 0;
    TR_TRY(read_bytes(path, &opened.bytes, &size));
    opened.path = tr_strdup(path);
    tr_status status = parse_file(&opened, size);
    if (status != TR_OK) {
        tr_golden_file_close(&opened);
        memset(file, 0, sizeof *file);
        return status;
    }
    *file = opened;
    return TR_OK;
}

void tr_golden_file_close(tr_golden_file *file)
{
    for (int i = 0; i < file->num_tensors; i++)
        tr_free(file->tensors[i].name);
    tr_free(file->tensors);
    tr_free(file->bytes);
    tr_free(file->path);
    memset(file, 0, sizeof *file);
}

const tr_golden_tensor *tr_golden_file_find(const tr_golden_file *file, const char *name)
{
    for (int i = 0; i < file->num_tensors; i++) {
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    }
    return NULL;
}

static tr_status find_data(const tr_golden_file *file, const char *name, tr_golden_dtype dtype,
                           int64_t count, const void **data)
{
    const tr_golden_tensor *tensor = tr_golden_file_find(file, name);
    if (!tensor)
        return tr_fail(TR_ERR_DATA, "%s: there is no tensor %s", file->path, name);
    if (tensor->dtype != dtype || tensor->count != count)
        return tr_fail(TR_ERR_DATA, "%s: %s is %lld of %s, expected %lld of %s", file->path, name,
                       (long long)tensor->count, dtypes[tensor->dtype].text, (long long)count,
                       dtypes[dtype].text);
    *data = tensor->data;
    return TR_OK;
}

tr_status tr_golden_file_f32(const tr_golden_file *file, const char *name, int64_t count,
                             const float **data)
{
    const void *found;
    TR_TRY(find_data(file, name, TR_GOLDEN_F32, count, &found));
    *data = found;
    return TR_OK;
}

tr_status tr_golden_file_f64(const tr_golden_file *file, const char *name, int64_t count,
                             const double **data)
{
    const void *found;
    TR_TRY(find_data(file, name, TR_GOLDEN_F64, count, &found));
    *data = found;
    return TR_OK;
}

tr_status tr_golden_file_i32(const tr_golden_file *file, const char *name, int64_t count,
                             const int32_t **data)
{
    const void *found;
    TR_TRY(find_data(file, name, TR_GOLDEN_I32, count, &found));
    *data = found;
    return TR_OK;
}

const char *tr_golden_tensor_parameter(const tr_golden_tensor *tensor)
{
    size_t length = sizeof grad_prefix - 1;
    return strncmp(tensor->name, grad_prefix, length) == 0 ? tensor->name + length : NULL;
}

/* FNV-1a, 64 bits. */
static uint64_t name_key(const char *name)
{
    uint64_t key = UINT64_C(14695981039346656037);
    for (; *name; name++)
        key = (key ^ (unsigned char)*name) * UINT64_C(1099511628211);
    return key;
}

/* splitmix64: element `index` of the sequence that starts at `key`. */
static uint64_t hash_value(uint64_t key, int64_t index)
{
    uint64_t z = key + ((uint64_t)index + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static bool is_embedding(const char *name)
{
    return strstr(name, "wte.") || strstr(name, "wpe.") || strstr(name, "embed_tokens.") ||
           strstr(name, "lm_head.");
}

static bool is_bias(const char *name)
{
    size_t length = strlen(name);
    return length >= 5 && strcmp(name + length - 5, ".bias") == 0;
}

void tr_golden_weight_fill(const char *name, int num_dims, int64_t first, int64_t count, float *dst)
{
    double base = 0.0, scale = 0.1;
    if (is_embedding(name)) {
        scale = 0.2;
    } else if (num_dims == 1 && !is_bias(name)) {
        base = 1.0;
        scale = 0.2;
    }
    uint64_t key = name_key(name);
    for (int64_t i = 0; i < count; i++) {
        double u = (double)(hash_value(key, first + i) >> 40) / 16777216.0 * 2.0 - 1.0;
        dst[i] = (float)(base + scale * u);
    }
}

void tr_golden_tokens_fill(int step, int64_t count, int32_t *dst)
{
    char name[32];
    snprintf(name, sizeof name, "tokens.%d", step);
    uint64_t key = name_key(name);
    for (int64_t i = 0; i < count; i++)
        dst[i] = (int32_t)((hash_value(key, i) >> 33) % 257);
}

double tr_golden_norm(const float *x, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

double tr_golden_distance(const float *a, const float *b, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double difference = (double)a[i] - (double)b[i];
        sum += difference * difference;
    }
    return sqrt(sum);
}

/* Length of the part of a parameter's name that its whole layer shares: up to and with the dot after the first
 * number, or 0 when no part of it is a number. */
static size_t layer_prefix(const char *name)
{
    for (const char *part = name; part; part = strchr(part, '.')) {
        part += *part == '.';
        size_t digits = strspn(part, "0123456789");
        if (digits > 0 && part[digits] == '.')
            return (size_t)(part - name) + digits + 1;
    }
    return 0;
}

static bool is_same_layer(const char *a, const char *b)
{
    size_t length = layer_prefix(a);
    return length > 0 ? strncmp(a, b, length) == 0 : strcmp(a, b) == 0;
}

static double largest_norm_in_layer(const tr_golden_file *file, const char *name)
{
    double largest = 0.0;
    for (int i = 0; i < file->num_tensors; i++) {
        const tr_golden_tensor *tensor = &file->tensors[i];
        const char *other = tr_golden_tensor_parameter(tensor);
        if (other && tensor->dtype == TR_GOLDEN_F32 && is_same_layer(name, other))
            largest = fmax(largest, tr_golden_norm(tensor->data, tensor->count));
    }
    return largest;
}

tr_status tr_golden_gradient_error(const tr_golden_file *file, const char *name, const float *got,
                                   int64_t count, double *error)
{
    char *key = tr_format("%s%s", grad_prefix, name);
    const float *want = NULL;
    tr_status status = tr_golden_file_f32(file, key, count, &want);
    tr_free(key);
    TR_TRY(status);
    double scale = fmax(tr_golden_norm(want, count), 1e-3 * largest_norm_in_layer(file, name));
    double distance = tr_golden_distance(got, want, count);
    /* Where all is zero in the file, only zero agrees. */
    *error = scale > 0.0 ? distance / scale : (distance == 0.0 ? 0.0 : INFINITY);
    return TR_OK;
}
