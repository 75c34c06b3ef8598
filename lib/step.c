#include "step.h"

/* The running total while a step is walked. */
typedef struct step_run {
    ftmem__step *step;
    const ftmem__walk *walk;
    int64_t level;  /* alive now, the running segment not counted beyond what it started with */
    int64_t held;   /* logits that the loop holds from an earlier forward */
    int64_t leaf;   /* and what its loss keeps through the graph */
    int64_t frame;  /* the embedding, held by the base model's frame beyond its use */
    int32_t stack;  /* that runs */
    int64_t scaler; /* bytes of the gradient scaler, once it exists */
    int64_t sides;  /* of the level: what segments read that others have made */
    int32_t first;  /* FTMEM_PHASE_FORWARD or FTMEM_PHASE_FORWARD2 */
    bool later_micro, both, released;
    bool states;    /* the optimizer's exist */
    int64_t cached; /* of the level: copies of weights, to the end of autocast's context */
    int8_t beside;  /* as in a moment */
} step_run;

static void step_moment(step_run *run, int32_t phase, ftmem__figure f, int32_t segment, int32_t pass, int32_t layer)
{
    ftmem__moment m;
    m.bytes = run->level + f.peak;
    if (m.bytes <= run->step->phase[phase].bytes) return;
    m.phase = phase;
    m.segment = segment;
    m.pass = pass;
    m.event = f.event;
    m.layer = layer;
    m.stack = run->stack;
    m.sides = run->sides;
    m.later_micro = run->later_micro;
    m.workspaces_both = run->both;
    m.released = run->released;
    m.states = run->states;
    m.beside = run->beside;
    m.frame = run->frame + (pass == FTMEM__PASS_FORWARD ? run->leaf : 0);
    m.held = segment == ftmem__walk_head(run->walk) && (pass == FTMEM__PASS_BACKWARD || pass == FTMEM__PASS_BACKWARD_LATER) ? 0 : run->held;
    run->step->phase[phase] = m;
}

static void step_pass(step_run *run, int32_t phase, ftmem__figure f, int32_t segment, int32_t pass, int32_t layer)
{
    step_moment(run, phase, f, segment, pass, layer);
    run->level += f.delta;
}

/* What a leaf of an embedding has: of a tower the patches alone. */
static int64_t step_leaf_bytes(const ftmem__shape *shape)
{
    int64_t tokens = shape->s - (shape->tower && shape->family->class_token);
    int32_t dtype = shape->tower && shape->autocast ? shape->autocast : shape->stream; /* a convolution's */
    return ftmem__round512(ftmem__bytes(dtype, shape->b * tokens * shape->h));
}

/* The hidden states of one pass. */
static int64_t step_stream_bytes(const ftmem__shape *shape, int32_t dtype, int32_t pass)
{
    int64_t rows = pass == FTMEM__PASS_EVAL ? shape->eval_b : shape->b;
    return ftmem__round512(ftmem__bytes(dtype, rows * shape->s * shape->h));
}

static int64_t step_layers(const ftmem__stack *stack)
{
    return stack->shape->model->layers;
}

/* A side joins the level, or leaves it. */
static void step_side(step_run *run, const ftmem__side *side, int32_t pass, int64_t sign)
{
    int64_t bytes = sign * side->bytes[pass == FTMEM__PASS_EVAL];
    run->sides += bytes;
    if (sign < 0) run->level += bytes; /* its maker's figure has counted it */
}

static void step_sides_made(step_run *run, const ftmem__stack *stack, const ftmem__kind *kind, int32_t pass)
{
    int32_t k;
    for (k = 0; k < FTMEM__SIDES; k++)
        if (kind->made >> k & 1) step_side(run, &stack->side[k], pass, 1);
}

/* In the first step an optimizer in backward leaves new states behind. */
static ftmem__figure step_with_states(const step_run *run, ftmem__figure f, int32_t segment, int32_t pass)
{
    const ftmem_job *job = run->walk->shape.job;
    bool leaves = pass == FTMEM__PASS_BACKWARD && run->first == FTMEM_PHASE_FORWARD && ftmem__updates_in_backward(job);
    int64_t states = leaves && !ftmem__optimizer_of(job)->from_start ? ftmem__segment_states(run->walk, segment) : 0;
    f.delta += states;
    if (states == 0 || !ftmem__segment_is_embed(segment)) return f;
    states += run->walk->stack[run->stack].embed.update_peak;
    if (states > f.peak) f.peak = states;
    return f;
}

/* A pass over a run of equal blocks: memory is linear in the block's index, so the highest moment is at one of the ends. */
static void step_blocks(step_run *run, int32_t phase, int32_t pass, const ftmem__stack *stack, int64_t first, int64_t last)
{
    int32_t segment = stack->of_layer[first];
    ftmem__figure f = step_with_states(run, run->walk->kind[segment].pass[pass], segment, pass);
    int64_t rest = f.delta * (last > first ? last - first : first - last);
    if (f.delta <= 0) step_moment(run, phase, f, segment, pass, (int32_t)first);
    run->level += rest;
    if (f.delta > 0) step_moment(run, phase, f, segment, pass, (int32_t)last);
    run->level += f.delta;
}

