#include "io/trace_json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file_commit.h"

/* What makes the file whole; the next event is written over it. */
static const char tail[] = "\n]}\n";

struct tr_trace_file {
    FILE *stream;
    char *path;
    bool has_tail, has_events;
    bool is_regular;
    bool failed;       /* the last flush did */
    long whole_length; /* after the last flush that did not; 0 before the first */
};

tr_status tr_trace_file_create(tr_trace_file **out, const char *path)
{
    FILE *stream = fopen(path, "we");
    if (stream == NULL)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot create the file", path);
    tr_trace_file *file = TR_NEW(tr_trace_file);
    file->stream = stream;
    file->path = tr_strdup(path);
    file->is_regular = tr_file_is_regular(fileno(stream));
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", stream);
    *out = file;
    return TR_OK;
}

/* Drops what came after the last flush that succeeded: the tail is written where it was, which takes no room on a full disk. Without such a flush nothing stays. */
static void whole_restore(const tr_trace_file *file)
{
    const size_t tail_length = sizeof tail - 1;
    if (file->whole_length == 0) {
        unlink(file->path);
        return;
    }
    int whole = open(file->path, O_WRONLY | O_CLOEXEC);
    bool restored = whole >= 0 &&
                    pwrite(whole, tail, tail_length, file->whole_length - (long)tail_length) ==
                        (ssize_t)tail_length &&
                    ftruncate(whole, file->whole_length) == 0;
    if (whole >= 0)
        close(whole);
    if (!restored)
        unlink(file->path);
}

void tr_trace_file_close(tr_trace_file *file)
{
    if (file == NULL)
        return;
    fclose(file->stream);
    if (file->failed && file->is_regular)
        whole_restore(file);
    tr_free(file->path);
    tr_free(file);
}

/* A JSON string of printable ASCII; anything else becomes a question mark. */
static void put_text(tr_trace_file *file, const char *text)
{
    fputc('"', file->stream);
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\')
            fputc('\\', file->stream);
        fputc(*at >= 0x20 && *at < 0x7f ? *at : '?', file->stream);
    }
    fputc('"', file->stream);
}

static void event_begin(tr_trace_file *file, const char *phase, int process, int thread)
{
    if (file->has_tail && fseek(file->stream, -(long)(sizeof tail - 1), SEEK_END) == 0)
        file->has_tail = false;
    fprintf(file->stream, "%s\n{\"ph\": \"%s\", \"pid\": %d, \"tid\": %d",
            file->has_events ? "," : "", phase, process, thread);
    file->has_events = true;
}

static void name_put(tr_trace_file *file, const char *what, int process, int thread,
                     const char *name)
{
    event_begin(file, "M", process, thread);
    fprintf(file->stream, ", \"name\": \"%s_name\", \"args\": {\"name\": ", what);
    put_text(file, name);
    fputs("}}", file->stream);
}

static void order_put(tr_trace_file *file, const char *what, int process, int thread, int place)
{
    event_begin(file, "M", process, thread);
    fprintf(file->stream, ", \"name\": \"%s_sort_index\", \"args\": {\"sort_index\": %d}}", what,
            place);
}

void tr_trace_file_process(tr_trace_file *file, int process, const char *name)
{
    name_put(file, "process", process, 0, name);
    order_put(file, "process", process, 0, process);
}

void tr_trace_file_thread(tr_trace_file *file, int process, int thread, const char *name)
{
    name_put(file, "thread", process, thread, name);
    order_put(file, "thread", process, thread, thread);
}

void tr_trace_file_slice(tr_trace_file *file, const tr_trace_slice *slice)
{
    TR_ASSERT(slice->num_args <= TR_TRACE_FILE_ARGS);
    event_begin(file, "X", slice->process, slice->thread);
    fprintf(file->stream, ", \"ts\": %.3f, \"dur\": %.3f, \"name\": ", slice->begin,
            slice->end - slice->begin);
    put_text(file, slice->name);
    for (int i = 0; i < slice->num_args; i++)
        fprintf(file->stream, "%s\"%s\": %" PRId64, i == 0 ? ", \"args\": {" : ", ",
                slice->args[i].name, slice->args[i].value);
    fputs(slice->num_args > 0 ? "}}" : "}", file->stream);
}

void tr_trace_file_arrow(tr_trace_file *file, bool is_start, int process, int thread, double time,
                         uint64_t id)
{
    event_begin(file, is_start ? "s" : "f", process, thread);
    fprintf(file->stream,
            ", \"ts\": %.3f, \"id\": %" PRIu64 ", \"name\": \"transfer\", \"cat\": \"transfer\"%s}",
            time, id, is_start ? "" : ", \"bp\": \"e\"");
}

tr_status tr_trace_file_flush(tr_trace_file *file)
{
    if (!file->has_tail)
        fputs(tail, file->stream);
    file->has_tail = true;
    errno = 0;
    file->failed = fflush(file->stream) != 0 || ferror(file->stream);
    if (file->failed)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot write the trace", file->path);
    file->whole_length = ftell(file->stream);
    return TR_OK;
}
