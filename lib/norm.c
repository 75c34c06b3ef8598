/* Norms, as transformers' models write them out. */
#include "lower.h"

/* x * rsqrt(mean(x^2) + eps), all in fp32: takes over x, which already is fp32. `variance` is a name of the caller's. */
static ftmem__var norm_rms_core(ftmem__tape *tape, ftmem__var x, ftmem__var *variance)
{
    int64_t rows = x.n / x.cols;
    ftmem__var square = ftmem__unary(tape, FTMEM__OP_POW2, x), mean, shifted, root, y;
    mean = ftmem__apply(tape, FTMEM__OP_MEAN, &square, 1, rows, 1, square.dtype);
    ftmem__drop(tape, square);
    shifted = ftmem__unary(tape, FTMEM__OP_SHIFT, mean);
    root = ftmem__unary(tape, FTMEM__OP_RSQRT, shifted);
    ftmem__drop(tape, shifted);
    y = ftmem__binary(tape, FTMEM__OP_MUL, x, root);
    ftmem__drop(tape, root);
    ftmem__drop(tape, x);
    *variance = mean;
    return y;
}

ftmem__var ftmem__low_rms(ftmem__low *low, ftmem__var x, ftmem__var *variance)
{
    return norm_rms_core(low->tape, x, variance);
}

/* One kernel: input, weight and 1/rms of each row are kept, and the gradient is written over the arriving one (unsloth
   kernels/rms_layernorm.py Fast_RMS_Layernorm, liger_kernel/ops/rms_norm.py LigerRMSNormFunction with in_place). */
static ftmem__var norm_fused(ftmem__tape *tape, ftmem__var x, ftmem__var w)
{
    ftmem__var in[2], y;
    in[0] = x;
    in[1] = w;
    y = ftmem__apply(tape, FTMEM__OP_FUSED_NORM, in, 2, x.n, x.cols, x.dtype);
    ftmem__save_new(tape, y, x.n / x.cols, 1, FTMEM_FP32);
    return y;
}

/* modeling_llama.py LlamaRMSNorm.forward; OLMo-2 multiplies in fp32 before it casts, Nemotron-H with a weight that it widens. */
static ftmem__var norm_rms(ftmem__low *low, ftmem__var x, ftmem__var w, int32_t kind)
{
    ftmem__tape *tape = low->tape;
    if (low->kernels & FTMEM_FUSED_NORM) return norm_fused(tape, x, w);
    ftmem__var variance, y = norm_rms_core(tape, ftmem__cast(tape, x, FTMEM_FP32), &variance), cast, scaled;
    if (kind != FTMEM__RMS) {
        ftmem__var wide = ftmem__cast(tape, w, kind == FTMEM__RMS_WIDENED ? FTMEM_FP32 : w.dtype);
        scaled = ftmem__binary(tape, FTMEM__OP_MUL, wide, y);
        ftmem__drop(tape, wide);
        cast = ftmem__cast(tape, scaled, x.dtype);
        ftmem__drop(tape, scaled);
        ftmem__drop(tape, y);
        ftmem__drop(tape, variance);
        return cast;
    }
    cast = ftmem__cast(tape, y, x.dtype);
    scaled = ftmem__binary(tape, FTMEM__OP_MUL, w, cast);
    ftmem__drop(tape, cast);
    ftmem__drop(tape, y);
    ftmem__drop(tape, variance);
    return scaled;
}

/* modeling_t5.py T5LayerNorm.forward: the input itself is multiplied, and the product cast to the weight's dtype if that is
   a half. `variance` is a name. */
