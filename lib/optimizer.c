/* Optimizers: what each keeps for a trained tensor, and what its step needs besides. */
#include "step.h"

/* bitsandbytes optim/optimizer.py: two states of one byte an element with fp32 maxima of blocks of 256; tensors under
   4096 elements keep fp32 states; paged states of 1e5 elements and more are managed memory, unseen by torch. */
static int64_t optimizer_8bit(int64_t n, bool paged, int64_t *hidden)
{
    int64_t maxima = 2 * ftmem__round512((n + 255) / 256 * 4);
    if (n < 4096) return 2 * ftmem__round512(4 * n);
    if (!paged || n < 100000) return 2 * ftmem__round512(n) + maxima;
    *hidden += 2 * n;
    return maxima;
}

static int64_t optimizer_paged32(int64_t n, int64_t *hidden)
{
    if (n < 100000) return 2 * ftmem__round512(4 * n);
    *hidden += 8 * n;
    return 0;
}

/* transformers optimization.py Adafactor: a row and a column vector of fp32 for matrices, one fp32 tensor for vectors. */
static int64_t optimizer_adafactor(const ftmem__param *p, int64_t n)
{
    if (p->rows <= 1) return ftmem__round512(4 * n);
    return ftmem__round512(4 * p->rows) + ftmem__round512(4 * (n / p->rows));
}

static int64_t optimizer_kept(const ftmem_job *job, const ftmem__param *p, int32_t dtype, int64_t *hidden)
{
    int64_t one = ftmem__round512(ftmem__bytes(dtype, p->n));
    switch (job->optimizer) {
    case FTMEM_ADAMW_8BIT: return optimizer_8bit(p->n, false, hidden);
    case FTMEM_PAGED_ADAMW_8BIT: return optimizer_8bit(p->n, true, hidden);
    case FTMEM_PAGED_ADAMW_32BIT: return optimizer_paged32(p->n, hidden);
    case FTMEM_SGD: return 0;
    case FTMEM_SGD_MOMENTUM: return one;
    case FTMEM_ADAFACTOR: return optimizer_adafactor(p, p->n);
    case FTMEM_ADAMW_FUSED: return 2 * one + 512; /* its step counter is a GPU tensor */
    default: return 2 * one;
    }
}

static int32_t optimizer_dtype(const ftmem_job *job, const ftmem__param *p)
{
    return job->master_weights == FTMEM_ON ? FTMEM_FP32 : p->dtype;
}

int64_t ftmem__state_bytes(const ftmem_job *job, const ftmem__param *p)
{
    int64_t hidden = 0;
    return optimizer_kept(job, p, optimizer_dtype(job, p), &hidden);
}

/* Adafactor's step on one tensor, all fp32: copies of a 16-bit gradient and weight, the squared gradient, and the
   update beside it. */
static int64_t optimizer_adafactor_step(const ftmem__param *p)
{
    int64_t copies = p->dtype == FTMEM_FP32 ? 2 : 4;
    return copies * ftmem__round512(4 * p->n);
}

/* foreach holds one more copy of all trained tensors (the square roots); the loop, of one tensor at a time. */
static void optimizer_step_bytes(ftmem__totals *t, const ftmem_job *job, const ftmem__param *p, int32_t dtype, int64_t count, int64_t before)
{
    int64_t one = ftmem__round512(ftmem__bytes(dtype, p->n)), need = 0;
    if (job->optimizer == FTMEM_ADAMW) {
        t->step_bytes += one * count;
        return;
    }
    if (job->optimizer == FTMEM_ADAMW_LOOP) need = 2 * one; /* torch _single_tensor_adam: the square root and its quotient */
    if (job->optimizer == FTMEM_ADAFACTOR) need = optimizer_adafactor_step(p) + ftmem__round512(4 * before); /* the last update's name lives on */
    if (need > t->step_bytes) t->step_bytes = need;
}

static void optimizer_add(ftmem__totals *t, const ftmem_job *job, const ftmem__param *p, int64_t count, int64_t before)
{
    bool master = job->master_weights == FTMEM_ON && p->dtype != FTMEM_FP32;
    int32_t dtype = optimizer_dtype(job, p);
    int64_t hidden = 0;
    t->trainable += p->n * count;
    t->tensors += count;
    t->gradient_bytes += p->gradient_bytes * count;
    if (master) t->master_bytes += ftmem__round512(4 * p->n) * count;
    t->state_bytes += optimizer_kept(job, p, dtype, &hidden) * count;
    t->state_hidden_bytes += hidden * count;
    optimizer_step_bytes(t, job, p, dtype, count, before);
}

int64_t ftmem__param_count(const ftmem__walk *walk, const ftmem__param *param)
{
    if (param->outside) return param->copies;
    return param->segment >= 0 ? walk->kind[param->segment].layers * param->copies : 1;
}

static int64_t optimizer_pixels(const ftmem__shape *shape, int64_t images)
{
    const ftmem_model *m = shape->model;
    return ftmem__round512(ftmem__bytes(ftmem__shape_pixels(shape), images * m->channels * m->image_size * m->image_size));
}

/* What the first stack is fed: token ids, pixels, or features of two frames a token; and a padding mask. */
static int64_t optimizer_fed(const ftmem__shape *shape, int64_t rows)
{
    const ftmem_model *m = shape->model;
    int32_t dtype = shape->autocast ? FTMEM_FP32 : shape->dtype;
    int64_t tokens = ftmem__round512(8 * rows * (shape->s - shape->virtual_tokens)), sum = tokens;
    if (shape->fed_features) return ftmem__round512(ftmem__bytes(dtype, rows * m->encoder_channels * 2 * shape->s));
    if (shape->family->embedding == FTMEM__EMBED_PATCHES) sum = optimizer_pixels(shape, rows);
    return sum + (shape->job->mask == FTMEM_MASK_PADDED ? tokens : 0);
}

