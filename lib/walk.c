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
    low.kind = kind ? kind->kind : 0;
    low.first = kind && kind->first;
    return low;
}

static void walk_listen(ftmem__tape *tape, const walk_probe *probe)
{
    if (!probe) return;
    tape->capture = probe->capture;
    tape->context = probe->context;
    tape->stop_at = probe->event ? probe->event : -1;
}

static void walk_start(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__tape_start(tape, ftmem__task_of_vocab(walk->shape.job->task) ? walk->shape.vocab : -1);
    tape->sum_leaves = pass == FTMEM__PASS_BACKWARD_LATER;
    tape->shared_casts = kind && walk->shape.family->shared_blocks && !kind->first;
    if (pass == FTMEM__PASS_EVAL) tape->mode = FTMEM__NO_GRAD;
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

static bool walk_alive(const ftmem__tape *tape, int16_t store)
{
    return store >= 0 && tape->stores[store].refs > 0;
}

/* The forward of one block: ordinary, or checkpointed, where only the input stays. */
static ftmem__figure walk_block_forward(ftmem__walk *walk, ftmem__kind *kind, bool recomputed, int32_t pass, const walk_probe *probe, ftmem__var *result)
{
    ftmem__low low = walk_low(walk, kind, pass);
    ftmem__tape *tape = &walk->tape;
    int64_t base;
    ftmem__var x, out;
    walk_start(walk, kind, pass, probe);
    if (recomputed && pass == FTMEM__PASS_FORWARD) {
        tape->mode = FTMEM__FORGET;
        tape->graphless = walk->shape.job->recompute == FTMEM_RECOMPUTE_REENTRANT;
    }
    x = ftmem__input(tape, low.tokens * walk->shape.h, walk->shape.h, kind->in_dtype, kind->in_grad && pass != FTMEM__PASS_EVAL);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe && (kind->first || !walk->shape.family->shared_blocks)) low.params = &walk->params;
    out = ftmem__low_block(&low, x);
    if (!recomputed || !out.grad) ftmem__drop(tape, x);
    if (pass == FTMEM__PASS_FORWARD) {
        kind->out_grad = out.grad;
        kind->out_dtype = out.dtype;
        kind->in_kept = walk_alive(tape, x.store) && x.store != out.store;
        kind->in_bytes = ftmem__round512(ftmem__bytes(kind->in_dtype, x.n));
        kind->cache_bytes = walk_cache_only(tape);
        kind->attribute_bytes = walk_attributes(tape);
        kind->born_bytes = tape->live - kind->cache_bytes - (kind->in_kept ? 0 : tape->stores[out.store].bytes);
        if (kind->in_kept) kind->born_bytes -= kind->in_bytes;
        kind->flops_forward = tape->flops;
    }
    tape->result = out.store;
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
    walk_start(walk, kind, pass, NULL);
    x = ftmem__input(&walk->tape, low.tokens * walk->shape.h, walk->shape.h, kind->in_dtype, kind->in_grad);
    out = ftmem__low_block(&low, x);
    ftmem__drop(&walk->tape, x);
    return walk_backward_from(walk, out, probe);
}

/* torch.utils.checkpoint without reentrance: what saves nothing runs first, the first saved tensor that is asked for
   makes the block run again up to the last one, then backward goes on. */
