/* A job made ready: what must be given, what is assumed and said so, what contradicts, and the sentences of notes. */
#include "job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A small model, an adapter and a job over them; each test changes one thing. */
typedef struct fixture {
    ftmem_model model;
    ftmem_adapter adapter;
    ftmem_job job;
    ftmem__case c;
    ftmem_error error;
} fixture;

static fixture *begin(fixture *f)
{
    memset(f, 0, sizeof *f);
    ftmem_model_init(&f->model, sizeof f->model);
    ftmem_adapter_init(&f->adapter, sizeof f->adapter);
    ftmem_job_init(&f->job, sizeof f->job);
    ftmem_error_init(&f->error, sizeof f->error);
    f->model.hidden = 2048;
    f->model.ffn = 5632;
    f->model.layers = 22;
    f->model.heads = 32;
    f->model.kv_heads = 4;
    f->model.vocab = 32000;
    f->job.model = &f->model;
    f->job.adapter = &f->adapter;
    return f;
}

static ftmem_status load(fixture *f)
{
    return ftmem__case_load(&f->job, &f->c, &f->error);
}

static void assert_fails(fixture *f, ftmem_status status, const char *field)
{
    ftmem_status got = load(f);
    if (got != status) fail_msg("%s instead of %s: %s", ftmem_status_name(got), ftmem_status_name(status), f->error.message);
    assert_string_equal(f->error.field, field);
    assert_int_equal(f->error.status, status);
    assert_non_null(strstr(f->error.message, " is "));
    assert_true(strlen(f->error.message) < sizeof f->error.message - 1);
    assert_int_equal(ftmem__case_load(&f->job, &f->c, NULL), status);
}

static void assert_loads(fixture *f)
{
    if (load(f) != FTMEM_OK) fail_msg("%s: %s", ftmem_status_name(f->error.status), f->error.message);
}

/* A model of two stacks: what it fixes, what stands for one thing only, what a decoder alone has no place for. */
static void test_encoder(void **state)
{
    fixture f;
    (void)state;
    begin(&f)->job.encoder_sequence = 512;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.encoder_sequence");
    begin(&f)->model.family = FTMEM_T5;
    f.model.kv_heads = 0;
    f.job.sequence = 128;
    assert_loads(&f);
    assert_true(f.c.job.encoder_sequence == 128 && f.c.encoder.layers == 22 && f.c.encoder.hidden == 2048 && f.c.model.relative_buckets == 32);
    f.job.freeze = FTMEM_PART_FIRST_LAYERS;
    f.job.freeze_first_layers = 2;
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "job.freeze");
    begin(&f)->model.family = FTMEM_WHISPER;
    f.model.kv_heads = 0;
    f.model.position_rows = 448;
    f.model.encoder_positions = 1500;
    assert_loads(&f);
    assert_true(f.c.job.encoder_sequence == 1500 && f.c.encoder.position_rows == 1500 && f.c.encoder.encoder_channels == 80);
    f.job.encoder_sequence = 1000;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.encoder_sequence");
}

/* A LLaVA whose images have 336 pixels and 576 tokens in the text (LlavaModel.get_image_features: all patches but the class token). */
static fixture *begin_vision(fixture *f)
{
    begin(f)->model.tower = FTMEM_TOWER_LLAVA;
    f->model.tower_hidden = 1024;
    f->model.tower_ffn = 4096;
    f->model.tower_layers = 24;
    f->model.tower_heads = 16;
    f->model.tower_unread = 1;
    f->model.image_size = 336;
    f->model.patch_size = 14;
    f->job.images = 1;
    return f;
}

