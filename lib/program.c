/* Blocks and what stands around them: the family's steps, executed. */
#include "method.h"

static const char *const program_parts[] = { "embedding", "norm",      "attention", "mlp",          "residual",    "head",
                                             "loss",      "optimizer", "batch",     "vision tower", "state space", "reference model" };

const char *ftmem__part_name(int32_t part)
{
    return part >= 0 && part < FTMEM__PART_END ? program_parts[part] : "?";
}

static void program_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

static ftmem__var program_table(ftmem__low *low, int64_t n, int64_t cols, int32_t dtype, ftmem__op op)
{
    ftmem__var v = ftmem__constant(n, cols, dtype);
    v.store = ftmem__alloc(low->tape, op, n, cols, dtype, low->tape->birth);
    return v;
}

ftmem__var ftmem__low_lookup(ftmem__low *low, ftmem__var w, int64_t tokens)
{
    ftmem__var y = ftmem__apply(low->tape, FTMEM__OP_EMBEDDING, &w, 1, tokens * w.cols, w.cols, w.dtype);
    ftmem__node *node = ftmem__recorded(low->tape, y);
    if (node && tokens > 3072) node->work = 6 * 8 * tokens; /* embedding_dense_backward sorts its indices */
    return y;
}

/* ---------------------------------------------------------------------------------------------------- attention */

/* modeling_phi3.py Phi3Attention: query, key and value are slices, each with a gradient of the whole. */
static void program_slice(ftmem__tape *tape, ftmem__var fused, const int64_t part[3], ftmem__var qkv[3])
{
    int32_t i;
    for (i = 0; i < 3; i++) qkv[i] = ftmem__apply(tape, FTMEM__OP_SLICE, &fused, 1, part[i], fused.cols * part[i] / fused.n, fused.dtype);
}

/* modeling_bloom.py BloomAttention._reshape: query, key and value of each head are selected; gradients need no copy. */
static void program_select(ftmem__tape *tape, ftmem__var fused, const int64_t part[3], ftmem__var qkv[3])
{
    int32_t i;
    program_slice(tape, fused, part, qkv);
    for (i = 0; i < 3; i++) qkv[i].parted = true;
}

/* modeling_modernbert.py: qkv.unbind(dim=-3); gradients are stacked as they are laid out */
static void program_unbind(ftmem__tape *tape, ftmem__var fused, const int64_t part[3], ftmem__var qkv[3])
{
    int32_t i;
    ftmem__split(tape, fused, 3, part, qkv);
    for (i = 0; i < 3; i++) qkv[i].parted = true;
}

/* modeling_gpt_neox.py: heads come first, then each one's query, key and value are split. */
static void program_split_heads(ftmem__tape *tape, ftmem__var fused, const int64_t part[3], ftmem__var qkv[3])
{
    ftmem__var whole = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, fused); /* its gradient is copied for the projection */
    int32_t i;
    ftmem__split(tape, whole, 3, part, qkv);
    for (i = 0; i < 3; i++) qkv[i].parted = true;
    ftmem__drop(tape, whole);
}

/* qkv[..., [-2], :]: an index of a list copies; its backward fills zeros of the whole twice. */
static ftmem__var program_index(ftmem__tape *tape, ftmem__var fused, int64_t n)
{
    ftmem__var y = ftmem__apply(tape, FTMEM__OP_INDEX, &fused, 1, n, fused.cols * n / fused.n, fused.dtype);
    ftmem__node *node = ftmem__recorded(tape, y);
    ftmem__save_new(tape, y, 1, 1, FTMEM_INT64);
    if (node) node->work = ftmem__round512(ftmem__bytes(fused.dtype, fused.n));
    return y;
}

/* modeling_falcon.py FalconAttention._split_heads: with grouped heads keys and values are broadcast and all three copied. */
static void program_index_heads(ftmem__low *low, ftmem__var fused, const int64_t part[3], ftmem__var qkv[3])
{
    ftmem__tape *tape = low->tape;
    bool grouped = low->shape->kv_heads > 1;
    ftmem__var given[3];
    int32_t i;
    if (low->shape->kv_heads == low->shape->heads) {
        program_select(tape, fused, part, qkv);
        return;
    }
    given[0] = ftmem__apply(tape, FTMEM__OP_SLICE, &fused, 1, part[0], low->shape->q, fused.dtype);
    for (i = 1; i < 3; i++) given[i] = program_index(tape, fused, part[i]);
    for (i = 0; i < 3; i++) {
        if (grouped) qkv[i] = ftmem__apply(tape, i ? FTMEM__OP_EXPAND : FTMEM__OP_CLONE, &given[i], 1, part[0], low->shape->q, fused.dtype);
        else qkv[i] = ftmem__keep(tape, given[i]);
        qkv[i].parted = true;
    }
    for (i = 0; i < 3; i++) ftmem__drop(tape, given[i]);
}

static void program_take_apart(ftmem__low *low, ftmem__var fused, const int64_t part[3], ftmem__var qkv[3])
{
    int32_t kind = low->shape->family->qkv;
    if (kind == FTMEM__QKV_HEADS && low->shape->kv_heads < low->shape->heads) kind = FTMEM__QKV_FUSED; /* modeling_gpt_bigcode.py multi_query */
    switch (kind) {
    case FTMEM__QKV_SLICED: program_slice(low->tape, fused, part, qkv); break;
    case FTMEM__QKV_HEADS: program_split_heads(low->tape, fused, part, qkv); break;
    case FTMEM__QKV_UNBOUND: program_unbind(low->tape, fused, part, qkv); break;
    case FTMEM__QKV_SELECTED: program_select(low->tape, fused, part, qkv); break;
    case FTMEM__QKV_INDEXED: program_index_heads(low, fused, part, qkv); break;
    default: ftmem__split(low->tape, fused, 3, part, qkv); break;
    }
}

static bool program_rotates(const ftmem__low *low)
{
    int32_t positions = low->shape->family->positions;
    return (positions == FTMEM__ROPE || positions == FTMEM__ROPE_INTERLEAVED) && low->kind != 2 && low->shape->model->alibi != FTMEM_ON;
}

/* Heads are a view; a gradient that comes back laid out by heads is copied for the projection (aten view_backward, reshape):
   rotated queries and keys, whose sum starts from a slice's zeros, and what a matmul or a sum over repeated heads made. */
void ftmem__low_view(ftmem__low *low, int32_t i, ftmem__var *x)
{
    const ftmem__shape *shape = low->shape;
    int32_t kernel = ftmem__low_kernel(low, x->dtype);
    bool repeated = i > 0 && ftmem__low_kv_heads(low) < shape->heads && (kernel == FTMEM_KERNEL_EFFICIENT || shape->job->repeat_kv == FTMEM_ON);
    bool copied = kernel == FTMEM_KERNEL_EAGER || kernel == FTMEM_KERNEL_MATH || repeated;
    if (i < 2 && program_rotates(low))
        copied = shape->family->turn != FTMEM__TURN_PAIRS && shape->family->turn != FTMEM__TURN_COMPLEX && shape->family->turn != FTMEM__TURN_BEFORE;
    if (copied) program_replace(low->tape, x, ftmem__unary(low->tape, FTMEM__OP_CONTIGUOUS, *x));
}