/* Whether something stands between this block and the next one. */
static bool step_tapped(const ftmem__stack *stack, int64_t layer)
{
    return stack->shape->taps && ftmem__shape_tapped(stack->shape, layer);
}

static void step_after(step_run *run, int32_t phase, int32_t pass, const ftmem__stack *stack, int64_t layer)
{
    const ftmem__walk *walk = run->walk;
    bool text = !stack->shape->tower;
    if (!step_tapped(stack, layer)) return;
    step_pass(run, phase, text ? walk->deep.pass[pass] : walk->tap.pass[pass], text ? FTMEM__SEGMENT_DEEP : FTMEM__SEGMENT_TAP, pass, (int32_t)layer);
}

/* Whether the block above this one keeps the stream between them; above the last one its stack's end does. */
static bool step_kept_above(const step_run *run, const ftmem__stack *stack, int64_t layer)
{
    return layer + 1 >= step_layers(stack) || run->walk->kind[stack->of_layer[layer + 1]].in_kept;
}

/* Qwen3VLTextModel.forward: layer_outputs is bound anew, and what it named goes. What a tower's block lets go of may be kept by
   the features made of it. */
static void step_unnamed(step_run *run, int32_t pass, const ftmem__stack *stack, int64_t layer)
{
    const ftmem__walk *walk = run->walk;
    if (layer == 0 || !step_tapped(stack, layer - 1)) return;
    if (!stack->shape->tower) run->level -= step_stream_bytes(stack->shape, walk->deep_in.dtype, pass);
    else if (pass == FTMEM__PASS_FORWARD && walk->tap.in_kept && !step_kept_above(run, stack, layer - 1))
        run->level += step_stream_bytes(stack->shape, walk->tap_in.dtype, pass);
}

/* Its backward comes before the block's. What the tower's graph keeps of the stream outlives the block above. */
static void step_after_backward(step_run *run, int32_t phase, int32_t pass, const ftmem__stack *stack, int64_t layer)
{
    const ftmem__walk *walk = run->walk;
    const ftmem__ends *end = stack->shape->tower ? &walk->tap : &walk->deep;
    if (!step_tapped(stack, layer) || !end->out_grad) return;
    if (stack->shape->tower && end->in_kept && step_kept_above(run, stack, layer)) run->level += step_stream_bytes(stack->shape, walk->tap_in.dtype, pass);
    step_after(run, phase, pass, stack, layer);
}

/* By its own graph, whatever the first block does. */
static bool step_stream_kept(const ftmem__stack *stack)
{
    return stack->embed.stream_kept || stack->embed.leaf_kept;
}

static void step_blocks_forward(step_run *run, int32_t phase, int32_t pass, const ftmem__stack *stack)
{
    const ftmem__kind *kind = &run->walk->kind[stack->of_layer[0]];
    bool aliased = pass == FTMEM__PASS_EVAL ? stack->embed.eval_aliased : stack->embed.aliased;
    int64_t i, last, layers = step_layers(stack);
    for (i = 0; i < layers; i = last + 1) {
        for (last = i;
             last > 0 && last + 1 < layers && stack->of_layer[last + 1] == stack->of_layer[i] && !step_tapped(stack, last) && !step_tapped(stack, last - 1);)
            last++; /* the first block by itself */
        step_blocks(run, phase, pass, stack, i, last);
        step_unnamed(run, pass, stack, i);
        step_after(run, phase, pass, stack, last);
        step_sides_made(run, stack, &run->walk->kind[stack->of_layer[i]], pass);
        if (i == 0 && pass == FTMEM__PASS_FORWARD && step_stream_kept(stack) && !kind->in_kept) run->level += kind->in_bytes;
        if (i > 0 || !aliased || ((kind->in_kept || step_stream_kept(stack)) && pass == FTMEM__PASS_FORWARD)) continue;
        run->frame = step_stream_bytes(stack->shape, kind->in_dtype, pass);
        run->level += run->frame;
    }
}

static void step_leave_frame(step_run *run)
{
    run->level -= run->frame;
    run->frame = 0;
}

/* The frame of a stack returns: its locals go, and what its blocks shared unless a graph keeps it. */
static void step_leave(step_run *run, const ftmem__stack *stack, int32_t pass)
{
    bool eval = pass == FTMEM__PASS_EVAL;
    int64_t released = eval ? stack->embed.eval_released_bytes : stack->embed.released_bytes;
    int32_t k;
    if (!eval && run->walk->shape.job->recompute != FTMEM_RECOMPUTE_NONE) released -= stack->embed.mask_bytes;
    run->level -= released;
    if (!stack->shape->virtual_tokens) step_leave_frame(run);
    if (stack->shape->scattered && !stack->side[FTMEM__SIDE_SOURCE].outputs) step_side(run, &stack->side[FTMEM__SIDE_SOURCE], pass, -1);
    for (k = FTMEM__SIDE_SOURCE + 1; k < FTMEM__SIDES; k++)
        if (stack->side[k].there && (eval || !stack->side[k].kept)) step_side(run, &stack->side[k], pass, -1);
}

