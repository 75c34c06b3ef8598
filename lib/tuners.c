/* PEFT's methods that came after LoRA's first variants, over one plainly stored linear each. */
#include "method.h"

/* result + delta, back in the base's dtype; takes over both. */
static ftmem__var tuners_sum(ftmem__low *low, ftmem__var base, ftmem__var delta, int32_t dtype)
{
    return ftmem__method_cast(low->tape, ftmem__method_add(low->tape, base, delta, false), dtype);
}

static ftmem__var tuners_base(ftmem__low *low, const ftmem__adapted *at)
{
    return ftmem__low_base(low, at->role, at->x, at->out, at->bias);
}

/* F.linear(x, w), w of `out` rows; takes over both. */
static ftmem__var tuners_linear(ftmem__low *low, ftmem__var x, ftmem__var w, int64_t out)
{
    ftmem__var y = ftmem__low_plain_linear(low, x, ftmem__shaped(w, w.n, w.n / out), NULL, out);
    ftmem__drop(low->tape, w);
    ftmem__drop(low->tape, x);
    return y;
}

static ftmem__var tuners_unary(ftmem__low *low, ftmem__op op, ftmem__var x) /* takes over x */
{
    ftmem__var y = ftmem__unary(low->tape, op, x);
    ftmem__drop(low->tape, x);
    return y;
}

static ftmem__var tuners_binary(ftmem__low *low, ftmem__op op, ftmem__var a, ftmem__var b) /* takes over both */
{
    ftmem__var y = ftmem__binary(low->tape, op, a, b);
    ftmem__drop(low->tape, b);
    ftmem__drop(low->tape, a);
    return y;
}

/* a @ b of two matrices that are views or no leaves, so that autocast caches no cast of theirs; both stay the caller's. */
static ftmem__var tuners_mm(ftmem__low *low, ftmem__var a, ftmem__var b, int64_t rows, int64_t inner, int64_t cols)
{
    int32_t dtype = low->shape->autocast ? low->shape->autocast : a.dtype;
    ftmem__var in[2], y;
    in[0] = ftmem__cast(low->tape, a, dtype);
    in[1] = ftmem__cast(low->tape, b, dtype);
    y = ftmem__matmul(low->tape, FTMEM__OP_BMM, in[0], in[1], NULL, rows * cols, cols, 2.0 * (double)rows * (double)inner * (double)cols);
    ftmem__drop(low->tape, in[1]);
    ftmem__drop(low->tape, in[0]);
    return y;
}

/* -------------------------------------------------------------------------------------------------------- MiSS */

/* peft/tuners/miss/layer.py MissLinear.forward: columns of x, r apart, are summed before one small matrix. */
ftmem__var ftmem__method_miss(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    const ftmem_adapter *adapter = low->shape->adapter;
    int64_t r = ftmem__low_rank(low, at->role), rows = at->x.n / at->x.cols;
    bool mini = adapter->kind == FTMEM_ADAPTER_MISS_MINI;
    int64_t width = mini ? adapter->block_size : at->out;
    ftmem__var base = tuners_base(low, at), w = ftmem__low_adapter(low, at->role, r * width, r), in, sums, delta;
    if (mini) w = ftmem__apply(tape, FTMEM__OP_EXPAND, &w, 1, r * at->out, at->out, w.dtype); /* repeat */
    in = ftmem__cast(tape, at->x, low->shape->lora_dtype);
    sums = ftmem__low_dropout(low, ftmem__keep(tape, in), adapter->dropout);
    delta = ftmem__apply(tape, FTMEM__OP_MEAN, &sums, 1, rows * r, r, in.dtype); /* a sum, whose backward is likewise */
    ftmem__drop(tape, sums);
    delta = tuners_linear(low, delta, ftmem__keep(tape, w), at->out);
    base = tuners_sum(low, base, delta, at->x.dtype);
    ftmem__drop(tape, w);
    ftmem__drop(tape, in);
    return base;
}

