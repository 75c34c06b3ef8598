/* Linear attention by the gated delta rule (Gated DeltaNet), as transformers writes it out in torch: modeling_qwen3_next.py
   Qwen3NextGatedDeltaNet. The kernels of flash-linear-attention and causal-conv1d, which it takes where they are installed,
   are not modelled.

   The rule goes through the sequence in chunks of 64 tokens, one after another. All but a few of them are equal: the second
   one is run, and what it keeps and computes is counted for the rest (delta_like_before). */
#include "lower.h"

enum { DELTA_CHUNK = 64, DELTA_NAMES = 28, DELTA_AT_ENDS = 4 }; /* chunks that are run themselves: two at each end */

typedef struct delta_frame { /* names of a Python function: alive until it returns */
    ftmem__var name[DELTA_NAMES];
    int32_t count;
} delta_frame;

/* Widths of one block. */
typedef struct delta_widths {
    int64_t heads, groups, k, v, keys, values; /* heads of values; of them for each of keys; a head's width; all heads' */
    int64_t length, chunks;                    /* tokens of a row, filled up to whole chunks */
    bool by_tokens;                            /* queries and keys stay laid out by tokens first: nothing has copied them */
} delta_widths;

static delta_widths delta_widths_of(const ftmem__low *low)
{
    const ftmem_model *m = low->shape->model;
    delta_widths w;
    w.heads = m->linear_value_heads;
    w.groups = w.heads / m->linear_key_heads;
    w.k = m->linear_key_dim;
    w.v = m->linear_value_dim;
    w.keys = m->linear_key_heads * w.k;
    w.values = w.heads * w.v;
    w.chunks = (low->shape->s + DELTA_CHUNK - 1) / DELTA_CHUNK;
    w.length = w.chunks * DELTA_CHUNK;
    w.by_tokens = false;
    return w;
}

static ftmem__var delta_name(delta_frame *frame, ftmem__var value)
{
    if (frame->count < DELTA_NAMES) frame->name[frame->count++] = value;
    return value;
}

static void delta_leave(ftmem__low *low, delta_frame *frame)
{
    while (frame->count > 0) ftmem__drop(low->tape, frame->name[--frame->count]);
}

static void delta_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

/* ---------------------------------------------------------------------------------------------------- primitives */

/* x * y, one of which is repeated along the other's last dimension. */
static ftmem__var delta_times(ftmem__tape *tape, ftmem__var x, ftmem__var each)
{
    ftmem__var y = ftmem__binary(tape, FTMEM__OP_MUL, x, each);
    y.cols = x.cols;
    return y;
}

/* An operand of a matmul in autocast's dtype, dense. */
static ftmem__var delta_operand(ftmem__low *low, ftmem__var x, bool copied)
{
    ftmem__var y = ftmem__cast(low->tape, x, low->shape->autocast ? low->shape->autocast : x.dtype);
    if (copied) delta_replace(low->tape, &y, ftmem__unary(low->tape, FTMEM__OP_CLONE, y));
    return y;
}

/* a @ b over rows x heads (and chunks), n elements in the result, sums over `inner`. bmm wants rows and heads together. */
static ftmem__var delta_matmul_of(ftmem__low *low, ftmem__var a, ftmem__var b, bool copy_a, bool copy_b, int64_t n, int64_t cols, int64_t inner)
{
    ftmem__tape *tape = low->tape;
    ftmem__var x = delta_operand(low, a, copy_a), w = delta_operand(low, b, copy_b), y;
    y = ftmem__matmul(tape, FTMEM__OP_BMM, x, w, NULL, n, cols, 2.0 * (double)n * (double)inner);
    ftmem__drop(tape, w);
    ftmem__drop(tape, x);
    return y;
}

static ftmem__var delta_matmul(ftmem__low *low, ftmem__var a, ftmem__var b, int64_t n, int64_t cols, int64_t inner)
{
    return delta_matmul_of(low, a, b, false, false, n, cols, inner);
}

/* x[:, :, i] of so many chunks, or a part of a dimension: a view, whose gradient is written into zeros of the whole. */
static ftmem__var delta_select(ftmem__tape *tape, ftmem__var x, int64_t parts)
{
    return ftmem__apply(tape, FTMEM__OP_SLICE, &x, 1, x.n / parts, x.cols, x.dtype);
}