static void test_images(void **state)
{
    fixture f;
    (void)state;
    begin(&f)->job.images = 1;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.images");
    begin_vision(&f);
    assert_loads(&f);
    assert_true(f.c.encoder.layers == 24 && f.c.encoder.head_dim == 64 && f.c.encoder.activation == FTMEM_QUICK_GELU);
    f.job.sequence = 576;
    assert_loads(&f);
    f.job.sequence = 575;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.sequence");
    begin_vision(&f)->job.image_height = 224;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.image_height");
    begin_vision(&f)->model.tower_heads = 0;
    assert_fails(&f, FTMEM_E_MISSING, "model.tower_heads");
    begin_vision(&f)->job.images = 0;
    f.job.image_width = 336;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.images");
    begin_vision(&f)->job.kernels = FTMEM_FUSED_NORM;
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "job.images");
}

/* Windows of 112 pixels, 28 of which are a token; any size in whole tokens (Qwen2_5_VisionTransformerPretrainedModel). */
static void test_images_of_any_size(void **state)
{
    fixture f;
    (void)state;
    begin_vision(&f)->model.tower = FTMEM_TOWER_QWEN2_5_VL;
    f.model.tower_unread = f.model.image_size = 0;
    f.model.tower_merge = 2;
    f.model.tower_window = 112;
    f.model.tower_full_every = 8;
    f.job.image_height = 280;
    assert_fails(&f, FTMEM_E_MISSING, "job.image_width");
    f.job.image_width = 300;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.image_width");
    f.job.image_width = 308;
    f.job.sequence = 110;
    assert_loads(&f);
    assert_true(f.c.encoder.layer_kind[6] == 1 && f.c.encoder.layer_kind[7] == 0 && f.c.encoder.layer_kind[8] == 1);
    f.job.sequence = 109;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.sequence");
    f.job.sequence = 110;
    f.job.attention = FTMEM_EAGER;
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "job.attention");
}

static const ftmem_note *find_note(const ftmem__case *c, const char *field)
{
    for (int32_t i = 0; i < c->note_count; ++i)
        if (c->notes[i].field && strcmp(c->notes[i].field, field) == 0) return &c->notes[i];
    return NULL;
}

static void assert_assumed(const fixture *f, const char *field, int32_t value)
{
    const ftmem_note *note = find_note(&f->c, field);
    if (!note) fail_msg("%s is not among the notes", field);
    assert_int_equal(note->code, FTMEM_NOTE_ASSUMED);
    assert_int_equal(note->value, value);
}

/* ---------------------------------------------------------------------------------------------- what is required */

static void a_model_is_required(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.model = NULL;
    assert_fails(&f, FTMEM_E_MISSING, "job.model");
    assert_int_equal(ftmem__case_load(NULL, &f.c, &f.error), FTMEM_E_ARGUMENT);
}

static void every_struct_must_be_initialised(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.struct_size = 0;
    assert_fails(&f, FTMEM_E_STRUCT_SIZE, "job.struct_size");
    begin(&f)->model.struct_size = 0;
    assert_fails(&f, FTMEM_E_STRUCT_SIZE, "model.struct_size");
    begin(&f)->adapter.struct_size = 0;
    assert_fails(&f, FTMEM_E_STRUCT_SIZE, "adapter.struct_size");
    begin(&f)->job.gpu.struct_size = 12;
    assert_fails(&f, FTMEM_E_STRUCT_SIZE, "job.gpu.struct_size");
    begin(&f)->job.gpu.struct_size = sizeof(ftmem_gpu);
    assert_loads(&f);
}

static void every_object_is_checked_against_its_ranges(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.sequence = -1;
    assert_fails(&f, FTMEM_E_RANGE, "job.sequence");
    begin(&f)->model.hidden = -1;
    assert_fails(&f, FTMEM_E_RANGE, "model.hidden");
    begin(&f)->adapter.rank = -1;
    assert_fails(&f, FTMEM_E_RANGE, "adapter.rank");
    begin(&f)->job.gpu.memory_bytes = 24;
    assert_fails(&f, FTMEM_E_RANGE, "gpu.memory_bytes");
    begin(&f)->model.layer_kind[511] = 7;
    assert_int_equal(load(&f), FTMEM_E_RANGE);
    assert_string_equal(f.error.field, "model.layer_kind");
}

