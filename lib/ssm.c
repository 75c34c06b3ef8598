/* State-space mixers, in the plain torch code that transformers runs where the kernels of mamba-ssm and causal-conv1d are not
   installed (modeling_nemotron_h.py NemotronHMamba2Mixer; modeling_mamba2.py, modeling_bamba.py and others have the same). */
#include "lower.h"

typedef struct ssm_sizes {        /* elements of one pass */
    int64_t inner, conv, wide;    /* widths: heads x head_dim; what the convolution reads; of the input projection */
    int64_t rows, chunks, length; /* padded to whole chunks, over all sequences; chunks of all; tokens of a chunk */
    int64_t heads, x, bc, scores; /* rows x heads; x head_dim; x state; pairs of a chunk for each head */
    int64_t states, passed;       /* heads x head_dim x state for each chunk; and one more of each sequence */
    int64_t steps, pairs;         /* chunks and one more of each sequence for each head; squared */
    bool row, one, all;           /* one sequence; a chunk is a sequence; both */
} ssm_sizes;

typedef struct ssm_names { /* of mamba2_chunk_scan's forward, alive until it returns */
    ftmem__var at[24];
    int32_t count;
} ssm_names;

static ssm_sizes ssm_size(const ftmem__low *low)
{
    const ftmem_model *m = low->shape->model;
    int64_t s = low->shape->s, l = m->ssm_chunk, c = (s + l - 1) / l;
    ssm_sizes z;
    z.inner = m->ssm_heads * m->ssm_head_dim;
    z.conv = z.inner + 2 * m->ssm_groups * m->ssm_state;
    z.wide = z.inner + z.conv + m->ssm_heads;
    z.length = l;
    z.chunks = low->b * c;
    z.rows = z.chunks * l;
    z.heads = z.rows * m->ssm_heads;
    z.x = z.rows * z.inner;
    z.bc = z.heads * m->ssm_state;
    z.scores = z.heads * l;
    z.states = z.chunks * z.inner * m->ssm_state;
    z.passed = z.states / c * (c + 1);
    z.steps = low->b * m->ssm_heads * (c + 1);
    z.pairs = z.steps * (c + 1);
    z.row = low->b == 1;
    z.one = c == 1;
    z.all = z.row && z.one;
    return z;
}

static void ssm_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

static ftmem__var ssm_name(ssm_names *names, ftmem__var value)
{
    if (names->count < FTMEM__COUNT(names->at)) names->at[names->count++] = value;
    return value;
}

static ftmem__var ssm_table(ftmem__low *low, int64_t n, int32_t dtype)
{
    ftmem__var v = ftmem__constant(n, 1, dtype);
    v.store = ftmem__alloc(low->tape, FTMEM__OP_TABLE, n, 1, dtype, low->tape->birth);
    return v;
}

/* ---------------------------------------------------------------------------------------------------- operations */

/* One operand of torch.einsum, permuted: reshape copies it unless a view will do. What came from the convolution has tokens
   innermost, what was repeated for heads has not. */
static ftmem__var ssm_dense(ftmem__low *low, ftmem__var x, bool view)
{
    return view ? ftmem__keep(low->tape, x) : ftmem__unary(low->tape, FTMEM__OP_CLONE, x);
}

/* aten/src/ATen/native/Linear.cpp einsum, whose operands autocast narrows, and sumproduct_pair: two matrices to a batch; the
   gradient of the permuted result is made dense first. */
static ftmem__var ssm_einsum(ftmem__low *low, ftmem__var a, bool a_view, ftmem__var b, bool b_view, int64_t n, int64_t sum, bool permuted)
{
    ftmem__tape *tape = low->tape;
    int32_t dtype = low->shape->autocast ? low->shape->autocast : a.dtype;
    ftmem__var narrow[2], left, right, y, view;
    narrow[0] = ftmem__cast(tape, a, dtype);
    narrow[1] = ftmem__cast(tape, b, dtype);
    left = ssm_dense(low, narrow[0], a_view);
    right = ssm_dense(low, narrow[1], b_view);
    y = ftmem__matmul(tape, FTMEM__OP_BMM, left, right, NULL, n, 1, 2.0 * (double)n * (double)sum);
    ftmem__drop(tape, right);
    ftmem__drop(tape, left);
    ftmem__drop(tape, narrow[1]);
    ftmem__drop(tape, narrow[0]);
    if (!permuted) return y;
    view = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, y);
    ftmem__drop(tape, y);
    return view;
}

