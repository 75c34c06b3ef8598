#include "objective.h"
#include "optimizer.h"
#include "walk.h"

typedef struct walk_probe { /* set for a second run */
    ftmem__capture *capture;
    void *context;
    int32_t event;
} walk_probe;

typedef struct walk_stream { /* of hidden states, between two segments */
    bool grad;
    uint8_t dtype;
} walk_stream;

static bool walk_recomputed(const ftmem__shape *shape, int64_t layer)
{
    const ftmem_job *job = shape->job;
    if (job->recompute == FTMEM_RECOMPUTE_NONE || layer % job->recompute_every != 0) return false;
    if (job->recompute_first > 0 && layer >= job->recompute_first) return false;
    return job->recompute_last == 0 || layer >= shape->model->layers - job->recompute_last;
}

/* Widths and sharing of a block that has its own. */
static void walk_by_kind(ftmem__walk *walk, uint8_t kind, ftmem__low *low)
{
    walk->own = *low->shape;
    ftmem__shape_by_kind(&walk->own, kind);
    low->shape = &walk->own;
    low->stores = low->shape->family->by_kind && (kind & FTMEM__LAYER_STORES) != 0;
    low->reuses = low->shape->family->by_kind && (kind & FTMEM__LAYER_REUSES) != 0;
    low->kind = ftmem__layer_attention(kind);
}

/* A compiled block keeps what these kernels keep: a norm its input and a number a row, the rotation nothing, the MLP gate and up. */
enum { WALK_COMPILED = FTMEM_FUSED_NORM | FTMEM_FUSED_ROPE | FTMEM_FUSED_MLP };

static ftmem__low walk_low(ftmem__walk *walk, int32_t stack, const ftmem__kind *kind, int32_t pass)
{
    const ftmem__shape *shape = walk->stack[stack].shape;
    ftmem__low low = { 0 };
    low.tape = &walk->tape;
    low.shape = shape;
    low.side = walk->side;
    low.b = pass == FTMEM__PASS_EVAL ? shape->eval_b : shape->b;
    low.tokens = low.b * shape->s;
    low.training = pass != FTMEM__PASS_EVAL;
    low.trained = kind ? kind->trained : shape->rest_trained;
    low.adapted = kind && kind->adapted;
    low.kind = kind ? ftmem__layer_attention(kind->kind) : 0;
    low.mlp = kind ? ftmem__layer_mlp(kind->kind) : 0;
    low.first = kind && kind->first;
    if (kind && (shape->family->by_kind || shape->family->by_width)) walk_by_kind(walk, kind->kind, &low);
    low.kernels = shape->job->kernels | (kind && (shape->job->compile & FTMEM_COMPILE_BLOCKS) ? WALK_COMPILED : 0);
    return low;
}

static void walk_listen(ftmem__tape *tape, const walk_probe *probe)
{
    if (!probe) return;
    tape->capture = probe->capture;
    tape->context = probe->context;
    tape->stop_at = probe->event ? probe->event : -1;
}

/* Whether gradients of parameters are there already: of an earlier micro-batch, or of a later block's use where all blocks are one
   module, the last one's use being the first that backward comes to. */
static bool walk_sums(const ftmem__walk *walk, const ftmem__kind *kind, int32_t pass)
{
    if (kind && walk->shape.family->shared_blocks && !kind->first) return !kind->last;
    return pass == FTMEM__PASS_BACKWARD_LATER;
}

/* Gradients are used up as they arrive. */
static void walk_update(ftmem__walk *walk, const ftmem__kind *kind)
{
    walk->tape.update = ftmem__update_of;
    walk->tape.updater = walk->shape.job;
    walk->tape.update_waits = ftmem__optimizer_of(walk->shape.job)->waits;
    walk->tape.in_block = kind != NULL;
}

static void walk_start(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__tape_start(tape, ftmem__task_of_vocab(walk->shape.job->task) ? walk->shape.vocab : -1);
    tape->sum_leaves = walk_sums(walk, kind, pass);
    tape->shared_casts = kind && walk->shape.family->shared_blocks && !kind->first;
    if (pass == FTMEM__PASS_EVAL) tape->mode = FTMEM__NO_GRAD;
    if (ftmem__updates_in_backward(walk->shape.job)) walk_update(walk, kind);
    tape->later.wanted = !probe && (walk->shape.job->accumulation > 1 || walk->shape.regularised);
    walk_listen(tape, probe);
}

/* Of the part of a pass since its first backward matmul, or of all of it. */
static ftmem__figure walk_late(const ftmem__tape *tape, int64_t base)
{
    ftmem__figure f;
    f.peak = tape->peak - base;
    f.delta = tape->live - base;
    f.event = tape->peak_event;
    return f;
}

/* Of the part before; the whole pass where it has no matmul. */
static ftmem__figure walk_early(const ftmem__tape *tape, int64_t base)
{
    ftmem__figure f = walk_late(tape, base);
    if (tape->early < 0) return f;
    f.peak = tape->early - base;
    f.event = tape->early_event;
    return f;
}

static ftmem__figure walk_figure(const ftmem__tape *tape, int64_t base)
{
    return tape->early > tape->peak ? walk_early(tape, base) : walk_late(tape, base);
}

/* The figure of a later micro-batch's backward, from the first one's. */
static ftmem__figure walk_later(const ftmem__tape *tape)
{
    const ftmem__later *later = &tape->later;
    bool early = tape->early >= 0 && later->early > later->peak;
    ftmem__figure f;
    f.peak = (early ? later->early : later->peak) - later->base;
    f.delta = tape->live - later->freed - later->base;
    f.event = early ? later->early_event : later->event;
    return f;
}

static void walk_end(ftmem__walk *walk, const walk_probe *probe)
{
    walk->exhausted = walk->exhausted || walk->tape.exhausted;
    if (probe && probe->event == FTMEM__EVENT_END) probe->capture(probe->context, &walk->tape, FTMEM__OP_END);
}

static int64_t walk_cache_only(const ftmem__tape *tape)
{
    int64_t sum = 0;
    int16_t i;
    for (i = 0; i < tape->high; i++)
        if (tape->stores[i].refs == 1 && tape->stores[i].cached) sum += tape->stores[i].bytes;
    return sum;
}

/* Bytes that nodes hold as attributes, each tensor once. */
static int64_t walk_attributes(const ftmem__tape *tape)
{
    int64_t sum = 0;
    int32_t i, j;
    for (i = 0; i < tape->attributes; i++) {
        for (j = 0; j < i && tape->attribute[j] != tape->attribute[i]; j++) continue;
        if (j == i) sum += tape->stores[tape->attribute[i]].bytes;
    }
    return sum;
}

/* -------------------------------------------------------------------------------------------------------- sides */

/* Sides stand on the segment's tape before it starts, and are held throughout: whatever it does with them, they are not its. */
static void walk_give(const ftmem__walk *walk, int32_t stack, uint8_t given, int32_t pass, ftmem__low *low)
{
    int32_t k, eval = pass == FTMEM__PASS_EVAL;
    low->given = given;
    if (!given) return;
    for (k = 0; k < FTMEM__SIDES; k++) {
        const ftmem__side *side = &walk->stack[stack].side[k];
        if (given >> k & 1) low->side[k] = ftmem__side_input(low->tape, k, side->n[eval], side->cols, side->dtype, side->grad && !eval);
    }
}

static int64_t walk_given_bytes(const ftmem__low *low)
{
    int64_t sum = 0;
    int32_t k;
    for (k = 0; k < FTMEM__SIDES && low->given; k++)
        if (low->given >> k & 1) sum += low->tape->stores[low->side[k].store].bytes;
    return sum;
}

/* Keys and values that a block stores for later ones; a reentrant checkpoint makes them without a graph. */
static bool walk_is_stored(int32_t side)
{
    return side >= FTMEM__SIDE_KEYS;
}

static int64_t walk_made_bytes(const ftmem__low *low)
{
    int64_t sum = 0;
    int32_t k;
    for (k = 0; k < FTMEM__SIDES && low->made; k++)
        if (low->made >> k & 1) sum += low->tape->stores[low->side[k].store].bytes;
    return sum;
}

static void walk_record_side(ftmem__side *side, const ftmem__tape *tape, ftmem__var value, int32_t pass, bool stored)
{
    int32_t eval = pass == FTMEM__PASS_EVAL;
    side->there = true;
    side->n[eval] = value.n;
    side->bytes[eval] = tape->stores[value.store].bytes;
    side->outputs = tape->stores[value.store].refs > 1;
    if (eval) return;
    side->cols = value.cols;
    side->dtype = value.dtype;
    side->grad = tape->graphless ? !stored : value.grad; /* torch/utils/checkpoint.py CheckpointFunction: all its results ask for one */
    side->leaf = value.node <= FTMEM__SIDE && !tape->graphless;
}

/* The dictionary of stored keys and values is an argument of every block, which checkpoints hold: to the end of the first one's backward. */
static bool walk_binds(const ftmem__shape *shape)
{
    return shape->job->recompute != FTMEM_RECOMPUTE_NONE;
}

