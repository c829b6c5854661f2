#include "engine/model/params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* The canonical names; %d is the layer. NULL: the family has no such parameter. */
static const struct {
    const char *gpt2, *llama;
} role_names[TR_ROLE_NUM] = {
    [TR_ROLE_EMBED] = {"wte.weight", "model.embed_tokens.weight"},
    [TR_ROLE_POSITION] = {"wpe.weight", "model.embed_positions.weight"},
    [TR_ROLE_NORM1_WEIGHT] = {"h.%d.ln_1.weight", "model.layers.%d.input_layernorm.weight"},
    [TR_ROLE_NORM1_BIAS] = {"h.%d.ln_1.bias", "model.layers.%d.input_layernorm.bias"},
    [TR_ROLE_Q_WEIGHT] = {"h.%d.attn.q.weight", "model.layers.%d.self_attn.q_proj.weight"},
    [TR_ROLE_Q_BIAS] = {"h.%d.attn.q.bias", "model.layers.%d.self_attn.q_proj.bias"},
    [TR_ROLE_K_WEIGHT] = {"h.%d.attn.k.weight", "model.layers.%d.self_attn.k_proj.weight"},
    [TR_ROLE_K_BIAS] = {"h.%d.attn.k.bias", "model.layers.%d.self_attn.k_proj.bias"},
    [TR_ROLE_V_WEIGHT] = {"h.%d.attn.v.weight", "model.layers.%d.self_attn.v_proj.weight"},
    [TR_ROLE_V_BIAS] = {"h.%d.attn.v.bias", "model.layers.%d.self_attn.v_proj.bias"},
    [TR_ROLE_O_WEIGHT] = {"h.%d.attn.c_proj.weight", "model.layers.%d.self_attn.o_proj.weight"},
    [TR_ROLE_O_BIAS] = {"h.%d.attn.c_proj.bias", "model.layers.%d.self_attn.o_proj.bias"},
    [TR_ROLE_NORM2_WEIGHT] = {"h.%d.ln_2.weight",
                              "model.layers.%d.post_attention_layernorm.weight"},
    [TR_ROLE_NORM2_BIAS] = {"h.%d.ln_2.bias", "model.layers.%d.post_attention_layernorm.bias"},
    [TR_ROLE_GATE_WEIGHT] = {"h.%d.mlp.c_gate.weight", "model.layers.%d.mlp.gate_proj.weight"},
    [TR_ROLE_GATE_BIAS] = {"h.%d.mlp.c_gate.bias", "model.layers.%d.mlp.gate_proj.bias"},
    [TR_ROLE_UP_WEIGHT] = {"h.%d.mlp.c_fc.weight", "model.layers.%d.mlp.up_proj.weight"},
    [TR_ROLE_UP_BIAS] = {"h.%d.mlp.c_fc.bias", "model.layers.%d.mlp.up_proj.bias"},
    [TR_ROLE_DOWN_WEIGHT] = {"h.%d.mlp.c_proj.weight", "model.layers.%d.mlp.down_proj.weight"},
    [TR_ROLE_DOWN_BIAS] = {"h.%d.mlp.c_proj.bias", "model.layers.%d.mlp.down_proj.bias"},
    [TR_ROLE_FINAL_NORM_WEIGHT] = {"ln_f.weight", "model.norm.weight"},
    [TR_ROLE_FINAL_NORM_BIAS] = {"ln_f.bias", "model.norm.bias"},
    [TR_ROLE_HEAD] = {"lm_head.weight", "lm_head.weight"},
};

typedef struct builder {
    tr_param_table *table;
    const tr_config *cfg;
} builder;

static tr_param *row_add(builder *b, tr_param_role role, int layer, int64_t rows, int64_t cols,
                         tr_param_cut cut)
{
    tr_param *row = &b->table->rows[b->table->num_rows++];
    const char *pattern =
        b->cfg->model.preset == TR_PRESET_GPT2 ? role_names[role].gpt2 : role_names[role].llama;
    char layer_text[16];
    snprintf(layer_text, sizeof layer_text, "%d", layer);
    const char *mark = strstr(pattern, "%d");
    if (mark != NULL)
        snprintf(row->name, sizeof row->name, "%.*s%s%s", (int)(mark - pattern), pattern,
                 layer_text, mark + 2);
    else
        snprintf(row->name, sizeof row->name, "%s", pattern);
    row->role = role;
    row->layer = layer;
    row->num_dims = cols > 0 ? 2 : 1;
    row->shape[0] = rows;
    row->shape[1] = cols > 0 ? cols : 1;
    row->cut = cut;
    row->decay = cols > 0;
    row->init = cols > 0 ? TR_INIT_NORMAL : TR_INIT_ZEROS;
    row->init_std = b->cfg->model.init_std;
    row->tied_to = -1;
    return row;
}

