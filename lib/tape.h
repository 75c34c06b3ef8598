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

enum { FTMEM__MAX_NODES = 320, FTMEM__MAX_STORES = 224 };
/* ftmem__var.node besides a node's number; FTMEM__SIDE - k is the segment's k-th side input */
enum { FTMEM__NO_NODE = -1, FTMEM__LEAF = -2, FTMEM__INPUT = -3, FTMEM__SHARED_LEAF = -4, FTMEM__JOINED_LEAF = -5, FTMEM__SIDE = -6 };
enum { FTMEM__MAX_SIDES = 8 };

/* Primitive operations: one row each in ops.inc. */
typedef enum ftmem__op {
#define FTMEM__OP(id, name, forward, saves, backward, temporaries) FTMEM__OP_##id,
#include "ops.inc"
#undef FTMEM__OP
    FTMEM__OP_END
} ftmem__op;

typedef struct ftmem__store {
    int64_t bytes;   /* rounded to 512 */
    int64_t n, cols; /* elements, and the last dimension, for reports */
    int16_t refs;    /* 0: a free slot, and n is the next free one */
    uint8_t tensor_class, dtype, op, part;
    bool cached;   /* autocast's cache, or the model's own of keys and values, holds one of the references */
    bool backward; /* made by the operation's backward */
    bool bound;    /* ftmem__hold_history */
    bool side;     /* shared between segments: whoever walks them counts it */
} ftmem__store;

/* A value on the tape, in 16 bytes, so that it travels in registers. Copies do not own: the one owner calls ftmem__drop. */
typedef struct ftmem__var {
    int64_t n : 54;      /* elements; shape.c sees to it that they fit */
    uint64_t slot : 2;   /* which output of the producer */
    uint64_t dtype : 4;  /* FTMEM_FP32, ... */
    uint64_t grad : 1;   /* requires a gradient */
    uint64_t parted : 1; /* queries or keys that a concatenation laid out as [rows, tokens, heads, dim] */
    uint64_t joined : 1; /* queries or keys that a concatenation laid out densely as [rows, heads, tokens, dim] */
    int32_t cols;        /* of the last dimension */
    int16_t store;       /* -1: lives outside the tape (weights, tables) */
    int16_t node;        /* producer, or FTMEM__LEAF (a parameter), FTMEM__SHARED_LEAF (one that waits for a second gradient: the
                           matrix of a tied head), FTMEM__JOINED_LEAF (whose gradient joins one that waits already), FTMEM__INPUT
                           (the segment's input), FTMEM__NO_NODE */
} ftmem__var;

typedef struct ftmem__node {
    ftmem__var in[3];
    int64_t out_n;
    int64_t work;             /* bytes that the backward kernel allocates inside itself */
    double flops;             /* of backward for each operand that needs a gradient */
    int16_t save[6], grad[4]; /* grad: arrived gradients by output, -1: none yet */
    uint8_t op, inputs, outs, part, out_dtype;
    uint8_t held;   /* entries of save[] */
    uint8_t fourth; /* 1 + the place of a fourth operand in ftmem__tape.fourth; 0: none */
    bool saves;     /* something is saved, perhaps a weight, which costs nothing */
} ftmem__node;

typedef enum ftmem__mode {
    FTMEM__NO_GRAD, /* evaluation, or the first pass of a reentrant checkpoint: no nodes */
    FTMEM__FORGET,  /* a checkpointed forward: results need gradients, nothing is kept */
    FTMEM__RECORD,  /* ordinary training */
    FTMEM__GHOST    /* nodes without storage: the graph of a checkpointed block before it is recomputed */
} ftmem__mode;

typedef struct ftmem__tape ftmem__tape;
/* Called at event `stop_at` of a second walk: the moment of the peak, with everything alive on this tape. */
typedef void ftmem__capture(void *context, const ftmem__tape *tape, ftmem__op op);

