/* The structs of the interface: their layout, their initialisers, and how one version's struct becomes another's. */
#include "common.h"

/* ------------------------------------------------------------------------------------------------- the ledger
   Asserted while compiling. Since the sizes of a struct's members add up to its own, there is no implicit padding that
   a caller could leave unset. */

#define FTMEM__LAYOUT(type, size) _Static_assert(sizeof(type) == (size), #type " has another size");
#define FTMEM__MEMBER(type, member, at, size) \
    _Static_assert(offsetof(type, member) == (at) && sizeof(((type *)0)->member) == (size), #type "." #member " has moved");
#include "structs.inc"
#undef FTMEM__LAYOUT
#undef FTMEM__MEMBER

/* The sum over everything is as good as a sum for each, because no struct can be smaller than its members. */
#define FTMEM__LAYOUT(type, size) +(size)
#define FTMEM__MEMBER(type, member, at, size) -(size)
_Static_assert(0
#include "structs.inc"
                   == 0,
               "a struct has padding, or a member without a row");
#undef FTMEM__LAYOUT
#undef FTMEM__MEMBER

/* ------------------------------------------------------------------------------------------------ struct_size */

static ftmem_status structs_fail(ftmem_error *error, const char *what, size_t size, size_t minimum, const char *why)
{
    char field[sizeof error->field], message[sizeof error->message];
    if (!error) return FTMEM_E_STRUCT_SIZE;
    ftmem__text path = ftmem__text_in(field, sizeof field), text = ftmem__text_in(message, sizeof message);
    ftmem__put(&path, what);
    ftmem__put(&path, ".struct_size");
    ftmem__put(&text, field);
    ftmem__put(&text, " is ");
    ftmem__put_int(&text, (int64_t)size);
    ftmem__put(&text, why);
    ftmem__put_int(&text, (int64_t)minimum);
    ftmem__put(&text, " bytes: initialise the struct with its INIT macro or ftmem_..._init");
    return ftmem__fail_int(error, FTMEM_E_STRUCT_SIZE, field, (int64_t)size, message);
}

static ftmem_status structs_fail_null(ftmem_error *error, const char *what)
{
    char message[sizeof error->message];
    if (!error) return FTMEM_E_ARGUMENT;
    ftmem__text text = ftmem__text_in(message, sizeof message);
    ftmem__put(&text, what);
    ftmem__put(&text, " is NULL, but it is required");
    return ftmem__fail(error, FTMEM_E_ARGUMENT, what, NULL, message);
}

static ftmem_status structs_check(size_t size, size_t minimum, size_t full, const char *what, ftmem_error *error)
{
    if (size < minimum) return structs_fail(error, what, size, minimum, ", but it must be at least ");
    if (size > full + FTMEM__TAIL_LIMIT) return structs_fail(error, what, size, full, ", which no version has; this one has ");
    return FTMEM_OK;
}

static size_t structs_size(const void *object)
{
    uint32_t size;
    memcpy(&size, object, sizeof size);
    return size;
}

static bool structs_zero(const char *bytes, size_t count)
{
    char any = 0;
    for (size_t i = 0; i < count; ++i) any |= bytes[i];
    return any == 0;
}

ftmem_status ftmem__import(void *to, size_t full, const void *from, size_t minimum, const char *what, ftmem_error *error)
{
    if (!from) return structs_fail_null(error, what);
    uint32_t known = (uint32_t)full;
    size_t size = structs_size(from);
    ftmem_status status = structs_check(size, minimum, full, what, error);
    if (status != FTMEM_OK) return status;
    if (size > full && !structs_zero((const char *)from + full, size - full))
        return structs_fail(error, what, size, full, " and sets members that this version does not know, past its ");
    memcpy(to, from, size < full ? size : full);
    if (size < full) memset((char *)to + size, 0, full - size);
    memcpy(to, &known, sizeof known);
    return FTMEM_OK;
}

ftmem_status ftmem__exportable(const void *to, size_t minimum, const char *what, ftmem_error *error)
{
    if (!to) return structs_fail_null(error, what);
    return structs_check(structs_size(to), minimum, minimum, what, error);
}

void ftmem__export(void *to, const void *from, size_t full)
{
    uint32_t size = (uint32_t)structs_size(to);
    memcpy(to, from, size < full ? size : full);
    if (size > full) memset((char *)to + full, 0, size - full);
    memcpy(to, &size, sizeof size);
}

/* ----------------------------------------------------------------------------------------------- initialisers */

/* Clears all that the caller has, members of later versions too: this library must be able to call them unset. */
static ftmem_status structs_init(void *x, size_t size, size_t minimum)
{
    if (!x) return FTMEM_E_ARGUMENT;
    if (structs_check(size, minimum, minimum, "", NULL) != FTMEM_OK) return FTMEM_E_STRUCT_SIZE;
    uint32_t stored = (uint32_t)size;
    memset(x, 0, size);
    memcpy(x, &stored, sizeof stored);
    return FTMEM_OK;
}

ftmem_status ftmem_error_init(ftmem_error *x, size_t size)
{
    return structs_init(x, size, FTMEM__ERROR_MINIMUM);
}

ftmem_status ftmem_model_init(ftmem_model *x, size_t size)
{
    return structs_init(x, size, FTMEM__MODEL_MINIMUM);
}

ftmem_status ftmem_adapter_init(ftmem_adapter *x, size_t size)
{
    return structs_init(x, size, FTMEM__ADAPTER_MINIMUM);
}

ftmem_status ftmem_gpu_init(ftmem_gpu *x, size_t size)
{
    return structs_init(x, size, FTMEM__GPU_MINIMUM);
}

ftmem_status ftmem_job_init(ftmem_job *x, size_t size)
{
    return structs_init(x, size, FTMEM__JOB_MINIMUM);
}

ftmem_status ftmem_memory_init(ftmem_memory *x, size_t size)
{
    return structs_init(x, size, FTMEM__MEMORY_MINIMUM);
}

ftmem_status ftmem_parameters_init(ftmem_parameters *x, size_t size)
{
    return structs_init(x, size, FTMEM__PARAMETERS_MINIMUM);
}
