/* PEFT's adapters other than LoRA, over one linear each. */
#include "method.h"

static bool methods_bnb4(const ftmem__low *low, int32_t role)
{
    const ftmem__quant *quant = ftmem__low_quant(low, role);
    return quant && quant->bitsandbytes && quant->bits == 4;
}

/* x @ weight.T, the weight a value of the tape that may need a gradient. */
static ftmem__var methods_matmul(ftmem__low *low, ftmem__var x, ftmem__var w)
{
    return ftmem__low_plain_linear(low, x, w, NULL, w.n / w.cols);
}

static ftmem__var methods_product(ftmem__tape *tape, ftmem__var a, ftmem__var b)
{
    ftmem__var y = ftmem__binary(tape, FTMEM__OP_MUL, a, b);
    ftmem__drop(tape, b);
    return y;
}

/* -------------------------------------------------------------------------------------------------------- VeRA */

/* Widths of a role's linear. */
static void methods_widths(const ftmem__shape *shape, int32_t role, int64_t *in, int64_t *out)
{
    int64_t wide = shape->q + 2 * shape->kv;
    *in = role == FTMEM_ROLE_O ? shape->q : role == FTMEM_ROLE_DOWN ? shape->f : shape->h;
    switch (role) {
    case FTMEM_ROLE_Q: *out = shape->q; break;
    case FTMEM_ROLE_K:
    case FTMEM_ROLE_V: *out = shape->kv; break;
    case FTMEM_ROLE_QKV: *out = wide; break;
    case FTMEM_ROLE_GATE:
    case FTMEM_ROLE_UP: *out = shape->f; break;
    case FTMEM_ROLE_GATE_UP: *out = 2 * shape->f; break;
    default: *out = shape->h; break;
    }
}

/* peft/tuners/vera/model.py _init_vera_A_vera_B, pvera/model.py, and randlora/model.py _init_randlora_A_randlora_B: one pair of buffers, as
   wide as the widest target. */
void ftmem__method_shared(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    int64_t most_in = 0, most_out = 0, in, out, r = shape->adapter->rank;
    int32_t role, kind = shape->adapter->kind;
    if (kind != FTMEM_ADAPTER_VERA && kind != FTMEM_ADAPTER_PVERA && kind != FTMEM_ADAPTER_RANDLORA) return;
    for (role = 0; role <= FTMEM_ROLE_DOWN; role++) {
        if (!(shape->adapter->targets >> role & 1u) || !shape->family->modules[role]) continue;
        methods_widths(shape, role, &in, &out);
        if (in > most_in) most_in = in;
        if (out > most_out) most_out = out;
    }
    if (kind == FTMEM_ADAPTER_PVERA) most_in *= 2;
    if (kind == FTMEM_ADAPTER_RANDLORA) {
        int64_t least = most_in < most_out ? most_in : most_out;
        most_out = (most_in + most_out - least) * ((least + r - 1) / r);
        most_in = least;
    }
    ftmem__low_buffer(low, ftmem__bytes(shape->lora_dtype, r * most_in));
    ftmem__low_buffer(low, ftmem__bytes(shape->lora_dtype, r * most_out));
}

/* peft/tuners/vera/layer.py Linear.forward: result + lambda_b * B(lambda_d * A(dropout(x))), A and B frozen. */
ftmem__var ftmem__method_vera(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = low->shape->adapter->rank;
    int32_t dtype = low->shape->lora_dtype, before;
    ftmem__var b = ftmem__low_adapter(low, at->role, at->out, 0), d = ftmem__low_adapter(low, at->role, r, 0), base, in, t;
    base = ftmem__low_base(low, at->role, at->x, at->out, at->bias);
    before = base.dtype;
    if (methods_bnb4(low, at->role)) base = ftmem__method_clone(tape, base);
    in = ftmem__cast(tape, at->x, dtype);
    t = ftmem__low_dropout(low, ftmem__keep(tape, in), low->shape->adapter->dropout);
    d = methods_product(tape, d, ftmem__low_plain_linear(low, t, ftmem__constant(r * t.cols, t.cols, dtype), NULL, r));
    ftmem__drop(tape, t);
    t = ftmem__low_plain_linear(low, d, ftmem__constant(at->out * r, r, dtype), NULL, at->out);
    ftmem__drop(tape, d);
    base = ftmem__method_add(tape, base, methods_product(tape, b, t), false);
    base = ftmem__method_cast(tape, base, before);
    ftmem__drop(tape, in);
    return ftmem__method_cast(tape, base, at->x.dtype);
}

