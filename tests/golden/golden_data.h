/* What the golden tests share: the values that both sides compute by formula, a reader of the golden files, and the
 * measure of agreement.
 *
 * make_golden.py says what the models, formulas and files are; this is its C side and follows its header. Golden files
 * are safetensors: 8 bytes of little-endian header length, a JSON header with dtype, shape and offsets per tensor,
 * then the bytes. An open file owns its bytes, and tensors point into them. All functions are thread-safe as long as
 * nobody closes the file meanwhile. */
#ifndef TR_TESTS_GOLDEN_DATA_H
#define TR_TESTS_GOLDEN_DATA_H

#include <stdint.h>

#include "base/status.h"

#define TR_GOLDEN_MAX_DIMS 4

typedef enum tr_golden_dtype {
    TR_GOLDEN_F64,
    TR_GOLDEN_F32,
    TR_GOLDEN_I32,
} tr_golden_dtype;

typedef struct tr_golden_tensor {
    char *name;
    tr_golden_dtype dtype;
    int num_dims; /* 0 for a scalar */
    int64_t dims[TR_GOLDEN_MAX_DIMS];
    int64_t count;    /* elements, row-major */
    const void *data; /* aligned to the element */
} tr_golden_tensor;

typedef struct tr_golden_file {
    char *path;
    unsigned char *bytes;
    tr_golden_tensor *tensors;
    int num_tensors;
} tr_golden_file;

/* Reads and checks a whole file; close it with tr_golden_file_close. Fails with TR_ERR_IO when it cannot be read and
 * with TR_ERR_DATA when it is not well-formed; then *file holds nothing. */
tr_status tr_golden_file_open(const char *path, tr_golden_file *file);
void tr_golden_file_close(tr_golden_file *file);

/* NULL when there is none of this name. */
const tr_golden_tensor *tr_golden_file_find(const tr_golden_file *file, const char *name);
/* The elements of a tensor that must be there with this dtype and `count` elements; TR_ERR_DATA otherwise. */
tr_status tr_golden_file_f32(const tr_golden_file *file, const char *name, int64_t count,
                             const float **data);
tr_status tr_golden_file_f64(const tr_golden_file *file, const char *name, int64_t count,
                             const double **data);
tr_status tr_golden_file_i32(const tr_golden_file *file, const char *name, int64_t count,
                             const int32_t **data);
/* The parameter that this tensor is the gradient of ("grad.P" gives P), or NULL: walking over all tensors with it
 * walks over all parameters of the model. The name lives as long as the file. */
const char *tr_golden_tensor_parameter(const tr_golden_tensor *tensor);

/* Elements first .. first + count - 1 (row-major, of the whole parameter) of the initial value of parameter `name`
 * with `num_dims` dimensions: embeddings and heads 0.2 u, other matrices 0.1 u, biases 0.1 u, norm weights 1 + 0.2 u. */
void tr_golden_weight_fill(const char *name, int num_dims, int64_t first, int64_t count,
                           float *dst);
/* The first `count` tokens of the batch of step `step`; a batch of B sequences is [B, 33], where position t predicts
 * position t + 1. Step 0 is the batch of the gradients, 1 to 20 those of training. */
void tr_golden_tokens_fill(int step, int64_t count, int32_t *dst);

/* Euclidean norm of x, and of a - b, summed in double. NaN when an element is NaN: compare with `x <= limit`. */
double tr_golden_norm(const float *x, int64_t count);
double tr_golden_distance(const float *a, const float *b, int64_t count);
/* How far gradient `got` of parameter `name` is from the file's: distance / max(its norm, 1e-3 * the largest gradient
 * norm in its layer). A layer is what shares the name up to its number ("h.2.", "model.layers.2."); a parameter
 * outside the layers stands for itself. TR_ERR_DATA when the file has no such gradient of `count` elements. */
tr_status tr_golden_gradient_error(const tr_golden_file *file, const char *name, const float *got,
                                   int64_t count, double *error);

#endif