static ftmem__var norm_rms_t5(ftmem__low *low, ftmem__var x, ftmem__var w)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = x.n / x.cols;
    ftmem__var wide = ftmem__cast(tape, x, FTMEM_FP32), square, variance, shifted, root, y, scaled;
    square = ftmem__unary(tape, FTMEM__OP_POW2, wide);
    ftmem__drop(tape, wide);
    variance = ftmem__apply(tape, FTMEM__OP_MEAN, &square, 1, rows, 1, FTMEM_FP32);
    ftmem__drop(tape, square);
    shifted = ftmem__unary(tape, FTMEM__OP_SHIFT, variance);
    root = ftmem__unary(tape, FTMEM__OP_RSQRT, shifted);
    ftmem__drop(tape, shifted);
    scaled = ftmem__binary(tape, FTMEM__OP_MUL, x, root);
    ftmem__drop(tape, root);
    y = ftmem__cast(tape, scaled, w.dtype);
    ftmem__drop(tape, scaled);
    scaled = ftmem__binary(tape, FTMEM__OP_MUL, w, y);
    ftmem__drop(tape, y);
    ftmem__drop(tape, variance);
    return scaled;
}

/* modeling_gemma.py GemmaRMSNorm.forward: everything in fp32, times 1 + weight. */
static ftmem__var norm_rms_plus_one(ftmem__low *low, ftmem__var x, ftmem__var w)
{
    ftmem__tape *tape = low->tape;
    if (low->kernels & FTMEM_FUSED_NORM) return norm_fused(tape, x, w);
    ftmem__var variance, y = norm_rms_core(tape, ftmem__cast(tape, x, FTMEM_FP32), &variance), w32, one, scaled, cast;
    ftmem__drop(tape, variance); /* has no name in _norm */
    w32 = ftmem__cast(tape, w, FTMEM_FP32);
    one = ftmem__unary(tape, FTMEM__OP_SHIFT, w32);
    ftmem__drop(tape, w32);
    scaled = ftmem__binary(tape, FTMEM__OP_MUL, y, one);
    ftmem__drop(tape, one);
    ftmem__drop(tape, y);
    cast = ftmem__cast(tape, scaled, x.dtype);
    ftmem__drop(tape, scaled);
    return cast;
}

/* modeling_gemma4.py Gemma4RMSNorm.forward: in fp32, by pow(mean, -0.5); times a weight if there is one. mean_squared is a name. */
static ftmem__var norm_rms_pow(ftmem__low *low, ftmem__var x, const ftmem__var *w)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = x.n / x.cols;
    ftmem__var wide = ftmem__cast(tape, x, FTMEM_FP32), square = ftmem__unary(tape, FTMEM__OP_POW2, wide), mean, squared, root, y, w32, scaled;
    mean = ftmem__apply(tape, FTMEM__OP_MEAN, &square, 1, rows, 1, FTMEM_FP32);
    ftmem__drop(tape, square);
    squared = ftmem__unary(tape, FTMEM__OP_SHIFT, mean);
    ftmem__drop(tape, mean);
    root = ftmem__unary(tape, FTMEM__OP_POW_ROOT, squared);
    y = ftmem__binary(tape, FTMEM__OP_MUL, wide, root);
    ftmem__drop(tape, root);
    ftmem__drop(tape, squared);
    ftmem__drop(tape, wide);
    if (w) {
        w32 = ftmem__cast(tape, *w, FTMEM_FP32);
        scaled = ftmem__binary(tape, FTMEM__OP_MUL, y, w32);
        ftmem__drop(tape, w32);
        ftmem__drop(tape, y);
        y = scaled;
    }
    scaled = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, y);
    return scaled;
}

/* A norm's weight or bias; autocast widens it, and the norm keeps the wide copy. */
static ftmem__var norm_vector(ftmem__low *low, int64_t width, int32_t dtype, bool trained)
{
    ftmem__var v = ftmem__low_parameter(low, FTMEM_ROLE_NORM, width, width, trained);
    return low->shape->autocast ? ftmem__cast(low->tape, v, dtype) : v;
}

