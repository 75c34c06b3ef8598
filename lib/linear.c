/* Linears: plain, quantised, adapted by LoRA, and the parameters they declare. */
#include "lower.h"

/* bitsandbytes/functional.py quantize_4bit and QuantState: half a byte an element; fp32 maxima of blocks of 64, or
   8-bit maxima with fp32 maxima of 256 blocks, an offset and two code tables. Each tensor is an allocation of its own. */
static int64_t linear_bytes4(const ftmem__shape *shape, int64_t n)
{
    int64_t blocks = (n + 63) / 64, bytes = ftmem__round512((n + 1) / 2) + 512; /* 16-entry code */
    if (shape->adapter->double_quant != FTMEM_ON) return bytes + ftmem__round512(blocks * 4);
    return bytes + ftmem__round512(blocks) + ftmem__round512((blocks + 255) / 256 * 4) + 1024 + 512;
}

static int64_t linear_bytes8(int64_t out, int64_t n)
{
    return ftmem__round512(n) + ftmem__round512(4 * out); /* one fp32 scale a row */
}

static void linear_declare(ftmem__low *low, ftmem__param param)
{
    ftmem__params *params = low->params;
    if (!params) return;
    if (params->count >= FTMEM__MAX_PARAMS) {
        params->full = true;
        return;
    }
    param.segment = params->segment;
    if (param.copies == 0) param.copies = low->copies > 1 ? low->copies : 1;
    if (param.gradient_bytes == 0) param.gradient_bytes = param.bytes;
    params->at[params->count++] = param;
}

static ftmem__var linear_parameter(ftmem__low *low, int32_t role, int64_t n, int64_t rows, int32_t dtype, bool trained, bool base)
{
    ftmem__param param = { 0 };
    param.n = n;
    param.rows = rows;
    param.bytes = ftmem__round512(ftmem__bytes(dtype, n));
    param.dtype = (uint8_t)dtype;
    param.tensor_class = base ? FTMEM_CLASS_WEIGHTS : FTMEM_CLASS_ADAPTERS;
    param.role = (uint8_t)role;
    param.trained = trained && !low->tape->no_grad;
    param.idle = trained && low->tape->no_grad;
    param.base = base;
    linear_declare(low, param);
    return ftmem__weight(low->copies > 1 ? n * low->copies : n, rows > 0 ? n / rows : n, dtype, trained);
}

static int32_t linear_dtype(const ftmem__low *low, int32_t role)
{
    bool end = role == FTMEM_ROLE_EMBED || role == FTMEM_ROLE_HEAD || role == FTMEM_ROLE_POSITION;
    return end ? low->shape->ends : low->shape->dtype;
}

ftmem__var ftmem__low_parameter(ftmem__low *low, int32_t role, int64_t n, int64_t cols, bool trained)
{
    return linear_parameter(low, role, n, cols < n ? n / cols : 0, linear_dtype(low, role), trained, true);
}

ftmem__var ftmem__low_parameter_of(ftmem__low *low, int32_t role, int64_t n, int64_t cols, int32_t dtype)
{
    return linear_parameter(low, role, n, cols < n ? n / cols : 0, dtype, low->trained, true);
}

ftmem__var ftmem__low_copy(ftmem__low *low, int32_t role, int64_t n, int64_t cols)
{
    return linear_parameter(low, role, n, n / cols, linear_dtype(low, role), true, false);
}

ftmem__var ftmem__low_adapter(ftmem__low *low, int32_t role, int64_t n, int64_t rows)
{
    return linear_parameter(low, role, n, rows, low->shape->lora_dtype, true, false);
}

static void linear_quantized(ftmem__low *low, int32_t role, int64_t in, int64_t out)
{
    const ftmem__shape *shape = low->shape;
    ftmem__param param = { 0 };
    param.n = in * out;
    param.rows = out;
    param.bytes = shape->qlora ? linear_bytes4(shape, param.n) : linear_bytes8(out, param.n);
    param.dtype = shape->qlora ? FTMEM_NF4 : FTMEM_INT8;
    param.tensor_class = FTMEM_CLASS_QUANTIZED;
    param.role = (uint8_t)role;
    param.base = true;
    linear_declare(low, param);
}