/* What was alive at the highest moment so far. */
typedef struct ftmem__note {
    int32_t event, count; /* count -1: more than fits */
    uint8_t op, part;
    bool backward;
    ftmem__store at[24];
} ftmem__note;

/* The same walk in a later micro-batch: memory is less by the parameters' gradients, which are added to older ones and freed. */
typedef struct ftmem__later {
    bool wanted;
    bool differs; /* somebody else held such a gradient: backward itself may go another way */
    int32_t event, early_event;
    int64_t freed, base, peak, early; /* freed: gradients so far; base: alive at ftmem__tape_mark; the rest as on the tape */
} ftmem__later;

/* An optimizer in backward: bytes that a parameter's update takes beside its gradient, and after that is gone. */
typedef struct ftmem__work {
    int64_t beside, after;
    double flops;
} ftmem__work;
typedef ftmem__work ftmem__update(const void *context, const ftmem__store *gradient, bool in_block);

struct ftmem__tape {
    int64_t live, peak;        /* bytes on this tape now, and the most since ftmem__tape_mark */
    int32_t event, peak_event; /* allocations since the tape was started */
    int64_t early;             /* the peak before the first matmul of backward, which makes a cuBLAS workspace; -1: none yet */
    int32_t early_event;
    int32_t stop_at; /* event to capture at; 0: none */
    ftmem__capture *capture;
    void *context;
    ftmem__note *note; /* NULL: none is taken */
    ftmem__later later;
    double flops;                        /* since ftmem__tape_mark */
    int64_t big_cols;                    /* vocabulary: tensors this wide are logits */
    int64_t leaf_bytes;                  /* parameter gradients delivered */
    int64_t cache_only_bytes;            /* released by ftmem__cache_clear */
    int32_t nodes, stop_after;           /* stop_after: node with which a recomputation ends early, -1: none */
    int16_t high, free_head;             /* stores ever used; free list */
    int16_t grad_in;                     /* gradient of the segment's input, -1: none */
    int16_t grad_side[FTMEM__MAX_SIDES]; /* of its side inputs */
    int16_t input;                       /* store of the segment's input while it lives, else -1 */
    int16_t result;                      /* store of what a finished forward hands on, -1: unknown */
    uint8_t mode, birth;                 /* ftmem__mode; class of new tensors */
    uint8_t part;                        /* FTMEM__PART_..., of new tensors */
    bool backward, exhausted, stopped, replay;
    bool shadow;           /* FORGET leaves the nodes that GHOST would, for the recomputation to come */
    bool captured;         /* what was asked for has been seen: backward need not go on */
    bool graphless;        /* a reentrant checkpoint's forward: no node exists that could hold an attribute */
    int16_t attribute[16]; /* stores that nodes hold as attributes, or outputs in a cache */
    int32_t attributes;
    int32_t fourths;
    int16_t fourth_gradient; /* of the node that runs */
    ftmem__var also;         /* a second value that backward starts from; also_gradient: its gradient, -1: none */
    int16_t also_gradient;
    uint8_t policy;        /* FTMEM_SAVE_...: of the block that is checkpointed */
    bool keeping;          /* the last operation is one that it saves */
    bool cached_result;    /* the last result was a saved one */
    int16_t saved[64];     /* results that the policy has saved, in order, until the recomputation takes them */
    int32_t saves, taken;  /* how many there are, and how many it has taken */
    int32_t products;      /* matrix products so far */
    bool no_grad;          /* torch.no_grad() inside a forward: nothing asks for a gradient */
    bool leaf_input;       /* the segment's input is a leaf, as in a reentrant recomputation: autocast caches its copy */
    ftmem__var input_cast; /* that copy; store -1: none yet */
    bool shared_casts;     /* autocast's copies of weights are an earlier segment's, which has the same module */
    ftmem__update *update; /* NULL: gradients stay */
    const void *updater;
    int64_t update_peak;         /* the highest moment of an update */
    int16_t waiting;             /* a gradient whose update the next one starts, -1: none */
    bool update_waits, in_block; /* updates start with the next gradient; the segment is a block */
    bool sum_leaves;             /* gradients exist already: new ones are added and freed */
    ftmem__store stores[FTMEM__MAX_STORES];
    ftmem__var fourth[4];
    ftmem__node node[FTMEM__MAX_NODES];
};

