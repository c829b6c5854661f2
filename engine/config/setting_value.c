/* One setting's value from text and back.
 *
 * Parsing is strict, so that nothing is taken for what it is not: whole numbers are digits, reals
 * are digits with one point and one exponent, booleans are true and false, and there are no unit
 * suffixes. A refusal changes nothing. */
#include "engine/config/settings_int.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static void *field_of(const tr_config *cfg, const tr_setting *row)
{
    return (char *)(uintptr_t)cfg + row->offset;
}

/* Length of the longest prefix that is a number: -12, 3.5, 3e-4; 0 when there is none. */
static size_t number_length(const char *text, bool whole)
{
    size_t n = text[0] == '-' || text[0] == '+' ? 1 : 0;
    size_t digits = strspn(text + n, "0123456789");
    n += digits;
    if (whole)
        return digits ? n : 0;
    if (text[n] == '.') {
        size_t more = strspn(text + n + 1, "0123456789");
        digits += more;
        n += 1 + more;
    }
    if (digits == 0)
        return 0;
    if (text[n] == 'e' || text[n] == 'E') {
        size_t sign = text[n + 1] == '-' || text[n + 1] == '+' ? 1 : 0;
        size_t more = strspn(text + n + 1 + sign, "0123456789");
        if (more)
            n += 1 + sign + more;
    }
    return n;
}

static tr_status refuse_number(const tr_setting *row, const char *where, const char *text,
                               bool whole)
{
    size_t n = number_length(text, false);
    const char *kind = whole ? "a whole number" : "a number";
    const char *unit = row->unit ? row->unit : "";
    const char *of = row->unit ? " of " : "";
    const char *or_word = row->keyword ? ", or " : "";
    const char *word = row->keyword ? row->keyword : "";
    if (n > 0 && text[n] == '_')
        return tr_fail(TR_ERR_SETTINGS, "%s: %s = %s: write the number without underscores", where,
                       row->name, text);
    if (n > 0 && (isalpha((unsigned char)text[n]) || text[n] == ' ' || text[n] == '%'))
        return tr_fail(TR_ERR_SETTINGS,
                       "%s: %s = %s: unit suffixes are not read; write %s%s%s without one", where,
                       row->name, text, kind, of, unit);
    if (n > 0 && text[n] == '\0' && whole)
        return tr_fail(TR_ERR_SETTINGS, "%s: %s = %s: expected a whole number%s%s (digits only)",
                       where, row->name, text, of, unit);
    return tr_fail(TR_ERR_SETTINGS, "%s: %s = %s: expected %s%s%s%s%s", where, row->name, text,
                   kind, of, unit, or_word, word);
}

static bool word_listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, " ");
        if (n == length && memcmp(at, word, n) == 0)
            return true;
        at += n;
        at += strspn(at, " ");
    }
    return false;
}

/* The value that `text` stands for elsewhere, or the nearest one; NULL: neither. */
static const char *value_meant(const tr_setting *row, const char *text)
{
    size_t length = strlen(text);
    if (row->elsewhere != NULL && strncmp(row->elsewhere, text, length) == 0 &&
        row->elsewhere[length] == ' ')
        return row->elsewhere + length + 1;
    const char *words[TR_SETTING_MAX_CHOICES];
    size_t num_words = 0;
    while (num_words < TR_SETTING_MAX_CHOICES && row->choices[num_words].text) {
        words[num_words] = row->choices[num_words].text;
        num_words++;
    }
    return tr_nearest_word(text, words, num_words);
}

static tr_status refuse_value(const tr_setting *row, const char *where, const char *text)
{
    char *values = tr_setting_values(row);
    bool later = row->later && (strcmp(row->later, "*") == 0 || word_listed(row->later, text));
    tr_status status;
    if (later) {
        status = tr_fail(TR_ERR_SETTINGS, "%s: %s = %s is not in this version; it has %s", where,
                         row->name, text, values);
    } else {
        const char *near = value_meant(row, text);
        if (near)
            status = tr_fail(TR_ERR_SETTINGS, "%s: %s = %s: did you mean %s? (%s)", where,
                             row->name, text, near, values);
        else
            status = tr_fail(TR_ERR_SETTINGS, "%s: %s = %s: expected %s", where, row->name, text,
                             values);
    }
    tr_free(values);
    return status;
}