/* What a forward has made for the segments after it, and whether its graph keeps what it read. */
static void walk_record_sides(ftmem__stack *stack, ftmem__kind *kind, const ftmem__low *low, int32_t pass, bool recomputed)
{
    ftmem__tape *tape = low->tape;
    int32_t k;
    bool keeps;
    if (!(low->made | low->given)) return;
    for (k = 0; k < FTMEM__SIDES; k++) {
        int16_t store = low->side[k].store;
        if (low->made >> k & 1) {
            walk_record_side(&stack->side[k], tape, low->side[k], pass, walk_is_stored(k));
            if (pass == FTMEM__PASS_FORWARD) stack->side[k].kept = stack->side[k].own = tape->stores[store].refs > 1;
            if (walk_is_stored(k) && walk_binds(low->shape)) stack->side[k].kept = true;
        } else if (low->given >> k & 1 && pass == FTMEM__PASS_FORWARD) {
            keeps = recomputed || tape->stores[store].refs > 1;
            stack->side[k].kept = stack->side[k].kept || keeps;
            if (keeps && kind->first && (k != FTMEM__SIDE_SOURCE || !ftmem__holds_outputs(low->shape->job))) kind->freed |= (uint8_t)(1u << k);
        }
    }
}

/* Before a block's backward: gradients of sides that blocks above it have summed already. */
static void walk_side_gradients(const ftmem__walk *walk, const ftmem__kind *kind, const ftmem__low *low, int16_t gradient[FTMEM__SIDES])
{
    ftmem__tape *tape = low->tape;
    int32_t k;
    if (!(kind->given | kind->made)) return;
    for (k = 0; k < FTMEM__SIDES; k++) {
        const ftmem__side *side = &walk->stack[kind->stack].side[k];
        gradient[k] = -1;
        if (walk_is_stored(k) && low->shape->model->shared_kv_layers == 0) continue; /* nobody takes them */
        if (!((kind->given | kind->made) >> k & 1) || kind->fresh >> k & 1 || !side->grad) continue;
        gradient[k] = ftmem__alloc(tape, FTMEM__OP_GRADIENT, side->n[0], side->cols, side->dtype, FTMEM_CLASS_TEMPORARY);
        if (kind->given >> k & 1 || side->leaf) tape->grad_side[k] = gradient[k];
    }
}

static void walk_deliver_sides(const ftmem__low *low, const int16_t gradient[FTMEM__SIDES])
{
    int32_t k;
    for (k = 0; k < FTMEM__SIDES && low->made; k++)
        if (low->made >> k & 1 && gradient[k] >= 0 && low->side[k].node > FTMEM__SIDE) ftmem__deliver(low->tape, low->side[k], gradient[k]);
}

/* torch/utils/checkpoint.py CheckpointFunction.backward: the arriving gradients of its results (zeros where none has
   arrived) are arguments, held while the block runs again and backward; what was an input is a leaf of its own. */
static void walk_reentrant_sides(const ftmem__walk *walk, const ftmem__kind *kind, ftmem__tape *tape, int16_t gradient[FTMEM__SIDES])
{
    int32_t k;
    for (k = FTMEM__SIDE_SOURCE + 1; k < FTMEM__SIDE_LAYERS; k++) {
        const ftmem__side *side = &walk->stack[kind->stack].side[k];
        if (!((kind->given | kind->made) >> k & 1) || !side->grad) continue;
        if (kind->fresh >> k & 1) gradient[k] = ftmem__alloc(tape, FTMEM__OP_GRADIENT, side->n[0], side->cols, side->dtype, FTMEM_CLASS_TEMPORARY);
        ftmem__hold(tape, gradient[k]);
        tape->grad_side[k] = kind->given >> k & 1 ? gradient[k] : -1;
    }
    tape->grad_side[FTMEM__SIDE_SOURCE] = tape->grad_side[FTMEM__SIDE_LAYERS] = -1;
}

/* The gradient of the block's part of the layers' inputs, which was a leaf, is filled into zeros of all of them. */
static void walk_reentrant_layers(const ftmem__walk *walk, const ftmem__kind *kind, ftmem__tape *tape, int16_t sum)
{
    const ftmem__side *side = &walk->stack[kind->stack].side[FTMEM__SIDE_LAYERS];
    int16_t part = tape->grad_side[FTMEM__SIDE_LAYERS], all;
    if (!(kind->given >> FTMEM__SIDE_LAYERS & 1) || part < 0) return;
    all = ftmem__alloc(tape, FTMEM__OP_SLICE, side->n[0], side->cols, side->dtype, FTMEM_CLASS_TEMPORARY);
    ftmem__release(tape, part);
    if (sum >= 0) ftmem__release(tape, all);
}

/* What the first block has made again takes its gradient, if it asks for one. */
static void walk_reentrant_made(const ftmem__low *low, const int16_t gradient[FTMEM__SIDES])
{
    ftmem__tape *tape = low->tape;
    int32_t k;
    for (k = 0; k < FTMEM__SIDES && low->made; k++) {
        if (!(low->made >> k & 1) || gradient[k] < 0) continue;
        if (low->side[k].grad) ftmem__deliver(tape, low->side[k], gradient[k]);
        else ftmem__release(tape, gradient[k]);
    }
}

/* It returns: its arguments go, and the sum of the block's own leaves joins what has arrived from the blocks above. */
static void walk_reentrant_end(const ftmem__low *low, const int16_t gradient[FTMEM__SIDES])
{
    ftmem__tape *tape = low->tape;
    int16_t source = gradient[FTMEM__SIDE_SOURCE], *sum = &tape->grad_side[FTMEM__SIDE_SOURCE];
    int32_t k;
    for (k = FTMEM__SIDE_SOURCE + 1; k < FTMEM__SIDE_LAYERS; k++) {
        ftmem__release(tape, gradient[k]);
        if (!(low->made >> k & 1)) continue;
        ftmem__release(tape, tape->grad_side[k]);
        tape->grad_side[k] = -1;
    }
    if (source < 0) return;
    ftmem__release(tape, *sum);
    *sum = source;
}

static void walk_drop_freed(const ftmem__kind *kind, const ftmem__low *low)
{
    int32_t k;
    for (k = 0; k < FTMEM__SIDES && kind->freed; k++)
        if (kind->freed >> k & 1) ftmem__drop(low->tape, low->side[k]);
}

/* The frame that held what a block made has returned. */
static void walk_drop_made(const ftmem__low *low)
{
    int32_t k;
    for (k = 0; k < FTMEM__SIDES && low->made; k++)
        if (low->made >> k & 1 && !(walk_is_stored(k) && walk_binds(low->shape))) ftmem__drop(low->tape, low->side[k]);
}

/* A block that stores keys and values again, when it is recomputed, lets those of the forward go. */
static void walk_give_stored(const ftmem__walk *walk, const ftmem__kind *kind, ftmem__low *low)
{
    int32_t k;
    low->replaces = (kind->made >> FTMEM__SIDE_KEYS) != 0;
    for (k = FTMEM__SIDE_KEYS; k < FTMEM__SIDES && low->replaces; k++) {
        const ftmem__side *side = &walk->stack[kind->stack].side[k];
        low->stored[k - FTMEM__SIDE_KEYS].store =
            kind->made >> k & 1 ? ftmem__alloc(low->tape, FTMEM__OP_INPUT, side->n[0], side->cols, side->dtype, FTMEM_CLASS_KEPT) : -1;
    }
}

/* ------------------------------------------------------------------------------------------------------- blocks */

/* Notes what a block's forward leaves alive, its result not counted. */
static void walk_note_kept(ftmem__walk *walk, ftmem__kind *kind)
{
    const ftmem__tape *tape = &walk->tape;
    int32_t count = walk->kept_count;
    int16_t i;
    kind->kept_from = count;
    kind->kept_count = -1;
    for (i = 0; i < tape->high; i++) {
        if (tape->stores[i].refs <= 0 || i == tape->result) continue;
        if (count == FTMEM__MAX_KEPT) return;
        walk->kept[count++] = tape->stores[i];
    }
    kind->kept_count = count - kind->kept_from;
    walk->kept_count = count;
}

/* What a checkpoint keeps lives in CPU memory until its recomputation (unsloth_zoo/gradient_checkpointing.py
   Unsloth_Offloaded_Gradient_Checkpointer, torchtune and TRL OffloadActivations). */
static bool walk_offloads(const ftmem__walk *walk)
{
    return walk->shape.job->offload_checkpoints == FTMEM_ON;
}

/* A forward that backward goes on from. */
typedef struct walk_run {
    ftmem__low low;
    ftmem__var out;
    int32_t nodes; /* of a checkpointed block: its graph, still on the tape */
} walk_run;

/* What a block makes counts apart from it once it has returned. */
static void walk_mark_made(const ftmem__low *low)
{
    int32_t k;
    for (k = 0; k < FTMEM__SIDES && low->made; k++)
        if (low->made >> k & 1 && low->side[k].store >= 0) low->tape->stores[low->side[k].store].side = true;
}

