#include "engine/peak_gpu.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

/* Words that a GPU's name has, both of them, and rates in TFLOP/s. The first row that fits counts: forms of a GPU with rates of their own
 * stand before the one that goes without saying (SXM). */
static const struct {
    const char *model, *form;
    double half, tf32, single;
} table[] = {
    {"GB200", "", 2500, 1250, 80},
    {"B200", "", 2250, 1125, 75},
    {"GH200", "", 989.4, 494.7, 67},
    {"H200", "NVL", 835.5, 417.5, 60},
    {"H200", "", 989.4, 494.7, 67},
    {"H100", "NVL", 835.5, 417.5, 60},
    {"H100", "PCIe", 756, 378, 51},
    {"H100", "", 989.4, 494.7, 67},
    {"H800", "PCIe", 756, 378, 51},
    {"H800", "", 989.4, 494.7, 67},
    {"H20", "", 148, 74, 44},
    {"A100", "", 312, 156, 19.5},
    {"A800", "", 312, 156, 19.5},
    {"A30", "", 165, 82, 10.3},
    {"A40", "", 149.7, 74.8, 37.4},
    {"A10", "", 125, 62.5, 31.2},
    {"A6000", "RTX", 154.8, 77.4, 38.7},
    {"L40S", "", 362.05, 183, 91.6},
    {"L40", "", 181.05, 90.5, 90.5},
    {"L4", "", 121, 60, 30.3},
    {"6000", "Ada", 364.2, 182.1, 91.1},
    {"5090", "RTX", 209.5, 104.8, 104.8},
    {"4090", "RTX", 165.2, 82.6, 82.6},
    {"3090", "RTX", 71, 35.6, 35.6},
};

/* Whether the name has the word, alone between spaces and hyphens. */
static bool has_word(const char *name, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = strstr(name, word); at != NULL; at = strstr(at + 1, word))
        if ((at == name || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[length]))
            return true;
    return false;
}

double tr_peak_gpu_flops(const char *name, tr_dtype dtype, bool tf32)
{
    /* Parts of a GPU, and cards with lower clocks and the same number. */
    static const char *const others[] = {"MIG", "Laptop", "Ti", "D"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (has_word(name, others[i]))
            return 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!has_word(name, table[i].model) ||
            (table[i].form[0] != '\0' && !has_word(name, table[i].form)))
            continue;
        double rate = dtype != TR_F32 ? table[i].half : tf32 ? table[i].tf32 : table[i].single;
        return rate * 1e12;
    }
    return 0;
}