/* F.pad to whole chunks, a copy even where nothing is missing; takes over x. */
static ftmem__var delta_pad(const ftmem__low *low, const delta_widths *w, ftmem__var x)
{
    ftmem__var y = ftmem__apply(low->tape, FTMEM__OP_PAD_COPY, &x, 1, x.n / low->shape->s * w->length, x.cols, x.dtype);
    ftmem__drop(low->tape, x);
    return y;
}

/* l2norm: x * rsqrt((x * x).sum(-1) + eps); takes over x. */
static ftmem__var delta_l2norm(ftmem__tape *tape, ftmem__var x)
{
    ftmem__var square = ftmem__binary(tape, FTMEM__OP_MUL, x, x), sum, root, y;
    sum = ftmem__apply(tape, FTMEM__OP_SUM, &square, 1, x.n / x.cols, 1, x.dtype);
    ftmem__drop(tape, square);
    root = ftmem__unary(tape, FTMEM__OP_SHIFT, sum);
    ftmem__drop(tape, sum);
    delta_replace(tape, &root, ftmem__unary(tape, FTMEM__OP_RSQRT, root));
    y = delta_times(tape, x, root);
    ftmem__drop(tape, root);
    ftmem__drop(tape, x);
    return y;
}

/* (a - b).exp() with one of them repeated; n elements. */
static ftmem__var delta_decay_between(ftmem__low *low, ftmem__var a, ftmem__var b, int64_t n, int64_t cols, const ftmem__var *mask)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in[2], y;
    in[0] = a;
    in[1] = b;
    y = ftmem__apply(tape, FTMEM__OP_SUB, in, 2, n, cols, FTMEM_FP32);
    if (mask) {
        delta_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_FILL, y));
        ftmem__save_var(tape, y, *mask);
    }
    delta_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_EXP, y));
    return y;
}

/* x * (cumulative decay).exp(): made for each use. */
static ftmem__var delta_decayed(ftmem__low *low, ftmem__var x, ftmem__var cumulative)
{
    ftmem__var decay = ftmem__unary(low->tape, FTMEM__OP_EXP, cumulative), y = delta_times(low->tape, x, decay);
    ftmem__drop(low->tape, decay);
    return y;
}

/* torch.linalg.solve_triangular: keeps the system and its result; backward solves once more, and multiplies for the
   system's gradient, of which a triangle is taken (FunctionsManual.cpp linalg_solve_triangular_backward). */
static ftmem__var delta_solve(ftmem__low *low, ftmem__var system, ftmem__var right)
{
    ftmem__var in[2], y;
    ftmem__node *node;
    in[0] = system;
    in[1] = right;
    y = ftmem__apply(low->tape, FTMEM__OP_TRIANGULAR, in, 2, right.n, right.cols, FTMEM_FP32);
    ftmem__save_var(low->tape, y, system);
    node = ftmem__recorded(low->tape, y);
    if (!node) return y;
    node->work = ftmem__round512(ftmem__bytes(FTMEM_FP32, system.n));
    node->flops = 2.0 * (double)right.n * DELTA_CHUNK;
    return y;
}

/* --------------------------------------------------------------------------------------------------------- chunks */

typedef struct delta_scan {                                         /* what the chunks read, and what goes from one to the next */
    ftmem__var query, key, attention, values, decayed, chunk_decay; /* values: new_values; decayed: k_cumdecay */
    ftmem__var out, state, inter, written;                          /* core_attn_out, last_recurrent_state, inter_chunk_attn, v_new */
    int64_t tokens, chunks;                                         /* of a chunk: rows x heads x 64 */
} delta_scan;

/* v_new = new_values[:, :, i] - k_cumdecay[:, :, i] @ last_recurrent_state */
static void delta_write(ftmem__low *low, const delta_widths *w, delta_scan *s)
{
    ftmem__tape *tape = low->tape;
    ftmem__var value = delta_select(tape, s->values, s->chunks), key = delta_select(tape, s->decayed, s->chunks), known;
    known = delta_matmul(low, key, s->state, s->tokens * w->v, w->v, w->k);
    delta_replace(tape, &s->written, ftmem__binary(tape, FTMEM__OP_SUB, value, known));
    ftmem__drop(tape, known);
    ftmem__drop(tape, key);
    ftmem__drop(tape, value);
}

