/* The head and the loss: transformers' ForCausalLMLoss, its chunked and fused replacements, and classification. */
#include "method.h"
#include "objective.h"

static ftmem__var loss_head_weight(ftmem__low *low, int64_t out, int64_t width)
{
    const ftmem__shape *shape = low->shape;
    int64_t n = width * out;
    ftmem__var w;
    if (shape->tied && !shape->head_copy) {
        w = ftmem__weight(n, width, shape->ends, shape->head_trained);
        if (shape->head_trained) w.node = FTMEM__SHARED_LEAF;
        return shape->adapter->trainable_tokens ? ftmem__method_tokens(low, w, ftmem__method_token_rows(low, false)) : w;
    }
    if (shape->tied) return ftmem__low_copy(low, FTMEM_ROLE_HEAD, n, width); /* the frozen original is the embedding */
    return ftmem__low_head_parameter(low, n, width);
}

ftmem__var ftmem__low_head_matrix(ftmem__low *low)
{
    return loss_head_weight(low, low->shape->vocab, low->shape->h);
}

/* modeling_baichuan.py NormHead: normalize(weight) is made in each training forward. */
static ftmem__var loss_normed(ftmem__low *low, ftmem__var w, int64_t out)
{
    ftmem__tape *tape = low->tape;
    ftmem__var norm = ftmem__apply(tape, FTMEM__OP_MEAN, &w, 1, out, 1, w.dtype), y;
    y = ftmem__binary(tape, FTMEM__OP_MUL, w, norm);
    ftmem__drop(tape, norm);
    return y;
}

/* F.linear of the stream, or of a scaled copy of it (modeling_minicpm.py), and the head's weight. */
static ftmem__var loss_head(ftmem__low *low, ftmem__var x, bool has_bias, int64_t out, bool classify)
{
    const ftmem__family *family = low->shape->family;
    bool scaled = !classify && family->scale_before_head && low->shape->model->scaled == FTMEM_ON;
    ftmem__var w = loss_head_weight(low, out, x.cols), in = scaled ? ftmem__unary(low->tape, FTMEM__OP_SCALE, x) : ftmem__keep(low->tape, x), normed = w, bias,
               y;
    if (has_bias) bias = ftmem__low_head_parameter(low, out, out);
    if (family->normed_head && !classify) normed = loss_normed(low, w, out);
    y = ftmem__low_plain_linear(low, in, normed, has_bias ? &bias : NULL, out);
    if (family->normed_head && !classify) ftmem__drop(low->tape, normed);
    ftmem__drop(low->tape, w);
    if (scaled && !family->remote_code) low->scaled = in, low->has_scaled = true; /* modeling_minicpm3.py, modeling_t5.py: a name of the caller's */
    else ftmem__drop(low->tape, in);
    return y;
}

/* An image classifier is a linear like others to PEFT, which has no task type for it; bitsandbytes leaves it alone by its name. */
static ftmem__var loss_image_head(ftmem__low *low, ftmem__var x, int64_t out)
{
    bool trained = low->trained;
    ftmem__var y;
    low->trained = low->shape->head_own_trained;
    low->adapted = ftmem__shape_outside_adapted(low->shape);
    low->unquantized = true;
    y = ftmem__low_linear(low, FTMEM_ROLE_POOL, x, out, true);
    low->trained = trained;
    low->adapted = low->unquantized = false;
    return y;
}

enum { LOSS_WIDENED_APART = 446, LOSS_WIDENED_APART_LATE = 448, LOSS_SHIFTS_LABELS = 450 }; /* versions of transformers */

/* `logits = logits.float()` stands in the model's forward until loss_utils.py took it over (4.46; Mistral and Granite in 4.48). */
static bool loss_widens_in_model(const ftmem__shape *shape)
{
    int32_t apart = shape->family->loss_in_model ? LOSS_WIDENED_APART_LATE : LOSS_WIDENED_APART;
    return shape->job->transformers_version < apart && !shape->family->loss_own_dtype && !shape->family->loss_own_dtype_v4;
}

