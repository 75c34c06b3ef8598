/* First answers: the single changes that lower the peak, and the sum that people make in their heads. */
#include "quant.h"

/* ------------------------------------------------------------------------------------------------------- fixes */

typedef struct fixes_trial {
    ftmem_job job;
    ftmem_adapter adapter;
    int64_t value;
} fixes_trial;

static bool fixes_set(int32_t *member, int32_t value)
{
    if (*member == value) return false;
    *member = value;
    return true;
}

/* What belongs to the optimizer that goes, goes with it. */
static bool fixes_optimizer(fixes_trial *t, int32_t optimizer)
{
    if (!fixes_set(&t->job.optimizer, optimizer)) return false;
    t->job.optimizer_rank = 0;
    t->job.optimizer_in_backward = FTMEM_AUTO;
    return true;
}

static bool fixes_number(fixes_trial *t, int64_t *member, int64_t value)
{
    if (value < 1 || value >= *member) return false;
    t->value = *member = value;
    return true;
}

static bool fixes_loss(fixes_trial *t, int32_t loss)
{
    if (t->job.task != FTMEM_TASK_CAUSAL_LM || t->job.loss == FTMEM_LOSS_FUSED || t->job.loss == loss) return false;
    t->job.loss_chunk_tokens = 0;
    t->job.loss = loss;
    return true;
}

static bool fixes_adapter(fixes_trial *t, int32_t kind)
{
    if (t->adapter.kind == kind || t->adapter.kind == FTMEM_ADAPTER_QLORA || t->adapter.kind > FTMEM_ADAPTER_LORA8 || t->job.freeze) return false;
    if (t->adapter.kind == FTMEM_ADAPTER_LORA && t->adapter.quant > FTMEM_QUANT_NONE) return false;
    if (t->adapter.kind == FTMEM_ADAPTER_NONE) {
        memset((char *)&t->adapter + sizeof t->adapter.struct_size, 0, sizeof t->adapter - sizeof t->adapter.struct_size);
        t->adapter.rank = 16;
        t->adapter.targets = FTMEM_ROLES_ALL_LINEAR;
        t->job.master_weights = FTMEM_AUTO;
    }
    t->adapter.kind = kind;
    t->adapter.quant = 0;
    return true;
}

/* Activations are fp32: autocast would make most of them 16-bit, and lets sdpa take its fused kernels. */
static bool fixes_wide(const fixes_trial *t)
{
    return t->job.dtype == FTMEM_FP32 || t->adapter.kbit_fp32 == FTMEM_ON;
}

static bool fixes_pure_bf16(fixes_trial *t)
{
    bool changed = t->job.dtype == FTMEM_FP32 || t->job.autocast || t->job.master_weights == FTMEM_ON;
    t->job.dtype = FTMEM_BF16;
    t->job.autocast = 0;
    t->job.master_weights = FTMEM_AUTO;
    return changed;
}

static bool fixes_recompute(fixes_trial *t)
{
    t->job.recompute_every = 0;
    return fixes_set(&t->job.recompute, FTMEM_RECOMPUTE_FULL);
}

static bool fixes_eval_batch(fixes_trial *t)
{
    return t->job.eval == FTMEM_ON && fixes_number(t, &t->job.eval_batch, 1);
}

static bool fixes_halve_sequence(fixes_trial *t)
{
    return fixes_number(t, &t->job.sequence, t->job.sequence / 2);
}

/* Fewer rows a micro-batch, as many more micro-batches: the optimizer sees the same batch. */
static bool fixes_batch(fixes_trial *t, int64_t rows)
{
    int64_t before = t->job.micro_batch;
    if (!fixes_number(t, &t->job.micro_batch, rows)) return false;
    t->job.accumulation *= (before + rows - 1) / rows;
    return true;
}

