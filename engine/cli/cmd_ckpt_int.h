/* The sub-verbs of trine ckpt; argv[0] is the name that messages give. */
#ifndef TR_ENGINE_CLI_CMD_CKPT_INT_H
#define TR_ENGINE_CLI_CMD_CKPT_INT_H

#include "io/checkpoint_read.h"

tr_status tr_ckpt_ls_run(int argc, char **argv);
tr_status tr_ckpt_show_run(int argc, char **argv);
tr_status tr_ckpt_diff_run(int argc, char **argv);
tr_status tr_ckpt_verify_run(int argc, char **argv);

/* tr_checkpoint_open for a path that a user gave: of a folder of checkpoints, or of a run, it says which to name instead. TR_ERR_CHECKPOINT. */
tr_status tr_ckpt_open(tr_checkpoint **checkpoint, const char *path);

/* "1.50 GB" with powers of 1000. */
void tr_ckpt_size_format(char text[24], double bytes);

#endif