/* logits = head(x), scaled and soft-capped where the family does; x stays the caller's. */
ftmem__var ftmem__low_logits(ftmem__low *low, ftmem__var x)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    bool words = ftmem__task_of_vocab(shape->job->task);
    bool has_bias = words ? shape->model->head_bias == FTMEM_ON : shape->family->head[shape->job->task] != NULL;
    int64_t out = words ? shape->vocab : shape->job->classes;
    ftmem__var in = ftmem__low_before_logits(low, x), y, t;
    tape->part = FTMEM__PART_HEAD;
    if (shape->family->head_narrowed) {
        t = ftmem__cast(tape, in, shape->ends);
        ftmem__drop(tape, in);
        in = t;
    }
    if (shape->job->task == FTMEM_TASK_IMAGE_CLASSIFY && !shape->head_copy) {
        y = loss_image_head(low, in, out);
        ftmem__drop(tape, in);
        return y;
    }
    y = loss_head(low, in, has_bias, out, !words);
    ftmem__drop(tape, in);
    if (words && shape->family->logit_scale && shape->model->scaled == FTMEM_ON) {
        t = ftmem__unary(tape, FTMEM__OP_SCALE, y);
        ftmem__drop(tape, y);
        y = t;
    }
    if (shape->family->logits_buffer) {
        t = ftmem__binary(tape, FTMEM__OP_ADD, y, ftmem__constant(out, out, shape->compute)); /* k-bit preparation widens parameters alone */
        ftmem__drop(tape, y);
        y = t;
    }
    if (words && shape->model->logit_softcap > 0) y = ftmem__low_softcap(low, y);
    if (!words || !(shape->family->logits_fp32 || loss_widens_in_model(shape))) return y;
    t = ftmem__cast(tape, y, FTMEM_FP32);
    ftmem__drop(tape, y);
    return t;
}

/* One Triton kernel over the logits, which keeps them and a log-sum-exp a row and writes their gradient over them (unsloth
   kernels/cross_entropy_loss.py Fast_CrossEntropyLoss, liger_kernel/ops/cross_entropy.py); a sum of the rows' losses. */
static ftmem__var loss_fused_kernel(ftmem__tape *tape, ftmem__var logits)
{
    int64_t rows = logits.n / logits.cols;
    ftmem__var each = ftmem__apply(tape, FTMEM__OP_FUSED_CE, &logits, 1, rows, 1, FTMEM_FP32), loss;
    ftmem__save_new(tape, each, rows, 1, FTMEM_FP32);
    loss = ftmem__apply(tape, FTMEM__OP_SUM, &each, 1, 1, 1, FTMEM_FP32);
    ftmem__drop(tape, each);
    return loss;
}

/* A compiled cross-entropy: it keeps the logits as they come and two numbers a row. In backward nll_loss's scatter stands in fp32 beside
   the gradient (torch/_decomp nll_loss_backward; torch 2.13's inductor may fuse it). */
static ftmem__var loss_compiled(ftmem__tape *tape, ftmem__var logits)
{
    int64_t rows = logits.n / logits.cols;
    ftmem__var loss = ftmem__apply(tape, FTMEM__OP_COMPILED_CE, &logits, 1, 1, 1, FTMEM_FP32);
    ftmem__node *node = ftmem__recorded(tape, loss);
    if (node) node->work = ftmem__bytes(FTMEM_FP32, logits.n);
    ftmem__save_new(tape, loss, rows, 1, FTMEM_FP32);
    ftmem__save_new(tape, loss, rows, 1, FTMEM_FP32);
    return loss;
}

/* F.cross_entropy(logits, labels): log_softmax and nll_loss over rows x classes, the first in the logits' own dtype, the second
   in fp32 under autocast. */
static ftmem__var loss_cross_entropy(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    ftmem__var log, in, loss;
    if (low->shape->job->kernels & FTMEM_FUSED_CE) return loss_fused_kernel(tape, logits);
    if (low->shape->job->compile & FTMEM_COMPILE_LOSS) return loss_compiled(tape, logits);
    log = ftmem__unary(tape, FTMEM__OP_LOG_SOFTMAX, logits);
    in = ftmem__cast(tape, log, low->shape->autocast ? FTMEM_FP32 : log.dtype);
    ftmem__drop(tape, log);
    loss = ftmem__apply(tape, FTMEM__OP_NLL, &in, 1, 1, 1, in.dtype);
    ftmem__save_new(tape, loss, 1, 1, in.dtype); /* total_weight */
    ftmem__drop(tape, in);
    return loss;
}

