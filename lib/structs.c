/* The structs of the interface: their layout, their initialisers, and how one version's struct becomes another's. */
#include "common.h"

/* ------------------------------------------------------------------------------------------------- the ledger
   Sizes and offsets are the binary interface: a row that has to change means every caller must be rebuilt. New members
   go to the end (or into reserved), with a new row. Since the sizes of the members add up to the size of the struct,
   there is no implicit padding that a caller could leave unset. Structs with pointers are checked where pointers have
   64 bits. */

#define STRUCTS_ROW(type, member, at, size) \
    _Static_assert(offsetof(type, member) == (at) && sizeof(((type *)0)->member) == (size), #type "." #member " has moved");
#define STRUCTS_PLUS(type, member, at, size) +(size)
#define STRUCTS_LEDGER(type, rows, size) \
    rows(STRUCTS_ROW) \
    _Static_assert(sizeof(type) == (size) && (size) == 0 rows(STRUCTS_PLUS), #type " has another size, or padding");

#define STRUCTS_ERROR(X) \
    X(ftmem_error, struct_size, 0, 4) X(ftmem_error, status, 4, 4) X(ftmem_error, field, 8, 64) \
    X(ftmem_error, value, 72, 96) X(ftmem_error, message, 168, 256)
STRUCTS_LEDGER(ftmem_error, STRUCTS_ERROR, 424)

#define STRUCTS_MODEL(X) \
    X(ftmem_model, struct_size, 0, 4) X(ftmem_model, family, 4, 4) X(ftmem_model, name, 8, 96) \
    X(ftmem_model, hidden, 104, 8) X(ftmem_model, ffn, 112, 8) X(ftmem_model, layers, 120, 8) \
    X(ftmem_model, heads, 128, 8) X(ftmem_model, kv_heads, 136, 8) X(ftmem_model, head_dim, 144, 8) \
    X(ftmem_model, vocab, 152, 8) X(ftmem_model, max_positions, 160, 8) X(ftmem_model, position_rows, 168, 8) \
    X(ftmem_model, rotary_dim, 176, 8) X(ftmem_model, sliding_window, 184, 8) \
    X(ftmem_model, attention_dropout, 192, 8) X(ftmem_model, hidden_dropout, 200, 8) \
    X(ftmem_model, embed_dropout, 208, 8) X(ftmem_model, attention_softcap, 216, 8) \
    X(ftmem_model, logit_softcap, 224, 8) X(ftmem_model, activation, 232, 4) X(ftmem_model, tied, 236, 4) \
    X(ftmem_model, qkv_bias, 240, 4) X(ftmem_model, o_bias, 244, 4) X(ftmem_model, mlp_bias, 248, 4) \
    X(ftmem_model, norm_bias, 252, 4) X(ftmem_model, qk_norm, 256, 4) X(ftmem_model, parallel, 260, 4) \
    X(ftmem_model, two_norms, 264, 4) X(ftmem_model, head_bias, 268, 4) X(ftmem_model, scaled, 272, 4) \
    X(ftmem_model, alibi, 276, 4) X(ftmem_model, inferred, 280, 4) X(ftmem_model, reserved, 284, 4) \
    X(ftmem_model, layer_kind, 288, 512)
STRUCTS_LEDGER(ftmem_model, STRUCTS_MODEL, 800)

#define STRUCTS_ADAPTER(X) \
    X(ftmem_adapter, struct_size, 0, 4) X(ftmem_adapter, kind, 4, 4) X(ftmem_adapter, rank, 8, 8) \
    X(ftmem_adapter, targets, 16, 4) X(ftmem_adapter, dtype, 20, 4) X(ftmem_adapter, dropout, 24, 8) \
    X(ftmem_adapter, modules_to_save, 32, 4) X(ftmem_adapter, quant, 36, 4) X(ftmem_adapter, double_quant, 40, 4) \
    X(ftmem_adapter, kbit_fp32, 44, 4) X(ftmem_adapter, use_dora, 48, 4) X(ftmem_adapter, layers_first, 52, 4) \
    X(ftmem_adapter, layers_last, 56, 4) X(ftmem_adapter, reserved, 60, 4)
STRUCTS_LEDGER(ftmem_adapter, STRUCTS_ADAPTER, 64)

#define STRUCTS_GPU(X) \
    X(ftmem_gpu, struct_size, 0, 4) X(ftmem_gpu, sm_arch, 4, 4) X(ftmem_gpu, name, 8, 64) \
    X(ftmem_gpu, memory_bytes, 72, 8) X(ftmem_gpu, torch_bytes, 80, 8) X(ftmem_gpu, sm_count, 88, 4) \
    X(ftmem_gpu, vendor, 92, 4) X(ftmem_gpu, reserved, 96, 64)
STRUCTS_LEDGER(ftmem_gpu, STRUCTS_GPU, 160)

#define STRUCTS_RANGE(X) \
    X(ftmem_range, lower, 0, 8) X(ftmem_range, expected, 8, 8) X(ftmem_range, upper, 16, 8)
STRUCTS_LEDGER(ftmem_range, STRUCTS_RANGE, 24)

#define STRUCTS_PARAMETERS(X) \
    X(ftmem_parameters, struct_size, 0, 4) X(ftmem_parameters, reserved, 4, 4) X(ftmem_parameters, total, 8, 8) \
    X(ftmem_parameters, trainable, 16, 8) X(ftmem_parameters, embedding, 24, 8) X(ftmem_parameters, head, 32, 8) \
    X(ftmem_parameters, block, 40, 8) X(ftmem_parameters, adapters, 48, 8)
STRUCTS_LEDGER(ftmem_parameters, STRUCTS_PARAMETERS, 56)

#if UINTPTR_MAX == UINT64_MAX

#define STRUCTS_ENTRY(X) \
    X(ftmem_entry, key, 0, 8) X(ftmem_entry, type, 8, 4) X(ftmem_entry, reserved, 12, 4) \
    X(ftmem_entry, integer, 16, 8) X(ftmem_entry, real, 24, 8) X(ftmem_entry, text, 32, 8)
STRUCTS_LEDGER(ftmem_entry, STRUCTS_ENTRY, 40)

#define STRUCTS_JOB(X) \
    X(ftmem_job, struct_size, 0, 4) X(ftmem_job, stack, 4, 4) X(ftmem_job, model, 8, 8) X(ftmem_job, adapter, 16, 8) \
    X(ftmem_job, gpu, 24, 160) X(ftmem_job, micro_batch, 184, 8) X(ftmem_job, sequence, 192, 8) \
    X(ftmem_job, accumulation, 200, 8) X(ftmem_job, eval_batch, 208, 8) X(ftmem_job, loss_chunk_tokens, 216, 8) \
    X(ftmem_job, recompute_every, 224, 8) X(ftmem_job, used_by_others_bytes, 232, 8) X(ftmem_job, classes, 240, 8) \
    X(ftmem_job, margin, 248, 8) X(ftmem_job, task, 256, 4) X(ftmem_job, dtype, 260, 4) X(ftmem_job, autocast, 264, 4) \
    X(ftmem_job, master_weights, 268, 4) X(ftmem_job, optimizer, 272, 4) X(ftmem_job, attention, 276, 4) \
    X(ftmem_job, repeat_kv, 280, 4) X(ftmem_job, mask, 284, 4) X(ftmem_job, recompute, 288, 4) \
    X(ftmem_job, loss, 292, 4) X(ftmem_job, grad_clip, 296, 4) X(ftmem_job, eval, 300, 4) \
    X(ftmem_job, eval_keep_logits, 304, 4) X(ftmem_job, freeze, 308, 4) X(ftmem_job, freeze_first_layers, 312, 4) \
    X(ftmem_job, freeze_last_layers, 316, 4) X(ftmem_job, expandable_segments, 320, 4) \
    X(ftmem_job, cublas_workspace, 324, 4) X(ftmem_job, transformers_version, 328, 4) \
    X(ftmem_job, torch_version, 332, 4) X(ftmem_job, reserved, 336, 8)
STRUCTS_LEDGER(ftmem_job, STRUCTS_JOB, 344)

#define STRUCTS_FIELD(X) \
    X(ftmem_field, path, 0, 8) X(ftmem_field, unit, 8, 8) X(ftmem_field, enum_name, 16, 8) X(ftmem_field, doc, 24, 8) \
    X(ftmem_field, default_text, 32, 8) X(ftmem_field, minimum, 40, 8) X(ftmem_field, maximum, 48, 8) \
    X(ftmem_field, object, 56, 4) X(ftmem_field, type, 60, 4) X(ftmem_field, size, 64, 4) \
    X(ftmem_field, offset, 68, 4)
STRUCTS_LEDGER(ftmem_field, STRUCTS_FIELD, 72)

#define STRUCTS_TENSOR(X) \
    X(ftmem_tensor, bytes, 0, 8) X(ftmem_tensor, count, 8, 8) X(ftmem_tensor, dims, 16, 24) \
    X(ftmem_tensor, tensor_class, 40, 4) X(ftmem_tensor, dtype, 44, 4) X(ftmem_tensor, op, 48, 8) \
    X(ftmem_tensor, part, 56, 8)
STRUCTS_LEDGER(ftmem_tensor, STRUCTS_TENSOR, 64)

#define STRUCTS_NOTE(X) \
    X(ftmem_note, code, 0, 4) X(ftmem_note, value, 4, 4) X(ftmem_note, field, 8, 8)
STRUCTS_LEDGER(ftmem_note, STRUCTS_NOTE, 16)

#define STRUCTS_MEMORY(X) \
    X(ftmem_memory, struct_size, 0, 4) X(ftmem_memory, verdict, 4, 4) X(ftmem_memory, allocated, 8, 24) \
    X(ftmem_memory, reserved, 32, 24) X(ftmem_memory, process, 56, 24) X(ftmem_memory, usable_bytes, 80, 8) \
    X(ftmem_memory, phase_allocated, 88, 128) X(ftmem_memory, phase_process, 216, 128) \
    X(ftmem_memory, at_peak, 344, 128) X(ftmem_memory, largest, 472, 512) X(ftmem_memory, largest_count, 984, 4) \
    X(ftmem_memory, peak_phase, 988, 4) X(ftmem_memory, peak_layer, 992, 4) X(ftmem_memory, kernel, 996, 4) \
    X(ftmem_memory, peak_op, 1000, 8) X(ftmem_memory, peak_part, 1008, 8) X(ftmem_memory, weights_bytes, 1016, 8) \
    X(ftmem_memory, gradients_bytes, 1024, 8) X(ftmem_memory, states_bytes, 1032, 8) \
    X(ftmem_memory, activations_bytes, 1040, 8) X(ftmem_memory, overhead_bytes, 1048, 8) \
    X(ftmem_memory, parameters, 1056, 8) X(ftmem_memory, trainable, 1064, 8) X(ftmem_memory, flops_forward, 1072, 8) \
    X(ftmem_memory, flops_backward, 1080, 8) X(ftmem_memory, kept_bytes, 1088, 8) \
    X(ftmem_memory, kept_layer_bytes, 1096, 8) X(ftmem_memory, resident_bytes, 1104, 8) \
    X(ftmem_memory, context_bytes, 1112, 8) X(ftmem_memory, bound_rows, 1120, 4) X(ftmem_memory, note_count, 1124, 4) \
    X(ftmem_memory, notes, 1128, 512)
STRUCTS_LEDGER(ftmem_memory, STRUCTS_MEMORY, 1640)

#define STRUCTS_FIX(X) \
    X(ftmem_fix, code, 0, 4) X(ftmem_fix, verdict, 4, 4) X(ftmem_fix, text, 8, 8) X(ftmem_fix, process, 16, 24) \
    X(ftmem_fix, value, 40, 8)
STRUCTS_LEDGER(ftmem_fix, STRUCTS_FIX, 48)

#define STRUCTS_SUM_TERM(X) \
    X(ftmem_sum_term, name, 0, 8) X(ftmem_sum_term, bytes_per_parameter, 8, 8) X(ftmem_sum_term, rule_bytes, 16, 8) \
    X(ftmem_sum_term, ours_bytes, 24, 8)
STRUCTS_LEDGER(ftmem_sum_term, STRUCTS_SUM_TERM, 32)

#endif

/* ------------------------------------------------------------------------------------------------ struct_size */

static ftmem_status structs_fail(ftmem_error *error, const char *what, size_t size, size_t minimum, const char *why)
{
    char field[sizeof error->field], message[sizeof error->message];
    if (!error) return FTMEM_E_STRUCT_SIZE;
    ftmem__text path = ftmem__text_in(field, sizeof field), text = ftmem__text_in(message, sizeof message);
    ftmem__put(&path, what);
    ftmem__put(&path, ".struct_size");
    ftmem__put(&text, field);
    ftmem__put(&text, " is ");
    ftmem__put_int(&text, (int64_t)size);
    ftmem__put(&text, why);
    ftmem__put_int(&text, (int64_t)minimum);
    ftmem__put(&text, " bytes: initialise the struct with its INIT macro or ftmem_..._init");
    return ftmem__fail_int(error, FTMEM_E_STRUCT_SIZE, field, (int64_t)size, message);
}

static ftmem_status structs_fail_null(ftmem_error *error, const char *what)
{
    char message[sizeof error->message];
    if (!error) return FTMEM_E_ARGUMENT;
    ftmem__text text = ftmem__text_in(message, sizeof message);
    ftmem__put(&text, what);
    ftmem__put(&text, " is NULL, but it is required");
    return ftmem__fail(error, FTMEM_E_ARGUMENT, what, NULL, message);
}

static ftmem_status structs_check(size_t size, size_t minimum, size_t full, const char *what, ftmem_error *error)
{
    if (size < minimum) return structs_fail(error, what, size, minimum, ", but it must be at least ");
    if (size > full + FTMEM__TAIL_LIMIT) return structs_fail(error, what, size, full, ", which no version has; this one has ");
    return FTMEM_OK;
}

static size_t structs_size(const void *object)
{
    uint32_t size;
    memcpy(&size, object, sizeof size);
    return size;
}

static bool structs_zero(const char *bytes, size_t count)
{
    char any = 0;
    for (size_t i = 0; i < count; ++i) any |= bytes[i];
    return any == 0;
}

ftmem_status ftmem__import(void *to, size_t full, const void *from, size_t minimum, const char *what, ftmem_error *error)
{
    if (!from) return structs_fail_null(error, what);
    uint32_t known = (uint32_t)full;
    size_t size = structs_size(from);
    ftmem_status status = structs_check(size, minimum, full, what, error);
    if (status != FTMEM_OK) return status;
    if (size > full && !structs_zero((const char *)from + full, size - full))
        return structs_fail(error, what, size, full, " and sets members that this version does not know, past its ");
    memcpy(to, from, size < full ? size : full);
    if (size < full) memset((char *)to + size, 0, full - size);
    memcpy(to, &known, sizeof known);
    return FTMEM_OK;
}

ftmem_status ftmem__exportable(const void *to, size_t minimum, const char *what, ftmem_error *error)
{
    if (!to) return structs_fail_null(error, what);
    return structs_check(structs_size(to), minimum, minimum, what, error);
}

void ftmem__export(void *to, const void *from, size_t full)
{
    uint32_t size = (uint32_t)structs_size(to);
    memcpy(to, from, size < full ? size : full);
    if (size > full) memset((char *)to + full, 0, size - full);
    memcpy(to, &size, sizeof size);
}

/* ----------------------------------------------------------------------------------------------- initialisers */

/* Clears all that the caller has, members of later versions too: this library must be able to call them unset. */
static ftmem_status structs_init(void *x, size_t size, size_t minimum)
{
    if (!x) return FTMEM_E_ARGUMENT;
    if (structs_check(size, minimum, minimum, "", NULL) != FTMEM_OK) return FTMEM_E_STRUCT_SIZE;
    uint32_t stored = (uint32_t)size;
    memset(x, 0, size);
    memcpy(x, &stored, sizeof stored);
    return FTMEM_OK;
}

ftmem_status ftmem_error_init(ftmem_error *x, size_t size)
{
    return structs_init(x, size, FTMEM__ERROR_MINIMUM);
}

ftmem_status ftmem_model_init(ftmem_model *x, size_t size)
{
    return structs_init(x, size, FTMEM__MODEL_MINIMUM);
}

ftmem_status ftmem_adapter_init(ftmem_adapter *x, size_t size)
{
    return structs_init(x, size, FTMEM__ADAPTER_MINIMUM);
}

ftmem_status ftmem_gpu_init(ftmem_gpu *x, size_t size)
{
    return structs_init(x, size, FTMEM__GPU_MINIMUM);
}

ftmem_status ftmem_job_init(ftmem_job *x, size_t size)
{
    return structs_init(x, size, FTMEM__JOB_MINIMUM);
}

ftmem_status ftmem_memory_init(ftmem_memory *x, size_t size)
{
    return structs_init(x, size, FTMEM__MEMORY_MINIMUM);
}

ftmem_status ftmem_parameters_init(ftmem_parameters *x, size_t size)
{
    return structs_init(x, size, FTMEM__PARAMETERS_MINIMUM);
}