/* ----------------------------------------------------------------------------------------------------- AdaLoRA */

/* peft/tuners/tuners_utils.py cast_adapter_dtype makes a parameter of 16 bits anew, and trained, whatever it was. */
static bool methods_recreated(const ftmem__shape *shape)
{
    return shape->compute != FTMEM_FP32 && shape->lora_dtype == FTMEM_FP32 && !shape->lora8;
}

/* output * scaling / ranknum; takes over x. */
static ftmem__var methods_scaled(ftmem__low *low, ftmem__var x, ftmem__var by)
{
    ftmem__var scaled = ftmem__unary(low->tape, FTMEM__OP_SCALE, x), y;
    ftmem__drop(low->tape, x);
    y = ftmem__binary(low->tape, FTMEM__OP_DIV, scaled, by);
    ftmem__drop(low->tape, scaled);
    return y;
}

/* dropout(x) @ (A * E).T @ B.T */
static ftmem__var methods_adalora_delta(ftmem__low *low, ftmem__var x, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role);
    ftmem__var a = ftmem__low_adapter(low, at->role, r * at->x.cols, r), e = ftmem__low_adapter(low, at->role, r, r), ae, dropped, middle, cast, y;
    ftmem__var b = ftmem__low_adapter(low, at->role, at->out * r, at->out);
    dropped = ftmem__low_dropout(low, ftmem__keep(tape, x), low->shape->adapter->dropout);
    ae = ftmem__binary(tape, FTMEM__OP_MUL, a, e);
    middle = methods_matmul(low, dropped, ae);
    ftmem__drop(tape, ae);
    ftmem__drop(tape, dropped);
    cast = ftmem__cast(tape, b, low->shape->autocast ? low->shape->autocast : b.dtype); /* a view's copy is not cached */
    y = methods_matmul(low, middle, cast);
    ftmem__drop(tape, cast);
    ftmem__drop(tape, middle);
    return y;
}

/* peft/tuners/adalora/layer.py SVDLinear.forward, bnb.py SVDLinear4bit and SVDLinear8bitLt. */
ftmem__var ftmem__method_adalora(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    const ftmem__quant *quant = ftmem__low_quant(low, at->role);
    bool converts = !quant || !low->shape->autocast;
    ftmem__var base = ftmem__low_base(low, at->role, at->x, at->out, at->bias), rank, in, delta;
    int32_t dtype = base.dtype;
    if (methods_bnb4(low, at->role)) base = ftmem__method_clone(tape, base);
    rank = ftmem__low_adapter_of(low, at->role, 1, 0, methods_recreated(low->shape));
    rank = ftmem__unary(tape, FTMEM__OP_SHIFT, rank); /* ranknum + 1e-5 */
    in = converts ? ftmem__cast(tape, at->x, low->shape->lora_dtype) : ftmem__keep(tape, at->x);
    delta = methods_adalora_delta(low, in, at);
    if (quant && converts) delta = ftmem__method_cast(tape, delta, dtype);
    delta = methods_scaled(low, delta, rank);
    ftmem__drop(tape, rank);
    base = ftmem__method_add(tape, base, delta, !quant || quant->bits == 4);
    ftmem__drop(tape, in);
    return base;
}