/* The same over logits.float(), which is a local of loss_utils.py ForCausalLMLoss; some models' own losses do not widen. */
static ftmem__var loss_widened(ftmem__low *low, ftmem__var logits)
{
    const ftmem_job *job = low->shape->job;
    ftmem__var wide, loss;
    if (job->compile & FTMEM_COMPILE_LOSS && job->loss == FTMEM_LOSS_SPLIT) return loss_compiled(low->tape, logits); /* the graph widens */
    wide = ftmem__cast(low->tape, logits, low->shape->family->loss_own_dtype ? logits.dtype : FTMEM_FP32);
    loss = loss_cross_entropy(low, wide);
    ftmem__drop(low->tape, wide);
    return loss;
}

/* logits[..., :-1, :].contiguous(): a copy, unless there is one row. */
ftmem__var ftmem__low_shifted(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    ftmem__var part = ftmem__apply(tape, FTMEM__OP_SLICE, &x, 1, x.n / low->shape->s * (low->shape->s - 1), x.cols, x.dtype), copy;
    if (x.n == low->shape->s * x.cols) return part;
    copy = ftmem__unary(tape, FTMEM__OP_CLONE, part);
    ftmem__drop(tape, part);
    return copy;
}

/* transformers before 4.50 shifts logits and labels by copies, whose names live until the loss is there. */
static ftmem__var loss_causal_shifted(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    bool own = low->shape->family->loss_own_dtype || low->shape->family->loss_own_dtype_v4;
    ftmem__var wide = ftmem__cast(tape, logits, own ? logits.dtype : FTMEM_FP32), shifted = ftmem__low_shifted(low, wide), loss;
    ftmem__var labels = ftmem__constant(low->tokens, 1, FTMEM_INT64);
    labels.store = ftmem__alloc(tape, FTMEM__OP_TABLE, low->tokens - low->b, 0, FTMEM_INT64, tape->birth);
    loss = loss_cross_entropy(low, shifted);
    ftmem__save_var(tape, loss, labels);
    ftmem__release(tape, labels.store);
    ftmem__drop(tape, shifted);
    ftmem__drop(tape, wide);
    return loss;
}

/* CrossEntropyLoss over logits[..., :-1, :].contiguous() and copied labels, in the logits' own dtype. */
ftmem__var ftmem__low_shifted_loss(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    ftmem__var shifted = ftmem__low_shifted(low, logits), labels, log, loss;
    labels = ftmem__constant(shifted.n / shifted.cols, 1, FTMEM_INT64);
    labels.store = ftmem__alloc(tape, FTMEM__OP_TABLE, labels.n, 0, FTMEM_INT64, tape->birth);
    log = ftmem__unary(tape, FTMEM__OP_LOG_SOFTMAX, shifted);
    loss = ftmem__apply(tape, FTMEM__OP_NLL, &log, 1, 1, 1, log.dtype);
    ftmem__save_new(tape, loss, 1, 1, log.dtype);
    ftmem__save_var(tape, loss, labels);
    ftmem__drop(tape, labels);
    ftmem__drop(tape, log);
    ftmem__drop(tape, shifted);
    return loss;
}

/* loss_utils.py ForCausalLMLoss: the labels are shifted, not the logits: padded by one, and copied when rows are more than
   one. The padded ones are the function's argument and live until it returns. */
static ftmem__var loss_causal(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    int16_t padded = ftmem__alloc(tape, FTMEM__OP_TABLE, low->b * (low->shape->s + 1), 0, FTMEM_INT64, tape->birth);
    int16_t shifted = low->b > 1 ? ftmem__alloc(tape, FTMEM__OP_TABLE, low->tokens, 0, FTMEM_INT64, tape->birth) : padded;
    ftmem__var loss, labels = ftmem__constant(low->tokens, 1, FTMEM_INT64);
    labels.store = shifted;
    loss = loss_widened(low, logits);
    ftmem__save_var(tape, loss, labels);
    if (shifted != padded) ftmem__release(tape, padded);
    ftmem__release(tape, shifted);
    return loss;
}