static const char *const fixes_text[FTMEM_FIX_END] = {
    [FTMEM_FIX_RECOMPUTE] = "gradient checkpointing on every block",
    [FTMEM_FIX_FUSED_LOSS] = "fused linear cross-entropy (use_liger_kernel)",
    [FTMEM_FIX_CHUNKED_LOSS] = "chunked loss, 256 tokens at a time",
    [FTMEM_FIX_HALVE_BATCH] = "half the micro-batch, twice the accumulation",
    [FTMEM_FIX_BATCH_ONE] = "micro-batch 1, the rest by accumulation",
    [FTMEM_FIX_OPTIMIZER_8BIT] = "8-bit AdamW (bitsandbytes)",
    [FTMEM_FIX_OPTIMIZER_PAGED] = "paged 8-bit AdamW (bitsandbytes)",
    [FTMEM_FIX_HALVE_SEQUENCE] = "half the sequence",
    [FTMEM_FIX_PURE_BF16] = "weights, gradients and states in bf16",
    [FTMEM_FIX_LORA] = "LoRA, rank 16, all linears",
    [FTMEM_FIX_QLORA] = "QLoRA: the base in 4 bits",
    [FTMEM_FIX_ATTENTION_SDPA] = "attention by sdpa instead of eager",
    [FTMEM_FIX_EVAL_BATCH_ONE] = "evaluation batch 1",
    [FTMEM_FIX_DROP_OUTPUTS] = "drop the model's outputs before backward",
    [FTMEM_FIX_AUTOCAST] = "autocast to bf16",
    [FTMEM_FIX_FUSED_OPTIMIZER] = "fused AdamW (adamw_torch_fused)",
    [FTMEM_FIX_EXPANDABLE] = "PYTORCH_ALLOC_CONF=expandable_segments:True",
};

/* Changes the trial; false: the change is there already or does not apply. */
static bool fixes_apply(fixes_trial *t, int32_t code)
{
    switch (code) {
    case FTMEM_FIX_RECOMPUTE: return fixes_recompute(t);
    case FTMEM_FIX_FUSED_LOSS: return fixes_loss(t, FTMEM_LOSS_FUSED);
    case FTMEM_FIX_CHUNKED_LOSS: return fixes_loss(t, FTMEM_LOSS_CHUNKED);
    case FTMEM_FIX_HALVE_BATCH: return fixes_batch(t, t->job.micro_batch / 2);
    case FTMEM_FIX_BATCH_ONE: return t->job.micro_batch > 2 && fixes_batch(t, 1);
    case FTMEM_FIX_OPTIMIZER_8BIT: return t->job.optimizer != FTMEM_PAGED_ADAMW_8BIT && fixes_optimizer(t, FTMEM_ADAMW_8BIT);
    case FTMEM_FIX_OPTIMIZER_PAGED: return fixes_optimizer(t, FTMEM_PAGED_ADAMW_8BIT);
    case FTMEM_FIX_HALVE_SEQUENCE: return fixes_halve_sequence(t);
    case FTMEM_FIX_PURE_BF16: return fixes_pure_bf16(t);
    case FTMEM_FIX_LORA: return t->adapter.kind == FTMEM_ADAPTER_NONE && fixes_adapter(t, FTMEM_ADAPTER_LORA);
    case FTMEM_FIX_QLORA: return fixes_adapter(t, FTMEM_ADAPTER_QLORA);
    case FTMEM_FIX_ATTENTION_SDPA: return t->job.attention == FTMEM_EAGER && fixes_set(&t->job.attention, FTMEM_SDPA);
    case FTMEM_FIX_EVAL_BATCH_ONE: return fixes_eval_batch(t);
    case FTMEM_FIX_DROP_OUTPUTS: return (t->job.loss == FTMEM_LOSS_HELD || t->job.loss == FTMEM_LOSS_LOOP) && fixes_set(&t->job.loss, FTMEM_LOSS_DROPPED);
    case FTMEM_FIX_AUTOCAST: return fixes_wide(t) && !t->job.autocast && fixes_set(&t->job.autocast, FTMEM_BF16);
    case FTMEM_FIX_FUSED_OPTIMIZER: return t->job.optimizer == FTMEM_ADAMW && fixes_set(&t->job.optimizer, FTMEM_ADAMW_FUSED);
    case FTMEM_FIX_EXPANDABLE: return fixes_set(&t->job.expandable_segments, FTMEM_ON);
    default: return false;
    }
}

static bool fixes_better(const ftmem_fix *a, const ftmem_fix *b)
{
    if (a->verdict != b->verdict) return a->verdict < b->verdict; /* FITS < MAY_FIT < DOES_NOT_FIT */
    return a->process.upper < b->process.upper;
}

