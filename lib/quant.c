#include "quant.h"

/* ------------------------------------------------------------------------------------------------- stored bytes
   Each tensor is an allocation of its own. */

static int64_t quant_ceil(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static int64_t quant_group(const ftmem__shape *shape, int64_t in)
{
    int64_t group = shape->adapter->quant_group ? shape->adapter->quant_group : ftmem__quant_of(shape->quant)->group;
    return group ? group : in;
}

/* bitsandbytes/functional.py quantize_4bit and QuantState: half a byte an element; fp32 maxima of blocks of 64, or
   8-bit maxima with fp32 maxima of 256 blocks, an offset and two code tables. */
static int64_t quant_bytes_bnb4(const ftmem__shape *shape, int64_t in, int64_t out)
{
    int64_t n = in * out, blocks = quant_ceil(n, 64), bytes = ftmem__round512((n + 1) / 2) + 512; /* 16-entry code */
    if (shape->adapter->double_quant != FTMEM_ON) return bytes + ftmem__round512(blocks * 4);
    return bytes + ftmem__round512(blocks) + ftmem__round512(quant_ceil(blocks, 256) * 4) + 1024 + 512;
}

/* One fp32 scale a row: bitsandbytes Int8Params; torchao int8_tensor.py Int8Tensor.from_hp, PerRow. */
static int64_t quant_bytes_rows8(const ftmem__shape *shape, int64_t in, int64_t out)
{
    (void)shape;
    return ftmem__round512(in * out) + ftmem__round512(4 * out);
}

/* gptqmodel nn_modules/qlinear/__init__.py _register_gptq_buffers, packed in int32: qweight, qzeros, scales, g_idx; and the
   two small tables of shifts of _init_wf_unsqueeze_buffers. */
static int64_t quant_bytes_gptq(const ftmem__shape *shape, int64_t in, int64_t out)
{
    int64_t bits = ftmem__quant_of(shape->quant)->bits, groups = quant_ceil(in, quant_group(shape, in));
    int64_t codes = ftmem__round512(4 * quant_ceil(in * bits, 32) * out), zeros = ftmem__round512(4 * groups * quant_ceil(out * bits, 32));
    return codes + zeros + ftmem__round512(2 * groups * out) + ftmem__round512(4 * in) + 2 * 512;
}

/* awq/modules/linear/gemm.py WQLinear_GEMM: qweight, qzeros, scales. */
static int64_t quant_bytes_awq(const ftmem__shape *shape, int64_t in, int64_t out)
{
    int64_t groups = quant_ceil(in, quant_group(shape, in)), words = quant_ceil(out, 8);
    return ftmem__round512(4 * in * words) + ftmem__round512(4 * groups * words) + ftmem__round512(2 * groups * out);
}

/* hqq/core/quantize.py Quantizer.quantize: codes in bytes, a scale and a zero of each group in the compute dtype. */
static int64_t quant_bytes_hqq(const ftmem__shape *shape, int64_t in, int64_t out)
{
    int64_t n = in * out, groups = quant_ceil(n, quant_group(shape, in));
    return ftmem__round512(n * ftmem__quant_of(shape->quant)->bits / 8) + 2 * ftmem__round512(ftmem__bytes(shape->compute, groups));
}

/* aqlm/inference.py QuantizedLinear, 1x16: a 16-bit code for 8 weights, one codebook of 65536 vectors of 8, a scale a row. */
static int64_t quant_bytes_aqlm(const ftmem__shape *shape, int64_t in, int64_t out)
{
    int64_t group = quant_group(shape, in);
    return ftmem__round512(2 * quant_ceil(in, group) * out) + ftmem__round512(ftmem__bytes(shape->compute, 65536 * group)) +
           ftmem__round512(ftmem__bytes(shape->compute, out));
}

/* transformers/integrations/finegrained_fp8.py FP8Linear: one byte an element, an fp32 scale for each block of 128 x 128. */
static int64_t quant_bytes_fp8(const ftmem__shape *shape, int64_t in, int64_t out)
{
    int64_t group = quant_group(shape, in);
    return ftmem__round512(in * out) + ftmem__round512(4 * quant_ceil(in, group) * quant_ceil(out, group));
}

/* ------------------------------------------------------------------------------------------------------ forward */

static double quant_flops(ftmem__var x, int64_t out)
{
    return 2.0 * (double)x.n * (double)out;
}

/* A function of its own: the weight is dequantised for it, `extra` tensors of that size beside it meanwhile, in forward and
   again in backward. */
static ftmem__var quant_dequantizing(ftmem__low *low, ftmem__op op, ftmem__var x, int64_t out, int32_t dtype, int64_t extra)
{
    ftmem__tape *tape = low->tape;
    int64_t n = x.cols * out, work = ftmem__round512(ftmem__bytes(dtype, n)) * (low->shape->half_state ? 2 : 1);
    int16_t more = ftmem__alloc_bytes(tape, FTMEM__OP_DEQUANTIZE, extra * work, FTMEM_CLASS_WORKSPACE);
    int16_t weight = ftmem__alloc_bytes(tape, FTMEM__OP_DEQUANTIZE, work, FTMEM_CLASS_WORKSPACE);
    ftmem__var y;
    ftmem__node *node;
    ftmem__release(tape, more);
    y = ftmem__matmul(tape, op, x, ftmem__constant(n, x.cols, dtype), NULL, x.n / x.cols * out, out, quant_flops(x, out));
    node = ftmem__recorded(tape, y);
    if (node) node->work = work;
    if (node && op == FTMEM__OP_LINEAR_AWQ) node->saves = true; /* its packed weight */
    ftmem__release(tape, weight);
    return y;
}

/* The same in a fixed dtype: x is cast to it, and the result back. */
static ftmem__var quant_in(ftmem__low *low, ftmem__op op, ftmem__var x, int64_t out, int32_t dtype)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in = ftmem__cast(tape, x, dtype), y = quant_dequantizing(low, op, in, out, dtype, 0), result;
    result = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, y);
    ftmem__drop(tape, in);
    return result;
}