/* modeling_nemotron_h.py segment_sum, and exp of it: `side` numbers of each of n / side rows, against each other. */
static ftmem__var ssm_masked(ftmem__low *low, ftmem__var x, int64_t side, ftmem__var *mask)
{
    ftmem__tape *tape = low->tape;
    ftmem__var ones = ssm_table(low, side * side, FTMEM_BOOL), lower = ssm_table(low, side * side, FTMEM_BOOL), not_lower, y;
    ftmem__drop(tape, ones);
    ssm_replace(tape, mask, lower);
    not_lower = ssm_table(low, side * side, FTMEM_BOOL);
    y = ftmem__unary(tape, FTMEM__OP_FILL, x);
    ftmem__save_var(tape, y, not_lower);
    ftmem__drop(tape, not_lower);
    return y;
}

static ftmem__var ssm_decay(ftmem__low *low, ftmem__var x, int64_t side)
{
    ftmem__tape *tape = low->tape;
    ftmem__var mask = ftmem__constant(0, 0, FTMEM_BOOL), wide = ftmem__apply(tape, FTMEM__OP_EXPAND_VIEW, &x, 1, x.n * side, side, x.dtype), input, sum, y;
    input = ssm_masked(low, wide, side, &mask);
    ftmem__drop(tape, wide);
    sum = ftmem__unary(tape, FTMEM__OP_CUMSUM, input);
    ssm_replace(tape, &sum, ssm_masked(low, sum, side, &mask));
    ftmem__drop(tape, input);
    ftmem__drop(tape, mask);
    y = ftmem__unary(tape, FTMEM__OP_EXP, sum);
    ftmem__drop(tape, sum);
    return y;
}

/* F.pad to whole chunks, which copies even where nothing is added, and the reshape after it, whose gradient may be a copy. */
static ftmem__var ssm_chunked(ftmem__low *low, ftmem__var x, int64_t n, bool copied)
{
    ftmem__tape *tape = low->tape;
    ftmem__var y = ftmem__apply(tape, FTMEM__OP_PAD_ROWS, &x, 1, n, x.cols, x.dtype), view;
    if (!copied) return y;
    view = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, y);
    ftmem__drop(tape, y);
    return view;
}

/* x * y, where y has one number for each of x's last dimension: y is broadcast. */
static ftmem__var ssm_times(ftmem__low *low, ftmem__var x, ftmem__var y)
{
    return ftmem__binary(low->tape, FTMEM__OP_MUL, x, y);
}

/* ---------------------------------------------------------------------------------------------------- the scan */

typedef struct ssm_input { /* views of the convolution's result and of the input projection; A for each head */
    ftmem__var x, b, c, dt, a;
} ssm_input;

typedef struct ssm_scan { /* names of mamba2_chunk_scan */
    ftmem__var x, a, b, c, skip, sum;
} ssm_scan;

/* dt = clamp(softplus(dt + dt_bias)) */
static ftmem__var ssm_step(ftmem__low *low, ftmem__var dt)
{
    ftmem__tape *tape = low->tape;
    int64_t heads = low->shape->model->ssm_heads;
    ftmem__var bias = ftmem__cast(tape, ftmem__low_parameter(low, FTMEM_ROLE_NORM, heads, heads, low->trained), dt.dtype), y, wide;
    y = ftmem__binary(tape, FTMEM__OP_ADD, dt, bias);
    ftmem__drop(tape, bias);
    wide = ftmem__cast(tape, y, low->shape->autocast ? FTMEM_FP32 : y.dtype);
    ssm_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_SOFTPLUS, wide));
    ftmem__drop(tape, wide);
    ssm_replace(tape, &y, ftmem__low_clamp(low, y, 2)); /* time_step_limit: 0 and infinity */
    return y;
}

/* B.float().repeat_interleave(heads of a group) */
static ftmem__var ssm_repeated(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    const ftmem_model *m = low->shape->model;
    ftmem__var wide = ftmem__cast(tape, x, FTMEM_FP32), y;
    y = ftmem__apply(tape, FTMEM__OP_EXPAND, &wide, 1, low->tokens * m->ssm_heads * m->ssm_state, m->ssm_state, FTMEM_FP32);
    ftmem__drop(tape, wide);
    return y;
}

/* D * x, over padded rows */
static ftmem__var ssm_skip(ftmem__low *low, ftmem__var x, const ssm_sizes *z)
{
    ftmem__tape *tape = low->tape;
    int64_t heads = low->shape->model->ssm_heads;
    ftmem__var d = ftmem__low_parameter(low, FTMEM_ROLE_NORM, heads, heads, low->trained), padded = ssm_chunked(low, x, z->x, false), y;
    d.cols = 1;
    y = ssm_times(low, d, padded);
    ftmem__drop(tape, padded);
    return y;
}

