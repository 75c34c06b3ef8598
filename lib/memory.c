/* The question "how much memory": load, walk, report. */
#include "step.h"

#include <stddef.h>

static void memory_stacks(ftmem__walk *walk)
{
    int32_t i;
    walk->stacks = walk->shape.crossed || walk->shape.scattered ? 2 : 1;
    walk->words.out_grad = false;
    for (i = 0; i < walk->stacks; i++) {
        ftmem__stack *stack = &walk->stack[i];
        memset(&stack->embed, 0, sizeof stack->embed);
        memset(&stack->end, 0, sizeof stack->end);
        memset(stack->side, 0, sizeof stack->side);
        stack->shape = i == walk->stacks - 1 ? &walk->shape : &walk->earlier;
    }
}

static ftmem_status memory_walk(const ftmem__case *c, ftmem__walk *walk, ftmem_error *error)
{
    ftmem_status status;
    walk->params.count = 0;
    walk->params.full = false;
    walk->kinds = walk->kept_count = 0;
    walk->exhausted = false;
    walk->head_note.event = walk->head_note.count = 0;
    status = ftmem__shape_fill(&walk->shape, c, error);
    if (status == FTMEM_OK && walk->shape.crossed) status = ftmem__shape_encoder(&walk->earlier, c, error);
    if (status == FTMEM_OK && walk->shape.scattered) status = ftmem__shape_tower(&walk->earlier, &walk->shape, c, error);
    if (status != FTMEM_OK) return status;
    memory_stacks(walk);
    return ftmem__walk_segments(walk, error);
}

static void memory_fill(const ftmem__step *step, ftmem_memory *m)
{
    const ftmem__totals *t = &step->totals;
    int32_t p;
    m->parameters = t->parameters;
    m->trainable = t->trainable;
    m->flops_forward = step->flops_forward;
    m->flops_backward = step->flops_backward;
    m->kept_bytes = (uint64_t)step->kept_bytes;
    m->kept_layer_bytes = (uint64_t)step->kept_layer_bytes;
    m->resident_bytes = (uint64_t)t->resident;
    m->host_bytes = (uint64_t)step->host_bytes;
    m->host_pinned_bytes = (uint64_t)step->host_pinned_bytes;
    m->allocated.expected = (uint64_t)step->peak.bytes;
    for (p = 0; p < FTMEM_PHASE_END; p++) m->phase_allocated[p] = (uint64_t)step->phase[p].bytes;
}

/* The kernel that attention takes in the first block. */
static int32_t memory_kernel(ftmem__walk *walk)
{
    ftmem__low low = { 0 };
    low.tape = &walk->tape;
    low.shape = &walk->shape;
    low.kind = ftmem__layer_attention(walk->shape.model->layer_kind[0]);
    return ftmem__low_kernel(&low, walk->shape.stream);
}

static bool memory_frozen_blocks(const ftmem__walk *walk)
{
    int32_t k;
    for (k = 0; k < walk->kinds; k++)
        if (!walk->kind[k].trained && !walk->kind[k].adapted) return true;
    return false;
}

/* What is worth knowing beside the numbers. */
static void memory_notes(ftmem__case *c, const ftmem__step *step, const ftmem_memory *m)
{
    const ftmem__walk *walk = step->walk;
    uint64_t training = m->phase_allocated[FTMEM_PHASE_BACKWARD2];
    ftmem__case_note(c, FTMEM_NOTE_KERNEL, NULL, m->kernel);
    if (m->kernel == FTMEM_KERNEL_MATH && c->job.attention == FTMEM_SDPA) ftmem__case_note(c, FTMEM_NOTE_MATH_TRAP, NULL, m->kernel);
    if (m->phase_allocated[FTMEM_PHASE_EVAL] > training) ftmem__case_note(c, FTMEM_NOTE_EVAL_HIGHER, "job.eval_batch", c->job.eval_batch);
    if (step->peak.phase >= FTMEM_PHASE_FORWARD2 && step->peak.phase <= FTMEM_PHASE_OPTIMIZER2) ftmem__case_note(c, FTMEM_NOTE_LATER_STEP, NULL, 2);
    if (c->job.recompute != FTMEM_RECOMPUTE_NONE && memory_frozen_blocks(walk)) ftmem__case_note(c, FTMEM_NOTE_CKPT_FROZEN, "job.recompute", 0);
    if (c->model.dequantized && c->adapter.quant <= FTMEM_QUANT_NONE) ftmem__case_note(c, FTMEM_NOTE_DEQUANTIZED, "job.dtype", c->job.dtype);
    if (c->model.ssm_heads > 0 && c->job.ssm_kernels == FTMEM_ON) ftmem__case_note(c, FTMEM_NOTE_SSM_KERNELS, "job.ssm_kernels", FTMEM_ON);
    else if (c->model.ssm_heads > 0) ftmem__case_note(c, FTMEM_NOTE_PLAIN_SSM, "model.ssm_heads", (int32_t)c->model.ssm_heads);
    if (c->model.linear_key_heads > 0) ftmem__case_note(c, FTMEM_NOTE_PLAIN_LINEAR, "model.linear_key_heads", (int32_t)c->model.linear_key_heads);
    if (walk->shape.family->remote_code || c->model.tower == FTMEM_TOWER_PHI3_V) ftmem__case_note(c, FTMEM_NOTE_REMOTE_CODE, "model.family", c->model.family);
    if (m->process.expected) ftmem__case_note(c, FTMEM_NOTE_TIER, NULL, m->bound_rows);
}

