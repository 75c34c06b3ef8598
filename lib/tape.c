#include "tape.h"

/* ---------------------------------------------------------------------------------------------------- op rows */

enum { TAPE_ALLOC, TAPE_VIEW };
enum { TAPE_NOTHING, TAPE_INPUT, TAPE_INPUTS, TAPE_OUTPUT, TAPE_CROSS, TAPE_ATTRIBUTE };
enum {
    TAPE_PASS,
    TAPE_MAP,
    TAPE_SPREAD,
    TAPE_DEQUANTIZE,
    TAPE_MATMUL,
    TAPE_CONV,
    TAPE_SPLIT,
    TAPE_SOFTMAX,
    TAPE_MINUS,
    TAPE_SAVED,
    TAPE_COPY,
    TAPE_OVER,
    TAPE_TILES
};

typedef struct tape_row {
    uint8_t forward, saves, backward, temporaries;
} tape_row;

static const tape_row tape_rows[] = {
#define FTMEM__OP(id, name, forward, saves, backward, temporaries) { TAPE_##forward, TAPE_##saves, TAPE_##backward, temporaries },
#include "ops.inc"
#undef FTMEM__OP
};

static const char *const tape_names[] = {
#define FTMEM__OP(id, name, forward, saves, backward, temporaries) name,
#include "ops.inc"
#undef FTMEM__OP
};

static const char *const tape_backward_names[] = {
#define FTMEM__OP(id, name, forward, saves, backward, temporaries) name " backward",
#include "ops.inc"
#undef FTMEM__OP
};

const char *ftmem__op_name(int32_t op, bool backward)
{
    if (op < 0 || op >= FTMEM__OP_END) return "?";
    return backward ? tape_backward_names[op] : tape_names[op];
}

/* ---------------------------------------------------------------------------------------------------- storage */

void ftmem__tape_start(ftmem__tape *tape, int64_t big_cols)
{
    int32_t k;
    memset(tape, 0, offsetof(ftmem__tape, stores));
    for (k = 0; k < FTMEM__MAX_SIDES; k++) tape->grad_side[k] = -1;
    tape->big_cols = big_cols;
    tape->free_head = tape->grad_in = tape->result = tape->also_gradient = tape->input = tape->waiting = -1;
    tape->birth = FTMEM_CLASS_KEPT;
    tape->mode = FTMEM__RECORD;
    tape->stop_after = -1;
    tape->early = -1;
    tape->input_cast.store = -1;
}

void ftmem__tape_mark(ftmem__tape *tape)
{
    tape->peak = tape->live;
    tape->peak_event = 0;
    tape->flops = 0;
    tape->early = -1;
    tape->later.base = tape->later.peak = tape->live;
    tape->later.event = 0;
}

static int16_t tape_slot(ftmem__tape *tape)
{
    int16_t slot = tape->free_head;
    if (slot >= 0) {
        tape->free_head = (int16_t)tape->stores[slot].n;
        return slot;
    }
    if (tape->high >= FTMEM__MAX_STORES) {
        tape->exhausted = true;
        return 0;
    }
    return tape->high++;
}

static void tape_note(const ftmem__tape *tape, uint8_t op)
{
    ftmem__note *note = tape->note;
    int16_t i;
    note->event = tape->event;
    note->op = op;
    note->part = tape->part;
    note->backward = tape->backward;
    note->count = 0;
    for (i = 0; i < tape->high && note->count >= 0; i++) {
        if (tape->stores[i].refs <= 0) continue;
        if (note->count == FTMEM__COUNT(note->at)) note->count = -1;
        else note->at[note->count++] = tape->stores[i];
    }
}

static void tape_later(ftmem__tape *tape)
{
    ftmem__later *later = &tape->later;
    if (tape->live - later->freed <= later->peak) return;
    later->peak = tape->live - later->freed;
    later->event = tape->event;
}

/* One allocation is one event; the peak can only be at one. */
static void tape_event(ftmem__tape *tape, const ftmem__store *store)
{
    tape->live += store->bytes;
    tape->event++;
    if (tape->live > tape->peak) {
        tape->peak = tape->live;
        tape->peak_event = tape->event;
        if (tape->note && tape->live > tape->early) tape_note(tape, store->op);
    }
    if (tape->later.wanted) tape_later(tape);
    if (tape->event != tape->stop_at) return;
    tape->captured = true;
    tape->capture(tape->context, tape, (ftmem__op)store->op);
}

int16_t ftmem__alloc(ftmem__tape *tape, ftmem__op op, int64_t n, int64_t cols, int32_t dtype, int32_t tensor_class)
{
    ftmem__store *store;
    int16_t slot;
    if (tape->stopped || (tape->mode == FTMEM__GHOST && !tape->backward)) return -1;
    slot = tape_slot(tape);
    store = &tape->stores[slot];
    store->bytes = ftmem__round512(ftmem__bytes(dtype, n));
    store->n = n;
    store->cols = cols;
    store->refs = 1;
    store->tensor_class = (uint8_t)(cols == tape->big_cols && tensor_class != FTMEM_CLASS_WORKSPACE ? FTMEM_CLASS_LOGITS : tensor_class);
    store->dtype = (uint8_t)dtype;
    store->op = (uint8_t)op;
    store->part = tape->part;
    store->cached = store->side = store->bound = false;
    store->backward = tape->backward;
    tape_event(tape, store);
    return slot;
}

