/* The names of enum values, and the error of a name that is not known. */
#include "common.h"

typedef struct names_row {
    const char *enum_name, *text;
    int32_t value;
    bool alias;
} names_row;

#define FTMEM__NAME(enum_name, value, text) { enum_name, text, value, false },
#define FTMEM__ALIAS(enum_name, value, text) { enum_name, text, value, true },
#define FTMEM__UNMODELLED(enum_name, text) { enum_name, text, NAMES_UNMODELLED, true },
enum { NAMES_UNMODELLED = -1 };
static const names_row names_rows[] = {
#include "names.inc"
};
#undef FTMEM__NAME
#undef FTMEM__ALIAS
#undef FTMEM__UNMODELLED

const char *ftmem_enum_name(const char *enum_name, int32_t value)
{
    if (!enum_name) return NULL;
    for (int32_t i = 0; i < FTMEM__COUNT(names_rows); ++i) {
        const names_row *row = &names_rows[i];
        if (row->value == value && !row->alias && ftmem__alike(row->enum_name, enum_name)) return row->text;
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------------- unknown names */

/* An order of nearness that no two names share: distance first, then place in the list. */
static int64_t names_rank(const ftmem__names *names, const char *typed, int32_t index)
{
    const char *name = names->at(names->context, index);
    return name ? ((int64_t)ftmem__distance(typed, name) << 32) + index : INT64_MAX;
}

/* The nearest name whose rank is above *rank, which becomes its rank; NULL at the end. Keeps no list, needs no memory. */
static const char *names_next(const ftmem__names *names, const char *typed, int64_t *rank)
{
    int64_t best = INT64_MAX;
    for (int32_t i = 0; i < names->count; ++i) {
        int64_t own = names_rank(names, typed, i);
        if (own > *rank && own < best) best = own;
    }
    *rank = best;
    return best == INT64_MAX ? NULL : names->at(names->context, (int32_t)(best & 0x7fffffff));
}

static void names_put_nearest(ftmem__text *text, const ftmem__names *names, const char *typed)
{
    int64_t rank = -1;
    const char *between = "";
    for (const char *name = names_next(names, typed, &rank); name; name = names_next(names, typed, &rank)) {
        if (text->needed + strlen(name) + sizeof ", , ..." >= text->capacity) {
            ftmem__put(text, ", ...");
            return;
        }
        ftmem__put(text, between);
        ftmem__put(text, name);
        between = ", ";
    }
}

ftmem_status ftmem__fail_unknown(ftmem_error *error, const char *field, const char *noun, const char *typed, const ftmem__names *names)
{
    char shown[48], message[sizeof error->message];
    if (!error) return FTMEM_E_UNKNOWN_NAME;
    ftmem__copy(shown, sizeof shown, typed);
    ftmem__text text = ftmem__text_in(message, sizeof message);
    if (field && !ftmem__same(field, noun)) {
        ftmem__put(&text, field);
        ftmem__put(&text, ": ");
    }
    ftmem__put(&text, "\"");
    ftmem__put(&text, shown);
    ftmem__put(&text, "\" is no known ");
    ftmem__put(&text, noun);
    ftmem__put(&text, "; nearest first: ");
    names_put_nearest(&text, names, typed);
    return ftmem__fail(error, FTMEM_E_UNKNOWN_NAME, field, typed, message);
}

/* ------------------------------------------------------------------------------------------------------ enums */

/* Values of the enum that `context` names, without aliases. */
static const char *names_value_at(const void *context, int32_t index)
{
    const names_row *row = &names_rows[index];
    return row->alias || !ftmem__alike(row->enum_name, context) ? NULL : row->text;
}

/* Names of the enums themselves, each once. */
static const char *names_enum_at(const void *context, int32_t index)
{
    (void)context;
    const char *name = names_rows[index].enum_name;
    return index > 0 && strcmp(names_rows[index - 1].enum_name, name) == 0 ? NULL : name;
}

static bool names_is_enum(const char *enum_name)
{
    for (int32_t i = 0; i < FTMEM__COUNT(names_rows); ++i)
        if (ftmem__alike(names_rows[i].enum_name, enum_name)) return true;
    return false;
}

static ftmem_status names_fail_unmodelled(const char *enum_name, const char *text, const char *field, ftmem_error *error)
{
    ftmem_error room;
    ftmem__text message = ftmem__text_in(room.message, sizeof room.message);
    ftmem__put(&message, enum_name);
    ftmem__put(&message, " ");
    ftmem__put(&message, text);
    ftmem__put(&message, " is known, but not modelled in this version");
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, field, text, room.message);
}

ftmem_status ftmem__enum_parse(const char *enum_name, const char *text, int32_t *value, const char *field, ftmem_error *error)
{
    for (int32_t i = 0; i < FTMEM__COUNT(names_rows); ++i) {
        const names_row *row = &names_rows[i];
        if (!ftmem__alike(row->enum_name, enum_name) || !ftmem__alike(row->text, text)) continue;
        if (row->value == NAMES_UNMODELLED) return names_fail_unmodelled(enum_name, row->text, field, error);
        *value = row->value;
        return FTMEM_OK;
    }
    ftmem__names values = { names_value_at, enum_name, FTMEM__COUNT(names_rows) };
    return ftmem__fail_unknown(error, field, enum_name, text, &values);
}

ftmem_status ftmem_enum_parse(const char *enum_name, const char *text, int32_t *value, ftmem_error *error)
{
    static const ftmem__names enums = { names_enum_at, NULL, FTMEM__COUNT(names_rows) };
    if (!enum_name || !text || !value)
        return ftmem__fail(error, FTMEM_E_ARGUMENT, NULL, NULL, "ftmem_enum_parse needs an enum's name, a text and a place for the value");
    if (!names_is_enum(enum_name)) return ftmem__fail_unknown(error, NULL, "enum", enum_name, &enums);
    return ftmem__enum_parse(enum_name, text, value, enum_name, error);
}

/* ------------------------------------------------------------------------------------------------------- sets */

/* Parts are bits themselves, every other enum's values are places of bits. */
static uint32_t names_bit(const names_row *row)
{
    return strcmp(row->enum_name, "part") == 0 || strcmp(row->enum_name, "fused") == 0 || strcmp(row->enum_name, "compiled") == 0 ? (uint32_t)row->value
                                                                                                                                  : (uint32_t)1 << row->value;
}

void ftmem__put_set(ftmem__text *text, const char *enum_name, uint32_t set)
{
    const char *between = "";
    for (int32_t i = 0; i < FTMEM__COUNT(names_rows); ++i) {
        const names_row *row = &names_rows[i];
        if (row->alias || strcmp(row->enum_name, enum_name) != 0 || !(set & names_bit(row))) continue;
        ftmem__put(text, between);
        ftmem__put(text, row->text);
        between = "+";
    }
    if (set == 0) ftmem__put(text, "none");
}
