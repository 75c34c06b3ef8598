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

typedef struct encoder_names { /* of the embedding's forward */
    ftmem__var at[6];
    int32_t count;
} encoder_names;

static ftmem__var encoder_name(encoder_names *names, ftmem__var value)
{
    names->at[names->count++] = value;
    return value;
}

/* Token types: zeros, gathered by position from a buffer and looked up for every token. */
static void encoder_add_types(ftmem__low *low, encoder_names *names, ftmem__var *sum)
{
    const ftmem__shape *shape = low->shape;
    ftmem__var ids, types;
    if (shape->model->type_vocab == 0) return;
    ids = encoder_name(names, encoder_ids(low, shape->family->positions_by_row ? low->tokens : shape->s));
    types = encoder_name(names, ftmem__low_lookup(low, encoder_table(low, shape->model->type_vocab, shape->embedding_width), low->tokens));
    ftmem__save_var(low->tape, types, ids);
    encoder_replace(low->tape, sum, ftmem__binary(low->tape, FTMEM__OP_ADD, *sum, types));
}

/* modeling_bert.py BertEmbeddings.forward: all look-ups have names. modeling_roberta.py counts the positions of each row. */
ftmem__var ftmem__low_embed_segments(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    bool by_row = shape->family->positions_by_row;
    encoder_names names = { .count = 0 };
    ftmem__var ids, positions, sum, y;
    if (by_row) ids = encoder_name(&names, encoder_ids(low, low->tokens));
    sum = ftmem__keep(tape, encoder_name(&names, ftmem__low_words(low)));
    encoder_add_types(low, &names, &sum);
    positions = ftmem__low_lookup(low, encoder_table(low, shape->model->position_rows, shape->embedding_width), by_row ? low->tokens : shape->s);
    encoder_name(&names, positions);
    if (by_row) ftmem__save_var(tape, positions, ids);
    encoder_replace(tape, &sum, ftmem__binary(tape, FTMEM__OP_ADD, sum, positions));
    y = ftmem__low_norm(low, sum, shape->embedding_width);
    ftmem__drop(tape, sum);
    y = ftmem__low_dropout(low, y, shape->model->embed_dropout);
    while (names.count > 0) ftmem__drop(tape, names.at[--names.count]);
    return y;
}

/* modeling_modernbert.py ModernBertEmbeddings: drop(norm(tok_embeddings(input_ids))) */
ftmem__var ftmem__low_embed_normed(ftmem__low *low)
{
    ftmem__var words = ftmem__low_words(low), y = ftmem__low_norm(low, words, low->shape->h);
    ftmem__drop(low->tape, words);
    return ftmem__low_dropout(low, y, low->shape->model->embed_dropout);
}

/* modeling_albert.py AlbertTransformer.embedding_hidden_mapping_in; x stays the caller's. */
ftmem__var ftmem__low_widen(ftmem__low *low, ftmem__var x)
{
    ftmem__var y;
    low->adapted = ftmem__shape_outside_adapted(low->shape);
    y = ftmem__low_linear(low, FTMEM_ROLE_WIDEN, x, low->shape->h, true);
    low->adapted = false;
    return y;
}

/* ---------------------------------------------------------------------------------------------------- patches */

/* nn.Conv2d with a stride as wide as its kernel, over pixels in the weights' dtype (modeling_vit.py ViTModel.forward, modeling_clip.py
   CLIPVisionEmbeddings.forward), autocast honoured. */
ftmem__var ftmem__low_patches(ftmem__low *low, int32_t role, int64_t patches, bool bias)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int64_t each = shape->model->channels * shape->model->patch_size * shape->model->patch_size, h = shape->h, n = low->b * patches;
    int32_t dtype = shape->autocast ? shape->autocast : shape->dtype, i, count = bias ? 3 : 2;
    bool trained = role == FTMEM_ROLE_TOWER ? low->trained : shape->position_trained;
    double flops = 2.0 * (double)n * (double)each * (double)h;
    ftmem__var pixels = ftmem__cast(tape, ftmem__constant(n * each, shape->model->image_size, ftmem__shape_pixels(shape)), shape->dtype), in[3], y;
    ftmem__node *node;
    in[0] = ftmem__cast(tape, pixels, dtype);
    in[1] = ftmem__cast_weight(tape, ftmem__low_parameter(low, role, h * each, each, trained), dtype);
    if (bias) in[2] = ftmem__cast_weight(tape, ftmem__low_parameter(low, role, h, h, trained), dtype);
    y = ftmem__apply(tape, FTMEM__OP_CONVOLUTION, in, count, n * h, h, dtype);
    ftmem__save_var(tape, y, in[1]); /* whether or not the pixels need a gradient */
    tape->flops += flops;
    node = ftmem__recorded(tape, y);
    if (node) node->flops = flops;
    for (i = 0; i < count; i++) ftmem__drop(tape, in[i]);
    ftmem__drop(tape, pixels);
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
    ftmem__var part[2], x, table, patches;
    part[0] = encoder_class_token(low);
    patches = ftmem__low_patches(low, FTMEM_ROLE_EMBED, shape->s - 1, true);
    ftmem__low_input_leaf(low, &patches);
    part[1] = ftmem__cast(tape, patches, part[0].dtype); /* cat takes the widest dtype (autocast_mode.h, promote) */
    ftmem__drop(tape, patches);
    x = ftmem__apply(tape, FTMEM__OP_CAT, part, 2, low->tokens * shape->h, shape->h, part[0].dtype);
    ftmem__drop(tape, part[1]);
    ftmem__drop(tape, part[0]);
    table = ftmem__low_parameter(low, FTMEM_ROLE_POSITION, shape->s * shape->h, shape->h, shape->position_trained);
    encoder_replace(tape, &x, ftmem__binary(tape, FTMEM__OP_ADD, x, table));
    return ftmem__low_dropout(low, x, shape->model->embed_dropout);
}
