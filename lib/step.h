/* A training run put together from segments: phases, their peaks, and the moment that sets each. */
#ifndef FTMEM_STEP_H
#define FTMEM_STEP_H

#include "objective.h"
#include "optimizer.h"
#include "walk.h"

/* AdaLoRA's regularisation (peft/tuners/adalora/model.py AdaLoraModel.forward): |p p^T - 1| of every A and B joins the loss, and its
   backward comes first, so that their gradients are there before the blocks'. */
typedef struct ftmem__regular {
    int64_t kept_bytes, gradient_bytes;
    double flops; /* of forward */
} ftmem__regular;

/* Sums over parameter tensors, each rounded to 512 bytes as it is allocated. */
typedef struct ftmem__totals {
    int64_t parameters, trainable, adapters;
    int64_t weight_bytes[FTMEM_CLASS_END]; /* by class: weights, quantised, adapters */
    int64_t gradient_bytes, state_bytes, master_bytes;
    int64_t state_hidden_bytes; /* paged: outside torch's count */
    int64_t step_bytes;         /* temporaries of the optimizer's step */
    int64_t first_step_bytes;   /* of the first, during which states come to be: above where it ends */
    int64_t scaler_bytes;       /* a gradient scaler */
    int64_t each_bytes;         /* of those, what is made of all tensors at once */
    const uint8_t *step_list;   /* the list that made step_bytes for parameter step_param; -1: each_bytes */
    int32_t step_param, step_length;
    int64_t tensors; /* trained ones */
    int64_t buffer_bytes, batch_bytes, eval_batch_bytes;
    int64_t workspace_bytes; /* of one cuBLAS handle */
    ftmem__regular regular;
    int64_t resident;       /* weights, buffers, batch */
    int64_t narrowed_bytes; /* of weights: let go of in the first forward */
} ftmem__totals;

/* A forward without gradients beside the trained one. */
typedef struct ftmem__beside {
    const ftmem__forward *forward;
    int64_t peak;                          /* above what is alive when it starts */
    int64_t weight_bytes[FTMEM_CLASS_END]; /* of a model of its own; else 0, and so is buffer_bytes */
    int64_t buffer_bytes;
    double flops;
    ftmem__note note; /* of its peak */
} ftmem__beside;

typedef struct ftmem__moment {
    int64_t bytes;
    int32_t phase, segment, pass, event; /* segment and pass as in walk.h; pass -1: no segment is running */
    int32_t layer, stack;                /* layer -1: none */
    int64_t sides;                       /* values that stacks hand on to later segments */
    int64_t held, frame;                 /* logits held from a forward that is over; the embedding, held by the base model's frame */
    bool later_micro, workspaces_both;   /* gradients of an earlier micro-batch exist; backward's workspace exists */
    bool released;                       /* the base model has returned */
    bool states;                         /* the optimizer's states exist */
    int8_t beside;                       /* 1 + the forward without gradients that runs; 0: none */
} ftmem__moment;

typedef struct ftmem__step {
    ftmem__walk *walk;
    const ftmem__case *c;
    ftmem__totals totals;
    ftmem__moment phase[FTMEM_PHASE_CAPACITY];
    ftmem__moment peak;
    int64_t kept_bytes, kept_layer_bytes;
    int64_t host_bytes, host_pinned_bytes; /* activations in CPU memory at the end of forward */
    double flops_forward, flops_backward;
    ftmem__beside beside[FTMEM__MAX_FORWARDS];
    int32_t besides;
} ftmem__step;

void ftmem__totals_fill(ftmem__totals *totals, const ftmem__walk *walk);
int64_t ftmem__param_count(const ftmem__walk *walk, const ftmem__param *param); /* tensors of this row in the whole model */
int64_t ftmem__segment_states(const ftmem__walk *walk, int32_t segment);        /* of one block of a kind, or of an end */
void ftmem__step_run(ftmem__step *step);
/* Figures of a forward without gradients, from the walk of its model; `own`: the model is there for it alone; `cached`: tokens of a row at
   the end of a generation. */
void ftmem__step_beside(ftmem__walk *walk, bool own, int64_t cached, ftmem__beside *beside);

/* report.c: what is alive at the peak, by class and by kind of tensor. */
void ftmem__report(ftmem__step *step, ftmem_memory *memory);
/* tiers.c: reserved, process, bounds and the verdict. */
void ftmem__tiers(const ftmem__step *step, ftmem_memory *memory);

#endif
