/* A mixture of experts: the router, and the chosen experts' MLPs run as grouped matrix products (transformers
   integrations/moe.py grouped_mm_experts_forward). How evenly tokens spread over experts does not matter for memory. */
#include "lower.h"

typedef struct experts_choice { /* what the router returned; names of the block's forward */
    ftmem__var logits, weights, index;
} experts_choice;

static ftmem__var experts_table(ftmem__low *low, int64_t n, int32_t dtype)
{
    ftmem__var v = ftmem__constant(n, 1, dtype);
    v.store = ftmem__alloc(low->tape, FTMEM__OP_TABLE, n, 1, dtype, low->tape->birth);
    return v;
}

static bool experts_target(const ftmem__low *low, int32_t role)
{
    return low->adapted && (low->shape->adapter->targets >> role & 1u) != 0;
}

/* ------------------------------------------------------------------------------------------------------- router */

/* peft/tuners/lora/layer.py ParamWrapper over a matrix: the weight is replaced by weight + scaling B A, made once when the
   parametrisation is registered and once for use. */
static ftmem__var experts_router_weight(ftmem__low *low, ftmem__var w)
{
    ftmem__tape *tape = low->tape;
    int64_t r = low->shape->adapter->rank, h = low->shape->h, e = low->shape->model->experts;
    ftmem__var a, b, delta, scaled, cast, y;
    if (!experts_target(low, FTMEM_ROLE_ROUTER)) return w;
    a = ftmem__low_adapter(low, FTMEM_ROLE_ROUTER, r * h, r);
    b = ftmem__low_adapter(low, FTMEM_ROLE_ROUTER, e * r, e);
    a = ftmem__shaped(a, a.n, r);
    b = ftmem__shaped(b, b.n, r); /* B A: rows of B times columns of A */
    delta = ftmem__low_plain_linear(low, b, a, NULL, h);
    scaled = ftmem__unary(tape, FTMEM__OP_SCALE, delta);
    ftmem__drop(tape, delta);
    cast = ftmem__cast(tape, scaled, w.dtype);
    ftmem__drop(tape, scaled);
    ftmem__drop(tape, ftmem__binary(tape, FTMEM__OP_ADD, w, cast));
    y = ftmem__binary(tape, FTMEM__OP_ADD, w, cast);
    ftmem__drop(tape, cast);
    return y;
}

static void experts_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

/* weights /= weights.sum(dim=-1, keepdim=True), to which a little may be added: in place, so that the graph keeps a copy of
   what they were. */
static ftmem__var experts_normalized(ftmem__low *low, ftmem__var weights, bool shifted)
{
    ftmem__tape *tape = low->tape;
    ftmem__var wide = ftmem__cast(tape, weights, low->shape->autocast ? FTMEM_FP32 : weights.dtype), sum, in[2], y; /* sum is on autocast's fp32 list */
    sum = ftmem__apply(tape, FTMEM__OP_SUM, &wide, 1, weights.n / weights.cols, 1, wide.dtype);
    ftmem__drop(tape, wide);
    if (shifted) experts_replace(tape, &sum, ftmem__unary(tape, FTMEM__OP_SHIFT, sum));
    in[0] = weights;
    in[1] = sum;
    y = ftmem__apply(tape, FTMEM__OP_DIV_IN_PLACE, in, 2, weights.n, weights.cols, weights.dtype);
    ftmem__save_var(tape, y, sum);
    if (y.grad) ftmem__save_new(tape, y, y.n, y.cols, y.dtype);
    ftmem__drop(tape, sum);
    ftmem__drop(tape, weights);
    return y;
}

/* softmax(logits, dtype=float) takes fp16 as it is and makes a copy of bf16; logits.float() makes one of both. */
static ftmem__var experts_probabilities(ftmem__low *low, ftmem__var logits, bool inside)
{
    ftmem__tape *tape = low->tape;
    ftmem__var wide = inside && logits.dtype == FTMEM_FP16 ? ftmem__keep(tape, logits) : ftmem__cast(tape, logits, FTMEM_FP32), y;
    y = ftmem__apply(tape, FTMEM__OP_SOFTMAX, &wide, 1, logits.n, logits.cols, FTMEM_FP32);
    ftmem__drop(tape, wide);
    return y;
}

static ftmem__var experts_logits(ftmem__low *low, ftmem__var x)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int32_t dtype = shape->family->router_fp32 ? FTMEM_FP32 : shape->dtype;
    int64_t e = shape->model->experts;
    if (shape->family->router_linear) return ftmem__low_linear(low, FTMEM_ROLE_ROUTER, x, e, false);
    ftmem__var w = ftmem__low_parameter_of(low, FTMEM_ROLE_ROUTER, e * shape->h, shape->h, dtype), bias, wide, y;
    bool biased = shape->family->router == FTMEM__ROUTER_CHOSEN;
    w = experts_router_weight(low, w);
    if (biased) bias = ftmem__low_parameter_of(low, FTMEM_ROLE_ROUTER, e, e, dtype);
    wide = ftmem__cast(tape, x, shape->family->router_fp32 ? FTMEM_FP32 : x.dtype);
    if (shape->family->router == FTMEM__ROUTER_SOFTMAX_BIASED) /* autocast is off */
        y = ftmem__matmul(tape, FTMEM__OP_LINEAR, wide, w, NULL, x.n / x.cols * e, e, 2.0 * (double)x.n * (double)e);
    else y = ftmem__low_plain_linear(low, wide, w, biased ? &bias : NULL, e);
    ftmem__drop(tape, wide);
    ftmem__drop(tape, w);
    return y;
}

