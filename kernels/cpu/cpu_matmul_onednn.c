/* Pieces by oneDNN, whose interface differs between versions 2 and 3: the shims at the top are the only place that knows.
 *
 * A primitive is made for each shape of piece under one OpenMP thread (base/thread_pool.h) and lives as long as its device. Executing
 * one is thread-safe since each thread has its own stream, memory objects and scratchpad. */
#include "kernels/cpu/cpu_matmul_int.h"

#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "base/alloc.h"
#include "kernels/cpu/cpu_widen.h"

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t md_handle; /* owned */
typedef const_dnnl_memory_desc_t md_view;

static dnnl_status_t md_create(md_handle *md, int ndims, const dnnl_dims_t dims,
                               dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(md, ndims, dims, type, strides);
}
static md_view md_get(const md_handle *md)
{
    return *md;
}
static void md_destroy(md_handle *md)
{
    dnnl_memory_desc_destroy(*md);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t matmul_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine,
                                        md_view a, md_view b, md_view bias, md_view c,
                                        dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(desc, engine, a, b, bias, c, attr);
}
#else
typedef dnnl_memory_desc_t md_handle;
typedef const dnnl_memory_desc_t *md_view;

static dnnl_status_t md_create(md_handle *md, int ndims, const dnnl_dims_t dims,
                               dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(md, ndims, dims, type, strides);
}
static md_view md_get(const md_handle *md)
{
    return md;
}
static void md_destroy(md_handle *md)
{
    (void)md;
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
static dnnl_status_t matmul_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine,
                                        md_view a, md_view b, md_view bias, md_view c,
                                        dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, bias, c);
    return status != dnnl_success
               ? status
               : dnnl_primitive_desc_create(desc, &operation, attr, engine, NULL);
}
#endif

static tr_status dnnl_check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return TR_OK;
    return tr_fail(status == dnnl_out_of_memory ? TR_ERR_MEMORY : TR_ERR_INTERNAL,
                   "oneDNN: %s failed with status %d", what, (int)status);
}

tr_status tr_cpu_sgemm_piece(const tr_matmul *args, const tr_cpu_piece *piece)
{
    bool a_by_k = args->form == TR_MATMUL_TN, b_by_k = args->form != TR_MATMUL_NT;
    const float *A = (const float *)args->A + (a_by_k ? piece->row : piece->row * args->lda);
    const float *B = (const float *)args->B + (b_by_k ? piece->column : piece->column * args->ldb);
    float *C = (float *)args->C + piece->row * args->ldc + piece->column;
    dnnl_status_t status = dnnl_sgemm(a_by_k ? 'T' : 'N', b_by_k ? 'N' : 'T', piece->num_rows,
                                      piece->num_columns, args->K, 1.0f, A, args->lda, B, args->ldb,
                                      args->accumulate ? 1.0f : 0.0f, C, args->ldc);
    if (args->bias != NULL) {
        const float *bias = (const float *)args->bias + piece->column;
        for (int64_t m = 0; m < piece->num_rows; m++)
            for (int64_t n = 0; n < piece->num_columns; n++)
                C[m * args->ldc + n] += bias[n];
    }
    return dnnl_check(status, "sgemm");
}

/* What the shape of a primitive is made of; compared bytewise, so zeroed before it is filled. */
typedef struct product_key {
    tr_matmul_form form;
    tr_dtype dtype, c_dtype;
    int64_t M, N, K, lda, ldb, ldc;
    bool bias, accumulate;
} product_key;

enum { PRODUCT_MEMORIES = 5 }; /* A, B, bias, C, scratchpad */

struct tr_cpu_product {
    product_key key;
    dnnl_primitive_t primitive;
    dnnl_memory_t (*memories)[PRODUCT_MEMORIES]; /* [num_threads] */
    void *scratchpad;                            /* [num_threads][scratchpad_bytes] */
    const struct tr_cpu_product_cache *cache;
    tr_cpu_product *next;
};