static void what_is_not_modelled_is_unsupported(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->model.layers = FTMEM_MAX_LAYERS + 1;
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "model.layers");
    begin(&f)->model.family = FTMEM_LLAMA;
    f.model.parallel = FTMEM_ON; /* no block of Llama reads the stream side by side */
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "model.parallel");
    begin(&f)->model.family = FTMEM_PHI;
    f.model.two_norms = FTMEM_ON;
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "model.two_norms");
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA;
    f.adapter.use_dora = FTMEM_ON;
    f.job.stack = FTMEM_STACK_LITGPT; /* only PEFT's form is modelled */
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "adapter.use_dora");
}

/* ------------------------------------------------------------------------------------------------- defaults */

static void an_empty_job_takes_the_headers_defaults(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.adapter = NULL;
    assert_loads(&f);
    const ftmem_job *job = &f.c.job;
    assert_int_equal(job->micro_batch, 1);
    assert_int_equal(job->sequence, 1024);
    assert_int_equal(job->accumulation, 1);
    assert_int_equal(job->recompute_every, 1);
    assert_int_equal(job->stack, FTMEM_STACK_TRANSFORMERS);
    assert_int_equal(job->task, FTMEM_TASK_CAUSAL_LM);
    assert_int_equal(job->dtype, FTMEM_BF16);
    assert_int_equal(job->autocast, 0);
    assert_int_equal(job->master_weights, FTMEM_OFF);
    assert_int_equal(job->optimizer, FTMEM_ADAMW);
    assert_int_equal(job->attention, FTMEM_SDPA);
    assert_int_equal(job->repeat_kv, FTMEM_OFF);
    assert_int_equal(job->mask, FTMEM_MASK_NONE);
    assert_int_equal(job->recompute, FTMEM_RECOMPUTE_NONE);
    assert_int_equal(job->loss, FTMEM_LOSS_DROPPED);
    assert_int_equal(job->grad_clip, FTMEM_ON);
    assert_int_equal(job->eval, FTMEM_OFF);
    assert_int_equal(job->eval_keep_logits, FTMEM_OFF);
    assert_int_equal(job->expandable_segments, FTMEM_OFF);
    assert_int_equal(job->cublas_workspace, FTMEM_ON);
    assert_int_equal(job->transformers_version, 524);
    assert_int_equal(job->torch_version, 213);
    assert_int_equal(job->gpu.sm_arch, 80);
    assert_int_equal(job->gpu.memory_bytes, 0);
    assert_int_equal(f.c.adapter.kind, FTMEM_ADAPTER_NONE);
}

static void defaults_of_what_is_not_asked_for_stay_zero(void **state)
{
    (void)state;
    fixture f;
    assert_loads(begin(&f));
    assert_int_equal(f.c.job.classes, 0);
    assert_int_equal(f.c.job.eval_batch, 0);
    assert_int_equal(f.c.job.loss_chunk_tokens, 0);
    begin(&f)->job.task = FTMEM_TASK_CLASSIFY;
    f.job.eval = FTMEM_ON;
    f.job.micro_batch = 6;
    assert_loads(&f);
    assert_int_equal(f.c.job.classes, 2);
    assert_int_equal(f.c.job.eval_batch, 6);
    begin(&f)->job.loss = FTMEM_LOSS_CHUNKED;
    assert_loads(&f);
    assert_int_equal(f.c.job.loss_chunk_tokens, 256);
}

static void adapters_take_their_kinds_defaults(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA;
    assert_loads(&f);
    assert_int_equal(f.c.adapter.rank, 8);
    assert_int_equal(f.c.adapter.targets, 1u << FTMEM_ROLE_Q | 1u << FTMEM_ROLE_V);
    assert_int_equal(f.c.adapter.dtype, FTMEM_FP32);
    assert_int_equal(f.c.adapter.quant, 0);
    assert_int_equal(f.c.adapter.double_quant, FTMEM_OFF);
    assert_int_equal(f.c.adapter.kbit_fp32, FTMEM_OFF);
    begin(&f)->adapter.kind = FTMEM_ADAPTER_QLORA;
    assert_loads(&f);
    assert_int_equal(f.c.adapter.quant, FTMEM_NF4);
    assert_int_equal(f.c.adapter.double_quant, FTMEM_ON);
    assert_int_equal(f.c.adapter.kbit_fp32, FTMEM_ON);
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA8;
    assert_loads(&f);
    assert_int_equal(f.c.adapter.double_quant, FTMEM_OFF);
    assert_int_equal(f.c.adapter.kbit_fp32, FTMEM_ON);
}