/* core_attn_out[:, :, i] = inter_chunk_attn + intra_chunk_attn[:, :, i] @ v_new */
static void delta_read(ftmem__low *low, const delta_widths *w, delta_scan *s)
{
    ftmem__tape *tape = low->tape;
    ftmem__var query = delta_select(tape, s->query, s->chunks), scores, intra, in[2];
    delta_replace(tape, &s->inter, delta_matmul_of(low, query, s->state, w->by_tokens && w->groups > 1, false, s->tokens * w->v, w->v, w->k));
    ftmem__drop(tape, query);
    scores = delta_select(tape, s->attention, s->chunks);
    intra = delta_matmul(low, scores, s->written, s->tokens * w->v, w->v, DELTA_CHUNK);
    ftmem__drop(tape, scores);
    in[0] = s->out;
    in[1] = ftmem__binary(tape, FTMEM__OP_ADD, s->inter, intra);
    ftmem__drop(tape, intra);
    delta_replace(tape, &s->out, ftmem__apply(tape, FTMEM__OP_COPY_SLICE, in, 2, s->out.n, s->out.cols, FTMEM_FP32));
    ftmem__drop(tape, in[1]);
}

/* last_recurrent_state = last_recurrent_state * chunk_decay[:, :, i] + key[:, :, i].transpose(-1, -2) @ v_new. Nobody reads
   the last one: its graph is gone with it. */
static void delta_update(ftmem__low *low, const delta_widths *w, delta_scan *s, bool last)
{
    ftmem__tape *tape = low->tape;
    bool no_grad = tape->no_grad;
    ftmem__var decay = delta_select(tape, s->chunk_decay, s->chunks), kept, key, added;
    tape->no_grad = no_grad || last;
    kept = delta_times(tape, s->state, decay);
    key = delta_select(tape, s->key, s->chunks);
    added = delta_matmul_of(low, key, s->written, w->by_tokens && w->groups > 1, false, s->state.n, s->state.cols, DELTA_CHUNK);
    ftmem__drop(tape, key);
    ftmem__drop(tape, decay);
    delta_replace(tape, &s->state, ftmem__binary(tape, FTMEM__OP_ADD, kept, added));
    ftmem__drop(tape, kept);
    ftmem__drop(tape, added);
    tape->no_grad = no_grad;
}

static void delta_chunk(ftmem__low *low, const delta_widths *w, delta_scan *s, bool last)
{
    delta_write(low, w, s);
    delta_read(low, w, s);
    delta_update(low, w, s, last);
}

/* FLOPs of a backward through nodes from `first` on. */
static double delta_backward_flops(const ftmem__tape *tape, int32_t first)
{
    double flops = 0;
    int32_t i, k;
    for (i = first; i < tape->nodes; i++)
        for (k = 0; k < tape->node[i].inputs; k++) flops += tape->node[i].in[k].grad ? tape->node[i].flops : 0;
    return flops;
}

/* So many chunks more, each like the one that has just been run: what it has left behind (bytes) and computed, as one operation
   that keeps it all. Their backwards reach no higher than that of the chunk after them, which finds more alive. */
static void delta_like_before(ftmem__low *low, delta_scan *s, int64_t chunks, int64_t bytes, double flops, double backward_flops)
{
    ftmem__tape *tape = low->tape;
    ftmem__var y = ftmem__unary(tape, FTMEM__OP_CHUNKS, s->state);
    ftmem__node *node = ftmem__recorded(tape, y);
    ftmem__save_var(tape, y, s->state);
    if (bytes > 0) bytes = chunks * bytes - tape->stores[y.store].bytes; /* the last one's state is the result */
    ftmem__save_new(tape, y, bytes / 4, s->state.cols, FTMEM_FP32);
    if (node) node->flops = (double)chunks * backward_flops;
    tape->flops += (double)chunks * flops;
    delta_replace(tape, &s->state, y);
}

static void delta_scan_all(ftmem__low *low, const delta_widths *w, delta_scan *s)
{
    ftmem__tape *tape = low->tape;
    int64_t i, live = 0;
    int32_t node = 0;
    double flops = 0;
    for (i = 0; i < s->chunks; i++) {
        if (i == 1) live = tape->live, flops = tape->flops, node = tape->nodes;
        delta_chunk(low, w, s, i == s->chunks - 1);
        if (i != 1 || s->chunks <= DELTA_AT_ENDS) continue;
        delta_like_before(low, s, s->chunks - DELTA_AT_ENDS, tape->live - live, tape->flops - flops, delta_backward_flops(tape, node));
        i = s->chunks - DELTA_AT_ENDS / 2 - 1;
    }
}

