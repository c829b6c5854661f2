/* Reads a YAML text into a flat list of scalars with their places.
 *
 * `train:\n  lr: 3e-4` becomes the item {"train.lr", "3e-4", line 2, column 7}. A list is kept as
 * one item that holds its length, followed by its elements under `key.0`, `key.1` and so on
 * (`data.train.0.path`). Mappings leave no item of their own. Text is not interpreted: whoever
 * knows the key decides what its value means.
 *
 * The root is a mapping or nothing at all. A key twice in a mapping, an alias, a key that is not a
 * scalar and a second document are errors. Every error is TR_ERR_SETTINGS and starts with
 * NAME:LINE:COLUMN, counted from 1. */
#ifndef TR_IO_YAML_READER_H
#define TR_IO_YAML_READER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct tr_yaml_item {
    char *key;         /* dotted */
    char *value;       /* NULL for a list */
    bool quoted;       /* the scalar stood in quotes, so that "" and "null" are texts */
    size_t num_values; /* elements of a list */
    int line, column;  /* of the value, from 1 */
} tr_yaml_item;

typedef struct tr_yaml {
    tr_yaml_item *items; /* in the order of the text */
    size_t num_items;
} tr_yaml;

/* `name` stands for the text in messages. `yaml` is set only on success; clear it afterwards. */
tr_status tr_yaml_read_text(tr_yaml *yaml, const char *name, const char *text, size_t length);
/* The same for a file of up to 16 MiB. A file that cannot be opened or read is TR_ERR_SETTINGS with
 * its name. */
tr_status tr_yaml_read_file(tr_yaml *yaml, const char *path);
void tr_yaml_clear(tr_yaml *yaml);

/* The item with this dotted key, or NULL. */
const tr_yaml_item *tr_yaml_find(const tr_yaml *yaml, const char *key);

#endif