/* values, index = topk(scores), or index found otherwise and values gathered. */
static ftmem__var experts_pick(ftmem__low *low, ftmem__var scores, ftmem__var *index)
{
    int64_t k = low->shape->model->experts_per_token, n = low->tokens * k;
    ftmem__var y = ftmem__apply(low->tape, FTMEM__OP_TOPK, &scores, 1, n, k, scores.dtype);
    *index = experts_table(low, n, FTMEM_INT64);
    ftmem__save_var(low->tape, y, *index);
    return y;
}

/* modeling_mixtral.py MixtralTopKRouter, modeling_qwen3_moe.py Qwen3MoeTopKRouter, modeling_deepseek_v2.py DeepseekV2TopkRouter. */
static void experts_route_softmax(ftmem__low *low, experts_choice *c)
{
    ftmem__tape *tape = low->tape;
    int32_t router = low->shape->family->router;
    ftmem__var probabilities = experts_probabilities(low, c->logits, router != FTMEM__ROUTER_SOFTMAX);
    c->weights = experts_pick(low, probabilities, &c->index);
    if (low->shape->model->router_norm == FTMEM_ON) c->weights = experts_normalized(low, c->weights, false);
    if (router == FTMEM__ROUTER_SOFTMAX_CAST) experts_replace(tape, &c->weights, ftmem__cast(tape, c->weights, c->logits.dtype));
    if (router == FTMEM__ROUTER_SOFTMAX_SCALED) experts_replace(tape, &c->weights, ftmem__unary(tape, FTMEM__OP_SCALE, c->weights));
    ftmem__drop(tape, probabilities);
}

/* modeling_gpt_oss.py GptOssTopKRouter: softmax over the chosen logits, in their dtype; modeling_granitemoe.py
   GraniteMoeTopKRouter: in fp32. */
static void experts_route_chosen(ftmem__low *low, experts_choice *c, int32_t dtype)
{
    ftmem__tape *tape = low->tape;
    bool wide = low->shape->family->router == FTMEM__ROUTER_CHOSEN_WIDE;
    if (!wide) dtype = c->logits.dtype;
    if (wide) experts_replace(tape, &c->logits, ftmem__cast(tape, c->logits, FTMEM_FP32));
    c->weights = experts_pick(low, c->logits, &c->index);
    experts_replace(tape, &c->weights, ftmem__unary(tape, FTMEM__OP_SOFTMAX, c->weights));
    experts_replace(tape, &c->weights, ftmem__cast(tape, c->weights, dtype));
}

/* modeling_ernie4_5_moe.py Ernie4_5_MoeTopKRouter: the bias is a parameter that is never trained. */
static void experts_route_biased(ftmem__low *low, experts_choice *c, int32_t dtype)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = low->tokens, k = low->shape->model->experts_per_token;
    ftmem__var probabilities = ftmem__unary(tape, FTMEM__OP_SOFTMAX, c->logits), bias, biased, best, sum;
    bool trained = low->trained;
    low->trained = false;
    bias = ftmem__low_parameter_of(low, FTMEM_ROLE_ROUTER, low->shape->model->experts, low->shape->model->experts, FTMEM_FP32);
    low->trained = trained;
    biased = ftmem__binary(tape, FTMEM__OP_ADD, probabilities, bias);
    best = experts_table(low, rows * k, FTMEM_FP32);
    c->weights = experts_pick(low, probabilities, &c->index);
    ftmem__drop(tape, biased);
    sum = ftmem__apply(tape, FTMEM__OP_SUM, &c->weights, 1, rows, 1, FTMEM_FP32);
    experts_replace(tape, &sum, ftmem__low_clamp(low, sum, 1));
    experts_replace(tape, &c->weights, ftmem__binary(tape, FTMEM__OP_DIV, c->weights, sum));
    experts_replace(tape, &c->weights, ftmem__cast(tape, c->weights, dtype));
    ftmem__drop(tape, sum);
    ftmem__drop(tape, best);
    ftmem__drop(tape, probabilities);
}