/* What the block before has chosen is an argument of this one, and a checkpoint keeps it; where that block was itself handed
   it, an earlier checkpoint keeps it already. */
static ftmem__var walk_handed(const ftmem__kind *kind, ftmem__low *low, bool recomputed)
{
    if (!low->shape->family->hands_index || !(kind->kind & FTMEM__LAYER_HANDED) || (recomputed && !(kind->kind & FTMEM__LAYER_HANDED_NEW)))
        return ftmem__constant(0, 0, FTMEM_FP32);
    return ftmem__low_choice(low);
}

/* A reentrant checkpoint keeps its arguments as long as its loss lives. */
static int64_t walk_bound_bytes(const ftmem__low *low, ftmem__var handed, bool recomputed)
{
    if (!recomputed || handed.store < 0 || low->shape->job->recompute != FTMEM_RECOMPUTE_REENTRANT) return 0;
    return low->tape->stores[handed.store].bytes;
}

static bool walk_declares(const ftmem__walk *walk, const ftmem__kind *kind)
{
    return (kind->first || !walk->shape.family->shared_blocks) && &walk->kind[kind->like] == kind;
}

/* What it leaves goes with the outputs, and its parameters get no gradient. */
static void walk_unread(ftmem__walk *walk, ftmem__kind *kind, int64_t left)
{
    bool held = ftmem__holds_outputs(walk->shape.job);
    int32_t i;
    if (held) kind->outputs_bytes = left - kind->cache_bytes;
    else kind->cache_bytes = left;
    for (i = 0; i < walk->params.count; i++) {
        ftmem__param *p = &walk->params.at[i];
        if (p->segment != kind - walk->kind || !p->trained) continue;
        p->idle = true;
        p->trained = false;
    }
}

/* The forward of one block: ordinary, or checkpointed, where only the input stays. */
static ftmem__figure walk_block_forward(ftmem__walk *walk, ftmem__kind *kind, bool recomputed, int32_t pass, const walk_probe *probe, walk_run *result)
{
    ftmem__low low = walk_low(walk, kind->stack, kind, pass);
    ftmem__tape *tape = &walk->tape;
    int64_t base;
    ftmem__var x, out, handed;
    walk_start(walk, kind, pass, probe);
    tape->no_grad = kind->cut;
    if (recomputed && pass == FTMEM__PASS_FORWARD) {
        tape->mode = FTMEM__FORGET;
        tape->graphless = walk->shape.job->recompute == FTMEM_RECOMPUTE_REENTRANT;
        tape->shadow = !tape->graphless && !probe;
        tape->policy = (uint8_t)walk->shape.job->recompute_save;
    }
    x = ftmem__input(tape, low.tokens * low.shape->h, low.shape->h, kind->in_dtype, kind->in_grad && pass != FTMEM__PASS_EVAL);
    walk_give(walk, kind->stack, kind->given, pass, &low);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe && walk_declares(walk, kind)) low.params = &walk->params;
    handed = walk_handed(kind, &low, recomputed && pass == FTMEM__PASS_FORWARD);
    out = ftmem__low_block(&low, x);
    if (!recomputed || pass != FTMEM__PASS_FORWARD) ftmem__drop(tape, handed);
    if ((!recomputed || !out.grad || walk_offloads(walk)) && kind->unread != 1) ftmem__drop(tape, x);
    if (!probe) walk_record_sides(&walk->stack[kind->stack], kind, &low, pass, recomputed);
    if (pass == FTMEM__PASS_FORWARD) {
        kind->made = low.made;
        kind->out_grad = out.grad;
        kind->out_dtype = out.dtype;
        kind->in_kept = tape->input >= 0 && x.store != out.store;
        kind->in_bytes = ftmem__round512(ftmem__bytes(kind->in_dtype, x.n));
        kind->cache_bytes = walk_cache_only(tape);
        kind->attribute_bytes = walk_attributes(tape);
        kind->outputs_bytes = walk_bound_bytes(&low, handed, recomputed);
        kind->born_bytes =
            tape->live - kind->cache_bytes - (kind->in_kept || out.store < 0 ? 0 : tape->stores[out.store].bytes); /* no store: the tape was too short */
        if (kind->in_kept) kind->born_bytes -= kind->in_bytes;
        kind->born_bytes -= walk_given_bytes(&low);
        kind->flops_forward = tape->flops;
        if (kind->unread) walk_unread(walk, kind, tape->live - base);
    }
    if (pass == FTMEM__PASS_EVAL) kind->eval_cache_bytes = walk_cache_only(tape);
    tape->result = out.store;
    walk_mark_made(&low);
    if (pass == FTMEM__PASS_FORWARD && !probe) walk_note_kept(walk, kind);
    walk_end(walk, probe);
    if (result) {
        result->low = low;
        result->out = out;
        result->nodes = tape->nodes;
    }
    return walk_figure(tape, base);
}

/* Backward from a value whose forward has just been recorded on the tape; nobody holds the value any more. */
static ftmem__figure walk_backward_from(ftmem__walk *walk, const ftmem__kind *kind, walk_run run, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__var out = run.out;
    ftmem__figure f;
    int64_t base;
    int16_t g, side[FTMEM__SIDES];
    ftmem__cache_clear(tape);
    ftmem__drop(tape, out);
    walk_drop_made(&run.low);
    if (kind) walk_drop_freed(kind, &run.low);
    walk_listen(tape, probe);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    tape->backward = true;
    g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, out.n, out.cols, out.dtype, FTMEM_CLASS_TEMPORARY);
    if (kind) walk_side_gradients(walk, kind, &run.low, side);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (kind) walk_deliver_sides(&run.low, side);
    ftmem__backward(tape, out, g);
    f = walk_figure(tape, base);
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_plain_backward(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass, const walk_probe *probe)
{
    walk_run run;
    ftmem__var x;
    run.low = walk_low(walk, kind->stack, kind, pass);
    walk_start(walk, kind, pass, NULL);
    x = ftmem__input(&walk->tape, run.low.tokens * run.low.shape->h, run.low.shape->h, kind->in_dtype, kind->in_grad);
    walk_give(walk, kind->stack, kind->given, pass, &run.low);
    run.out = ftmem__low_block(&run.low, x);
    ftmem__drop(&walk->tape, x);
    return walk_backward_from(walk, kind, run, probe);
}

/* torch/utils/checkpoint.py _recomputation_hook: what is stored for later blocks has the graph of the recomputation, which holds
   what was saved on the way to it. */
static void walk_hold_stored(ftmem__low *low)
{
    int32_t k;
    for (k = FTMEM__SIDE_KEYS; k < FTMEM__SIDES; k++)
        if (low->made >> k & 1) low->bound_bytes += ftmem__hold_history(low->tape, low->side[k]);
}

/* The graph of a checkpointed forward: it is still on the tape, or built again. */
static ftmem__var walk_ghost(ftmem__walk *walk, ftmem__low *low, ftmem__var x, const walk_run *shadow)
{
    ftmem__tape *tape = &walk->tape;
    double flops = tape->flops;
    ftmem__var out;
    tape->mode = FTMEM__GHOST;
    tape->backward = false;
    if (shadow) {
        tape->nodes = shadow->nodes;
        low->made = shadow->low.made;
        return shadow->out;
    }
    out = ftmem__low_block(low, x);
    tape->flops = flops; /* nothing has been computed yet */
    return out;
}

/* torch.utils.checkpoint without reentrance: what saves nothing runs first, the first saved tensor that is asked for
   makes the block run again up to the last one, then backward goes on. */
static void walk_recompute(ftmem__walk *walk, ftmem__low *low, ftmem__var x, const walk_run *shadow, int16_t g, const int16_t side[FTMEM__SIDES])
{
    ftmem__tape *tape = &walk->tape;
    ftmem__var out = walk_ghost(walk, low, x, shadow);
    int32_t last = ftmem__last_saving(tape);
    walk_deliver_sides(low, side);
    ftmem__backward_above(tape, out, g, last);
    if (tape->captured) return;
    ftmem__replay(tape, last);
    tape->birth = FTMEM_CLASS_RECOMPUTED;
    low->made = 0;
    out = ftmem__low_block(low, x);
    ftmem__drop_attributes(tape);
    walk_hold_stored(low);
    walk_drop_made(low);
    ftmem__drop(tape, out);
    tape->stopped = false;
    ftmem__cache_clear(tape);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    ftmem__backward_rest(tape);
}

