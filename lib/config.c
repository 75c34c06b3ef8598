/*
 * From the keys of a Hugging Face config.json to a model.
 *
 * One table says which key of which family goes to which member, and how it is read; what a file omits comes from the
 * class defaults of transformers (config_defaults.inc). A few functions after it do what is arithmetic and not a
 * key: heads, rotation, window layers. Keys follow the code of transformers 5.24, not the documentation: a key that
 * a class accepts and never reads (embd_pdrop of Phi-3, no_bias of MPT) has no row here.
 */
#include "catalog.h"
#include "families.h"

#include <stddef.h>

/* ------------------------------------------------------------------------------------------------- the table */

typedef struct config_class {
    const char *type; /* model_type */
    int32_t family;
    const char *values;  /* packed: key, default */
    const char *aliases; /* packed: other name, key */
    const char *of;      /* a rename: the class it is another name of */
} config_class;

/* A model type that is known and not modelled, and what it is. */
typedef struct config_other {
    const char *type, *what;
} config_other;

#include "config_defaults.inc"

/* A vision-language model: its text model and vision tower have configs of their own inside. */
typedef struct config_vision {
    const char *type, *text, *tower_class; /* model_type; of the text model where the file does not say; of the tower */
    int32_t tower;
    bool tied, projector_bias; /* class defaults, and of vision_feature_layer */
    int64_t feature;
    const char *audio_class; /* of an audio tower; the class then comes without either tower too. NULL: it has none */
    bool taps;               /* deepstack_visual_indexes */
    const char *part;        /* the object that has the tower's keys */
} config_vision;

static const config_vision config_visions[] = {
    { "llava", "llama", "clip_vision_model", FTMEM_TOWER_LLAVA, false, true, -2, NULL, false, "vision_config" },
    { "gemma3", "gemma3_text", "siglip_vision_model", FTMEM_TOWER_GEMMA3, true, false, -1, NULL, false, "vision_config" },
    { "mistral3", "mistral", "pixtral", FTMEM_TOWER_MISTRAL3, true, false, -1, NULL, false, "vision_config" },
    { "ministral3", "ministral3", "pixtral", FTMEM_TOWER_MISTRAL3, true, false, -1, NULL, false,
      "vision_config" }, /* a text_config and a vision_config: Mistral3ForConditionalGeneration */
    { "paligemma", "gemma", "siglip_vision_model", FTMEM_TOWER_PALIGEMMA, true, true, -1, NULL, false, "vision_config" },
    { "qwen2_vl", "qwen2", "qwen2_vl_vision", FTMEM_TOWER_QWEN2_VL, false, false, -1, NULL, false, "vision_config" },
    { "qwen2_5_vl", "qwen2", "qwen2_5_vl_vision", FTMEM_TOWER_QWEN2_5_VL, false, false, -1, NULL, false, "vision_config" },
    { "qwen3_vl", "qwen3", "qwen3_vl_vision", FTMEM_TOWER_QWEN3_VL, false, false, -1, NULL, true, "vision_config" },
    { "kimi_k25", "deepseek_v3", "kimi_k25_vision", FTMEM_TOWER_KIMI_K25, true, false, -1, NULL, false, "vision_config" },
    { "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_vision", FTMEM_TOWER_QWEN3_VL, false, false, -1, NULL, true, "vision_config" },
    { "qwen3_5", "qwen3_5_text", "qwen3_vl_vision", FTMEM_TOWER_QWEN3_VL, false, false, -1, NULL, false,
      "vision_config" }, /* the same tower, with one output */
    { "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_vl_vision", FTMEM_TOWER_QWEN3_VL, false, false, -1, NULL, false, "vision_config" },
    { "gemma4", "gemma4_text", "gemma4_vision", FTMEM_TOWER_GEMMA4, true, false, -1, "gemma4_audio", false, "vision_config" },
    { "mllama", "mllama_text_model", "mllama_vision_model", FTMEM_TOWER_MLLAMA, false, false, -1, NULL, false, "vision_config" },
    { "phi3_v", "phi3", "phi3_v_vision", FTMEM_TOWER_PHI3_V, false, true, -2, NULL, false, "img_processor" },
};

typedef struct config_source {
    const ftmem_entry *entries;
    size_t count;
    const char *prefix; /* of the keys that describe the text model */
    const config_class *cls;
    const config_class *old; /* another name of the class: its values and names come first; NULL: none */
    ftmem_error *error;
    const config_vision *vision; /* NULL: a model of text alone */
    bool text_alone;             /* the causal language model of this type is the text model of a larger one (modeling_auto.py: llama4) */
} config_source;

/* How a value is read. Those with OR_NULL take null as "derive it", and leave 0. */
typedef enum config_read {
    CONFIG_WIDTH,
    CONFIG_WIDTH_OR_NULL,
    CONFIG_FFN,
    CONFIG_FFN_OR_NULL,
    CONFIG_FFN_BOTH, /* gate and up together */
    CONFIG_LAYERS,
    CONFIG_LAYERS_OR_NULL,
    CONFIG_HEADS,
    CONFIG_HEADS_OR_NULL,
    CONFIG_HEADS_OR_ZERO, /* 0, as null */
    CONFIG_VOCAB,
    CONFIG_POSITIONS,
    CONFIG_GROUPS,       /* n_group, where topk_method is group_limited_greedy */
    CONFIG_RATE,         /* a dropout */
    CONFIG_RATE_OR_KEEP, /* null: what an earlier key said */
    CONFIG_CAP,          /* a soft cap; null: none */
    CONFIG_ACTIVATION,
    CONFIG_FLAG,
    CONFIG_VALUE, /* no key: the family is so */
    CONFIG_REFUSE_FALSY,
    CONFIG_REFUSE_TRUE,
    CONFIG_REFUSE_ONE,
    CONFIG_REFUSE_MISSING /* a key whose absence means another structure */
} config_read;

static const struct {
    int64_t maximum;
    bool or_null;
} config_limits[] = {
    [CONFIG_WIDTH] = { 1 << 24, false },
    [CONFIG_WIDTH_OR_NULL] = { 1 << 24, true },
    [CONFIG_FFN] = { 1 << 26, false },
    [CONFIG_FFN_OR_NULL] = { 1 << 26, true },
    [CONFIG_FFN_BOTH] = { 1 << 27, false },
    [CONFIG_LAYERS] = { FTMEM_MAX_LAYERS, false },
    [CONFIG_LAYERS_OR_NULL] = { FTMEM_MAX_LAYERS, true },
    [CONFIG_HEADS] = { 1 << 16, false },
    [CONFIG_HEADS_OR_NULL] = { 1 << 16, true },
    [CONFIG_HEADS_OR_ZERO] = { 1 << 16, true },
    [CONFIG_VOCAB] = { 1 << 30, false },
    [CONFIG_POSITIONS] = { INT64_C(1) << 40, false },
};

typedef struct config_rule {
    const char *key; /* NULL: end of the group */
    const char *why; /* of a refusal */
    uint16_t member;
    uint8_t read, value;
} config_rule;

/* What is arithmetic and not a key, by family. */
enum {
    CONFIG_HEADS_DIVIDE = 1,          /* heads must divide hidden even when head_dim is given */
    CONFIG_ROTATES_NOT = 2,           /* positions are learned or a bias */
    CONFIG_ROTATES_PART = 4,          /* a fraction of each head may rotate */
    CONFIG_WINDOW = 8,                /* sliding_window counts */
    CONFIG_WINDOW_SWITCH = 16,        /* ... where use_sliding_window is true */
    CONFIG_WINDOW_FROM = 32,          /* ... from max_window_layers on, or as layer_types says */
    CONFIG_CYCLES = 64,               /* of so many layers the last one is full, or as layer_types says */
    CONFIG_EXPERTS = 256,             /* blocks have experts */
    CONFIG_SPARSE_STEP = 512,         /* ... every decoder_sparse_step-th, but not those of mlp_only_layers */
    CONFIG_DENSE_FIRST = 1024,        /* ... after the first first_k_dense_replace */
    CONFIG_LATENT = 2048,             /* latent attention: a head is qk_nope_head_dim + qk_rope_head_dim wide; n_shared_experts are as wide as routed ones */
    CONFIG_INDEX_SHARED = 4096,       /* layers may use the index of the layer before */
    CONFIG_TOWER = 8192,              /* a vision tower, which is read inside another config */
    CONFIG_CYCLE_FIRST = 16384,       /* the first one is full, and the window is half of local_attention (ModernBERT) */
    CONFIG_FULL_FIRST = 32768,        /* the first one is full beside the last ones */
    CONFIG_MLP_TYPES = 65536,         /* mlp_layer_types says which blocks have experts */
    CONFIG_CYCLE_KEY = 128,           /* sliding_window_pattern says how many */
    CONFIG_LINEAR = 131072,           /* of full_attention_interval layers the last one is full, or as layer_types says; the others have linear attention */
    CONFIG_BLOCKS = 1 << 25,          /* block_configs has what each block is */
    CONFIG_EXPERTS_BETWEEN = 1 << 24, /* ... every moe_layer_interval-th from moe_layer_start_index to moe_layer_end_index */
    CONFIG_MIXERS = 262144            /* some blocks, or all, have a state-space mixer for attention, mamba_expand x hidden_size wide */
};

typedef struct config_family {
    const config_rule *groups[14];
    uint32_t traits;
} config_family;

#define TO(member) (uint16_t) offsetof(ftmem_model, member)
#define KEY(key, member, read) \
    { \
        key, NULL, TO(member), CONFIG_##read, 0 \
    }
#define IS(member, value) \
    { \
        "", NULL, TO(member), CONFIG_VALUE, value \
    }
#define REFUSE(key, harmless, why) \
    { \
        key, why, 0, CONFIG_REFUSE_##harmless, 0 \
    }
#define LAST \
    { \
        NULL, NULL, 0, 0, 0 \
    }
#include "config_keys.inc"
#undef KEY
#undef IS
#undef REFUSE
#undef LAST

/* ------------------------------------------------------------------------------------------ values and errors */

static bool config_is(const config_source *c, uint32_t traits)
{
    return (config_families[c->cls->family].traits & traits) != 0;
}

/* The family's rules one after another: NULL starts, and NULL comes after the last. */
static const config_rule *config_next(const config_source *c, const config_rule *rule, int32_t *group)
{
    const config_family *family = &config_families[c->cls->family];
    if (!rule) *group = 0;
    rule = rule ? rule + 1 : family->groups[0];
    while (rule && !rule->key) rule = ++*group < FTMEM__COUNT(family->groups) ? family->groups[*group] : NULL;
    return rule;
}

static void config_put_value(ftmem__text *text, const ftmem_entry *entry)
{
    if (entry->type == FTMEM_ENTRY_NULL) ftmem__put(text, "null");
    else if (entry->type == FTMEM_ENTRY_BOOL) ftmem__put(text, entry->integer ? "true" : "false");
    else if (entry->type == FTMEM_ENTRY_INT) ftmem__put_int(text, entry->integer);
    else if (entry->type == FTMEM_ENTRY_REAL) ftmem__put_number(text, entry->real);
    else ftmem__put(text, entry->text ? entry->text : "");
}

