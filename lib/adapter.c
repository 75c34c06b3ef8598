/* Adapters: what PEFT's layers do over a linear. */
#include "method.h"

/* lora_B(lora_A(x)); x stays the caller's. */
static ftmem__var adapter_low_rank(ftmem__low *low, ftmem__var x, ftmem__var a, ftmem__var b, int64_t out)
{
    ftmem__var middle = ftmem__low_plain_linear(low, x, a, NULL, a.n / a.cols), up;
    up = ftmem__low_plain_linear(low, middle, b, NULL, out);
    ftmem__drop(low->tape, middle);
    return up;
}

/* -------------------------------------------------------------------------------------------------------- DoRA */

/* peft/tuners/lora/dora.py get_lora_weight: B(A(identity)), whose graph nobody asks for, but which a recording tape
   keeps until the frame returns; then the weight that goes with it. */
typedef struct adapter_weight {
    int16_t eye, middle, lora, base; /* -1: not there */
} adapter_weight;

static int16_t adapter_temporary(ftmem__low *low, int64_t rows, int64_t cols, int32_t dtype)
{
    return ftmem__alloc(low->tape, FTMEM__OP_DORA, rows * cols, cols, dtype, low->tape->birth);
}

/* Replaces a temporary by its cast. */
static int16_t adapter_recast(ftmem__low *low, int16_t from, int32_t from_dtype, int64_t rows, int64_t cols, int32_t dtype)
{
    int16_t cast;
    if (from_dtype == dtype) return from;
    cast = adapter_temporary(low, rows, cols, dtype);
    ftmem__release(low->tape, from);
    return cast;
}

static adapter_weight adapter_dora_lora(ftmem__low *low, int64_t in, int64_t rank, int64_t out, int32_t dtype)
{
    ftmem__tape *tape = low->tape;
    int32_t stored = low->shape->lora_dtype, compute = low->shape->autocast ? low->shape->autocast : stored;
    bool kept = tape->mode >= FTMEM__RECORD;
    adapter_weight w = { -1, -1, -1, -1 };
    int16_t eye = adapter_temporary(low, in, in, stored);
    w.eye = compute == stored ? eye : adapter_temporary(low, in, in, compute);
    w.middle = adapter_temporary(low, in, rank, compute);
    if (!kept && w.eye != eye) ftmem__release(tape, w.eye);
    w.lora = adapter_temporary(low, in, out, compute);
    if (!tape->stopped) tape->flops += 2.0 * (double)in * (double)rank * (double)(in + out);
    if (!kept) ftmem__release(tape, w.middle);
    if (!kept || w.eye != eye) ftmem__release(tape, eye);
    if (!kept) w.eye = w.middle = -1;
    w.lora = adapter_recast(low, w.lora, compute, out, in, dtype);
    return w;
}

static void adapter_weight_drop(ftmem__low *low, const adapter_weight *w)
{
    ftmem__release(low->tape, w->middle);
    ftmem__release(low->tape, w->eye);
    ftmem__release(low->tape, w->lora);
    ftmem__release(low->tape, w->base);
}

/* dora.py get_weight_norm: the rows' norms of weight + scaling * B A, without gradient. */
static ftmem__var adapter_dora_norm(ftmem__low *low, int64_t in, int64_t out, int32_t dtype)
{
    ftmem__var norm = ftmem__constant(out, out, dtype);
    int16_t scaled = adapter_temporary(low, out, in, dtype), sum = adapter_temporary(low, out, in, dtype);
    ftmem__release(low->tape, scaled);
    norm.store = ftmem__alloc(low->tape, FTMEM__OP_DORA, out, out, dtype, low->tape->birth);
    ftmem__release(low->tape, sum);
    return norm;
}

