/* Adapter methods: one row each, with the function that runs an adapted linear. */
#ifndef FTMEM_METHOD_H
#define FTMEM_METHOD_H

#include "quant.h"

typedef struct ftmem__adapted { /* one linear */
    ftmem__var x;
    int64_t out;
    int32_t role;
    bool bias;
} ftmem__adapted;

enum { FTMEM__OVER_PLAIN, FTMEM__OVER_BITSANDBYTES, FTMEM__OVER_ANY };

typedef struct ftmem__method {
    int32_t rank;                                                    /* PEFT's default */
    ftmem__var (*linear)(ftmem__low *low, const ftmem__adapted *at); /* base and adapter; NULL: linears stay as they are */
    uint8_t over;                                                    /* which base formats it is modelled over */
    bool own_targets;                                                /* LoRA's default targets are not its own */
    const char *refused;                                             /* why it is not modelled, or NULL */
} ftmem__method;

const ftmem__method *ftmem__method_of(int32_t kind);
uint32_t ftmem__method_targets(int32_t kind, const ftmem_model *model); /* PEFT's defaults; 0: it has none */

ftmem__var ftmem__method_cast(ftmem__tape *tape, ftmem__var x, int32_t dtype); /* takes over x */
ftmem__var ftmem__method_clone(ftmem__tape *tape, ftmem__var x);               /* likewise */
/* base + delta; takes over both. */
ftmem__var ftmem__method_add(ftmem__tape *tape, ftmem__var base, ftmem__var delta, bool in_place);

/* methods.c */
void ftmem__method_shared(ftmem__low *low);                     /* declares what all linears share */
ftmem__var ftmem__method_prompt(ftmem__low *low, ftmem__var x); /* virtual tokens before x; takes over x */
/* trainable_token_indices: the rows, declared or known already, and the matrix with them in their places. */
ftmem__var ftmem__method_token_rows(ftmem__low *low, bool declared);
ftmem__var ftmem__method_tokens(ftmem__low *low, ftmem__var w, ftmem__var rows);
ftmem__var ftmem__method_vera(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_adalora(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_ia3(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_loha(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_lokr(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_oft(ftmem__low *low, const ftmem__adapted *at);
/* tuners.c */
ftmem__var ftmem__method_miss(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_miss_bat(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_hira(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_pvera(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_fourier(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_delora(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_road(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_c3a(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_gralora(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_beft(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_deft(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_glora(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_peanut(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_tiny(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_rand(ftmem__low *low, const ftmem__adapted *at);
ftmem__var ftmem__method_psoft(ftmem__low *low, const ftmem__adapted *at);

#endif
