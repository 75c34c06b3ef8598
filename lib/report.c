/* What is alive at the peak: the segment that runs is walked again up to that moment, and its tape is read beside what the others left. */
#include "step.h"

enum { REPORT_KINDS = 64, REPORT_PLACES = 256 };
typedef struct report {
    ftmem__step *step;
    ftmem_memory *memory;
    ftmem_tensor kind[REPORT_KINDS];
    int32_t count;
    uint8_t place[REPORT_PLACES]; /* 1 + the line that has this hash, or the next free place after it */
    int64_t times;                /* how many blocks a tape stands for */
    bool others;                  /* a finished forward: the result belongs to the next segment */
    bool keep_result;
    bool released; /* forward is over */
    const char *op, *part;
} report;

/* One line for equal shape, dtype and origin; parameters of one shape are one line wherever they stand. */
static bool report_alike(const ftmem_tensor *a, const ftmem_tensor *b)
{
    bool same = a->tensor_class == b->tensor_class && a->dtype == b->dtype && a->dims[0] == b->dims[0] && a->dims[1] == b->dims[1] && a->op == b->op;
    return same && (a->part == b->part || a->tensor_class < FTMEM_CLASS_KEPT);
}

static uint32_t report_hash(const ftmem_tensor *t)
{
    uint32_t shape = (uint32_t)t->dims[0] * 31u + (uint32_t)t->dims[1];
    return (shape * 31u + (uint32_t)(t->tensor_class * 16 + t->dtype)) * 2654435761u >> 24;
}

/* When lines run out the classes still get their bytes. */
static void report_tensor(report *r, const ftmem_tensor *t)
{
    uint32_t at = report_hash(t);
    ftmem_tensor *line;
    r->memory->at_peak[t->tensor_class] += t->bytes;
    for (; r->place[at]; at = (at + 1) % REPORT_PLACES) {
        line = &r->kind[r->place[at] - 1];
        if (!report_alike(line, t)) continue;
        line->bytes += t->bytes;
        line->count += t->count;
        return;
    }
    if (r->count == REPORT_KINDS) return;
    r->kind[r->count++] = *t;
    r->place[at] = (uint8_t)r->count;
}

static void report_store(report *r, const ftmem__store *s)
{
    ftmem_tensor t = { 0 };
    t.bytes = (uint64_t)(s->bytes * r->times);
    t.count = r->times;
    t.dims[0] = s->cols > 0 ? s->n / s->cols : s->n;
    t.dims[1] = s->cols;
    t.tensor_class = s->tensor_class;
    t.dtype = s->dtype;
    t.op = ftmem__op_name(s->op, s->backward);
    t.part = ftmem__part_name(s->part);
    report_tensor(r, &t);
}

/* Left by a forward that is over. */
static void report_left(report *r, const ftmem__store *s)
{
    if (s->side || (r->released && s->cached && s->refs == 1)) return; /* counted by itself; gone with autocast's cache */
    report_store(r, s);
}

static void report_tape(void *context, const ftmem__tape *tape, ftmem__op op)
{
    report *r = context;
    int16_t i;
    if (op != FTMEM__OP_END) {
        r->op = ftmem__op_name((int32_t)op, tape->backward);
        r->part = ftmem__part_name(tape->part);
    }
    for (i = 0; i < tape->high; i++) {
        if (tape->stores[i].refs <= 0) continue;
        if (r->others && i == tape->result && !r->keep_result) continue;
        if (r->others) report_left(r, &tape->stores[i]);
        else if (!tape->stores[i].side) report_store(r, &tape->stores[i]);
    }
}

static void report_bytes(report *r, int32_t tensor_class, int64_t bytes, ftmem__op op, int32_t part)
{
    ftmem_tensor t = { 0 };
    if (bytes <= 0) return;
    t.bytes = (uint64_t)bytes;
    t.count = 1;
    t.dims[0] = bytes;
    t.tensor_class = tensor_class;
    t.dtype = FTMEM_INT8;
    t.op = ftmem__op_name((int32_t)op, false);
    t.part = ftmem__part_name(part);
    report_tensor(r, &t);
}

