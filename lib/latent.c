/* Multi-head latent attention: queries, keys and values are projected up from narrow latents; one rotated part of the keys
   is shared by all heads (modeling_deepseek_v2.py DeepseekV2Attention, modeling_deepseek_v3.py). */
#include "lower.h"

static void latent_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

static void latent_split(ftmem__low *low, ftmem__var x, int64_t first, ftmem__var part[2])
{
    int64_t n[2], rows = x.n / x.cols;
    n[0] = rows * first;
    n[1] = x.n - n[0];
    ftmem__split(low->tape, x, 2, n, part);
}

/* *normed: the queries' latent, which the indexer reads too; owned by the caller where there is one. */
static ftmem__var latent_queries(ftmem__low *low, ftmem__var x, ftmem__var *latent)
{
    const ftmem__shape *shape = low->shape;
    ftmem__var narrow, normed, y;
    *latent = ftmem__constant(0, 1, x.dtype);
    if (shape->model->q_rank == 0) return ftmem__low_linear(low, FTMEM_ROLE_Q, x, shape->q, false);
    narrow = ftmem__low_linear(low, FTMEM_ROLE_Q_DOWN, x, shape->model->q_rank, shape->model->qkv_bias == FTMEM_ON);
    normed = ftmem__low_norm(low, narrow, narrow.cols);
    ftmem__drop(low->tape, narrow);
    low->tape->part = FTMEM__PART_ATTENTION;
    y = ftmem__low_linear(low, FTMEM_ROLE_Q_UP, normed, shape->q, false);
    if (shape->model->index_heads > 0) *latent = ftmem__keep(low->tape, normed);
    ftmem__drop(low->tape, normed);
    return y;
}

/* modeling_deepseek_v2.py apply_rotary_emb: pairs are complex numbers in fp32, times a table. The queries' gradient comes
   as a slice, which is copied to be read as pairs. */
static void latent_rotate_complex(ftmem__low *low, ftmem__var rot[2])
{
    ftmem__tape *tape = low->tape;
    ftmem__var wide[2], turned, table = ftmem__constant(low->shape->s * low->shape->rotary, low->shape->rotary, FTMEM_FP32);
    int32_t i, dtype;
    for (i = 0; i < 2; i++) wide[i] = ftmem__cast(tape, rot[i], FTMEM_FP32);
    for (i = 0; i < 2; i++) {
        dtype = rot[i].dtype;
        turned = ftmem__binary(tape, FTMEM__OP_MUL, wide[i], table);
        if (i == 0) latent_replace(tape, &turned, ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, turned));
        latent_replace(tape, &rot[i], ftmem__cast(tape, turned, dtype));
        ftmem__drop(tape, turned);
    }
    for (i = 0; i < 2; i++) ftmem__drop(tape, wide[i]);
}

/* modeling_deepseek_v3.py apply_rotary_pos_emb_interleave: even and odd dimensions are taken apart; half a table is enough. */
static ftmem__var latent_turn(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var table = ftmem__constant(low->shape->s * low->shape->rotary / 2, low->shape->rotary / 2, x.dtype), side[2], part[2], a, b, y;
    int32_t i;
    for (i = 0; i < 2; i++) side[i] = ftmem__apply(tape, FTMEM__OP_SLICE, &x, 1, x.n / 2, x.cols / 2, x.dtype);
    for (i = 0; i < 2; i++) {
        a = ftmem__binary(tape, FTMEM__OP_MUL, side[i], table);
        b = ftmem__binary(tape, FTMEM__OP_MUL, side[1 - i], table);
        part[i] = ftmem__binary(tape, i == 0 ? FTMEM__OP_SUB : FTMEM__OP_ADD, a, b);
        ftmem__drop(tape, b);
        ftmem__drop(tape, a);
    }
    y = ftmem__apply(tape, FTMEM__OP_CAT, part, 2, x.n, x.cols, x.dtype);
    for (i = 0; i < 2; i++) ftmem__drop(tape, part[i]);
    for (i = 0; i < 2; i++) ftmem__drop(tape, side[i]);
    return y;
}

static void latent_rotate(ftmem__low *low, ftmem__var rot[2])
{
    int32_t i;
    if (low->shape->family->turn == FTMEM__TURN_COMPLEX) {
        latent_rotate_complex(low, rot);
        return;
    }
    for (i = 0; i < 2; i++) latent_replace(low->tape, &rot[i], latent_turn(low, rot[i]));
}