/* ----------------------------------------------------------------------------------------------------------- rule */

/* Keys and queries are repeated for each head of values (repeat_interleave); the caller's names hold the given ones. */
static ftmem__var delta_repeat(ftmem__low *low, const delta_widths *w, ftmem__var x)
{
    ftmem__var y;
    x = ftmem__shaped(x, x.n, w->k);
    if (w->groups == 1) return ftmem__keep(low->tape, x);
    y = ftmem__apply(low->tape, FTMEM__OP_EXPAND, &x, 1, x.n * w->groups, w->k, x.dtype);
    return y;
}

/* Everything in fp32 and by heads, which is a copy where it was not fp32; queries and keys are normalised. Takes over in[0] and
   in[1]; in: query, key, value, beta, decay. */
static void delta_prepare(ftmem__low *low, const delta_widths *w, ftmem__var in[5])
{
    ftmem__tape *tape = low->tape;
    ftmem__var wide[5];
    int32_t i;
    for (i = 0; i < 5; i++) wide[i] = ftmem__cast(tape, in[i], FTMEM_FP32);
    for (i = 0; i < 2; i++) ftmem__drop(tape, in[i]);
    for (i = 0; i < 5; i++) in[i] = wide[i];
    in[0] = delta_l2norm(tape, in[0]);
    in[1] = delta_l2norm(tape, in[1]);
    delta_replace(tape, &in[0], ftmem__unary(tape, FTMEM__OP_SCALE, in[0]));
    for (i = 0; i < 3; i++) wide[i] = ftmem__keep(tape, in[i]); /* all three are padded before the names are bound anew */
    for (i = 0; i < 3; i++) in[i] = delta_pad(low, w, in[i]);
    for (i = 0; i < 3; i++) ftmem__drop(tape, wide[i]);
    for (i = 3; i < 5; i++) wide[i] = ftmem__keep(tape, in[i]);
    for (i = 3; i < 5; i++) in[i] = delta_pad(low, w, in[i]);
    for (i = 3; i < 5; i++) ftmem__drop(tape, wide[i]);
}

/* The mask of what a token of a chunk may not see. */
static ftmem__var delta_mask(ftmem__low *low)
{
    ftmem__var mask = ftmem__constant(DELTA_CHUNK * DELTA_CHUNK, DELTA_CHUNK, FTMEM_BOOL);
    int16_t ones = ftmem__alloc(low->tape, FTMEM__OP_MASK, mask.n, mask.cols, FTMEM_BOOL, low->tape->birth);
    mask.store = ftmem__alloc(low->tape, FTMEM__OP_MASK, mask.n, mask.cols, FTMEM_BOOL, low->tape->birth);
    ftmem__release(low->tape, ones);
    return mask;
}

/* (a @ key.transpose(-1, -2)) * pairwise_decay */
static ftmem__var delta_scores(ftmem__low *low, const delta_widths *w, ftmem__var a, ftmem__var key, ftmem__var pairwise)
{
    ftmem__var scores = delta_matmul_of(low, a, key, w->by_tokens, w->by_tokens, pairwise.n, DELTA_CHUNK, w->k),
               y = ftmem__binary(low->tape, FTMEM__OP_MUL, scores, pairwise);
    ftmem__drop(low->tape, scores);
    return y;
}

static ftmem__var delta_zeros(ftmem__low *low, int64_t n, int64_t cols)
{
    ftmem__var zeros = ftmem__constant(n, cols, FTMEM_FP32);
    zeros.store = ftmem__alloc(low->tape, FTMEM__OP_TABLE, n, cols, FTMEM_FP32, low->tape->birth);
    return zeros;
}

/* A reshape to chunks whose gradient comes by columns, as solve_triangular makes it: it is copied. */
static ftmem__var delta_by_columns(ftmem__tape *tape, ftmem__var x)
{
    ftmem__var y = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, x);
    ftmem__drop(tape, x);
    return y;
}