/* get_delta_weight of init_weights "bat": W @ block + block, W laid out by blocks of r x r; then a linear over the sum. */
ftmem__var ftmem__method_miss_bat(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), n = at->out * at->x.cols;
    ftmem__var w = ftmem__low_weight(low, at->role, at->x.cols, at->out, at->bias), b = ftmem__low_adapter(low, at->role, r * at->out, r), copy, wide, t, in, y;
    copy = ftmem__unary(tape, FTMEM__OP_CLONE, w);
    wide = ftmem__cast(tape, copy, b.dtype);
    t = ftmem__unary(tape, FTMEM__OP_CLONE, wide); /* permuted, then laid out anew for the product */
    ftmem__drop(tape, wide);
    y = tuners_mm(low, t, b, n / r, r, r);
    ftmem__drop(tape, t);
    y = ftmem__shaped(y, n, at->x.cols);
    t = ftmem__binary(tape, FTMEM__OP_ADD, y, b);
    ftmem__drop(tape, y);
    y = tuners_unary(low, FTMEM__OP_CLONE, t); /* reshape of what was permuted back */
    t = ftmem__binary(tape, FTMEM__OP_ADD, copy, y);
    ftmem__drop(tape, copy);
    in = ftmem__cast(tape, at->x, t.dtype);
    wide = tuners_linear(low, ftmem__keep(tape, in), ftmem__keep(tape, t), at->out);
    wide = ftmem__method_cast(tape, wide, at->x.dtype);
    ftmem__drop(tape, t);
    ftmem__drop(tape, y);
    ftmem__drop(tape, in);
    return wide;
}

/* -------------------------------------------------------------------------------------------------------- HiRA */

/* peft/tuners/hira/layer.py Linear.forward: F.linear(x, weight * (A.T @ B.T).T). */
ftmem__var ftmem__method_hira(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), in = at->x.cols, out = at->out;
    ftmem__var base = tuners_base(low, at), w = ftmem__constant(in * out, in, low->shape->dtype);
    ftmem__var a = ftmem__low_adapter(low, at->role, r * in, r), b = ftmem__low_adapter(low, at->role, out * r, out), product, x, delta;
    int32_t dtype = base.dtype;
    product = tuners_mm(low, a, b, in, r, out);
    product = ftmem__shaped(product, in * out, in);
    x = ftmem__cast(tape, at->x, a.dtype);
    delta = ftmem__low_dropout(low, ftmem__keep(tape, x), low->shape->adapter->dropout);
    delta = tuners_linear(low, delta, ftmem__binary(tape, FTMEM__OP_MUL, w, product), out);
    base = tuners_sum(low, base, ftmem__keep(tape, delta), dtype);
    ftmem__drop(tape, delta);
    ftmem__drop(tape, x);
    ftmem__drop(tape, product);
    return base;
}

/* ------------------------------------------------------------------------------------------------------- PVeRA */

/* peft/tuners/pvera/layer.py Linear._reparametrize: mu + eps * exp(0.5 * logvar) in training; takes over both. */
static ftmem__var tuners_sampled(ftmem__low *low, ftmem__var mu, ftmem__var logvar)
{
    ftmem__tape *tape = low->tape;
    ftmem__var half, std, noise, scaled, y;
    if (!low->training) {
        ftmem__drop(tape, logvar);
        return mu;
    }
    half = ftmem__unary(tape, FTMEM__OP_SCALE, logvar);
    std = tuners_unary(low, FTMEM__OP_EXP, half);
    noise = ftmem__constant(std.n, std.cols, std.dtype);
    noise.store = ftmem__alloc(tape, FTMEM__OP_TABLE, std.n, std.cols, std.dtype, tape->birth);
    scaled = ftmem__binary(tape, FTMEM__OP_MUL, noise, std);
    y = ftmem__binary(tape, FTMEM__OP_ADD, mu, scaled);
    ftmem__drop(tape, scaled);
    ftmem__drop(tape, noise);
    ftmem__drop(tape, std);
    ftmem__drop(tape, logvar);
    ftmem__drop(tape, mu);
    return y;
}

