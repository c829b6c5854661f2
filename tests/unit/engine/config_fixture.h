/* What the tests of the configuration share: a complete small configuration and checks of refusals. */
#ifndef TESTS_ENGINE_CONFIG_FIXTURE_H
#define TESTS_ENGINE_CONFIG_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/config/config.h"

/* 4 layers, hidden 64, 4 heads, ffn 176, vocabulary 257, 20 steps of 24 sequences of 32 tokens. */
static const char fixture_yaml[] = "model:\n"
                                   "  layers: 4\n"
                                   "  hidden: 64\n"
                                   "  heads: 4\n"
                                   "  ffn: 176\n"
                                   "  vocab: 257\n"
                                   "train:\n"
                                   "  steps: 20\n"
                                   "  seq_len: 32\n"
                                   "  global_batch: 24\n";

/* Fails the test unless the last message has each of the parts (up to NULL). */
#define assert_message(...) assert_message_parts((const char *const[]){__VA_ARGS__, NULL})

static inline void assert_message_parts(const char *const *parts)
{
    const char *message = tr_error_message();
    for (; *parts; parts++)
        if (strstr(message, *parts) == NULL)
            fail_msg("'%s' is not in: %s", *parts, message);
    /* One line, so that `error: ...` is one. */
    assert_null(strchr(message, '\n'));
}

/* Reads `yaml` as the file "t.yaml". */
static inline tr_status fixture_read(tr_config *cfg, const char *yaml)
{
    tr_config_init(cfg);
    return tr_config_read_text(cfg, "t.yaml", yaml, strlen(yaml));
}

/* The fixture with overrides separated by blanks, resolved for num_ranks. */
static inline tr_status fixture_resolve(tr_config *cfg, const char *overrides, int64_t num_ranks)
{
    char words[512];
    tr_status status = fixture_read(cfg, fixture_yaml);
    assert_int_equal(status, TR_OK);
    assert_true(strlen(overrides) < sizeof words);
    strcpy(words, overrides);
    for (char *word = strtok(words, " "); word && status == TR_OK; word = strtok(NULL, " "))
        status = tr_config_override(cfg, word);
    return status == TR_OK ? tr_config_resolve(cfg, num_ranks) : status;
}

#endif