/* F.linear; under autocast operands are cast to its dtype, trained fp32 weights through the cache. */
ftmem__var ftmem__low_plain_linear(ftmem__low *low, ftmem__var x, ftmem__var w, const ftmem__var *bias, int64_t out)
{
    ftmem__tape *tape = low->tape;
    int32_t dtype = low->shape->autocast ? low->shape->autocast : x.dtype;
    int64_t rows = x.n / x.cols;
    double flops = 2.0 * (double)rows * (double)x.cols * (double)out;
    ftmem__var x16 = ftmem__cast_operand(tape, x, dtype), w16 = ftmem__cast_weight(tape, w, dtype), b16, y;
    if (bias) b16 = ftmem__cast_weight(tape, *bias, dtype);
    y = ftmem__matmul(tape, FTMEM__OP_LINEAR, x16, w16, bias ? &b16 : NULL, rows * out, out, flops);
    if (bias) ftmem__drop(tape, b16);
    ftmem__drop(tape, w16);
    ftmem__drop(tape, x16);
    return y;
}

ftmem__var ftmem__low_convolution(ftmem__low *low, ftmem__var x, int64_t channels, int64_t out, int64_t length, int64_t kernel)
{
    ftmem__tape *tape = low->tape;
    const ftmem__shape *shape = low->shape;
    int32_t dtype = shape->autocast ? shape->autocast : x.dtype;
    double flops = 2.0 * (double)(low->b * length * out) * (double)(channels * kernel);
    ftmem__var w = linear_parameter(low, FTMEM_ROLE_NORM, out * channels * kernel, out, shape->dtype, low->trained, true), x16, w16, b16, y;
    ftmem__var b = linear_parameter(low, FTMEM_ROLE_NORM, out, 0, shape->dtype, low->trained, true);
    x16 = ftmem__cast(tape, x, dtype);
    w16 = ftmem__cast_weight(tape, w, dtype);
    b16 = ftmem__cast_weight(tape, b, dtype);
    y = ftmem__matmul(tape, FTMEM__OP_CONV, x16, w16, &b16, low->b * out * length, length, flops);
    ftmem__drop(tape, b16);
    ftmem__drop(tape, w16);
    ftmem__drop(tape, x16);
    ftmem__drop(tape, x);
    return y;
}

/* bitsandbytes MatMul4Bit: the weight is dequantised, in forward and again in backward; the input is not kept, but was before
   0.43.2 (autograd/_functions.py, ctx.tensors). */
static ftmem__var linear_4bit(ftmem__low *low, ftmem__var x, int64_t out)
{
    ftmem__tape *tape = low->tape;
    int32_t compute = low->shape->compute;
    int64_t n = x.cols * out, rows = x.n / x.cols, work = ftmem__round512(ftmem__bytes(compute, n)) * (low->shape->half_state ? 2 : 1);
    ftmem__var in = ftmem__cast(tape, x, compute), y, result;
    ftmem__node *node;
    int16_t dequantized = ftmem__alloc_bytes(tape, FTMEM__OP_DEQUANTIZE, work, FTMEM_CLASS_WORKSPACE);
    y = ftmem__matmul(tape, low->shape->input_kept ? FTMEM__OP_LINEAR4_KEEPING : FTMEM__OP_LINEAR4, in, ftmem__constant(n, x.cols, compute), NULL, rows * out,
                      out, 2.0 * (double)rows * (double)n);
    node = ftmem__recorded(tape, y);
    if (node) node->work = work;
    ftmem__release(tape, dequantized);
    result = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, y);
    ftmem__drop(tape, in);
    return result;
}

ftmem__var ftmem__low_quantized_head(ftmem__low *low, ftmem__var x, int64_t out)
{
    return linear_4bit(low, x, out);
}

void ftmem__low_quantized_parameter(ftmem__low *low, int32_t role, int64_t in, int64_t out)
{
    linear_quantized(low, role, in, out);
}

/* bitsandbytes MatMul8bitLt over a frozen weight, no outlier columns: an fp16 copy of the input, its int8 form, an
   int32 product, an fp16 result; the input is kept, and the weight dequantised in backward. */
