/* Life of a configuration: defaults, files and overrides over them, copies, the end. */
#include "engine/config/settings_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static bool owns_text(const tr_setting *row)
{
    return row->type == TR_SETTING_TEXT || row->type == TR_SETTING_DATA ||
           row->type == TR_SETTING_LIST;
}

static char **text_field(tr_config *cfg, const tr_setting *row)
{
    return (char **)((char *)cfg + row->offset);
}

struct tr_config_origin *tr_origin_of(const tr_config *cfg, const tr_setting *row)
{
    return &cfg->origins[row - tr_settings];
}

void tr_origin_set(tr_config *cfg, const tr_setting *row, tr_origin_kind kind, const char *place)
{
    struct tr_config_origin *origin = tr_origin_of(cfg, row);
    tr_free(origin->place);
    origin->kind = kind;
    origin->place = place ? tr_strdup(place) : NULL;
}

void tr_setting_resolved(tr_config *cfg, const char *name)
{
    tr_origin_set(cfg, tr_setting_find(name), TR_ORIGIN_RESOLVED, NULL);
}

const char *tr_setting_cite(const tr_config *cfg, const char *name)
{
    enum { NUM_BUFFERS = 8, BUFFER_BYTES = 512 };
    static _Thread_local char buffers[NUM_BUFFERS][BUFFER_BYTES];
    static _Thread_local unsigned next;
    char *text = buffers[next++ % NUM_BUFFERS];
    const struct tr_config_origin *origin = tr_origin_of(cfg, tr_setting_find(name));
    if (origin->kind == TR_ORIGIN_FILE)
        snprintf(text, BUFFER_BYTES, "%s (%s)", name, origin->place);
    else if (origin->kind == TR_ORIGIN_COMMAND_LINE)
        snprintf(text, BUFFER_BYTES, "%s (command line)", name);
    else
        snprintf(text, BUFFER_BYTES, "%s", name);
    return text;
}

void tr_config_init(tr_config *cfg)
{
    *cfg = (tr_config){0};
    cfg->origins = TR_NEW_ARRAY(struct tr_config_origin, tr_num_settings);
    for (size_t i = 0; i < tr_num_settings; i++) {
        const tr_setting *row = &tr_settings[i];
        if (row->initial) {
            tr_status status = tr_setting_parse(cfg, row, "default", row->initial);
            TR_ASSERT(status == TR_OK);
        } else if (row->type == TR_SETTING_REAL) {
            *(double *)((char *)cfg + row->offset) = -1;
        }
    }
}

void tr_config_clear(tr_config *cfg)
{
    for (size_t i = 0; i < tr_num_settings; i++) {
        if (owns_text(&tr_settings[i]))
            tr_free(*text_field(cfg, &tr_settings[i]));
        if (cfg->origins)
            tr_free(cfg->origins[i].place);
    }
    tr_free(cfg->origins);
    tr_free(cfg->derived.chunk_layers);
    tr_free(cfg->derived.warnings);
    tr_free(cfg->file);
    *cfg = (tr_config){0};
}

void tr_config_copy(tr_config *dst, const tr_config *src)
{
    *dst = *src;
    dst->origins = TR_NEW_ARRAY(struct tr_config_origin, tr_num_settings);
    for (size_t i = 0; i < tr_num_settings; i++) {
        const tr_setting *row = &tr_settings[i];
        if (owns_text(row) && *text_field(dst, row))
            *text_field(dst, row) = tr_strdup(*text_field(dst, row));
        dst->origins[i].kind = src->origins[i].kind;
        if (src->origins[i].place)
            dst->origins[i].place = tr_strdup(src->origins[i].place);
    }
    if (src->file)
        dst->file = tr_strdup(src->file);
    if (src->derived.warnings)
        dst->derived.warnings = tr_strdup(src->derived.warnings);
    if (src->derived.chunk_layers) {
        size_t bytes = (size_t)src->derived.num_chunks * sizeof(int64_t);
        dst->derived.chunk_layers = TR_NEW_ARRAY(int64_t, (size_t)src->derived.num_chunks);
        memcpy(dst->derived.chunk_layers, src->derived.chunk_layers, bytes);
    }
}

enum { FAR = 1000 }; /* a distance that no names have */

/* Distance of a given name to a setting: as it stands, or by the part behind the section when the
 * given name has none or the wrong one; that counts one more, so that the same section wins. A section
 * that both have makes no two names alike: the limit is that of the rest. */
static int name_distance(const char *given, const char *name)
{
    int whole = tr_edit_distance(given, name);
    size_t section = (size_t)(strchr(name, '.') + 1 - name);
    bool shared = strncmp(given, name, section) == 0;
    if (whole > tr_edit_limit(shared ? given + section : given))
        whole = FAR;
    const char *given_key = strrchr(given, '.');
    given_key = given_key ? given_key + 1 : given;
    int key = tr_edit_distance(given_key, strchr(name, '.') + 1);
    if (key > (int)strlen(given_key) / 4)
        key = FAR;
    return whole < key + 1 ? whole : key + 1;
}

