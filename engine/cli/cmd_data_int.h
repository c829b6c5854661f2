/* The sub-verbs of `trine data`; argv[0] is what messages call the sub-verb. */
#ifndef TR_ENGINE_CLI_CMD_DATA_INT_H
#define TR_ENGINE_CLI_CMD_DATA_INT_H

#include "base/status.h"

tr_status tr_data_build_run(int argc, char **argv);
tr_status tr_data_show_run(int argc, char **argv);

#endif