int16_t ftmem__alloc_bytes(ftmem__tape *tape, ftmem__op op, int64_t bytes, int32_t tensor_class)
{
    return ftmem__alloc(tape, op, bytes, 0, FTMEM_INT8, tensor_class);
}

void ftmem__free(ftmem__tape *tape, int16_t store)
{
    ftmem__store *s = &tape->stores[store];
    tape->live -= s->bytes;
    s->n = tape->free_head;
    s->refs = 0;
    s->cached = false;
    tape->free_head = store;
    if (store == tape->input) tape->input = -1;
}

/* ----------------------------------------------------------------------------------------------------- values */

ftmem__var ftmem__input(ftmem__tape *tape, int64_t n, int64_t cols, int32_t dtype, bool grad)
{
    int16_t store = ftmem__alloc(tape, FTMEM__OP_INPUT, n, cols, dtype, tape->birth);
    tape->input = store;
    return ftmem__value(n, cols, dtype, store, grad ? FTMEM__INPUT : FTMEM__NO_NODE, grad);
}

ftmem__var ftmem__side_input(ftmem__tape *tape, int32_t side, int64_t n, int64_t cols, int32_t dtype, bool grad)
{
    int16_t store = ftmem__alloc(tape, FTMEM__OP_INPUT, n, cols, dtype, tape->birth);
    if (store >= 0) tape->stores[store].side = true;
    return ftmem__value(n, cols, dtype, store, (int16_t)(grad ? FTMEM__SIDE - side : FTMEM__NO_NODE), grad);
}

/* ------------------------------------------------------------------------------------------------------ nodes */

/* Weights are saved too: they cost nothing, but unpacking one starts a recomputation all the same. */
static void tape_save(ftmem__tape *tape, ftmem__node *node, int16_t store)
{
    node->saves = true;
    if (store < 0 || tape->mode != FTMEM__RECORD) return;
    if (node->held == FTMEM__COUNT(node->save)) {
        tape->exhausted = true;
        return;
    }
    node->save[node->held++] = store;
    ftmem__hold(tape, store);
}

static ftmem__node *tape_node(ftmem__tape *tape, ftmem__op op, const ftmem__var *in, int32_t count, int64_t n, int32_t dtype)
{
    ftmem__node *node;
    int32_t i;
    if (tape->nodes >= FTMEM__MAX_NODES) {
        tape->exhausted = true;
        return NULL;
    }
    node = &tape->node[tape->nodes++];
    node->work = 0;
    node->flops = 0;
    node->held = node->fourth = 0;
    node->saves = false;
    if (!tape->replay) node->grad[0] = node->grad[1] = node->grad[2] = node->grad[3] = -1;
    node->op = (uint8_t)op;
    node->inputs = (uint8_t)count;
    node->outs = 1;
    node->part = tape->part;
    node->out_dtype = (uint8_t)dtype;
    node->out_n = n;
    for (i = 0; i < count; i++) node->in[i] = in[i];
    return node;
}

/* In a recomputation the graph that backward walks is the first one: the second one is gone with the frames of the forward. */
static void tape_attribute(ftmem__tape *tape, int16_t store)
{
    if (store < 0 || tape->graphless || tape->mode == FTMEM__GHOST) return;
    if (tape->attributes == FTMEM__COUNT(tape->attribute)) {
        tape->exhausted = true;
        return;
    }
    tape->attribute[tape->attributes++] = store;
    ftmem__hold(tape, store);
}

void ftmem__drop_attributes(ftmem__tape *tape)
{
    while (tape->attributes > 0) ftmem__release(tape, tape->attribute[--tape->attributes]);
}

static void tape_save_by_row(ftmem__tape *tape, ftmem__node *node, const ftmem__var *in, int16_t out)
{
    int32_t i;
    switch (tape_rows[node->op].saves) {
    case TAPE_INPUT: tape_save(tape, node, in[0].store); break;
    case TAPE_OUTPUT: tape_save(tape, node, out); break;
    case TAPE_INPUTS:
        for (i = 0; i < node->inputs && !(i == 2 && tape_rows[node->op].backward == TAPE_CONV); i++)
            tape_save(tape, node, in[i].store); /* of a bias the size alone */
        break;
    case TAPE_CROSS:
        if (in[1].grad) tape_save(tape, node, in[0].store);
        if (in[0].grad) tape_save(tape, node, in[1].store);
        break;
    default: break;
    }
}

/* torch.autograd.Function saves when its forward is done; so does native_layer_norm, whose statistics come last. */
static bool tape_saves_after(ftmem__op op)
{
    if (op >= FTMEM__OP_LINEAR_HQQ && op <= FTMEM__OP_LINEAR_FP8) return true;
    return op == FTMEM__OP_LAYER_NORM || (op >= FTMEM__OP_FUSED_NORM && op <= FTMEM__OP_COMPILED_CE);
}

/* Inputs are saved before an operation runs: a recomputation that waits for nothing else ends without running it
   (torch/utils/checkpoint.py _recomputation_hook, early stop). */
static bool tape_ends_before(const ftmem__tape *tape, ftmem__op op)
{
    uint8_t saves = tape_rows[op].saves;
    return tape->nodes == tape->stop_after && (saves == TAPE_INPUT || saves == TAPE_CROSS || op == FTMEM__OP_INDEX) && !tape_saves_after(op);
}