/* One class is a regression (loss_utils.py ForSequenceClassificationLoss). */
static ftmem__var loss_rows(ftmem__low *low, ftmem__var logits)
{
    ftmem__var wide, loss;
    if (low->shape->job->classes != 1) return loss_cross_entropy(low, logits);
    wide = ftmem__cast(low->tape, logits, low->shape->autocast ? FTMEM_FP32 : logits.dtype);
    loss = ftmem__apply(low->tape, FTMEM__OP_MSE, &wide, 1, 1, 1, wide.dtype);
    ftmem__drop(low->tape, wide);
    return loss;
}

ftmem__var ftmem__low_last_token(ftmem__low *low, ftmem__var logits)
{
    return ftmem__apply(low->tape, FTMEM__OP_EMBEDDING, &logits, 1, low->b * logits.cols, logits.cols, logits.dtype);
}

/* A decoder's classifier. */
static ftmem__var loss_last_token(ftmem__low *low, ftmem__var logits)
{
    ftmem__tape *tape = low->tape;
    ftmem__var pooled = ftmem__low_last_token(low, logits), loss;
    loss = loss_rows(low, pooled);
    ftmem__drop(tape, pooled);
    return loss;
}

ftmem__var ftmem__low_loss(ftmem__low *low, ftmem__var logits)
{
    const ftmem__family *family = low->shape->family;
    int32_t task = low->shape->job->task;
    low->tape->part = FTMEM__PART_LOSS;
    if (ftmem__loss_apart(low->shape->job)) return ftmem__low_loss_apart(low, logits);
    if (family->head[task]) return ftmem__task_by_row(task) ? loss_rows(low, logits) : loss_widened(low, logits);
    if (task == FTMEM_TASK_CLASSIFY) return loss_last_token(low, logits);
    if (low->shape->crossed) return loss_widened(low, logits); /* labels of a decoder come shifted */
    if (low->shape->job->transformers_version < LOSS_SHIFTS_LABELS) return loss_causal_shifted(low, logits);
    return loss_causal(low, logits);
}

/* accelerate/utils/operations.py ConvertOutputsToFp32: what the model returns under autocast becomes fp32. Takes over the logits. */
ftmem__var ftmem__low_outputs(ftmem__low *low, ftmem__var logits)
{
    ftmem__var wide;
    if (low->shape->job->outputs_fp32 != FTMEM_ON || !low->shape->autocast) return logits;
    wide = ftmem__cast(low->tape, logits, FTMEM_FP32);
    ftmem__drop(low->tape, logits);
    return wide;
}

/* ----------------------------------------------------------------------------------------- losses without logits */

static int64_t loss_power_of_two(int64_t x)
{
    int64_t p = 1;
    while (p < x) p *= 2;
    return p;
}

/* Liger-Kernel fused_linear_cross_entropy: rows a chunk so that a chunk of logits is about the size of the hidden states. */
static int64_t loss_fused_rows(int64_t tokens, int64_t vocab, int64_t hidden)
{
    int64_t parts = (vocab + hidden - 1) / hidden, rows = loss_power_of_two((tokens + parts - 1) / parts);
    return rows < tokens ? rows : tokens;
}

/* The chunks of forward: logits of one chunk (two while the loop variable changes hands), the gradient of its hidden
   states, and the head's gradient of this chunk. */
static void loss_fused_chunks(ftmem__low *low, int64_t rows, int32_t dtype, bool head)
{
    ftmem__tape *tape = low->tape;
    int64_t v = low->shape->vocab, h = low->shape->h;
    int16_t last = -1, logits, part;
    int32_t i;
    for (i = 0; i < 2 && (i == 0 || rows < low->tokens); i++) {
        logits = ftmem__alloc(tape, FTMEM__OP_FUSED_LOSS, rows * v, v, dtype, tape->birth);
        ftmem__release(tape, last);
        last = logits;
        part = ftmem__alloc(tape, FTMEM__OP_FUSED_LOSS, rows * h, h, dtype, tape->birth);
        ftmem__release(tape, part);
        if (!head) continue;
        part = ftmem__alloc(tape, FTMEM__OP_FUSED_LOSS, v * h, h, dtype, tape->birth);
        ftmem__release(tape, part);
    }
    ftmem__release(tape, last);
}

