/*
 * What is there and does not run, as tensors: vision towers of vision-language models, and what leads from them to the text
 * model, in rows of text alone; blocks for multi-token prediction. Their weights are there, trained ones wait for a gradient
 * that does not come, and have no optimizer states (torch optimizers pass over a parameter without a gradient).
 */
#include "lower.h"

enum { TOWER_LINEAR, TOWER_PLAIN, TOWER_VECTOR, TOWER_NORM, TOWER_END }; /* PLAIN: a matrix that is no nn.Linear; NORM: weight and bias */
enum { TOWER_ONCE, TOWER_EACH, TOWER_TAP };                              /* EACH: in each block; TAP: for each block whose output is used besides */
/* Widths: of the tower, its MLP, three of the tower's; one patch; positions, and one more; the patches that are merged into one token;
   the text model. */
enum { TOWER_H, TOWER_F, TOWER_3H, TOWER_PATCH, TOWER_POSITIONS, TOWER_CLASS_POSITIONS, TOWER_MERGED, TOWER_TEXT, TOWER_WIDTHS };

typedef struct tower_row {
    uint8_t kind, times, out, in;
    bool bias;
    const char *name; /* the last part of the module's path, by which PEFT finds a linear */
} tower_row;

typedef struct tower_kind {
    const tower_row *rows, *bridge;
    uint8_t id_buffers, small_buffers; /* numbers of the positions; frequencies of a rotation */
} tower_kind;

/* clang-format off */
#define ROWS(name, ...) static const tower_row name[] = {__VA_ARGS__, {TOWER_END, 0, 0, 0, false, NULL}}
#define LINEAR(times, out, in, bias, name) {TOWER_LINEAR, TOWER_##times, TOWER_##out, TOWER_##in, bias, name}
#define PLAIN(times, out, in, bias) {TOWER_PLAIN, TOWER_##times, TOWER_##out, TOWER_##in, bias, NULL}
#define VECTOR(times, out) {TOWER_VECTOR, TOWER_##times, TOWER_##out, 0, false, NULL}
#define NORM(times, out) {TOWER_NORM, TOWER_##times, TOWER_##out, 0, true, NULL}
#define ATTENTION(bias, o) LINEAR(EACH, H, H, bias, "q_proj"), LINEAR(EACH, H, H, bias, "k_proj"), LINEAR(EACH, H, H, bias, "v_proj"), LINEAR(EACH, H, H, bias, o)

/* modeling_clip.py CLIPVisionTransformer; modeling_llava.py LlavaMultiModalProjector */
ROWS(tower_clip, VECTOR(ONCE, H), PLAIN(ONCE, H, PATCH, false), PLAIN(ONCE, CLASS_POSITIONS, H, false), NORM(ONCE, H), NORM(EACH, H), ATTENTION(true, "out_proj"),
     NORM(EACH, H), LINEAR(EACH, F, H, true, "fc1"), LINEAR(EACH, H, F, true, "fc2"), NORM(ONCE, H));
ROWS(tower_llava, LINEAR(ONCE, TEXT, H, true, "linear_1"), LINEAR(ONCE, TEXT, TEXT, true, "linear_2"));
/* modeling_siglip.py SiglipVisionTransformer; modeling_gemma3.py Gemma3MultiModalProjector */
ROWS(tower_siglip, PLAIN(ONCE, H, PATCH, true), PLAIN(ONCE, POSITIONS, H, false), NORM(EACH, H), ATTENTION(true, "out_proj"), NORM(EACH, H),
     LINEAR(EACH, F, H, true, "fc1"), LINEAR(EACH, H, F, true, "fc2"), NORM(ONCE, H));
ROWS(tower_gemma3, PLAIN(ONCE, H, TEXT, false), VECTOR(ONCE, H));
/* modeling_pixtral.py PixtralVisionModel; modeling_mistral3.py Mistral3MultiModalProjector */
ROWS(tower_pixtral, PLAIN(ONCE, H, PATCH, false), VECTOR(ONCE, H), VECTOR(EACH, H), ATTENTION(false, "o_proj"), VECTOR(EACH, H),
     LINEAR(EACH, F, H, false, "gate_proj"), LINEAR(EACH, F, H, false, "up_proj"), LINEAR(EACH, H, F, false, "down_proj"));
ROWS(tower_mistral3, VECTOR(ONCE, H), LINEAR(ONCE, H, MERGED, false, "merging_layer"), LINEAR(ONCE, TEXT, H, false, "linear_1"),
     LINEAR(ONCE, TEXT, TEXT, false, "linear_2"));
