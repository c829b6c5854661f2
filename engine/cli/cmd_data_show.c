/* trine data show: what a token file holds. Reads it once, in blocks, for the smallest and
 * largest id. */
#include "engine/cli/cmd_data_int.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/cli/cli.h"
#include "io/byte_bigram.h"
#include "io/token_file.h"
#include "io/tokenizer_bytes.h"

enum { BLOCK = 1 << 16, MOST_SHOWN = 1 << 20 };

typedef struct id_range {
    int32_t low, high; /* low > high when there is no token */
} id_range;

static tr_status find_ids(const tr_token_file *file, id_range *range)
{
    uint64_t num_tokens = tr_token_file_info(file)->num_tokens;
    int32_t *block = TR_NEW_ARRAY(int32_t, BLOCK);
    *range = (id_range){INT32_MAX, -1};
    tr_status status = TR_OK;
    for (uint64_t at = 0; at < num_tokens && status == TR_OK; at += BLOCK) {
        uint64_t size = num_tokens - at < BLOCK ? num_tokens - at : BLOCK;
        status = tr_token_file_read(file, at, size, block);
        for (uint64_t i = 0; i < size && status == TR_OK; i++) {
            range->low = block[i] < range->low ? block[i] : range->low;
            range->high = block[i] > range->high ? block[i] : range->high;
        }
    }
    tr_free(block);
    return status;
}

static void print_info(const tr_token_info *info, const id_range *range)
{
    printf("file       %s\n", info->path);
    printf("format     %s, %s (%zu bytes per token)\n", info->format, info->dtype, info->item_size);
    printf("tokens     %" PRIu64 "\n", info->num_tokens);
    if (!info->has_documents)
        printf("documents  not recorded by this format\n");
    else if (info->num_sequences == info->num_documents)
        printf("documents  %" PRIu64 "\n", info->num_documents);
    else
        printf("documents  %" PRIu64 ", in %" PRIu64 " sequences\n", info->num_documents,
               info->num_sequences);
    if (range->high >= 0)
        printf("ids        %d to %d\n", range->low, range->high);
}

/* As a C string would be written, so that nothing in it reaches the terminal raw. */
static void print_text(const int32_t *ids, size_t count)
{
    printf("text       \"");
    for (size_t i = 0; i < count; i++) {
        if (ids[i] == TR_BYTES_EOD)
            printf("<end>");
        else if (ids[i] == '\n')
            printf("\\n");
        else if (ids[i] == '"' || ids[i] == '\\')
            printf("\\%c", ids[i]);
        else if (ids[i] >= 0x20 && ids[i] < 0x7f)
            putchar(ids[i]);
        else
            printf("\\x%02x", (unsigned)ids[i]);
    }
    printf("\"\n");
}

static tr_status print_tokens(const tr_token_file *file, uint64_t first, uint64_t end,
                              bool is_bytes)
{
    size_t count = (size_t)(end - first);
    int32_t *ids = TR_NEW_ARRAY(int32_t, count + 1);
    tr_status status = tr_token_file_read(file, first, count, ids);
    if (status == TR_OK) {
        printf("%" PRIu64 ":%" PRIu64 "%*s", first, end, first + end < 200 ? 6 : 1, "");
        for (size_t i = 0; i < count; i++)
            printf(" %d", ids[i]);
        printf("\n");
        if (is_bytes)
            print_text(ids, count);
    }
    tr_free(ids);
    return status;
}

/* "A:B", A or B left out: from the start, to the end. */
static tr_status parse_range(const char *text, uint64_t num_tokens, uint64_t *first, uint64_t *end)
{
    *first = 0;
    *end = num_tokens < 64 ? num_tokens : 64;
    if (text == NULL)
        return TR_OK;
    unsigned long long a = 0, b = num_tokens;
    const char *colon = strchr(text, ':');
    char *after_a = NULL, *after_b = NULL;
    bool good = colon != NULL && strspn(text, "0123456789:") == strlen(text);
    if (good && colon != text)
        a = strtoull(text, &after_a, 10);
    if (good && colon[1] != '\0')
        b = strtoull(colon + 1, &after_b, 10);
    good = good && (after_a == NULL || after_a == colon) && (after_b == NULL || *after_b == '\0');
    if (!good || a > b || b > num_tokens || b - a > MOST_SHOWN)
        return tr_fail(TR_ERR_SETTINGS,
                       "--tokens %s: expected A:B with A <= B, B at most %" PRIu64
                       " (the tokens of the file) and B - A at most %d",
                       text, num_tokens, MOST_SHOWN);
    *first = a;
    *end = b;
    return TR_OK;
}

static tr_status print_bigram(const tr_token_file *train, const tr_token_file *valid)
{
    tr_byte_bigram_score bytes, tokens;
    TR_TRY(tr_byte_bigram_compute(train, valid, false, &bytes));
    TR_TRY(tr_byte_bigram_compute(train, valid, true, &tokens));
    printf("bigram     trained on %" PRIu64 " pairs, scored on %" PRIu64 " of %s\n",
           tokens.num_train, tokens.num_valid, tr_token_file_info(valid)->path);
    printf("bigram nats per byte %.4f\n", bytes.nats);
    printf("bigram nats per token %.4f\n", tokens.nats);
    return TR_OK;
}

static tr_status show(const tr_token_file *file, const char *tokens, const char *ngram)
{
    const tr_token_info *info = tr_token_file_info(file);
    uint64_t first, end;
    id_range range;
    TR_TRY(parse_range(tokens, info->num_tokens, &first, &end));
    TR_TRY(find_ids(file, &range));
    print_info(info, &range);
    TR_TRY(print_tokens(file, first, end, range.high < TR_BYTES_VOCAB));
    if (ngram == NULL)
        return TR_OK;
    tr_token_file *valid;
    TR_TRY(tr_token_file_open(&valid, ngram));
    tr_status status = print_bigram(file, valid);
    tr_token_file_close(valid);
    return status;
}

tr_status tr_data_show_run(int argc, char **argv)
{
    const char *tokens = NULL, *ngram = NULL;
    tr_token_file *file;
    TR_TRY(tr_cli_value(&argc, argv, "--tokens", &tokens));
    TR_TRY(tr_cli_value(&argc, argv, "--ngram", &ngram));
    TR_TRY(tr_cli_words(argc, argv, 1, 1));
    TR_TRY(tr_token_file_open(&file, argv[1]));
    tr_status status = show(file, tokens, ngram);
    tr_token_file_close(file);
    return status;
}