/* The reentrant form runs the whole block again and holds its output and the arriving gradient meanwhile. */
static void walk_recompute_reentrant(ftmem__walk *walk, const ftmem__kind *kind, ftmem__low *low, ftmem__var x, int16_t g, int16_t side[FTMEM__SIDES])
{
    ftmem__tape *tape = &walk->tape;
    bool sided = ((kind->given | kind->made) & ((1u << FTMEM__SIDE_KEYS) - 1)) != 0;
    ftmem__var out, zeros;
    tape->backward = false;
    tape->leaf_input = true;
    if (sided) walk_reentrant_sides(walk, kind, tape, side);
    zeros = ftmem__low_choice(low); /* the gradient of what it has handed on */
    low->holds_choice = true;
    tape->birth = FTMEM_CLASS_RECOMPUTED;
    out = ftmem__low_block(low, x);
    ftmem__cache_clear(tape);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    ftmem__hold(tape, g);
    walk_reentrant_made(low, side);
    ftmem__backward(tape, out, g); /* what it has stored is a dictionary's */
    ftmem__drop_attributes(tape);
    if (sided) walk_reentrant_end(low, side);
    walk_drop_made(low);
    if (low->has_choice) ftmem__drop(tape, low->choice);
    ftmem__drop(tape, zeros);
    ftmem__drop(tape, out);
    ftmem__release(tape, g);
    if (low->replaces) { /* the graph of what it has stored holds its leaf, and that leaf its gradient */
        ftmem__hold(tape, x.store);
        low->bound_bytes = 2 * tape->stores[x.store].bytes;
    }
    if (sided) walk_reentrant_layers(walk, kind, tape, side[FTMEM__SIDE_LAYERS]);
}

/* What a policy has saved stands on the tape before a block is recomputed: the first forward is run for it. */
static void walk_save_by_policy(ftmem__walk *walk, ftmem__low *low, ftmem__var x, walk_run *shadow)
{
    ftmem__tape *tape = &walk->tape;
    tape->mode = FTMEM__FORGET;
    tape->shadow = true;
    tape->policy = (uint8_t)walk->shape.job->recompute_save;
    shadow->out = ftmem__low_block(low, x);
    shadow->low = *low;
    shadow->nodes = tape->nodes;
    ftmem__drop(tape, shadow->out);
    ftmem__cache_clear(tape);
    tape->products = 0;
}

static ftmem__figure walk_checkpointed_backward(ftmem__walk *walk, ftmem__kind *kind, int32_t pass, const walk_run *shadow, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__low low = walk_low(walk, kind->stack, kind, pass);
    ftmem__figure f;
    ftmem__var x, handed;
    int64_t base;
    walk_run again;
    int16_t g, side[FTMEM__SIDES];
    bool selective = walk->shape.job->recompute_save > FTMEM_SAVE_NOTHING;
    walk_start(walk, kind, pass, selective ? NULL : probe);
    x = ftmem__input(tape, low.tokens * low.shape->h, low.shape->h, kind->in_dtype, kind->in_grad);
    walk_give(walk, kind->stack, kind->given, pass, &low);
    handed = walk_handed(kind, &low, true);
    if (selective) {
        walk_save_by_policy(walk, &low, x, &again);
        shadow = &again;
        walk_listen(tape, probe);
    }
    tape->birth = FTMEM_CLASS_TEMPORARY;
    g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, x.n, x.cols, kind->out_dtype, FTMEM_CLASS_TEMPORARY);
    walk_side_gradients(walk, kind, &low, side);
    walk_give_stored(walk, kind, &low);
    base = tape->live - (walk_offloads(walk) ? tape->stores[x.store].bytes : 0);
    ftmem__tape_mark(tape);
    if (walk->shape.job->recompute == FTMEM_RECOMPUTE_REENTRANT) walk_recompute_reentrant(walk, kind, &low, x, g, side);
    else walk_recompute(walk, &low, x, shadow, g, side);
    ftmem__drop_saved(tape);
    ftmem__drop(tape, x);
    if (walk->shape.job->recompute != FTMEM_RECOMPUTE_REENTRANT) ftmem__drop(tape, handed);
    walk_drop_freed(kind, &low);
    kind->bound_bytes = low.bound_bytes;
    kind->leaf_held = low.replaces && walk->shape.job->recompute == FTMEM_RECOMPUTE_REENTRANT;
    f = walk_figure(tape, base);
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_block_backward(ftmem__walk *walk, ftmem__kind *kind, int32_t pass, const walk_probe *probe)
{
    return kind->recomputed ? walk_checkpointed_backward(walk, kind, pass, NULL, probe) : walk_plain_backward(walk, kind, pass, probe);
}

/* Whether backward comes to a value that asks for a gradient. */
static bool walk_returns(const ftmem__walk *walk, bool grad)
{
    return grad && !walk->shape.forward_only;
}

static void walk_block(ftmem__walk *walk, ftmem__kind *kind)
{
    const ftmem_job *job = walk->shape.job;
    walk_run run;
    walk->params.segment = (int32_t)(kind - walk->kind);
    kind->pass[FTMEM__PASS_FORWARD] = walk_block_forward(walk, kind, kind->recomputed, FTMEM__PASS_FORWARD, NULL, &run);
    if (walk_returns(walk, kind->out_grad) && !kind->unread) {
        kind->pass[FTMEM__PASS_BACKWARD] =
            kind->recomputed ? walk_checkpointed_backward(walk, kind, FTMEM__PASS_BACKWARD, &run, NULL) : walk_backward_from(walk, kind, run, NULL);
        kind->flops_backward = walk->tape.flops;
        kind->leaf_bytes = walk->tape.leaf_bytes;
    }
    if (walk_returns(walk, kind->out_grad) && !kind->unread && walk->tape.later.wanted)
        kind->pass[FTMEM__PASS_BACKWARD_LATER] =
            walk->tape.later.differs ? walk_block_backward(walk, kind, FTMEM__PASS_BACKWARD_LATER, NULL) : walk_later(&walk->tape);
    if (walk->shape.regularised) kind->pass[FTMEM__PASS_BACKWARD] = kind->pass[FTMEM__PASS_BACKWARD_LATER]; /* gradients are there before */
    if (job->eval == FTMEM_ON) kind->pass[FTMEM__PASS_EVAL] = walk_block_forward(walk, kind, false, FTMEM__PASS_EVAL, NULL, NULL);
}

enum { WALK_KEYS = 3 << FTMEM__SIDE_KEYS, WALK_WINDOW_KEYS = 3 << FTMEM__SIDE_WINDOW_KEYS };

/* The keys and values that a block takes, of those that earlier ones have stored. */
static uint8_t walk_taken(uint8_t kind)
{
    if (!(kind & FTMEM__LAYER_REUSES)) return 0;
    return ftmem__layer_attention(kind) == FTMEM__LAYER_SLIDING ? WALK_WINDOW_KEYS : WALK_KEYS;
}

static uint8_t walk_sides_there(const ftmem__stack *stack, uint8_t kind)
{
    uint8_t given = 0, taken = stack->shape->family->by_kind ? walk_taken(kind) : 0;
    int32_t k;
    if (stack->shape->scattered) return 0; /* the embedding alone has read them */
    for (k = 0; k < FTMEM__SIDES; k++)
        if (stack->side[k].there && (k < FTMEM__SIDE_KEYS || taken >> k & 1)) given |= (uint8_t)(1u << k);
    return given;
}

/* Whether no later block takes what this one takes. */
static bool walk_takes_last(const ftmem__shape *shape, int64_t layer)
{
    uint8_t kind = ftmem__shape_layer_kind(shape, layer);
    int64_t i;
    for (i = layer + 1; i < shape->model->layers; i++)
        if (ftmem__shape_layer_kind(shape, i) == kind) return false;
    return true;
}

/* Sides whose first gradient comes from this block. */
static uint8_t walk_fresh(const ftmem__shape *shape, int64_t layer)
{
    uint8_t kind = ftmem__shape_layer_kind(shape, layer), fresh = layer == shape->model->layers - 1 ? (1u << FTMEM__SIDE_KEYS) - 1 : 0;
    if (!shape->sided) return 0;
    return shape->family->by_kind && kind & FTMEM__LAYER_REUSES && walk_takes_last(shape, layer) ? fresh | walk_taken(kind) : fresh;
}

static uint8_t walk_unread_place(const ftmem__shape *shape, int64_t layer)
{
    int64_t first = shape->model->layers - shape->unread;
    return layer < first ? 0 : layer == first ? 1 : 2;
}

/* Where blocks share sides, the first and the last are kinds of their own. */
static bool walk_same_place(const ftmem__shape *shape, const ftmem__kind *kind, int64_t layer)
{
    bool first = (shape->sided || shape->family->first_plain) && layer == 0;
    return first == kind->first && (shape->sided && layer == shape->model->layers - 1) == kind->last && walk_fresh(shape, layer) == kind->fresh;
}

/* Whether a block that is given this belongs to a kind. */
static bool walk_is_of(const ftmem__shape *shape, const ftmem__kind *kind, int64_t layer, walk_stream in)
{
    return in.grad == kind->in_grad && in.dtype == kind->in_dtype && ftmem__shape_layer_kind(shape, layer) == kind->kind &&
           ftmem__shape_layer_trained(shape, layer) == kind->trained && ftmem__shape_layer_adapted(shape, layer) == kind->adapted &&
           walk_recomputed(shape, layer) == kind->recomputed && walk_same_place(shape, kind, layer) && walk_unread_place(shape, layer) == kind->unread;
}