/* torch native_layer_norm: keeps its input, and mean and 1/std in fp32. Autocast runs it in fp32. */
static ftmem__var norm_layer(ftmem__low *low, ftmem__var x, int64_t width, bool weight, bool bias, bool in_fp32)
{
    ftmem__tape *tape = low->tape;
    int32_t dtype = low->shape->autocast || in_fp32 ? FTMEM_FP32 : x.dtype;
    int32_t count = 1, i;
    ftmem__var in[3], y;
    in[0] = ftmem__cast(tape, x, dtype);
    if (weight) in[count++] = norm_vector(low, width, dtype, low->trained);
    if (bias) in[count++] = norm_vector(low, width, dtype, ftmem__shape_bias_trained(low->shape, low->trained));
    y = ftmem__apply(tape, FTMEM__OP_LAYER_NORM, in, count, x.n, x.cols, dtype);
    for (i = 1; i < count; i++) ftmem__save_var(tape, y, in[i]);
    for (i = 1; i < count; i++) ftmem__drop(tape, in[i]);
    ftmem__save_new(tape, y, x.n / x.cols, 1, FTMEM_FP32);
    ftmem__save_new(tape, y, x.n / x.cols, 1, FTMEM_FP32);
    ftmem__drop(tape, in[0]);
    if (!in_fp32) return y;
    in[0] = y; /* modeling_olmo.py OlmoLayerNorm casts back */
    y = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, in[0]);
    return y;
}

/* modeling_cohere.py CohereLayerNorm: mean and variance written out in fp32, weight in fp32. */
static ftmem__var norm_layer_fp32(ftmem__low *low, ftmem__var x, ftmem__var w)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = x.n / x.cols;
    ftmem__var wide = ftmem__cast(tape, x, FTMEM_FP32), mean, centred, square, variance, root, y, w32, scaled, cast;
    mean = ftmem__apply(tape, FTMEM__OP_MEAN, &wide, 1, rows, 1, FTMEM_FP32);
    centred = ftmem__binary(tape, FTMEM__OP_SUB, wide, mean);
    square = ftmem__unary(tape, FTMEM__OP_POW2, centred);
    ftmem__drop(tape, centred);
    variance = ftmem__apply(tape, FTMEM__OP_MEAN, &square, 1, rows, 1, FTMEM_FP32);
    ftmem__drop(tape, square);
    centred = ftmem__binary(tape, FTMEM__OP_SUB, wide, mean);
    root = ftmem__unary(tape, FTMEM__OP_RSQRT, variance);
    y = ftmem__binary(tape, FTMEM__OP_MUL, centred, root);
    ftmem__drop(tape, root);
    ftmem__drop(tape, centred);
    ftmem__drop(tape, wide);
    w32 = ftmem__cast(tape, w, FTMEM_FP32);
    scaled = ftmem__binary(tape, FTMEM__OP_MUL, w32, y);
    ftmem__drop(tape, w32);
    ftmem__drop(tape, y);
    cast = ftmem__cast(tape, scaled, x.dtype);
    ftmem__drop(tape, scaled);
    ftmem__drop(tape, variance);
    ftmem__drop(tape, mean);
    return cast;
}

ftmem__var ftmem__low_layer_norm(ftmem__low *low, ftmem__var x, int64_t width)
{
    return norm_layer(low, x, width, true, true, false);
}

ftmem__var ftmem__low_rms_plus_one(ftmem__low *low, ftmem__var x, int64_t width)
{
    return norm_rms_plus_one(low, x, ftmem__low_parameter(low, FTMEM_ROLE_NORM, width, width, low->trained));
}

/* The family's norm over the last dimension, with a weight of `weights` elements. */
static ftmem__var norm_kind(ftmem__low *low, ftmem__var x, int64_t weights, bool bias)
{
    int32_t kind = low->shape->family->norm;
    ftmem__var w;
    if (kind == FTMEM__LAYER) return norm_layer(low, x, weights, true, bias, false);
    if (kind == FTMEM__LAYER_NO_PARAMETERS) return norm_layer(low, x, weights, false, false, true);
    w = ftmem__low_parameter(low, FTMEM_ROLE_NORM, weights, weights, low->trained);
    if (kind == FTMEM__LAYER_FP32) return norm_layer_fp32(low, x, w);
    if (kind == FTMEM__RMS_T5) return norm_rms_t5(low, x, w);
    if (kind == FTMEM__RMS_POW) return norm_rms_pow(low, x, &w);
    if (kind == FTMEM__RMS_PLUS_ONE) return norm_rms_plus_one(low, x, w);
    return norm_rms(low, x, w, kind);
}

