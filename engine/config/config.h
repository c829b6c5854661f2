/* The configuration of a run: one plain struct, filled from the settings table.
 *
 * Field names are the setting names (`parallel.zero` is cfg->parallel.zero); `virtual` and `async`
 * carry an underscore. The sections model, data and train are the mathematics of a run, the others
 * its layout (docs/design.md, section 1).
 *
 * Life of a configuration: tr_config_init (defaults) -> tr_config_read_file -> tr_config_override
 * for each `section.key=value`, later ones win -> tr_config_resolve(num_ranks), which fills what
 * was left open and refuses what does not fit -> read only from there on. tr_config_clear frees
 * what the struct owns: every string in it, the origins and the derived arrays. A tr_config is not
 * shared between threads while it is being filled.
 *
 * Every function that can fail returns TR_ERR_SETTINGS with a message that names the setting, where
 * it was given, the numbers and the nearest valid values; a configuration file that cannot be read
 * is TR_ERR_SETTINGS too, and is named. */
#ifndef TR_ENGINE_CONFIG_H
#define TR_ENGINE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "memory/dtype.h"
#include "parallel/mesh.h"
#include "parallel/reduce_tree.h"
#include "parallel/schedule.h"

typedef enum tr_preset { TR_PRESET_GPT2, TR_PRESET_LLAMA } tr_preset;
typedef enum tr_norm { TR_NORM_RMS, TR_NORM_LAYER } tr_norm;
typedef enum tr_position { TR_POSITION_ROPE, TR_POSITION_LEARNED } tr_position;
typedef enum tr_mlp { TR_MLP_SWIGLU, TR_MLP_GELU } tr_mlp;
typedef enum tr_optimizer_kind { TR_OPTIMIZER_ADAMW, TR_OPTIMIZER_SGD } tr_optimizer_kind;
typedef enum tr_lr_schedule {
    TR_LR_COSINE,
    TR_LR_LINEAR,
    TR_LR_WSD,
    TR_LR_CONSTANT
} tr_lr_schedule;
/* At first in the order of tr_transport of parallel/world.h, which needs mpi.h. */
typedef enum tr_config_transport {
    TR_CONFIG_TRANSPORT_AUTO,
    TR_CONFIG_TRANSPORT_MPI,
    TR_CONFIG_TRANSPORT_SHM,
    TR_CONFIG_TRANSPORT_NCCL
} tr_config_transport;
typedef enum tr_recompute {
    TR_RECOMPUTE_NONE,
    TR_RECOMPUTE_SELECTIVE,
    TR_RECOMPUTE_FULL
} tr_recompute;
typedef enum tr_device_choice {
    TR_DEVICE_CHOICE_AUTO,
    TR_DEVICE_CHOICE_CPU,
    TR_DEVICE_CHOICE_CUDA
} tr_device_choice;
typedef enum tr_attention_kind {
    TR_ATTENTION_AUTO,
    TR_ATTENTION_OWN,
    TR_ATTENTION_CUDNN
} tr_attention_kind;

/* The two halves of a run; no setting belongs to both. */
typedef enum tr_half { TR_HALF_MATHEMATICS, TR_HALF_LAYOUT } tr_half;

struct tr_config_origin; /* who set each setting; private to engine/config */