/* The bias of a head whose product is not lowered as one linear; a fused loss takes the matrix only, and gives it no gradient. */
static void loss_lone_bias(ftmem__low *low, bool fused)
{
    bool no_grad = low->tape->no_grad;
    low->tape->no_grad = no_grad || fused;
    if (low->shape->model->head_bias == FTMEM_ON)
        (void)ftmem__low_parameter(low, FTMEM_ROLE_HEAD, low->shape->vocab, low->shape->vocab, low->shape->head_trained);
    low->tape->no_grad = no_grad;
}

ftmem__var ftmem__low_fused_loss(ftmem__low *low, ftmem__var x)
{
    const ftmem__shape *shape = low->shape;
    ftmem__tape *tape = low->tape;
    int64_t v = shape->vocab, h = shape->h;
    int32_t dtype = shape->autocast ? shape->autocast : shape->ends;
    ftmem__var w = loss_head_weight(low, v, h), in[2], loss;
    int16_t gh, gw = -1, each;
    low->tape->part = FTMEM__PART_LOSS;
    loss_lone_bias(low, true);
    in[0] = ftmem__cast(tape, x, dtype);
    in[1] = ftmem__cast(tape, w, dtype);
    gh = ftmem__alloc(tape, FTMEM__OP_FUSED_LOSS, low->tokens * h, h, dtype, tape->birth);
    if (in[1].grad) gw = ftmem__alloc(tape, FTMEM__OP_FUSED_LOSS, v * h, h, dtype, tape->birth);
    each = ftmem__alloc(tape, FTMEM__OP_FUSED_LOSS, low->tokens, 1, FTMEM_FP32, tape->birth);
    loss_fused_chunks(low, loss_fused_rows(low->tokens, v, h), dtype, gw >= 0);
    loss = ftmem__apply(tape, FTMEM__OP_FUSED_LOSS, in, 2, 1, 1, FTMEM_FP32);
    tape->flops += (gw >= 0 ? 6.0 : 4.0) * (double)low->tokens * (double)v * (double)h;
    if (ftmem__recorded(tape, loss)) {
        ftmem__var kept = loss;
        kept.store = gh;
        ftmem__save_var(tape, loss, kept);
        kept.store = gw;
        ftmem__save_var(tape, loss, kept);
    }
    ftmem__release(tape, each);
    ftmem__release(tape, gw);
    ftmem__release(tape, gh);
    ftmem__drop(tape, in[1]);
    ftmem__drop(tape, in[0]);
    return loss;
}

typedef struct loss_chunk {
    int64_t rows, count;
    int32_t dtype;
    bool head;
} loss_chunk;

static loss_chunk loss_chunk_of(const ftmem__low *low)
{
    loss_chunk c;
    c.rows = low->shape->job->loss_chunk_tokens < low->tokens ? low->shape->job->loss_chunk_tokens : low->tokens;
    c.count = (low->tokens + c.rows - 1) / c.rows;
    c.dtype = low->shape->autocast ? low->shape->autocast : low->shape->ends;
    c.head = low->shape->head_trained;
    return c;
}

/* One chunk's head, float() and log_softmax; returns the log-probabilities. `cast` is autocast's copy of the head's
   matrix: released when the logits are there, unless backward will ask for it. */
static int16_t loss_chunk_forward(ftmem__low *low, const loss_chunk *c, ftmem__var cast, bool keep)
{
    ftmem__tape *tape = low->tape;
    int64_t v = low->shape->vocab, n = c->rows * v;
    int16_t logits = ftmem__alloc(tape, FTMEM__OP_LINEAR, n, v, c->dtype, tape->birth), wide = logits, log;
    if (!keep) ftmem__drop(tape, cast);
    if (c->dtype != FTMEM_FP32) {
        wide = ftmem__alloc(tape, FTMEM__OP_CAST, n, v, FTMEM_FP32, tape->birth);
        ftmem__release(tape, logits);
    }
    log = ftmem__alloc(tape, FTMEM__OP_LOG_SOFTMAX, n, v, FTMEM_FP32, tape->birth);
    ftmem__release(tape, wide);
    return log;
}