/* The token embedding, where it comes before a tower and not with its stack. */
static void step_words(step_run *run, int32_t phase, int32_t pass)
{
    const ftmem__walk *walk = run->walk;
    run->stack = 0;
    if (walk->shape.scattered) step_pass(run, phase, walk->words.pass[pass], FTMEM__SEGMENT_WORDS, pass, -1);
}

/* Embedding and blocks of one stack; an earlier one to its end. */
static void step_stack_forward(step_run *run, int32_t phase, int32_t pass, int32_t index)
{
    const ftmem__stack *stack = &run->walk->stack[index];
    run->stack = index;
    step_pass(run, phase, step_with_states(run, stack->embed.pass[pass], ftmem__segment_embed(index), pass), ftmem__segment_embed(index), pass, -1);
    if (stack->side[FTMEM__SIDE_LAYERS].there) step_side(run, &stack->side[FTMEM__SIDE_LAYERS], pass, 1);
    step_blocks_forward(run, phase, pass, stack);
    if (index == run->walk->stacks - 1) return;
    if (stack->shape->tower) step_leave(run, stack, pass); /* its end is the whole model's */
    step_pass(run, phase, stack->end.pass[pass], ftmem__segment_end(index), pass, -1);
    step_side(run, &run->walk->stack[index + 1].side[FTMEM__SIDE_SOURCE], pass, 1);
    if (!stack->shape->tower) step_leave(run, stack, pass);
}

static int64_t step_cache(const ftmem__walk *walk)
{
    int64_t sum = 0;
    int32_t k;
    for (k = 0; k < walk->stacks; k++) sum += walk->stack[k].embed.cache_bytes + walk->stack[k].end.cache_bytes;
    for (k = 0; k < walk->kinds; k++) sum += walk->kind[k].cache_bytes * walk->kind[k].layers;
    if (walk->shape.taps) sum += walk->tap.cache_bytes * walk->shape.taps;
    return sum;
}

/* An embedding output that was made a leaf (enable_input_require_grads over frozen weights) lives as long as the loss
   does, and its gradient with it: to the end of the step where the loop holds the outputs. So do the named arguments of
   blocks that a reentrant checkpoint has bound (torch/utils/checkpoint.py CheckpointFunction, ctx.run_function). */
static int64_t step_leaf_input(const ftmem__stack *stack)
{
    const ftmem__shape *shape = stack->shape;
    int64_t sum = 0;
    if (!shape->require_input_grad || shape->family->no_input_leaf) return 0;
    if (!shape->embed_trained && !shape->adapter->trainable_tokens) sum = 2 * step_leaf_bytes(shape);
    if (shape->job->recompute != FTMEM_RECOMPUTE_REENTRANT || shape->family->positional_masks) return sum;
    return sum + stack->embed.mask_bytes + stack->embed.table_bytes;
}

static int64_t step_leaf_sides(const ftmem__stack *stack)
{
    int64_t sum = stack->shape->scattered ? 0 : stack->side[FTMEM__SIDE_SOURCE].bytes[0];
    int32_t k;
    for (k = 0; k < FTMEM__SIDES; k++)
        if (stack->side[k].leaf) sum += 2 * stack->side[k].bytes[0];
    return sum;
}

/* What lives as long as the outputs beside the logits: leaves, and the encoder's output and the cache of keys and values,
   which are outputs too, and what nodes hold as attributes, which goes with the graph. */
static int64_t step_leaf(const ftmem__walk *walk)
{
    int64_t sum = ftmem__round512(ftmem__bytes(FTMEM_FP32, 1)); /* the loss itself */
    int32_t k;
    if (!ftmem__holds_outputs(walk->shape.job)) return 0;
    for (k = 0; k < walk->stacks; k++) sum += step_leaf_input(&walk->stack[k]) + step_leaf_sides(&walk->stack[k]) + walk->stack[k].end.outputs_bytes;
    for (k = 0; k < walk->kinds; k++) sum += (walk->kind[k].outputs_bytes + walk->kind[k].attribute_bytes) * walk->kind[k].layers;
    if (walk->shape.taps) sum += walk->tap.outputs_bytes * walk->shape.taps;
    return sum;
}

/* The outputs go: what earlier stacks have made for the last one with them, unless a graph keeps it. */
static void step_drop_outputs(step_run *run)
{
    const ftmem__side *source = &ftmem__walk_last(run->walk)->side[FTMEM__SIDE_SOURCE];
    step_leave_frame(run); /* where PEFT's own forward joined virtual tokens with the embeddings, it holds them */
    run->level -= run->cached + run->held + run->leaf;
    if (run->walk->shape.scattered && !source->outputs) return;
    if (source->there && !source->kept && !ftmem__holds_outputs(run->walk->shape.job)) step_side(run, source, FTMEM__PASS_FORWARD, -1);
}

/* The model's frame holds the outputs meanwhile. */
static void step_regular_forward(step_run *run)
{
    const ftmem__shape *shape = &run->walk->shape;
    ftmem__figure f = { 0, 0, 0 };
    if (!shape->regularised) return;
    run->level += run->step->totals.regular.kept_bytes;
    if (!ftmem__holds_outputs(shape->job)) f.peak = ftmem__bytes(shape->autocast ? shape->autocast : shape->dtype, shape->tokens * shape->vocab);
    step_moment(run, run->first, f, 0, -1, -1);
}