/* forward: VeRA, whose middle is drawn from a mean and a variance. */
ftmem__var ftmem__method_pvera(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = low->shape->adapter->rank, rows = at->x.n / at->x.cols, parts[2];
    int32_t dtype = low->shape->lora_dtype;
    ftmem__var b = ftmem__low_adapter(low, at->role, at->out, 0), d = ftmem__low_adapter(low, at->role, 2 * r, 0), base = tuners_base(low, at), x, t, both[2],
               names[2];
    int32_t i;
    x = ftmem__cast(tape, at->x, dtype);
    t = ftmem__low_dropout(low, ftmem__keep(tape, x), low->shape->adapter->dropout);
    t = tuners_linear(low, t, ftmem__constant(2 * r * x.cols, x.cols, dtype), 2 * r);
    t = tuners_binary(low, FTMEM__OP_MUL, d, t);
    parts[0] = parts[1] = rows * r;
    ftmem__split(tape, t, 2, parts, both);
    ftmem__drop(tape, t);
    for (i = 0; i < 2; i++) names[i] = ftmem__keep(tape, both[i]);
    t = tuners_sampled(low, both[0], both[1]);
    t = tuners_linear(low, t, ftmem__constant(at->out * r, r, dtype), at->out);
    t = tuners_binary(low, FTMEM__OP_MUL, b, t);
    base = tuners_sum(low, base, t, at->x.dtype);
    for (i = 0; i < 2; i++) ftmem__drop(tape, names[i]);
    ftmem__drop(tape, x);
    return base;
}

/* --------------------------------------------------------------------------------------------------- FourierFT */

/* peft/tuners/fourierft/layer.py get_delta_weight: coefficients in a matrix of zeros, its inverse transform's real part, scaled. */
static ftmem__var tuners_fourier(ftmem__low *low, ftmem__var spectrum, int64_t in, int64_t out)
{
    ftmem__tape *tape = low->tape;
    int64_t n = in * out, whole = ftmem__round512(4 * n), complex_bytes = ftmem__round512(8 * n);
    ftmem__var dense = ftmem__constant(n, in, FTMEM_FP32), turned, y;
    ftmem__node *node;
    int16_t widened;
    dense.store = ftmem__alloc(tape, FTMEM__OP_TABLE, n, in, FTMEM_FP32, tape->birth);
    widened = ftmem__alloc_bytes(tape, FTMEM__OP_TABLE, complex_bytes, tape->birth);
    turned = ftmem__apply(tape, FTMEM__OP_FOURIER, &spectrum, 1, 2 * n, in, FTMEM_FP32); /* complex numbers */
    node = ftmem__recorded(tape, turned);
    if (node) node->work = complex_bytes + whole;
    ftmem__release(tape, widened);
    y = ftmem__apply(tape, FTMEM__OP_FOURIER_REAL, &turned, 1, n, in, FTMEM_FP32);
    ftmem__drop(tape, turned);
    ftmem__drop(tape, dense);
    return y;
}

ftmem__var ftmem__method_fourier(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t n = low->shape->adapter->coefficients ? low->shape->adapter->coefficients : 1000;
    ftmem__var base = tuners_base(low, at), spectrum = ftmem__low_adapter(low, at->role, n, 0), delta, x;
    ftmem__low_buffer(low, 16 * n); /* where they are: two int64 for each */
    delta = tuners_fourier(low, spectrum, at->x.cols, at->out);
    x = ftmem__cast(tape, at->x, delta.dtype);
    base = tuners_sum(low, base, tuners_linear(low, ftmem__keep(tape, x), ftmem__keep(tape, delta), at->out), at->x.dtype);
    ftmem__drop(tape, x);
    ftmem__drop(tape, delta);
    return base;
}

/* ------------------------------------------------------------------------------------------------------ DeLoRA */