/* modeling_llama4.py Llama4Router: a score for every expert; the chosen logits are put among minus infinities. */
static void experts_route_scattered(ftmem__low *low, experts_choice *c)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in[2], scores;
    in[1] = experts_pick(low, c->logits, &c->index);
    in[0] = experts_table(low, c->logits.n, c->logits.dtype);
    in[0] = ftmem__shaped(in[0], c->logits.n, c->logits.cols);
    scores = ftmem__apply(tape, FTMEM__OP_SCATTER_IN_PLACE, in, 2, in[0].n, in[0].cols, in[0].dtype);
    ftmem__save_var(tape, scores, c->index);
    ftmem__drop(tape, in[0]);
    c->weights = ftmem__cast(tape, scores, FTMEM_FP32);
    experts_replace(tape, &c->weights, ftmem__unary(tape, FTMEM__OP_SIGMOID, c->weights));
    experts_replace(tape, &c->weights, ftmem__cast(tape, c->weights, c->logits.dtype));
    ftmem__drop(tape, scores);
    ftmem__drop(tape, in[1]);
    ftmem__drop(tape, c->index);
    c->index.store = -1;
}

/* What the choice of groups leaves in names until the router returns: the two best of each group, the groups' sums, the
   chosen groups, their mask, and the mask over experts. */
static int32_t experts_choose_groups(ftmem__low *low, ftmem__var *names)
{
    int64_t groups = low->tokens * low->shape->model->router_groups, all = low->tokens * low->shape->model->experts;
    int32_t count = 0;
    names[count++] = experts_table(low, 2 * groups, FTMEM_INT64);
    names[count++] = experts_table(low, groups, FTMEM_FP32);
    names[count++] = experts_table(low, groups, FTMEM_FP32);
    if (low->shape->model->router_groups > 1) names[count++] = experts_table(low, all, FTMEM_FP32);
    names[count++] = experts_table(low, all, FTMEM_BOOL);
    names[count++] = experts_table(low, all, FTMEM_FP32);
    return count;
}

/* modeling_deepseek_v3.py DeepseekV3TopkRouter, modeling_minimax_m2.py MiniMaxM2TopKRouter. */
static void experts_route_sigmoid(ftmem__low *low, experts_choice *c)
{
    ftmem__tape *tape = low->tape;
    bool grouped = low->shape->family->router == FTMEM__ROUTER_SIGMOID_GROUPED;
    ftmem__var names[8], wide = ftmem__cast(tape, c->logits, grouped ? c->logits.dtype : FTMEM_FP32), scores = ftmem__unary(tape, FTMEM__OP_SIGMOID, wide);
    int32_t count = 0;
    ftmem__drop(tape, wide);
    names[count++] = experts_table(low, scores.n, FTMEM_FP32); /* with the bias */
    if (grouped) count += experts_choose_groups(low, names + count);
    c->weights = experts_pick(low, scores, &c->index);
    if (low->shape->model->router_norm == FTMEM_ON) c->weights = experts_normalized(low, c->weights, grouped);
    if (grouped) experts_replace(tape, &c->weights, ftmem__unary(tape, FTMEM__OP_SCALE, c->weights));
    while (count > 0) ftmem__drop(tape, names[--count]);
    ftmem__drop(tape, scores);
}

/* x[index]: the gradient is filled into zeros, in place (FunctionsManual.cpp index_backward). */
static ftmem__var experts_take(ftmem__low *low, ftmem__var x, ftmem__var index, int64_t n, int64_t cols)
{
    ftmem__var y = ftmem__apply(low->tape, FTMEM__OP_INDEX, &x, 1, n, cols, x.dtype);
    ftmem__save_var(low->tape, y, index);
    return y;
}

/* modeling_gemma4.py Gemma4TextRouter: its probabilities are returned too. */
static void experts_route_normed(ftmem__low *low, ftmem__var x, experts_choice *c)
{
    ftmem__tape *tape = low->tape;
    int64_t h = low->shape->h, e = low->shape->model->experts;
    ftmem__var normed = ftmem__low_norm_unweighted(low, x, h), scale = ftmem__low_parameter(low, FTMEM_ROLE_NORM, h, h, low->trained), scaled, scores, w;
    scaled = ftmem__binary(tape, FTMEM__OP_MUL, normed, scale);
    ftmem__drop(tape, normed);
    experts_replace(tape, &scaled, ftmem__unary(tape, FTMEM__OP_SCALE, scaled));
    scores = ftmem__low_linear(low, FTMEM_ROLE_ROUTER, scaled, e, false);
    c->logits = experts_probabilities(low, scores, true);
    c->weights = experts_normalized(low, experts_pick(low, c->logits, &c->index), false);
    w = experts_take(low, ftmem__low_parameter(low, FTMEM_ROLE_NORM, e, e, low->trained), c->index, c->weights.n, c->weights.cols);
    experts_replace(tape, &c->weights, ftmem__binary(tape, FTMEM__OP_MUL, c->weights, w));
    ftmem__drop(tape, w);
    ftmem__drop(tape, scores);
    ftmem__drop(tape, scaled);
}