/* Attention.expand_kv: an empty tensor into which both parts of the keys are copied. */
static void latent_expand(ftmem__low *low, ftmem__var latent, ftmem__var rot, ftmem__var *keys, ftmem__var *values)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int64_t plain = shape->d - shape->rotary, n = low->tokens * shape->q;
    ftmem__var wide = ftmem__low_linear(low, FTMEM_ROLE_KV_UP, latent, shape->heads * (plain + shape->dv), false), part[2], in[2], one;
    latent_replace(tape, &wide, ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, wide));
    latent_split(low, wide, shape->heads * plain, part);
    ftmem__drop(tape, wide);
    one = ftmem__apply(tape, FTMEM__OP_EXPAND_VIEW, &rot, 1, low->tokens * shape->heads * shape->rotary, shape->heads * shape->rotary, rot.dtype);
    in[0] = ftmem__constant(n, shape->q, wide.dtype);
    in[0].store = ftmem__alloc(tape, FTMEM__OP_COPY_SLICE, n, shape->q, wide.dtype, tape->birth);
    in[1] = part[0];
    latent_replace(tape, &in[0], ftmem__apply(tape, FTMEM__OP_COPY_SLICE, in, 2, n, shape->q, wide.dtype));
    in[1] = one;
    latent_replace(tape, &in[0], ftmem__apply(tape, FTMEM__OP_COPY_SLICE, in, 2, n, shape->q, wide.dtype));
    ftmem__drop(tape, one);
    ftmem__drop(tape, part[0]);
    *keys = in[0];
    *values = part[1];
}

/* ----------------------------------------------------------------------------------------------------- indexer */

static ftmem__var latent_table(ftmem__low *low, int64_t n, int32_t dtype)
{
    ftmem__var v = ftmem__constant(n, low->shape->s, dtype);
    v.store = ftmem__alloc(low->tape, FTMEM__OP_MASK, n, low->shape->s, dtype, low->tape->birth);
    return v;
}

/* cat([rotated part, rest]); both the rotated part and the result are names of the indexer's forward. */
static ftmem__var latent_index_turn(ftmem__low *low, ftmem__var x, ftmem__var *names, int32_t *count)
{
    ftmem__tape *tape = low->tape;
    int64_t heads = x.cols / low->shape->model->index_dim, rows = x.n / x.cols;
    ftmem__var part = ftmem__keep(tape, x), y;
    part.n = rows * heads * low->shape->rotary;
    part.cols = heads * low->shape->rotary;
    names[(*count)++] = latent_turn(low, part);
    ftmem__drop(tape, part);
    y = ftmem__unary(tape, FTMEM__OP_CAT, x);
    names[(*count)++] = y;
    return y;
}

/* relu(q k^T) of every indexer head in fp32: the matmul copies the keys for each query. */
static ftmem__var latent_index_scores(ftmem__low *low, ftmem__var q, ftmem__var k)
{
    ftmem__tape *tape = low->tape;
    int64_t s = low->shape->s, n = low->tokens * low->shape->model->index_heads * s, d = low->shape->model->index_dim;
    ftmem__var q32 = ftmem__cast(tape, q, FTMEM_FP32), k32 = ftmem__cast(tape, k, FTMEM_FP32), copies, y;
    copies = low->b > 1 ? latent_table(low, low->tokens * d * s, FTMEM_FP32) : ftmem__keep(tape, k32); /* one row is broadcast as a view */
    y = ftmem__matmul(tape, FTMEM__OP_BMM, q32, copies, NULL, n, s, 2.0 * (double)n * (double)d);
    ftmem__drop(tape, copies);
    ftmem__drop(tape, q32);
    ftmem__drop(tape, k32);
    latent_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_SCALE, y));
    latent_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_RELU, y));
    return y;
}

/* The chosen tokens of each query, int32, from scores weighed by head. */
static ftmem__var latent_index_choose(ftmem__low *low, ftmem__var weights, ftmem__var scores, ftmem__var *names, int32_t *count)
{
    ftmem__tape *tape = low->tape;
    int64_t s = low->shape->s, chosen = low->shape->model->index_tokens < s ? low->shape->model->index_tokens : s, n = low->tokens * s;
    ftmem__var sum = ftmem__matmul(tape, FTMEM__OP_BMM, weights, scores, NULL, n, s, 2.0 * (double)scores.n), not = latent_table(low, n, FTMEM_BOOL), best,
               index, y;
    names[(*count)++] = latent_table(low, n, FTMEM_FP32); /* masked */
    ftmem__drop(tape, not );
    ftmem__drop(tape, sum);
    best = latent_table(low, low->tokens * chosen, FTMEM_FP32);
    index = latent_table(low, low->tokens * chosen, FTMEM_INT64);
    ftmem__drop(tape, best);
    y = latent_table(low, low->tokens * chosen, FTMEM_FP32); /* int32 */
    ftmem__drop(tape, index);
    return y;
}