/* view(...).transpose(1, 2).contiguous() */
static void program_dense(ftmem__low *low, ftmem__var *x)
{
    ftmem__var view = ftmem__unary(low->tape, FTMEM__OP_CONTIGUOUS, *x); /* its gradient is copied for the projection */
    program_replace(low->tape, x, ftmem__unary(low->tape, FTMEM__OP_CLONE, view));
    ftmem__drop(low->tape, view);
    x->joined = true;
}

static int64_t program_width(const ftmem__low *low, int32_t i)
{
    const ftmem__shape *shape = low->shape;
    return i == 0 ? shape->q : ftmem__low_kv_heads(low) * (i == 1 ? shape->d : shape->dv);
}

/* modeling_qwen3_next.py Qwen3NextAttention: queries and gates of each head come together; the gates are copied. */
static ftmem__var program_gated_queries(ftmem__low *low, ftmem__var x, bool bias, ftmem__var *gate)
{
    const int64_t n[2] = { low->tokens * low->shape->q, low->tokens * low->shape->q };
    ftmem__var both = ftmem__low_linear(low, FTMEM_ROLE_Q, x, 2 * low->shape->q, bias), part[2];
    ftmem__split(low->tape, both, 2, n, part);
    *gate = ftmem__unary(low->tape, FTMEM__OP_CLONE, part[1]);
    ftmem__drop(low->tape, part[1]);
    ftmem__drop(low->tape, both);
    return part[0];
}

/* Three linears; where the norm of queries and keys stands among them, and where heads are separated, differs. */
static void program_project_apart(ftmem__low *low, ftmem__var x, bool bias, ftmem__var qkv[3], ftmem__var *locals, int32_t *count)
{
    ftmem__var source = low->cross ? low->side[FTMEM__SIDE_SOURCE] : x;
    static const uint8_t role[] = { FTMEM_ROLE_Q, FTMEM_ROLE_K, FTMEM_ROLE_V };
    const ftmem__family *family = low->shape->family;
    bool last = family->views_last, fused = !family->gated_output && ftmem__low_fused_qkv(low, x, qkv);
    int32_t i;
    for (i = 0; i < 3; i++) {
        bool gated = i == 0 && family->gated_output;
        if (gated) qkv[0] = program_gated_queries(low, x, bias, &locals[(*count)++]);
        else if (!fused) qkv[i] = ftmem__low_linear(low, role[i], i ? source : x, program_width(low, i), bias && !(i == 1 && family->k_unbiased));
        if (i == 0 && family->scaled_query) program_replace(low->tape, &qkv[0], ftmem__unary(low->tape, FTMEM__OP_SCALE, qkv[0]));
        if (family->dense_heads) program_dense(low, &qkv[i]);
        else if (!last && !gated) ftmem__low_view(low, i, &qkv[i]);
        if (i == 2 && family->scaled_values) program_replace(low->tape, &qkv[2], ftmem__unary(low->tape, FTMEM__OP_SCALE, qkv[2]));
        if (i < 2 && family->norm_each && low->shape->model->qk_norm == FTMEM_ON) qkv[i] = ftmem__low_qk_norm(low, qkv[i]);
    }
    for (i = 0; i < 3 && last; i++) ftmem__low_view(low, i, &qkv[i]);
}

static void program_project(ftmem__low *low, ftmem__var x, ftmem__var qkv[3], ftmem__var *locals, int32_t *count)
{
    const ftmem__shape *shape = low->shape;
    bool bias = shape->model->qkv_bias == FTMEM_ON;
    int64_t part[3];
    ftmem__var fused;
    if (shape->family->qkv == FTMEM__QKV_SEPARATE) {
        program_project_apart(low, x, bias, qkv, locals, count);
        return;
    }
    part[0] = shape->q;
    part[1] = part[2] = shape->kv;
    fused = shape->merged ? ftmem__low_merged_linear(low, x, part, bias) : ftmem__low_linear(low, FTMEM_ROLE_QKV, x, shape->q + 2 * shape->kv, bias);
    if (shape->job->use_cache == FTMEM_ON && shape->family->returns_cache) ftmem__cache_hold(low->tape, fused, false);
    part[0] = low->tokens * shape->q;
    part[1] = part[2] = low->tokens * shape->kv;
    program_take_apart(low, fused, part, qkv);
    locals[(*count)++] = fused;
}

static void program_rotate(ftmem__low *low, ftmem__var qkv[3], ftmem__var *locals, int32_t *count)
{
    if (program_rotates(low)) ftmem__low_rotate(low, qkv, locals, count);
}

/* modeling_llama4.py Llama4TextAttention: attn_scales, in fp32. */
static void program_temper(ftmem__low *low, ftmem__var *q, ftmem__var *locals, int32_t *count)
{
    ftmem__var scales = program_table(low, low->shape->s, 1, FTMEM_FP32, FTMEM__OP_TABLE), wide = ftmem__binary(low->tape, FTMEM__OP_MUL, *q, scales);
    program_replace(low->tape, q, ftmem__cast(low->tape, wide, q->dtype));
    ftmem__drop(low->tape, wide);
    locals[(*count)++] = scales;
    locals[(*count)++] = program_table(low, low->shape->s, 1, FTMEM_INT64, FTMEM__OP_TABLE);
}

static void program_norm_rotated(ftmem__low *low, ftmem__var qk[2])
{
    int32_t i;
    for (i = 0; i < 2; i++) qk[i] = ftmem__low_l2_norm(low, qk[i]);
}

static void program_queries(ftmem__low *low, ftmem__var x, ftmem__var qkv[3], ftmem__var *locals, int32_t *count)
{
    const ftmem__shape *shape = low->shape;
    program_project(low, x, qkv, locals, count);
    if (shape->model->qk_norm == FTMEM_ON && !shape->family->norm_each && !shape->family->normed_after) {
        qkv[0] = ftmem__low_qk_norm(low, qkv[0]);
        qkv[1] = ftmem__low_qk_norm(low, qkv[1]);
    }
    program_rotate(low, qkv, locals, count);
    if (shape->family->normed_after && shape->model->qk_norm == FTMEM_ON && program_rotates(low)) program_norm_rotated(low, qkv);
    if (shape->family->scaled_unrotated && !program_rotates(low)) program_temper(low, &qkv[0], locals, count);
}

/* cache_utils.py DynamicLayer.update: new tensors, which the cache owns beside the graph. Checkpointed blocks have none. */
static void program_cache(ftmem__low *low, ftmem__var kv[2])
{
    const ftmem_job *job = low->shape->job;
    ftmem__var given[2];
    int32_t i;
    if (!(low->shape->family->keeps_cache || low->shape->generates) || (job->recompute != FTMEM_RECOMPUTE_NONE && low->training)) return;
    for (i = 0; i < 2; i++) given[i] = kv[i];
    for (i = 0; i < 2; i++) kv[i] = ftmem__unary(low->tape, FTMEM__OP_CAT, kv[i]);
    for (i = 0; i < 2; i++) {
        kv[i].joined = true;
        ftmem__cache_hold(low->tape, kv[i], ftmem__holds_outputs(job));
        ftmem__drop(low->tape, given[i]);
    }
}