/* "num_attention_heads is 0; it must be a whole number from 1 to 65536." */
static ftmem_status config_fail(const config_source *c, ftmem_status status, const ftmem_entry *entry, const char *right)
{
    char value[96], message[256];
    ftmem__text shown = ftmem__text_in(value, sizeof value);
    ftmem__text text = ftmem__text_in(message, sizeof message);
    config_put_value(&shown, entry);
    ftmem__put(&text, entry->key);
    ftmem__put(&text, " is ");
    ftmem__put(&text, value);
    ftmem__put(&text, "; ");
    ftmem__put(&text, right);
    ftmem__put(&text, ".");
    return ftmem__fail(c->error, status, entry->key, value, message);
}

static ftmem_status config_fail_range(const config_source *c, ftmem_status status, const ftmem_entry *entry, int64_t maximum, bool or_null)
{
    char right[96];
    ftmem__text text = ftmem__text_in(right, sizeof right);
    ftmem__put(&text, "it must be a whole number from 1 to ");
    ftmem__put_int(&text, maximum);
    ftmem__put(&text, or_null ? ", or null" : "");
    return config_fail(c, status, entry, right);
}

/* ---------------------------------------------------------------------------------------------------- look-up */

static bool config_key_is(const config_source *c, const ftmem_entry *entry, const char *key)
{
    size_t n = strlen(c->prefix);
    return strncmp(entry->key, c->prefix, n) == 0 && strcmp(entry->key + n, key) == 0;
}

/* The last entry of that name, as in Python's json: NULL if the file does not have it. */
static const ftmem_entry *config_given(const config_source *c, const char *key)
{
    for (size_t i = c->count; i > 0; i--)
        if (config_key_is(c, &c->entries[i - 1], key)) return &c->entries[i - 1];
    return NULL;
}

static double config_number(const ftmem_entry *entry)
{
    return entry->type == FTMEM_ENTRY_REAL ? entry->real : (double)entry->integer;
}

/* The other names of `key`. One that a file has wins over the key itself, as in transformers. */
static const ftmem_entry *config_aliased(const config_source *c, const char *aliases, const char *key)
{
    for (const char *other = aliases; *other;) {
        const char *target = ftmem__packed_after(other);
        const ftmem_entry *entry = strcmp(target, key) == 0 ? config_given(c, other) : NULL;
        if (entry && entry->type != FTMEM_ENTRY_NULL) return entry;
        other = ftmem__packed_after(target);
    }
    return NULL;
}

/* The value of a key: from the file, or the class default; null if neither has it. */
static ftmem_entry config_lookup(const config_source *c, const char *key)
{
    ftmem_entry found;
    const ftmem_entry *given = config_aliased(c, c->cls->aliases, key);
    const char *value = c->old ? ftmem__packed_value(c->old->values, key) : NULL;
    if (!given && c->old) given = config_aliased(c, c->old->aliases, key);
    if (!given) given = config_given(c, key);
    if (given) return *given;
    if (!value) value = ftmem__packed_value(c->cls->values, key);
    ftmem__unpack_one(key, value ? value : "null", &found);
    return found;
}

/* --------------------------------------------------------------------------------------------- typed reading */

static ftmem_status config_whole(const config_source *c, const ftmem_entry *e, int64_t maximum, bool or_null, int64_t *value)
{
    *value = 0;
    if (e->type == FTMEM_ENTRY_NULL && or_null) return FTMEM_OK;
    if (e->type != FTMEM_ENTRY_INT) return config_fail_range(c, FTMEM_E_TYPE, e, maximum, or_null);
    if (e->integer < 1 || e->integer > maximum) return config_fail_range(c, FTMEM_E_RANGE, e, maximum, or_null);
    *value = e->integer;
    return FTMEM_OK;
}

static ftmem_status config_real(const config_source *c, const ftmem_entry *e, double minimum, double maximum, const char *right, double *value)
{
    if (e->type != FTMEM_ENTRY_INT && e->type != FTMEM_ENTRY_REAL) return config_fail(c, FTMEM_E_TYPE, e, right);
    *value = config_number(e);
    if (!(*value >= minimum && *value <= maximum)) return config_fail(c, FTMEM_E_RANGE, e, right);
    return FTMEM_OK;
}

/* null is false, as Python takes it. */
static ftmem_status config_bool(const config_source *c, const ftmem_entry *e, bool *value)
{
    *value = e->type == FTMEM_ENTRY_BOOL && e->integer != 0;
    if (e->type == FTMEM_ENTRY_BOOL || e->type == FTMEM_ENTRY_NULL) return FTMEM_OK;
    return config_fail(c, FTMEM_E_TYPE, e, "it must be true or false");
}

static ftmem_status config_flag(const config_source *c, const char *key, bool *value)
{
    ftmem_entry e = config_lookup(c, key);
    return config_bool(c, &e, value);
}

static ftmem_status config_activation(const config_source *c, const ftmem_entry *e, int32_t *value)
{
    static const struct {
        const char *name;
        int32_t value;
    } names[] = {
        { "silu", FTMEM_SILU },
        { "swish", FTMEM_SILU },
        { "gelu", FTMEM_GELU },
        { "gelu_pytorch_tanh", FTMEM_GELU_TANH },
        { "gelu_new", FTMEM_GELU_NEW },
        { "relu", FTMEM_RELU },
        { "gelu_fast", FTMEM_GELU_FAST },
        { "relu2", FTMEM_RELU2 },
        { "quick_gelu", FTMEM_QUICK_GELU },
    };
    if (e->type != FTMEM_ENTRY_TEXT || !e->text) return config_fail(c, FTMEM_E_TYPE, e, "it must be the name of an activation");
    for (int32_t i = 0; i < FTMEM__COUNT(names); i++)
        if (strcmp(e->text, names[i].name) == 0) {
            /* Gemma 1 means the fused tanh form when it says gelu. */
            *value = c->cls->family == FTMEM_GEMMA && names[i].value == FTMEM_GELU ? FTMEM_GELU_TANH : names[i].value;
            return FTMEM_OK;
        }
    return config_fail(c, FTMEM_E_UNSUPPORTED, e, "modelled are silu, gelu, gelu_pytorch_tanh, gelu_new, gelu_fast, quick_gelu, relu and relu2");
}

static ftmem_status config_switch(const config_source *c, const ftmem_entry *e, int32_t *value)
{
    bool on = false;
    ftmem_status status = config_bool(c, e, &on);
    *value = on ? FTMEM_ON : FTMEM_OFF;
    return status;
}

static ftmem_status config_read_real(const config_source *c, const ftmem_entry *e, uint8_t read, double *value)
{
    if (read == CONFIG_RATE_OR_KEEP && e->type == FTMEM_ENTRY_NULL) return FTMEM_OK;
    *value = 0;
    if (read <= CONFIG_RATE_OR_KEEP) return config_real(c, e, 0, 0.999, "it must be a probability from 0 to 0.999", value);
    if (e->type == FTMEM_ENTRY_NULL) return FTMEM_OK;
    return config_real(c, e, 0.001, 1e6, "it must be a number from 0.001 to 1000000, or null", value);
}

static ftmem_status config_read_size(const config_source *c, const ftmem_entry *e, uint8_t read, int64_t *value)
{
    if (read == CONFIG_LAYERS && e->type == FTMEM_ENTRY_INT && e->integer > FTMEM_MAX_LAYERS && e->integer < 1 << 20)
        return config_fail(c, FTMEM_E_UNSUPPORTED, e, "more than 512 layers are not modelled");
    if (read == CONFIG_HEADS_OR_ZERO && e->type == FTMEM_ENTRY_INT && e->integer == 0) {
        *value = 0;
        return FTMEM_OK;
    }
    return config_whole(c, e, config_limits[read].maximum, config_limits[read].or_null, value);
}

static ftmem_status config_groups(const config_source *c, const ftmem_entry *method, int64_t *groups)
{
    ftmem_entry e = config_lookup(c, "n_group");
    bool limited = method->type == FTMEM_ENTRY_TEXT && strcmp(method->text, "group_limited_greedy") == 0;
    *groups = 1;
    return limited ? config_whole(c, &e, 1 << 10, false, groups) : FTMEM_OK;
}

static ftmem_status config_apply(const config_source *c, const config_rule *rule, ftmem_model *model)
{
    char *to = (char *)model + rule->member;
    ftmem_entry e = config_lookup(c, rule->key);
    ftmem_status status = FTMEM_OK;
    if (rule->read <= CONFIG_GROUPS) {
        int64_t size = 0;
        if (rule->read == CONFIG_GROUPS) status = config_groups(c, &e, &size);
        else status = config_read_size(c, &e, rule->read, &size);
        if (rule->read == CONFIG_FFN_BOTH) size /= 2;
        memcpy(to, &size, sizeof size);
    } else if (rule->read <= CONFIG_CAP) {
        double real;
        memcpy(&real, to, sizeof real);
        status = config_read_real(c, &e, rule->read, &real);
        memcpy(to, &real, sizeof real);
    } else {
        int32_t choice = rule->value;
        if (rule->read == CONFIG_ACTIVATION) status = config_activation(c, &e, &choice);
        if (rule->read == CONFIG_FLAG) status = config_switch(c, &e, &choice);
        memcpy(to, &choice, sizeof choice);
    }
    return status;
}

enum { CONFIG_SWITCHES = 13 };

static void config_switches(ftmem_model *model, int32_t *at[CONFIG_SWITCHES])
{
    int32_t *const all[CONFIG_SWITCHES] = { &model->tied,    &model->qkv_bias,    &model->o_bias,     &model->mlp_bias,  &model->norm_bias,
                                            &model->qk_norm, &model->parallel,    &model->two_norms,  &model->head_bias, &model->scaled,
                                            &model->alibi,   &model->router_norm, &model->expert_bias };
    memcpy(at, all, sizeof all);
}

static void config_switches_off(ftmem_model *model)
{
    int32_t *at[CONFIG_SWITCHES];
    config_switches(model, at);
    for (int32_t i = 0; i < CONFIG_SWITCHES; i++) *at[i] = FTMEM_OFF;
}

static void config_copy_switches(ftmem_model *model, ftmem_model *from)
{
    int32_t *to[CONFIG_SWITCHES], *of[CONFIG_SWITCHES];
    config_switches(model, to);
    config_switches(from, of);
    for (int32_t i = 0; i < CONFIG_SWITCHES; i++) *to[i] = *of[i];
}

static ftmem_status config_apply_all(const config_source *c, ftmem_model *model)
{
    const config_rule *rule = NULL;
    int32_t group;
    config_switches_off(model);
    while ((rule = config_next(c, rule, &group)) != NULL) {
        ftmem_status status = rule->read < CONFIG_REFUSE_FALSY ? config_apply(c, rule, model) : FTMEM_OK;
        if (status != FTMEM_OK) return status;
    }
    return FTMEM_OK;
}

/* ------------------------------------------------------------------------------------------ heads and rotation */

/* The key under which the family's config has a member, to name it in errors. */
static const char *config_key_of(const config_source *c, size_t member)
{
    const config_rule *rule = NULL;
    int32_t group;
    while ((rule = config_next(c, rule, &group)) != NULL)
        if (rule->member == member && rule->read < CONFIG_VALUE) return rule->key;
    return "";
}

