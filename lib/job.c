/* From the caller's job to one that needs no more questions: import, ranges, defaults, contradictions. */
#include "job.h"
#include "method.h"
#include "objective.h"
#include "optimizer.h"

/* -------------------------------------------------------------------------------------------------- sentences */

/* A sentence in the making; the functions below end in the error that carries it. */
typedef struct job_sentence {
    char message[sizeof(((ftmem_error *)0)->message)];
    ftmem__text text;
} job_sentence;

static void job_begin(job_sentence *s, const char *field, int64_t value)
{
    s->text = ftmem__text_in(s->message, sizeof s->message);
    ftmem__put(&s->text, field);
    ftmem__put(&s->text, " is ");
    ftmem__put_int(&s->text, value);
}

static void job_add(job_sentence *s, const char *words, int64_t value)
{
    ftmem__put(&s->text, words);
    ftmem__put_int(&s->text, value);
}

static ftmem_status job_conflict(job_sentence *s, const char *field, int64_t value, const char *rest, ftmem_error *error)
{
    ftmem__put(&s->text, rest);
    return ftmem__fail_int(error, FTMEM_E_CONFLICT, field, value, s->message);
}

/* "FIELD is 20REST" */
static ftmem_status job_conflict_int(const char *field, int64_t value, const char *rest, ftmem_error *error)
{
    job_sentence s;
    if (!error) return FTMEM_E_CONFLICT;
    job_begin(&s, field, value);
    return job_conflict(&s, field, value, rest, error);
}

/* "FIELD is 20, but OTHER is 10REST" */
static ftmem_status job_conflict_two(const char *field, int64_t value, const char *other, int64_t limit, const char *rest, ftmem_error *error)
{
    job_sentence s;
    if (!error) return FTMEM_E_CONFLICT;
    job_begin(&s, field, value);
    ftmem__put(&s.text, ", but ");
    ftmem__put(&s.text, other);
    job_add(&s, " is ", limit);
    return job_conflict(&s, field, value, rest, error);
}

/* ----------------------------------------------------------------------------------------------------- import */

static ftmem_status job_import_model(const ftmem_job *job, ftmem__case *c, ftmem_error *error)
{
    if (!job->model)
        return ftmem__fail(error, FTMEM_E_MISSING, "job.model", "NULL", "job.model is NULL, but a model is required: ftmem_model_find gives one by name");
    return ftmem__import(&c->model, sizeof c->model, job->model, FTMEM__MODEL_MINIMUM, "model", error);
}

static ftmem_status job_import_teacher(const ftmem_job *job, ftmem__case *c, ftmem_error *error)
{
    ftmem_status status;
    if (!job->teacher) c->teacher = c->model;
    if (!job->teacher) return FTMEM_OK;
    status = ftmem__import(&c->teacher, sizeof c->teacher, job->teacher, FTMEM__MODEL_MINIMUM, "teacher", error);
    return status == FTMEM_OK ? ftmem__fields_validate(FTMEM_OBJECT_MODEL, &c->teacher, error) : status;
}

static ftmem_status job_import_adapter(const ftmem_job *job, ftmem__case *c, ftmem_error *error)
{
    if (job->adapter) return ftmem__import(&c->adapter, sizeof c->adapter, job->adapter, FTMEM__ADAPTER_MINIMUM, "adapter", error);
    memset(&c->adapter, 0, sizeof c->adapter);
    c->adapter.struct_size = (uint32_t)sizeof c->adapter;
    return FTMEM_OK;
}

/* A GPU by value has the job's version, so its own size says only whether somebody filled it in: 0 is as good. */
static ftmem_status job_import_gpu(ftmem_gpu *gpu, ftmem_error *error)
{
    if (gpu->struct_size != 0 && gpu->struct_size != sizeof *gpu)
        return ftmem__fail_int(error, FTMEM_E_STRUCT_SIZE, "job.gpu.struct_size", gpu->struct_size,
                               "job.gpu.struct_size is no size that an ftmem_gpu has had: initialise it with FTMEM_GPU_INIT");
    gpu->struct_size = (uint32_t)sizeof *gpu;
    return FTMEM_OK;
}

static ftmem_status job_import(const ftmem_job *job, ftmem__case *c, ftmem_error *error)
{
    ftmem_status status = ftmem__import(&c->job, sizeof c->job, job, FTMEM__JOB_MINIMUM, "job", error);
    if (status == FTMEM_OK) status = job_import_gpu(&c->job.gpu, error);
    if (status == FTMEM_OK) status = job_import_model(&c->job, c, error);
    if (status == FTMEM_OK) status = job_import_teacher(&c->job, c, error);
    if (status == FTMEM_OK) status = job_import_adapter(&c->job, c, error);
    c->job.model = &c->model;
    c->job.adapter = &c->adapter;
    return status;
}

/* ----------------------------------------------------------------------------------------------------- ranges */

/* What has a place in the structs, but no meaning in this version. */
static ftmem_status job_check_supported(const ftmem__case *c, ftmem_error *error)
{
    if (c->model.layers > FTMEM_MAX_LAYERS)
        return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "model.layers", c->model.layers,
                               "model.layers is more than 512 blocks, the most that this version models");
    return FTMEM_OK;
}

/* PEFT counts the blocks of a tower, and those for multi-token prediction, by the same numbers as the text model's. */
static ftmem_status job_check_tower(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_model *m = &c->model;
    bool none = m->tower == FTMEM_TOWER_GEMMA4 && m->tower_layers == 0; /* the class comes without one */
    if (m->audio_layers > 0 &&
        (m->audio_hidden == 0 || m->audio_heads == 0 || m->audio_kernel == 0 || m->audio_channels == 0 || m->audio_channels_last == 0 || m->audio_out == 0))
        return ftmem__fail(
            error, FTMEM_E_MISSING, "model.audio_hidden", "0",
            "model.audio_layers is given, but not the tower's dimensions: audio_hidden, _heads, _kernel, _channels, _channels_last and _out are required");
    if (m->tower == 0 && m->mtp_layers == 0) return FTMEM_OK;
    if (m->tower > 0 && !none && (m->tower_hidden == 0 || m->tower_ffn == 0 || m->tower_layers == 0 || m->patch_size == 0))
        return ftmem__fail(error, FTMEM_E_MISSING, "model.tower_hidden", "0",
                           "model.tower is given, but not its dimensions: tower_hidden, tower_ffn, tower_layers and patch_size are required");
    if (c->adapter.layers_first == 0 && c->adapter.layers_last == 0) return FTMEM_OK;
    return ftmem__fail(
        error, FTMEM_E_UNSUPPORTED, "adapter.layers_first", "given",
        "adapter.layers_first and layers_last choose blocks by number, which the blocks of a vision tower or of multi-token prediction have too: not modelled");
}

