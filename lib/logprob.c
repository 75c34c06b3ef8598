/* Log-probabilities of labels, as TRL's trainers make them, and the losses made of them. */
#include "method.h"
#include "objective.h"

/* trl/kernels/chunked_logprob.py ChunkedLogProbFunction: statistics of each scored token, and one tile of logits */
enum { LOGPROB_STATISTICS = 7 };

static int64_t logprob_scored(const ftmem__low *low) /* tokens */
{
    int64_t all = low->shape->s - 1, completion = low->shape->job->completion_sequence;
    return low->b * (completion > 0 && completion < all ? completion : all);
}

static int16_t logprob_vector(ftmem__tape *tape, int64_t n, int32_t dtype)
{
    return ftmem__alloc(tape, FTMEM__OP_TILES, n, 1, dtype, tape->birth);
}

static ftmem__var logprob_owned(ftmem__tape *tape, int64_t n, int32_t dtype, ftmem__op op)
{
    ftmem__var v = ftmem__constant(n, 1, dtype);
    v.store = ftmem__alloc(tape, op, n, 1, dtype, tape->birth);
    return v;
}

/* One tile after another: the tile's buffer, and copies of rows and of words in the dtype of the matmul where it is another. */
static int32_t logprob_tiles(ftmem__tape *tape, const ftmem__var in[3], int16_t *held)
{
    int32_t dtype = in[2].dtype, count = 0;
    held[count++] = ftmem__alloc(tape, FTMEM__OP_TILES, ftmem__tile_rows(in) * FTMEM__TILE_WORDS, tape->big_cols, dtype, tape->birth);
    if (in[0].dtype != dtype) held[count++] = logprob_vector(tape, ftmem__tile_rows(in) * in[0].cols, dtype);
    if (in[1].dtype != dtype) ftmem__release(tape, logprob_vector(tape, ftmem__tile_words(in), dtype));
    return count;
}

/* log_z = running_max + log(sum_exp); entropy = log_z - x_sum_exp / sum_exp */
static ftmem__var logprob_statistic(ftmem__tape *tape, int64_t n)
{
    int16_t t = logprob_vector(tape, n, FTMEM_FP32);
    ftmem__var v = logprob_owned(tape, n, FTMEM_FP32, FTMEM__OP_TILES);
    ftmem__release(tape, t);
    return v;
}

/* hidden_states[:, :-1][mask] */
static ftmem__var logprob_rows(ftmem__low *low, ftmem__var x, ftmem__var mask, int64_t n)
{
    ftmem__tape *tape = low->tape;
    ftmem__var part = ftmem__apply(tape, FTMEM__OP_SLICE, &x, 1, x.n / low->shape->s * (low->shape->s - 1), x.cols, x.dtype), y;
    int16_t places = ftmem__alloc(tape, FTMEM__OP_TABLE, 2 * n, 2, FTMEM_INT64, tape->birth);
    y = ftmem__apply(tape, FTMEM__OP_INDEX, &part, 1, n * x.cols, x.cols, x.dtype);
    ftmem__save_var(tape, y, mask);
    ftmem__release(tape, places);
    ftmem__drop(tape, part);
    return y;
}

/* new_zeros(mask.shape).masked_scatter(mask, x) */
static ftmem__var logprob_scatter(ftmem__tape *tape, ftmem__var x, ftmem__var mask)
{
    int16_t zeros = logprob_vector(tape, mask.n, FTMEM_FP32);
    ftmem__var y = ftmem__apply(tape, FTMEM__OP_SCATTER, &x, 1, mask.n, 1, FTMEM_FP32);
    ftmem__save_var(tape, y, mask);
    ftmem__release(tape, zeros);
    return y;
}

/* ChunkedLogProbFunction.apply(in[0] rows, in[1] the head's matrix), in[2] standing for the dtype of its matmuls. The trained model's
   also gives the entropy, which it keeps. */
