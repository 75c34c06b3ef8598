/*
 * What is there and does not run, as tensors: vision and audio towers of models of text and more, and what leads from them to the text
 * model, in rows of text alone; blocks for multi-token prediction. Their weights are there, trained ones wait for a gradient
 * that does not come, and have no optimizer states (torch optimizers pass over a parameter without a gradient).
 */
#include "lower.h"

enum { TOWER_LINEAR, TOWER_PLAIN, TOWER_VECTOR, TOWER_NORM, TOWER_END }; /* PLAIN: a matrix that is no nn.Linear; NORM: weight and bias */
enum {
    TOWER_ONCE,
    TOWER_EACH,
    TOWER_TAP,
    TOWER_GLOBAL,
    TOWER_CROSS
}; /* EACH: in each block; TAP: for each block whose output is used besides;
                                                                             GLOBAL, CROSS: in each block of a second encoder, of cross-attention */
/* Widths: of the tower, its MLP, two and three of the tower's; a head; one patch; positions, one more, and twice as many; the patches
   that are merged into one token; the text model; channels of two convolutions with windows of three by three, and what they leave
   of a frame; a convolution over time; the tower's result; one number; tiles of an image, their positions, and aspect ratios; the text
   model's MLP, keys and head. */
enum {
    TOWER_H,
    TOWER_F,
    TOWER_2H,
    TOWER_3H,
    TOWER_HEAD,
    TOWER_PATCH,
    TOWER_POSITIONS,
    TOWER_CLASS_POSITIONS,
    TOWER_2POSITIONS,
    TOWER_MERGED,
    TOWER_TEXT,
    TOWER_9,
    TOWER_CHANNELS,
    TOWER_9CHANNELS,
    TOWER_CHANNELS_LAST,
    TOWER_FRAME,
    TOWER_KERNEL,
    TOWER_OUT,
    TOWER_ONE,
    TOWER_TILES,
    TOWER_TILE_POSITIONS,
    TOWER_RATIOS,
    TOWER_TEXT_F,
    TOWER_TEXT_KV,
    TOWER_TEXT_HEAD,
    TOWER_WIDTHS
};

typedef struct tower_row {
    uint8_t kind, times, out, in;
    bool bias;
    const char *name; /* the last part of the module's path, by which PEFT finds a linear */
} tower_row;