/* Records an operation whose result is `store`; returns its node. */
static int16_t tape_record(ftmem__tape *tape, ftmem__op op, const ftmem__var *in, int32_t count, int64_t n, int32_t dtype, int16_t store)
{
    ftmem__node *node = tape_node(tape, op, in, count, n, dtype);
    int32_t number = node ? tape->nodes - 1 : FTMEM__NO_NODE;
    if (node) tape_save_by_row(tape, node, in, store);
    tape->stopped = number == tape->stop_after;
    return (int16_t)number;
}

static bool tape_wants_grad(const ftmem__tape *tape, const ftmem__var *in, int32_t count)
{
    bool grad = false;
    int32_t i;
    for (i = 0; i < count; i++) grad = grad || in[i].grad;
    return grad && tape->mode != FTMEM__NO_GRAD && !tape->no_grad;
}

static int16_t tape_result(ftmem__tape *tape, ftmem__op op, const ftmem__var *in, int64_t n, int64_t cols, int32_t dtype)
{
    if (tape_rows[op].forward != TAPE_VIEW) return ftmem__alloc(tape, op, n, cols, dtype, tape->birth);
    ftmem__hold(tape, in[0].store);
    return in[0].store;
}

/* torch/utils/checkpoint.py _CachingTorchDispatchMode: whether the policy saves what this operation makes. */
static bool tape_policy(ftmem__tape *tape, ftmem__op op, int32_t count)
{
    bool plain = op == FTMEM__OP_LINEAR && count == 2;
    if (tape->policy <= FTMEM_SAVE_NOTHING || tape->mode == FTMEM__GHOST) return false;
    if (op == FTMEM__OP_FLASH || op == FTMEM__OP_EFFICIENT) return true;
    if (tape->policy == FTMEM_SAVE_MATMULS) return op == FTMEM__OP_LINEAR || op == FTMEM__OP_BMM || op == FTMEM__OP_BADDBMM;
    return tape->policy == FTMEM_SAVE_EVERY_SECOND && plain && ++tape->products % 2 != 0;
}

static void tape_put_by(ftmem__tape *tape, int16_t store)
{
    if (tape->saves == FTMEM__COUNT(tape->saved)) {
        tape->exhausted = true;
        return;
    }
    ftmem__hold(tape, store);
    tape->saved[tape->saves++] = store;
}

void ftmem__drop_saved(ftmem__tape *tape)
{
    while (tape->taken < tape->saves) ftmem__release(tape, tape->saved[tape->taken++]);
    tape->saves = tape->taken = 0;
}

/* The result of an operation that the policy saves: put by in the first forward, taken in the recomputation. */
static int16_t tape_kept_result(ftmem__tape *tape, ftmem__op op, const ftmem__var *in, int64_t n, int64_t cols, int32_t dtype)
{
    int16_t store;
    tape->cached_result = tape->replay && tape->taken < tape->saves;
    if (tape->cached_result) return tape->saved[tape->taken++];
    store = tape_result(tape, op, in, n, cols, dtype);
    if (tape->mode == FTMEM__FORGET) tape_put_by(tape, store);
    return store;
}

/* The result is put together at the end, from registers: to copy what has just been written byte by byte is slow. */
ftmem__var ftmem__apply(ftmem__tape *tape, ftmem__op op, const ftmem__var *in, int32_t count, int64_t n, int64_t cols, int32_t dtype)
{
    bool grad = !tape->stopped && tape_wants_grad(tape, in, count), recorded = grad && (tape->mode >= FTMEM__RECORD || tape->shadow);
    int16_t store = -1, node = FTMEM__NO_NODE;
    if (tape->stopped) return ftmem__value(n, cols, dtype, store, node, grad);
    if (recorded && tape_ends_before(tape, op)) {
        node = tape_record(tape, op, in, count, n, dtype, store);
        return ftmem__value(n, cols, dtype, store, node, grad);
    }
    tape->cached_result = false;
    tape->keeping = tape_policy(tape, op, count);
    store = tape->keeping ? tape_kept_result(tape, op, in, n, cols, dtype) : tape_result(tape, op, in, n, cols, dtype);
    if (recorded) node = tape_record(tape, op, in, count, n, dtype, store);
    if (grad && tape_rows[op].saves == TAPE_ATTRIBUTE) tape_attribute(tape, in[0].store);
    return ftmem__value(n, cols, dtype, store, node, grad);
}

void ftmem__save_new(ftmem__tape *tape, ftmem__var result, int64_t n, int64_t cols, int32_t dtype)
{
    ftmem__node *node = ftmem__recorded(tape, result);
    ftmem__op op = node ? (ftmem__op)node->op : FTMEM__OP_TABLE;
    int16_t store = tape->keeping && !tape->stopped ? tape_kept_result(tape, op, &result, n, cols, dtype) : ftmem__alloc(tape, op, n, cols, dtype, tape->birth);
    if (node) tape_save(tape, node, store);
    ftmem__release(tape, store);
}

void ftmem__save_var(ftmem__tape *tape, ftmem__var result, ftmem__var kept)
{
    ftmem__node *node = ftmem__recorded(tape, result);
    if (node) tape_save(tape, node, kept.store);
}

void ftmem__fourth(ftmem__tape *tape, ftmem__var result, ftmem__var operand)
{
    ftmem__node *node = ftmem__recorded(tape, result);
    if (!node) return;
    tape_save(tape, node, operand.store);
    if (tape->fourths == FTMEM__COUNT(tape->fourth)) {
        tape->exhausted = true;
        return;
    }
    tape->fourth[tape->fourths++] = operand;
    node->fourth = (uint8_t)tape->fourths;
}