/* (scale - 1) * base + scale * lora * scaling */
static ftmem__var adapter_dora_sum(ftmem__low *low, ftmem__var scale, ftmem__var base, ftmem__var lora)
{
    ftmem__tape *tape = low->tape;
    ftmem__var less = ftmem__unary(tape, FTMEM__OP_SHIFT, scale), first, second, scaled, sum;
    first = ftmem__binary(tape, FTMEM__OP_MUL, less, base);
    second = ftmem__binary(tape, FTMEM__OP_MUL, scale, lora);
    scaled = ftmem__unary(tape, FTMEM__OP_SCALE, second);
    ftmem__drop(tape, second);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, first, scaled);
    ftmem__drop(tape, scaled);
    ftmem__drop(tape, first);
    ftmem__drop(tape, less);
    return sum;
}

/* dora.py DoraLinearLayer.forward: the base result, less its bias, is used again; with dropout it is made anew from the
   weight in x's dtype. */
static ftmem__var adapter_dora_forward(ftmem__low *low, int32_t role, ftmem__var x, ftmem__var base, const ftmem__var ab[2], bool again, bool bias)
{
    ftmem__tape *tape = low->tape;
    int64_t out = base.cols;
    int32_t dtype = x.dtype, stored;
    ftmem__var a = ab[0], b = ab[1], magnitude = ftmem__low_adapter(low, role, out, 0), norm, scale, lora, y;
    ftmem__var a16 = ftmem__cast_weight(tape, a, low->shape->autocast ? low->shape->autocast : a.dtype);
    ftmem__var b16 = ftmem__cast_weight(tape, b, low->shape->autocast ? low->shape->autocast : b.dtype);
    adapter_weight w = adapter_dora_lora(low, x.cols, a.n / a.cols, out, dtype);
    w.base = ftmem__low_dequantized(low, role, x.cols, out, &stored);
    w.base = w.base < 0 && stored == dtype ? -1 : adapter_recast(low, w.base, stored, out, x.cols, dtype);
    norm = adapter_dora_norm(low, x.cols, out, dtype);
    scale = ftmem__binary(tape, FTMEM__OP_MUL, magnitude, norm); /* divided, which keeps the same */
    lora = adapter_low_rank(low, x, a16, b16, out);
    base = ftmem__keep(tape, base);
    if (again) {
        ftmem__var weight = ftmem__constant(x.cols * out, x.cols, dtype);
        ftmem__drop(tape, base);
        weight.store = w.base;
        base = ftmem__low_plain_linear(low, x, weight, NULL, out);
    } else if (bias) {
        ftmem__var plain = ftmem__binary(tape, FTMEM__OP_SUB, base, ftmem__constant(out, out, low->shape->dtype));
        ftmem__drop(tape, base);
        base = plain;
    }
    y = adapter_dora_sum(low, scale, base, lora);
    adapter_weight_drop(low, &w);
    ftmem__drop(tape, base);
    ftmem__drop(tape, lora);
    ftmem__drop(tape, scale);
    ftmem__drop(tape, norm);
    ftmem__drop(tape, b16);
    ftmem__drop(tape, a16);
    return y;
}

/* -------------------------------------------------------------------------------------------------------- LoRA */

/* variants.py DoraLinearVariant.forward; takes over base. */
static ftmem__var adapter_dora(ftmem__low *low, int32_t role, ftmem__var x, ftmem__var base, const ftmem__var ab[2], bool bias)
{
    ftmem__tape *tape = low->tape;
    bool again = low->training && low->shape->adapter->dropout > 0;
    ftmem__var dropped = ftmem__low_dropout(low, ftmem__keep(tape, x), low->shape->adapter->dropout), delta, sum;
    delta = adapter_dora_forward(low, role, dropped, base, ab, again, bias);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, base, delta);
    ftmem__drop(tape, delta);
    ftmem__drop(tape, dropped);
    ftmem__drop(tape, base);
    return sum;
}

ftmem__var ftmem__method_cast(ftmem__tape *tape, ftmem__var x, int32_t dtype)
{
    ftmem__var cast = ftmem__cast(tape, x, dtype);
    ftmem__drop(tape, x);
    return cast;
}