typedef struct tr_config {
    struct {
        tr_preset preset;
        int64_t layers;        /* L, required */
        int64_t hidden;        /* H, required */
        int64_t heads;         /* A, required */
        int64_t kv_heads;      /* K, 0 until resolved = heads */
        int64_t head_dim;      /* D, 0 until resolved = hidden / heads */
        int64_t ffn;           /* F, required */
        int64_t vocab;         /* V, required; never the padded size */
        int64_t max_positions; /* rows of learned positions, 0 until resolved = train.seq_len */
        tr_norm norm;
        double norm_eps;
        tr_position position;
        double rope_theta;
        tr_mlp mlp;
        bool bias;     /* biases of attention output and mlp; of norms when norm is layer */
        bool qkv_bias; /* biases of the query, key and value products */
        bool qk_norm;  /* always false in this version */
        bool tied;     /* the head uses the embedding's weights */
        double dropout;
        double z_loss; /* always 0 in this version */
        double init_std;
    } model;
    struct {
        char *train;        /* path, required by the verbs that read tokens */
        char *valid;        /* path, NULL = none */
        char *tokenizer;    /* "bytes" or a path, NULL = none */
        bool document_mask; /* always false in this version */
    } data;
    struct {
        int64_t steps;        /* optimizer steps of the whole run, required */
        int64_t seq_len;      /* T, tokens per sequence, required */
        int64_t global_batch; /* sequences per optimizer step of the whole job, required */
        int64_t micro_batch;  /* B, sequences per forward pass of one data rank */
        uint64_t seed;
        tr_dtype precision; /* compute dtype: TR_F32, TR_BF16 or TR_F16 */
        double loss_scale;  /* 0 = dynamic, else a power of two; fp16 only */
        int64_t loss_scale_growth;
        tr_optimizer_kind optimizer;
        double lr;
        double min_lr; /* negative until resolved = lr / 10 */
        int64_t warmup_steps;
        tr_lr_schedule schedule;
        double beta1, beta2, eps, weight_decay;
        double clip; /* 0 = off */
        int64_t max_skips;
        int64_t eval_every;   /* steps, 0 = never */
        int64_t eval_batches; /* global batches per evaluation, 0 = all of data.valid */
        tr_reduction_order reduction_order; /* TR_REDUCTION_OPEN until resolved */
        /* R, 0 until resolved; what is recorded. What is run: derived.leaves */
        int64_t reduction_leaves;
        int64_t
            tensor_slices; /* of what tensor ranks share; 0 = off. What is run: derived.tensor_slices */
        bool tf32;         /* only with precision TR_F32, on a CUDA device */
    } train;
    struct {
        int64_t data; /* 0 until resolved = num_ranks / (tensor * pipeline) */
        int64_t tensor;
        int64_t pipeline;
        int64_t virtual_;          /* chunks of layers per pipeline rank */
        tr_schedule_kind schedule; /* never TR_SCHEDULE_FORWARD_ONLY */
        char *stages;              /* "auto" or "2,3,3,2"; as numbers: derived.chunk_layers */
        int64_t zero;              /* 0 to 2 in this version */
        /* Neighbouring data ranks that shard among themselves, groups being replicas of each other; divides data, 0 until resolved = data. Without meaning when zero is 0. */
        int64_t shard_ranks;
        bool sequence; /* sequence parallel; says nothing when tensor is 1 */
        double bucket_mb;
        bool overlap;
        tr_config_transport inside; /* within a node */
        tr_config_transport across; /* between nodes: auto, mpi or nccl */
        double timeout_s;
    } parallel;
    struct {
        tr_recompute recompute;
        double limit_gb; /* per rank, in 1e9 bytes; 0 = what the device has */
    } memory;
    struct {
        char *dir;           /* NULL until resolved = run.dir/checkpoints */
        int64_t every;       /* steps, 0 = only on request; else also after the last step */
        int64_t keep;        /* newest checkpoints that stay, 0 = all */
        int64_t keep_every;  /* steps; their multiples stay for good, 0 = none */
        bool async_;         /* written beside the next steps */
        int64_t snapshot_mb; /* 1e6 bytes of a rank for copies of what an update would change */
        int64_t level;       /* zstd level 1..19, 0 = no compression */
        char *resume;        /* "auto", "none" or a path */
        bool weights_only;
    } checkpoint;
    struct {
        tr_device_choice kind;
        int64_t threads; /* per rank; 0 = auto: the engine divides the node's cores by its ranks */
        tr_attention_kind attention;
    } device;
    struct {
        int64_t every; /* steps between console lines; metrics.jsonl has every step */
        char *trace;   /* "none", or numbers of steps to trace, "3,5-8" */
    } log;
    struct {
        char *name; /* NULL until resolved = the file's name without folder and .yaml */
        char *dir;  /* NULL until resolved = runs/NAME */
    } run;

    /* Filled by tr_config_resolve; no settings. */
    struct {
        bool resolved;
        int64_t num_ranks;
        int64_t microbatches; /* M of the global batch, over all data ranks */
        /* Leaves of the tree that this layout runs: R, or data where R does not cover it. */
        int64_t leaves;
        /* Slices that this layout runs with: train.tensor_slices, or 0 where tensor does not divide
         * it. */
        int64_t tensor_slices;
        int64_t num_chunks;     /* pipeline * virtual */
        tr_placement placement; /* of the chunks on the stages, by the schedule */
        int head_stage;         /* the stage of the last chunk: head and loss */
        int64_t *chunk_layers;  /* [num_chunks], model order */
        char
            *warnings; /* one per line, NULL when none; whoever resolves prints them once per job */
    } derived;

    char *file; /* what was read, NULL when nothing was */
    struct tr_config_origin *origins;
} tr_config;

