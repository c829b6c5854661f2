/* Attention and its backward in double, straight from the formulas of kernels/ops.h: what the devices' attention is compared with.
 * Checked by finite differences in test_ops_attention.c. Tensors are laid out as in kernels/ops.h. */
#ifndef TR_TESTS_ATTENTION_REFERENCE_H
#define TR_TESTS_ATTENTION_REFERENCE_H

#include <stdint.h>

typedef struct attention_shape {
    int64_t B, T, A, K, D;
    float dropout;
    int kv_parts; /* as in tr_attention; dk and dv have attention_num_gradient elements */
} attention_shape;

/* Dropout's key, head offset and global samples [3], some of them above 32 bits. */
enum { ATTENTION_KEY = 77, ATTENTION_HEAD_OFFSET = 3, ATTENTION_MOST_SEQUENCES = 3 };
extern const uint64_t attention_samples[ATTENTION_MOST_SEQUENCES];

typedef struct attention_reference {
    attention_shape shape;
    double scale;             /* 1 / sqrt(D), rounded to float */
    double *q, *k, *v, *dout; /* the caller's; freed with the rest */
    double *out, *lse;        /* attention_reference_forward */
    double *dq, *dk, *dv;     /* attention_reference_backward */
} attention_reference;

int64_t attention_num_query(const attention_shape *shape);    /* elements of q, out, dout, dq */
int64_t attention_num_key(const attention_shape *shape);      /* of k, v */
int64_t attention_num_gradient(const attention_shape *shape); /* of dk, dv */

/* With room for the results; inputs NULL. */
attention_reference attention_reference_make(const attention_shape *shape);
/* Frees results and inputs, which came from malloc. */
void attention_reference_free(attention_reference *reference);

void attention_reference_forward(attention_reference *reference);
/* Reads out, exact as attention_reference_forward left it: rounding of the output must not reach the gradients. */
void attention_reference_backward(attention_reference *reference);

#endif
