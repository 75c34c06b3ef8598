/*
 * From allocated to reserved and process, the interval of each, what the card offers, and the verdict.
 *
 * The caching allocator hands back a freed block only to a request that fits it. A step has two humps, one inside the
 * blocks of the model and one at the loss, whose tensors differ in size; most of the smaller hump therefore gets blocks
 * of its own, although the two never exist together. Full training also leaves blocks behind, of gradients and of the
 * optimizer's temporaries, that are too small for an activation. Constants: data/tiers.csv.
 */
#include "step.h"

typedef struct tiers_context {
    int32_t sm_arch, kib_per_sm, usual_sms;
} tiers_context;

#include "tiers.inc"

enum { TIERS_MIB = 20, TIERS_KIB = 10, TIERS_WHOLE = 1000 };

/* What reserved is made of, beyond the allocated peak. */
typedef struct tiers_parts {
    int64_t base;     /* weights, buffers, states and workspaces */
    int64_t hump;     /* highest point of forward and backward above the base and the gradients */
    int64_t moving;   /* of that, what is not kept from forward to backward */
    int64_t logits;   /* one fp32 copy of the logits; 0: they never exist as a whole */
    int64_t stranded; /* blocks of gradients and step temporaries that no activation fits */
    int64_t excess;   /* blocks that one hump cannot reuse of the other, and leftovers of loading */
    int64_t more;     /* of both: what is stranded serves the smaller requests */
    bool varied;      /* rows differ in length */
} tiers_parts;

static int64_t tiers_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t tiers_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t tiers_add(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

/* So many thousandths of `bytes`, which is not negative. */
static int64_t tiers_share(int64_t bytes, int64_t per_mille)
{
    if (per_mille > TIERS_WHOLE && bytes / TIERS_WHOLE > INT64_MAX / 2 / per_mille) return INT64_MAX;
    return bytes / TIERS_WHOLE * per_mille + bytes % TIERS_WHOLE * per_mille / TIERS_WHOLE;
}

/* ------------------------------------------------------------------------------------------------------- humps */

/* Gradients of parameters that exist at a moment, about. */
static int64_t tiers_gradients(const ftmem__step *step, const ftmem__moment *m)
{
    int64_t all = step->totals.gradient_bytes, layers = step->walk->shape.model->layers;
    if (m->later_micro) return all;
    if (m->pass != FTMEM__PASS_BACKWARD || m->segment == ftmem__walk_head(step->walk)) return 0;
    if (m->layer < 0) return all;
    return all / layers * (layers - 1 - m->layer);
}

static int64_t tiers_base(const ftmem__totals *t)
{
    return t->resident + t->master_bytes + t->state_bytes + 2 * t->workspace_bytes;
}

static int64_t tiers_hump(const ftmem__step *step, int64_t base)
{
    int64_t hump = 0;
    int32_t p;
    for (p = FTMEM_PHASE_FORWARD2; p <= FTMEM_PHASE_EVAL; p++) {
        const ftmem__moment *m = &step->phase[p];
        if (p != FTMEM_PHASE_OPTIMIZER2) hump = tiers_most(hump, m->bytes - base - tiers_gradients(step, m));
    }
    return hump;
}

/* The most that one block needs beside what it leaves behind. */
static int64_t tiers_layer_hump(const ftmem__walk *walk)
{
    int64_t most = 0;
    int32_t k;
    for (k = 0; k < walk->kinds; k++) {
        const ftmem__figure *forward = &walk->kind[k].pass[FTMEM__PASS_FORWARD];
        most = tiers_most(most, forward->peak - tiers_most(forward->delta, 0));
        most = tiers_most(most, walk->kind[k].pass[FTMEM__PASS_BACKWARD].peak);
    }
    return most;
}

/* Left by forward for backward. */
static int64_t tiers_kept(const ftmem__walk *walk)
{
    int64_t sum = 0;
    int32_t k;
    for (k = 0; k < walk->kinds; k++) sum += tiers_most(walk->kind[k].pass[FTMEM__PASS_FORWARD].delta, 0) * walk->kind[k].layers;
    return sum;
}

static int64_t tiers_loss_hump(const ftmem__ends *head)
{
    int64_t forward = tiers_most(head->pass[FTMEM__PASS_FORWARD].peak, head->loss.peak);
    return tiers_most(forward, head->loss.delta + head->pass[FTMEM__PASS_BACKWARD].peak);
}

static int64_t tiers_logits(const ftmem__shape *shape)
{
    const ftmem_job *job = shape->job;
    if (!ftmem__task_of_vocab(job->task) || !ftmem__whole_logits(job)) return 0;
    return ftmem__round512(ftmem__bytes(FTMEM_FP32, shape->tokens * shape->vocab));
}

/* ------------------------------------------------------------------------------------------------------ excess */

/* Gradients, states and step temporaries are cut to the size of weights. Activations of more tokens than the model is
   wide do not fit where these were: the gradients keep their blocks, and so do the temporaries that were not cut out of
   the first step's hump. */
static int64_t tiers_stranded(const ftmem__step *step, const tiers_parts *parts)
{
    const ftmem__totals *t = &step->totals;
    int64_t update = t->state_bytes + t->step_bytes, all = tiers_add(parts->base, parts->hump);
    if (step->walk->shape.tokens <= step->walk->shape.h) return 0;
    all = tiers_add(all, t->gradient_bytes);
    all = tiers_add(all, tiers_least(t->step_bytes, tiers_most(update - parts->hump, 0)));
    return tiers_most(all - step->peak.bytes, 0);
}

/* prepare_model_for_kbit_training turns a 16-bit matrix into fp32 and frees it: a logits tensor is cut out of that
   block, and the remainder is left over. */
static int64_t tiers_load_remainder(const ftmem__walk *walk, int64_t logits)
{
    int64_t sum = 0;
    int32_t i;
    if ((!walk->shape.qlora && !walk->shape.lora8) || walk->shape.adapter->kbit_fp32 != FTMEM_ON) return 0;
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        bool wide = p->base && (p->role == FTMEM_ROLE_EMBED || p->role == FTMEM_ROLE_HEAD);
        if (wide && logits > 0 && p->bytes / 2 >= logits) sum += p->bytes / 2 - logits;
    }
    return tiers_share(sum, TIERS_LOAD_REMAINDER);
}

