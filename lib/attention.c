/* Attention: rotation, and the kernels that transformers and torch choose between. */
#include "lower.h"

/* x[..., :half] and the like: a view, whose gradient is written into zeros of the whole. */
static ftmem__var attention_slice(ftmem__tape *tape, ftmem__var x, int64_t cols)
{
    if (cols == x.cols) return ftmem__keep(tape, x); /* torch returns x itself */
    return ftmem__apply(tape, FTMEM__OP_SLICE, &x, 1, x.n / x.cols * cols, cols, x.dtype);
}

/* modeling_llama.py rotate_half */
static ftmem__var attention_rotate_half(ftmem__tape *tape, ftmem__var x)
{
    ftmem__var pair[2], y;
    pair[1] = attention_slice(tape, x, x.cols / 2);
    pair[0] = attention_slice(tape, x, x.cols - x.cols / 2);
    y = ftmem__unary(tape, FTMEM__OP_NEG, pair[0]);
    ftmem__drop(tape, pair[0]);
    pair[0] = y;
    y = ftmem__apply(tape, FTMEM__OP_CAT, pair, 2, x.n, x.cols, x.dtype);
    ftmem__drop(tape, pair[0]);
    ftmem__drop(tape, pair[1]);
    return y;
}

static void attention_swap(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

/* (x * cos) + (rotate_half(x) * sin); the tables are the model's, made once. */
ftmem__var ftmem__low_turn(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    int32_t dtype = low->shape->family->tables == FTMEM__TABLES_FP32 ? FTMEM_FP32 : low->shape->mask;
    bool twice = low->shape->family->tables == FTMEM__TABLES_QK_FP32_TWICE, repeated = low->shape->family->tables == FTMEM__TABLES_REPEATED;
    ftmem__var table = ftmem__constant(low->shape->s * x.cols, x.cols, dtype), wide = ftmem__cast(tape, x, twice ? FTMEM_FP32 : x.dtype), straight, turned, y;
    straight = ftmem__binary(tape, FTMEM__OP_MUL, wide, repeated ? low->table[0] : table);
    if (twice) attention_swap(tape, &wide, ftmem__cast(tape, x, FTMEM_FP32));
    y = attention_rotate_half(tape, wide);
    ftmem__drop(tape, wide);
    turned = ftmem__binary(tape, FTMEM__OP_MUL, y, repeated ? low->table[1] : table);
    ftmem__drop(tape, y);
    y = ftmem__binary(tape, FTMEM__OP_ADD, straight, turned);
    ftmem__drop(tape, turned);
    ftmem__drop(tape, straight);
    return y;
}

/* modeling_glm.py apply_rotary_pos_emb: half of each table, repeated for both of a pair. */
static void attention_repeat_tables(ftmem__low *low)
{
    int32_t i, dtype = low->shape->mask;
    for (i = 0; i < 2; i++) {
        low->table[i] = ftmem__constant(low->shape->s * low->shape->rotary, low->shape->rotary, dtype);
        low->table[i].store = ftmem__alloc(low->tape, FTMEM__OP_TABLE, low->table[i].n, low->table[i].cols, dtype, low->tape->birth);
    }
}

/* In place over queries and keys; cos and sin alone are kept, and gradients are turned back in place (unsloth
   kernels/rope_embedding.py Fast_RoPE_Embedding, liger_kernel/ops/rope.py LigerRopeFunction). */
static void attention_rotate_fused(ftmem__tape *tape, ftmem__var qk[2])
{
    int32_t i;
    for (i = 0; i < 2; i++) attention_swap(tape, &qk[i], ftmem__unary(tape, FTMEM__OP_FUSED_ROPE, qk[i]));
}

/* apply_rotary_pos_emb over whole heads; modeling_cohere.py widens q and k first, modeling_olmo.py has fp32 tables:
   both cast the two results at the end. */
static void attention_rotate_whole(ftmem__low *low, ftmem__var qk[2])
{
    ftmem__tape *tape = low->tape;
    uint8_t tables = low->shape->family->tables;
    ftmem__var wide[2], turned[2], given[2];
    int32_t i, dtype = qk[0].dtype;
    for (i = 0; i < 2; i++) wide[i] = ftmem__cast(tape, qk[i], tables == FTMEM__TABLES_CAST_QK_FP32 ? FTMEM_FP32 : dtype);
    for (i = 0; i < 2; i++) turned[i] = ftmem__low_turn(low, wide[i]);
    if (tables == FTMEM__TABLES_CAST) dtype = turned[0].dtype;
    for (i = 0; i < 2; i++) given[i] = qk[i];
    for (i = 0; i < 2; i++) qk[i] = ftmem__cast(tape, turned[i], dtype);
    for (i = 0; i < 2; i++) {
        ftmem__drop(tape, turned[i]);
        ftmem__drop(tape, wide[i]);
        ftmem__drop(tape, given[i]); /* the caller's names are bound last */
    }
}

static ftmem__var attention_join(ftmem__tape *tape, const ftmem__var part[2], ftmem__var whole)
{
    ftmem__var y = ftmem__apply(tape, FTMEM__OP_CAT, part, 2, whole.n, whole.cols, part[0].dtype);
    y.joined = true;
    return y;
}

/* A slice of each head is rotated and joined with the rest: at once (modeling_phi3.py apply_rotary_pos_emb), or in
   the attention's frame, which goes on to hold the parts (modeling_stablelm.py StableLmAttention). */
static void attention_rotate_slices(ftmem__low *low, ftmem__var qk[2], bool late, bool apart, ftmem__var *locals, int32_t *count)
{
    ftmem__tape *tape = low->tape;
    ftmem__var part[2][2], y[2];
    int32_t i;
    for (i = 0; i < 2; i++)
        part[i][0] = attention_slice(tape, qk[i], low->shape->rotary), part[i][1] = attention_slice(tape, qk[i], qk[i].cols - low->shape->rotary);
    for (i = 0; i < 2; i++) {
        attention_swap(tape, &part[i][0], ftmem__low_turn(low, part[i][0]));
        if (late) continue;
        y[i] = attention_join(tape, part[i], qk[i]);
        ftmem__drop(tape, part[i][0]);
    }
    for (i = 0; i < 2; i++) {
        if (late) y[i] = attention_join(tape, part[i], qk[i]);
        if (late && !apart) ftmem__drop(tape, part[i][0]);
        attention_swap(tape, &qk[i], y[i]);
        if (apart) locals[(*count)++] = part[i][0], locals[(*count)++] = part[i][1];
        else ftmem__drop(tape, part[i][1]);
    }
}

/* modeling_gptj.py apply_rotary_pos_emb: the tables are repeated for each pair, in every call. */
static ftmem__var attention_turn_pairs(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var table[2], straight, turned, y;
    int32_t i;
    for (i = 0; i < 2; i++) {
        table[i] = ftmem__constant(low->shape->s * x.cols, x.cols, low->shape->stream);
        table[i].store = ftmem__alloc(tape, FTMEM__OP_TABLE, table[i].n, x.cols, low->shape->stream, tape->birth);
    }
    straight = ftmem__binary(tape, FTMEM__OP_MUL, x, table[1]);
    y = attention_rotate_half(tape, x);
    turned = ftmem__binary(tape, FTMEM__OP_MUL, y, table[0]);
    ftmem__drop(tape, y);
    y = ftmem__binary(tape, FTMEM__OP_ADD, straight, turned);
    ftmem__drop(tape, turned);
    ftmem__drop(tape, straight);
    for (i = 0; i < 2; i++) ftmem__drop(tape, table[i]);
    return y;
}

/* modeling_gptj.py GPTJAttention: keys first; the parts stay names of the attention's. */
static void attention_rotate_pairs(ftmem__low *low, ftmem__var qk[2], ftmem__var *locals, int32_t *count)
{
    ftmem__tape *tape = low->tape;
    int64_t rest = qk[0].cols - low->shape->rotary;
    ftmem__var part[2][2], y;
    int32_t i;
    for (i = 1; i >= 0; i--) part[i][0] = attention_slice(tape, qk[i], low->shape->rotary), part[i][1] = attention_slice(tape, qk[i], rest);
    for (i = 1; i >= 0; i--) attention_swap(tape, &part[i][0], attention_turn_pairs(low, part[i][0]));
    for (i = 1; i >= 0; i--) {
        y = attention_join(tape, part[i], qk[i]);
        y.joined = false;
        y.parted = true;
        attention_swap(tape, &qk[i], y);
        locals[(*count)++] = part[i][0], locals[(*count)++] = part[i][1];
    }
}

/* modeling_ernie4_5_moe.py apply_rotary_pos_emb: neighbours are turned in the stream's dtype, tables and both terms are fp32, and
   the tables are repeated in each call. */
static void attention_rotate_turned(ftmem__low *low, ftmem__var qk[2])
{
    ftmem__tape *tape = low->tape;
    ftmem__var table[2], y[2], straight, turned;
    int32_t i, dtype = qk[0].dtype;
    for (i = 0; i < 2; i++) {
        table[i] = ftmem__constant(low->shape->s * qk[0].cols, qk[0].cols, FTMEM_FP32);
        table[i].store = ftmem__alloc(tape, FTMEM__OP_TABLE, table[i].n, table[i].cols, FTMEM_FP32, tape->birth);
    }
    for (i = 0; i < 2; i++) {
        straight = ftmem__cast(tape, qk[i], FTMEM_FP32);
        attention_swap(tape, &straight, ftmem__binary(tape, FTMEM__OP_MUL, straight, table[0]));
        turned = attention_rotate_half(tape, qk[i]);
        attention_swap(tape, &turned, ftmem__cast(tape, turned, FTMEM_FP32));
        attention_swap(tape, &turned, ftmem__binary(tape, FTMEM__OP_MUL, turned, table[1]));
        y[i] = ftmem__binary(tape, FTMEM__OP_ADD, straight, turned);
        ftmem__drop(tape, turned);
        ftmem__drop(tape, straight);
    }
    for (i = 0; i < 2; i++) straight = ftmem__cast(tape, y[i], dtype), ftmem__drop(tape, qk[i]), qk[i] = straight;
    for (i = 0; i < 2; i++) ftmem__drop(tape, y[i]), ftmem__drop(tape, table[i]);
}

/* modeling_llama4.py apply_rotary_emb: pairs are complex numbers in fp32. */
static void attention_rotate_complex(ftmem__low *low, ftmem__var qk[2])
{
    ftmem__tape *tape = low->tape;
    ftmem__var wide[2], turned[2], table = ftmem__constant(low->shape->s * qk[0].cols, qk[0].cols, FTMEM_FP32), y[2];
    int32_t i;
    for (i = 0; i < 2; i++) wide[i] = ftmem__cast(tape, qk[i], FTMEM_FP32);
    for (i = 0; i < 2; i++) turned[i] = ftmem__binary(tape, FTMEM__OP_MUL, wide[i], table);
    for (i = 0; i < 2; i++) y[i] = ftmem__cast(tape, turned[i], qk[i].dtype);
    for (i = 0; i < 2; i++) ftmem__drop(tape, turned[i]), ftmem__drop(tape, wide[i]);
    for (i = 0; i < 2; i++) attention_swap(tape, &qk[i], y[i]);
}

/* modeling_gpt_oss.py apply_rotary_pos_emb */
static void attention_rotate_halves(ftmem__low *low, ftmem__var qk[2])
{
    ftmem__var turned[2];
    int32_t i;
    for (i = 0; i < 2; i++) turned[i] = ftmem__low_turn_pairs(low, qk[i]);
    for (i = 0; i < 2; i++) attention_swap(low->tape, &qk[i], turned[i]);
    qk[0].joined = qk[1].joined = true;
}

/* modeling_ministral3.py Ministral3Attention: a number for each position, in the queries' dtype. */
static void attention_scale_positions(ftmem__low *low, ftmem__var *q)
{
    ftmem__tape *tape = low->tape;
    ftmem__var scale = ftmem__constant(low->shape->s, 1, q->dtype);
    scale.store = ftmem__alloc(tape, FTMEM__OP_TABLE, scale.n, 1, q->dtype, tape->birth);
    attention_swap(tape, q, ftmem__binary(tape, FTMEM__OP_MUL, *q, scale));
    ftmem__drop(tape, scale);
}

/* Rotates queries and keys in place. The gradient that comes out of slices is laid out by heads: its view is a copy. */
void ftmem__low_rotate(ftmem__low *low, ftmem__var qk[2], ftmem__var *locals, int32_t *count)
{
    const ftmem__shape *shape = low->shape;
    bool whole = shape->family->turn == FTMEM__TURN_WHOLE && shape->rotary >= shape->d, pairs = shape->family->turn == FTMEM__TURN_PAIRS;
    bool fused = shape->family->qkv != FTMEM__QKV_SEPARATE; /* else program_view has copied */
    int64_t width[2];
    int32_t i;
    for (i = 0; i < 2; i++) {
        width[i] = qk[i].cols;
        qk[i] = ftmem__shaped(qk[i], qk[i].n, shape->d);
        if (fused && !whole && !pairs && !qk[i].joined && !qk[i].parted)
            attention_swap(low->tape, &qk[i], ftmem__unary(low->tape, FTMEM__OP_CONTIGUOUS, qk[i]));
    }
    if (shape->family->tables == FTMEM__TABLES_REPEATED) attention_repeat_tables(low);
    if (whole && low->kernels & FTMEM_FUSED_ROPE) attention_rotate_fused(low->tape, qk);
    else if (whole && shape->family->tables == FTMEM__TABLES_TURNED_FP32) attention_rotate_turned(low, qk);
    else if (whole) attention_rotate_whole(low, qk);
    else if (shape->family->turn == FTMEM__TURN_COMPLEX) attention_rotate_complex(low, qk);
    else if (shape->family->turn == FTMEM__TURN_HALVES) attention_rotate_halves(low, qk);
    else if (pairs) attention_rotate_pairs(low, qk, locals, count);
    else attention_rotate_slices(low, qk, shape->family->turn >= FTMEM__TURN_APART, shape->family->turn == FTMEM__TURN_APART, locals, count);
    for (i = 0; shape->family->tables == FTMEM__TABLES_REPEATED && i < 2; i++) ftmem__drop(low->tape, low->table[i]);
    if (shape->family->scaled_by_position) attention_scale_positions(low, &qk[0]);
    for (i = 0; i < 2; i++) qk[i] = ftmem__shaped(qk[i], qk[i].n, width[i]);
}

/* ---------------------------------------------------------------------------------------------------- kernels */

typedef struct attention_call {
    ftmem__low *low;
    ftmem__var q, k, v;  /* owned */
    bool mask;           /* a mask tensor is passed */
    int32_t query_dtype; /* before autocast */
    int32_t autocast;    /* eager attention: each matmul casts its operands itself; 0 elsewhere */
    int64_t groups;      /* query heads a key/value head */
    int64_t keys;        /* tokens that are looked at */
    int64_t pairs;       /* in chunks: a row's sum of their tokens' squares; 0: one chunk */
    ftmem__var named;    /* the additive mask of transformers' frame; store -1: none */
    ftmem__var *locals;  /* names of the attention's forward, alive until it returns */
    int32_t *count;
} attention_call;

static bool attention_half(int32_t dtype)
{
    return dtype == FTMEM_BF16 || dtype == FTMEM_FP16;
}

static int64_t attention_scores(const attention_call *call)
{
    const ftmem__shape *shape = call->low->shape;
    return call->low->b * shape->heads * (call->pairs ? call->pairs : shape->s * call->keys);
}

/* Of scores x keys, or of weights x values. */
static double attention_flops(const attention_call *call, int64_t width)
{
    return 2.0 * (double)attention_scores(call) * (double)width;
}

/* Of the whole call, forward and (with scores made again) backward. */
static double attention_flops_forward(const attention_call *call)
{
    return attention_flops(call, call->low->shape->d) + attention_flops(call, call->low->shape->dv);
}

static double attention_flops_backward(const attention_call *call)
{
    return 3 * attention_flops(call, call->low->shape->d) + 2 * attention_flops(call, call->low->shape->dv);
}

static int64_t attention_out_cols(const attention_call *call)
{
    return call->low->shape->heads * call->low->shape->dv;
}

static int64_t attention_out_n(const attention_call *call)
{
    return call->low->tokens * attention_out_cols(call);
}

/* repeat_kv: K and V copied to all query heads. */
static void attention_repeat(attention_call *call, bool view)
{
    ftmem__tape *tape = call->low->tape;
    int64_t n = call->q.n;
    bool one = view || (call->low->b == 1 && call->low->shape->job->attention == FTMEM_EAGER);            /* bmm takes one row's as it is */
    ftmem__op op = ftmem__low_kv_heads(call->low) == 1 && one ? FTMEM__OP_EXPAND_VIEW : FTMEM__OP_EXPAND; /* one head repeats without a copy */
    if (call->groups == 1) return;
    attention_swap(tape, &call->k, ftmem__apply(tape, op, &call->k, 1, n, call->q.cols, call->k.dtype));
    attention_swap(tape, &call->v, ftmem__apply(tape, op, &call->v, 1, attention_out_n(call), attention_out_cols(call), call->v.dtype));
}

/* A boolean mask becomes an additive one in the query's dtype, padded to 16 columns, inside each call. With alibi in it the
   mask is additive already, for each head. */
static ftmem__var attention_additive(attention_call *call, bool aligned)
{
    ftmem__tape *tape = call->low->tape;
    const ftmem__shape *shape = call->low->shape;
    bool alibi = shape->model->alibi == FTMEM_ON, ready = alibi || shape->tower;
    int64_t s = call->keys, rows = call->low->b * shape->s * (alibi ? shape->heads : 1);
    int16_t first = ready && shape->stream == call->q.dtype ? -1 : ftmem__alloc(tape, FTMEM__OP_MASK, rows * s, s, call->q.dtype, tape->birth);
    ftmem__var mask = ftmem__constant(rows * s, s, call->q.dtype);
    mask.store = first;
    if (aligned && s % 16) {
        mask.store = ftmem__alloc(tape, FTMEM__OP_MASK, rows * ((s + 15) / 16 * 16), s, call->q.dtype, tape->birth);
        ftmem__release(tape, first);
    }
    return mask;
}

static int64_t attention_up(int64_t x, int64_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

/* The output of a matmul is [rows, heads, tokens, dim]; the projection wants [rows, tokens, heads x dim]. */
static ftmem__var attention_transpose(attention_call *call, ftmem__var out)
{
    ftmem__var y = ftmem__unary(call->low->tape, FTMEM__OP_CLONE, out);
    ftmem__drop(call->low->tape, out);
    y = ftmem__shaped(y, y.n, attention_out_cols(call));
    return y;
}

/* Flash attention: logsumexp and two random-state scalars beside q, k, v, out. Its backward holds an fp32 dQ
   accumulator with row sums, and dK and dV for each query head when heads are grouped. */
static ftmem__var attention_flash(attention_call *call)
{
    const ftmem__shape *shape = call->low->shape;
    ftmem__tape *tape = call->low->tape;
    int64_t rows = call->low->b * shape->heads * attention_up(shape->s, 128);
    ftmem__var in[3], out;
    ftmem__node *node;
    in[0] = call->q;
    in[1] = call->k;
    in[2] = call->v;
    out = ftmem__apply(tape, FTMEM__OP_FLASH, in, 3, call->q.n, call->q.cols, call->q.dtype);
    ftmem__save_var(tape, out, out);
    ftmem__save_new(tape, out, call->low->b * shape->heads * shape->s, shape->s, FTMEM_FP32);
    ftmem__save_new(tape, out, 128, 0, FTMEM_INT64);
    if (!tape->cached_result) tape->flops += attention_flops_forward(call);
    node = ftmem__recorded(tape, out);
    if (node) {
        node->work = rows * attention_up(shape->d, shape->d <= 128 ? 32 : 64) * 4 + rows * 4;
        if (call->groups > 1) node->work += 2 * ftmem__bytes(call->q.dtype, call->q.n);
        node->flops = attention_flops_backward(call);
    }
    return call->q.joined ? attention_transpose(call, out) : out; /* flash's output has the queries' layout */
}

/* integrations/sdpa_attention.py create_position_bias_mask: masked where a mask says so, or where the future is; then dense
   rows of 16, seen by every row of the batch. Its name there lives on while the kernel runs. */
static ftmem__var attention_bias_mask(attention_call *call)
{
    ftmem__tape *tape = call->low->tape;
    const ftmem__shape *shape = call->low->shape;
    bool causal = !call->mask && shape->causal && !call->low->cross;
    int64_t s = call->keys, n = shape->heads * shape->s * s * (call->mask ? call->low->b : 1);
    ftmem__var bias = ftmem__keep(tape, *call->low->bias), future = ftmem__constant(0, 0, FTMEM_BOOL);
    if (causal) {
        future.store = ftmem__alloc(tape, FTMEM__OP_MASK, shape->s * s, s, FTMEM_BOOL, tape->birth);
        future = ftmem__shaped(future, shape->s * s, future.cols);
    }
    if (causal || call->mask) attention_swap(tape, &bias, ftmem__apply(tape, FTMEM__OP_WHERE, &bias, 1, n, s, bias.dtype));
    if (causal) ftmem__save_var(tape, bias, future);
    if (!call->low->cross) attention_swap(tape, &bias, ftmem__unary(tape, FTMEM__OP_CLONE, bias)); /* a permuted table becomes dense */
    ftmem__drop(tape, future);
    call->named = ftmem__keep(tape, bias);
    attention_swap(tape, &bias, ftmem__cast(tape, bias, call->q.dtype));
    if (s % 16) attention_swap(tape, &bias, ftmem__apply(tape, FTMEM__OP_PAD, &bias, 1, n / s * attention_up(s, 16), s, bias.dtype));
    n = attention_scores(call);
    if (bias.n < n) attention_swap(tape, &bias, ftmem__apply(tape, FTMEM__OP_EXPAND_VIEW, &bias, 1, n, s, bias.dtype));
    return bias;
}

/* Memory-efficient attention: logsumexp over rows padded to 32; backward holds row sums, and for 16-bit inputs an fp32
   dQ accumulator. The additive mask is kept. */
static ftmem__var attention_efficient(attention_call *call)
{
    const ftmem__shape *shape = call->low->shape;
    ftmem__tape *tape = call->low->tape;
    int64_t heads = call->low->b * shape->heads;
    ftmem__var in[3], out, mask = { 0 };
    ftmem__node *node;
    mask.store = -1;
    if (call->low->bias) mask = attention_bias_mask(call);
    else if (call->mask) mask = attention_additive(call, true);
    in[0] = call->q;
    in[1] = call->k;
    in[2] = call->v;
    out = ftmem__apply(tape, FTMEM__OP_EFFICIENT, in, 3, attention_out_n(call), attention_out_cols(call), call->q.dtype);
    ftmem__save_var(tape, out, out);
    if (call->low->bias) ftmem__fourth(tape, out, mask);
    else ftmem__save_var(tape, out, mask);
    ftmem__save_new(tape, out, out.grad || tape->mode == FTMEM__FORGET ? heads * attention_up(shape->s, 32) + 256 : 256, 0, FTMEM_FP32);
    ftmem__drop(tape, mask);
    if (!tape->cached_result) tape->flops += attention_flops_forward(call);
    node = ftmem__recorded(tape, out);
    if (node) {
        node->work = heads * shape->s * 4 + (attention_half(call->q.dtype) ? call->q.n * 4 : 0);
        node->flops = attention_flops_backward(call);
    }
    return out;
}

/* scores = q k^T (or weights x v; `width` is what is summed over or made), with q (and without grouping k and v) copied when rows are more than one: bmm wants them dense. */
static ftmem__var attention_matmul(attention_call *call, ftmem__var a, ftmem__var b, bool copy_a, bool copy_b, int64_t n, int64_t cols, int64_t width)
{
    ftmem__tape *tape = call->low->tape;
    ftmem__var out;
    bool many = call->low->b > 1;
    ftmem__var cast_a = ftmem__cast(tape, a, call->autocast ? call->autocast : a.dtype),
               cast_b = ftmem__cast(tape, b, call->autocast ? call->autocast : b.dtype);
    a = many && copy_a ? ftmem__unary(tape, FTMEM__OP_CLONE, cast_a) : ftmem__keep(tape, cast_a);
    b = many && copy_b ? ftmem__unary(tape, FTMEM__OP_CLONE, cast_b) : ftmem__keep(tape, cast_b);
    out = ftmem__matmul(tape, FTMEM__OP_BMM, a, b, NULL, n, cols, attention_flops(call, width));
    ftmem__drop(tape, b);
    ftmem__drop(tape, a);
    ftmem__drop(tape, cast_b);
    ftmem__drop(tape, cast_a);
    return out;
}

/* Q, K and V come out of their projections as views that are not dense: their gradients are copied once. */
static void attention_views(attention_call *call)
{
    ftmem__tape *tape = call->low->tape;
    if (!call->q.joined && !call->q.parted) attention_swap(tape, &call->q, ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, call->q));
    if (!call->k.joined && !call->k.parted) attention_swap(tape, &call->k, ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, call->k));
    if (!call->v.parted) attention_swap(tape, &call->v, ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, call->v));
}