static int32_t report_part_of(int32_t role)
{
    if (role <= FTMEM_ROLE_O || (role >= FTMEM_ROLE_Q_DOWN && role <= FTMEM_ROLE_INDEX_WEIGHTS)) return FTMEM__PART_ATTENTION;
    if (role == FTMEM_ROLE_TOWER) return FTMEM__PART_TOWER;
    if (role == FTMEM_ROLE_HEAD || role == FTMEM_ROLE_POOL) return FTMEM__PART_HEAD;
    if (role <= FTMEM_ROLE_DOWN || (role > FTMEM_ROLE_POSITION && role < FTMEM_ROLE_POOL)) return FTMEM__PART_MLP;
    return role == FTMEM_ROLE_NORM ? FTMEM__PART_NORM : FTMEM__PART_EMBEDDING;
}

static void report_param(report *r, const ftmem__param *p, int32_t tensor_class, int64_t count, int64_t bytes, ftmem__op op)
{
    ftmem_tensor t = { 0 };
    if (count <= 0) return;
    t.bytes = (uint64_t)(bytes * count);
    t.count = count;
    t.dims[0] = p->rows ? p->rows : p->n;
    t.dims[1] = p->rows ? p->n / p->rows : 0;
    t.tensor_class = tensor_class;
    t.dtype = p->dtype;
    t.op = ftmem__op_name((int32_t)op, false);
    t.part = ftmem__part_name(report_part_of(p->role));
    report_tensor(r, &t);
}

/* How many blocks of each kind of one stack lie in [from, to); adds to the counts. */
static void report_layers(const ftmem__walk *walk, int32_t stack, int64_t from, int64_t to, int64_t count[FTMEM__MAX_KINDS])
{
    int64_t i;
    for (i = from; i < to; i++) count[walk->stack[stack].of_layer[i]]++;
}

static int64_t report_depth(const ftmem__walk *walk, int32_t stack)
{
    return walk->stack[stack].shape->model->layers;
}

/* In a later micro-batch the tied head's new gradient waits for the embedding's, beside the summed one. */
static bool report_waits(const ftmem__walk *walk, const ftmem__moment *m)
{
    return m->pass == FTMEM__PASS_BACKWARD_LATER && m->segment != ftmem__walk_head(walk) && walk->shape.tied && walk->shape.head_trained &&
           !walk->shape.adapted;
}

/* The lowest block of a stack whose backward is over; as many as it has: none. */
static int64_t report_done(const ftmem__walk *walk, const ftmem__moment *m, int32_t stack)
{
    if (m->pass != FTMEM__PASS_BACKWARD || stack < m->stack) return report_depth(walk, stack);
    if (stack > m->stack || ftmem__segment_is_embed(m->segment)) return 0;
    return m->layer >= 0 ? m->layer + 1 : report_depth(walk, stack);
}

/* Whether the backward of a stack's end is over. */
static bool report_end_done(const ftmem__moment *m, int32_t stack)
{
    return m->pass == FTMEM__PASS_BACKWARD && (stack > m->stack || (stack == m->stack && m->segment != ftmem__segment_end(stack)));
}

/* Gradients that are there: of blocks above the running one, of the head; all of them in later micro-batches and at the step. */
static int64_t report_gradient_count(const ftmem__walk *walk, const ftmem__moment *m, const ftmem__param *p)
{
    int32_t stack = ftmem__walk_stack_of(walk, p->segment), last = walk->stacks - 1;
    if (p->role == FTMEM_ROLE_EMBED && walk->shape.tied && p->base) return report_end_done(m, last);
    if (p->segment == FTMEM__SEGMENT_WORDS) return 0; /* it comes last */
    if (p->segment == ftmem__segment_end(stack)) return report_end_done(m, stack);
    return m->pass == FTMEM__PASS_BACKWARD && stack > m->stack;
}

static int64_t report_any(const int64_t above[FTMEM__MAX_KINDS])
{
    int32_t i;
    for (i = 0; i < FTMEM__MAX_KINDS; i++)
        if (above[i] > 0) return 1;
    return 0;
}