void ftmem__low_chunked_forward(ftmem__low *low, ftmem__var x)
{
    loss_chunk c = loss_chunk_of(low);
    ftmem__var w = loss_head_weight(low, low->shape->vocab, low->shape->h), w16;
    (void)x;
    low->tape->part = FTMEM__PART_LOSS;
    loss_lone_bias(low, false);
    low->tape->flops += 2.0 * (double)low->tokens * (double)w.n;
    w16 = ftmem__cast_weight(low->tape, w, c.dtype);
    ftmem__release(low->tape, loss_chunk_forward(low, &c, w16, false));
}

/* The gradient of one chunk's logits, from its log-probabilities: nll, log_softmax, and back to the logits' dtype. */
static int16_t loss_chunk_logits(ftmem__tape *tape, const loss_chunk *c, int64_t v, int16_t log)
{
    int64_t n = c->rows * v;
    int16_t a = ftmem__alloc(tape, FTMEM__OP_NLL, n, v, FTMEM_FP32, tape->birth);
    int16_t b = ftmem__alloc(tape, FTMEM__OP_LOG_SOFTMAX, n, v, FTMEM_FP32, tape->birth);
    ftmem__release(tape, a);
    ftmem__release(tape, log);
    if (c->dtype == FTMEM_FP32) return b;
    a = ftmem__alloc(tape, FTMEM__OP_CAST, n, v, c->dtype, tape->birth);
    ftmem__release(tape, b);
    return a;
}

/* A sum in place: the first tensor stays, later ones are added and freed. */
static void loss_chunk_sum(ftmem__tape *tape, int16_t *sum, int16_t part)
{
    if (*sum < 0) *sum = part;
    else ftmem__release(tape, part);
}

/* One chunk back to its rows of the hidden states, written into zeros of the whole, and to the head's matrix. */
static void loss_chunk_backward(ftmem__low *low, const loss_chunk *c, ftmem__var x, int16_t *whole, int16_t *head)
{
    ftmem__tape *tape = low->tape;
    int64_t v = low->shape->vocab, h = low->shape->h;
    ftmem__var w = ftmem__weight(v * h, h, low->shape->ends, false), w16;
    int16_t log, g, gw = -1, gx, wide;
    tape->mode = FTMEM__NO_GRAD;
    w16 = ftmem__cast(tape, w, c->dtype);
    tape->backward = false;
    log = loss_chunk_forward(low, c, w16, true);
    tape->backward = true;
    g = loss_chunk_logits(tape, c, v, log);
    if (c->head) gw = ftmem__alloc(tape, FTMEM__OP_LINEAR, v * h, h, c->dtype, tape->birth);
    gx = ftmem__alloc(tape, FTMEM__OP_LINEAR, c->rows * h, h, c->dtype, tape->birth);
    ftmem__release(tape, g);
    ftmem__drop(tape, w16);
    if (c->head) loss_chunk_sum(tape, head, gw);
    wide = ftmem__alloc(tape, FTMEM__OP_SLICE, x.n, x.cols, x.dtype, tape->birth);
    ftmem__release(tape, gx);
    loss_chunk_sum(tape, whole, wide);
}

/* Each chunk is recomputed and walked back. Autocast casts the head once for all chunks, so its gradient is summed in
   that dtype and widened at the end. The third chunk peaks as all later ones do. */
void ftmem__low_chunked_backward(ftmem__low *low, ftmem__var x)
{
    ftmem__tape *tape = low->tape;
    loss_chunk c = loss_chunk_of(low);
    int64_t v = low->shape->vocab, h = low->shape->h, i;
    int16_t whole = -1, head = -1, wide;
    ftmem__var w = ftmem__weight(v * h, h, low->shape->ends, c.head);
    if (c.head && low->shape->tied && !low->shape->head_copy) w.node = FTMEM__SHARED_LEAF;
    tape->flops += (c.head ? 6.0 : 4.0) * (double)low->tokens * (double)v * (double)h;
    for (i = 0; i < c.count && i < 3; i++) loss_chunk_backward(low, &c, x, &whole, &head);
    tape->mode = FTMEM__RECORD;
    if (head >= 0 && c.dtype != low->shape->ends) {
        wide = ftmem__alloc(tape, FTMEM__OP_CAST, v * h, h, low->shape->ends, tape->birth);
        ftmem__release(tape, head);
        head = wide;
    }
    if (head >= 0) ftmem__deliver(tape, w, head);
    ftmem__deliver(tape, x, whole);
}