/* modeling_t5.py _relative_position_bucket: what stands beside what, in bytes a pair of tokens, as it is made and dropped. */
static void program_buckets(ftmem__low *low, int64_t pairs, ftmem__var *distance, ftmem__var *bucket)
{
    ftmem__tape *tape = low->tape;
    int16_t absolute, small, large, both;
    *distance = program_table(low, pairs, low->shape->s, FTMEM_INT64, FTMEM__OP_TABLE);
    if (!low->shape->causal) { /* the sign chooses the half */
        int16_t sign = ftmem__alloc(tape, FTMEM__OP_TABLE, pairs, 0, FTMEM_INT64, tape->birth);
        *bucket = program_table(low, pairs, low->shape->s, FTMEM_INT64, FTMEM__OP_TABLE);
        ftmem__release(tape, sign);
    }
    absolute = ftmem__alloc(tape, FTMEM__OP_TABLE, pairs, 0, FTMEM_INT64, tape->birth);
    small = ftmem__alloc(tape, FTMEM__OP_TABLE, pairs, 0, FTMEM_BOOL, tape->birth);
    large = ftmem__alloc(tape, FTMEM__OP_TABLE, pairs, 0, FTMEM_INT64, tape->birth);
    both = ftmem__alloc(tape, FTMEM__OP_TABLE, 2 * pairs, 0, FTMEM_INT64, tape->birth); /* the bound and the minimum */
    ftmem__release(tape, both);
    if (low->shape->causal) *bucket = program_table(low, pairs, low->shape->s, FTMEM_INT64, FTMEM__OP_TABLE);
    ftmem__release(tape, large);
    ftmem__release(tape, small);
    ftmem__release(tape, absolute);
}

/* modeling_t5.py T5Attention.compute_bias: a table's rows for each pair of tokens. */
static ftmem__var program_relative(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    int64_t pairs = shape->s * shape->s, n = shape->model->relative_buckets * shape->heads;
    ftmem__var w = ftmem__low_parameter(low, FTMEM_ROLE_POSITION, n, shape->heads, low->trained), distance, bucket, bias;
    program_buckets(low, pairs, &distance, &bucket);
    bias = ftmem__low_lookup(low, w, pairs);
    ftmem__save_var(low->tape, bias, bucket);
    ftmem__drop(low->tape, bucket);
    ftmem__drop(low->tape, distance);
    return bias;
}

/* Cross-attention has no table: zeros, which checkpointing makes a leaf of. */
static ftmem__var program_zeros(ftmem__low *low, int64_t keys, int32_t dtype)
{
    const ftmem__shape *shape = low->shape;
    ftmem__var zeros = program_table(low, shape->heads * shape->s * keys, keys, dtype, FTMEM__OP_TABLE);
    zeros.grad = low->training && shape->job->recompute != FTMEM_RECOMPUTE_NONE;
    if (zeros.grad) zeros.node = FTMEM__SIDE - FTMEM__SIDE_CROSS_BIAS;
    return zeros;
}

/* modeling_t5.py T5Stack: the bias of every block is the first one's. */
static const ftmem__var *program_bias(ftmem__low *low, int64_t keys, int32_t query_dtype)
{
    int32_t side = low->cross ? FTMEM__SIDE_CROSS_BIAS : FTMEM__SIDE_BIAS;
    ftmem__var *bias = &low->side[side];
    if (low->shape->family->positions != FTMEM__RELATIVE) return NULL;
    if (low->given >> side & 1) return bias;
    *bias = low->cross ? program_zeros(low, keys, query_dtype) : program_relative(low);
    low->made |= (uint8_t)(1u << side);
    return bias;
}

typedef struct program_names { /* of attention's forward */
    ftmem__var qkv[3], locals[16];
    int32_t count;
} program_names;

static ftmem__var program_attend(ftmem__low *low, ftmem__var x, program_names *names)
{
    const ftmem__shape *shape = low->shape;
    names->count = 0;
    low->tape->part = FTMEM__PART_ATTENTION;
    if (shape->model->kv_rank > 0) ftmem__low_latent(low, x, names->qkv, names->locals, &names->count);
    else if (shape->family->by_kind) ftmem__low_shared_kv(low, x, names->qkv);
    else program_queries(low, x, names->qkv, names->locals, &names->count);
    program_cache(low, names->qkv + 1);
    low->bias = program_bias(low, names->qkv[1].n / (low->b * shape->kv), names->qkv[0].dtype);
    return ftmem__low_attend(low, names->qkv, names->locals, &names->count); /* q, k, v stay this frame's */
}

static void program_leave(ftmem__low *low, program_names *names)
{
    int32_t i;
    for (i = 0; i < 3; i++) ftmem__drop(low->tape, names->qkv[i]);
    while (names->count > 0) ftmem__drop(low->tape, names->locals[--names->count]);
}

static ftmem__var program_out(ftmem__low *low, ftmem__var x)
{
    ftmem__var y;
    if (ftmem__low_fused_o(low, x, low->shape->h, &y)) return y;
    return ftmem__low_linear(low, FTMEM_ROLE_O, x, low->shape->h, low->shape->model->o_bias == FTMEM_ON);
}

/* modeling_albert.py AlbertAttention: LayerNorm(hidden_states + attn_output); takes over y. */
static ftmem__var program_norm_inside(ftmem__low *low, ftmem__var y)
{
    ftmem__var sum, normed;
    y = ftmem__low_dropout(low, y, low->shape->model->hidden_dropout);
    sum = ftmem__binary(low->tape, FTMEM__OP_ADD, *low->join, y);
    normed = ftmem__low_norm(low, sum, low->shape->h);
    ftmem__drop(low->tape, sum);
    ftmem__drop(low->tape, y);
    return normed;
}

/* modeling_qwen3_next.py Qwen3NextAttention: attn_output * torch.sigmoid(gate); takes over x. */
static ftmem__var program_gate(ftmem__low *low, ftmem__var x, ftmem__var gate)
{
    ftmem__tape *tape = low->tape;
    ftmem__var open = ftmem__unary(tape, FTMEM__OP_SIGMOID, gate), y = ftmem__binary(tape, FTMEM__OP_MUL, x, open);
    ftmem__drop(tape, open);
    ftmem__drop(tape, x);
    return y;
}