static inline int64_t ftmem__bytes(int32_t dtype, int64_t elements) /* of plain dtypes */
{
    static const uint8_t size[FTMEM_DTYPE_END] = { 0, 4, 2, 2, 1, 0, 0, 8, 1 };
    return elements * size[dtype];
}
static inline int64_t ftmem__round512(int64_t bytes)
{
    return (bytes + 511) & ~(int64_t)511; /* torch CUDACachingAllocator kMinBlockSize */
}
const char *ftmem__op_name(int32_t op, bool backward);

void ftmem__tape_start(ftmem__tape *tape, int64_t big_cols);
void ftmem__tape_mark(ftmem__tape *tape); /* a phase begins: peak = live, flops = 0 */

/* Storage. */
int16_t ftmem__alloc(ftmem__tape *tape, ftmem__op op, int64_t n, int64_t cols, int32_t dtype, int32_t tensor_class);
int16_t ftmem__alloc_bytes(ftmem__tape *tape, ftmem__op op, int64_t bytes, int32_t tensor_class);
void ftmem__free(ftmem__tape *tape, int16_t store); /* the last reference is gone */
static inline void ftmem__hold(ftmem__tape *tape, int16_t store)
{
    if (store >= 0) tape->stores[store].refs++;
}
static inline void ftmem__release(ftmem__tape *tape, int16_t store)
{
    if (store >= 0 && --tape->stores[store].refs <= 0) ftmem__free(tape, store);
}
static inline void ftmem__drop(ftmem__tape *tape, ftmem__var value)
{
    ftmem__release(tape, value.store);
}

/* Values. */
static inline ftmem__var ftmem__shaped(ftmem__var v, int64_t n, int64_t cols)
{
    v.n = n & (((int64_t)1 << 53) - 1);
    v.cols = cols > INT32_MAX ? INT32_MAX : (int32_t)cols; /* only of a vector, whose columns nobody reads */
    return v;
}
static inline ftmem__var ftmem__value(int64_t n, int64_t cols, int32_t dtype, int16_t store, int16_t node, bool grad)
{
    ftmem__var v = { 0, 0, (uint64_t)dtype & 15, grad, 0, 0, 0, store, node };
    return ftmem__shaped(v, n, cols);
}
static inline ftmem__var ftmem__weight(int64_t n, int64_t cols, int32_t dtype, bool trained)
{
    return ftmem__value(n, cols, dtype, -1, trained ? FTMEM__LEAF : FTMEM__NO_NODE, trained);
}
static inline ftmem__var ftmem__constant(int64_t n, int64_t cols, int32_t dtype) /* outside the tape, no gradient */
{
    return ftmem__value(n, cols, dtype, -1, FTMEM__NO_NODE, false);
}
static inline ftmem__var ftmem__keep(ftmem__tape *tape, ftmem__var value) /* a second owner */
{
    ftmem__hold(tape, value.store);
    return value;
}
ftmem__var ftmem__input(ftmem__tape *tape, int64_t n, int64_t cols, int32_t dtype, bool grad); /* alive on the tape */
ftmem__var ftmem__side_input(ftmem__tape *tape, int32_t side, int64_t n, int64_t cols, int32_t dtype, bool grad);

/* Of OP_TILES, whose operands are rows, a matrix of words, and a constant of the dtype of its matmuls: rows and elements of words in one tile. */
enum { FTMEM__TILE_TOKENS = 4096, FTMEM__TILE_WORDS = 32768 };
static inline int64_t ftmem__tile_rows(const ftmem__var in[3])
{
    int64_t rows = in[0].n / in[0].cols;
    return rows < FTMEM__TILE_TOKENS ? rows : FTMEM__TILE_TOKENS;
}
static inline int64_t ftmem__tile_words(const ftmem__var in[3])
{
    int64_t words = FTMEM__TILE_WORDS * in[0].cols;
    return in[1].n < words ? in[1].n : words;
}

