/* What a step trains for, as data: which forwards run beside the trained one, when, on which model, and what stands for the loss. */
#ifndef FTMEM_OBJECTIVE_H
#define FTMEM_OBJECTIVE_H

#include "job.h"

/* When a forward without gradients runs. */
enum {
    FTMEM__NEVER,
    FTMEM__GENERATES, /* completions, before all else */
    FTMEM__APART,     /* before the step: what it makes is a column of the batch */
    FTMEM__BEFORE,
    FTMEM__AFTER /* between the trained model's log-probabilities and the loss, while all that backward needs is kept */
};
enum { FTMEM__OF_TRAINED, FTMEM__OF_REFERENCE }; /* whose */
/* What the loss is made of. */
enum {
    FTMEM__LOSS_OF_TASK, /* the model's own forward computes it (loss.c) */
    FTMEM__LOSS_LOGPS,   /* log-probabilities of labels, which leave the model's forward or come of its logits */
    FTMEM__LOSS_PAIRS    /* one score a row, compared within pairs */
};

typedef struct ftmem__forward {
    uint8_t when, of;
    uint8_t times; /* one after another, alike */
} ftmem__forward;
enum { FTMEM__MAX_FORWARDS = 3 };

typedef struct ftmem__objective {
    uint8_t rows;      /* of the trained forward for each sample */
    uint8_t loss;      /* FTMEM__LOSS_... */
    uint8_t task;      /* FTMEM_TASK_... that it needs */
    uint8_t reference; /* what FTMEM_REFERENCE_AUTO means: FTMEM_REFERENCE_NONE, or FTMEM_REFERENCE_AUTO where it has one */
    uint8_t whole;     /* logits exist whole: 1, 2 with the cross-entropy of the first half of the rows */
    uint8_t names;     /* ids, masks or labels, a number a token each, that the trainer's own frame holds beside the batch */
    uint8_t outputs;   /* fp32 numbers a token that the forward has returned, held to the loss */
    bool no_dropout;   /* disable_dropout is the trainer's default */
    ftmem__forward forward[FTMEM__MAX_FORWARDS];
} ftmem__objective;

const ftmem__objective *ftmem__objective_of(const ftmem_job *job); /* after its default is filled in */
void ftmem__objective_fill(ftmem__case *c);
ftmem_status ftmem__objective_check(const ftmem__case *c, ftmem_error *error);
int64_t ftmem__objective_completion(const ftmem_job *job); /* tokens of a row that are scored */
bool ftmem__objective_runs(const ftmem_job *job, const ftmem__forward *forward);
/* The job of a forward without gradients, as one that evaluates alone. */
void ftmem__objective_case(const ftmem__case *c, const ftmem__forward *forward, ftmem__case *out);

/* The loss is computed by the trainer, when the model's forward has returned. */
static inline bool ftmem__loss_apart(const ftmem_job *job)
{
    return job->loss >= FTMEM_LOSS_TILES || job->objective > FTMEM_OBJECTIVE_SFT;
}

#endif