static ftmem_status job_check_layer_kind(const ftmem_model *model, uint8_t kind, ftmem_error *error)
{
    bool wide = (kind & FTMEM__LAYER_WIDTH) != 0 && !ftmem__family_of(model)->by_width;
    if (ftmem__layer_attention(kind) >= FTMEM__LAYER_KINDS || ftmem__layer_mlp(kind) >= FTMEM__MLP_KINDS || wide)
        return ftmem__fail_int(
            error, FTMEM_E_RANGE, "model.layer_kind", kind,
            "model.layer_kind has a value that is none; its low three bits are 0 (full), 1 (sliding window), 2 (full without "
            "rotation), 3 (sparse, shared index), 4 (state-space mixer), 5 (none) or 6 (linear), bits 4 and 5 are 0 (dense), 1 (experts) or 2 (none)");
    if (ftmem__layer_mlp(kind) == FTMEM__MLP_EXPERTS && model->experts == 0)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.experts", 0, "model.layer_kind has blocks with experts; give model.experts.");
    if (ftmem__layer_attention(kind) == FTMEM__LAYER_SSM &&
        (model->ssm_heads == 0 || model->ssm_head_dim == 0 || model->ssm_state == 0 || model->ssm_chunk == 0))
        return ftmem__fail_int(error, FTMEM_E_MISSING, "model.ssm_heads", model->ssm_heads,
                               "model.layer_kind has state-space mixers; give model.ssm_heads, ssm_head_dim, ssm_state and ssm_chunk.");
    if (ftmem__layer_attention(kind) == FTMEM__LAYER_LINEAR && (model->linear_key_heads == 0 || !ftmem__family_of(model)->modules[FTMEM_ROLE_MIXER_OUT]))
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.linear_key_heads", model->linear_key_heads,
                               "model.layer_kind has blocks with linear attention; give model.linear_key_heads, in a family that has such blocks.");
    return FTMEM_OK;
}

/* Most are 0, full and dense, which nothing contradicts: eight at a time. */
static ftmem_status job_check_layer_kinds(const ftmem_model *model, ftmem_error *error)
{
    static const uint8_t plain[8] = { 0 };
    ftmem_status status = FTMEM_OK;
    for (int32_t i = 0; i < FTMEM_MAX_LAYERS && status == FTMEM_OK; ++i) {
        if (i % 8 == 0 && memcmp(&model->layer_kind[i], plain, sizeof plain) == 0) i += 7;
        else status = job_check_layer_kind(model, model->layer_kind[i], error);
    }
    return status;
}

static ftmem_status job_check_ranks(const ftmem_adapter *adapter, ftmem_error *error)
{
    for (int32_t role = 0; role < FTMEM__COUNT(adapter->ranks); ++role)
        if (adapter->ranks[role] < 0 || adapter->ranks[role] > 1 << 16)
            return ftmem__fail_int(error, FTMEM_E_RANGE, "adapter.ranks", adapter->ranks[role], "adapter.ranks has a rank that is not between 0 and 65536");
    return FTMEM_OK;
}

static ftmem_status job_validate(const ftmem__case *c, ftmem_error *error)
{
    ftmem_status status = ftmem__fields_validate(FTMEM_OBJECT_JOB, &c->job, error);
    if (status == FTMEM_OK) status = ftmem__fields_validate(FTMEM_OBJECT_GPU, &c->job.gpu, error);
    if (status == FTMEM_OK) status = ftmem__fields_validate(FTMEM_OBJECT_MODEL, &c->model, error);
    if (status == FTMEM_OK) status = ftmem__fields_validate(FTMEM_OBJECT_ADAPTER, &c->adapter, error);
    if (status == FTMEM_OK) status = job_check_layer_kinds(&c->model, error);
    if (status == FTMEM_OK) status = job_check_ranks(&c->adapter, error);
    if (status == FTMEM_OK) status = job_check_tower(c, error);
    return status == FTMEM_OK ? job_check_supported(c, error) : status;
}

/* --------------------------------------------------------------------------------------------------- defaults */

void ftmem__case_note(ftmem__case *c, int32_t code, const char *field, int64_t value)
{
    if (c->note_count >= FTMEM_NOTE_CAPACITY) return;
    ftmem_note *note = &c->notes[c->note_count++];
    note->code = code;
    note->value = value > INT32_MAX ? INT32_MAX : (int32_t)value;
    note->field = field;
}

