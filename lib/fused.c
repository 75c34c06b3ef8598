/* A linear and its LoRA in one autograd function: unsloth kernels/fast_lora.py LoRA_QKV, LoRA_W and LoRA_MLP, and their copy in
   fms-acceleration, which alone applies dropout. Each keeps its input; the gradient of that input is written over it. */
#include "lower.h"

typedef struct fused_call {
    ftmem__low *low;
    int64_t adapters; /* elements of all its A and B */
    int64_t dense;    /* bytes of the largest dequantised weight; 0: weights are dense */
} fused_call;

static bool fused_targets(const ftmem__low *low, uint32_t roles)
{
    return (low->shape->job->kernels & FTMEM_FUSED_LORA) && low->adapted && (low->shape->adapter->targets & roles) == roles;
}

/* Declares weight, A and B of one linear. */
static void fused_declare(fused_call *call, int32_t role, int64_t in, int64_t out)
{
    int64_t dense = ftmem__round512(ftmem__bytes(call->low->shape->compute, in * out));
    call->adapters += ftmem__low_lora_parameters(call->low, role, in, out);
    if (call->low->shape->qlora && dense > call->dense) call->dense = dense;
    call->low->tape->flops += 2.0 * (double)call->low->tokens * (double)(in * out);
}

/* What matmul_lora needs beside its result: the dequantised weight, then (fms-acceleration) the low-rank product. */
static void fused_workspace(const fused_call *call, int64_t bytes)
{
    ftmem__tape *tape = call->low->tape;
    bool product = call->low->shape->job->stack == FTMEM_STACK_FMS;
    int16_t work = ftmem__alloc_bytes(tape, FTMEM__OP_DEQUANTIZE, product && bytes > call->dense ? bytes : call->dense, FTMEM_CLASS_WORKSPACE);
    ftmem__release(tape, work);
}

static bool fused_drops(const fused_call *call)
{
    return call->low->training && call->low->shape->adapter->dropout > 0;
}

/* The node of the whole function, whose first result is of n x cols. */
static ftmem__var fused_apply(fused_call *call, ftmem__op op, ftmem__var x, int64_t n, int64_t cols)
{
    ftmem__var in[2], y;
    in[0] = x;
    in[1] = ftmem__weight(call->adapters, 1, call->low->shape->lora_dtype, true);
    y = ftmem__apply(call->low->tape, op, in, 2, n, cols, x.dtype);
    fused_workspace(call, ftmem__bytes(x.dtype, n));
    return y;
}

static void fused_keep_dropped(fused_call *call, ftmem__var y, ftmem__var x, int32_t times)
{
    for (; fused_drops(call) && times > 0; times--) ftmem__save_new(call->low->tape, y, x.n, x.cols, x.dtype);
}

/* The second and third result of the function that made `first`. */
static void fused_results(fused_call *call, ftmem__var x, ftmem__var first, const int64_t width[3], ftmem__var qkv[3])
{
    ftmem__tape *tape = call->low->tape;
    int32_t i;
    qkv[0] = first;
    for (i = 1; i < 3; i++) {
        int64_t n = x.n / x.cols * width[i];
        int16_t store = ftmem__alloc(tape, FTMEM__OP_FUSED_QKV, n, width[i], x.dtype, tape->birth);
        qkv[i] = ftmem__value(n, width[i], x.dtype, store, first.node, first.grad);
        qkv[i].slot = (uint64_t)i & 3;
        fused_workspace(call, ftmem__bytes(x.dtype, n));
    }
}

/* Queries, keys and values; false where the function does not apply. */
bool ftmem__low_fused_qkv(ftmem__low *low, ftmem__var x, ftmem__var qkv[3])
{
    fused_call call = { low, 0, 0 };
    const ftmem__shape *shape = low->shape;
    int64_t width[3] = { shape->q, shape->kv, shape->kv };
    ftmem__node *node;
    int32_t i;
    if (!fused_targets(low, 7u) || shape->model->qkv_bias == FTMEM_ON) return false;
    for (i = 0; i < 3; i++) fused_declare(&call, FTMEM_ROLE_Q + i, x.cols, width[i]);
    fused_results(&call, x, fused_apply(&call, FTMEM__OP_FUSED_QKV, x, x.n / x.cols * width[0], width[0]), width, qkv);
    fused_keep_dropped(&call, qkv[0], x, 3);
    node = ftmem__recorded(low->tape, qkv[0]);
    if (!node) return true;
    node->outs = 3;
    node->work = call.dense + ftmem__bytes(x.dtype, x.n);
    node->flops = 2.0 * (double)x.n * (double)(width[0] + 2 * width[1]);
    return true;
}