static experts_choice experts_route(ftmem__low *low, ftmem__var x)
{
    experts_choice c;
    if (low->shape->family->router == FTMEM__ROUTER_SOFTMAX_NORMED) {
        experts_route_normed(low, x, &c);
        return c;
    }
    c.logits = experts_logits(low, x);
    if (low->shape->family->router >= FTMEM__ROUTER_SIGMOID) experts_route_sigmoid(low, &c);
    else if (low->shape->family->router == FTMEM__ROUTER_SOFTMAX_BIASED) experts_route_biased(low, &c, x.dtype);
    else if (low->shape->family->router == FTMEM__ROUTER_SCATTERED) experts_route_scattered(low, &c);
    else if (low->shape->family->router <= FTMEM__ROUTER_CHOSEN_WIDE) experts_route_chosen(low, &c, x.dtype);
    else experts_route_softmax(low, &c);
    return c;
}

/* ------------------------------------------------------------------------------------------------------ experts */

/* integrations/moe.py _can_use_grouped_mm: compute capability 8.0, before torch 2.9 only 9.x. */
static bool experts_grouped(const ftmem_job *job)
{
    if (job->torch_version >= 209) return job->gpu.sm_arch >= 80;
    return job->gpu.sm_arch >= 90 && job->gpu.sm_arch < 100;
}

typedef struct experts_weight { /* of all experts: as stored, or with what an adapter adds */
    ftmem__var base, left, right;
    ftmem__var made; /* the weight in use, cached until the experts' forward returns */
    int64_t rank;
    bool adapted;
} experts_weight;

/* peft/tuners/lora/layer.py ParamWrapper over experts x out x in: the weight is replaced by baddbmm(weight, B, A), made once
   when the parametrisation is registered and once where it is used. gate_up_proj stands for two modules: twice the rank, unless it was
   named itself (LoraConfig.target_parameters). */
static experts_weight experts_declare(ftmem__low *low, int32_t role, int64_t out, int64_t in)
{
    experts_weight w = { 0 };
    bool two = role == FTMEM_ROLE_EXPERTS_UP && low->shape->family->experts_as != FTMEM__EXPERTS_AS_PARAMETERS && low->shape->family->mlp != FTMEM__PLAIN;
    w.rank = low->shape->adapter->rank * (two ? 2 : 1);
    w.base = ftmem__low_parameter(low, role, low->shape->model->experts * out * in, in, low->trained);
    w.adapted = experts_target(low, role);
    return w;
}

static ftmem__var experts_weight_now(ftmem__low *low, const experts_weight *w)
{
    double flops = 2.0 * (double)w->base.n * (double)w->rank;
    if (!w->adapted) return w->base;
    return ftmem__matmul(low->tape, FTMEM__OP_BADDBMM, w->left, w->right, NULL, w->base.n, w->base.cols, flops);
}

static void experts_adapt(ftmem__low *low, experts_weight *w, int32_t role, int64_t out, int64_t in)
{
    ftmem__tape *tape = low->tape;
    int64_t r = w->rank * low->shape->model->experts;
    ftmem__var a, b, view;
    if (!w->adapted) return;
    a = ftmem__low_adapter(low, role, r * in, r);
    b = ftmem__low_adapter(low, role, out * r, out);
    view = ftmem__unary(tape, FTMEM__OP_CONTIGUOUS, b);
    w->left = ftmem__cast(tape, view, w->base.dtype);
    w->right = ftmem__cast(tape, a, w->base.dtype);
    ftmem__drop(tape, view);
    ftmem__drop(tape, experts_weight_now(low, w));
}

static void experts_undeclare(ftmem__low *low, const experts_weight *w)
{
    ftmem__drop(low->tape, w->made);
    if (!w->adapted) return;
    ftmem__drop(low->tape, w->left);
    ftmem__drop(low->tape, w->right);
}

/* x @ weight[expert] for each row's expert. grouped_mm is not on autocast's lists: x takes the weight's dtype. The
   fallback keeps both operands and makes both gradients, wanted or not. */
static ftmem__var experts_linear(ftmem__low *low, ftmem__var w, ftmem__var x, int64_t out, ftmem__var offsets)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = x.n / x.cols;
    ftmem__var in = ftmem__cast(tape, x, w.dtype), y;
    bool grouped = experts_grouped(low->shape->job);
    double flops = 0; /* torch's counter knows neither */
    ftmem__node *node;
    y = ftmem__matmul(tape, grouped ? FTMEM__OP_GROUPED : FTMEM__OP_GROUPED_LOOP, in, w, NULL, rows * out, out, flops);
    ftmem__save_var(tape, y, offsets);
    node = ftmem__recorded(tape, y);
    if (node && !grouped && !w.grad) node->work = ftmem__round512(ftmem__bytes(w.dtype, w.n));
    ftmem__drop(tape, in);
    return y;
}

/* act(gate) * up, halves of one product: takes over `both`. */
static ftmem__var experts_gated(ftmem__low *low, ftmem__var both)
{
    ftmem__tape *tape = low->tape;
    int64_t half[2];
    ftmem__var part[2], act, product;
    half[0] = half[1] = both.n / 2;
    ftmem__split(tape, both, 2, half, part);
    act = ftmem__low_activation(low, part[0]);
    product = ftmem__binary(tape, FTMEM__OP_MUL, act, part[1]);
    ftmem__drop(tape, act);
    ftmem__drop(tape, part[1]);
    ftmem__drop(tape, both);
    return product;
}