/* Softmax over scores in fp32: fp16 goes in directly, bf16 by way of an fp32 copy. Takes over the scores. */
static ftmem__var attention_softmax32(ftmem__tape *tape, ftmem__var scores, int32_t query_dtype)
{
    ftmem__var in = scores.dtype == FTMEM_FP16 ? ftmem__keep(tape, scores) : ftmem__cast(tape, scores, FTMEM_FP32), p, y;
    p = ftmem__apply(tape, FTMEM__OP_SOFTMAX, &in, 1, in.n, in.cols, FTMEM_FP32);
    ftmem__drop(tape, in);
    y = ftmem__cast(tape, p, query_dtype);
    ftmem__drop(tape, p);
    ftmem__drop(tape, scores);
    return y;
}

/* F.softmax(scores, dtype=dtype): fp16 widens inside the kernel. The scores stay the caller's. */
static ftmem__var attention_softmax_to(ftmem__tape *tape, ftmem__var scores, int32_t dtype)
{
    ftmem__var in = scores.dtype == FTMEM_FP16 && dtype == FTMEM_FP32 ? ftmem__keep(tape, scores) : ftmem__cast(tape, scores, dtype), p;
    p = ftmem__apply(tape, FTMEM__OP_SOFTMAX, &in, 1, in.n, in.cols, dtype);
    ftmem__drop(tape, in);
    return p;
}