static ftmem__var program_attention(ftmem__low *low, ftmem__var x)
{
    const ftmem__shape *shape = low->shape;
    program_names names;
    ftmem__var out, y;
    if (low->kind == FTMEM__LAYER_LINEAR) return ftmem__low_delta(low, x);
    if (low->kind == FTMEM__LAYER_SSM) return ftmem__low_ssm(low, x);
    out = program_attend(low, x, &names);
    if (shape->family->gated_output) out = program_gate(low, out, names.locals[0]);
    y = program_out(low, out);
    ftmem__drop(low->tape, out);
    if (low->join && shape->family->norm_inside) y = program_norm_inside(low, y);
    else if (low->join) program_replace(low->tape, &y, ftmem__low_dropout_add(low, y, *low->join)); /* modeling_bloom.py BloomAttention */
    else if (shape->family->dropout_inside) y = ftmem__low_dropout(low, y, shape->model->hidden_dropout);
    program_leave(low, &names);
    return y;
}

/* modeling_bert.py BertSelfAttention: the output projection is another module's. */
static ftmem__var program_context(ftmem__low *low, ftmem__var x)
{
    program_names names;
    ftmem__var out = program_attend(low, x, &names);
    program_leave(low, &names);
    return out;
}

/* -------------------------------------------------------------------------------------------------------- block */

typedef struct program_frame { /* of the block's forward */
    ftmem__var cur, residual, branch, kept[8];
    bool has_residual, has_branch;
    int32_t kept_count;
} program_frame;

/* cur = first + second; the operands keep their names. */
static void program_sum(ftmem__low *low, program_frame *frame, ftmem__var first, ftmem__var second)
{
    low->tape->part = FTMEM__PART_RESIDUAL;
    program_replace(low->tape, &frame->cur, ftmem__binary(low->tape, FTMEM__OP_ADD, first, second));
}

/* cur = first + cur, and `first` is done with. */
static void program_add(ftmem__low *low, program_frame *frame, ftmem__var *first, bool *has)
{
    program_sum(low, frame, *first, frame->cur);
    ftmem__drop(low->tape, *first);
    *has = false;
}

/* modeling_falcon.py: mlp_output += attention_output */
static void program_add_in_place(ftmem__low *low, program_frame *frame)
{
    ftmem__var in[2];
    low->tape->part = FTMEM__PART_RESIDUAL;
    in[0] = frame->cur;
    in[1] = frame->branch;
    program_replace(low->tape, &frame->cur, ftmem__apply(low->tape, FTMEM__OP_ADD_IN_PLACE, in, 2, in[0].n, in[0].cols, in[0].dtype));
}

static void program_keep(ftmem__low *low, program_frame *frame)
{
    if (frame->kept_count < FTMEM__COUNT(frame->kept)) frame->kept[frame->kept_count++] = ftmem__keep(low->tape, frame->cur);
}

/* The block returns: its names go. */
static void program_return(ftmem__low *low, program_frame *frame)
{
    if (frame->has_residual) ftmem__drop(low->tape, frame->residual);
    if (frame->has_branch) ftmem__drop(low->tape, frame->branch);
    while (frame->kept_count > 0) ftmem__drop(low->tape, frame->kept[--frame->kept_count]);
    if (low->has_weights) ftmem__drop(low->tape, low->weights);
    low->has_weights = false;
    if (low->has_choice && !low->holds_choice) ftmem__drop(low->tape, low->choice);
    if (!low->holds_choice) low->has_choice = false;
}

/* cur = (residual + branch) + cur */
static void program_join_residual_first(ftmem__low *low, program_frame *frame)
{
    low->tape->part = FTMEM__PART_RESIDUAL;
    program_replace(low->tape, &frame->residual, ftmem__binary(low->tape, FTMEM__OP_ADD, frame->residual, frame->branch));
    program_add(low, frame, &frame->residual, &frame->has_residual);
    ftmem__drop(low->tape, frame->branch);
    frame->has_branch = false;
}

static void program_set(ftmem__tape *tape, ftmem__var *place, bool *has, ftmem__var value)
{
    if (*has) ftmem__drop(tape, *place);
    *place = value;
    *has = true;
}

/* residual = attention(cur, residual); cur = mlp(cur, residual) */
static void program_joined(ftmem__low *low, program_frame *f, bool attention)
{
    ftmem__var residual = f->residual;
    low->join = &residual;
    if (attention) program_replace(low->tape, &f->residual, program_attention(low, f->cur));
    else program_replace(low->tape, &f->cur, ftmem__low_mlp(low, f->cur));
    low->join = NULL;
}

/* (cur, branch) = (branch, attention(cur)) */
static void program_attention_then_branch(ftmem__low *low, program_frame *f)
{
    ftmem__var y = program_attention(low, f->cur);
    program_replace(low->tape, &f->cur, f->branch);
    f->branch = y;
}

static void program_forget_branch(ftmem__low *low, program_frame *f)
{
    if (f->has_branch) ftmem__drop(low->tape, f->branch);
    f->has_branch = false;
}

/* modeling_bert.py BertSelfOutput: LayerNorm(hidden_states + input_tensor) */
static void program_add_norm(ftmem__low *low, program_frame *f)
{
    ftmem__var sum;
    low->tape->part = FTMEM__PART_RESIDUAL;
    sum = ftmem__binary(low->tape, FTMEM__OP_ADD, f->cur, f->residual);
    program_replace(low->tape, &f->cur, ftmem__low_norm(low, sum, low->shape->h));
    ftmem__drop(low->tape, sum);
}

static ftmem__var program_cross_attention(ftmem__low *low, ftmem__var x)
{
    ftmem__var y;
    low->cross = true;
    y = program_attention(low, x);
    low->cross = false;
    return y;
}

/* cur = residual + dropout(branch) */
static void program_dropout_add(ftmem__low *low, program_frame *f, ftmem__var branch)
{
    low->tape->part = FTMEM__PART_RESIDUAL;
    program_replace(low->tape, &f->cur, ftmem__low_dropout_add(low, branch, f->residual));
    ftmem__drop(low->tape, f->residual);
    f->has_residual = false;
}

/* modeling_t5.py T5Block, modeling_bart.py: infinities of fp16 are cut off. */
static void program_clamp(ftmem__low *low, program_frame *f)
{
    ftmem__tape *tape = low->tape;
    if (f->cur.dtype != FTMEM_FP16) return;
    low->tape->part = FTMEM__PART_RESIDUAL;
    program_replace(tape, &f->cur, ftmem__low_clamp(low, f->cur, 2));
}

static ftmem__var program_mixer(ftmem__low *low, ftmem__var x)
{
    return low->kind == FTMEM__LAYER_NONE ? ftmem__low_mlp(low, x) : program_attention(low, x);
}

/* modeling_gemma4.py Gemma4TextDecoderLayer: what the MLP made and what the experts made of its input, each normalised; all are names. */
static void program_experts_beside(ftmem__low *low, program_frame *f)
{
    ftmem__tape *tape = low->tape;
    ftmem__var names[3], first, second;
    int32_t i;
    if (low->mlp != FTMEM__MLP_EXPERTS) return;
    first = ftmem__low_norm(low, f->cur, low->shape->h);
    second = ftmem__low_experts_beside(low, f->residual, names);
    low->tape->part = FTMEM__PART_MLP;
    program_replace(tape, &f->cur, ftmem__binary(tape, FTMEM__OP_ADD, first, second));
    for (i = 0; i < 3; i++) f->kept[f->kept_count++] = names[i];
    f->kept[f->kept_count++] = first;
    f->kept[f->kept_count++] = second;
}

