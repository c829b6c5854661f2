/* trine data build: text -> byte tokens -> Megatron files, in one pass and bounded memory (two
 * passes when a held-out part is asked for: its place needs the size of the whole text). The
 * files appear together at the end, or not at all. */
#include "engine/cli/cmd_data_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/cli/cli.h"
#include "io/file_commit.h"
#include "io/text_documents.h"
#include "io/token_write.h"
#include "io/tokenizer_bytes.h"

enum { BLOCK_TOKENS = 4096 };

typedef struct build_options {
    const char *out, *valid_out;
    double valid_fraction;
    tr_text_options text;
    tr_token_store store;
    bool eod;
} build_options;

typedef struct builder {
    const build_options *options;
    tr_token_writer *train, *valid; /* valid NULL without a held-out part */
    tr_token_writer *current;       /* of the open document */
    uint64_t valid_start;           /* documents that begin here or later are held out */
    uint64_t num_empty;
    double next_report; /* time */
} builder;

static tr_status begin_document(void *context, uint64_t offset)
{
    builder *build = context;
    build->current =
        build->valid != NULL && offset >= build->valid_start ? build->valid : build->train;
    double now = tr_clock_seconds();
    if (now >= build->next_report) {
        build->next_report = now + 1;
        tr_log_status_line("%" PRIu64 " MB read, %" PRIu64 " documents", offset / 1000000,
                           tr_token_writer_num_documents(build->train) +
                               (build->valid ? tr_token_writer_num_documents(build->valid) : 0));
    }
    return TR_OK;
}

static tr_status add_text(void *context, const unsigned char *bytes, size_t size)
{
    builder *build = context;
    int32_t ids[BLOCK_TOKENS];
    for (size_t at = 0; at < size; at += BLOCK_TOKENS) {
        size_t part = size - at < BLOCK_TOKENS ? size - at : BLOCK_TOKENS;
        tr_tokenizer_bytes_encode(bytes + at, part, ids);
        TR_TRY(tr_token_writer_append(build->current, ids, part));
    }
    return TR_OK;
}

static tr_status end_document(void *context, bool empty)
{
    builder *build = context;
    const int32_t end = TR_BYTES_EOD;
    if (empty) {
        build->num_empty++;
        return tr_token_writer_discard_document(build->current);
    }
    if (build->options->eod)
        TR_TRY(tr_token_writer_append(build->current, &end, 1));
    return tr_token_writer_end_document(build->current);
}

static tr_status parse_split(const char *text, tr_text_split *split)
{
    static const char *const names[] = {"paragraph", "entry", "line", "file"};
    static const tr_text_split values[] = {TR_TEXT_PARAGRAPH, TR_TEXT_ENTRY, TR_TEXT_LINE,
                                           TR_TEXT_FILE};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *split = values[i];
            return TR_OK;
        }
    }
    return tr_fail(TR_ERR_SETTINGS, "--split %s: expected paragraph, entry, line or file", text);
}

static tr_status parse_width(const char *text, tr_token_store *store)
{
    if (strcmp(text, "auto") == 0)
        *store = TR_TOKEN_STORE_AUTO;
    else if (strcmp(text, "16") == 0)
        *store = TR_TOKEN_STORE_U16;
    else if (strcmp(text, "32") == 0)
        *store = TR_TOKEN_STORE_I32;
    else
        return tr_fail(TR_ERR_SETTINGS, "--width %s: expected auto, 16 or 32", text);
    return TR_OK;
}

static tr_status parse_held_out(const char *fraction, build_options *options)
{
    if (fraction == NULL && options->valid_out == NULL)
        return TR_OK;
    if (fraction == NULL || options->valid_out == NULL)
        return tr_fail(TR_ERR_SETTINGS, "--valid-fraction and --valid-out go together");
    char *end;
    options->valid_fraction = strtod(fraction, &end);
    if (end == fraction || *end != '\0' ||
        !(options->valid_fraction > 0 && options->valid_fraction < 1))
        return tr_fail(TR_ERR_SETTINGS,
                       "--valid-fraction %s: expected a number between 0 and 1, e.g. 0.05",
                       fraction);
    if (strcmp(options->valid_out, options->out) == 0)
        return tr_fail(TR_ERR_SETTINGS, "--valid-out %s: must differ from --out",
                       options->valid_out);
    return TR_OK;
}

/* Makes the folder in which PREFIX's files will be. */
static tr_status prefix_folder_make(const char *prefix)
{
    const char *slash = prefix != NULL ? strrchr(prefix, '/') : NULL;
    if (slash == NULL || slash == prefix)
        return TR_OK;
    char *folder = tr_format("%.*s", (int)(slash - prefix), prefix);
    tr_status status = tr_folders_make(folder);
    tr_free(folder);
    return status;
}

/* JSONL by its name, of which each brace and key would become a token. */
static tr_status refuse_jsonl(const char *path)
{
    static const char *const endings[] = {".jsonl", ".jsonl.gz", ".jsonl.dz"};
    bool is_jsonl = false;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        is_jsonl |= tr_ends_with(path, endings[i]);
    if (!is_jsonl)
        return TR_OK;
    return tr_fail(TR_ERR_SETTINGS,
                   "%s: JSONL input is not in this version; write its text into a plain file first "
                   "(jq -r .text), or make tokens with Megatron's preprocess_data.py, whose .bin "
                   "and .idx a run reads",
                   path);
}