/* Softmax in the scores' own dtype, which autocast makes fp32 (modeling_gpt2.py, modeling_gptj.py). Takes over the scores. */
static ftmem__var attention_softmax_own(ftmem__low *low, ftmem__var scores, int32_t value_dtype)
{
    ftmem__tape *tape = low->tape;
    ftmem__var p = attention_softmax_to(tape, scores, low->shape->autocast ? FTMEM_FP32 : scores.dtype), y;
    if (!low->shape->family->wide_scores) ftmem__drop(tape, scores); /* modeling_gpt2.py: the name is reused before the cast */
    y = ftmem__cast(tape, p, low->shape->family->softmax_uncast ? p.dtype : value_dtype);
    if (low->shape->family->wide_scores) ftmem__drop(tape, scores);
    ftmem__drop(tape, p);
    return y;
}

/* q k^T; over fp32 copies in modeling_gptj.py, which autocast casts back. */
static ftmem__var attention_scores_of(attention_call *call, bool single)
{
    ftmem__tape *tape = call->low->tape;
    int64_t n = attention_scores(call), s = call->keys;
    int32_t autocast = call->low->shape->autocast, i;
    ftmem__var wide[2], in[2], raw;
    if (!call->low->shape->family->wide_scores)
        return attention_matmul(call, call->q, call->k, !call->q.joined, single && !call->k.joined, n, s, call->low->shape->d);
    wide[0] = ftmem__cast(tape, call->q, FTMEM_FP32);
    wide[1] = ftmem__cast(tape, call->k, FTMEM_FP32);
    for (i = 0; i < 2; i++) in[i] = ftmem__cast(tape, wide[i], autocast ? autocast : FTMEM_FP32);
    raw = attention_matmul(call, in[0], in[1], true, true, n, s, call->low->shape->d);
    for (i = 0; i < 2; i++) ftmem__drop(tape, in[i]), ftmem__drop(tape, wide[i]);
    return raw;
}

