#include "tests/ops/attention_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "kernels/dropout.h"

const uint64_t attention_samples[ATTENTION_MOST_SEQUENCES] = {5, 3000000000u, 5000000000u};

static int64_t gradient_heads(const attention_shape *s)
{
    return s->kv_parts > 1 ? s->K * s->kv_parts : s->K;
}

int64_t attention_num_query(const attention_shape *s)
{
    return s->B * s->T * s->A * s->D;
}

int64_t attention_num_key(const attention_shape *s)
{
    return s->B * s->T * s->K * s->D;
}

int64_t attention_num_gradient(const attention_shape *s)
{
    return s->B * s->T * gradient_heads(s) * s->D;
}

/* Where the row of position t begins that query head a uses, in a tensor of `heads` heads. */
static int64_t row_index(const attention_shape *s, int64_t b, int64_t t, int64_t a, int64_t heads)
{
    return ((b * s->T + t) * heads + a / (s->A / heads)) * s->D;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void add_scaled(double *x, double factor, const double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += factor * y[i];
}

static double *zeros(int64_t n)
{
    double *values = calloc((size_t)n + 1, sizeof *values);
    TR_ASSERT(values != NULL);
    return values;
}

static void zero(double *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

/* 1 / (1 - p) or 0. */
static double mask(const attention_shape *s, int64_t b, int64_t a, int64_t query, int64_t key)
{
    if (s->dropout == 0.0f)
        return 1.0;
    uint32_t word =
        tr_dropout_word(ATTENTION_KEY, attention_samples[b], (uint32_t)(ATTENTION_HEAD_OFFSET + a),
                        (uint32_t)query, (uint32_t)key);
    return (double)word >= (double)s->dropout * 4294967296.0 ? 1.0 / (1.0 - (double)s->dropout)
                                                             : 0.0;
}

/* Softmax of one row, p[0 ... query]; returns log sum exp. */
static double probabilities(const attention_reference *r, int64_t b, int64_t a, int64_t query,
                            double *p)
{
    const attention_shape *s = &r->shape;
    double top = -INFINITY, sum = 0.0;
    for (int64_t key = 0; key <= query; key++) {
        p[key] = r->scale * dot(r->q + row_index(s, b, query, a, s->A),
                                r->k + row_index(s, b, key, a, s->K), s->D);
        top = fmax(top, p[key]);
    }
    for (int64_t key = 0; key <= query; key++)
        sum += p[key] = exp(p[key] - top);
    for (int64_t key = 0; key <= query; key++)
        p[key] /= sum;
    return top + log(sum);
}

/* Calls row(r, b, a, query, p) for every row. */
static void each_row(attention_reference *r,
                     void (*row)(attention_reference *, int64_t, int64_t, int64_t, const double *))
{
    const attention_shape *s = &r->shape;
    double *p = zeros(s->T);
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t a = 0; a < s->A; a++)
            for (int64_t query = 0; query < s->T; query++) {
                r->lse[(b * s->A + a) * s->T + query] = probabilities(r, b, a, query, p);
                row(r, b, a, query, p);
            }
    free(p);
}

static void forward_row(attention_reference *r, int64_t b, int64_t a, int64_t query,
                        const double *p)
{
    const attention_shape *s = &r->shape;
    for (int64_t key = 0; key <= query; key++)
        add_scaled(r->out + row_index(s, b, query, a, s->A), p[key] * mask(s, b, a, query, key),
                   r->v + row_index(s, b, key, a, s->K), s->D);
}

static void backward_row(attention_reference *r, int64_t b, int64_t a, int64_t query,
                         const double *p)
{
    const attention_shape *s = &r->shape;
    int64_t at = row_index(s, b, query, a, s->A);
    double delta = dot(r->dout + at, r->out + at, s->D);
    for (int64_t key = 0; key <= query; key++) {
        int64_t k = row_index(s, b, key, a, s->K);
        int64_t gradient = row_index(s, b, key, a, gradient_heads(s));
        double kept = mask(s, b, a, query, key);
        double dp = kept * dot(r->dout + at, r->v + k, s->D);
        double ds = r->scale * p[key] * (dp - delta);
        add_scaled(r->dv + gradient, p[key] * kept, r->dout + at, s->D);
        add_scaled(r->dq + at, ds, r->k + k, s->D);
        add_scaled(r->dk + gradient, ds, r->q + at, s->D);
    }
}

void attention_reference_forward(attention_reference *r)
{
    zero(r->out, attention_num_query(&r->shape));
    each_row(r, forward_row);
}

void attention_reference_backward(attention_reference *r)
{
    zero(r->dq, attention_num_query(&r->shape));
    zero(r->dk, attention_num_gradient(&r->shape));
    zero(r->dv, attention_num_gradient(&r->shape));
    each_row(r, backward_row);
}

attention_reference attention_reference_make(const attention_shape *s)
{
    attention_reference r = {.shape = *s, .scale = (double)(float)(1.0 / sqrt((double)s->D))};
    r.out = zeros(attention_num_query(s));
    r.lse = zeros(s->B * s->A * s->T);
    r.dq = zeros(attention_num_query(s));
    r.dk = zeros(attention_num_gradient(s));
    r.dv = zeros(attention_num_gradient(s));
    return r;
}

void attention_reference_free(attention_reference *r)
{
    double *all[] = {r->q, r->k, r->v, r->dout, r->out, r->lse, r->dq, r->dk, r->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}