static void step_regular_backward(step_run *run)
{
    const ftmem__totals *t = &run->step->totals;
    if (!run->walk->shape.regularised) return;
    run->level += (run->later_micro ? 0 : t->regular.gradient_bytes) - t->regular.kept_bytes;
    if (!run->both) run->level += t->workspace_bytes;
    run->both = true;
}

static int32_t step_phase_of(const step_run *run, uint8_t when)
{
    if (run->first == FTMEM_PHASE_EVAL) return FTMEM_PHASE_EVAL;
    return when == FTMEM__GENERATES ? FTMEM_PHASE_GENERATION : FTMEM_PHASE_REFERENCE;
}

/* The forwards without gradients that run at this point of a step. */
static void step_besides(step_run *run, uint8_t when)
{
    ftmem__step *step = run->step;
    ftmem__figure f = { 0, 0, 0 };
    int32_t i;
    for (i = 0; i < step->besides; i++) {
        if (step->beside[i].forward->when != when) continue;
        run->beside = (int8_t)(i + 1);
        f.peak = step->beside[i].peak;
        step_moment(run, step_phase_of(run, when), f, ftmem__walk_head(run->walk),
                    when == FTMEM__AFTER && run->first != FTMEM_PHASE_EVAL ? FTMEM__PASS_FORWARD : -1, -1);
    }
    run->beside = 0;
}

/* Bytes of logits as the wrapped model returns them, of so many tokens. */
static int64_t step_logits(const ftmem__shape *shape, int64_t tokens)
{
    return ftmem__round512(ftmem__bytes(shape->autocast ? FTMEM_FP32 : shape->dtype, tokens * shape->vocab));
}

/* Between log-probabilities and loss. trl 1.14 trainer/dpo_trainer.py: where there are logits, those of both models have names until the
   loss is returned; beside them the logits of half the rows' scored tokens are copied for a mean. */
static void step_scored(step_run *run)
{
    const ftmem__shape *shape = &run->walk->shape;
    const ftmem__objective *o = ftmem__objective_of(shape->job);
    int64_t rows = run->first == FTMEM_PHASE_EVAL ? shape->eval_b : shape->b,
            scored = shape->job->completion_sequence ? shape->job->completion_sequence : shape->s - 1;
    bool logits = shape->job->loss != FTMEM_LOSS_TILES && o->forward[0].when == FTMEM__AFTER, eval = run->first == FTMEM_PHASE_EVAL;
    ftmem__figure f = { 0, 0, 0 };
    int64_t names = logits && eval ? step_logits(shape, rows * shape->s) : 0;
    if (!logits && !eval) names = o->outputs * ftmem__round512(4 * rows * (shape->s - 1));
    run->level += names;
    step_besides(run, FTMEM__AFTER);
    if (logits) f.peak = step_logits(shape, rows / 2 * scored) + (run->step->besides ? step_logits(shape, rows * shape->s) : 0);
    if (logits) step_moment(run, eval ? FTMEM_PHASE_EVAL : run->first + 1, f, ftmem__walk_head(run->walk), eval ? -1 : FTMEM__PASS_FORWARD, -1);
    run->level -= names;
}

/* The trainer's loss: the model's forward has returned, and autocast's context with it. */
static void step_loss_apart(step_run *run, const ftmem__ends *head, int32_t segment)
{
    if (!ftmem__loss_apart(run->walk->shape.job)) return;
    run->level -= run->cached;
    run->cached = 0;
    step_moment(run, run->first + 1, head->loss, segment, FTMEM__PASS_FORWARD, -1);
    run->level += head->loss.delta;
    step_scored(run);
    run->level -= head->loss.delta;
}

/* What the trainer's frame holds beside its batch. */
static int64_t step_names(const ftmem__walk *walk)
{
    return ftmem__objective_of(walk->shape.job)->names * ftmem__round512(8 * walk->shape.tokens);
}

/* Forward and loss of one micro-batch. */
static void step_forward(step_run *run)
{
    const ftmem__walk *walk = run->walk;
    const ftmem__ends *head = &ftmem__walk_last(walk)->end;
    ftmem__figure norm = head->pass[FTMEM__PASS_FORWARD];
    int32_t i, segment = ftmem__walk_head(walk);
    run->released = false;
    run->sides = 0;
    run->level += step_names(walk);
    step_besides(run, FTMEM__BEFORE);
    run->cached = step_cache(walk);
    step_words(run, run->first, FTMEM__PASS_FORWARD);
    for (i = 0; i < walk->stacks; i++) step_stack_forward(run, run->first, FTMEM__PASS_FORWARD, i);
    norm.peak = head->norm_peak;
    step_moment(run, run->first, norm, segment, FTMEM__PASS_FORWARD, -1);
    step_leave(run, ftmem__walk_last(walk), FTMEM__PASS_FORWARD);
    run->released = true;
    step_moment(run, run->first, head->pass[FTMEM__PASS_FORWARD], segment, FTMEM__PASS_FORWARD, -1);
    if (walk->shape.job->loss == FTMEM_LOSS_SPLIT) { /* the loop's `logits` is bound anew before the loss */
        run->level -= run->held;
        run->held = 0;
    }
    step_loss_apart(run, head, segment);
    step_pass(run, run->first + !walk->shape.family->loss_own_dtype, head->loss, segment, FTMEM__PASS_FORWARD, -1);
    step_regular_forward(run);
    run->level -= step_names(walk);
    step_drop_outputs(run);
    run->held = head->logits_bytes;
    run->leaf = step_leaf(walk);
}

