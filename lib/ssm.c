/* State-space mixers, in the plain torch code that transformers runs where the kernels of mamba-ssm and causal-conv1d are not
   installed, and in those kernels (modeling_nemotron_h.py NemotronHMamba2Mixer; modeling_mamba2.py, modeling_bamba.py and others have the same). */
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

/* ------------------------------------------------------------------------------------------- kernels of mamba-ssm */

typedef struct ssm_parameters {
    ftmem__var conv, conv_bias, dt_bias, d, norm, out, out_bias;
    bool has_conv_bias, has_out_bias;
} ssm_parameters;

typedef struct ssm_kernel { /* names of a kernel's forward */
    int16_t at[6];
    int32_t count;
} ssm_kernel;

static void ssm_kernel_name(ftmem__low *low, ssm_kernel *k, int64_t n, int64_t cols, int32_t dtype)
{
    k->at[k->count++] = ftmem__alloc(low->tape, FTMEM__OP_FUSED_SSM, n, cols, dtype, low->tape->birth);
}

static void ssm_kernel_leave(ftmem__low *low, ssm_kernel *k)
{
    while (k->count > 0) ftmem__release(low->tape, k->at[--k->count]);
}

static ssm_parameters ssm_declare(ftmem__low *low, const ssm_sizes *z)
{
    const ftmem_model *m = low->shape->model;
    ssm_parameters p = { 0 };
    p.has_conv_bias = m->ssm_conv_bias == FTMEM_ON;
    p.has_out_bias = m->ssm_bias == FTMEM_ON;
    p.conv = ftmem__low_parameter(low, FTMEM_ROLE_NORM, z->conv * m->conv_kernel, m->conv_kernel, low->trained);
    if (p.has_conv_bias) p.conv_bias = ftmem__low_parameter(low, FTMEM_ROLE_NORM, z->conv, z->conv, low->trained);
    p.dt_bias = ftmem__low_parameter(low, FTMEM_ROLE_NORM, m->ssm_heads, m->ssm_heads, low->trained);
    p.d = ftmem__low_parameter(low, FTMEM_ROLE_NORM, m->ssm_heads, m->ssm_heads, low->trained);
    p.norm = ftmem__low_parameter(low, FTMEM_ROLE_NORM, z->inner, z->inner, low->trained);
    p.out = ftmem__low_parameter(low, FTMEM_ROLE_MIXER_OUT, z->inner * low->shape->h, z->inner, low->trained);
    if (p.has_out_bias) p.out_bias = ftmem__low_parameter(low, FTMEM_ROLE_MIXER_OUT, low->shape->h, low->shape->h, low->trained);
    return p;
}

/* The small ones as one operand, of which each gets its gradient. */
static ftmem__var ssm_bundle(ftmem__low *low, const ssm_parameters *p)
{
    ftmem__var in[3], y;
    int32_t n = 0;
    in[n++] = p->conv, in[n++] = p->dt_bias;
    if (p->has_conv_bias) in[n++] = p->conv_bias;
    y = ftmem__apply(low->tape, FTMEM__OP_BUNDLE, in, n, 1, 1, FTMEM_FP32);
    in[0] = y, in[1] = p->d, in[2] = p->norm;
    y = ftmem__apply(low->tape, FTMEM__OP_BUNDLE, in, 3, 1, 1, FTMEM_FP32);
    if (!p->has_out_bias) return y;
    in[0] = y, in[1] = p->out_bias;
    return ftmem__apply(low->tape, FTMEM__OP_BUNDLE, in, 2, 1, 1, FTMEM_FP32);
}

/* mamba_ssm/ops/triton/ssd_combined.py _mamba_chunk_scan_combined_fwd: dt and its sums in fp32, states of chunks in fp32 and
   passed on in the dtype of C, the last ones, and C B^T of each group. Returns the output, whose names are the caller's. */
static int16_t ssm_kernel_scan(ftmem__low *low, const ssm_sizes *z, int32_t dtype, ssm_kernel *k)
{
    ftmem__tape *tape = low->tape;
    const ftmem_model *m = low->shape->model;
    int16_t states, pairs, out;
    ssm_kernel_name(low, k, z->heads, m->ssm_heads, FTMEM_FP32);
    ssm_kernel_name(low, k, z->heads, m->ssm_heads, FTMEM_FP32);
    states = ftmem__alloc(tape, FTMEM__OP_FUSED_SSM, z->states, m->ssm_state, FTMEM_FP32, tape->birth);
    ssm_kernel_name(low, k, z->states, m->ssm_state, dtype);
    ssm_kernel_name(low, k, z->passed - z->states, m->ssm_state, FTMEM_FP32);
    ftmem__release(tape, states);
    pairs = ftmem__alloc(tape, FTMEM__OP_FUSED_SSM, z->rows * m->ssm_groups * z->length, z->length, FTMEM_FP32, tape->birth);
    out = ftmem__alloc(tape, FTMEM__OP_FUSED_SSM, low->tokens * z->inner, z->inner, dtype, tape->birth);
    ftmem__release(tape, pairs);
    return out;
}

