/* The MLP and its activations. */
#include "lower.h"

/* modeling_bloom.py, modeling_falcon.py dropout_add: residual + dropout(x) */
ftmem__var ftmem__low_dropout_add(ftmem__low *low, ftmem__var x, ftmem__var residual)
{
    ftmem__var dropped = ftmem__low_dropout(low, ftmem__keep(low->tape, x), low->shape->model->hidden_dropout), y;
    y = ftmem__binary(low->tape, FTMEM__OP_ADD, residual, dropped);
    ftmem__drop(low->tape, dropped);
    return y;
}

/* modeling_gemma2.py: tanh(x / cap) * cap, over attention scores and over logits. */
ftmem__var ftmem__low_softcap(ftmem__low *low, ftmem__var x)
{
    ftmem__var divided = ftmem__unary(low->tape, FTMEM__OP_SCALE, x), bent, y;
    ftmem__drop(low->tape, x);
    bent = ftmem__unary(low->tape, FTMEM__OP_TANH, divided);
    ftmem__drop(low->tape, divided);
    y = ftmem__unary(low->tape, FTMEM__OP_SCALE, bent);
    ftmem__drop(low->tape, bent);
    return y;
}

/* transformers/activations.py NewGELUActivation, term by term. pow is on autocast's fp32 list (autocast_mode.h). */
static ftmem__var mlp_gelu_new(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var half = ftmem__unary(tape, FTMEM__OP_SCALE, x), wide = ftmem__cast(tape, x, low->shape->autocast ? FTMEM_FP32 : x.dtype), cube, t, y;
    cube = ftmem__unary(tape, FTMEM__OP_POW3, wide);
    ftmem__drop(tape, wide);
    t = ftmem__unary(tape, FTMEM__OP_SCALE, cube);
    ftmem__drop(tape, cube);
    y = ftmem__binary(tape, FTMEM__OP_ADD, x, t);
    ftmem__drop(tape, t);
    t = ftmem__unary(tape, FTMEM__OP_SCALE, y);
    ftmem__drop(tape, y);
    y = ftmem__unary(tape, FTMEM__OP_TANH, t);
    ftmem__drop(tape, t);
    t = ftmem__unary(tape, FTMEM__OP_SHIFT, y);
    ftmem__drop(tape, y);
    y = ftmem__binary(tape, FTMEM__OP_MUL, half, t);
    ftmem__drop(tape, t);
    ftmem__drop(tape, half);
    ftmem__drop(tape, x);
    return y;
}

/* modeling_bloom.py GeLUFunction: the input alone is kept; up to three terms stand beside the result, four in backward. */
static ftmem__var mlp_gelu_bloom(ftmem__tape *tape, ftmem__var x)
{
    int64_t bytes = ftmem__round512(ftmem__bytes(x.dtype, x.n));
    int16_t terms = ftmem__alloc_bytes(tape, FTMEM__OP_GELU_BLOOM, 3 * bytes, FTMEM_CLASS_WORKSPACE);
    ftmem__var y = ftmem__unary(tape, FTMEM__OP_GELU_BLOOM, x);
    ftmem__node *node = ftmem__recorded(tape, y);
    if (node) node->work = 4 * bytes;
    ftmem__release(tape, terms);
    ftmem__drop(tape, x);
    return y;
}

ftmem__var ftmem__low_clamp(ftmem__low *low, ftmem__var x, int32_t bounds)
{
    ftmem__var y = ftmem__unary(low->tape, FTMEM__OP_CLAMP, x);
    ftmem__node *node = ftmem__recorded(low->tape, y);
    if (node) node->work = bounds * ftmem__round512(ftmem__bytes(FTMEM_BOOL, x.n)) + ftmem__round512(1);
    return y;
}

/* transformers/activations.py ReLUSquaredActivation; pow is on autocast's fp32 list. */
static ftmem__var mlp_relu2(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var relu = ftmem__unary(tape, FTMEM__OP_RELU, x), wide = ftmem__cast(tape, relu, low->shape->autocast ? FTMEM_FP32 : x.dtype), y;
    y = ftmem__unary(tape, FTMEM__OP_POW2, wide);
    ftmem__drop(tape, wide);
    ftmem__drop(tape, relu);
    ftmem__drop(tape, x);
    return y;
}

/* transformers/activations.py QuickGELUActivation: input * torch.sigmoid(1.702 * input) */
static ftmem__var mlp_quick_gelu(ftmem__tape *tape, ftmem__var x)
{
    ftmem__var scaled = ftmem__unary(tape, FTMEM__OP_SCALE, x), gate = ftmem__unary(tape, FTMEM__OP_SIGMOID, scaled), y;
    ftmem__drop(tape, scaled);
    y = ftmem__binary(tape, FTMEM__OP_MUL, x, gate);
    ftmem__drop(tape, gate);
    ftmem__drop(tape, x);
    return y;
}

