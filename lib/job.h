/* A job as asked, made ready to be answered: copied out of the caller's structs, checked, every default filled in. */
#ifndef FTMEM_JOB_H
#define FTMEM_JOB_H

#include "common.h"

typedef struct ftmem__case {
    ftmem_model model;
    ftmem_model encoder;   /* the stack before it as a model of its own, where the family has one or images go through a tower */
    ftmem_adapter adapter; /* kind none, and the rest 0, when the job has none */
    ftmem_adapter tower;   /* the same as a tower's linears have it, which PEFT finds by name */
    ftmem_job job;         /* its pointers lead to the two above: load again after copying */
    ftmem_note notes[FTMEM_NOTE_CAPACITY];
    int32_t note_count;
    bool forward_only; /* a model that never goes backward in this job */
    bool generates;    /* nor is trained: it fills a cache of keys and values */
} ftmem__case;

ftmem_status ftmem__case_load(const ftmem_job *job, ftmem__case *out, ftmem_error *error);
/* Adds a note; one too many is dropped. `field` is static text or NULL. */
/* Tasks whose logits are as wide as the vocabulary, and those with one label a row. */
static inline bool ftmem__task_of_vocab(int32_t task)
{
    return task == FTMEM_TASK_CAUSAL_LM || task == FTMEM_TASK_MASKED_LM;
}

static inline bool ftmem__task_by_row(int32_t task)
{
    return task == FTMEM_TASK_CLASSIFY || task == FTMEM_TASK_IMAGE_CLASSIFY;
}

void ftmem__case_note(ftmem__case *c, int32_t code, const char *field, int64_t value);

#endif
