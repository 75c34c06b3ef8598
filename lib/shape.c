/* From a checked job to numbers: widths, dtypes, masks, what is trained. Every product is checked here, once. */
#include "lower.h"
#include "objective.h"

static bool shape_part(const ftmem_job *job, int32_t part)
{
    return (job->freeze & part) != 0;
}

/* Whether a part is trained in full fine-tuning: `named` says that ftmem_job.freeze names it. */
static bool shape_trains(const ftmem_job *job, bool named)
{
    return named == shape_part(job, FTMEM_PART_ALL_BUT);
}

/* modeling_gemma4.py Gemma4TextAttention, Gemma4TextMLP; modeling_decilm.py DeciLMDecoderLayer */
void ftmem__shape_by_kind(ftmem__shape *shape, uint8_t kind)
{
    const ftmem_model *m = shape->model;
    if (shape->family->by_width) shape->f = m->ffn_widths[ftmem__layer_width(kind)];
    if (!shape->family->by_kind) return;
    if (kind & FTMEM__LAYER_REUSES) shape->f = m->shared_kv_ffn;
    if (ftmem__layer_attention(kind) != FTMEM__LAYER_FULL) return;
    shape->d = shape->dv = shape->rotary = m->full_head_dim;
    shape->kv_heads = m->full_kv_heads;
    shape->q = m->heads * m->full_head_dim;
    shape->kv = m->full_kv_heads * m->full_head_dim;
}

/* Last blocks take keys and values of the last one before them of their kind, which stores them whether or not one does
   (configuration_gemma4.py kv_sharing_modes). */
static uint8_t shape_sharing(const ftmem_model *m, int64_t layer)
{
    int64_t own = m->layers - m->shared_kv_layers, i;
    if (layer >= own) return FTMEM__LAYER_REUSES;
    for (i = layer + 1; i < own; i++)
        if (ftmem__layer_attention(m->layer_kind[i]) == ftmem__layer_attention(m->layer_kind[layer])) return 0;
    return FTMEM__LAYER_STORES;
}

/* A window shows in its mask only: where both kinds have a mask, or neither has, they are one, and are walked once. */
uint8_t ftmem__shape_layer_kind(const ftmem__shape *shape, int64_t layer)
{
    uint8_t kind = shape->model->layer_kind[layer];
    if (shape->family->by_kind) return kind | shape_sharing(shape->model, layer);
    if (shape->family->hands_index && layer > 0) {
        bool old = ftmem__layer_attention(shape->model->layer_kind[layer - 1]) == FTMEM__LAYER_SHARED_INDEX;
        return kind | (old ? FTMEM__LAYER_HANDED_OLD : FTMEM__LAYER_HANDED_NEW);
    }
    bool alike =
        !shape->family->sliding_kv_twice && ftmem__layer_attention(kind) == FTMEM__LAYER_SLIDING && shape->mask_sliding == shape->mask_full && !shape->window;
    return alike ? (uint8_t)(kind - FTMEM__LAYER_SLIDING) : kind;
}

bool ftmem__shape_bias_trained(const ftmem__shape *shape, bool module)
{
    bool named = shape_part(shape->job, FTMEM_PART_BIASES);
    if (shape->adapted) return false;
    return shape_part(shape->job, FTMEM_PART_ALL_BUT) ? module || named : module && !named;
}

bool ftmem__shape_layer_trained(const ftmem__shape *shape, int64_t layer)
{
    const ftmem_job *job = shape->job;
    if (shape->tower) return shape->tower_trained;
    bool named = (shape_part(job, FTMEM_PART_FIRST_LAYERS) && layer < job->freeze_first_layers) ||
                 (shape_part(job, FTMEM_PART_LAST_LAYERS) && layer >= shape->model->layers - job->freeze_last_layers);
    return !shape->adapted && shape_trains(job, named);
}

bool ftmem__shape_layer_adapted(const ftmem__shape *shape, int64_t layer)
{
    const ftmem_adapter *adapter = shape->adapter;
    if (!shape->adapted) return false;
    if (adapter->layers_first > 0 && layer >= adapter->layers_first) return false;
    return adapter->layers_last <= 0 || layer >= shape->model->layers - adapter->layers_last;
}

bool ftmem__shape_outside_adapted(const ftmem__shape *shape)
{
    return shape->adapted && shape->adapter->layers_first == 0 && shape->adapter->layers_last == 0;
}

