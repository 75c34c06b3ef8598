/* Models by name, from the shipped catalog, and the shape that a bare parameter count suggests. */
#include "catalog.h"

/* models_rows and models_refused: packed strings that start with the model's name; the rest is its config. */
#include "models.inc"

enum { MODELS_MAX_ENTRIES = 160 }; /* tools/gen_catalog.py keeps rows below it */

/* ---------------------------------------------------------------------------------------------------- by name */

static const char *models_tail(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

static const char *models_search(const char *const *rows, int32_t count, const char *name)
{
    bool whole = strchr(name, '/') != NULL;
    for (int32_t i = 0; i < count; i++)
        if (ftmem__same(whole ? rows[i] : models_tail(rows[i]), name)) return rows[i];
    return NULL;
}

/* Names to suggest: with the organisation only to those who write one. */
static const char *models_at(const void *context, int32_t index)
{
    return strchr(context, '/') ? models_rows[index] : models_tail(models_rows[index]);
}

static ftmem_status models_build(const char *row, ftmem_model *model, ftmem_error *error)
{
    ftmem_entry entries[MODELS_MAX_ENTRIES];
    size_t count = ftmem__unpack(row + strlen(row) + 1, entries, MODELS_MAX_ENTRIES);
    return ftmem__model_build(entries, count, row, model, error);
}

ftmem_status ftmem_model_find(const char *name, ftmem_model *model, ftmem_error *error)
{
    ftmem_model built;
    if (!name) return ftmem__fail(error, FTMEM_E_ARGUMENT, "name", "NULL", "name must not be NULL.");
    ftmem_status status = ftmem__exportable(model, FTMEM__MODEL_MINIMUM, "model", error);
    if (status != FTMEM_OK) return status;
    const char *row = models_search(models_rows, FTMEM__COUNT(models_rows), name);
    if (!row) row = models_search(models_refused, FTMEM__COUNT(models_refused), name);
    if (!row) {
        ftmem__names names = { models_at, name, FTMEM__COUNT(models_rows) };
        return ftmem__fail_unknown(error, "model", "model", name, &names);
    }
    status = models_build(row, &built, error);
    if (status == FTMEM_OK) ftmem__export(model, &built, sizeof built);
    return status;
}

int32_t ftmem_model_count(void)
{
    return FTMEM__COUNT(models_rows);
}

const char *ftmem_model_name_at(int32_t index)
{
    return index >= 0 && index < FTMEM__COUNT(models_rows) ? models_rows[index] : NULL;
}

/* --------------------------------------------------------------------------------------- by a parameter count */

typedef struct models_shape {
    int32_t hidden, layers, heads, kv_heads, ffn, vocab, heads_of_vocab; /* the last: 1 where the head is tied, else 2 */
} models_shape;

/* Well-known decoders, and steps in their manner where there are none. Small models spend much on the vocabulary, so
   they have smaller ones and share them with the head. */
static const models_shape models_shapes[] = {
    { 128, 6, 4, 4, 344, 4096, 1 },
    { 256, 8, 8, 8, 688, 4096, 1 },
    { 512, 8, 8, 8, 1376, 16384, 1 },
    { 576, 30, 9, 3, 1536, 49152, 1 },        /* SmolLM2-135M */
    { 960, 32, 15, 5, 2560, 49152, 1 },       /* SmolLM2-360M */
    { 896, 24, 14, 2, 4864, 151936, 1 },      /* Qwen2.5-0.5B */
    { 2048, 16, 32, 8, 8192, 128256, 1 },     /* Llama-3.2-1B */
    { 3072, 28, 24, 8, 8192, 128256, 1 },     /* Llama-3.2-3B */
    { 4096, 32, 32, 32, 11008, 32000, 2 },    /* Llama-2-7B */
    { 4096, 32, 32, 8, 14336, 128256, 2 },    /* Llama-3.1-8B */
    { 5120, 40, 40, 40, 13824, 32000, 2 },    /* Llama-2-13B */
    { 6656, 60, 52, 52, 17920, 32000, 2 },    /* LLaMA-30B */
    { 8192, 80, 64, 8, 28672, 128256, 2 },    /* Llama-3.1-70B */
    { 12288, 88, 96, 8, 28672, 32768, 2 },    /* Mistral-Large */
    { 16384, 126, 128, 8, 53248, 128256, 2 }, /* Llama-3.1-405B */
    { 25600, 128, 200, 8, 76800, 128256, 2 },
    { 38400, 192, 300, 12, 115200, 128256, 2 },
    { 57600, 256, 450, 18, 172800, 128256, 2 },
};

/* Parameters outside the blocks, and of one block without its MLP. */
static double models_outside(const models_shape *s)
{
    return (double)s->hidden * s->vocab * s->heads_of_vocab + s->hidden;
}

static double models_attention(const models_shape *s)
{
    double h = s->hidden;
    return 2 * h * h + 2 * h * (h / s->heads * s->kv_heads) + 2 * h;
}

static double models_total(const models_shape *s)
{
    return models_outside(s) + s->layers * (models_attention(s) + 3.0 * s->hidden * s->ffn);
}

static const models_shape *models_nearest(double parameters)
{
    const models_shape *best = models_shapes;
    double best_ratio = 1e30;
    for (int32_t i = 0; i < FTMEM__COUNT(models_shapes); i++) {
        double ratio = parameters / models_total(&models_shapes[i]);
        if (ratio < 1) ratio = 1 / ratio;
        if (ratio < best_ratio) {
            best_ratio = ratio;
            best = &models_shapes[i];
        }
    }
    return best;
}

/* Width stays that of the known shape. Depth follows when the count is far from it (a sixth), else a 7B would not
   have its 32 blocks; the MLP takes the rest, in steps of 64 where those are finer than half a percent. */
static models_shape models_fit(double parameters)
{
    models_shape s = *models_nearest(parameters);
    double blocks = parameters - models_outside(&s), ratio = blocks / (models_total(&s) - models_outside(&s));
    if (ratio < 0.85 || ratio > 1.18) s.layers = (int32_t)(s.layers * ratio + 0.5);
    if (s.layers < 1) s.layers = 1;
    double per_width = 3.0 * s.hidden * s.layers, ffn = (blocks - s.layers * models_attention(&s)) / per_width;
    int32_t step = 32 * per_width < parameters / 200 ? 64 : 1;
    s.ffn = step * (int32_t)(ffn / step + 0.5);
    return s;
}

static void models_infer(double parameters, ftmem_model *model)
{
    models_shape s = models_fit(parameters);
    ftmem__text name;
    memset(model, 0, sizeof *model);
    model->struct_size = (uint32_t)sizeof *model;
    model->family = FTMEM_LLAMA;
    name = ftmem__text_in(model->name, sizeof model->name);
    ftmem__put_number(&name, parameters);
    ftmem__put(&name, " parameters");
    model->hidden = s.hidden;
    model->ffn = s.ffn;
    model->layers = s.layers;
    model->heads = s.heads;
    model->kv_heads = s.kv_heads;
    model->head_dim = model->rotary_dim = s.hidden / s.heads;
    model->vocab = s.vocab;
    model->activation = FTMEM_SILU;
    model->tied = s.heads_of_vocab == 1 ? FTMEM_ON : FTMEM_OFF;
    model->qkv_bias = model->o_bias = model->mlp_bias = model->norm_bias = model->qk_norm = FTMEM_OFF;
    model->parallel = model->two_norms = model->head_bias = model->scaled = model->alibi = FTMEM_OFF;
    model->inferred = 1;
}

ftmem_status ftmem_model_from_parameters(double parameters, ftmem_model *model, ftmem_error *error)
{
    ftmem_model built;
    char value[48];
    ftmem__text text = ftmem__text_in(value, sizeof value);
    ftmem_status status = ftmem__exportable(model, FTMEM__MODEL_MINIMUM, "model", error);
    if (status != FTMEM_OK) return status;
    ftmem__put_number(&text, parameters);
    if (!(parameters >= 1e6 && parameters <= 1e13))
        return ftmem__fail(error, FTMEM_E_RANGE, "parameters", value, "parameters must be from 1e6 to 1e13, the number of weights of the whole model.");
    models_infer(parameters, &built);
    ftmem__export(model, &built, sizeof built);
    return FTMEM_OK;
}