/* Everything in fp32, discretised and in chunks. */
static void ssm_prepare(ftmem__low *low, const ssm_input *in, const ssm_sizes *z, ssm_names *names, ssm_scan *scan)
{
    ftmem__tape *tape = low->tape;
    ftmem__var dt = ssm_name(names, ssm_step(low, in->dt)), wide, made[4];
    int32_t i;
    made[0] = ftmem__cast(tape, in->x, FTMEM_FP32);
    made[2] = ssm_repeated(low, in->b);
    made[3] = ssm_repeated(low, in->c);
    scan->skip = ssm_name(names, ssm_skip(low, made[0], z));
    wide = ftmem__cast(tape, dt, FTMEM_FP32);
    ssm_replace(tape, &made[0], ssm_times(low, made[0], wide));
    ftmem__drop(tape, wide);
    wide = ftmem__cast(tape, dt, FTMEM_FP32);
    made[1] = ssm_times(low, in->a, wide);
    ftmem__drop(tape, wide);
    scan->x = ssm_name(names, ssm_chunked(low, made[0], z->x, !z->one));
    scan->a = ssm_name(names, ssm_chunked(low, made[1], z->heads, false));
    scan->b = ssm_name(names, ssm_chunked(low, made[2], z->bc, !z->one));
    scan->c = ssm_name(names, ssm_chunked(low, made[3], z->bc, !z->one));
    for (i = 0; i < 4; i++) ftmem__drop(tape, made[i]);
    scan->sum = ssm_name(names, ftmem__unary(tape, FTMEM__OP_CUMSUM, scan->a));
}

/* Within chunks: (C B^T * L) x */
static ftmem__var ssm_diagonal(ftmem__low *low, const ssm_scan *scan, const ssm_sizes *z, ssm_names *names)
{
    int64_t state = low->shape->model->ssm_state;
    ftmem__var decay = ssm_name(names, ssm_decay(low, scan->a, z->length)), scores, masked;
    scores = ssm_name(names, ssm_einsum(low, scan->c, z->all, scan->b, z->all, z->scores, state, false));
    masked = ssm_name(names, ssm_times(low, scores, decay));
    return ssm_name(names, ssm_einsum(low, masked, true, scan->x, z->one, z->x, z->length, !z->all));
}

/* The state that each chunk adds. */
static ftmem__var ssm_chunk_states(ftmem__low *low, const ssm_scan *scan, const ssm_sizes *z, ssm_names *names)
{
    ftmem__tape *tape = low->tape;
    ftmem__var last = ftmem__apply(tape, FTMEM__OP_SLICE, &scan->sum, 1, scan->sum.n / z->length, 1, FTMEM_FP32), rest, decay, decayed;
    rest = ftmem__binary(tape, FTMEM__OP_SUB, last, scan->sum);
    ftmem__drop(tape, last);
    decay = ssm_name(names, ftmem__unary(tape, FTMEM__OP_EXP, rest));
    ftmem__drop(tape, rest);
    decayed = ssm_name(names, ssm_times(low, scan->b, decay));
    return ssm_einsum(low, decayed, z->all, scan->x, z->one, z->states, z->length, !z->one);
}

/* What each chunk starts from: takes over the states. */
static ftmem__var ssm_passed_on(ftmem__low *low, ftmem__var states, const ssm_scan *scan, const ssm_sizes *z, ssm_names *names)
{
    ftmem__tape *tape = low->tape;
    ftmem__var zeros = ssm_name(names, ssm_table(low, z->passed - z->states, states.dtype)), in[2], ends, padded, decay, passed;
    in[0] = zeros;
    in[1] = states;
    ssm_replace(tape, &states, ftmem__apply(tape, FTMEM__OP_CAT, in, 2, z->passed, 1, states.dtype));
    ends = ftmem__apply(tape, FTMEM__OP_SLICE, &scan->sum, 1, scan->sum.n / z->length, 1, FTMEM_FP32);
    padded = ftmem__apply(tape, FTMEM__OP_PAD_ROWS, &ends, 1, z->steps, 1, FTMEM_FP32);
    ftmem__drop(tape, ends);
    decay = ssm_name(names, ssm_decay(low, padded, z->pairs / z->steps));
    ftmem__drop(tape, padded);
    passed = ssm_name(names, ssm_einsum(low, decay, true, states, z->row, z->passed, z->pairs / z->steps, !z->row));
    ftmem__drop(tape, states);
    return ssm_name(names, ftmem__apply(tape, FTMEM__OP_SLICE, &passed, 1, z->states, 1, passed.dtype));
}