ftmem__var ftmem__low_activation(ftmem__low *low, ftmem__var x)
{
    ftmem__var y;
    ftmem__op op = FTMEM__OP_GELU;
    switch (low->shape->model->activation) {
    case FTMEM_SILU: op = FTMEM__OP_SILU; break;
    case FTMEM_RELU: op = FTMEM__OP_RELU; break;
    case FTMEM_GELU_NEW: return mlp_gelu_new(low, x);
    case FTMEM_RELU2: return mlp_relu2(low, x);
    case FTMEM_GELU_BLOOM: return mlp_gelu_bloom(low->tape, x);
    case FTMEM_QUICK_GELU: return mlp_quick_gelu(low->tape, x);
    default: break;
    }
    y = ftmem__unary(low->tape, op, x);
    ftmem__drop(low->tape, x);
    return y;
}

/* liger_kernel/ops/swiglu.py LigerSiLUMulFunction, geglu.py: gate and up are kept, and their gradients written over them. */
static ftmem__var mlp_gated_kernel(ftmem__low *low, ftmem__var x, int64_t f, bool bias)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in[2], product, y;
    in[0] = ftmem__low_linear(low, FTMEM_ROLE_GATE, x, f, bias);
    in[1] = ftmem__low_linear(low, FTMEM_ROLE_UP, x, f, bias);
    product = ftmem__apply(tape, FTMEM__OP_FUSED_MLP, in, 2, in[0].n, in[0].cols, in[0].dtype);
    ftmem__drop(tape, in[1]);
    ftmem__drop(tape, in[0]);
    y = ftmem__low_linear(low, FTMEM_ROLE_DOWN, product, low->shape->h, bias);
    ftmem__drop(tape, product);
    return y;
}

/* down(act(gate(x)) * up(x)) */
ftmem__var ftmem__low_gated(ftmem__low *low, ftmem__var x, int64_t f)
{
    ftmem__tape *tape = low->tape;
    bool bias = low->shape->model->mlp_bias == FTMEM_ON;
    ftmem__var fused;
    if (ftmem__low_fused_mlp(low, x, f, &fused)) return fused;
    if (low->kernels & FTMEM_FUSED_MLP) return mlp_gated_kernel(low, x, f, bias);
    ftmem__var act = ftmem__low_activation(low, ftmem__low_linear(low, FTMEM_ROLE_GATE, x, f, bias)), up, product, y;
    up = ftmem__low_linear(low, FTMEM_ROLE_UP, x, f, bias);
    product = ftmem__binary(tape, FTMEM__OP_MUL, act, up);
    ftmem__drop(tape, up);
    ftmem__drop(tape, act);
    y = ftmem__low_linear(low, FTMEM_ROLE_DOWN, product, low->shape->h, bias);
    ftmem__drop(tape, product);
    return y;
}

/* modeling_phi3.py Phi3MLP: one projection, split in gate and up, product up * act(gate). */
ftmem__var ftmem__low_gated_fused(ftmem__low *low, ftmem__var x, int64_t f)
{
    ftmem__tape *tape = low->tape;
    bool bias = low->shape->model->mlp_bias == FTMEM_ON;
    int64_t half[2];
    ftmem__var both = ftmem__low_linear(low, FTMEM_ROLE_GATE_UP, x, 2 * f, bias), part[2], act, product, y;
    half[0] = half[1] = both.n / 2;
    ftmem__split(tape, both, 2, half, part);
    ftmem__drop(tape, both);
    act = ftmem__low_activation(low, part[0]);
    product = ftmem__binary(tape, FTMEM__OP_MUL, part[1], act);
    ftmem__drop(tape, act);
    y = ftmem__low_linear(low, FTMEM_ROLE_DOWN, product, low->shape->h, bias);
    ftmem__drop(tape, product);
    ftmem__drop(tape, part[1]);
    return y;
}

/* The down projection over x dropped out, in the weight's dtype; takes over x (modeling_t5.py T5DenseGatedActDense). */
static ftmem__var mlp_down_t5(ftmem__low *low, ftmem__var x, bool bias)
{
    ftmem__tape *tape = low->tape;
    ftmem__var dropped = ftmem__low_dropout(low, x, low->shape->model->mlp_dropout), cast = dropped, y;
    if (low->shape->family->down_never_quantized) {
        cast = ftmem__cast(tape, dropped, low->shape->dtype);
        ftmem__drop(tape, dropped);
    }
    y = ftmem__low_linear(low, FTMEM_ROLE_DOWN, cast, low->shape->h, bias);
    ftmem__drop(tape, cast);
    return y;
}