static void what_decides_and_was_left_open_is_noted(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_QLORA;
    assert_loads(&f);
    assert_assumed(&f, "job.sequence", 1024);
    assert_assumed(&f, "job.micro_batch", 1);
    assert_assumed(&f, "job.dtype", FTMEM_BF16);
    assert_assumed(&f, "job.optimizer", FTMEM_ADAMW);
    assert_assumed(&f, "job.attention", FTMEM_SDPA);
    assert_assumed(&f, "job.recompute", FTMEM_RECOMPUTE_NONE);
    assert_assumed(&f, "job.loss", FTMEM_LOSS_DROPPED);
    assert_assumed(&f, "job.transformers_version", 524);
    assert_assumed(&f, "job.torch_version", 213);
    assert_assumed(&f, "gpu.sm_arch", 80);
    assert_assumed(&f, "adapter.rank", 8);
    assert_assumed(&f, "adapter.targets", 5);
    assert_assumed(&f, "adapter.double_quant", FTMEM_ON);
    assert_assumed(&f, "adapter.kbit_fp32", FTMEM_ON);
}

static void what_was_given_is_not_noted(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.sequence = 512;
    f.job.optimizer = FTMEM_SGD;
    f.job.recompute = FTMEM_RECOMPUTE_FULL;
    f.job.gpu.sm_arch = 90;
    assert_loads(&f);
    assert_null(find_note(&f.c, "job.sequence"));
    assert_null(find_note(&f.c, "job.optimizer"));
    assert_null(find_note(&f.c, "job.recompute"));
    assert_null(find_note(&f.c, "gpu.sm_arch"));
    assert_null(find_note(&f.c, "adapter.rank"));
    assert_int_equal(f.c.job.sequence, 512);
}

static void an_inferred_model_is_noted(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->model.inferred = 1;
    assert_loads(&f);
    assert_int_equal(f.c.notes[0].code, FTMEM_NOTE_INFERRED);
}

static void one_note_too_many_is_dropped(void **state)
{
    (void)state;
    fixture f;
    assert_loads(begin(&f));
    for (int i = 0; i < 100; ++i) ftmem__case_note(&f.c, FTMEM_NOTE_TIER, NULL, INT64_MAX);
    assert_int_equal(f.c.note_count, FTMEM_NOTE_CAPACITY);
    assert_int_equal(f.c.notes[FTMEM_NOTE_CAPACITY - 1].value, INT32_MAX);
}

static void the_callers_structs_are_not_touched(void **state)
{
    (void)state;
    fixture f, before;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_QLORA;
    before = f;
    assert_loads(&f);
    assert_memory_equal(&f.model, &before.model, sizeof f.model);
    assert_memory_equal(&f.adapter, &before.adapter, sizeof f.adapter);
    assert_memory_equal(&f.job, &before.job, sizeof f.job);
    assert_ptr_equal(f.c.job.model, &f.c.model);
    assert_ptr_equal(f.c.job.adapter, &f.c.adapter);
}

/* ----------------------------------------------------------------------------------------------- contradictions */

static void adapter_fields_without_an_adapter_conflict(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.rank = 16;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.rank");
    begin(&f)->adapter.layers_last = 2;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.layers_last");
    begin(&f)->adapter.dropout = 0.1;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.dropout");
}

