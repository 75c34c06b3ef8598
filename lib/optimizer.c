/* What optimizers keep and need, read off their rows; and the sums over parameters that a step starts from. */
#include "optimizer.h"
#include "objective.h"
#include "step.h"

static const ftmem__optimizer optimizer_table[] = {
#include "optimizers.inc"
};

const ftmem__optimizer *ftmem__optimizer_of(const ftmem_job *job)
{
    return &optimizer_table[job->optimizer];
}

/* All experts of a block in one tensor of three dimensions. */
static bool optimizer_stacked(const ftmem__param *p)
{
    return p->base && (p->role == FTMEM_ROLE_EXPERTS_UP || p->role == FTMEM_ROLE_EXPERTS_DOWN);
}

static bool optimizer_fits(int32_t of, const ftmem__param *p)
{
    bool block = p->segment >= 0 && !p->outside && p->rows > 0 && !optimizer_stacked(p);
    switch (of) {
    case FTMEM__BELOW_4096: return p->n < 4096;
    case FTMEM__ODD_256: return p->n < 4096 || p->n % 256 != 0;
    case FTMEM__ODD_128: return p->n < 4096 || p->n % 128 != 0;
    case FTMEM__FROM_1E5: return p->n >= 100000;
    case FTMEM__MATRICES: return p->rows > 0;
    case FTMEM__LINEARS: return block && p->role != FTMEM_ROLE_ROUTER;
    case FTMEM__IN_BLOCKS: return block;
    default: return true;
    }
}

const ftmem__rule *ftmem__rule_for(const ftmem_job *job, const ftmem__param *p)
{
    const ftmem__rule *rule = ftmem__optimizer_of(job)->rule;
    while (!optimizer_fits(rule->of, p)) rule++;
    return rule;
}

bool ftmem__updates_in_backward(const ftmem_job *job)
{
    return job->optimizer_in_backward == FTMEM_ON;
}

static ftmem__buffer optimizer_buffer(int64_t n, int32_t dtype)
{
    ftmem__buffer b;
    b.n = n;
    b.dtype = dtype;
    b.bytes = ftmem__round512(ftmem__bytes(dtype, n));
    return b;
}

/* Sizes that know rows and columns. */
static ftmem__buffer optimizer_matrix(const ftmem_job *job, const ftmem__param *p, int32_t dtype, int32_t size)
{
    int64_t rows = p->rows > 0 ? p->rows : 1, cols = p->n / rows, k = rows < cols ? rows : cols, other = rows < cols ? cols : rows;
    int64_t any = job->optimizer_rank, r = any < k ? any : k, matrices = optimizer_stacked(p) ? job->model->experts : 1;
    switch (size) {
    case FTMEM__ROWS: return optimizer_buffer(rows, FTMEM_FP32);
    case FTMEM__COLS: return optimizer_buffer(matrices * cols, FTMEM_FP32);
    case FTMEM__LOW: return optimizer_buffer(other * r, dtype);
    case FTMEM__LOW_ANY: return optimizer_buffer(other * any, dtype);
    case FTMEM__LOW32: return optimizer_buffer(other * r, FTMEM_FP32);
    case FTMEM__PROJECTION: return optimizer_buffer(any * k, dtype);
    case FTMEM__DIAGONAL: return p->dtype == FTMEM_FP32 || 2 * r > k ? optimizer_buffer(r * r, FTMEM_FP32) : optimizer_buffer(r * k, p->dtype);
    case FTMEM__PROJECTION32: return optimizer_buffer(any * k, FTMEM_FP32);
    case FTMEM__PROJECTION_OF: return dtype == FTMEM_FP32 ? optimizer_buffer(k * k, dtype) : optimizer_buffer(k * r, dtype);
    case FTMEM__FACTOR: return optimizer_buffer(k * k, FTMEM_FP32);
    case FTMEM__SINGULAR: return optimizer_buffer(k, FTMEM_FP32);
    case FTMEM__LONG32: return optimizer_buffer(other, FTMEM_FP32);
    case FTMEM__DIAGONAL32: return optimizer_buffer(r * r, FTMEM_FP32);
    case FTMEM__RANK32: return optimizer_buffer(r, FTMEM_FP32);
    case FTMEM__GRAM: return optimizer_buffer(k * k, FTMEM_BF16);
    default: return optimizer_buffer(other, dtype);
    }
}