/* peft/tuners/delora/layer.py Linear.forward: x times the norms of the weight's columns, A, a factor for each rank, B. */
ftmem__var ftmem__method_delora(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), in = at->x.cols;
    ftmem__var a = ftmem__low_adapter(low, at->role, r * in, r), b = ftmem__low_adapter(low, at->role, at->out * r, at->out), l, base, x, h, scale, zeros,
               both[2];
    l = ftmem__low_adapter(low, at->role, 1, 0);
    ftmem__low_buffer(low, ftmem__bytes(low->shape->lora_dtype, in));
    base = tuners_base(low, at);
    zeros = ftmem__constant(base.n, base.cols, base.dtype);
    zeros.store = ftmem__alloc(tape, FTMEM__OP_TABLE, base.n, base.cols, base.dtype, tape->birth);
    x = ftmem__low_dropout(low, ftmem__keep(tape, at->x), low->shape->adapter->dropout);
    h = tuners_linear(low, ftmem__binary(tape, FTMEM__OP_MUL, x, ftmem__constant(in, in, low->shape->lora_dtype)), a, r);
    scale = ftmem__binary(tape, FTMEM__OP_DIV, l, ftmem__constant(r, r, l.dtype)); /* lambda / r / (|A| |B|) */
    h = tuners_binary(low, FTMEM__OP_MUL, h, ftmem__keep(tape, scale));
    h = tuners_linear(low, h, b, at->out);
    both[0] = zeros;
    both[1] = h;
    zeros = ftmem__apply(tape, FTMEM__OP_ADD_IN_PLACE, both, 2, base.n, base.cols, base.dtype);
    ftmem__drop(tape, both[0]);
    base = tuners_sum(low, base, zeros, at->x.dtype);
    ftmem__drop(tape, h);
    ftmem__drop(tape, scale);
    ftmem__drop(tape, x);
    return base;
}

/* -------------------------------------------------------------------------------------------------------- RoAd */

/* peft/tuners/road/layer.py _apply_road over the linear's result: result * first + rotated * second. */
ftmem__var ftmem__method_road(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t n = at->out * (low->shape->adapter->factors ? low->shape->adapter->factors : 1) / 2;
    ftmem__var theta = ftmem__low_adapter(low, at->role, n, 0), alpha = ftmem__low_adapter(low, at->role, n, 0), base = tuners_base(low, at), cols[2], half,
               pair[2], y, z;
    int32_t i, dtype = base.dtype;
    base = ftmem__method_cast(tape, base, low->shape->lora_dtype);
    for (i = 0; i < 2; i++) {
        ftmem__var turn = ftmem__unary(tape, FTMEM__OP_COSINE, theta); /* or its sine */
        cols[i] = ftmem__shaped(tuners_binary(low, FTMEM__OP_MUL, alpha, turn), at->out, at->out);
    }
    half = ftmem__constant(base.n / 2, base.cols / 2, base.dtype);
    half.grad = base.grad;
    half.store = ftmem__alloc(tape, FTMEM__OP_NEG, base.n / 2, base.cols / 2, base.dtype, tape->birth);
    y = ftmem__unary(tape, FTMEM__OP_ROTATED, base);
    ftmem__drop(tape, half);
    pair[0] = ftmem__binary(tape, FTMEM__OP_MUL, base, cols[0]);
    pair[1] = ftmem__binary(tape, FTMEM__OP_MUL, y, cols[1]);
    z = tuners_binary(low, FTMEM__OP_ADD, pair[0], pair[1]);
    for (i = 0; i < 2; i++) ftmem__drop(tape, cols[i]);
    ftmem__drop(tape, y);
    ftmem__drop(tape, base);
    return ftmem__method_cast(tape, z, dtype);
}

/* --------------------------------------------------------------------------------------------------------- C3A */

/* peft/tuners/c3a/utils.py BlockCircularConvolution: transforms of x and of the kernels, their products, and back, in complex numbers. */
static ftmem__var tuners_circular(ftmem__low *low, ftmem__var x, ftmem__var kernel, int64_t out)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = x.n / x.cols, wide_in = 8 * x.n, wide_out = 8 * rows * out;
    ftmem__var in[2], y;
    ftmem__node *node;
    int16_t turned = ftmem__alloc_bytes(tape, FTMEM__OP_FOURIER, ftmem__round512(wide_in), tape->birth), back;
    int16_t turned_kernel = ftmem__alloc_bytes(tape, FTMEM__OP_FOURIER, ftmem__round512(8 * kernel.n), tape->birth);
    int16_t product = ftmem__alloc_bytes(tape, FTMEM__OP_FOURIER, ftmem__round512(wide_out), tape->birth);
    ftmem__release(tape, turned_kernel);
    ftmem__release(tape, turned);
    back = ftmem__alloc_bytes(tape, FTMEM__OP_FOURIER, ftmem__round512(wide_out), tape->birth);
    ftmem__release(tape, product);
    in[0] = x;
    in[1] = kernel;
    y = ftmem__apply(tape, FTMEM__OP_CIRCULAR, in, 2, rows * out, out, FTMEM_FP32);
    ftmem__release(tape, back);
    node = ftmem__recorded(tape, y);
    if (node) node->work = ftmem__round512(wide_out) + 2 * ftmem__round512(wide_in);
    return y;
}