ftmem__var ftmem__method_clone(ftmem__tape *tape, ftmem__var x)
{
    ftmem__var copy = ftmem__unary(tape, FTMEM__OP_CLONE, x);
    ftmem__drop(tape, x);
    return copy;
}

/* What a LoRA layer does over a base of this format. */
typedef struct adapter_style {
    uint8_t cast;
    bool clones, in_place, converts;
} adapter_style;

static adapter_style adapter_style_of(const ftmem__low *low, int32_t role)
{
    const ftmem__quant *quant = ftmem__low_quant(low, role);
    adapter_style style = { FTMEM__CAST_SUM, false, false, true };
    if (!quant) return style;
    style.cast = quant->cast;
    style.clones = quant->clones;
    style.in_place = quant->in_place;
    style.converts = !(quant->as_autocast_casts && low->shape->autocast);
    return style;
}

/* lora_B(lora_A(dropout(x))) * scaling */
static ftmem__var adapter_lora_delta(ftmem__low *low, ftmem__var x, const ftmem__var ab[2], int64_t out, const adapter_style *style, int32_t dtype)
{
    ftmem__tape *tape = low->tape;
    ftmem__var dropped = ftmem__low_dropout(low, ftmem__keep(tape, x), low->shape->adapter->dropout), middle, up, scaled;
    middle = ftmem__low_plain_linear(low, dropped, ab[0], NULL, ab[0].n / ab[0].cols);
    ftmem__drop(tape, dropped);
    up = ftmem__low_plain_linear(low, middle, ab[1], NULL, out);
    ftmem__drop(tape, middle);
    if (style->cast == FTMEM__CAST_BEFORE_SCALE && style->converts) up = ftmem__method_cast(tape, up, dtype);
    scaled = ftmem__unary(tape, FTMEM__OP_SCALE, up);
    ftmem__drop(tape, up);
    return style->cast == FTMEM__CAST_ADDED && style->converts ? ftmem__method_cast(tape, scaled, dtype) : scaled;
}

ftmem__var ftmem__method_add(ftmem__tape *tape, ftmem__var base, ftmem__var delta, bool in_place)
{
    ftmem__var in[2], sum;
    in[0] = base;
    in[1] = delta;
    sum = in_place ? ftmem__apply(tape, FTMEM__OP_ADD_IN_PLACE, in, 2, base.n, base.cols, base.dtype) : ftmem__binary(tape, FTMEM__OP_ADD, base, delta);
    ftmem__drop(tape, delta);
    ftmem__drop(tape, base);
    return sum;
}

/* peft/tuners/lora/layer.py Linear.forward, and what bnb.py, gptq.py, awq.py, hqq.py and aqlm.py do differently: whether x and
   the result are cast under autocast, and which value is cast back. */
static ftmem__var adapter_lora(ftmem__low *low, const ftmem__adapted *at)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    adapter_style style = adapter_style_of(low, at->role);
    bool dora = shape->adapter->use_dora == FTMEM_ON;
    int64_t r = ftmem__low_rank(low, at->role);
    ftmem__var base = ftmem__low_base(low, at->role, at->x, at->out, at->bias), ab[2], in, sum;
    int32_t dtype = base.dtype;
    if (style.clones) base = ftmem__method_clone(tape, base);
    in = style.converts ? ftmem__cast(tape, at->x, shape->lora_dtype) : ftmem__keep(tape, at->x);
    ab[0] = ftmem__low_adapter_of(low, at->role, r * at->x.cols, r, shape->adapter->kind != FTMEM_ADAPTER_LORA_FA);
    ab[1] = ftmem__low_adapter_of(low, at->role, at->out * r, at->out, shape->adapter->kind != FTMEM_ADAPTER_MICA);
    if (dora) sum = adapter_dora(low, at->role, in, base, ab, at->bias);
    else sum = ftmem__method_add(tape, base, adapter_lora_delta(low, in, ab, at->out, &style, dtype), style.in_place);
    if (style.converts && (dora || style.cast == FTMEM__CAST_SUM)) sum = ftmem__method_cast(tape, sum, dtype);
    ftmem__drop(tape, in);
    return sum;
}