/* A default that decides how much memory is used, so that it is said to have been assumed. */
#define JOB_ASSUME(object, member, default_value) \
    if (c->object.member == 0) { \
        c->object.member = (default_value); \
        ftmem__case_note(c, FTMEM_NOTE_ASSUMED, #object "." #member, c->object.member); \
    }
/* One that does not, or hardly. */
#define JOB_DEFAULT(object, member, default_value) \
    if (c->object.member == 0) c->object.member = (default_value);

/* Where positions are a table, no row can be longer than it; 0: no such limit. */
static int64_t job_position_limit(const ftmem_model *model)
{
    if (ftmem__family_of(model)->positions != FTMEM__LEARNED) return 0;
    return model->max_positions > 0 ? model->max_positions : model->position_rows;
}

static int64_t job_default_sequence(const ftmem_model *model)
{
    int64_t limit = job_position_limit(model);
    if (ftmem__family_of(model)->embedding == FTMEM__EMBED_PATCHES) return ftmem__image_tokens(model);
    return limit > 0 && limit < 1024 ? limit : 1024;
}

/* Where the encoder takes features, all inputs have one length. */
static bool job_fed_features(const ftmem_model *model)
{
    const ftmem__family *encoder = ftmem__family_of(model)->encoder;
    return encoder && encoder->fed_features;
}

static void job_fill_batch(ftmem__case *c)
{
    int32_t task = ftmem__family_of(&c->model)->task ? ftmem__family_of(&c->model)->task : FTMEM_TASK_CAUSAL_LM;
    JOB_ASSUME(job, sequence, job_default_sequence(&c->model))
    if (job_fed_features(&c->model)) JOB_DEFAULT(job, encoder_sequence, c->model.encoder_positions)
    if (ftmem__family_of(&c->model)->encoder) JOB_DEFAULT(job, encoder_sequence, c->job.sequence)
    JOB_ASSUME(job, micro_batch, 1)
    JOB_DEFAULT(job, accumulation, 1)
    JOB_DEFAULT(job, mask, FTMEM_MASK_NONE)
    JOB_DEFAULT(job, task, task)
    JOB_DEFAULT(job, eval, FTMEM_OFF)
    JOB_DEFAULT(job, eval_keep_logits, FTMEM_OFF)
    if (!ftmem__task_of_vocab(c->job.task)) JOB_DEFAULT(job, classes, c->model.labels ? c->model.labels : 2)
    if (c->job.eval == FTMEM_ON) JOB_DEFAULT(job, eval_batch, c->job.micro_batch)
}

/* torchtune CEWithChunkedOutputLoss: eight chunks; litgpt finetune/lora.py: lm_head_chunk_size=128 of each row. */
static int64_t job_split_tokens(const ftmem_job *job)
{
    if (job->stack == FTMEM_STACK_LITGPT) return job->micro_batch * (job->sequence < 128 ? job->sequence : 128);
    return job->micro_batch * ((job->sequence + 7) / 8);
}

static bool job_trains_fp16(const ftmem__case *c)
{
    return c->adapter.kind == FTMEM_ADAPTER_NONE && c->job.dtype == FTMEM_FP16;
}

static void job_fill_optimizer(ftmem__case *c)
{
    const ftmem__optimizer *o = ftmem__optimizer_of(&c->job);
    if (o->full_only) JOB_DEFAULT(job, optimizer_rank, 128)
    JOB_DEFAULT(job, optimizer_in_backward, o->in_backward ? FTMEM_ON : FTMEM_OFF)
    JOB_DEFAULT(job, grad_scaler, c->job.autocast == FTMEM_FP16 && !job_trains_fp16(c) ? FTMEM_ON : FTMEM_OFF)
}

static void job_fill_training(ftmem__case *c)
{
    JOB_ASSUME(job, dtype, FTMEM_BF16)
    JOB_ASSUME(job, optimizer, FTMEM_ADAMW)
    JOB_ASSUME(job, attention, FTMEM_SDPA)
    if (c->job.recompute == FTMEM_RECOMPUTE_OFF) c->job.recompute = FTMEM_RECOMPUTE_NONE;
    else JOB_ASSUME(job, recompute, FTMEM_RECOMPUTE_NONE)
    JOB_ASSUME(job, loss, FTMEM_LOSS_DROPPED)
    JOB_DEFAULT(job, master_weights, FTMEM_OFF)
    JOB_DEFAULT(job, repeat_kv, FTMEM_OFF)
    JOB_DEFAULT(job, grad_clip, FTMEM_ON)
    JOB_DEFAULT(job, recompute_every, 1)
    JOB_DEFAULT(job, recompute_save, FTMEM_SAVE_NOTHING)
    JOB_DEFAULT(job, outputs_fp32, FTMEM_OFF)
    JOB_DEFAULT(job, use_cache, FTMEM_OFF)
    JOB_DEFAULT(job, ssm_kernels, FTMEM_OFF)
    JOB_DEFAULT(job, offload_checkpoints, FTMEM_OFF)
    JOB_DEFAULT(job, bitsandbytes_version, 50)
    JOB_DEFAULT(job, varied_lengths, FTMEM_OFF)
    job_fill_optimizer(c);
    if (c->job.loss == FTMEM_LOSS_CHUNKED) JOB_DEFAULT(job, loss_chunk_tokens, 256)
    if (c->job.loss == FTMEM_LOSS_SPLIT) JOB_DEFAULT(job, loss_chunk_tokens, job_split_tokens(&c->job))
}

/* Whether the method works on linears. */
static bool job_takes_targets(const ftmem__case *c)
{
    return c->adapter.kind != FTMEM_ADAPTER_NONE && ftmem__method_of(c->adapter.kind)->linear;
}

static void job_fill_quant(ftmem__case *c)
{
    bool bnb4, bnb;
    if (c->adapter.kind == FTMEM_ADAPTER_QLORA) JOB_DEFAULT(adapter, quant, FTMEM_QUANT_NF4)
    if (c->adapter.kind == FTMEM_ADAPTER_LORA8) JOB_DEFAULT(adapter, quant, FTMEM_QUANT_INT8)
    bnb4 = c->adapter.quant == FTMEM_QUANT_NF4 || c->adapter.quant == FTMEM_QUANT_FP4;
    bnb = bnb4 || c->adapter.quant == FTMEM_QUANT_INT8;
    if (bnb4) JOB_ASSUME(adapter, double_quant, FTMEM_ON)
    if (bnb) JOB_ASSUME(adapter, kbit_fp32, FTMEM_ON)
    JOB_DEFAULT(adapter, double_quant, FTMEM_OFF)
    JOB_DEFAULT(adapter, kbit_fp32, FTMEM_OFF)
}

/* Without an adapter its fields stay 0, and fields of another kind stay off: what was resolved can be asked again. */
static void job_fill_adapter(ftmem__case *c)
{
    uint32_t targets;
    if (c->adapter.kind == FTMEM_ADAPTER_NONE) return;
    targets = ftmem__method_targets(c->adapter.kind, &c->model);
    job_fill_quant(c);
    JOB_ASSUME(adapter, rank, ftmem__method_of(c->adapter.kind)->rank)
    if (targets) JOB_ASSUME(adapter, targets, targets)
    JOB_DEFAULT(adapter, dtype, FTMEM_FP32)
    JOB_DEFAULT(adapter, ends_bf16, FTMEM_OFF)
    JOB_DEFAULT(adapter, use_dora, FTMEM_OFF)
}

static void job_fill_surroundings(ftmem__case *c)
{
    JOB_DEFAULT(job, stack, FTMEM_STACK_TRANSFORMERS)
    JOB_DEFAULT(job, expandable_segments, FTMEM_OFF)
    JOB_DEFAULT(job, cublas_workspace, FTMEM_ON)
    JOB_ASSUME(job, transformers_version, 524)
    JOB_ASSUME(job, torch_version, 213)
    if (c->job.gpu.sm_arch == 0) {
        c->job.gpu.sm_arch = 80;
        ftmem__case_note(c, FTMEM_NOTE_ASSUMED, "gpu.sm_arch", 80);
    }
}

/* When a default of a stack applies; a row's bits must all hold. */
enum { STACK_AUTOCAST = 1, STACK_NO_AUTOCAST = 2, STACK_BF16 = 4, STACK_ADAPTER = 8, STACK_QLORA = 16, STACK_RECOMPUTE = 32 };

static uint32_t job_stack_facts(const ftmem__case *c)
{
    uint32_t facts = c->job.autocast ? STACK_AUTOCAST : STACK_NO_AUTOCAST;
    if (c->job.autocast == FTMEM_BF16) facts |= STACK_BF16;
    if (c->adapter.kind != FTMEM_ADAPTER_NONE) facts |= STACK_ADAPTER;
    if (c->adapter.kind == FTMEM_ADAPTER_QLORA) facts |= STACK_QLORA;
    if (c->job.recompute == FTMEM_RECOMPUTE_FULL || c->job.recompute == FTMEM_RECOMPUTE_REENTRANT) facts |= STACK_RECOMPUTE;
    return facts;
}

typedef struct job_stack_row {
    const char *field;
    int32_t stack, from, before, value;
    uint32_t when;
} job_stack_row;

static const job_stack_row job_stack_rows[] = {
#define STACK_DEFAULT(stack, from, before, field, value, when) { field, stack, from, before, value, when },
#include "stacks.inc"
#undef STACK_DEFAULT
};

/* A member that was not given takes the stack's default, and is listed as assumed. */
static void job_stack_take(ftmem__case *c, const job_stack_row *row)
{
    const ftmem_field *field = ftmem_field_find(row->field);
    char *object = field && field->object == FTMEM_OBJECT_ADAPTER ? (char *)&c->adapter : (char *)&c->job;
    static const char zero[sizeof(int64_t)] = { 0 };
    int64_t wide = row->value;
    if (!field || memcmp(object + field->offset, zero, (size_t)field->size) != 0) return;
    if (field->size == (int32_t)sizeof wide) memcpy(object + field->offset, &wide, sizeof wide);
    else memcpy(object + field->offset, &row->value, sizeof row->value);
    ftmem__case_note(c, FTMEM_NOTE_ASSUMED, row->field, row->value);
}

static void job_fill_stack(ftmem__case *c)
{
    int32_t version = c->job.stack_version ? c->job.stack_version : INT32_MAX - 1, i;
    if (c->job.stack == 0 || c->job.stack == FTMEM_STACK_TRANSFORMERS) return;
    for (i = 0; i < FTMEM__COUNT(job_stack_rows); ++i) {
        const job_stack_row *row = &job_stack_rows[i];
        if (row->stack != c->job.stack || version < row->from || version >= row->before) continue;
        if ((job_stack_facts(c) & row->when) == row->when) job_stack_take(c, row);
    }
}

static void job_fill(ftmem__case *c)
{
    c->note_count = 0;
    c->forward_only = c->generates = false;
    if (c->model.inferred) ftmem__case_note(c, FTMEM_NOTE_INFERRED, "model", 0);
    job_fill_stack(c);
    ftmem__objective_fill(c);
    job_fill_batch(c);
    job_fill_training(c);
    job_fill_adapter(c);
    job_fill_surroundings(c);
}

/* --------------------------------------------------------------------------------------------- contradictions
   All of them are looked for after the defaults are in, none of which contradicts anything. */

static ftmem_status job_check_sequence(const ftmem__case *c, ftmem_error *error)
{
    int64_t limit = job_position_limit(&c->model);
    if (ftmem__family_of(&c->model)->embedding == FTMEM__EMBED_PATCHES && c->job.sequence != ftmem__image_tokens(&c->model))
        return job_conflict_int("job.sequence", c->job.sequence,
                                ", but an image has tokens of its own, by model.image_size and model.patch_size: leave it at 0", error);
    if (limit == 0 || c->job.sequence <= limit) return FTMEM_OK;
    const char *other = c->model.max_positions > 0 ? "model.max_positions" : "model.position_rows";
    return job_conflict_two("job.sequence", c->job.sequence, other, limit, ", and its learned positions end there", error);
}

/* The first adapter field that was given, for the message. */
static const ftmem_field *job_given_adapter_field(const ftmem_adapter *adapter)
{
    static const char zero[sizeof *adapter] = { 0 };
    if (memcmp(&adapter->rank, zero, sizeof *adapter - offsetof(ftmem_adapter, rank)) == 0) return NULL;
    for (int32_t i = 0; i < ftmem_field_count(); ++i) {
        const ftmem_field *field = ftmem_field_at(i);
        if (field->object != FTMEM_OBJECT_ADAPTER || field->offset <= (int32_t)offsetof(ftmem_adapter, kind)) continue;
        if (memcmp((const char *)adapter + field->offset, zero, (size_t)field->size) != 0) return field;
    }
    return NULL;
}

static ftmem_status job_check_no_adapter(const ftmem__case *c, ftmem_error *error)
{
    if (c->adapter.kind != FTMEM_ADAPTER_NONE) return FTMEM_OK;
    const ftmem_field *field = job_given_adapter_field(&c->adapter);
    if (!field) return FTMEM_OK;
    job_sentence s;
    s.text = ftmem__text_in(s.message, sizeof s.message);
    ftmem__put(&s.text, field->path);
    ftmem__put(&s.text, " is given, but adapter.kind is none: choose lora, qlora or lora8, or leave the field at 0");
    return ftmem__fail(error, FTMEM_E_CONFLICT, field->path, "given", s.message);
}

/* PEFT's DoRA alone is modelled. */
static ftmem_status job_check_dora(const ftmem__case *c, ftmem_error *error)
{
    int32_t stack = c->job.stack;
    if (c->adapter.use_dora != FTMEM_ON) return FTMEM_OK;
    if (stack == FTMEM_STACK_UNSLOTH || stack == FTMEM_STACK_TORCHTUNE || stack == FTMEM_STACK_LITGPT || stack == FTMEM_STACK_FMS)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "adapter.use_dora", "on",
                           "adapter.use_dora is on, but DoRA is modelled in PEFT's form only, and job.stack has its own adapters");
    return FTMEM_OK;
}