static bool is_power_of_two(double value)
{
    int exponent;
    return value > 0 && frexp(value, &exponent) == 0.5;
}

static bool in_range(const tr_setting *row, double value)
{
    return value >= row->min && (row->below_max ? value < row->max : value <= row->max);
}

static tr_status parse_int(tr_config *cfg, const tr_setting *row, const char *where,
                           const char *text)
{
    int64_t value = 0;
    if (row->keyword == NULL || strcmp(text, row->keyword) != 0) {
        size_t n = number_length(text, true);
        if (n == 0 || text[n] != '\0')
            return refuse_number(row, where, text, true);
        errno = 0;
        long long parsed = strtoll(text, NULL, 10);
        if (errno != 0 || !in_range(row, (double)parsed))
            return refuse_value(row, where, text);
        value = parsed;
    }
    *(int64_t *)field_of(cfg, row) = value;
    return TR_OK;
}

static tr_status parse_u64(tr_config *cfg, const tr_setting *row, const char *where,
                           const char *text)
{
    size_t n = number_length(text, true);
    if (n == 0 || text[n] != '\0')
        return refuse_number(row, where, text, true);
    errno = 0;
    unsigned long long parsed = strtoull(text, NULL, 10);
    if (errno != 0 || text[0] == '-')
        return refuse_value(row, where, text);
    *(uint64_t *)field_of(cfg, row) = parsed;
    return TR_OK;
}

/* Kernels take these numbers in fp32: one that a range keeps above 0 or below 1 must be so there too. */
static tr_status check_rounded(const tr_setting *row, const char *where, const char *text,
                               double value)
{
    bool low = row->min == TR_SETTING_TINY && (float)value == 0.0f;
    bool high = row->below_max && (float)value >= (float)row->max;
    if (!low && !high)
        return TR_OK;
    char *values = tr_setting_values(row);
    tr_status status =
        tr_fail(TR_ERR_SETTINGS, "%s: %s = %s comes to %g in fp32, and is used so: expected %s",
                where, row->name, text, (double)(float)value, values);
    tr_free(values);
    return status;
}

static tr_status parse_real(tr_config *cfg, const tr_setting *row, const char *where,
                            const char *text)
{
    double value = 0;
    if (row->keyword == NULL || strcmp(text, row->keyword) != 0) {
        size_t n = number_length(text, false);
        if (n == 0 || text[n] != '\0')
            return refuse_number(row, where, text, false);
        value = strtod(text, NULL);
        if (!isfinite(value) || !in_range(row, value))
            return refuse_value(row, where, text);
        TR_TRY(check_rounded(row, where, text, value));
        if (row->power_of_two && !is_power_of_two(value)) {
            double below = exp2(floor(log2(value)));
            return tr_fail(TR_ERR_SETTINGS,
                           "%s: %s = %s: expected a power of two: %.17g or %.17g%s%s", where,
                           row->name, text, below, 2 * below, row->keyword ? ", or " : "",
                           row->keyword ? row->keyword : "");
        }
    }
    *(double *)field_of(cfg, row) = value;
    return TR_OK;
}

static tr_status parse_bool(tr_config *cfg, const tr_setting *row, const char *where,
                            const char *text)
{
    bool value = strcmp(text, "true") == 0;
    if (!value && strcmp(text, "false") != 0)
        return tr_fail(TR_ERR_SETTINGS, "%s: %s = %s: expected true or false", where, row->name,
                       text);
    if (value && row->max == 0)
        return refuse_value(row, where, text);
    *(bool *)field_of(cfg, row) = value;
    return TR_OK;
}

