/* Dropout. */
#include "lower.h"

/* torch native_dropout: the result, and a mask of one byte an element that backward keeps. */
ftmem__var ftmem__low_dropout(ftmem__low *low, ftmem__var x, double p)
{
    ftmem__var y;
    if (!low->training || p <= 0) return x;
    y = ftmem__unary(low->tape, FTMEM__OP_DROPOUT, x);
    ftmem__save_new(low->tape, y, x.n, x.cols, FTMEM_BOOL);
    ftmem__drop(low->tape, x);
    return y;
}