/* Between chunks: C times the state that a chunk starts from, decayed. */
static ftmem__var ssm_off_diagonal(ftmem__low *low, ftmem__var states, const ssm_scan *scan, const ssm_sizes *z, ssm_names *names)
{
    ftmem__tape *tape = low->tape;
    ftmem__var decay = ssm_name(names, ftmem__unary(tape, FTMEM__OP_EXP, scan->sum)), y;
    y = ssm_name(names, ssm_einsum(low, scan->c, z->all, states, z->one, z->x, low->shape->model->ssm_state, !z->all));
    return ssm_name(names, ssm_times(low, y, decay));
}

/* Both parts, and D x; rows that were added are cut off. */
static ftmem__var ssm_output(ftmem__low *low, ftmem__var diagonal, ftmem__var off, ftmem__var skip)
{
    ftmem__tape *tape = low->tape;
    int64_t n = low->tokens * low->shape->model->ssm_heads * low->shape->model->ssm_head_dim;
    ftmem__var y = ftmem__binary(tape, FTMEM__OP_ADD, diagonal, off);
    ssm_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_CLONE, y));
    ssm_replace(tape, &y, ftmem__binary(tape, FTMEM__OP_ADD, y, skip));
    if (y.n > n) ssm_replace(tape, &y, ftmem__apply(tape, FTMEM__OP_SLICE, &y, 1, n, 1, y.dtype));
    return y;
}

/* modeling_nemotron_h.py mamba2_chunk_scan */
static ftmem__var ssm_chunk_scan(ftmem__low *low, const ssm_input *in, const ssm_sizes *z)
{
    ssm_names names = { 0 };
    ssm_scan scan;
    ftmem__var diagonal, states, off, y;
    ssm_prepare(low, in, z, &names, &scan);
    diagonal = ssm_diagonal(low, &scan, z, &names);
    states = ssm_passed_on(low, ssm_chunk_states(low, &scan, z, &names), &scan, z, &names);
    off = ssm_off_diagonal(low, states, &scan, z, &names);
    y = ssm_output(low, diagonal, off, scan.skip);
    while (names.count > 0) ftmem__drop(low->tape, names.at[--names.count]);
    return y;
}

/* ---------------------------------------------------------------------------------------------------- the mixer */

/* F.conv1d over each channel, with zeros before and after, and its activation; x stays the caller's. */
static ftmem__var ssm_convolution(ftmem__low *low, ftmem__var x, const ssm_sizes *z)
{
    ftmem__tape *tape = low->tape;
    const ftmem__shape *shape = low->shape;
    int64_t k = shape->model->conv_kernel, length = shape->s + k - 1, n = low->b * z->conv * length;
    ftmem__var w = ftmem__low_parameter(low, FTMEM_ROLE_NORM, z->conv * k, k, low->trained), b, own, y, in[3];
    bool bias = shape->model->ssm_conv_bias == FTMEM_ON;
    int32_t dtype = shape->autocast ? shape->autocast : w.dtype, i;
    if (bias) b = ftmem__low_parameter(low, FTMEM_ROLE_NORM, z->conv, z->conv, low->trained);
    own = ftmem__cast(tape, x, w.dtype); /* .to(weight.dtype) */
    in[0] = ftmem__cast(tape, own, dtype);
    in[1] = ftmem__cast(tape, w, dtype); /* of a view: not cached */
    if (bias) in[2] = ftmem__cast_weight(tape, b, dtype);
    y = ftmem__matmul(tape, FTMEM__OP_CONV_EACH, in[0], in[1], bias ? &in[2] : NULL, n, length, 2.0 * (double)n * (double)k);
    for (i = bias ? 2 : 1; i >= 0; i--) ftmem__drop(tape, in[i]);
    ftmem__drop(tape, own);
    ssm_replace(tape, &y, ftmem__apply(tape, FTMEM__OP_SLICE, &y, 1, low->tokens * z->conv, z->conv, y.dtype));
    ssm_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_SILU, y));
    ssm_replace(tape, &y, ftmem__cast(tape, y, x.dtype));
    return y;
}

/* modeling_nemotron_h.py apply_mask_to_padding_states: takes over x. */
static ftmem__var ssm_padding(ftmem__low *low, ftmem__var x)
{
    ftmem__var mask = ftmem__constant(low->tokens, 1, x.dtype), y;
    if (low->shape->job->mask != FTMEM_MASK_PADDED) return x;
    y = ftmem__binary(low->tape, FTMEM__OP_MUL, x, mask);
    ftmem__drop(low->tape, x);
    return y;
}

