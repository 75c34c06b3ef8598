/*
 * The tape: a small interpreter of training programs that follows torch's autograd and caching allocator.
 *
 * Values are tensors without contents: a size, a dtype, who produced them. Each primitive (ops.inc) allocates its
 * result, records a node with what autograd saves, and knows what its backward allocates. Storages are reference
 * counted, so a tensor that three operations keep counts once, and conditions such as "the weight is frozen" are
 * never flags: no gradient is needed, so nothing is saved.
 *
 * One tape holds one segment of the model (the embedding, one block, or the head with the loss).
 */
#ifndef FTMEM_TAPE_H
#define FTMEM_TAPE_H

#include "common.h"

enum { FTMEM__MAX_NODES = 224, FTMEM__MAX_STORES = 192, FTMEM__NO_NODE = -1, FTMEM__LEAF = -2, FTMEM__INPUT = -3 };

/* Primitive operations: one row each in ops.inc. */
typedef enum ftmem__op {
#define FTMEM__OP(id, name, saves) FTMEM__OP_##id,
#include "ops.inc"
#undef FTMEM__OP
    FTMEM__OP_END
} ftmem__op;

typedef struct ftmem__store {
    int64_t bytes;       /* rounded to 512, 0 in a free slot */
    int64_t rows, cols;  /* for reports */
    int16_t refs;
    uint8_t tensor_class, dtype, op, part;
    bool cached;         /* autocast's cache holds one reference */
} ftmem__store;

/* A value on the tape. Copies do not own: one owner calls ftmem__drop. */
typedef struct ftmem__var {
    int64_t n;      /* elements */
    int64_t cols;   /* of the last dimension */
    int16_t store;  /* -1: lives outside the tape (weights, tables) */
    int16_t node;   /* producer, or FTMEM__LEAF (a parameter), FTMEM__INPUT (the segment's input), FTMEM__NO_NODE */
    uint8_t slot;   /* which output of the producer */
    uint8_t dtype;
    bool grad;      /* requires a gradient */
} ftmem__var;

typedef struct ftmem__node {
    int64_t in_n[3];
    int64_t out_n[3];
    int64_t work;         /* bytes of kernel workspace in backward */
    double flops;         /* of backward, for each operand that needs a gradient */
    int16_t in_node[3];
    int16_t save[4];
    int16_t grad[3];      /* arriving gradients by output, -1: none yet */
    int16_t in_cols[3];   /* unused lanes are 0 */
    uint8_t in_slot[3], in_dtype[3], out_dtype[3];
    uint8_t op, inputs, outs, need, part;
    uint8_t saves;
} ftmem__node;

typedef enum ftmem__mode {
    FTMEM__NO_GRAD, /* evaluation, or the first pass of a reentrant checkpoint: no nodes */
    FTMEM__FORGET,  /* a checkpointed forward: results need gradients, nothing is kept */
    FTMEM__RECORD   /* ordinary training */
} ftmem__mode;

/* Called at the event `stop_at` of a second walk: the moment of the peak, with everything alive on this tape. */
struct ftmem__tape;
typedef void ftmem__capture(void *context, const struct ftmem__tape *tape);

typedef struct ftmem__tape {
    int64_t live, peak;          /* bytes on this tape now, and the most since ftmem__tape_phase */
    int32_t event, peak_event;   /* allocations counted since the tape was made */
    int32_t stop_at;             /* event to capture at; 0: none */
    ftmem__capture *capture;
    void *context;
    double flops;                /* since ftmem__tape_phase */
    int32_t nodes;
    int32_t high;                /* slots in use or once in use */
    int16_t free_head, grad_in;  /* free list; gradient of the segment's input */
    int64_t big_cols;            /* vocabulary: tensors this wide are logits */
    uint8_t mode, birth, part, overflow;
    bool backward, sm90, cublas_used, keep_leaf_grads, in_loss;
    int64_t leaf_bytes;          /* parameter gradients delivered so far */
    int64_t cached_bytes;        /* only autocast's cache holds these */
    int16_t next_free[FTMEM__MAX_STORES];
    ftmem__store stores[FTMEM__MAX_STORES];
    ftmem__node node[FTMEM__MAX_NODES];
} ftmem__tape;

int64_t ftmem__dtype_bytes(int32_t dtype, int64_t elements); /* of plain dtypes */
int64_t ftmem__round512(int64_t bytes);
const char *ftmem__op_name(int32_t op);

void ftmem__tape_start(ftmem__tape *tape, int64_t big_cols, bool sm90);
void ftmem__tape_phase(ftmem__tape *tape); /* peak = live now, flops = 0 */

/* Storage. */
int16_t ftmem__alloc(ftmem__tape *tape, ftmem__op op, int64_t n, int64_t cols, int32_t dtype, int32_t tensor_class);
void ftmem__hold(ftmem__tape *tape, int16_t store);
void ftmem__release(ftmem__tape *tape, int16_t store);
void ftmem__drop(ftmem__tape *tape, ftmem__var value);                 /* release the owner's reference */
void ftmem__scratch(ftmem__tape *tape, ftmem__op op, int64_t n, int64_t cols, int32_t dtype, int32_t tensor_class); /* allocate and free at once */

/* Values. */
ftmem__var ftmem__weight(int64_t n, int64_t cols, int32_t dtype, bool trained);
ftmem__var ftmem__constant(int64_t n, int64_t cols, int32_t dtype);       /* outside the tape, no gradient */
ftmem__var ftmem__input(ftmem__tape *tape, int64_t n, int64_t cols, int32_t dtype, bool grad); /* alive on the tape */

/* Primitives. Each returns a new value that the caller owns; inputs stay owned by the caller. */
ftmem__var ftmem__cast(ftmem__tape *tape, ftmem__var x, int32_t dtype); /* same dtype: the same storage, held once more */
ftmem__var ftmem__cast_cached(ftmem__tape *tape, ftmem__var w, int32_t dtype); /* a weight under autocast */
ftmem__var ftmem__unary(ftmem__tape *tape, ftmem__op op, ftmem__var x);  /* elementwise, saved by the op's row */
ftmem__var ftmem__binary(ftmem__tape *tape, ftmem__op op, ftmem__var a, ftmem__var b); /* ADD, MUL: broadcasting by size, promoting by dtype */
ftmem__var ftmem__reduce(ftmem__tape *tape, ftmem__op op, ftmem__var x, int64_t n); /* MEAN over the last dimension and the like */
ftmem__var ftmem__matmul(ftmem__tape *tape, ftmem__var x, ftmem__var w, int64_t out_cols, bool bias_trained, int64_t bias_n);
ftmem__var ftmem__clone(ftmem__tape *tape, ftmem__op op, ftmem__var x, int64_t n); /* CLONE, EXPAND (n > x.n), NEG, CAT ... */
ftmem__var ftmem__node_var(ftmem__tape *tape, ftmem__op op, const ftmem__var *inputs, int32_t count, int64_t n, int64_t cols, int32_t dtype); /* generic */
ftmem__node *ftmem__last_node(ftmem__tape *tape);
void ftmem__save(ftmem__tape *tape, ftmem__node *node, int16_t store);
int64_t ftmem__elements(const ftmem__var *x);

/* Backward from `root`, whose gradient has just been allocated and is handed over. */
void ftmem__backward(ftmem__tape *tape, ftmem__var root, int16_t gradient);
/* Ends the autocast context: its cache lets go. */
void ftmem__cache_clear(ftmem__tape *tape);

#endif