/* ------------------------------------------------------------------------------------------------- primitives */

ftmem__var ftmem__unary(ftmem__tape *tape, ftmem__op op, ftmem__var x)
{
    return ftmem__apply(tape, op, &x, 1, x.n, x.cols, x.dtype);
}

/* torch's type promotion among floating types: the wider wins, and two different halves make fp32. */
static int32_t tape_promote(int32_t a, int32_t b)
{
    return a == b ? a : FTMEM_FP32;
}

ftmem__var ftmem__binary(ftmem__tape *tape, ftmem__op op, ftmem__var a, ftmem__var b)
{
    ftmem__var in[2];
    in[0] = a;
    in[1] = b;
    return ftmem__apply(tape, op, in, 2, a.n > b.n ? a.n : b.n, a.cols > b.cols ? a.cols : b.cols, tape_promote(a.dtype, b.dtype));
}

ftmem__var ftmem__cast(ftmem__tape *tape, ftmem__var x, int32_t dtype)
{
    ftmem__var out;
    if (x.dtype == dtype) return ftmem__keep(tape, x);
    out = ftmem__apply(tape, FTMEM__OP_CAST, &x, 1, x.n, x.cols, dtype);
    if (x.joined) out.joined = true; /* the layout is preserved */
    return out;
}

/* torch aten/src/ATen/autocast_mode.cpp cached_cast: only fp32 leaves that require a gradient are cached. */
ftmem__var ftmem__cast_weight(ftmem__tape *tape, ftmem__var w, int32_t dtype)
{
    bool cached = w.grad && w.node < FTMEM__NO_NODE && w.dtype == FTMEM_FP32;
    ftmem__var out;
    if (tape->shared_casts && cached) return ftmem__weight(w.n, w.cols, dtype, true);
    out = ftmem__cast(tape, w, dtype);
    if (out.store >= 0 && cached && !tape->stores[out.store].cached) {
        tape->stores[out.store].cached = true;
        ftmem__hold(tape, out.store);
    }
    return out;
}

ftmem__var ftmem__matmul(ftmem__tape *tape, ftmem__op op, ftmem__var x, ftmem__var w, const ftmem__var *bias, int64_t n, int64_t cols, double flops)
{
    ftmem__var in[3], out;
    ftmem__node *node;
    bool runs = !tape->stopped;
    in[0] = x;
    in[1] = w;
    if (bias) in[2] = *bias;
    out = ftmem__apply(tape, op, in, bias ? 3 : 2, n, cols, x.dtype);
    node = ftmem__recorded(tape, out);
    if (node) node->flops = flops;
    if ((!tape->stopped || (runs && tape_saves_after(op))) && !tape->cached_result) tape->flops += flops;
    return out;
}

ftmem__var ftmem__cast_operand(ftmem__tape *tape, ftmem__var x, int32_t dtype)
{
    if (!tape->leaf_input || x.node != FTMEM__INPUT || !x.grad || x.dtype != FTMEM_FP32 || dtype == FTMEM_FP32) return ftmem__cast(tape, x, dtype);
    if (tape->input_cast.store < 0) {
        tape->input_cast = ftmem__cast(tape, x, dtype);
        tape->stores[tape->input_cast.store].cached = true;
    }
    return ftmem__keep(tape, tape->input_cast);
}

void ftmem__split(ftmem__tape *tape, ftmem__var x, int32_t count, const int64_t *n, ftmem__var *out)
{
    ftmem__var whole = ftmem__apply(tape, FTMEM__OP_SPLIT, &x, 1, x.n, x.cols, x.dtype);
    ftmem__node *node = ftmem__recorded(tape, whole);
    int32_t i;
    if (node) node->outs = (uint8_t)count;
    for (i = 0; i < count; i++) {
        out[i] = ftmem__shaped(ftmem__keep(tape, whole), n[i], x.cols * n[i] / x.n);
        out[i].slot = (uint64_t)i & 3;
    }
    ftmem__drop(tape, whole);
}

/* --------------------------------------------------------------------------------------------------- backward */

/* A second gradient for one place is added in place when nobody else holds the first
   (torch/csrc/autograd/input_buffer.cpp accumulate), else into a new tensor. */
static void tape_accumulate(ftmem__tape *tape, int16_t *place, const ftmem__var *to, int16_t gradient)
{
    int16_t sum;
    if (*place < 0) {
        *place = gradient;
        return;
    }
    if (tape->stores[*place].refs == 1) {
        ftmem__release(tape, gradient);
        return;
    }
    sum = ftmem__alloc(tape, FTMEM__OP_GRADIENT, to->n, to->cols, to->dtype, tape->birth);
    ftmem__release(tape, *place);
    ftmem__release(tape, gradient);
    *place = sum;
}

static void tape_moment(ftmem__tape *tape, int64_t bytes)
{
    if (tape->live + bytes > tape->update_peak) tape->update_peak = tape->live + bytes;
    if (bytes > 0) ftmem__release(tape, ftmem__alloc_bytes(tape, FTMEM__OP_STEP, bytes, FTMEM_CLASS_TEMPORARY));
}

