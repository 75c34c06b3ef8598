#include "step.h"

/* The running total while a step is walked. */
typedef struct step_run {
    ftmem__step *step;
    const ftmem__walk *walk;
    int64_t level; /* alive now, the running segment not counted beyond what it started with */
    int64_t held;  /* logits that the loop holds from an earlier forward */
    int64_t leaf;  /* and what its loss keeps through the graph */
    int64_t frame; /* the embedding, held by the base model's frame beyond its use */
    int32_t first; /* FTMEM_PHASE_FORWARD or FTMEM_PHASE_FORWARD2 */
    bool later_micro, both, released;
} step_run;

static void step_moment(step_run *run, int32_t phase, ftmem__figure f, int32_t segment, int32_t pass, int32_t layer)
{
    ftmem__moment m;
    m.bytes = run->level + f.peak;
    m.phase = phase;
    m.segment = segment;
    m.pass = pass;
    m.event = f.event;
    m.layer = layer;
    m.later_micro = run->later_micro;
    m.workspaces_both = run->both;
    m.released = run->released;
    m.frame = run->frame + (pass == FTMEM__PASS_FORWARD ? run->leaf : 0);
    m.held = segment == FTMEM__SEGMENT_HEAD && (pass == FTMEM__PASS_BACKWARD || pass == FTMEM__PASS_BACKWARD_LATER) ? 0 : run->held;
    if (m.bytes > run->step->phase[phase].bytes) run->step->phase[phase] = m;
}

static void step_pass(step_run *run, int32_t phase, ftmem__figure f, int32_t segment, int32_t pass, int32_t layer)
{
    step_moment(run, phase, f, segment, pass, layer);
    run->level += f.delta;
}

/* The hidden states of one pass. */
static int64_t step_stream_bytes(const ftmem__walk *walk, int32_t dtype, int32_t pass)
{
    const ftmem__shape *shape = &walk->shape;
    int64_t rows = pass == FTMEM__PASS_EVAL ? shape->job->eval_batch : shape->b;
    return ftmem__round512(ftmem__bytes(dtype, rows * shape->s * shape->h));
}

/* A pass over a run of equal blocks: memory is linear in the block's index, so the highest moment is at one of the ends. */
static void step_blocks(step_run *run, int32_t phase, int32_t pass, int64_t first, int64_t last)
{
    int32_t segment = run->walk->of_layer[first];
    ftmem__figure f = run->walk->kind[segment].pass[pass];
    int64_t rest = f.delta * (last > first ? last - first : first - last);
    if (f.delta <= 0) step_moment(run, phase, f, segment, pass, (int32_t)first);
    run->level += rest;
    if (f.delta > 0) step_moment(run, phase, f, segment, pass, (int32_t)last);
    run->level += f.delta;
}

static void step_blocks_forward(step_run *run, int32_t phase, int32_t pass)
{
    const ftmem__walk *walk = run->walk;
    const ftmem__kind *kind = &walk->kind[walk->of_layer[0]];
    int64_t i, last, layers = walk->shape.model->layers;
    for (i = 0; i < layers; i = last + 1) {
        for (last = i; last > 0 && last + 1 < layers && walk->of_layer[last + 1] == walk->of_layer[i];) last++; /* the first block by itself */
        step_blocks(run, phase, pass, i, last);
        if (i > 0 || !walk->embed.aliased || (kind->in_kept && pass == FTMEM__PASS_FORWARD)) continue;
        run->frame = step_stream_bytes(walk, kind->in_dtype, pass);
        run->level += run->frame;
    }
}

static int64_t step_cache(const ftmem__walk *walk)
{
    int64_t sum = walk->embed.cache_bytes + walk->head.cache_bytes;
    int32_t k;
    for (k = 0; k < walk->kinds; k++) sum += walk->kind[k].cache_bytes * walk->kind[k].layers;
    return sum;
}

/* An embedding output that was made a leaf (enable_input_require_grads over frozen weights) lives as long as the loss
   does, and its gradient with it: to the end of the step where the loop holds the outputs. So do the checkpoints'
   arguments. */
static int64_t step_leaf_input(const step_run *run)
{
    const ftmem__shape *shape = &run->walk->shape;
    bool held = shape->job->loss == FTMEM_LOSS_HELD || shape->job->loss == FTMEM_LOSS_LOOP;
    if (!held || !shape->require_input_grad || shape->embed_trained) return 0;
    return 2 * step_stream_bytes(run->walk, shape->stream, FTMEM__PASS_FORWARD) + (shape->family->mask_by_place ? 0 : run->walk->embed.mask_bytes);
}