enum { PRODUCT_BUCKETS = 256 };

struct tr_cpu_product_cache {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* [num_threads] */
    int num_threads;
    tr_cpu_product *buckets[PRODUCT_BUCKETS];
};

static const int product_args[PRODUCT_MEMORIES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
                                                   DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};

static dnnl_data_type_t dnnl_type(tr_dtype dtype)
{
    return dtype == TR_F32 ? dnnl_f32 : dtype == TR_BF16 ? dnnl_bf16 : dnnl_f16;
}

static dnnl_status_t make_attr(bool accumulate, dnnl_primitive_attr_t *attr)
{
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status != dnnl_success)
        return status;
    status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && accumulate) {
        dnnl_post_ops_t ops;
        status = dnnl_post_ops_create(&ops);
        if (status == dnnl_success) {
            status = append_sum(ops);
            if (status == dnnl_success)
                status = dnnl_primitive_attr_set_post_ops(*attr, ops);
            dnnl_post_ops_destroy(ops);
        }
    }
    return status;
}

/* Memory descriptions of A, B, bias and C as rows x columns of the product, transposes as strides. */
static dnnl_status_t make_descs(const product_key *key, md_handle md[4])
{
    bool a_by_k = key->form == TR_MATMUL_TN, b_by_k = key->form != TR_MATMUL_NT;
    const dnnl_dims_t dims[4] = {{key->M, key->K}, {key->K, key->N}, {1, key->N}, {key->M, key->N}};
    const dnnl_dims_t strides[4] = {{a_by_k ? 1 : key->lda, a_by_k ? key->lda : 1},
                                    {b_by_k ? key->ldb : 1, b_by_k ? 1 : key->ldb},
                                    {key->N, 1},
                                    {key->ldc, 1}};
    for (int i = 0; i < 4; i++) {
        dnnl_data_type_t type = dnnl_type(i == 3 ? key->c_dtype : key->dtype);
        dnnl_status_t status = md_create(&md[i], 2, dims[i], type, strides[i]);
        if (status != dnnl_success) {
            while (i-- > 0)
                md_destroy(&md[i]);
            return status;
        }
    }
    return dnnl_success;
}

static dnnl_status_t make_primitive_desc(dnnl_engine_t engine, const product_key *key,
                                         const md_handle md[4], dnnl_primitive_desc_t *desc)
{
    dnnl_primitive_attr_t attr;
    dnnl_status_t status = make_attr(key->accumulate, &attr);
    if (status != dnnl_success)
        return status;
    status = matmul_desc_create(desc, engine, md_get(&md[0]), md_get(&md[1]),
                                key->bias ? md_get(&md[2]) : NULL, md_get(&md[3]), attr);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

/* Memory objects of every thread; addresses are set at each run. */
static dnnl_status_t make_memories(tr_cpu_product *product, const md_handle md[4],
                                   const_dnnl_primitive_desc_t desc)
{
    const struct tr_cpu_product_cache *cache = product->cache;
    md_view scratchpad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    size_t bytes = tr_cpu_align(dnnl_memory_desc_get_size(scratchpad) + 256);
    product->scratchpad = tr_alloc((size_t)cache->num_threads, bytes);
    product->memories = tr_alloc((size_t)cache->num_threads, sizeof *product->memories);
    for (int thread = 0; thread < cache->num_threads; thread++) {
        dnnl_memory_t *memories = product->memories[thread];
        for (int i = 0; i < 4; i++) {
            dnnl_status_t status =
                dnnl_memory_create(&memories[i], md_get(&md[i]), cache->engine, DNNL_MEMORY_NONE);
            if (status != dnnl_success)
                return status;
        }
        uintptr_t start = (uintptr_t)product->scratchpad + (size_t)thread * bytes;
        dnnl_status_t status = dnnl_memory_create(&memories[4], scratchpad, cache->engine,
                                                  (void *)((start + 255) & ~(uintptr_t)255));
        if (status != dnnl_success)
            return status;
    }
    return dnnl_success;
}

static void product_destroy(tr_cpu_product *product)
{
    if (product->memories != NULL)
        for (int thread = 0; thread < product->cache->num_threads; thread++)
            for (int i = 0; i < PRODUCT_MEMORIES; i++)
                dnnl_memory_destroy(product->memories[thread][i]);
    dnnl_primitive_destroy(product->primitive);
    tr_free(product->memories);
    tr_free(product->scratchpad);
    tr_free(product);
}

static tr_status product_create(const struct tr_cpu_product_cache *cache, const product_key *key,
                                tr_cpu_product **out)
{
    md_handle md[4];
    TR_TRY(dnnl_check(make_descs(key, md), "describing a product"));
    tr_cpu_product *product = TR_NEW(tr_cpu_product);
    product->key = *key;
    product->cache = cache;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = make_primitive_desc(cache->engine, key, md, &desc);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&product->primitive, desc);
    if (status == dnnl_success)
        status = make_memories(product, md, desc);
    dnnl_primitive_desc_destroy(desc);
    for (int i = 0; i < 4; i++)
        md_destroy(&md[i]);
    if (status != dnnl_success) {
        product_destroy(product);
        return dnnl_check(status, "creating a product");
    }
    *out = product;
    return TR_OK;
}