static const char *job_uncompiled(const ftmem__case *c)
{
    const ftmem_job *job = &c->job;
    const ftmem__family *family = ftmem__family_of(&c->model);
    bool rms = family->norm == FTMEM__RMS || family->norm == FTMEM__RMS_FP32_WEIGHT;
    if (!job->compile) return NULL;
    if (job->objective > FTMEM_OBJECTIVE_SFT) return "job.compile is modelled for supervised fine-tuning only";
    if (job->compile & FTMEM_COMPILE_LOSS && job->stack != FTMEM_STACK_TORCHTUNE) return "job.compile has the loss, which is modelled for torchtune only";
    if (!(job->compile & FTMEM_COMPILE_BLOCKS)) return NULL;
    if (!rms || family->mlp != FTMEM__GATED || c->model.experts || family->encoder || c->model.tower)
        return "job.compile has blocks, which is modelled for RMSNorm and a gated MLP of two linears";
    if (family->positions > FTMEM__ROPE_INTERLEAVED || c->model.rotary_dim != c->model.head_dim || family->turn)
        return "job.compile has blocks, which is modelled for heads that rotate as in Llama";
    if (job->attention == FTMEM_EAGER || job->autocast || c->model.attention_dropout > 0)
        return "job.compile has blocks, which is modelled for sdpa and flash attention, without autocast and dropout";
    if (c->adapter.kind != FTMEM_ADAPTER_NONE && (c->adapter.dtype == FTMEM_FP32 || c->adapter.dropout > 0 || c->adapter.kind > FTMEM_ADAPTER_QLORA))
        return "job.compile has blocks, which is modelled for full fine-tuning and LoRA in the model's dtype without dropout";
    return NULL;
}

static ftmem_status job_check_compile(const ftmem__case *c, ftmem_error *error)
{
    const char *why = job_uncompiled(c);
    return why ? ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.compile", "given", why) : FTMEM_OK;
}

static ftmem_status job_fail_quant(const ftmem__case *c, ftmem_status status, const char *message, ftmem_error *error)
{
    return ftmem__fail(error, status, "adapter.quant", ftmem_enum_name("quant", c->adapter.quant), message);
}

/* A causal language model whose only input is tokens. */
static bool job_reads_tokens(const ftmem__case *c)
{
    const ftmem__family *family = ftmem__family_of(&c->model);
    return c->job.task == FTMEM_TASK_CAUSAL_LM && !family->encoder && !family->by_kind && !family->by_width && !c->model.tower &&
           family->embedding == FTMEM__EMBED_TOKENS;
}

/* Whether the method is modelled, over this base. */
static ftmem_status job_check_method(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_adapter *a = &c->adapter;
    const ftmem__method *method = ftmem__method_of(a->kind);
    const ftmem__quant *quant = ftmem__quant_of(a->quant);
    if (method->refused) return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "adapter.kind", ftmem_enum_name("adapter", a->kind), method->refused);
    if (quant && (method->over == FTMEM__OVER_PLAIN || (method->over == FTMEM__OVER_BITSANDBYTES && !quant->bitsandbytes)))
        return job_fail_quant(c, FTMEM_E_UNSUPPORTED, "adapter.quant is a format over which this adapter.kind is not modelled", error);
    if (a->use_dora == FTMEM_ON && a->kind > FTMEM_ADAPTER_LORA8)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "adapter.use_dora", "on", "adapter.use_dora is on, but adapter.kind is not LoRA");
    return FTMEM_OK;
}

static ftmem_status job_check_virtual_tokens(const ftmem__case *c, ftmem_error *error)
{
    int32_t given = c->adapter.virtual_tokens, kind = c->adapter.kind;
    bool wanted = kind == FTMEM_ADAPTER_PROMPT || kind == FTMEM_ADAPTER_P_TUNING;
    if (wanted && !given)
        return ftmem__fail(error, FTMEM_E_MISSING, "adapter.virtual_tokens", "0",
                           "adapter.virtual_tokens is 0, but this adapter.kind puts virtual tokens before each row: say how many");
    if (given && !wanted) return job_conflict_int("adapter.virtual_tokens", given, ", but adapter.kind has none", error);
    if (!given || job_reads_tokens(c)) return FTMEM_OK;
    return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "adapter.virtual_tokens", given,
                           "adapter.virtual_tokens is given, but virtual tokens are modelled for causal language models of text only");
}

static ftmem_status job_check_trainable_tokens(const ftmem__case *c, ftmem_error *error)
{
    int32_t given = c->adapter.trainable_tokens, loss = c->job.loss;
    bool logits = loss < FTMEM_LOSS_CHUNKED || loss > FTMEM_LOSS_TILES;
    if (!given) return FTMEM_OK;
    if (c->adapter.kind > FTMEM_ADAPTER_LORA8) return job_conflict_int("adapter.trainable_tokens", given, ", but adapter.kind is not LoRA", error);
    if (!logits || c->adapter.modules_to_save)
        return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "adapter.trainable_tokens", given,
                               "adapter.trainable_tokens is given, but it is not modelled with a loss without logits, or with modules_to_save");
    if (job_reads_tokens(c)) return FTMEM_OK;
    return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "adapter.trainable_tokens", given,
                           "adapter.trainable_tokens is given, but trainable tokens are modelled for causal language models of text only");
}

