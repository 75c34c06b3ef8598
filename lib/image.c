/*
 * Images on their way into a text model: a vision tower's embedding, what stands between its last block and the text
 * model, and how features take the places of tokens.
 */
#include "lower.h"

static void image_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

static ftmem__var image_parameter(ftmem__low *low, int64_t rows, int64_t cols)
{
    return ftmem__low_parameter(low, FTMEM_ROLE_TOWER, rows * cols, cols, low->trained);
}

/* class_embedding.expand(batch_size, 1, -1) before the patches; cat takes the widest dtype (autocast_mode.h, promote). */
static ftmem__var image_with_class(ftmem__low *low, ftmem__var patches)
{
    ftmem__tape *tape = low->tape;
    int64_t h = low->shape->h;
    ftmem__var token, part[2], x;
    if (!low->shape->family->class_token) return ftmem__keep(tape, patches);
    token = ftmem__low_parameter(low, FTMEM_ROLE_TOWER, h, h, low->trained);
    part[0] = ftmem__apply(tape, FTMEM__OP_EXPAND_VIEW, &token, 1, low->b * h, h, token.dtype);
    part[1] = ftmem__cast(tape, patches, token.dtype);
    x = ftmem__apply(tape, FTMEM__OP_CAT, part, 2, low->tokens * h, h, token.dtype);
    ftmem__drop(tape, part[1]);
    ftmem__drop(tape, part[0]);
    return x;
}

static void image_hold(ftmem__low *low, ftmem__prologue *p, int64_t n, int32_t dtype)
{
    ftmem__var v = ftmem__constant(n, 0, dtype);
    v.store = ftmem__alloc(low->tape, FTMEM__OP_TABLE, n, 0, dtype, low->tape->birth);
    p->held[p->held_count++] = v;
}

/* hidden_states[window_index, :, :], which lies in CPU memory: its gradient is summed into zeros. */
static ftmem__var image_permuted(ftmem__low *low, ftmem__var x)
{
    return ftmem__unary(low->tape, FTMEM__OP_INDEX, x);
}

/* modeling_qwen2_5_vl.py: patches in the order of windows. */
static ftmem__var image_in_windows(ftmem__low *low, ftmem__var patches)
{
    ftmem__var y;
    if (!low->shape->window) return patches;
    y = image_permuted(low, patches);
    ftmem__drop(low->tape, patches);
    return y;
}

/* modeling_qwen3_vl.py: four rows of the table for each patch, weighted in fp32 and summed; takes over the patches. Indices,
   weights and the sum are names. */
static ftmem__var image_resampled(ftmem__low *low, ftmem__prologue *p, ftmem__var patches)
{
    ftmem__tape *tape = low->tape;
    int64_t n = 4 * low->tokens, h = low->shape->h;
    ftmem__var in[2], weighted, sum, cast, y;
    image_hold(low, p, n, FTMEM_INT64);
    image_hold(low, p, n, FTMEM_FP32);
    in[0] = ftmem__low_lookup(low, image_parameter(low, low->shape->model->position_rows, h), n);
    ftmem__save_var(tape, in[0], p->held[p->held_count - 2]);
    in[1] = p->held[p->held_count - 1];
    weighted = ftmem__apply(tape, FTMEM__OP_MUL, in, 2, n * h, (int32_t)h, FTMEM_FP32);
    ftmem__drop(tape, in[0]);
    sum = ftmem__apply(tape, FTMEM__OP_SUM, &weighted, 1, low->tokens * h, (int32_t)h, FTMEM_FP32);
    ftmem__drop(tape, weighted);
    p->held[p->held_count++] = sum;
    cast = ftmem__cast(tape, sum, patches.dtype);
    y = ftmem__binary(tape, FTMEM__OP_ADD, patches, cast);
    ftmem__drop(tape, cast);
    ftmem__drop(tape, patches);
    return y;
}

/* modeling_pixtral.py PixtralVisionModel.forward: all patches in one row; the convolution's output and the row are names. */
static ftmem__var image_packed(ftmem__low *low, ftmem__prologue *p, ftmem__var patches)
{
    ftmem__tape *tape = low->tape;
    ftmem__var each = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, patches), row = ftmem__unary(tape, FTMEM__OP_CAT, each), y;
    ftmem__drop(tape, each);
    p->held[p->held_count++] = patches;
    y = ftmem__low_norm(low, row, low->shape->h);
    ftmem__drop(tape, row);
    p->held[p->held_count++] = ftmem__keep(tape, y);
    return y;
}

