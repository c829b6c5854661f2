/* Turns libyaml's events into the flat list of yaml_reader.h.
 *
 * A stack of open mappings and lists holds the dotted prefix; each event either closes the top,
 * opens a level, or adds an item. Nothing here keeps libyaml's memory past its event. Callable from
 * any thread. */
#include "io/yaml_reader.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/alloc.h"

enum { MAX_DEPTH = 16, MAX_ITEMS = 65536, MAX_FILE_BYTES = 16 << 20 };

typedef struct level {
    bool is_list;
    bool wants_value;  /* mapping: the key has been read */
    char *prefix;      /* dotted path of this level, "" at the root */
    char *key;         /* mapping: the dotted key whose value comes next */
    size_t list_item;  /* list: its index among the items */
    size_t num_values; /* list: elements so far */
} level;

/* Every key met, mappings too, to find one that stands twice. */
typedef struct seen_key {
    char *key;
    int line;
} seen_key;

typedef struct reader {
    const char *name;
    yaml_parser_t parser;
    level levels[MAX_DEPTH];
    int depth;
    bool done; /* the one document has ended */
    tr_yaml_item *items;
    size_t num_items, items_capacity;
    seen_key *seen;
    size_t num_seen, seen_capacity;
} reader;

static tr_status fail_at(const reader *rd, yaml_mark_t mark, const char *text)
{
    return tr_fail(TR_ERR_SETTINGS, "%s:%zu:%zu: %s", rd->name, mark.line + 1, mark.column + 1,
                   text);
}

static char *join(const char *prefix, const char *key)
{
    return prefix[0] == '\0' ? tr_strdup(key) : tr_format("%s.%s", prefix, key);
}

static tr_status note_key(reader *rd, const char *key, yaml_mark_t mark)
{
    for (size_t i = 0; i < rd->num_seen; i++)
        if (strcmp(rd->seen[i].key, key) == 0)
            return tr_fail(TR_ERR_SETTINGS,
                           "%s:%zu:%zu: %s stands twice, first in line %d; keep one of them",
                           rd->name, mark.line + 1, mark.column + 1, key, rd->seen[i].line);
    if (rd->num_seen == rd->seen_capacity) {
        rd->seen_capacity = rd->seen_capacity ? 2 * rd->seen_capacity : 64;
        rd->seen = tr_realloc(rd->seen, rd->seen_capacity, sizeof *rd->seen);
    }
    rd->seen[rd->num_seen++] = (seen_key){.key = tr_strdup(key), .line = (int)mark.line + 1};
    return TR_OK;
}

/* The dotted key of the value that starts now: the mapping's pending key, or the list's next index. */
static tr_status value_key(reader *rd, yaml_mark_t mark, char **key)
{
    if (rd->depth == 0)
        return fail_at(rd, mark,
                       "expected settings in sections (section:, then key: value indented below)");
    level *top = &rd->levels[rd->depth - 1];
    if (top->is_list) {
        *key = tr_format("%s.%zu", top->prefix, top->num_values);
        top->num_values++;
        return TR_OK;
    }
    if (!top->wants_value)
        return fail_at(rd, mark, "a key must be a plain word");
    *key = top->key;
    top->key = NULL;
    top->wants_value = false;
    return TR_OK;
}

static tr_status item_add(reader *rd, char *key, char *value, bool quoted, yaml_mark_t mark)
{
    if (rd->num_items == MAX_ITEMS) {
        tr_free(key);
        tr_free(value);
        return fail_at(rd, mark, "more values than any configuration has");
    }
    if (rd->num_items == rd->items_capacity) {
        rd->items_capacity = rd->items_capacity ? 2 * rd->items_capacity : 64;
        rd->items = tr_realloc(rd->items, rd->items_capacity, sizeof *rd->items);
    }
    rd->items[rd->num_items++] = (tr_yaml_item){.key = key,
                                                .value = value,
                                                .quoted = quoted,
                                                .line = (int)mark.line + 1,
                                                .column = (int)mark.column + 1};
    return TR_OK;
}

static tr_status scalar_event(reader *rd, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        return fail_at(rd, event->start_mark, "a zero byte in a value");
    level *top = rd->depth > 0 ? &rd->levels[rd->depth - 1] : NULL;
    if (top != NULL && !top->is_list && !top->wants_value) {
        top->key = join(top->prefix, text);
        top->wants_value = true;
        return note_key(rd, top->key, event->start_mark);
    }
    char *key = NULL;
    TR_TRY(value_key(rd, event->start_mark, &key));
    return item_add(rd, key, tr_strdup(text), event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE,
                    event->start_mark);
}

static tr_status level_open(reader *rd, const yaml_event_t *event, bool is_list)
{
    if (rd->depth == MAX_DEPTH)
        return fail_at(rd, event->start_mark, "nested too deeply");
    char *prefix = NULL;
    if (rd->depth == 0 && !is_list)
        prefix = tr_strdup("");
    else
        TR_TRY(value_key(rd, event->start_mark, &prefix));
    level *top = &rd->levels[rd->depth++];
    *top = (level){.is_list = is_list, .prefix = prefix, .list_item = rd->num_items};
    if (is_list)
        TR_TRY(item_add(rd, tr_strdup(prefix), NULL, false, event->start_mark));
    return TR_OK;
}