static ftmem__var logprob_function(ftmem__low *low, const ftmem__var in[3], int64_t n)
{
    ftmem__tape *tape = low->tape;
    bool trained = tape->mode != FTMEM__NO_GRAD;
    int16_t held[LOGPROB_STATISTICS + 2];
    int32_t count = 0;
    ftmem__var labels = logprob_owned(tape, n, FTMEM_INT64, FTMEM__OP_TABLE), log_z, entropy, y;
    while (count < LOGPROB_STATISTICS) held[count++] = logprob_vector(tape, n, FTMEM_FP32);
    count += logprob_tiles(tape, in, held + count);
    log_z = logprob_statistic(tape, n);
    y = ftmem__apply(tape, FTMEM__OP_TILES, in, 3, n, 1, FTMEM_FP32);
    entropy = trained ? logprob_statistic(tape, n) : ftmem__keep(tape, log_z);
    ftmem__save_var(tape, y, in[0]);
    ftmem__save_var(tape, y, labels);
    ftmem__save_var(tape, y, log_z);
    ftmem__save_var(tape, y, entropy);
    while (count > 0) ftmem__release(tape, held[--count]);
    ftmem__drop(tape, entropy);
    ftmem__drop(tape, log_z);
    ftmem__drop(tape, labels);
    tape->flops += 2.0 * (double)n * (double)in[1].n;
    return y;
}

/* trl/trainer/utils.py add_fused_lm_head. The stream stays the caller's. */
ftmem__var ftmem__low_tiles(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    int64_t n = logprob_scored(low);
    ftmem__var in[3], mask = logprob_owned(tape, low->b * (low->shape->s - 1), FTMEM_BOOL, FTMEM__OP_MASK), y, wide;
    tape->part = FTMEM__PART_HEAD;
    in[0] = logprob_rows(low, x, mask, n);
    in[1] = ftmem__low_head_matrix(low);
    in[2] = ftmem__constant(1, 1, low->shape->autocast ? low->shape->autocast : x.dtype);
    y = logprob_function(low, in, n);
    wide = logprob_scatter(tape, y, mask);
    ftmem__drop(tape, y);
    ftmem__drop(tape, in[1]);
    ftmem__drop(tape, in[0]);
    ftmem__drop(tape, mask);
    return wide;
}

/* A few numbers a row: logsigmoid keeps its operand and a buffer. */
static ftmem__var logprob_pairs(ftmem__low *low, ftmem__var rows)
{
    ftmem__var loss = ftmem__apply(low->tape, FTMEM__OP_MEAN, &rows, 1, 1, 1, FTMEM_FP32);
    ftmem__save_var(low->tape, loss, rows);
    return loss;
}

/* Sums over each row first. Takes over the log-probabilities. */
static ftmem__var logprob_loss(ftmem__low *low, ftmem__var logps)
{
    ftmem__tape *tape = low->tape;
    ftmem__var rows = ftmem__apply(tape, FTMEM__OP_SUM, &logps, 1, low->b, 1, FTMEM_FP32), loss = logprob_pairs(low, rows);
    ftmem__drop(tape, rows);
    ftmem__drop(tape, logps);
    return loss;
}

/* trl/kernels/logprob_entropy.py over logits[:, :-1, :]: keeps them and two numbers a token, and also gives the entropy. */
static ftmem__var logprob_selected(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    int64_t n = low->b * (low->shape->s - 1);
    ftmem__var part = ftmem__apply(tape, FTMEM__OP_SLICE, &logits, 1, n * logits.cols, logits.cols, logits.dtype), y;
    int16_t entropy = logprob_vector(tape, n, FTMEM_FP32);
    y = ftmem__apply(tape, FTMEM__OP_SELECTED, &part, 1, n, 1, FTMEM_FP32);
    ftmem__save_new(tape, y, n, 1, FTMEM_FP32);
    ftmem__save_new(tape, y, n, 1, FTMEM_FP32);
    ftmem__release(tape, entropy);
    ftmem__drop(tape, part);
    return y;
}