/* peft/tuners/c3a/layer.py C3ALinear.forward, in fp32 whatever the model's dtype is. */
ftmem__var ftmem__method_c3a(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t block = low->shape->adapter->block_size ? low->shape->adapter->block_size : 256;
    ftmem__var kernel = ftmem__low_adapter(low, at->role, at->out * at->x.cols / block, 0), base = tuners_base(low, at), x, y, t;
    x = ftmem__cast(tape, at->x, FTMEM_FP32);
    t = tuners_circular(low, x, kernel, at->out);
    y = tuners_unary(low, FTMEM__OP_SCALE, t);
    ftmem__drop(tape, x);
    base = ftmem__method_add(tape, base, ftmem__cast(tape, y, base.dtype), true);
    ftmem__drop(tape, y);
    return ftmem__method_cast(tape, base, at->x.dtype);
}

/* ----------------------------------------------------------------------------------------------------- GraLoRA */

/* peft/tuners/gralora/layer.py Linear.forward: blocks of x through A, laid out anew by parts of the rank, blocks of B. */
ftmem__var ftmem__method_gralora(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), k = low->shape->adapter->factors ? low->shape->adapter->factors : 2, rows = at->x.n / at->x.cols;
    ftmem__var a = ftmem__low_adapter(low, at->role, r * at->x.cols, r), b = ftmem__low_adapter(low, at->role, at->out * r, r), base, x, t, y;
    base = tuners_base(low, at);
    x = ftmem__low_dropout(low, ftmem__cast(tape, at->x, a.dtype), low->shape->adapter->dropout);
    t = tuners_unary(low, FTMEM__OP_CLONE, tuners_mm(low, x, a, rows * k, at->x.cols / k, r)); /* permute and reshape */
    ftmem__drop(tape, x);
    y = tuners_unary(low, FTMEM__OP_CLONE, tuners_mm(low, t, b, rows, r, at->out));
    ftmem__drop(tape, t);
    y = ftmem__shaped(y, rows * at->out, at->out);
    t = tuners_unary(low, FTMEM__OP_SCALE, ftmem__cast(tape, y, base.dtype));
    base = ftmem__method_add(tape, base, t, true);
    ftmem__drop(tape, y);
    return ftmem__method_cast(tape, base, at->x.dtype);
}

/* -------------------------------------------------------------------------------------------------------- BEFT */

/* peft/tuners/beft/layer.py Linear.forward: the result and one bias. */
ftmem__var ftmem__method_beft(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    ftmem__var bias = ftmem__low_adapter(low, at->role, at->out, 0), base = tuners_base(low, at), sum, y;
    sum = ftmem__binary(tape, FTMEM__OP_ADD, base, bias);
    y = ftmem__cast(tape, sum, base.dtype);
    ftmem__drop(tape, sum);
    ftmem__drop(tape, base);
    return y;
}

/* -------------------------------------------------------------------------------------------------------- DEFT */

/* (result @ right) @ P.T, taken off the result; result is replaced. */
static void tuners_projected(ftmem__low *low, ftmem__var *result, ftmem__var product, ftmem__var right, ftmem__var p, ftmem__var *correction)
{
    ftmem__tape *tape = low->tape;
    int64_t out = result->cols, rows = result->n / out, r = p.n / out;
    ftmem__var middle = tuners_mm(low, product, right, rows, out, r), y;
    *correction = tuners_mm(low, middle, p, rows, r, out);
    ftmem__drop(tape, middle);
    y = ftmem__binary(tape, FTMEM__OP_SUB, *result, *correction);
    ftmem__drop(tape, *result);
    *result = y;
}

