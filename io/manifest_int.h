/* The keys of manifest.json, shared by its writer and its reader. */
#ifndef TR_IO_MANIFEST_INT_H
#define TR_IO_MANIFEST_INT_H

#define FORMAT_NAME "trine checkpoint"

#define KEY_FORMAT "format"
#define KEY_VERSION "version"
#define KEY_STEP "step"
#define KEY_SAMPLES "samples"
#define KEY_UPDATES "updates"
#define KEY_SKIPS "skips_in_row"
#define KEY_SEED "seed"
#define KEY_SCALER "scaler"
#define KEY_SCALE "scale"
#define KEY_GOOD_STEPS "good_steps"
#define KEY_LOSS "loss"
#define KEY_NUMERICS "numerics"
#define KEY_CONFIG "config"
#define KEY_KINDS "kinds"
#define KEY_PARAMS "params"
#define KEY_NAME "name"
#define KEY_SHAPE "shape"
#define KEY_TIED_TO "tied_to"
#define KEY_FILES "files"
#define KEY_BYTES "bytes"
#define KEY_HASH "hash"
#define KEY_TABLE_HASH "table_hash"

#endif
