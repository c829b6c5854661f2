#include "io/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/text.h"
#include "io/token_file_int.h"

_Static_assert(sizeof(size_t) == 8, "token files are mapped whole: 64-bit addresses are needed");

static const struct {
    const char *name;
    size_t size;
} widths[] = {
    [TR_TOKEN_U8] = {"u8", 1},   [TR_TOKEN_U16] = {"u16", 2}, [TR_TOKEN_I16] = {"i16", 2},
    [TR_TOKEN_I32] = {"i32", 4}, [TR_TOKEN_U32] = {"u32", 4}, [TR_TOKEN_I64] = {"i64", 8},
};

void tr_token_file_set_width(tr_token_file *file, tr_token_width width)
{
    file->width = width;
    file->info.dtype = widths[width].name;
    file->info.item_size = widths[width].size;
}

uint16_t tr_load_u16(const unsigned char *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

uint32_t tr_load_u32(const unsigned char *at)
{
    return (uint32_t)tr_load_u16(at) | (uint32_t)tr_load_u16(at + 2) << 16;
}

uint64_t tr_load_u64(const unsigned char *at)
{
    return (uint64_t)tr_load_u32(at) | (uint64_t)tr_load_u32(at + 4) << 32;
}

tr_status tr_token_map_open(tr_token_map *map, const char *path)
{
    struct stat about;
    /* Not blocking: a pipe that nobody writes would hold the job up before it is seen to be one. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return tr_fail_errno(TR_ERR_DATA, errno, "%s: cannot open the token file", path);
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        return tr_fail(TR_ERR_DATA, "%s: a token file must be a regular file", path);
    }
    void *bytes = NULL;
    if (about.st_size > 0) {
        bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (bytes == MAP_FAILED) {
            int errnum = errno;
            close(fd);
            return tr_fail_errno(TR_ERR_IO, errnum, "%s: cannot map %lld bytes", path,
                                 (long long)about.st_size);
        }
    }
    close(fd);
    map->path = tr_strdup(path);
    map->bytes = bytes;
    map->size = (uint64_t)about.st_size;
    return TR_OK;
}

void tr_token_map_close(tr_token_map *map)
{
    if (map->bytes != NULL)
        munmap((void *)(uintptr_t)map->bytes, map->size);
    tr_free(map->path);
    *map = (tr_token_map){0};
}

static bool file_exists(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

/* Reads the head of `path` into bytes[32], zero-filled; 0 when it cannot be read. */
static size_t read_head(const char *path, unsigned char bytes[32])
{
    memset(bytes, 0, 32);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = pread(fd, bytes, 32, 0);
    close(fd);
    return size > 0 ? (size_t)size : 0;
}

static tr_status open_pair(tr_token_file *file, const char *prefix, size_t prefix_length)
{
    char *bin = tr_format("%.*s.bin", (int)prefix_length, prefix);
    char *idx = tr_format("%.*s.idx", (int)prefix_length, prefix);
    tr_status status = tr_token_megatron_open(file, bin, idx);
    tr_free(bin);
    tr_free(idx);
    return status;
}

static tr_status refuse(const char *path, size_t head_size)
{
    struct stat about;
    if (head_size == 0 && stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return tr_fail(TR_ERR_DATA, "%s: a token file must be a regular file", path);
    if (head_size == 0 && !file_exists(path))
        return tr_fail(
            TR_ERR_DATA,
            "%s: no such token file: expected %s.bin with %s.idx (Megatron), or an llm.c .bin "
            "file; `trine data build` makes the first",
            path, path, path);
    return tr_fail(TR_ERR_DATA,
                   "%s: not a token file: at offset 0 expected an llm.c header (20240520 or "
                   "20240801), or an .idx file "
                   "of the same name beside it (Megatron)",
                   path);
}

/* A Megatron .bin has no magic and could begin with the bytes of any other: an .idx beside it
 * decides first. */
static tr_status open_any(tr_token_file *file, const char *path)
{
    unsigned char head[32];
    size_t length = strlen(path);
    size_t head_size = read_head(path, head);
    bool stem_has_index = false;
    if (length > 4 && (tr_ends_with(path, ".idx") || tr_ends_with(path, ".bin"))) {
        char *idx = tr_format("%.*s.idx", (int)length - 4, path);
        stem_has_index = file_exists(idx);
        tr_free(idx);
    }
    if (stem_has_index)
        return open_pair(file, path, length - 4);
    char *idx = tr_format("%s.idx", path);
    bool has_index = file_exists(idx);
    tr_free(idx);
    if (has_index)
        return open_pair(file, path, length);
    if (tr_token_megatron_recognise(head, head_size))
        return tr_fail(TR_ERR_DATA,
                       "%s: this is a Megatron index, but its name does not end in .idx, so that "
                       "its .bin cannot be "
                       "found; rename it",
                       path);
    if (tr_token_llmc_recognise(head, head_size))
        return tr_token_llmc_open(file, path);
    return refuse(path, head_size);
}

tr_status tr_token_file_open(tr_token_file **out, const char *path)
{
    tr_token_file *file = TR_NEW(tr_token_file);
    tr_status status = open_any(file, path);
    if (status != TR_OK) {
        tr_token_file_close(file);
        return status;
    }
    file->info.path = file->data.path;
    *out = file;
    return TR_OK;
}

void tr_token_file_close(tr_token_file *file)
{
    if (file == NULL)
        return;
    tr_token_map_close(&file->data);
    tr_token_map_close(&file->index);
    tr_free(file->stride_tokens);
    tr_free(file);
}

const tr_token_info *tr_token_file_info(const tr_token_file *file)
{
    return &file->info;
}

static uint64_t sequence_length(const tr_token_file *file, uint64_t sequence)
{
    if (file->lengths == NULL)
        return file->info.num_tokens;
    return tr_load_u32(file->lengths + 4 * sequence);
}

/* Byte offset in the data file. */
static uint64_t sequence_pointer(const tr_token_file *file, uint64_t sequence)
{
    if (file->pointers == NULL)
        return file->data_offset;
    return tr_load_u64(file->pointers + 8 * sequence);
}

/* Tokens in front of `sequence`, which may be num_sequences. */
static uint64_t tokens_before(const tr_token_file *file, uint64_t sequence)
{
    if (file->stride_tokens == NULL)
        return sequence == 0 ? 0 : file->info.num_tokens;
    uint64_t stride = sequence / TR_TOKEN_STRIDE;
    uint64_t tokens = file->stride_tokens[stride];
    for (uint64_t i = stride * TR_TOKEN_STRIDE; i < sequence; i++)
        tokens += sequence_length(file, i);
    return tokens;
}

/* The sequence that holds stream position `token`, and in *start the stream position of its
 * first token. */
static uint64_t find_sequence(const tr_token_file *file, uint64_t token, uint64_t *start)
{
    *start = 0;
    if (file->stride_tokens == NULL)
        return 0;
    uint64_t low = 0, high = file->info.num_sequences /
                             TR_TOKEN_STRIDE; /* the last stride that starts at or before token */
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (file->stride_tokens[middle] <= token)
            low = middle;
        else
            high = middle - 1;
    }
    uint64_t sequence = low * TR_TOKEN_STRIDE;
    uint64_t position = file->stride_tokens[low];
    while (token - position >= sequence_length(file, sequence)) {
        position += sequence_length(file, sequence);
        sequence++;
    }
    *start = position;
    return sequence;
}

static int64_t load_token(const unsigned char *at, tr_token_width width)
{
    switch (width) {
    case TR_TOKEN_U8:
        return *at;
    case TR_TOKEN_U16:
        return tr_load_u16(at);
    case TR_TOKEN_I16:
        return (int16_t)tr_load_u16(at);
    case TR_TOKEN_I32:
        return (int32_t)tr_load_u32(at);
    case TR_TOKEN_U32:
        return tr_load_u32(at);
    case TR_TOKEN_I64:
        break;
    }
    return (int64_t)tr_load_u64(at);
}

/* Converts `count` stored tokens; the index of the first one that is no id, or `count`. */
static uint64_t convert(const unsigned char *src, tr_token_width width, uint64_t count,
                        int32_t *dst)
{
    uint64_t i;
    switch (width) {
    case TR_TOKEN_U8:
        for (i = 0; i < count; i++)
            dst[i] = src[i];
        return count;
    case TR_TOKEN_U16:
        for (i = 0; i < count; i++)
            dst[i] = tr_load_u16(src + 2 * i);
        return count;
    case TR_TOKEN_I16:
    case TR_TOKEN_I32:
    case TR_TOKEN_U32:
    case TR_TOKEN_I64:
        break;
    }
    for (i = 0; i < count; i++) {
        int64_t id = load_token(src + widths[width].size * i, width);
        if (id < 0 || id > INT32_MAX)
            return i;
        dst[i] = (int32_t)id;
    }
    return count;
}

static tr_status refuse_token(const tr_token_file *file, uint64_t token, const unsigned char *at)
{
    tr_token_document document;
    tr_token_file_locate(file, token, &document);
    return tr_fail(
        TR_ERR_DATA,
        "%s: offset %llu: document %llu, position %llu in it: token id %lld, expected 0 to %d",
        file->data.path, (unsigned long long)(at - file->data.bytes),
        (unsigned long long)document.index, (unsigned long long)(token - document.first_token),
        (long long)load_token(at, file->width), INT32_MAX);
}

tr_status tr_token_file_read(const tr_token_file *file, uint64_t first, uint64_t count,
                             int32_t *dst)
{
    TR_ASSERT(first <= file->info.num_tokens && count <= file->info.num_tokens - first);
    if (count == 0)
        return TR_OK;
    uint64_t start;
    uint64_t sequence = find_sequence(file, first, &start);
    uint64_t inside = first - start;
    for (uint64_t done = 0; done < count; sequence++, inside = 0) {
        uint64_t part = sequence_length(file, sequence) - inside;
        if (part > count - done)
            part = count - done;
        if (part == 0) /* an empty sequence; its pointer may be the end of the file */
            continue;
        const unsigned char *src =
            file->data.bytes + sequence_pointer(file, sequence) + inside * file->info.item_size;
        uint64_t good = convert(src, file->width, part, dst + done);
        if (good < part)
            return refuse_token(file, first + done + good, src + good * file->info.item_size);
        done += part;
    }
    return TR_OK;
}

uint64_t tr_token_file_fingerprint(const tr_token_file *file)
{
    enum { STRETCHES = 16, LENGTH = 1024 };
    uint64_t size = file->data.size, length = size < LENGTH ? size : LENGTH;
    uint64_t last = size - length, hash = size;
    for (uint64_t i = 0; i < STRETCHES; i++) {
        uint64_t first = i == STRETCHES - 1 ? last : last / (STRETCHES - 1) * i;
        hash = tr_hash64(file->data.bytes + first, length, hash);
    }
    return hash;
}

void tr_token_file_document(const tr_token_file *file, uint64_t index, tr_token_document *document)
{
    TR_ASSERT(index < file->info.num_documents);
    uint64_t begin = 0, end = file->info.num_sequences;
    if (file->documents != NULL) {
        begin = tr_load_u64(file->documents + 8 * index);
        end = tr_load_u64(file->documents + 8 * (index + 1));
    }
    document->index = index;
    document->first_token = tokens_before(file, begin);
    document->num_tokens = tokens_before(file, end) - document->first_token;
}

void tr_token_file_locate(const tr_token_file *file, uint64_t token, tr_token_document *document)
{
    TR_ASSERT(token < file->info.num_tokens);
    uint64_t start;
    uint64_t sequence = find_sequence(file, token, &start);
    uint64_t low = 0, high = file->info.num_documents -
                             1; /* the last document that starts at or before the sequence */
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (tr_load_u64(file->documents + 8 * middle) <= sequence)
            low = middle;
        else
            high = middle - 1;
    }
    tr_token_file_document(file, low, document);
}