/* Defaults everywhere; what is derived stays open (0, negative or NULL as noted above). */
void tr_config_init(tr_config *cfg);
void tr_config_clear(tr_config *cfg);

/* Reads a YAML file of sections over what is there. A key twice, an unknown key or a value of the
 * wrong type is refused as file:line:column. The file's name becomes run.name's default. */
tr_status tr_config_read_file(tr_config *cfg, const char *path);
/* The same from memory; `name` stands for the file in messages and origins (a checkpoint's
 * manifest, a test). */
tr_status tr_config_read_text(tr_config *cfg, const char *name, const char *text, size_t length);

/* One `section.key=value` of the command line. */
tr_status tr_config_override(tr_config *cfg, const char *assignment);

/* Fills what was left open and checks everything about the layout against ranks and model, before
 * anything is allocated. num_ranks: size of the job; 0 when it is not known (plan): the product of
 * the axes then is the number of ranks, with parallel.data = 0 counting as 1. The first problem
 * found is reported, coarse ones first: what is missing, model, ranks, batch, cuts, stages. Called
 * once, after all overrides. */
tr_status tr_config_resolve(tr_config *cfg, int64_t num_ranks);
/* Refuses what the device cannot do: transports, head sizes, TF32, cuDNN. tr_config_resolve looks where device.kind names the device; with device.kind=auto, who has found it. */
tr_status tr_config_check_device(const tr_config *cfg, bool on_gpus);

/* The place of a rank (0 ... derived.num_ranks - 1) in the mesh of a resolved configuration. */
tr_mesh tr_config_mesh(const tr_config *cfg, int rank);

/* The order of sums that the layout follows at no cost: blocks, or with ZeRO 2 and 3 rounds (with as many leaves as data ranks). */
tr_reduction_order tr_config_natural_order(const tr_config *cfg);
/* How the data ranks of a resolved configuration follow the reduction tree. */
tr_reduce_plan tr_config_reduce_plan(const tr_config *cfg);

/* Init, read, overrides in order, resolve. On failure the struct is cleared. */
tr_status tr_config_load(tr_config *cfg, const char *path, int num_overrides,
                         char *const *overrides, int64_t num_ranks);

/* A deep copy of a configuration, with its origins; `dst` is uninitialised storage. */
void tr_config_copy(tr_config *dst, const tr_config *src);

/* The effective configuration as YAML that tr_config_read_text reads back to equal settings, each
 * line with a comment saying who set it: default, preset, FILE:LINE, command line, or resolved. The
 * caller frees it with tr_free. */
char *tr_config_dump(const tr_config *cfg);

/* Multiply-adds per token of a forward pass, counted: what parallel.stages = auto and plans weigh.
 * Attention counts the keys that a causal mask leaves. */
typedef struct tr_part_costs {
    double embedding, layer, head;
} tr_part_costs;
tr_part_costs tr_config_part_costs(const tr_config *cfg);

/* Batch arithmetic of a resolved configuration, both ways (per data rank and global, in sequences
 * and in tokens), a few lines without a last newline. The caller frees it with tr_free. */
char *tr_config_batch_text(const tr_config *cfg);
/* The layout in one line: ranks by axis, schedule where there are stages, ZeRO stage and sharding groups. cfg is resolved. Freed with tr_free. */
char *tr_config_layout_text(const tr_config *cfg);

/* The settings of `half` that differ, "train.lr: 0.0003 / 0.001", a line each; NULL when none does.
 * The caller frees it with tr_free. */
char *tr_config_diff(const tr_config *a, const tr_config *b, tr_half half);

/* The settings one after the other, for who looks at all of them: the name of number `index`, NULL
 * behind the last. */
const char *tr_config_name(size_t index);
/* The value of one setting as text, as the dump writes it; NULL for a name that is no setting. The
 * caller frees it with tr_free. */
char *tr_config_get(const tr_config *cfg, const char *name);
/* True when the file or the command line set it (not a default, a preset or the resolution). */
bool tr_config_is_set(const tr_config *cfg, const char *name);

/* The reference manual of all settings: for a terminal, or Markdown (docs/settings.md). */
void tr_config_manual(FILE *out, bool markdown);

#endif
