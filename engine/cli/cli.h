/* The command line: a table of verbs over the library.
 *
 * A verb is one file engine/cli/cmd_<verb>.c that defines a `const tr_verb`; a new one is declared
 * here, listed in main.c and added to the program's sources. A verb returns a status; main prints
 * `error: ...` with the thread's message and exits with tr_status_exit_code. Only main exits. */
#ifndef TR_ENGINE_CLI_H
#define TR_ENGINE_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/config/config.h"

typedef struct tr_verb {
    const char *name;
    const char *summary; /* one line in `trine --help` */
    const char *usage;   /* what `trine VERB --help` prints; starts with "usage: trine VERB ..." */
    /* argv[0] is the verb's name; argv may be reordered and shortened. */
    tr_status (*run)(int argc, char **argv);
} tr_verb;

extern const tr_verb tr_verb_bench;
extern const tr_verb tr_verb_ckpt;
extern const tr_verb tr_verb_config;
extern const tr_verb tr_verb_data;
extern const tr_verb tr_verb_eval;
extern const tr_verb tr_verb_plan;
extern const tr_verb tr_verb_sample;
extern const tr_verb tr_verb_train;
extern const tr_verb tr_verb_verify;

/* Under mpiexec one rank speaks: after this call main prints no error line and leaves only the exit
 * code. A verb calls it on the ranks whose failure another rank reports too (settings, say), not on
 * one that fails alone. */
void tr_cli_quiet(void);

/* Options of a verb, taken out of argv wherever they stand; what is left are its words. */
/* True when `--name` stood there. */
bool tr_cli_flag(int *argc, char **argv, const char *option);
/* `--name VALUE` or `--name=VALUE`: *value is set, else left alone. An option without a value is
 * refused. */
tr_status tr_cli_value(int *argc, char **argv, const char *option, const char **value);
/* The same for a whole number in [low, high]. */
tr_status tr_cli_int(int *argc, char **argv, const char *option, int64_t low, int64_t high,
                     int64_t *value);
/* Refuses what still starts with "--", and other numbers of words than low ... high behind the verb
 * (high < 0: any). Called after the options were taken. */
tr_status tr_cli_words(int argc, char **argv, int low, int high);

/* argv: VERB CONFIG [section.key=value ...]. Reads and overrides, so that the verb may change the
 * layout or copy the configuration before it resolves it. needs_data: refuses a configuration
 * without data.train. On failure there is nothing to clear. */
tr_status tr_cli_config_read(tr_config *cfg, int argc, char **argv, bool needs_data);
/* The same, resolved for num_ranks (0 = not known, see tr_config_resolve). */
tr_status tr_cli_config(tr_config *cfg, int argc, char **argv, bool needs_data, int64_t num_ranks);
/* Prints derived.warnings; called on one rank. */
void tr_cli_config_warn(const tr_config *cfg);

#endif
