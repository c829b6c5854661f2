/* Reading a manifest: from bytes that anyone may have written to a struct that can be relied on. */
#include "io/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/manifest_int.h"

enum {
    HASH_LINE = TR_HASH128_TEXT, /* 32 digits and a newline */
    MOST_BYTES = 256 << 20,      /* of the file: a million tensors and more */
    MOST_DIM_BITS = 60           /* elements of a tensor: their bytes stay below 2^62 */
};

typedef struct reader {
    const char *path;
    tr_manifest *manifest;
} reader;

static tr_status refuse(const reader *r, const char *key, const char *expected)
{
    return tr_fail(TR_ERR_CHECKPOINT, "%s: \"%s\": expected %s", r->path, key, expected);
}

/* What is counted goes on being counted: far from where it would overflow. */
static tr_status get_int(const reader *r, const json_t *object, const char *key, int64_t *value)
{
    const json_t *found = json_object_get(object, key);
    if (!json_is_integer(found) || json_integer_value(found) < 0 ||
        json_integer_value(found) > INT64_MAX / 2)
        return refuse(r, key, "a whole number from 0 to 2^62");
    *value = json_integer_value(found);
    return TR_OK;
}

static tr_status get_text(const reader *r, const json_t *object, const char *key,
                          const char **value)
{
    *value = json_string_value(json_object_get(object, key));
    return *value != NULL ? TR_OK : refuse(r, key, "a text");
}

static tr_status get_hash(const reader *r, const json_t *object, const char *key, tr_hash128 *value)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || !tr_hash128_from_text(text, value))
        return refuse(r, key, "32 hexadecimal digits");
    return TR_OK;
}

static tr_status seed_parse(const reader *r, const json_t *root)
{
    const char *text;
    char *end;
    TR_TRY(get_text(r, root, KEY_SEED, &text));
    errno = 0;
    r->manifest->seed = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9')
        return refuse(r, KEY_SEED, "a whole number as text");
    return TR_OK;
}

static tr_status scalars_parse(const reader *r, const json_t *root)
{
    tr_manifest *manifest = r->manifest;
    const json_t *scaler = json_object_get(root, KEY_SCALER), *loss;
    const char *text;
    TR_TRY(get_int(r, root, KEY_STEP, &manifest->step));
    TR_TRY(get_int(r, root, KEY_SAMPLES, &manifest->samples));
    TR_TRY(get_int(r, root, KEY_UPDATES, &manifest->updates));
    TR_TRY(get_int(r, root, KEY_SKIPS, &manifest->skips_in_row));
    TR_TRY(seed_parse(r, root));
    TR_TRY(get_int(r, scaler, KEY_GOOD_STEPS, &manifest->good_steps));
    manifest->scale = json_number_value(json_object_get(scaler, KEY_SCALE));
    if (!(manifest->scale > 0) || isinf(manifest->scale))
        return refuse(r, KEY_SCALE, "a positive number");
    loss = json_object_get(root, KEY_LOSS);
    if (!json_is_null(loss) && !json_is_number(loss))
        return refuse(r, KEY_LOSS, "a number or null");
    manifest->loss = json_is_number(loss) ? json_number_value(loss) : NAN;
    TR_TRY(get_text(r, root, KEY_NUMERICS, &text));
    manifest->numerics = tr_strdup(text);
    TR_TRY(get_text(r, root, KEY_CONFIG, &text));
    manifest->config = tr_strdup(text);
    return TR_OK;
}

static tr_status kinds_parse(const reader *r, const json_t *root)
{
    const json_t *list = json_object_get(root, KEY_KINDS);
    size_t count = json_array_size(list); /* 0 for what is no array */
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        int kind = 0;
        while (kind < TR_SHARD_NUM_KINDS &&
               (name == NULL || strcmp(name, tr_shard_kind_name((tr_shard_kind)kind)) != 0))
            kind++;
        if (kind == TR_SHARD_NUM_KINDS || r->manifest->kinds[kind])
            return refuse(r, KEY_KINDS, "each of \"master\", \"m\", \"v\" at most once");
        r->manifest->kinds[kind] = true;
    }
    return r->manifest->kinds[TR_SHARD_MASTER] ? TR_OK : refuse(r, KEY_KINDS, "\"master\" in it");
}

static bool name_is_fine(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length >= TR_MANIFEST_NAME)
        return false;
    for (size_t i = 0; i < length; i++)
        if (name[i] <= ' ' || name[i] >= 0x7f)
            return false;
    return true;
}