static int64_t ssm_bytes(int32_t dtype, int64_t n)
{
    return ftmem__round512(ftmem__bytes(dtype, n));
}

/* _mamba_chunk_scan_combined_bwd, when the states of chunks and their gradients stand in fp32 and in the rows' dtype
   (_state_passing_bwd): a copy of dt, dt and its sums, C B^T, the last states, partial sums of each chunk's gradient. */
static int64_t ssm_kernel_states(const ftmem__low *low, const ssm_sizes *z, int32_t dtype)
{
    const ftmem_model *m = low->shape->model;
    int64_t wide = ssm_bytes(FTMEM_FP32, z->states), narrow = ssm_bytes(dtype, z->states);
    int64_t sum = ssm_bytes(dtype, low->tokens * m->ssm_heads) + 2 * ssm_bytes(FTMEM_FP32, z->heads);
    sum += ssm_bytes(FTMEM_FP32, z->rows * m->ssm_groups * z->length) + ssm_bytes(FTMEM_FP32, z->passed - z->states);
    sum += ssm_bytes(FTMEM_FP32, z->states / 64) + ssm_bytes(FTMEM_FP32, z->chunks * m->ssm_heads);
    return sum + 2 * wide + (dtype == FTMEM_FP32 ? narrow : 2 * narrow);
}

/* What backward holds besides the gradients that it returns, at the higher of two moments: that one, or when the projection's
   weight gets its gradient, wanted or not. The scan's output, made again, that of the convolution and its gradient, and the
   gradients before and after the norm, of whose weight it is there already. Gradients that the tape has made by then and the
   kernel has not: the projection's, and two of 512 bytes (the bundle's, A's). */
static int64_t ssm_kernel_work(const ftmem__low *low, const ssm_sizes *z, int32_t dtype)
{
    int64_t weight = ssm_bytes(dtype, z->inner * low->shape->h), early = low->trained ? ssm_bytes(low->shape->dtype, z->inner * low->shape->h) : 0;
    int64_t base = 3 * ssm_bytes(dtype, low->tokens * z->inner) + 2 * ssm_bytes(dtype, low->tokens * z->conv) + ssm_bytes(low->shape->dtype, z->inner);
    int64_t states = ssm_kernel_states(low, z, dtype) - (low->trained ? 1024 : 0), inside = base + (states > weight ? states : weight) - early;
    return low->trained && dtype != low->shape->dtype && weight > inside ? weight : inside; /* which is cast when the kernel has returned */
}

/* MambaSplitConv1dScanCombinedFn: convolution, scan, gated norm and output projection in one function, which keeps the
   projected input, the scan's output, 1/rms of each group, and autocast's copy of the projection's weight. Takes over nothing. */
static ftmem__var ssm_fused(ftmem__low *low, ftmem__var projected, ftmem__var a, const ssm_sizes *z)
{
    ftmem__tape *tape = low->tape;
    const ftmem__shape *shape = low->shape;
    ssm_parameters p = ssm_declare(low, z);
    ssm_kernel k = { { 0 }, 0 };
    ftmem__var in[3], y, kept = projected, w16;
    double flops = 2.0 * (double)low->tokens * (double)z->inner * (double)shape->h;
    ftmem__node *node;
    int16_t scanned, normed, roots;
    if (!tape->stopped) tape->flops += flops;
    ssm_kernel_name(low, &k, low->tokens * z->conv, z->conv, projected.dtype);
    scanned = ssm_kernel_scan(low, z, projected.dtype, &k);
    normed = ftmem__alloc(tape, FTMEM__OP_FUSED_SSM, low->tokens * z->inner, z->inner, projected.dtype, tape->birth);
    roots = ftmem__alloc(tape, FTMEM__OP_FUSED_SSM, low->tokens * shape->model->ssm_groups, 1, FTMEM_FP32, tape->birth);
    w16 = ftmem__constant(p.out.n, p.out.cols, projected.dtype);
    if (shape->autocast && p.out.dtype != projected.dtype) w16.store = ftmem__alloc(tape, FTMEM__OP_CAST, w16.n, w16.cols, w16.dtype, tape->birth);
    in[0] = projected, in[1] = p.out, in[2] = ssm_bundle(low, &p);
    y = ftmem__apply(tape, FTMEM__OP_FUSED_SSM, in, 3, low->tokens * shape->h, shape->h, projected.dtype);
    ftmem__fourth(tape, y, a);
    kept.store = scanned;
    ftmem__save_var(tape, y, kept);
    kept.store = roots;
    ftmem__save_var(tape, y, kept);
    ftmem__save_var(tape, y, w16);
    node = ftmem__recorded(tape, y);
    if (node) node->work = ssm_kernel_work(low, z, projected.dtype), node->flops = 2 * flops;
    ftmem__drop(tape, w16);
    ftmem__release(tape, roots);
    ftmem__release(tape, normed);
    ftmem__release(tape, scanned);
    ssm_kernel_leave(low, &k);
    return y;
}

