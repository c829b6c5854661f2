/* What the tests of checkpoint files share: a scratch folder with folders in it, and a small
 * checkpoint of two tensors, cut as four ranks would cut them. */
#ifndef TR_TESTS_CHECKPOINT_FIXTURE_H
#define TR_TESTS_CHECKPOINT_FIXTURE_H

#include "io/manifest.h"

/* A new folder under /tmp; removed with all that is in it. */
void fixture_folder_make(char folder[64]);
void fixture_folder_remove(const char *folder);

enum { FIXTURE_ROWS = 37, FIXTURE_COLUMNS = 22, FIXTURE_VECTOR = 129, FIXTURE_RANKS = 4 };

/* Values of tensor 0 ("a.weight", a matrix) and 1 ("b.bias", a vector); 2 ("c.weight") is tied to 0. */
void fixture_values(int tensor, tr_shard_kind kind, float *values);

/* OTHER: whole, of the same sizes at level 0, with other values. */
typedef enum fixture_fault {
    FIXTURE_WHOLE,
    FIXTURE_OVERLAP,
    FIXTURE_GAP,
    FIXTURE_OTHER
} fixture_fault;

/* Writes FOLDER/shard-*.bin and FOLDER/manifest.json; the folder exists. Step 7. */
void fixture_checkpoint_write(const char *folder, int level, fixture_fault fault);

#endif