/* Primitives. Each returns a new value that the caller owns; inputs stay owned by the caller. */
ftmem__var ftmem__apply(ftmem__tape *tape, ftmem__op op, const ftmem__var *in, int32_t count, int64_t n, int64_t cols, int32_t dtype);
ftmem__var ftmem__unary(ftmem__tape *tape, ftmem__op op, ftmem__var x);                /* elementwise */
ftmem__var ftmem__binary(ftmem__tape *tape, ftmem__op op, ftmem__var a, ftmem__var b); /* broadcasts and promotes */
ftmem__var ftmem__cast(ftmem__tape *tape, ftmem__var x, int32_t dtype);                /* the same dtype: the same value, held once more */
ftmem__var ftmem__cast_operand(ftmem__tape *tape, ftmem__var x, int32_t dtype);        /* autocast: the cast of an activation */
ftmem__var ftmem__cast_weight(ftmem__tape *tape, ftmem__var w, int32_t dtype);         /* autocast: a trained fp32 weight is cached */
ftmem__var ftmem__matmul(ftmem__tape *tape, ftmem__op op, ftmem__var x, ftmem__var w, const ftmem__var *bias, int64_t n, int64_t cols, double flops);
void ftmem__split(ftmem__tape *tape, ftmem__var x, int32_t count, const int64_t *n, ftmem__var *out); /* x's owner keeps x */
/* The node of the last apply, to which a kernel's own saved tensors and workspace are added; NULL when nothing was recorded. */
static inline ftmem__node *ftmem__recorded(ftmem__tape *tape, ftmem__var value)
{
    return value.node >= 0 ? &tape->node[value.node] : NULL;
}
void ftmem__save_new(ftmem__tape *tape, ftmem__var result, int64_t n, int64_t cols, int32_t dtype); /* allocate and keep (log-sum-exp, dropout mask) */
void ftmem__save_var(ftmem__tape *tape, ftmem__var result, ftmem__var kept);
void ftmem__fourth(ftmem__tape *tape, ftmem__var result, ftmem__var operand); /* one more operand, saved and given a gradient of its size */

/* Backward starts from `value` too, with this gradient; both are held until it ends. Takes both over. */
void ftmem__also(ftmem__tape *tape, ftmem__var value, int16_t gradient);
/* Backward from `root`, whose gradient the caller has allocated and hands over. */
void ftmem__backward(ftmem__tape *tape, ftmem__var root, int16_t gradient);
/* The same in two parts, for a block that is recomputed in between: nodes above `last` (a node number) run first. */
void ftmem__backward_above(ftmem__tape *tape, ftmem__var root, int16_t gradient, int32_t last);
void ftmem__backward_rest(ftmem__tape *tape);
int32_t ftmem__last_saving(const ftmem__tape *tape); /* the last node that saves anything, -1: none */
/* Somebody goes on to hold a value with its graph, so that what was saved on the way to it outlives backward; returns its bytes, the
   value's own not counted. */
int64_t ftmem__hold_history(ftmem__tape *tape, ftmem__var value);
void ftmem__replay(ftmem__tape *tape, int32_t last); /* record again over a ghost graph, and stop with node `last` */
/* Hands a gradient to one value: to its producer, its parameter, or the segment's input. */
void ftmem__deliver(ftmem__tape *tape, ftmem__var to, int16_t gradient);
void ftmem__drop_saved(ftmem__tape *tape);                                 /* what a policy has saved and nobody has taken */
void ftmem__drop_attributes(ftmem__tape *tape);                            /* the graph is gone */
void ftmem__cache_hold(ftmem__tape *tape, ftmem__var value, bool outputs); /* a cache owns it too; outputs: and lives beyond backward */
void ftmem__cache_clear(ftmem__tape *tape);                                /* the autocast context ends */

#endif