/* A norm's weight and, where it has one, bias. */
static void norm_add(builder *b, tr_param_role weight, int layer)
{
    tr_param *row = row_add(b, weight, layer, b->cfg->model.hidden, 0, TR_CUT_REPLICATED);
    row->init = TR_INIT_ONES;
    row->row_partial = true;
    if (b->cfg->model.norm == TR_NORM_LAYER && b->cfg->model.bias) {
        row = row_add(b, (tr_param_role)(weight + 1), layer, b->cfg->model.hidden, 0,
                      TR_CUT_REPLICATED);
        row->row_partial = true;
    }
}

/* A product's matrix and, where asked, bias. Biases of column-parallel products are cut like their rows; those of row-parallel ones
 * (cut COLUMNS) are replicated and added after the reduction. */
static void linear_add(builder *b, tr_param_role weight, int layer, int64_t rows, int64_t cols,
                       tr_param_cut cut, bool bias)
{
    tr_param *row = row_add(b, weight, layer, rows, cols, cut);
    if (cut == TR_CUT_COLUMNS)
        row->init_std = b->cfg->model.init_std / sqrt(2.0 * (double)b->cfg->model.layers);
    if (bias) {
        row = row_add(b, (tr_param_role)(weight + 1), layer, rows, 0,
                      cut == TR_CUT_COLUMNS ? TR_CUT_REPLICATED : cut);
        row->row_partial = cut == TR_CUT_COLUMNS;
    }
}

static void layer_add(builder *b, int layer)
{
    const tr_config *cfg = b->cfg;
    int64_t hidden = cfg->model.hidden, ffn = cfg->model.ffn;
    int64_t q_rows = cfg->model.heads * cfg->model.head_dim;
    int64_t kv_rows = cfg->model.kv_heads * cfg->model.head_dim;
    norm_add(b, TR_ROLE_NORM1_WEIGHT, layer);
    linear_add(b, TR_ROLE_Q_WEIGHT, layer, q_rows, hidden, TR_CUT_HEADS, cfg->model.qkv_bias);
    linear_add(b, TR_ROLE_K_WEIGHT, layer, kv_rows, hidden, TR_CUT_KV_HEADS, cfg->model.qkv_bias);
    linear_add(b, TR_ROLE_V_WEIGHT, layer, kv_rows, hidden, TR_CUT_KV_HEADS, cfg->model.qkv_bias);
    linear_add(b, TR_ROLE_O_WEIGHT, layer, hidden, q_rows, TR_CUT_COLUMNS, cfg->model.bias);
    norm_add(b, TR_ROLE_NORM2_WEIGHT, layer);
    if (cfg->model.mlp == TR_MLP_SWIGLU)
        linear_add(b, TR_ROLE_GATE_WEIGHT, layer, ffn, hidden, TR_CUT_ROWS, cfg->model.bias);
    linear_add(b, TR_ROLE_UP_WEIGHT, layer, ffn, hidden, TR_CUT_ROWS, cfg->model.bias);
    linear_add(b, TR_ROLE_DOWN_WEIGHT, layer, hidden, ffn, TR_CUT_COLUMNS, cfg->model.bias);
}

void tr_param_table_init(tr_param_table *table, const tr_config *cfg)
{
    *table = (tr_param_table){0};
    table->rows = TR_NEW_ARRAY(tr_param, (size_t)cfg->model.layers * TR_ROLE_NUM + TR_ROLE_NUM);
    builder b = {table, cfg};
    row_add(&b, TR_ROLE_EMBED, -1, cfg->model.vocab, cfg->model.hidden, TR_CUT_VOCAB);
    if (cfg->model.position == TR_POSITION_LEARNED)
        row_add(&b, TR_ROLE_POSITION, -1, cfg->model.max_positions, cfg->model.hidden,
                TR_CUT_REPLICATED);
    for (int layer = 0; layer < cfg->model.layers; layer++)
        layer_add(&b, layer);
    norm_add(&b, TR_ROLE_FINAL_NORM_WEIGHT, -1);
    tr_param *head =
        row_add(&b, TR_ROLE_HEAD, -1, cfg->model.vocab, cfg->model.hidden, TR_CUT_VOCAB);
    if (cfg->model.tied)
        head->tied_to = 0;
    for (int i = 0; i < table->num_rows; i++)
        if (table->rows[i].tied_to < 0)
            table->num_elements += table->rows[i].shape[0] * table->rows[i].shape[1];
}

void tr_param_table_clear(tr_param_table *table)
{
    tr_free(table->rows);
    *table = (tr_param_table){0};
}

double tr_model_flops_per_token(const tr_config *cfg)
{
    tr_param_table table;
    tr_param_table_init(&table, cfg);
    double params = 0;
    for (int i = 0; i < table.num_rows; i++) {
        tr_param_role role = table.rows[i].role;
        if (role != TR_ROLE_EMBED && role != TR_ROLE_POSITION)
            params += (double)table.rows[i].shape[0] * (double)table.rows[i].shape[1];
    }
    tr_param_table_clear(&table);
    return 6 * params + 12.0 * (double)cfg->model.layers * (double)cfg->model.heads *
                            (double)cfg->model.head_dim * (double)cfg->train.seq_len;
}
