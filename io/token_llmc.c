/* llm.c's token files: a header of 256 int32, then the tokens. Magic 20240520 version 1 holds
 * u16 (GPT-2), magic 20240801 version 7 holds u32 (Llama 3). Documents are not recorded: the
 * file counts as one. */
#include "io/token_file_int.h"

enum {
    HEADER_BYTES = 1024,
    AT_VERSION = 4,
    AT_TOKENS = 8,
    /* The range of the project's magics, to name a file of theirs that holds no tokens. */
    MAGIC_FIRST = 20240326,
    MAGIC_LAST = 20240803
};

static const struct {
    uint32_t magic, version;
    tr_token_width width;
} rows[] = {{20240520, 1, TR_TOKEN_U16}, {20240801, 7, TR_TOKEN_U32}};

bool tr_token_llmc_recognise(const unsigned char *bytes, uint64_t size)
{
    if (size < 4)
        return false;
    uint32_t magic = tr_load_u32(bytes);
    return magic >= MAGIC_FIRST && magic <= MAGIC_LAST;
}

static tr_status set_kind(tr_token_file *file)
{
    const tr_token_map *data = &file->data;
    uint32_t magic = tr_load_u32(data->bytes);
    uint32_t version = tr_load_u32(data->bytes + AT_VERSION);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].magic != magic)
            continue;
        if (rows[i].version != version)
            return tr_fail(TR_ERR_DATA, "%s: offset %d: version %d, expected %u for magic %u",
                           data->path, AT_VERSION, (int32_t)version, rows[i].version, magic);
        tr_token_file_set_width(file, rows[i].width);
        return TR_OK;
    }
    return tr_fail(TR_ERR_DATA,
                   "%s: offset 0: magic %u, an llm.c file without a token stream; expected "
                   "20240520 or 20240801",
                   data->path, magic);
}

tr_status tr_token_llmc_open(tr_token_file *file, const char *path)
{
    file->info.format = "llm.c";
    TR_TRY(tr_token_map_open(&file->data, path));
    const tr_token_map *data = &file->data;
    if (data->size < HEADER_BYTES)
        return tr_fail(TR_ERR_DATA, "%s: %llu bytes, expected at least the %d of an llm.c header",
                       data->path, (unsigned long long)data->size, HEADER_BYTES);
    TR_TRY(set_kind(file));
    uint32_t tokens = tr_load_u32(data->bytes + AT_TOKENS);
    if (tokens == 0 || tokens > INT32_MAX)
        return tr_fail(TR_ERR_DATA, "%s: offset %d: %d tokens, expected 1 to %d", data->path,
                       AT_TOKENS, (int32_t)tokens, INT32_MAX);
    uint64_t expected = HEADER_BYTES + (uint64_t)tokens * file->info.item_size;
    if (data->size != expected)
        return tr_fail(TR_ERR_DATA,
                       "%s: %llu bytes, expected %llu for the header's %u tokens of %zu bytes",
                       data->path, (unsigned long long)data->size, (unsigned long long)expected,
                       tokens, file->info.item_size);
    file->data_offset = HEADER_BYTES;
    file->info.num_tokens = tokens;
    file->info.num_sequences = 1;
    file->info.num_documents = 1;
    return TR_OK;
}
