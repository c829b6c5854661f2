#include "io/byte_bigram.h"

#include <math.h>

#include "base/alloc.h"
#include "io/tokenizer_bytes.h"

enum { V = TR_BYTES_VOCAB, BLOCK = 1 << 16 };
static const double smoothing = 0.01;

/* counts [V][V]: how often each pair stands in the stream. */
static tr_status count_pairs(const tr_token_file *file, bool with_ends, uint64_t *counts,
                             int32_t *block, uint64_t *total)
{
    const tr_token_info *info = tr_token_file_info(file);
    int32_t last = -1;
    *total = 0;
    for (uint64_t at = 0; at < info->num_tokens; at += BLOCK) {
        uint64_t size = info->num_tokens - at < BLOCK ? info->num_tokens - at : BLOCK;
        TR_TRY(tr_token_file_read(file, at, size, block));
        for (uint64_t i = 0; i < size; i++) {
            if (block[i] >= V)
                return tr_fail(TR_ERR_DATA,
                               "%s: token %llu of the stream has id %d; a byte bigram needs byte "
                               "tokens (ids 0 to %d)",
                               info->path, (unsigned long long)(at + i), block[i], V - 1);
            if (!with_ends && block[i] == TR_BYTES_EOD)
                continue;
            if (last >= 0) {
                counts[V * last + block[i]]++;
                (*total)++;
            }
            last = block[i];
        }
    }
    if (*total == 0)
        return tr_fail(TR_ERR_DATA, "%s: has fewer than 2 tokens, a bigram needs 2", info->path);
    return TR_OK;
}

/* Each kind of pair has one probability, so the score is a sum over kinds. */
static double sum_nats(const uint64_t *train, const uint64_t *valid, int num_ids)
{
    double nats = 0;
    for (int a = 0; a < num_ids; a++) {
        uint64_t seen = 0;
        for (int b = 0; b < num_ids; b++)
            seen += train[V * a + b];
        double denominator = (double)seen + smoothing * num_ids;
        for (int b = 0; b < num_ids; b++) {
            if (valid[V * a + b] > 0)
                nats -= (double)valid[V * a + b] *
                        log(((double)train[V * a + b] + smoothing) / denominator);
        }
    }
    return nats;
}

tr_status tr_byte_bigram_compute(const tr_token_file *train, const tr_token_file *valid,
                                 bool with_ends, tr_byte_bigram_score *score)
{
    uint64_t *counts = TR_NEW_ARRAY(uint64_t, 2 * V * V);
    int32_t *block = TR_NEW_ARRAY(int32_t, BLOCK);
    tr_byte_bigram_score result;
    tr_status status;
    TR_TRY_GOTO(status, count_pairs(train, with_ends, counts, block, &result.num_train), free_all);
    TR_TRY_GOTO(status, count_pairs(valid, with_ends, counts + V * V, block, &result.num_valid),
                free_all);
    result.nats =
        sum_nats(counts, counts + V * V, with_ends ? V : V - 1) / (double)result.num_valid;
    *score = result;
free_all:
    tr_free(counts);
    tr_free(block);
    return status;
}