/* Whether a setting's key stands in a given name of the same section as whole words: `layers` in model.num_layers. */
static bool stands_in(const char *name, const char *given)
{
    const char *key = strchr(name, '.') + 1;
    size_t section = (size_t)(key - name), length = strlen(key);
    if (strncmp(given, name, section) != 0)
        return false;
    for (const char *at = strstr(given + section, key); at != NULL; at = strstr(at + 1, key))
        if ((at == given + section || at[-1] == '_') && (at[length] == '\0' || at[length] == '_'))
            return true;
    return false;
}

/* The longest such setting: what a name in other programs' words is likely to mean. NULL: none. */
static const char *by_words(const char *given)
{
    const char *best = NULL;
    for (size_t i = 0; i < tr_num_settings; i++) {
        const char *name = tr_settings[i].name;
        if (stands_in(name, given) && (best == NULL || strlen(name) > strlen(best)))
            best = name;
    }
    return best;
}

tr_status tr_setting_unknown(const char *where, const char *name)
{
    for (size_t i = 0; tr_settings_later[i]; i++)
        if (strcmp(tr_settings_later[i], name) == 0)
            return tr_fail(TR_ERR_SETTINGS, "%s: %s is not in this version; leave it out", where,
                           name);
    const char *best = NULL;
    int best_distance = FAR;
    for (size_t i = 0; i < tr_num_settings; i++) {
        int distance = name_distance(name, tr_settings[i].name);
        if (distance < best_distance) {
            best_distance = distance;
            best = tr_settings[i].name;
        }
    }
    if (!best)
        best = by_words(name);
    if (best)
        return tr_fail(TR_ERR_SETTINGS, "%s: unknown setting %s; did you mean %s?", where, name,
                       best);
    return tr_fail(TR_ERR_SETTINGS, "%s: unknown setting %s; `trine config` lists all settings",
                   where, name);
}

static bool is_section(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < tr_num_settings; i++)
        if (strncmp(tr_settings[i].name, name, length) == 0 && tr_settings[i].name[length] == '.')
            return true;
    return false;
}

/* The items of a list follow it; how many of them have its key as prefix. */
static size_t list_extent(const tr_yaml *yaml, size_t list)
{
    const char *key = yaml->items[list].key;
    size_t length = strlen(key), end = list + 1;
    while (end < yaml->num_items && strncmp(yaml->items[end].key, key, length) == 0 &&
           yaml->items[end].key[length] == '.')
        end++;
    return end - list - 1;
}

/* data.train: a list with one path, or with one {path, weight}. */
static tr_status data_list_text(const tr_yaml *yaml, size_t list, const char *where, char **text)
{
    const tr_yaml_item *item = &yaml->items[list];
    if (item->num_values > 1)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s: %s lists %zu files; more than one is not in this version", where,
                       item->key, item->num_values);
    const char *path = NULL;
    size_t length = strlen(item->key), extent = list_extent(yaml, list);
    for (size_t i = list + 1; i <= list + extent; i++) {
        const tr_yaml_item *part = &yaml->items[i];
        const char *rest = part->key + length;
        char *end = NULL;
        if (part->value && (strcmp(rest, ".0") == 0 || strcmp(rest, ".0.path") == 0))
            path = part->value;
        else if (part->value == NULL || strcmp(rest, ".0.weight") != 0)
            return tr_fail(TR_ERR_SETTINGS,
                           "%s: unknown key %s; an entry of %s has path and weight", where,
                           part->key, item->key);
        else if (!(strtod(part->value, &end) > 0) || *end != '\0')
            return tr_fail(TR_ERR_SETTINGS, "%s: %s = %s: expected a number above 0", where,
                           part->key, part->value);
    }
    if (path == NULL)
        return tr_fail(TR_ERR_SETTINGS, "%s: %s has no path", where, item->key);
    *text = tr_strdup(path);
    return TR_OK;
}

/* [2, 3, 3, 2] as "2,3,3,2". */
static tr_status number_list_text(const tr_yaml *yaml, size_t list, const char *where, char **text)
{
    char *joined = tr_strdup("");
    size_t extent = list_extent(yaml, list);
    if (extent != yaml->items[list].num_values) {
        tr_free(joined);
        return tr_fail(TR_ERR_SETTINGS, "%s: %s: expected a list of whole numbers", where,
                       yaml->items[list].key);
    }
    for (size_t i = list + 1; i <= list + extent; i++) {
        const char *value = yaml->items[i].value;
        char *longer = tr_format("%s%s%s", joined, i > list + 1 ? "," : "", value ? value : "[ ]");
        tr_free(joined);
        joined = longer;
    }
    *text = joined;
    return TR_OK;
}