/* Windows of an image. */
static int64_t image_windows(const ftmem__shape *shape)
{
    return (shape->grid[0] + shape->window - 1) / shape->window * ((shape->grid[1] + shape->window - 1) / shape->window);
}

/* What every block is given: the mask between images of one row, or the sequences' ends. It lives on where blocks run again, and a
   mask where a kernel keeps it as it is. */
static void image_arguments(ftmem__low *low, ftmem__prologue *p, bool graph)
{
    const ftmem__shape *shape = low->shape;
    bool kept = graph && (shape->job->recompute != FTMEM_RECOMPUTE_NONE || shape->family->chunked);
    int32_t i, count = shape->family->packed ? 0 : 1 + (shape->window > 0);
    for (i = 0; i < count; i++) {
        image_hold(low, p, 4 * (low->b * (i ? image_windows(shape) : 1) + 1), FTMEM_INT8);
        if (kept) p->masks[p->mask_count++] = p->held[--p->held_count];
    }
    for (i = 0; i < 2 && !count; i++) image_hold(low, p, shape->grid[i] * 2, FTMEM_INT64); /* hpos_ids, wpos_ids: before they are merged */
}

/* Of a packed row the mask, kept as it is by memory-efficient attention in its own dtype, else made anew in each call. */
static int64_t image_mask_elements(const ftmem__low *low, bool graph)
{
    const ftmem__shape *shape = low->shape;
    bool kept = shape->job->recompute != FTMEM_RECOMPUTE_NONE || (shape->job->attention == FTMEM_SDPA && !shape->autocast && shape->s % 16 == 0);
    return shape->family->packed && graph && kept ? shape->s * shape->s : 0;
}

/* Positions, cos and sin of every patch: kept by rotations that record a graph (get_vision_position_ids; PixtralVisionModel.forward). */
void ftmem__low_image_positions(ftmem__low *low, ftmem__prologue *p)
{
    const ftmem__shape *shape = low->shape;
    bool leaf = shape->require_input_grad && !shape->family->no_input_leaf, cut = shape->job->recompute == FTMEM_RECOMPUTE_REENTRANT && !leaf;
    bool graph = shape->tower_trained || leaf || (shape->adapted && shape->adapter->targets && !cut);
    int32_t dtype = shape->family->tables == FTMEM__TABLES_CAST ? shape->mask : FTMEM_FP32, i;
    int64_t mask = image_mask_elements(low, graph);
    if (shape->family->positions != FTMEM__ROPE) return;
    image_hold(low, p, 2 * low->tokens, FTMEM_INT64);
    image_arguments(low, p, graph);
    if (shape->family->packed && !mask) image_hold(low, p, shape->s * shape->s, shape->mask);
    for (i = 0; i < 2; i++) {
        image_hold(low, p, low->tokens * shape->rotary + (i ? 0 : mask), dtype);
        if (graph) p->tables[i] = p->held[--p->held_count];
    }
    p->has_tables = graph;
}

/* modeling_clip.py CLIPVisionEmbeddings.forward with pre_layrnorm; modeling_siglip.py SiglipVisionEmbeddings.forward */
ftmem__var ftmem__low_embed_image(ftmem__low *low, ftmem__prologue *p)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    ftmem__var patches = ftmem__low_patches(low, FTMEM_ROLE_TOWER, shape->s - shape->family->class_token, shape->family->patch_bias), x, rows, y;
    ftmem__low_input_leaf(low, &patches);
    if (shape->family->packed) return image_packed(low, p, patches);
    if (shape->family->resampled) return image_resampled(low, p, patches);
    if (shape->family->positions != FTMEM__LEARNED) return image_in_windows(low, patches);
    x = image_with_class(low, patches);
    rows = ftmem__low_lookup(low, image_parameter(low, shape->s, shape->h), shape->s);
    y = ftmem__binary(tape, FTMEM__OP_ADD, x, rows);
    ftmem__drop(tape, rows);
    ftmem__drop(tape, x);
    ftmem__drop(tape, patches);
    if (shape->family->embed_norm) image_replace(tape, &y, ftmem__low_norm(low, y, shape->h));
    return y;
}