/* --------------------------------------------------------------------------------------------------------- IA3 */

/* peft/tuners/ia3/layer.py Linear.forward, `before` the linear in feed-forward modules. */
static ftmem__var methods_ia3_plain(ftmem__low *low, const ftmem__adapted *at, ftmem__var scale, bool before)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in, t, y;
    if (!before) {
        t = ftmem__low_base(low, at->role, at->x, at->out, at->bias);
        y = ftmem__method_cast(tape, ftmem__binary(tape, FTMEM__OP_MUL, t, scale), t.dtype);
        ftmem__drop(tape, t);
        return y;
    }
    in = ftmem__cast(tape, at->x, scale.dtype);
    t = ftmem__method_cast(tape, ftmem__binary(tape, FTMEM__OP_MUL, in, scale), at->x.dtype);
    y = ftmem__low_base(low, at->role, t, at->out, at->bias);
    ftmem__drop(tape, t);
    ftmem__drop(tape, in);
    return y;
}

/* peft/tuners/ia3/bnb.py Linear4bit and Linear8bitLt. */
static ftmem__var methods_ia3_bnb(ftmem__low *low, const ftmem__adapted *at, ftmem__var scale, bool before)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in = low->shape->autocast ? ftmem__keep(tape, at->x) : ftmem__cast(tape, at->x, FTMEM_FP32), t, y;
    int32_t dtype;
    if (before) {
        t = ftmem__binary(tape, FTMEM__OP_MUL, in, scale);
        y = ftmem__low_base(low, at->role, t, at->out, at->bias);
        dtype = y.dtype;
    } else {
        t = ftmem__low_base(low, at->role, in, at->out, at->bias);
        dtype = t.dtype;
        y = ftmem__binary(tape, FTMEM__OP_MUL, t, scale);
    }
    ftmem__drop(tape, t);
    if (methods_bnb4(low, at->role)) y = ftmem__method_clone(tape, y);
    if (!low->shape->autocast && at->x.dtype != FTMEM_FP32) y = ftmem__method_cast(tape, y, dtype);
    ftmem__drop(tape, in);
    return y;
}

ftmem__var ftmem__method_ia3(ftmem__low *low, const ftmem__adapted *at)
{
    uint32_t given = low->shape->adapter->feedforward; /* else peft/utils/constants.py ..._IA3_FEEDFORWARD_MODULES_MAPPING */
    bool before = given ? given >> at->role & 1u : at->role == FTMEM_ROLE_DOWN;
    int64_t n = before ? at->x.cols : at->out;
    ftmem__var l = ftmem__low_adapter(low, at->role, n, before ? 1 : n), scale, y;
    l = ftmem__shaped(l, n, n);
    scale = ftmem__unary(low->tape, FTMEM__OP_SCALE, l); /* 1 * l */
    y = ftmem__low_quant(low, at->role) ? methods_ia3_bnb(low, at, scale, before) : methods_ia3_plain(low, at, scale, before);
    ftmem__drop(low->tape, scale);
    return y;
}

/* ------------------------------------------------------------------------------------------------ LoHa and LoKr */

/* peft/tuners/lycoris: F.linear(x in the weight's dtype, weight), added to the base's result; takes over weight. */
static ftmem__var methods_lycoris(ftmem__low *low, const ftmem__adapted *at, ftmem__var base, ftmem__var weight)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in = ftmem__cast(tape, at->x, weight.dtype), delta = methods_matmul(low, in, weight);
    ftmem__drop(tape, in);
    ftmem__drop(tape, weight);
    return ftmem__method_cast(tape, ftmem__method_add(tape, base, delta, false), at->x.dtype);
}

