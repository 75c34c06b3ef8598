/* The indexer of sparse attention: which keys each query looks at (modeling_deepseek_v32.py DeepseekV32Indexer). It has
   weights of its own and runs under no_grad: they are parameters, and never get a gradient. */
#include "lower.h"

static void indexer_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

static ftmem__var indexer_table(ftmem__low *low, int64_t n, int64_t cols, int32_t dtype, ftmem__op op)
{
    ftmem__var v = ftmem__constant(n, cols, dtype);
    v.store = ftmem__alloc(low->tape, op, n, cols, dtype, low->tape->birth);
    return v;
}

/* The first dimensions of each head are rotated and joined with the rest; both parts are names, the whole is returned. */
static ftmem__var indexer_rotate(ftmem__low *low, ftmem__var whole, ftmem__var *turned)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = whole.n / low->shape->model->index_dim;
    ftmem__var part[2];
    part[0] = ftmem__keep(tape, whole);
    part[1] = ftmem__keep(tape, whole);
    part[0] = ftmem__shaped(part[0], rows * low->shape->rotary, low->shape->rotary);
    *turned = low->shape->family->index_halves ? ftmem__low_turn(low, part[0]) : ftmem__low_turn_pairs(low, part[0]);
    ftmem__drop(tape, part[0]);
    part[0] = *turned;
    whole = ftmem__apply(tape, FTMEM__OP_CAT, part, 2, whole.n, whole.cols, turned->dtype);
    ftmem__drop(tape, part[1]);
    return whole;
}

/* q k^T of every head with the one key of a token: with more than one row in the batch, keys are copied for every query. */
static ftmem__var indexer_products(ftmem__low *low, ftmem__var q, ftmem__var k)
{
    ftmem__tape *tape = low->tape;
    const ftmem_model *m = low->shape->model;
    int32_t dtype = low->shape->autocast ? low->shape->autocast : FTMEM_FP32;
    int64_t s = low->shape->s, n = low->tokens * m->index_heads * s;
    ftmem__var wide[2], in[2], y;
    wide[0] = ftmem__cast(tape, q, FTMEM_FP32);
    wide[1] = ftmem__cast(tape, k, FTMEM_FP32);
    in[0] = ftmem__cast(tape, wide[0], dtype);
    in[1] = ftmem__cast(tape, wide[1], dtype);
    if (low->b > 1) indexer_replace(tape, &in[1], ftmem__apply(tape, FTMEM__OP_CLONE, &in[1], 1, low->tokens * m->index_dim * s, s, dtype));
    y = ftmem__matmul(tape, FTMEM__OP_BMM, in[0], in[1], NULL, n, s, 2.0 * (double)n * (double)m->index_dim);
    ftmem__drop(tape, in[1]);
    ftmem__drop(tape, in[0]);
    ftmem__drop(tape, wide[0]);
    ftmem__drop(tape, wide[1]);
    return y;
}

static ftmem__var indexer_weights(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in = ftmem__cast(tape, x, ftmem__low_dtype(low, FTMEM_ROLE_INDEX_WEIGHTS)), y, wide;
    y = ftmem__low_linear(low, FTMEM_ROLE_INDEX_WEIGHTS, in, low->shape->model->index_heads, false);
    ftmem__drop(tape, in);
    wide = ftmem__cast(tape, y, FTMEM_FP32);
    ftmem__drop(tape, y);
    y = ftmem__unary(tape, FTMEM__OP_SCALE, wide);
    ftmem__drop(tape, wide);
    return y;
}

/* Weights times scores, summed over heads, and what the mask forbids. */
static ftmem__var indexer_sum(ftmem__low *low, ftmem__var weights, ftmem__var scores)
{
    ftmem__tape *tape = low->tape;
    bool eager = low->shape->job->attention == FTMEM_EAGER;
    int64_t s = low->shape->s, n = low->tokens * s;
    ftmem__var in = ftmem__cast(tape, weights, scores.dtype), raw, y, mask;
    raw = ftmem__matmul(tape, FTMEM__OP_BMM, in, scores, NULL, n, s, 2.0 * (double)scores.n);
    ftmem__drop(tape, in);
    mask = eager ? ftmem__constant(n, s, low->shape->stream) : indexer_table(low, n, s, FTMEM_BOOL, FTMEM__OP_MASK);
    y = eager ? ftmem__binary(tape, FTMEM__OP_ADD, raw, mask) : ftmem__unary(tape, FTMEM__OP_FILL, raw);
    ftmem__drop(tape, mask);
    ftmem__drop(tape, raw);
    return y;
}