/* How the keys of a chunk and the state before it decay up to its end; takes over the key. Of a single chunk nobody reads them. */
static void delta_between(ftmem__low *low, const delta_widths *w, ftmem__var key, ftmem__var cumulative, delta_frame *frame, delta_scan *s)
{
    ftmem__tape *tape = low->tape;
    ftmem__var last, decay;
    bool no_grad = tape->no_grad;
    tape->no_grad = no_grad || w->chunks == 1;
    last = ftmem__apply(tape, FTMEM__OP_SLICE, &cumulative, 1, cumulative.n / DELTA_CHUNK, 1, FTMEM_FP32);
    decay = delta_decay_between(low, last, cumulative, cumulative.n, 1, NULL);
    ftmem__drop(tape, last);
    s->key = delta_name(frame, delta_times(tape, key, decay));
    ftmem__drop(tape, decay);
    ftmem__drop(tape, key);
    last = ftmem__apply(tape, FTMEM__OP_SLICE, &cumulative, 1, cumulative.n / DELTA_CHUNK, 1, FTMEM_FP32);
    s->chunk_decay = delta_name(frame, ftmem__unary(tape, FTMEM__OP_EXP, last));
    ftmem__drop(tape, last);
    tape->no_grad = no_grad;
}

/* What is computed for all chunks at once; in: query, key, value, beta, decay, which are names of the frame from here on. */
static void delta_within(ftmem__low *low, const delta_widths *w, const ftmem__var in[5], delta_frame *frame, delta_scan *s)
{
    ftmem__tape *tape = low->tape;
    ftmem__var value_beta = delta_times(tape, in[2], in[3]), key_beta = delta_times(tape, in[1], in[3]), mask, cumulative, pairwise, system, right;
    key_beta = delta_name(frame, delta_by_columns(tape, key_beta));
    value_beta = delta_name(frame, delta_by_columns(tape, value_beta));
    mask = delta_name(frame, delta_mask(low));
    cumulative = delta_name(frame, ftmem__unary(tape, FTMEM__OP_CUMSUM, in[4]));
    pairwise = delta_name(frame, delta_decay_between(low, cumulative, cumulative, cumulative.n * DELTA_CHUNK, DELTA_CHUNK, &mask));
    system = delta_name(frame, delta_scores(low, w, key_beta, in[1], pairwise));
    s->attention = delta_name(frame, delta_scores(low, w, in[0], in[1], pairwise));
    right = delta_name(frame, delta_decayed(low, key_beta, cumulative));
    s->values = delta_name(frame, delta_solve(low, system, value_beta));
    s->decayed = delta_name(frame, delta_solve(low, system, right));
    s->state = delta_zeros(low, low->b * w->heads * w->k * w->v, w->v);
    s->out = delta_zeros(low, value_beta.n, w->v);
    s->query = delta_name(frame, delta_decayed(low, in[0], cumulative));
    ftmem__drop(tape, in[0]);
    delta_between(low, w, in[1], cumulative, frame, s);
}

/* The output by heads, which is a copy, then in the stream's dtype; takes over x. */
static ftmem__var delta_result(ftmem__low *low, const delta_widths *w, ftmem__var x, int32_t dtype)
{
    ftmem__tape *tape = low->tape;
    delta_replace(tape, &x, ftmem__unary(tape, FTMEM__OP_CLONE, x));
    if (w->length != low->shape->s) delta_replace(tape, &x, ftmem__apply(tape, FTMEM__OP_SLICE, &x, 1, low->tokens * w->values, w->v, FTMEM_FP32));
    delta_replace(tape, &x, ftmem__cast(tape, x, dtype));
    return x;
}

/* modeling_qwen3_next.py torch_chunk_gated_delta_rule; given: query, key, value, beta, decay, all the caller's. */
static ftmem__var delta_rule(ftmem__low *low, const delta_widths *w, const ftmem__var given[5])
{
    ftmem__tape *tape = low->tape;
    delta_frame frame = { 0 };
    delta_scan s = { 0 };
    ftmem__var in[5], y;
    int32_t i;
    for (i = 0; i < 5; i++) in[i] = i < 2 ? delta_repeat(low, w, given[i]) : given[i];
    in[2] = ftmem__shaped(in[2], in[2].n, w->v);
    delta_prepare(low, w, in);
    for (i = 2; i < 5; i++) delta_name(&frame, in[i]);
    delta_within(low, w, in, &frame, &s);
    s.inter.store = s.written.store = -1;
    s.tokens = low->b * w->heads * DELTA_CHUNK;
    s.chunks = w->chunks;
    delta_scan_all(low, w, &s);
    ftmem__drop(tape, s.state);
    y = delta_result(low, w, s.out, given[0].dtype);
    ftmem__drop(tape, s.inter);
    ftmem__drop(tape, s.written);
    delta_leave(low, &frame);
    return y;
}

/* ---------------------------------------------------------------------------------------------------------- block */