static ftmem__var linear_8bit(ftmem__low *low, ftmem__var x, int64_t out)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = x.n / x.cols, work = ftmem__round512(ftmem__bytes(x.dtype, x.cols * out));
    int16_t half = x.dtype == FTMEM_FP16 ? -1 : ftmem__alloc(tape, FTMEM__OP_CAST, x.n, x.cols, FTMEM_FP16, FTMEM_CLASS_WORKSPACE);
    int16_t int8 = ftmem__alloc(tape, FTMEM__OP_LINEAR8, x.n, x.cols, FTMEM_INT8, FTMEM_CLASS_WORKSPACE), int32, fp16;
    ftmem__node *node;
    ftmem__var y;
    ftmem__release(tape, half);
    int32 = ftmem__alloc(tape, FTMEM__OP_LINEAR8, rows * out, out, FTMEM_FP32, FTMEM_CLASS_WORKSPACE);
    fp16 = ftmem__alloc(tape, FTMEM__OP_LINEAR8, rows * out, out, FTMEM_FP16, FTMEM_CLASS_WORKSPACE);
    if (x.dtype == FTMEM_FP16) ftmem__release(tape, fp16);
    y = ftmem__matmul(tape, FTMEM__OP_LINEAR8, x, ftmem__constant(x.cols * out, x.cols, x.dtype), NULL, rows * out, out, 2.0 * (double)x.n * (double)out);
    if (x.dtype != FTMEM_FP16) ftmem__release(tape, fp16);
    ftmem__release(tape, int32);
    ftmem__release(tape, int8);
    node = ftmem__recorded(tape, y);
    if (node) node->work = work;
    return y;
}

/* bitsandbytes/nn/modules.py Linear4bit.forward replaces an fp32 bias by one in the compute dtype, for good. */
static void linear_bias4(ftmem__low *low, int64_t out)
{
    ftmem__params *params = low->params;
    ftmem__param *bias = params && params->count > 0 ? &params->at[params->count - 1] : NULL;
    if (bias) bias->narrowed_bytes = bias->bytes - ftmem__round512(ftmem__bytes(low->shape->compute, out));
}

/* modeling_falcon.py FalconLinear: x @ weight.T + bias; autocast does not cache the copy of a view. */
static ftmem__var linear_apart(ftmem__low *low, ftmem__var x, ftmem__var w, const ftmem__var *bias, int64_t out)
{
    ftmem__tape *tape = low->tape;
    ftmem__var cast = ftmem__cast(tape, w, low->shape->autocast ? low->shape->autocast : w.dtype), y, sum;
    y = ftmem__low_plain_linear(low, x, cast, NULL, out);
    ftmem__drop(tape, cast);
    if (!bias) return y;
    sum = ftmem__binary(tape, FTMEM__OP_ADD, y, *bias);
    ftmem__drop(tape, y);
    return sum;
}

/* modeling_deepseek_v32.py _keep_in_fp32_modules: fp32 where fp16 is loaded. */
int32_t ftmem__low_dtype(const ftmem__low *low, int32_t role)
{
    return role == FTMEM_ROLE_INDEX_WEIGHTS && low->shape->compute == FTMEM_FP16 ? FTMEM_FP32 : low->shape->dtype;
}

static bool linear_is_quantized(const ftmem__low *low, int32_t role)
{
    const ftmem__family *family = low->shape->family;
    if (role == FTMEM_ROLE_INDEX_WEIGHTS) return false; /* named by _keep_in_fp32_modules, which quantizers leave alone */
    if (family->never_quantized || low->unquantized || (role == FTMEM_ROLE_DOWN && family->down_never_quantized)) return false;
    return (low->shape->qlora || low->shape->lora8) && ftmem__is_linear(role);
}

static ftmem__var linear_base(ftmem__low *low, int32_t role, ftmem__var x, int64_t out, bool bias)
{
    const ftmem__shape *shape = low->shape;
    bool quantized = linear_is_quantized(low, role);
    ftmem__var w, b;
    if (quantized) linear_quantized(low, role, x.cols, out);
    else w = linear_parameter(low, role, x.cols * out, out, ftmem__low_dtype(low, role), low->trained, true);
    if (bias) b = linear_parameter(low, role, out, 0, shape->dtype, low->trained, true);
    if (!quantized && shape->family->bias_apart) return linear_apart(low, x, w, bias ? &b : NULL, out);
    if (!quantized) return ftmem__low_plain_linear(low, x, w, bias ? &b : NULL, out);
    if (bias && shape->qlora) linear_bias4(low, out);
    return shape->qlora ? linear_4bit(low, x, out) : linear_8bit(low, x, out);
}