static void walk_recompute(ftmem__walk *walk, ftmem__low *low, ftmem__var x, int16_t g)
{
    ftmem__tape *tape = &walk->tape;
    double flops = tape->flops;
    ftmem__var out;
    int32_t last;
    tape->mode = FTMEM__GHOST;
    tape->backward = false;
    out = ftmem__low_block(low, x);
    tape->flops = flops; /* nothing has been computed yet */
    last = ftmem__last_saving(tape);
    ftmem__backward_above(tape, out, g, last);
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
    tape->leaf_input = true;
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

static ftmem__figure walk_checkpointed_backward(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass, const walk_probe *probe)
{
    ftmem__tape *tape = &walk->tape;
    ftmem__low low = walk_low(walk, kind, pass);
    ftmem__figure f;
    ftmem__var x;
    int64_t base;
    int16_t g;
    walk_start(walk, kind, pass, probe);
    x = ftmem__input(tape, low.tokens * walk->shape.h, walk->shape.h, kind->in_dtype, kind->in_grad);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, x.n, x.cols, kind->out_dtype, FTMEM_CLASS_TEMPORARY);
    base = tape->live;
    ftmem__tape_mark(tape);
    if (walk->shape.job->recompute == FTMEM_RECOMPUTE_REENTRANT) walk_recompute_reentrant(walk, &low, x, g);
    else walk_recompute(walk, &low, x, g);
    ftmem__drop(tape, x);
    f = walk_figure(tape, base);
    walk_end(walk, probe);
    return f;
}

static ftmem__figure walk_block_backward(ftmem__walk *walk, const ftmem__kind *kind, int32_t pass, const walk_probe *probe)
{
    return kind->recomputed ? walk_checkpointed_backward(walk, kind, pass, probe) : walk_plain_backward(walk, kind, pass, probe);
}

static void walk_block(ftmem__walk *walk, ftmem__kind *kind)
{
    const ftmem_job *job = walk->shape.job;
    ftmem__var out;
    walk->params.segment = (int32_t)(kind - walk->kind);
    kind->pass[FTMEM__PASS_FORWARD] = walk_block_forward(walk, kind, kind->recomputed, FTMEM__PASS_FORWARD, NULL, &out);
    if (kind->out_grad) {
        kind->pass[FTMEM__PASS_BACKWARD] =
            kind->recomputed ? walk_checkpointed_backward(walk, kind, FTMEM__PASS_BACKWARD, NULL) : walk_backward_from(walk, out, NULL);
        kind->flops_backward = walk->tape.flops;
        kind->leaf_bytes = walk->tape.leaf_bytes;
    }
    if (kind->out_grad && (job->accumulation > 1 || walk->shape.family->shared_blocks))
        kind->pass[FTMEM__PASS_BACKWARD_LATER] = walk_block_backward(walk, kind, FTMEM__PASS_BACKWARD_LATER, NULL);
    if (job->eval == FTMEM_ON) kind->pass[FTMEM__PASS_EVAL] = walk_block_forward(walk, kind, false, FTMEM__PASS_EVAL, NULL, NULL);
}