/* The layer's part of the inputs, gated by the stream (modeling_gemma4.py Gemma4TextDecoderLayer). */
static void program_layer_input(ftmem__low *low, program_frame *f)
{
    ftmem__tape *tape = low->tape;
    ftmem__var act, product, out;
    if (low->shape->model->layer_input == 0) return;
    low->tape->part = FTMEM__PART_MLP;
    act = ftmem__low_activation(low, ftmem__low_linear(low, FTMEM_ROLE_MIXER_IN, f->cur, low->shape->model->layer_input, false));
    product = ftmem__binary(tape, FTMEM__OP_MUL, act, low->layer);
    ftmem__drop(tape, act);
    out = ftmem__low_linear(low, FTMEM_ROLE_LAYER_OUT, product, low->shape->h, false);
    ftmem__drop(tape, product);
    program_replace(tape, &out, ftmem__low_norm(low, out, low->shape->h));
    program_sum(low, f, f->cur, out);
    ftmem__drop(tape, out);
}

static void program_step(ftmem__low *low, program_frame *f, uint8_t step)
{
    ftmem__tape *tape = low->tape;
    const ftmem__shape *shape = low->shape;
    switch (step) {
    case FTMEM__RESIDUAL: program_set(tape, &f->residual, &f->has_residual, ftmem__keep(tape, f->cur)); break;
    case FTMEM__NORM: program_replace(tape, &f->cur, ftmem__low_norm(low, f->cur, shape->h)); break;
    case FTMEM__NORM_BUT_FIRST:
        if (!low->first) program_replace(tape, &f->cur, ftmem__low_norm(low, f->cur, shape->h));
        break;
    case FTMEM__NORM_ASIDE: program_set(tape, &f->branch, &f->has_branch, ftmem__low_norm(low, f->cur, shape->h)); break;
    case FTMEM__ATTENTION: program_replace(tape, &f->cur, program_attention(low, f->cur)); break;
    case FTMEM__NARROW: program_replace(tape, &f->cur, ftmem__cast(tape, f->cur, shape->dtype)); break;
    case FTMEM__WIDE_RESIDUAL: program_replace(tape, &f->residual, ftmem__cast(tape, f->residual, FTMEM_FP32)); break;
    case FTMEM__MIXER: program_replace(tape, &f->cur, program_mixer(low, f->cur)); break;
    case FTMEM__ATTENTION_ASIDE: program_set(tape, &f->branch, &f->has_branch, program_attention(low, f->cur)); break;
    case FTMEM__MLP: program_replace(tape, &f->cur, ftmem__low_mlp(low, f->cur)); break;
    case FTMEM__DROPOUT: f->cur = ftmem__low_dropout(low, f->cur, shape->family->dropout_inside ? 0 : shape->model->hidden_dropout); break;
    case FTMEM__DROPOUT_ASIDE: f->branch = ftmem__low_dropout(low, f->branch, shape->family->dropout_inside ? 0 : shape->model->hidden_dropout); break;
    case FTMEM__MULTIPLY:
        if (shape->model->scaled == FTMEM_ON) program_replace(tape, &f->cur, ftmem__unary(tape, FTMEM__OP_SCALE, f->cur));
        break;
    case FTMEM__RESTART: program_replace(tape, &f->cur, ftmem__keep(tape, f->residual)); break;
    case FTMEM__ADD: program_add(low, f, &f->residual, &f->has_residual); break;
    case FTMEM__ADD_BRANCH: program_sum(low, f, f->branch, f->cur); break;
    case FTMEM__ADD_ASIDE: program_sum(low, f, f->branch, f->residual); break;
    case FTMEM__ADD_IN_PLACE: program_add_in_place(low, f); break;
    case FTMEM__KEEP: program_keep(low, f); break;
    case FTMEM__NORM_OF_RESIDUAL: program_set(tape, &f->branch, &f->has_branch, ftmem__low_norm(low, f->residual, shape->h)); break;
    case FTMEM__ATTENTION_THEN_BRANCH: program_attention_then_branch(low, f); break;
    case FTMEM__NORM_OVER: program_replace(tape, &f->cur, ftmem__low_norm(low, f->residual, shape->h)); break;
    case FTMEM__RESIDUAL_ADD: program_replace(tape, &f->residual, ftmem__low_dropout_add(low, f->branch, f->residual)); break;
    case FTMEM__RESIDUAL_ATTENTION: program_joined(low, f, true); break;
    case FTMEM__MLP_JOINED: program_joined(low, f, false); break;
    case FTMEM__MLP_INLINE: f->cur = ftmem__low_mlp_inline(low, f->cur); break;
    case FTMEM__JOIN_RESIDUAL_FIRST: program_join_residual_first(low, f); break;
    case FTMEM__CONTEXT: program_replace(tape, &f->cur, program_context(low, f->cur)); break;
    case FTMEM__OUT_ASIDE:
        program_set(tape, &f->branch, &f->has_branch, f->cur);
        f->cur = program_out(low, f->branch);
        break;
    case FTMEM__UP: f->cur = ftmem__low_up(low, f->cur); break;
    case FTMEM__DOWN_ASIDE:
        program_set(tape, &f->branch, &f->has_branch, f->cur);
        f->cur = ftmem__low_down(low, f->branch);
        break;
    case FTMEM__ADD_NORM: program_add_norm(low, f); break;
    case FTMEM__FORGET_BRANCH: program_forget_branch(low, f); break;
    case FTMEM__CROSS_ATTENTION: program_replace(tape, &f->cur, program_cross_attention(low, f->cur)); break;
    case FTMEM__CROSS_ATTENTION_ASIDE: program_set(tape, &f->branch, &f->has_branch, program_cross_attention(low, f->cur)); break;
    case FTMEM__DROPOUT_ADD: program_dropout_add(low, f, f->cur); break;
    case FTMEM__DROPOUT_ADD_BRANCH:
        program_dropout_add(low, f, f->branch);
        ftmem__drop(tape, f->branch);
        f->has_branch = false;
        break;
    case FTMEM__CLAMP: program_clamp(low, f); break;
    case FTMEM__EXPERTS_BESIDE: program_experts_beside(low, f); break;
    case FTMEM__LAYER_INPUT: program_layer_input(low, f); break;
    case FTMEM__SCALE_IN_PLACE: program_replace(tape, &f->cur, ftmem__unary(tape, FTMEM__OP_SCALE_IN_PLACE, f->cur)); break;
    case FTMEM__ADD_NAMED: program_sum(low, f, f->residual, f->cur); break;
    default: break;
    }
}

/* modeling_bloom.py, modeling_mpt.py, modeling_falcon.py: a block returns its attention weights too, and the model's frame
   holds the tuple while the next block runs; a reentrant checkpoint gets zeros as their gradient. */