static int64_t tiers_excess(const ftmem__step *step, const tiers_parts *parts)
{
    const ftmem__walk *walk = step->walk;
    int64_t layer = tiers_layer_hump(walk), apart = tiers_least(layer, tiers_loss_hump(&ftmem__walk_last(walk)->end));
    int64_t excess = tiers_most(tiers_share(layer, TIERS_LAYER_FLOOR), tiers_share(parts->moving, TIERS_HUMP_FLOOR));
    excess = tiers_most(excess, tiers_share(apart, TIERS_HUMPS_APART));
    if (walk->shape.job->transformers_version < TIERS_SHIFT_COPY_BEFORE) excess = tiers_add(excess, tiers_share(parts->logits, TIERS_SHIFT_COPY));
    excess = tiers_add(excess, tiers_load_remainder(walk, parts->logits));
    if (walk->shape.job->varied_lengths == FTMEM_ON) excess = tiers_most(excess, tiers_share(parts->moving, TIERS_VARIED_LENGTHS));
    return tiers_most(excess, (int64_t)TIERS_SEGMENT_FLOOR << TIERS_MIB);
}

static tiers_parts tiers_parts_of(const ftmem__step *step)
{
    tiers_parts parts = { 0 };
    parts.base = tiers_base(&step->totals);
    parts.hump = tiers_hump(step, parts.base);
    parts.moving = tiers_most(parts.hump - tiers_kept(step->walk), 0);
    if (step->walk->shape.job->expandable_segments == FTMEM_ON) {
        parts.more = parts.excess = tiers_most(tiers_share(parts.hump, TIERS_EXPANDABLE_FLOOR), (int64_t)TIERS_SEGMENT_FLOOR << TIERS_MIB);
        return parts;
    }
    parts.varied = step->walk->shape.job->varied_lengths == FTMEM_ON;
    parts.logits = tiers_logits(&step->walk->shape);
    parts.stranded = tiers_stranded(step, &parts);
    parts.excess = tiers_excess(step, &parts);
    parts.more = tiers_most(parts.stranded, parts.excess);
    return parts;
}

/* --------------------------------------------------------------------------------------------------- intervals */

