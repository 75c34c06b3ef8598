#include "families.h"
#include "objective.h"

#include "families.h"

#define LOGPS .rows = 1, .loss = FTMEM__LOSS_LOGPS
#define GENERATE \
    { \
        FTMEM__GENERATES, FTMEM__OF_TRAINED, 1 \
    }
#define PAIRS .rows = 2, .loss = FTMEM__LOSS_LOGPS, .no_dropout = true

/* Source: trl 1.16 trainer/dpo_trainer.py, kto_trainer.py, reward_trainer.py, grpo_trainer.py, rloo_trainer.py, experimental/orpo and cpo (`_compute_loss`,
   `_generate_and_score_completions`) and their configs (disable_dropout, beta). */
static const ftmem__objective objective_rows[FTMEM_OBJECTIVE_END] = {
    [FTMEM_OBJECTIVE_SFT] = { .rows = 1 },
    [FTMEM_OBJECTIVE_DPO] = { PAIRS, .names = 1, .outputs = 3, .forward = { { FTMEM__AFTER, FTMEM__OF_REFERENCE, 1 } } },
    [FTMEM_OBJECTIVE_KTO] = { LOGPS, .no_dropout = true, .names = 1, .outputs = 3,
                              .forward = { { FTMEM__BEFORE, FTMEM__OF_TRAINED, 1 }, { FTMEM__AFTER, FTMEM__OF_REFERENCE, 2 } } },
    [FTMEM_OBJECTIVE_REWARD] = { .rows = 2, .loss = FTMEM__LOSS_PAIRS, .task = FTMEM_TASK_CLASSIFY, .no_dropout = true },
    [FTMEM_OBJECTIVE_GRPO] = { LOGPS, .names = 3, .reference = FTMEM_REFERENCE_NONE, .forward = { GENERATE, { FTMEM__APART, FTMEM__OF_REFERENCE, 1 } } },
    [FTMEM_OBJECTIVE_RLOO] = { LOGPS, .names = 3, .forward = { GENERATE, { FTMEM__APART, FTMEM__OF_TRAINED, 1 }, { FTMEM__APART, FTMEM__OF_REFERENCE, 1 } } },
    [FTMEM_OBJECTIVE_ORPO] = { PAIRS, .whole = 2, .names = 3 },
    [FTMEM_OBJECTIVE_CPO] = { PAIRS, .whole = 2, .names = 3 },
    [FTMEM_OBJECTIVE_SIMPO] = { PAIRS, .whole = 1, .names = 3 },
};

const ftmem__objective *ftmem__objective_of(const ftmem_job *job)
{
    return &objective_rows[job->objective];
}

static bool objective_has_reference(const ftmem__objective *o)
{
    int32_t i;
    for (i = 0; i < FTMEM__MAX_FORWARDS; i++)
        if (o->forward[i].of == FTMEM__OF_REFERENCE && o->forward[i].when != FTMEM__NEVER) return true;
    return false;
}

/* Versions of TRL: log-probabilities of whole logits in one kernel, and of tiles. */
enum { OBJECTIVE_KERNEL = 114, OBJECTIVE_TILES = 115 };

static bool objective_before_tiles(const ftmem_job *job)
{
    return job->stack == FTMEM_STACK_TRL && job->stack_version && job->stack_version < OBJECTIVE_TILES;
}

/* trl trainer/dpo_trainer.py: with PEFT there is no second model. */
static int32_t objective_reference(const ftmem__case *c, const ftmem__objective *o)
{
    if (!objective_has_reference(o) || o->reference == FTMEM_REFERENCE_NONE) return FTMEM_REFERENCE_NONE;
    return c->adapter.kind == FTMEM_ADAPTER_NONE ? FTMEM_REFERENCE_COPY : FTMEM_REFERENCE_ADAPTER_OFF;
}

/* disable_dropout_in_model (trl trainer/utils.py) */
static void objective_no_dropout(ftmem__case *c)
{
    c->model.attention_dropout = c->model.hidden_dropout = c->model.embed_dropout = c->model.mlp_dropout = c->model.head_dropout = 0;
    c->adapter.dropout = 0;
}

