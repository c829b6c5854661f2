/* trine data: text to token files, and what is in a token file. */
#include "engine/cli/cli.h"

#include <string.h>

#include "engine/cli/cmd_data_int.h"

static const char usage[] =
    "usage: trine data build INPUT... --out PREFIX [options]\n"
    "       trine data show FILE [--tokens A:B] [--ngram VALID_FILE]\n"
    "\n"
    "build: text files (plain, gzip or dictzip) -> PREFIX.bin and PREFIX.idx (Megatron's format)\n"
    "  --split paragraph   a document begins where text follows an empty line (the default)\n"
    "  --split entry       the same, if that text begins in the first column (dictionaries)\n"
    "  --split line        each line is a document\n"
    "  --split file        each file is a document\n"
    "  --document-bytes N  paragraph, entry: a document has at least N bytes before the next "
    "begins\n"
    "                      (default 0); nothing of the text is left out\n"
    "  --valid-fraction F --valid-out PREFIX\n"
    "                      documents that begin in the last F of the bytes go to a second file,\n"
    "                      for evaluation\n"
    "  --tokenizer bytes   each byte is a token (ids 0 to 255); 256 ends each document (default)\n"
    "  --no-eod            no end-of-document tokens\n"
    "  --width auto|16|32  bits of a stored token; auto: 16 when the vocabulary is below 65500\n"
    "  Empty documents (nothing but white space) are left out and counted.\n"
    "\n"
    "show: format, documents, tokens and ids of any token file (a Megatron PREFIX, .bin or .idx;\n"
    "  an llm.c .bin)\n"
    "  --tokens A:B        tokens A to B - 1 of the stream (default 0:64), and their text when "
    "all\n"
    "                      ids are bytes\n"
    "  --ngram VALID_FILE  cross-entropy of a byte bigram trained on FILE, scored on VALID_FILE, "
    "in\n"
    "                      nats, additive smoothing 0.01; the last line is for programs:\n"
    "                      bigram nats per token X\n";

static tr_status run(int argc, char **argv)
{
    static const char *const later[] = {"merge", "verify", "tokenizer"};
    if (argc < 2)
        return tr_fail(TR_ERR_SETTINGS, "trine data needs build or show; see trine data --help");
    static char build[] = "data build", show[] = "data show"; /* the names that messages give */
    if (strcmp(argv[1], "build") == 0) {
        argv[1] = build;
        return tr_data_build_run(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "show") == 0) {
        argv[1] = show;
        return tr_data_show_run(argc - 1, argv + 1);
    }
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (strcmp(argv[1], later[i]) == 0)
            return tr_fail(TR_ERR_SETTINGS,
                           "trine data %s is not in this version; see trine data --help", argv[1]);
    return tr_fail(TR_ERR_SETTINGS, "trine data has no %s; it has build and show", argv[1]);
}

const tr_verb tr_verb_data = {
    .name = "data",
    .summary = "build token files from text; show what a token file holds",
    .usage = usage,
    .run = run,
};