/* has_gate of use_experts_implementation */
static bool experts_have_gates(const ftmem__low *low)
{
    return low->shape->family->mlp != FTMEM__PLAIN;
}

static int64_t experts_up_width(const ftmem__low *low)
{
    return (experts_have_gates(low) ? 2 : 1) * low->shape->model->expert_ffn;
}

/* x[..., ::2].clamp() */
static ftmem__var experts_clamped(ftmem__low *low, ftmem__var x, int32_t bounds)
{
    ftmem__var half = ftmem__apply(low->tape, FTMEM__OP_SLICE, &x, 1, x.n / 2, x.cols / 2, x.dtype), y = ftmem__low_clamp(low, half, bounds);
    ftmem__drop(low->tape, half);
    return y;
}

/* modeling_gpt_oss.py GptOssExperts._apply_gate: (up + 1) * gate * sigmoid(alpha gate), of every other column: takes over `both`. */
static ftmem__var experts_gated_clamped(ftmem__low *low, ftmem__var both)
{
    ftmem__tape *tape = low->tape;
    ftmem__var gate = experts_clamped(low, both, 1), up = experts_clamped(low, both, 2), t = ftmem__unary(tape, FTMEM__OP_SCALE, gate), glu, y;
    experts_replace(tape, &t, ftmem__unary(tape, FTMEM__OP_SIGMOID, t));
    glu = ftmem__binary(tape, FTMEM__OP_MUL, gate, t);
    experts_replace(tape, &t, ftmem__unary(tape, FTMEM__OP_SHIFT, up));
    y = ftmem__binary(tape, FTMEM__OP_MUL, t, glu);
    ftmem__drop(tape, t);
    ftmem__drop(tape, glu);
    ftmem__drop(tape, up);
    ftmem__drop(tape, gate);
    ftmem__drop(tape, both);
    return y;
}

typedef struct experts_order { /* names of the experts' forward */
    ftmem__var ids, offsets;
    experts_weight weights[2]; /* up with gate, down */
    ftmem__var bias;           /* a row for each row of the product: bound anew for the second product; store -1: none */
} experts_order;

/* gate_up_proj_bias[expert_ids] */
static void experts_bias(ftmem__low *low, experts_order *o, int32_t role, int64_t out)
{
    ftmem__var w, rows;
    if (low->shape->model->expert_bias != FTMEM_ON) return;
    w = ftmem__low_parameter(low, role, low->shape->model->experts * out, out, low->trained);
    rows = experts_take(low, w, o->ids, o->ids.n * out, out);
    experts_replace(low->tape, &o->bias, rows);
}

/* integrations/moe.py _grouped_linear: out.add_(bias) */
static ftmem__var experts_biased_linear(ftmem__low *low, const experts_order *o, ftmem__var w, ftmem__var x, int64_t out)
{
    ftmem__var in[2], y = experts_linear(low, w, x, out, o->offsets);
    if (low->shape->model->expert_bias != FTMEM_ON) return y;
    in[0] = y;
    in[1] = o->bias;
    experts_replace(low->tape, &y, ftmem__apply(low->tape, FTMEM__OP_ADD_IN_PLACE, in, 2, y.n, y.cols, y.dtype));
    return y;
}

static ftmem__var experts_mlp(ftmem__low *low, ftmem__var x, experts_order *o)
{
    int64_t f = experts_up_width(low), h = x.cols;
    ftmem__var both, product, y;
    o->weights[0].made = experts_weight_now(low, &o->weights[0]);
    experts_bias(low, o, FTMEM_ROLE_EXPERTS_UP, f);
    both = experts_biased_linear(low, o, o->weights[0].made, x, f);
    product = low->shape->family->experts_gate == FTMEM__GATE_CLAMPED ? experts_gated_clamped(low, both)
              : experts_have_gates(low)                               ? experts_gated(low, both)
                                                                      : ftmem__low_activation(low, both);
    o->weights[1].made = experts_weight_now(low, &o->weights[1]);
    experts_bias(low, o, FTMEM_ROLE_EXPERTS_DOWN, h);
    y = experts_biased_linear(low, o, o->weights[1].made, product, h);
    ftmem__drop(low->tape, product);
    return y;
}

/* sum is on autocast's list of operations that are told their result's dtype (autocast_mode.h fp32_set_opt_dtype): nothing is copied. */
static int32_t experts_sum_dtype(const ftmem__low *low, ftmem__var x)
{
    return low->shape->autocast ? FTMEM_FP32 : x.dtype;
}