/* Fails with the names and values of two members: "num_attention_heads is 30; hidden_size 4096 must be ...". */
static ftmem_status config_conflict(const config_source *c, const char *key, int64_t value, const char *other, int64_t other_value, const char *right)
{
    char text_of[160];
    ftmem__text text = ftmem__text_in(text_of, sizeof text_of);
    ftmem_entry e = { 0 };
    e.key = key;
    e.type = FTMEM_ENTRY_INT;
    e.integer = value;
    ftmem__put(&text, other);
    ftmem__put(&text, " ");
    ftmem__put_int(&text, other_value);
    ftmem__put(&text, " ");
    ftmem__put(&text, right);
    return config_fail(c, FTMEM_E_CONFLICT, &e, text_of);
}

/* Falcon: the new decoder has groups; the old one has a single key/value head, or one for each query head. */
static ftmem_status config_falcon_heads(const config_source *c, ftmem_model *model)
{
    bool grouped = false, single = false;
    ftmem_entry e = config_lookup(c, "num_kv_heads");
    ftmem_status status = config_flag(c, "new_decoder_architecture", &grouped);
    if (status == FTMEM_OK) status = config_flag(c, "multi_query", &single);
    if (status == FTMEM_OK && grouped) return config_whole(c, &e, 1 << 16, true, &model->kv_heads);
    model->kv_heads = single ? 1 : 0;
    return status;
}

static ftmem_status config_kv_heads(const config_source *c, ftmem_model *model)
{
    bool single = false;
    ftmem_status status = FTMEM_OK;
    if (c->cls->family == FTMEM_FALCON) status = config_falcon_heads(c, model);
    if (c->cls->family == FTMEM_GPT_BIGCODE) status = config_flag(c, "multi_query", &single);
    if (single) model->kv_heads = 1;
    if (status != FTMEM_OK) return status;
    if (model->kv_heads == 0) model->kv_heads = model->heads;
    if (model->heads % model->kv_heads == 0) return FTMEM_OK;
    return config_conflict(c, c->cls->family == FTMEM_FALCON ? "num_kv_heads" : "num_key_value_heads", model->kv_heads, config_key_of(c, TO(heads)),
                           model->heads, "must be a multiple of it");
}

/* A head's rotated part is rotary_dim; keys have as many heads as queries. */
static ftmem_status config_latent_heads(const config_source *c, ftmem_model *model)
{
    int64_t plain = 0;
    ftmem_entry e = config_lookup(c, "qk_nope_head_dim");
    ftmem_status status = config_whole(c, &e, 1 << 16, false, &plain);
    model->head_dim = plain + model->rotary_dim;
    if (model->value_dim == 0) model->value_dim = model->hidden / model->heads; /* configuration_minicpm3.py */
    model->kv_heads = model->heads;
    return status;
}

static ftmem_status config_heads(const config_source *c, ftmem_model *model)
{
    if (config_is(c, CONFIG_LATENT)) return config_latent_heads(c, model);
    /* These classes insist on it even when head_dim is given. */
    bool always = config_is(c, CONFIG_HEADS_DIVIDE);
    if (model->hidden % model->heads != 0 && (always || model->head_dim == 0))
        return config_conflict(c, config_key_of(c, TO(heads)), model->heads, config_key_of(c, TO(hidden)), model->hidden, "must be a multiple of it");
    if (model->head_dim == 0) model->head_dim = model->hidden / model->heads;
    if (model->ffn == 0) model->ffn = 4 * model->hidden;
    return config_kv_heads(c, model);
}

/* The fraction of a head that rotates: from the rope dictionary, then the family's own key, then its default. */
static ftmem_entry config_rotary_factor(const config_source *c)
{
    const ftmem_entry *given = config_given(c, "rope_scaling.partial_rotary_factor");
    if (!given) given = config_given(c, "rope_parameters.partial_rotary_factor");
    return given ? *given : config_lookup(c, c->cls->family == FTMEM_GPT_NEOX ? "rotary_pct" : "partial_rotary_factor");
}

static ftmem_status config_partly_rotated(const config_source *c, ftmem_model *model)
{
    double factor = 0;
    ftmem_entry e = config_rotary_factor(c);
    if (e.type == FTMEM_ENTRY_NULL) e.type = FTMEM_ENTRY_INT, e.integer = 1;
    ftmem_status status = config_real(c, &e, 1e-9, 1, "it must be a fraction above 0 and up to 1", &factor);
    if (status != FTMEM_OK) return status;
    model->rotary_dim = (int64_t)((double)model->head_dim * factor); /* rounded down, as in the code */
    if (model->rotary_dim >= 2 && model->rotary_dim % 2 == 0) return FTMEM_OK;
    return config_fail(c, FTMEM_E_CONFLICT, &e, "that fraction of a head must be an even number of dimensions");
}

/* GPT-J, and MiniMax-M2's older files, say it in dimensions. */
static ftmem_status config_own_rotation(const config_source *c, ftmem_model *model)
{
    ftmem_entry e = config_lookup(c, "rotary_dim");
    ftmem_status status = config_whole(c, &e, model->head_dim, true, &model->rotary_dim);
    if (status == FTMEM_OK && model->rotary_dim == 0) model->rotary_dim = model->head_dim;
    return status;
}

static ftmem_status config_rotation(const config_source *c, ftmem_model *model)
{
    if (config_is(c, CONFIG_ROTATES_NOT | CONFIG_LATENT) || model->alibi == FTMEM_ON) return FTMEM_OK;
    if (c->cls->family == FTMEM_GPTJ || config_given(c, "rotary_dim")) return config_own_rotation(c, model);
    if (config_is(c, CONFIG_ROTATES_PART)) return config_partly_rotated(c, model);
    if (c->cls->family == FTMEM_BAMBA) { /* configuration_bamba.py: partial_rotary_factor is 0.5 whatever the file says */
        model->rotary_dim = model->head_dim / 2;
        return FTMEM_OK;
    }
    model->rotary_dim = model->head_dim;
    return FTMEM_OK;
}

/* -------------------------------------------------------------------------------------------- blocks and layers */

static ftmem_status config_falcon_norms(const config_source *c, ftmem_model *model)
{
    bool grouped = false, parallel = model->parallel == FTMEM_ON;
    int64_t norms = 0;
    ftmem_entry e = config_lookup(c, "num_ln_in_parallel_attn"), attention = config_lookup(c, "parallel_attn");
    ftmem_status status = config_flag(c, "new_decoder_architecture", &grouped);
    if (status == FTMEM_OK) status = config_whole(c, &e, 2, true, &norms);
    if (status != FTMEM_OK) return status;
    if (grouped && !parallel) return config_fail(c, FTMEM_E_CONFLICT, &attention, "the new decoder architecture needs parallel attention");
    if (norms == 2 && parallel && !grouped) return config_fail(c, FTMEM_E_CONFLICT, &e, "two norms need the new decoder architecture");
    model->two_norms = grouped && norms != 1 ? FTMEM_ON : FTMEM_OFF;
    return FTMEM_OK;
}

static ftmem_status config_opt_projection(const config_source *c, const ftmem_model *model)
{
    int64_t width = 0;
    ftmem_entry e = config_lookup(c, "word_embed_proj_dim");
    ftmem_status status = config_whole(c, &e, 1 << 24, true, &width);
    if (status == FTMEM_OK && width != 0 && width != model->hidden)
        return config_fail(c, FTMEM_E_UNSUPPORTED, &e, "an embedding narrower than hidden_size (OPT-350M) is not modelled");
    return status;
}

/* transformers writes a classifier's labels as a dictionary, not as a number. */
static void config_count_labels(const config_source *c, ftmem_model *model)
{
    size_t i;
    for (i = 0; i < c->count && model->labels == 0; i++)
        if (strncmp(c->entries[i].key, "id2label.", 9) == 0) break;
    for (; i < c->count && strncmp(c->entries[i].key, "id2label.", 9) == 0; i++) model->labels++;
}

static void config_pooling(const config_source *c, ftmem_model *model)
{
    const ftmem_entry *given = config_given(c, "classifier_pooling");
    model->mean_pooling = given && given->type == FTMEM_ENTRY_TEXT && strcmp(given->text, "mean") == 0 ? FTMEM_ON : FTMEM_OFF;
}

/* "gated-gelu", "relu": the form of the MLP and its activation (configuration_t5.py). */
static ftmem_status config_t5_mlp(const config_source *c, ftmem_model *model)
{
    ftmem_entry e = config_lookup(c, "feed_forward_proj");
    bool text = e.type == FTMEM_ENTRY_TEXT && e.text, gated = text && strncmp(e.text, "gated-", 6) == 0;
    if (!text) return config_fail(c, FTMEM_E_TYPE, &e, "it must be the name of an activation, after gated- or not");
    model->gated = gated ? FTMEM_ON : FTMEM_OFF;
    if (gated) e.text = strcmp(e.text, "gated-gelu") == 0 ? "gelu_new" : e.text + 6;
    return config_activation(c, &e, &model->activation);
}

static ftmem_status config_blocks(const config_source *c, ftmem_model *model)
{
    int32_t family = c->cls->family;
    config_count_labels(c, model);
    config_pooling(c, model);
    if (family == FTMEM_ROBERTA) { /* positions count from 2, inside the table */
        model->position_rows = model->max_positions;
        model->max_positions -= 2;
    }
    if (model->layers == 0) model->layers = model->encoder_layers;
    if (family == FTMEM_T5) return config_t5_mlp(c, model);
    if (family == FTMEM_BART) model->position_rows = model->max_positions + 2; /* modeling_bart.py BartLearnedPositionalEmbedding counts from 2 */
    if (family == FTMEM_WHISPER) model->position_rows = model->max_positions;
    if (family == FTMEM_OPT || family == FTMEM_GPT2 || family == FTMEM_GPT_BIGCODE)
        model->position_rows = model->max_positions + (family == FTMEM_OPT ? 2 : 0); /* OPT counts from 2 */
    if (family == FTMEM_GPT_NEOX) model->two_norms = model->parallel;
    if (family == FTMEM_FALCON) return config_falcon_norms(c, model);
    if (family == FTMEM_OPT) return config_opt_projection(c, model);
    return FTMEM_OK;
}

/* The window in tokens, 0 if there is none. Some families have a switch for it. */
static ftmem_status config_window(const config_source *c, int64_t *window)
{
    bool used = true;
    bool half = config_is(c, CONFIG_CYCLE_FIRST);
    ftmem_entry e = config_lookup(c, half ? "local_attention" : c->cls->family == FTMEM_LLAMA4 ? "attention_chunk_size" : "sliding_window");
    ftmem_status status = config_is(c, CONFIG_WINDOW_SWITCH) ? config_flag(c, "use_sliding_window", &used) : FTMEM_OK;
    *window = 0;
    if (status != FTMEM_OK || !used) return status;
    status = config_whole(c, &e, INT64_C(1) << 40, true, window);
    if (half) *window /= 2;
    return status;
}

/* The number at the end of "layer_types.12", -1 if the key is another one. */
static int64_t config_list_index(const config_source *c, const ftmem_entry *entry, const char *list)
{
    size_t n = strlen(c->prefix), m = strlen(list);
    int64_t index = 0;
    if (strncmp(entry->key, c->prefix, n) != 0 || strncmp(entry->key + n, list, m) != 0 || entry->key[n + m] != '.') return -1;
    return ftmem__parse_int(entry->key + n + m + 1, &index) ? index : -1;
}

typedef ftmem_status config_item(const config_source *c, const ftmem_entry *entry, uint8_t *item);
enum { CONFIG_NO_ITEM = 255 };