/* ------------------------------------------------------------------------------- logits that exist chunk by chunk */

enum { LOSS_CHUNKS = 32 };

static ftmem__var loss_split_weight(ftmem__low *low)
{
    const ftmem__shape *shape = low->shape;
    if (!shape->head_quantized) return loss_head_weight(low, shape->vocab, shape->h);
    ftmem__low_quantized_parameter(low, FTMEM_ROLE_HEAD, shape->h, shape->vocab);
    return ftmem__constant(shape->h * shape->vocab, shape->h, shape->dtype);
}

/* The head of one chunk, h.chunk(...) or x.split(...), both views. The matrix takes the gradient of the last chunk, which
   comes first; those of the others are added to it and freed. */
static ftmem__var loss_split_logits(ftmem__low *low, ftmem__var x, ftmem__var w, int64_t rows, bool last)
{
    ftmem__var part = ftmem__apply(low->tape, FTMEM__OP_SLICE, &x, 1, rows * x.cols, x.cols, x.dtype), y;
    if (!last) w.node = FTMEM__NO_NODE;
    if (low->shape->head_quantized) y = ftmem__low_quantized_head(low, part, low->shape->vocab);
    else y = ftmem__low_plain_linear(low, part, w, NULL, low->shape->vocab);
    ftmem__drop(low->tape, part);
    return y;
}

/* lightning/fabric/plugins/precision/half.py convert_output: what the wrapped model returns becomes fp32. Takes over x. */
static ftmem__var loss_converted(ftmem__tape *tape, ftmem__var x)
{
    ftmem__var wide = ftmem__cast(tape, x, FTMEM_FP32);
    ftmem__drop(tape, x);
    return wide;
}

static ftmem__var loss_split_sum(ftmem__low *low, const ftmem__var *logits, int32_t count)
{
    ftmem__tape *tape = low->tape;
    ftmem__var loss = loss_widened(low, logits[0]), part, sum;
    int32_t i;
    for (i = 1; i < count; i++) {
        part = loss_widened(low, logits[i]);
        sum = ftmem__binary(tape, FTMEM__OP_ADD, loss, part);
        ftmem__drop(tape, part);
        ftmem__drop(tape, loss);
        loss = sum;
    }
    return loss;
}

/* torchtune/modules/loss/ce_chunked_output_loss.py widens each chunk; litgpt's training
   loop has fp32 chunks in `logits`, which lives until the next forward. All chunks have their logits before the first has its loss. */
int64_t ftmem__low_split_loss(ftmem__low *low, ftmem__var x, ftmem__var *loss)
{
    ftmem__tape *tape = low->tape;
    bool litgpt = low->shape->job->stack == FTMEM_STACK_LITGPT;
    int64_t rows = low->shape->job->loss_chunk_tokens, left = low->tokens, held = 0;
    int32_t count = (int32_t)((left + rows - 1) / rows), i;
    ftmem__var logits[LOSS_CHUNKS], w = loss_split_weight(low);
    if (count > LOSS_CHUNKS) tape->exhausted = true, count = LOSS_CHUNKS;
    loss_lone_bias(low, false);
    for (i = 0; i < count; i++, left -= rows) logits[i] = loss_split_logits(low, x, w, left < rows ? left : rows, i == count - 1);
    for (i = 0; i < count && litgpt; i++) logits[i] = loss_converted(tape, logits[i]);
    tape->part = FTMEM__PART_LOSS;
    *loss = loss_split_sum(low, logits, count);
    for (i = 0; i < count; i++) {
        if (!litgpt) ftmem__drop(tape, logits[i]);
        else if (logits[i].store >= 0) held += tape->stores[logits[i].store].bytes;
    }
    return held;
}