/* transformers' eager_attention_forward. */
static ftmem__var attention_eager(attention_call *call)
{
    ftmem__low *low = call->low;
    ftmem__tape *tape = low->tape;
    bool single = call->groups == 1;
    ftmem__var mask = ftmem__constant(low->b * low->shape->s * call->keys, call->keys, low->shape->mask), raw, scaled, p, out;
    raw = attention_scores_of(call, single);
    scaled = ftmem__unary(tape, FTMEM__OP_SCALE, raw);
    ftmem__drop(tape, raw);
    if (low->shape->model->attention_softcap > 0) scaled = ftmem__low_softcap(low, scaled);
    raw = call->mask ? ftmem__binary(tape, FTMEM__OP_ADD, scaled, mask) : ftmem__keep(tape, scaled);
    ftmem__drop(tape, scaled);
    p = low->shape->family->softmax_own_dtype ? attention_softmax_own(low, raw, call->query_dtype) : attention_softmax32(tape, raw, call->query_dtype);
    p = ftmem__low_dropout(low, p, low->shape->model->attention_dropout);
    out = attention_matmul(call, p, call->v, false, single, attention_out_n(call), low->shape->dv, low->shape->dv);
    low->weights = p; /* returned: the block's forward names it `_` or attn_weights */
    low->has_weights = true;
    return attention_transpose(call, out);
}