void ftmem__objective_fill(ftmem__case *c)
{
    const ftmem__objective *o;
    if (c->job.objective == FTMEM_OBJECTIVE_AUTO) c->job.objective = FTMEM_OBJECTIVE_SFT;
    o = ftmem__objective_of(&c->job);
    if (c->job.objective == FTMEM_OBJECTIVE_SFT) return;
    if (o->loss == FTMEM__LOSS_LOGPS && c->job.loss == FTMEM_LOSS_AUTO)
        c->job.loss = o->whole || objective_before_tiles(&c->job) ? FTMEM_LOSS_DROPPED : FTMEM_LOSS_TILES;
    if (c->job.reference == FTMEM_REFERENCE_AUTO) c->job.reference = objective_reference(c, o);
    if (o->forward[0].when == FTMEM__GENERATES && c->job.generation == FTMEM_GENERATION_AUTO) c->job.generation = FTMEM_GENERATION_TRANSFORMERS;
    if (o->task && c->job.task == FTMEM_TASK_AUTO) c->job.task = o->task;
    if (o->loss == FTMEM__LOSS_PAIRS && c->job.classes == 0) c->job.classes = 1;
    if (c->job.outputs_fp32 == FTMEM_AUTO && c->job.autocast) c->job.outputs_fp32 = FTMEM_ON; /* accelerate wraps the Trainer's model */
    if (o->no_dropout) objective_no_dropout(c);
}

static ftmem_status objective_refuse(const char *field, const char *value, const char *message, ftmem_error *error)
{
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, field, value, message);
}

static ftmem_status objective_check_reference(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_job *job = &c->job;
    const char *name = ftmem_enum_name("reference", job->reference);
    bool has = objective_has_reference(ftmem__objective_of(job));
    if (!has && job->reference > FTMEM_REFERENCE_NONE)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.reference", name, "job.reference is given, but job.objective has no reference");
    if (job->reference == FTMEM_REFERENCE_ADAPTER_OFF && c->adapter.kind == FTMEM_ADAPTER_NONE)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.reference", name,
                           "job.reference is adapter_off, but there is no adapter: a copy or precomputed is meant");
    if (has && job->objective != FTMEM_OBJECTIVE_GRPO && job->objective != FTMEM_OBJECTIVE_RLOO && job->reference == FTMEM_REFERENCE_NONE)
        return objective_refuse("job.reference", name, "job.reference is none, but TRL's trainer of job.objective always has a reference", error);
    if (job->reference == FTMEM_REFERENCE_PRECOMPUTED && (job->objective == FTMEM_OBJECTIVE_GRPO || job->objective == FTMEM_OBJECTIVE_RLOO))
        return objective_refuse("job.reference", name, "job.reference is precomputed, but what job.objective scores is generated while it trains", error);
    if (job->reference <= FTMEM_REFERENCE_NONE || job->eval != FTMEM_ON || job->eval_batch == job->micro_batch) return FTMEM_OK;
    return objective_refuse("job.eval_batch", "", "job.eval_batch other than job.micro_batch is not modelled for an objective with a reference", error);
}

/* Caches of other things than keys and values of all tokens, or of a window's. */
static ftmem_status objective_check_generation(const ftmem__case *c, ftmem_error *error)
{
    bool generates = ftmem__objective_of(&c->job)->forward[0].when == FTMEM__GENERATES;
    int64_t i;
    if (!generates && (c->job.generation || c->job.generation_batch))
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.generation", "given",
                           "job.generation or generation_batch is given, but job.objective generates nothing");
    if (c->job.generation != FTMEM_GENERATION_TRANSFORMERS) return FTMEM_OK;
    for (i = 0; i < c->model.layers && c->model.kv_rank == 0; i++)
        if (ftmem__layer_attention(c->model.layer_kind[i]) > FTMEM__LAYER_NO_ROTATION) break;
    if (i == c->model.layers) return FTMEM_OK;
    return objective_refuse("job.generation", "transformers",
                            "job.generation is modelled for caches of keys and values only, not of this model's attention: set it to none", error);
}

static ftmem_status objective_check_model(const ftmem__case *c, ftmem_error *error)
{
    const ftmem__family *family = ftmem__family_of(&c->model);
    const ftmem__objective *o = ftmem__objective_of(&c->job);
    const char *name = ftmem_enum_name("objective", c->job.objective);
    if (family->encoder || c->model.tower || (family->task && family->task != FTMEM_TASK_CAUSAL_LM))
        return objective_refuse("job.objective", name, "job.objective is modelled for decoders of text only", error);
    if (c->job.task != (o->task ? o->task : FTMEM_TASK_CAUSAL_LM))
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.task", ftmem_enum_name("task", c->job.task), "job.task is not that of job.objective");
    if (o->loss == FTMEM__LOSS_PAIRS && c->job.classes != 1)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "job.classes", c->job.classes, "job.classes must be 1 for a reward model: one score a row");
    if (c->adapter.virtual_tokens) return objective_refuse("adapter.virtual_tokens", "", "Virtual tokens are not modelled for this job.objective", error);
    return FTMEM_OK;
}