/* Gemma 4, and linear attention, as transformers writes them out. */
static ftmem_status job_check_by_kind(const ftmem__case *c, ftmem_error *error)
{
    const int32_t kernels = c->job.kernels & (FTMEM_FUSED_NORM | FTMEM_FUSED_ROPE | FTMEM_FUSED_LORA);
    const ftmem__family *family = ftmem__family_of(&c->model);
    if (family->hands_index && c->job.recompute_save > FTMEM_SAVE_NOTHING)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.recompute_save", ftmem_enum_name("save", c->job.recompute_save),
                           "job.recompute_save is given, but checkpoints that save results are not modelled in this family");
    if (!family->by_kind && !family->by_width && c->model.linear_key_heads == 0) return FTMEM_OK;
    if (family->by_kind && c->job.task != FTMEM_TASK_CAUSAL_LM)
        return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "job.task", c->job.task, "job.task is not causal_lm, the one that is modelled for this family");
    if (c->job.stack == FTMEM_STACK_LITGPT)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.stack", "litgpt", "job.stack is litgpt, whose model of this family is not modelled");
    if (c->job.compile & FTMEM_COMPILE_BLOCKS)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.compile", "blocks", "job.compile has blocks, which are not modelled compiled in this family");
    if (c->job.recompute_save > FTMEM_SAVE_NOTHING)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.recompute_save", ftmem_enum_name("save", c->job.recompute_save),
                           "job.recompute_save is given, but checkpoints that save results are not modelled in this family");
    if (kernels == 0) return FTMEM_OK;
    return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "job.kernels", kernels,
                           "job.kernels has kernels for norms, rotation or LoRA, which are not modelled in this family");
}

static bool job_has_ranks(const ftmem_adapter *adapter)
{
    for (int32_t role = 0; role < FTMEM__COUNT(adapter->ranks); ++role)
        if (adapter->ranks[role] != 0) return true;
    return false;
}

/* Some parts of a model, and some kernels, are modelled with plain LoRA over plain or bitsandbytes weights only. */
static ftmem_status job_check_method_place(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_adapter *a = &c->adapter;
    const ftmem__quant *quant = ftmem__quant_of(a->quant);
    const ftmem__family *family = ftmem__family_of(&c->model);
    bool lora = a->kind <= FTMEM_ADAPTER_LORA_FA && a->use_dora != FTMEM_ON, fused = (c->job.kernels & FTMEM_FUSED_LORA) || c->job.stack == FTMEM_STACK_LITGPT;
    const uint32_t experts = 1u << FTMEM_ROLE_EXPERTS_UP | 1u << FTMEM_ROLE_EXPERTS_DOWN | 1u << FTMEM_ROLE_ROUTER;
    bool foreign = quant && !quant->bitsandbytes; /* bitsandbytes alone leaves fused experts as they are */
    const char *place = NULL;
    if (a->kind == FTMEM_ADAPTER_NONE || (lora && !job_has_ranks(a) && (!quant || quant->bitsandbytes))) return FTMEM_OK;
    if (c->model.experts > 0 && (foreign || (a->targets & experts) || a->kind > FTMEM_ADAPTER_LORA_FA)) place = "a mixture of experts";
    else if (family->encoder) place = "an encoder beside its decoder";
    else if (c->model.tower) place = "a vision tower";
    else if (family->by_kind || family->by_width) place = "blocks of different shapes";
    else if (fused) place = "fused LoRA kernels";
    else if (a->kind == FTMEM_ADAPTER_VERA && c->model.kv_rank) place = "multi-head latent attention"; /* widths of the shared pair */
    if (!place || !job_takes_targets(c)) return FTMEM_OK;
    if (!error) return FTMEM_E_UNSUPPORTED;
    job_sentence s;
    s.text = ftmem__text_in(s.message, sizeof s.message);
    ftmem__put(&s.text, "adapter.kind is ");
    ftmem__put(&s.text, ftmem_enum_name("adapter", a->kind));
    ftmem__put(&s.text, ", but with ");
    ftmem__put(&s.text, place);
    ftmem__put(&s.text, " only LoRA of one rank, without DoRA, over plain or bitsandbytes weights is modelled");
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "adapter.kind", ftmem_enum_name("adapter", a->kind), s.message);
}

/* Whether the format is modelled, and goes with the kind and with the model. */
static ftmem_status job_check_quant(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_adapter *a = &c->adapter;
    const ftmem__quant *quant = ftmem__quant_of(a->quant);
    if (a->kind == FTMEM_ADAPTER_QLORA && !quant)
        return job_fail_quant(c, FTMEM_E_CONFLICT, "adapter.quant is none, but adapter.kind is qlora: choose lora, or a format", error);
    if (a->kind == FTMEM_ADAPTER_LORA8 && (!quant || quant->bits != 8))
        return job_fail_quant(c, FTMEM_E_CONFLICT, "adapter.kind is lora8, but adapter.quant is no 8-bit format: choose qlora or lora", error);
    if (!quant) return FTMEM_OK;
    if (quant->refused) return job_fail_quant(c, FTMEM_E_UNSUPPORTED, quant->refused, error);
    if (ftmem__family_of(&c->model)->never_quantized && !quant->bitsandbytes)
        return job_fail_quant(
            c, FTMEM_E_UNSUPPORTED,
            "adapter.quant is no format of bitsandbytes, but this family has linears of a class of its own, over which the others are not modelled", error);
    if (a->use_dora == FTMEM_ON && !quant->bitsandbytes)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "adapter.use_dora", "on",
                           "adapter.use_dora is on, but DoRA is modelled over plain and bitsandbytes weights only");
    return FTMEM_OK;
}

static ftmem_status job_check_quantisation(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_adapter *a = &c->adapter;
    const ftmem__quant *quant = ftmem__quant_of(a->quant);
    ftmem_status status = job_check_quant(c, error);
    if (status != FTMEM_OK) return status;
    if (a->double_quant == FTMEM_ON && !(quant && quant->bitsandbytes && quant->bits == 4))
        return ftmem__fail(error, FTMEM_E_CONFLICT, "adapter.double_quant", "on",
                           "adapter.double_quant is on, but adapter.quant is neither nf4 nor fp4: only bitsandbytes' 4-bit weights have it");
    if (a->kbit_fp32 == FTMEM_ON && !(quant && quant->widens))
        return ftmem__fail(error, FTMEM_E_CONFLICT, "adapter.kbit_fp32", "on",
                           "adapter.kbit_fp32 is on, but prepare_model_for_kbit_training leaves a base of this format (adapter.quant) as it is");
    return FTMEM_OK;
}

/* A role that this family's blocks do not have is passed over, as in "all-linear"; one must be left, as in PEFT. */
static uint32_t job_matching_targets(const ftmem__case *c, uint32_t targets)
{
    const ftmem__family *family = ftmem__family_of(&c->model);
    uint32_t matching = c->job.stack == FTMEM_STACK_LITGPT ? targets & 7u : 0; /* litgpt names q, k and v in every model */
    if (targets == FTMEM_ROLES_ALL_LINEAR) return ftmem__family_targets(family);
    for (int32_t role = 0; role < FTMEM_ROLE_END; ++role)
        if (family->modules[role]) matching |= targets & (uint32_t)1 << role;
    return matching;
}

static ftmem_status job_fail_targets(const ftmem__case *c, ftmem_status status, const char *why, ftmem_error *error)
{
    job_sentence s;
    s.text = ftmem__text_in(s.message, sizeof s.message);
    ftmem__put(&s.text, "adapter.targets is ");
    ftmem__put_set(&s.text, "role", c->adapter.targets);
    ftmem__put(&s.text, why);
    ftmem__put(&s.text, ftmem__family_of(&c->model)->model_type);
    ftmem__put(&s.text, " has ");
    ftmem__put_set(&s.text, "role", job_matching_targets(c, FTMEM_ROLES_ALL_LINEAR));
    return ftmem__fail_int(error, status, "adapter.targets", c->adapter.targets, s.message);
}