static void attention_name(attention_call *call, ftmem__var value)
{
    call->locals[(*call->count)++] = value;
}

/* modeling_t5.py, modeling_bart.py eager_attention_forward: one name, attn_weights, for everything from the scores to the dropped weights. */
static ftmem__var attention_eager_t5(attention_call *call)
{
    ftmem__low *low = call->low;
    ftmem__tape *tape = low->tape;
    bool single = call->groups == 1;
    ftmem__var mask = ftmem__constant(low->b * low->shape->s * call->keys, call->keys, low->shape->stream), w = attention_scores_of(call, single), wide, out;
    attention_swap(tape, &w, ftmem__unary(tape, FTMEM__OP_SCALE, w));
    if (low->bias) attention_swap(tape, &w, ftmem__binary(tape, FTMEM__OP_ADD, w, *low->bias));
    if (call->mask) attention_swap(tape, &w, ftmem__binary(tape, FTMEM__OP_ADD, w, mask));
    wide = ftmem__cast(tape, w, low->shape->autocast ? FTMEM_FP32 : w.dtype);
    attention_swap(tape, &wide, ftmem__unary(tape, FTMEM__OP_SOFTMAX, wide));
    attention_swap(tape, &w, wide);
    w = ftmem__low_dropout(low, w, low->shape->model->attention_dropout);
    out = attention_matmul(call, w, call->v, false, single && !call->v.joined, attention_out_n(call), low->shape->dv, low->shape->dv);
    if (low->has_weights) attention_name(call, low->weights); /* T5Block: `_` is bound anew when this returns */
    low->weights = w;
    low->has_weights = true;
    return attention_transpose(call, out);
}

/* weights x V, and the weights handed on; takes over them. */
static ftmem__var attention_context(attention_call *call, ftmem__var p)
{
    ftmem__low *low = call->low;
    ftmem__var out = attention_matmul(call, p, call->v, false, call->groups == 1, attention_out_n(call), low->shape->dv, low->shape->dv);
    low->weights = p;
    low->has_weights = true;
    return attention_transpose(call, out);
}