/* Models of forwards without gradients are walked before the trained one, in the same place. */
static ftmem_status memory_besides(const ftmem__case *c, ftmem__walk *walk, ftmem__step *step, ftmem_error *error)
{
    const ftmem__forward *forward = ftmem__objective_of(&c->job)->forward;
    ftmem_status status = FTMEM_OK;
    ftmem__case other;
    int32_t i;
    for (i = 0; i < FTMEM__MAX_FORWARDS && status == FTMEM_OK; i++) {
        if (!ftmem__objective_runs(&c->job, &forward[i])) continue;
        ftmem__objective_case(c, &forward[i], &other);
        status = memory_walk(&other, walk, error);
        if (status != FTMEM_OK) return status;
        step->beside[step->besides].forward = &forward[i];
        ftmem__step_beside(walk, forward[i].of == FTMEM__OF_TEACHER || (forward[i].of == FTMEM__OF_REFERENCE && c->job.reference == FTMEM_REFERENCE_COPY),
                           c->job.sequence, &step->beside[step->besides++]);
    }
    return status;
}

static void memory_totals(ftmem__step *step)
{
    int32_t i, k;
    ftmem__totals_fill(&step->totals, step->walk);
    for (i = 0; i < step->besides; i++) {
        step->totals.resident += step->beside[i].buffer_bytes;
        for (k = 0; k < FTMEM_CLASS_END; k++) step->totals.resident += step->beside[i].weight_bytes[k];
    }
}

static ftmem_status memory_case(ftmem__case *c, ftmem_memory *result, ftmem_error *error)
{
    ftmem__walk walk;
    ftmem__step step;
    ftmem_status status;
    memset(&step, 0, sizeof step);
    status = memory_besides(c, &walk, &step, error);
    if (status == FTMEM_OK) status = memory_walk(c, &walk, error);
    if (status != FTMEM_OK) return status;
    step.walk = &walk;
    step.c = c;
    memory_totals(&step);
    ftmem__step_run(&step);
    memory_fill(&step, result);
    ftmem__report(&step, result);
    ftmem__tiers(&step, result);
    result->kernel = memory_kernel(&walk);
    memory_notes(c, &step, result);
    return FTMEM_OK;
}

ftmem_status ftmem_predict_memory(const ftmem_job *job, ftmem_memory *memory, ftmem_error *error)
{
    ftmem__case c;
    ftmem_memory result;
    ftmem_status status;
    if (!memory) return ftmem__fail(error, FTMEM_E_ARGUMENT, "memory", "NULL", "The result pointer must not be NULL.");
    if (memory->struct_size < sizeof(uint32_t) * 2)
        return ftmem__fail_int(error, FTMEM_E_STRUCT_SIZE, "memory.struct_size", memory->struct_size, "memory.struct_size must be sizeof(ftmem_memory).");
    status = ftmem__case_load(job, &c, error);
    if (status != FTMEM_OK) return status;
    memset(&result, 0, sizeof result);
    status = memory_case(&c, &result, error);
    if (status != FTMEM_OK) return status;
    memcpy(result.notes, c.notes, (size_t)c.note_count * sizeof c.notes[0]);
    result.note_count = c.note_count;
    result.struct_size = memory->struct_size;
    memcpy(memory, &result, memory->struct_size < sizeof result ? memory->struct_size : sizeof result);
    return FTMEM_OK;
}

/* Of the routed experts, the share that is not chosen for a token. */
static int64_t memory_idle(const ftmem__walk *walk)
{
    const ftmem_model *model = walk->shape.model;
    int64_t routed = 0;
    int32_t i;
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        if (p->routed && p->base) routed += p->n * ftmem__param_count(walk, p);
    }
    return routed > 0 ? routed / model->experts * (model->experts - model->experts_per_token) : 0;
}

static void memory_parameters(const ftmem__walk *walk, ftmem_parameters *out)
{
    ftmem__totals t;
    int32_t i;
    int32_t block = ftmem__walk_last(walk)->of_layer[0];
    ftmem__totals_fill(&t, walk);
    out->total = t.parameters;
    out->trainable = t.trainable;
    out->adapters = t.adapters;
    out->active = t.parameters - memory_idle(walk);
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        if (!p->base) continue;
        if (p->role == FTMEM_ROLE_EMBED) out->embedding += p->n;
        if (p->role == FTMEM_ROLE_HEAD) out->head += p->n;
        if (p->segment == block) out->block += p->n * p->copies;
    }
}

ftmem_status ftmem_count_parameters(const ftmem_job *job, ftmem_parameters *out, ftmem_error *error)
{
    ftmem__case c;
    ftmem__walk walk;
    ftmem_parameters result;
    ftmem_status status;
    if (!out || out->struct_size < offsetof(ftmem_parameters, active))
        return ftmem__fail(error, FTMEM_E_STRUCT_SIZE, "parameters.struct_size", "", "parameters.struct_size must be sizeof(ftmem_parameters).");
    status = ftmem__case_load(job, &c, error);
    if (status == FTMEM_OK) status = memory_walk(&c, &walk, error);
    if (status != FTMEM_OK) return status;
    memset(&result, 0, sizeof result);
    result.struct_size = out->struct_size;
    memory_parameters(&walk, &result);
    memcpy(out, &result, out->struct_size < sizeof result ? out->struct_size : sizeof result);
    return FTMEM_OK;
}