/* ---------------------------------------------------------------------------------------------------- projectors */

/* pooled_output = post_layernorm(last_hidden_state[:, 0, :]), which nobody reads: alive until features take its place. */
static ftmem__var image_unread_pool(ftmem__low *low)
{
    ftmem__tape *tape = low->tape;
    ftmem__var first = ftmem__constant(low->b * low->shape->h, low->shape->h, low->shape->dtype), y;
    tape->no_grad = true;
    y = ftmem__low_norm(low, first, low->shape->h);
    tape->no_grad = false;
    return y;
}

static ftmem__var image_linear(ftmem__low *low, ftmem__var x, int64_t out)
{
    return ftmem__low_linear(low, FTMEM_ROLE_TOWER, x, out, low->shape->family->bridge != FTMEM__BRIDGE_MISTRAL3);
}

/* selected_image_feature[:, 1:]: of several images it is no dense tensor, and a matmul copies it unless autocast does. */
static ftmem__var image_without_class(ftmem__low *low, ftmem__var x)
{
    const ftmem__shape *shape = low->shape;
    ftmem__var slice, copy;
    if (shape->next->model->tower_class_token == FTMEM_ON) return ftmem__keep(low->tape, x);
    slice = ftmem__apply(low->tape, FTMEM__OP_SLICE, &x, 1, x.n - low->b * x.cols, x.cols, x.dtype);
    if (low->b == 1 || (shape->autocast && shape->autocast != x.dtype)) return slice;
    copy = ftmem__unary(low->tape, FTMEM__OP_CLONE, slice);
    ftmem__drop(low->tape, slice);
    return copy;
}

/* modeling_llava.py LlavaMultiModalProjector.forward; takes over x. */
static ftmem__var image_two_linears(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    int64_t width = low->shape->next->h;
    ftmem__var y = image_linear(low, x, width);
    ftmem__drop(tape, x);
    image_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_GELU, y));
    image_replace(tape, &y, image_linear(low, y, width));
    return y;
}

/* list(image_features), which the outputs hold, then torch.cat(...).to(inputs_embeds.dtype); takes over x. */
static ftmem__var image_join(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var each = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, x), joined = ftmem__unary(tape, FTMEM__OP_CAT, each), y;
    ftmem__drop(tape, each);
    ftmem__cache_hold(tape, x, ftmem__holds_outputs(low->shape->job));
    ftmem__drop(tape, x);
    y = ftmem__cast(tape, joined, low->shape->next->ends);
    ftmem__drop(tape, joined);
    return y;
}

/* modeling_llava.py LlavaModel.get_image_features: from the block whose output is selected, which the outputs hold. */
static ftmem__var image_bridge_llava(ftmem__low *low, ftmem__var x)
{
    ftmem__var pooled, y;
    ftmem__cache_hold(low->tape, x, ftmem__holds_outputs(low->shape->job));
    pooled = image_unread_pool(low);
    low->trained = low->shape->projector_trained;
    low->tape->part = FTMEM__PART_TOWER;
    y = image_two_linears(low, image_without_class(low, x));
    ftmem__drop(low->tape, pooled);
    return image_join(low, y);
}

/* torch.matmul of a tensor whose features are not its last stride: a copy of several images', after autocast's cast. */
static ftmem__var image_project(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var w = image_parameter(low, low->shape->h, low->shape->next->h), y;
    x = ftmem__cast(tape, x, low->shape->autocast ? low->shape->autocast : x.dtype);
    if (low->b > 1) image_replace(tape, &x, ftmem__unary(tape, FTMEM__OP_CLONE, x));
    y = ftmem__low_plain_linear(low, x, w, NULL, low->shape->next->h);
    ftmem__drop(tape, x);
    return y;
}