ftmem__buffer ftmem__buffer_of(const ftmem_job *job, const ftmem__param *p, int32_t size)
{
    int32_t dtype = job->master_weights == FTMEM_ON ? FTMEM_FP32 : p->dtype;
    bool wide = p->dtype == FTMEM_FP32;
    switch (size) {
    case FTMEM__SAME: return optimizer_buffer(p->n, dtype);
    case FTMEM__F32: return optimizer_buffer(p->n, FTMEM_FP32);
    case FTMEM__F32_TWICE: return optimizer_buffer(2 * p->n, FTMEM_FP32);
    case FTMEM__B16: return optimizer_buffer(p->n, FTMEM_BF16);
    case FTMEM__BYTES: return optimizer_buffer(p->n, FTMEM_INT8);
    case FTMEM__BYTES_TWICE: return optimizer_buffer(2 * p->n, FTMEM_INT8);
    case FTMEM__INT64S: return optimizer_buffer(p->n, FTMEM_INT64);
    case FTMEM__NIBBLES: return optimizer_buffer((p->n + 1) / 2, FTMEM_INT8);
    case FTMEM__MAXIMA: return optimizer_buffer((p->n + 255) / 256, FTMEM_FP32);
    case FTMEM__MAXIMA_TWICE: return optimizer_buffer((p->n + 255) / 256 * 2, FTMEM_FP32);
    case FTMEM__MAXIMA128: return optimizer_buffer((p->n + 127) / 128, FTMEM_FP32);
    case FTMEM__NUMBER: return optimizer_buffer(1, FTMEM_FP32);
    case FTMEM__CODES256: return optimizer_buffer(256, FTMEM_FP32);
    case FTMEM__WIDE: return optimizer_buffer(wide ? 0 : p->n, FTMEM_FP32);
    case FTMEM__KAHAN: return optimizer_buffer(wide ? 1 : p->n, p->dtype);
    case FTMEM__ONLY16: return optimizer_buffer(wide ? 0 : p->n, p->dtype);
    default: return optimizer_matrix(job, p, dtype, size);
    }
}

int64_t ftmem__list_bytes(const ftmem_job *job, const ftmem__param *p, const uint8_t *list, int32_t capacity)
{
    int64_t sum = 0;
    int32_t i;
    for (i = 0; i < capacity && list[i]; i++) sum += ftmem__buffer_of(job, p, list[i]).bytes;
    return sum;
}

/* --------------------------------------------------------------------------------------------------- the update */

/* The update, tensor by tensor in the order of the model's parameters. */
typedef struct optimizer_loop {
    ftmem__totals *totals;
    const ftmem__walk *walk;
    int64_t made; /* states that exist by now, in the first step */
    int64_t left; /* bytes that the previous tensor's turn left to this one's */
} optimizer_loop;

static void optimizer_moment(optimizer_loop *l, int32_t param, const uint8_t *list, int32_t length, int64_t made, int64_t bytes)
{
    ftmem__totals *t = l->totals;
    if (bytes + made - t->state_bytes > t->first_step_bytes) t->first_step_bytes = bytes + made - t->state_bytes;
    if (bytes <= t->step_bytes) return;
    t->step_bytes = bytes;
    t->step_param = param;
    t->step_list = list;
    t->step_length = length;
}

static void optimizer_turn(optimizer_loop *l, int32_t i)
{
    const ftmem_job *job = l->walk->shape.job;
    const ftmem__param *p = &l->walk->params.at[i];
    const ftmem__rule *rule = ftmem__rule_for(job, p);
    int64_t refresh = FTMEM__LIST_BYTES(job, p, rule->refresh);
    if (refresh > 0) optimizer_moment(l, i, rule->refresh, (int32_t)sizeof rule->refresh, l->made, l->left + refresh);
    if (ftmem__optimizer_of(job)->as_it_goes) l->made += FTMEM__LIST_BYTES(job, p, rule->keep);
    optimizer_moment(l, i, rule->early, (int32_t)sizeof rule->early, l->made, l->left + FTMEM__LIST_BYTES(job, p, rule->early));
    optimizer_moment(l, i, rule->late, (int32_t)sizeof rule->late, l->made, FTMEM__LIST_BYTES(job, p, rule->late));
    l->left = FTMEM__LIST_BYTES(job, p, rule->left);
}