/* trl/experimental/orpo/orpo_trainer.py, cpo/cpo_trainer.py concatenated_forward: cross-entropy of the chosen rows, where asked for. */
static ftmem__var logprob_of_logits(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    ftmem__var half, nll, loss, sum;
    if (ftmem__objective_of(low->shape->job)->whole < 2) return logprob_loss(low, logprob_selected(low, logits));
    half = ftmem__apply(tape, FTMEM__OP_SLICE, &logits, 1, logits.n / 2, logits.cols, logits.dtype);
    nll = ftmem__low_shifted_loss(low, half);
    ftmem__drop(tape, half);
    loss = logprob_loss(low, logprob_selected(low, logits));
    sum = ftmem__binary(tape, FTMEM__OP_ADD, loss, nll);
    ftmem__drop(tape, nll);
    ftmem__drop(tape, loss);
    return sum;
}

/* Takes over x. */
static ftmem__var logprob_mean(ftmem__low *low, ftmem__var x)
{
    ftmem__var y = ftmem__apply(low->tape, FTMEM__OP_SUM, &x, 1, 1, 1, x.dtype);
    ftmem__drop(low->tape, x);
    return y;
}

/* The two sums of LabelSmoother over -log_softmax: of labels alone, and of all words, in fp32. The second one's backward comes first: of fp32
   operands its gradient is a view, and the two are added into a tensor that is new when the first has gone; else it is cast to 16 bit. */
static void logprob_sums(ftmem__low *low, ftmem__var minus, ftmem__var sums[2])
{
    ftmem__tape *tape = low->tape;
    ftmem__var places = logprob_owned(tape, minus.n / minus.cols, FTMEM_INT64, FTMEM__OP_TABLE);
    bool wide = minus.dtype == FTMEM_FP32;
    if (wide) sums[1] = ftmem__apply(tape, FTMEM__OP_MEAN, &minus, 1, places.n, 1, FTMEM_FP32);
    sums[0] = ftmem__apply(tape, FTMEM__OP_GATHER, &minus, 1, places.n, 1, minus.dtype);
    ftmem__save_var(tape, sums[0], places);
    if (!wide) sums[1] = ftmem__apply(tape, FTMEM__OP_MEAN, &minus, 1, places.n, 1, FTMEM_FP32);
    ftmem__drop(tape, places);
}

/* transformers/trainer_pt_utils.py LabelSmoother */
static ftmem__var logprob_smoothed(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    ftmem__var shifted = ftmem__low_shifted(low, logits), log = ftmem__unary(tape, FTMEM__OP_LOG_SOFTMAX, shifted),
               minus = ftmem__unary(tape, FTMEM__OP_NEG, log);
    ftmem__var sums[2], loss;
    ftmem__drop(tape, log);
    logprob_sums(low, minus, sums);
    loss = ftmem__binary(tape, FTMEM__OP_ADD, sums[0], sums[1]);
    ftmem__drop(tape, sums[1]);
    ftmem__drop(tape, sums[0]);
    ftmem__drop(tape, minus);
    ftmem__drop(tape, shifted);
    return logprob_mean(low, loss);
}

/* F.kl_div(mixture, target, log_target=True): exp(target) * (target - mixture) */
static ftmem__var logprob_divergence(ftmem__tape *tape, ftmem__var mixture, ftmem__var target)
{
    ftmem__var apart = ftmem__binary(tape, FTMEM__OP_SUB, target, mixture), weight = ftmem__unary(tape, FTMEM__OP_EXP, target);
    ftmem__var y = ftmem__binary(tape, FTMEM__OP_MUL, weight, apart);
    ftmem__drop(tape, weight);
    ftmem__drop(tape, apart);
    return y;
}

/* logsumexp of both models' log-probabilities, shifted and stacked. Its backward: (stack - result).exp() and the product. */
static ftmem__var logprob_mixture(ftmem__tape *tape, const ftmem__var log[2])
{
    ftmem__var shifted[2], stack, y;
    ftmem__node *node;
    shifted[0] = ftmem__unary(tape, FTMEM__OP_SHIFT, log[0]);
    shifted[1] = ftmem__unary(tape, FTMEM__OP_SHIFT, log[1]);
    stack = ftmem__apply(tape, FTMEM__OP_CAT, shifted, 2, 2 * log[0].n, log[0].cols, log[0].dtype);
    ftmem__drop(tape, shifted[1]);
    ftmem__drop(tape, shifted[0]);
    y = ftmem__apply(tape, FTMEM__OP_LOGSUMEXP, &stack, 1, log[0].n, log[0].cols, log[0].dtype);
    ftmem__save_var(tape, y, y);
    node = ftmem__recorded(tape, y);
    if (node) node->work = 2 * ftmem__round512(ftmem__bytes(stack.dtype, stack.n));
    ftmem__drop(tape, stack);
    return y;
}

