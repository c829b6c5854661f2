/* One event emitter for what a run says to people: the console, and log.txt once it is known.
 *
 * Lines are written whole, from any thread. Only rank 0 is loud (tr_log_init); other ranks print warnings and
 * errors only where told. Nothing on a step's hot path formats a line that is not printed. */
#ifndef TR_BASE_LOG_H
#define TR_BASE_LOG_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tr_log_level { TR_LOG_ERROR, TR_LOG_WARNING, TR_LOG_INFO, TR_LOG_DEBUG } tr_log_level;

/* rank: other ranks than 0 name themselves: "error: rank 3: ...". loud: whether INFO lines are printed. Lines above `level` are
 * not printed. Before this call: rank 0, loud, INFO. */
void tr_log_init(int rank, bool loud, tr_log_level level);
/* From here on every printed line also goes to `path`, appended. False with errno set when it cannot be opened. */
bool tr_log_file_open(const char *path);
void tr_log_file_close(void);

/* ERROR and WARNING go to stderr as "error: ..." and "warning: ...", INFO to stdout as it is, DEBUG to stderr as "debug: ...". */
void tr_log(tr_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define tr_log_info(...) tr_log(TR_LOG_INFO, __VA_ARGS__)
#define tr_log_warning(...) tr_log(TR_LOG_WARNING, __VA_ARGS__)
#define tr_log_error(...) tr_log(TR_LOG_ERROR, __VA_ARGS__)
#define tr_log_debug(...) tr_log(TR_LOG_DEBUG, __VA_ARGS__)

/* A line that replaces itself on a terminal (progress); on anything else it is printed as an INFO line. */
void tr_log_status_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif

#endif