/* Turns of the trained tensors of one segment; `chosen`: those of the row's first rule, 0, the others, 1, or all, -1. */
static void optimizer_segment(optimizer_loop *l, int32_t segment, int32_t others)
{
    const ftmem__walk *walk = l->walk;
    const ftmem_job *job = walk->shape.job;
    int32_t i;
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        if (!p->trained || p->segment != segment) continue;
        if (others >= 0 && (ftmem__rule_for(job, p) != ftmem__optimizer_of(job)->rule) != (others > 0)) continue;
        optimizer_turn(l, i);
    }
}

/* Equal blocks in a row: the first, and the last for all others, which find the same before them. */
static int64_t optimizer_blocks(optimizer_loop *l, const ftmem__stack *stack, int64_t from, int64_t layers, int32_t others)
{
    int64_t to = from + 1, before = l->made;
    while (to < layers && stack->of_layer[to] == stack->of_layer[from]) to++;
    optimizer_segment(l, stack->of_layer[from], others);
    if (to - from == 1) return to;
    l->made += (l->made - before) * (to - from - 2);
    optimizer_segment(l, stack->of_layer[from], others);
    return to;
}

static void optimizer_round(optimizer_loop *l, int32_t others)
{
    const ftmem__walk *walk = l->walk;
    int32_t stack;
    int64_t i;
    for (stack = 0; stack < walk->stacks; stack++) {
        const ftmem__stack *s = &walk->stack[stack];
        int64_t layers = s->shape->family->shared_blocks ? 1 : s->shape->model->layers;
        optimizer_segment(l, ftmem__segment_embed(stack), others);
        for (i = 0; i < layers;) i = optimizer_blocks(l, s, i, layers, others);
        optimizer_segment(l, ftmem__segment_end(stack), others);
    }
}

static bool optimizer_loops(const ftmem__optimizer *o)
{
    bool any = o->as_it_goes;
    int32_t i;
    for (i = 0; i < FTMEM__COUNT(o->rule); i++) any = any || o->rule[i].early[0] || o->rule[i].late[0] || o->rule[i].refresh[0];
    return any;
}

static void optimizer_update(ftmem__totals *t, const ftmem__walk *walk)
{
    const ftmem__optimizer *o = ftmem__optimizer_of(walk->shape.job);
    optimizer_loop loop = { 0 };
    loop.totals = t;
    loop.walk = walk;
    loop.made = o->as_it_goes ? 0 : t->state_bytes;
    t->step_param = -1;
    t->step_bytes = t->first_step_bytes = ftmem__updates_in_backward(walk->shape.job) ? 0 : t->each_bytes;
    if (!optimizer_loops(o) || ftmem__updates_in_backward(walk->shape.job)) return;
    if (!o->apart) optimizer_round(&loop, -1);
    if (o->apart) optimizer_round(&loop, 1);
    if (o->apart) optimizer_round(&loop, 0);
}

static ftmem__param optimizer_param(const ftmem__store *gradient, bool in_block)
{
    ftmem__param p = { 0 };
    p.n = gradient->n;
    p.rows = gradient->cols > 0 && gradient->cols < gradient->n ? gradient->n / gradient->cols : 0;
    p.dtype = gradient->dtype;
    p.segment = in_block ? 0 : -1;
    p.role = FTMEM_ROLE_Q;
    p.base = true;
    return p;
}

static int64_t optimizer_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Products with projections, a refresh included. */
static double optimizer_flops(const ftmem_job *job, const ftmem__param *p, const ftmem__rule *rule)
{
    int64_t rows = p->rows > 0 ? p->rows : 1, cols = p->n / rows, k = rows < cols ? rows : cols, any = job->optimizer_rank;
    double r = rule->diagonals && any > k ? (double)k : (double)any, other = (double)(p->n / k);
    return 2 * r * (rule->products * (double)p->n + rule->diagonals * other * r);
}