/* peft/tuners/tuners_utils.py _check_lora_target_modules_mamba: kernels would read out_proj past its adapter; modeling_llama4.py
   Llama4Router is a linear that returns a tuple. */
static bool job_target_refused(const ftmem__case *c)
{
    const ftmem_adapter *a = &c->adapter;
    bool lora = a->kind != FTMEM_ADAPTER_NONE && (a->kind <= FTMEM_ADAPTER_LORA_FA || a->kind == FTMEM_ADAPTER_ADALORA);
    return lora && (a->targets & ftmem__family_of(&c->model)->refused_targets) != 0;
}

static ftmem_status job_check_targets(const ftmem__case *c, ftmem_error *error)
{
    if (job_takes_targets(c) && job_target_refused(c))
        return job_fail_targets(c, FTMEM_E_CONFLICT,
                                c->model.family == FTMEM_LLAMA4 ? ", but PEFT fails at the router, which all-linear means too: name the others; "
                                                                : ", but PEFT refuses out_proj (mixer_out), which all-linear means too: name the others; ",
                                error);
    if (!job_takes_targets(c) || job_matching_targets(c, c->adapter.targets)) return FTMEM_OK;
    if (c->adapter.targets == 0) return job_fail_targets(c, FTMEM_E_MISSING, ", but PEFT has no default for this family: ", error);
    return job_fail_targets(c, FTMEM_E_CONFLICT, ", which matches nothing: ", error);
}

static ftmem_status job_check_adapter_layers(const ftmem__case *c, ftmem_error *error)
{
    int64_t first = c->adapter.layers_first, last = c->adapter.layers_last, layers = c->model.layers;
    if (first > layers) return job_conflict_two("adapter.layers_first", first, "model.layers", layers, "", error);
    if (last > layers) return job_conflict_two("adapter.layers_last", last, "model.layers", layers, "", error);
    if (first + last <= layers || first == 0 || last == 0) return FTMEM_OK;
    if (!error) return FTMEM_E_CONFLICT;
    job_sentence s;
    job_begin(&s, "adapter.layers_first", first);
    job_add(&s, " and adapter.layers_last is ", last);
    job_add(&s, ", together ", first + last);
    job_add(&s, " blocks, but model.layers is ", layers);
    return job_conflict(&s, "adapter.layers_first", first, "", error);
}

static ftmem_status job_check_freeze(const ftmem__case *c, ftmem_error *error)
{
    int32_t freeze = c->job.freeze;
    bool first = (freeze & FTMEM_PART_FIRST_LAYERS) != 0, last = (freeze & FTMEM_PART_LAST_LAYERS) != 0;
    if (freeze != 0 && c->adapter.kind != FTMEM_ADAPTER_NONE)
        return job_conflict_int("job.freeze", freeze, ", but an adapter is given, which freezes the whole base model already: leave job.freeze at 0", error);
    if (freeze == FTMEM_PART_ALL_BUT) return job_conflict_int("job.freeze", freeze, " (all_but) and names no part: nothing would be trained", error);
    if (first != (c->job.freeze_first_layers != 0))
        return job_conflict_int("job.freeze_first_layers", c->job.freeze_first_layers,
                                first ? ", but job.freeze has first_layers: say how many" : ", but job.freeze does not have first_layers", error);
    if (last != (c->job.freeze_last_layers != 0))
        return job_conflict_int("job.freeze_last_layers", c->job.freeze_last_layers,
                                last ? ", but job.freeze has last_layers: say how many" : ", but job.freeze does not have last_layers", error);
    return FTMEM_OK;
}

static ftmem_status job_check_freeze_layers(const ftmem__case *c, ftmem_error *error)
{
    int64_t first = c->job.freeze_first_layers, last = c->job.freeze_last_layers, layers = c->model.layers;
    if (first + last <= layers) return FTMEM_OK;
    if (!error) return FTMEM_E_CONFLICT;
    const char *field = first >= last ? "job.freeze_first_layers" : "job.freeze_last_layers";
    job_sentence s;
    s.text = ftmem__text_in(s.message, sizeof s.message);
    job_add(&s, "job.freeze_first_layers + job.freeze_last_layers is ", first);
    job_add(&s, " + ", last);
    job_add(&s, " = ", first + last);
    job_add(&s, " blocks, but model.layers is ", layers);
    return job_conflict(&s, field, first >= last ? first : last, "", error);
}

/* _supports_flash_attn and _supports_sdpa of the class. */
static ftmem_status job_check_attention(const ftmem__case *c, ftmem_error *error)
{
    if (c->job.attention != FTMEM_FLASH2 || !ftmem__family_of(&c->model)->no_flash) return FTMEM_OK;
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.attention", "flash2", "job.attention is flash2, which transformers refuses for this family.");
}

/* mamba_ssm/ops/triton/ssd_combined.py mamba_split_conv1d_scan_combined gets out_proj.weight as it is stored. */
static ftmem_status job_check_ssm(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_adapter *a = &c->adapter;
    if (c->job.ssm_kernels != FTMEM_ON) return FTMEM_OK;
    if (c->model.ssm_heads == 0)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.ssm_kernels", "on", "job.ssm_kernels is on, but the model has no state-space mixers");
    if (ftmem__quant_of(a->quant))
        return ftmem__fail(
            error, FTMEM_E_CONFLICT, "job.ssm_kernels", "on",
            "job.ssm_kernels is on, but adapter.quant is given: in training the kernel multiplies by out_proj.weight as it is stored, which must be plain");
    if (a->kind != FTMEM_ADAPTER_NONE && job_takes_targets(c) && (a->targets >> FTMEM_ROLE_MIXER_OUT & 1u))
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.ssm_kernels", "on",
                           "job.ssm_kernels is on, but adapter.targets has out_proj (mixer_out), whose adapter the kernel passes by: name the others");
    return FTMEM_OK;
}

static ftmem_status job_check_version(const ftmem__case *c, ftmem_error *error)
{
    if (c->job.transformers_version >= ftmem__family_of(&c->model)->since) return FTMEM_OK;
    return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "job.transformers_version", c->job.transformers_version,
                           "job.transformers_version is older than the code of this family that is modelled: the model's repository would bring its own");
}

static ftmem_status job_check_precision(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_job *job = &c->job;
    if (job->dtype != FTMEM_FP32) return FTMEM_OK;
    if (job->master_weights == FTMEM_ON)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.master_weights", "on",
                           "job.master_weights is on, but job.dtype is fp32: there are no 16-bit weights to keep fp32 copies of");
    if (job->attention == FTMEM_FLASH2 && job->autocast == 0)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.attention", "flash2",
                           "job.attention is flash2, but job.dtype is fp32 without job.autocast: flash-attention works in bf16 and fp16 only");
    return FTMEM_OK;
}

static ftmem_status job_fail_optimizer(const ftmem__case *c, ftmem_status status, const char *why, ftmem_error *error)
{
    const char *name = ftmem_enum_name("optimizer", c->job.optimizer);
    job_sentence s;
    s.text = ftmem__text_in(s.message, sizeof s.message);
    ftmem__put(&s.text, "job.optimizer is ");
    ftmem__put(&s.text, name);
    ftmem__put(&s.text, why);
    return ftmem__fail(error, status, "job.optimizer", name, s.message);
}

