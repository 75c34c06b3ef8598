/* The table of input fields: what there is, whether a value is allowed, and setting one from text. */
#include "common.h"
#include "fields.inc"

#define FIELDS_ALL(INT, REAL, ENUM, SET, TEXT) \
    FTMEM__FIELDS_MODEL(INT, REAL, ENUM, SET, TEXT) \
    FTMEM__FIELDS_ADAPTER(INT, REAL, ENUM, SET, TEXT) \
    FTMEM__FIELDS_GPU(INT, REAL, ENUM, SET, TEXT) \
    FTMEM__FIELDS_JOB(INT, REAL, ENUM, SET, TEXT)

enum {
    FIELDS_OBJECT_model = FTMEM_OBJECT_MODEL,
    FIELDS_OBJECT_adapter = FTMEM_OBJECT_ADAPTER,
    FIELDS_OBJECT_gpu = FTMEM_OBJECT_GPU,
    FIELDS_OBJECT_job = FTMEM_OBJECT_JOB
};

#define FIELDS_SIZE(object, member) sizeof(((ftmem_##object *)0)->member)
#define FIELDS_ROW(object, member, unit, names, low, high, zero, doc, type) \
    { #object "." #member, \
      unit, \
      names, \
      doc, \
      zero, \
      (double)(low), \
      (double)(high), \
      FIELDS_OBJECT_##object, \
      type, \
      (int32_t)FIELDS_SIZE(object, member), \
      (int32_t)offsetof(ftmem_##object, member) },
#define FIELDS_INT(object, member, unit, low, high, zero, doc) FIELDS_ROW(object, member, unit, NULL, low, high, zero, doc, FTMEM_TYPE_INT)
#define FIELDS_REAL(object, member, unit, low, high, zero, doc) FIELDS_ROW(object, member, unit, NULL, low, high, zero, doc, FTMEM_TYPE_REAL)
#define FIELDS_ENUM(object, member, names, low, high, zero, doc) FIELDS_ROW(object, member, "", names, low, high, zero, doc, FTMEM_TYPE_ENUM)
#define FIELDS_SET(object, member, names, all, zero, doc) FIELDS_ROW(object, member, "", names, 1, all, zero, doc, FTMEM_TYPE_SET)
#define FIELDS_TEXT(object, member, zero, doc) FIELDS_ROW(object, member, "", NULL, 1, FIELDS_SIZE(object, member) - 1, zero, doc, FTMEM_TYPE_TEXT)

static const ftmem_field fields_rows[] = { FIELDS_ALL(FIELDS_INT, FIELDS_REAL, FIELDS_ENUM, FIELDS_SET, FIELDS_TEXT) };

int32_t ftmem_field_count(void)
{
    return FTMEM__COUNT(fields_rows);
}

const ftmem_field *ftmem_field_at(int32_t index)
{
    return index >= 0 && index < FTMEM__COUNT(fields_rows) ? &fields_rows[index] : NULL;
}

const ftmem_field *ftmem_field_find(const char *path)
{
    for (int32_t i = 0; path && i < FTMEM__COUNT(fields_rows); ++i)
        if (ftmem__alike(fields_rows[i].path, path)) return &fields_rows[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------- what was allowed */

static void fields_put_plain_range(ftmem__text *text, const ftmem_field *field)
{
    if (field->minimum < field->maximum) {
        ftmem__put(text, "between ");
        ftmem__put_number(text, field->minimum);
        ftmem__put(text, " and ");
    }
    ftmem__put_number(text, field->maximum);
    if (field->unit[0] && strcmp(field->unit, "version") != 0) {
        ftmem__put(text, " ");
        ftmem__put(text, field->unit);
    }
}

static void fields_put_enum_range(ftmem__text *text, const ftmem_field *field)
{
    int32_t last = (int32_t)field->maximum;
    for (int32_t value = (int32_t)field->minimum; value <= last; ++value) {
        const char *name = ftmem_enum_name(field->enum_name, value);
        if (value > (int32_t)field->minimum) ftmem__put(text, value == last ? " or " : ", ");
        ftmem__put(text, name ? name : "?");
    }
}

static void fields_put_range(ftmem__text *text, const ftmem_field *field)
{
    if (field->type == FTMEM_TYPE_ENUM) {
        fields_put_enum_range(text, field);
    } else if (field->type == FTMEM_TYPE_SET) {
        ftmem__put(text, "a set of ");
        ftmem__put_set(text, field->enum_name, (uint32_t)field->maximum);
    } else if (field->type == FTMEM_TYPE_TEXT) {
        ftmem__put(text, "a text of at most ");
        ftmem__put_number(text, field->maximum);
        ftmem__put(text, " bytes");
    } else {
        fields_put_plain_range(text, field);
    }
}

/* "job.micro_batch is -4; it must be between 1 and 1048576 rows" */
static ftmem_status fields_fail(ftmem_error *error, ftmem_status status, const ftmem_field *field, const char *value, const char *demand)
{
    char shown[64], message[sizeof error->message];
    if (!error) return status;
    ftmem__copy(shown, sizeof shown, value);
    ftmem__text text = ftmem__text_in(message, sizeof message);
    ftmem__put(&text, field->path);
    ftmem__put(&text, status == FTMEM_E_TYPE ? " is \"" : " is ");
    ftmem__put(&text, shown);
    ftmem__put(&text, demand);
    fields_put_range(&text, field);
    return ftmem__fail(error, status, field->path, value, message);
}

static ftmem_status fields_fail_range(ftmem_error *error, const ftmem_field *field, const char *value)
{
    return fields_fail(error, FTMEM_E_RANGE, field, value, "; it must be ");
}

/* ------------------------------------------------------------------------------------------- checking a value */

static void fields_put_value(ftmem__text *text, const ftmem_field *field, int64_t value)
{
    const char *name = field->type == FTMEM_TYPE_ENUM && value == (int32_t)value ? ftmem_enum_name(field->enum_name, (int32_t)value) : NULL;
    if (name) ftmem__put(text, name);
    else ftmem__put_int(text, value);
}

/* The maximum of a set is all its bits. */
static bool fields_holds(const ftmem_field *field, int64_t value)
{
    if (value == 0) return true;
    if (field->type == FTMEM_TYPE_SET) return value > 0 && (value & ~(int64_t)field->maximum) == 0;
    return value >= (int64_t)field->minimum && value <= (int64_t)field->maximum;
}

static ftmem_status fields_check_int(const ftmem_field *field, int64_t value, ftmem_error *error)
{
    if (fields_holds(field, value)) return FTMEM_OK;
    char shown[32];
    ftmem__text text = ftmem__text_in(shown, sizeof shown);
    fields_put_value(&text, field, value);
    return fields_fail_range(error, field, shown);
}

/* Written so that a NaN, which compares with nothing, fails. */
static ftmem_status fields_check_real(const ftmem_field *field, double value, ftmem_error *error)
{
    if (value == 0 || (value >= field->minimum && value <= field->maximum)) return FTMEM_OK;
    char shown[32];
    ftmem__text text = ftmem__text_in(shown, sizeof shown);
    ftmem__put_number(&text, value);
    return fields_fail_range(error, field, shown);
}

static ftmem_status fields_check_text(const ftmem_field *field, const char *value, ftmem_error *error)
{
    return memchr(value, '\0', (size_t)field->size) ? FTMEM_OK : fields_fail_range(error, field, "not terminated");
}

static int64_t fields_read_int(const ftmem_field *field, const void *member)
{
    int64_t wide;
    int32_t narrow;
    if (field->size == sizeof wide) {
        memcpy(&wide, member, sizeof wide);
        return wide;
    }
    memcpy(&narrow, member, sizeof narrow);
    return narrow;
}

static ftmem_status fields_check(const ftmem_field *field, const void *object, ftmem_error *error)
{
    const char *member = (const char *)object + field->offset;
    if (field->type == FTMEM_TYPE_TEXT) return fields_check_text(field, member, error);
    if (field->type != FTMEM_TYPE_REAL) return fields_check_int(field, fields_read_int(field, member), error);
    double value;
    memcpy(&value, member, sizeof value);
    return fields_check_real(field, value, error);
}

/* ------------------------------------------------------------------------------------------ checking an object
   Most objects are right, so that is found out first, without branches and without walking the table: the rows
   expand to comparisons with constants. A text whose last byte is set may still be terminated before; the walk says. */

static inline uint32_t fields_outside(int64_t value, int64_t low, int64_t high)
{
    return (uint32_t)(value != 0) & ((uint32_t)(value < low) | (uint32_t)(value > high));
}

static inline uint32_t fields_outside_real(double value, double low, double high)
{
    return (uint32_t)(value != 0) & (uint32_t) !(value >= low && value <= high);
}

#define FIELDS_OUT_INT(object, member, unit, low, high, zero, doc) out |= fields_outside(x->member, low, high);
#define FIELDS_OUT_REAL(object, member, unit, low, high, zero, doc) out |= fields_outside_real(x->member, low, high);
#define FIELDS_OUT_ENUM(object, member, names, low, high, zero, doc) out |= fields_outside(x->member, low, high);
#define FIELDS_OUT_SET(object, member, names, all, zero, doc) out |= (uint32_t)((uint32_t)x->member > (uint32_t)(all));
#define FIELDS_OUT_TEXT(object, member, zero, doc) out |= (uint32_t)(unsigned char)x->member[FIELDS_SIZE(object, member) - 1];
#define FIELDS_OUT(LIST) LIST(FIELDS_OUT_INT, FIELDS_OUT_REAL, FIELDS_OUT_ENUM, FIELDS_OUT_SET, FIELDS_OUT_TEXT)

static bool fields_model_out(const ftmem_model *x)
{
    uint32_t out = 0;
    FIELDS_OUT(FTMEM__FIELDS_MODEL)
    return out != 0;
}

static bool fields_adapter_out(const ftmem_adapter *x)
{
    uint32_t out = 0;
    FIELDS_OUT(FTMEM__FIELDS_ADAPTER)
    return out != 0;
}

static bool fields_gpu_out(const ftmem_gpu *x)
{
    uint32_t out = 0;
    FIELDS_OUT(FTMEM__FIELDS_GPU)
    return out != 0;
}

static bool fields_job_out(const ftmem_job *x)
{
    uint32_t out = 0;
    FIELDS_OUT(FTMEM__FIELDS_JOB)
    return out != 0;
}

static bool fields_any_out(int32_t object, const void *x)
{
    switch (object) {
    case FTMEM_OBJECT_MODEL: return fields_model_out(x);
    case FTMEM_OBJECT_ADAPTER: return fields_adapter_out(x);
    case FTMEM_OBJECT_GPU: return fields_gpu_out(x);
    case FTMEM_OBJECT_JOB: return fields_job_out(x);
    default: return false;
    }
}

/* Members that a later version will give a meaning must not arrive with one today. */
static bool fields_reserved(int32_t object, const void *x)
{
    const ftmem_gpu *gpu = x;
    const ftmem_job *job = x;
    int64_t any = 0;
    switch (object) {
    case FTMEM_OBJECT_MODEL: return ((const ftmem_model *)x)->reserved != 0;
    case FTMEM_OBJECT_ADAPTER: return false;
    case FTMEM_OBJECT_JOB: return job->reserved != 0;
    default: break;
    }
    for (size_t i = 0; i < sizeof gpu->reserved / sizeof gpu->reserved[0]; ++i) any |= gpu->reserved[i];
    return any != 0;
}

static ftmem_status fields_fail_reserved(int32_t object, ftmem_error *error)
{
    static const char *const paths[] = { "model.reserved", "adapter.reserved", "gpu.reserved", "job.reserved" };
    return ftmem__fail(error, FTMEM_E_RANGE, paths[object], "not 0", "reserved members must be 0; initialise the struct with its INIT macro");
}

ftmem_status ftmem__fields_validate(int32_t object, const void *object_ptr, ftmem_error *error)
{
    if (fields_reserved(object, object_ptr)) return fields_fail_reserved(object, error);
    if (!fields_any_out(object, object_ptr)) return FTMEM_OK;
    for (int32_t i = 0; i < FTMEM__COUNT(fields_rows); ++i) {
        if (fields_rows[i].object != object) continue;
        ftmem_status status = fields_check(&fields_rows[i], object_ptr, error);
        if (status != FTMEM_OK) return status;
    }
    return FTMEM_OK;
}

/* ---------------------------------------------------------------------------------------------- setting by text */

static ftmem_status fields_write_int(const ftmem_field *field, int64_t value, void *member, ftmem_error *error)
{
    ftmem_status status = fields_check_int(field, value, error);
    if (status != FTMEM_OK) return status;
    int32_t narrow = (int32_t)value;
    if (field->size == (int32_t)sizeof value) memcpy(member, &value, sizeof value);
    else memcpy(member, &narrow, sizeof narrow);
    return FTMEM_OK;
}

static ftmem_status fields_set_int(const ftmem_field *field, const char *text, void *member, ftmem_error *error)
{
    int64_t value;
    if (!ftmem__parse_int(text, &value)) return fields_fail(error, FTMEM_E_TYPE, field, text, "\"; it must be a whole number ");
    return fields_write_int(field, value, member, error);
}

static ftmem_status fields_set_real(const ftmem_field *field, const char *text, void *member, ftmem_error *error)
{
    double value;
    if (!ftmem__parse_real(text, &value)) return fields_fail(error, FTMEM_E_TYPE, field, text, "\"; it must be a number ");
    ftmem_status status = fields_check_real(field, value, error);
    if (status == FTMEM_OK) memcpy(member, &value, sizeof value);
    return status;
}

static ftmem_status fields_set_enum(const ftmem_field *field, const char *text, void *member, ftmem_error *error)
{
    int32_t value;
    ftmem_status status = ftmem__enum_parse(field->enum_name, text, &value, field->path, error);
    return status == FTMEM_OK ? fields_write_int(field, value, member, error) : status;
}

static ftmem_status fields_set_text(const ftmem_field *field, const char *text, void *member, ftmem_error *error)
{
    size_t length = strlen(text);
    if (length >= (size_t)field->size) return fields_fail_range(error, field, text);
    memset(member, 0, (size_t)field->size);
    memcpy(member, text, length);
    return FTMEM_OK;
}

/* One name of a set, as the bits it means. */
static ftmem_status fields_parse_member(const ftmem_field *field, const char *name, uint32_t *bits, ftmem_error *error)
{
    bool roles = strcmp(field->enum_name, "role") == 0;
    int32_t value;
    *bits = roles && ftmem__alike(name, "all_linear") ? FTMEM_ROLES_ALL_LINEAR : 0;
    if (*bits || ftmem__alike(name, "none")) return FTMEM_OK;
    ftmem_status status = ftmem__enum_parse(field->enum_name, name, &value, field->path, error);
    if (status == FTMEM_OK) *bits = roles ? (uint32_t)1 << value : (uint32_t)value;
    return status;
}

/* Copies the next name between '+' and ',' without the spaces around it, and returns what follows. */
static const char *fields_next_member(const char *at, char *name, size_t capacity)
{
    size_t length = 0;
    at += strspn(at, " ");
    for (; *at && *at != '+' && *at != ','; ++at)
        if (length + 1 < capacity) name[length++] = *at;
    while (length > 0 && name[length - 1] == ' ') --length;
    name[length] = '\0';
    return at;
}

static ftmem_status fields_set_set(const ftmem_field *field, const char *text, void *member, ftmem_error *error)
{
    char name[64];
    uint32_t set = 0, bits = 0;
    int64_t number;
    if (ftmem__parse_int(text, &number)) return fields_write_int(field, number, member, error);
    for (const char *at = text;; ++at) {
        at = fields_next_member(at, name, sizeof name);
        ftmem_status status = fields_parse_member(field, name, &bits, error);
        if (status != FTMEM_OK) return status;
        set |= bits;
        if (!*at) return fields_write_int(field, set, member, error);
    }
}

static ftmem_status fields_set(const ftmem_field *field, const char *text, void *member, ftmem_error *error)
{
    switch (field->type) {
    case FTMEM_TYPE_INT: return fields_set_int(field, text, member, error);
    case FTMEM_TYPE_REAL: return fields_set_real(field, text, member, error);
    case FTMEM_TYPE_ENUM: return fields_set_enum(field, text, member, error);
    case FTMEM_TYPE_SET: return fields_set_set(field, text, member, error);
    default: return fields_set_text(field, text, member, error);
    }
}

/* A GPU inside a job has a size of 0 until someone sets it: the job's own size vouches for it. */
static bool fields_fits(const ftmem_field *field, const void *object)
{
    uint32_t size;
    memcpy(&size, object, sizeof size);
    if (size == 0 && field->object == FTMEM_OBJECT_GPU) return true;
    return size >= (uint32_t)(field->offset + field->size) && size <= sizeof(ftmem_model) + FTMEM__TAIL_LIMIT;
}

static const char *fields_path_at(const void *context, int32_t index)
{
    (void)context;
    return fields_rows[index].path;
}

ftmem_status ftmem_set(const char *path, const char *text, void *object, ftmem_error *error)
{
    static const ftmem__names paths = { fields_path_at, NULL, FTMEM__COUNT(fields_rows) };
    if (!path || !text || !object)
        return ftmem__fail(error, FTMEM_E_ARGUMENT, path, text, "ftmem_set needs a field's path, a text and the struct that the path belongs to");
    const ftmem_field *field = ftmem_field_find(path);
    if (!field) return ftmem__fail_unknown(error, NULL, "field", path, &paths);
    if (!fields_fits(field, object))
        return ftmem__fail(error, FTMEM_E_STRUCT_SIZE, field->path, NULL, "the struct is not initialised, or too old to have this field: use its INIT macro");
    return fields_set(field, text, (char *)object + field->offset, error);
}