ftmem__work ftmem__update_of(const void *context, const ftmem__store *gradient, bool in_block)
{
    const ftmem_job *job = context;
    ftmem__param p = optimizer_param(gradient, in_block);
    const ftmem__rule *rule = ftmem__rule_for(job, &p);
    bool goes = ftmem__optimizer_of(job)->waits && p.dtype != FTMEM_FP32;
    int64_t late = FTMEM__LIST_BYTES(job, &p, rule->late);
    ftmem__work work;
    work.beside = optimizer_most(FTMEM__LIST_BYTES(job, &p, rule->early), FTMEM__LIST_BYTES(job, &p, rule->refresh));
    work.beside = FTMEM__LIST_BYTES(job, &p, rule->each) + optimizer_most(work.beside, goes ? 0 : late);
    work.after = goes ? late : 0;
    work.flops = optimizer_flops(job, &p, rule);
    return work;
}

/* ------------------------------------------------------------------------------------------------------- totals */

static void optimizer_add(ftmem__totals *t, const ftmem_job *job, const ftmem__param *p, int64_t count)
{
    const ftmem__rule *rule = ftmem__rule_for(job, p);
    bool master = job->master_weights == FTMEM_ON && p->dtype != FTMEM_FP32;
    t->trainable += p->n * count;
    t->tensors += count;
    if (!ftmem__updates_in_backward(job)) t->gradient_bytes += p->gradient_bytes * count;
    if (master) t->master_bytes += ftmem__round512(4 * p->n) * count;
    t->state_bytes += FTMEM__LIST_BYTES(job, p, rule->keep) * count;
    t->state_hidden_bytes += FTMEM__LIST_BYTES(job, p, rule->away) * count;
    t->each_bytes += FTMEM__LIST_BYTES(job, p, rule->each) * count;
}

int64_t ftmem__param_count(const ftmem__walk *walk, const ftmem__param *param)
{
    if (param->outside) return param->copies;
    return param->segment >= 0 ? walk->kind[param->segment].alike * param->copies : 1;
}

static int64_t optimizer_pixels(const ftmem__shape *shape, int64_t images)
{
    const ftmem_model *m = shape->model;
    int64_t pixels = shape->family->any_size ? shape->s * m->patch_size * m->patch_size : m->image_size * m->image_size;
    int64_t grid = shape->family->chunked ? ftmem__round512(3 * 8 * images) : 0; /* image_grid_thw */
    return grid + ftmem__round512(ftmem__bytes(ftmem__shape_pixels(shape), images * m->channels * pixels));
}

/* What the first stack is fed: token ids, pixels, or features of two frames a token; and a padding mask. */
static int64_t optimizer_fed(const ftmem__shape *shape, int64_t rows)
{
    const ftmem_model *m = shape->model;
    int32_t dtype = shape->autocast ? FTMEM_FP32 : shape->dtype;
    int64_t tokens = ftmem__round512(8 * rows * (shape->s - shape->virtual_tokens)), sum = tokens;
    if (shape->fed_features) return ftmem__round512(ftmem__bytes(dtype, rows * m->encoder_channels * 2 * shape->s));
    if (shape->family->embedding == FTMEM__EMBED_PATCHES) sum = optimizer_pixels(shape, rows);
    return sum + (shape->job->mask == FTMEM_MASK_PADDED ? tokens : 0) + (shape->image_masks || shape->takes_video ? tokens : 0);
}