/* The kind of one block, simulated if it is new. */
static bool walk_layer(ftmem__walk *walk, int64_t layer, bool in_grad, uint8_t in_dtype, ftmem__kind **found)
{
    ftmem__kind want = { 0 };
    int32_t i;
    want.kind = walk->shape.model->layer_kind[layer];
    want.trained = ftmem__shape_layer_trained(&walk->shape, layer);
    want.adapted = ftmem__shape_layer_adapted(&walk->shape, layer);
    want.in_grad = in_grad;
    want.in_dtype = in_dtype;
    want.recomputed = walk_recomputed(walk, layer);
    want.first = layer == 0 && walk->shape.family->shared_blocks;
    for (i = 0; i < walk->kinds; i++) {
        ftmem__kind *k = &walk->kind[i];
        if (k->kind == want.kind && k->trained == want.trained && k->adapted == want.adapted && k->in_grad == want.in_grad && k->in_dtype == want.in_dtype &&
            k->recomputed == want.recomputed && k->first == want.first)
            break;
    }
    if (i == FTMEM__MAX_KINDS) return false;
    *found = &walk->kind[i];
    if (i == walk->kinds) {
        walk->kinds++;
        **found = want;
        walk_block(walk, *found);
    }
    return true;
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
static ftmem__figure walk_embed_forward(ftmem__walk *walk, int32_t pass, const walk_probe *probe)
{
    ftmem__low low = walk_low(walk, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__prologue p;
    ftmem__figure f;
    ftmem__var x;
    int32_t i;
    walk_start(walk, NULL, pass, probe);
    ftmem__tape_mark(tape);
    if (pass == FTMEM__PASS_FORWARD && !probe) low.params = &walk->params;
    x = ftmem__low_embed(&low, &p);
    if (pass == FTMEM__PASS_FORWARD) walk_embed_parts(walk, &p, x);
    if (pass == FTMEM__PASS_FORWARD) walk->embed.flops_forward = tape->flops;
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
    return f;
}

static ftmem__figure walk_embed_backward(ftmem__walk *walk, int32_t pass, const walk_probe *probe)
{
    ftmem__low low = walk_low(walk, NULL, pass);
    ftmem__tape *tape = &walk->tape;
    ftmem__prologue p;
    ftmem__figure f;
    ftmem__var x;
    int64_t base;
    int32_t i;
    int16_t g;
    walk_start(walk, NULL, pass, NULL);
    x = ftmem__low_embed(&low, &p);
    for (i = 0; i < p.held_count; i++) ftmem__drop(tape, p.held[i]);
    for (i = 0; i < p.mask_count; i++) ftmem__drop(tape, p.masks[i]);
    for (i = 0; i < 2 && p.has_tables; i++) ftmem__drop(tape, p.tables[i]);
    ftmem__cache_clear(tape);
    ftmem__drop(tape, x);
    tape->birth = FTMEM_CLASS_TEMPORARY;
    tape->backward = true;
    walk_listen(tape, probe);
    g = ftmem__alloc(tape, FTMEM__OP_GRADIENT, x.n, x.cols, x.dtype, FTMEM_CLASS_TEMPORARY);
    base = tape->live;
    ftmem__tape_mark(tape);
    ftmem__backward(tape, x, g);
    f = walk_figure(tape, base);
    walk->embed.flops_backward = tape->flops;
    walk_end(walk, probe);
    return f;
}

/* ------------------------------------------------------------------------------------------------ head and loss */

static bool walk_has_logits(const ftmem_job *job)
{
    return job->loss != FTMEM_LOSS_FUSED && job->loss != FTMEM_LOSS_CHUNKED;
}

/* Everything after the blocks. Three parts: the final norm; the base model returns; the head; the loss. */
static ftmem__var walk_head_run(ftmem__walk *walk, ftmem__low *low, ftmem__var x, ftmem__ends *ends, ftmem__var *normed)
{
    ftmem__tape *tape = &walk->tape;
    const ftmem_job *job = walk->shape.job;
    bool held = (job->loss == FTMEM_LOSS_HELD || job->loss == FTMEM_LOSS_LOOP) && low->training;
    int64_t base = tape->live;
    ftmem__var logits = { 0 }, loss, pooled;
    *normed = ftmem__low_final_norm(low, x);
    pooled = ftmem__low_pool(low, *normed);
    ftmem__drop(tape, x);
    if (ends && low->training) ends->norm_peak = tape->peak - base;
    logits.store = -1;
    if (walk_has_logits(job)) logits = ftmem__low_logits(low, pooled);
    if (ends) {
        ends->pass[low->training ? FTMEM__PASS_FORWARD : FTMEM__PASS_EVAL] = walk_figure(tape, base);
        if (low->training) ends->flops_forward = tape->flops;
        ftmem__tape_mark(tape);
    }
    if (job->loss == FTMEM_LOSS_FUSED) {
        loss = ftmem__low_fused_loss(low, *normed);
    } else if (job->loss == FTMEM_LOSS_CHUNKED) {
        ftmem__low_chunked_forward(low, *normed);
        loss = ftmem__apply(tape, FTMEM__OP_NLL, normed, 1, 1, 1, FTMEM_FP32); /* stands for the chunks' graph */
    } else {
        loss = ftmem__low_loss(low, logits);
    }
    if (!held) ftmem__drop(tape, logits);
    if (ends && held) ends->logits_bytes = tape->stores[logits.store].bytes;
    ftmem__drop(tape, pooled);
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
    ends->in_kept = walk_alive(tape, x.store);
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
    walk_start(walk, NULL, pass, NULL);
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
        walk->head.pass[FTMEM__PASS_BACKWARD] = walk_loss_backward(walk, &low, result[0], result[1], NULL);
        walk->head.flops_backward = walk->tape.flops;
    }
    if (walk->head.out_grad && job->accumulation > 1)
        walk->head.pass[FTMEM__PASS_BACKWARD_LATER] = walk_head_backward(walk, FTMEM__PASS_BACKWARD_LATER, dtype, grad, NULL);
    if (job->eval == FTMEM_ON) walk_head_forward(walk, FTMEM__PASS_EVAL, dtype, false, NULL, NULL);
}

/* --------------------------------------------------------------------------------------------------------- whole */

/* Whether a block is of the kind that the one before it has; that one hands on what it was given. */
static bool walk_continues(const ftmem__walk *walk, const ftmem__kind *kind, int64_t layer)
{
    const ftmem__shape *shape = &walk->shape;
    return !kind->first && shape->model->layer_kind[layer] == kind->kind && ftmem__shape_layer_trained(shape, layer) == kind->trained &&
           ftmem__shape_layer_adapted(shape, layer) == kind->adapted && walk_recomputed(walk, layer) == kind->recomputed;
}

static ftmem_status walk_blocks(ftmem__walk *walk, bool *grad, uint8_t *dtype, ftmem_error *error)
{
    ftmem__kind *kind = NULL;
    int64_t i;
    for (i = 0; i < walk->shape.model->layers; i++) {
        bool same = kind && *grad == kind->in_grad && *dtype == kind->in_dtype && walk_continues(walk, kind, i);
        if (!same && !walk_layer(walk, i, *grad, *dtype, &kind))
            return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "model.layer_kind", i, "More than 12 different kinds of block are not modelled.");
        kind->layers++;
        walk->of_layer[i] = (uint8_t)(kind - walk->kind);
        *grad = kind->out_grad;
        *dtype = kind->out_dtype;
    }
    return FTMEM_OK;
}