/* Forward and loss of one micro-batch. */
static void step_forward(step_run *run)
{
    const ftmem__walk *walk = run->walk;
    int64_t released = walk->embed.released_bytes;
    ftmem__figure norm = walk->head.pass[FTMEM__PASS_FORWARD];
    run->released = false;
    step_pass(run, run->first, walk->embed.pass[FTMEM__PASS_FORWARD], FTMEM__SEGMENT_EMBED, FTMEM__PASS_FORWARD, -1);
    step_blocks_forward(run, run->first, FTMEM__PASS_FORWARD);
    norm.peak = walk->head.norm_peak;
    step_moment(run, run->first, norm, FTMEM__SEGMENT_HEAD, FTMEM__PASS_FORWARD, -1);
    if (walk->shape.job->recompute != FTMEM_RECOMPUTE_NONE) released -= walk->embed.mask_bytes;
    run->level -= released + run->frame;
    run->frame = 0;
    run->released = true;
    step_moment(run, run->first, walk->head.pass[FTMEM__PASS_FORWARD], FTMEM__SEGMENT_HEAD, FTMEM__PASS_FORWARD, -1);
    step_pass(run, run->first + !walk->shape.family->plain_loss, walk->head.loss, FTMEM__SEGMENT_HEAD, FTMEM__PASS_FORWARD, -1);
    run->level -= step_cache(walk) + run->held + run->leaf;
    run->held = walk->head.logits_bytes;
    run->leaf = step_leaf_input(run);
}

/* The first backward of a run makes the second cuBLAS workspace at its first matmul. */
static void step_head_backward(step_run *run, int32_t phase, int32_t pass)
{
    const ftmem__ends *head = &run->walk->head;
    if (!run->both) {
        step_moment(run, phase, head->early, FTMEM__SEGMENT_HEAD, pass, -1);
        run->level += run->step->totals.workspace_bytes;
        run->both = true;
        step_pass(run, phase, head->late, FTMEM__SEGMENT_HEAD, pass, -1);
        return;
    }
    step_pass(run, phase, head->pass[pass], FTMEM__SEGMENT_HEAD, pass, -1);
}

/* Blocks that are one module: the gradients of the last block's use wait, those of the others are summed in, and the first block's
   deliver them (torch/csrc/autograd/engine.cpp: a node runs when all its uses have). */
static bool step_waits(const step_run *run, int64_t layer)
{
    const ftmem__shape *shape = &run->walk->shape;
    return shape->family->shared_blocks && layer > 0 && layer == shape->model->layers - 1;
}

static int32_t step_block_pass(const step_run *run, int64_t layer, int32_t pass)
{
    if (!run->walk->shape.family->shared_blocks || layer == 0) return pass;
    return step_waits(run, layer) ? FTMEM__PASS_BACKWARD : FTMEM__PASS_BACKWARD_LATER;
}

static int64_t step_waiting(const step_run *run)
{
    const ftmem__walk *walk = run->walk;
    int64_t layers = walk->shape.model->layers;
    return walk->shape.family->shared_blocks && layers > 1 ? walk->kind[walk->of_layer[layers - 1]].leaf_bytes : 0;
}

static void step_backward(step_run *run)
{
    const ftmem__walk *walk = run->walk;
    int32_t pass = run->later_micro ? FTMEM__PASS_BACKWARD_LATER : FTMEM__PASS_BACKWARD, phase = run->first + 2;
    int64_t i, last;
    if (!walk->head.out_grad) return;
    step_head_backward(run, phase, pass);
    for (i = walk->shape.model->layers - 1; i >= 0; i = last - 1) {
        if (!walk->kind[walk->of_layer[i]].out_grad) return;
        for (last = i; last > 0 && walk->of_layer[last - 1] == walk->of_layer[i] && !step_waits(run, i);) last--;
        step_blocks(run, phase, step_block_pass(run, i, pass), i, last);
    }
    run->level -= step_waiting(run);
    if (walk->shape.family->mask_by_place && walk->shape.job->recompute != FTMEM_RECOMPUTE_NONE) run->level -= walk->embed.mask_bytes;
    if (walk->embed.out_grad) step_pass(run, phase, walk->embed.pass[pass], FTMEM__SEGMENT_EMBED, pass, -1);
}

static void step_optimizer(step_run *run)
{
    const ftmem__totals *t = &run->step->totals;
    ftmem__figure f = { 0, 0, 0 };
    f.peak = t->step_bytes;
    step_moment(run, run->first + 3, f, 0, -1, -1);
}

/* One optimizer step: its micro-batches (the second stands for all later ones), then the update. */
static void step_once(step_run *run, int64_t states)
{
    const ftmem__totals *t = &run->step->totals;
    int64_t base = t->resident - t->narrowed_bytes + t->master_bytes + states, micro, before;
    int64_t micros = run->walk->shape.job->accumulation > 1 ? 2 : 1;
    bool first_step = run->first == FTMEM_PHASE_FORWARD;
    for (micro = 0; micro < micros; micro++) {
        run->later_micro = micro > 0;
        run->both = !first_step || micro > 0;
        run->level = base + t->workspace_bytes * (run->both ? 2 : 1) + (run->later_micro ? t->gradient_bytes : 0) + run->held + run->leaf;
        before = run->level - run->held - run->leaf;
        step_forward(run);
        if (first_step && micro == 0) run->step->kept_bytes = run->level - before - run->held - t->narrowed_bytes;
        step_backward(run);
        run->both = true;
    }
    run->level = t->resident - t->narrowed_bytes + t->master_bytes + t->state_bytes + t->gradient_bytes + 2 * t->workspace_bytes + run->held + run->leaf;
    step_optimizer(run);
    if (run->walk->shape.job->loss != FTMEM_LOSS_LOOP) run->held = run->leaf = 0;
}