/* modeling_qwen2_5_vl.py Qwen2_5_VisionTransformerPretrainedModel */
ROWS(tower_qwen2_5, PLAIN(ONCE, H, PATCH, false), VECTOR(EACH, H), VECTOR(EACH, H), LINEAR(EACH, 3H, H, true, "qkv"), LINEAR(EACH, H, H, true, "proj"),
     LINEAR(EACH, F, H, true, "gate_proj"), LINEAR(EACH, F, H, true, "up_proj"), LINEAR(EACH, H, F, true, "down_proj"));
ROWS(tower_qwen2_5_merger, VECTOR(ONCE, H), LINEAR(ONCE, MERGED, MERGED, true, "0"), LINEAR(ONCE, TEXT, MERGED, true, "2"));
/* modeling_qwen3_vl.py Qwen3VLVisionModel */
ROWS(tower_qwen3, PLAIN(ONCE, H, PATCH, true), PLAIN(ONCE, POSITIONS, H, false), NORM(EACH, H), NORM(EACH, H), LINEAR(EACH, 3H, H, true, "qkv"),
     LINEAR(EACH, H, H, true, "proj"), LINEAR(EACH, F, H, true, "linear_fc1"), LINEAR(EACH, H, F, true, "linear_fc2"));
ROWS(tower_qwen3_merger, NORM(ONCE, H), LINEAR(ONCE, MERGED, MERGED, true, "linear_fc1"), LINEAR(ONCE, TEXT, MERGED, true, "linear_fc2"),
     NORM(TAP, MERGED), LINEAR(TAP, MERGED, MERGED, true, "linear_fc1"), LINEAR(TAP, TEXT, MERGED, true, "linear_fc2"));

static const tower_kind tower_kinds[FTMEM_TOWER_END] = {
    [FTMEM_TOWER_LLAVA] = {tower_clip, tower_llava, 1, 0},
    [FTMEM_TOWER_GEMMA3] = {tower_siglip, tower_gemma3, 1, 0},
    [FTMEM_TOWER_MISTRAL3] = {tower_pixtral, tower_mistral3, 0, 2},
    [FTMEM_TOWER_QWEN2_5_VL] = {tower_qwen2_5, tower_qwen2_5_merger, 0, 2},
    [FTMEM_TOWER_QWEN3_VL] = {tower_qwen3, tower_qwen3_merger, 0, 2},
};
/* clang-format on */

static int64_t tower_positions(const ftmem_model *m)
{
    int64_t side = m->patch_size > 0 ? m->image_size / m->patch_size : 0;
    return m->tower_positions > 0 ? m->tower_positions : side * side;
}

static void tower_widths(const ftmem_model *m, int64_t width[TOWER_WIDTHS])
{
    int64_t temporal = m->temporal_patch > 0 ? m->temporal_patch : 1, merge = m->tower_merge > 0 ? m->tower_merge : 1;
    width[TOWER_H] = m->tower_hidden;
    width[TOWER_F] = m->tower_ffn;
    width[TOWER_3H] = 3 * m->tower_hidden;
    width[TOWER_PATCH] = m->channels * temporal * m->patch_size * m->patch_size;
    width[TOWER_POSITIONS] = tower_positions(m);
    width[TOWER_CLASS_POSITIONS] = tower_positions(m) + 1;
    width[TOWER_MERGED] = merge * merge * m->tower_hidden;
    width[TOWER_TEXT] = m->hidden;
}

static bool tower_named(const char *module, const char *name)
{
    const char *dot = module ? strrchr(module, '.') : NULL;
    return module && strcmp(dot ? dot + 1 : module, name) == 0;
}

/* PEFT looks for a name in the whole model: "q_proj" of the text model is the tower's too. ROLE_TOWER: it has none of its names. */
static int32_t tower_named_role(const ftmem_model *model, uint32_t targets, const char *name)
{
    const char *const *modules = ftmem__family_of(model)->modules;
    int32_t role;
    for (role = 0; role < FTMEM_ROLE_TOWER; role++)
        if ((targets >> role & 1u) && tower_named(modules[role], name)) return role;
    return FTMEM_ROLE_TOWER;
}

static int32_t tower_role(const ftmem__shape *shape, const char *name)
{
    return shape->adapted ? tower_named_role(shape->model, shape->adapter->targets, name) : FTMEM_ROLE_TOWER;
}