static void fixes_insert(ftmem_fix *list, int32_t capacity, int32_t *count, ftmem_fix fix)
{
    int32_t i = *count < capacity ? *count : capacity;
    (*count)++;
    for (; i > 0 && fixes_better(&fix, &list[i - 1]); i--)
        if (i < capacity) list[i] = list[i - 1];
    if (i < capacity) list[i] = fix;
}

static bool fixes_try(const fixes_trial *start, int32_t code, uint64_t now, ftmem_fix *fix)
{
    fixes_trial trial = *start;
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    trial.job.adapter = &trial.adapter;
    if (!fixes_apply(&trial, code)) return false;
    if (trial.adapter.kind == FTMEM_ADAPTER_NONE) trial.job.adapter = NULL;
    if (ftmem_predict_memory(&trial.job, &memory, NULL) != FTMEM_OK || memory.process.upper >= now - now / 200) return false; /* half a percent is no fix */
    memset(fix, 0, sizeof *fix);
    fix->code = code;
    fix->verdict = memory.verdict;
    fix->text = fixes_text[code];
    fix->process = memory.process;
    fix->value = trial.value;
    return true;
}

ftmem_status ftmem_fixes(const ftmem_job *job, ftmem_fix *fixes, int32_t capacity, int32_t *count, ftmem_error *error)
{
    ftmem__case c;
    fixes_trial start;
    ftmem_memory now = FTMEM_MEMORY_INIT;
    ftmem_fix fix;
    int32_t code, found = 0;
    ftmem_status status;
    if (!count || (capacity > 0 && !fixes))
        return ftmem__fail(error, FTMEM_E_ARGUMENT, "fixes", "NULL", "count, and fixes where capacity is not 0, must not be NULL.");
    status = ftmem_predict_memory(job, &now, error);
    if (status == FTMEM_OK) status = ftmem__case_load(job, &c, error);
    if (status != FTMEM_OK) return status;
    memset(&start, 0, sizeof start);
    start.job = c.job;
    start.adapter = c.adapter;
    start.job.model = &c.model;
    for (code = 1; code < FTMEM_FIX_END; code++)
        if (fixes_try(&start, code, now.process.upper, &fix)) fixes_insert(fixes, capacity > 0 ? capacity : 0, &found, fix);
    *count = found;
    return FTMEM_OK;
}

/* ---------------------------------------------------------------------------------------------------- your sum */

static ftmem_sum_term fixes_term(const char *name, double each, double parameters, uint64_t ours)
{
    ftmem_sum_term t;
    t.name = name;
    t.bytes_per_parameter = each;
    t.rule_bytes = (uint64_t)(each * parameters);
    t.ours_bytes = ours;
    return t;
}

static double fixes_weight_rule(const ftmem__case *c)
{
    const ftmem__quant *quant = ftmem__quant_of(c->adapter.quant);
    if (quant) return quant->bits / 8.0;
    return ftmem_handbook_bytes_per_parameter(c->job.dtype);
}

/* The common rule: weights by dtype; gradients like weights and 8 bytes of Adam states, of what is trained. */
ftmem_status ftmem_your_sum(const ftmem_job *job, ftmem_sum_term terms[FTMEM_SUM_CAPACITY], int32_t *count, ftmem_error *error)
{
    ftmem__case c;
    ftmem_memory m = FTMEM_MEMORY_INIT;
    double trained, gradient;
    ftmem_status status;
    if (!terms || !count) return ftmem__fail(error, FTMEM_E_ARGUMENT, "terms", "NULL", "terms and count must not be NULL.");
    status = ftmem_predict_memory(job, &m, error);
    if (status == FTMEM_OK) status = ftmem__case_load(job, &c, error);
    if (status != FTMEM_OK) return status;
    trained = (double)m.trainable;
    gradient = c.adapter.kind ? 4 : ftmem_handbook_bytes_per_parameter(c.job.dtype);
    terms[0] = fixes_term("weights", fixes_weight_rule(&c), (double)m.parameters, m.weights_bytes);
    terms[1] = fixes_term("gradients", gradient, trained, m.gradients_bytes);
    terms[2] = fixes_term("optimizer states", 8, trained, m.states_bytes);
    terms[3] = fixes_term("activations", 0, 0, m.activations_bytes);
    terms[4] = fixes_term("buffers and workspaces", 0, 0, m.overhead_bytes);
    terms[5] = fixes_term("allocator and CUDA", 0, 0, m.process.expected - m.allocated.expected);
    *count = 6;
    return FTMEM_OK;
}