static const ftmem__method adapter_methods[FTMEM_ADAPTER_END] = {
    [FTMEM_ADAPTER_LORA] = { 8, adapter_lora, FTMEM__OVER_ANY, false, NULL },
    [FTMEM_ADAPTER_QLORA] = { 8, adapter_lora, FTMEM__OVER_ANY, false, NULL },
    [FTMEM_ADAPTER_LORA8] = { 8, adapter_lora, FTMEM__OVER_ANY, false, NULL },
    [FTMEM_ADAPTER_LORA_FA] = { 8, adapter_lora, FTMEM__OVER_ANY, false, NULL },
    [FTMEM_ADAPTER_VERA] = { 256, ftmem__method_vera, FTMEM__OVER_BITSANDBYTES, false, NULL },
    [FTMEM_ADAPTER_ADALORA] = { 12, ftmem__method_adalora, FTMEM__OVER_BITSANDBYTES, true, NULL },
    [FTMEM_ADAPTER_IA3] = { 1, ftmem__method_ia3, FTMEM__OVER_BITSANDBYTES, true, NULL },
    [FTMEM_ADAPTER_LOHA] = { 8, ftmem__method_loha, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_LOKR] = { 8, ftmem__method_lokr, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_OFT] = { 1, ftmem__method_oft, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_BOFT] = { .refused = "adapter.kind is boft, whose butterfly products are not modelled; oft is" },
    [FTMEM_ADAPTER_PROMPT] = { 1, NULL, FTMEM__OVER_ANY, false, NULL },
    [FTMEM_ADAPTER_PREFIX] = { .refused = "adapter.kind is prefix, whose keys and values are longer than the queries, which is not modelled; prompt and "
                                          "p_tuning are" },
    [FTMEM_ADAPTER_P_TUNING] = { 1, NULL, FTMEM__OVER_ANY, false, NULL },
    [FTMEM_ADAPTER_MISS] = { 64, ftmem__method_miss, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_MISS_BAT] = { 64, ftmem__method_miss_bat, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_MISS_MINI] = { 64, ftmem__method_miss, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_HIRA] = { 32, ftmem__method_hira, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_PVERA] = { 256, ftmem__method_pvera, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_FOURIERFT] = { 1, ftmem__method_fourier, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_DELORA] = { 8, ftmem__method_delora, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_ROAD] = { 1, ftmem__method_road, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_C3A] = { 1, ftmem__method_c3a, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_GRALORA] = { 32, ftmem__method_gralora, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_BEFT] = { 1, ftmem__method_beft, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_DEFT] = { 32, ftmem__method_deft, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_DEFT_PARA] = { 32, ftmem__method_deft, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_GLORA] = { 8, ftmem__method_glora, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_GLORA_VECTOR] = { 8, ftmem__method_glora, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_PEANUT] = { 32, ftmem__method_peanut, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_TINYLORA] = { 2, ftmem__method_tiny, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_RANDLORA] = { 32, ftmem__method_rand, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_PSOFT] = { 32, ftmem__method_psoft, FTMEM__OVER_PLAIN, false, NULL },
    [FTMEM_ADAPTER_MICA] = { 8, adapter_lora, FTMEM__OVER_PLAIN, false, NULL },
};

const ftmem__method *ftmem__method_of(int32_t kind)
{
    return &adapter_methods[kind];
}