/* Attention's output projection. */
bool ftmem__low_fused_o(ftmem__low *low, ftmem__var x, int64_t out, ftmem__var *y)
{
    fused_call call = { low, 0, 0 };
    ftmem__node *node;
    int64_t product = ftmem__bytes(x.dtype, x.n);
    if (!fused_targets(low, 1u << FTMEM_ROLE_O) || low->shape->model->o_bias == FTMEM_ON) return false;
    fused_declare(&call, FTMEM_ROLE_O, x.cols, out);
    *y = fused_apply(&call, FTMEM__OP_FUSED_LORA, x, x.n / x.cols * out, out);
    fused_keep_dropped(&call, *y, x, 1);
    node = ftmem__recorded(low->tape, *y);
    if (!node) return true;
    node->work = call.dense > product ? call.dense : product;
    node->flops = 2.0 * (double)x.n * (double)out;
    return true;
}

/* In backward: the gradient of the product, beside the larger of a weight and (fms-acceleration) the low-rank product with its mask. */
static int64_t fused_mlp_work(const fused_call *call, int64_t n, int32_t dtype)
{
    int64_t wide = ftmem__bytes(dtype, n), product = 0;
    if (call->low->shape->job->stack == FTMEM_STACK_FMS) product = wide + (fused_drops(call) ? n : 0);
    return wide + (product > call->dense ? product : call->dense);
}

/* Gate and up, which are kept, and their product, which backward makes again; then the projection down. */
static ftmem__var fused_mlp_run(fused_call *call, ftmem__var x, int64_t f)
{
    ftmem__tape *tape = call->low->tape;
    int64_t n = x.n / x.cols * f;
    ftmem__var kept = x, y;
    int16_t part[3];
    int32_t i;
    for (i = 0; i < 3; i++) {
        part[i] = ftmem__alloc(tape, FTMEM__OP_FUSED_LORA_MLP, n, f, x.dtype, tape->birth);
        if (i < 2) fused_workspace(call, ftmem__bytes(x.dtype, n));
    }
    y = fused_apply(call, FTMEM__OP_FUSED_LORA_MLP, x, x.n, call->low->shape->h);
    for (i = 0; i < 2; i++) kept.store = part[i], ftmem__save_var(tape, y, kept);
    fused_keep_dropped(call, y, x, 2);
    if (fused_drops(call)) ftmem__save_new(tape, y, n, f, x.dtype);
    for (i = 0; i < 3; i++) ftmem__release(tape, part[i]);
    return y;
}

bool ftmem__low_fused_mlp(ftmem__low *low, ftmem__var x, int64_t f, ftmem__var *y)
{
    const uint32_t roles = 1u << FTMEM_ROLE_GATE | 1u << FTMEM_ROLE_UP | 1u << FTMEM_ROLE_DOWN;
    fused_call call = { low, 0, 0 };
    ftmem__node *node;
    if (!fused_targets(low, roles) || low->shape->model->mlp_bias == FTMEM_ON) return false;
    fused_declare(&call, FTMEM_ROLE_GATE, x.cols, f);
    fused_declare(&call, FTMEM_ROLE_UP, x.cols, f);
    fused_declare(&call, FTMEM_ROLE_DOWN, f, low->shape->h);
    *y = fused_mlp_run(&call, x, f);
    node = ftmem__recorded(low->tape, *y);
    if (!node) return true;
    node->work = fused_mlp_work(&call, x.n / x.cols * f, x.dtype);
    node->flops = 6.0 * (double)x.n * (double)f;
    return true;
}