static ftmem_status job_check_optimizer(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_job *job = &c->job;
    const ftmem__optimizer *o = ftmem__optimizer_of(job);
    if (job->grad_scaler == FTMEM_ON && job_trains_fp16(c))
        return ftmem__fail(
            error, FTMEM_E_CONFLICT, "job.grad_scaler", "on",
            "job.grad_scaler is on, but job.dtype is fp16: torch refuses to unscale fp16 gradients (keep the weights in fp32, with job.autocast)");
    if (o->full_only && c->adapter.kind != FTMEM_ADAPTER_NONE)
        return job_fail_optimizer(c, FTMEM_E_UNSUPPORTED, ", which is not modelled over adapters", error);
    if (job->optimizer_rank != 0 && !o->full_only)
        return job_conflict_int("job.optimizer_rank", job->optimizer_rank, ", but job.optimizer projects no gradients", error);
    if (o->in_backward && job->optimizer_in_backward == FTMEM_OFF)
        return job_fail_optimizer(c, FTMEM_E_CONFLICT, ", which updates in backward, but job.optimizer_in_backward is off", error);
    if (job->optimizer_in_backward == FTMEM_ON && job->accumulation > 1)
        return job_conflict_int("job.accumulation", job->accumulation, ", but gradients are gone with each backward (job.optimizer_in_backward)", error);
    if (job->optimizer_in_backward == FTMEM_ON && (ftmem__family_of(&c->model)->encoder || ftmem__family_of(&c->model)->shared_blocks || job->images > 0))
        return job_fail_optimizer(c, FTMEM_E_UNSUPPORTED, " in backward, which is not modelled for stacks and blocks that share tensors", error);
    if (job->optimizer_in_backward == FTMEM_ON && job->master_weights == FTMEM_ON)
        return job_fail_optimizer(c, FTMEM_E_UNSUPPORTED, " in backward, which is not modelled over fp32 master copies", error);
    return FTMEM_OK;
}

static ftmem_status job_check_loss(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_job *job = &c->job;
    bool chunked = job->loss == FTMEM_LOSS_CHUNKED || job->loss == FTMEM_LOSS_SPLIT, whole = ftmem__whole_logits(job);
    if (job->loss_chunk_tokens != 0 && !chunked)
        return job_conflict_int("job.loss_chunk_tokens", job->loss_chunk_tokens, ", but job.loss is neither chunked nor split", error);
    if (!ftmem__task_of_vocab(job->task) && !whole)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.loss", ftmem_enum_name("loss", job->loss),
                           "job.loss splits the logits of a vocabulary, but job.task is a classification, which has none");
    if (job->task == FTMEM_TASK_MASKED_LM && !whole)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.loss", ftmem_enum_name("loss", job->loss),
                           "job.loss is modelled for causal language models only: a masked one computes its logits as a whole");
    if (job->classes != 0 && ftmem__task_of_vocab(job->task))
        return job_conflict_int("job.classes", job->classes, ", but job.task is no classification", error);
    return FTMEM_OK;
}

/* A decoder has two tasks; an encoder those for which it has a head. */
static ftmem_status job_check_task(const ftmem__case *c, ftmem_error *error)
{
    const ftmem__family *family = ftmem__family_of(&c->model);
    int32_t task = c->job.task;
    job_sentence s;
    if (family->task ? family->head[task] != NULL : task == FTMEM_TASK_CAUSAL_LM || task == FTMEM_TASK_CLASSIFY) return FTMEM_OK;
    s.text = ftmem__text_in(s.message, sizeof s.message);
    ftmem__put(&s.text, "job.task is ");
    ftmem__put(&s.text, ftmem_enum_name("task", task));
    ftmem__put(&s.text, ", which is not modelled for ");
    ftmem__put(&s.text, family->model_type);
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.task", ftmem_enum_name("task", task), s.message);
}

static ftmem_status job_check_idle(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_job *job = &c->job;
    if (job->recompute != FTMEM_RECOMPUTE_NONE && ftmem__family_of(&c->model)->shared_blocks) /* supports_gradient_checkpointing is false */
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.recompute", ftmem_enum_name("recompute", job->recompute),
                           "job.recompute is given, but transformers has no gradient checkpointing for a model whose blocks are one module (ALBERT)");
    if (job->offload_checkpoints == FTMEM_ON && job->recompute == FTMEM_RECOMPUTE_NONE)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.offload_checkpoints", "on",
                           "job.offload_checkpoints is on, but job.recompute is none: there are no checkpoints to offload");
    if (job->recompute_save > FTMEM_SAVE_NOTHING && job->recompute != FTMEM_RECOMPUTE_FULL)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.recompute_save", ftmem_enum_name("save", job->recompute_save),
                           "job.recompute_save is given, but job.recompute is not full: torch's policies need checkpoints without reentrance");
    if ((job->recompute_first || job->recompute_last) && job->recompute == FTMEM_RECOMPUTE_NONE)
        return job_conflict_int("job.recompute_first", job->recompute_first, ", but job.recompute is none: set it to full or reentrant", error);
    if (job->recompute_save > FTMEM_SAVE_ATTENTION && ftmem__quant_of(c->adapter.quant))
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.recompute_save", ftmem_enum_name("save", job->recompute_save),
                           "job.recompute_save has matrix products; over a quantised base (adapter.quant) only that of attention is modelled");
    if (job->recompute_every > 1 && job->recompute == FTMEM_RECOMPUTE_NONE)
        return job_conflict_int("job.recompute_every", job->recompute_every, ", but job.recompute is none: set it to full or reentrant", error);
    if (job->eval == FTMEM_ON) return FTMEM_OK;
    if (job->eval_batch != 0)
        return job_conflict_int("job.eval_batch", job->eval_batch, ", but job.eval is off: set it to on to include an evaluation pass", error);
    if (job->eval_keep_logits == FTMEM_ON)
        return ftmem__fail(error, FTMEM_E_CONFLICT, "job.eval_keep_logits", "on",
                           "job.eval_keep_logits is on, but job.eval is off: set it to on to include an evaluation pass");
    return FTMEM_OK;
}

static ftmem_status job_check_gpu(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_gpu *gpu = &c->job.gpu;
    int64_t used = c->job.used_by_others_bytes;
    if (gpu->memory_bytes == 0) return FTMEM_OK;
    if (gpu->torch_bytes > gpu->memory_bytes)
        return job_conflict_two("gpu.torch_bytes", gpu->torch_bytes, "gpu.memory_bytes", gpu->memory_bytes, ": torch cannot see more than the card has", error);
    if (used >= gpu->memory_bytes)
        return job_conflict_two("job.used_by_others_bytes", used, "gpu.memory_bytes", gpu->memory_bytes, ": nothing would be left", error);
    return FTMEM_OK;
}

/* What stands for one thing in a decoder and for two in a model of two stacks. */
static ftmem_status job_check_stacks(const ftmem__case *c, ftmem_error *error)
{
    static const int32_t depths = FTMEM_PART_FIRST_LAYERS | FTMEM_PART_LAST_LAYERS;
    const char *field = NULL;
    if (!ftmem__family_of(&c->model)->encoder) {
        if (c->job.encoder_sequence == 0) return FTMEM_OK;
        return job_conflict_int("job.encoder_sequence", c->job.encoder_sequence, ", but the model has no encoder", error);
    }
    if (job_fed_features(&c->model) && c->job.encoder_sequence != c->model.encoder_positions)
        return job_conflict_two("job.encoder_sequence", c->job.encoder_sequence, "model.encoder_positions", c->model.encoder_positions,
                                ", and every input has that length", error);
    if (c->job.freeze & depths) field = "job.freeze";
    else if (c->adapter.layers_first || c->adapter.layers_last) field = "adapter.layers_first";
    else if (c->adapter.modules_to_save) field = "adapter.modules_to_save";
    else if (c->job.loss == FTMEM_LOSS_FUSED || c->job.loss == FTMEM_LOSS_CHUNKED) field = "job.loss";
    else if (c->job.task == FTMEM_TASK_CLASSIFY) field = "job.task";
    else if (c->job.recompute_every > 1 || c->job.recompute_first || c->job.recompute_last) field = "job.recompute_every";
    else if (c->job.recompute_save > FTMEM_SAVE_NOTHING) field = "job.recompute_save";
    else if (ftmem__family_of(&c->model)->positions == FTMEM__RELATIVE && c->job.attention >= FTMEM_FLASH2) field = "job.attention";
    if (!field) return FTMEM_OK;
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, field, "", "This setting is not modelled for a model with an encoder and a decoder.");
}