/* bitsandbytes MatMul4Bit: the input is not kept, but was before 0.43.2 (autograd/_functions.py, ctx.tensors). */
static ftmem__var quant_forward_bnb4(ftmem__low *low, ftmem__var x, int64_t out)
{
    return quant_in(low, low->shape->input_kept ? FTMEM__OP_LINEAR4_KEEPING : FTMEM__OP_LINEAR4, x, out, low->shape->compute);
}

/* awq/modules/linear/gemm.py WQLinear_GEMM.forward, gptqmodel gemm_awq_triton.py AwqGemmTritonFn: in fp16. */
static ftmem__var quant_forward_awq(ftmem__low *low, ftmem__var x, int64_t out)
{
    return quant_in(low, FTMEM__OP_LINEAR_AWQ, x, out, FTMEM_FP16);
}

/* hqq/core/quantize.py HQQMatmulNoCacheMul: the input is kept. Quantizer.dequantize: the codes, less zeros, times scales,
   three tensors of the weight's size at the end. */
static ftmem__var quant_forward_hqq(ftmem__low *low, ftmem__var x, int64_t out)
{
    return quant_dequantizing(low, FTMEM__OP_LINEAR_HQQ, x, out, low->shape->compute, 2);
}

/* aqlm/inference.py _QuantizedMatmul: the input is kept; inference_kernels code1x16_matmat_dequant and its transposed form. */
static ftmem__var quant_forward_aqlm(ftmem__low *low, ftmem__var x, int64_t out)
{
    return quant_dequantizing(low, FTMEM__OP_LINEAR_AQLM, x, out, low->shape->compute, 0);
}

/* bitsandbytes MatMul8bitLt over a frozen weight, no outlier columns: an fp16 copy of the input, its int8 form, an
   int32 product, an fp16 result; the input is kept, and the weight dequantised in backward. */
static ftmem__var quant_forward_bnb8(ftmem__low *low, ftmem__var x, int64_t out)
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
    y = ftmem__matmul(tape, FTMEM__OP_LINEAR8, x, ftmem__constant(x.cols * out, x.cols, x.dtype), NULL, rows * out, out, quant_flops(x, out));
    if (x.dtype != FTMEM_FP16) ftmem__release(tape, fp16);
    ftmem__release(tape, int32);
    ftmem__release(tape, int8);
    node = ftmem__recorded(tape, y);
    if (node) node->work = work;
    return y;
}

/* finegrained_fp8.py FP8LinearFunction: the input is quantised for the kernel (one byte, an fp32 scale for 128) and not kept;
   backward dequantises the weight. */
static ftmem__var quant_forward_fp8(ftmem__low *low, ftmem__var x, int64_t out)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = x.n / x.cols, group = quant_group(low->shape, x.cols);
    int16_t codes = ftmem__alloc(tape, FTMEM__OP_LINEAR_FP8, x.n, x.cols, FTMEM_INT8, FTMEM_CLASS_WORKSPACE);
    int16_t scales = ftmem__alloc(tape, FTMEM__OP_LINEAR_FP8, rows * quant_ceil(x.cols, group), 0, FTMEM_FP32, FTMEM_CLASS_WORKSPACE);
    ftmem__var y = ftmem__matmul(tape, FTMEM__OP_LINEAR_FP8, x, ftmem__constant(x.cols * out, x.cols, x.dtype), NULL, rows * out, out, quant_flops(x, out));
    ftmem__node *node = ftmem__recorded(tape, y);
    if (node) node->work = ftmem__round512(ftmem__bytes(x.dtype, x.cols * out));
    if (node) node->saves = true; /* the stored weight */
    ftmem__release(tape, scales);
    ftmem__release(tape, codes);
    return y;
}