/* Kinds that differ in what comes to them have the same parameters. */
static int32_t walk_like(const ftmem__walk *walk, const ftmem__kind *kind)
{
    int32_t i;
    for (i = 0; i < walk->kinds - 1; i++) {
        const ftmem__kind *other = &walk->kind[i];
        bool same = other->stack == kind->stack && (other->kind & ~FTMEM__LAYER_STORES) == (kind->kind & ~FTMEM__LAYER_STORES) &&
                    other->trained == kind->trained && other->adapted == kind->adapted;
        if (same && walk->stack[kind->stack].shape->family->by_kind) return i;
    }
    return i;
}

static void walk_new_kind(ftmem__walk *walk, int32_t stack, int64_t layer, walk_stream in)
{
    const ftmem__shape *shape = walk->stack[stack].shape;
    ftmem__kind *kind = &walk->kind[walk->kinds++];
    memset(kind, 0, sizeof *kind);
    kind->stack = (uint8_t)stack;
    kind->kind = ftmem__shape_layer_kind(shape, layer);
    kind->trained = ftmem__shape_layer_trained(shape, layer);
    kind->adapted = ftmem__shape_layer_adapted(shape, layer);
    kind->in_grad = in.grad;
    kind->in_dtype = in.dtype;
    kind->recomputed = walk_recomputed(shape, layer);
    kind->unread = walk_unread_place(shape, layer);
    kind->cut = shape->tower && kind->recomputed && !in.grad && walk->shape.job->recompute == FTMEM_RECOMPUTE_REENTRANT;
    kind->first = (shape->sided || shape->family->first_plain) && layer == 0;
    kind->last = shape->sided && layer == shape->model->layers - 1;
    kind->fresh = walk_fresh(shape, layer);
    kind->given = walk_sides_there(&walk->stack[stack], kind->kind);
    kind->like = walk_like(walk, kind);
    walk_block(walk, kind);
}

/* The kind of one block, simulated if it is new; NULL when there are too many. Mostly that of the block before. */
static ftmem__kind *walk_layer(ftmem__walk *walk, int32_t stack, int64_t layer, ftmem__kind *before, walk_stream in)
{
    const ftmem__shape *shape = walk->stack[stack].shape;
    int32_t i;
    if (before && walk_is_of(shape, before, layer, in)) return before;
    for (i = 0; i < walk->kinds; i++)
        if (walk->kind[i].stack == stack && walk_is_of(shape, &walk->kind[i], layer, in)) return &walk->kind[i];
    if (i == FTMEM__MAX_KINDS) return NULL;
    walk_new_kind(walk, stack, layer, in);
    return &walk->kind[i];
}

/* ---------------------------------------------------------------------------------------------------- embedding */

/* The frame's name and the stream are one tensor. */
static bool walk_aliased(const ftmem__prologue *p, ftmem__var x)
{
    int32_t i;
    for (i = 0; i < p->held_count; i++)
        if (p->held[i].store == x.store) return true;
    return p->held_count == 0;
}

static void walk_embed_parts(ftmem__walk *walk, ftmem__ends *e, const ftmem__prologue *p, ftmem__var x)
{
    const ftmem__tape *tape = &walk->tape;
    int32_t i;
    e->held_bytes = e->mask_bytes = e->table_bytes = 0;
    for (i = 0; i < p->held_count; i++) e->held_bytes += tape->stores[p->held[i].store].bytes;
    for (i = 0; i < p->mask_count; i++) e->mask_bytes += tape->stores[p->masks[i].store].bytes;
    for (i = 0; i < 2; i++) e->kind_mask_bytes[i] = p->mask_of[i] ? tape->stores[p->masks[p->mask_of[i] - 1].store].bytes : 0;
    for (i = 0; i < 2 && p->has_tables; i++) e->table_bytes += tape->stores[p->tables[i].store].bytes;
    e->aliased = walk_aliased(p, x);
    e->out_grad = x.grad;
    e->out_dtype = x.dtype;
}

/* Of an embedding's sides: what the stack before it has made. */
static uint8_t walk_source(const ftmem__walk *walk, int32_t stack)
{
    return walk->stack[stack].side[FTMEM__SIDE_SOURCE].there ? 1u << FTMEM__SIDE_SOURCE : 0;
}

/* The words stand on the tape of the rest of the embedding as a block's input does on its own. */
static void walk_take_words(ftmem__walk *walk, int32_t pass, ftmem__low *low)
{
    const ftmem__ends *words = &walk->words;
    bool eval = pass == FTMEM__PASS_EVAL;
    if (!low->shape->scattered) return;
    walk->word = ftmem__input(&walk->tape, low->tokens * low->shape->h, low->shape->h, words->out_dtype, words->out_grad && !eval);
    if (words->leaf && !eval) ftmem__hold(&walk->tape, walk->word.store);
    low->words = &walk->word;
}

/* Those that the embedding's own graph keeps: the numbers of learned positions. */
static int64_t walk_masks_kept(const ftmem__tape *tape, const ftmem__prologue *p)
{
    int64_t sum = 0;
    int32_t i;
    for (i = 0; i < p->mask_count; i++)
        if (tape->stores[p->masks[i].store].refs > 0) sum += tape->stores[p->masks[i].store].bytes;
    return sum;
}

/* Forward of the embedding. The stream itself belongs to the first block, so it is not left here. */
static ftmem__figure walk_embed_forward(ftmem__walk *walk, int32_t stack, int32_t pass, const walk_probe *probe, walk_run *result)
{
    ftmem__low low = walk_low(walk, stack, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__ends *e = &walk->stack[stack].embed;
    ftmem__prologue p;
    ftmem__figure f;
    ftmem__var x;
    int64_t base;
    int32_t i;
    walk_start(walk, NULL, pass, probe);
    walk_give(walk, stack, walk_source(walk, stack), pass, &low);
    walk_take_words(walk, pass, &low);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe) low.params = &walk->params;
    x = ftmem__low_embed(&low, &p);
    if (pass == FTMEM__PASS_FORWARD) walk_embed_parts(walk, e, &p, x);
    if (!probe && low.made) walk_record_side(&walk->stack[stack].side[FTMEM__SIDE_LAYERS], tape, low.side[FTMEM__SIDE_LAYERS], pass, false);
    walk_mark_made(&low);
    tape->result = x.store;
    walk_end(walk, probe);
    f = walk_figure(tape, base);
    if (pass == FTMEM__PASS_EVAL) {
        e->eval_released_bytes = f.delta - walk_made_bytes(&low) - walk_cache_only(tape) - tape->stores[x.store].bytes +
                                 (low.words ? ftmem__round512(ftmem__bytes(low.words->dtype, low.words->n)) : 0);
        e->eval_aliased = walk_aliased(&p, x);
        e->eval_cache_bytes = walk_cache_only(tape);
        return f;
    }
    for (i = 0; i < p.held_count; i++) ftmem__drop(tape, p.held[i]);
    for (i = 0; i < p.mask_count && !(probe && walk->shape.require_input_grad); i++) ftmem__drop(tape, p.masks[i]);
    if (!probe) e->mask_bytes -= walk_masks_kept(tape, &p);
    e->released_bytes = f.delta - (tape->live - base);
    e->cache_bytes = walk_cache_only(tape);
    ftmem__cache_clear(tape);
    if (probe && probe->event == FTMEM__EVENT_RELEASED) probe->capture(probe->context, tape, FTMEM__OP_END);
    e->leaf_kept = x.node == FTMEM__LEAF;
    e->stream_kept = low.made && tape->stores[x.store].refs > 1 && x.node >= 0;
    ftmem__drop(tape, x);
    for (i = 0; i < 2 && p.has_tables; i++) ftmem__drop(tape, p.tables[i]);
    walk_drop_made(&low);
    e->kept_bytes = tape->live - base;
    if (result) {
        result->low = low;
        result->out = x;
    }
    return f;
}