static ftmem__var program_returned(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    bool passing = tape->mode == FTMEM__NO_GRAD || tape->mode == FTMEM__FORGET;
    bool again = shape->job->recompute == FTMEM_RECOMPUTE_REENTRANT && tape->mode == FTMEM__RECORD && tape->birth == FTMEM_CLASS_RECOMPUTED;
    bool wide = shape->qlora || shape->lora8 || shape->family->eager == FTMEM__EAGER_FALCON;
    int32_t dtype = !shape->autocast ? shape->stream : wide ? FTMEM_FP32 : shape->autocast;
    ftmem__var none = ftmem__constant(0, 0, dtype);
    bool hybrid = shape->model->ssm_heads > 0, own = low->kind != FTMEM__LAYER_SSM; /* a mixer returns none, and runs after the attention that did */
    if (hybrid && own == passing) return none;
    if (!shape->family->returns_weights || ftmem__low_kernel(low, dtype) != FTMEM_KERNEL_EAGER || (!passing && !again)) return none;
    return program_table(low, low->b * shape->heads * shape->s * shape->s, shape->s, dtype, FTMEM__OP_SOFTMAX);
}

/* One block over x, which stays the caller's. */
ftmem__var ftmem__low_block(ftmem__low *low, ftmem__var x)
{
    const ftmem__family *family = low->shape->family;
    const uint8_t *step = low->kind == FTMEM__LAYER_NONE && family->mlp_block ? family->mlp_block : ftmem__family_block(family, low->shape->model);
    program_frame frame = { 0 };
    ftmem__var returned = program_returned(low);
    frame.cur = ftmem__keep(low->tape, x);
    if (low->shape->model->layer_input > 0) low->layer = ftmem__low_layer_input(low);
    for (; *step != FTMEM__END; step++) program_step(low, &frame, *step);
    if (low->tape->mode == FTMEM__RECORD && returned.store >= 0 && low->has_weights && low->weights.grad) {
        ftmem__also(low->tape, low->weights, returned.store);
        low->has_weights = false;
        returned.store = -1;
    }
    program_return(low, &frame);
    if (low->shape->model->layer_input > 0) ftmem__drop(low->tape, low->layer);
    ftmem__drop(low->tape, returned);
    return frame.cur;
}

ftmem__var ftmem__low_final_norm(ftmem__low *low, ftmem__var x)
{
    ftmem__var y;
    if (low->shape->tower) return ftmem__low_bridge(low, x);
    if (low->shape->tower) return ftmem__low_bridge(low, x);
    if (low->shape->family->no_final_norm) return ftmem__keep(low->tape, x);
    y = ftmem__low_norm(low, x, low->shape->h);
    return low->shape->family->end_dropout ? ftmem__low_dropout(low, y, low->shape->model->hidden_dropout) : y;
}

/* ---------------------------------------------------------------------------------------------------- embedding */

static void program_hold(ftmem__prologue *p, ftmem__var value)
{
    if (p->held_count < FTMEM__COUNT(p->held)) p->held[p->held_count++] = value;
}

static void program_argument(ftmem__prologue *p, ftmem__var value)
{
    if (p->mask_count < FTMEM__COUNT(p->masks)) p->masks[p->mask_count++] = value;
}

/* The encoder's, whose gradient comes after this one; a tied head's has come before. */
static ftmem__var program_shared_embedding(ftmem__low *low, int64_t n, bool trained)
{
    ftmem__var w = ftmem__weight(n, low->shape->h, low->shape->dtype, trained);
    if (trained) w.node = low->shape->tied ? FTMEM__JOINED_LEAF : FTMEM__SHARED_LEAF;
    return w;
}

static ftmem__var program_embedding_weight(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    int64_t width = shape->embedding_width, n = (shape->vocab + shape->family->extra_rows) * width;
    bool trained = shape->embed_trained && !shape->embed_copy;
    ftmem__var w;
    if (shape->crossed && !shape->fed_features) return program_shared_embedding(low, n, trained);
    w = ftmem__low_parameter(low, FTMEM_ROLE_EMBED, n, width, trained);
    if (shape->crossed && shape->tied && trained) w.node = FTMEM__JOINED_LEAF;    /* the encoder's backward is still to come */
    if (shape->tied && trained && low->tape->update) w.node = FTMEM__JOINED_LEAF; /* the head's gradient waits, and both are used up here */
    return shape->embed_copy ? ftmem__low_copy(low, FTMEM_ROLE_EMBED, n, width) : w;
}

/* modeling_whisper.py WhisperEncoder: two convolutions, the second of stride 2, and frozen sinusoids in a table. */
static ftmem__var program_features(ftmem__low *low, ftmem__prologue *p)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int64_t n = shape->model->position_rows * shape->h, channels = shape->model->encoder_channels, length = 2 * shape->s;
    ftmem__var x = ftmem__constant(low->b * channels * length, length, shape->autocast ? FTMEM_FP32 : shape->dtype), w, rows, sum;
    x = ftmem__low_convolution(low, x, channels, shape->h, length, 3);
    if (shape->require_input_grad && tape->mode != FTMEM__NO_GRAD && !x.grad) x.grad = true, x.node = FTMEM__LEAF;
    x = ftmem__low_convolution(low, ftmem__low_activation(low, x), shape->h, shape->h, shape->s, 3);
    x = ftmem__low_activation(low, x);
    x = ftmem__shaped(x, x.n, shape->h);
    w = ftmem__low_parameter(low, FTMEM_ROLE_POSITION, n, shape->h, false);
    rows = ftmem__low_lookup(low, w, shape->s);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, x, rows);
    ftmem__drop(tape, rows);
    program_hold(p, x);
    return ftmem__low_dropout(low, sum, shape->model->embed_dropout);
}

/* Of full blocks, which may have heads of another width. */
static int64_t program_other_rotary(const ftmem__shape *shape)
{
    return shape->family->by_kind ? shape->model->full_head_dim : shape->rotary;
}