/* peft/utils/constants.py, where a method's default targets differ from LoRA's. */
#define ADAPTER_ROLE(role) (1u << FTMEM_ROLE_##role)
enum { ADAPTER_QV = ADAPTER_ROLE(Q) | ADAPTER_ROLE(V), ADAPTER_FUSED = ADAPTER_ROLE(QKV) };
static const struct adapter_default {
    uint8_t kind, family;
    uint16_t targets;
} adapter_defaults[] = {
    { FTMEM_ADAPTER_VERA, FTMEM_PHI, ADAPTER_QV },
    { FTMEM_ADAPTER_IA3, FTMEM_LLAMA, ADAPTER_ROLE(K) | ADAPTER_ROLE(V) | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_MISTRAL, ADAPTER_ROLE(K) | ADAPTER_ROLE(V) | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_QWEN2, ADAPTER_QV | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_QWEN3, ADAPTER_QV | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_GEMMA, ADAPTER_QV | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_GEMMA2, ADAPTER_QV | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_GEMMA3, ADAPTER_QV | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_PHI, ADAPTER_QV | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_GPTJ, ADAPTER_QV | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_OPT, ADAPTER_ROLE(Q) | ADAPTER_ROLE(K) | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_GPT2, ADAPTER_FUSED | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_GPT_BIGCODE, ADAPTER_FUSED | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_GPT_NEOX, ADAPTER_FUSED | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_BLOOM, ADAPTER_FUSED | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_IA3, FTMEM_FALCON, ADAPTER_FUSED | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_ADALORA, FTMEM_LLAMA, ADAPTER_QV },
    { FTMEM_ADAPTER_ADALORA, FTMEM_QWEN2, ADAPTER_QV },
    { FTMEM_ADAPTER_ADALORA, FTMEM_QWEN3, ADAPTER_QV },
    { FTMEM_ADAPTER_ADALORA, FTMEM_GEMMA, ADAPTER_QV },
    { FTMEM_ADAPTER_ADALORA, FTMEM_GEMMA2, ADAPTER_QV },
    { FTMEM_ADAPTER_ADALORA, FTMEM_GEMMA3, ADAPTER_QV },
    { FTMEM_ADAPTER_ADALORA, FTMEM_GPTJ, ADAPTER_QV },
    { FTMEM_ADAPTER_ADALORA, FTMEM_OPT, ADAPTER_QV | ADAPTER_ROLE(K) | ADAPTER_ROLE(O) | ADAPTER_ROLE(UP) | ADAPTER_ROLE(DOWN) },
    { FTMEM_ADAPTER_ADALORA, FTMEM_GPT2, ADAPTER_FUSED },
    { FTMEM_ADAPTER_ADALORA, FTMEM_GPT_BIGCODE, ADAPTER_FUSED },
    { FTMEM_ADAPTER_ADALORA, FTMEM_GPT_NEOX, ADAPTER_FUSED },
    { FTMEM_ADAPTER_ADALORA, FTMEM_BLOOM, ADAPTER_FUSED },
};

uint32_t ftmem__method_targets(int32_t kind, const ftmem_model *model)
{
    int32_t i, family = model->family ? model->family : FTMEM_LLAMA;
    const ftmem__method *method = ftmem__method_of(kind);
    if (!method->linear) return 0;
    for (i = 0; i < FTMEM__COUNT(adapter_defaults); i++)
        if (adapter_defaults[i].kind == kind && adapter_defaults[i].family == family) return adapter_defaults[i].targets;
    return method->own_targets ? 0 : ftmem__family_of(model)->default_targets;
}

ftmem__var ftmem__low_linear(ftmem__low *low, int32_t role, ftmem__var x, int64_t out, bool bias)
{
    const ftmem__method *method = ftmem__method_of(low->shape->adapter->kind);
    ftmem__adapted at;
    if (!low->adapted || !method->linear || !(low->shape->adapter->targets >> role & 1u)) return ftmem__low_base(low, role, x, out, bias);
    at.x = x;
    at.out = out;
    at.role = role;
    at.bias = bias;
    return method->linear(low, &at);
}
