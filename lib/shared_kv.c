/*
 * Attention whose heads are normalised and rotated before they come first, and whose keys and values later blocks may take
 * (modeling_gemma4.py Gemma4TextAttention).
 */
#include "lower.h"

/* Whole heads, as [rows, tokens, heads, dim]. Takes over x. */
static ftmem__var shared_kv_turned(ftmem__low *low, ftmem__var x)
{
    int64_t cols = x.cols;
    ftmem__var y = ftmem__low_turn(low, ftmem__shaped(x, x.n, low->shape->d));
    ftmem__drop(low->tape, x);
    return ftmem__shaped(y, y.n, cols);
}

static void shared_kv_take(ftmem__low *low, ftmem__var kv[2])
{
    int32_t i, side = low->kind == FTMEM__LAYER_SLIDING ? FTMEM__SIDE_WINDOW_KEYS : FTMEM__SIDE_KEYS;
    for (i = 0; i < 2; i++) kv[i] = ftmem__keep(low->tape, low->side[side + i]);
}

/* The dictionary of the model's frame owns them too. */
static void shared_kv_store(ftmem__low *low, const ftmem__var kv[2])
{
    int32_t i, side = low->kind == FTMEM__LAYER_SLIDING ? FTMEM__SIDE_WINDOW_KEYS : FTMEM__SIDE_KEYS;
    for (i = 0; i < 2; i++) {
        if (low->replaces && low->tape->mode == FTMEM__RECORD) ftmem__drop(low->tape, low->stored[side + i - FTMEM__SIDE_KEYS]);
        low->side[side + i] = ftmem__keep(low->tape, kv[i]);
        low->made |= (uint8_t)(1u << (side + i));
    }
}

static void shared_kv_make(ftmem__low *low, ftmem__var x, ftmem__var kv[2])
{
    const ftmem__shape *shape = low->shape;
    bool bias = shape->model->qkv_bias == FTMEM_ON, same = low->kind == FTMEM__LAYER_FULL && shape->model->full_values_from_keys == FTMEM_ON;
    ftmem__var value;
    kv[0] = ftmem__low_linear(low, FTMEM_ROLE_K, x, shape->kv, bias);
    if (same) ftmem__low_view(low, 2, &kv[0]);
    kv[1] = same ? ftmem__keep(low->tape, kv[0]) : ftmem__low_linear(low, FTMEM_ROLE_V, x, shape->kv, bias);
    if (!same) ftmem__low_view(low, 2, &kv[1]);
    kv[0] = shared_kv_turned(low, ftmem__low_qk_norm(low, kv[0]));
    value = ftmem__low_norm_unweighted(low, kv[1], shape->d);
    ftmem__drop(low->tape, kv[1]);
    kv[1] = value;
}

void ftmem__low_shared_kv(ftmem__low *low, ftmem__var x, ftmem__var qkv[3])
{
    const ftmem__shape *shape = low->shape;
    qkv[0] = ftmem__low_linear(low, FTMEM_ROLE_Q, x, shape->q, shape->model->qkv_bias == FTMEM_ON);
    qkv[0] = shared_kv_turned(low, ftmem__low_qk_norm(low, qkv[0]));
    if (low->reuses) shared_kv_take(low, qkv + 1);
    else shared_kv_make(low, x, qkv + 1);
    if (low->stores) shared_kv_store(low, qkv + 1);
}