ftmem__var ftmem__low_norm(ftmem__low *low, ftmem__var x, int64_t width)
{
    low->tape->part = FTMEM__PART_NORM;
    return norm_kind(low, x, width, low->shape->model->norm_bias == FTMEM_ON);
}

/* modeling_llama4.py Llama4TextL2Norm, over each head: takes over x. */
ftmem__var ftmem__low_l2_norm(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var heads = ftmem__shaped(x, x.n, low->shape->d), variance, y, cast;
    y = norm_rms_core(tape, ftmem__cast(tape, heads, FTMEM_FP32), &variance);
    ftmem__drop(tape, variance);
    cast = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, y);
    ftmem__drop(tape, x);
    return ftmem__shaped(cast, x.n, x.cols);
}

/* The same norm over each head with one weight for all or a weight for each (modeling_stablelm.py
   StableLmLayerNormPerHead, joined again; modeling_cohere.py), or over the whole projection: takes over x. */
ftmem__var ftmem__low_qk_norm(ftmem__low *low, ftmem__var x)
{
    const ftmem__family *family = low->shape->family;
    bool own = family->qk_norm_kind == FTMEM__QK_OWN_WEIGHTS;
    int64_t cols = x.cols;
    ftmem__var y, whole;
    if (family->qk_norm_kind != FTMEM__QK_WHOLE) x = ftmem__shaped(x, x.n, low->shape->d);
    y = norm_kind(low, x, own ? cols : x.cols, !own && low->shape->model->norm_bias == FTMEM_ON);
    ftmem__drop(low->tape, x);
    if (own && family->norm == FTMEM__LAYER) {
        whole = ftmem__unary(low->tape, FTMEM__OP_CLONE, y);
        ftmem__drop(low->tape, y);
        y = whole;
    }
    y = ftmem__shaped(y, y.n, cols);
    return y;
}

ftmem__var ftmem__low_norm_unweighted(ftmem__low *low, ftmem__var x, int64_t width)
{
    int64_t cols = x.cols;
    ftmem__var y = norm_rms_pow(low, ftmem__shaped(x, x.n, width), NULL);
    return ftmem__shaped(y, y.n, cols);
}

/* modeling_qwen3_next.py Qwen3NextRMSNormGated: the norm is Llama's; the gate is widened for its silu, and so the product. */
ftmem__var ftmem__low_gated_norm(ftmem__low *low, ftmem__var x, ftmem__var gate, int64_t width)
{
    ftmem__tape *tape = low->tape;
    ftmem__var w = ftmem__low_parameter(low, FTMEM_ROLE_NORM, width, width, low->trained), wide = ftmem__cast(tape, x, FTMEM_FP32), y, cast, act;
    int64_t rows = x.n / width;
    ftmem__var square = ftmem__unary(tape, FTMEM__OP_POW2, wide), mean, root;
    tape->part = FTMEM__PART_NORM;
    mean = ftmem__apply(tape, FTMEM__OP_MEAN, &square, 1, rows, 1, FTMEM_FP32);
    ftmem__drop(tape, square);
    root = ftmem__unary(tape, FTMEM__OP_SHIFT, mean);
    square = ftmem__unary(tape, FTMEM__OP_RSQRT, root);
    ftmem__drop(tape, root);
    y = ftmem__binary(tape, FTMEM__OP_MUL, wide, square);
    ftmem__drop(tape, square);
    ftmem__drop(tape, wide);
    cast = ftmem__cast(tape, y, x.dtype);
    act = ftmem__binary(tape, FTMEM__OP_MUL, w, cast);
    ftmem__drop(tape, cast);
    ftmem__drop(tape, y);
    y = act;
    act = ftmem__cast(tape, gate, FTMEM_FP32);
    cast = ftmem__unary(tape, FTMEM__OP_SILU, act);
    ftmem__drop(tape, act);
    act = ftmem__binary(tape, FTMEM__OP_MUL, y, cast);
    ftmem__drop(tape, cast);
    ftmem__drop(tape, y);
    y = ftmem__cast(tape, act, x.dtype);
    ftmem__drop(tape, act);
    ftmem__drop(tape, mean);
    return y;
}
