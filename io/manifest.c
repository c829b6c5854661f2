#include "io/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "io/file_commit.h"
#include "io/manifest_int.h"

void tr_manifest_file_name(int rank, char name[TR_MANIFEST_FILE])
{
    snprintf(name, TR_MANIFEST_FILE, "shard-%05d.bin", rank);
}

bool tr_manifest_is_file_name(const char *name)
{
    char exact[TR_MANIFEST_FILE];
    if (strncmp(name, "shard-", 6) != 0 || name[6] < '0' || name[6] > '9')
        return false;
    errno = 0;
    long rank = strtol(name + 6, NULL, 10);
    if (errno != 0 || rank > INT32_MAX)
        return false;
    tr_manifest_file_name((int)rank, exact);
    return strcmp(name, exact) == 0;
}

int tr_manifest_find(const tr_manifest *manifest, const char *name)
{
    for (int i = 0; i < manifest->num_params; i++)
        if (strcmp(manifest->params[i].name, name) == 0)
            return i;
    return -1;
}

char *tr_manifest_find_incomplete(const tr_manifest *manifest, const char *folder)
{
    char *wrong = NULL;
    for (int i = 0; i < manifest->num_files && wrong == NULL; i++) {
        struct stat about;
        char *path = tr_format("%s/%s", folder, manifest->files[i].name);
        if (stat(path, &about) != 0)
            wrong = tr_format("%s is missing", manifest->files[i].name);
        else if (about.st_size != manifest->files[i].bytes)
            wrong = tr_format("%s has another size", manifest->files[i].name);
        tr_free(path);
    }
    return wrong;
}

int64_t tr_manifest_bytes(const tr_manifest *manifest)
{
    int64_t bytes = 0;
    for (int i = 0; i < manifest->num_files; i++)
        bytes += manifest->files[i].bytes;
    return bytes;
}

void tr_manifest_clear(tr_manifest *manifest)
{
    tr_free(manifest->numerics);
    tr_free(manifest->config);
    tr_free(manifest->params);
    tr_free(manifest->files);
    *manifest = (tr_manifest){0};
}

/* ---- writing ---- */

static void set(json_t *object, const char *key, json_t *value)
{
    int failed = json_object_set_new(object, key, value);
    TR_ASSERT(failed == 0); /* all texts are UTF-8: see text_json */
}

/* A JSON string; of a text that is not UTF-8 the bytes above 127 become '?', so that any path in a
 * configuration is fine. */
static json_t *text_json(const char *text)
{
    json_t *value = json_string(text);
    if (value != NULL)
        return value;
    char *ascii = tr_strdup(text);
    for (char *at = ascii; *at != '\0'; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    value = json_string(ascii);
    tr_free(ascii);
    return value;
}

static json_t *hash_json(tr_hash128 hash)
{
    char text[TR_HASH128_TEXT];
    tr_hash128_to_text(hash, text);
    return json_string(text);
}

static json_t *params_json(const tr_manifest *manifest)
{
    json_t *rows = json_array();
    for (int i = 0; i < manifest->num_params; i++) {
        const tr_manifest_param *param = &manifest->params[i];
        json_t *row = json_object(), *shape = json_array();
        for (int d = 0; d < param->num_dims; d++)
            json_array_append_new(shape, json_integer(param->shape[d]));
        set(row, KEY_NAME, json_string(param->name));
        set(row, KEY_SHAPE, shape);
        if (param->tied_to >= 0)
            set(row, KEY_TIED_TO, json_string(manifest->params[param->tied_to].name));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *files_json(const tr_manifest *manifest)
{
    json_t *rows = json_array();
    for (int i = 0; i < manifest->num_files; i++) {
        json_t *row = json_object();
        set(row, KEY_NAME, json_string(manifest->files[i].name));
        set(row, KEY_BYTES, json_integer(manifest->files[i].bytes));
        set(row, KEY_HASH, hash_json(manifest->files[i].hash));
        set(row, KEY_TABLE_HASH, hash_json(manifest->files[i].table_hash));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *document(const tr_manifest *manifest)
{
    json_t *root = json_object(), *scaler = json_object(), *kinds = json_array();
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, manifest->seed);
    for (int k = 0; k < TR_SHARD_NUM_KINDS; k++)
        if (manifest->kinds[k])
            json_array_append_new(kinds, json_string(tr_shard_kind_name((tr_shard_kind)k)));
    set(scaler, KEY_SCALE, json_real(manifest->scale));
    set(scaler, KEY_GOOD_STEPS, json_integer(manifest->good_steps));
    set(root, KEY_FORMAT, json_string(FORMAT_NAME));
    set(root, KEY_VERSION, json_integer(TR_MANIFEST_VERSION));
    set(root, KEY_STEP, json_integer(manifest->step));
    set(root, KEY_SAMPLES, json_integer(manifest->samples));
    set(root, KEY_UPDATES, json_integer(manifest->updates));
    set(root, KEY_SKIPS, json_integer(manifest->skips_in_row));
    set(root, KEY_SEED, json_string(seed));
    set(root, KEY_SCALER, scaler);
    set(root, KEY_LOSS, isfinite(manifest->loss) ? json_real(manifest->loss) : json_null());
    set(root, KEY_NUMERICS, text_json(manifest->numerics));
    set(root, KEY_CONFIG, text_json(manifest->config));
    set(root, KEY_KINDS, kinds);
    set(root, KEY_PARAMS, params_json(manifest));
    set(root, KEY_FILES, files_json(manifest));
    return root;
}

static tr_status file_write(const char *path, const char *text, const char *hash_line)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot create the file", path);
    tr_status status = tr_file_write_all(fd, text, strlen(text), path);
    if (status == TR_OK)
        status = tr_file_write_all(fd, hash_line, strlen(hash_line), path);
    return tr_file_end(fd, path, status);
}

tr_status tr_manifest_write(const char *path, const tr_manifest *manifest)
{
    json_t *root = document(manifest);
    char *json = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    TR_ASSERT(json != NULL);
    char *text = tr_format("%s\n", json);
    char hash[TR_HASH128_TEXT], line[TR_HASH128_TEXT + 1];
    tr_hash128_to_text(tr_hash128_compute(text, strlen(text)), hash);
    snprintf(line, sizeof line, "%s\n", hash);
    tr_status status = file_write(path, text, line);
    tr_free(text);
    free(json);
    json_decref(root);
    return status;
}