/* cos and sin of every position, in the stream's dtype, once for all blocks. */
static void program_positions(ftmem__low *low, ftmem__prologue *p)
{
    const ftmem__shape *shape = low->shape;
    bool complex_pairs = shape->family->turn == FTMEM__TURN_COMPLEX; /* one complex table: two halves of it here */
    int32_t dtype =
        shape->family->tables == FTMEM__TABLES_FP32 || shape->family->tables == FTMEM__TABLES_TURNED_FP32 || complex_pairs ? FTMEM_FP32 : shape->mask;
    const ftmem__family *tower = ftmem__family_tower(shape->model);
    bool by_row = shape->family->tables_by_row || (tower && tower->chunked); /* positions in time, height and width */
    bool half = complex_pairs || shape->family->turn == FTMEM__TURN_HALVES;
    int64_t n = (by_row ? low->b : 1) * shape->s * shape->rotary / (half ? 2 : 1);
    if (shape->tower) {
        ftmem__low_image_positions(low, p);
        return;
    }
    if (by_row && shape->scattered) /* get_rope_index: in three dimensions for each row, no argument of the blocks */
        program_hold(p, program_table(low, 3 * low->tokens, 0, FTMEM_INT64, FTMEM__OP_TABLE));
    else if (shape->family->positions <= FTMEM__ROPE_INTERLEAVED ||
             shape->family->positions == FTMEM__UNROTATED) /* modeling_llama.py LlamaModel: position_ids is an argument of every block */
        (shape->family->ids_held ? program_hold : program_argument)(p, program_table(low, shape->s, 0, FTMEM_INT64, FTMEM__OP_TABLE));
    if (shape->family->turn == FTMEM__TURN_PAIRS) { /* modeling_gptj.py: sin and cos are halves of one tensor, which no rotation keeps */
        program_argument(p, program_table(low, n, shape->rotary, shape->stream, FTMEM__OP_TABLE));
        return;
    }
    if (shape->family->tables_by_kind && shape->has_full && shape->has_sliding) n += shape->s * program_other_rotary(shape); /* each kind has its own pair */
    if (shape->family->positions > FTMEM__ROPE_INTERLEAVED || shape->model->alibi == FTMEM_ON || !shape->rotates) return;
    if (shape->family->tables == FTMEM__TABLES_TURNED_FP32 || shape->family->tables == FTMEM__TABLES_REPEATED) { /* each call repeats them, and keeps its own */
        program_argument(p, program_table(low, n, shape->rotary, dtype, FTMEM__OP_TABLE));
        program_argument(p, program_table(low, n, shape->rotary, dtype, FTMEM__OP_TABLE));
        return;
    }
    p->tables[0] = program_table(low, n, shape->rotary, dtype, FTMEM__OP_TABLE);
    p->tables[1] = program_table(low, n, shape->rotary, dtype, FTMEM__OP_TABLE);
    p->has_tables = true;
}

/* transformers/masking_utils.py: a boolean mask, for eager attention turned into an additive one. */
/* modeling_mpt.py MptAttention: masked_fill keeps the mask, in every block the same one, as a rotation its tables. */
static void program_kept_mask(ftmem__low *low, ftmem__prologue *p, ftmem__var mask)
{
    p->tables[0] = ftmem__keep(low->tape, mask);
    p->tables[1] = program_table(low, 0, 0, FTMEM_BOOL, FTMEM__OP_MASK);
    p->has_tables = true;
}

static void program_mask(ftmem__low *low, ftmem__prologue *p, bool wanted)
{
    const ftmem__shape *shape = low->shape;
    int64_t s = shape->s, rows = (shape->job->mask == FTMEM_MASK_PADDED || shape->image_masks ? low->b : 1) * s;
    bool alibi = shape->family->always_mask && shape->model->alibi == FTMEM_ON; /* modeling_falcon.py: alibi is put in the mask */
    ftmem__var flags, additive;
    if (!wanted || shape->tower) return;
    flags = program_table(low, rows * s, s, FTMEM_BOOL, FTMEM__OP_MASK);
    if (shape->job->attention != FTMEM_EAGER && !alibi && !ftmem__low_own_eager(low)) {
        program_argument(p, flags);
        return;
    }
    additive = program_table(low, low->b * s * s, s, shape->mask, FTMEM__OP_MASK);
    ftmem__drop(low->tape, flags);
    if (alibi) program_replace(low->tape, &additive, program_table(low, low->b * shape->heads * s * s, s, shape->stream, FTMEM__OP_MASK));
    if (shape->family->eager == FTMEM__EAGER_MPT) program_replace(low->tape, &additive, program_table(low, low->b * s * s, s, FTMEM_BOOL, FTMEM__OP_MASK));
    if (shape->family->eager == FTMEM__EAGER_MPT && low->training && shape->job->recompute == FTMEM_RECOMPUTE_NONE) program_kept_mask(low, p, additive);
    program_argument(p, additive);
}

/* A mask that no block is given: the frame alone has it, beside the embedding's name. */
static void program_idle_mask(ftmem__low *low, ftmem__prologue *p, ftmem__var x)
{
    int32_t before = p->mask_count;
    program_mask(low, p, true);
    if (p->mask_count > before) program_hold(p, p->masks[--p->mask_count]);
    program_hold(p, ftmem__keep(low->tape, x));
}

/* The padding of the stack before, for each token of this one. */
static void program_cross_mask(ftmem__low *low, ftmem__prologue *p)
{
    const ftmem__shape *shape = low->shape;
    int64_t keys = low->side[FTMEM__SIDE_SOURCE].n / (low->b * low->side[FTMEM__SIDE_SOURCE].cols), n = low->b * shape->s * keys;
    ftmem__var flags = program_table(low, n, keys, FTMEM_BOOL, FTMEM__OP_MASK), additive;
    if (shape->job->attention == FTMEM_EAGER) {
        additive = program_table(low, n, keys, shape->stream, FTMEM__OP_MASK);
        ftmem__drop(low->tape, flags);
        flags = additive;
    }
    program_argument(p, flags);
}

/* modeling_mpt.py build_mpt_alibi_tensor: for the longest sequence, in fp32; modeling_bloom.py: for each row, in the stream's dtype. */
static void program_alibi(ftmem__low *low, ftmem__prologue *p)
{
    const ftmem__shape *shape = low->shape;
    if (shape->family->eager == FTMEM__EAGER_MPT)
        program_argument(p, program_table(low, shape->heads * shape->model->max_positions, shape->model->max_positions, FTMEM_FP32, FTMEM__OP_TABLE));
    if (shape->family->eager == FTMEM__EAGER_BLOOM)
        program_argument(p, program_table(low, low->b * shape->heads * shape->s, shape->s, shape->stream, FTMEM__OP_TABLE));
}

/* The positions' numbers are an argument of every block (modeling_gpt2.py); OPT looks up others, which count from 2 (modeling_opt.py). */
static void program_numbers(ftmem__low *low, ftmem__prologue *p, ftmem__var rows, int64_t n)
{
    bool by_row = low->shape->family->positions_by_row;
    ftmem__var ids, shifted;
    if (low->shape->crossed || !low->shape->causal) return; /* modeling_bart.py, modeling_whisper.py: a number each */
    ids = program_table(low, n, 0, FTMEM_INT64, FTMEM__OP_TABLE);
    shifted = by_row ? program_table(low, n, 0, FTMEM_INT64, FTMEM__OP_TABLE) : ftmem__keep(low->tape, ids);
    ftmem__save_var(low->tape, rows, shifted);
    ftmem__drop(low->tape, shifted);
    program_argument(p, ids);
}

/* Learned positions are looked up and added; GPT-2 keeps both terms in locals. */
static ftmem__var program_learned(ftmem__low *low, ftmem__prologue *p, ftmem__var x)
{
    const ftmem__shape *shape = low->shape;
    ftmem__var w = ftmem__low_parameter(low, FTMEM_ROLE_POSITION, shape->model->position_rows * shape->h, shape->h, shape->position_trained), rows, sum;
    int64_t n = shape->family->positions_by_row ? low->tokens : shape->s;
    rows = ftmem__low_lookup(low, w, n);
    program_numbers(low, p, rows, n);
    program_hold(p, rows);
    sum = ftmem__binary(low->tape, FTMEM__OP_ADD, x, rows);
    program_hold(p, x);
    return sum;
}