static void shape_training(ftmem__shape *shape)
{
    const ftmem_job *job = shape->job;
    uint32_t saved = shape->adapter->modules_to_save;
    shape->adapted = shape->adapter->kind != FTMEM_ADAPTER_NONE;
    shape->embed_copy = shape->adapted && (saved & FTMEM_PART_EMBED);
    shape->head_copy = shape->adapted && (saved & FTMEM_PART_HEAD);
    shape->tied = shape->model->tied == FTMEM_ON && ftmem__task_of_vocab(job->task);
    shape->tower_trained = !shape->adapted && shape_trains(job, shape_part(job, FTMEM_PART_TOWER | FTMEM_PART_VISION));
    shape->projector_trained = !shape->adapted && shape_trains(job, shape_part(job, FTMEM_PART_TOWER | FTMEM_PART_PROJECTOR));
    shape->rest_trained = !shape->adapted && shape_trains(job, false);
    shape->position_trained = !shape->adapted && shape_trains(job, shape_part(job, FTMEM_PART_EMBED));
    shape->embed_trained = shape->embed_copy || (!shape->adapted && shape_trains(job, shape_part(job, FTMEM_PART_EMBED)));
    shape->head_trained = shape->head_copy || (!shape->adapted && shape_trains(job, shape_part(job, FTMEM_PART_HEAD)));
    if ((job->task == FTMEM_TASK_CLASSIFY || job->task == FTMEM_TASK_TOKEN_CLASSIFY) && shape->adapted)
        shape->head_copy = shape->head_trained = true; /* PEFT SEQ_CLS and TOKEN_CLS save `classifier` and `score` */
    shape->head_own_trained = shape->head_trained;
    if (shape->tied && !shape->adapted) { /* one tensor: naming either names both */
        bool all_but = shape_part(job, FTMEM_PART_ALL_BUT);
        bool either = all_but ? shape->embed_trained || shape->head_trained : shape->embed_trained && shape->head_trained;
        shape->embed_trained = shape->head_trained = either;
    }
    /* transformers 5 PreTrainedModel.gradient_checkpointing_enable always enables input gradients */
    shape->require_input_grad = job->recompute != FTMEM_RECOMPUTE_NONE;
}

static void shape_dtypes(ftmem__shape *shape)
{
    const ftmem_job *job = shape->job;
    const ftmem_adapter *adapter = shape->adapter;
    shape->regularised = adapter->kind == FTMEM_ADAPTER_ADALORA;
    shape->quant = adapter->quant == FTMEM_QUANT_NONE ? 0 : adapter->quant;
    shape->qlora = shape->quant == FTMEM_QUANT_NF4 || shape->quant == FTMEM_QUANT_FP4;
    shape->lora8 = shape->quant == FTMEM_QUANT_INT8;
    shape->input_kept = job->bitsandbytes_version < 43;
    shape->compute = job->dtype;
    shape->dtype = shape->quant && adapter->kbit_fp32 == FTMEM_ON ? FTMEM_FP32 : job->dtype;
    /* trl/trainer/utils.py peft_module_casting_to_bf16: embeddings and head of a 4-bit model, not its norms */
    shape->ends = shape->qlora && adapter->kbit_fp32 == FTMEM_ON && adapter->ends_bf16 == FTMEM_ON ? FTMEM_BF16 : shape->dtype;
    shape->stream = shape->ends;
    shape->autocast = job->autocast;
    shape->mask = job->autocast && (shape->family->embedding == FTMEM__EMBED_SEGMENTS || shape->family->embedding == FTMEM__EMBED_NORMED)
                      ? FTMEM_FP32
                      : shape->stream; /* a norm's output */
    shape->lora_dtype = adapter->dtype ? adapter->dtype : FTMEM_FP32;
}

static void shape_masks(ftmem__shape *shape)
{
    const ftmem_job *job = shape->job;
    int64_t i, window = shape->model->sliding_window;
    bool padded = job->mask == FTMEM_MASK_PADDED && !shape->crossed && !shape->fed_features &&
                  !shape->tower; /* a decoder after an encoder gets no mask of its own rows */
    bool always = (job->attention == FTMEM_EAGER && shape->causal) || padded || shape->image_masks || (shape->tower && shape->family->packed) ||
                  shape->model->alibi == FTMEM_ON || shape->family->always_mask;
    for (i = 0; i < shape->model->layers; i++) {
        if (ftmem__layer_attention(shape->model->layer_kind[i]) == FTMEM__LAYER_SLIDING) shape->has_sliding = true;
        else shape->has_full = true;
        if (!shape->family->tables_asked || ftmem__layer_attention(shape->model->layer_kind[i]) == FTMEM__LAYER_FULL) shape->rotates = true;
    }
    if (shape->family->positions == FTMEM__POSITIONLESS) shape->has_full = false; /* no block attends */
    if (job->attention == FTMEM_FLASH2) always = false;
    shape->mask_full = always;
    shape->mask_cross = shape->crossed && !shape->fed_features && job->mask == FTMEM_MASK_PADDED && job->attention != FTMEM_FLASH2;
    /* masking_utils._ignore_causal_mask_sdpa: a window that the sequence reaches needs a mask */
    shape->mask_sliding = always || (job->attention != FTMEM_FLASH2 && window > 0 && shape->s >= window);
}