static ftmem_status config_list_whole(const config_source *c, const char *list, int64_t layers, const uint8_t *items)
{
    for (int64_t i = 0; i < layers; i++)
        if (items[i] == CONFIG_NO_ITEM)
            return ftmem__fail_int(c->error, FTMEM_E_CONFLICT, list, i, "The list ends too early: it must have one entry for each layer.");
    return FTMEM_OK;
}

/* Reads a list with an item for each layer; *given says whether the file has it. */
static ftmem_status config_list(const config_source *c, const char *list, int64_t layers, config_item *read, uint8_t *items, bool *given)
{
    memset(items, CONFIG_NO_ITEM, (size_t)layers);
    *given = false;
    for (size_t i = 0; i < c->count; i++) {
        int64_t index = config_list_index(c, &c->entries[i], list);
        if (index < 0) continue;
        if (index >= layers) return config_fail(c, FTMEM_E_CONFLICT, &c->entries[i], "the list must not be longer than the number of layers");
        ftmem_status status = read(c, &c->entries[i], &items[index]);
        if (status != FTMEM_OK) return status;
        *given = true;
    }
    return *given ? config_list_whole(c, list, layers, items) : FTMEM_OK;
}

static ftmem_status config_kind_item(const config_source *c, const ftmem_entry *e, uint8_t *kind)
{
    if (e->type != FTMEM_ENTRY_TEXT) return config_fail(c, FTMEM_E_TYPE, e, "it must be the name of a kind of layer");
    *kind = strcmp(e->text, "sliding_attention") == 0;
    if (*kind || strcmp(e->text, "full_attention") == 0) return FTMEM_OK;
    return config_fail(c, FTMEM_E_UNSUPPORTED, e, "modelled are full_attention and sliding_attention");
}

/* A list of layer numbers, in any order: sets `bit` in the items of those layers. */
static ftmem_status config_layer_set(const config_source *c, const char *list, int64_t layers, uint8_t *items)
{
    for (size_t i = 0; i < c->count; i++) {
        const ftmem_entry *e = &c->entries[i];
        if (config_list_index(c, e, list) < 0) continue;
        if (e->type != FTMEM_ENTRY_INT || e->integer < 0) return config_fail(c, FTMEM_E_TYPE, e, "it must be the number of a layer");
        if (e->integer < layers) items[e->integer] = 1;
    }
    return FTMEM_OK;
}

/* Blocks that have one part each: by name, by an older name, and in a pattern (configuration_nemotron_h.py). */
static const struct {
    const char *name, *old;
    char letter;
    uint8_t kind;
} config_mixers[] = {
    { "linear_attention", "mamba", 'M', FTMEM__LAYER_SSM | FTMEM__MLP_NONE << 4 },
    { "full_attention", "attention", '*', FTMEM__LAYER_FULL | FTMEM__MLP_NONE << 4 },
    { "mlp", "mlp", '-', FTMEM__LAYER_NONE },
    { "moe", "moe", 'E', FTMEM__LAYER_NONE | FTMEM__MLP_EXPERTS << 4 },
};

static ftmem_status config_mixer_item(const config_source *c, const ftmem_entry *e, uint8_t *kind)
{
    for (int32_t i = 0; i < FTMEM__COUNT(config_mixers); i++) {
        *kind = config_mixers[i].kind;
        if (e->type == FTMEM_ENTRY_TEXT && (strcmp(e->text, config_mixers[i].name) == 0 || strcmp(e->text, config_mixers[i].old) == 0)) return FTMEM_OK;
    }
    return config_fail(c, FTMEM_E_UNSUPPORTED, e, "modelled are linear_attention, full_attention, mlp and moe");
}

static ftmem_status config_mixer_pattern(const config_source *c, const ftmem_entry *e, ftmem_model *model)
{
    const char *p = e->type == FTMEM_ENTRY_TEXT ? e->text : "";
    for (model->layers = 0; *p; p++) {
        int32_t i = 0;
        while (i < FTMEM__COUNT(config_mixers) && config_mixers[i].letter != *p) i++;
        if (i == FTMEM__COUNT(config_mixers) || model->layers == FTMEM_MAX_LAYERS)
            return config_fail(c, FTMEM_E_UNSUPPORTED, e, "it must be up to 512 of the letters M, *, - and E");
        model->layer_kind[model->layers++] = config_mixers[i].kind;
    }
    return model->layers > 0 ? FTMEM_OK : config_fail(c, FTMEM_E_TYPE, e, "it must be a text with a letter for each layer");
}

/* A list, or else a pattern, says how many layers there are; num_hidden_layers does not count. */
static ftmem_status config_one_part(const config_source *c, ftmem_model *model)
{
    static const ftmem_entry usual = { .key = "hybrid_override_pattern", .type = FTMEM_ENTRY_TEXT, .text = "ME*-" };
    const ftmem_entry *pattern = config_given(c, "hybrid_override_pattern");
    const char *list = config_given(c, "layer_types.0") ? "layer_types" : "layers_block_type";
    ftmem_entry act = config_lookup(c, "mamba_hidden_act");
    bool given = false, routed = false;
    ftmem_status status = FTMEM_OK;
    if (act.type != FTMEM_ENTRY_TEXT || strcmp(act.text, "silu") != 0) return config_fail(c, FTMEM_E_UNSUPPORTED, &act, "modelled is silu");
    model->layers = 0;
    for (size_t i = 0; i < c->count; i++)
        if (config_list_index(c, &c->entries[i], list) >= model->layers) model->layers = config_list_index(c, &c->entries[i], list) + 1;
    if (model->layers > FTMEM_MAX_LAYERS) return ftmem__fail_int(c->error, FTMEM_E_UNSUPPORTED, list, model->layers, "More than 512 layers are not modelled.");
    if (model->layers == 0) status = config_mixer_pattern(c, pattern ? pattern : &usual, model);
    else status = config_list(c, list, model->layers, config_mixer_item, model->layer_kind, &given);
    for (int64_t i = 0; i < model->layers; i++) routed = routed || ftmem__layer_mlp(model->layer_kind[i]) == FTMEM__MLP_EXPERTS;
    if (!routed) model->experts = model->experts_per_token = model->expert_ffn = model->shared_ffn = model->expert_latent = 0;
    return status;
}

/* modeling_granitemoehybrid.py, modeling_bamba.py, modeling_mamba2.py: what a block has beside its mixer. */
static void config_beside_mixer(const config_source *c, ftmem_model *model)
{
    ftmem_entry positions = config_lookup(c, "position_embedding_type");
    bool rotates = positions.type == FTMEM_ENTRY_TEXT && strcmp(positions.text, "rope") == 0;
    if (c->cls->family == FTMEM_GRANITEMOEHYBRID && model->experts > 0) model->shared_ffn = model->ffn;
    if (model->experts == 0) model->experts_per_token = model->expert_ffn = 0;
    for (int64_t i = 0; i < model->layers; i++) {
        uint8_t *kind = &model->layer_kind[i];
        if (c->cls->family == FTMEM_GRANITEMOEHYBRID && *kind == FTMEM__LAYER_FULL && !rotates) *kind = FTMEM__LAYER_NO_ROTATION;
        if (c->cls->family == FTMEM_MAMBA2) *kind |= FTMEM__MLP_NONE << 4;
        if (model->experts > 0) *kind |= FTMEM__MLP_EXPERTS << 4;
    }
}

static ftmem_status config_mixer_layers(const config_source *c, ftmem_model *model)
{
    const char *list = config_given(c, "layers_block_type.0") ? "layers_block_type" : "layer_types";
    uint8_t attends[FTMEM_MAX_LAYERS] = { 0 };
    bool given = false, listed = c->cls->family == FTMEM_GRANITEMOEHYBRID;
    int64_t expand = 2;
    ftmem_entry e = config_lookup(c, c->cls->family == FTMEM_MAMBA2 ? "expand" : "mamba_expand"), act = config_lookup(c, "hidden_act");
    ftmem_status status = config_whole(c, &e, 64, false, &expand);
    if (act.type != FTMEM_ENTRY_TEXT || strcmp(act.text, "silu") != 0) return config_fail(c, FTMEM_E_UNSUPPORTED, &act, "modelled is silu");
    if (status == FTMEM_OK && expand * model->hidden % model->ssm_heads)
        return config_conflict(c, config_key_of(c, TO(ssm_heads)), model->ssm_heads, "hidden_size", model->hidden, "x expand must be a multiple of it");
    model->ssm_head_dim = expand * model->hidden / model->ssm_heads;
    if (status == FTMEM_OK && listed) status = config_list(c, list, model->layers, config_mixer_item, model->layer_kind, &given);
    else if (status == FTMEM_OK) status = config_layer_set(c, "attn_layer_indices", model->layers, attends);
    for (int64_t i = 0; i < model->layers; i++)
        if (!given) model->layer_kind[i] = attends[i] ? FTMEM__LAYER_FULL : FTMEM__LAYER_SSM;
        else model->layer_kind[i] = ftmem__layer_attention(model->layer_kind[i]);
    if (status == FTMEM_OK) config_beside_mixer(c, model);
    return status;
}

static ftmem_status config_rotates_item(const config_source *c, const ftmem_entry *e, uint8_t *rotates)
{
    if (e->type != FTMEM_ENTRY_INT && e->type != FTMEM_ENTRY_BOOL) return config_fail(c, FTMEM_E_TYPE, e, "it must be 0 or 1");
    *rotates = e->integer != 0;
    return FTMEM_OK;
}

/* Of `period` layers the last one is full. The class default stands in the defaults as layer_types; old files of two
   families have a key for it. */
static ftmem_status config_period(const config_source *c, int64_t *period)
{
    const char *value = ftmem__packed_value(c->cls->values, "layer_types");
    ftmem_entry e = { 0 };
    if (config_is(c, CONFIG_CYCLE_KEY)) e = config_lookup(c, "sliding_window_pattern");
    if (e.type == FTMEM_ENTRY_NULL) ftmem__unpack_one("layer_types", value ? value : "null", &e);
    return config_whole(c, &e, FTMEM_MAX_LAYERS, false, period);
}

/* From which layer on a window applies (Qwen), or after how many layers one is full (cycles). */
static ftmem_status config_layer_rule(const config_source *c, int64_t *first, int64_t *period)
{
    ftmem_entry e = config_lookup(c, "max_window_layers");
    *first = *period = 0;
    if (config_is(c, CONFIG_CYCLE_FIRST)) {
        e = config_lookup(c, "global_attn_every_n_layers");
        return config_whole(c, &e, FTMEM_MAX_LAYERS, false, period);
    }
    if (config_is(c, CONFIG_CYCLES)) return config_period(c, period);
    if (!config_is(c, CONFIG_WINDOW_FROM) || (e.type == FTMEM_ENTRY_INT && e.integer == 0)) return FTMEM_OK;
    return config_whole(c, &e, INT32_MAX, false, first);
}

static ftmem_status config_slide(const config_source *c, int64_t window, ftmem_model *model)
{
    bool given = false;
    int64_t first = 0, period = 0;
    ftmem_status status = FTMEM_OK;
    if (config_is(c, CONFIG_CYCLES | CONFIG_WINDOW_FROM)) status = config_list(c, "layer_types", model->layers, config_kind_item, model->layer_kind, &given);
    if (status != FTMEM_OK || given) return status;
    status = config_layer_rule(c, &first, &period);
    for (int64_t i = 0; status == FTMEM_OK && i < model->layers; i++)
        model->layer_kind[i] = (uint8_t)(period ? (i + !config_is(c, CONFIG_CYCLE_FIRST)) % period != 0 : window != 0 && i >= first);
    if (config_is(c, CONFIG_FULL_FIRST)) model->layer_kind[0] = FTMEM__LAYER_FULL;
    return status;
}

