#include "walk.h"

typedef struct walk_probe { /* set for a second run */
    ftmem__capture *capture;
    void *context;
    int32_t event;
} walk_probe;

static bool walk_recomputed(const ftmem__walk *walk, int64_t layer)
{
    const ftmem_job *job = walk->shape.job;
    return job->recompute != FTMEM_RECOMPUTE_NONE && (job->recompute_every == 1 || layer % job->recompute_every == 0);
}

static ftmem__low walk_low(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass)
{
    ftmem__low low = { 0 };
    low.tape = &walk->tape;
    low.shape = &walk->shape;
    low.b = pass == FTMEM__PASS_EVAL ? walk->shape.job->eval_batch : walk->shape.b;
    low.tokens = low.b * walk->shape.s;
    low.training = pass != FTMEM__PASS_EVAL;
    low.trained = kind ? kind->trained : walk->shape.rest_trained;
    low.adapted = kind && kind->adapted;
    low.kind = kind ? ftmem__layer_attention(kind->kind) : 0;
    low.mlp = kind ? ftmem__layer_mlp(kind->kind) : 0;
    return low;
}

static void walk_listen(ftmem__tape *tape, const walk_probe *probe)
{
    if (!probe) return;
    tape->capture = probe->capture;
    tape->context = probe->context;
    tape->stop_at = probe->event ? probe->event : -1;
}

static void walk_start(ftmem__walk *walk, int32_t pass, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__tape_start(tape, walk->shape.job->task == FTMEM_TASK_CLASSIFY ? 0 : walk->shape.vocab);
    tape->sum_leaves = pass == FTMEM__PASS_BACKWARD_LATER;
    if (pass == FTMEM__PASS_EVAL) tape->mode = FTMEM__NO_GRAD;
    tape->later.wanted = !probe && walk->shape.job->accumulation > 1;
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

/* The forward of one block: ordinary, or checkpointed, where only the input stays. */
static ftmem__figure walk_block_forward(ftmem__walk *walk, ftmem__kind *kind, bool recomputed, int32_t pass, const walk_probe *probe, ftmem__var *result)
{
    ftmem__low low = walk_low(walk, kind, pass);
    ftmem__tape *tape = &walk->tape;
    int64_t base;
    ftmem__var x, out;
    walk_start(walk, pass, probe);
    if (recomputed && pass == FTMEM__PASS_FORWARD) {
        tape->mode = FTMEM__FORGET;
        tape->graphless = walk->shape.job->recompute == FTMEM_RECOMPUTE_REENTRANT;
        tape->shadow = !tape->graphless && !probe;
    }
    x = ftmem__input(tape, low.tokens * walk->shape.h, walk->shape.h, kind->in_dtype, kind->in_grad && pass != FTMEM__PASS_EVAL);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe) low.params = &walk->params;
    out = ftmem__low_block(&low, x);
    if (!recomputed || !out.grad || walk_offloads(walk)) ftmem__drop(tape, x);
    if (pass == FTMEM__PASS_FORWARD) {
        kind->out_grad = out.grad;
        kind->out_dtype = out.dtype;
        kind->in_kept = tape->input >= 0 && x.store != out.store;
        kind->in_bytes = ftmem__round512(ftmem__bytes(kind->in_dtype, x.n));
        kind->cache_bytes = walk_cache_only(tape);
        kind->attribute_bytes = walk_attributes(tape);
        kind->born_bytes = tape->live - kind->cache_bytes - (kind->in_kept ? 0 : tape->stores[out.store].bytes);
        if (kind->in_kept) kind->born_bytes -= kind->in_bytes;
        kind->flops_forward = tape->flops;
    }
    tape->result = out.store;
    if (pass == FTMEM__PASS_FORWARD && !probe) walk_note_kept(walk, kind);
    walk_end(walk, probe);
    if (result) *result = out;
    return walk_figure(tape, base);
}

/* Backward from a value whose forward has just been recorded on the tape; nobody holds the value any more. */
static ftmem__figure walk_backward_from(ftmem__walk *walk, ftmem__var out, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__figure f;
    int64_t base;
    int16_t g;
    ftmem__cache_clear(tape);
    ftmem__drop(tape, out);
    walk_listen(tape, probe);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    tape->backward = true;
    g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, out.n, out.cols, out.dtype, FTMEM_CLASS_TEMPORARY);
    base = tape->live;
    ftmem__tape_mark(tape);
    ftmem__backward(tape, out, g);
    f = walk_figure(tape, base);
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_plain_backward(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass, const walk_probe *probe)
{
    ftmem__low low = walk_low(walk, kind, pass);
    ftmem__var x, out;
    walk_start(walk, pass, NULL);
    x = ftmem__input(&walk->tape, low.tokens * walk->shape.h, walk->shape.h, kind->in_dtype, kind->in_grad);
    out = ftmem__low_block(&low, x);
    ftmem__drop(&walk->tape, x);
    return walk_backward_from(walk, out, probe);
}