/* Backward from a stream whose forward has just been recorded on the tape; nothing else of it is held any more. */
static ftmem__figure walk_embed_backward_from(ftmem__walk *walk, ftmem__ends *ends, walk_run run, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__var x = run.out, side = run.low.made ? run.low.side[FTMEM__SIDE_LAYERS] : x;
    bool made = run.low.made && side.grad;
    ftmem__figure f;
    int64_t base;
    int16_t g = -1, of_side = -1;
    tape->birth = FTMEM_CLASS_TEMPORARY;
    tape->backward = true;
    walk_listen(tape, probe);
    if (x.grad) g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, x.n, x.cols, x.dtype, FTMEM_CLASS_TEMPORARY);
    if (made) of_side = ftmem__alloc(tape, FTMEM__OP_GRADIENT, side.n, side.cols, side.dtype, FTMEM_CLASS_TEMPORARY);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (made && x.grad) ftmem__deliver(tape, side, of_side);
    ftmem__backward(tape, x.grad ? x : side, x.grad ? g : of_side);
    f = walk_figure(tape, base);
    ends->update_peak = tape->update_peak - base;
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_embed_backward(ftmem__walk *walk, int32_t stack, int32_t pass, const walk_probe *probe)
{
    ftmem__low low = walk_low(walk, stack, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__prologue p;
    walk_run run;
    ftmem__var x;
    int32_t i;
    walk_start(walk, NULL, pass, NULL);
    walk_give(walk, stack, walk_source(walk, stack), pass, &low);
    walk_take_words(walk, pass, &low);
    x = ftmem__low_embed(&low, &p);
    walk_mark_made(&low);
    walk_drop_made(&low);
    for (i = 0; i < p.held_count; i++) ftmem__drop(tape, p.held[i]);
    for (i = 0; i < p.mask_count; i++) ftmem__drop(tape, p.masks[i]);
    for (i = 0; i < 2 && p.has_tables; i++) ftmem__drop(tape, p.tables[i]);
    ftmem__cache_clear(tape);
    ftmem__drop(tape, x);
    run.low = low;
    run.out = x;
    return walk_embed_backward_from(walk, &walk->stack[stack].embed, run, probe);
}

/* ----------------------------------------------------------------------------------------- words before a tower */

static ftmem__figure walk_words_forward(ftmem__walk *walk, int32_t pass, const walk_probe *probe, ftmem__var *result)
{
    ftmem__low low = walk_low(walk, walk->stacks - 1, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__var x;
    int64_t base;
    walk_start(walk, NULL, pass, probe);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe) low.params = &walk->params;
    tape->part = FTMEM__PART_EMBEDDING;
    x = ftmem__low_words(&low);
    if (pass == FTMEM__PASS_FORWARD) {
        walk->words.out_grad = x.grad;
        walk->words.out_dtype = x.dtype;
        walk->words.leaf = x.node == FTMEM__LEAF;
        walk->words.flops_forward = tape->flops;
    }
    tape->result = x.store;
    walk_end(walk, probe);
    if (result) *result = x;
    return walk_figure(tape, base);
}

static ftmem__figure walk_words_backward(ftmem__walk *walk, int32_t pass, const walk_probe *probe)
{
    walk_run run = { 0 };
    (void)walk_words_forward(walk, pass, NULL, &run.out);
    ftmem__cache_clear(&walk->tape);
    ftmem__drop(&walk->tape, run.out);
    return walk_embed_backward_from(walk, &walk->words, run, probe);
}

static void walk_words(ftmem__walk *walk)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__ends *words = &walk->words;
    if (!walk->shape.scattered) return;
    memset(words, 0, sizeof *words);
    walk->params.segment = FTMEM__SEGMENT_WORDS;
    words->pass[FTMEM__PASS_FORWARD] = walk_words_forward(walk, FTMEM__PASS_FORWARD, NULL, NULL);
    if (words->out_grad && !words->leaf) {
        words->pass[FTMEM__PASS_BACKWARD] = walk_words_backward(walk, FTMEM__PASS_BACKWARD, NULL);
        if (job->accumulation > 1) words->pass[FTMEM__PASS_BACKWARD_LATER] = walk_words_backward(walk, FTMEM__PASS_BACKWARD_LATER, NULL);
    }
    if (job->eval == FTMEM_ON) words->pass[FTMEM__PASS_EVAL] = walk_words_forward(walk, FTMEM__PASS_EVAL, NULL, NULL);
}

/* ------------------------------------------------------------------------------------------------ head and loss */

/* The model's forward is over before there is a loss: its names go, and with autocast's context the copies of weights. */
static ftmem__var walk_head_returns(ftmem__low *low, ftmem__var logits, ftmem__var *normed, ftmem__var *pooled)
{
    if (low->has_scaled) ftmem__drop(low->tape, low->scaled);
    ftmem__drop(low->tape, *pooled);
    ftmem__drop(low->tape, *normed);
    normed->store = pooled->store = -1;
    ftmem__cache_clear(low->tape);
    return ftmem__low_outputs(low, logits);
}

/* Everything after the blocks. Three parts: the final norm; the base model returns; the head; the loss. */
static ftmem__var walk_head_run(ftmem__walk *walk, ftmem__low *low, ftmem__var x, ftmem__ends *ends, ftmem__var *normed)
{
    ftmem__tape *tape = &walk->tape;
    const ftmem_job *job = walk->shape.job;
    bool held = ftmem__holds_outputs(job) && low->training;
    int64_t base = tape->live;
    ftmem__var logits = { 0 }, loss, pooled;
    *normed = ftmem__low_final_norm(low, x);
    pooled = ftmem__low_pool(low, *normed);
    ftmem__drop(tape, x);
    if (ends && low->training) ends->norm_peak = tape->peak - base;
    logits.store = -1;
    if (ftmem__whole_logits(job)) logits = ftmem__low_logits(low, pooled);
    if (job->loss == FTMEM_LOSS_TILES) logits = ftmem__low_tiles(low, pooled);
    if (ftmem__loss_apart(job)) logits = walk_head_returns(low, logits, normed, &pooled);
    if (ends) {
        ends->pass[low->training ? FTMEM__PASS_FORWARD : FTMEM__PASS_EVAL] = walk_figure(tape, base);
        if (low->training) ends->flops_forward = tape->flops;
        ftmem__tape_mark(tape);
    }
    if (job->loss == FTMEM_LOSS_FUSED) {
        loss = ftmem__low_fused_loss(low, *normed);
    } else if (job->loss == FTMEM_LOSS_SPLIT) {
        int64_t split = ftmem__low_split_loss(low, *normed, &loss);
        if (ends) ends->logits_bytes = split;
    } else if (job->loss == FTMEM_LOSS_CHUNKED) {
        ftmem__low_chunked_forward(low, *normed);
        loss = ftmem__apply(tape, FTMEM__OP_NLL, normed, 1, 1, 1, FTMEM_FP32); /* stands for the chunks' graph */
    } else {
        loss = ftmem__low_loss(low, logits);
        if (!ftmem__loss_apart(job)) logits = ftmem__low_outputs(low, logits);
    }
    if (low->has_scaled && !ftmem__loss_apart(job)) ftmem__drop(tape, low->scaled);
    if (!held) ftmem__drop(tape, logits);
    if (ends && held) ends->logits_bytes = tape->stores[logits.store].bytes;
    ftmem__drop(tape, pooled);
    ftmem__drop(tape, *normed);
    return loss;
}

static ftmem__ends *walk_head_ends(ftmem__walk *walk)
{
    return &walk->stack[walk->stacks - 1].end;
}

static void walk_head_forward(ftmem__walk *walk, int32_t pass, uint8_t in_dtype, bool in_grad, const walk_probe *probe, ftmem__var result[2])
{
    ftmem__low low = walk_low(walk, walk->stacks - 1, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__ends *ends = walk_head_ends(walk);
    ftmem__figure f;
    ftmem__var x, loss, normed;
    int64_t base;
    double flops;
    walk_start(walk, NULL, pass, probe);
    x = ftmem__input(tape, low.tokens * walk->shape.h, walk->shape.h, in_dtype, in_grad && pass != FTMEM__PASS_EVAL);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe) low.params = &walk->params;
    loss = walk_head_run(walk, &low, x, probe ? NULL : ends, &normed);
    f = walk_figure(tape, base);
    flops = tape->flops;
    tape->result = -1;
    walk_end(walk, probe);
    if (result) {
        result[0] = loss;
        result[1] = normed;
    }
    if (probe) return;
    if (pass == FTMEM__PASS_EVAL) {
        ends->eval_loss = f;
        return;
    }
    ends->loss = f;
    ends->flops_forward += flops;
    ends->out_grad = loss.grad;
    ends->cache_bytes = walk_cache_only(tape);
    ends->kept_bytes = tape->live - ends->cache_bytes - ends->logits_bytes;
    ends->in_kept = tape->input >= 0;
    if (ends->in_kept) ends->kept_bytes -= tape->stores[x.store].bytes;
}