/* modeling_gemma3.py Gemma3MultiModalProjector.forward: a mean over squares of patches; x stays the caller's. */
static ftmem__var image_pooled_projector(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    const ftmem__shape *shape = low->shape;
    int64_t n = low->b * shape->next->model->tower_tokens * shape->h;
    ftmem__var dense = ftmem__unary(tape, FTMEM__OP_CLONE, x), pooled, normed, y, cast;
    pooled = ftmem__apply(tape, FTMEM__OP_AVG_POOL, &dense, 1, n, shape->h, dense.dtype);
    normed = ftmem__low_rms_plus_one(low, pooled, shape->h);
    y = image_project(low, normed);
    cast = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, y);
    ftmem__drop(tape, normed);
    ftmem__drop(tape, pooled);
    ftmem__drop(tape, dense);
    return cast;
}

/* modeling_gemma3.py Gemma3Model.get_image_features, modeling_paligemma.py PaliGemmaModel, modeling_siglip.py post_layernorm: the outputs hold both tensors. */
static ftmem__var image_bridge_siglip(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    bool held = ftmem__holds_outputs(low->shape->job);
    ftmem__var last = ftmem__low_norm(low, x, low->shape->h), y, cast;
    low->trained = low->shape->projector_trained;
    tape->part = FTMEM__PART_TOWER;
    ftmem__cache_hold(tape, last, held);
    if (low->shape->family->bridge == FTMEM__BRIDGE_PALIGEMMA) y = image_linear(low, last, low->shape->next->h);
    else y = image_pooled_projector(low, last);
    ftmem__drop(tape, last);
    ftmem__cache_hold(tape, y, held);
    cast = ftmem__cast(tape, y, low->shape->next->ends);
    ftmem__drop(tape, y);
    return cast;
}

/* Two linears over merged patches; takes over x. */
static ftmem__var image_merge(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    int64_t merged = low->shape->unit * low->shape->h;
    tape->part = FTMEM__PART_TOWER;
    x.cols = (int32_t)merged;
    image_replace(tape, &x, image_linear(low, x, merged));
    image_replace(tape, &x, ftmem__unary(tape, FTMEM__OP_GELU, x));
    image_replace(tape, &x, image_linear(low, x, low->shape->next->h));
    return x;
}

/* modeling_qwen3_vl.py Qwen3VLVisionPatchMerger with its norm after the patches are merged; the outputs hold what it makes. */
ftmem__var ftmem__low_tap(ftmem__low *low, ftmem__var x)
{
    int64_t merged = low->shape->unit * low->shape->h;
    ftmem__var each, y;
    low->adapted = low->shape->adapted;
    low->trained = low->shape->projector_trained;
    x.cols = (int32_t)merged;
    y = image_merge(low, ftmem__low_norm(low, x, merged));
    ftmem__cache_hold(low->tape, y, ftmem__holds_outputs(low->shape->job));
    each = ftmem__unary(low->tape, FTMEM__OP_CONTIGUOUS, y); /* torch.split, and torch.cat in the text model's frame */
    ftmem__drop(low->tape, y);
    return each;
}

/* modeling_qwen3_vl.py Qwen3VLTextModel._deepstack_process */
ftmem__var ftmem__low_deepstack(ftmem__low *low, ftmem__var x, ftmem__var features)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in[2], part, wide;
    tape->part = FTMEM__PART_RESIDUAL;
    in[0] = ftmem__unary(tape, FTMEM__OP_CLONE, x);
    wide = ftmem__cast(tape, features, x.dtype);
    part = ftmem__apply(tape, FTMEM__OP_INDEX, in, 1, features.n, features.cols, x.dtype);
    in[1] = ftmem__binary(tape, FTMEM__OP_ADD, part, wide);
    ftmem__drop(tape, part);
    part = ftmem__apply(tape, FTMEM__OP_INDEX_PUT, in, 2, x.n, x.cols, x.dtype);
    ftmem__drop(tape, in[1]);
    ftmem__drop(tape, wide);
    ftmem__drop(tape, in[0]);
    return part;
}

/* modeling_qwen2_5_vl.py Qwen2_5_VLPatchMerger, then the order of patches again; the outputs hold what goes in. */
static ftmem__var image_bridge_qwen(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var y;
    ftmem__cache_hold(tape, x, ftmem__holds_outputs(low->shape->job));
    low->trained = low->shape->projector_trained;
    y = image_merge(low, ftmem__low_norm(low, x, low->shape->h));
    if (low->shape->window) image_replace(tape, &y, image_permuted(low, y));
    return image_join(low, y);
}

