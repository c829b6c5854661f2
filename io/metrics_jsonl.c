#include "io/metrics_jsonl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "io/file_commit.h"

enum { LINE_BYTES = 4096 };

struct tr_metrics_file {
    int fd;
    char *path;
    size_t used;
    char line[LINE_BYTES];
};

/* The step of a line, or false when it does not begin as our lines do. */
static bool line_step(const char *line, uint64_t *step)
{
    static const char start[] = "{\"step\": ";
    if (strncmp(line, start, sizeof start - 1) != 0)
        return false;
    const char *digits = line + sizeof start - 1;
    char *end;
    if (*digits < '0' || *digits > '9')
        return false;
    errno = 0;
    *step = strtoull(digits, &end, 10);
    return errno == 0 && *end == ',';
}

/* Copies the lines to keep from `src` to `fd`; *dropped tells whether any was left out. */
static tr_status copy_kept(FILE *src, const char *path, uint64_t keep_steps, int fd, bool *dropped)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    uint64_t number = 0;
    tr_status status = TR_OK;
    while (status == TR_OK && (size = getline(&line, &room, src)) > 0) {
        uint64_t step;
        number++;
        if (line[size - 1] != '\n') {
            *dropped = true; /* only the last line can lack its end */
        } else if (!line_step(line, &step)) {
            status =
                tr_fail(TR_ERR_DATA,
                        "%s: line %" PRIu64
                        " is no line of metrics; expected {\"step\": N, ...}; move the file away",
                        path, number);
        } else if (step > keep_steps) {
            *dropped = true;
        } else {
            status = tr_file_write_all(fd, line, (size_t)size, path);
        }
    }
    if (status == TR_OK && ferror(src))
        status = tr_fail_errno(TR_ERR_IO, errno, "%s: reading failed", path);
    free(line); /* getline's */
    return status;
}

static tr_status remove_later_lines(FILE *src, const char *path, const char *temp,
                                    uint64_t keep_steps)
{
    bool dropped = false;
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot create the file", temp);
    tr_status status = copy_kept(src, path, keep_steps, fd, &dropped);
    if (status == TR_OK && dropped)
        return tr_file_commit(fd, temp, path);
    close(fd);
    unlink(temp);
    return status;
}

static tr_status trim(const char *path, uint64_t keep_steps)
{
    FILE *src = fopen(path, "re");
    if (src == NULL && errno == ENOENT)
        return TR_OK;
    if (src == NULL)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot open the metrics", path);
    char *temp = tr_format("%s.tmp", path);
    tr_status status = remove_later_lines(src, path, temp, keep_steps);
    tr_free(temp);
    fclose(src);
    return status;
}

tr_status tr_metrics_file_open(tr_metrics_file **out, const char *path, uint64_t keep_steps)
{
    TR_TRY(trim(path, keep_steps));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot open the metrics", path);
    tr_metrics_file *file = TR_NEW(tr_metrics_file);
    file->fd = fd;
    file->path = tr_strdup(path);
    *out = file;
    return TR_OK;
}

static void put(tr_metrics_file *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void put(tr_metrics_file *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int size = vsnprintf(file->line + file->used, LINE_BYTES - file->used, format, args);
    va_end(args);
    TR_ASSERT(size >= 0 && (size_t)size < LINE_BYTES - file->used);
    file->used += (size_t)size;
}

static void put_double(tr_metrics_file *file, const char *name, double value)
{
    if (isnan(value))
        put(file, "\"%s\": \"nan\"", name);
    else if (isinf(value))
        put(file, "\"%s\": \"%sinf\"", name, value < 0 ? "-" : "");
    else
        put(file, "\"%s\": %.17g", name, value);
}

static void put_times(tr_metrics_file *file, const tr_metrics_record *record)
{
    const struct {
        const char *name;
        double ms;
    } parts[] = {
        {"compute", record->time.compute},
        {"tensor", record->time.tensor},
        {"data", record->time.data},
        {"pipeline", record->time.pipeline},
        {"idle", record->time.idle},
        {"feed", record->time.feed},
        {"checkpoint", record->time.checkpoint},
    };
    put(file, ", \"time\": {");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (i > 0)
            put(file, ", ");
        put_double(file, parts[i].name, parts[i].ms);
    }
    put(file, "}");
}

/* The whole line or nothing: what a full disk cut would spoil the lines behind it. */
static tr_status line_write(tr_metrics_file *file)
{
    off_t size = lseek(file->fd, 0, SEEK_END);
    tr_status status = tr_file_write_all(file->fd, file->line, file->used, file->path);
    if (status != TR_OK && size >= 0 && ftruncate(file->fd, size) != 0)
        tr_log_warning("%s: its last line is cut", file->path);
    return status;
}

tr_status tr_metrics_file_append(tr_metrics_file *file, const tr_metrics_record *record)
{
    const struct {
        const char *name;
        double value;
    } results[] = {
        {"loss", record->loss},
        {"grad_norm", record->grad_norm},
        {"lr", record->lr},
        {"loss_scale", record->loss_scale},
    };
    file->used = 0;
    put(file, "{\"step\": %" PRIu64 ", \"samples\": %" PRIu64 ", \"tokens\": %" PRIu64,
        record->step, record->samples, record->tokens);
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        put(file, ", ");
        put_double(file, results[i].name, results[i].value);
    }
    put(file, ", \"skipped\": %d, ", record->skipped);
    put_double(file, "step_ms", record->step_ms);
    put(file, ", ");
    put_double(file, "tokens_per_s", record->tokens_per_s);
    put(file, ", ");
    put_double(file, "mfu", record->mfu);
    put(file, ", \"memory_peak_bytes\": %" PRIu64, record->memory_peak_bytes);
    put_times(file, record);
    if (record->has_valid_loss) {
        put(file, ", ");
        put_double(file, "valid_loss", record->valid_loss);
    }
    put(file, "}\n");
    return line_write(file);
}

void tr_metrics_file_close(tr_metrics_file *file)
{
    if (file == NULL)
        return;
    close(file->fd);
    tr_free(file->path);
    tr_free(file);
}