/* Updated in backward, gradients are gone; a tied head's waits for the embedding's. */
static bool report_stays(const ftmem__walk *walk, const ftmem__param *p)
{
    return !ftmem__updates_in_backward(walk->shape.job) || (walk->shape.tied && p->role == FTMEM_ROLE_EMBED && p->base);
}

static void report_gradients(report *r)
{
    const ftmem__walk *walk = r->step->walk;
    const ftmem__moment *m = &r->step->peak;
    bool all = m->later_micro || ((m->phase == FTMEM_PHASE_OPTIMIZER || m->phase == FTMEM_PHASE_OPTIMIZER2) && !ftmem__updates_in_backward(walk->shape.job));
    int64_t above[FTMEM__MAX_KINDS] = { 0 };
    int32_t i;
    for (i = 0; i < walk->stacks; i++) report_layers(walk, i, all ? 0 : report_done(walk, m, i), report_depth(walk, i), above);
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        int64_t count;
        if (!p->trained || !report_stays(walk, p)) continue;
        if (p->segment >= 0 && walk->shape.family->shared_blocks) count = report_any(above);
        else if (p->segment >= 0) count = above[p->segment] * (p->outside ? 1 : p->copies);
        else count = all ? 1 : report_gradient_count(walk, m, p);
        if (p->role == FTMEM_ROLE_EMBED && p->base && report_waits(walk, m)) count++;
        report_param(r, p, FTMEM_CLASS_GRADIENTS, count, p->gradient_bytes, FTMEM__OP_GRADIENT);
    }
}

/* The tensors that an optimizer's list makes of one parameter. */
static void report_list(report *r, const ftmem__param *param, const uint8_t *list, int32_t capacity, int32_t tensor_class, int64_t count, ftmem__op op)
{
    int32_t i;
    for (i = 0; i < capacity && list[i]; i++) {
        ftmem__buffer buffer = ftmem__buffer_of(r->step->walk->shape.job, param, list[i]);
        ftmem__param p = *param;
        if (!buffer.bytes) continue;
        if (buffer.n != p.n || buffer.dtype == FTMEM_INT8) p.rows = 0; /* vectors and flat byte tensors */
        p.n = buffer.n;
        p.dtype = (uint8_t)buffer.dtype;
        report_param(r, &p, tensor_class, count, buffer.bytes, op);
    }
}

static void report_states(report *r)
{
    const ftmem__walk *walk = r->step->walk;
    const ftmem_job *job = walk->shape.job;
    int32_t i;
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        const ftmem__rule *rule = ftmem__rule_for(job, p);
        if (p->trained) report_list(r, p, rule->keep, (int32_t)sizeof rule->keep, FTMEM_CLASS_STATES, ftmem__param_count(walk, p), FTMEM__OP_STATE);
    }
}

/* The step's temporaries: one of each trained tensor, or a few of the one that needs most. */
static void report_step(report *r)
{
    const ftmem__walk *walk = r->step->walk;
    const ftmem__totals *t = &r->step->totals;
    int32_t i;
    if (t->step_param >= 0) {
        report_list(r, &walk->params.at[t->step_param], t->step_list, t->step_length, FTMEM_CLASS_TEMPORARY, 1, FTMEM__OP_STEP);
        return;
    }
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        const ftmem__rule *rule = ftmem__rule_for(walk->shape.job, p);
        if (p->trained) report_list(r, p, rule->each, (int32_t)sizeof rule->each, FTMEM_CLASS_TEMPORARY, ftmem__param_count(walk, p), FTMEM__OP_STEP);
    }
}

/* Models that are there for a forward without gradients. */
static void report_besides(report *r)
{
    const ftmem__step *step = r->step;
    int32_t i, k;
    for (i = 0; i < step->besides; i++) {
        for (k = 0; k < FTMEM_CLASS_END; k++) report_bytes(r, k, step->beside[i].weight_bytes[k], FTMEM__OP_PARAMETER, FTMEM__PART_REFERENCE);
        report_bytes(r, FTMEM_CLASS_BUFFERS, step->beside[i].buffer_bytes, FTMEM__OP_TABLE, FTMEM__PART_REFERENCE);
    }
}