/* What PaRa leaves out: F.linear(dropout(x), R * scaling) @ P.T, added. */
static void tuners_injected(ftmem__low *low, const ftmem__adapted *at, ftmem__var *result, ftmem__var x, ftmem__var p, ftmem__var *scaled)
{
    ftmem__tape *tape = low->tape;
    int64_t r = p.n / at->out, rows = x.n / x.cols;
    ftmem__var middle, y;
    *scaled = tuners_unary(low, FTMEM__OP_SCALE, ftmem__low_adapter(low, at->role, r * x.cols, r));
    middle = tuners_linear(low, ftmem__low_dropout(low, ftmem__keep(tape, x), low->shape->adapter->dropout), ftmem__keep(tape, *scaled), r);
    y = tuners_mm(low, middle, p, rows, r, at->out);
    ftmem__drop(tape, middle);
    *result = ftmem__method_add(tape, *result, y, false);
}

/* peft/tuners/deft/layer.py DeftLinear.forward, in fp32: decomposition_method "relu", or PaRa with "qr". */
ftmem__var ftmem__method_deft(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role);
    bool para = low->shape->adapter->kind == FTMEM_ADAPTER_DEFT_PARA;
    ftmem__var p = ftmem__low_adapter(low, at->role, at->out * r, at->out), base = tuners_base(low, at), result, product, x, right, correction, scaled;
    result = ftmem__cast(tape, base, FTMEM_FP32);
    product = at->bias ? ftmem__binary(tape, FTMEM__OP_SUB, result, ftmem__constant(at->out, at->out, FTMEM_FP32)) : ftmem__keep(tape, result);
    x = ftmem__cast(tape, at->x, FTMEM_FP32);
    right = ftmem__unary(tape, FTMEM__OP_RELU, p); /* or Q of its QR decomposition, which is kept likewise */
    scaled = ftmem__constant(1, 1, FTMEM_FP32);
    tuners_projected(low, &result, product, right, para ? right : p, &correction);
    if (!para) tuners_injected(low, at, &result, x, p, &scaled);
    result = ftmem__method_cast(tape, result, at->x.dtype);
    ftmem__drop(tape, scaled);
    ftmem__drop(tape, correction);
    ftmem__drop(tape, right);
    ftmem__drop(tape, x);
    ftmem__drop(tape, product);
    ftmem__drop(tape, base);
    return result;
}

/* ------------------------------------------------------------------------------------------------------- GLoRA */

/* One path in the weight's dtype: Xd @ Xu, or a column. */
static ftmem__var tuners_path(ftmem__low *low, const ftmem__adapted *at, int64_t r)
{
    int64_t in = at->x.cols, out = at->out;
    ftmem__var d, u;
    if (low->shape->adapter->kind == FTMEM_ADAPTER_GLORA_VECTOR)
        return ftmem__cast(low->tape, ftmem__shaped(ftmem__low_adapter(low, at->role, out, out), out, 1), low->shape->dtype);
    d = ftmem__low_adapter(low, at->role, out * r, out);
    u = ftmem__low_adapter(low, at->role, r * in, r);
    return ftmem__method_cast(low->tape, ftmem__low_plain_linear(low, ftmem__shaped(d, out * r, r), ftmem__shaped(u, r * in, r), NULL, in), low->shape->dtype);
}

/* peft/tuners/glora/layer.py Linear.forward: a second linear over weight + weight * A + B, the first taken off again. */
ftmem__var ftmem__method_glora(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t n = at->out * at->x.cols;
    ftmem__var base = tuners_base(low, at), w = ftmem__constant(n, at->x.cols, low->shape->dtype), a = tuners_path(low, at, low->shape->adapter->rank), b, t, y,
               twice;
    b = tuners_path(low, at, low->shape->adapter->rank);
    t = ftmem__binary(tape, FTMEM__OP_MUL, w, a);
    t = tuners_binary(low, FTMEM__OP_ADD, w, t);
    t = tuners_binary(low, FTMEM__OP_ADD, t, ftmem__keep(tape, b));
    y = ftmem__low_plain_linear(low, at->x, ftmem__shaped(t, n, at->x.cols), NULL, at->out);
    twice = ftmem__binary(tape, FTMEM__OP_ADD, base, y);
    w = ftmem__unary(tape, FTMEM__OP_SCALE, base);
    twice = tuners_binary(low, FTMEM__OP_SUB, twice, w);
    ftmem__drop(tape, y);
    ftmem__drop(tape, t);
    ftmem__drop(tape, b);
    ftmem__drop(tape, a);
    ftmem__drop(tape, base);
    return twice;
}