static int64_t indexer_keys(const ftmem__low *low)
{
    int64_t keys = low->shape->model->index_tokens;
    return low->tokens * (keys < low->shape->s ? keys : low->shape->s);
}

ftmem__var ftmem__low_choice(ftmem__low *low)
{
    if (!low->shape->family->hands_index) return ftmem__constant(0, 0, FTMEM_FP32);
    return indexer_table(low, indexer_keys(low), 1, FTMEM_FP32, FTMEM__OP_TOPK); /* int32 */
}

/* scores.topk(k).indices.to(int32) */
static ftmem__var indexer_best(ftmem__low *low, ftmem__var scores)
{
    ftmem__tape *tape = low->tape;
    int64_t n = indexer_keys(low);
    ftmem__var values = indexer_table(low, n, 1, scores.dtype, FTMEM__OP_TOPK), index = indexer_table(low, n, 1, FTMEM_INT64, FTMEM__OP_TOPK), y;
    ftmem__drop(tape, values);
    y = indexer_table(low, n, 1, FTMEM_FP32, FTMEM__OP_TOPK); /* int32 */
    ftmem__drop(tape, index);
    return y;
}

static ftmem__var indexer_forward(ftmem__low *low, ftmem__var x, ftmem__var latent)
{
    ftmem__tape *tape = low->tape;
    const ftmem_model *m = low->shape->model;
    ftmem__var name[9], key;
    int32_t count = 0;
    name[count++] = ftmem__low_linear(low, FTMEM_ROLE_INDEX_Q, latent, m->index_heads * m->index_dim, false);
    key = ftmem__low_linear(low, FTMEM_ROLE_INDEX_K, x, m->index_dim, false);
    name[count++] = ftmem__low_layer_norm(low, key, m->index_dim);
    ftmem__drop(tape, key);
    name[2] = indexer_rotate(low, name[0], &name[4]);
    name[3] = indexer_rotate(low, name[1], &name[5]);
    name[6] = indexer_products(low, name[2], name[3]);
    indexer_replace(tape, &name[6], ftmem__unary(tape, FTMEM__OP_SCALE, name[6]));
    indexer_replace(tape, &name[6], ftmem__unary(tape, FTMEM__OP_RELU, name[6]));
    name[7] = indexer_weights(low, x);
    name[8] = indexer_sum(low, name[7], name[6]);
    key = indexer_best(low, name[8]);
    for (count = 9; count > 0;) ftmem__drop(tape, name[--count]);
    return key;
}

/* DeepseekV32Attention.forward: a mask of what was not chosen, joined with the causal one. */
static void indexer_mask(ftmem__low *low, ftmem__var *locals, int32_t *count)
{
    ftmem__tape *tape = low->tape;
    bool eager = low->shape->job->attention == FTMEM_EAGER;
    int64_t s = low->shape->s, n = low->tokens * s;
    ftmem__var ones = indexer_table(low, n, s, FTMEM_BOOL, FTMEM__OP_MASK), wide = indexer_table(low, indexer_keys(low), 1, FTMEM_INT64, FTMEM__OP_MASK), not ;
    locals[(*count)++] = indexer_table(low, n, s, FTMEM_BOOL, FTMEM__OP_MASK);
    ftmem__drop(tape, ones);
    ftmem__drop(tape, wide);
    if (eager) {
        locals[(*count)++] = indexer_table(low, n, s, low->shape->stream, FTMEM__OP_MASK);
        return;
    }
    not = indexer_table(low, n, s, FTMEM_BOOL, FTMEM__OP_MASK);
    locals[(*count)++] = indexer_table(low, n, s, FTMEM_BOOL, FTMEM__OP_MASK);
    ftmem__drop(tape, not );
}

void ftmem__low_indexer(ftmem__low *low, ftmem__var x, ftmem__var latent, ftmem__var *locals, int32_t *count)
{
    bool before = low->tape->no_grad;
    if (low->shape->model->index_heads == 0) return;
    if (low->kind != FTMEM__LAYER_SHARED_INDEX) {
        low->tape->no_grad = true;
        low->choice = indexer_forward(low, x, latent);
        low->has_choice = true;
        low->tape->no_grad = before;
    }
    indexer_mask(low, locals, count);
    if (!low->has_choice || low->shape->family->hands_index) return;
    locals[(*count)++] = low->choice;
    low->has_choice = false;
}