/* The first backward of a run makes the second cuBLAS workspace at its first matmul. */
static void step_head_backward(step_run *run, int32_t phase, int32_t pass)
{
    const ftmem__ends *head = &ftmem__walk_last(run->walk)->end;
    int32_t segment = ftmem__walk_head(run->walk);
    if (!run->both) {
        step_moment(run, phase, head->early, segment, pass, -1);
        run->level += run->step->totals.workspace_bytes;
        run->both = true;
        step_pass(run, phase, step_with_states(run, head->late, segment, pass), segment, pass, -1);
        return;
    }
    step_pass(run, phase, step_with_states(run, head->pass[pass], segment, pass), segment, pass, -1);
}

/* The first block's turn has come: every other reader of a stack's sides has run. What its own graph keeps is on its tape. */
static void step_sides_read(step_run *run, const ftmem__stack *stack, const ftmem__kind *kind)
{
    bool held = ftmem__holds_outputs(run->walk->shape.job);
    int32_t k;
    for (k = 0; k < FTMEM__SIDES; k++) {
        const ftmem__side *side = &stack->side[k];
        bool bound = k >= FTMEM__SIDE_KEYS && run->walk->shape.job->recompute != FTMEM_RECOMPUTE_NONE, maker = kind->made >> k & 1,
             last = maker || (kind->first && kind->given >> k & 1);
        if (!last || bound || !side->kept || side->leaf || (k == FTMEM__SIDE_SOURCE && held)) continue;
        if (maker ? side->own : kind->freed >> k & 1) run->sides -= side->bytes[0];
        else step_side(run, side, FTMEM__PASS_BACKWARD, -1);
    }
}

/* The lowest block with attention of which blocks with linear attention are below; 0: there are none. */
static int64_t step_lowest_attention(const ftmem__stack *stack)
{
    int64_t i = 0, layers = step_layers(stack);
    while (i < layers && ftmem__layer_attention(stack->shape->model->layer_kind[i]) == FTMEM__LAYER_LINEAR) i++;
    return i < layers ? i : 0;
}

/* What such blocks do not read goes with the lowest one that does: the rotation's tables, which a checkpoint is given in any
   block, or the mask, of which it is given that of its own kind (modeling_qwen3_next.py Qwen3NextModel). */
static int64_t step_attention_arguments(const ftmem__stack *stack)
{
    if (step_lowest_attention(stack) == 0) return 0;
    switch (stack->shape->job->recompute) {
    case FTMEM_RECOMPUTE_NONE: return stack->embed.table_bytes;
    case FTMEM_RECOMPUTE_REENTRANT: return 0;
    default: return stack->embed.mask_bytes - ftmem__round512(ftmem__bytes(FTMEM_INT64, stack->shape->s)); /* positions are given to all */
    }
}

static void step_blocks_backward(step_run *run, int32_t phase, int32_t pass, const ftmem__stack *stack)
{
    int64_t i, last, held = 0, lowest = step_lowest_attention(stack);
    for (i = step_layers(stack) - 1 - stack->shape->unread; i >= 0; i = last - 1) {
        const ftmem__kind *kind = &run->walk->kind[stack->of_layer[i]];
        if (!kind->out_grad) return;
        step_after_backward(run, phase, pass, stack, i);
        for (last = i; held == 0 && last > 0 && stack->of_layer[last - 1] == stack->of_layer[i] && !step_tapped(stack, last - 1);) last--;
        step_sides_read(run, stack, kind);
        step_blocks(run, phase, pass, stack, i, last);
        if (last == lowest) run->level -= step_attention_arguments(stack);
        run->level += held; /* a gradient that this block has read and another one still holds */
        held = kind->leaf_held ? kind->in_bytes : 0;
    }
    run->level += held;
}

/* Blocks that are one module: the gradients of the last block's use wait for those of the first, which delivers them
   (torch/csrc/autograd/engine.cpp: a node runs when all its uses have). */
static int64_t step_waiting(const ftmem__walk *walk, const ftmem__stack *stack)
{
    int64_t layers = step_layers(stack);
    return stack->shape->family->shared_blocks && layers > 1 ? walk->kind[stack->of_layer[layers - 1]].leaf_bytes : 0;
}

/* What the first block's backward is the last to use: the tables of the rotation, which a reentrant checkpoint's function holds to
   the end, and a mask that checkpoints saved. */
static int64_t step_arguments(const ftmem__stack *stack)
{
    int32_t recompute = stack->shape->job->recompute;
    int64_t sum = recompute == FTMEM_RECOMPUTE_REENTRANT ? 0 : stack->embed.table_bytes;
    if (recompute == FTMEM_RECOMPUTE_NONE) sum -= step_attention_arguments(stack);
    if (stack->shape->family->positional_masks && recompute != FTMEM_RECOMPUTE_NONE) sum += stack->embed.mask_bytes;
    return sum;
}