static tr_status parse_choice(tr_config *cfg, const tr_setting *row, const char *where,
                              const char *text)
{
    for (int i = 0; i < TR_SETTING_MAX_CHOICES && row->choices[i].text; i++)
        if (strcmp(row->choices[i].text, text) == 0) {
            *(int *)field_of(cfg, row) = row->choices[i].value;
            return TR_OK;
        }
    return refuse_value(row, where, text);
}

/* auto, or numbers from 1 with commas between; blanks are dropped. */
/* Reads a whole number from 1 of up to nine digits; 0 when there is none. */
static long list_number(const char **at)
{
    size_t n = strspn(*at, "0123456789");
    long number = n > 0 && n <= 9 ? strtol(*at, NULL, 10) : 0;
    *at += n;
    return number;
}

/* Numbers with commas; with `ranges` also FIRST-LAST, not the wrong way round. */
static bool is_number_list(const char *at, bool ranges)
{
    for (;;) {
        long first = list_number(&at), last = first;
        if (ranges && *at == '-') {
            at++;
            last = list_number(&at);
        }
        if (first < 1 || last < first)
            return false;
        if (*at == '\0')
            return true;
        if (*at++ != ',')
            return false;
    }
}

static tr_status parse_list(tr_config *cfg, const tr_setting *row, const char *where,
                            const char *text, char **value)
{
    (void)cfg;
    char *packed = tr_strdup(text);
    size_t length = 0;
    for (const char *at = text; *at; at++)
        if (*at != ' ')
            packed[length++] = *at;
    packed[length] = '\0';
    if (strcmp(packed, row->keyword) != 0 && !is_number_list(packed, row->ranges)) {
        tr_free(packed);
        return refuse_value(row, where, text);
    }
    *value = packed;
    return TR_OK;
}

static tr_status parse_text(tr_config *cfg, const tr_setting *row, const char *where,
                            const char *text)
{
    char *value = NULL;
    if (row->type == TR_SETTING_LIST)
        TR_TRY(parse_list(cfg, row, where, text, &value));
    else if (text[0] == '\0')
        return tr_fail(TR_ERR_SETTINGS, "%s: %s has no value; expected %s%s", where, row->name,
                       row->keyword ? "a text, or " : "a text", row->keyword ? row->keyword : "");
    else if (row->keyword == NULL || strcmp(text, row->keyword) != 0)
        value = tr_strdup(text);
    char **field = field_of(cfg, row);
    tr_free(*field);
    *field = value;
    return TR_OK;
}

tr_status tr_setting_parse(tr_config *cfg, const tr_setting *row, const char *where,
                           const char *text)
{
    switch (row->type) {
    case TR_SETTING_INT:
        return parse_int(cfg, row, where, text);
    case TR_SETTING_U64:
        return parse_u64(cfg, row, where, text);
    case TR_SETTING_REAL:
        return parse_real(cfg, row, where, text);
    case TR_SETTING_BOOL:
        return parse_bool(cfg, row, where, text);
    case TR_SETTING_CHOICE:
        return parse_choice(cfg, row, where, text);
    case TR_SETTING_TEXT:
    case TR_SETTING_DATA:
    case TR_SETTING_LIST:
        return parse_text(cfg, row, where, text);
    }
    return tr_fail(TR_ERR_INTERNAL, "setting %s has no type", row->name);
}

bool tr_setting_is_open(const tr_config *cfg, const tr_setting *row)
{
    if (row->initial != NULL)
        return false;
    switch (row->type) {
    case TR_SETTING_INT:
        return *(const int64_t *)field_of(cfg, row) == 0;
    case TR_SETTING_REAL:
        return *(const double *)field_of(cfg, row) < 0;
    case TR_SETTING_CHOICE:
        return *(const int *)field_of(cfg, row) == 0;
    case TR_SETTING_TEXT:
    case TR_SETTING_DATA:
    case TR_SETTING_LIST:
        return *(char *const *)field_of(cfg, row) == NULL;
    default:
        return false;
    }
}