/* modeling_mistral3.py Mistral3PatchMerger.forward: unfolded image by image, then joined; takes over x. */
static ftmem__var image_unfolded(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    int64_t h = low->shape->h;
    ftmem__var each = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, x), grids = ftmem__unary(tape, FTMEM__OP_IM2COL, each), joined, y;
    joined = ftmem__unary(tape, FTMEM__OP_CAT, grids);
    joined.cols = (int32_t)(low->shape->unit * h);
    y = image_linear(low, joined, h);
    ftmem__drop(tape, joined);
    ftmem__drop(tape, grids);
    ftmem__drop(tape, each);
    ftmem__drop(tape, x);
    return y;
}

/* modeling_mistral3.py Mistral3MultiModalProjector.forward; the outputs hold what goes in. */
static ftmem__var image_bridge_mistral3(ftmem__low *low, ftmem__var x)
{
    ftmem__var y;
    ftmem__cache_hold(low->tape, x, ftmem__holds_outputs(low->shape->job));
    low->trained = low->shape->projector_trained;
    y = ftmem__low_norm(low, x, low->shape->h);
    low->tape->part = FTMEM__PART_TOWER;
    return image_join(low, image_two_linears(low, image_unfolded(low, y)));
}

ftmem__var ftmem__low_bridge(ftmem__low *low, ftmem__var x)
{
    low->tape->part = FTMEM__PART_TOWER;
    low->adapted = low->shape->adapted;
    if (low->shape->family->bridge == FTMEM__BRIDGE_MISTRAL3) return image_bridge_mistral3(low, x);
    if (low->shape->family->bridge == FTMEM__BRIDGE_QWEN) return image_bridge_qwen(low, x);
    if (low->shape->family->bridge != FTMEM__BRIDGE_LLAVA) return image_bridge_siglip(low, x);
    return image_bridge_llava(low, x);
}

/* ------------------------------------------------------------------------------------------------------- scatter */

/* Bytes inside kernels. ATen/native/cuda/IndexKernel.cpp masked_scatter__cuda: a prefix sum over the expanded mask and its dense
   copy; masked_select: three indices of every selected element, after that copy. */
static int64_t image_scatter_work(ftmem__var words)
{
    return ftmem__round512(9 * words.n);
}

static int64_t image_select_work(ftmem__var words, ftmem__var features)
{
    int64_t more = words.n - ftmem__bytes(features.dtype, features.n);
    return 24 * features.n + (more > 0 ? more : 0);
}

/* inputs_embeds.masked_scatter(special_image_mask, image_features); takes over the words, which a graph may keep. */
ftmem__var ftmem__low_scatter(ftmem__low *low, ftmem__prologue *p, ftmem__var words)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in[2], mask = ftmem__constant(low->tokens, low->shape->s, FTMEM_BOOL), y;
    ftmem__node *node;
    int16_t work;
    in[0] = words;
    in[1] = low->side[FTMEM__SIDE_SOURCE];
    mask.store = ftmem__alloc(tape, FTMEM__OP_MASK, mask.n, mask.cols, FTMEM_BOOL, tape->birth);
    y = ftmem__apply(tape, FTMEM__OP_MASKED_SCATTER, in, 2, words.n, words.cols, words.dtype);
    work = ftmem__alloc_bytes(tape, FTMEM__OP_MASKED_SCATTER, image_scatter_work(words), FTMEM_CLASS_WORKSPACE);
    ftmem__release(tape, work);
    ftmem__save_var(tape, y, mask);
    node = ftmem__recorded(tape, y);
    if (node && in[1].grad) node->work = image_select_work(words, in[1]);
    ftmem__drop(tape, words);
    p->held[p->held_count++] = mask; /* names of the caller's */
    p->held[p->held_count++] = ftmem__keep(tape, y);
    if (low->shape->image_masks) image_hold(low, p, low->tokens, FTMEM_INT64); /* block_sequence_ids */
    if (low->shape->taps)
        image_hold(low, p, low->shape->taps * in[1].n, low->shape->autocast ? low->shape->autocast : low->shape->dtype); /* features of other blocks, joined */
    if (low->shape->takes_video) image_hold(low, p, low->tokens, FTMEM_BOOL);                                            /* the mask of video tokens */
    return y;
}