ftmem_status ftmem__walk_segments(ftmem__walk *walk, ftmem_error *error)
{
    const ftmem_job *job = walk->shape.job;
    bool grad;
    uint8_t dtype;
    ftmem_status status;
    walk->params.segment = FTMEM__SEGMENT_EMBED;
    walk->embed.pass[FTMEM__PASS_FORWARD] = walk_embed_forward(walk, FTMEM__PASS_FORWARD, NULL);
    if (job->eval == FTMEM_ON) walk->embed.pass[FTMEM__PASS_EVAL] = walk_embed_forward(walk, FTMEM__PASS_EVAL, NULL);
    grad = walk->embed.out_grad;
    dtype = walk->embed.out_dtype;
    if (grad) walk->embed.pass[FTMEM__PASS_BACKWARD] = walk_embed_backward(walk, FTMEM__PASS_BACKWARD, NULL);
    if (grad && job->accumulation > 1) walk->embed.pass[FTMEM__PASS_BACKWARD_LATER] = walk_embed_backward(walk, FTMEM__PASS_BACKWARD_LATER, NULL);
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
        else walk_embed_forward(walk, pass, &probe);
    } else if (segment == FTMEM__SEGMENT_HEAD) {
        if (backward) walk_head_backward(walk, pass, dtype, grad, &probe);
        else walk_head_forward(walk, pass, dtype, grad, &probe, NULL);
    } else if (backward) {
        walk_block_backward(walk, &walk->kind[segment], pass, &probe);
    } else {
        walk_block_forward(walk, &walk->kind[segment], walk->kind[segment].recomputed && pass == FTMEM__PASS_FORWARD, pass, &probe, NULL);
    }
}
