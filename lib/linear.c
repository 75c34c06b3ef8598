/* Linears: plain, quantised, adapted by LoRA, and the parameters they declare. */
#include "quant.h"

static void linear_declare(ftmem__low *low, ftmem__param param)
{
    ftmem__params *params = low->params;
    if (!params) return;
    if (params->count >= FTMEM__MAX_PARAMS) {
        params->full = true;
        return;
    }
    param.segment = params->segment;
    param.routed = low->routed;
    if (param.copies == 0) param.copies = low->copies > 1 ? low->copies : 1;
    if (param.gradient_bytes == 0) param.gradient_bytes = param.bytes;
    params->at[params->count++] = param;
}

static ftmem__param linear_param(int32_t role, int64_t n, int64_t rows, int32_t dtype, bool base)
{
    ftmem__param param = { 0 };
    param.n = n;
    param.rows = rows;
    param.bytes = ftmem__round512(ftmem__bytes(dtype, n));
    param.dtype = (uint8_t)dtype;
    param.tensor_class = base ? FTMEM_CLASS_WEIGHTS : FTMEM_CLASS_ADAPTERS;
    param.role = (uint8_t)role;
    param.base = base;
    return param;
}

static ftmem__var linear_parameter(ftmem__low *low, int32_t role, int64_t n, int64_t rows, int32_t dtype, bool trained, bool base)
{
    ftmem__param param = linear_param(role, n, rows, dtype, base);
    param.trained = trained && !low->tape->no_grad;
    param.idle = trained && low->tape->no_grad;
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

ftmem__var ftmem__low_adapter_of(ftmem__low *low, int32_t role, int64_t n, int64_t rows, bool trained)
{
    return linear_parameter(low, role, n, rows, low->shape->lora_dtype, trained, false);
}

int64_t ftmem__low_rank(const ftmem__low *low, int32_t role)
{
    const ftmem_adapter *adapter = low->shape->adapter;
    return role < FTMEM__COUNT(adapter->ranks) && adapter->ranks[role] ? adapter->ranks[role] : adapter->rank;
}

void ftmem__low_buffer(ftmem__low *low, int64_t bytes)
{
    ftmem__param param = { 0 };
    param.bytes = ftmem__round512(bytes);
    param.dtype = FTMEM_INT8;
    param.tensor_class = FTMEM_CLASS_BUFFERS;
    linear_declare(low, param);
}

static void linear_quantized(ftmem__low *low, int32_t role, int64_t in, int64_t out)
{
    const ftmem__shape *shape = low->shape;
    const ftmem__quant *quant = ftmem__quant_of(shape->quant);
    ftmem__param param = { 0 };
    param.n = in * out;
    param.rows = out;
    param.bytes = quant->bytes(shape, in, out);
    param.dtype = quant->bits < 8 ? FTMEM_NF4 : FTMEM_INT8;
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
    ftmem__var b = linear_parameter(low, FTMEM_ROLE_NORM, out, 0, shape->dtype, ftmem__shape_bias_trained(shape, low->trained), true);
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

ftmem__var ftmem__low_quantized_head(ftmem__low *low, ftmem__var x, int64_t out)
{
    return ftmem__quant_of(low->shape->quant)->forward(low, x, out);
}

void ftmem__low_quantized_parameter(ftmem__low *low, int32_t role, int64_t in, int64_t out)
{
    linear_quantized(low, role, in, out);
}

/* bitsandbytes/nn/modules.py Linear4bit.forward replaces an fp32 bias by one in the compute dtype, for good. */
static void linear_bias4(ftmem__low *low, int64_t out)
{
    ftmem__params *params = low->params;
    ftmem__param *bias = params && params->count > 0 ? &params->at[params->count - 1] : NULL;
    if (!bias) return;
    bias->narrowed = low->shape->dtype != low->shape->compute;
    bias->narrowed_bytes = bias->bytes - ftmem__round512(ftmem__bytes(low->shape->compute, out));
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

const ftmem__quant *ftmem__low_quant(const ftmem__low *low, int32_t role)
{
    const ftmem__family *family = low->shape->family;
    if (role == FTMEM_ROLE_INDEX_WEIGHTS) return NULL; /* named by _keep_in_fp32_modules, which quantizers leave alone */
    if (family->never_quantized || low->unquantized || (role == FTMEM_ROLE_DOWN && family->down_never_quantized)) return NULL;
    return ftmem__is_linear(role) ? ftmem__quant_of(low->shape->quant) : NULL;
}

/* peft/utils/integrations.py dequantize_module_weight: the weight itself (-1), bitsandbytes' dequantised 4-bit weight, or its
   int8 weight times scales times 1/127 in fp32 (backends/default/ops.py). */
int16_t ftmem__low_dequantized(ftmem__low *low, int32_t role, int64_t in, int64_t out, int32_t *dtype)
{
    const ftmem__shape *shape = low->shape;
    int16_t scaled, whole;
    *dtype = shape->dtype;
    if (!ftmem__low_quant(low, role)) return -1;
    *dtype = shape->qlora ? shape->compute : FTMEM_FP32;
    scaled = ftmem__alloc(low->tape, FTMEM__OP_DEQUANTIZE, in * out, in, *dtype, low->tape->birth);
    if (shape->qlora) return scaled;
    whole = ftmem__alloc(low->tape, FTMEM__OP_DEQUANTIZE, in * out, in, *dtype, low->tape->birth);
    ftmem__release(low->tape, scaled);
    return whole;
}

ftmem__var ftmem__low_weight(ftmem__low *low, int32_t role, int64_t in, int64_t out, bool bias)
{
    ftmem__var w = linear_parameter(low, role, in * out, out, ftmem__low_dtype(low, role), low->trained, true);
    if (bias) (void)linear_parameter(low, role, out, 0, low->shape->dtype, ftmem__shape_bias_trained(low->shape, low->trained), true);
    return w;
}

ftmem__var ftmem__low_base(ftmem__low *low, int32_t role, ftmem__var x, int64_t out, bool bias)
{
    const ftmem__shape *shape = low->shape;
    const ftmem__quant *quantized = ftmem__low_quant(low, role);
    ftmem__var w, b;
    if (quantized) linear_quantized(low, role, x.cols, out);
    else w = linear_parameter(low, role, x.cols * out, out, ftmem__low_dtype(low, role), low->trained, true);
    if (bias) b = linear_parameter(low, role, out, 0, shape->dtype, ftmem__shape_bias_trained(shape, low->trained), true);
    if (!quantized && shape->family->bias_apart) return linear_apart(low, x, w, bias ? &b : NULL, out);
    if (!quantized) return ftmem__low_plain_linear(low, x, w, bias ? &b : NULL, out);
    if (bias && shape->qlora) linear_bias4(low, out);
    return quantized->forward(low, x, out);
}

int64_t ftmem__low_lora_parameters(ftmem__low *low, int32_t role, int64_t in, int64_t out)
{
    const ftmem__shape *shape = low->shape;
    int64_t r = shape->adapter->rank;
    if (shape->quant) linear_quantized(low, role, in, out);
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
    ftmem__var base = ftmem__low_base(low, FTMEM_ROLE_QKV, x, part[0] + part[1] + part[2], bias);
    return low->adapted && low->shape->adapter->targets & 7u ? linear_merged_lora(low, x, base, part) : base;
}