static void level_close(reader *rd)
{
    level *top = &rd->levels[--rd->depth];
    if (top->is_list)
        rd->items[top->list_item].num_values = top->num_values;
    tr_free(top->prefix);
    tr_free(top->key);
}

static tr_status event_take(reader *rd, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        /* A document with nothing behind its --- is an empty scalar at the root. */
        if (rd->depth == 0 && event->data.scalar.length == 0)
            return TR_OK;
        return scalar_event(rd, event);
    case YAML_MAPPING_START_EVENT:
        return level_open(rd, event, false);
    case YAML_SEQUENCE_START_EVENT:
        return level_open(rd, event, true);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        level_close(rd);
        return TR_OK;
    case YAML_ALIAS_EVENT:
        return fail_at(rd, event->start_mark, "aliases (*name) are not read; write the value out");
    case YAML_DOCUMENT_START_EVENT:
        if (rd->done)
            return fail_at(rd, event->start_mark, "a second document (---) in one file");
        return TR_OK;
    case YAML_DOCUMENT_END_EVENT:
        rd->done = true;
        return TR_OK;
    default:
        return TR_OK;
    }
}

static tr_status events_read(reader *rd)
{
    for (;;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&rd->parser, &event)) {
            yaml_mark_t mark = rd->parser.problem_mark;
            const char *problem = rd->parser.problem ? rd->parser.problem : "cannot be parsed";
            if (rd->parser.error == YAML_READER_ERROR) /* it knows the byte only */
                return tr_fail(TR_ERR_SETTINGS, "%s: byte %zu: not YAML: %s", rd->name,
                               rd->parser.problem_offset, problem);
            return tr_fail(TR_ERR_SETTINGS, "%s:%zu:%zu: not YAML: %s%s%s", rd->name, mark.line + 1,
                           mark.column + 1, problem, rd->parser.context ? " " : "",
                           rd->parser.context ? rd->parser.context : "");
        }
        bool last = event.type == YAML_STREAM_END_EVENT;
        tr_status status = event_take(rd, &event);
        yaml_event_delete(&event);
        if (status != TR_OK || last)
            return status;
    }
}

tr_status tr_yaml_read_text(tr_yaml *yaml, const char *name, const char *text, size_t length)
{
    reader *rd = TR_NEW(reader);
    rd->name = name;
    tr_status status = TR_OK;
    if (!yaml_parser_initialize(&rd->parser)) {
        tr_free(rd);
        return tr_fail(TR_ERR_MEMORY, "%s: no memory for the YAML parser", name);
    }
    yaml_parser_set_encoding(&rd->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&rd->parser, (const unsigned char *)text, length);
    status = events_read(rd);
    yaml_parser_delete(&rd->parser);
    while (rd->depth > 0)
        level_close(rd);
    for (size_t i = 0; i < rd->num_seen; i++)
        tr_free(rd->seen[i].key);
    tr_free(rd->seen);
    tr_yaml result = {.items = rd->items, .num_items = rd->num_items};
    if (status == TR_OK)
        *yaml = result;
    else
        tr_yaml_clear(&result);
    tr_free(rd);
    return status;
}

tr_status tr_yaml_read_file(tr_yaml *yaml, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return tr_fail_errno(TR_ERR_SETTINGS, errno, "cannot open the configuration %s", path);
    char *text = NULL;
    size_t length = 0, capacity = 0;
    tr_status status = TR_OK;
    for (;;) {
        if (length == capacity) {
            capacity = capacity ? 2 * capacity : 65536;
            text = tr_realloc(text, capacity, 1);
        }
        size_t got = fread(text + length, 1, capacity - length, file);
        length += got;
        if (length > MAX_FILE_BYTES) {
            status = tr_fail(TR_ERR_SETTINGS, "%s is larger than %d MiB: not a configuration", path,
                             MAX_FILE_BYTES >> 20);
            break;
        }
        if (got == 0) {
            if (ferror(file))
                status =
                    tr_fail_errno(TR_ERR_SETTINGS, errno, "cannot read the configuration %s", path);
            break;
        }
    }
    fclose(file);
    if (status == TR_OK)
        status = tr_yaml_read_text(yaml, path, text, length);
    tr_free(text);
    return status;
}

void tr_yaml_clear(tr_yaml *yaml)
{
    for (size_t i = 0; i < yaml->num_items; i++) {
        tr_free(yaml->items[i].key);
        tr_free(yaml->items[i].value);
    }
    tr_free(yaml->items);
    *yaml = (tr_yaml){0};
}

const tr_yaml_item *tr_yaml_find(const tr_yaml *yaml, const char *key)
{
    for (size_t i = 0; i < yaml->num_items; i++)
        if (strcmp(yaml->items[i].key, key) == 0)
            return &yaml->items[i];
    return NULL;
}