tr_status tr_cpu_product_prepare(struct tr_cpu_product_cache *cache, const tr_matmul *args,
                                 int64_t num_rows, int64_t num_columns, tr_cpu_product **product)
{
    product_key key;
    memset(&key, 0, sizeof key);
    key.form = args->form;
    key.dtype = args->dtype;
    key.c_dtype = args->c_dtype;
    key.M = num_rows;
    key.N = num_columns;
    key.K = args->K;
    key.lda = args->lda;
    key.ldb = args->ldb;
    key.ldc = args->ldc;
    key.bias = args->bias != NULL;
    key.accumulate = args->accumulate;
    uint64_t hash = (uint64_t)key.M * 0x9e3779b97f4a7c15u ^ (uint64_t)key.N * 0xc2b2ae3d27d4eb4fu ^
                    (uint64_t)key.K * 0x165667b19e3779f9u ^ (uint64_t)key.form << 60;
    tr_cpu_product **bucket = &cache->buckets[hash >> 40 & (PRODUCT_BUCKETS - 1)];
    for (tr_cpu_product *entry = *bucket; entry != NULL; entry = entry->next)
        if (memcmp(&entry->key, &key, sizeof key) == 0) {
            *product = entry;
            return TR_OK;
        }
    TR_TRY(product_create(cache, &key, product));
    (*product)->next = *bucket;
    *bucket = *product;
    return TR_OK;
}

tr_status tr_cpu_product_run(const tr_cpu_product *product, const tr_matmul *args,
                             const tr_cpu_piece *piece, int thread)
{
    bool a_by_k = args->form == TR_MATMUL_TN, b_by_k = args->form != TR_MATMUL_NT;
    /* oneDNN's handles are not const; A, B and bias are only read. */
    const void *const handles[4] = {
        tr_cpu_element(args->dtype, args->A, a_by_k ? piece->row : piece->row * args->lda),
        tr_cpu_element(args->dtype, args->B, b_by_k ? piece->column : piece->column * args->ldb),
        args->bias == NULL ? NULL : tr_cpu_element(args->dtype, args->bias, piece->column),
        tr_cpu_element(args->c_dtype, args->C, piece->row * args->ldc + piece->column)};
    dnnl_memory_t *memories = product->memories[thread];
    dnnl_exec_arg_t exec[PRODUCT_MEMORIES];
    int count = 0;
    for (int i = 0; i < PRODUCT_MEMORIES; i++) {
        if (i == 2 && args->bias == NULL)
            continue;
        if (i < 4) {
            union {
                const void *read_only;
                void *pointer;
            } handle = {handles[i]};
            TR_TRY(dnnl_check(dnnl_memory_set_data_handle(memories[i], handle.pointer),
                              "setting an address"));
        }
        exec[count++] = (dnnl_exec_arg_t){product_args[i], memories[i]};
    }
    TR_TRY(dnnl_check(
        dnnl_primitive_execute(product->primitive, product->cache->streams[thread], count, exec),
        "a product"));
    return dnnl_check(dnnl_stream_wait(product->cache->streams[thread]), "waiting for a product");
}