/* jsd[mask].sum(), of the weighted sum of both divergences; takes them over when the sum is there. */
static ftmem__var logprob_masked_sum(ftmem__low *low, const ftmem__var part[2])
{
    ftmem__tape *tape = low->tape;
    ftmem__var scaled[2], sum, mask = logprob_owned(tape, low->b * (low->shape->s - 1), FTMEM_BOOL, FTMEM__OP_MASK), scored, loss;
    scaled[0] = ftmem__unary(tape, FTMEM__OP_SCALE, part[0]);
    scaled[1] = ftmem__unary(tape, FTMEM__OP_SCALE, part[1]);
    sum = ftmem__binary(tape, FTMEM__OP_ADD, scaled[0], scaled[1]);
    ftmem__drop(tape, scaled[1]);
    ftmem__drop(tape, scaled[0]);
    scored = ftmem__apply(tape, FTMEM__OP_INDEX, &sum, 1, logprob_scored(low) * sum.cols, sum.cols, sum.dtype);
    ftmem__save_var(tape, scored, mask);
    ftmem__drop(tape, sum);
    loss = logprob_mean(low, scored);
    ftmem__drop(tape, mask);
    return loss;
}

/* trl/experimental/gkd/gkd_trainer.py generalized_jsd_loss. The teacher's logits are the trainer's, who holds them (step.c). */
static ftmem__var logprob_jsd(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    int64_t n = low->b * (low->shape->s - 1) * logits.cols;
    ftmem__var part = ftmem__apply(tape, FTMEM__OP_SLICE, &logits, 1, n, logits.cols, logits.dtype), given[2], log[2], kl[2], mixture, loss;
    int32_t i;
    given[0] = ftmem__unary(tape, FTMEM__OP_SCALE, part);
    given[1] = ftmem__unary(tape, FTMEM__OP_SCALE, ftmem__constant(n, logits.cols, low->shape->autocast ? FTMEM_FP32 : low->shape->compute));
    for (i = 0; i < 2; i++) log[i] = ftmem__unary(tape, FTMEM__OP_LOG_SOFTMAX, given[i]);
    mixture = logprob_mixture(tape, log);
    for (i = 0; i < 2; i++) kl[i] = logprob_divergence(tape, mixture, log[1 - i]);
    loss = logprob_masked_sum(low, kl);
    for (i = 0; i < 2; i++) {
        ftmem__drop(tape, kl[i]);
        ftmem__drop(tape, log[i]);
        ftmem__drop(tape, given[i]);
    }
    ftmem__drop(tape, mixture);
    ftmem__drop(tape, part);
    return loss;
}

ftmem__var ftmem__low_loss_apart(ftmem__low *low, ftmem__var x)
{
    ftmem__var scores, loss;
    low->tape->part = FTMEM__PART_LOSS;
    if (low->shape->job->loss == FTMEM_LOSS_MEAN) return ftmem__apply(low->tape, FTMEM__OP_MEAN, &x, 1, 1, 1, x.dtype);
    if (low->shape->job->loss == FTMEM_LOSS_SMOOTHED) return logprob_smoothed(low, x);
    if (low->shape->job->loss == FTMEM_LOSS_TILES) return logprob_loss(low, ftmem__keep(low->tape, x));
    if (ftmem__objective_of(low->shape->job)->loss == FTMEM__LOSS_LOGPS) return logprob_of_logits(low, x);
    if (ftmem__objective_of(low->shape->job)->loss == FTMEM__LOSS_DIVERGENCE) return logprob_jsd(low, x);
    scores = ftmem__low_last_token(low, x);
    loss = logprob_pairs(low, scores);
    ftmem__drop(low->tape, scores);
    return loss;
}
