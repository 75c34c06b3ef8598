/* Optimizers as rows: what each keeps for a trained tensor, and what its update needs besides (optimizers.inc). */
#ifndef FTMEM_OPTIMIZER_H
#define FTMEM_OPTIMIZER_H

#include "lower.h"

/* Sizes of tensors that optimizers make for one trained tensor. R x C is its shape, n its elements, k the smaller of R, C,
   r the rank. "Its dtype" is the weight's, or fp32 over master copies. */
enum {
    FTMEM__NOTHING_MORE,  /* ends a list */
    FTMEM__SAME,          /* n, its dtype */
    FTMEM__F32,           /* n, fp32 */
    FTMEM__F32_TWICE,     /* 2 n in one tensor, fp32 */
    FTMEM__B16,           /* n, bf16 */
    FTMEM__BYTES,         /* n bytes */
    FTMEM__BYTES_TWICE,   /* 2 n bytes in one tensor */
    FTMEM__INT64S,        /* n, int64 */
    FTMEM__NIBBLES,       /* half a byte an element */
    FTMEM__MAXIMA,        /* fp32 for every 256 elements */
    FTMEM__MAXIMA_TWICE,  /* two of them in one tensor */
    FTMEM__MAXIMA128,     /* fp32 for every 128 */
    FTMEM__ROWS,          /* R, fp32 */
    FTMEM__COLS,          /* C, fp32 */
    FTMEM__NUMBER,        /* one number */
    FTMEM__CODES256,      /* 256 fp32 codes */
    FTMEM__WIDE,          /* .float(): n, fp32; over fp32 the same tensor, nothing */
    FTMEM__KAHAN,         /* n, its dtype, over 16-bit weights; over fp32 one number */
    FTMEM__ONLY16,        /* n, its dtype, over 16-bit weights; over fp32 nothing */
    FTMEM__LOW,           /* R x r or r x C, its dtype: the gradient in the low-rank space; r is k at most */
    FTMEM__LOW_ANY,       /* the same with any r */
    FTMEM__LOW32,         /* LOW, fp32 */
    FTMEM__PROJECTION,    /* r x k, its dtype, any r */
    FTMEM__PROJECTION32,  /* r x k, fp32, any r */
    FTMEM__DIAGONAL,      /* r x r, fp32, or over 16-bit weights r x k in their dtype, whichever is more; r is k at most */
    FTMEM__PROJECTION_OF, /* r x k, its dtype, cut out of a k x k fp32 factor (r is k at most): over fp32 a view, which keeps the factor */
    FTMEM__FACTOR,        /* k x k, fp32 */
    FTMEM__SINGULAR,      /* k, fp32 */
    FTMEM__GRAM,          /* k x k, bf16 */
    FTMEM__LONG32,        /* R or C, the larger, fp32 */
    FTMEM__RANK32,        /* r, fp32 */
    FTMEM__DIAGONAL32,    /* r x r, fp32; r is k at most */
    FTMEM__LONG_SIDE,     /* R or C, the larger, its dtype */
    FTMEM__SIZE_END
};

/* Which tensors a rule is for; the first rule of a row that fits is taken. */
enum {
    FTMEM__NO_RULE,
    FTMEM__ALL,
    FTMEM__BELOW_4096, /* elements */
    FTMEM__ODD_256,    /* below 4096 elements, or no multiple of 256 */
    FTMEM__ODD_128,
    FTMEM__FROM_1E5, /* 1e5 elements and more */
    FTMEM__MATRICES, /* two dimensions */
    FTMEM__LINEARS,  /* weights of a block's linears */
    FTMEM__IN_BLOCKS /* matrices of blocks */
};

typedef struct ftmem__rule {
    uint8_t of;         /* FTMEM__ALL, ... */
    uint8_t keep[6];    /* states */
    uint8_t away[4];    /* states in managed or host memory, which torch does not count */
    uint8_t each[3];    /* temporaries made of all tensors before one is let go (foreach) */
    uint8_t early[6];   /* temporaries of one tensor at a time, beside what the previous one left */
    uint8_t late[8];    /* ... and after that is gone */
    uint8_t left[5];    /* what names of the loop hold into the next tensor's turn */
    uint8_t products;   /* matrix products of n x r */
    uint8_t diagonals;  /* ... of the longer side x r x r, in a refresh */
    uint8_t refresh[7]; /* beside what the previous one left, before the state is there: on the first step and every few hundred */
} ftmem__rule;

typedef struct ftmem__optimizer {
    ftmem__rule rule[3];
    bool as_it_goes;  /* a tensor's state is made in its turn, not before the first */
    bool from_start;  /* states are made with the optimizer, before the first step */
    bool apart;       /* tensors of the first rule come after all others */
    bool in_backward; /* each tensor is updated as its gradient arrives, which is then freed */
    bool waits;       /* ... when the next gradient arrives; a 16-bit one is freed before `late` */
    bool full_only;   /* of no meaning for adapters */
} ftmem__optimizer;

const ftmem__optimizer *ftmem__optimizer_of(const ftmem_job *job);
const ftmem__rule *ftmem__rule_for(const ftmem_job *job, const ftmem__param *param);
bool ftmem__updates_in_backward(const ftmem_job *job);

/* What the update of the parameter with this gradient takes, in backward; context: the job. */
ftmem__work ftmem__update_of(const void *context, const ftmem__store *gradient, bool in_block);

typedef struct ftmem__buffer {
    int64_t bytes, n; /* bytes rounded to 512 */
    int32_t dtype;
} ftmem__buffer;
ftmem__buffer ftmem__buffer_of(const ftmem_job *job, const ftmem__param *param, int32_t size);
int64_t ftmem__list_bytes(const ftmem_job *job, const ftmem__param *param, const uint8_t *list, int32_t capacity);
#define FTMEM__LIST_BYTES(job, param, list) ftmem__list_bytes(job, param, list, (int32_t)sizeof(list))

#endif