/* modeling_falcon.py FalconAttention.forward without sdpa: scaled in place; with alibi in fp32. */
static ftmem__var attention_eager_falcon(attention_call *call)
{
    ftmem__low *low = call->low;
    ftmem__tape *tape = low->tape;
    bool alibi = low->shape->model->alibi == FTMEM_ON;
    int64_t s = low->shape->s;
    int32_t hidden = low->shape->autocast ? FTMEM_FP32 : low->shape->stream;
    ftmem__var mask = ftmem__constant(low->b * s * s, s, low->shape->stream), raw, sum, p;
    raw = attention_scores_of(call, call->groups == 1);
    if (alibi) {
        attention_name(call, raw);
        sum = ftmem__cast(tape, raw, FTMEM_FP32);
        attention_name(call, sum);
        raw = ftmem__binary(tape, FTMEM__OP_ADD, sum, ftmem__constant(low->b * low->shape->heads * s, s, low->shape->stream));
    }
    attention_swap(tape, &raw, ftmem__unary(tape, FTMEM__OP_SCALE_IN_PLACE, raw));
    sum = ftmem__binary(tape, FTMEM__OP_ADD, raw, mask);
    p = attention_softmax_to(tape, sum, hidden);
    ftmem__drop(tape, sum);
    if (alibi) attention_name(call, raw);
    else ftmem__drop(tape, raw);
    return attention_context(call, alibi ? ftmem__low_dropout(low, p, low->shape->model->attention_dropout) : p);
}

/* modeling_mpt.py MptAttention.forward: alibi in fp32 widens the scores; a boolean mask fills them. */
static ftmem__var attention_eager_mpt(attention_call *call)
{
    ftmem__low *low = call->low;
    ftmem__tape *tape = low->tape;
    int64_t s = low->shape->s;
    ftmem__var scores = attention_scores_of(call, true), p;
    attention_swap(tape, &scores, ftmem__unary(tape, FTMEM__OP_SCALE, scores));
    attention_swap(tape, &scores, ftmem__binary(tape, FTMEM__OP_ADD, scores, ftmem__constant(low->shape->heads * s, s, FTMEM_FP32)));
    attention_swap(tape, &scores, ftmem__unary(tape, FTMEM__OP_FILL, scores));
    attention_name(call, scores);
    p = attention_softmax_to(tape, scores, FTMEM_FP32);
    attention_swap(tape, &p, ftmem__cast(tape, p, call->query_dtype));
    return attention_context(call, ftmem__low_dropout(low, p, low->shape->model->attention_dropout));
}

/* modeling_bloom.py BloomAttention.forward: baddbmm over copies that join rows and heads, which keep their names. */
static ftmem__var attention_eager_bloom(attention_call *call)
{
    ftmem__low *low = call->low;
    ftmem__tape *tape = low->tape;
    int64_t s = low->shape->s;
    ftmem__var *part[3], scores, sum, p;
    int32_t i;
    part[0] = &call->q;
    part[1] = &call->k;
    part[2] = &call->v;
    for (i = 0; i < 3 && low->b > 1; i++) attention_swap(tape, part[i], ftmem__unary(tape, FTMEM__OP_CLONE, *part[i]));
    scores = attention_matmul(call, call->q, call->k, false, false, attention_scores(call), s, low->shape->d);
    attention_name(call, scores);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, scores, ftmem__constant(low->b * s * s, s, low->shape->stream));
    attention_name(call, sum);
    p = attention_softmax_to(tape, sum, FTMEM_FP32);
    attention_swap(tape, &p, ftmem__cast(tape, p, call->query_dtype));
    for (i = 0; i < 3; i++) attention_name(call, ftmem__keep(tape, *part[i]));
    call->groups = 0; /* the values are copied already */
    return attention_context(call, ftmem__low_dropout(low, p, low->shape->model->attention_dropout));
}

/* Scores less their highest: the index of that is kept, and its gradient is scattered into zeros. Takes over the scores. */
static ftmem__var attention_less_highest(ftmem__tape *tape, ftmem__var scores)
{
    ftmem__var highest = ftmem__apply(tape, FTMEM__OP_MAX, &scores, 1, scores.n / scores.cols, 1, scores.dtype), y;
    ftmem__node *node = ftmem__recorded(tape, highest);
    ftmem__save_new(tape, highest, highest.n, 1, FTMEM_INT64);
    if (node) node->work = ftmem__round512(ftmem__bytes(scores.dtype, scores.n));
    y = ftmem__binary(tape, FTMEM__OP_SUB, scores, highest);
    ftmem__drop(tape, highest);
    ftmem__drop(tape, scores);
    return y;
}

/* A column of each head's sink beside the scores, which are taken over. */
static ftmem__var attention_with_sinks(attention_call *call, ftmem__var scores)
{
    ftmem__low *low = call->low;
    int64_t heads = low->shape->heads, rows = scores.n / scores.cols;
    ftmem__var w = ftmem__low_parameter(low, FTMEM_ROLE_NORM, heads, heads, low->trained), in[2], y;
    in[0] = scores;
    in[1] = ftmem__apply(low->tape, FTMEM__OP_EXPAND_VIEW, &w, 1, rows, 1, w.dtype);
    y = ftmem__apply(low->tape, FTMEM__OP_CAT, in, 2, scores.n + rows, scores.cols + 1, scores.dtype);
    ftmem__drop(low->tape, scores);
    return y;
}

/* modeling_mimo_v2_flash.py eager_attention_forward: window blocks have sinks. modeling_gpt_oss.py: all have them, and the scores
   before and after keep names of their own. */
static ftmem__var attention_eager_sinks(attention_call *call)
{
    ftmem__low *low = call->low;
    ftmem__tape *tape = low->tape;
    bool named = low->shape->family->eager == FTMEM__EAGER_SINKS_NAMED, sinks = named || low->kind == FTMEM__LAYER_SLIDING;
    int64_t n = attention_scores(call), s = call->keys;
    ftmem__var mask = ftmem__constant(low->b * low->shape->s * s, s, low->shape->stream), x, scores = { 0 }, p, weights, out;
    x = attention_scores_of(call, call->groups == 1);
    attention_swap(tape, &x, ftmem__unary(tape, FTMEM__OP_SCALE, x));
    attention_swap(tape, &x, ftmem__binary(tape, FTMEM__OP_ADD, x, mask));
    if (named) scores = ftmem__keep(tape, x);
    if (sinks) x = attention_with_sinks(call, x);
    x = attention_less_highest(tape, x);
    p = ftmem__unary(tape, FTMEM__OP_SOFTMAX, x);
    if (!named) ftmem__drop(tape, x);
    if (sinks) attention_swap(tape, &p, ftmem__apply(tape, FTMEM__OP_SLICE, &p, 1, n, s, p.dtype));
    weights = ftmem__low_dropout(low, ftmem__keep(tape, p), low->shape->model->attention_dropout);
    attention_swap(tape, &weights, ftmem__cast(tape, weights, call->v.dtype));
    if (named) ftmem__drop(tape, scores);
    out = attention_matmul(call, weights, call->v, false, call->groups == 1, attention_out_n(call), low->shape->dv, low->shape->dv);
    low->weights = weights;
    low->has_weights = true;
    out = attention_transpose(call, out);
    if (named) ftmem__drop(tape, x);
    ftmem__drop(tape, p);
    return out;
}