/* The head's own matrix in tiles: a bias, a quantised head and an encoder's are other code. */
static ftmem_status objective_check_tiles(const ftmem__case *c, ftmem_error *error)
{
    const ftmem__family *family = ftmem__family_of(&c->model);
    if (c->job.loss != FTMEM_LOSS_TILES) return FTMEM_OK;
    if (c->job.task != FTMEM_TASK_CAUSAL_LM || family->encoder || c->adapter.virtual_tokens || c->adapter.trainable_tokens ||
        c->job.stack == FTMEM_STACK_LITGPT || c->model.head_bias == FTMEM_ON || family->normed_head || family->scale_before_head)
        return objective_refuse("job.loss", "tiles", "job.loss is tiles, which is modelled for causal language models with a plain head only", error);
    return FTMEM_OK;
}

ftmem_status ftmem__objective_check(const ftmem__case *c, ftmem_error *error)
{
    const ftmem__objective *o = ftmem__objective_of(&c->job);
    ftmem_status status = objective_check_tiles(c, error);
    if (status != FTMEM_OK) return status;
    if (c->job.completion_sequence >= c->job.sequence)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "job.completion_sequence", c->job.completion_sequence,
                               "job.completion_sequence is not less than job.sequence");
    if (c->job.objective == FTMEM_OBJECTIVE_SFT) {
        status = objective_check_generation(c, error);
        if (status != FTMEM_OK) return status;
        if (c->job.reference <= FTMEM_REFERENCE_NONE) return FTMEM_OK;
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.reference", ftmem_enum_name("reference", c->job.reference),
                           "job.reference is given, but job.objective is sft");
    }
    if (c->job.eval_keep_logits == FTMEM_ON)
        return objective_refuse("job.eval_keep_logits", "on", "job.eval_keep_logits is not modelled for this job.objective", error);
    if (c->job.loss != FTMEM_LOSS_DROPPED && (c->job.loss != FTMEM_LOSS_TILES || o->whole || o->loss != FTMEM__LOSS_LOGPS))
        return objective_refuse("job.loss", ftmem_enum_name("loss", c->job.loss),
                                "job.loss is none that TRL's trainer of job.objective has: dropped, or tiles of log-probabilities", error);
    if (o->loss == FTMEM__LOSS_LOGPS && objective_before_tiles(&c->job) && c->job.stack_version < OBJECTIVE_KERNEL)
        return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "job.stack_version", c->job.stack_version,
                               "TRL before 1.14 makes log-probabilities row by row, which is not modelled");
    status = objective_check_model(c, error);
    if (status == FTMEM_OK) status = objective_check_generation(c, error);
    return status == FTMEM_OK ? objective_check_reference(c, error) : status;
}

bool ftmem__objective_runs(const ftmem_job *job, const ftmem__forward *forward)
{
    if (forward->when == FTMEM__NEVER) return false;
    if (forward->when == FTMEM__GENERATES) return job->generation == FTMEM_GENERATION_TRANSFORMERS;
    return forward->of == FTMEM__OF_TRAINED || job->reference == FTMEM_REFERENCE_COPY || job->reference == FTMEM_REFERENCE_ADAPTER_OFF;
}

/* trl trainer/utils.py create_model_from_path: the copy is loaded like the trained model, and not prepared for k-bit training. */
static void objective_reference_case(const ftmem__case *c, ftmem__case *out)
{
    bool copy = c->job.reference == FTMEM_REFERENCE_COPY;
    out->adapter.kind = FTMEM_ADAPTER_NONE;
    out->adapter.modules_to_save = 0;
    out->adapter.trainable_tokens = 0;
    if (copy) out->adapter.kbit_fp32 = FTMEM_OFF;
    out->job.freeze = copy ? 0 : FTMEM_PART_ALL_BUT;
}

int64_t ftmem__objective_completion(const ftmem_job *job)
{
    return job->completion_sequence ? job->completion_sequence : job->sequence - 1;
}

/* generate() starts with a forward over the prompts of all rows. */
static void objective_prompts(const ftmem__case *c, ftmem__case *out)
{
    out->generates = true;
    out->job.sequence = c->job.sequence - ftmem__objective_completion(&c->job);
    out->job.completion_sequence = 0;
    out->job.micro_batch = out->job.eval_batch = c->job.generation_batch ? c->job.generation_batch : c->job.micro_batch * c->job.accumulation;
}

void ftmem__objective_case(const ftmem__case *c, const ftmem__forward *forward, ftmem__case *out)
{
    *out = *c;
    out->job.model = &out->model;
    out->job.adapter = &out->adapter;
    out->job.eval = FTMEM_ON;
    out->job.eval_batch = c->job.micro_batch;
    out->job.accumulation = 1;
    out->job.recompute = FTMEM_RECOMPUTE_NONE;
    out->forward_only = true;
    if (forward->of == FTMEM__OF_REFERENCE) objective_reference_case(c, out);
    if (forward->when == FTMEM__GENERATES) objective_prompts(c, out);
}