typedef struct tower_kind {
    const tower_row *rows, *bridge;
    uint8_t id_buffers, small_buffers; /* numbers of the positions; frequencies of a rotation */
    uint8_t time_rows;                 /* of a table of times, as a buffer */
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
/* modeling_paligemma.py PaliGemmaMultiModalProjector */
ROWS(tower_paligemma, LINEAR(ONCE, TEXT, H, true, "linear"));
/* modeling_pixtral.py PixtralVisionModel; modeling_mistral3.py Mistral3MultiModalProjector */
ROWS(tower_pixtral, PLAIN(ONCE, H, PATCH, false), VECTOR(ONCE, H), VECTOR(EACH, H), ATTENTION(false, "o_proj"), VECTOR(EACH, H),
     LINEAR(EACH, F, H, false, "gate_proj"), LINEAR(EACH, F, H, false, "up_proj"), LINEAR(EACH, H, F, false, "down_proj"));
ROWS(tower_mistral3, VECTOR(ONCE, H), LINEAR(ONCE, H, MERGED, false, "merging_layer"), LINEAR(ONCE, TEXT, H, false, "linear_1"),
     LINEAR(ONCE, TEXT, TEXT, false, "linear_2"));
/* modeling_mllama.py MllamaVisionModel, two encoders; MllamaCrossAttentionDecoderLayer */
#define MLLAMA_ENCODER(times) LINEAR(times, H, H, false, "q_proj"), LINEAR(times, H, H, false, "k_proj"), LINEAR(times, H, H, false, "v_proj"), \
    LINEAR(times, H, H, false, "o_proj"), LINEAR(times, F, H, true, "fc1"), LINEAR(times, H, F, true, "fc2"), NORM(times, H), NORM(times, H)
ROWS(tower_mllama, VECTOR(ONCE, H), PLAIN(ONCE, H, PATCH, false), VECTOR(ONCE, ONE), PLAIN(ONCE, CLASS_POSITIONS, H, false), PLAIN(ONCE, RATIOS, TILE_POSITIONS, false),
     VECTOR(ONCE, ONE), PLAIN(ONCE, RATIOS, TILES, false), VECTOR(ONCE, ONE), PLAIN(ONCE, RATIOS, TILES, false), NORM(ONCE, H), NORM(ONCE, H),
     MLLAMA_ENCODER(EACH), VECTOR(GLOBAL, ONE), VECTOR(GLOBAL, ONE), MLLAMA_ENCODER(GLOBAL));
ROWS(tower_mllama_projector, LINEAR(ONCE, TEXT, OUT, true, "multi_modal_projector"));
ROWS(tower_mllama_cross, VECTOR(CROSS, ONE), VECTOR(CROSS, ONE), LINEAR(CROSS, TEXT, TEXT, false, "q_proj"), LINEAR(CROSS, TEXT_KV, TEXT, false, "k_proj"),
     LINEAR(CROSS, TEXT_KV, TEXT, false, "v_proj"), LINEAR(CROSS, TEXT, TEXT, false, "o_proj"), VECTOR(CROSS, TEXT_HEAD), VECTOR(CROSS, TEXT_HEAD), VECTOR(CROSS, TEXT),
     LINEAR(CROSS, TEXT_F, TEXT, false, "gate_proj"), LINEAR(CROSS, TEXT_F, TEXT, false, "up_proj"), LINEAR(CROSS, TEXT, TEXT_F, false, "down_proj"), VECTOR(CROSS, TEXT));
/* modeling_phi3_v.py Phi3ImageEmbedding: four patches are one token; separators of rows and of the whole image are learned */
ROWS(tower_phi3_v, VECTOR(ONCE, MERGED), VECTOR(ONCE, MERGED), LINEAR(ONCE, TEXT, MERGED, true, "0"), LINEAR(ONCE, TEXT, TEXT, true, "2"));
/* modeling_qwen2_5_vl.py Qwen2_5_VisionTransformerPretrainedModel */
ROWS(tower_qwen2_5, PLAIN(ONCE, H, PATCH, false), VECTOR(EACH, H), VECTOR(EACH, H), LINEAR(EACH, 3H, H, true, "qkv"), LINEAR(EACH, H, H, true, "proj"),
     LINEAR(EACH, F, H, true, "gate_proj"), LINEAR(EACH, F, H, true, "up_proj"), LINEAR(EACH, H, F, true, "down_proj"));
ROWS(tower_qwen2_5_merger, VECTOR(ONCE, H), LINEAR(ONCE, MERGED, MERGED, true, "0"), LINEAR(ONCE, TEXT, MERGED, true, "2"));
/* modeling_kimi_k25.py Kimi_K25VisionModel, Kimi_K25MultimodalProjection */
ROWS(tower_kimi, PLAIN(ONCE, H, PATCH, true), PLAIN(ONCE, POSITIONS, H, false), NORM(EACH, H), NORM(EACH, H), ATTENTION(true, "proj"), LINEAR(EACH, F, H, true, "fc1"),
     LINEAR(EACH, H, F, true, "fc2"), NORM(ONCE, H));
ROWS(tower_kimi_projector, NORM(ONCE, H), LINEAR(ONCE, MERGED, MERGED, true, "in_proj"), LINEAR(ONCE, TEXT, MERGED, true, "out_proj"));
/* modeling_qwen2_vl.py Qwen2VisionTransformerPretrainedModel */
ROWS(tower_qwen2, PLAIN(ONCE, H, PATCH, false), NORM(EACH, H), NORM(EACH, H), LINEAR(EACH, 3H, H, true, "qkv"), LINEAR(EACH, H, H, true, "proj"),
     LINEAR(EACH, F, H, true, "fc1"), LINEAR(EACH, H, F, true, "fc2"));
ROWS(tower_qwen2_merger, NORM(ONCE, H), LINEAR(ONCE, MERGED, MERGED, true, "0"), LINEAR(ONCE, TEXT, MERGED, true, "2"));
/* modeling_qwen3_vl.py Qwen3VLVisionModel */
ROWS(tower_qwen3, PLAIN(ONCE, H, PATCH, true), PLAIN(ONCE, POSITIONS, H, false), NORM(EACH, H), NORM(EACH, H), LINEAR(EACH, 3H, H, true, "qkv"),
     LINEAR(EACH, H, H, true, "proj"), LINEAR(EACH, F, H, true, "linear_fc1"), LINEAR(EACH, H, F, true, "linear_fc2"));
ROWS(tower_qwen3_merger, NORM(ONCE, H), LINEAR(ONCE, MERGED, MERGED, true, "linear_fc1"), LINEAR(ONCE, TEXT, MERGED, true, "linear_fc2"),
     NORM(TAP, MERGED), LINEAR(TAP, MERGED, MERGED, true, "linear_fc1"), LINEAR(TAP, TEXT, MERGED, true, "linear_fc2"));

/* modeling_gemma4.py Gemma4VisionModel, Gemma4MultimodalEmbedder; linears of blocks stand inside Gemma4ClippableLinear */
#define CLIPPABLE(out, in) LINEAR(EACH, out, in, false, "linear")
ROWS(tower_gemma4, LINEAR(ONCE, H, PATCH, false, "input_proj"), PLAIN(ONCE, 2POSITIONS, H, false), VECTOR(EACH, H), CLIPPABLE(H, H), CLIPPABLE(H, H),
     CLIPPABLE(H, H), CLIPPABLE(H, H), VECTOR(EACH, HEAD), VECTOR(EACH, HEAD), VECTOR(EACH, H), VECTOR(EACH, H), CLIPPABLE(F, H), CLIPPABLE(F, H),
     CLIPPABLE(H, F), VECTOR(EACH, H));
ROWS(tower_gemma4_embedder, LINEAR(ONCE, TEXT, H, false, "embedding_projection"));
/* modeling_gemma4.py Gemma4AudioModel */
#define FEED_FORWARD VECTOR(EACH, H), CLIPPABLE(F, H), CLIPPABLE(H, F), VECTOR(EACH, H)
ROWS(tower_gemma4_audio, PLAIN(ONCE, CHANNELS, 9, false), VECTOR(ONCE, CHANNELS), PLAIN(ONCE, CHANNELS_LAST, 9CHANNELS, false), VECTOR(ONCE, CHANNELS_LAST),
     LINEAR(ONCE, H, FRAME, false, "input_proj_linear"), FEED_FORWARD, VECTOR(EACH, H), CLIPPABLE(H, H), CLIPPABLE(H, H), CLIPPABLE(H, H), CLIPPABLE(H, H),
     LINEAR(EACH, H, H, false, "relative_k_proj"), VECTOR(EACH, HEAD), VECTOR(EACH, H), VECTOR(EACH, H), CLIPPABLE(2H, H), PLAIN(EACH, H, KERNEL, false),
     VECTOR(EACH, H), CLIPPABLE(H, H), FEED_FORWARD, VECTOR(EACH, H), LINEAR(ONCE, OUT, H, true, "output_proj"));
ROWS(tower_gemma4_audio_embedder, LINEAR(ONCE, TEXT, OUT, false, "embedding_projection"));

static const tower_kind tower_kinds[FTMEM_TOWER_END] = {
    [FTMEM_TOWER_LLAVA] = {tower_clip, tower_llava, 1, 0, 0},
    [FTMEM_TOWER_GEMMA3] = {tower_siglip, tower_gemma3, 1, 0, 0},
    [FTMEM_TOWER_PALIGEMMA] = {tower_siglip, tower_paligemma, 1, 0, 0},
    [FTMEM_TOWER_MLLAMA] = {tower_mllama, tower_mllama_projector, 0, 0, 0},
    [FTMEM_TOWER_PHI3_V] = {tower_clip, tower_phi3_v, 1, 0, 0},
    [FTMEM_TOWER_MISTRAL3] = {tower_pixtral, tower_mistral3, 0, 2, 0},
    [FTMEM_TOWER_QWEN2_5_VL] = {tower_qwen2_5, tower_qwen2_5_merger, 0, 2, 0},
    [FTMEM_TOWER_KIMI_K25] = {tower_kimi, tower_kimi_projector, 0, 2, 5},
    [FTMEM_TOWER_QWEN2_VL] = {tower_qwen2, tower_qwen2_merger, 0, 2, 0},
    [FTMEM_TOWER_QWEN3_VL] = {tower_qwen3, tower_qwen3_merger, 0, 2, 0},
    [FTMEM_TOWER_GEMMA4] = {tower_gemma4, tower_gemma4_embedder, 0, 2, 0},
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
    width[TOWER_HEAD] = m->tower_head_dim;
    width[TOWER_2POSITIONS] = 2 * tower_positions(m);
    width[TOWER_PATCH] = m->channels * temporal * m->patch_size * m->patch_size;
    width[TOWER_POSITIONS] = tower_positions(m);
    width[TOWER_CLASS_POSITIONS] = tower_positions(m) + 1;
    width[TOWER_MERGED] = merge * merge * m->tower_hidden;
    width[TOWER_TEXT] = m->hidden;
    width[TOWER_OUT] = m->tower_out;
    width[TOWER_ONE] = 1;
    width[TOWER_TILES] = m->tower_tiles * m->tower_hidden;
    width[TOWER_TILE_POSITIONS] = width[TOWER_TILES] * width[TOWER_CLASS_POSITIONS];
    width[TOWER_RATIOS] = m->tower_ratios + 1;
    width[TOWER_TEXT_F] = m->ffn;
    width[TOWER_TEXT_KV] = m->kv_heads * m->head_dim;
    width[TOWER_TEXT_HEAD] = m->head_dim;
}

static void tower_audio_widths(const ftmem_model *m, int64_t width[TOWER_WIDTHS])
{
    memset(width, 0, TOWER_WIDTHS * sizeof *width);
    width[TOWER_H] = m->audio_hidden;
    width[TOWER_F] = 4 * m->audio_hidden;
    width[TOWER_2H] = 2 * m->audio_hidden;
    width[TOWER_HEAD] = m->audio_hidden / m->audio_heads;
    width[TOWER_TEXT] = m->hidden;
    width[TOWER_9] = 9;
    width[TOWER_CHANNELS] = m->audio_channels;
    width[TOWER_9CHANNELS] = 9 * m->audio_channels;
    width[TOWER_CHANNELS_LAST] = m->audio_channels_last;
    width[TOWER_FRAME] = m->audio_channels / 4 * m->audio_channels_last;
    width[TOWER_KERNEL] = m->audio_kernel;
    width[TOWER_OUT] = m->audio_out;
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

static int64_t tower_times(const ftmem_model *m, uint8_t times, int64_t layers)
{
    if (times == TOWER_EACH) return layers;
    if (times == TOWER_GLOBAL) return m->tower_global_layers;
    if (times == TOWER_CROSS) return m->cross_layers;
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

static void tower_rows(ftmem__low *low, const tower_row *row, const int64_t width[TOWER_WIDTHS], int64_t layers)
{
    ftmem__params *params = low->params;
    for (; row->kind != TOWER_END; row++) {
        int32_t i = params->count;
        tower_declare(low, row, width);
        tower_idle(params, i, tower_times(low->shape->model, row->times, layers));
    }
}

void ftmem__low_tower(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    const ftmem_model *m = shape->model;
    int64_t width[TOWER_WIDTHS];
    low->trained = shape->tower_trained;
    low->adapted = shape->adapted;
    tower_widths(m, width);
    if (m->tower_layers > 0) tower_rows(low, tower_kinds[m->tower].rows, width, m->tower_layers);
    low->trained = shape->projector_trained;
    if (m->tower_layers > 0) tower_rows(low, tower_kinds[m->tower].bridge, width, m->tower_layers);
    low->trained = shape->rest_trained;
    if (m->cross_layers > 0) tower_rows(low, tower_mllama_cross, width, m->cross_layers);
    low->trained = shape->projector_trained;
    if (m->audio_layers == 0) return;
    tower_audio_widths(m, width);
    tower_rows(low, tower_gemma4_audio, width, m->audio_layers);
    tower_rows(low, tower_gemma4_audio_embedder, width, m->audio_layers);
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

/* Of each clipped linear: the bounds of what goes in and what comes out (modeling_gemma4.py Gemma4ClippableLinear). */
static int64_t tower_bounds(const tower_row *row, int64_t layers)
{
    int64_t linears = 0;
    for (; row->kind != TOWER_END; row++) linears += row->kind == TOWER_LINEAR && strcmp(row->name, "linear") == 0;
    return 4 * 512 * linears * layers;
}

/* Positions, the frequencies of its relative encoding, and the cap of each block's scores (modeling_gemma4.py Gemma4AudioAttention). */
static int64_t tower_audio_buffer_bytes(const ftmem_model *m, int32_t dtype)
{
    int64_t bounds = m->audio_clipped == FTMEM_ON ? tower_bounds(tower_gemma4_audio, m->audio_layers) : 0;
    return m->audio_layers > 0 ? bounds + ftmem__round512(ftmem__bytes(dtype, m->audio_hidden / 2)) + 512 * m->audio_layers : 0;
}

/* Buffers of position numbers, one for each entry of the table; of the towers' own kinds. */
int64_t ftmem__tower_buffer_bytes(const ftmem_model *m, int32_t dtype)
{
    const tower_kind *kind = &tower_kinds[m->tower];
    int64_t sum = tower_audio_buffer_bytes(m, dtype);
    if (m->tower_layers == 0) return sum;
    if (m->tower_clipped == FTMEM_ON) sum += tower_bounds(kind->rows, m->tower_layers);
    if (m->tower_standardized == FTMEM_ON) sum += 2 * ftmem__round512(ftmem__bytes(dtype, m->tower_hidden));
    return sum + 512 * kind->small_buffers + ftmem__round512(4 * kind->time_rows * m->tower_hidden) +
           kind->id_buffers * ftmem__round512(8 * (tower_positions(m) + (m->tower == FTMEM_TOWER_LLAVA)));
}