/* LoRA over NF4 is QLoRA; what belongs to bitsandbytes' formats conflicts without them. */
static void the_base_may_be_stored_in_any_format(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA;
    f.adapter.quant = FTMEM_QUANT_NF4;
    assert_loads(&f);
    assert_int_equal(f.c.adapter.double_quant, FTMEM_ON);
    assert_int_equal(f.c.adapter.kbit_fp32, FTMEM_ON);
    f.adapter.quant = FTMEM_QUANT_GPTQ4;
    assert_loads(&f);
    assert_int_equal(f.c.adapter.kbit_fp32, FTMEM_OFF);
    f.adapter.kbit_fp32 = FTMEM_ON; /* PEFT leaves a GPTQ model as it is */
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.kbit_fp32");
    f.adapter.kbit_fp32 = FTMEM_AUTO;
    f.adapter.double_quant = FTMEM_ON;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.double_quant");
    f.adapter.double_quant = FTMEM_AUTO;
    f.adapter.quant = FTMEM_QUANT_MXFP4;
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "adapter.quant");
    f.adapter.kind = FTMEM_ADAPTER_LORA8;
    f.adapter.quant = FTMEM_QUANT_NF4;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.quant");
    f.adapter.kind = FTMEM_ADAPTER_QLORA;
    f.adapter.quant = FTMEM_QUANT_NONE;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.quant");
}

static void methods_check_what_they_need(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_BOFT;
    assert_fails(&f, FTMEM_E_UNSUPPORTED, "adapter.kind");
    begin(&f)->adapter.kind = FTMEM_ADAPTER_PROMPT;
    assert_fails(&f, FTMEM_E_MISSING, "adapter.virtual_tokens");
    f.adapter.virtual_tokens = 8;
    assert_loads(&f);
    f.adapter.kind = FTMEM_ADAPTER_LORA;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.virtual_tokens");
    begin(&f)->adapter.kind = FTMEM_ADAPTER_IA3; /* PEFT's targets for it are not LoRA's */
    assert_loads(&f);
    assert_int_equal(f.c.adapter.targets, 1u << FTMEM_ROLE_K | 1u << FTMEM_ROLE_V | 1u << FTMEM_ROLE_DOWN);
    begin(&f)->adapter.kind = FTMEM_ADAPTER_VERA;
    assert_loads(&f);
    assert_int_equal(f.c.adapter.rank, 256);
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA;
    f.adapter.ranks[FTMEM_ROLE_Q] = -1;
    assert_fails(&f, FTMEM_E_RANGE, "adapter.ranks");
}

static void adapted_layers_must_exist(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA;
    f.adapter.layers_first = 23;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.layers_first");
    assert_string_equal(f.error.message, "adapter.layers_first is 23, but model.layers is 22");
    f.adapter.layers_first = 12;
    f.adapter.layers_last = 11;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.layers_first");
    assert_non_null(strstr(f.error.message, "together 23 blocks, but model.layers is 22"));
    f.adapter.layers_last = 10;
    assert_loads(&f);
}

static void targets_must_match_something(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA;
    f.adapter.targets = 1u << FTMEM_ROLE_QKV;
    assert_fails(&f, FTMEM_E_CONFLICT, "adapter.targets");
    assert_string_equal(f.error.message, "adapter.targets is qkv, which matches nothing: llama has q+k+v+o+gate+up+down");
    f.adapter.targets = FTMEM_ROLES_ALL_LINEAR;
    assert_loads(&f);
    f.model.family = FTMEM_PHI3;
    assert_loads(&f);
    f.adapter.targets = 0;
    assert_fails(&f, FTMEM_E_MISSING, "adapter.targets");
    assert_non_null(strstr(f.error.message, "PEFT has no default for this family"));
}

static void freezing_and_adapters_conflict(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA;
    f.job.freeze = FTMEM_PART_EMBED;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.freeze");
}

