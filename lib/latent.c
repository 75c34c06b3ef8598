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

/* The latent has a name where an indexer reads it too (modeling_deepseek_v32.py q_resid). */
static ftmem__var latent_queries(ftmem__low *low, ftmem__var x, ftmem__var *latent)
{
    const ftmem__shape *shape = low->shape;
    ftmem__var narrow, normed, y;
    latent->store = -1;
    if (shape->model->q_rank == 0) return ftmem__low_linear(low, FTMEM_ROLE_Q, x, shape->q, false);
    narrow = ftmem__low_linear(low, FTMEM_ROLE_Q_DOWN, x, shape->model->q_rank, shape->model->qkv_bias == FTMEM_ON);
    normed = ftmem__low_norm(low, narrow, narrow.cols);
    ftmem__drop(low->tape, narrow);
    low->tape->part = FTMEM__PART_ATTENTION;
    y = ftmem__low_linear(low, FTMEM_ROLE_Q_UP, normed, shape->q, false);
    if (shape->model->index_heads > 0) *latent = normed;
    else ftmem__drop(low->tape, normed);
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

/* modeling_deepseek_v3.py apply_rotary_pos_emb_interleave: even and odd dimensions are taken apart; half a table is enough.
   modeling_gpt_oss.py _apply_rotary_emb: the same with the halves of x.chunk(2). */
ftmem__var ftmem__low_turn_pairs(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var table = ftmem__constant(low->shape->s * low->shape->rotary / 2, low->shape->rotary / 2, x.dtype), side[2], part[2], a, b, y;
    int64_t half[2];
    int32_t i;
    half[0] = half[1] = x.n / 2;
    if (low->shape->family->turn == FTMEM__TURN_HALVES) ftmem__split(tape, x, 2, half, side);
    else
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
    int32_t i, turn = low->shape->family->turn;
    if (turn == FTMEM__TURN_COMPLEX) {
        latent_rotate_complex(low, rot);
        return;
    }
    for (i = 0; i < 2; i++)
        latent_replace(low->tape, &rot[i], turn == FTMEM__TURN_INTERLEAVED ? ftmem__low_turn_pairs(low, rot[i]) : ftmem__low_turn(low, rot[i]));
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

void ftmem__low_latent(ftmem__low *low, ftmem__var x, ftmem__var qkv[3], ftmem__var *locals, int32_t *count)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    ftmem__var narrow, q = latent_queries(low, x, &narrow), query[2], compressed, latent[2], normed, rot[2], in[2];
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
    qkv[0].joined = true;
    latent_expand(low, normed, rot[1], &qkv[1], &qkv[2]);
    ftmem__low_indexer(low, x, narrow, locals, count);
    locals[(*count)++] = narrow;
    locals[(*count)++] = q;
    locals[(*count)++] = query[0];
    locals[(*count)++] = compressed;
    locals[(*count)++] = latent[0];
    locals[(*count)++] = normed;
    locals[(*count)++] = rot[0];
    locals[(*count)++] = rot[1];
}