/* -exp(A_log.float()) */
static ftmem__var ssm_a(ftmem__low *low)
{
    ftmem__tape *tape = low->tape;
    int64_t heads = low->shape->model->ssm_heads;
    ftmem__var y = ftmem__cast(tape, ftmem__low_parameter(low, FTMEM_ROLE_NORM, heads, heads, low->trained), FTMEM_FP32);
    ssm_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_EXP, y));
    ssm_replace(tape, &y, ftmem__unary(tape, FTMEM__OP_NEG, y));
    y.cols = 1;
    return y;
}

/* modeling_nemotron_h.py NemotronHRMSNormGated: a norm over each group, in fp32, of the scan's result times silu(gate). */
static ftmem__var ssm_gated_norm(ftmem__low *low, ftmem__var x, ftmem__var gate, const ssm_sizes *z)
{
    ftmem__tape *tape = low->tape;
    ftmem__var w = ftmem__low_parameter(low, FTMEM_ROLE_NORM, z->inner, z->inner, low->trained);
    ftmem__var wide = ftmem__cast(tape, x, FTMEM_FP32), gate32 = ftmem__cast(tape, gate, FTMEM_FP32), act = ftmem__unary(tape, FTMEM__OP_SILU, gate32), y, own,
               variance;
    ftmem__drop(tape, gate32);
    ssm_replace(tape, &wide, ssm_times(low, wide, act));
    ftmem__drop(tape, act);
    wide = ftmem__shaped(wide, wide.n, z->inner / low->shape->model->ssm_groups);
    y = ftmem__low_rms(low, wide, &variance);
    y = ftmem__shaped(y, y.n, z->inner);
    own = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, y);
    y = ftmem__binary(tape, FTMEM__OP_MUL, w, own);
    ftmem__drop(tape, own);
    ftmem__drop(tape, variance);
    return y;
}

/* The convolution's parts, which take the name of the mixer's input over, and the scan. */
static ftmem__var ssm_mix(ftmem__low *low, const ftmem__var part[3], ftmem__var a, const ssm_sizes *z, ftmem__var input, ftmem__var *convolved)
{
    const ftmem_model *m = low->shape->model;
    int64_t n[3];
    ftmem__var piece[3], y;
    ssm_input in;
    int32_t i;
    *convolved = ssm_padding(low, ssm_convolution(low, part[1], z));
    n[0] = low->tokens * z->inner;
    n[1] = n[2] = low->tokens * m->ssm_groups * m->ssm_state;
    ftmem__split(low->tape, *convolved, 3, n, piece);
    ftmem__drop(low->tape, input);
    in.x = piece[0], in.b = piece[1], in.c = piece[2], in.dt = part[2], in.a = a;
    y = ssm_chunk_scan(low, &in, z);
    for (i = 0; i < 3; i++) ftmem__drop(low->tape, piece[i]);
    return y;
}

/* x stays the caller's. */
ftmem__var ftmem__low_ssm(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    const ftmem__shape *shape = low->shape;
    ssm_sizes z = ssm_size(low);
    bool bias = shape->model->ssm_bias == FTMEM_ON;
    int64_t n[3];
    ftmem__var own = ssm_padding(low, ftmem__keep(tape, x)), projected, part[3], a, convolved, scanned, y;
    int32_t i;
    tape->part = FTMEM__PART_SSM;
    projected = ftmem__low_linear(low, FTMEM_ROLE_MIXER_IN, own, z.wide, bias);
    a = ssm_a(low);
    n[0] = low->tokens * z.inner, n[1] = low->tokens * z.conv, n[2] = low->tokens * shape->model->ssm_heads;
    ftmem__split(tape, projected, 3, n, part);
    scanned = ssm_mix(low, part, a, &z, own, &convolved);
    ssm_replace(tape, &scanned, ssm_gated_norm(low, scanned, part[0], &z));
    y = ftmem__cast(tape, scanned, x.dtype);
    y = ftmem__shaped(y, y.n, z.inner);
    convolved = ftmem__shaped(convolved, convolved.n, z.conv);
    ssm_replace(tape, &y, ftmem__low_linear(low, FTMEM_ROLE_MIXER_OUT, y, shape->h, bias));
    ftmem__drop(tape, convolved);
    ftmem__drop(tape, scanned);
    for (i = 0; i < 3; i++) ftmem__drop(tape, part[i]);
    ftmem__drop(tape, a);
    ftmem__drop(tape, projected);
    return y;
}
