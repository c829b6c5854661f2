/* A configuration as text: the effective YAML with who set what, differences, single values, the
 * reference manual of the table. */
#include "engine/config/settings_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* Length of the section's name in front of the dot. */
static int section_length(const tr_setting *row)
{
    return (int)strcspn(row->name, ".");
}

static bool section_starts(size_t index)
{
    if (index == 0)
        return true;
    int length = section_length(&tr_settings[index]);
    return strncmp(tr_settings[index].name, tr_settings[index - 1].name, (size_t)length + 1) != 0;
}

/* Text that YAML reads back as it is without quotes: letters, digits, a few harmless signs. */
static bool is_plain(const char *text)
{
    if (strcmp(text, "~") == 0 || strcmp(text, "null") == 0)
        return false;
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!word && (at == text ? strchr("/._", c) == NULL : strchr("/._-+,", c) == NULL))
            return false;
    }
    return text[0] != '\0';
}

static void write_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void write_origin(FILE *out, const struct tr_config_origin *origin)
{
    switch (origin->kind) {
    case TR_ORIGIN_DEFAULT:
        fputs("default", out);
        break;
    case TR_ORIGIN_PRESET:
        fprintf(out, "preset %s", origin->place);
        break;
    case TR_ORIGIN_FILE:
        /* In a comment: a name must not end the line. */
        for (const char *at = origin->place; *at; at++)
            fputc((unsigned char)*at < 0x20 || *at == 0x7f ? '?' : *at, out);
        break;
    case TR_ORIGIN_COMMAND_LINE:
        fputs("command line", out);
        break;
    case TR_ORIGIN_RESOLVED:
        fputs("resolved", out);
        break;
    }
}

/* The stream's text in memory of base/alloc. */
static char *stream_text(FILE *out, char **buffer)
{
    fclose(out);
    char *text = tr_strdup(*buffer);
    free(*buffer);
    return text;
}

char *tr_config_dump(const tr_config *cfg)
{
    char *buffer = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&buffer, &length);
    TR_ASSERT(out != NULL);
    for (size_t i = 0; i < tr_num_settings; i++) {
        const tr_setting *row = &tr_settings[i];
        int section = section_length(row);
        if (section_starts(i))
            fprintf(out, "%.*s:\n", section, row->name);
        char *value = tr_setting_format(cfg, row);
        if (value == NULL)
            continue;
        fprintf(out, "  %s: ", row->name + section + 1);
        if (is_plain(value))
            fputs(value, out);
        else
            write_quoted(out, value);
        fputs(" # ", out);
        write_origin(out, tr_origin_of(cfg, row));
        fputc('\n', out);
        tr_free(value);
    }
    return stream_text(out, &buffer);
}

char *tr_config_diff(const tr_config *a, const tr_config *b, tr_half half)
{
    char *text = NULL;
    for (size_t i = 0; i < tr_num_settings; i++) {
        const tr_setting *row = &tr_settings[i];
        if (row->half != half)
            continue;
        char *value_a = tr_setting_format(a, row), *value_b = tr_setting_format(b, row);
        const char *shown_a = value_a ? value_a : "(open)", *shown_b = value_b ? value_b : "(open)";
        if (strcmp(shown_a, shown_b) != 0) {
            char *longer = tr_format("%s%s%s: %s / %s", text ? text : "", text ? "\n" : "",
                                     row->name, shown_a, shown_b);
            tr_free(text);
            text = longer;
        }
        tr_free(value_a);
        tr_free(value_b);
    }
    return text;
}

const char *tr_config_name(size_t index)
{
    return index < tr_num_settings ? tr_settings[index].name : NULL;
}

char *tr_config_get(const tr_config *cfg, const char *name)
{
    const tr_setting *row = tr_setting_find(name);
    return row ? tr_setting_format(cfg, row) : NULL;
}

bool tr_config_is_set(const tr_config *cfg, const char *name)
{
    const tr_setting *row = tr_setting_find(name);
    if (row == NULL)
        return false;
    tr_origin_kind kind = tr_origin_of(cfg, row)->kind;
    return kind == TR_ORIGIN_FILE || kind == TR_ORIGIN_COMMAND_LINE;
}

/* The default as the manual shows it. tr_free. */
static char *default_text(const tr_setting *row)
{
    if (row->preset_gpt2 && strcmp(row->preset_gpt2, row->preset_llama) != 0)
        return tr_format("preset: gpt2 %s, llama %s", row->preset_gpt2, row->preset_llama);
    if (row->preset_gpt2)
        return tr_format("preset: %s", row->preset_gpt2);
    if (row->initial)
        return tr_strdup(row->initial);
    return tr_strdup(row->open ? row->open : "required");
}

static void manual_row(FILE *out, const tr_setting *row)
{
    char *values = tr_setting_values(row), *initial = default_text(row);
    fprintf(out, "  %s = %s\n", row->name, initial);
    fprintf(out, "      %s", values);
    if (row->unit)
        fprintf(out, " [%s]", row->unit);
    fprintf(out, ": %s\n", row->meaning);
    tr_free(values);
    tr_free(initial);
}

static void manual_row_markdown(FILE *out, const tr_setting *row)
{
    char *values = tr_setting_values(row), *initial = default_text(row);
    fprintf(out, "| `%s` | %s%s%s | %s | %s |\n", row->name, values, row->unit ? " " : "",
            row->unit ? row->unit : "", initial, row->meaning);
    tr_free(values);
    tr_free(initial);
}

static void section_head(FILE *out, const tr_setting *row, bool markdown)
{
    int length = section_length(row);
    const char *half = row->half == TR_HALF_MATHEMATICS ? "mathematics" : "layout";
    if (markdown)
        fprintf(out,
                "\n## %.*s (%s)\n\n| setting | values | default | meaning |\n|---|---|---|---|\n",
                length, row->name, half);
    else
        fprintf(out, "\n%.*s (%s)\n", length, row->name, half);
}

void tr_config_manual(FILE *out, bool markdown)
{
    if (markdown)
        fputs("# Settings\n\nWritten by `trine config --markdown`; do not edit by hand.\n\n", out);
    fputs("A YAML file holds the sections; `section.key=value` on the command line overrides it, "
          "the last\n"
          "one wins. The mathematics fixes every number of a run; the layout fixes where and when "
          "they\n"
          "are produced. A key twice in a file is an error. Numbers have no unit suffixes.\n",
          out);
    for (size_t i = 0; i < tr_num_settings; i++) {
        if (section_starts(i))
            section_head(out, &tr_settings[i], markdown);
        if (markdown)
            manual_row_markdown(out, &tr_settings[i]);
        else
            manual_row(out, &tr_settings[i]);
    }
}
