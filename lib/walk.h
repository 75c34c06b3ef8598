/*
 * The walk: segments (embedding, each kind of block, head and loss) are simulated once each on a tape, and a step is put
 * together from them. Within a run of equal blocks memory is linear in the block's index, so a block's figures are
 * relative: what it peaks at and what it leaves behind.
 *
 * A model is one stack or more, run one after another (encoder, decoder): each an embedding, blocks and an end. The end of
 * the last stack is the head with the loss; that of an earlier one makes a side of the next. Sides are values that many
 * segments read: they count where they are made, live until the last reader's backward, and their gradient is summed
 * over the readers and handed to the maker.
 */
#ifndef FTMEM_WALK_H
#define FTMEM_WALK_H

#include "lower.h"

/* Passes over one segment. */
enum { FTMEM__PASS_FORWARD, FTMEM__PASS_BACKWARD, FTMEM__PASS_BACKWARD_LATER, FTMEM__PASS_EVAL, FTMEM__PASS_END };
enum { FTMEM__MAX_STACKS = 2 };
/* The embedding and the end of a stack, instead of a block kind's index. */
static inline int32_t ftmem__segment_embed(int32_t stack)
{
    return -1 - 2 * stack;
}
static inline int32_t ftmem__segment_end(int32_t stack)
{
    return -2 - 2 * stack;
}
/* The token embedding by itself, where a vision tower runs between it and the rest of its stack's embedding. */
enum { FTMEM__SEGMENT_WORDS = -1 - 2 * FTMEM__MAX_STACKS };
/* What stands after some blocks: features of a tower's, and where they are added in the text model. */
enum { FTMEM__SEGMENT_TAP = -2 - 2 * FTMEM__MAX_STACKS, FTMEM__SEGMENT_DEEP = -4 - 2 * FTMEM__MAX_STACKS };
static inline bool ftmem__segment_is_embed(int32_t segment)
{
    return segment < 0 && segment % 2 != 0;
}

typedef struct ftmem__figure {
    int64_t peak, delta; /* bytes above the start, and left at the end */
    int32_t event;       /* of the peak; 0: at the start */
} ftmem__figure;

/* One kind of block: equal in everything that matters. */
typedef struct ftmem__kind {
    uint8_t kind; /* ftmem__shape_layer_kind */
    uint8_t stack;
    uint8_t given, made; /* sides that it reads and makes */
    uint8_t fresh;       /* sides that no block after this one reads: their gradient is yet to come */
    bool cut;            /* a reentrant checkpoint over an input without a gradient: nothing in it gets one */
    uint8_t unread;      /* nobody reads its output: 1 the first such block, whose input the outputs hold, 2 a later one */
    uint8_t freed;       /* of those given: this backward is the last reader's, and frees what its graph keeps */
    bool first, last;    /* of a stack whose blocks share sides: the first makes them, the last has no gradient of them yet */
    bool leaf_held;      /* its input's gradient lives on with what it has stored */
    bool trained, adapted, recomputed, in_grad, out_grad, in_kept;
    uint8_t in_dtype, out_dtype;
    int64_t in_bytes, born_bytes, cache_bytes; /* born: kept by autograd, counted as born in this block */
    int64_t eval_cache_bytes;                  /* of autocast's copies after evaluation */
    int64_t leaf_bytes;                        /* of gradients of parameters that a backward leaves */
    int64_t attribute_bytes;                   /* of those, held by nodes to the end of the whole backward */
    int64_t bound_bytes;                       /* what its recomputation has left with the keys and values it has stored */
    int64_t outputs_bytes;                     /* arguments of a checkpoint that live as long as the outputs */
    double flops_forward, flops_backward;
    int64_t layers;                /* how many blocks are of this kind */
    int32_t like;                  /* the first kind with the same parameters, which are declared there */
    int64_t alike;                 /* of that: how many blocks have them */
    int32_t kept_from, kept_count; /* in ftmem__walk.kept; count -1: no room */
    ftmem__figure pass[FTMEM__PASS_END];
} ftmem__kind;
enum { FTMEM__MAX_KINDS = 12, FTMEM__MAX_KEPT = 160 };