static bool tiers_measured_family(int32_t family)
{
    return family == FTMEM_LLAMA || family == FTMEM_MISTRAL || family == FTMEM_QWEN2;
}

static bool tiers_measured(const ftmem__shape *shape)
{
    const ftmem_job *job = shape->job;
    return shape->adapter->kind != FTMEM_ADAPTER_NONE && job->recompute == FTMEM_RECOMPUTE_FULL && !job->autocast && job->mask == FTMEM_MASK_NONE &&
           tiers_measured_family(shape->model->family);
}

/* The peak is inside a block whose operations no measured run has told apart. */
static bool tiers_unseen(const ftmem__step *step)
{
    const ftmem__shape *shape = &step->walk->shape;
    bool fused = shape->job->attention == FTMEM_FLASH2 || (shape->job->attention == FTMEM_SDPA && shape->job->gpu.sm_arch >= TIERS_FUSED_ARCH);
    if (step->peak.pass < 0 || step->peak.segment < 0) return false;
    return fused || !tiers_measured_family(shape->model->family);
}

static void tiers_allocated(const ftmem__step *step, ftmem_memory *m)
{
    bool unseen = tiers_unseen(step), measured = !unseen && tiers_measured(&step->walk->shape);
    int64_t lower = measured ? TIERS_ALLOCATED_LOWER : unseen ? TIERS_UNSEEN_LOWER : TIERS_FEW_LOWER;
    int64_t upper = measured ? TIERS_ALLOCATED_UPPER : unseen ? TIERS_UNSEEN_UPPER : TIERS_FEW_UPPER;
    int64_t expected = (int64_t)m->allocated.expected;
    m->allocated.lower = (uint64_t)(expected - tiers_share(expected, lower));
    m->allocated.upper = (uint64_t)tiers_add(expected, tiers_share(expected, upper));
    m->bound_rows = measured ? TIERS_ALLOCATED_ROWS : unseen ? 0 : TIERS_FEW_ROWS;
}

static ftmem_range tiers_plus(ftmem_range from, int64_t lower, int64_t expected, int64_t upper)
{
    ftmem_range to;
    to.lower = (uint64_t)tiers_add((int64_t)from.lower, lower);
    to.expected = (uint64_t)tiers_add((int64_t)from.expected, expected);
    to.upper = (uint64_t)tiers_add((int64_t)from.upper, upper);
    return to;
}

/* The usual accident is that a logits block has been cut up, and one more is needed. */
static void tiers_reserved(const tiers_parts *parts, ftmem_memory *m)
{
    int64_t more = tiers_most(tiers_share(parts->logits, TIERS_UPPER_LOGITS), tiers_share(parts->hump, parts->varied ? TIERS_VARIED_UPPER : TIERS_UPPER_HUMP));
    m->reserved = tiers_plus(m->allocated, tiers_share(parts->excess, TIERS_LOWER_EXCESS), parts->more, tiers_add(parts->more, more));
}

/* ----------------------------------------------------------------------------------------------------- process */

static bool tiers_is_slice(const ftmem_gpu *gpu)
{
    return memchr(gpu->name, ':', sizeof gpu->name) != NULL;
}

static int64_t tiers_context_of(const ftmem_gpu *gpu)
{
    const tiers_context *row = &tiers_contexts[0];
    int64_t sms;
    int32_t i;
    if (gpu->vendor) return (int64_t)TIERS_CONTEXT_OTHER << TIERS_MIB;
    for (i = 0; i < FTMEM__COUNT(tiers_contexts); i++)
        if (tiers_contexts[i].sm_arch <= gpu->sm_arch) row = &tiers_contexts[i];
    sms = gpu->sm_count > 0 ? gpu->sm_count : row->usual_sms;
    return tiers_most(sms * row->kib_per_sm << TIERS_KIB, (int64_t)TIERS_CONTEXT_LEAST << TIERS_MIB);
}

