/* base/log: where lines go, who prints them, whole lines from many threads. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char folder[] = "/tmp/trine_test_log_XXXXXX";
static char out_path[64], err_path[64], file_path[64];
static int kept_out, kept_err;

static int redirect(int fd, const char *path)
{
    int kept = dup(fd);
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);
    dup2(file, fd);
    close(file);
    return kept;
}

static void capture_begin(void)
{
    fflush(NULL);
    kept_out = redirect(STDOUT_FILENO, out_path);
    kept_err = redirect(STDERR_FILENO, err_path);
}

static void capture_end(void)
{
    fflush(NULL);
    dup2(kept_out, STDOUT_FILENO);
    dup2(kept_err, STDERR_FILENO);
    close(kept_out);
    close(kept_err);
}

/* The whole file, to be freed. */
static char *file_read(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1 << 20, 1);
    size_t got = fread(text, 1, (1 << 20) - 1, file);
    text[got] = '\0';
    fclose(file);
    return text;
}

static void file_expect(const char *path, const char *expected)
{
    char *text = file_read(path);
    assert_string_equal(text, expected);
    free(text);
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(out_path, sizeof out_path, "%s/out", folder);
    snprintf(err_path, sizeof err_path, "%s/err", folder);
    snprintf(file_path, sizeof file_path, "%s/log.txt", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(out_path);
    unlink(err_path);
    unlink(file_path);
    return rmdir(folder);
}

static void test_levels_and_streams(void **state)
{
    (void)state;
    capture_begin();
    tr_log_init(0, true, TR_LOG_INFO);
    tr_log_info("step %d", 1);
    tr_log_warning("slow");
    errno = 5;
    tr_log_error("bad %s", "file");
    int errno_after = errno;
    tr_log_debug("detail");
    tr_log_status_line("12%%");
    tr_log_init(0, false, TR_LOG_DEBUG);
    tr_log_info("quiet");
    tr_log_debug("detail");
    capture_end();
    file_expect(out_path, "step 1\n12%\n");
    file_expect(err_path, "warning: slow\nerror: bad file\ndebug: detail\n");
    assert_int_equal(errno_after, 5);
}

static void test_other_ranks_name_themselves(void **state)
{
    (void)state;
    capture_begin();
    tr_log_init(3, false, TR_LOG_WARNING);
    tr_log_info("no");
    tr_log_warning("slow");
    tr_log_init(4, false, TR_LOG_ERROR);
    tr_log_warning("no");
    tr_log_error("bad");
    tr_log_init(5, true, TR_LOG_INFO);
    tr_log_info("yes");
    capture_end();
    file_expect(out_path, "rank 5: yes\n");
    file_expect(err_path, "warning: rank 3: slow\nerror: rank 4: bad\n");
}

static void test_file_is_appended(void **state)
{
    (void)state;
    unlink(file_path);
    tr_log_init(0, true, TR_LOG_INFO);
    for (int i = 0; i < 2; i++) {
        capture_begin();
        tr_log_info("before");
        assert_true(tr_log_file_open(file_path));
        tr_log_info("a");
        tr_log_warning("b");
        tr_log_status_line("c");
        tr_log_debug("not printed");
        tr_log_file_close();
        tr_log_info("after");
        capture_end();
    }
    file_expect(file_path, "a\nwarning: b\nc\na\nwarning: b\nc\n");
    assert_false(tr_log_file_open("/nonexistent/folder/log.txt"));
    assert_int_equal(errno, ENOENT);
}

static void test_long_lines_are_whole(void **state)
{
    (void)state;
    static char text[10001], expected[10100];
    memset(text, 'y', sizeof text - 1);
    snprintf(expected, sizeof expected, "warning: %s\n", text);
    for (int length = 4070; length < 4100; length++) { /* around the size of the line buffer */
        capture_begin();
        tr_log_init(0, true, TR_LOG_INFO);
        tr_log_info("%.*s", length, text);
        tr_log_info("|");
        capture_end();
        char *found = file_read(out_path);
        assert_int_equal(strlen(found), length + 3);
        assert_string_equal(found + length, "\n|\n");
        free(found);
    }
    capture_begin();
    tr_log_warning("%s", text);
    capture_end();
    file_expect(err_path, expected);
}

enum { THREADS = 4, LINES = 300 };

static void *thread_log(void *context)
{
    for (int i = 0; i < LINES; i++)
        tr_log_info("thread %d says %04d and then the same again: %04d", *(int *)context, i, i);
    return NULL;
}

static void test_lines_from_threads_are_whole(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    int numbers[THREADS];
    capture_begin();
    tr_log_init(0, true, TR_LOG_INFO);
    for (int t = 0; t < THREADS; t++) {
        numbers[t] = t;
        pthread_create(&threads[t], NULL, thread_log, &numbers[t]);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    capture_end();
    char *text = file_read(out_path);
    int lines = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        int thread, first, second;
        assert_int_equal(
            sscanf(line, "thread %d says %d and then the same again: %d", &thread, &first, &second),
            3);
        assert_int_equal(first, second);
        assert_int_equal(strlen(line), strlen("thread 0 says 0000 and then the same again: 0000"));
    }
    assert_int_equal(lines, THREADS * LINES);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_and_streams),
        cmocka_unit_test(test_other_ranks_name_themselves),
        cmocka_unit_test(test_file_is_appended),
        cmocka_unit_test(test_long_lines_are_whole),
        cmocka_unit_test(test_lines_from_threads_are_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