static void freezing_must_say_what(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.freeze = FTMEM_PART_ALL_BUT;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.freeze");
    begin(&f)->job.freeze = FTMEM_PART_FIRST_LAYERS;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.freeze_first_layers");
    begin(&f)->job.freeze_last_layers = 3;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.freeze_last_layers");
    begin(&f)->job.freeze = FTMEM_PART_FIRST_LAYERS | FTMEM_PART_LAST_LAYERS;
    f.job.freeze_first_layers = 20;
    f.job.freeze_last_layers = 4;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.freeze_first_layers");
    assert_non_null(strstr(f.error.message, "20 + 4 = 24 blocks, but model.layers is 22"));
    f.job.freeze_first_layers = 18;
    assert_loads(&f);
}

static void sequences_end_with_learned_positions(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->model.family = FTMEM_GPT2;
    f.model.kv_heads = 0;
    f.model.max_positions = f.model.position_rows = 512;
    assert_loads(&f);
    assert_int_equal(f.c.job.sequence, 512);
    assert_assumed(&f, "job.sequence", 512);
    f.job.sequence = 513;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.sequence");
    assert_non_null(strstr(f.error.message, "job.sequence is 513, but model.max_positions is 512"));
    begin(&f)->model.max_positions = 512; /* rotary positions go on */
    f.job.sequence = 513;
    assert_loads(&f);
}

static void precision_must_make_sense(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.dtype = FTMEM_FP32;
    f.job.master_weights = FTMEM_ON;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.master_weights");
    f.job.dtype = 0;
    assert_loads(&f);
    begin(&f)->job.dtype = FTMEM_FP32;
    f.job.attention = FTMEM_FLASH2;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.attention");
    f.job.autocast = FTMEM_BF16;
    assert_loads(&f);
    begin(&f)->job.autocast = FTMEM_FP32;
    assert_fails(&f, FTMEM_E_RANGE, "job.autocast");
}

static void fields_of_another_loss_or_task_conflict(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.loss_chunk_tokens = 64;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.loss_chunk_tokens");
    f.job.loss = FTMEM_LOSS_CHUNKED;
    assert_loads(&f);
    begin(&f)->job.classes = 3;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.classes");
    f.job.task = FTMEM_TASK_CLASSIFY;
    assert_loads(&f);
    f.job.loss = FTMEM_LOSS_FUSED;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.loss");
}

static void fields_that_nothing_reads_conflict(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.eval_batch = 4;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.eval_batch");
    begin(&f)->job.eval_keep_logits = FTMEM_ON;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.eval_keep_logits");
    f.job.eval = FTMEM_ON;
    assert_loads(&f);
    begin(&f)->job.recompute_every = 2;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.recompute_every");
    f.job.recompute = FTMEM_RECOMPUTE_FULL;
    assert_loads(&f);
}

static void a_gpu_cannot_have_less_than_nothing_left(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->job.gpu.memory_bytes = INT64_C(24) << 30;
    f.job.used_by_others_bytes = INT64_C(24) << 30;
    assert_fails(&f, FTMEM_E_CONFLICT, "job.used_by_others_bytes");
    f.job.used_by_others_bytes -= 1;
    assert_loads(&f);
    f.job.gpu.torch_bytes = INT64_C(25) << 30;
    assert_fails(&f, FTMEM_E_CONFLICT, "gpu.torch_bytes");
}

/* ------------------------------------------------------------------------------------------------------ resolve */

static void a_resolved_job_resolves_to_itself(void **state)
{
    (void)state;
    for (int32_t kind = 0; kind < FTMEM_ADAPTER_BOFT; ++kind)
        for (int32_t eval = 0; eval < 3; ++eval) {
            fixture f;
            ftmem_job once = FTMEM_JOB_INIT, twice = FTMEM_JOB_INIT;
            ftmem_adapter a = FTMEM_ADAPTER_INIT, b = FTMEM_ADAPTER_INIT;
            begin(&f)->adapter.kind = kind;
            f.job.eval = eval;
            f.job.loss = eval == 2 ? FTMEM_LOSS_CHUNKED : 0;
            assert_int_equal(ftmem_resolve(&f.job, &once, &a, &f.error), FTMEM_OK);
            assert_ptr_equal(once.adapter, &a);
            assert_ptr_equal(once.model, &f.model);
            assert_int_equal(ftmem_resolve(&once, &twice, &b, &f.error), FTMEM_OK);
            twice.adapter = once.adapter;
            assert_memory_equal(&once, &twice, sizeof once);
            assert_memory_equal(&a, &b, sizeof a);
        }
}