/* modeling_t5.py T5DenseGatedActDense: hidden_gelu and hidden_linear are names. */
static ftmem__var mlp_gated_t5(ftmem__low *low, ftmem__var x, bool bias)
{
    ftmem__tape *tape = low->tape;
    int64_t f = low->shape->f;
    ftmem__var act = ftmem__low_activation(low, ftmem__low_linear(low, FTMEM_ROLE_GATE, x, f, bias)), up, y;
    up = ftmem__low_linear(low, FTMEM_ROLE_UP, x, f, bias);
    y = mlp_down_t5(low, ftmem__binary(tape, FTMEM__OP_MUL, act, up), bias);
    ftmem__drop(tape, up);
    ftmem__drop(tape, act);
    return y;
}

/* One name for all (modeling_t5.py T5DenseActDense). */
static ftmem__var mlp_plain_named(ftmem__low *low, ftmem__var x, bool bias)
{
    ftmem__var up = ftmem__low_linear(low, FTMEM_ROLE_UP, x, low->shape->f, bias);
    return mlp_down_t5(low, ftmem__low_activation(low, up), bias);
}

ftmem__var ftmem__low_plain(ftmem__low *low, ftmem__var x, int64_t f)
{
    bool bias = low->shape->model->mlp_bias == FTMEM_ON;
    ftmem__var up = ftmem__low_linear(low, FTMEM_ROLE_UP, x, f, bias), act, y;
    act = ftmem__low_activation(low, up);
    y = ftmem__low_linear(low, FTMEM_ROLE_DOWN, act, low->shape->h, bias);
    if (low->join) { /* modeling_bloom.py BloomMLP, modeling_mpt.py MptMLP */
        ftmem__var sum = ftmem__low_dropout_add(low, y, *low->join);
        ftmem__drop(low->tape, y);
        y = sum;
    }
    ftmem__drop(low->tape, act);
    return y;
}

/* modeling_bert.py BertIntermediate and BertOutput.dense */
ftmem__var ftmem__low_up(ftmem__low *low, ftmem__var x)
{
    ftmem__var up;
    low->tape->part = FTMEM__PART_MLP;
    up = ftmem__low_linear(low, FTMEM_ROLE_UP, x, low->shape->f, low->shape->model->mlp_bias == FTMEM_ON);
    ftmem__drop(low->tape, x);
    return ftmem__low_activation(low, up);
}

ftmem__var ftmem__low_down(ftmem__low *low, ftmem__var x)
{
    low->tape->part = FTMEM__PART_MLP;
    return ftmem__low_linear(low, FTMEM_ROLE_DOWN, x, low->shape->h, low->shape->model->mlp_bias == FTMEM_ON);
}

/* modeling_opt.py OPTDecoderLayer.forward: `hidden_states` is reused after each linear. */
ftmem__var ftmem__low_mlp_inline(ftmem__low *low, ftmem__var x)
{
    ftmem__var act = ftmem__low_dropout(low, ftmem__low_up(low, x), low->shape->model->mlp_dropout), y = ftmem__low_down(low, act);
    ftmem__drop(low->tape, act);
    return y;
}

ftmem__var ftmem__low_mlp(ftmem__low *low, ftmem__var x)
{
    bool bias = low->shape->model->mlp_bias == FTMEM_ON;
    ftmem__var y;
    low->tape->part = FTMEM__PART_MLP;
    if (low->mlp == FTMEM__MLP_EXPERTS && low->shape->family->router != FTMEM__ROUTER_SOFTMAX_NORMED) return ftmem__low_experts(low, x);
    if (low->shape->family->mlp == FTMEM__GATED) y = ftmem__low_gated(low, x, low->shape->f);
    else if (low->shape->family->mlp == FTMEM__GATED_T5) y = mlp_gated_t5(low, x, bias);
    else if (low->shape->family->mlp == FTMEM__PLAIN_NAMED) y = mlp_plain_named(low, x, bias);
    else if (low->shape->family->mlp == FTMEM__GATED_FUSED) y = ftmem__low_gated_fused(low, x, low->shape->f);
    else y = ftmem__low_plain(low, x, low->shape->f);
    return low->shape->family->dropout_inside && !low->join ? ftmem__low_dropout(low, y, low->shape->model->hidden_dropout) : y;
}