int32_t ftmem__shape_pixels(const ftmem__shape *shape)
{
    return shape->autocast ? FTMEM_FP32 : shape->dtype;
}

/* No tensor may be larger than 2^54 bytes, so that sums of a few thousand fit in 63 bits. */
static ftmem_status shape_check(const ftmem__shape *shape, ftmem_error *error)
{
    ftmem__checked c = { false };
    const int64_t limit = (int64_t)1 << 50;
    int64_t rows = shape->eval_b > shape->b ? shape->eval_b : shape->b;
    int64_t tokens = ftmem__mul(&c, rows, shape->s), scores = ftmem__mul(&c, ftmem__mul(&c, tokens, shape->s), shape->heads);
    int64_t widest = shape->vocab, h = shape->h, linear = 2 * (shape->model->linear_key_dim + shape->model->linear_value_dim) + 64;
    if (shape->f * 2 > widest) widest = shape->f * 2;
    if (shape->q + 2 * shape->kv > widest) widest = shape->q + 2 * shape->kv;
    if (shape->model->heads * shape->model->full_head_dim * 3 > widest) widest = shape->model->heads * shape->model->full_head_dim * 3;
    if (shape->model->shared_kv_ffn * 2 > widest) widest = shape->model->shared_kv_ffn * 2;
    for (int32_t i = 0; i < FTMEM__COUNT(shape->model->ffn_widths); i++)
        if (shape->model->ffn_widths[i] * 2 > widest) widest = shape->model->ffn_widths[i] * 2;
    if (shape->model->layer_input * shape->model->layers > widest) widest = shape->model->layer_input * shape->model->layers;
    if (shape->model->linear_value_heads * linear > widest) widest = shape->model->linear_value_heads * linear;
    if (shape->heads * (shape->d + shape->dv) > widest) widest = shape->heads * (shape->d + shape->dv);
    if (ftmem__mul(&c, tokens, widest) > limit || ftmem__mul(&c, widest, h) > limit || scores > limit || ftmem__mul(&c, tokens, h) > limit) c.overflow = true;
    if (ftmem__mul(&c, shape->model->position_rows, h) > limit || ftmem__mul(&c, shape->model->position_rows, shape->model->position_rows) > limit)
        c.overflow = true;
    if (ftmem__mul(&c, ftmem__mul(&c, widest, h), shape->model->layers) > limit << 4) c.overflow = true;
    if (ftmem__mul(&c, ftmem__mul(&c, tokens, shape->s), shape->model->index_dim) > limit) c.overflow = true;
    if (ftmem__mul(&c, ftmem__mul(&c, tokens + 64 * rows, shape->model->linear_value_heads), shape->model->linear_key_dim * shape->model->linear_value_dim) >
        limit)
        c.overflow = true;
    if (ftmem__mul(&c, ftmem__mul(&c, tokens, shape->s), shape->model->index_heads) > limit) c.overflow = true;
    if (!c.overflow) return FTMEM_OK;
    return ftmem__fail(error, FTMEM_E_OVERFLOW, "job", "",
                       "The dimensions of this job multiply to more than 2^50 elements in one tensor; check batch, sequence and model sizes.");
}

static bool shape_too_wide(const ftmem_model *m)
{
    const int64_t limit = (int64_t)1 << 28;
    return m->hidden > limit || m->ffn > limit || m->vocab > limit || m->heads > limit || m->head_dim > limit;
}

/* litgpt/model.py: one projection for queries, keys and values, split by heads, and rotated slices joined with the rest. */
static void shape_litgpt(ftmem__shape *shape)
{
    const ftmem__family *family = shape->family;
    shape->own = *family;
    shape->family = &shape->own;
    shape->own.qkv = FTMEM__QKV_FUSED;
    shape->own.turn = FTMEM__TURN_JOINED;
    shape->own.positions = FTMEM__ROPE;
    shape->merged = true;
    shape->tied = false;
    shape->head_quantized = shape->half_state = shape->qlora;
}