/* Each result times its weight, back in the order of tokens, and summed over a token's experts: takes over y. */
static ftmem__var experts_combine(ftmem__low *low, ftmem__var y, ftmem__var weights, int32_t dtype)
{
    ftmem__tape *tape = low->tape;
    ftmem__var weighted = ftmem__binary(tape, FTMEM__OP_MUL, y, weights), inverse = experts_table(low, weights.n, FTMEM_INT64), back, sum, result;
    ftmem__drop(tape, experts_table(low, weights.n, FTMEM_INT64)); /* arange */
    back = experts_take(low, weighted, inverse, weighted.n, weighted.cols);
    ftmem__drop(tape, weighted);
    sum = ftmem__apply(tape, FTMEM__OP_MEAN, &back, 1, low->tokens * weighted.cols, weighted.cols, experts_sum_dtype(low, back));
    result = ftmem__cast(tape, sum, dtype);
    ftmem__drop(tape, inverse);
    ftmem__drop(tape, y);
    ftmem__drop(tape, back);
    ftmem__drop(tape, sum);
    return result;
}

/* The wrapper of down_proj is the outer one: it comes first. */
static void experts_parametrize(ftmem__low *low, int64_t h, experts_weight weights[2])
{
    int64_t f = low->shape->model->expert_ffn, up = experts_up_width(low);
    weights[0] = experts_declare(low, FTMEM_ROLE_EXPERTS_UP, up, h);
    weights[1] = experts_declare(low, FTMEM_ROLE_EXPERTS_DOWN, h, f);
    experts_adapt(low, &weights[1], FTMEM_ROLE_EXPERTS_DOWN, h, f);
    experts_adapt(low, &weights[0], FTMEM_ROLE_EXPERTS_UP, up, h);
}

static ftmem__var experts_forward(ftmem__low *low, ftmem__var x, const experts_choice *choice)
{
    ftmem__tape *tape = low->tape;
    int64_t e = low->shape->model->experts, rows = choice->weights.n;
    ftmem__var local[7], result;
    experts_order order = { 0 };
    int32_t i;
    experts_parametrize(low, x.cols, order.weights);
    local[0] = experts_table(low, rows, FTMEM_INT64); /* sorted expert ids */
    local[1] = experts_table(low, rows, FTMEM_INT64); /* their order */
    local[2] = experts_table(low, rows, FTMEM_INT64); /* order // experts_per_token */
    local[3] = experts_take(low, x, local[2], rows * x.cols, x.cols);
    ftmem__drop(tape, local[2]);
    local[2] = experts_take(low, choice->weights, local[1], rows, 1);
    local[4] = experts_table(low, rows, FTMEM_FP32); /* int32 */
    local[5] = experts_table(low, e, FTMEM_FP32);
    local[6] = experts_table(low, e, FTMEM_FP32); /* offsets */
    order.ids = local[0];
    order.offsets = local[6];
    order.bias.store = -1;
    result = experts_combine(low, experts_mlp(low, local[3], &order), local[2], x.dtype);
    ftmem__drop(tape, order.bias);
    for (i = 0; i < 7; i++) ftmem__drop(tape, local[i]);
    for (i = 0; i < 2; i++) experts_undeclare(low, &order.weights[i]);
    return result;
}

/* modeling_qwen2_moe.py: sigmoid(shared_expert_gate(x)) * shared_expert(x); takes over the latter. */
static ftmem__var experts_weighed(ftmem__low *low, ftmem__var x, ftmem__var shared)
{
    ftmem__tape *tape = low->tape;
    ftmem__var gate = ftmem__low_linear(low, FTMEM_ROLE_SHARED_GATE, x, 1, false), y;
    experts_replace(tape, &gate, ftmem__unary(tape, FTMEM__OP_SIGMOID, gate));
    y = ftmem__binary(tape, FTMEM__OP_MUL, gate, shared);
    ftmem__drop(tape, gate);
    ftmem__drop(tape, shared);
    return y;
}

/* What every token passes, added to what its experts made (modeling_deepseek_v2.py DeepseekV2Moe): takes over y, and what the
   shared expert has made already. */
static ftmem__var experts_shared(ftmem__low *low, ftmem__var x, ftmem__var y, ftmem__var shared)
{
    ftmem__var sum;
    if (low->shape->model->shared_ffn == 0) return y;
    if (low->shape->family->shared_gated) shared = experts_weighed(low, x, shared);
    else if (low->shape->family->mlp == FTMEM__GATED_FUSED) shared = ftmem__low_gated_fused(low, x, low->shape->model->shared_ffn);
    else if (low->shape->family->shared_first) low->tape->part = FTMEM__PART_MLP;
    else if (experts_have_gates(low)) shared = ftmem__low_gated(low, x, low->shape->model->shared_ffn);
    else shared = ftmem__low_plain(low, x, low->shape->model->shared_ffn);
    sum = ftmem__binary(low->tape, FTMEM__OP_ADD, y, shared);
    ftmem__drop(low->tape, shared);
    ftmem__drop(low->tape, y);
    return sum;
}