static ftmem__figure walk_loss_backward(ftmem__walk *walk, ftmem__low *low, ftmem__var loss, ftmem__var normed, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__figure f;
    int64_t base;
    int16_t seed;
    ftmem__cache_clear(tape);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    tape->backward = true;
    base = tape->live;
    walk_listen(tape, probe);
    ftmem__tape_mark(tape);
    if (walk->shape.job->loss == FTMEM_LOSS_CHUNKED) {
        tape->nodes--; /* the stand-in, whose one saved tensor is let go after the chunks */
        ftmem__low_chunked_backward(low, normed);
        ftmem__release(tape, normed.store);
        ftmem__backward_rest(tape);
        ftmem__drop(tape, loss);
    } else {
        seed = ftmem__alloc(tape, FTMEM__OP_GRADIENT, 1, 1, FTMEM_FP32, FTMEM_CLASS_TEMPORARY);
        ftmem__hold(tape, seed); /* torch/autograd/__init__.py backward: grad_tensors_ lives until the engine returns */
        ftmem__backward(tape, loss, seed);
    }
    f = walk_figure(tape, base);
    walk_head_ends(walk)->early = walk_early(tape, base);
    walk_head_ends(walk)->late = walk_late(tape, base);
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_head_backward(ftmem__walk *walk, int32_t pass, uint8_t in_dtype, bool in_grad, const walk_probe *probe)
{
    ftmem__low low = walk_low(walk, walk->stacks - 1, NULL, pass);
    ftmem__var x, loss, normed;
    walk_start(walk, NULL, pass, NULL);
    x = ftmem__input(&walk->tape, low.tokens * walk->shape.h, walk->shape.h, in_dtype, in_grad);
    loss = walk_head_run(walk, &low, x, NULL, &normed);
    return walk_loss_backward(walk, &low, loss, normed, probe);
}

static void walk_head(ftmem__walk *walk, uint8_t dtype, bool grad)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__low low = walk_low(walk, walk->stacks - 1, NULL, FTMEM__PASS_BACKWARD);
    ftmem__ends *head = walk_head_ends(walk);
    ftmem__var result[2];
    walk->params.segment = ftmem__walk_head(walk);
    walk_head_forward(walk, FTMEM__PASS_FORWARD, dtype, grad, NULL, result);
    if (walk_returns(walk, head->out_grad)) {
        walk->tape.note = &walk->head_note;
        head->pass[FTMEM__PASS_BACKWARD] = walk_loss_backward(walk, &low, result[0], result[1], NULL);
        head->flops_backward = walk->tape.flops;
    }
    if (walk_returns(walk, head->out_grad) && job->accumulation > 1)
        head->pass[FTMEM__PASS_BACKWARD_LATER] =
            walk->tape.later.differs ? walk_head_backward(walk, FTMEM__PASS_BACKWARD_LATER, dtype, grad, NULL) : walk_later(&walk->tape);
    if (job->eval == FTMEM_ON) walk_head_forward(walk, FTMEM__PASS_EVAL, dtype, false, NULL, NULL);
}

/* ----------------------------------------------------------------------------------- the end of an earlier stack */

/* Its result belongs to the stacks after it. */
static ftmem__figure walk_bridge_forward(ftmem__walk *walk, int32_t stack, int32_t pass, const walk_stream *in, const walk_probe *probe, walk_run *result)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__ends *ends = &walk->stack[stack].end;
    int64_t base;
    walk_run run;
    ftmem__var x;
    run.low = walk_low(walk, stack, NULL, pass);
    walk_start(walk, NULL, pass, probe);
    x = ftmem__input(tape, run.low.tokens * run.low.shape->h, run.low.shape->h, in->dtype, in->grad && pass != FTMEM__PASS_EVAL);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe) run.low.params = &walk->params;
    run.out = ftmem__low_final_norm(&run.low, x);
    ftmem__drop(tape, x);
    if (pass == FTMEM__PASS_FORWARD) {
        ends->flops_forward = tape->flops;
        ends->out_grad = run.out.grad;
        ends->out_dtype = run.out.dtype;
        ends->cache_bytes = walk_cache_only(tape);
        ends->outputs_bytes = walk_attributes(tape);
    }
    if (!probe) walk_record_side(&walk->stack[stack + 1].side[FTMEM__SIDE_SOURCE], tape, run.out, pass, false);
    tape->stores[run.out.store].side = true;
    walk_end(walk, probe);
    if (result) *result = run;
    return walk_figure(tape, base);
}

static ftmem__figure walk_bridge_backward(ftmem__walk *walk, int32_t stack, int32_t pass, const walk_stream *in, const walk_probe *probe)
{
    walk_run run;
    (void)walk_bridge_forward(walk, stack, pass, in, NULL, &run);
    return walk_backward_from(walk, NULL, run, probe);
}

static void walk_bridge(ftmem__walk *walk, int32_t stack, const walk_stream *in)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__ends *ends = &walk->stack[stack].end;
    walk_run run;
    walk->params.segment = ftmem__segment_end(stack);
    ends->pass[FTMEM__PASS_FORWARD] = walk_bridge_forward(walk, stack, FTMEM__PASS_FORWARD, in, NULL, &run);
    if (walk_returns(walk, ends->out_grad)) {
        ends->pass[FTMEM__PASS_BACKWARD] = walk_backward_from(walk, NULL, run, NULL);
        ends->flops_backward = walk->tape.flops;
    }
    if (walk_returns(walk, ends->out_grad) && job->accumulation > 1)
        ends->pass[FTMEM__PASS_BACKWARD_LATER] =
            walk->tape.later.differs ? walk_bridge_backward(walk, stack, FTMEM__PASS_BACKWARD_LATER, in, NULL) : walk_later(&walk->tape);
    if (job->eval == FTMEM_ON) ends->pass[FTMEM__PASS_EVAL] = walk_bridge_forward(walk, stack, FTMEM__PASS_EVAL, in, NULL, NULL);
}

/* ------------------------------------------------------------------------------------- features of other blocks */

/* Between a block and the next one of the tower; the stream goes on as it is. */
static ftmem__figure walk_tap_forward(ftmem__walk *walk, int32_t pass, const walk_probe *probe, walk_run *result)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__ends *tap = &walk->tap;
    walk_run run;
    ftmem__var x;
    int64_t base;
    run.low = walk_low(walk, 0, NULL, pass);
    walk_start(walk, NULL, pass, probe);
    x = ftmem__input(tape, run.low.tokens * run.low.shape->h, run.low.shape->h, walk->tap_in.dtype, walk->tap_in.grad && pass != FTMEM__PASS_EVAL);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe) run.low.params = &walk->params;
    run.out = ftmem__low_tap(&run.low, x);
    if (pass == FTMEM__PASS_FORWARD) {
        tap->flops_forward = tape->flops;
        tap->out_grad = run.out.grad;
        tap->out_dtype = (uint8_t)run.out.dtype;
        tap->cache_bytes = walk_cache_only(tape);
        tap->outputs_bytes = walk_attributes(tape);
        tap->in_kept = tape->stores[x.store].refs > 1;
        if (!ftmem__holds_outputs(walk->shape.job)) tap->cache_bytes += tape->stores[run.out.store].bytes;
    }
    tape->result = x.store;
    walk_end(walk, probe);
    if (result) *result = run;
    return walk_figure(tape, base);
}

/* Its gradient is there, and the stream's, to which it adds its own. */
static ftmem__figure walk_tap_backward(ftmem__walk *walk, int32_t pass, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    walk_run run;
    ftmem__figure f;
    int64_t base;
    int16_t g;
    (void)walk_tap_forward(walk, pass, NULL, &run);
    ftmem__cache_clear(tape);
    ftmem__drop(tape, run.out);
    ftmem__release(tape, tape->input);
    walk_listen(tape, probe);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    tape->backward = true;
    if (walk->tap_in.grad)
        tape->grad_in =
            ftmem__alloc(tape, FTMEM__OP_GRADIENT, run.low.tokens * run.low.shape->h, (int32_t)run.low.shape->h, walk->tap_in.dtype, FTMEM_CLASS_TEMPORARY);
    g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, run.out.n, run.out.cols, run.out.dtype, FTMEM_CLASS_TEMPORARY);
    base = tape->live;
    ftmem__tape_mark(tape);
    ftmem__backward(tape, run.out, g);
    f = walk_figure(tape, base);
    walk_end(walk, probe);
    return f;
}

/* The parameters stand for those of all taps. */
static void walk_tap(ftmem__walk *walk, const walk_stream *in)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__ends *tap = &walk->tap;
    int32_t i = walk->params.count;
    memset(tap, 0, sizeof *tap);
    walk->tap_in.grad = in->grad;
    walk->tap_in.dtype = in->dtype;
    walk->params.segment = FTMEM__SEGMENT_TAP;
    tap->pass[FTMEM__PASS_FORWARD] = walk_tap_forward(walk, FTMEM__PASS_FORWARD, NULL, NULL);
    for (; i < walk->params.count; i++) {
        walk->params.at[i].outside = true;
        walk->params.at[i].copies = walk->earlier.taps;
    }
    if (tap->out_grad) {
        tap->pass[FTMEM__PASS_BACKWARD] = walk_tap_backward(walk, FTMEM__PASS_BACKWARD, NULL);
        tap->flops_backward = walk->tape.flops;
        if (job->accumulation > 1) tap->pass[FTMEM__PASS_BACKWARD_LATER] = walk_tap_backward(walk, FTMEM__PASS_BACKWARD_LATER, NULL);
    }
    if (job->eval == FTMEM_ON) tap->pass[FTMEM__PASS_EVAL] = walk_tap_forward(walk, FTMEM__PASS_EVAL, NULL, NULL);
}