/* loha/layer.py HadaWeight: (w1a @ w1b) * (w2a @ w2b) * scale, only the factors kept; backward makes both products again. */
ftmem__var ftmem__method_loha(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), in = at->x.cols, out = at->out, half, i;
    int32_t dtype = low->shape->autocast ? low->shape->autocast : low->shape->lora_dtype;
    ftmem__var factors = ftmem__weight(2 * r * (in + out), 2 * r, low->shape->lora_dtype, true), casts[4], part[2], both, weight, base;
    ftmem__node *node;
    base = ftmem__low_base(low, at->role, at->x, out, at->bias);
    for (i = 0; i < 4; i++) casts[i] = ftmem__cast_weight(tape, ftmem__low_adapter(low, at->role, i % 2 ? r * in : out * r, i % 2 ? r : out), dtype);
    for (i = 0; i < 2; i++) part[i].store = ftmem__alloc(tape, FTMEM__OP_HADAMARD, out * in, in, dtype, tape->birth);
    both.store = ftmem__alloc(tape, FTMEM__OP_HADAMARD, out * in, in, dtype, tape->birth);
    for (i = 0; i < 2; i++) ftmem__release(tape, part[i].store);
    weight = ftmem__apply(tape, FTMEM__OP_HADAMARD, &factors, 1, out * in, in, dtype);
    ftmem__release(tape, both.store);
    if (!tape->stopped) tape->flops += 4.0 * (double)(out * in) * (double)r;
    node = ftmem__recorded(tape, weight);
    half = ftmem__round512(ftmem__bytes(low->shape->lora_dtype, out * in));
    if (node) node->work = 3 * half + ftmem__round512(ftmem__bytes(dtype, out * in));
    if (node) node->flops = 12.0 * (double)(out * in) * (double)r;
    for (i = 0; i < 4; i++) ftmem__drop(tape, casts[i]);
    return methods_lycoris(low, at, base, weight);
}

/* lokr/layer.py factorization */
static void methods_factorize(int64_t n, int64_t factor, int64_t *small, int64_t *large)
{
    int64_t m = 1, l = n, length, next, other, limit = factor > 0 ? factor : n;
    if (factor > 0 && n % factor == 0) {
        *small = factor;
        *large = n / factor;
        return;
    }
    length = m + l;
    while (m < l) {
        next = m + 1;
        while (n % next != 0) next++;
        other = n / next;
        if (next + other > length || next > limit) break;
        m = next;
        l = other;
    }
    *small = m < l ? m : l;
    *large = m < l ? l : m;
}

/* lokr/layer.py: kron(w1, w2) * scale, w1 whole and w2 whole or a product of two. */
ftmem__var ftmem__method_lokr(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t r = ftmem__low_rank(low, at->role), in = at->x.cols, out = at->out, l, k, m, n, factor = low->shape->adapter->factors;
    ftmem__var w[2], a, b, kron, weight, base = ftmem__low_base(low, at->role, at->x, out, at->bias);
    methods_factorize(out, factor, &l, &k);
    methods_factorize(in, factor, &m, &n);
    w[0] = ftmem__low_adapter(low, at->role, l * m, l);
    if (2 * r >= (k > n ? k : n)) {
        w[1] = ftmem__low_adapter(low, at->role, k * n, k);
    } else {
        a = ftmem__low_adapter(low, at->role, k * r, k);
        b = ftmem__low_adapter(low, at->role, r * n, r);
        b = ftmem__shaped(b, b.n, r); /* a @ b: b stands transposed */
        w[1] = methods_matmul(low, a, b);
    }
    kron = ftmem__apply(tape, FTMEM__OP_MUL, w, 2, in * out, in, w[0].dtype);
    ftmem__drop(tape, w[1]);
    weight = ftmem__unary(tape, FTMEM__OP_SCALE, kron);
    ftmem__drop(tape, kron);
    return methods_lycoris(low, at, base, weight);
}

/* --------------------------------------------------------------------------------------------------------- OFT */

