/*
 * The walk: segments (embedding, each kind of block, head and loss) are simulated once each on a tape, and a step is put
 * together from them. Within a run of equal blocks memory is linear in the block's index, so a block's figures are
 * relative: what it peaks at and what it leaves behind.
 */
#ifndef FTMEM_WALK_H
#define FTMEM_WALK_H

#include "lower.h"

/* Passes over one segment. */
enum { FTMEM__PASS_FORWARD, FTMEM__PASS_BACKWARD, FTMEM__PASS_BACKWARD_LATER, FTMEM__PASS_EVAL, FTMEM__PASS_END };
enum { FTMEM__SEGMENT_EMBED = -1, FTMEM__SEGMENT_HEAD = -2 }; /* instead of a block kind's index */

typedef struct ftmem__figure {
    int64_t peak, delta; /* bytes above the start, and left at the end */
    int32_t event;       /* of the peak; 0: at the start */
} ftmem__figure;

/* One kind of block: equal in everything that matters. */
typedef struct ftmem__kind {
    uint8_t kind; /* ftmem_model.layer_kind */
    bool first;   /* the first block, where the family's first one differs from the others */
    bool trained, adapted, recomputed, in_grad, out_grad, in_kept;
    uint8_t in_dtype, out_dtype;
    int64_t in_bytes, born_bytes, cache_bytes; /* born: kept by autograd, counted as born in this block */
    int64_t leaf_bytes;                          /* of gradients of parameters that a backward leaves */
    int64_t attribute_bytes;                   /* of those, held by nodes to the end of the whole backward */
    double flops_forward, flops_backward;
    int64_t layers; /* how many blocks are of this kind */
    ftmem__figure pass[FTMEM__PASS_END];
} ftmem__kind;
enum { FTMEM__MAX_KINDS = 12 };

typedef struct ftmem__ends { /* embedding or head */
    ftmem__figure pass[FTMEM__PASS_END];
    ftmem__figure loss, eval_loss; /* head: the loss part of forward */
    ftmem__figure early, late;     /* head: its backward before and after the first matmul */
    int64_t released_bytes;        /* embedding: what the base model's frame lets go when it returns */
    int64_t eval_released_bytes;
    int64_t mask_bytes, held_bytes, kept_bytes, cache_bytes, logits_bytes, table_bytes;
    int64_t norm_peak; /* head: while the base model's frame is still there */
    double flops_forward, flops_backward;
    bool out_grad, in_kept;
    uint8_t out_dtype;
    bool aliased; /* the stream is the embedding's own tensor, which the frame holds */
} ftmem__ends;

typedef struct ftmem__walk {
    ftmem__shape shape;
    ftmem__params params;
    ftmem__kind kind[FTMEM__MAX_KINDS];
    int32_t kinds;
    uint8_t of_layer[FTMEM_MAX_LAYERS];
    ftmem__ends embed, head;
    ftmem__tape tape; /* scratch, used by one segment at a time */
    bool exhausted;
} ftmem__walk;

ftmem_status ftmem__walk_segments(ftmem__walk *walk, ftmem_error *error);
enum { FTMEM__EVENT_END = 0, FTMEM__EVENT_RELEASED = -2 };
/* Runs one pass of one segment again and calls back at an event: at its end, or (embedding) when the base model has
   returned and autocast's cache is gone. */
void ftmem__walk_again(ftmem__walk *walk, int32_t segment, int32_t pass, int32_t event, ftmem__capture *capture, void *context);

#endif