/* One expert of transformers 4, an MLP of plain linears over its share of the rows, whose weighted result is added in place. */
static void experts_one(ftmem__low *low, ftmem__var x, ftmem__var weights, int64_t rows, ftmem__var *sum)
{
    ftmem__tape *tape = low->tape;
    int64_t f = low->shape->model->expert_ffn;
    ftmem__var index = experts_table(low, rows, FTMEM_INT64), current, share, act, up, product, y, in[2];
    current = experts_take(low, x, index, rows * x.cols, x.cols);
    act = ftmem__low_activation(low, ftmem__low_linear(low, FTMEM_ROLE_GATE, current, f, false));
    up = ftmem__low_linear(low, FTMEM_ROLE_UP, current, f, false);
    product = ftmem__binary(tape, FTMEM__OP_MUL, act, up);
    ftmem__drop(tape, act);
    ftmem__drop(tape, up);
    y = ftmem__low_linear(low, FTMEM_ROLE_DOWN, product, low->shape->h, false);
    ftmem__drop(tape, product);
    share = experts_take(low, weights, index, rows, 1);
    experts_replace(tape, &y, ftmem__binary(tape, FTMEM__OP_MUL, y, share));
    experts_replace(tape, &y, ftmem__cast(tape, y, x.dtype));
    in[0] = *sum;
    in[1] = y;
    experts_replace(tape, sum, ftmem__apply(tape, FTMEM__OP_ADD_IN_PLACE, in, 2, x.n, x.cols, x.dtype));
    ftmem__save_var(tape, *sum, y); /* index_add_ keeps what it adds, and where */
    ftmem__save_var(tape, *sum, index);
    ftmem__drop(tape, y);
    ftmem__drop(tape, share);
    ftmem__drop(tape, current);
    ftmem__drop(tape, index);
}

/* modeling_mixtral.py MixtralSparseMoeBlock of transformers 4: a loop over experts; rows are taken to be spread evenly. */
static ftmem__var experts_loop(ftmem__low *low, ftmem__var x, const experts_choice *choice)
{
    int64_t e = low->shape->model->experts, i;
    ftmem__var weights = ftmem__cast(low->tape, choice->weights, x.dtype), sum = ftmem__constant(x.n, x.cols, x.dtype);
    sum.store = ftmem__alloc(low->tape, FTMEM__OP_TABLE, x.n, x.cols, x.dtype, low->tape->birth);
    for (i = 0; i < e && !low->tape->exhausted; i++) experts_one(low, x, weights, choice->weights.n / e, &sum);
    ftmem__drop(low->tape, weights);
    return sum;
}

/* modeling_deepseek.py DeepseekMoE in training: rows are repeated for each chosen expert; experts are linears that run one after
   another over their share, and write it back in place. All shares are taken together. */
static ftmem__var experts_apart(ftmem__low *low, ftmem__var x, const experts_choice *choice)
{
    ftmem__tape *tape = low->tape;
    int64_t rows = choice->weights.n, n = rows * x.cols;
    ftmem__var repeated = ftmem__apply(tape, FTMEM__OP_EXPAND, &x, 1, n, x.cols, x.dtype), index = experts_table(low, rows, FTMEM_INT64), current, y, sum;
    current = experts_take(low, repeated, index, n, x.cols);
    low->copies = low->shape->model->experts;
    y = ftmem__low_gated(low, current, low->shape->model->expert_ffn);
    low->copies = 0;
    experts_replace(tape, &y, experts_take(low, y, index, n, x.cols));
    ftmem__drop(tape, current);
    experts_replace(tape, &y, ftmem__binary(tape, FTMEM__OP_MUL, y, choice->weights));
    sum = ftmem__apply(tape, FTMEM__OP_MEAN, &y, 1, x.n, x.cols, y.dtype);
    ftmem__drop(tape, y);
    ftmem__drop(tape, index);
    ftmem__drop(tape, repeated);
    return sum;
}

/* modeling_nemotron_h.py NemotronHMoE: routed experts may work in a latent, between two linears; each result takes the name over. */
static ftmem__var experts_in_latent(ftmem__low *low, ftmem__var x, const experts_choice *choice)
{
    int64_t latent = low->shape->model->expert_latent;
    bool bias = low->shape->model->mlp_bias == FTMEM_ON;
    ftmem__var y;
    if (latent == 0) return experts_forward(low, x, choice);
    y = ftmem__low_linear(low, FTMEM_ROLE_KV_DOWN, x, latent, bias);
    experts_replace(low->tape, &y, experts_forward(low, y, choice));
    experts_replace(low->tape, &y, ftmem__low_linear(low, FTMEM_ROLE_KV_UP, y, low->shape->h, bias));
    return y;
}

/* x @ weight, a batch of all experts */
static ftmem__var experts_batch(ftmem__low *low, ftmem__var w, ftmem__var x, int64_t out)
{
    ftmem__tape *tape = low->tape;
    int32_t dtype = low->shape->autocast ? low->shape->autocast : w.dtype;
    int64_t rows = x.n / x.cols;
    ftmem__var in = ftmem__cast(tape, x, dtype), w16 = ftmem__cast_weight(tape, w, dtype), y;
    y = ftmem__matmul(tape, FTMEM__OP_BMM, in, w16, NULL, rows * out, out, 2.0 * (double)x.n * (double)out);
    ftmem__drop(tape, w16);
    ftmem__drop(tape, in);
    return y;
}

