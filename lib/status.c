/* Status codes and the error that a caller may pass along. */
#include "common.h"

/* One list, so that a status cannot have a name without a sentence. */
#define STATUS_LIST(X) \
    X(FTMEM_OK, "no error") \
    X(FTMEM_E_ARGUMENT, "a required pointer is NULL, or a call is out of order") \
    X(FTMEM_E_STRUCT_SIZE, "struct_size is 0, too small, or larger with a non-zero tail") \
    X(FTMEM_E_RANGE, "a value is outside its field's range") \
    X(FTMEM_E_OVERFLOW, "a product of the given numbers does not fit in 63 bits") \
    X(FTMEM_E_CONFLICT, "two values contradict each other") \
    X(FTMEM_E_UNSUPPORTED, "the request is understood, but not modelled") \
    X(FTMEM_E_UNKNOWN_NAME, "there is no such model, GPU, field or enum value") \
    X(FTMEM_E_MISSING, "a required value was not given") \
    X(FTMEM_E_TYPE, "a value has the wrong type, or a text is not a number") \
    X(FTMEM_E_BUFFER, "the caller's buffer is too small; the needed size was stored") \
    X(FTMEM_E_SYNTAX, "a JSON document is malformed") \
    X(FTMEM_E_IO, "a file cannot be read")

typedef struct status_row {
    const char *name, *sentence;
} status_row;

#define STATUS_ROW(status, sentence) [status] = { #status, sentence },
static const status_row status_rows[] = { STATUS_LIST(STATUS_ROW) };
#undef STATUS_ROW

_Static_assert(sizeof status_rows / sizeof status_rows[0] == FTMEM_STATUS_END, "every status has a row");

static const status_row *status_find(ftmem_status status)
{
    static const status_row unknown = { "FTMEM_E_?", "this number is no status" };
    return status >= 0 && status < FTMEM_STATUS_END ? &status_rows[status] : &unknown;
}

const char *ftmem_status_name(ftmem_status status)
{
    return status_find(status)->name;
}

const char *ftmem_status_string(ftmem_status status)
{
    return status_find(status)->sentence;
}

/* An error that nobody initialised holds any number as its size: writing through it could go past its end. */
static bool status_writable(const ftmem_error *error)
{
    return error && error->struct_size >= FTMEM__ERROR_MINIMUM && error->struct_size <= FTMEM__ERROR_MINIMUM + FTMEM__TAIL_LIMIT;
}

ftmem_status ftmem__fail(ftmem_error *error, ftmem_status status, const char *field, const char *value, const char *message)
{
    if (!status_writable(error)) return status;
    error->status = status;
    ftmem__copy(error->field, sizeof error->field, field ? field : "");
    ftmem__copy(error->value, sizeof error->value, value ? value : "");
    ftmem__copy(error->message, sizeof error->message, message ? message : ftmem_status_string(status));
    return status;
}

ftmem_status ftmem__fail_int(ftmem_error *error, ftmem_status status, const char *field, int64_t value, const char *message)
{
    char digits[24];
    ftmem__text text = ftmem__text_in(digits, sizeof digits);
    ftmem__put_int(&text, value);
    return ftmem__fail(error, status, field, digits, message);
}