/* Stored keys and values are an argument that checkpoints hold, to the end of the first block's backward. */
static void step_unbind(step_run *run, const ftmem__stack *stack)
{
    int32_t k;
    if (run->walk->shape.job->recompute == FTMEM_RECOMPUTE_NONE) return;
    for (k = FTMEM__SIDE_KEYS; k < FTMEM__SIDES; k++)
        if (stack->side[k].there) step_side(run, &stack->side[k], FTMEM__PASS_BACKWARD, -1);
    for (k = 0; k < run->walk->kinds; k++) run->level -= run->walk->kind[k].bound_bytes;
}

static void step_stack_backward(step_run *run, int32_t phase, int32_t pass, int32_t index)
{
    const ftmem__stack *stack = &run->walk->stack[index];
    step_blocks_backward(run, phase, pass, stack);
    run->level -= step_waiting(run->walk, stack);
    run->level -= step_arguments(stack);
    step_unbind(run, stack);
    if (stack->embed.leaf_kept && !run->walk->kind[stack->of_layer[0]].in_kept) run->level -= run->walk->kind[stack->of_layer[0]].in_bytes;
    if (stack->embed.stream_kept && run->walk->kind[stack->of_layer[0]].in_kept) run->level += run->walk->kind[stack->of_layer[0]].in_bytes;
    if (stack->embed.back)
        step_pass(run, phase, step_with_states(run, stack->embed.pass[pass], ftmem__segment_embed(index), pass), ftmem__segment_embed(index), pass, -1);
}

static void step_stacks_backward(step_run *run, int32_t phase, int32_t pass)
{
    const ftmem__walk *walk = run->walk;
    int32_t i;
    for (i = walk->stacks - 1; i >= 0; i--) {
        run->stack = i;
        step_stack_backward(run, phase, pass, i);
        if (i == 0 || !walk->stack[i - 1].end.out_grad) return;
        run->stack = i - 1;
        step_pass(run, phase, step_with_states(run, walk->stack[i - 1].end.pass[pass], ftmem__segment_end(i - 1), pass), ftmem__segment_end(i - 1), pass, -1);
    }
}

static void step_backward(step_run *run)
{
    int32_t pass = run->later_micro ? FTMEM__PASS_BACKWARD_LATER : FTMEM__PASS_BACKWARD, phase = run->first + 2;
    if (!ftmem__walk_last(run->walk)->end.out_grad) return;
    step_regular_backward(run);
    step_head_backward(run, phase, pass);
    step_stacks_backward(run, phase, pass);
    if (run->walk->words.out_grad && !run->walk->words.leaf) step_words(run, phase, pass); /* first in forward, last in backward */
}

static void step_optimizer(step_run *run)
{
    const ftmem__totals *t = &run->step->totals;
    ftmem__figure f = { 0, 0, 0 };
    f.peak = run->first == FTMEM_PHASE_FORWARD ? t->first_step_bytes : t->step_bytes;
    step_moment(run, run->first + 3, f, 0, -1, -1);
}

/* torch/amp/grad_scaler.py: the scale and its growth tracker come with the first loss; a scaled loss beside each. */
static void step_scale(step_run *run)
{
    int64_t scaler = run->step->totals.scaler_bytes;
    if (scaler == 0) return;
    run->level += 512 + scaler - run->scaler;
    run->scaler = scaler;
}

/* One optimizer step: its micro-batches (the second stands for all later ones), then the update. */
static void step_once(step_run *run, int64_t states)
{
    const ftmem__totals *t = &run->step->totals;
    int64_t base = t->resident - t->narrowed_bytes + t->master_bytes + states, micro, before;
    int64_t micros = run->walk->shape.job->accumulation > 1 ? 2 : 1;
    bool first_step = run->first == FTMEM_PHASE_FORWARD;
    run->states = !first_step || ftmem__optimizer_of(run->walk->shape.job)->from_start;
    run->later_micro = false;
    run->level = base + run->scaler + t->workspace_bytes * (first_step ? 1 : 2);
    run->both = !first_step;
    step_besides(run, FTMEM__GENERATES);
    step_besides(run, FTMEM__APART);
    for (micro = 0; micro < micros; micro++) {
        run->later_micro = micro > 0;
        run->both = !first_step || micro > 0;
        run->level = base + run->scaler + t->workspace_bytes * (run->both ? 2 : 1) + (run->later_micro ? t->gradient_bytes : 0) + run->held + run->leaf;
        before = run->level - run->held - run->leaf;
        step_forward(run);
        if (first_step && micro == 0) run->step->kept_bytes = run->level - before - run->held - t->narrowed_bytes;
        step_scale(run);
        step_backward(run);
        run->both = true;
    }
    run->states = true;
    run->level = t->resident - t->narrowed_bytes + t->master_bytes + t->state_bytes + t->gradient_bytes + 2 * t->workspace_bytes + run->held + run->leaf;
    run->level += run->scaler ? run->scaler + 512 : 0; /* found_inf */
    step_optimizer(run);
    if (run->walk->shape.job->loss != FTMEM_LOSS_LOOP) run->held = run->leaf = 0;
}

