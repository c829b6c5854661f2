/* NVTX in the simulator: the ranges are kept for whoever asks (sim_range.h). One thread. */
#include "tests/cudasim/runtime/sim_range.h"

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <string.h>

enum { MOST_DEPTH = 16 };

static char *record;
static size_t record_bytes;
static int depth;

static void record_add(const char *text, const char *end)
{
    size_t used = record != NULL ? strlen(record) : 0;
    if (record != NULL)
        snprintf(record + used, record_bytes - used, "%s%s", text, end);
}

void cudasim_ranges_record(char *text, size_t bytes)
{
    record = text;
    record_bytes = bytes;
    if (text != NULL)
        text[0] = '\0';
}

int cudasim_ranges_depth(void)
{
    return depth;
}

int nvtxRangePushA(const char *message)
{
    record_add(message, "(");
    return depth < MOST_DEPTH ? depth++ : -1;
}

int nvtxRangePop(void)
{
    record_add(")", "");
    return --depth;
}