/* Whether an implementation's name tells of bf16 instructions; others emulate them, slower than our packed products. */
static bool is_native(const char *implementation)
{
    return strstr(implementation, "avx512_core_bf16") != NULL ||
           strstr(implementation, "amx") != NULL ||
           strstr(implementation, "avx512_core_fp16") != NULL;
}

static char native_implementation[64];

const char *tr_cpu_product_implementation(void)
{
    static const product_key probe = {.form = TR_MATMUL_NT,
                                      .dtype = TR_BF16,
                                      .c_dtype = TR_F32,
                                      .M = 256,
                                      .N = 256,
                                      .K = 256,
                                      .lda = 256,
                                      .ldb = 256,
                                      .ldc = 256};
    static bool probed;
    if (probed)
        return native_implementation;
    probed = true;
    dnnl_engine_t engine;
    md_handle md[4];
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        return native_implementation;
    if (make_descs(&probe, md) == dnnl_success) {
        dnnl_primitive_desc_t desc = NULL;
        const char *name = NULL;
        if (make_primitive_desc(engine, &probe, md, &desc) == dnnl_success &&
            dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name) ==
                dnnl_success &&
            is_native(name))
            strncat(native_implementation, name, sizeof native_implementation - 1);
        dnnl_primitive_desc_destroy(desc);
        for (int i = 0; i < 4; i++)
            md_destroy(&md[i]);
    }
    dnnl_engine_destroy(engine);
    return native_implementation;
}

tr_status tr_cpu_product_cache_create(struct tr_cpu_product_cache **out, int num_threads)
{
    *out = NULL;
    if (tr_cpu_product_implementation()[0] == '\0')
        return TR_OK;
    struct tr_cpu_product_cache *cache = TR_NEW(struct tr_cpu_product_cache);
    cache->num_threads = num_threads;
    cache->streams = TR_NEW_ARRAY(dnnl_stream_t, (size_t)num_threads);
    tr_status status;
    TR_TRY_GOTO(status, dnnl_check(dnnl_engine_create(&cache->engine, dnnl_cpu, 0), "an engine"),
                destroy);
    for (int thread = 0; thread < num_threads; thread++)
        TR_TRY_GOTO(status,
                    dnnl_check(dnnl_stream_create(&cache->streams[thread], cache->engine,
                                                  dnnl_stream_default_flags),
                               "a stream"),
                    destroy);
    *out = cache;
    return TR_OK;
destroy:
    tr_cpu_product_cache_destroy(cache);
    return status;
}

void tr_cpu_product_cache_destroy(struct tr_cpu_product_cache *cache)
{
    if (cache == NULL)
        return;
    for (int bucket = 0; bucket < PRODUCT_BUCKETS; bucket++)
        while (cache->buckets[bucket] != NULL) {
            tr_cpu_product *product = cache->buckets[bucket];
            cache->buckets[bucket] = product->next;
            product_destroy(product);
        }
    for (int thread = 0; thread < cache->num_threads; thread++)
        if (cache->streams[thread] != NULL)
            dnnl_stream_destroy(cache->streams[thread]);
    if (cache->engine != NULL)
        dnnl_engine_destroy(cache->engine);
    tr_free(cache->streams);
    tr_free(cache);
}