/* A batch: what the first stack is fed, labels of tokens of the last or of rows. */
static int64_t optimizer_rows(const ftmem__shape *shape, const ftmem__shape *fed, int64_t rows)
{
    int64_t pixels = shape->scattered ? optimizer_pixels(fed, rows * fed->each) : 0;
    return pixels + optimizer_fed(shape->scattered ? shape : fed, rows) +
           ftmem__round512(8 * rows * (ftmem__task_by_row(shape->job->task) ? 1 : shape->s - shape->virtual_tokens));
}

/* e_score_correction_bias (modeling_deepseek_v3.py): an fp32 buffer of each router that scores by sigmoid. */
static int64_t optimizer_router_bias(const ftmem__shape *shape)
{
    int64_t layers = 0, i;
    if (shape->family->router < FTMEM__ROUTER_SIGMOID) return 0;
    for (i = 0; i < shape->model->layers; i++) layers += ftmem__layer_mlp(shape->model->layer_kind[i]) == FTMEM__MLP_EXPERTS;
    return layers * ftmem__round512(4 * shape->model->experts);
}

/* modeling_mixtral.py MixtralRotaryEmbedding before 4.48: cos_cached and sin_cached in the dtype of loading. */
static int64_t optimizer_table_buffers(const ftmem__shape *shape)
{
    if (shape->job->transformers_version >= shape->family->table_buffers_before) return 0;
    return 2 * shape->model->layers * ftmem__round512(ftmem__bytes(shape->compute, shape->model->max_positions * shape->rotary));
}

/* What the process holds before the first step besides weights: rotation frequencies (twice), buffers, the batch. */
static void optimizer_batch(ftmem__totals *t, const ftmem__walk *walk)
{
    const ftmem__shape *shape = &walk->shape;
    const ftmem_job *job = shape->job;
    const ftmem__shape *fed = walk->stack[0].shape;
    bool rope = shape->family->positions <= FTMEM__ROPE_INTERLEAVED && shape->model->alibi != FTMEM_ON;
    t->buffer_bytes = rope ? 2 * ftmem__round512(shape->rotary / 2 * 4) : 0;
    if (shape->family->tables_by_kind && shape->has_full && shape->has_sliding) t->buffer_bytes *= 2;
    if (shape->family->logits_buffer) t->buffer_bytes += ftmem__round512(ftmem__bytes(shape->compute, shape->vocab));
    if (shape->family->mask_buffer) t->buffer_bytes += ftmem__round512(shape->model->position_rows * shape->model->position_rows);
    t->buffer_bytes += optimizer_router_bias(shape) + optimizer_table_buffers(shape);
    if (shape->family->turn == FTMEM__TURN_PAIRS) /* modeling_gptj.py GPTJRotaryEmbedding */
        t->buffer_bytes = ftmem__round512(ftmem__bytes(FTMEM_FP32, shape->model->max_positions * shape->rotary));
    t->buffer_bytes += 512 * shape->family->small_buffers;
    t->buffer_bytes += ftmem__tower_buffer_bytes(shape->model);
    t->buffer_bytes += shape->family->id_buffers * ftmem__round512(8 * shape->model->position_rows);
    t->batch_bytes = optimizer_rows(shape, fed, shape->b);
    t->eval_batch_bytes = optimizer_rows(shape, fed, job->eval_batch);
    t->workspace_bytes = job->cublas_workspace == FTMEM_OFF ? 0 : job->gpu.sm_arch >= 90 ? (int64_t)32 << 20 : 8519680; /* truth: 8.125 MiB, 32 on sm90 */
}

/* The difference and its norm; under autocast 16-bit copies of both operands. */
static void optimizer_regular(ftmem__regular *r, const ftmem__shape *shape, const ftmem__param *p, int64_t count)
{
    int64_t cols = p->rows ? p->n / p->rows : 0, side = p->rows < cols ? p->rows : cols, copy;
    if (!shape->regularised || p->base || !p->trained || cols <= 1) return;
    copy = shape->autocast ? 2 * ftmem__round512(ftmem__bytes(shape->autocast, p->n)) : 0;
    r->kept_bytes += count * (ftmem__round512(4 * side * side) + 512 + copy);
    r->gradient_bytes += count * p->bytes;
    r->flops += 2.0 * (double)side * (double)p->n * (double)count;
}

void ftmem__totals_fill(ftmem__totals *t, const ftmem__walk *walk)
{
    int64_t before = 0; /* elements of the trained tensor before this one */
    int32_t i;
    memset(t, 0, sizeof *t);
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        int64_t count = ftmem__param_count(walk, p);
        t->weight_bytes[p->tensor_class] += p->bytes * count;
        t->narrowed_bytes += p->narrowed_bytes * count;
        if (p->base) t->parameters += p->n * count;
        else t->adapters += p->n * count;
        if (p->idle) t->trainable += p->n * count; /* torch's optimizers pass over a parameter without a gradient */
        if (p->trained) optimizer_add(t, walk->shape.job, p, count, before);
        if (p->trained) before = p->n;
        optimizer_regular(&t->regular, &walk->shape, p, count);
    }
    optimizer_batch(t, walk);
    t->resident = t->buffer_bytes + t->batch_bytes;
    for (i = 0; i < FTMEM_CLASS_END; i++) t->resident += t->weight_bytes[i];
}