/* Nothing is given back while a run lasts: a phase holds at least what the phase before it held. */
static void tiers_phases(ftmem_memory *m)
{
    int64_t peak = (int64_t)m->allocated.expected, more = (int64_t)m->reserved.expected - peak, resident = (int64_t)m->resident_bytes, held = 0;
    int32_t p;
    for (p = 0; p < FTMEM_PHASE_END; p++) {
        int64_t bytes = (int64_t)m->phase_allocated[p], above = tiers_most(bytes - resident, 0), whole = tiers_most((peak - resident) / TIERS_WHOLE, 1);
        if (!bytes) continue;
        held = tiers_most(held, tiers_add(bytes, tiers_share(more, tiers_least(above / whole, TIERS_WHOLE))));
        m->phase_process[p] = (uint64_t)tiers_add(held, (int64_t)m->context_bytes);
    }
}

static void tiers_process(const ftmem__step *step, ftmem_memory *m)
{
    int64_t context = tiers_context_of(&step->walk->shape.job->gpu);
    m->context_bytes = (uint64_t)context;
    m->process = tiers_plus(m->reserved, tiers_share(context, TIERS_CONTEXT_LOWER), context, tiers_share(context, TIERS_CONTEXT_UPPER));
}

/* ----------------------------------------------------------------------------------------------------- verdict */

/* What nvidia-smi counts as the card's memory and torch does not. */
static int64_t tiers_unusable(const ftmem_gpu *gpu)
{
    if (tiers_is_slice(gpu)) return (int64_t)TIERS_SLICE_LESS << TIERS_MIB;
    if (gpu->vendor) return (int64_t)TIERS_OTHER_LESS << TIERS_MIB;
    return ((int64_t)TIERS_TOTAL_LESS << TIERS_MIB) + tiers_share(gpu->memory_bytes, TIERS_TOTAL_LESS_SHARE);
}

static int64_t tiers_usable(const ftmem_job *job)
{
    const ftmem_gpu *gpu = &job->gpu;
    int64_t total = gpu->torch_bytes > 0 ? gpu->torch_bytes : gpu->memory_bytes - tiers_unusable(gpu);
    return tiers_most(total - job->used_by_others_bytes, 0);
}

/* Where the card is full, torch gives back its cached blocks and asks again: a run then takes the whole card, if what is
   alive fits. */
static void tiers_retry(const ftmem_job *job, ftmem_memory *m)
{
    int64_t usable = tiers_usable(job), room = usable - (int64_t)m->context_bytes, alive = (int64_t)m->allocated.expected;
    if (job->gpu.memory_bytes <= 0 || (int64_t)m->process.expected <= usable) return;
    if (tiers_add(alive, tiers_share(alive, TIERS_RETRY_FLOOR)) > room) return;
    m->process.expected = (uint64_t)usable;
    m->reserved.expected = (uint64_t)room;
    m->reserved.lower = (uint64_t)tiers_least((int64_t)m->reserved.lower, room);
    m->process.lower = (uint64_t)tiers_least((int64_t)m->process.lower, usable);
}

/* The handbook's margin instead of the bound: the expected value and so much of it. */
static bool tiers_fits_margin(int64_t expected, int64_t usable, double margin)
{
    int64_t per_mille = (int64_t)(margin * TIERS_WHOLE + 0.5);
    return expected <= usable && tiers_add(expected, tiers_share(expected, per_mille)) <= usable;
}

static void tiers_verdict(const ftmem_job *job, ftmem_memory *m)
{
    m->usable_bytes = 0;
    m->verdict = FTMEM_VERDICT_UNKNOWN;
    if (job->gpu.memory_bytes <= 0) return;
    m->usable_bytes = (uint64_t)tiers_usable(job);
    m->verdict = FTMEM_DOES_NOT_FIT;
    if (job->margin > 0) {
        if (tiers_fits_margin((int64_t)m->process.expected, (int64_t)m->usable_bytes, job->margin)) m->verdict = FTMEM_FITS;
        return;
    }
    if (m->process.expected <= m->usable_bytes) m->verdict = FTMEM_MAY_FIT;
    if (m->process.upper <= m->usable_bytes) m->verdict = FTMEM_FITS;
}

void ftmem__tiers(const ftmem__step *step, ftmem_memory *m)
{
    tiers_parts parts = tiers_parts_of(step);
    tiers_allocated(step, m);
    tiers_reserved(&parts, m);
    tiers_process(step, m);
    tiers_retry(step->walk->shape.job, m);
    tiers_phases(m);
    tiers_verdict(step->walk->shape.job, m);
}
