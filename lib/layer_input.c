/* What each block is given beside the stream: an embedding of its own, with a projection of the token embedding (modeling_gemma4.py). */
#include "lower.h"

static void layer_input_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

static int64_t layer_input_width(const ftmem__shape *shape)
{
    return shape->model->layer_input * shape->model->layers;
}

/* get_per_layer_inputs: looked up and scaled. */
static ftmem__var layer_input_rows(ftmem__low *low, const ftmem__var *ids)
{
    const ftmem__shape *shape = low->shape;
    int64_t width = layer_input_width(shape);
    ftmem__var w = ftmem__low_parameter(low, FTMEM_ROLE_POSITION, shape->model->layer_input_vocab * width, width, shape->position_trained), y;
    y = ftmem__low_lookup(low, w, low->tokens);
    if (ids) ftmem__save_var(low->tape, y, *ids);
    layer_input_replace(low->tape, &y, ftmem__unary(low->tape, FTMEM__OP_SCALE, y));
    return y;
}

/* per_layer_model_projection, scaled and normalised layer by layer. Where the stream is a leaf, its gradient joins the blocks'. */
static ftmem__var layer_input_projected(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    int64_t width = layer_input_width(low->shape);
    ftmem__var y;
    if (x.node == FTMEM__LEAF) x.node = FTMEM__JOINED_LEAF;
    low->adapted = ftmem__shape_outside_adapted(low->shape);
    y = ftmem__low_linear(low, FTMEM_ROLE_WIDEN, x, width, false);
    low->adapted = false;
    layer_input_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_SCALE, y));
    layer_input_replace(tape, &y, ftmem__low_norm(low, ftmem__shaped(y, y.n, low->shape->model->layer_input), low->shape->model->layer_input));
    return ftmem__shaped(y, y.n, width);
}

/* The model's frame owns the result; returns what was looked up, which the caller may go on to hold. */
ftmem__var ftmem__low_layer_inputs(ftmem__low *low, ftmem__var x, const ftmem__var *ids)
{
    ftmem__tape *tape = low->tape;
    ftmem__var rows = layer_input_rows(low, ids), y = layer_input_projected(low, x);
    layer_input_replace(tape, &y, ftmem__binary(tape, FTMEM__OP_ADD, y, rows));
    layer_input_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_SCALE, y));
    low->side[FTMEM__SIDE_LAYERS] = y;
    low->made |= 1u << FTMEM__SIDE_LAYERS;
    return rows;
}

/* per_layer_inputs[:, :, i, :] */
ftmem__var ftmem__low_layer_input(ftmem__low *low)
{
    const ftmem__var *all = &low->side[FTMEM__SIDE_LAYERS];
    int64_t width = low->shape->model->layer_input;
    if (low->tape->leaf_input)
        return ftmem__shaped(ftmem__keep(low->tape, *all), low->tokens * width, width); /* torch/utils/checkpoint.py CheckpointFunction: a leaf */
    return ftmem__apply(low->tape, FTMEM__OP_SLICE, all, 1, low->tokens * width, width, all->dtype);
}
