/* Megatron's indexed dataset: PREFIX.idx describes the raw tokens of PREFIX.bin.
 *
 * The index: 34 bytes of header, then lengths i32[S], byte pointers i64[S], document index
 * i64[D], and optionally one mode byte per sequence (multimodal sets), which is ignored. The
 * header's odd size leaves every array unaligned. All is checked here, once: after a successful
 * open each sequence lies inside the .bin and each document inside the sequences. */
#include "io/token_file_int.h"

#include <string.h>

#include "base/alloc.h"

static const unsigned char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

enum { HEADER_BYTES = 34, AT_VERSION = 9, AT_DTYPE = 17, AT_SEQUENCES = 18, AT_DOCUMENTS = 26 };

bool tr_token_megatron_recognise(const unsigned char *bytes, uint64_t size)
{
    return size >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

static tr_status set_dtype(tr_token_file *file, unsigned code)
{
    static const struct {
        unsigned code;
        tr_token_width width;
    } rows[] = {{1, TR_TOKEN_U8},
                {3, TR_TOKEN_I16},
                {4, TR_TOKEN_I32},
                {5, TR_TOKEN_I64},
                {8, TR_TOKEN_U16}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].code == code) {
            tr_token_file_set_width(file, rows[i].width);
            return TR_OK;
        }
    }
    return tr_fail(
        TR_ERR_DATA,
        "%s: offset %d: dtype code %u, expected 1 (u8), 3 (i16), 4 (i32), 5 (i64) or 8 (u16)",
        file->index.path, AT_DTYPE, code);
}

static tr_status read_header(tr_token_file *file)
{
    const tr_token_map *index = &file->index;
    if (index->size < HEADER_BYTES)
        return tr_fail(TR_ERR_DATA,
                       "%s: %llu bytes, expected at least the %d of a Megatron index header",
                       index->path, (unsigned long long)index->size, HEADER_BYTES);
    if (!tr_token_megatron_recognise(index->bytes, index->size))
        return tr_fail(TR_ERR_DATA,
                       "%s: offset 0: expected the magic \"MMIDIDX\" of a Megatron index",
                       index->path);
    uint64_t version = tr_load_u64(index->bytes + AT_VERSION);
    if (version != 1)
        return tr_fail(TR_ERR_DATA, "%s: offset %d: version %llu, expected 1", index->path,
                       AT_VERSION, (unsigned long long)version);
    TR_TRY(set_dtype(file, index->bytes[AT_DTYPE]));

    uint64_t sequences = tr_load_u64(index->bytes + AT_SEQUENCES);
    uint64_t entries = tr_load_u64(index->bytes + AT_DOCUMENTS);
    uint64_t room = index->size - HEADER_BYTES;
    if (sequences > room / 12)
        return tr_fail(
            TR_ERR_DATA,
            "%s: offset %d: %llu sequences, expected at most %llu in the file's %llu bytes",
            index->path, AT_SEQUENCES, (unsigned long long)sequences,
            (unsigned long long)(room / 12), (unsigned long long)index->size);
    room -= 12 * sequences;
    if (entries < 1 || entries > room / 8)
        return tr_fail(
            TR_ERR_DATA,
            "%s: offset %d: %llu document entries, expected 1 to %llu in the file's %llu bytes",
            index->path, AT_DOCUMENTS, (unsigned long long)entries, (unsigned long long)(room / 8),
            (unsigned long long)index->size);
    room -= 8 * entries;
    if (room != 0 && room != sequences) /* the rest can only be the modes */
        return tr_fail(TR_ERR_DATA,
                       "%s: %llu bytes, expected %llu, or %llu with modes, for %llu sequences and "
                       "%llu document entries",
                       index->path, (unsigned long long)index->size,
                       (unsigned long long)(index->size - room),
                       (unsigned long long)(index->size - room + sequences),
                       (unsigned long long)sequences, (unsigned long long)entries);
    file->lengths = index->bytes + HEADER_BYTES;
    file->pointers = file->lengths + 4 * sequences;
    file->documents = file->pointers + 8 * sequences;
    file->info.num_sequences = sequences;
    file->info.num_documents = entries - 1;
    file->info.has_documents = true;
    return TR_OK;
}