/* A batch: what the first stack is fed, labels of tokens of the last or of rows. */
static int64_t optimizer_rows(const ftmem__shape *shape, const ftmem__shape *fed, int64_t rows)
{
    int64_t pixels = shape->scattered ? optimizer_pixels(fed, fed->family->packed ? 1 : rows * fed->each) : 0;
    if (ftmem__objective_of(shape->job)->loss == FTMEM__LOSS_PAIRS) return pixels + optimizer_fed(shape->scattered ? shape : fed, rows);
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

/* modeling_gemma4.py: frequencies of each kind of block, a scalar of each block, the scales of two embeddings. */
static int64_t optimizer_kind_buffers(const ftmem__shape *shape)
{
    const ftmem_model *m = shape->model;
    int64_t full = shape->has_full ? 2 * ftmem__round512(2 * m->full_head_dim) : 0, window = shape->has_sliding ? 2 * ftmem__round512(2 * m->head_dim) : 0;
    return full + window + 512 * m->layers + (m->layer_input > 0 ? 512 : 0);
}

/* What the process holds before the first step besides weights: rotation frequencies (twice), buffers, the batch. */
static void optimizer_batch(ftmem__totals *t, const ftmem__walk *walk)
{
    const ftmem__shape *shape = &walk->shape;
    const ftmem_job *job = shape->job;
    const ftmem__shape *fed = walk->stack[0].shape;
    bool rope = shape->family->positions <= FTMEM__ROPE_INTERLEAVED && shape->model->alibi != FTMEM_ON && shape->rotates;
    t->buffer_bytes = rope ? 2 * ftmem__round512(shape->rotary / 2 * 4) : 0;
    if (shape->family->tables_by_kind && shape->has_full && shape->has_sliding) t->buffer_bytes *= 2;
    if (shape->family->by_kind) t->buffer_bytes = optimizer_kind_buffers(shape);
    if (shape->family->logits_buffer) t->buffer_bytes += ftmem__round512(ftmem__bytes(shape->compute, shape->vocab));
    if (shape->family->mask_buffer) t->buffer_bytes += ftmem__round512(shape->model->position_rows * shape->model->position_rows);
    t->buffer_bytes += optimizer_router_bias(shape) + optimizer_table_buffers(shape);
    if (shape->family->turn == FTMEM__TURN_PAIRS) /* modeling_gptj.py GPTJRotaryEmbedding */
        t->buffer_bytes = ftmem__round512(ftmem__bytes(FTMEM_FP32, shape->model->max_positions * shape->rotary));
    t->buffer_bytes += 512 * shape->family->small_buffers;
    t->buffer_bytes += ftmem__tower_buffer_bytes(shape->model, shape->compute);
    t->buffer_bytes += shape->family->id_buffers * ftmem__round512(8 * shape->model->position_rows);
    if (shape->takes_video) t->narrowed_bytes -= ftmem__round512(8 * shape->b); /* rope_deltas: an attribute of the model from the first forward on */
    t->batch_bytes = optimizer_rows(shape, fed, shape->b);
    if (job->reference == FTMEM_REFERENCE_PRECOMPUTED) t->batch_bytes += 2 * ftmem__round512(4 * job->micro_batch); /* two columns */
    t->eval_batch_bytes = optimizer_rows(shape, fed, shape->eval_b);
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

int64_t ftmem__segment_states(const ftmem__walk *walk, int32_t segment)
{
    const ftmem_job *job = walk->shape.job;
    int64_t sum = 0;
    int32_t i;
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        if (p->trained && p->segment == segment) sum += FTMEM__LIST_BYTES(job, p, ftmem__rule_for(job, p)->keep);
    }
    return sum;
}

void ftmem__totals_fill(ftmem__totals *t, const ftmem__walk *walk)
{
    int32_t i;
    memset(t, 0, sizeof *t);
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        int64_t count = ftmem__param_count(walk, p);
        t->weight_bytes[p->tensor_class] += p->bytes * count;
        t->narrowed_bytes += p->narrowed_bytes * count;
        if (p->base) t->parameters += p->n * count;
        else t->adapters += p->n * count;
        if (p->idle) t->trainable += p->n * count;
        if (p->trained) optimizer_add(t, walk->shape.job, p, count);
        optimizer_regular(&t->regular, &walk->shape, p, count);
    }
    t->scaler_bytes = walk->shape.job->grad_scaler == FTMEM_ON ? 1024 : 0;
    optimizer_update(t, walk);
    optimizer_batch(t, walk);
    t->resident = t->buffer_bytes + t->batch_bytes;
    for (i = 0; i < FTMEM_CLASS_END; i++) t->resident += t->weight_bytes[i];
}
