/* Internal foundation, included first by every file of lib/: errors, checked arithmetic, struct import. */
#ifndef FTMEM_COMMON_H
#define FTMEM_COMMON_H

#include "ftmem.h"

#include <stdbool.h>
#include <string.h>

#define FTMEM__COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

/* ---- errors (status.c): each fills *error if it is not NULL and returns `status`. `message` is a whole sentence. */
ftmem_status ftmem__fail(ftmem_error *error, ftmem_status status, const char *field, const char *value, const char *message);
ftmem_status ftmem__fail_int(ftmem_error *error, ftmem_status status, const char *field, int64_t value, const char *message);

/* ---- text (text.c): bounded, locale-free building of short texts. The result is always terminated; `needed` counts
   what the whole text takes, terminator not counted. */
typedef struct ftmem__text {
    char *at;
    size_t capacity, needed;
} ftmem__text;
void ftmem__put(ftmem__text *text, const char *part);
void ftmem__put_int(ftmem__text *text, int64_t value);
void ftmem__put_real(ftmem__text *text, double value, int decimals); /* fixed notation */
bool ftmem__parse_int(const char *text, int64_t *value);   /* strict decimal, sign allowed, "15_360_000" and "1e9" accepted when whole */
bool ftmem__parse_real(const char *text, double *value);   /* strict, locale-free */
bool ftmem__same(const char *a, const char *b);            /* ASCII case-insensitive */

/* ---- checked arithmetic (inline): int64 with a sticky overflow flag, checked once at the end of a computation. */
typedef struct ftmem__checked {
    bool overflow;
} ftmem__checked;
static inline int64_t ftmem__mul(ftmem__checked *c, int64_t a, int64_t b)
{
    int64_t r = 0;
    if (__builtin_mul_overflow(a, b, &r)) { c->overflow = true; return 0; }
    return r;
}
static inline int64_t ftmem__add(ftmem__checked *c, int64_t a, int64_t b)
{
    int64_t r = 0;
    if (__builtin_add_overflow(a, b, &r)) { c->overflow = true; return 0; }
    return r;
}

/* ---- struct import (structs.c): the kernel rule. A shorter caller struct is zero-filled, a longer one accepted only
   if its tail is zero, a size of 0 or below `minimum` is FTMEM_E_STRUCT_SIZE naming `what`. */
ftmem_status ftmem__import(void *to, size_t full, const void *from, size_t minimum, const char *what, ftmem_error *error);

#endif