static void tape_update(ftmem__tape *tape, int16_t gradient)
{
    ftmem__work work;
    if (gradient < 0) return;
    work = tape->update(tape->updater, &tape->stores[gradient], tape->in_block);
    tape_moment(tape, work.beside);
    ftmem__release(tape, gradient);
    tape_moment(tape, work.after);
    tape->flops += work.flops;
}

/* Post-accumulate hooks update the parameter whose gradient has arrived; tensor hooks run before, and find the one before it. */
static void tape_updated(ftmem__tape *tape, int16_t gradient)
{
    int16_t ready = tape->update_waits ? tape->waiting : gradient;
    tape->stores[gradient].tensor_class = FTMEM_CLASS_GRADIENTS;
    tape->waiting = tape->update_waits ? gradient : -1;
    tape_update(tape, ready);
}

/* It has been added to one outside this tape, which is there until the update. */
static void tape_joined(ftmem__tape *tape, int16_t gradient)
{
    int64_t bytes = tape->stores[gradient].bytes;
    ftmem__work work = tape->update(tape->updater, &tape->stores[gradient], tape->in_block);
    ftmem__release(tape, gradient);
    tape_moment(tape, work.beside);
    tape_moment(tape, work.after - bytes);
}

/* A parameter takes the arriving tensor as its gradient; with accumulation it is added and freed. */
static void tape_leaf(ftmem__tape *tape, int16_t gradient, bool shared)
{
    ftmem__store *s = &tape->stores[gradient];
    if (tape->update && !shared) {
        tape_updated(tape, gradient);
        return;
    }
    if (tape->sum_leaves && !shared) {
        ftmem__release(tape, gradient);
        return;
    }
    s->tensor_class = FTMEM_CLASS_GRADIENTS;
    tape->leaf_bytes += s->bytes;
    if (shared) return;
    tape->later.freed += s->bytes;
    if (s->refs > 1) tape->later.differs = true;
}

static void tape_deliver(ftmem__tape *tape, const ftmem__var *to, int16_t gradient)
{
    if (to->node >= 0) tape_accumulate(tape, &tape->node[to->node].grad[to->slot], to, gradient);
    else if (to->node == FTMEM__INPUT) tape_accumulate(tape, &tape->grad_in, to, gradient);
    else if (to->node == FTMEM__JOINED_LEAF && tape->update) tape_joined(tape, gradient);
    else if (to->node == FTMEM__NO_NODE || to->node == FTMEM__JOINED_LEAF) ftmem__release(tape, gradient);
    else if (to->node <= FTMEM__SIDE) tape_accumulate(tape, &tape->grad_side[FTMEM__SIDE - to->node], to, gradient);
    else tape_leaf(tape, gradient, to->node == FTMEM__SHARED_LEAF);
}

void ftmem__deliver(ftmem__tape *tape, ftmem__var to, int16_t gradient)
{
    tape_deliver(tape, &to, gradient);
}

static int16_t tape_replace(ftmem__tape *tape, ftmem__op op, const ftmem__var *like, int32_t dtype, int16_t gradient)
{
    int16_t made = ftmem__alloc(tape, op, like->n, like->cols, dtype, tape->birth);
    ftmem__release(tape, gradient);
    return made;
}

/* Engine::validate_outputs: a gradient is summed to its operand's shape and cast to its dtype. */
static inline int16_t tape_fit(ftmem__tape *tape, const ftmem__node *node, int32_t k, int16_t gradient, int64_t n, int32_t dtype)
{
    const ftmem__var *in = &node->in[k];
    if (in->n < n) gradient = tape_replace(tape, FTMEM__OP_GRADIENT, in, dtype, gradient);
    if (in->dtype != dtype) gradient = tape_replace(tape, FTMEM__OP_CAST, in, in->dtype, gradient);
    return gradient;
}

static bool tape_needs(const ftmem__node *node, int32_t k)
{
    return node->in[k].grad;
}

static void tape_pass(ftmem__tape *tape, const ftmem__node *node, int16_t arrived, int16_t result[3])
{
    int32_t k;
    for (k = 0; k < node->inputs; k++) {
        if (!tape_needs(node, k)) continue;
        ftmem__hold(tape, arrived);
        result[k] = arrived;
    }
}

static void tape_minus(ftmem__tape *tape, const ftmem__node *node, int16_t arrived, int16_t result[3])
{
    if (tape_needs(node, 0)) {
        ftmem__hold(tape, arrived);
        result[0] = arrived;
    }
    if (!tape_needs(node, 1)) return;
    result[1] = ftmem__alloc(tape, FTMEM__OP_NEG, node->out_n, node->in[0].cols, node->out_dtype, tape->birth);
}

static void tape_map(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    int16_t temporary[2] = { -1, -1 };
    int32_t k, t, temporaries = tape_rows[node->op].temporaries;
    int64_t cols = node->in[0].cols;
    for (t = 0; t < temporaries; t++) temporary[t] = ftmem__alloc(tape, (ftmem__op)node->op, node->out_n, cols, node->out_dtype, tape->birth);
    for (k = 0; k < node->inputs; k++)
        if (tape_needs(node, k)) result[k] = ftmem__alloc(tape, (ftmem__op)node->op, node->out_n, cols, node->out_dtype, tape->birth);
    for (t = 0; t < temporaries; t++) ftmem__release(tape, temporary[t]);
}