/* SmolLM3: some layers do not rotate, and only those may have a window. no_rope_layers has 1 where a layer does. */
static ftmem_status config_smollm3_layers(const config_source *c, int64_t window, ftmem_model *model)
{
    bool given = false;
    int64_t interval = 0;
    ftmem_entry e = config_lookup(c, "no_rope_layer_interval");
    ftmem_status status = config_whole(c, &e, INT32_MAX, false, &interval);
    if (status == FTMEM_OK) status = config_list(c, "no_rope_layers", model->layers, config_rotates_item, model->layer_kind, &given);
    if (status != FTMEM_OK) return status;
    for (int64_t i = 0; i < model->layers; i++) {
        bool rotates = given ? model->layer_kind[i] == 1 : (i + 1) % interval != 0;
        model->layer_kind[i] = rotates ? 0 : 2;
        if (!rotates && window != 0)
            return ftmem__fail(c->error, FTMEM_E_UNSUPPORTED, "use_sliding_window", "true",
                               "use_sliding_window is true; window layers without rotation are not modelled.");
    }
    return FTMEM_OK;
}

/* configuration_llama4.py: a layer that rotates sees its chunk, where chunks have a size; every fourth, or as no_rope_layers says, does not. */
static ftmem_status config_llama4_layers(const config_source *c, int64_t chunk, ftmem_model *model)
{
    bool given = false;
    int64_t interval = 0;
    ftmem_entry e = config_lookup(c, "no_rope_layer_interval");
    ftmem_status status = config_whole(c, &e, INT32_MAX, false, &interval);
    if (status == FTMEM_OK) status = config_list(c, "no_rope_layers", model->layers, config_rotates_item, model->layer_kind, &given);
    for (int64_t i = 0; status == FTMEM_OK && i < model->layers; i++) {
        bool rotates = given ? model->layer_kind[i] == 1 : (i + 1) % interval != 0;
        model->layer_kind[i] = !rotates ? FTMEM__LAYER_NO_ROTATION : chunk ? FTMEM__LAYER_SLIDING : FTMEM__LAYER_FULL;
    }
    return status;
}

static bool config_any_window(const ftmem_model *model)
{
    for (int64_t i = 0; i < model->layers; i++)
        if (model->layer_kind[i] == 1) return true;
    return false;
}

/* configuration_mllama.py: blocks of cross-attention stand among the others, and modeling_mllama.py passes over them in rows of text. */
static ftmem_status config_cross_layers(const config_source *c, ftmem_model *model)
{
    uint8_t cross[FTMEM_MAX_LAYERS] = { 0 };
    bool given = false;
    if (!c->vision) /* MllamaForCausalLM, which widens its logits */
        return ftmem__fail(c->error, FTMEM_E_UNSUPPORTED, "model_type", "mllama_text_model", "mllama_text_model is not modelled without the model around it.");
    ftmem_status status = config_layer_set(c, "cross_attention_layers", model->layers, cross);
    for (size_t k = 0; k < c->count; k++) given = given || config_list_index(c, &c->entries[k], "cross_attention_layers") >= 0;
    for (int64_t i = 3; !given && i < model->layers && i <= 38; i += 5) cross[i] = 1;
    for (int64_t i = 0, layers = model->layers; i < layers; i++) model->cross_layers += cross[i];
    model->layers -= model->cross_layers;
    if (status != FTMEM_OK || model->layers > 0) return status;
    return ftmem__fail(c->error, FTMEM_E_RANGE, "cross_attention_layers", "all", "cross_attention_layers has every block; one at least must be another.");
}

/* The block of an entry "block_configs.3.ffn.ffn_mult", and what follows its number; -1: another entry. */
static int64_t config_block_of(const config_source *c, const ftmem_entry *e, const char **rest)
{
    static const char list[] = "block_configs.";
    const char *at = e->key + strlen(c->prefix);
    int64_t index = 0;
    if (strncmp(e->key, c->prefix, strlen(c->prefix)) != 0 || strncmp(at, list, sizeof list - 1) != 0) return -1;
    for (at += sizeof list - 1; *at >= '0' && *at <= '9' && index < FTMEM_MAX_LAYERS; at++) index = index * 10 + (*at - '0');
    *rest = *at == '.' ? at + 1 : "";
    return index;
}

/* modeling_decilm.py _ffn_mult_to_intermediate_size: two thirds, up to a multiple of 256. Its place among the widths; -1: there are too many. */
static int32_t config_width_place(ftmem_model *model, double mult)
{
    int64_t width = ((int64_t)(2 * mult * (double)model->hidden / 3) + 255) / 256 * 256;
    for (int32_t i = 0; i < FTMEM__COUNT(model->ffn_widths); i++) {
        if (model->ffn_widths[i] == 0) model->ffn_widths[i] = width;
        if (width > model->ffn) model->ffn = width;
        if (model->ffn_widths[i] == width) return i;
    }
    return -1;
}

static ftmem_status config_block_entry(const config_source *c, const ftmem_entry *e, const char *rest, uint8_t *kind, ftmem_model *model)
{
    double mult = 0;
    int32_t place;
    bool yes = e->type == FTMEM_ENTRY_BOOL && e->integer != 0;
    if (strcmp(rest, "attention.no_op") == 0 && yes) *kind |= FTMEM__LAYER_NONE;
    if (yes && (strcmp(rest, "attention.replace_with_linear") == 0 || strcmp(rest, "ffn.replace_with_linear") == 0 || strcmp(rest, "ffn.no_op") == 0))
        return config_fail(c, FTMEM_E_UNSUPPORTED, e, "blocks without an MLP, or with a linear in its or attention's place, are not modelled");
    if (strcmp(rest, "attention.n_heads_in_group") == 0 && e->type == FTMEM_ENTRY_INT && e->integer > 0) {
        if (model->kv_heads > 0 && model->kv_heads != model->heads / e->integer)
            return config_fail(c, FTMEM_E_UNSUPPORTED, e, "blocks with different numbers of key heads are not modelled");
        model->kv_heads = model->heads / e->integer;
    }
    if (strcmp(rest, "ffn.ffn_mult") != 0 || e->type == FTMEM_ENTRY_NULL) return FTMEM_OK;
    ftmem_status status = config_real(c, e, 0.01, 1024, "it must be a number from 0.01 to 1024", &mult);
    if (status != FTMEM_OK) return status;
    place = config_width_place(model, mult);
    if (place < 0) return config_fail(c, FTMEM_E_UNSUPPORTED, e, "more than eight different widths are not modelled");
    *kind |= ftmem__layer_of_width(place);
    return FTMEM_OK;
}

/* The same in the catalog's short form, "8:5.25,0:1.0": for each block the heads in a group, 0 without attention, and the factor. */
static ftmem_status config_block_text(const config_source *c, const ftmem_entry *e, ftmem_model *model)
{
    char mult[24];
    ftmem_entry part = { .key = e->key };
    ftmem_status status = FTMEM_OK;
    const char *at = e->text;
    for (int64_t block = 0; block < model->layers && *at && status == FTMEM_OK; block++) {
        size_t n = strcspn(at, ":"), m = at[n] ? strcspn(at + n + 1, ",") : 0;
        if (n != 1 || m == 0 || m >= sizeof mult) return config_fail(c, FTMEM_E_TYPE, e, "it must be a list of blocks");
        memcpy(mult, at + 2, m);
        mult[m] = '\0';
        part.type = FTMEM_ENTRY_INT;
        part.integer = *at - '0';
        if (part.integer > 0) status = config_block_entry(c, &part, "attention.n_heads_in_group", &model->layer_kind[block], model);
        else model->layer_kind[block] |= FTMEM__LAYER_NONE;
        ftmem__unpack_one(e->key, mult, &part);
        if (status == FTMEM_OK) status = config_block_entry(c, &part, "ffn.ffn_mult", &model->layer_kind[block], model);
        at += 2 + m;
        if (*at == ',') at++;
    }
    return status;
}

static ftmem_status config_block_list(const config_source *c, ftmem_model *model)
{
    const ftmem_entry *text = config_given(c, "block_configs");
    const char *rest = "";
    ftmem_status status = FTMEM_OK;
    model->kv_heads = 0;
    if (text && text->type == FTMEM_ENTRY_TEXT) status = config_block_text(c, text, model);
    for (size_t i = 0; i < c->count && status == FTMEM_OK; i++) {
        int64_t block = config_block_of(c, &c->entries[i], &rest);
        if (block >= 0 && block < model->layers) status = config_block_entry(c, &c->entries[i], rest, &model->layer_kind[block], model);
    }
    if (model->kv_heads == 0) model->kv_heads = model->heads;
    if (status == FTMEM_OK && model->ffn_widths[0] == 0)
        return ftmem__fail(c->error, FTMEM_E_MISSING, "block_configs", "", "block_configs is missing: it says what each block is.");
    return status;
}

static ftmem_status config_layers(const config_source *c, ftmem_model *model)
{
    int64_t window = 0;
    if (c->cls->family == FTMEM_MLLAMA_TEXT_MODEL) return config_cross_layers(c, model);
    if (config_is(c, CONFIG_BLOCKS)) return config_block_list(c, model);
    if (c->cls->family == FTMEM_NEMOTRON_H) return config_one_part(c, model);
    if (config_is(c, CONFIG_MIXERS)) return config_mixer_layers(c, model);
    if (!config_is(c, CONFIG_WINDOW)) return FTMEM_OK;
    ftmem_status status = config_window(c, &window);
    if (status == FTMEM_OK && c->cls->family == FTMEM_SMOLLM3) status = config_smollm3_layers(c, window, model);
    else if (status == FTMEM_OK && c->cls->family == FTMEM_LLAMA4) status = config_llama4_layers(c, window, model);
    else if (status == FTMEM_OK) status = config_slide(c, window, model);
    if (status != FTMEM_OK || !config_any_window(model)) return status;
    if (window == 0)
        return ftmem__fail(c->error, FTMEM_E_CONFLICT, "sliding_window", "null",
                           "sliding_window is null or not in use, but some layers are sliding_attention; give the window in tokens.");
    model->sliding_window = window;
    for (int64_t i = 0; c->cls->family == FTMEM_COHERE2 && i < model->layers; i++)
        if (model->layer_kind[i] == 0) model->layer_kind[i] = 2; /* Cohere 2 rotates in window layers only */
    return FTMEM_OK;
}

/* ----------------------------------------------------------------------------------------------------- experts */

/* modeling_qwen3_moe.py Qwen3MoeDecoderLayer: which blocks are dense. */
static ftmem_status config_sparse_step(const config_source *c, ftmem_model *model, uint8_t *dense)
{
    int64_t step = 1;
    ftmem_entry e = config_lookup(c, "decoder_sparse_step");
    ftmem_status status = config_whole(c, &e, FTMEM_MAX_LAYERS, false, &step);
    for (int64_t i = 0; status == FTMEM_OK && i < model->layers; i++) dense[i] = (i + 1) % step != 0;
    return status != FTMEM_OK ? status : config_layer_set(c, "mlp_only_layers", model->layers, dense);
}