typedef struct ftmem__ends { /* embedding or end */
    ftmem__figure pass[FTMEM__PASS_END];
    ftmem__figure loss, eval_loss; /* head: the loss part of forward */
    ftmem__figure early, late;     /* head: its backward before and after the first matmul */
    int64_t released_bytes;        /* embedding: what the base model's frame lets go when it returns */
    int64_t eval_released_bytes;
    int64_t mask_bytes, held_bytes, kept_bytes, cache_bytes, logits_bytes, table_bytes;
    int64_t update_peak; /* embedding: the highest moment of its update in backward */
    int64_t norm_peak;   /* head: while the base model's frame is still there */
    int64_t eval_cache_bytes;
    double flops_forward, flops_backward;
    bool out_grad, in_kept;
    bool leaf_kept;   /* embedding: the stream is a leaf, which the graph holds whoever keeps it (enable_input_require_grads) */
    bool stream_kept; /* embedding: its own graph keeps the stream as well */
    bool back;        /* embedding: it has a backward */
    uint8_t out_dtype;
    int64_t outputs_bytes;      /* what the outputs hold of an end */
    bool leaf;                  /* words: they are one */
    bool aliased, eval_aliased; /* the stream is the embedding's own tensor, which the frame holds */
} ftmem__ends;

typedef struct ftmem__side {
    int64_t n[2], cols; /* in training and in evaluation */
    int64_t bytes[2];
    uint8_t dtype;
    bool there, grad;
    bool outputs;   /* the outputs hold it */
    bool leaf;      /* it and its gradient live as long as the loss does */
    bool kept, own; /* by the graph of some reader, to that reader's backward; by the graph of its maker */
} ftmem__side;

typedef struct ftmem__stack {
    const ftmem__shape *shape;
    ftmem__ends embed, end;
    ftmem__side side[FTMEM__SIDES];
    uint8_t of_layer[FTMEM_MAX_LAYERS];
} ftmem__stack;

typedef struct ftmem__walk {
    ftmem__shape shape;   /* of the last stack, which has the head, and of the job */
    ftmem__shape own;     /* scratch: of the block that is walked, where kinds have shapes of their own */
    ftmem__shape earlier; /* of the stack before it, where there is one */
    ftmem__params params;
    ftmem__kind kind[FTMEM__MAX_KINDS];
    int32_t kinds, stacks;
    ftmem__stack stack[FTMEM__MAX_STACKS]; /* in time */
    ftmem__store kept[FTMEM__MAX_KEPT];    /* what the first kinds of block leave alive after forward, for the report */
    int32_t kept_count;
    ftmem__note head_note;        /* of the head's backward, where the peak mostly is */
    ftmem__ends words, tap, deep; /* of FTMEM__SEGMENT_WORDS and others */
    struct {
        bool grad;
        uint8_t dtype;
    } tap_in, deep_in;             /* the stream there */
    ftmem__var side[FTMEM__SIDES]; /* scratch, used by one segment at a time; so are the word and the tape */
    ftmem__var word;
    ftmem__tape tape;
    bool exhausted;
} ftmem__walk;

static inline const ftmem__stack *ftmem__walk_last(const ftmem__walk *walk)
{
    return &walk->stack[walk->stacks - 1];
}
static inline int32_t ftmem__walk_head(const ftmem__walk *walk) /* the segment */
{
    return ftmem__segment_end(walk->stacks - 1);
}
static inline int32_t ftmem__walk_stack_of(const ftmem__walk *walk, int32_t segment)
{
    if (segment == FTMEM__SEGMENT_WORDS || segment == FTMEM__SEGMENT_DEEP) return walk->stacks - 1;
    if (segment == FTMEM__SEGMENT_TAP) return 0;
    return segment < 0 ? (-1 - segment) / 2 : walk->kind[segment].stack;
}

ftmem_status ftmem__walk_segments(ftmem__walk *walk, ftmem_error *error);
enum { FTMEM__EVENT_END = 0, FTMEM__EVENT_RELEASED = -2 };
/* Runs one pass of one segment again and calls back at an event: at its end, or (embedding) when the base model has
   returned and autocast's cache is gone. */
void ftmem__walk_again(ftmem__walk *walk, int32_t segment, int32_t pass, int32_t event, ftmem__capture *capture, void *context);

#endif