static ftmem_status shape_of(ftmem__shape *shape, const ftmem__case *c, const ftmem_model *m, const ftmem__family *family, int64_t s, ftmem_error *error)
{
    bool encoder = m != &c->model, tower = encoder && family->embedding == FTMEM__EMBED_IMAGE;
    memset(shape, 0, sizeof *shape);
    if (shape_too_wide(m)) return ftmem__fail(error, FTMEM_E_RANGE, "model", m->name, "A dimension of the model is larger than 2^28.");
    shape->model = m;
    shape->adapter = &c->adapter;
    shape->job = &c->job;
    shape->family = family;
    shape->causal = !encoder && !family->bidirectional;
    shape->crossed = !encoder && family->encoder;
    shape->fed_features = encoder ? family->fed_features : shape->crossed && family->encoder->fed_features;
    shape->sided = m->shared_kv_layers > 0 || m->layer_input > 0 || family->positions == FTMEM__RELATIVE || shape->crossed ||
                   family->shared_blocks; /* ALBERT: gradients of the last block's use wait for the first's */
    shape->tower = tower;
    shape->scattered = !encoder && c->job.images > 0;
    shape->image_masks = shape->scattered && ftmem__family_tower(m)->image_masks;
    shape->takes_video = shape->scattered && ftmem__family_tower(m)->any_size && ftmem__family_tower(m)->chunked;
    shape->taps = shape->scattered ? m->tower_taps : 0;
    shape->tap_every = 1;
    shape->each = tower ? c->job.images : 1;
    shape->b = tower && family->packed ? 1 : c->job.micro_batch * shape->each * ftmem__objective_of(&c->job)->rows;
    shape->forward_only = c->forward_only;
    shape->generates = c->generates;
    shape->virtual_tokens = tower ? 0 : c->adapter.virtual_tokens;
    shape->s = s + shape->virtual_tokens;
    shape->eval_b = tower && family->packed ? 1 : c->job.eval_batch * shape->each * ftmem__objective_of(&c->job)->rows;
    shape->tokens = shape->b * shape->s;
    shape->h = m->hidden;
    shape->f = m->ffn;
    shape->q = m->heads * m->head_dim;
    shape->kv = m->kv_heads * m->head_dim;
    shape->vocab = m->vocab;
    shape->embedding_width = m->embedding_width > 0 ? m->embedding_width : m->hidden;
    shape->heads = m->heads;
    shape->kv_heads = m->kv_heads;
    shape->d = m->head_dim;
    shape->dv = m->value_dim;
    shape->rotary = m->rotary_dim;
    shape_training(shape);
    shape_dtypes(shape);
    if (c->job.stack == FTMEM_STACK_LITGPT) shape_litgpt(shape);
    shape_masks(shape);
    return shape_check(shape, error);
}

/* get_vision_window_index in transformers/vision_utils.py: windows are whole numbers of merged patches. */
static void shape_grid(ftmem__shape *shape, const ftmem__case *c)
{
    int64_t merge = c->model.tower_merge > 0 ? c->model.tower_merge : 1, side = merge * c->model.patch_size;
    shape->grid[0] = c->job.image_height / side;
    shape->grid[1] = c->job.image_width / side;
    shape->window = c->model.tower_window / side;
    shape->unit = merge * merge;
}

/* Every so many blocks of the tower, after the first ones; their features go to the first blocks of the text model. */
static void shape_taps(ftmem__shape *shape, const ftmem_model *m)
{
    shape->taps = m->tower_taps;
    shape->tap_every = m->tower_tap_every ? m->tower_tap_every : m->tower_taps ? m->tower_layers / m->tower_taps : 1;
    if (shape->tap_every < 1) shape->tap_every = 1;
    shape->tap_first = m->tower_tap_first ? m->tower_tap_first : shape->tap_every;
    if (shape->tap_first > m->tower_layers - 1 - (shape->taps - 1) * shape->tap_every)
        shape->tap_first = m->tower_layers - 1 - (shape->taps - 1) * shape->tap_every;
}

/* Rows are images; the tower's part decides about all of it. */
ftmem_status ftmem__shape_tower(ftmem__shape *shape, const ftmem__shape *text, const ftmem__case *c, ftmem_error *error)
{
    int64_t tokens = ftmem__tower_tokens(&c->model, &c->job);
    bool packed = ftmem__family_tower(&c->model)->packed;
    ftmem_status status = shape_of(shape, c, &c->encoder, ftmem__family_tower(&c->model), tokens * (packed ? c->job.images * c->job.micro_batch : 1), error);
    shape->adapter = &c->tower;
    shape->rest_trained = shape->position_trained = shape->embed_trained = shape->tower_trained;
    shape->unread = c->model.tower_unread;
    shape->chunked = shape->family->chunked && c->job.attention != FTMEM_FLASH2;
    shape_grid(shape, c);
    shape_taps(shape, &c->model);
    shape->next = text;
    return status;
}

ftmem_status ftmem__shape_fill(ftmem__shape *shape, const ftmem__case *c, ftmem_error *error)
{
    return shape_of(shape, c, &c->model, ftmem__family_of(&c->model), c->job.sequence, error);
}

ftmem_status ftmem__shape_encoder(ftmem__shape *shape, const ftmem__case *c, ftmem_error *error)
{
    return shape_of(shape, c, &c->encoder, ftmem__family_of(&c->model)->encoder, c->job.encoder_sequence, error);
}