/* ------------------------------------------------------------------------------------------------------ PEANuT */

/* peft/tuners/peanut/layer.py _compute_delta_weight of depth 0 with ReLU: B(relu(weight.T @ A.T)) * scaling. */
ftmem__var ftmem__method_peanut(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), in = at->x.cols, out = at->out;
    ftmem__var a = ftmem__low_adapter(low, at->role, r * out, r), b = ftmem__low_adapter(low, at->role, out * r, out), base = tuners_base(low, at), t, delta, x,
               y;
    int32_t dtype = base.dtype;
    t = ftmem__cast(tape, ftmem__constant(in * out, out, low->shape->dtype), a.dtype);
    delta = tuners_unary(low, FTMEM__OP_RELU, tuners_mm(low, t, a, in, out, r));
    ftmem__drop(tape, t);
    delta = tuners_unary(low, FTMEM__OP_SCALE, tuners_linear(low, delta, b, out));
    delta = ftmem__shaped(delta, in * out, in);
    x = ftmem__cast(tape, at->x, delta.dtype);
    y = tuners_mm(low, x, delta, x.n / in, in, out);
    base = ftmem__method_add(tape, base, ftmem__cast(tape, y, dtype), false);
    ftmem__drop(tape, y);
    ftmem__drop(tape, x);
    ftmem__drop(tape, delta);
    return base;
}

/* ---------------------------------------------------------------------------------------------------- TinyLoRA */

/* peft/tuners/tinylora/layer.py Linear.forward: B R A x, A and B of the weight's singular values, R a sum of fixed matrices. */
ftmem__var ftmem__method_tiny(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), u = low->shape->adapter->coefficients ? low->shape->adapter->coefficients : 64, in = at->x.cols;
    int32_t dtype = low->shape->lora_dtype;
    ftmem__var v, base = tuners_base(low, at), matrix, x, h, y;
    v = ftmem__low_adapter(low, at->role, u, 0);
    ftmem__low_buffer(low, ftmem__bytes(dtype, r * in));
    ftmem__low_buffer(low, ftmem__bytes(dtype, r * at->out));
    ftmem__low_buffer(low, 4 * u * r * r);
    matrix = ftmem__apply(tape, FTMEM__OP_INDEX, &v, 1, r * r, r, dtype);
    x = ftmem__low_dropout(low, ftmem__cast(tape, at->x, dtype), low->shape->adapter->dropout);
    h = ftmem__low_plain_linear(low, x, ftmem__constant(r * in, in, dtype), NULL, r);
    h = tuners_linear(low, h, ftmem__keep(tape, matrix), r);
    y = ftmem__low_plain_linear(low, h, ftmem__constant(at->out * r, r, dtype), NULL, at->out);
    base = tuners_sum(low, base, ftmem__keep(tape, y), at->x.dtype);
    ftmem__drop(tape, y);
    ftmem__drop(tape, h);
    ftmem__drop(tape, x);
    ftmem__drop(tape, matrix);
    return base;
}

/* ---------------------------------------------------------------------------------------------------- RandLoRA */

/* peft/tuners/randlora/layer.py UniqueBaseGrad: lambda * A * gamma, of which the factors alone are kept. */
static ftmem__var tuners_bases(ftmem__low *low, const ftmem__adapted *at, int64_t r, int64_t least)
{
    ftmem__tape *tape = low->tape;
    int64_t bases = (least + r - 1) / r, n = r * bases * least, half = ftmem__round512(ftmem__bytes(low->shape->lora_dtype, n));
    ftmem__var in[2], y;
    ftmem__node *node;
    int16_t first;
    in[0] = ftmem__low_adapter(low, at->role, r * bases, r);
    in[1] = ftmem__low_adapter(low, at->role, bases * least, bases);
    first = ftmem__alloc_bytes(tape, FTMEM__OP_HADAMARD, half, tape->birth);
    y = ftmem__apply(tape, FTMEM__OP_HADAMARD, in, 2, n, least, low->shape->lora_dtype);
    ftmem__release(tape, first);
    node = ftmem__recorded(tape, y);
    if (node) node->work = half;
    return y;
}