/* peft/tuners/lora/layer.py Linear.forward and lora/bnb.py Linear4bit.forward, Linear8bitLt.forward. */
static ftmem__var linear_lora(ftmem__low *low, int32_t role, ftmem__var x, ftmem__var base, int64_t out)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    bool quantized = linear_is_quantized(low, role);
    int64_t r = shape->adapter->rank;
    int32_t result_dtype = base.dtype;
    ftmem__var a = ftmem__low_adapter(low, role, r * x.cols, r), b = ftmem__low_adapter(low, role, out * r, out);
    ftmem__var in, dropped, low_rank, up, scaled, sum, result;
    in = quantized && shape->autocast ? ftmem__keep(tape, x) : ftmem__cast(tape, x, shape->lora_dtype);
    dropped = ftmem__low_dropout(low, ftmem__keep(tape, in), shape->adapter->dropout);
    low_rank = ftmem__low_plain_linear(low, dropped, a, NULL, r);
    ftmem__drop(tape, dropped);
    up = ftmem__low_plain_linear(low, low_rank, b, NULL, out);
    ftmem__drop(tape, low_rank);
    scaled = ftmem__unary(tape, FTMEM__OP_SCALE, up);
    ftmem__drop(tape, up);
    if (quantized && !shape->autocast) {
        ftmem__var cast = ftmem__cast(tape, scaled, result_dtype);
        ftmem__drop(tape, scaled);
        scaled = cast;
    }
    sum = ftmem__binary(tape, FTMEM__OP_ADD, base, scaled);
    if (quantized) {
        ftmem__drop(tape, base);
        ftmem__drop(tape, scaled);
        ftmem__drop(tape, in);
        return sum;
    }
    ftmem__drop(tape, scaled);
    ftmem__drop(tape, base);
    result = ftmem__cast(tape, sum, result_dtype);
    ftmem__drop(tape, sum);
    ftmem__drop(tape, in);
    return result;
}

typedef struct linear_adapted { /* the call of one adapted linear */
    int32_t role;
    int64_t out;
    bool quantized, bias;
    ftmem__var a, b; /* in the dtype of the product */
} linear_adapted;

/* The identity that lora_A is given, and what it makes of it: alive as long as the graph of B A. */
typedef struct linear_product {
    ftmem__var weight, eye, low_rank;
} linear_product;

/* peft/tuners/lora/dora.py get_lora_weight: B(A(identity)), whose graph is dropped unused when forward returns. */
static linear_product linear_dora_product(ftmem__low *low, const linear_adapted *call, int64_t cols)
{
    ftmem__tape *tape = low->tape;
    int32_t dtype = low->shape->lora_dtype;
    bool graph = tape->mode == FTMEM__RECORD;
    ftmem__var a = call->a, b = call->b, eye = ftmem__constant(cols * cols, cols, dtype);
    linear_product made;
    a.grad = b.grad = false;
    eye.store = ftmem__alloc(tape, FTMEM__OP_TABLE, eye.n, cols, dtype, FTMEM_CLASS_WORKSPACE);
    made.eye = ftmem__cast(tape, eye, a.dtype);
    made.low_rank = ftmem__low_plain_linear(low, made.eye, a, NULL, a.n / cols);
    if (!graph) ftmem__drop(tape, made.eye);
    made.weight = ftmem__low_plain_linear(low, made.low_rank, b, NULL, call->out);
    if (!graph) ftmem__drop(tape, made.low_rank);
    ftmem__drop(tape, eye);
    if (!graph) made.eye.store = made.low_rank.store = -1;
    return made;
}

/* peft/utils/integrations.py dequantize_module_weight, then .to(x.dtype). */
static ftmem__var linear_dora_base(ftmem__low *low, const linear_adapted *call, int64_t n, int32_t dtype)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    ftmem__var w = ftmem__constant(n, n / call->out, call->quantized ? shape->compute : shape->dtype), cast;
    if (call->quantized && shape->lora8) { /* bitsandbytes int8_vectorwise_dequant: two products in fp32 */
        int16_t first = ftmem__alloc(tape, FTMEM__OP_DEQUANTIZE, n, w.cols, FTMEM_FP32, FTMEM_CLASS_WORKSPACE);
        w.dtype = FTMEM_FP32;
        w.store = ftmem__alloc(tape, FTMEM__OP_DEQUANTIZE, n, w.cols, FTMEM_FP32, FTMEM_CLASS_WORKSPACE);
        ftmem__release(tape, first);
    } else if (call->quantized) {
        w.store = ftmem__alloc(tape, FTMEM__OP_DEQUANTIZE, n, w.cols, w.dtype, FTMEM_CLASS_WORKSPACE);
    }
    cast = ftmem__cast(tape, w, dtype);
    ftmem__drop(tape, w);
    return cast;
}