/* modeling_glm_moe_dsa.py GlmMoeDsaIndexer.forward, without gradients. */
static ftmem__var latent_index(ftmem__low *low, ftmem__var x, ftmem__var latent)
{
    const ftmem_model *model = low->shape->model;
    ftmem__tape *tape = low->tape;
    ftmem__var names[12], q = ftmem__low_linear(low, FTMEM_ROLE_INDEX_Q, latent, model->index_heads * model->index_dim, false);
    ftmem__var k = ftmem__low_linear(low, FTMEM_ROLE_INDEX_K, x, model->index_dim, false), w, scores, y;
    int32_t count = 0;
    names[count++] = q;
    latent_replace(tape, &k, ftmem__low_layer_norm(low, k, model->index_dim));
    names[count++] = k;
    q = latent_index_turn(low, q, names, &count);
    k = latent_index_turn(low, k, names, &count);
    scores = latent_index_scores(low, q, k);
    names[count++] = scores;
    w = ftmem__low_linear(low, FTMEM_ROLE_INDEX_WEIGHTS, x, model->index_heads, false);
    latent_replace(tape, &w, ftmem__cast(tape, w, FTMEM_FP32));
    latent_replace(tape, &w, ftmem__unary(tape, FTMEM__OP_SCALE, w));
    names[count++] = w;
    y = latent_index_choose(low, w, scores, names, &count);
    while (count > 0) ftmem__drop(tape, names[--count]);
    return y;
}

/* The mask of the chosen tokens, and with it the causal one: names of the attention's forward. */
static void latent_index_mask(ftmem__low *low, ftmem__var *locals, int32_t *count)
{
    int64_t s = low->shape->s, chosen = low->shape->model->index_tokens < s ? low->shape->model->index_tokens : s, n = low->tokens * s;
    ftmem__var ones = latent_table(low, n, FTMEM_BOOL), wide = latent_table(low, low->tokens * chosen, FTMEM_INT64), not ;
    locals[(*count)++] = latent_table(low, n, FTMEM_BOOL);
    ftmem__drop(low->tape, ones);
    ftmem__drop(low->tape, wide);
    not = latent_table(low, n, FTMEM_BOOL);
    locals[(*count)++] = latent_table(low, n, FTMEM_BOOL);
    ftmem__drop(low->tape, not );
}

static void latent_choose(ftmem__low *low, ftmem__var x, ftmem__var latent, ftmem__var *locals, int32_t *count)
{
    ftmem__tape *tape = low->tape;
    uint8_t mode = tape->mode;
    if (low->shape->model->index_heads == 0 || (mode == FTMEM__GHOST && !tape->backward)) return;
    tape->mode = FTMEM__NO_GRAD;
    low->idle = true;
    if (low->kind != FTMEM__LAYER_SHARED_INDEX) locals[(*count)++] = latent_index(low, x, latent);
    low->idle = false;
    tape->mode = mode;
    latent_index_mask(low, locals, count);
}

void ftmem__low_latent(ftmem__low *low, ftmem__var x, ftmem__var qkv[3], ftmem__var *locals, int32_t *count)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    ftmem__var q_latent, q = latent_queries(low, x, &q_latent), query[2], compressed, latent[2], normed, rot[2], in[2];
    ftmem__var heads = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, q);
    latent_split(low, heads, shape->heads * (shape->d - shape->rotary), query);
    ftmem__drop(tape, heads);
    compressed = ftmem__low_linear(low, FTMEM_ROLE_KV_DOWN, x, shape->model->kv_rank + shape->rotary, shape->model->qkv_bias == FTMEM_ON);
    latent_split(low, compressed, shape->model->kv_rank, latent);
    normed = ftmem__low_norm(low, latent[0], shape->model->kv_rank);
    tape->part = FTMEM__PART_ATTENTION;
    rot[0] = query[1];
    rot[1] = latent[1];
    latent_rotate(low, rot);
    in[0] = query[0];
    in[1] = rot[0];
    qkv[0] = ftmem__apply(tape, FTMEM__OP_CAT, in, 2, q.n, shape->q, rot[0].dtype);
    latent_expand(low, normed, rot[1], &qkv[1], &qkv[2]);
    latent_choose(low, x, q_latent, locals, count);
    locals[(*count)++] = q_latent;
    locals[(*count)++] = q;
    locals[(*count)++] = query[0];
    locals[(*count)++] = compressed;
    locals[(*count)++] = latent[0];
    locals[(*count)++] = normed;
    locals[(*count)++] = rot[0];
    locals[(*count)++] = rot[1];
}