static tr_status param_parse(const reader *r, const json_t *row, tr_manifest_param *param)
{
    const json_t *shape = json_object_get(row, KEY_SHAPE);
    const char *name;
    TR_TRY(get_text(r, row, KEY_NAME, &name));
    if (!name_is_fine(name))
        return refuse(r, KEY_NAME, "a short name of printable characters");
    strcpy(param->name, name);
    param->num_dims = (int)json_array_size(shape);
    param->shape[1] = 1;
    bool good = param->num_dims == 1 || param->num_dims == 2;
    for (int d = 0; good && d < param->num_dims; d++) {
        param->shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
        good = param->shape[d] > 0;
    }
    if (!good || param->shape[0] > (INT64_C(1) << MOST_DIM_BITS) / param->shape[1])
        return tr_fail(TR_ERR_CHECKPOINT, "%s: tensor %s: expected a shape of 1 or 2 sizes",
                       r->path, name);
    param->tied_to = -1;
    return TR_OK;
}

static int by_name(const void *a, const void *b)
{
    const tr_manifest_param *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Sorted pointers to the rows: names are many, and each must stand once. tr_free. */
static tr_status names_sort(const reader *r, const tr_manifest_param ***sorted)
{
    const tr_manifest *manifest = r->manifest;
    size_t count = (size_t)manifest->num_params;
    const tr_manifest_param **rows = TR_NEW_ARRAY(const tr_manifest_param *, count + 1);
    for (size_t i = 0; i < count; i++)
        rows[i] = &manifest->params[i];
    qsort(rows, count, sizeof rows[0], by_name);
    for (size_t i = 1; i < count; i++)
        if (strcmp(rows[i - 1]->name, rows[i]->name) == 0) {
            tr_status status = tr_fail(TR_ERR_CHECKPOINT, "%s: tensor %s stands there twice",
                                       r->path, rows[i]->name);
            tr_free(rows);
            return status;
        }
    *sorted = rows;
    return TR_OK;
}

static tr_status ties_parse(const reader *r, const json_t *list)
{
    tr_manifest *manifest = r->manifest;
    const tr_manifest_param **sorted = NULL;
    TR_TRY(names_sort(r, &sorted));
    tr_status status = TR_OK;
    for (int i = 0; i < manifest->num_params && status == TR_OK; i++) {
        tr_manifest_param *param = &manifest->params[i];
        const json_t *tied = json_object_get(json_array_get(list, (size_t)i), KEY_TIED_TO);
        if (tied == NULL)
            continue;
        const char *name = json_string_value(tied);
        tr_manifest_param key = {0};
        const tr_manifest_param *pointer = &key, **found = NULL;
        if (name != NULL && name_is_fine(name)) {
            strcpy(key.name, name);
            found =
                bsearch(&pointer, sorted, (size_t)manifest->num_params, sizeof sorted[0], by_name);
        }
        if (found == NULL || *found == param || (*found)->shape[0] != param->shape[0] ||
            (*found)->shape[1] != param->shape[1])
            status = refuse(r, KEY_TIED_TO, "the name of another tensor of the same shape");
        else
            param->tied_to = (int)(*found - manifest->params);
    }
    for (int i = 0; i < manifest->num_params && status == TR_OK; i++)
        if (manifest->params[i].tied_to >= 0 &&
            manifest->params[manifest->params[i].tied_to].tied_to >= 0)
            status = refuse(r, KEY_TIED_TO, "a tensor that has its own state");
    tr_free(sorted);
    return status;
}

static tr_status params_parse(const reader *r, const json_t *root)
{
    const json_t *list = json_object_get(root, KEY_PARAMS);
    size_t count = json_array_size(list);
    if (count == 0)
        return refuse(r, KEY_PARAMS, "at least one tensor");
    r->manifest->params = TR_NEW_ARRAY(tr_manifest_param, count);
    for (size_t i = 0; i < count; i++) {
        TR_TRY(param_parse(r, json_array_get(list, i), &r->manifest->params[i]));
        r->manifest->num_params++;
    }
    return ties_parse(r, list);
}

static tr_status files_parse(const reader *r, const json_t *root)
{
    const json_t *list = json_object_get(root, KEY_FILES);
    size_t count = json_array_size(list);
    if (count == 0)
        return refuse(r, KEY_FILES, "at least one file");
    r->manifest->files = TR_NEW_ARRAY(tr_manifest_file, count);
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(list, i);
        tr_manifest_file *file = &r->manifest->files[i];
        const char *name;
        TR_TRY(get_text(r, row, KEY_NAME, &name));
        if (!tr_manifest_is_file_name(name) || (i > 0 && (strlen(name) < strlen(file[-1].name) ||
                                                          (strlen(name) == strlen(file[-1].name) &&
                                                           strcmp(name, file[-1].name) <= 0))))
            return refuse(r, KEY_NAME, "names like shard-00000.bin in ascending order");
        strcpy(file->name, name);
        TR_TRY(get_int(r, row, KEY_BYTES, &file->bytes));
        TR_TRY(get_hash(r, row, KEY_HASH, &file->hash));
        TR_TRY(get_hash(r, row, KEY_TABLE_HASH, &file->table_hash));
        r->manifest->num_files++;
    }
    return TR_OK;
}

