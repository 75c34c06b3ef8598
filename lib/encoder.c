/* The embeddings of encoders: token types and positions beside the tokens, or patches of an image. */
#include "lower.h"

static void encoder_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

static ftmem__var encoder_ids(ftmem__low *low, int64_t n)
{
    ftmem__var ids = ftmem__constant(n, 0, FTMEM_INT64);
    ids.store = ftmem__alloc(low->tape, FTMEM__OP_TABLE, n, 0, FTMEM_INT64, low->tape->birth);
    return ids;
}

static ftmem__var encoder_table(ftmem__low *low, int64_t rows, int64_t width)
{
    return ftmem__low_parameter(low, FTMEM_ROLE_POSITION, rows * width, width, low->shape->position_trained);
}

/* modeling_bert.py BertEmbeddings.forward: all three look-ups have names; the buffer of zeros is gathered into token types. */
ftmem__var ftmem__low_embed_segments(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int64_t width = shape->embedding_width;
    ftmem__var words = ftmem__low_words(low), ids = encoder_ids(low, shape->s), types, positions, sum, y;
    types = ftmem__low_lookup(low, encoder_table(low, shape->model->type_vocab, width), low->tokens);
    ftmem__save_var(tape, types, ids);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, words, types);
    positions = ftmem__low_lookup(low, encoder_table(low, shape->model->position_rows, width), shape->s);
    encoder_replace(tape, &sum, ftmem__binary(tape, FTMEM__OP_ADD, sum, positions));
    y = ftmem__low_norm(low, sum, width);
    ftmem__drop(tape, sum);
    y = ftmem__low_dropout(low, y, shape->model->embed_dropout);
    ftmem__drop(tape, positions);
    ftmem__drop(tape, types);
    ftmem__drop(tape, ids);
    ftmem__drop(tape, words);
    return y;
}

/* ---------------------------------------------------------------------------------------------------- patches */

/* modeling_vit.py ViTModel.forward casts what it is given to the weights' dtype. */
static ftmem__var encoder_pixels(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    int64_t side = shape->model->image_size, n = low->b * shape->model->channels * side * side;
    return ftmem__cast(low->tape, ftmem__constant(n, side, ftmem__shape_pixels(shape)), shape->dtype);
}

/* nn.Conv2d with a stride as wide as its kernel, autocast honoured. */
static ftmem__var encoder_convolve(ftmem__low *low, ftmem__var pixels, int64_t patches)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int64_t each = shape->model->channels * shape->model->patch_size * shape->model->patch_size, h = shape->h;
    int32_t dtype = shape->autocast ? shape->autocast : shape->dtype, i;
    double flops = 2.0 * (double)(low->b * patches) * (double)each * (double)h;
    ftmem__var in[3], y;
    ftmem__node *node;
    in[0] = ftmem__cast(tape, pixels, dtype);
    in[1] = ftmem__cast_weight(tape, ftmem__low_parameter(low, FTMEM_ROLE_EMBED, h * each, each, shape->position_trained), dtype);
    in[2] = ftmem__cast_weight(tape, ftmem__low_parameter(low, FTMEM_ROLE_EMBED, h, h, shape->position_trained), dtype);
    y = ftmem__apply(tape, FTMEM__OP_CONVOLUTION, in, 3, low->b * patches * h, h, dtype);
    ftmem__save_var(tape, y, in[1]); /* whether or not the pixels need a gradient */
    tape->flops += flops;
    node = ftmem__recorded(tape, y);
    if (node) node->flops = flops;
    for (i = 0; i < 3; i++) ftmem__drop(tape, in[i]);
    return y;
}

/* cls_token.expand(rows, -1, -1): with one row its gradient is a view of the whole gradient, and keeps all of it. */
static ftmem__var encoder_class_token(ftmem__low *low)
{
    int64_t h = low->shape->h;
    ftmem__var token = ftmem__low_parameter(low, FTMEM_ROLE_POSITION, h, h, low->shape->position_trained), wide;
    if (low->b > 1) return ftmem__apply(low->tape, FTMEM__OP_EXPAND_VIEW, &token, 1, low->b * h, h, token.dtype);
    wide = token;
    if (low->params) low->params->at[low->params->count - 1].gradient_bytes = ftmem__round512(ftmem__bytes(token.dtype, low->tokens * h));
    return wide;
}

/* modeling_vit.py ViTEmbeddings.forward; `embeddings` is bound anew in each line. */
ftmem__var ftmem__low_embed_patches(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    ftmem__var pixels = encoder_pixels(low), part[2], x, table, patches;
    part[0] = encoder_class_token(low);
    patches = encoder_convolve(low, pixels, shape->s - 1);
    ftmem__low_input_leaf(low, &patches);
    part[1] = ftmem__cast(tape, patches, part[0].dtype); /* cat takes the widest dtype (autocast_mode.h, promote) */
    ftmem__drop(tape, patches);
    x = ftmem__apply(tape, FTMEM__OP_CAT, part, 2, low->tokens * shape->h, shape->h, part[0].dtype);
    ftmem__drop(tape, part[1]);
    ftmem__drop(tape, part[0]);
    table = ftmem__low_parameter(low, FTMEM_ROLE_POSITION, shape->s * shape->h, shape->h, shape->position_trained);
    encoder_replace(tape, &x, ftmem__binary(tape, FTMEM__OP_ADD, x, table));
    ftmem__drop(tape, pixels);
    return ftmem__low_dropout(low, x, shape->model->embed_dropout);
}