typedef struct walk_shadow { /* what a checkpointed forward has left on the tape */
    ftmem__var result;
    int32_t nodes;
} walk_shadow;

/* The graph of a checkpointed forward: it is still on the tape, or built again. */
static ftmem__var walk_ghost(ftmem__walk *walk, ftmem__low *low, ftmem__var x, const walk_shadow *shadow)
{
    ftmem__tape *tape = &walk->tape;
    double flops = tape->flops;
    ftmem__var out;
    tape->mode = FTMEM__GHOST;
    tape->backward = false;
    if (shadow) {
        tape->nodes = shadow->nodes;
        return shadow->result;
    }
    out = ftmem__low_block(low, x);
    tape->flops = flops; /* nothing has been computed yet */
    return out;
}

/* torch.utils.checkpoint without reentrance: what saves nothing runs first, the first saved tensor that is asked for
   makes the block run again up to the last one, then backward goes on. */
static void walk_recompute(ftmem__walk *walk, ftmem__low *low, ftmem__var x, const walk_shadow *shadow, int16_t g)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__var out = walk_ghost(walk, low, x, shadow);
    int32_t last = ftmem__last_saving(tape);
    ftmem__backward_above(tape, out, g, last);
    if (tape->captured) return;
    ftmem__replay(tape, last);
    tape->birth = FTMEM_CLASS_RECOMPUTED;
    out = ftmem__low_block(low, x);
    ftmem__drop(tape, out);
    tape->stopped = false;
    ftmem__cache_clear(tape);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    ftmem__backward_rest(tape);
}

/* The reentrant form runs the whole block again and holds its output and the arriving gradient meanwhile. */
static void walk_recompute_reentrant(ftmem__walk *walk, ftmem__low *low, ftmem__var x, int16_t g)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__var out;
    tape->backward = false;
    tape->birth = FTMEM_CLASS_RECOMPUTED;
    out = ftmem__low_block(low, x);
    ftmem__cache_clear(tape);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    ftmem__hold(tape, g);
    ftmem__backward(tape, out, g);
    ftmem__drop_attributes(tape);
    ftmem__drop(tape, out);
    ftmem__release(tape, g);
}

static ftmem__figure walk_checkpointed_backward(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass, const walk_shadow *shadow, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__low low = walk_low(walk, kind, pass);
    ftmem__figure f;
    ftmem__var x;
    int64_t base;
    int16_t g;
    walk_start(walk, pass, probe);
    x = ftmem__input(tape, low.tokens * walk->shape.h, walk->shape.h, kind->in_dtype, kind->in_grad);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, x.n, x.cols, kind->out_dtype, FTMEM_CLASS_TEMPORARY);
    base = tape->live - (walk_offloads(walk) ? tape->stores[x.store].bytes : 0);
    ftmem__tape_mark(tape);
    if (walk->shape.job->recompute == FTMEM_RECOMPUTE_REENTRANT) walk_recompute_reentrant(walk, &low, x, g);
    else walk_recompute(walk, &low, x, shadow, g);
    ftmem__drop(tape, x);
    f = walk_figure(tape, base);
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_block_backward(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass, const walk_probe *probe)
{
    return kind->recomputed ? walk_checkpointed_backward(walk, kind, pass, NULL, probe) : walk_plain_backward(walk, kind, pass, probe);
}

static void walk_block(ftmem__walk *walk, ftmem__kind *kind)
{
    const ftmem_job *job = walk->shape.job;
    walk_shadow left;
    walk->params.segment = (int32_t)(kind - walk->kind);
    kind->pass[FTMEM__PASS_FORWARD] = walk_block_forward(walk, kind, kind->recomputed, FTMEM__PASS_FORWARD, NULL, &left.result);
    left.nodes = walk->tape.nodes;
    if (kind->out_grad) {
        kind->pass[FTMEM__PASS_BACKWARD] =
            kind->recomputed ? walk_checkpointed_backward(walk, kind, FTMEM__PASS_BACKWARD, &left, NULL) : walk_backward_from(walk, left.result, NULL);
        kind->flops_backward = walk->tape.flops;
    }
    if (kind->out_grad && job->accumulation > 1)
        kind->pass[FTMEM__PASS_BACKWARD_LATER] =
            walk->tape.later.differs ? walk_block_backward(walk, kind, FTMEM__PASS_BACKWARD_LATER, NULL) : walk_later(&walk->tape);
    if (job->eval == FTMEM_ON) kind->pass[FTMEM__PASS_EVAL] = walk_block_forward(walk, kind, false, FTMEM__PASS_EVAL, NULL, NULL);
}