static void a_job_may_be_resolved_in_place(void **state)
{
    (void)state;
    fixture f;
    begin(&f)->adapter.kind = FTMEM_ADAPTER_LORA;
    assert_int_equal(ftmem_resolve(&f.job, &f.job, &f.adapter, &f.error), FTMEM_OK);
    assert_int_equal(f.job.sequence, 1024);
    assert_int_equal(f.adapter.rank, 8);
    assert_ptr_equal(f.job.adapter, &f.adapter);
}

static void a_failed_resolve_touches_nothing(void **state)
{
    (void)state;
    fixture f;
    ftmem_job resolved = FTMEM_JOB_INIT, empty = FTMEM_JOB_INIT;
    ftmem_adapter adapter = FTMEM_ADAPTER_INIT, none = FTMEM_ADAPTER_INIT;
    begin(&f)->job.sequence = -1;
    assert_int_equal(ftmem_resolve(&f.job, &resolved, &adapter, NULL), FTMEM_E_RANGE);
    begin(&f);
    adapter.struct_size = none.struct_size = 3;
    assert_int_equal(ftmem_resolve(&f.job, &resolved, &adapter, &f.error), FTMEM_E_STRUCT_SIZE);
    assert_memory_equal(&resolved, &empty, sizeof empty);
    assert_memory_equal(&adapter, &none, sizeof none);
    assert_int_equal(ftmem_resolve(&f.job, NULL, NULL, NULL), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_resolve(NULL, &resolved, NULL, NULL), FTMEM_E_ARGUMENT);
}

/* -------------------------------------------------------------------------------------------------------- notes */

static void assert_sentence(int32_t code, const char *field, int32_t value, const char *expected)
{
    char text[256];
    size_t needed = 0;
    ftmem_note note = { code, value, field };
    assert_int_equal(ftmem_note_text(&note, text, sizeof text, &needed), FTMEM_OK);
    assert_string_equal(text, expected);
    assert_int_equal(needed, strlen(expected) + 1);
}

static void assumptions_are_sentences_in_the_fields_words(void **state)
{
    (void)state;
    assert_sentence(FTMEM_NOTE_ASSUMED, "job.sequence", 1024, "job.sequence was not given: 1024 tokens assumed");
    assert_sentence(FTMEM_NOTE_ASSUMED, "job.dtype", FTMEM_BF16, "job.dtype was not given: bf16 assumed");
    assert_sentence(FTMEM_NOTE_ASSUMED, "job.recompute", 0, "job.recompute was not given: none assumed");
    assert_sentence(FTMEM_NOTE_ASSUMED, "adapter.targets", 5, "adapter.targets was not given: q+v assumed");
    assert_sentence(FTMEM_NOTE_ASSUMED, "adapter.rank", 8, "adapter.rank was not given: 8 assumed");
    assert_sentence(FTMEM_NOTE_ASSUMED, "job.torch_version", 213, "job.torch_version was not given: 2.13 assumed");
    assert_sentence(FTMEM_NOTE_ASSUMED, "job.torch_version", 205, "job.torch_version was not given: 2.5 assumed");
    assert_sentence(FTMEM_NOTE_ASSUMED, "not.a.field", -3, "not.a.field was not given: -3 assumed");
    assert_sentence(FTMEM_NOTE_ASSUMED, NULL, 3, "a value was not given: 3 assumed");
    assert_sentence(FTMEM_NOTE_KERNEL, NULL, FTMEM_KERNEL_FLASH, "attention will run in the flash kernel");
    assert_sentence(FTMEM_NOTE_KERNEL, NULL, 99, "attention will run in the unknown kernel");
}