static void tape_spread_fourth(ftmem__tape *tape, const ftmem__node *node)
{
    const ftmem__var *to = &tape->fourth[node->fourth - 1];
    tape->fourth_gradient = to->grad ? ftmem__alloc(tape, (ftmem__op)node->op, to->n, to->cols, to->dtype, tape->birth) : -1;
}

static int16_t tape_workspace(ftmem__tape *tape, int64_t bytes)
{
    return ftmem__alloc_bytes(tape, FTMEM__OP_DEQUANTIZE, bytes, FTMEM_CLASS_WORKSPACE);
}

static void tape_spread(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    bool before = tape_rows[node->op].backward == TAPE_DEQUANTIZE;
    int16_t more = before && tape_rows[node->op].temporaries ? tape_workspace(tape, node->work * tape_rows[node->op].temporaries) : -1;
    int16_t work = before && node->work ? tape_workspace(tape, node->work) : -1;
    int32_t k;
    ftmem__release(tape, more);
    for (k = 0; k < node->inputs; k++)
        if (tape_needs(node, k)) result[k] = ftmem__alloc(tape, (ftmem__op)node->op, node->in[k].n, node->in[k].cols, node->in[k].dtype, tape->birth);
    if (node->fourth) tape_spread_fourth(tape, node);
    if (!before && node->work) work = ftmem__alloc_bytes(tape, (ftmem__op)node->op, node->work, FTMEM_CLASS_WORKSPACE);
    ftmem__release(tape, work);
    tape->flops += node->flops;
}

/* The first matmul of a pass divides its peak in two: the thread's cuBLAS workspace exists from there on. */
static void tape_first_matmul(ftmem__tape *tape)
{
    if (tape->early >= 0) return;
    tape->early = tape->peak;
    tape->early_event = tape->peak_event;
    tape->peak = tape->live;
    tape->peak_event = 0;
    tape->later.early = tape->later.peak;
    tape->later.early_event = tape->later.event;
    tape->later.peak = tape->live - tape->later.freed;
    tape->later.event = 0;
}

/* Operand order as traced: the weight's gradient, the input's, the bias's. */
static void tape_matmul(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    static const int32_t order[] = { 2, 1, 0 };
    int32_t i;
    tape_first_matmul(tape);
    for (i = 0; i < 3; i++) {
        int32_t k = order[i];
        if (k >= node->inputs || !tape_needs(node, k)) continue;
        result[k] = ftmem__alloc(tape, (ftmem__op)node->op, node->in[k].n, node->in[k].cols, node->out_dtype, tape->birth);
        if (k < 2) tape->flops += node->flops;
    }
}

/* torch/utils/flop_counter.py conv_backward_flop takes a weight's gradient of a convolution by channels for one of all with all. */
static double tape_convolution_flops(const ftmem__node *node, int32_t k)
{
    const ftmem__var *w = &node->in[1];
    return k == 1 && node->op == FTMEM__OP_CONV_EACH ? node->flops * (double)(w->n / w->cols) : node->flops;
}

/* convolution_backward: the input's gradient, the weight's, the bias's; no cuBLAS. */
static void tape_convolution(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    int32_t k;
    for (k = 0; k < node->inputs; k++) {
        if (!tape_needs(node, k)) continue;
        result[k] = ftmem__alloc(tape, (ftmem__op)node->op, node->in[k].n, node->in[k].cols, node->out_dtype, tape->birth);
        if (k < 2) tape->flops += tape_convolution_flops(node, k);
    }
}

/* Gradients of the pieces are joined; a piece without one is filled with zeros first. */
static void tape_join(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    result[0] = ftmem__alloc(tape, FTMEM__OP_CAT, node->in[0].n, node->in[0].cols, node->in[0].dtype, tape->birth);
}

/* Softmax (not log-softmax) multiplies gradient and output into a temporary of the gradient's size first. */
static void tape_softmax(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    int16_t product;
    result[0] = ftmem__alloc(tape, FTMEM__OP_SOFTMAX, node->in[0].n, node->in[0].cols, node->in[0].dtype, tape->birth);
    product = ftmem__alloc(tape, FTMEM__OP_SOFTMAX, node->out_n, node->in[0].cols, node->out_dtype, FTMEM_CLASS_WORKSPACE);
    ftmem__release(tape, product);
}

static void tape_copy(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    const ftmem__var *base = &node->in[0], *part = &node->in[1];
    int16_t zeros;
    result[0] = ftmem__alloc(tape, FTMEM__OP_COPY_SLICE, base->n, base->cols, node->out_dtype, tape->birth);
    if (tape_needs(node, 1)) result[1] = ftmem__alloc(tape, FTMEM__OP_COPY_SLICE, part->n, part->cols, node->out_dtype, tape->birth);
    if (!tape_needs(node, 0)) {
        ftmem__release(tape, result[0]);
        result[0] = -1;
        return;
    }
    zeros = ftmem__alloc(tape, FTMEM__OP_COPY_SLICE, part->n, part->cols, node->out_dtype, tape->birth);
    ftmem__release(tape, zeros);
}

static void tape_saved(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    int32_t k;
    for (k = 0; k < node->inputs; k++) {
        if (!tape_needs(node, k) || k >= node->held) continue;
        result[k] = node->save[k];
        ftmem__hold(tape, result[k]);
    }
}

