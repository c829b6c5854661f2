/* The settings table: one row per setting, which everything about a setting reads (parsing, ranges,
 * messages, the dump, the manual). Read by engine/config and its test only.
 *
 * A row states where the value lies in tr_config and which texts it accepts. Values that belong to
 * Trine's plan but not to this version are in the table too (`later`), so that they are refused as
 * such and not as typing errors; the same holds for whole settings (tr_settings_later). */
#ifndef TR_ENGINE_SETTINGS_INT_H
#define TR_ENGINE_SETTINGS_INT_H

#include "engine/config/config.h"
#include "engine/config/nearest.h"
#include "io/yaml_reader.h"

typedef enum tr_setting_type {
    TR_SETTING_INT,    /* int64_t */
    TR_SETTING_U64,    /* uint64_t */
    TR_SETTING_REAL,   /* double */
    TR_SETTING_BOOL,   /* bool */
    TR_SETTING_CHOICE, /* an enum: int; 0 is no value of one that can be open */
    TR_SETTING_TEXT,   /* char *, owned */
    TR_SETTING_DATA,   /* char *, owned: a path, or a list with one {path, weight} */
    TR_SETTING_LIST    /* char *, owned: the keyword or whole numbers with commas; YAML lists too */
} tr_setting_type;

typedef struct tr_choice {
    const char *text;
    int value;
} tr_choice;

enum { TR_SETTING_MAX_CHOICES = 5 };
#define TR_SETTING_TINY 1e-300 /* as a row's `min`: any number above 0 */

typedef struct tr_setting {
    const char *name;
    tr_setting_type type;
    tr_half half;
    size_t offset; /* in tr_config */
    /* As tr_config_init reads it. NULL: required, or open until resolved (`open` says to what). */
    const char *initial;
    const char *open;        /* what an open value resolves to, for the manual; NULL = never open */
    double min, max;         /* numbers; both included, but max excluded when below_max */
    bool below_max;          /* max itself is not allowed */
    bool power_of_two;       /* a positive number must be one */
    bool ranges;             /* lists: an element may be FIRST-LAST */
    const char *keyword;     /* a word that stands for the number 0, or for NULL in a text */
    const char *preset_gpt2; /* as text: the switch that the preset sets; NULL = none */
    const char *preset_llama;
    tr_choice choices[TR_SETTING_MAX_CHOICES]; /* up to the first without text */
    /* Values of other versions: words or numbers with blanks between; "*" = every other value of
     * the type that is out of range. */
    const char *later;
    const char *elsewhere; /* what others call a value, a blank, and the value; NULL = none */
    const char *unit;      /* NULL = none */
    const char *meaning;
} tr_setting;

extern const tr_setting tr_settings[];
extern const size_t tr_num_settings;
/* Names of settings that another version has, up to NULL. */
extern const char *const tr_settings_later[];

/* The row of a dotted name, NULL when there is none. */
const tr_setting *tr_setting_find(const char *name);

/* Who set a value. */
typedef enum tr_origin_kind {
    TR_ORIGIN_DEFAULT,
    TR_ORIGIN_PRESET,
    TR_ORIGIN_FILE,
    TR_ORIGIN_COMMAND_LINE,
    TR_ORIGIN_RESOLVED
} tr_origin_kind;

struct tr_config_origin {
    tr_origin_kind kind;
    char *place; /* FILE:LINE or the preset's name, NULL otherwise; owned */
};

struct tr_config_origin *tr_origin_of(const tr_config *cfg, const tr_setting *row);
void tr_origin_set(tr_config *cfg, const tr_setting *row, tr_origin_kind kind, const char *place);
/* "train.lr (quick.yaml:12)", "train.lr (command line)" or just the name; in a per-thread ring of
 * eight buffers, for messages. */
const char *tr_setting_cite(const tr_config *cfg, const char *name);
/* Marks a value as filled in by the resolution. */
void tr_setting_resolved(tr_config *cfg, const char *name);

/* Sets the value from text. `where` ("quick.yaml:12:7", "command line") opens the message of a
 * refusal; nothing is changed by one. */
tr_status tr_setting_parse(tr_config *cfg, const tr_setting *row, const char *where,
                           const char *text);
/* The value as text; NULL while it is open. tr_free. */
char *tr_setting_format(const tr_config *cfg, const tr_setting *row);
/* True when the setting has no value yet and none is derived (it is required and missing). */
bool tr_setting_is_open(const tr_config *cfg, const tr_setting *row);
/* "auto, shm, mpi" or "1 to 19" or "true, false": what the row accepts. tr_free. */
char *tr_setting_values(const tr_setting *row);

/* The refusal of a name that is no setting: not in this version, or the nearest name. */
tr_status tr_setting_unknown(const char *where, const char *name);

/* "3", "2 or 4": the values nearest to n below and above it, up to `most`, that `fits` accepts;
 * NULL when there is none. tr_free. */
char *tr_config_nearest_fit(const tr_config *cfg, int64_t n, int64_t most,
                            bool (*fits)(const tr_config *cfg, int64_t value));
/* Whether the model has a layer for each chunk of so many stages. */
bool tr_config_pipeline_fits(const tr_config *cfg, int64_t pipeline);
/* Adds a line to derived.warnings; takes `line` over. */
void tr_config_warn(tr_config *cfg, char *line);

/* Steps of the resolution, in their own files. */
void tr_config_apply_preset(tr_config *cfg);
tr_status tr_config_check_model(const tr_config *cfg);
tr_status tr_config_check_train(const tr_config *cfg);
tr_status tr_config_check_bytes(const tr_config *cfg); /* after tr_config_fit_batch */
tr_status tr_config_fit_ranks(tr_config *cfg, int64_t num_ranks);
tr_status tr_config_fit_batch(tr_config *cfg);
tr_status tr_config_fit_cuts(tr_config *cfg);
tr_status tr_config_fit_stages(tr_config *cfg);

#endif
