/* The sentences of notes: what was assumed, and what is worth knowing about an answer. */
#include "common.h"

/* Versions are major x 100 + minor. */
static void notes_put_version(ftmem__text *text, int32_t value)
{
    ftmem__put_int(text, value / 100);
    ftmem__put(text, ".");
    ftmem__put_int(text, value % 100);
}

static void notes_put_value(ftmem__text *text, const ftmem_field *field, int32_t value)
{
    const char *name = field->type == FTMEM_TYPE_ENUM ? ftmem_enum_name(field->enum_name, value) : NULL;
    if (name) {
        ftmem__put(text, name);
    } else if (field->type == FTMEM_TYPE_SET) {
        ftmem__put_set(text, field->enum_name, (uint32_t)value);
    } else if (strcmp(field->unit, "version") == 0) {
        notes_put_version(text, value);
    } else {
        ftmem__put_int(text, value);
        ftmem__put(text, field->unit[0] ? " " : "");
        ftmem__put(text, field->unit);
    }
}

static void notes_put_assumed(ftmem__text *text, const ftmem_note *note)
{
    const ftmem_field *field = ftmem_field_find(note->field);
    ftmem__put(text, note->field ? note->field : "a value");
    ftmem__put(text, " was not given: ");
    if (field) notes_put_value(text, field, note->value);
    else ftmem__put_int(text, note->value);
    ftmem__put(text, " assumed");
}

static void notes_put_kernel(ftmem__text *text, const ftmem_note *note)
{
    const char *name = ftmem_enum_name("kernel", note->value);
    ftmem__put(text, "attention will run in the ");
    ftmem__put(text, name ? name : "unknown");
    ftmem__put(text, " kernel");
}

/* value: measured runs behind the interval of the allocated tier for a job of this kind. */
static void notes_put_tier(ftmem__text *text, const ftmem_note *note)
{
    if (note->value <= 0) {
        ftmem__put(text, "no measured run stands behind the interval for a job of this kind: its width is an assumption");
        return;
    }
    ftmem__put_int(text, note->value);
    ftmem__put(text, note->value == 1 ? " measured run stands" : " measured runs stand");
    ftmem__put(text, " behind the interval for a job of this kind");
}

static const char *notes_fixed(int32_t code)
{
    switch (code) {
    case FTMEM_NOTE_INFERRED: return "the model's shape was inferred from its parameter count: name the model or give its dimensions for exact figures";
    case FTMEM_NOTE_MATH_TRAP:
        return "sdpa takes the math kernel here (grouped heads in fp32), so scores of sequence x sequence are stored: bf16, fp16 or autocast avoid that";
    case FTMEM_NOTE_EVAL_HIGHER: return "evaluation needs more memory than training: a smaller job.eval_batch lowers the peak";
    case FTMEM_NOTE_LATER_STEP: return "the peak comes in the second step, when the optimizer states exist: a first step that passes proves nothing";
    case FTMEM_NOTE_CKPT_FROZEN: return "gradient checkpointing makes frozen blocks keep their inputs and pass gradients";
    case FTMEM_NOTE_DEQUANTIZED:
        return "the config's weights are stored in a format that is not trained: this is for weights converted to job.dtype when they are loaded";
    case FTMEM_NOTE_PLAIN_SSM:
        return "state-space mixers run in transformers' plain torch code, as where mamba-ssm and causal-conv1d are not installed: their kernels "
               "(job.ssm_kernels) need much less memory";
    case FTMEM_NOTE_SSM_KERNELS:
        return "state-space mixers run in the kernels of mamba-ssm and causal-conv1d: what they allocate was read from their sources, not measured";
    case FTMEM_NOTE_REMOTE_CODE:
        return "the model's code is not part of transformers: its parameters are exact, its activations follow transformers' code of the same form";
    default: return NULL;
    }
}

static bool notes_put(ftmem__text *text, const ftmem_note *note)
{
    const char *sentence = notes_fixed(note->code);
    if (sentence) ftmem__put(text, sentence);
    else if (note->code == FTMEM_NOTE_ASSUMED) notes_put_assumed(text, note);
    else if (note->code == FTMEM_NOTE_KERNEL) notes_put_kernel(text, note);
    else if (note->code == FTMEM_NOTE_TIER) notes_put_tier(text, note);
    else return false;
    return true;
}

ftmem_status ftmem_note_text(const ftmem_note *note, char *buffer, size_t capacity, size_t *needed)
{
    if (!note || (!buffer && capacity > 0)) return FTMEM_E_ARGUMENT;
    ftmem__text none = ftmem__text_in(NULL, 0); /* an unknown code must leave the buffer alone */
    if (!notes_put(&none, note)) return FTMEM_E_RANGE;
    ftmem__text text = ftmem__text_in(buffer, capacity);
    notes_put(&text, note);
    if (needed) *needed = text.needed + 1;
    return text.needed < capacity ? FTMEM_OK : FTMEM_E_BUFFER;
}