/* A dequantised weight in an ordinary matmul, which keeps it for the input's gradient. */
static ftmem__var quant_plain(ftmem__low *low, ftmem__var x, int64_t out, int32_t dtype)
{
    ftmem__tape *tape = low->tape;
    ftmem__var w = ftmem__constant(x.cols * out, x.cols, dtype), cast, y;
    w.store = ftmem__alloc(tape, FTMEM__OP_DEQUANTIZE, w.n, w.cols, dtype, tape->birth);
    cast = ftmem__cast(tape, w, x.dtype);
    ftmem__drop(tape, w);
    y = ftmem__low_plain_linear(low, x, cast, NULL, out);
    ftmem__drop(tape, cast);
    return y;
}

/* gptqmodel nn_modules/qlinear/torch.py TorchLinear._forward_eager, which its kernels use in training: the weight by one
   kernel in the scales' dtype, cast to x's. */
static ftmem__var quant_forward_gptq(ftmem__low *low, ftmem__var x, int64_t out)
{
    return quant_plain(low, x, out, low->shape->compute);
}

/* torchao int8_tensor.py, weight only, a scale a row: codes in x's dtype, times scales after the matmul. */
static ftmem__var quant_forward_torchao8(ftmem__low *low, ftmem__var x, int64_t out)
{
    ftmem__tape *tape = low->tape;
    ftmem__var m = quant_plain(low, x, out, x.dtype), scale = ftmem__constant(out, out, m.dtype), y, result;
    if (m.dtype != FTMEM_FP32) scale.store = ftmem__alloc(tape, FTMEM__OP_CAST, out, out, m.dtype, tape->birth);
    y = ftmem__binary(tape, FTMEM__OP_MUL, m, scale);
    ftmem__drop(tape, scale);
    ftmem__drop(tape, m);
    result = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, y);
    return result;
}

/* -------------------------------------------------------------------------------------------------------- table
   The LoRA layers: peft/tuners/lora/bnb.py, gptq.py, awq.py, hqq.py, aqlm.py, torchao.py, and layer.py for FP8Linear.
   What widens: peft/utils/other.py prepare_model_for_kbit_training. */

#define QUANT_ROW(bits, group, bytes, forward, cast, clones, in_place, autocast, bnb, widens) \
    { \
        bits, group, quant_bytes_##bytes, quant_forward_##forward, FTMEM__CAST_##cast, clones, in_place, autocast, bnb, widens, NULL \
    }
static const ftmem__quant quant_rows[FTMEM_QUANT_END] = {
    /*                                     bits group bytes   forward   cast          clones in place autocast bnb widens */
    [FTMEM_QUANT_NF4] = QUANT_ROW(4, 64, bnb4, bnb4, ADDED, true, false, true, true, true),
    [FTMEM_QUANT_FP4] = QUANT_ROW(4, 64, bnb4, bnb4, ADDED, true, false, true, true, true),
    [FTMEM_QUANT_INT8] = QUANT_ROW(8, 0, rows8, bnb8, ADDED, false, false, true, true, true),
    [FTMEM_QUANT_GPTQ4] = QUANT_ROW(4, 128, gptq, gptq, SUM, false, false, false, false, false),
    [FTMEM_QUANT_GPTQ8] = QUANT_ROW(8, 128, gptq, gptq, SUM, false, false, false, false, false),
    [FTMEM_QUANT_AWQ] = QUANT_ROW(4, 128, awq, awq, BEFORE_SCALE, false, false, true, false, true),
    [FTMEM_QUANT_HQQ4] = QUANT_ROW(4, 64, hqq, hqq, SUM, false, false, true, false, false),
    [FTMEM_QUANT_HQQ8] = QUANT_ROW(8, 64, hqq, hqq, SUM, false, false, true, false, false),
    [FTMEM_QUANT_AQLM] = QUANT_ROW(2, 8, aqlm, aqlm, BEFORE_SCALE, false, true, true, false, false),
    [FTMEM_QUANT_TORCHAO_INT8] = QUANT_ROW(8, 0, rows8, torchao8, SUM, false, false, false, false, false),
    [FTMEM_QUANT_FP8] = QUANT_ROW(8, 128, fp8, fp8, SUM, false, false, false, false, true),
    [FTMEM_QUANT_TORCHAO_INT4] = { .refused = "adapter.quant is torchao_int4, but PEFT's layer over torchao takes int8 weights only (lora/torchao.py)" },
    [FTMEM_QUANT_MXFP4] = { .refused = "adapter.quant is mxfp4, over which transformers does not train: Mxfp4Config(dequantize=True) makes "
                                       "plain bf16 weights, so leave it at 0" },
};

const ftmem__quant *ftmem__quant_of(int32_t quant)
{
    return quant > FTMEM_QUANT_NONE && quant < FTMEM_QUANT_END ? &quant_rows[quant] : NULL;
}