static void report_weights(report *r)
{
    const ftmem__walk *walk = r->step->walk;
    const ftmem__totals *t = &r->step->totals;
    const ftmem__moment *m = &r->step->peak;
    bool states = m->states;
    bool eval = m->phase == FTMEM_PHASE_EVAL;
    int32_t i;
    for (i = 0; i < walk->params.count; i++) {
        const ftmem__param *p = &walk->params.at[i];
        report_param(r, p, p->tensor_class, ftmem__param_count(walk, p), p->bytes - (r->step->peak.phase == FTMEM_PHASE_LOAD ? 0 : p->narrowed_bytes),
                     FTMEM__OP_PARAMETER);
    }
    report_bytes(r, FTMEM_CLASS_BUFFERS, t->buffer_bytes + (eval ? t->eval_batch_bytes : t->batch_bytes), FTMEM__OP_TABLE, FTMEM__PART_BATCH);
    report_bytes(r, FTMEM_CLASS_MASTER, m->phase == FTMEM_PHASE_LOAD ? 0 : t->master_bytes, FTMEM__OP_STATE, FTMEM__PART_OPTIMIZER);
    if (states) report_states(r);
    report_besides(r);
    report_bytes(r, FTMEM_CLASS_STATES, m->phase < FTMEM_PHASE_BACKWARD ? 0 : t->scaler_bytes, FTMEM__OP_STATE, FTMEM__PART_OPTIMIZER);
    report_bytes(r, FTMEM_CLASS_WORKSPACE, m->phase == FTMEM_PHASE_LOAD ? 0 : t->workspace_bytes * (m->workspaces_both ? 2 : 1), FTMEM__OP_CUBLAS,
                 FTMEM__PART_OPTIMIZER);
}

static void report_again(report *r, int32_t segment, int32_t pass, int32_t event, int64_t times, bool keep_result)
{
    if (times <= 0) return;
    r->times = times;
    r->others = event == FTMEM__EVENT_END || event == FTMEM__EVENT_RELEASED;
    r->keep_result = keep_result;
    ftmem__walk_again(r->step->walk, segment, pass, event, report_tape, r);
}

/* Blocks that backward has passed still hold what their nodes have as attributes; so does the running one where its graph
   is the checkpoint's, which is not on its tape. */
static void report_attributes(report *r, int32_t kind)
{
    const ftmem__walk *walk = r->step->walk;
    const ftmem__moment *m = &r->step->peak;
    const ftmem__kind *k = &walk->kind[kind];
    bool backward = m->pass == FTMEM__PASS_BACKWARD || m->pass == FTMEM__PASS_BACKWARD_LATER;
    int64_t from = k->stack > m->stack ? 0 : k->recomputed ? m->layer : m->layer + 1, above[FTMEM__MAX_KINDS] = { 0 };
    if (!backward || !k->attribute_bytes || k->stack < m->stack || (k->stack == m->stack && m->layer < 0)) return;
    report_layers(walk, k->stack, from, report_depth(walk, k->stack), above);
    report_bytes(r, FTMEM_CLASS_KEPT, k->attribute_bytes * above[kind], FTMEM__OP_LINEAR8, FTMEM__PART_ATTENTION);
}

/* How many blocks of a stack have run forward and not yet backward, the running one left out. */
static int64_t report_waiting(const ftmem__walk *walk, const ftmem__moment *m, int32_t stack)
{
    bool backward = m->pass == FTMEM__PASS_BACKWARD || m->pass == FTMEM__PASS_BACKWARD_LATER;
    int64_t gone = backward && !ftmem__holds_outputs(walk->shape.job) ? walk->stack[stack].shape->unread : 0;
    if (stack > m->stack || (stack == m->stack && ftmem__segment_is_embed(m->segment))) return 0;
    return stack == m->stack && m->layer >= 0 ? m->layer : report_depth(walk, stack) - gone;
}

