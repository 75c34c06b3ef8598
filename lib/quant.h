/* Base formats: how the linears of a frozen base model are stored, what their forward keeps, and what PEFT's LoRA layer does over them. */
#ifndef FTMEM_QUANT_H
#define FTMEM_QUANT_H

#include "lower.h"

/* Which of its values a LoRA layer casts back to the dtype of the base's result. */
enum { FTMEM__CAST_SUM, FTMEM__CAST_ADDED, FTMEM__CAST_BEFORE_SCALE };

struct ftmem__quant {
    int32_t bits, group; /* of a stored weight; weights that share a scale unless the adapter says how many, 0: a row */
    int64_t (*bytes)(const ftmem__shape *shape, int64_t in, int64_t out);
    ftmem__var (*forward)(ftmem__low *low, ftmem__var x, int64_t out); /* x stays the caller's */
    uint8_t cast;
    bool clones;            /* the base's result is cloned */
    bool in_place;          /* and added to in place */
    bool as_autocast_casts; /* under autocast neither x nor the result is cast */
    bool bitsandbytes;
    bool widens;         /* prepare_model_for_kbit_training makes fp32 of what is not quantised */
    const char *refused; /* why it is not modelled, or NULL */
};

const ftmem__quant *ftmem__quant_of(int32_t quant); /* NULL: stored plainly */

#endif