static tr_status parse(int *argc, char **argv, build_options *options)
{
    const char *split = "paragraph", *width = "auto", *tokenizer = "bytes", *fraction = NULL;
    int64_t document_bytes = 0;
    options->eod = !tr_cli_flag(argc, argv, "--no-eod");
    TR_TRY(tr_cli_value(argc, argv, "--out", &options->out));
    TR_TRY(tr_cli_value(argc, argv, "--valid-out", &options->valid_out));
    TR_TRY(tr_cli_value(argc, argv, "--valid-fraction", &fraction));
    TR_TRY(tr_cli_value(argc, argv, "--split", &split));
    TR_TRY(tr_cli_value(argc, argv, "--width", &width));
    TR_TRY(tr_cli_value(argc, argv, "--tokenizer", &tokenizer));
    TR_TRY(tr_cli_int(argc, argv, "--document-bytes", 0, INT32_MAX, &document_bytes));
    TR_TRY(tr_cli_words(*argc, argv, 1, -1));
    if (options->out == NULL)
        return tr_fail(TR_ERR_SETTINGS,
                       "trine data build needs --out PREFIX; see trine data --help");
    if (strcmp(tokenizer, "bytes") != 0)
        return tr_fail(TR_ERR_SETTINGS, "--tokenizer %s is not in this version; it has bytes",
                       tokenizer);
    TR_TRY(parse_split(split, &options->text.split));
    TR_TRY(parse_width(width, &options->store));
    options->text.min_bytes = (uint64_t)document_bytes;
    TR_TRY(parse_held_out(fraction, options));
    for (int i = 1; i < *argc; i++)
        TR_TRY(refuse_jsonl(argv[i]));
    TR_TRY(prefix_folder_make(options->out));
    return prefix_folder_make(options->valid_out);
}

/* Where the held-out part begins, in bytes of text. */
static tr_status find_valid_start(int argc, char **argv, double fraction, uint64_t *start)
{
    uint64_t total = 0;
    for (int i = 1; i < argc; i++) {
        uint64_t size;
        TR_TRY(tr_text_documents_measure(argv[i], &size));
        total += size;
    }
    uint64_t held_out = (uint64_t)((double)total * fraction);
    if (held_out == 0)
        return tr_fail(TR_ERR_DATA,
                       "--valid-fraction %g of the text's %" PRIu64
                       " bytes rounds to 0: needs at least 1 byte",
                       fraction, total);
    *start = total - held_out;
    return TR_OK;
}

static tr_status open_writer(tr_token_writer **out, const char *prefix, tr_token_store store)
{
    const tr_token_writer_options options = {prefix, TR_BYTES_VOCAB, store};
    return tr_token_writer_open(out, &options);
}

static void print_file(const char *prefix, const tr_token_writer *writer)
{
    printf("%s.bin: %" PRIu64 " documents, %" PRIu64 " tokens of %zu bytes\n", prefix,
           tr_token_writer_num_documents(writer), tr_token_writer_num_tokens(writer),
           tr_token_writer_item_size(writer));
}

/* Neither file may be empty: a run would refuse it later, with less to say about why. */
static tr_status check_documents(const builder *build, int num_files)
{
    uint64_t train = tr_token_writer_num_documents(build->train);
    if (build->valid == NULL && train > 0)
        return TR_OK;
    uint64_t valid = build->valid != NULL ? tr_token_writer_num_documents(build->valid) : 0;
    if (train + valid == 0)
        return tr_fail(TR_ERR_DATA,
                       "no text in %d input file(s): %" PRIu64
                       " documents, all of them empty; nothing is written",
                       num_files, build->num_empty);
    if (train == 0 || valid == 0)
        return tr_fail(TR_ERR_DATA,
                       "%" PRIu64 " documents for training and %" PRIu64
                       " held out, needs at least 1 of each: documents "
                       "that begin at byte %" PRIu64
                       " or later are held out; use smaller documents or another "
                       "--valid-fraction",
                       train, valid, build->valid_start);
    return TR_OK;
}

static tr_status build_files(builder *build, int argc, char **argv)
{
    const build_options *options = build->options;
    const tr_text_sink sink = {build, begin_document, add_text, end_document};
    uint64_t offset = 0;
    if (options->valid_out != NULL)
        TR_TRY(find_valid_start(argc, argv, options->valid_fraction, &build->valid_start));
    TR_TRY(open_writer(&build->train, options->out, options->store));
    if (options->valid_out != NULL)
        TR_TRY(open_writer(&build->valid, options->valid_out, options->store));
    for (int i = 1; i < argc; i++)
        TR_TRY(tr_text_documents_read(argv[i], &options->text, &sink, &offset));
    TR_TRY(check_documents(build, argc - 1));
    if (build->valid != NULL)
        TR_TRY(tr_token_writer_commit(build->valid));
    TR_TRY(tr_token_writer_commit(build->train));
    printf("%" PRIu64 " bytes of text in %d file(s); %" PRIu64 " empty documents left out\n",
           offset, argc - 1, build->num_empty);
    print_file(options->out, build->train);
    if (build->valid != NULL)
        print_file(options->valid_out, build->valid);
    return TR_OK;
}

tr_status tr_data_build_run(int argc, char **argv)
{
    build_options options = {0};
    TR_TRY(parse(&argc, argv, &options));
    builder build = {.options = &options, .next_report = tr_clock_seconds() + 1};
    tr_status status = build_files(&build, argc, argv);
    tr_token_writer_close(build.valid);
    tr_token_writer_close(build.train);
    return status;
}