/* causal_conv1d_fn over each channel, then the activation; takes over x, which the caller's name holds until then. */
static ftmem__var delta_convolve(ftmem__low *low, const delta_widths *w, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    const ftmem__shape *shape = low->shape;
    int64_t channels = 2 * w->keys + w->values, kernel = shape->model->conv_kernel, length = shape->s + kernel - 1;
    ftmem__var weight = ftmem__low_parameter_of(low, FTMEM_ROLE_NORM, channels * kernel, kernel, shape->dtype), wide = ftmem__cast(tape, x, weight.dtype);
    ftmem__var in = ftmem__cast(tape, wide, shape->autocast ? shape->autocast : wide.dtype), w16 = ftmem__cast(tape, weight, in.dtype), whole, y;
    whole = ftmem__matmul(tape, FTMEM__OP_CONV_EACH, in, w16, NULL, low->b * channels * length, length, 2.0 * (double)(low->b * length * channels * kernel));
    ftmem__drop(tape, w16);
    ftmem__drop(tape, in);
    ftmem__drop(tape, wide);
    y = ftmem__apply(tape, FTMEM__OP_SLICE, &whole, 1, x.n, shape->s, whole.dtype);
    ftmem__drop(tape, whole);
    y = ftmem__low_activation(low, y);
    delta_replace(tape, &y, ftmem__cast(tape, y, x.dtype));
    ftmem__drop(tape, x);
    return y;
}

typedef struct delta_inputs { /* of the convolution; z, b and a; names that live until it has run */
    ftmem__var mixed, z, b, a, parts[3];
    int32_t count;
} delta_inputs;

/* Qwen3NextGatedDeltaNet.fix_query_key_value_ordering: two projections by heads of keys, whose parts are copied. */
static delta_inputs delta_project_joined(ftmem__low *low, const delta_widths *w, ftmem__var x, delta_frame *frame)
{
    ftmem__tape *tape = low->tape;
    ftmem__var qkvz = delta_name(frame, ftmem__low_linear(low, FTMEM_ROLE_QKV, x, 2 * (w->keys + w->values), false)), part[4], ba[2];
    ftmem__var both = delta_name(frame, ftmem__low_linear(low, FTMEM_ROLE_LINEAR_B, x, 2 * w->heads, false));
    const int64_t n[4] = { low->tokens * w->keys, low->tokens * w->keys, low->tokens * w->values, low->tokens * w->values },
                  m[2] = { low->tokens * w->heads, low->tokens * w->heads };
    delta_inputs in = { 0 };
    int32_t i;
    ftmem__split(tape, qkvz, 4, n, part);
    ftmem__split(tape, both, 2, m, ba);
    for (i = 2; i < 4; i++) delta_replace(tape, &part[i], ftmem__unary(tape, FTMEM__OP_CLONE, part[i]));
    for (i = 0; i < 2; i++) delta_replace(tape, &ba[i], ftmem__unary(tape, FTMEM__OP_CLONE, ba[i]));
    for (i = 0; i < 2; i++) delta_replace(tape, &part[i], ftmem__unary(tape, FTMEM__OP_CLONE, part[i]));
    in.mixed = ftmem__apply(tape, FTMEM__OP_CAT, part, 3, n[0] + n[1] + n[2], 2 * w->keys + w->values, part[0].dtype);
    for (i = 0; i < 3; i++) in.parts[in.count++] = part[i];
    in.z = delta_name(frame, part[3]);
    in.b = delta_name(frame, ba[0]);
    in.a = delta_name(frame, ba[1]);
    return in;
}

/* modeling_qwen3_5.py Qwen3_5GatedDeltaNet */
static delta_inputs delta_project(ftmem__low *low, const delta_widths *w, ftmem__var x, delta_frame *frame)
{
    delta_inputs in = { 0 };
    if (low->shape->family->linear_joined) return delta_project_joined(low, w, x, frame);
    in.mixed = ftmem__low_linear(low, FTMEM_ROLE_QKV, x, 2 * w->keys + w->values, false);
    in.z = delta_name(frame, ftmem__low_linear(low, FTMEM_ROLE_MIXER_IN, x, w->values, false));
    in.b = delta_name(frame, ftmem__low_linear(low, FTMEM_ROLE_LINEAR_B, x, w->heads, false));
    in.a = delta_name(frame, ftmem__low_linear(low, FTMEM_ROLE_LINEAR_A, x, w->heads, false));
    return in;
}