/* modeling_llama4.py Llama4TextExperts: gate_up is a name until the down projection is done. Weights are experts x in x out, which
   PEFT takes for the other way round. */
static ftmem__var experts_dense_mlp(ftmem__low *low, ftmem__var x, experts_weight weights[2])
{
    int64_t h = low->shape->h, f = low->shape->model->expert_ffn;
    ftmem__var both, product, y;
    weights[0] = experts_declare(low, FTMEM_ROLE_EXPERTS_UP, h, 2 * f);
    weights[1] = experts_declare(low, FTMEM_ROLE_EXPERTS_DOWN, f, h);
    experts_adapt(low, &weights[1], FTMEM_ROLE_EXPERTS_DOWN, f, h);
    experts_adapt(low, &weights[0], FTMEM_ROLE_EXPERTS_UP, h, 2 * f);
    weights[0].made = experts_weight_now(low, &weights[0]);
    both = experts_batch(low, weights[0].made, x, 2 * f);
    product = experts_gated(low, ftmem__keep(low->tape, both));
    weights[1].made = experts_weight_now(low, &weights[1]);
    y = experts_batch(low, weights[1].made, product, h);
    ftmem__drop(low->tape, product);
    ftmem__drop(low->tape, both);
    return y;
}

/* modeling_llama4.py Llama4TextMoe: all experts' results are summed onto the shared expert's. */
static ftmem__var experts_dense(ftmem__low *low, ftmem__var x, const experts_choice *choice)
{
    ftmem__tape *tape = low->tape;
    int64_t n = low->shape->model->experts * x.n;
    ftmem__var given = ftmem__apply(tape, FTMEM__OP_EXPAND, &x, 1, n, x.cols, x.dtype), scores = ftmem__unary(tape, FTMEM__OP_CLONE, choice->weights), y, sum,
               in[2];
    experts_weight weights[2];
    int32_t i;
    experts_replace(tape, &given, ftmem__binary(tape, FTMEM__OP_MUL, given, ftmem__shaped(scores, scores.n, 1)));
    ftmem__drop(tape, scores);
    y = experts_dense_mlp(low, given, weights);
    for (i = 0; i < 2; i++) experts_undeclare(low, &weights[i]);
    low->routed = false;
    in[0] = ftmem__low_gated(low, x, low->shape->model->shared_ffn);
    sum = ftmem__apply(tape, FTMEM__OP_MEAN, &y, 1, x.n, x.cols, experts_sum_dtype(low, y));
    in[1] = sum;
    experts_replace(tape, &in[0], ftmem__apply(tape, FTMEM__OP_ADD_IN_PLACE, in, 2, in[0].n, in[0].cols, in[0].dtype));
    ftmem__drop(tape, sum);
    ftmem__drop(tape, y);
    ftmem__drop(tape, given);
    return in[0];
}

enum { EXPERTS_JOINED = 500 }; /* transformers 5: one tensor for all experts */

ftmem__var ftmem__low_experts(ftmem__low *low, ftmem__var x)
{
    const ftmem__family *family = low->shape->family;
    bool loop = low->shape->job->transformers_version < EXPERTS_JOINED;
    experts_choice choice;
    ftmem__var shared = { 0 }, y;
    if (low->shape->model->shared_ffn > 0 && (family->shared_first || family->shared_gated)) shared = ftmem__low_gated(low, x, low->shape->model->shared_ffn);
    choice = experts_route(low, x);
    low->routed = true;
    y = family->experts_dense   ? experts_dense(low, x, &choice)
        : family->experts_apart ? experts_apart(low, x, &choice)
        : loop                  ? experts_loop(low, x, &choice)
                                : experts_in_latent(low, x, &choice);
    low->routed = false;
    if (!family->experts_dense) y = experts_shared(low, x, y, shared);
    ftmem__drop(low->tape, choice.logits);
    ftmem__drop(low->tape, choice.weights);
    ftmem__drop(low->tape, choice.index);
    return y;
}

ftmem__var ftmem__low_experts_beside(ftmem__low *low, ftmem__var x, ftmem__var names[3])
{
    ftmem__tape *tape = low->tape;
    experts_choice choice = experts_route(low, x);
    ftmem__var normed, y;
    if (low->has_weights) ftmem__drop(tape, low->weights); /* the router's result has their name, `_`, now */
    low->has_weights = false;
    normed = ftmem__low_norm(low, x, low->shape->h);
    y = experts_forward(low, normed, &choice);
    ftmem__drop(tape, normed);
    experts_replace(tape, &y, ftmem__low_norm(low, y, low->shape->h));
    names[0] = choice.logits;
    names[1] = choice.weights;
    names[2] = choice.index;
    return y;
}