/* Reads a list that may be longer than the model is deep, of one of two words. */
static ftmem_status config_words(const config_source *c, const char *list, const char *zero, const char *one, int64_t layers, uint8_t *items, bool *given)
{
    char right[96];
    ftmem__text text = ftmem__text_in(right, sizeof right);
    ftmem__put(&text, "it must be ");
    ftmem__put(&text, zero);
    ftmem__put(&text, " or ");
    ftmem__put(&text, one);
    memset(items, CONFIG_NO_ITEM, (size_t)layers);
    *given = false;
    for (size_t i = 0; i < c->count; i++) {
        const ftmem_entry *e = &c->entries[i];
        int64_t index = config_list_index(c, e, list);
        if (index < 0 || index >= layers) continue;
        if (e->type != FTMEM_ENTRY_TEXT) return config_fail(c, FTMEM_E_TYPE, e, right);
        items[index] = strcmp(e->text, one) == 0;
        if (!items[index] && strcmp(e->text, zero) != 0) return config_fail(c, FTMEM_E_UNSUPPORTED, e, right);
        *given = true;
    }
    return *given ? config_list_whole(c, list, layers, items) : FTMEM_OK;
}

/* configuration_glm_moe_dsa.py: a list says which blocks run their indexer, or a pattern of F and S, or how often. */
static ftmem_status config_indexer_rule(const config_source *c, ftmem_model *model)
{
    const ftmem_entry *pattern = config_given(c, "index_topk_pattern"), *often = config_given(c, "index_topk_freq"),
                      *offset = config_given(c, "index_skip_topk_offset");
    int64_t freq = 1, from = 2, i;
    ftmem_status status = often ? config_whole(c, often, 1 << 20, false, &freq) : FTMEM_OK;
    if (status == FTMEM_OK && offset) status = config_whole(c, offset, 1 << 20, false, &from);
    if (status != FTMEM_OK) return status;
    for (i = 0; i < model->layers; i++) {
        bool reused = (i - from + 1 > 0 ? i - from + 1 : 0) % freq != 0;
        if (pattern && pattern->type == FTMEM_ENTRY_TEXT) {
            if (i >= (int64_t)strlen(pattern->text)) return config_fail(c, FTMEM_E_CONFLICT, pattern, "it must have a letter for each layer");
            reused = pattern->text[i] == 'S';
        }
        model->layer_kind[i] = reused ? FTMEM__LAYER_SHARED_INDEX : FTMEM__LAYER_FULL;
    }
    return FTMEM_OK;
}

static ftmem_status config_indexer(const config_source *c, ftmem_model *model)
{
    bool given = false;
    ftmem_status status = FTMEM_OK;
    if (!config_is(c, CONFIG_INDEX_SHARED)) return FTMEM_OK;
    status = config_words(c, "indexer_types", "full", "shared", model->layers, model->layer_kind, &given);
    for (int64_t i = 0; given && i < model->layers; i++)
        if (model->layer_kind[i] == 1) model->layer_kind[i] = FTMEM__LAYER_SHARED_INDEX;
    if (status == FTMEM_OK && !given) status = config_indexer_rule(c, model);
    if (status != FTMEM_OK || model->layer_kind[0] == FTMEM__LAYER_FULL) return status;
    return ftmem__fail(c->error, FTMEM_E_CONFLICT, "indexer_types", "shared", "indexer_types begins with shared; the first block has no keys to reuse.");
}

/* configuration_qwen3_next.py: the class makes the list from full_attention_interval. */
static ftmem_status config_linear(const config_source *c, ftmem_model *model)
{
    bool given = false;
    int64_t period = 0;
    ftmem_entry e = config_lookup(c, "full_attention_interval");
    ftmem_status status = FTMEM_OK;
    if (!config_is(c, CONFIG_LINEAR)) return FTMEM_OK;
    status = config_words(c, "layer_types", "full_attention", "linear_attention", model->layers, model->layer_kind, &given);
    if (status == FTMEM_OK && !given) status = e.type == FTMEM_ENTRY_NULL ? config_period(c, &period) : config_whole(c, &e, FTMEM_MAX_LAYERS, false, &period);
    for (int64_t i = 0; status == FTMEM_OK && i < model->layers; i++) {
        bool linear = given ? model->layer_kind[i] == 1 : (i + 1) % period != 0;
        model->layer_kind[i] = linear ? FTMEM__LAYER_LINEAR : FTMEM__LAYER_FULL;
    }
    return status;
}

/* modeling_deepseek_v2.py DeepseekV2DecoderLayer, or a list; and how many shared experts there are. */
static ftmem_status config_dense_first(const config_source *c, ftmem_model *model, uint8_t *dense)
{
    ftmem_entry e = config_lookup(c, "first_k_dense_replace"), shared = config_lookup(c, "n_shared_experts");
    int64_t experts = 0;
    bool given = false;
    ftmem_status status = config_whole(c, &shared, 1 << 10, true, &experts);
    model->shared_ffn = experts * model->expert_ffn;
    if (status == FTMEM_OK && config_is(c, CONFIG_MLP_TYPES)) status = config_words(c, "mlp_layer_types", "sparse", "dense", model->layers, dense, &given);
    if (status != FTMEM_OK || given) return status;
    if (e.type != FTMEM_ENTRY_INT || e.integer < 0) return config_fail(c, FTMEM_E_TYPE, &e, "it must be a number of layers");
    for (int64_t i = 0; i < model->layers; i++) dense[i] = i < e.integer;
    return FTMEM_OK;
}

/* modeling_ernie4_5_moe.py Ernie4_5_MoeDecoderLayer; and how many shared experts there are. */
static ftmem_status config_experts_between(const config_source *c, ftmem_model *model, uint8_t *dense)
{
    ftmem_entry first = config_lookup(c, "moe_layer_start_index"), last = config_lookup(c, "moe_layer_end_index"),
                each = config_lookup(c, "moe_layer_interval"), shared = config_lookup(c, "moe_num_shared_experts");
    int64_t interval = 1, end, i;
    ftmem_status status = config_whole(c, &each, FTMEM_MAX_LAYERS, false, &interval);
    if (status != FTMEM_OK) return status;
    if (first.type != FTMEM_ENTRY_INT || first.integer < 0) return config_fail(c, FTMEM_E_TYPE, &first, "it must be the number of a layer");
    if (last.type != FTMEM_ENTRY_INT || last.integer < -1) return config_fail(c, FTMEM_E_TYPE, &last, "it must be the number of a layer, or -1");
    if (shared.type != FTMEM_ENTRY_INT || shared.integer < 0 || shared.integer > 1 << 10)
        return config_fail(c, FTMEM_E_TYPE, &shared, "it must be a number of experts");
    end = last.integer < 0 ? model->layers - 1 : last.integer;
    model->shared_ffn = shared.integer * model->expert_ffn;
    for (i = 0; i < model->layers; i++) dense[i] = (i + 1) % interval != 0 || i < first.integer || i > end;
    return FTMEM_OK;
}

/* configuration_llama4.py: moe_layers lists them, or every interleave_moe_layer_step-th block has experts. */
static ftmem_status config_moe_layers(const config_source *c, ftmem_model *model, uint8_t *dense)
{
    uint8_t listed[FTMEM_MAX_LAYERS] = { 0 };
    bool given = false;
    int64_t step = 1, i;
    ftmem_entry e = config_lookup(c, "interleave_moe_layer_step");
    ftmem_status status = config_whole(c, &e, FTMEM_MAX_LAYERS, false, &step);
    if (status == FTMEM_OK) status = config_layer_set(c, "moe_layers", model->layers, listed);
    for (size_t k = 0; k < c->count; k++) given = given || config_list_index(c, &c->entries[k], "moe_layers") >= 0;
    for (i = 0; i < model->layers; i++) dense[i] = given ? !listed[i] : (i + 1) % step != 0;
    return status;
}

static ftmem_status config_experts(const config_source *c, ftmem_model *model)
{
    uint8_t dense[FTMEM_MAX_LAYERS] = { 0 };
    ftmem_status status = FTMEM_OK;
    if (!config_is(c, CONFIG_EXPERTS) || model->experts == 0) return FTMEM_OK;
    if (config_is(c, CONFIG_DENSE_FIRST)) status = config_dense_first(c, model, dense);
    if (c->cls->family == FTMEM_LLAMA4) status = config_moe_layers(c, model, dense);
    if (config_is(c, CONFIG_EXPERTS_BETWEEN)) status = config_experts_between(c, model, dense);
    if (config_is(c, CONFIG_SPARSE_STEP)) status = config_sparse_step(c, model, dense);
    for (int64_t i = 0; status == FTMEM_OK && i < model->layers; i++)
        if (!dense[i]) model->layer_kind[i] |= FTMEM__MLP_EXPERTS << 4;
    return status;
}

/* A whole number that may be 0 or null. */
static ftmem_status config_count(const config_source *c, const char *key, int64_t maximum, int64_t *value)
{
    ftmem_entry e = config_lookup(c, key);
    *value = 0;
    return e.type == FTMEM_ENTRY_INT && e.integer == 0 ? FTMEM_OK : config_whole(c, &e, maximum, true, value);
}

static ftmem_status config_gemma4_experts(const config_source *c, ftmem_model *model)
{
    ftmem_entry experts = config_lookup(c, "num_experts"), chosen = config_lookup(c, "top_k_experts"), width = config_lookup(c, "moe_intermediate_size");
    bool on = false;
    ftmem_status status = config_flag(c, "enable_moe_block", &on);
    if (status != FTMEM_OK || !on) return status;
    status = config_whole(c, &experts, 1 << 16, false, &model->experts);
    if (status == FTMEM_OK) status = config_whole(c, &chosen, 1 << 16, false, &model->experts_per_token);
    if (status == FTMEM_OK) status = config_whole(c, &width, 1 << 26, false, &model->expert_ffn);
    model->router_norm = FTMEM_ON;
    for (int64_t i = 0; i < model->layers; i++) model->layer_kind[i] |= FTMEM__MLP_EXPERTS << 4;
    return status;
}

static ftmem_status config_gemma4_layers(const config_source *c, ftmem_model *model)
{
    bool wide = false;
    ftmem_status status = config_count(c, "num_kv_shared_layers", model->layers - 1, &model->shared_kv_layers);
    if (status == FTMEM_OK) status = config_flag(c, "use_double_wide_mlp", &wide);
    if (wide && model->shared_kv_layers > 0) model->shared_kv_ffn = 2 * model->ffn;
    if (status == FTMEM_OK && model->full_values_from_keys == FTMEM_ON) status = config_count(c, "num_global_key_value_heads", 1 << 16, &model->full_kv_heads);
    model->layer_kind[model->layers - 1] = FTMEM__LAYER_FULL; /* Gemma4TextConfig.__post_init__ */
    return status;
}

static ftmem_status config_gemma4(const config_source *c, ftmem_model *model)
{
    ftmem_entry seen = config_lookup(c, "use_bidirectional_attention");
    ftmem_status status = config_gemma4_layers(c, model);
    if (seen.type == FTMEM_ENTRY_TEXT && strcmp(seen.text, "all") == 0)
        return config_fail(c, FTMEM_E_UNSUPPORTED, &seen, "only causal attention over text is modelled");
    if (status == FTMEM_OK) status = config_count(c, "hidden_size_per_layer_input", 1 << 16, &model->layer_input);
    if (status == FTMEM_OK && model->layer_input > 0) status = config_count(c, "vocab_size_per_layer_input", 1 << 30, &model->layer_input_vocab);
    return status == FTMEM_OK ? config_gemma4_experts(c, model) : status;
}