static ftmem__var program_scaled(ftmem__low *low, ftmem__prologue *p, ftmem__var x)
{
    ftmem__var y = ftmem__unary(low->tape, FTMEM__OP_SCALE, x);
    program_hold(p, ftmem__keep(low->tape, y)); /* it takes the name over */
    ftmem__drop(low->tape, x);
    return y;
}

/* The hook of enable_input_require_grads makes the embedding's output a leaf. Where the stream is another tensor, the
   graph keeps the leaf alive beside it. */
static void program_leaf(ftmem__low *low, ftmem__var *x)
{
    const ftmem__family *family = low->shape->family;
    x->grad = true;
    x->node = FTMEM__LEAF;
    if (low->shape->virtual_tokens || low->shape->scattered || family->embed_norm || family->embedding || family->embed_norm_last ||
        (family->embed_named && low->training && low->shape->model->embed_dropout > 0) || family->positions == FTMEM__LEARNED ||
        (family->scale_outside && low->shape->model->scaled == FTMEM_ON))
        ftmem__hold(low->tape, x->store);
}

void ftmem__low_input_leaf(ftmem__low *low, ftmem__var *x)
{
    if (low->shape->family->no_input_leaf) return;
    if (low->shape->require_input_grad && low->tape->mode != FTMEM__NO_GRAD && !x->grad) program_leaf(low, x);
}

/* The token embedding, of ids of the model's own if it has made some; modeling_gemma.py GemmaTextScaledWordEmbedding scales it. */
static ftmem__var program_words(ftmem__low *low, const ftmem__var *ids)
{
    const ftmem__family *family = low->shape->family;
    ftmem__var w = program_embedding_weight(low), x;
    if (low->shape->adapter->trainable_tokens) w = ftmem__method_tokens(low, w, ftmem__method_token_rows(low, true));
    x = ftmem__low_lookup(low, w, low->tokens - low->b * low->shape->virtual_tokens);
    ftmem__drop(low->tape, w);
    ftmem__method_shared(low);
    if (ids) ftmem__save_var(low->tape, x, *ids);
    if (family->embed_scale && !family->scale_outside) program_replace(low->tape, &x, ftmem__unary(low->tape, FTMEM__OP_SCALE, x));
    ftmem__low_input_leaf(low, &x);
    return x;
}

ftmem__var ftmem__low_words(ftmem__low *low)
{
    return program_words(low, NULL);
}

/* modeling_gemma4.py Gemma4Model.forward: which tokens are of images, videos, sounds, or any of them; returns the others' numbers. */
static ftmem__var program_multimodal(ftmem__low *low, ftmem__prologue *p)
{
    int32_t i;
    for (i = 0; i < 4; i++) program_hold(p, program_table(low, low->tokens, low->shape->s, FTMEM_BOOL, FTMEM__OP_TABLE));
    return program_table(low, low->tokens, low->shape->s, FTMEM_INT64, FTMEM__OP_TABLE);
}

/* Its frame holds the embedding with padding in those places, and the rows of the second table. */
static void program_layer_inputs(ftmem__low *low, ftmem__prologue *p, ftmem__var x, const ftmem__var *ids)
{
    ftmem__var rows;
    if (low->shape->model->layer_input == 0) return;
    if (ids) program_hold(p, program_table(low, x.n, x.cols, x.dtype, FTMEM__OP_WHERE));
    rows = ftmem__low_layer_inputs(low, x, ids);
    if (ids) program_hold(p, rows);
    else ftmem__drop(low->tape, rows);
}

/* A decoder's embedding. */
static ftmem__var program_embed_tokens(ftmem__low *low, ftmem__prologue *p)
{
    const ftmem__shape *shape = low->shape;
    ftmem__var x, y, ids;
    bool multimodal = shape->model->tower == FTMEM_TOWER_GEMMA4, own = shape->crossed || multimodal;
    if (shape->crossed) ids = program_table(low, low->tokens, shape->s, FTMEM_INT64, FTMEM__OP_TABLE);
    if (multimodal) ids = program_multimodal(low, p);
    x = low->words ? ftmem__low_scatter(low, p, *low->words) : program_words(low, own ? &ids : NULL);
    program_layer_inputs(low, p, x, multimodal ? &ids : NULL);
    if (multimodal) program_hold(p, ftmem__keep(low->tape, x));
    if (own) program_hold(p, ids); /* the caller's decoder_input_ids, or llm_input_ids */
    if (shape->virtual_tokens) x = ftmem__method_prompt(low, x);
    if (shape->family->embed_norm) {
        y = ftmem__low_norm(low, x, shape->h);
        program_hold(p, x);
        x = y;
    }
    if (shape->family->positions == FTMEM__LEARNED) x = program_learned(low, p, x);
    if (shape->family->scale_outside && shape->model->scaled == FTMEM_ON) x = program_scaled(low, p, x);
    return x;
}

/* Returns the stream, owned by the caller; what the model's frame keeps meanwhile is in *p. */
ftmem__var ftmem__low_embed(ftmem__low *low, ftmem__prologue *p)
{
    const ftmem__shape *shape = low->shape;
    bool decoder = shape->family->embedding == FTMEM__EMBED_TOKENS;
    ftmem__var x;
    memset(p, 0, sizeof *p);
    low->tape->part = FTMEM__PART_EMBEDDING;
    if (shape->family->fed_features) return program_features(low, p);
    switch (shape->family->embedding) {
    case FTMEM__EMBED_NORMED: x = ftmem__low_embed_normed(low); break;
    case FTMEM__EMBED_SEGMENTS: x = ftmem__low_embed_segments(low); break;
    case FTMEM__EMBED_PATCHES: x = ftmem__low_embed_patches(low); break;
    case FTMEM__EMBED_IMAGE: x = ftmem__low_embed_image(low, p); break;
    default: x = program_embed_tokens(low, p); break;
    }
    if (shape->embedding_width != shape->h) {
        program_hold(p, x);
        x = ftmem__low_widen(low, x);
    }
    program_positions(low, p);
    program_alibi(low, p);
    program_mask(low, p, shape->mask_full && shape->has_full);
    if (shape->mask_full && shape->has_full) p->mask_of[0] = p->mask_count;
    program_mask(low, p, shape->mask_sliding && shape->has_sliding);
    if (shape->mask_sliding && shape->has_sliding) p->mask_of[1] = p->mask_count;
    if (shape->family->window_mask_made && shape->job->attention != FTMEM_FLASH2) program_idle_mask(low, p, x);
    if (shape->mask_cross) program_cross_mask(low, p);
    if (shape->family->embed_norm_last) program_replace(low->tape, &x, ftmem__low_norm(low, x, shape->h));
    if (shape->family->embed_named) program_hold(p, ftmem__keep(low->tape, x));
    return decoder ? ftmem__low_dropout(low, x, shape->model->embed_dropout) : x;
}
