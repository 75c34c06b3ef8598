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
static inline ftmem__text ftmem__text_in(char *buffer, size_t capacity)
{
    ftmem__text text = { buffer, capacity, 0 };
    if (capacity > 0) buffer[0] = '\0';
    return text;
}
void ftmem__put(ftmem__text *text, const char *part);
void ftmem__put_int(ftmem__text *text, int64_t value);
void ftmem__put_real(ftmem__text *text, double value, int decimals); /* fixed notation; from 1e15 on "1.5e+20" */
void ftmem__put_number(ftmem__text *text, double value);             /* as few digits as say it to nine: "1048576", "0.999", "1e-07" */
void ftmem__copy(char *to, size_t capacity, const char *from);       /* cut at a whole UTF-8 character with "...", control characters as '?' */
bool ftmem__parse_int(const char *text, int64_t *value);             /* strict decimal, sign allowed, "15_360_000" and "1e9" accepted when whole */
bool ftmem__parse_real(const char *text, double *value);             /* strict, locale-free */
bool ftmem__same(const char *a, const char *b);                      /* ASCII case-insensitive */
bool ftmem__alike(const char *a, const char *b);                     /* the same, and '-', '_' and ' ' are one character */
int32_t ftmem__distance(const char *typed, const char *name);        /* edits apart, fewer when the name contains the typed text */

/* ---- unknown names (names.c): FTMEM_E_UNKNOWN_NAME whose message lists what there is, nearest first, cut to fit.
   `field` may be NULL; `noun` says what was looked for ("model"); at() may return NULL to leave an index out. */
typedef struct ftmem__names {
    const char *(*at)(const void *context, int32_t index);
    const void *context;
    int32_t count;
} ftmem__names;
ftmem_status ftmem__fail_unknown(ftmem_error *error, const char *field, const char *noun, const char *typed, const ftmem__names *names);
/* ftmem_enum_parse whose error names `field`. */
ftmem_status ftmem__enum_parse(const char *enum_name, const char *text, int32_t *value, const char *field, ftmem_error *error);
void ftmem__put_set(ftmem__text *text, const char *enum_name, uint32_t set); /* "q+v"; "none" */

/* ---- the field table (fields.c): checks every member of one FTMEM_OBJECT_... against its row; 0 always passes. */
ftmem_status ftmem__fields_validate(int32_t object, const void *object_ptr, ftmem_error *error);

/* ---- checked arithmetic (inline): int64 with a sticky overflow flag, checked once at the end of a computation. */
typedef struct ftmem__checked {
    bool overflow;
} ftmem__checked;
static inline int64_t ftmem__mul(ftmem__checked *c, int64_t a, int64_t b)
{
    int64_t r = 0;
    if (__builtin_mul_overflow(a, b, &r)) {
        c->overflow = true;
        return 0;
    }
    return r;
}
static inline int64_t ftmem__add(ftmem__checked *c, int64_t a, int64_t b)
{
    int64_t r = 0;
    if (__builtin_add_overflow(a, b, &r)) {
        c->overflow = true;
        return 0;
    }
    return r;
}

/* ---- struct import (structs.c): the kernel rule. A shorter caller struct is zero-filled, a longer one accepted only
   if its tail is zero, a size of 0 or below `minimum` is FTMEM_E_STRUCT_SIZE naming `what`. */
ftmem_status ftmem__import(void *to, size_t full, const void *from, size_t minimum, const char *what, ftmem_error *error);
/* The other way: whether a caller's output struct has room for what was first published, and filling as much of it as
   its struct_size says. Check before computing, so that a failure leaves the output untouched. */
ftmem_status ftmem__exportable(const void *to, size_t minimum, const char *what, ftmem_error *error);
void ftmem__export(void *to, const void *from, size_t full);

/* The sizes first published. When a struct grows, its minimum becomes offsetof(struct, first new member). */
#define FTMEM__ERROR_MINIMUM sizeof(ftmem_error)
#define FTMEM__MODEL_MINIMUM sizeof(ftmem_model)
#define FTMEM__ADAPTER_MINIMUM sizeof(ftmem_adapter)
#define FTMEM__GPU_MINIMUM sizeof(ftmem_gpu)
#define FTMEM__JOB_MINIMUM sizeof(ftmem_job)
#define FTMEM__MEMORY_MINIMUM sizeof(ftmem_memory)
#define FTMEM__PARAMETERS_MINIMUM sizeof(ftmem_parameters)
/* No later version will be longer than ours by more: a larger struct_size is garbage, and its tail is not read. */
#define FTMEM__TAIL_LIMIT 4096u

#endif