static ftmem__var attention_eager_of(attention_call *call)
{
    switch (call->low->shape->family->eager) {
    case FTMEM__EAGER_FALCON: return attention_eager_falcon(call);
    case FTMEM__EAGER_MPT: return attention_eager_mpt(call);
    case FTMEM__EAGER_BLOOM: return attention_eager_bloom(call);
    case FTMEM__EAGER_T5: return attention_eager_t5(call);
    case FTMEM__EAGER_SINKS:
    case FTMEM__EAGER_SINKS_NAMED: return attention_eager_sinks(call);
    default: return attention_eager(call);
    }
}

enum { ATTENTION_CHUNKS = 64, ATTENTION_CHUNKS_FLASH }; /* beside FTMEM_KERNEL_... */

/* Windows of a grid of merged patches: those that are whole, and those that its edges cut. */
typedef struct attention_chunk {
    int64_t count, tokens;
} attention_chunk;

static void attention_chunks(const ftmem__low *low, attention_chunk chunk[4])
{
    const ftmem__shape *shape = low->shape;
    int64_t window = low->kind == FTMEM__LAYER_SLIDING ? shape->window : 0, side[2], rest[2], i;
    memset(chunk, 0, 4 * sizeof chunk[0]);
    chunk[0].count = low->b;
    chunk[0].tokens = shape->s;
    for (i = 0; i < 2 && window; i++) side[i] = shape->grid[i] / window, rest[i] = shape->grid[i] % window;
    for (i = 0; i < 4 && window; i++) {
        int64_t high = i & 1 ? rest[0] : window, wide = i & 2 ? rest[1] : window;
        chunk[i].count = low->b * (i & 1 ? 1 : side[0]) * (i & 2 ? 1 : side[1]);
        chunk[i].tokens = high * wide * shape->unit;
        if (chunk[i].tokens == 0) chunk[i].count = 0;
    }
}

/* Bytes that the kernel keeps of all chunks beside their outputs: log-sum-exps, and two scalars of random state each. */
static int64_t attention_chunk_bytes(const attention_call *call, const attention_chunk chunk[4], bool flash)
{
    int64_t sum = 0, i;
    for (i = 0; i < 4; i++)
        sum += chunk[i].count * (1024 + ftmem__round512(4 * call->low->shape->heads * (flash ? chunk[i].tokens : attention_up(chunk[i].tokens, 32))));
    return sum;
}

/* Inside the backward of the first one, which comes last. */
static int64_t attention_chunk_work(const attention_call *call, const attention_chunk *first, bool flash)
{
    const ftmem__shape *shape = call->low->shape;
    int64_t tokens = shape->heads * first->tokens, rows = shape->heads * attention_up(first->tokens, 128);
    if (flash) return rows * attention_up(shape->d, shape->d <= 128 ? 32 : 64) * 4 + rows * 4;
    return tokens * 4 + (attention_half(call->q.dtype) ? tokens * shape->d * 4 : 0);
}

/* modeling_qwen2_5_vl.py Qwen2_5_VLVisionAttention.forward: queries, keys and values split, a kernel for each image or window, the
   outputs, a list of names, joined. Split gradients are joined again. */
static ftmem__var attention_in_chunks(attention_call *call, bool flash)
{
    ftmem__tape *tape = call->low->tape;
    ftmem__var in[3], out;
    attention_chunk chunk[4];
    ftmem__node *node;
    int32_t i;
    attention_chunks(call->low, chunk);
    call->pairs = 0;
    for (i = 0; i < 4; i++) call->pairs += chunk[i].count / call->low->b * chunk[i].tokens * chunk[i].tokens;
    attention_swap(tape, &call->q, ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, call->q));
    attention_swap(tape, &call->k, ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, call->k));
    attention_swap(tape, &call->v, ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, call->v));
    in[0] = call->q;
    in[1] = call->k;
    in[2] = call->v;
    out = ftmem__apply(tape, flash ? FTMEM__OP_FLASH : FTMEM__OP_EFFICIENT, in, 3, attention_out_n(call), attention_out_cols(call), call->q.dtype);
    ftmem__save_var(tape, out, out);
    ftmem__save_new(tape, out, attention_chunk_bytes(call, chunk, flash) / 4, 0, FTMEM_FP32);
    if (!tape->cached_result) tape->flops += attention_flops_forward(call);
    node = ftmem__recorded(tape, out);
    if (node) {
        node->work = attention_chunk_work(call, chunk[0].count ? chunk : chunk + 3, flash);
        node->flops = attention_flops_backward(call);
    }
    call->locals[(*call->count)++] = out;
    return ftmem__unary(tape, FTMEM__OP_CAT, out);
}

/* modeling_mpt.py and modeling_bloom.py have no other attention, modeling_mimo_v2_flash.py and modeling_gpt_oss.py none but flash-attention 3 and 4. */
bool ftmem__low_own_eager(const ftmem__low *low)
{
    int32_t eager = low->shape->family->eager;
    return eager == FTMEM__EAGER_MPT || eager == FTMEM__EAGER_BLOOM || eager >= FTMEM__EAGER_SINKS;
}