/* ---------------------------------------------------------------------------------------------------- refusals */

static bool config_harmless(const ftmem_entry *e, uint8_t read)
{
    if (e->type == FTMEM_ENTRY_TEXT) return false;
    if (read == CONFIG_REFUSE_MISSING) return e->type != FTMEM_ENTRY_NULL;
    if (read == CONFIG_REFUSE_ONE) return e->type == FTMEM_ENTRY_NULL || config_number(e) == 1;
    if (read == CONFIG_REFUSE_TRUE) return e->type == FTMEM_ENTRY_BOOL && e->integer != 0;
    return e->type == FTMEM_ENTRY_NULL || config_number(e) == 0;
}

static ftmem_status config_refuse_options(const config_source *c)
{
    const config_rule *rule = NULL;
    int32_t group;
    while ((rule = config_next(c, rule, &group)) != NULL) {
        ftmem_entry e = { 0 };
        const ftmem_entry *given = rule->why ? config_given(c, rule->key) : NULL;
        e.key = rule->key;
        if (!given && rule->read == CONFIG_REFUSE_MISSING) given = &e;
        if (given && !config_harmless(given, rule->read)) return config_fail(c, FTMEM_E_UNSUPPORTED, given, rule->why);
    }
    return FTMEM_OK;
}

static bool config_under(const ftmem_entry *entry, const char *object)
{
    size_t n = strlen(object);
    if (strncmp(entry->key, object, n) != 0) return false;
    return entry->key[n] == '.' || (entry->key[n] == '\0' && entry->type != FTMEM_ENTRY_NULL);
}

static const ftmem_entry *config_object(const config_source *c, const char *object)
{
    for (size_t i = 0; i < c->count; i++)
        if (config_under(&c->entries[i], object)) return &c->entries[i];
    return NULL;
}

/* Parts of a config that make another model of it. */
static ftmem_status config_refuse_objects(const config_source *c)
{
    static const struct {
        const char *object, *why;
    } objects[] = {
        { "vision_config", "vision_config is present: a vision-language model is not modelled; give its text_config alone." },
        { "audio_config", "audio_config is present: a model with audio input is not modelled; give its text_config alone." },
        { "per_layer_config", "per_layer_config is present: layers of different shapes are not modelled." },
        { "compression_config", "compression_config is present: compressed weights are not modelled; give the config of the unquantised model." },
    };
    for (int32_t i = 0; i < FTMEM__COUNT(objects); i++)
        if (config_object(c, objects[i].object) && !(i == 0 && c->text_alone) && !(c->vision && (i == 0 || (i == 1 && c->vision->audio_class))))
            return ftmem__fail(c->error, FTMEM_E_UNSUPPORTED, objects[i].object, "", objects[i].why);
    return FTMEM_OK;
}

/* Formats of published weights for inference, which are converted on loading unless the job says otherwise (adapter.quant). */
static bool config_not_trained(const char *method)
{
    static const char *const methods[] = { "fp8", "mxfp4", "modelopt", "compressed-tensors", "fbgemm_fp8" };
    for (int32_t i = 0; i < FTMEM__COUNT(methods); i++)
        if (strcmp(method, methods[i]) == 0) return true;
    return false;
}

/* bitsandbytes' formats are made on loading, so they are the job's to say (adapter.quant). */
static ftmem_status config_quantization(const config_source *c, ftmem_model *model)
{
    char message[256];
    ftmem__text text = ftmem__text_in(message, sizeof message);
    config_source root = *c;
    bool own = config_object(c, "text_config.quantization_config") != NULL;
    root.prefix = own ? "text_config." : "";
    if (!own && !config_object(c, "quantization_config")) return FTMEM_OK;
    const ftmem_entry *method = config_given(&root, "quantization_config.quant_method");
    const char *name = method && method->type == FTMEM_ENTRY_TEXT && method->text ? method->text : "";
    if (strncmp(name, "bitsandbytes", 12) == 0) return FTMEM_OK;
    if (!*name && (config_given(&root, "quantization_config.load_in_4bit") || config_given(&root, "quantization_config.load_in_8bit"))) return FTMEM_OK;
    model->dequantized = config_not_trained(name) || (!*name && config_given(&root, "quantization_config.config_groups.group_0.weights.num_bits"));
    if (model->dequantized) return FTMEM_OK;
    ftmem__put(&text, "quantization_config says ");
    ftmem__put(&text, *name ? name : "no quant_method");
    ftmem__put(&text, "; say how the base is stored in adapter.quant, and give the config of the unquantised model.");
    return ftmem__fail(c->error, FTMEM_E_UNSUPPORTED, "quantization_config", name, message);
}

static ftmem_status config_refuse(const config_source *c)
{
    ftmem_status status = config_refuse_objects(c);
    return status != FTMEM_OK ? status : config_refuse_options(c);
}

/* ------------------------------------------------------------------------------------------------ model types */

static const config_class *config_class_of(const char *type)
{
    for (int32_t i = 0; i < FTMEM__COUNT(config_classes); i++)
        if (strcmp(config_classes[i].type, type) == 0) return &config_classes[i];
    return NULL;
}

/* Another name of a class, with other names for its keys: NULL if there is none. */
static const config_class *config_rename_of(const char *type)
{
    for (int32_t i = 0; i < FTMEM__COUNT(config_renames); i++)
        if (strcmp(config_renames[i].type, type) == 0) return &config_renames[i];
    return NULL;
}

static const char *config_kind_of_type(const char *type)
{
    for (int32_t i = 0; i < FTMEM__COUNT(config_others); i++)
        if (strcmp(config_others[i].type, type) == 0) return config_others[i].what;
    if (strstr(type, "moe")) return "a mixture of experts";
    if (strstr(type, "_vl") || strstr(type, "vision")) return "a vision-language model";
    return NULL;
}

static ftmem_status config_refuse_type(const config_source *c, const char *type)
{
    char message[256];
    ftmem__text text = ftmem__text_in(message, sizeof message);
    const char *what = config_kind_of_type(type);
    ftmem__put(&text, "model_type ");
    ftmem__put(&text, type);
    ftmem__put(&text, what ? " is " : " is not known");
    ftmem__put(&text, what ? what : "");
    ftmem__put(&text, what ? ", which is not modelled;" : ";");
    ftmem__put(&text, " modelled are decoders such as llama, qwen3, gemma2, phi3, gpt2, falcon, mixtral and deepseek_v3.");
    return ftmem__fail(c->error, FTMEM_E_UNSUPPORTED, "model_type", type, message);
}

static bool config_entries_sound(const ftmem_entry *entries, size_t count)
{
    if (!entries && count) return false;
    for (size_t i = 0; i < count; i++)
        if (!entries[i].key || entries[i].type < FTMEM_ENTRY_NULL || entries[i].type > FTMEM_ENTRY_TEXT ||
            (entries[i].type == FTMEM_ENTRY_TEXT && !entries[i].text))
            return false;
    return true;
}

static const config_vision *config_vision_of(const char *type)
{
    for (int32_t i = 0; i < FTMEM__COUNT(config_visions); i++)
        if (strcmp(config_visions[i].type, type) == 0) return &config_visions[i];
    return NULL;
}

/* The text model of a vision-language model; older files have its keys beside vision_config. */
static ftmem_status config_open_text(config_source *c)
{
    const ftmem_entry *type = config_given(c, "text_config.model_type");
    const char *name = type && type->type == FTMEM_ENTRY_TEXT ? type->text : c->vision->text;
    c->old = config_rename_of(name);
    c->cls = config_class_of(c->old ? c->old->of : name);
    if (!c->cls || config_is(c, CONFIG_TOWER)) return config_refuse_type(c, name);
    if (config_object(c, "text_config")) c->prefix = "text_config.";
    return FTMEM_OK;
}

/* Finds the class, and where its keys are: a text-only Gemma 3 may have them one level deeper. */
static ftmem_status config_open(config_source *c)
{
    const ftmem_entry *type = config_given(c, "model_type");
    if (!type || type->type == FTMEM_ENTRY_NULL)
        return ftmem__fail(c->error, FTMEM_E_MISSING, "model_type", "", "model_type is missing; a Hugging Face config.json names its family there.");
    if (type->type != FTMEM_ENTRY_TEXT) return config_fail(c, FTMEM_E_TYPE, type, "it must be a name such as llama");
    bool gemma3 = strcmp(type->text, "gemma3") == 0;
    c->text_alone = strcmp(type->text, "llama4") == 0;
    c->vision = config_vision_of(type->text);
    if (c->vision && !config_object(c, c->vision->part) && !c->vision->audio_class) c->vision = NULL;
    if (c->vision) return config_open_text(c);
    c->old = config_rename_of(type->text);
    c->cls = config_class_of(c->old ? c->old->of : gemma3 ? "gemma3_text" : c->text_alone ? "llama4_text" : type->text);
    if (!c->cls || config_is(c, CONFIG_TOWER)) return config_refuse_type(c, type->text);
    if ((gemma3 || c->text_alone) && config_object(c, "text_config")) c->prefix = "text_config.";
    return FTMEM_OK;
}

static void config_name(const config_source *c, const char *name, ftmem_model *model)
{
    const ftmem_entry *given = config_given(c, "_name_or_path");
    ftmem__text text = ftmem__text_in(model->name, sizeof model->name);
    if (!name && given && given->type == FTMEM_ENTRY_TEXT && *given->text) name = given->text;
    ftmem__put(&text, name ? name : c->cls->type);
}

/* A key of the whole model, above text_config and vision_config; null where the file does not have it. */
static ftmem_entry config_outer(const config_source *c, const char *key)
{
    config_source outer = *c;
    ftmem_entry none = { .key = key, .type = FTMEM_ENTRY_NULL };
    const ftmem_entry *given;
    outer.prefix = "";
    given = config_given(&outer, key);
    return given ? *given : none;
}

/* modeling_qwen2_5_vl.py: the blocks of fullatt_block_indexes attend to whole images, every so many of them. */
static ftmem_status config_tower_windows(const config_source *c, ftmem_model *model)
{
    ftmem_entry window = config_lookup(c, "window_size");
    int64_t every = 8, missing;
    size_t i;
    for (i = 0; i < c->count; i++)
        if (config_list_index(c, &c->entries[i], "fullatt_block_indexes") == 0) every = c->entries[i].integer + 1;
    if (every < 1) every = 8;
    missing = model->tower_layers / every;
    for (i = 0; i < c->count; i++) {
        int64_t block = c->entries[i].integer;
        if (config_list_index(c, &c->entries[i], "fullatt_block_indexes") < 0 || block >= model->tower_layers) continue;
        if ((block + 1) % every != 0) missing = -1;
        missing -= 1;
        if (missing < 0) return config_fail(c, FTMEM_E_UNSUPPORTED, &c->entries[i], "modelled is full attention in every so many blocks");
    }
    model->tower_window = window.type == FTMEM_ENTRY_INT && window.integer > 0 && window.integer <= 1 << 16 ? window.integer : 0;
    model->tower_full_every = every;
    return FTMEM_OK;
}