/* What `times` blocks of one kind keep: as noted, or walked again where there was no room for notes. */
static void report_block(report *r, int32_t kind, int64_t times)
{
    const ftmem__walk *walk = r->step->walk;
    const ftmem__kind *k = &walk->kind[kind];
    int32_t i;
    if (k->kept_count < 0) {
        report_again(r, kind, FTMEM__PASS_FORWARD, FTMEM__EVENT_END, times, false);
        return;
    }
    r->times = times;
    for (i = 0; i < k->kept_count && times > 0; i++) report_left(r, &walk->kept[k->kept_from + i]);
}

/* What the blocks below keep: all of them while the head runs, those below the running one else. */
static void report_blocks(report *r)
{
    const ftmem__walk *walk = r->step->walk;
    const ftmem__moment *m = &r->step->peak;
    int64_t below[FTMEM__MAX_KINDS] = { 0 };
    int32_t k;
    for (k = 0; k < walk->stacks; k++) report_layers(walk, k, 0, report_waiting(walk, m, k), below);
    for (k = 0; k < walk->kinds; k++) report_block(r, k, below[k]);
    for (k = 0; k < walk->kinds; k++) report_attributes(r, k);
}

/* Embeddings, and ends of earlier stacks. */
static void report_stacks(report *r, bool eval)
{
    const ftmem__moment *m = &r->step->peak;
    int32_t i, pass = eval ? FTMEM__PASS_EVAL : FTMEM__PASS_FORWARD;
    for (i = 0; i < m->stack && !eval; i++) {
        report_again(r, ftmem__segment_end(i), pass, FTMEM__EVENT_END, 1, false);
        report_again(r, ftmem__segment_embed(i), pass, FTMEM__EVENT_RELEASED, 1, false);
    }
    if (ftmem__segment_is_embed(m->segment) || (eval && m->released)) return;
    report_again(r, ftmem__segment_embed(m->stack), pass, m->released ? FTMEM__EVENT_RELEASED : FTMEM__EVENT_END, 1, false);
}

/* Activations of the segments that have run forward and not yet backward, and what frames hold. */
static void report_kept(report *r)
{
    const ftmem__moment *m = &r->step->peak;
    bool eval = m->pass == FTMEM__PASS_EVAL;
    r->released = m->pass == FTMEM__PASS_BACKWARD || m->pass == FTMEM__PASS_BACKWARD_LATER;
    report_bytes(r, FTMEM_CLASS_LOGITS, m->held, FTMEM__OP_LINEAR, FTMEM__PART_HEAD);
    if (m->pass < 0) return;
    report_bytes(r, FTMEM_CLASS_KEPT, m->sides, FTMEM__OP_INPUT, FTMEM__PART_ATTENTION);
    if (!ftmem__segment_is_embed(m->segment)) report_bytes(r, FTMEM_CLASS_KEPT, m->frame, FTMEM__OP_EMBEDDING, FTMEM__PART_EMBEDDING);
    if (!eval) report_blocks(r);
    report_stacks(r, eval);
}

/* The head's backward, as noted in the first walk; false where the peak is elsewhere. */
static bool report_head(report *r)
{
    const ftmem__note *note = &r->step->walk->head_note;
    const ftmem__moment *m = &r->step->peak;
    int32_t i;
    if (m->segment != ftmem__walk_head(r->step->walk) || m->pass != FTMEM__PASS_BACKWARD || !m->event || m->event != note->event || note->count < 0)
        return false;
    r->op = ftmem__op_name(note->op, note->backward);
    r->part = ftmem__part_name(note->part);
    r->times = 1;
    for (i = 0; i < note->count; i++) report_store(r, &note->at[i]);
    return true;
}

/* A forward without gradients, as noted when it was walked; before, what the trained model keeps. */
static void report_beside(report *r)
{
    const ftmem__moment *m = &r->step->peak;
    const ftmem__note *note = &r->step->beside[m->beside - 1].note;
    int32_t i;
    if (m->pass >= 0) report_again(r, m->segment, m->pass, FTMEM__EVENT_END, 1, true);
    r->op = ftmem__op_name(note->op, false);
    r->part = ftmem__part_name(FTMEM__PART_REFERENCE);
    r->times = 1;
    for (i = 0; i < note->count; i++) {
        ftmem__store s = note->at[i];
        if (s.tensor_class == FTMEM_CLASS_KEPT) s.tensor_class = FTMEM_CLASS_TEMPORARY;
        report_store(r, &s);
    }
}

