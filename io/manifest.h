/* The manifest of a checkpoint: what it holds, where, and the hashes of all of it
 * (docs/checkpoint-format.md).
 *
 * A JSON document and, as the last line of the file, the XXH3-128 of every byte before that line.
 * Nothing in it depends on the time or the machine: equal states saved by equal layouts are equal
 * files. Reading believes nothing: hash first, then form, then every value; names of files are
 * checked to be plain names of ours. */
#ifndef TR_IO_MANIFEST_H
#define TR_IO_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "io/shard_write.h"

enum {
    TR_MANIFEST_VERSION = 1,
    TR_MANIFEST_NAME = 96, /* bytes of a parameter's name with its zero */
    TR_MANIFEST_FILE = 24  /* bytes of a file's name with its zero */
};
#define TR_MANIFEST_FILE_NAME "manifest.json"

typedef struct tr_manifest_param {
    char name[TR_MANIFEST_NAME];
    int num_dims;     /* 1 or 2 */
    int64_t shape[2]; /* shape[1] is 1 for vectors */
    int tied_to;      /* row that holds the state of both, or -1 */
} tr_manifest_param;

typedef struct tr_manifest_file {
    char name[TR_MANIFEST_FILE];
    int64_t bytes;
    tr_hash128 hash, table_hash; /* tr_shard_summary */
} tr_manifest_file;

typedef struct tr_manifest {
    int64_t step;    /* completed optimizer steps */
    int64_t samples; /* data position: the next sample's number */
    int64_t updates; /* Adam's t */
    int64_t skips_in_row;
    uint64_t seed;
    double scale;                   /* loss scale */
    int64_t good_steps;             /* since it last changed */
    double loss;                    /* of the last step; NaN when not known */
    char *numerics;                 /* id of the arithmetic, for comparison */
    char *config;                   /* effective configuration, as tr_config_dump writes it */
    bool kinds[TR_SHARD_NUM_KINDS]; /* what is stored of every tensor; master always */
    tr_manifest_param *params;
    int num_params;
    tr_manifest_file *files; /* ascending names */
    int num_files;
} tr_manifest;

/* "shard-00003.bin" */
void tr_manifest_file_name(int rank, char name[TR_MANIFEST_FILE]);
/* True for exactly what tr_manifest_file_name writes. */
bool tr_manifest_is_file_name(const char *name);

/* Writes `path` and flushes it, in place: the folder is renamed as a whole. TR_ERR_IO. */
tr_status tr_manifest_write(const char *path, const tr_manifest *manifest);

/* Reads what tr_manifest_write wrote. TR_ERR_CHECKPOINT naming the file. On success the caller
 * clears it. */
tr_status tr_manifest_read(const char *path, tr_manifest *manifest);
void tr_manifest_clear(tr_manifest *manifest);

/* Whether `folder` has all files with the sizes that the manifest gives: NULL, or the first that is not so and what is wrong with it, "NAME is missing"; tr_free. */
char *tr_manifest_find_incomplete(const tr_manifest *manifest, const char *folder);
/* Bytes of all files. */
int64_t tr_manifest_bytes(const tr_manifest *manifest);

/* Row of a parameter, or -1. */
int tr_manifest_find(const tr_manifest *manifest, const char *name);

#endif