/* Linear.forward: two linears whose weights lie the way that makes the trained one the smaller side. */
ftmem__var ftmem__method_rand(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = low->shape->adapter->rank, in = at->x.cols, least = in < at->out ? in : at->out, most = in < at->out ? at->out : in, wide;
    int32_t dtype = low->shape->lora_dtype;
    ftmem__var base = tuners_base(low, at), made = tuners_bases(low, at, r, least), fixed, x, t;
    wide = made.n / least;
    fixed = ftmem__constant(wide * most, most, dtype);
    x = ftmem__cast(tape, at->x, dtype);
    t = ftmem__low_dropout(low, ftmem__keep(tape, x), low->shape->adapter->dropout);
    t = tuners_linear(low, t, least == in ? ftmem__keep(tape, made) : fixed, wide);
    t = tuners_linear(low, t, least == in ? fixed : ftmem__keep(tape, made), at->out);
    base = tuners_sum(low, base, tuners_unary(low, FTMEM__OP_SCALE, t), at->x.dtype);
    ftmem__drop(tape, x);
    ftmem__drop(tape, made);
    return base;
}

/* ------------------------------------------------------------------------------------------------------- PSOFT */

/* peft/tuners/psoft/layer.py OrthLayer.get_matrix: a skew-symmetric matrix, Cayley's transform by a solver, and a vector on each side. */
static ftmem__var tuners_orthogonal(ftmem__low *low, const ftmem__adapted *at, int64_t r)
{
    ftmem__tape *tape = low->tape;
    ftmem__var w = ftmem__low_adapter(low, at->role, r * (r - 1) / 2, 0), v[2], filled, q, eye, both[2], y;
    int32_t i;
    for (i = 0; i < 2; i++) v[i] = ftmem__low_adapter(low, at->role, r, 0);
    filled = ftmem__apply(tape, FTMEM__OP_INDEX, &w, 1, r * r, r, w.dtype);
    q = ftmem__binary(tape, FTMEM__OP_ADD, filled, filled);
    ftmem__drop(tape, filled);
    eye = ftmem__constant(r * r, r, w.dtype);
    eye.store = ftmem__alloc(tape, FTMEM__OP_TABLE, r * r, r, w.dtype, tape->birth);
    for (i = 0; i < 2; i++) both[i] = ftmem__binary(tape, FTMEM__OP_ADD, eye, q);
    y = tuners_binary(low, FTMEM__OP_DIV, both[0], both[1]);
    ftmem__drop(tape, eye);
    ftmem__drop(tape, q);
    for (i = 0; i < 2; i++) y = tuners_binary(low, FTMEM__OP_MUL, v[i], y);
    return y;
}

/* PsoftLinear.forward: (R A x - A x) B, A and B of the weight's singular vectors. A full decomposition's rows stay whole behind A. */
ftmem__var ftmem__method_psoft(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), in = at->x.cols, least = in < at->out ? in : at->out, rows = at->x.n / in;
    ftmem__var base = tuners_base(low, at), x, turn, xa, xr, y;
    int32_t dtype = base.dtype;
    ftmem__low_buffer(low, 4 * least * in);
    ftmem__low_buffer(low, 4 * at->out * r);
    x = ftmem__low_dropout(low, ftmem__cast(tape, at->x, FTMEM_FP32), low->shape->adapter->dropout);
    xa = ftmem__low_plain_linear(low, x, ftmem__constant(r * in, in, FTMEM_FP32), NULL, r);
    turn = tuners_orthogonal(low, at, r);
    xr = tuners_mm(low, xa, turn, rows, r, r);
    ftmem__drop(tape, turn);
    turn = ftmem__binary(tape, FTMEM__OP_SUB, xr, xa);
    y = tuners_linear(low, turn, ftmem__constant(at->out * r, r, FTMEM_FP32), at->out);
    base = tuners_sum(low, base, ftmem__unary(tape, FTMEM__OP_SCALE, y), dtype);
    ftmem__drop(tape, y);
    ftmem__drop(tape, xr);
    ftmem__drop(tape, xa);
    ftmem__drop(tape, x);
    return base;
}
