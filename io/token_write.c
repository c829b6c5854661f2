#include "io/token_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file_commit.h"

enum { BUFFER_BYTES = 1 << 20, U16_VOCAB_LIMIT = 65500, DTYPE_I32 = 4, DTYPE_U16 = 8 };

/* A file being written through a buffer. `path` names it in messages. */
typedef struct write_file {
    int fd;
    char *path;
    uint64_t flushed; /* bytes already handed to the system */
    size_t used;      /* bytes waiting in the buffer */
    unsigned char *buffer;
} write_file;

struct tr_token_writer {
    tr_token_writer_options options;
    size_t item_size;
    char *bin_path, *idx_path, *lengths_path;
    write_file bin, idx;
    /* u32 per ended document, unlinked: one pass over it makes all arrays of the index. */
    write_file lengths;
    uint64_t document_start; /* bytes of the .bin in front of the open document */
    uint64_t num_documents;
    bool committed;
};

/* Locks the file before it is cut: two writers of one name, in two processes or under two spellings
 * in this one, would mix their tokens. What a killed one left is nobody's and is taken over; a file
 * that got its final name while this opened it is left alone. */
static tr_status write_file_open(write_file *file, char *path)
{
    struct stat opened, named;
    file->path = path;
    file->buffer = TR_NEW_ARRAY(unsigned char, BUFFER_BYTES);
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot create the file", path);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            close(fd);
            return tr_fail(TR_ERR_IO, "%s: is being written already; use another output name",
                           path);
        }
        if (fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
            opened.st_ino == named.st_ino) {
            file->fd = fd;
            break;
        }
        close(fd);
    }
    if (ftruncate(file->fd, 0) != 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot empty the file", path);
    return TR_OK;
}

static tr_status write_file_flush(write_file *file)
{
    TR_TRY(tr_file_write_all(file->fd, file->buffer, file->used, file->path));
    file->flushed += file->used;
    file->used = 0;
    return TR_OK;
}

static tr_status write_file_put(write_file *file, const void *bytes, size_t size)
{
    if (size > BUFFER_BYTES - file->used)
        TR_TRY(write_file_flush(file));
    TR_ASSERT(size <= BUFFER_BYTES);
    memcpy(file->buffer + file->used, bytes, size);
    file->used += size;
    return TR_OK;
}

static uint64_t write_file_size(const write_file *file)
{
    return file->flushed + file->used;
}

/* Makes the file `size` bytes long, which is at most what it is. */
static tr_status write_file_cut(write_file *file, uint64_t size)
{
    if (size >= file->flushed) {
        file->used = (size_t)(size - file->flushed);
        return TR_OK;
    }
    if (ftruncate(file->fd, (off_t)size) != 0 || lseek(file->fd, (off_t)size, SEEK_SET) < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot shorten the file", file->path);
    file->flushed = size;
    file->used = 0;
    return TR_OK;
}

/* Closes without a name: the temporary file goes. */
static void write_file_drop(write_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        unlink(file->path);
    }
    tr_free(file->path);
    tr_free(file->buffer);
}

static tr_status write_file_commit(write_file *file, const char *path)
{
    TR_TRY(write_file_flush(file));
    int fd = file->fd;
    file->fd = -1; /* closed by the next call in every case */
    TR_TRY(tr_file_commit(fd, file->path, path));
    return TR_OK;
}

