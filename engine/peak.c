#include "engine/peak.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/device.h"

int tr_peak_num_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

int tr_peak_threads(int64_t asked, int local_ranks)
{
    int threads = asked > 0 ? (int)asked : tr_peak_num_cores() / local_ranks;
    return threads > 0 ? threads : 1;
}

/* The cache folder, made when asked. */
static bool cache_path(tr_dtype dtype, bool make, char *path, size_t bytes)
{
    const char *root = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[512];
    if (root != NULL && root[0] != '\0')
        snprintf(folder, sizeof folder, "%s", root);
    else if (home != NULL)
        snprintf(folder, sizeof folder, "%s/.cache", home);
    else
        return false;
    if (make)
        mkdir(folder, 0777);
    snprintf(path, bytes, "%s/trine", folder);
    if (make && mkdir(path, 0777) != 0 && errno != EEXIST)
        return false;
    snprintf(path, bytes, "%s/trine/peak-%s", folder, tr_dtype_name(dtype));
    return true;
}

/* The file says "FLOPS CORES NUMERICS"; an entry of another processor or library does not count. */
double tr_peak_flops(tr_dtype dtype)
{
    char path[640], numerics[160] = "";
    double flops = 0;
    int cores = 0;
    if (!cache_path(dtype, false, path, sizeof path))
        return 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    bool read = fscanf(file, "%lf %d %159[^\n]", &flops, &cores, numerics) == 3;
    fclose(file);
    char want[160];
    snprintf(want, sizeof want, "%s", tr_cpu_device_numerics());
    for (int i = 0; want[i] != '\0' || numerics[i] != '\0'; i++)
        if (want[i] != numerics[i])
            return 0;
    return read && cores == tr_peak_num_cores() ? flops : 0;
}

bool tr_peak_store(tr_dtype dtype, double flops)
{
    char path[640];
    if (!cache_path(dtype, true, path, sizeof path))
        return false;
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return false;
    fprintf(file, "%.17g %d %s\n", flops, tr_peak_num_cores(), tr_cpu_device_numerics());
    return fclose(file) == 0;
}