static unsigned long long offset_in(const tr_token_map *map, const unsigned char *at)
{
    return (unsigned long long)(at - map->bytes);
}

/* Every sequence inside the .bin; running counts of tokens. Sums cannot overflow: S * (2^31 - 1)
 * < 2^63 for any S that fits in a file. */
static tr_status read_sequences(tr_token_file *file)
{
    uint64_t sequences = file->info.num_sequences, tokens = 0;
    uint64_t items = file->data.size / file->info.item_size;
    file->stride_tokens = TR_NEW_ARRAY(uint64_t, sequences / TR_TOKEN_STRIDE + 1);
    for (uint64_t i = 0; i < sequences; i++) {
        const unsigned char *at_length = file->lengths + 4 * i;
        const unsigned char *at_pointer = file->pointers + 8 * i;
        uint32_t length = tr_load_u32(at_length);
        uint64_t pointer = tr_load_u64(at_pointer);
        if (length > INT32_MAX)
            return tr_fail(TR_ERR_DATA,
                           "%s: offset %llu: length %d of sequence %llu, expected 0 to %d",
                           file->index.path, offset_in(&file->index, at_length), (int32_t)length,
                           (unsigned long long)i, INT32_MAX);
        if (pointer > file->data.size ||
            length > (file->data.size - pointer) / file->info.item_size)
            return tr_fail(TR_ERR_DATA,
                           "%s: offset %llu: sequence %llu has %u tokens at byte %lld, expected to "
                           "lie inside the "
                           "%llu bytes of %s",
                           file->index.path, offset_in(&file->index, at_pointer),
                           (unsigned long long)i, length, (long long)pointer,
                           (unsigned long long)file->data.size, file->data.path);
        if (i % TR_TOKEN_STRIDE == 0)
            file->stride_tokens[i / TR_TOKEN_STRIDE] = tokens;
        tokens += length;
    }
    if (sequences % TR_TOKEN_STRIDE == 0)
        file->stride_tokens[sequences / TR_TOKEN_STRIDE] = tokens;
    if (items * file->info.item_size != file->data.size)
        return tr_fail(TR_ERR_DATA,
                       "%s: %llu bytes, expected a multiple of the %zu bytes of a token (%s)",
                       file->data.path, (unsigned long long)file->data.size, file->info.item_size,
                       file->info.dtype);
    file->info.num_tokens = tokens;
    return TR_OK;
}

static tr_status check_documents(const tr_token_file *file)
{
    uint64_t previous = 0;
    for (uint64_t i = 0; i <= file->info.num_documents; i++) {
        const unsigned char *at = file->documents + 8 * i;
        uint64_t entry = tr_load_u64(at);
        if (i == 0 && entry != 0)
            return tr_fail(TR_ERR_DATA,
                           "%s: offset %llu: the first document entry is %lld, expected 0",
                           file->index.path, offset_in(&file->index, at), (long long)entry);
        if (entry < previous || entry > file->info.num_sequences)
            return tr_fail(TR_ERR_DATA,
                           "%s: offset %llu: document entry %llu is %lld, expected %llu (the one "
                           "before) to %llu (the sequences)",
                           file->index.path, offset_in(&file->index, at), (unsigned long long)i,
                           (long long)entry, (unsigned long long)previous,
                           (unsigned long long)file->info.num_sequences);
        previous = entry;
    }
    if (previous != file->info.num_sequences)
        return tr_fail(
            TR_ERR_DATA,
            "%s: offset %llu: the last document entry is %llu, expected %llu (the sequences)",
            file->index.path,
            offset_in(&file->index, file->documents + 8 * file->info.num_documents),
            (unsigned long long)previous, (unsigned long long)file->info.num_sequences);
    return TR_OK;
}

tr_status tr_token_megatron_open(tr_token_file *file, const char *bin_path, const char *idx_path)
{
    file->info.format = "megatron";
    TR_TRY(tr_token_map_open(&file->index, idx_path));
    TR_TRY(tr_token_map_open(&file->data, bin_path));
    TR_TRY(read_header(file));
    TR_TRY(read_sequences(file));
    TR_TRY(check_documents(file));
    return TR_OK;
}