static void put_u64(unsigned char *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static tr_status open_files(tr_token_writer *writer)
{
    TR_TRY(write_file_open(&writer->bin, tr_format("%s.tmp", writer->bin_path)));
    TR_TRY(write_file_open(&writer->idx, tr_format("%s.tmp", writer->idx_path)));
    TR_TRY(write_file_open(&writer->lengths, tr_format("%s.lengths.tmp", writer->idx_path)));
    if (unlink(writer->lengths.path) != 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot remove", writer->lengths.path);
    return TR_OK;
}

tr_status tr_token_writer_open(tr_token_writer **out, const tr_token_writer_options *options)
{
    TR_ASSERT(options->vocab > 0 && options->vocab <= INT32_MAX);
    tr_token_writer *writer = TR_NEW(tr_token_writer);
    writer->options = *options;
    writer->item_size = options->store != TR_TOKEN_STORE_AUTO ? (size_t)options->store
                        : options->vocab < U16_VOCAB_LIMIT    ? 2
                                                              : 4;
    writer->bin_path = tr_format("%s.bin", options->prefix);
    writer->idx_path = tr_format("%s.idx", options->prefix);
    writer->bin.fd = writer->idx.fd = writer->lengths.fd = -1;
    tr_status status = open_files(writer);
    if (status != TR_OK) {
        tr_token_writer_close(writer);
        return status;
    }
    *out = writer;
    return TR_OK;
}

static tr_status refuse_id(const tr_token_writer *writer, int32_t id)
{
    if (id >= 0 && (uint64_t)id < writer->options.vocab)
        return tr_fail(
            TR_ERR_DATA,
            "%s: document %llu: token id %d does not fit in 16 bits (at most 65535); store 32 bits",
            writer->bin_path, (unsigned long long)writer->num_documents, id);
    return tr_fail(
        TR_ERR_DATA, "%s: document %llu: token id %d, expected 0 to %llu (vocabulary %llu)",
        writer->bin_path, (unsigned long long)writer->num_documents, id,
        (unsigned long long)writer->options.vocab - 1, (unsigned long long)writer->options.vocab);
}

tr_status tr_token_writer_append(tr_token_writer *writer, const int32_t *ids, size_t count)
{
    uint64_t limit = writer->options.vocab;
    if (writer->item_size == 2 && limit > 65536)
        limit = 65536;
    for (size_t i = 0; i < count; i++) {
        if ((uint64_t)ids[i] >= limit) /* a negative id is huge here */
            return refuse_id(writer, ids[i]);
        unsigned char bytes[8];
        put_u64(bytes, (uint64_t)ids[i]);
        TR_TRY(write_file_put(&writer->bin, bytes, writer->item_size));
    }
    return TR_OK;
}

tr_status tr_token_writer_end_document(tr_token_writer *writer)
{
    uint64_t end = write_file_size(&writer->bin);
    uint64_t length = (end - writer->document_start) / writer->item_size;
    if (length > INT32_MAX)
        return tr_fail(TR_ERR_DATA,
                       "%s: document %llu has %llu tokens, expected at most %d: cut it in parts",
                       writer->bin_path, (unsigned long long)writer->num_documents,
                       (unsigned long long)length, INT32_MAX);
    unsigned char bytes[8];
    put_u64(bytes, length);
    TR_TRY(write_file_put(&writer->lengths, bytes, 4));
    writer->document_start = end;
    writer->num_documents++;
    return TR_OK;
}

tr_status tr_token_writer_discard_document(tr_token_writer *writer)
{
    return write_file_cut(&writer->bin, writer->document_start);
}

/* Goes over the lengths once and puts either each length (4 bytes), or the byte pointer of each
 * sequence (8 bytes). */
static tr_status put_per_length(tr_token_writer *writer, bool pointers)
{
    unsigned char block[4096], item[8];
    uint64_t size = 4 * writer->num_documents, pointer = 0;
    for (uint64_t at = 0; at < size;) {
        size_t want = size - at < sizeof block ? (size_t)(size - at) : sizeof block;
        ssize_t got = pread(writer->lengths.fd, block, want, (off_t)at);
        if (got != (ssize_t)want)
            return tr_fail_errno(TR_ERR_IO, got < 0 ? errno : EIO, "%s: reading back failed",
                                 writer->lengths.path);
        for (size_t i = 0; pointers && i < want; i += 4) {
            put_u64(item, pointer);
            TR_TRY(write_file_put(&writer->idx, item, 8));
            uint64_t length = block[i] | (uint64_t)block[i + 1] << 8 |
                              (uint64_t)block[i + 2] << 16 | (uint64_t)block[i + 3] << 24;
            pointer += length * writer->item_size;
        }
        if (!pointers)
            TR_TRY(write_file_put(&writer->idx, block, want));
        at += want;
    }
    return TR_OK;
}

static tr_status put_index(tr_token_writer *writer)
{
    unsigned char header[34] = {'M', 'M', 'I', 'D', 'I', 'D', 'X'};
    put_u64(header + 9, 1);
    header[17] = writer->item_size == 2 ? DTYPE_U16 : DTYPE_I32;
    put_u64(header + 18, writer->num_documents);
    put_u64(header + 26, writer->num_documents + 1);
    TR_TRY(write_file_put(&writer->idx, header, sizeof header));
    TR_TRY(put_per_length(writer, false));
    TR_TRY(put_per_length(writer, true));
    for (uint64_t i = 0; i <= writer->num_documents; i++) {
        unsigned char item[8];
        put_u64(item, i);
        TR_TRY(write_file_put(&writer->idx, item, 8));
    }
    return TR_OK;
}

tr_status tr_token_writer_commit(tr_token_writer *writer)
{
    TR_ASSERT(!writer->committed && write_file_size(&writer->bin) == writer->document_start);
    TR_TRY(write_file_flush(&writer->lengths));
    TR_TRY(put_index(writer));
    TR_TRY(write_file_flush(&writer->idx));
    /* An index of before must not describe the new tokens, not even for a moment. */
    if (unlink(writer->idx_path) != 0 && errno != ENOENT)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot replace the file", writer->idx_path);
    TR_TRY(write_file_commit(&writer->bin, writer->bin_path));
    TR_TRY(write_file_commit(&writer->idx, writer->idx_path));
    writer->committed = true;
    return TR_OK;
}

void tr_token_writer_close(tr_token_writer *writer)
{
    if (writer == NULL)
        return;
    write_file_drop(&writer->bin);
    write_file_drop(&writer->idx);
    write_file_drop(&writer->lengths);
    tr_free(writer->bin_path);
    tr_free(writer->idx_path);
    tr_free(writer);
}

uint64_t tr_token_writer_num_tokens(const tr_token_writer *writer)
{
    return write_file_size(&writer->bin) / writer->item_size;
}

uint64_t tr_token_writer_num_documents(const tr_token_writer *writer)
{
    return writer->num_documents;
}

size_t tr_token_writer_item_size(const tr_token_writer *writer)
{
    return writer->item_size;
}