static void tape_over(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    int32_t k;
    int16_t work;
    for (k = 0; k < node->inputs; k++) {
        if (!tape_needs(node, k)) continue;
        if (k == 0 && node->held > 0) {
            result[0] = node->save[0];
            ftmem__hold(tape, result[0]);
            continue;
        }
        result[k] = ftmem__alloc(tape, (ftmem__op)node->op, node->in[k].n, node->in[k].cols, node->in[k].dtype, tape->birth);
    }
    work = ftmem__alloc_bytes(tape, (ftmem__op)node->op, node->work, FTMEM_CLASS_WORKSPACE);
    ftmem__release(tape, work);
    tape->flops += node->flops;
}

/* trl/kernels/chunked_logprob.py: what stands while the last tile does. A loop's name is bound to a new copy of words while it holds the old one. */
static void tape_tile_loop(ftmem__tape *tape, const ftmem__node *node, int16_t held[3])
{
    const ftmem__var *in = node->in;
    int32_t dtype = in[2].dtype;
    int64_t last = in[1].n % (FTMEM__TILE_WORDS * in[0].cols);
    held[0] = ftmem__alloc(tape, FTMEM__OP_TILES, ftmem__tile_rows(in) * FTMEM__TILE_WORDS, tape->big_cols, dtype, tape->birth);
    tape_first_matmul(tape);
    if (in[0].dtype != dtype) held[1] = ftmem__alloc(tape, FTMEM__OP_TILES, ftmem__tile_rows(in) * in[0].cols, in[0].cols, dtype, tape->birth);
    if (in[1].dtype == dtype) return;
    held[2] = ftmem__alloc(tape, FTMEM__OP_TILES, ftmem__tile_words(in), in[0].cols, dtype, tape->birth);
    if (ftmem__tile_words(in) == in[1].n) return;
    if (in[1].n >= 3 * ftmem__tile_words(in)) ftmem__release(tape, ftmem__alloc(tape, FTMEM__OP_TILES, ftmem__tile_words(in), in[0].cols, dtype, tape->birth));
    if (last == 0) return;
    last = ftmem__alloc(tape, FTMEM__OP_TILES, last, in[0].cols, dtype, tape->birth);
    ftmem__release(tape, held[2]);
    held[2] = (int16_t)last;
}

static void tape_tiles(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    int16_t sum[2] = { -1, -1 }, held[3] = { -1, -1, -1 };
    int32_t k;
    for (k = 0; k < 2; k++)
        if (tape_needs(node, k)) sum[k] = ftmem__alloc(tape, FTMEM__OP_TILES, node->in[k].n, node->in[k].cols, FTMEM_FP32, tape->birth);
    tape_tile_loop(tape, node, held);
    for (k = 0; k < 2; k++) {
        if (sum[k] < 0) continue;
        if (node->in[2].dtype != FTMEM_FP32) tape->flops += 2.0 * (double)node->out_n * (double)node->in[1].n; /* addmm_ is not in torch's counter */
        result[k] = sum[k];
        if (node->in[k].dtype == FTMEM_FP32) continue;
        result[k] = ftmem__alloc(tape, FTMEM__OP_TILES, node->in[k].n, node->in[k].cols, node->in[k].dtype, tape->birth);
    }
    tape->flops += 2.0 * (double)node->out_n * (double)node->in[1].n;
    for (k = 0; k < 2; k++)
        if (sum[k] != result[k]) ftmem__release(tape, sum[k]);
    for (k = 0; k < 3; k++) ftmem__release(tape, held[k]);
}

static void tape_gradients(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    switch (tape_rows[node->op].backward) {
    case TAPE_PASS: tape_pass(tape, node, node->grad[0], result); break;
    case TAPE_MAP: tape_map(tape, node, result); break;
    case TAPE_CONV: tape_convolution(tape, node, result); break;
    case TAPE_MATMUL: tape_matmul(tape, node, result); break;
    case TAPE_SAVED: tape_saved(tape, node, result); break;
    case TAPE_OVER: tape_over(tape, node, result); break;
    case TAPE_TILES: tape_tiles(tape, node, result); break;
    case TAPE_COPY: tape_copy(tape, node, result); break;
    case TAPE_MINUS: tape_minus(tape, node, node->grad[0], result); break;
    case TAPE_SPLIT: tape_join(tape, node, result); break;
    case TAPE_SOFTMAX: tape_softmax(tape, node, result); break;
    default: tape_spread(tape, node, result); break;
    }
}

/* Views of the gradient as CAT hands them out need no sum; ADD's do when an operand was broadcast. */
static void tape_fit_all(ftmem__tape *tape, const ftmem__node *node, int16_t result[3])
{
    uint8_t kind = tape_rows[node->op].backward;
    int32_t k;
    if ((kind != TAPE_PASS && kind != TAPE_MAP && kind != TAPE_MINUS && kind != TAPE_MATMUL && kind != TAPE_CONV) || node->op == FTMEM__OP_CAT ||
        node->op == FTMEM__OP_CLONE)
        return;
    for (k = 0; k < node->inputs; k++)
        if (result[k] >= 0)
            result[k] = tape_fit(tape, node, k, result[k], kind == TAPE_MATMUL || kind == TAPE_CONV ? node->in[k].n : node->out_n, node->out_dtype);
}

static void tape_forget(ftmem__tape *tape, ftmem__node *node)
{
    while (node->held > 0) ftmem__release(tape, node->save[--node->held]);
}