static void report_running(report *r)
{
    const ftmem__moment *m = &r->step->peak;
    if (m->beside) {
        report_beside(r);
        return;
    }
    r->part = ftmem__part_name(FTMEM__PART_OPTIMIZER);
    r->op = ftmem__op_name(FTMEM__OP_STEP, false);
    if (m->pass < 0) {
        if (m->phase != FTMEM_PHASE_OPTIMIZER && m->phase != FTMEM_PHASE_OPTIMIZER2) return;
        report_step(r);
        return;
    }
    if (!report_head(r)) report_again(r, m->segment, m->pass, m->event ? m->event : -1, 1, true);
}

static void report_largest(report *r)
{
    ftmem_memory *memory = r->memory;
    int32_t i, j, best;
    for (i = 0; i < FTMEM_TENSOR_CAPACITY && i < r->count; i++) {
        uint64_t most = r->kind[i].bytes;
        best = i;
        for (j = i + 1; j < r->count; j++) {
            if (r->kind[j].bytes <= most) continue;
            most = r->kind[j].bytes;
            best = j;
        }
        memory->largest[i] = r->kind[best];
        r->kind[best] = r->kind[i];
    }
    memory->largest_count = i;
}

/* What the collection cannot attribute (held logits, tensors freed between segments) is a temporary, so that parts sum to the whole. */
static void report_balance(report *r)
{
    ftmem_memory *memory = r->memory;
    static const uint8_t order[] = { FTMEM_CLASS_TEMPORARY, FTMEM_CLASS_KEPT, FTMEM_CLASS_RECOMPUTED, FTMEM_CLASS_LOGITS, FTMEM_CLASS_WORKSPACE };
    uint64_t sum = 0;
    int32_t i;
    for (i = 0; i < FTMEM_CLASS_END; i++) sum += memory->at_peak[i];
    if (sum <= memory->allocated.expected) {
        memory->at_peak[FTMEM_CLASS_TEMPORARY] += memory->allocated.expected - sum;
        return;
    }
    sum -= memory->allocated.expected;
    for (i = 0; i < FTMEM__COUNT(order); i++) {
        uint64_t *at = &memory->at_peak[order[i]], take = *at < sum ? *at : sum;
        *at -= take;
        sum -= take;
    }
}

static void report_components(ftmem_memory *m)
{
    const uint64_t *at = m->at_peak;
    m->weights_bytes = at[FTMEM_CLASS_WEIGHTS] + at[FTMEM_CLASS_QUANTIZED] + at[FTMEM_CLASS_ADAPTERS];
    m->gradients_bytes = at[FTMEM_CLASS_GRADIENTS];
    m->states_bytes = at[FTMEM_CLASS_STATES] + at[FTMEM_CLASS_MASTER];
    m->activations_bytes = at[FTMEM_CLASS_KEPT] + at[FTMEM_CLASS_RECOMPUTED] + at[FTMEM_CLASS_LOGITS] + at[FTMEM_CLASS_TEMPORARY];
    m->overhead_bytes = at[FTMEM_CLASS_BUFFERS] + at[FTMEM_CLASS_WORKSPACE];
}

void ftmem__report(ftmem__step *step, ftmem_memory *memory)
{
    report r;
    r.step = step;
    r.memory = memory;
    r.count = 0;
    memset(r.place, 0, sizeof r.place);
    r.times = 0;
    r.others = r.keep_result = r.released = false;
    r.op = r.part = NULL;
    report_weights(&r);
    report_gradients(&r);
    report_kept(&r);
    report_running(&r);
    report_balance(&r);
    report_largest(&r);
    report_components(memory);
    memory->peak_phase = step->peak.phase;
    memory->peak_layer = step->peak.layer;
    memory->peak_op = r.op;
    memory->peak_part = r.part;
}
