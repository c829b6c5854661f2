#include "io/text_documents.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "base/alloc.h"

enum { BLOCK_BYTES = 1 << 18 };

typedef struct splitter {
    const tr_text_options *options;
    const tr_text_sink *sink;
    uint64_t offset;         /* of the next byte */
    uint64_t document_start; /* of the open document */
    unsigned char
        last[3];  /* the bytes before this one, the nearest first; 0 at the start of the file */
    bool open;    /* a document has begun */
    bool has_ink; /* the open document has a byte other than white space */
} splitter;

static tr_status begin(splitter *split)
{
    TR_TRY(split->sink->begin(split->sink->context, split->offset));
    split->open = true;
    split->has_ink = false;
    split->document_start = split->offset;
    return TR_OK;
}

static tr_status text(splitter *split, const unsigned char *bytes, size_t size)
{
    if (size == 0)
        return TR_OK;
    return split->sink->text(split->sink->context, bytes, size);
}

static tr_status end(splitter *split)
{
    split->open = false;
    return split->sink->end(split->sink->context, !split->has_ink);
}

static bool is_space(unsigned char byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static void look_at(splitter *split, unsigned char byte)
{
    split->last[2] = split->last[1];
    split->last[1] = split->last[0];
    split->last[0] = byte;
    split->has_ink = split->has_ink || !is_space(byte);
    split->offset++;
}

/* Whether a document may begin with `byte`: the line before it is empty, and it is text. */
static bool is_border(const splitter *split, unsigned char byte)
{
    const unsigned char *last = split->last;
    bool after_empty_line =
        last[0] == '\n' && (last[1] == '\n' || (last[1] == '\r' && last[2] == '\n'));
    if (!after_empty_line || byte == '\n' || byte == '\r' || !split->has_ink)
        return false;
    if (split->options->split == TR_TEXT_ENTRY && is_space(byte))
        return false;
    return split->offset - split->document_start >= split->options->min_bytes;
}

static tr_status feed_blocks(splitter *split, const unsigned char *bytes, size_t size)
{
    size_t from = 0;
    for (size_t i = 0; i < size; i++) {
        if (split->open && split->options->split != TR_TEXT_FILE && is_border(split, bytes[i])) {
            TR_TRY(text(split, bytes + from, i - from));
            TR_TRY(end(split));
            from = i;
        }
        if (!split->open)
            TR_TRY(begin(split));
        look_at(split, bytes[i]);
    }
    return text(split, bytes + from, size - from);
}

/* A CR is held back until the next byte says whether it ends the line. */
static tr_status feed_lines(splitter *split, const unsigned char *bytes, size_t size)
{
    size_t from = 0, i;
    for (i = 0; i < size; i++) {
        bool held_cr = split->open && split->last[0] == '\r';
        if (held_cr && i == 0 && bytes[i] != '\n')
            TR_TRY(text(split, (const unsigned char *)"\r", 1));
        if (!split->open)
            TR_TRY(begin(split));
        if (bytes[i] == '\n') {
            size_t stop = held_cr && i > 0 ? i - 1 : i;
            TR_TRY(text(split, bytes + from, stop - from));
            TR_TRY(end(split));
            from = i + 1;
        }
        look_at(split, bytes[i]);
    }
    size_t stop = size > from && bytes[size - 1] == '\r' ? size - 1 : size;
    return text(split, bytes + from, stop - from);
}

static tr_status finish(splitter *split)
{
    if (split->open) {
        if (split->options->split == TR_TEXT_LINE && split->last[0] == '\r')
            TR_TRY(text(split, (const unsigned char *)"\r", 1));
        return end(split);
    }
    /* A file without a byte is one empty document, so that it is counted. */
    if (split->options->split == TR_TEXT_FILE) {
        TR_TRY(begin(split));
        return end(split);
    }
    return TR_OK;
}

static tr_status open_text(gzFile *out, const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return tr_fail_errno(TR_ERR_DATA, errno, "%s: cannot open the text", path);
    if (!S_ISREG(about.st_mode))
        return tr_fail(TR_ERR_DATA, "%s: the text must be a regular file", path);
    gzFile file = gzopen(path, "rb");
    if (file == NULL)
        return tr_fail_errno(TR_ERR_DATA, errno, "%s: cannot open the text", path);
    gzbuffer(file, BLOCK_BYTES);
    *out = file;
    return TR_OK;
}

/* Up to BLOCK_BYTES of text; *size 0 at the end. */
static tr_status read_block(gzFile file, const char *path, unsigned char *block, size_t *size)
{
    int got = gzread(file, block, BLOCK_BYTES);
    int code = Z_OK;
    const char *why = gzerror(file, &code);
    /* A cut file gives its last bytes first and Z_BUF_ERROR with them. */
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
        return tr_fail(TR_ERR_DATA,
                       "%s: offset %lld of the compressed file: damaged or cut gzip data (%s)",
                       path, (long long)gzoffset(file), code == Z_ERRNO ? strerror(errno) : why);
    *size = (size_t)got;
    return TR_OK;
}

static tr_status read_all(gzFile file, const char *path, splitter *split, unsigned char *block)
{
    for (;;) {
        size_t size = 0;
        TR_TRY(read_block(file, path, block, &size));
        if (size == 0)
            return finish(split);
        if (split->options->split == TR_TEXT_LINE)
            TR_TRY(feed_lines(split, block, size));
        else
            TR_TRY(feed_blocks(split, block, size));
    }
}

tr_status tr_text_documents_read(const char *path, const tr_text_options *options,
                                 const tr_text_sink *sink, uint64_t *offset)
{
    gzFile file;
    TR_TRY(open_text(&file, path));
    unsigned char *block = TR_NEW_ARRAY(unsigned char, BLOCK_BYTES);
    splitter split = {.options = options, .sink = sink, .offset = *offset};
    tr_status status = read_all(file, path, &split, block);
    *offset = split.offset;
    tr_free(block);
    gzclose_r(file);
    return status;
}

tr_status tr_text_documents_measure(const char *path, uint64_t *size)
{
    gzFile file;
    TR_TRY(open_text(&file, path));
    unsigned char *block = TR_NEW_ARRAY(unsigned char, BLOCK_BYTES);
    uint64_t total = 0;
    size_t got = 0;
    tr_status status;
    do {
        status = read_block(file, path, block, &got);
        total += status == TR_OK ? got : 0;
    } while (status == TR_OK && got > 0);
    tr_free(block);
    gzclose_r(file);
    if (status == TR_OK)
        *size = total;
    return status;
}