/* vision_feature_layer counts the tower's input too, or from the end; vision_feature_select_strategy says whether the class token goes on. */
static ftmem_status config_features(const config_source *c, ftmem_model *model)
{
    ftmem_entry layer = config_outer(c, "vision_feature_layer"), select = config_outer(c, "vision_feature_select_strategy"),
                act = config_outer(c, "projector_hidden_act"), tokens = config_outer(c, "mm_tokens_per_image");
    int64_t from = layer.type == FTMEM_ENTRY_INT ? layer.integer : c->vision->feature;
    model->tower_unread = from < 0 ? -1 - from : model->tower_layers - from;
    if (model->tower_unread < 0 || model->tower_unread >= model->tower_layers)
        return config_fail(c, FTMEM_E_UNSUPPORTED, &layer, "features are taken from a block's output");
    if (select.type == FTMEM_ENTRY_TEXT && strcmp(select.text, "full") == 0) model->tower_class_token = FTMEM_ON;
    if (tokens.type == FTMEM_ENTRY_INT && (tokens.integer < 1 || tokens.integer > 1 << 24))
        return config_fail(c, FTMEM_E_RANGE, &tokens, "it must be from 1 to 2^24");
    if (c->vision->tower == FTMEM_TOWER_GEMMA3) model->tower_tokens = tokens.type == FTMEM_ENTRY_INT ? tokens.integer : 256;
    if (act.type == FTMEM_ENTRY_TEXT && strcmp(act.text, "gelu") != 0)
        return config_fail(c, FTMEM_E_UNSUPPORTED, &act, "a projector with another activation than gelu is not modelled");
    return FTMEM_OK;
}

/* Whether the head is tied is the whole model's to say, and so are the projector's options. */
static ftmem_status config_outer_keys(const config_source *c, ftmem_model *model)
{
    ftmem_entry tied = config_outer(c, "tie_word_embeddings"), bias = config_outer(c, "multimodal_projector_bias"),
                merge = config_outer(c, "spatial_merge_size"), layers = config_outer(c, "vision_feature_layer.0");
    bool on = c->vision->tied;
    ftmem_status status = tied.type == FTMEM_ENTRY_NULL ? FTMEM_OK : config_bool(c, &tied, &on);
    model->tied = on ? FTMEM_ON : FTMEM_OFF;
    on = c->vision->projector_bias;
    if (status == FTMEM_OK && bias.type != FTMEM_ENTRY_NULL) status = config_bool(c, &bias, &on);
    if (status == FTMEM_OK && on != c->vision->projector_bias) return config_fail(c, FTMEM_E_UNSUPPORTED, &bias, "only the class default is modelled");
    if (status == FTMEM_OK && layers.type != FTMEM_ENTRY_NULL)
        return config_fail(c, FTMEM_E_UNSUPPORTED, &layers, "features of several layers of the tower are not modelled");
    if (status == FTMEM_OK && (c->vision->tower == FTMEM_TOWER_MISTRAL3 || c->vision->tower == FTMEM_TOWER_PHI3_V)) model->tower_merge = 2;
    return status != FTMEM_OK || merge.type == FTMEM_ENTRY_NULL ? status : config_whole(c, &merge, 64, false, &model->tower_merge);
}

/* Blocks whose output goes to the text model besides: three, eight apart, where the list is not given. */
static ftmem_status config_taps(const config_source *c, ftmem_model *model)
{
    int64_t at, before = -1;
    for (size_t i = 0; i < c->count; i++) {
        const ftmem_entry *e = &c->entries[i];
        at = config_list_index(c, e, "deepstack_visual_indexes");
        if (at < 0) continue;
        model->tower_taps++;
        if (at == 0) model->tower_tap_first = e->integer;
        if (at == 1) model->tower_tap_every = e->integer - before;
        if (at > 1 && e->integer - before != model->tower_tap_every) return config_fail(c, FTMEM_E_UNSUPPORTED, e, "modelled is every so many blocks");
        before = e->integer;
    }
    if (before >= model->tower_layers || model->tower_tap_every < 0 || model->tower_tap_first < 0) model->tower_tap_first = model->tower_tap_every = 0;
    if (model->tower_taps > 0) return FTMEM_OK;
    model->tower_taps = 3;
    model->tower_tap_first = model->tower_tap_every = model->tower_layers > 24 ? 8 : 0;
    return FTMEM_OK;
}

/* Those that fit into four tiles, where the list is not given (configuration_mllama.py supported_aspect_ratios). */
static void config_ratios(const config_source *c, ftmem_model *model)
{
    int64_t last = -1;
    for (size_t i = 0; i < c->count; i++) {
        int64_t at = config_list_index(c, &c->entries[i], "supported_aspect_ratios");
        last = at > last ? at : last;
    }
    model->tower_ratios = last < 0 ? 8 : last + 1;
}

/* modeling_kimi_k25.py Kimi_K25VisionPositionEmbeddings: a row for each place of a grid. */
static ftmem_status config_grid_positions(const config_source *c, ftmem_model *model)
{
    int64_t wide = 0;
    ftmem_entry e = config_lookup(c, "pos_emb_width");
    ftmem_status status = config_whole(c, &e, 1 << 16, false, &wide);
    model->tower_positions *= wide;
    return status;
}

/* modeling_siglip.py SiglipMultiheadAttentionPoolingHead, which the class has by default. */
static ftmem_status config_refuse_head(const config_source *c)
{
    ftmem_entry head = config_lookup(c, "vision_use_head");
    if (head.type != FTMEM_ENTRY_BOOL || head.integer == 0) return FTMEM_OK;
    return ftmem__fail(c->error, FTMEM_E_UNSUPPORTED, "vision_config.vision_use_head", "true",
                       "vision_use_head is true; a pooling head of the vision tower is not modelled.");
}

/* Files call the tower by the whole model's name, or add _vision to it. */
static bool config_tower_named(const config_vision *vision, const char *tower_class, const char *type)
{
    size_t n = strlen(vision->type);
    return strcmp(type, tower_class) == 0 || (strncmp(type, vision->type, n) == 0 && (type[n] == '\0' || strcmp(type + n, "_vision") == 0));
}

/* A tower's own config. Its dimensions go beside the text model's; what they have in common is the text model's. */
static ftmem_status config_tower(config_source *tower, const char *prefix, const char *tower_class, ftmem_model *model)
{
    const ftmem_entry *type;
    ftmem_model text = *model;
    ftmem_status status;
    tower->prefix = prefix;
    tower->old = config_rename_of(tower_class);
    tower->cls = config_class_of(tower->old ? tower->old->of : tower_class);
    type = config_given(tower, "model_type");
    if (type && type->type == FTMEM_ENTRY_TEXT && *type->text && !config_tower_named(tower->vision, tower_class, type->text))
        return config_fail(tower, FTMEM_E_UNSUPPORTED, type, "this tower is not modelled in this model");
    status = config_refuse_head(tower);
    if (status == FTMEM_OK) status = config_refuse_options(tower);
    if (status == FTMEM_OK) status = config_apply_all(tower, model);
    if (model->tower == FTMEM_TOWER_QWEN2_VL) model->tower_ffn *= model->tower_hidden;
    model->tower_activation = model->activation;
    model->activation = text.activation;
    config_copy_switches(model, &text);
    return status;
}

/* modeling_gemma4.py Gemma4VisionModel: heads x head_dim is not hidden everywhere it could be. */
static ftmem_status config_tower_heads(const config_source *c)
{
    int64_t hidden = 0, heads = 0, kv = 0, width = 0;
    ftmem_entry h = config_lookup(c, "hidden_size"), n = config_lookup(c, "num_attention_heads"), k = config_lookup(c, "num_key_value_heads"),
                d = config_lookup(c, "head_dim");
    ftmem_status status = config_whole(c, &h, 1 << 24, false, &hidden);
    if (status == FTMEM_OK) status = config_whole(c, &n, 1 << 16, false, &heads);
    if (status == FTMEM_OK) status = config_whole(c, &k, 1 << 16, false, &kv);
    if (status == FTMEM_OK) status = config_whole(c, &d, 1 << 16, false, &width);
    if (status != FTMEM_OK || (heads * width == hidden && kv == heads)) return status;
    return config_fail(c, FTMEM_E_UNSUPPORTED, &d, "a tower whose heads together are not as wide as its stream is not modelled");
}

static ftmem_status config_towers(const config_source *c, ftmem_model *model)
{
    config_source tower = *c;
    const config_vision *vision = c->vision;
    ftmem_status status = FTMEM_OK;
    model->tower = vision->tower;
    if (config_object(c, vision->part)) {
        status = config_tower(&tower, vision->tower == FTMEM_TOWER_PHI3_V ? "img_processor." : "vision_config.", vision->tower_class, model);
        if (status == FTMEM_OK) status = config_features(c, model);
        if (status == FTMEM_OK && vision->tower == FTMEM_TOWER_QWEN2_5_VL) status = config_tower_windows(&tower, model);
        if (status == FTMEM_OK && vision->taps) status = config_taps(&tower, model);
        if (status == FTMEM_OK && vision->tower == FTMEM_TOWER_MLLAMA) config_ratios(&tower, model);
        if (status == FTMEM_OK && vision->tower == FTMEM_TOWER_KIMI_K25) status = config_grid_positions(&tower, model);
        if (status == FTMEM_OK && vision->tower == FTMEM_TOWER_GEMMA4) status = config_tower_heads(&tower);
    }
    if (status == FTMEM_OK && vision->audio_class && config_object(c, "audio_config"))
        status = config_tower(&tower, "audio_config.", vision->audio_class, model);
    return status == FTMEM_OK ? config_outer_keys(c, model) : status;
}

ftmem_status ftmem__model_build(const ftmem_entry *entries, size_t count, const char *name, ftmem_model *model, ftmem_error *error)
{
    config_source c = { entries, count, "", NULL, NULL, error, NULL, false };
    if (!config_entries_sound(entries, count))
        return ftmem__fail(error, FTMEM_E_ARGUMENT, "entries", "", "entries must have keys, known types and, for texts, a text.");
    ftmem_status status = config_open(&c);
    if (status != FTMEM_OK) return status;
    memset(model, 0, sizeof *model);
    model->struct_size = (uint32_t)sizeof *model;
    model->family = c.cls->family;
    config_name(&c, name, model);
    status = config_refuse(&c);
    if (status == FTMEM_OK) status = config_quantization(&c, model);
    if (status == FTMEM_OK) status = config_apply_all(&c, model);
    if (status == FTMEM_OK) status = config_heads(&c, model);
    if (status == FTMEM_OK) status = config_rotation(&c, model);
    if (status == FTMEM_OK) status = config_blocks(&c, model);
    if (status == FTMEM_OK) status = config_layers(&c, model);
    if (status == FTMEM_OK) status = config_indexer(&c, model);
    if (status == FTMEM_OK) status = config_linear(&c, model);
    if (status == FTMEM_OK) status = config_experts(&c, model);
    if (status == FTMEM_OK && model->family == FTMEM_GEMMA4) status = config_gemma4(&c, model);
    return status != FTMEM_OK || !c.vision ? status : config_towers(&c, model);
}

ftmem_status ftmem_model_from_entries(const ftmem_entry *entries, size_t count, ftmem_model *model, ftmem_error *error)
{
    ftmem_model built;
    ftmem_status status = ftmem__exportable(model, FTMEM__MODEL_MINIMUM, "model", error);
    if (status == FTMEM_OK) status = ftmem__model_build(entries, count, NULL, &built, error);
    if (status == FTMEM_OK) ftmem__export(model, &built, sizeof built);
    return status;
}