/* Whether a block that is given this belongs to a kind. */
static bool walk_is_of(const ftmem__walk *walk, const ftmem__kind *kind, int64_t layer, bool in_grad, uint8_t in_dtype)
{
    const ftmem__shape *shape = &walk->shape;
    return ftmem__shape_layer_kind(shape, layer) == kind->kind && in_grad == kind->in_grad && in_dtype == kind->in_dtype &&
           ftmem__shape_layer_trained(shape, layer) == kind->trained && ftmem__shape_layer_adapted(shape, layer) == kind->adapted &&
           walk_recomputed(walk, layer) == kind->recomputed;
}

static void walk_new_kind(ftmem__walk *walk, int64_t layer, bool in_grad, uint8_t in_dtype)
{
    ftmem__kind *kind = &walk->kind[walk->kinds++];
    memset(kind, 0, sizeof *kind);
    kind->kind = ftmem__shape_layer_kind(&walk->shape, layer);
    kind->trained = ftmem__shape_layer_trained(&walk->shape, layer);
    kind->adapted = ftmem__shape_layer_adapted(&walk->shape, layer);
    kind->in_grad = in_grad;
    kind->in_dtype = in_dtype;
    kind->recomputed = walk_recomputed(walk, layer);
    walk_block(walk, kind);
}

/* The kind of one block, simulated if it is new; NULL when there are too many. Mostly that of the block before. */
static ftmem__kind *walk_layer(ftmem__walk *walk, int64_t layer, ftmem__kind *before, bool in_grad, uint8_t in_dtype)
{
    int32_t i;
    if (before && walk_is_of(walk, before, layer, in_grad, in_dtype)) return before;
    for (i = 0; i < walk->kinds; i++)
        if (walk_is_of(walk, &walk->kind[i], layer, in_grad, in_dtype)) return &walk->kind[i];
    if (i == FTMEM__MAX_KINDS) return NULL;
    walk_new_kind(walk, layer, in_grad, in_dtype);
    return &walk->kind[i];
}

/* ---------------------------------------------------------------------------------------------------- embedding */

static void walk_embed_parts(ftmem__walk *walk, const ftmem__prologue *p, ftmem__var x)
{
    ftmem__ends *e = &walk->embed;
    const ftmem__tape *tape = &walk->tape;
    int32_t i;
    e->held_bytes = e->mask_bytes = e->table_bytes = 0;
    for (i = 0; i < p->held_count; i++) e->held_bytes += tape->stores[p->held[i].store].bytes;
    for (i = 0; i < p->mask_count; i++) e->mask_bytes += tape->stores[p->masks[i].store].bytes;
    for (i = 0; i < 2 && p->has_tables; i++) e->table_bytes += tape->stores[p->tables[i].store].bytes;
    e->aliased = p->held_count == 0;
    e->out_grad = x.grad;
    e->out_dtype = x.dtype;
}

/* Forward of the embedding. The stream itself belongs to the first block, so it is not left here. */
static ftmem__figure walk_embed_forward(ftmem__walk *walk, int32_t pass, const walk_probe *probe, ftmem__var *result)
{
    ftmem__low low = walk_low(walk, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__prologue p;
    ftmem__figure f;
    ftmem__var x;
    int32_t i;
    walk_start(walk, pass, probe);
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe) low.params = &walk->params;
    x = ftmem__low_embed(&low, &p);
    if (pass == FTMEM__PASS_FORWARD) walk_embed_parts(walk, &p, x);
    tape->result = x.store;
    walk_end(walk, probe);
    f = walk_figure(tape, 0);
    if (pass == FTMEM__PASS_EVAL) walk->embed.eval_released_bytes = f.delta - tape->stores[x.store].bytes;
    if (pass == FTMEM__PASS_EVAL) return f;
    for (i = 0; i < p.held_count; i++) ftmem__drop(tape, p.held[i]);
    for (i = 0; i < p.mask_count && !(probe && walk->shape.require_input_grad); i++) ftmem__drop(tape, p.masks[i]);
    walk->embed.released_bytes = f.delta - tape->live;
    walk->embed.cache_bytes = walk_cache_only(tape);
    ftmem__cache_clear(tape);
    if (probe && probe->event == FTMEM__EVENT_RELEASED) probe->capture(probe->context, tape, FTMEM__OP_END);
    ftmem__drop(tape, x);
    for (i = 0; i < 2 && p.has_tables; i++) ftmem__drop(tape, p.tables[i]);
    walk->embed.kept_bytes = tape->live;
    if (result) *result = x;
    return f;
}