static void every_note_has_a_sentence(void **state)
{
    (void)state;
    for (int32_t code = FTMEM_NOTE_ASSUMED; code <= FTMEM_NOTE_TIER; ++code) {
        char text[256] = "";
        ftmem_note note = { code, 1, NULL };
        assert_int_equal(ftmem_note_text(&note, text, sizeof text, NULL), FTMEM_OK);
        assert_true(strlen(text) > 20);
    }
}

static void a_note_is_cut_and_says_what_it_needs(void **state)
{
    (void)state;
    char text[10] = "#########";
    size_t needed = 0;
    ftmem_note note = { FTMEM_NOTE_ASSUMED, 1024, "job.sequence" };
    assert_int_equal(ftmem_note_text(&note, NULL, 0, &needed), FTMEM_E_BUFFER);
    assert_int_equal(needed, strlen("job.sequence was not given: 1024 tokens assumed") + 1);
    assert_int_equal(ftmem_note_text(&note, text, sizeof text, &needed), FTMEM_E_BUFFER);
    assert_string_equal(text, "job.seque");
}

static void what_is_no_note_is_refused(void **state)
{
    (void)state;
    char text[8] = "before";
    size_t needed = 77;
    ftmem_note note = { 0, 0, NULL };
    assert_int_equal(ftmem_note_text(NULL, text, sizeof text, &needed), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_note_text(&note, NULL, 8, &needed), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_note_text(&note, text, sizeof text, &needed), FTMEM_E_RANGE);
    note.code = FTMEM_NOTE_SSM_KERNELS + 1;
    assert_int_equal(ftmem_note_text(&note, text, sizeof text, &needed), FTMEM_E_RANGE);
    assert_string_equal(text, "before");
    assert_int_equal(needed, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoder),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_images_of_any_size),
        cmocka_unit_test(a_model_is_required),
        cmocka_unit_test(every_struct_must_be_initialised),
        cmocka_unit_test(every_object_is_checked_against_its_ranges),
        cmocka_unit_test(what_is_not_modelled_is_unsupported),
        cmocka_unit_test(an_empty_job_takes_the_headers_defaults),
        cmocka_unit_test(defaults_of_what_is_not_asked_for_stay_zero),
        cmocka_unit_test(adapters_take_their_kinds_defaults),
        cmocka_unit_test(what_decides_and_was_left_open_is_noted),
        cmocka_unit_test(what_was_given_is_not_noted),
        cmocka_unit_test(an_inferred_model_is_noted),
        cmocka_unit_test(one_note_too_many_is_dropped),
        cmocka_unit_test(the_callers_structs_are_not_touched),
        cmocka_unit_test(adapter_fields_without_an_adapter_conflict),
        cmocka_unit_test(the_base_may_be_stored_in_any_format),
        cmocka_unit_test(methods_check_what_they_need),
        cmocka_unit_test(adapted_layers_must_exist),
        cmocka_unit_test(targets_must_match_something),
        cmocka_unit_test(freezing_and_adapters_conflict),
        cmocka_unit_test(freezing_must_say_what),
        cmocka_unit_test(sequences_end_with_learned_positions),
        cmocka_unit_test(precision_must_make_sense),
        cmocka_unit_test(fields_of_another_loss_or_task_conflict),
        cmocka_unit_test(fields_that_nothing_reads_conflict),
        cmocka_unit_test(a_gpu_cannot_have_less_than_nothing_left),
        cmocka_unit_test(a_resolved_job_resolves_to_itself),
        cmocka_unit_test(a_job_may_be_resolved_in_place),
        cmocka_unit_test(a_failed_resolve_touches_nothing),
        cmocka_unit_test(assumptions_are_sentences_in_the_fields_words),
        cmocka_unit_test(every_note_has_a_sentence),
        cmocka_unit_test(a_note_is_cut_and_says_what_it_needs),
        cmocka_unit_test(what_is_no_note_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
