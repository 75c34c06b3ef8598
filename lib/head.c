/* What stands between the blocks and the logits: a family's list of steps for each task. */
#include "lower.h"

static void head_replace(ftmem__tape *tape, ftmem__var *place, ftmem__var value)
{
    ftmem__drop(tape, *place);
    *place = value;
}

/* A tensor of the head: frozen with a trained copy where PEFT's modules_to_save names the head. */
ftmem__var ftmem__low_head_parameter(ftmem__low *low, int64_t n, int64_t cols)
{
    const ftmem__shape *shape = low->shape;
    bool trained = n == cols ? ftmem__shape_bias_trained(shape, shape->head_own_trained) : shape->head_own_trained;
    ftmem__var w = ftmem__low_parameter(low, FTMEM_ROLE_HEAD, n, cols, trained && !shape->head_copy);
    return shape->head_copy ? ftmem__low_copy(low, FTMEM_ROLE_HEAD, n, cols) : w;
}

/* A linear of hidden x hidden. In the base model and before a masked LM's decoder it is a linear like those of the blocks, without
   a number, so that LoRA in some layers only passes it over; in a classifier it belongs to what modules_to_save names. */
static ftmem__var head_dense(ftmem__low *low, ftmem__var x, bool inside)
{
    const ftmem__shape *shape = low->shape;
    int64_t h = shape->job->task == FTMEM_TASK_MASKED_LM ? shape->embedding_width : shape->h;
    ftmem__var w, bias;
    if (!inside || shape->job->task == FTMEM_TASK_MASKED_LM || shape->family->head_apart) {
        low->adapted = ftmem__shape_outside_adapted(shape);
        low->unquantized = shape->family->head_unquantized;
        low->trained = inside ? shape->head_own_trained && !shape->head_copy : shape->rest_trained;
        return ftmem__low_linear(low, FTMEM_ROLE_POOL, x, h, !shape->family->head_unbiased);
    }
    w = ftmem__low_head_parameter(low, h * x.cols, x.cols);
    bias = ftmem__low_head_parameter(low, h, h);
    return ftmem__low_plain_linear(low, x, w, &bias, h);
}

/* modeling_modernbert.py: (last_hidden_state * attention_mask).sum(dim=1) / attention_mask.sum(dim=1) */
static ftmem__var head_mean(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var in[2], product, sum, y;
    in[0] = x;
    in[1] = ftmem__constant(low->tokens, 1, FTMEM_BOOL);
    in[1].store = ftmem__alloc(tape, FTMEM__OP_MASK, low->tokens, 1, FTMEM_BOOL, tape->birth);
    product = ftmem__apply(tape, FTMEM__OP_MUL, in, 2, x.n, x.cols, x.dtype);
    sum = ftmem__apply(tape, FTMEM__OP_SUM, &product, 1, low->b * x.cols, x.cols, x.dtype);
    ftmem__drop(tape, product);
    y = ftmem__unary(tape, FTMEM__OP_SCALE, sum);
    ftmem__drop(tape, sum);
    ftmem__drop(tape, in[1]);
    return y;
}

/* hidden_states[:, 0] */
static ftmem__var head_first(ftmem__low *low, ftmem__var x)
{
    if (low->shape->model->mean_pooling == FTMEM_ON) return head_mean(low, x);
    return ftmem__apply(low->tape, FTMEM__OP_SLICE, &x, 1, low->b * x.cols, x.cols, x.dtype);
}

static void head_step(ftmem__low *low, ftmem__var *cur, uint8_t step, bool inside)
{
    ftmem__tape *tape = low->tape;
    switch (step) {
    case FTMEM__FIRST_TOKEN: head_replace(tape, cur, head_first(low, *cur)); break;
    case FTMEM__DENSE: head_replace(tape, cur, head_dense(low, *cur, inside)); break;
    case FTMEM__TANH: head_replace(tape, cur, ftmem__unary(tape, FTMEM__OP_TANH, *cur)); break;
    case FTMEM__RELU: head_replace(tape, cur, ftmem__unary(tape, FTMEM__OP_RELU, *cur)); break;
    case FTMEM__ACT: *cur = ftmem__low_activation(low, *cur); break;
    case FTMEM__NORM: head_replace(tape, cur, ftmem__low_norm(low, *cur, cur->cols)); break;
    case FTMEM__HEAD_DROPOUT: *cur = ftmem__low_dropout(low, *cur, low->shape->model->head_dropout); break;
    default: break;
    }
    tape->part = FTMEM__PART_HEAD;
}

/* The steps up to where the base model returns, or those after it; x stays the caller's. */
static ftmem__var head_run(ftmem__low *low, ftmem__var x, bool inside)
{
    const uint8_t *steps = low->shape->family->head[low->shape->job->task], *step, *start = steps;
    ftmem__var cur = ftmem__keep(low->tape, x);
    bool trained = low->trained;
    for (step = steps; step && *step != FTMEM__END; step++)
        if (*step == FTMEM__BASE_RETURNS) start = step + 1;
    low->tape->part = FTMEM__PART_HEAD;
    if (inside) low->trained = low->shape->head_own_trained && !low->shape->head_copy;
    for (step = inside ? start : steps; step && *step != FTMEM__END && (inside || step < start); step++) head_step(low, &cur, *step, inside);
    low->trained = trained;
    low->adapted = low->unquantized = false;
    return cur;
}

ftmem__var ftmem__low_pool(ftmem__low *low, ftmem__var x)
{
    return head_run(low, x, false);
}

ftmem__var ftmem__low_before_logits(ftmem__low *low, ftmem__var x)
{
    return head_run(low, x, true);
}