static tr_status document_parse(const reader *r, const json_t *root)
{
    const char *format = json_string_value(json_object_get(root, KEY_FORMAT));
    if (format == NULL || strcmp(format, FORMAT_NAME) != 0)
        return refuse(r, KEY_FORMAT, "\"" FORMAT_NAME "\"");
    int64_t version = 0;
    TR_TRY(get_int(r, root, KEY_VERSION, &version));
    if (version != TR_MANIFEST_VERSION)
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: checkpoint format %" PRId64 "; this version of trine reads format %d",
                       r->path, version, TR_MANIFEST_VERSION);
    TR_TRY(scalars_parse(r, root));
    TR_TRY(kinds_parse(r, root));
    TR_TRY(params_parse(r, root));
    return files_parse(r, root);
}

/* All bytes of the file, a zero byte behind them. tr_free. */
static tr_status file_load(const char *path, char **bytes, size_t *size)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* of a pipe nothing is waited for */
    if (fd < 0)
        return tr_fail_errno(TR_ERR_CHECKPOINT, errno, "%s: cannot open the manifest", path);
    tr_status status = TR_OK;
    char *text = NULL;
    size_t used = 0;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size > MOST_BYTES)
        status = tr_fail(TR_ERR_CHECKPOINT, "%s: not a file of at most %d bytes", path, MOST_BYTES);
    else
        text = TR_NEW_ARRAY(char, (size_t)about.st_size + 1);
    while (status == TR_OK && used < (size_t)about.st_size) {
        ssize_t got = read(fd, text + used, (size_t)about.st_size - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = tr_fail_errno(TR_ERR_CHECKPOINT, errno, "%s: reading failed", path);
        else if (got == 0)
            status = tr_fail(TR_ERR_CHECKPOINT, "%s: the file became shorter", path);
        else
            used += (size_t)got;
    }
    close(fd);
    if (status != TR_OK) {
        tr_free(text);
        return status;
    }
    *bytes = text;
    *size = used;
    return TR_OK;
}

static tr_status hash_check(const char *path, const char *bytes, size_t size, size_t *json_size)
{
    char digits[TR_HASH128_TEXT];
    tr_hash128 recorded;
    if (size <= HASH_LINE || bytes[size - 1] != '\n' || bytes[size - HASH_LINE - 1] != '\n')
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: damaged: the last line is no hash; it may have been cut short", path);
    memcpy(digits, bytes + size - HASH_LINE, HASH_LINE - 1);
    digits[HASH_LINE - 1] = '\0';
    *json_size = size - HASH_LINE;
    if (!tr_hash128_from_text(digits, &recorded) ||
        !tr_hash128_equal(recorded, tr_hash128_compute(bytes, *json_size)))
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: damaged: the hash in its last line is not that of its content", path);
    return TR_OK;
}

tr_status tr_manifest_read(const char *path, tr_manifest *manifest)
{
    char *bytes = NULL;
    size_t size = 0, json_size = 0;
    json_error_t error;
    TR_TRY(file_load(path, &bytes, &size));
    tr_status status = hash_check(path, bytes, size, &json_size);
    if (status != TR_OK) {
        tr_free(bytes);
        return status;
    }
    json_t *root = json_loadb(bytes, json_size, JSON_REJECT_DUPLICATES, &error);
    tr_free(bytes);
    if (root == NULL)
        return tr_fail(TR_ERR_CHECKPOINT, "%s:%d:%d: %s", path, error.line, error.column,
                       error.text);
    tr_manifest parsed = {0};
    status = document_parse(&(reader){path, &parsed}, root);
    json_decref(root);
    if (status != TR_OK)
        tr_manifest_clear(&parsed);
    else
        *manifest = parsed;
    return status;
}