/* get_weight_norm, and the trained magnitude divided by it. */
static ftmem__var linear_dora_scale(ftmem__low *low, const linear_adapted *call, ftmem__var weight, ftmem__var product)
{
    ftmem__tape *tape = low->tape;
    ftmem__var magnitude = ftmem__low_adapter(low, call->role, call->out, 0), scaled, sum, norm, scale, constant = product;
    constant.grad = false;
    scaled = ftmem__unary(tape, FTMEM__OP_SCALE, constant);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, weight, scaled);
    ftmem__drop(tape, scaled);
    norm = ftmem__apply(tape, FTMEM__OP_MEAN, &sum, 1, call->out, call->out, sum.dtype);
    ftmem__drop(tape, sum);
    scale = ftmem__binary(tape, FTMEM__OP_DIV, magnitude, norm);
    ftmem__drop(tape, norm);
    return scale;
}

/* (scale - 1) * base + scale * lora * scaling */
static ftmem__var linear_dora_sum(ftmem__tape *tape, ftmem__var scale, ftmem__var base, ftmem__var lora)
{
    ftmem__var less = ftmem__unary(tape, FTMEM__OP_SHIFT, scale), left = ftmem__binary(tape, FTMEM__OP_MUL, less, base), right, scaled, sum;
    ftmem__drop(tape, less);
    right = ftmem__binary(tape, FTMEM__OP_MUL, scale, lora);
    scaled = ftmem__unary(tape, FTMEM__OP_SCALE, right);
    ftmem__drop(tape, right);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, left, scaled);
    ftmem__drop(tape, scaled);
    ftmem__drop(tape, left);
    return sum;
}

/* The frozen product without its bias; behind a dropout it is made anew from the dropped input. */
static ftmem__var linear_dora_result(ftmem__low *low, const linear_adapted *call, ftmem__var x, ftmem__var weight, ftmem__var base, bool dropped)
{
    if (dropped) return ftmem__low_plain_linear(low, x, weight, NULL, call->out);
    if (!call->bias) return ftmem__keep(low->tape, base);
    return ftmem__binary(low->tape, FTMEM__OP_SUB, base, ftmem__constant(call->out, call->out, call->quantized ? low->shape->compute : low->shape->dtype));
}

/* peft/tuners/lora/dora.py DoraLinearLayer.forward; x is after dropout. */
static ftmem__var linear_dora_layer(ftmem__low *low, const linear_adapted *call, ftmem__var x, ftmem__var base, bool dropped)
{
    ftmem__tape *tape = low->tape;
    linear_product made = linear_dora_product(low, call, x.cols);
    ftmem__var product = ftmem__cast(tape, made.weight, x.dtype), weight, scale, low_rank, lora, plain, result;
    ftmem__drop(tape, made.weight);
    weight = linear_dora_base(low, call, product.n, x.dtype);
    scale = linear_dora_scale(low, call, weight, product);
    low_rank = ftmem__low_plain_linear(low, x, call->a, NULL, call->a.n / x.cols);
    lora = ftmem__low_plain_linear(low, low_rank, call->b, NULL, call->out);
    ftmem__drop(tape, low_rank);
    plain = linear_dora_result(low, call, x, weight, base, dropped);
    result = linear_dora_sum(tape, scale, plain, lora);
    ftmem__drop(tape, plain);
    ftmem__drop(tape, lora);
    ftmem__drop(tape, scale);
    ftmem__drop(tape, weight);
    ftmem__drop(tape, product);
    ftmem__drop(tape, made.eye);
    ftmem__drop(tape, made.low_rank);
    return result;
}

/* peft/tuners/lora/variants.py DoraLinearVariant.forward inside the forward of the linear. Autocast's cache hands out
   the copies of A and B that the product B A made. */