/* g = -A_log.float().exp() * F.softplus(a.float() + dt_bias) */
static ftmem__var delta_decay(ftmem__low *low, const delta_widths *w, ftmem__var a)
{
    ftmem__tape *tape = low->tape;
    ftmem__var bias = ftmem__low_parameter(low, FTMEM_ROLE_NORM, w->heads, w->heads, low->trained);
    ftmem__var rate = ftmem__low_parameter(low, FTMEM_ROLE_NORM, w->heads, w->heads, low->trained), wide = ftmem__cast(tape, rate, FTMEM_FP32), step, y;
    rate = ftmem__unary(tape, FTMEM__OP_EXP, wide);
    ftmem__drop(tape, wide);
    delta_replace(tape, &rate, ftmem__unary(tape, FTMEM__OP_NEG, rate));
    wide = ftmem__cast(tape, a, FTMEM_FP32);
    step = ftmem__binary(tape, FTMEM__OP_ADD, wide, bias);
    ftmem__drop(tape, wide);
    delta_replace(tape, &step, ftmem__unary(tape, FTMEM__OP_SOFTPLUS, step));
    y = ftmem__binary(tape, FTMEM__OP_MUL, rate, step);
    ftmem__drop(tape, step);
    ftmem__drop(tape, rate);
    return y;
}

/* The three parts by heads: views, whose gradients, by heads first, are copied for the whole; repeated ones are sums, which are
   dense. */
static void delta_heads(ftmem__low *low, const delta_widths *w, ftmem__var mixed, ftmem__var part[3])
{
    const int64_t n[3] = { low->tokens * w->keys, low->tokens * w->keys, low->tokens * w->values };
    int32_t i;
    ftmem__split(low->tape, mixed, 3, n, part);
    for (i = 0; i < 3; i++)
        if (i == 2 || w->groups == 1) delta_replace(low->tape, &part[i], ftmem__unary(low->tape, FTMEM__OP_CONTIGUOUS, part[i]));
}

/* Qwen3NextGatedDeltaNet.forward after its projections. */
static ftmem__var delta_mix(ftmem__low *low, delta_widths *w, delta_inputs *in, delta_frame *frame)
{
    ftmem__tape *tape = low->tape;
    ftmem__var given[5], mixed = delta_name(frame, delta_convolve(low, w, in->mixed)), core, y;
    int32_t i;
    delta_heads(low, w, mixed, given);
    w->by_tokens = mixed.dtype == FTMEM_FP32 && w->length == low->shape->s;
    while (in->count > 0) ftmem__drop(tape, in->parts[--in->count]);
    given[3] = ftmem__unary(tape, FTMEM__OP_SIGMOID, in->b);
    given[4] = delta_decay(low, w, in->a);
    for (i = 0; i < 5; i++) delta_name(frame, given[i]);
    core = delta_rule(low, w, given);
    if (given[0].dtype == FTMEM_FP32) delta_replace(tape, &core, ftmem__unary(tape, FTMEM__OP_CLONE, core)); /* no cast has put tokens first */
    y = ftmem__low_gated_norm(low, core, in->z, w->v);
    ftmem__drop(tape, core);
    return y;
}

/* apply_mask_to_padding_states */
static ftmem__var delta_unpadded(ftmem__low *low, ftmem__var x)
{
    ftmem__var mask = ftmem__constant(low->tokens, 1, x.dtype), y;
    if (low->shape->job->mask != FTMEM_MASK_PADDED) return ftmem__keep(low->tape, x);
    y = ftmem__binary(low->tape, FTMEM__OP_MUL, x, mask);
    return y;
}

ftmem__var ftmem__low_delta(ftmem__low *low, ftmem__var x)
{
    delta_widths w = delta_widths_of(low);
    delta_frame frame = { 0 };
    delta_inputs in;
    ftmem__var core, y;
    low->tape->part = FTMEM__PART_ATTENTION;
    in = delta_project(low, &w, delta_name(&frame, delta_unpadded(low, x)), &frame);
    core = delta_mix(low, &w, &in, &frame);
    core = ftmem__shaped(core, core.n, w.values);
    low->tape->part = FTMEM__PART_ATTENTION;
    y = ftmem__low_linear(low, FTMEM_ROLE_MIXER_OUT, core, low->shape->h, false);
    ftmem__drop(low->tape, core);
    delta_leave(low, &frame);
    return y;
}