/* After one of the text model's first blocks; the block's output keeps a name until the next one has returned. */
static ftmem__figure walk_deep_forward(ftmem__walk *walk, int32_t pass, const walk_probe *probe, walk_run *result)
{
    ftmem__tape *tape = &walk->tape;
    const ftmem__side *source = &walk->stack[walk->stacks - 1].side[FTMEM__SIDE_SOURCE];
    bool eval = pass == FTMEM__PASS_EVAL;
    walk_run run;
    ftmem__var x, features;
    int64_t base;
    run.low = walk_low(walk, walk->stacks - 1, NULL, pass);
    walk_start(walk, NULL, pass, probe);
    x = ftmem__input(tape, run.low.tokens * run.low.shape->h, run.low.shape->h, walk->deep_in.dtype, walk->deep_in.grad && !eval);
    features = ftmem__side_input(tape, FTMEM__SIDE_SOURCE, source->n[eval], source->cols, walk->tap.out_dtype, walk->tap.out_grad && !eval);
    base = tape->live;
    ftmem__tape_mark(tape);
    run.out = ftmem__low_deepstack(&run.low, x, features);
    if (pass == FTMEM__PASS_FORWARD) walk->deep.out_grad = run.out.grad;
    tape->result = run.out.store;
    walk_end(walk, probe);
    if (result) *result = run;
    return walk_figure(tape, base);
}

static ftmem__figure walk_deep_backward(ftmem__walk *walk, int32_t pass, const walk_probe *probe)
{
    walk_run run;
    (void)walk_deep_forward(walk, pass, NULL, &run);
    ftmem__release(&walk->tape, walk->tape.input);
    return walk_backward_from(walk, NULL, run, probe);
}

static void walk_deep(ftmem__walk *walk, const walk_stream *in)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__ends *deep = &walk->deep;
    memset(deep, 0, sizeof *deep);
    walk->deep_in.grad = in->grad;
    walk->deep_in.dtype = in->dtype;
    deep->pass[FTMEM__PASS_FORWARD] = walk_deep_forward(walk, FTMEM__PASS_FORWARD, NULL, NULL);
    if (deep->out_grad) deep->pass[FTMEM__PASS_BACKWARD] = deep->pass[FTMEM__PASS_BACKWARD_LATER] = walk_deep_backward(walk, FTMEM__PASS_BACKWARD, NULL);
    if (job->eval == FTMEM_ON) deep->pass[FTMEM__PASS_EVAL] = walk_deep_forward(walk, FTMEM__PASS_EVAL, NULL, NULL);
}

/* What follows a block that is tapped, or to which features are added; walked the first time. */
static void walk_after(ftmem__walk *walk, int32_t stack, int64_t layer, walk_stream *stream)
{
    const ftmem__shape *shape = walk->stack[stack].shape;
    if (!shape->taps || !ftmem__shape_tapped(shape, layer)) return;
    if (shape->tower) {
        if (layer == shape->tap_first) walk_tap(walk, stream);
        return;
    }
    if (layer == 0) walk_deep(walk, stream);
    stream->grad = stream->grad || walk->deep.out_grad;
}

/* --------------------------------------------------------------------------------------------------------- whole */

static ftmem_status walk_blocks(ftmem__walk *walk, int32_t stack, walk_stream *stream, ftmem_error *error)
{
    int64_t i, layers = walk->stack[stack].shape->model->layers;
    uint8_t *of_layer = walk->stack[stack].of_layer;
    walk_stream in = *stream;
    ftmem__kind *kind = NULL;
    for (i = 0; i < layers; i++) {
        kind = walk_layer(walk, stack, i, kind, in);
        if (!kind) return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "model.layer_kind", i, "More than 12 different kinds of block are not modelled.");
        kind->layers++;
        walk->kind[kind->like].alike++;
        of_layer[i] = (uint8_t)(kind - walk->kind);
        in.grad = kind->out_grad;
        in.dtype = kind->out_dtype;
        walk_after(walk, stack, i, &in);
        if (!kind->unread) *stream = in;
    }
    return FTMEM_OK;
}

static walk_stream walk_embed(ftmem__walk *walk, int32_t stack)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__ends *embed = &walk->stack[stack].embed;
    walk_stream stream;
    walk_run run;
    bool back;
    walk->params.segment = ftmem__segment_embed(stack);
    embed->pass[FTMEM__PASS_FORWARD] = walk_embed_forward(walk, stack, FTMEM__PASS_FORWARD, NULL, &run);
    embed->flops_forward = walk->tape.flops;
    stream.grad = embed->out_grad;
    stream.dtype = embed->out_dtype;
    back = embed->back = walk_returns(walk, stream.grad || (run.low.made && run.low.side[FTMEM__SIDE_LAYERS].grad));
    if (back) {
        embed->pass[FTMEM__PASS_BACKWARD] = walk_embed_backward_from(walk, embed, run, NULL);
        embed->flops_backward = walk->tape.flops;
    }
    if (back && job->accumulation > 1)
        embed->pass[FTMEM__PASS_BACKWARD_LATER] =
            walk->tape.later.differs ? walk_embed_backward(walk, stack, FTMEM__PASS_BACKWARD_LATER, NULL) : walk_later(&walk->tape);
    if (job->eval == FTMEM_ON) embed->pass[FTMEM__PASS_EVAL] = walk_embed_forward(walk, stack, FTMEM__PASS_EVAL, NULL, NULL);
    return stream;
}

/* A vision tower, or blocks for multi-token prediction: there, and not run. */
static void walk_tower(ftmem__walk *walk)
{
    ftmem__low low = walk_low(walk, 0, NULL, FTMEM__PASS_EVAL);
    walk_start(walk, NULL, FTMEM__PASS_EVAL, NULL);
    walk->params.segment = ftmem__segment_embed(0);
    low.params = &walk->params;
    ftmem__low_tower(&low);
    ftmem__low_mtp(&low);
}

ftmem_status ftmem__walk_segments(ftmem__walk *walk, ftmem_error *error)
{
    walk_stream stream;
    ftmem_status status;
    int32_t stack;
    walk_words(walk);
    for (stack = 0; stack < walk->stacks; stack++) {
        stream = walk_embed(walk, stack);
        status = walk_blocks(walk, stack, &stream, error);
        if (status != FTMEM_OK) return status;
        if (stack == walk->stacks - 1) walk_head(walk, stream.dtype, stream.grad);
        else walk_bridge(walk, stack, &stream);
    }
    if (!walk->shape.scattered) walk_tower(walk);
    if (!walk->exhausted && !walk->params.full) return FTMEM_OK;
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "model.family", walk->shape.family->model_type,
                       "One block has more operations than the interpreter's limit.");
}

static walk_stream walk_last_stream(const ftmem__walk *walk, int32_t stack)
{
    const ftmem__stack *s = &walk->stack[stack];
    const ftmem__kind *last = &walk->kind[s->of_layer[s->shape->model->layers - 1 - s->shape->unread]];
    walk_stream stream;
    stream.grad = last->out_grad;
    stream.dtype = last->out_dtype;
    return stream;
}

static void walk_end_again(ftmem__walk *walk, int32_t stack, int32_t pass, bool backward, const walk_probe *probe)
{
    walk_stream in = walk_last_stream(walk, stack);
    if (stack == walk->stacks - 1) {
        if (backward) walk_head_backward(walk, pass, in.dtype, in.grad, probe);
        else walk_head_forward(walk, pass, in.dtype, in.grad, probe, NULL);
    } else {
        if (backward) walk_bridge_backward(walk, stack, pass, &in, probe);
        else walk_bridge_forward(walk, stack, pass, &in, probe, NULL);
    }
}

void ftmem__walk_again(ftmem__walk *walk, int32_t segment, int32_t pass, int32_t event, ftmem__capture *capture, void *context)
{
    walk_probe probe;
    bool backward = pass == FTMEM__PASS_BACKWARD || pass == FTMEM__PASS_BACKWARD_LATER;
    int32_t stack = ftmem__walk_stack_of(walk, segment);
    probe.capture = capture;
    probe.context = context;
    probe.event = event;
    if (segment == FTMEM__SEGMENT_WORDS) {
        if (backward) walk_words_backward(walk, pass, &probe);
        else walk_words_forward(walk, pass, &probe, NULL);
    } else if (segment == FTMEM__SEGMENT_TAP) {
        if (backward) walk_tap_backward(walk, pass, &probe);
        else walk_tap_forward(walk, pass, &probe, NULL);
    } else if (segment == FTMEM__SEGMENT_DEEP) {
        if (backward) walk_deep_backward(walk, pass, &probe);
        else walk_deep_forward(walk, pass, &probe, NULL);
    } else if (ftmem__segment_is_embed(segment)) {
        if (backward) walk_embed_backward(walk, stack, pass, &probe);
        else walk_embed_forward(walk, stack, pass, &probe, NULL);
    } else if (segment < 0) {
        walk_end_again(walk, stack, pass, backward, &probe);
    } else if (backward) {
        walk_block_backward(walk, &walk->kind[segment], pass, &probe);
    } else {
        walk_block_forward(walk, &walk->kind[segment], walk->kind[segment].recomputed && pass == FTMEM__PASS_FORWARD, pass, &probe, NULL);
    }
}