/* Backward from a stream whose forward has just been recorded on the tape; nothing else of it is held any more. */
static ftmem__figure walk_embed_backward_from(ftmem__walk *walk, ftmem__var x, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__figure f;
    int64_t base;
    int16_t g;
    tape->birth = FTMEM_CLASS_TEMPORARY;
    tape->backward = true;
    walk_listen(tape, probe);
    g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, x.n, x.cols, x.dtype, FTMEM_CLASS_TEMPORARY);
    base = tape->live;
    ftmem__tape_mark(tape);
    ftmem__backward(tape, x, g);
    f = walk_figure(tape, base);
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_embed_backward(ftmem__walk *walk, int32_t pass, const walk_probe *probe)
{
    ftmem__low low = walk_low(walk, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__prologue p;
    ftmem__var x;
    int32_t i;
    walk_start(walk, pass, NULL);
    x = ftmem__low_embed(&low, &p);
    for (i = 0; i < p.held_count; i++) ftmem__drop(tape, p.held[i]);
    for (i = 0; i < p.mask_count; i++) ftmem__drop(tape, p.masks[i]);
    for (i = 0; i < 2 && p.has_tables; i++) ftmem__drop(tape, p.tables[i]);
    ftmem__cache_clear(tape);
    ftmem__drop(tape, x);
    return walk_embed_backward_from(walk, x, probe);
}

static void walk_embed(ftmem__walk *walk)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__ends *e = &walk->embed;
    ftmem__var x;
    walk->params.segment = FTMEM__SEGMENT_EMBED;
    e->pass[FTMEM__PASS_FORWARD] = walk_embed_forward(walk, FTMEM__PASS_FORWARD, NULL, &x);
    if (e->out_grad) e->pass[FTMEM__PASS_BACKWARD] = walk_embed_backward_from(walk, x, NULL);
    if (e->out_grad && job->accumulation > 1)
        e->pass[FTMEM__PASS_BACKWARD_LATER] = walk->tape.later.differs ? walk_embed_backward(walk, FTMEM__PASS_BACKWARD_LATER, NULL) : walk_later(&walk->tape);
    if (job->eval == FTMEM_ON) e->pass[FTMEM__PASS_EVAL] = walk_embed_forward(walk, FTMEM__PASS_EVAL, NULL, NULL);
}

/* ------------------------------------------------------------------------------------------------ head and loss */

static bool walk_has_logits(const ftmem_job *job)
{
    return job->loss != FTMEM_LOSS_FUSED && job->loss != FTMEM_LOSS_CHUNKED && job->loss != FTMEM_LOSS_SPLIT;
}

/* Everything after the blocks. Three parts: the final norm; the base model returns; the head; the loss. */
static ftmem__var walk_head_run(ftmem__walk *walk, ftmem__low *low, ftmem__var x, ftmem__ends *ends, ftmem__var *normed)
{
    ftmem__tape *tape = &walk->tape;
    const ftmem_job *job = walk->shape.job;
    bool held = (job->loss == FTMEM_LOSS_HELD || job->loss == FTMEM_LOSS_LOOP) && low->training;
    int64_t base = tape->live;
    ftmem__var logits = { 0 }, loss;
    *normed = ftmem__low_final_norm(low, x);
    ftmem__drop(tape, x);
    if (ends && low->training) ends->norm_peak = tape->peak - base;
    logits.store = -1;
    if (walk_has_logits(job)) logits = ftmem__low_logits(low, *normed);
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
        logits = ftmem__low_outputs(low, logits);
    }
    if (!held) ftmem__drop(tape, logits);
    if (ends && held) ends->logits_bytes = tape->stores[logits.store].bytes;
    ftmem__drop(tape, *normed);
    return loss;
}