static ftmem_status job_check_image_size(const ftmem__case *c, const char *field, int64_t pixels, ftmem_error *error)
{
    int64_t side = c->model.patch_size * (c->model.tower_merge > 0 ? c->model.tower_merge : 1);
    if (ftmem__family_tower(&c->model)->any_size) {
        if (pixels == 0)
            return ftmem__fail(error, FTMEM_E_MISSING, field, "0",
                               "The size of images is missing, but this tower takes any: give job.image_height and job.image_width");
        if (pixels % side == 0) return FTMEM_OK;
        return job_conflict_two(field, pixels, "the side of merged patches", side, ", a multiple of which the processor makes of it", error);
    }
    if (pixels == 0 || pixels == c->model.image_size) return FTMEM_OK;
    return job_conflict_two(field, pixels, "model.image_size", c->model.image_size, ", and this tower takes no other size", error);
}

/* Images go through a tower that is modelled, and their tokens are among the row's. */
static ftmem_status job_check_images(const ftmem__case *c, ftmem_error *error)
{
    const ftmem_job *job = &c->job;
    int64_t tokens;
    ftmem_status status;
    if (job->images == 0) {
        if (job->image_height == 0 && job->image_width == 0) return FTMEM_OK;
        return job_conflict_int("job.images", 0, ", but the size of images is given: say how many a row has", error);
    }
    if (c->model.tower == 0) return job_conflict_int("job.images", job->images, ", but the model has no vision tower", error);
    if (c->model.linear_key_heads > 0)
        return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "job.images", job->images, "job.images is not modelled together with linear attention");
    if (!ftmem__family_tower(&c->model))
        return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "job.images", job->images, "job.images is given, but images are not modelled for this vision tower");
    if (c->model.tower_heads == 0 || c->model.tower_hidden / c->model.tower_heads == 0)
        return ftmem__fail_int(error, FTMEM_E_MISSING, "model.tower_heads", c->model.tower_heads, "model.tower_heads is required where job.images is given");
    if (job->stack != FTMEM_STACK_TRANSFORMERS || job->kernels || job->compile || job->task != FTMEM_TASK_CAUSAL_LM || job->objective > FTMEM_OBJECTIVE_SFT)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.images", "given",
                           "job.images is modelled for supervised training with transformers, without fused kernels and compilation, only");
    if (ftmem__family_tower(&c->model)->packed && (job->attention == FTMEM_FLASH2 || (job->eval == FTMEM_ON && job->eval_batch != job->micro_batch)))
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, job->attention == FTMEM_FLASH2 ? "job.attention" : "job.eval_batch", "",
                           "For a vision tower that packs all images in one row flash2, and another batch in evaluation, are not modelled");
    if (ftmem__updates_in_backward(job))
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.images", "given", "job.images is not modelled together with an optimizer that works in backward");
    if (c->model.tower_taps > c->model.layers || c->model.tower_taps > c->model.tower_layers)
        return job_conflict_int("model.tower_taps", c->model.tower_taps, ", but the tower or the text model has fewer blocks", error);
    if (ftmem__family_tower(&c->model)->chunked && (job->attention == FTMEM_EAGER || job->attention == FTMEM_SDPA_MATH))
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "job.attention", ftmem_enum_name("attention", job->attention),
                           "job.attention is not modelled for this vision tower, which attends image by image: sdpa and flash2 are");
    status = job_check_image_size(c, "job.image_height", job->image_height, error);
    if (status == FTMEM_OK) status = job_check_image_size(c, "job.image_width", job->image_width, error);
    if (status != FTMEM_OK) return status;
    tokens = ftmem__image_features(&c->model, job);
    if (job->images > job->sequence / tokens)
        return job_conflict_two("job.sequence", job->sequence, "the tokens of its images", job->images * tokens, ", which are among the sequence's", error);
    return FTMEM_OK;
}

static ftmem_status job_check(const ftmem__case *c, ftmem_error *error)
{
    static ftmem_status (*const checks[])(const ftmem__case *, ftmem_error *) = {
        job_check_no_adapter,     job_check_method,       job_check_virtual_tokens, job_check_trainable_tokens,
        job_check_dora,           job_check_method_place, job_check_quantisation,   job_check_targets,
        job_check_adapter_layers, job_check_freeze,       job_check_freeze_layers,  job_check_precision,
        job_check_loss,           job_check_idle,         job_check_sequence,       job_check_gpu,
        job_check_stacks,         job_check_task,         job_check_attention,      job_check_optimizer,
        job_check_images,         job_check_version,      job_check_compile,        job_check_by_kind,
        ftmem__objective_check,   job_check_ssm,
    };
    for (int32_t i = 0; i < FTMEM__COUNT(checks); ++i) {
        ftmem_status status = checks[i](c, error);
        if (status != FTMEM_OK) return status;
    }
    return FTMEM_OK;
}

ftmem_status ftmem__case_load(const ftmem_job *job, ftmem__case *out, ftmem_error *error)
{
    ftmem_status status = job_import(job, out, error);
    if (status == FTMEM_OK) status = job_validate(out, error);
    if (status != FTMEM_OK) return status;
    ftmem__model_defaults(&out->model);
    ftmem__model_defaults(&out->teacher);
    status = ftmem__model_check(&out->model, error);
    if (status == FTMEM_OK && job->teacher) status = ftmem__model_check(&out->teacher, error);
    if (status != FTMEM_OK) return status;
    if (ftmem__family_of(&out->model)->encoder) ftmem__model_encoder(&out->model, &out->encoder);
    job_fill(out);
    status = job_check(out, error);
    if (status != FTMEM_OK || out->job.images == 0) return status;
    ftmem__model_tower(&out->model, &out->encoder);
    ftmem__tower_adapter(out);
    return FTMEM_OK;
}

/* ---------------------------------------------------------------------------------------------------- resolve */

ftmem_status ftmem_resolve(const ftmem_job *job, ftmem_job *resolved, ftmem_adapter *adapter, ftmem_error *error)
{
    ftmem__case c;
    ftmem_status status = ftmem__exportable(resolved, FTMEM__JOB_MINIMUM, "resolved", error);
    if (status == FTMEM_OK && adapter) status = ftmem__exportable(adapter, FTMEM__ADAPTER_MINIMUM, "adapter", error);
    if (status == FTMEM_OK) status = ftmem__case_load(job, &c, error);
    if (status != FTMEM_OK) return status;
    c.job.model = job->model;
    c.job.teacher = job->teacher;
    c.job.adapter = adapter ? adapter : job->adapter;
    /* 0 would ask for the stack's default when the answer is asked again */
    if (c.job.stack != FTMEM_STACK_TRANSFORMERS && c.job.recompute == FTMEM_RECOMPUTE_NONE) c.job.recompute = FTMEM_RECOMPUTE_OFF;
    if (adapter) ftmem__export(adapter, &c.adapter, sizeof c.adapter);
    ftmem__export(resolved, &c.job, sizeof c.job);
    return FTMEM_OK;
}