/* oft/layer.py adjust_oft_parameters: the nearest divisor of the width. */
static int64_t methods_block(int64_t in, int64_t block)
{
    int64_t lower = block, higher = block;
    if (in % block == 0 && block <= in) return block;
    while (higher <= in && in % higher != 0) higher++;
    while (lower > 1 && in % lower != 0) lower--;
    return block - lower <= higher - block ? lower : higher;
}

/* a += b * 2, of blocks x side x side */
static void methods_oft_add(ftmem__tape *tape, ftmem__var *sum, ftmem__var term)
{
    ftmem__var in[2], y;
    in[0] = *sum;
    in[1] = term;
    y = ftmem__apply(tape, FTMEM__OP_ADD_IN_PLACE, in, 2, sum->n, sum->cols, sum->dtype);
    ftmem__drop(tape, *sum);
    *sum = y;
}

static ftmem__var methods_bmm(ftmem__low *low, ftmem__var a, ftmem__var b, int64_t side)
{
    int32_t dtype = low->shape->autocast ? low->shape->autocast : a.dtype;
    ftmem__var in[2], y;
    in[0] = ftmem__cast(low->tape, a, dtype);
    in[1] = ftmem__cast(low->tape, b, dtype);
    y = ftmem__matmul(low->tape, FTMEM__OP_BMM, in[0], in[1], NULL, a.n, a.cols, 2.0 * (double)a.n * (double)side);
    ftmem__drop(low->tape, in[1]);
    ftmem__drop(low->tape, in[0]);
    return y;
}

/* oft/layer.py OFTRotationModule._cayley_batch: 1 + 2 (Q + Q^2 + Q^3) + Q^4, Q skew-symmetric. */
static ftmem__var methods_cayley(ftmem__low *low, ftmem__var vec, int64_t blocks, int64_t side)
{
    ftmem__tape *tape = low->tape;
    int64_t n = blocks * side * side;
    ftmem__var filled = ftmem__apply(tape, FTMEM__OP_INDEX, &vec, 1, n, side, vec.dtype), q, sum, power, next;
    int32_t i;
    q = ftmem__unary(tape, FTMEM__OP_CLONE, filled); /* less its transpose */
    ftmem__drop(tape, filled);
    sum = ftmem__constant(n, side, vec.dtype);
    sum.store = ftmem__alloc(tape, FTMEM__OP_TABLE, n, side, vec.dtype, tape->birth);
    methods_oft_add(tape, &sum, q);
    power = ftmem__keep(tape, q);
    for (i = 0; i < 3; i++) {
        next = methods_bmm(low, power, q, side);
        ftmem__drop(tape, power);
        power = next;
        methods_oft_add(tape, &sum, power);
    }
    ftmem__drop(tape, power);
    ftmem__drop(tape, q);
    return sum;
}

/* peft/tuners/oft/layer.py Linear.forward: x is rotated block by block before the linear. */
ftmem__var ftmem__method_oft(ftmem__low *low, const ftmem__adapted *at)
{
    ftmem__tape *tape = low->tape;
    int64_t in = at->x.cols, side = methods_block(in, low->shape->adapter->block_size ? low->shape->adapter->block_size : 32), blocks = in / side;
    int64_t elements = side * (side - 1) / 2;
    ftmem__var vec = ftmem__low_adapter(low, at->role, blocks * elements, blocks), x = ftmem__cast(tape, at->x, vec.dtype), turn, turned, rotated, y;
    ftmem__low_buffer(low, 8 * elements);
    ftmem__low_buffer(low, 8 * elements);
    turn = methods_cayley(low, vec, blocks, side);
    turned = methods_bmm(low, x, turn, side);
    y = ftmem__unary(tape, FTMEM__OP_CLONE, turned); /* reshape of what is laid out by blocks */
    rotated = ftmem__cast(tape, y, x.dtype);
    ftmem__drop(tape, y);
    ftmem__drop(tape, turned);
    ftmem__drop(tape, turn);
    ftmem__drop(tape, x);
    x = ftmem__cast(tape, rotated, at->x.dtype);
    y = ftmem__low_base(low, at->role, x, at->out, at->bias);
    ftmem__drop(tape, x);
    y = ftmem__method_cast(tape, y, at->x.dtype);
    ftmem__drop(tape, rotated);
    return y;
}