static void walk_head_forward(ftmem__walk *walk, int32_t pass, uint8_t in_dtype, bool in_grad, const walk_probe *probe, ftmem__var result[2])
{
    ftmem__low low = walk_low(walk, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__ends *ends = &walk->head;
    ftmem__figure f;
    ftmem__var x, loss, normed;
    int64_t base;
    double flops;
    walk_start(walk, pass, probe);
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
    walk->head.early = walk_early(tape, base);
    walk->head.late = walk_late(tape, base);
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_head_backward(ftmem__walk *walk, int32_t pass, uint8_t in_dtype, bool in_grad, const walk_probe *probe)
{
    ftmem__low low = walk_low(walk, NULL, pass);
    ftmem__var x, loss, normed;
    walk_start(walk, pass, NULL);
    x = ftmem__input(&walk->tape, low.tokens * walk->shape.h, walk->shape.h, in_dtype, in_grad);
    loss = walk_head_run(walk, &low, x, NULL, &normed);
    return walk_loss_backward(walk, &low, loss, normed, probe);
}

static void walk_head(ftmem__walk *walk, uint8_t dtype, bool grad)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__low low = walk_low(walk, NULL, FTMEM__PASS_BACKWARD);
    ftmem__var result[2];
    walk->params.segment = FTMEM__SEGMENT_HEAD;
    walk_head_forward(walk, FTMEM__PASS_FORWARD, dtype, grad, NULL, result);
    if (walk->head.out_grad) {
        walk->tape.note = &walk->head_note;
        walk->head.pass[FTMEM__PASS_BACKWARD] = walk_loss_backward(walk, &low, result[0], result[1], NULL);
        walk->head.flops_backward = walk->tape.flops;
    }
    if (walk->head.out_grad && job->accumulation > 1)
        walk->head.pass[FTMEM__PASS_BACKWARD_LATER] =
            walk->tape.later.differs ? walk_head_backward(walk, FTMEM__PASS_BACKWARD_LATER, dtype, grad, NULL) : walk_later(&walk->tape);
    if (job->eval == FTMEM_ON) walk_head_forward(walk, FTMEM__PASS_EVAL, dtype, false, NULL, NULL);
}

/* --------------------------------------------------------------------------------------------------------- whole */

static ftmem_status walk_blocks(ftmem__walk *walk, bool *grad, uint8_t *dtype, ftmem_error *error)
{
    ftmem__kind *kind = NULL;
    int64_t i;
    for (i = 0; i < walk->shape.model->layers; i++) {
        kind = walk_layer(walk, i, kind, *grad, *dtype);
        if (!kind) return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "model.layer_kind", i, "More than 12 different kinds of block are not modelled.");
        kind->layers++;
        walk->of_layer[i] = (uint8_t)(kind - walk->kind);
        *grad = kind->out_grad;
        *dtype = kind->out_dtype;
    }
    return FTMEM_OK;
}

ftmem_status ftmem__walk_segments(ftmem__walk *walk, ftmem_error *error)
{
    bool grad;
    uint8_t dtype;
    ftmem_status status;
    walk_embed(walk);
    grad = walk->embed.out_grad;
    dtype = walk->embed.out_dtype;
    status = walk_blocks(walk, &grad, &dtype, error);
    if (status != FTMEM_OK) return status;
    walk_head(walk, dtype, grad);
    if (!walk->exhausted && !walk->params.full) return FTMEM_OK;
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "model.family", walk->shape.family->model_type,
                       "One block has more operations than the interpreter's limit.");
}

static void walk_last_grad(const ftmem__walk *walk, bool *grad, uint8_t *dtype)
{
    const ftmem__kind *last = &walk->kind[walk->of_layer[walk->shape.model->layers - 1]];
    *grad = last->out_grad;
    *dtype = last->out_dtype;
}

void ftmem__walk_again(ftmem__walk *walk, int32_t segment, int32_t pass, int32_t event, ftmem__capture *capture, void *context)
{
    walk_probe probe;
    bool grad, backward = pass == FTMEM__PASS_BACKWARD || pass == FTMEM__PASS_BACKWARD_LATER;
    uint8_t dtype;
    probe.capture = capture;
    probe.context = context;
    probe.event = event;
    walk_last_grad(walk, &grad, &dtype);
    if (segment == FTMEM__SEGMENT_EMBED) {
        if (backward) walk_embed_backward(walk, pass, &probe);
        else walk_embed_forward(walk, pass, &probe, NULL);
    } else if (segment == FTMEM__SEGMENT_HEAD) {
        if (backward) walk_head_backward(walk, pass, dtype, grad, &probe);
        else walk_head_forward(walk, pass, dtype, grad, &probe, NULL);
    } else if (backward) {
        walk_block_backward(walk, &walk->kind[segment], pass, &probe);
    } else {
        walk_block_forward(walk, &walk->kind[segment], walk->kind[segment].recomputed && pass == FTMEM__PASS_FORWARD, pass, &probe, NULL);
    }
}
