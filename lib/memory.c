/* The question "how much memory": load, walk, report. */
#include "step.h"

static ftmem_status memory_walk(const ftmem__case *c, ftmem__walk *walk, ftmem_error *error)
{
    ftmem_status status;
    walk->params.count = 0;
    walk->params.full = false;
    walk->kinds = 0;
    walk->exhausted = false;
    memset(&walk->embed, 0, sizeof walk->embed);
    memset(&walk->head, 0, sizeof walk->head);
    status = ftmem__shape_fill(&walk->shape, c, error);
    if (status != FTMEM_OK) return status;
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
    m->allocated.expected = (uint64_t)step->peak.bytes;
    for (p = 0; p < FTMEM_PHASE_END; p++) m->phase_allocated[p] = (uint64_t)step->phase[p].bytes;
}

static ftmem_status memory_case(const ftmem__case *c, ftmem_memory *result, ftmem_error *error)
{
    ftmem__walk walk;
    ftmem__step step;
    ftmem_status status = memory_walk(c, &walk, error);
    if (status != FTMEM_OK) return status;
    memset(&step, 0, sizeof step);
    step.walk = &walk;
    step.c = c;
    ftmem__totals_fill(&step.totals, &walk);
    ftmem__step_run(&step);
    memory_fill(&step, result);
    ftmem__report(&step, result);
    ftmem__tiers(&step, result);
    return FTMEM_OK;
}

ftmem_status ftmem_predict_memory(const ftmem_job *job, ftmem_memory *memory, ftmem_error *error)
{
    ftmem__case c;
    ftmem_memory result;
    ftmem_status status;
    if (!memory) return ftmem__fail(error, FTMEM_E_ARGUMENT, "memory", "NULL", "The result pointer must not be NULL.");
    if (memory->struct_size < sizeof(uint32_t) * 2) return ftmem__fail_int(error, FTMEM_E_STRUCT_SIZE, "memory.struct_size", memory->struct_size, "memory.struct_size must be sizeof(ftmem_memory).");
    status = ftmem__case_load(job, &c, error);
    if (status != FTMEM_OK) return status;
    memset(&result, 0, sizeof result);
    status = memory_case(&c, &result, error);
    if (status != FTMEM_OK) return status;
    memcpy(result.notes, c.notes, sizeof c.notes);
    result.note_count = c.note_count;
    result.struct_size = memory->struct_size;
    memcpy(memory, &result, memory->struct_size < sizeof result ? memory->struct_size : sizeof result);
    return FTMEM_OK;
}

static void memory_parameters(const ftmem__walk *walk, ftmem_parameters *out)
{
    ftmem__totals t;
    int32_t i;
    ftmem__totals_fill(&t, walk);
    out->total = t.parameters;
    out->trainable = t.trainable;
    out->adapters = t.adapters;
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        if (!p->base) continue;
        if (p->role == FTMEM_ROLE_EMBED) out->embedding += p->n;
        if (p->role == FTMEM_ROLE_HEAD) out->head += p->n;
        if (p->segment == 0) out->block += p->n;
    }
}

ftmem_status ftmem_count_parameters(const ftmem_job *job, ftmem_parameters *out, ftmem_error *error)
{
    ftmem__case c;
    ftmem__walk walk;
    ftmem_parameters result;
    ftmem_status status;
    if (!out || out->struct_size < sizeof(ftmem_parameters)) return ftmem__fail(error, FTMEM_E_STRUCT_SIZE, "parameters.struct_size", "", "parameters.struct_size must be sizeof(ftmem_parameters).");
    status = ftmem__case_load(job, &c, error);
    if (status == FTMEM_OK) status = memory_walk(&c, &walk, error);
    if (status != FTMEM_OK) return status;
    memset(&result, 0, sizeof result);
    result.struct_size = out->struct_size;
    memory_parameters(&walk, &result);
    *out = result;
    return FTMEM_OK;
}
