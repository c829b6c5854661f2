/* The folder of a run's checkpoints: names, appearing whole or not at all, finding, making room.
 *
 *     step-00001000/       a checkpoint: shard files and, written last, manifest.json
 *     step-00001000.tmp/   one being written, or what a killed run left of it
 *     latest               the name of the newest one, moved after everything else
 *     step-00001000.replaced/   the older one while a second save of the step takes its place, where a
 *                               file system cannot exchange two folders in one move
 *
 * Only these exact names are ever looked at or removed; whatever else lies there is the user's, and so is what a
 * link of such a name leads to. One process at a time writes in a folder; any number may read. Numbers are compared as numbers. */
#ifndef TR_IO_DIR_COMMIT_H
#define TR_IO_DIR_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { TR_STEP_NAME = 32 }; /* bytes of a folder's name with its zero */

/* "step-00001000": eight digits at least. */
void tr_step_name(int64_t step, char name[TR_STEP_NAME]);
/* True for exactly what tr_step_name writes. */
bool tr_step_from_name(const char *name, int64_t *step);
/* "DIR/step-00001000" and "DIR/step-00001000.tmp"; tr_free. */
char *tr_step_path(const char *dir, int64_t step);
char *tr_step_temp_path(const char *dir, int64_t step);

/* Makes `dir` with its parents where they are missing, and an empty temporary folder for the step;
 * what is left of earlier tries, of any step, goes away first. TR_ERR_IO. */
tr_status tr_dir_commit_begin(const char *dir, int64_t step);
/* Flushes the temporary folder (its files were flushed by whoever wrote them), renames it, flushes
 * `dir`, then moves `latest`. A checkpoint of the same step is exchanged for the new one, in one
 * move where the file system can. TR_ERR_IO; then the temporary folder may still be there, and everything else is as it was.
 * TR_OK: the checkpoint is whole under its name. *trouble: NULL, or (tr_free) what failed after that, the flush of
 * `dir` or moving `latest`, and whether a resume takes another one first. A `latest` that could not be moved is
 * removed where the new one is found without it, being that of the highest step. */
tr_status tr_dir_commit_finish(const char *dir, int64_t step, char **trouble);
/* Removes the temporary folder of a step. */
void tr_dir_commit_abort(const char *dir, int64_t step);

typedef struct tr_step_entry {
    int64_t step;
    bool is_temp; /* step-N.tmp */
    bool is_link; /* to a folder elsewhere: a checkpoint that may be read, and is never removed */
    bool has_manifest; /* a file manifest.json is there */
} tr_step_entry;

typedef struct tr_step_list {
    tr_step_entry *entries; /* ascending steps */
    int num_entries;
} tr_step_list;

/* The folders with exact names. A `dir` that does not exist has none; TR_ERR_IO where it cannot be
 * read. */
tr_status tr_step_list_read(tr_step_list *list, const char *dir);
void tr_step_list_clear(tr_step_list *list);

/* The step that `latest` names; false when there is no such file or no such name in it. */
bool tr_dir_latest_read(const char *dir, int64_t *step);

/* Which checkpoints stay when room is made. */
typedef struct tr_dir_retention {
    int64_t last;  /* that many; 0: all */
    int64_t every; /* and those whose steps are multiples of it; 0: no more */
} tr_dir_retention;

/* Removes what need not stay, never the checkpoint of `newest`, which was just written, nor the one that `latest` names. The last ones are `newest`, those of lower
 * steps from the highest down, then those of higher steps, which a run that went back or began anew has left behind.
 * One that is not whole, by its manifest and the sizes of its files, takes no other's place: as many whole ones stay.
 * What is missed least goes first. Temporary folders, which nobody writes any more, go too. A folder with a file in it that is not ours
 * stays, and so does a link, which takes no other's place either. TR_ERR_IO for the first that could not be removed; the others are tried. */
tr_status tr_dir_prune(const char *dir, const tr_dir_retention *keep, int64_t newest);

#endif