/* The text of an item that is a list or a scalar, for the row that wants it. */
static tr_status item_text(const tr_yaml *yaml, size_t index, const tr_setting *row,
                           const char *where, char **text)
{
    const tr_yaml_item *item = &yaml->items[index];
    if (item->value == NULL && row->type == TR_SETTING_DATA)
        return data_list_text(yaml, index, where, text);
    if (item->value == NULL && row->type == TR_SETTING_LIST)
        return number_list_text(yaml, index, where, text);
    char *values = tr_setting_values(row);
    tr_status status = TR_OK;
    if (item->value == NULL)
        status = tr_fail(TR_ERR_SETTINGS, "%s: %s: expected one value (%s), not a list", where,
                         item->key, values);
    else if (!item->quoted && (item->value[0] == '\0' || strcmp(item->value, "~") == 0 ||
                               strcmp(item->value, "null") == 0))
        status =
            tr_fail(TR_ERR_SETTINGS, "%s: %s has no value; expected %s", where, item->key, values);
    else
        *text = tr_strdup(item->value);
    tr_free(values);
    return status;
}

/* Takes the item at `index` over; `used`: how many items it spans. */
static tr_status item_take(tr_config *cfg, const char *name, const tr_yaml *yaml, size_t index,
                           size_t *used)
{
    const tr_yaml_item *item = &yaml->items[index];
    char where[512], place[512];
    snprintf(where, sizeof where, "%s:%d:%d", name, item->line, item->column);
    snprintf(place, sizeof place, "%s:%d", name, item->line);
    const tr_setting *row = tr_setting_find(item->key);
    if (row == NULL && is_section(item->key))
        return tr_fail(TR_ERR_SETTINGS,
                       "%s: %s is a section; expected its settings (key: value) indented below",
                       where, item->key);
    if (row == NULL)
        return tr_setting_unknown(where, item->key);
    char *text = NULL;
    TR_TRY(item_text(yaml, index, row, where, &text));
    tr_status status = tr_setting_parse(cfg, row, where, text);
    tr_free(text);
    if (status == TR_OK)
        tr_origin_set(cfg, row, TR_ORIGIN_FILE, place);
    *used = 1 + (item->value ? 0 : list_extent(yaml, index));
    return status;
}

static tr_status yaml_take(tr_config *cfg, const char *name, const tr_yaml *yaml)
{
    size_t used;
    for (size_t i = 0; i < yaml->num_items; i += used)
        TR_TRY(item_take(cfg, name, yaml, i, &used));
    return TR_OK;
}

tr_status tr_config_read_text(tr_config *cfg, const char *name, const char *text, size_t length)
{
    tr_yaml yaml;
    TR_TRY(tr_yaml_read_text(&yaml, name, text, length));
    tr_status status = yaml_take(cfg, name, &yaml);
    tr_yaml_clear(&yaml);
    return status;
}

tr_status tr_config_read_file(tr_config *cfg, const char *path)
{
    tr_yaml yaml;
    TR_TRY(tr_yaml_read_file(&yaml, path));
    tr_status status = yaml_take(cfg, path, &yaml);
    tr_yaml_clear(&yaml);
    if (status == TR_OK) {
        tr_free(cfg->file);
        cfg->file = tr_strdup(path);
    }
    return status;
}

tr_status tr_config_override(tr_config *cfg, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    if (equals == NULL || equals == assignment)
        return tr_fail(TR_ERR_SETTINGS,
                       "command line: expected section.key=value, got %s (a configuration file "
                       "comes first, and only once)",
                       assignment);
    char *name = tr_format("%.*s", (int)(equals - assignment), assignment);
    const tr_setting *row = tr_setting_find(name);
    tr_status status;
    if (row == NULL)
        status = tr_setting_unknown("command line", name);
    else
        status = tr_setting_parse(cfg, row, "command line", equals + 1);
    if (status == TR_OK)
        tr_origin_set(cfg, row, TR_ORIGIN_COMMAND_LINE, NULL);
    tr_free(name);
    return status;
}

static tr_status load_into(tr_config *cfg, const char *path, int num_overrides,
                           char *const *overrides, int64_t num_ranks)
{
    TR_TRY(tr_config_read_file(cfg, path));
    for (int i = 0; i < num_overrides; i++)
        TR_TRY(tr_config_override(cfg, overrides[i]));
    return tr_config_resolve(cfg, num_ranks);
}

tr_status tr_config_load(tr_config *cfg, const char *path, int num_overrides,
                         char *const *overrides, int64_t num_ranks)
{
    tr_config_init(cfg);
    tr_status status = load_into(cfg, path, num_overrides, overrides, num_ranks);
    if (status != TR_OK)
        tr_config_clear(cfg);
    return status;
}