void ftmem__tower_adapter(ftmem__case *c)
{
    const ftmem__family *family = ftmem__family_tower(&c->model);
    uint32_t all = c->adapter.targets & 1u << FTMEM_ROLE_TOWER;
    int32_t role, text;
    c->tower = c->adapter;
    c->tower.targets = all;
    memset(c->tower.ranks, 0, sizeof c->tower.ranks);
    for (role = 0; role < FTMEM_ROLE_TOWER; role++) {
        if (!family->modules[role]) continue;
        text = tower_named_role(&c->model, c->adapter.targets, family->modules[role]);
        if (text == FTMEM_ROLE_TOWER && !all) continue;
        c->tower.targets |= 1u << role;
        if (role < FTMEM__COUNT(c->tower.ranks) && text < FTMEM__COUNT(c->tower.ranks)) c->tower.ranks[role] = c->adapter.ranks[text];
    }
}

static void tower_linear(ftmem__low *low, const tower_row *row, const int64_t width[TOWER_WIDTHS])
{
    ftmem__var x = ftmem__constant(width[row->in], width[row->in], low->shape->dtype);
    ftmem__drop(low->tape, ftmem__low_linear(low, tower_role(low->shape, row->name), x, width[row->out], row->bias));
}

static void tower_declare(ftmem__low *low, const tower_row *row, const int64_t width[TOWER_WIDTHS])
{
    int64_t out = width[row->out], in = row->kind == TOWER_PLAIN ? width[row->in] : 1;
    if (row->kind == TOWER_LINEAR) {
        tower_linear(low, row, width);
        return;
    }
    (void)ftmem__low_parameter(low, FTMEM_ROLE_TOWER, out * in, row->kind == TOWER_PLAIN ? in : out, low->trained);
    if (row->bias) (void)ftmem__low_parameter(low, FTMEM_ROLE_TOWER, out, out, low->trained);
}

static int64_t tower_times(const ftmem_model *m, uint8_t times)
{
    if (times == TOWER_EACH) return m->tower_layers;
    return times == TOWER_TAP ? m->tower_taps : 1;
}

/* Parameters from number `i` on: so many of each, and none runs. */
static void tower_idle(ftmem__params *params, int32_t i, int64_t copies)
{
    for (; i < params->count; i++) {
        params->at[i].copies = copies;
        params->at[i].idle = params->at[i].trained;
        params->at[i].trained = false;
        params->at[i].outside = true;
        params->at[i].narrowed_bytes = params->at[i].narrowed = 0; /* no forward comes to it */
    }
}

static void tower_rows(ftmem__low *low, const tower_row *row)
{
    ftmem__params *params = low->params;
    int64_t width[TOWER_WIDTHS];
    tower_widths(low->shape->model, width);
    for (; row->kind != TOWER_END; row++) {
        int32_t i = params->count;
        tower_declare(low, row, width);
        tower_idle(params, i, tower_times(low->shape->model, row->times));
    }
}

void ftmem__low_tower(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    if (shape->model->tower == 0) return;
    low->trained = shape->tower_trained;
    low->adapted = shape->adapted;
    tower_rows(low, tower_kinds[shape->model->tower].rows);
    tower_rows(low, tower_kinds[shape->model->tower].bridge);
}

/* modeling_mimo.py MiMoMTPLayers: a block of the model's, norms of token, hidden states and result, and a linear from both to
   one. PEFT and bitsandbytes find its linears as those of other blocks. */
void ftmem__low_mtp(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    int32_t i = low->params->count;
    int64_t h = shape->h;
    ftmem__var x = ftmem__constant(low->tokens * h, h, shape->stream), pair = ftmem__constant(2 * h, 2 * h, shape->dtype);
    if (shape->model->mtp_layers == 0) return;
    low->trained = shape->rest_trained;
    low->adapted = shape->adapted;
    ftmem__drop(low->tape, ftmem__low_block(low, x));
    for (int32_t k = 0; k < 3; k++) (void)ftmem__low_parameter(low, FTMEM_ROLE_NORM, h, h, low->trained);
    ftmem__drop(low->tape, ftmem__low_linear(low, FTMEM_ROLE_TOWER, pair, h, false));
    tower_idle(low->params, i, shape->model->mtp_layers);
}

/* Buffers of position numbers, one for each entry of the table. */
int64_t ftmem__tower_buffer_bytes(const ftmem_model *model)
{
    if (model->tower == 0) return 0;
    return 512 * tower_kinds[model->tower].small_buffers +
           tower_kinds[model->tower].id_buffers * ftmem__round512(8 * (tower_positions(model) + (model->tower == FTMEM_TOWER_LLAVA)));
}