static ftmem__var linear_dora(ftmem__low *low, linear_adapted *call, ftmem__var x, ftmem__var base)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int64_t r = shape->adapter->rank;
    int32_t dtype = shape->autocast ? shape->autocast : shape->lora_dtype, result_dtype = base.dtype;
    bool dropped = low->training && shape->adapter->dropout > 0;
    ftmem__var in, input, layer, sum, result;
    call->a = ftmem__cast_weight(tape, ftmem__low_adapter(low, call->role, r * x.cols, r), dtype);
    call->b = ftmem__cast_weight(tape, ftmem__low_adapter(low, call->role, call->out * r, call->out), dtype);
    in = call->quantized && shape->autocast ? ftmem__keep(tape, x) : ftmem__cast(tape, x, shape->lora_dtype);
    input = ftmem__low_dropout(low, ftmem__keep(tape, in), shape->adapter->dropout);
    layer = linear_dora_layer(low, call, input, base, dropped);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, base, layer);
    ftmem__drop(tape, layer);
    ftmem__drop(tape, input);
    ftmem__drop(tape, base);
    result = call->quantized && shape->autocast ? ftmem__keep(tape, sum) : ftmem__cast(tape, sum, result_dtype);
    ftmem__drop(tape, sum);
    ftmem__drop(tape, in);
    ftmem__drop(tape, call->b);
    ftmem__drop(tape, call->a);
    return result;
}

int64_t ftmem__low_lora_parameters(ftmem__low *low, int32_t role, int64_t in, int64_t out)
{
    const ftmem__shape *shape = low->shape;
    int64_t r = shape->adapter->rank;
    if (shape->qlora) linear_quantized(low, role, in, out);
    else (void)linear_parameter(low, role, in * out, out, shape->dtype, false, true);
    (void)linear_parameter(low, role, r * in, r, shape->lora_dtype, true, false);
    (void)linear_parameter(low, role, out * r, out, shape->lora_dtype, true, false);
    return r * (in + out);
}

/* litgpt/lora.py LoRAQKVLinear: one dropped input and one A for the adapted parts, B as a convolution, and zeros for the others. */
static ftmem__var linear_merged_lora(ftmem__low *low, ftmem__var x, ftmem__var base, const int64_t part[3])
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int64_t r = shape->adapter->rank, width = 0, parts = 0, i;
    ftmem__var a, b, dropped, low_rank, up, padded, sum;
    for (i = 0; i < 3; i++)
        if (shape->adapter->targets >> i & 1u) width += part[i], parts++;
    a = linear_parameter(low, FTMEM_ROLE_QKV, parts * r * x.cols, parts * r, shape->lora_dtype, true, false);
    b = linear_parameter(low, FTMEM_ROLE_QKV, width * r, width, shape->lora_dtype, true, false);
    dropped = ftmem__low_dropout(low, ftmem__keep(tape, x), shape->adapter->dropout);
    low_rank = ftmem__low_plain_linear(low, dropped, a, NULL, parts * r);
    ftmem__drop(tape, dropped);
    b.cols = low_rank.cols;
    up = ftmem__low_plain_linear(low, low_rank, b, NULL, width);
    ftmem__drop(tape, low_rank);
    padded = parts == 3 ? ftmem__keep(tape, up) : ftmem__apply(tape, FTMEM__OP_ZERO_PAD, &up, 1, base.n, base.cols, up.dtype);
    ftmem__drop(tape, up);
    up = ftmem__unary(tape, FTMEM__OP_SCALE, padded);
    ftmem__drop(tape, padded);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, base, up);
    ftmem__drop(tape, up);
    ftmem__drop(tape, base);
    return sum;
}

ftmem__var ftmem__low_merged_linear(ftmem__low *low, ftmem__var x, const int64_t part[3], bool bias)
{
    ftmem__var base = linear_base(low, FTMEM_ROLE_QKV, x, part[0] + part[1] + part[2], bias);
    return low->adapted && low->shape->adapter->targets & 7u ? linear_merged_lora(low, x, base, part) : base;
}

ftmem__var ftmem__low_linear(ftmem__low *low, int32_t role, ftmem__var x, int64_t out, bool bias)
{
    ftmem__var base = linear_base(low, role, x, out, bias);
    if (!low->adapted || !(low->shape->adapter->targets >> role & 1u)) return base;
    if (low->shape->qlora && linear_is_quantized(low, role)) { /* bnb.py clones the 4-bit result defensively */
        ftmem__var copy = ftmem__unary(low->tape, FTMEM__OP_CLONE, base);
        ftmem__drop(low->tape, base);
        base = copy;
    }
    if (low->shape->adapter->use_dora == FTMEM_ON) {
        linear_adapted call = { 0 };
        call.role = role;
        call.out = out;
        call.quantized = linear_is_quantized(low, role);
        call.bias = bias;
        return linear_dora(low, &call, x, base);
    }
    return linear_lora(low, role, x, base, out);
}
