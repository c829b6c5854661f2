/* What all verbs do with their arguments. See cli.h. */
#include "engine/cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static void take_out(int *argc, char **argv, int index, int count)
{
    for (int i = index; i + count <= *argc; i++)
        argv[i] = argv[i + count]; /* argv[*argc] is NULL */
    *argc -= count;
}

bool tr_cli_flag(int *argc, char **argv, const char *option)
{
    bool found = false;
    for (int i = 1; i < *argc;) {
        if (strcmp(argv[i], option) == 0) {
            take_out(argc, argv, i, 1);
            found = true;
        } else {
            i++;
        }
    }
    return found;
}

tr_status tr_cli_value(int *argc, char **argv, const char *option, const char **value)
{
    size_t length = strlen(option);
    for (int i = 1; i < *argc;) {
        if (strncmp(argv[i], option, length) == 0 && argv[i][length] == '=') {
            *value = argv[i] + length + 1;
            take_out(argc, argv, i, 1);
        } else if (strcmp(argv[i], option) == 0) {
            if (i + 1 == *argc || strncmp(argv[i + 1], "--", 2) == 0)
                return tr_fail(TR_ERR_SETTINGS, "%s needs a value; see trine %s --help", option,
                               argv[0]);
            *value = argv[i + 1];
            take_out(argc, argv, i, 2);
        } else {
            i++;
        }
    }
    return TR_OK;
}

tr_status tr_cli_int(int *argc, char **argv, const char *option, int64_t low, int64_t high,
                     int64_t *value)
{
    const char *text = NULL;
    TR_TRY(tr_cli_value(argc, argv, option, &text));
    if (text == NULL)
        return TR_OK;
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || parsed < low || parsed > high)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s %s: expected a whole number from %" PRId64 " to %" PRId64, option, text,
                       low, high);
    *value = parsed;
    return TR_OK;
}

tr_status tr_cli_words(int argc, char **argv, int low, int high)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--", 2) == 0)
            return tr_fail(TR_ERR_SETTINGS, "unknown option %s; see trine %s --help", argv[i],
                           argv[0]);
    if (argc - 1 < low)
        return tr_fail(TR_ERR_SETTINGS, "trine %s needs more arguments; see trine %s --help",
                       argv[0], argv[0]);
    if (high >= 0 && argc - 1 > high)
        return tr_fail(TR_ERR_SETTINGS, "trine %s: unexpected argument %s; see trine %s --help",
                       argv[0], argv[high + 1], argv[0]);
    return TR_OK;
}

static tr_status config_fill(tr_config *cfg, int argc, char **argv, bool needs_data)
{
    TR_TRY(tr_config_read_file(cfg, argv[1]));
    for (int i = 2; i < argc; i++)
        TR_TRY(tr_config_override(cfg, argv[i]));
    if (needs_data && cfg->data.train == NULL)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s: data.train must be set: the token file to train on (trine data build "
                       "makes one)",
                       argv[1]);
    return TR_OK;
}

tr_status tr_cli_config_read(tr_config *cfg, int argc, char **argv, bool needs_data)
{
    TR_TRY(tr_cli_words(argc, argv, 0, -1));
    if (argc < 2)
        return tr_fail(TR_ERR_SETTINGS,
                       "trine %s needs a configuration file, e.g. configs/quickstart.yaml",
                       argv[0]);
    tr_config_init(cfg);
    tr_status status = config_fill(cfg, argc, argv, needs_data);
    if (status != TR_OK)
        tr_config_clear(cfg);
    return status;
}

tr_status tr_cli_config(tr_config *cfg, int argc, char **argv, bool needs_data, int64_t num_ranks)
{
    TR_TRY(tr_cli_config_read(cfg, argc, argv, needs_data));
    tr_status status = tr_config_resolve(cfg, num_ranks);
    if (status != TR_OK)
        tr_config_clear(cfg);
    return status;
}

void tr_cli_config_warn(const tr_config *cfg)
{
    const char *at = cfg->derived.warnings;
    while (at != NULL && *at != '\0') {
        int length = (int)strcspn(at, "\n");
        tr_log_warning("%.*s", length, at);
        at += length + (at[length] == '\n');
    }
}