static bool tape_reached(const ftmem__node *node)
{
    int32_t k;
    for (k = 1; k < node->outs; k++)
        if (node->grad[k] >= 0) return true;
    return node->grad[0] >= 0;
}

/* torch/csrc/autograd/functions/accumulate_grad.h: a parameter copies a gradient that another operand of a sum holds too. */
static int16_t tape_own(ftmem__tape *tape, const ftmem__node *node, int32_t k, int16_t gradient)
{
    int16_t copy;
    if (node->in[k].node != FTMEM__LEAF || node->op != FTMEM__OP_ADD || tape->stores[gradient].refs == 1 || tape->sum_leaves) return gradient;
    copy = ftmem__alloc(tape, FTMEM__OP_GRADIENT, node->in[k].n, node->in[k].cols, node->in[k].dtype, tape->birth);
    ftmem__release(tape, gradient);
    return copy;
}

/* One node: its results exist beside its gradient and all it saved; then those go, then the results are handed on. What a
   checkpoint made again is let go as soon as the formula has used it (torch/utils/checkpoint.py unpack_hook pops it), before
   results are summed and cast. */
static void tape_step(ftmem__tape *tape, ftmem__node *node)
{
    int16_t result[3] = { -1, -1, -1 };
    int32_t k;
    bool reached = tape_reached(node);
    tape->part = node->part;
    if (reached) tape_gradients(tape, node, result);
    if (tape->replay) tape_forget(tape, node);
    tape_fit_all(tape, node, result);
    for (k = 0; k < node->outs && reached; k++) ftmem__release(tape, node->grad[k]);
    tape_forget(tape, node);
    for (k = 0; k < node->inputs; k++)
        if (result[k] >= 0) tape_deliver(tape, &node->in[k], tape_own(tape, node, k, result[k]));
    if (node->fourth && reached && tape->fourth_gradient >= 0) tape_deliver(tape, &tape->fourth[node->fourth - 1], tape->fourth_gradient);
}

void ftmem__backward_rest(ftmem__tape *tape)
{
    tape->backward = true;
    tape->stopped = false;
    while (tape->nodes > 0 && !tape->captured) tape_step(tape, &tape->node[--tape->nodes]);
    if (!tape->captured) tape_update(tape, tape->waiting);
    tape->waiting = -1;
}

void ftmem__also(ftmem__tape *tape, ftmem__var value, int16_t gradient)
{
    tape->also = value;
    tape->also_gradient = gradient;
}

void ftmem__backward(ftmem__tape *tape, ftmem__var root, int16_t gradient)
{
    int16_t also = tape->also_gradient;
    ftmem__deliver(tape, root, gradient);
    if (also >= 0) {
        ftmem__hold(tape, also);
        ftmem__deliver(tape, tape->also, also);
    }
    ftmem__backward_rest(tape);
    if (also < 0) return;
    ftmem__drop(tape, tape->also);
    ftmem__release(tape, also);
    tape->also_gradient = -1;
}

void ftmem__backward_above(ftmem__tape *tape, ftmem__var root, int16_t gradient, int32_t last)
{
    tape->backward = true;
    ftmem__deliver(tape, root, gradient);
    while (tape->nodes > last + 1 && !tape->captured) tape_step(tape, &tape->node[--tape->nodes]);
}

int32_t ftmem__last_saving(const ftmem__tape *tape)
{
    int32_t i = tape->nodes - 1;
    while (i >= 0 && !tape->node[i].saves) i--;
    return i;
}

static int64_t tape_bind(ftmem__tape *tape, const ftmem__node *node)
{
    int64_t sum = 0;
    int32_t k;
    for (k = 0; k < node->held; k++) {
        ftmem__store *s = &tape->stores[node->save[k]];
        if (node->save[k] < 0 || s->bound) continue;
        s->bound = true;
        s->refs++;
        sum += s->bytes;
    }
    return sum;
}

int64_t ftmem__hold_history(ftmem__tape *tape, ftmem__var value)
{
    bool reached[FTMEM__MAX_NODES] = { false };
    int64_t sum = 0;
    int32_t i, k;
    if (value.node < 0) return 0;
    reached[value.node] = true;
    for (i = value.node; i >= 0; i--) {
        const ftmem__node *node = &tape->node[i];
        if (!reached[i]) continue;
        for (k = 0; k < node->inputs; k++)
            if (node->in[k].grad && node->in[k].node >= 0) reached[node->in[k].node] = true;
        sum += tape_bind(tape, node);
    }
    return sum;
}

void ftmem__replay(ftmem__tape *tape, int32_t last)
{
    tape->backward = false;
    tape->replay = true;
    tape->mode = FTMEM__RECORD;
    tape->nodes = tape->fourths = 0;
    tape->stop_after = last;
}

void ftmem__cache_hold(ftmem__tape *tape, ftmem__var value, bool outputs)
{
    if (value.store < 0) return;
    if (outputs && tape->mode == FTMEM__RECORD) tape_attribute(tape, value.store);
    else if (!tape->stores[value.store].cached) {
        tape->stores[value.store].cached = true;
        ftmem__hold(tape, value.store);
    }
}

void ftmem__cache_clear(ftmem__tape *tape)
{
    int16_t i;
    tape->input_cast.store = -1;
    for (i = 0; i < tape->high; i++) {
        ftmem__store *s = &tape->stores[i];
        if (s->refs == 0 || !s->cached) continue;
        s->cached = false;
        ftmem__release(tape, i);
    }
}