/* aten/src/ATen/native/transformers/attention.cpp _scaled_dot_product_attention_math: scales q and k apart, in fp32. */
static ftmem__var attention_math(attention_call *call)
{
    ftmem__low *low = call->low;
    ftmem__tape *tape = low->tape;
    int64_t n = attention_scores(call), s = call->keys, area = low->shape->s * s;
    int32_t dtype = call->q.dtype;
    ftmem__var mask, q, k, scores, sum, p, out, cast;
    attention_swap(tape, &call->q, ftmem__cast(tape, call->q, FTMEM_FP32));
    attention_swap(tape, &call->k, ftmem__cast(tape, call->k, FTMEM_FP32));
    attention_swap(tape, &call->v, ftmem__cast(tape, call->v, FTMEM_FP32));
    q = ftmem__unary(tape, FTMEM__OP_SCALE, call->q);
    mask = ftmem__constant(area, s, FTMEM_FP32);
    if (call->mask) mask = attention_additive(call, false);
    else if (low->shape->causal && !low->cross) mask.store = ftmem__alloc(tape, FTMEM__OP_MASK, area, s, FTMEM_FP32, tape->birth);
    attention_repeat(call, false);
    k = ftmem__unary(tape, FTMEM__OP_SCALE, call->k);
    scores = attention_matmul(call, q, k, true, call->groups == 1, n, s, low->shape->d);
    ftmem__drop(tape, q);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, scores, mask);
    ftmem__drop(tape, scores);
    p = ftmem__unary(tape, FTMEM__OP_SOFTMAX, sum);
    ftmem__drop(tape, sum);
    p = ftmem__low_dropout(low, p, low->shape->model->attention_dropout);
    out = attention_matmul(call, p, call->v, false, call->groups == 1, attention_out_n(call), low->shape->dv, low->shape->dv);
    ftmem__drop(tape, p);
    ftmem__drop(tape, k);
    ftmem__drop(tape, mask);
    cast = ftmem__cast(tape, out, dtype);
    ftmem__drop(tape, out);
    return attention_transpose(call, cast);
}

/* torch aten/native/transformers/cuda/sdp_utils.cpp and transformers' use_gqa_in_sdpa: which kernel runs. */
static int32_t attention_kernel(const attention_call *call, int32_t dtype)
{
    const ftmem__shape *shape = call->low->shape;
    const ftmem_job *job = shape->job;
    bool one = shape->d <= 256 && shape->dv == shape->d; /* integrations/sdpa_attention.py use_gqa_in_sdpa, as flash does */
    bool grouped = call->groups > 1 && !call->mask && job->repeat_kv != FTMEM_ON && one, mask = call->mask || shape->family->positions == FTMEM__RELATIVE;
    if (job->attention == FTMEM_EAGER || ftmem__low_own_eager(call->low)) return FTMEM_KERNEL_EAGER;
    if (job->attention == FTMEM_FLASH2) return FTMEM_KERNEL_FLASH;
    if (job->attention == FTMEM_SDPA_MATH) return FTMEM_KERNEL_MATH;
    if (attention_half(dtype) && !mask && job->gpu.sm_arch >= 80 && one) return FTMEM_KERNEL_FLASH;
    if (!grouped && (dtype != FTMEM_BF16 || job->gpu.sm_arch >= 80)) return FTMEM_KERNEL_EFFICIENT;
    return FTMEM_KERNEL_MATH;
}

static bool attention_masked(const ftmem__low *low)
{
    if (low->cross) return low->shape->mask_cross;
    return low->kind == 1 ? low->shape->mask_sliding : low->shape->mask_full;
}

int32_t ftmem__low_kernel(const ftmem__low *low, int32_t dtype)
{
    attention_call call = { 0 };
    call.low = (ftmem__low *)(uintptr_t)low;
    call.groups = low->shape->heads / ftmem__low_kv_heads(low);
    call.mask = attention_masked(low);
    return attention_kernel(&call, low->shape->autocast ? low->shape->autocast : dtype);
}

/* sdpa is on autocast's list: its operands are cast. */
static void attention_autocast(attention_call *call)
{
    ftmem__tape *tape = call->low->tape;
    int32_t dtype = call->low->shape->autocast;
    if (!dtype) return;
    attention_swap(tape, &call->q, ftmem__cast(tape, call->q, dtype));
    attention_swap(tape, &call->k, ftmem__cast(tape, call->k, dtype));
    attention_swap(tape, &call->v, ftmem__cast(tape, call->v, dtype));
}

ftmem__var ftmem__low_attend(ftmem__low *low, const ftmem__var qkv[3], ftmem__var *locals, int32_t *count)
{
    attention_call call = { 0 };
    ftmem__tape *tape = low->tape;
    ftmem__var out;
    int32_t kernel = ftmem__low_kernel(low, qkv[0].dtype);
    bool grouped;
    call.low = low;
    call.locals = locals;
    call.count = count;
    call.groups = low->cross ? low->shape->heads / low->shape->kv_heads : qkv[0].n / qkv[1].n;
    call.keys = low->cross ? qkv[1].n / (low->b * low->shape->kv) : low->shape->s;
    call.mask = attention_masked(low);
    call.named.store = -1;
    call.q = ftmem__keep(tape, qkv[0]);
    call.k = ftmem__keep(tape, qkv[1]);
    call.v = ftmem__keep(tape, qkv[2]);
    grouped = kernel == FTMEM_KERNEL_FLASH && low->shape->job->repeat_kv != FTMEM_ON;
    if (kernel != FTMEM_KERNEL_FLASH && low->shape->family->qkv != FTMEM__QKV_SEPARATE && !low->shape->chunked) attention_views(&call);
    call.query_dtype = qkv[0].dtype;
    if (kernel == FTMEM_KERNEL_EFFICIENT && low->shape->family->qkv == FTMEM__QKV_INDEXED) grouped = true; /* modeling_falcon.py calls torch's sdpa as it is */
    if (!grouped && kernel != FTMEM_KERNEL_MATH) attention_repeat(&call, kernel == FTMEM_KERNEL_EFFICIENT);
    if (kernel == FTMEM_KERNEL_EAGER) call.autocast = low->shape->autocast;
    else attention_autocast(&call);
    if (low->shape->chunked) kernel = kernel == FTMEM_KERNEL_FLASH ? ATTENTION_CHUNKS_FLASH : ATTENTION_CHUNKS;
    switch (kernel) {
    case ATTENTION_CHUNKS_FLASH:
    case ATTENTION_CHUNKS: out = attention_in_chunks(&call, kernel == ATTENTION_CHUNKS_FLASH); break;
    case FTMEM_KERNEL_FLASH: out = attention_flash(&call); break;
    case FTMEM_KERNEL_EFFICIENT: out = attention_efficient(&call); break;
    case FTMEM_KERNEL_EAGER: out = attention_eager_of(&call); break;
    default: out = attention_math(&call); break;
    }
    ftmem__drop(tape, call.named);
    ftmem__drop(tape, call.q);
    ftmem__drop(tape, call.k);
    ftmem__drop(tape, call.v);
    return out;
}
