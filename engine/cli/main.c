/* trine VERB ...: finds the verb, runs it, says what failed, exits. */
#include "engine/cli/cli.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>
#include <zstd.h>

#include "base/log.h"
#include "engine/config/nearest.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device.h"

static const tr_verb *const verbs[] = {
    &tr_verb_train,  &tr_verb_plan,  &tr_verb_verify, &tr_verb_data, &tr_verb_eval,
    &tr_verb_sample, &tr_verb_bench, &tr_verb_config, &tr_verb_ckpt,
};
enum { NUM_VERBS = sizeof verbs / sizeof *verbs };

/* Verbs of other versions: known, not had. */
static const char *const later_verbs[] = {"report", "doctor"};
enum { NUM_LATER_VERBS = sizeof later_verbs / sizeof *later_verbs };

static bool is_quiet;

void tr_cli_quiet(void)
{
    is_quiet = true;
}

static const tr_verb *verb_find(const char *name)
{
    for (int i = 0; i < NUM_VERBS; i++)
        if (strcmp(verbs[i]->name, name) == 0)
            return verbs[i];
    return NULL;
}

static void print_help(void)
{
    puts("usage: trine VERB ...     trine VERB --help     trine --version\n"
         "\n"
         "Pretrains transformer language models with data, tensor and pipeline parallelism at "
         "once.\n"
         "\n"
         "verbs:");
    for (int i = 0; i < NUM_VERBS; i++)
        printf("  %-8s %s\n", verbs[i]->name, verbs[i]->summary);
    puts("\n"
         "Settings of a configuration file are overridden as section.key=value. Several ranks:\n"
         "  mpiexec -n 8 trine train CONFIG\n"
         "\n"
         "exit codes: 0 done; 2 settings or usage; 3 input data; 4 checkpoint; 5 launcher or\n"
         "transport; 6 memory or device; 7 numbers went wrong; 8 a wait timed out; 9 a rank was\n"
         "lost; 75 stopped on request, everything saved; 1 anything else");
}

static bool cuda_is_built(void)
{
    tr_device *counting;
    if (tr_cuda_device_create_counting(&counting, false) != TR_OK)
        return false;
    tr_device_destroy(counting);
    return true;
}

static void print_version(void)
{
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, major, minor, patch;
    MPI_Get_library_version(mpi, &length);
    mpi[strcspn(mpi, "\r\n")] = '\0';
    for (char *at = mpi; *at; at++)
        if (*at == '\t')
            *at = ' ';
    yaml_get_version(&major, &minor, &patch);
    printf("trine %s\n", TRINE_VERSION);
    printf("device %s\n", tr_cpu_device_numerics());
    printf("device cuda: %s\n", cuda_is_built() ? "in this build" : "not in this build");
    printf("MPI %s\n", mpi);
    printf("zstd %s\n", ZSTD_versionString());
    printf("libyaml %d.%d.%d\n", major, minor, patch);
}

static tr_status refuse_verb(const char *name)
{
    for (int i = 0; i < NUM_LATER_VERBS; i++)
        if (strcmp(later_verbs[i], name) == 0)
            return tr_fail(TR_ERR_SETTINGS, "trine %s is not in this version; see trine --help",
                           name);
    const char *names[NUM_VERBS];
    for (int i = 0; i < NUM_VERBS; i++)
        names[i] = verbs[i]->name;
    const char *near = tr_nearest_word(name, names, NUM_VERBS);
    if (near)
        return tr_fail(TR_ERR_SETTINGS, "trine has no verb %s; did you mean trine %s?", name, near);
    return tr_fail(TR_ERR_SETTINGS, "trine has no verb %s; see trine --help", name);
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

static tr_status run(int argc, char **argv)
{
    if (argc < 2)
        return tr_fail(TR_ERR_SETTINGS, "trine needs a verb, e.g. trine train CONFIG; see "
                                        "trine --help");
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0) {
        print_version();
        return TR_OK;
    }
    bool is_help =
        strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
    if (is_help && argc == 2) {
        print_help();
        return TR_OK;
    }
    const tr_verb *verb = verb_find(is_help ? argv[2] : word);
    if (verb == NULL)
        return refuse_verb(is_help ? argv[2] : word);
    if (is_help || wants_help(argc - 1, argv + 1)) {
        fputs(verb->usage, stdout);
        return TR_OK;
    }
    return verb->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    tr_status status = run(argc, argv);
    if (status != TR_OK && status != TR_STOPPED && !is_quiet)
        tr_log_error("%s", tr_error_message());
    if (fflush(stdout) != 0 && status == TR_OK) {
        perror("error: cannot write the output");
        return tr_status_exit_code(TR_ERR_IO);
    }
    return tr_status_exit_code(status);
}