/* Evaluation under no_grad. With logits kept, two batches stand for all: the first one's logits beside the second
   forward, then old, new and joined together. */
static void step_eval(step_run *run)
{
    const ftmem__walk *walk = run->walk;
    const ftmem__totals *t = &run->step->totals;
    const ftmem_job *job = walk->shape.job;
    ftmem__figure joined = { 0, 0, 0 };
    int64_t logits = 0, tokens = job->eval_batch * walk->shape.s;
    run->first = FTMEM_PHASE_EVAL;
    run->both = true;
    run->later_micro = false;
    run->frame = 0;
    run->level = t->resident - t->narrowed_bytes - t->batch_bytes + t->eval_batch_bytes + t->master_bytes + t->state_bytes + 2 * t->workspace_bytes;
    if (job->eval_keep_logits == FTMEM_ON)
        logits = ftmem__round512(ftmem__bytes(walk->shape.autocast ? FTMEM_FP32 : walk->shape.dtype, tokens * walk->shape.vocab));
    joined.peak = 4 * logits;
    step_moment(run, FTMEM_PHASE_EVAL, joined, 0, -1, -1);
    run->level += logits;
    run->held = logits;
    run->leaf = 0;
    run->released = false;
    step_pass(run, FTMEM_PHASE_EVAL, walk->embed.pass[FTMEM__PASS_EVAL], FTMEM__SEGMENT_EMBED, FTMEM__PASS_EVAL, -1);
    step_blocks_forward(run, FTMEM_PHASE_EVAL, FTMEM__PASS_EVAL);
    run->level -= walk->embed.eval_released_bytes + run->frame;
    run->frame = 0;
    run->released = true;
    step_moment(run, FTMEM_PHASE_EVAL, walk->head.pass[FTMEM__PASS_EVAL], FTMEM__SEGMENT_HEAD, FTMEM__PASS_EVAL, -1);
    step_moment(run, FTMEM_PHASE_EVAL, walk->head.eval_loss, FTMEM__SEGMENT_HEAD, FTMEM__PASS_EVAL, -1);
}

static void step_still(step_run *run, int32_t phase, int64_t level)
{
    ftmem__figure f = { 0, 0, 0 };
    run->level = level;
    step_moment(run, phase, f, 0, -1, -1);
}

/* What the first forward stores anew in the blocks of a kind. */
static int64_t step_narrowed(const ftmem__walk *walk, int32_t kind)
{
    int64_t sum = 0;
    int32_t i;
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        if (p->segment == kind && p->narrowed_bytes > 0) sum += p->bytes - p->narrowed_bytes;
    }
    return sum;
}

/* Born in the middle block and kept: its output too, if the block above or the head keeps it. */
static int64_t step_middle(const ftmem__walk *walk)
{
    int64_t layers = walk->shape.model->layers, middle = layers / 2;
    const ftmem__kind *kind = &walk->kind[walk->of_layer[middle]];
    bool last = middle == layers - 1;
    return step_narrowed(walk, walk->of_layer[middle]) + kind->born_bytes - (last && kind->in_kept && !walk->head.in_kept ? kind->in_bytes : 0);
}

static void step_flops(ftmem__step *step)
{
    const ftmem__walk *walk = step->walk;
    int32_t k;
    step->flops_forward = walk->embed.flops_forward + walk->head.flops_forward;
    step->flops_backward = walk->embed.flops_backward + walk->head.flops_backward;
    for (k = 0; k < walk->kinds; k++) {
        step->flops_forward += walk->kind[k].flops_forward * (double)walk->kind[k].layers;
        step->flops_backward += walk->kind[k].flops_backward * (double)walk->kind[k].layers;
    }
    step->kept_layer_bytes = step_middle(walk);
}

void ftmem__step_run(ftmem__step *step)
{
    step_run run = { 0 };
    const ftmem__totals *t = &step->totals;
    int32_t p;
    run.step = step;
    run.walk = step->walk;
    step_flops(step);
    step_still(&run, FTMEM_PHASE_LOAD, t->resident);
    run.first = FTMEM_PHASE_FORWARD;
    step_once(&run, 0);
    run.first = FTMEM_PHASE_FORWARD2;
    step_once(&run, t->state_bytes);
    step_still(&run, FTMEM_PHASE_SAVE, t->resident - t->narrowed_bytes + t->master_bytes + t->state_bytes + 2 * t->workspace_bytes);
    if (step->walk->shape.job->eval == FTMEM_ON) step_eval(&run);
    for (p = 0; p < FTMEM_PHASE_END; p++)
        if (step->phase[p].bytes > step->peak.bytes) step->peak = step->phase[p];
}