/* The shortest text of 15 to 17 digits that reads back to the same double. */
static char *format_real(double value)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return tr_strdup(text);
}

char *tr_setting_format(const tr_config *cfg, const tr_setting *row)
{
    if (tr_setting_is_open(cfg, row))
        return NULL;
    const void *field = field_of(cfg, row);
    switch (row->type) {
    case TR_SETTING_INT: {
        int64_t value = *(const int64_t *)field;
        return value == 0 && row->keyword ? tr_strdup(row->keyword) : tr_format("%" PRId64, value);
    }
    case TR_SETTING_U64:
        return tr_format("%" PRIu64, *(const uint64_t *)field);
    case TR_SETTING_REAL: {
        double value = *(const double *)field;
        return value == 0 && row->keyword ? tr_strdup(row->keyword) : format_real(value);
    }
    case TR_SETTING_BOOL:
        return tr_strdup(*(const bool *)field ? "true" : "false");
    case TR_SETTING_CHOICE:
        for (int i = 0; i < TR_SETTING_MAX_CHOICES && row->choices[i].text; i++)
            if (row->choices[i].value == *(const int *)field)
                return tr_strdup(row->choices[i].text);
        return tr_strdup("?");
    case TR_SETTING_TEXT:
    case TR_SETTING_DATA:
    case TR_SETTING_LIST: {
        const char *value = *(char *const *)field;
        return tr_strdup(value ? value : row->keyword);
    }
    }
    return NULL;
}

static char *number_values(const tr_setting *row)
{
    char *low = row->min == TR_SETTING_TINY ? tr_strdup("0") : format_real(row->min);
    char *high = row->max >= 1e15              ? NULL
                 : row->type == TR_SETTING_INT ? tr_format("%.0f", row->max)
                                               : format_real(row->max);
    const char *of = row->power_of_two ? "a power of two, " : "";
    const char *word = row->keyword ? row->keyword : "";
    const char *or_word = row->keyword ? ", or " : "";
    bool above_low = row->min == TR_SETTING_TINY;
    char *values;
    if (row->min == row->max)
        values = tr_strdup(low);
    else if (high == NULL)
        values =
            tr_format("%s%s %s%s%s", of, above_low ? "more than" : "at least", low, or_word, word);
    else if (row->below_max)
        values = tr_format("at least %s and below %s", low, high);
    else
        values = tr_format("%s%s%s to %s%s%s", of, above_low ? "more than " : "", low, high,
                           or_word, word);
    tr_free(low);
    tr_free(high);
    return values;
}

char *tr_setting_values(const tr_setting *row)
{
    switch (row->type) {
    case TR_SETTING_INT:
    case TR_SETTING_REAL:
        return number_values(row);
    case TR_SETTING_U64:
        return tr_strdup("0 to 18446744073709551615");
    case TR_SETTING_BOOL:
        return tr_strdup(row->max == 0 ? "false" : "true, false");
    case TR_SETTING_CHOICE: {
        char *values = tr_strdup(row->choices[0].text);
        for (int i = 1; i < TR_SETTING_MAX_CHOICES && row->choices[i].text; i++) {
            char *longer = tr_format("%s, %s", values, row->choices[i].text);
            tr_free(values);
            values = longer;
        }
        return values;
    }
    case TR_SETTING_LIST:
        return tr_format("%s, or whole numbers from 1 with commas, e.g. %s", row->keyword,
                         row->ranges ? "3 or 3,10-12" : "2,3,3,2");
    case TR_SETTING_TEXT:
    case TR_SETTING_DATA:
        break;
    }
    const char *kind = row->type == TR_SETTING_DATA ? "a path" : "text";
    return row->keyword ? tr_format("%s, or %s", kind, row->keyword) : tr_strdup(kind);
}