/* ------------------------------------------------------------------------------------------------ virtual tokens */

static ftmem__var methods_encoder_linear(ftmem__low *low, ftmem__var x, int64_t out)
{
    ftmem__var w = ftmem__low_adapter(low, FTMEM_ROLE_EMBED, x.cols * out, out), b = ftmem__low_adapter(low, FTMEM_ROLE_EMBED, out, 0);
    ftmem__var y = ftmem__low_plain_linear(low, x, w, &b, out);
    ftmem__drop(low->tape, x);
    return y;
}

/* peft/tuners/p_tuning/model.py PromptEncoder, reparameterised by an MLP of three linears; takes over x. */
static ftmem__var methods_encoder(ftmem__low *low, ftmem__var x)
{
    const ftmem__shape *shape = low->shape;
    int64_t width = shape->adapter->encoder_hidden ? shape->adapter->encoder_hidden : shape->h;
    int32_t i;
    for (i = 0; i < 2; i++) {
        ftmem__var y = methods_encoder_linear(low, x, width);
        x = ftmem__unary(low->tape, FTMEM__OP_RELU, y);
        ftmem__drop(low->tape, y);
    }
    return methods_encoder_linear(low, x, shape->h);
}

/* peft/peft_model.py PeftModelForCausalLM.forward: prompts are looked up once, repeated for each row, cast, and joined with the embeddings. */
ftmem__var ftmem__method_prompt(ftmem__low *low, ftmem__var x)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    ftmem__var w = ftmem__low_adapter(low, FTMEM_ROLE_EMBED, shape->virtual_tokens * shape->h, shape->virtual_tokens), in[2], one, y;
    one = ftmem__apply(tape, FTMEM__OP_EMBEDDING, &w, 1, w.n, w.cols, w.dtype);
    if (shape->adapter->kind == FTMEM_ADAPTER_P_TUNING) one = methods_encoder(low, one);
    in[0] = ftmem__apply(tape, FTMEM__OP_EXPAND, &one, 1, low->b * one.n, one.cols, one.dtype); /* repeat */
    ftmem__drop(tape, one);
    in[0] = ftmem__method_cast(tape, in[0], x.dtype);
    in[1] = x;
    y = ftmem__apply(tape, FTMEM__OP_CAT, in, 2, in[0].n + x.n, x.cols, x.dtype);
    ftmem__drop(tape, in[0]);
    ftmem__drop(tape, x);
    return y;
}

/* ------------------------------------------------------------------------------------------- trainable tokens */

ftmem__var ftmem__method_token_rows(ftmem__low *low, bool declared)
{
    const ftmem__shape *shape = low->shape;
    int64_t rows = shape->adapter->trainable_tokens;
    ftmem__var w;
    if (declared) return ftmem__low_adapter(low, FTMEM_ROLE_EMBED, rows * shape->h, rows);
    w = ftmem__weight(rows * shape->h, shape->h, shape->lora_dtype, true);
    w.node = FTMEM__SHARED_LEAF;
    return w;
}

/* peft/tuners/trainable_tokens/layer.py get_merged_weights: index_copy makes a whole matrix in each forward. */
ftmem__var ftmem__method_tokens(ftmem__low *low, ftmem__var w, ftmem__var rows)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in[2], y;
    in[0] = w;
    in[1] = ftmem__cast(tape, rows, w.dtype);
    y = ftmem__apply(tape, FTMEM__OP_INDEX_COPY, in, 2, w.n, w.cols, w.dtype);
    ftmem__drop(tape, in[1]);
    return y;
}
