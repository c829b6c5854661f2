/* trine config: the manual of all settings, or what a configuration comes to. */
#include "engine/cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

static const char usage[] =
    "usage: trine config [--markdown]\n"
    "       trine config [--ranks N] CONFIG [section.key=value ...]\n"
    "\n"
    "Without a file: every setting, its default, its values and its meaning.\n"
    "With a file: the effective configuration as YAML, each line with who set it (default, "
    "preset,\n"
    "file:line, command line, resolved), and the batch arithmetic.\n"
    "\n"
    "  --markdown   the manual as Markdown\n"
    "  --ranks N    resolve for N ranks; otherwise for the product of the parallel sizes\n";

/* Comments, so that the whole output is a configuration file. */
static void print_comment(const char *text)
{
    while (*text != '\0') {
        int length = (int)strcspn(text, "\n");
        printf("# %.*s\n", length, text);
        text += length + (text[length] == '\n');
    }
}

static tr_status print_effective(int argc, char **argv, int64_t num_ranks)
{
    tr_config cfg;
    TR_TRY(tr_cli_config(&cfg, argc, argv, false, num_ranks));
    char *yaml = tr_config_dump(&cfg), *batch = tr_config_batch_text(&cfg);
    print_comment(batch);
    fputs(yaml, stdout);
    tr_free(yaml);
    tr_free(batch);
    tr_cli_config_warn(&cfg);
    tr_config_clear(&cfg);
    return TR_OK;
}

static tr_status run(int argc, char **argv)
{
    int64_t num_ranks = 0;
    bool markdown = tr_cli_flag(&argc, argv, "--markdown");
    TR_TRY(tr_cli_int(&argc, argv, "--ranks", 1, 1 << 20, &num_ranks));
    TR_TRY(tr_cli_words(argc, argv, 0, markdown ? 0 : -1));
    if (argc > 1)
        return print_effective(argc, argv, num_ranks);
    tr_config_manual(stdout, markdown);
    return TR_OK;
}

const tr_verb tr_verb_config = {
    .name = "config",
    .summary = "every setting, its meaning, range and default; or a file's effective settings",
    .usage = usage,
    .run = run,
};