/* Autocast's copies of weights, which an evaluation's forward lets go of when it returns; the head's went with the head. */
static int64_t step_eval_cache(const ftmem__walk *walk)
{
    int64_t sum = 0;
    int32_t k;
    for (k = 0; k < walk->stacks; k++) sum += walk->stack[k].embed.eval_cache_bytes;
    for (k = 0; k < walk->kinds; k++) sum += walk->kind[k].eval_cache_bytes * walk->kind[k].layers;
    return sum;
}

static void step_eval_forward(step_run *run)
{
    const ftmem__walk *walk = run->walk;
    const ftmem__ends *head = &ftmem__walk_last(walk)->end;
    int32_t i;
    run->released = false;
    run->sides = 0;
    step_words(run, FTMEM_PHASE_EVAL, FTMEM__PASS_EVAL);
    for (i = 0; i < walk->stacks; i++) step_stack_forward(run, FTMEM_PHASE_EVAL, FTMEM__PASS_EVAL, i);
    step_leave(run, ftmem__walk_last(walk), FTMEM__PASS_EVAL);
    run->released = true;
    step_moment(run, FTMEM_PHASE_EVAL, head->pass[FTMEM__PASS_EVAL], ftmem__walk_head(walk), FTMEM__PASS_EVAL, -1);
    if (ftmem__loss_apart(walk->shape.job)) run->level -= step_eval_cache(walk);
    step_moment(run, FTMEM_PHASE_EVAL, head->eval_loss, ftmem__walk_head(walk), FTMEM__PASS_EVAL, -1);
}

/* Evaluation under no_grad. With logits kept, two batches stand for all: the first one's logits beside the second
   forward, then old, new and joined together. */
static void step_eval(step_run *run)
{
    const ftmem__walk *walk = run->walk;
    const ftmem__totals *t = &run->step->totals;
    const ftmem_job *job = walk->shape.job;
    ftmem__figure joined = { 0, 0, 0 };
    int64_t level, logits = 0, tokens = job->eval_batch * walk->shape.s;
    run->first = FTMEM_PHASE_EVAL;
    run->states = true;
    run->both = true;
    run->later_micro = false;
    run->frame = 0;
    run->level =
        t->resident - t->narrowed_bytes - t->batch_bytes + t->eval_batch_bytes + t->master_bytes + t->state_bytes + run->scaler + 2 * t->workspace_bytes;
    if (job->eval_keep_logits == FTMEM_ON)
        logits = ftmem__round512(ftmem__bytes(walk->shape.autocast ? FTMEM_FP32 : walk->shape.dtype, tokens * walk->shape.vocab));
    joined.peak = 4 * logits;
    step_moment(run, FTMEM_PHASE_EVAL, joined, 0, -1, -1);
    run->level += logits + step_names(walk);
    level = run->level;
    run->held = logits;
    run->leaf = 0;
    step_eval_forward(run);
    run->level = level;
    step_besides(run, FTMEM__BEFORE);
    step_scored(run);
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
        if (p->segment == kind && p->narrowed) sum += p->bytes - p->narrowed_bytes;
    }
    return sum;
}

/* Born in the middle block of the longest stack and kept: its output too, if the block above or the end keeps it. */
static int64_t step_middle(const ftmem__walk *walk)
{
    const ftmem__stack *stack = &walk->stack[0];
    int64_t layers, middle;
    const ftmem__kind *kind;
    bool next;
    if (step_layers(ftmem__walk_last(walk)) > step_layers(stack)) stack = ftmem__walk_last(walk);
    layers = step_layers(stack);
    middle = layers / 2;
    kind = &walk->kind[stack->of_layer[middle]];
    next = middle == layers - 1 ? stack->end.in_kept : walk->kind[stack->of_layer[middle + 1]].in_kept; /* keeps what this one hands on */
    return step_narrowed(walk, stack->of_layer[middle]) + kind->born_bytes + (next - kind->in_kept) * kind->in_bytes;
}

/* Inputs of checkpointed blocks, of pageable memory (unsloth_zoo/gradient_checkpointing.py: hidden_states.to("cpu")). */
static int64_t step_offloaded(const ftmem__walk *walk)
{
    int64_t sum = 0;
    int32_t k;
    if (walk->shape.job->offload_checkpoints != FTMEM_ON) return 0;
    for (k = 0; k < walk->kinds; k++)
        if (walk->kind[k].recomputed && walk->kind[k].out_grad) sum += walk->kind[k].in_bytes * walk->kind[k].layers;
    return sum;
}

static void step_flops(ftmem__step *step)
{
    const ftmem__walk *walk = step->walk;
    int32_t k;
    for (k = 0; k < walk->stacks; k++) {
        step->flops_forward += walk->stack[k].embed.flops_forward + walk->stack[k].end.flops_forward;
        step->flops_backward += walk->stack[k].embed.flops_backward + walk->stack[k].end.flops_backward;
    }
    if (walk->shape.taps) {
        step->flops_forward += walk->tap.flops_forward * (double)walk->shape.taps;
        step->flops_backward += walk->tap.flops_backward * (double)walk->shape.taps;
    }
    for (k = 0; k < walk->kinds; k++) {
        step->flops_forward += walk->kind[k].flops_forward * (double)walk->kind[k].layers;
        step->flops_backward += walk->kind[k].flops_backward * (double)walk->kind[k].layers;
    }
    for (k = 0; k < step->besides; k++) step->flops_forward += step->beside[k].flops;
    step->flops_forward += step->totals.regular.flops;
    step->flops_backward += 2 * step->totals.regular.flops;
    step->kept_layer_bytes = step_middle(walk);
    step->host_bytes = step_offloaded(walk);
}