/* Evaluation: the convolution's and the scan's kernels, between which rows are masked; norm and projection in torch. */
static ftmem__var ssm_evaluated(ftmem__low *low, ftmem__var input, ftmem__var projected, const ssm_sizes *z)
{
    ftmem__tape *tape = low->tape;
    ssm_kernel k = { { 0 }, 0 };
    ftmem__var convolved = ftmem__constant(low->tokens * z->conv, z->conv, projected.dtype),
               gate = ftmem__constant(low->tokens * z->inner, z->inner, projected.dtype);
    ftmem__var scanned = gate, normed, y;
    convolved.store = ftmem__alloc(tape, FTMEM__OP_FUSED_SSM, convolved.n, z->conv, convolved.dtype, tape->birth);
    convolved = ssm_padding(low, convolved);
    ftmem__drop(tape, input); /* its name is taken over */
    scanned.store = ssm_kernel_scan(low, z, projected.dtype, &k);
    ssm_kernel_leave(low, &k);
    normed = ssm_gated_norm(low, scanned, gate, z);
    y = ftmem__low_linear(low, FTMEM_ROLE_MIXER_OUT, normed, low->shape->h, low->shape->model->ssm_bias == FTMEM_ON);
    ftmem__drop(tape, convolved);
    ftmem__drop(tape, normed);
    ftmem__drop(tape, scanned);
    return y;
}

static ftmem__var ssm_in_kernels(ftmem__low *low, ftmem__var x, const ssm_sizes *z)
{
    ftmem__tape *tape = low->tape;
    ftmem__var own = ssm_padding(low, ftmem__keep(tape, x)), projected, a, y;
    projected = ftmem__low_linear(low, FTMEM_ROLE_MIXER_IN, own, z->wide, low->shape->model->ssm_bias == FTMEM_ON);
    a = ssm_a(low);
    y = low->training ? ssm_fused(low, projected, a, z) : ssm_evaluated(low, own, projected, z);
    ftmem__drop(tape, a);
    ftmem__drop(tape, projected);
    if (low->training) ftmem__drop(tape, own);
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
    ftmem__var own, projected, part[3], a, convolved, scanned, normed, y;
    int32_t i;
    tape->part = FTMEM__PART_SSM;
    if (shape->job->ssm_kernels == FTMEM_ON) return ssm_in_kernels(low, x, &z);
    own = ssm_padding(low, ftmem__keep(tape, x));
    projected = ftmem__low_linear(low, FTMEM_ROLE_MIXER_IN, own, z.wide, bias);
    a = ssm_a(low);
    n[0] = low->tokens * z.inner, n[1] = low->tokens * z.conv, n[2] = low->tokens * shape->model->ssm_heads;
    ftmem__split(tape, projected, 3, n, part);
    scanned = ssm_mix(low, part, a, &z, own, &convolved);
    normed = ssm_gated_norm(low, scanned, part[0], &z); /* scan_result is a name beside scan_output */
    y = ftmem__cast(tape, normed, x.dtype);
    y = ftmem__shaped(y, y.n, z.inner);
    convolved = ftmem__shaped(convolved, convolved.n, z.conv);
    ssm_replace(tape, &y, ftmem__low_linear(low, FTMEM_ROLE_MIXER_OUT, y, shape->h, bias));
    ftmem__drop(tape, convolved);
    ftmem__drop(tape, normed);
    ftmem__drop(tape, scanned);
    for (i = 0; i < 3; i++) ftmem__drop(tape, part[i]);
    ftmem__drop(tape, a);
    ftmem__drop(tape, projected);
    return y;
}