static void step_note(void *context, const ftmem__tape *tape, ftmem__op op)
{
    ftmem__note *note = context;
    int16_t i;
    note->op = (uint8_t)op;
    note->part = tape->part;
    note->backward = false;
    for (i = 0; i < tape->high && note->count >= 0; i++) {
        if (tape->stores[i].refs <= 0 || tape->stores[i].side) continue;
        if (note->count == FTMEM__COUNT(note->at)) note->count = -1;
        else note->at[note->count++] = tape->stores[i];
    }
}

/* Keys or values of `tokens` of each row in one block. */
static int64_t step_cached(const ftmem__shape *shape, int64_t layer, int64_t tokens)
{
    int64_t window = shape->model->sliding_window;
    if (ftmem__layer_attention(shape->model->layer_kind[layer]) == FTMEM__LAYER_SLIDING && window > 0 && tokens > window) tokens = window;
    return ftmem__round512(ftmem__bytes(shape->autocast ? shape->autocast : shape->stream, shape->eval_b * tokens * shape->kv));
}

/* The last word: keys of one block are joined to a new tensor while the old one is there, or, with a mask, keys and values copied to all heads;
   or the logits of one token a row, widened for sampling, and their probabilities. Autocast's copies of weights last to the end of a forward. */
static int64_t step_last_word(const ftmem__walk *walk, int64_t tokens)
{
    const ftmem__shape *shape = &walk->shape;
    int32_t dtype = shape->autocast ? shape->autocast : shape->stream;
    int64_t sum = 0, prompts = 0, one = step_cached(shape, 0, tokens), heads = 0, words = shape->eval_b * shape->vocab, i;
    for (i = 0; i < shape->model->layers; i++) sum += 2 * step_cached(shape, i, tokens);
    for (i = 0; i < walk->kinds; i++) prompts += walk->kind[i].layers * 2 * ftmem__round512(ftmem__bytes(dtype, shape->eval_b * shape->s * shape->kv));
    if (shape->mask_full && shape->heads > shape->kv_heads) heads = 2 * ftmem__bytes(dtype, shape->eval_b * tokens * shape->heads * shape->d);
    if (heads > one) one = heads;
    words = ftmem__round512(ftmem__bytes(dtype, words)) + 2 * ftmem__round512(ftmem__bytes(FTMEM_FP32, words));
    return sum + step_eval_cache(walk) - prompts + (one > words ? one : words);
}

/* transformers' generate: the prompts' forward, whose blocks keep keys and values, then a word at a time. */
static void step_generate(step_run *run, int64_t tokens)
{
    const ftmem__walk *walk = run->walk;
    ftmem__figure f = { 0, 0, 0 };
    int32_t i;
    for (i = 0; i < walk->stacks; i++) step_stack_forward(run, FTMEM_PHASE_EVAL, FTMEM__PASS_EVAL, i);
    run->level = 0;
    f.peak = step_last_word(walk, tokens);
    step_moment(run, FTMEM_PHASE_EVAL, f, 0, -1, -1);
}

void ftmem__step_beside(ftmem__walk *walk, bool own, int64_t cached, ftmem__beside *beside)
{
    ftmem__step alone = { 0 };
    step_run run = { 0 };
    const ftmem__moment *m = &alone.phase[FTMEM_PHASE_EVAL];
    int32_t i;
    alone.walk = walk;
    run.step = &alone;
    run.walk = walk;
    ftmem__totals_fill(&alone.totals, walk);
    for (i = 0; i < FTMEM_CLASS_END && own; i++) beside->weight_bytes[i] = alone.totals.weight_bytes[i];
    if (own) beside->buffer_bytes = alone.totals.buffer_bytes;
    if (walk->shape.generates) step_generate(&run, cached);
    else step_eval_forward(&run);
    step_flops(&alone);
    beside->peak = m->bytes;
    beside->flops = walk->shape.generates ? 0 : alone.flops_forward * beside->forward->times; /* not of a micro-batch */
    beside->note.event = m->event;
    beside->note.count = 0;
    if (m->pass >= 0) ftmem__walk_again(walk, m->segment, FTMEM__PASS_EVAL, m->event ? m->event : -1, step_note, &beside->note);
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
    step_once(&run, ftmem__optimizer_of(step->walk->shape.job)->from_start ? t->state_bytes : 0);
    run.first = FTMEM_PHASE_FORWARD2;
    step_once(&run, t->state_bytes);
    step_still(&run, FTMEM_PHASE_SAVE, t->resident - t->narrowed_bytes + t->master_bytes + t->state_bytes + run.scaler + 2 * t->workspace_bytes);
    if (step->walk->shape.job->eval == FTMEM_ON) step_eval(&run);
    for (p = 0; p < FTMEM_PHASE_END; p++)
        if (step->phase[p].bytes > step->peak.bytes) step->peak = step->phase[p];
}
