/* Models and jobs from JSON text: cJSON's tree becomes the key/value entries of the core (ftmem_json.h). */
#include "ftmem_json.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_LIMIT 9007199254740992.0 /* 2^53: below it every integer is a double of its own */
#define NUMBER_LIMIT 62                /* characters of a number; cJSON before 1.7.18 cuts longer ones */
#define PATH_CAPACITY 4096             /* of a file */
#define CONTAINER (-1)                 /* type of an entry that only says: here is an object or array */

/* A document: entries in the order of the text, containers before what they contain, keys in one block. */
typedef struct document {
    const char *name; /* for messages */
    char *text;       /* terminated */
    size_t size;
    cJSON *root;
    ftmem_entry *entries;
    size_t count, key_bytes;
    char *keys;
    size_t filled, key_filled;
} document;

/* ---- errors */

/* A struct of a later version may be longer; a wild size means that nobody initialised it. */
static bool sized(uint32_t given, size_t full)
{
    return given >= full && given <= full + 4096;
}

static ftmem_status fail(ftmem_error *error, ftmem_status status, const char *field, const char *value, const char *format, ...)
{
    if (error && sized(error->struct_size, sizeof *error)) {
        va_list arguments;
        error->status = status;
        snprintf(error->field, sizeof error->field, "%s", field);
        snprintf(error->value, sizeof error->value, "%s", value);
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
    }
    return status;
}

static ftmem_status fail_memory(ftmem_error *error)
{
    return fail(error, FTMEM_E_IO, "", "", "Out of memory while reading JSON.");
}

/* E_SYNTAX at a byte of the text. */
static ftmem_status fail_at(const document *d, size_t offset, const char *what, ftmem_error *error)
{
    char value[sizeof error->value];
    size_t line = 1, start = 0;
    for (size_t i = 0; i < offset && i < d->size; i++) {
        if (d->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    snprintf(value, sizeof value, "line %zu, column %zu", line, offset - start + 1);
    return fail(error, FTMEM_E_SYNTAX, "", value, "%.100s, %s: %s.", d->name, value, what);
}

/* ---- text: what cJSON is too lenient about. One pass over the bytes, without building anything. */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *skip_digits(const char *at)
{
    while (is_digit(*at)) at++;
    return at;
}

/* The end of the number at `at`, NULL if it is malformed. */
static const char *number_end(const char *at)
{
    const char *start = at;
    if (*at == '-') at++;
    if (!is_digit(*at)) return NULL;
    at = *at == '0' ? at + 1 : skip_digits(at);
    if (*at == '.') {
        if (!is_digit(*++at)) return NULL;
        at = skip_digits(at);
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        if (!is_digit(*at)) return NULL;
        at = skip_digits(at);
    }
    return is_digit(*at) || *at == '.' || at - start > NUMBER_LIMIT ? NULL : at;
}

/* The end of the string whose quote is at `at`; NULL with *bad where it is malformed. */
static const char *string_end(const char *at, const char **bad, const char **what)
{
    *bad = at;
    *what = "this text does not end";
    for (at++; *at != '"'; at++) {
        if ((unsigned char)*at < ' ') {
            if (*at) *bad = at, *what = "a control character inside a text";
            return NULL;
        }
        if (*at != '\\') continue;
        at++;
        if (!*at) return NULL;
        if (strncmp(at, "u0000", 5) == 0) {
            *bad = at - 1;
            *what = "a zero character inside a text";
            return NULL;
        }
    }
    return at + 1;
}

/* The end of white space, of a mark between values, or of true, false, null; NULL if it is none. */
static const char *mark_end(const char *at)
{
    static const char *const words[] = { "true", "false", "null" };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strncmp(at, words[i], strlen(words[i])) == 0) return at + strlen(words[i]);
    }
    return *at && strchr(",: \n\r\t", *at) ? at + 1 : NULL;
}

static ftmem_status check_text(const document *d, ftmem_error *error)
{
    const char *at = d->text, *bad = NULL, *what = NULL;
    int depth = 0;
    if (strncmp(at, "\xef\xbb\xbf", 3) == 0) at += 3;
    while (at < d->text + d->size) {
        const char *next = at + 1;
        if (*at == '"') {
            next = string_end(at, &bad, &what);
        } else if (*at == '-' || is_digit(*at)) {
            next = number_end(at);
            bad = at;
            what = "this number is malformed";
        } else if (*at == '{' || *at == '[') {
            if (++depth > FTMEM_JSON_MAX_DEPTH) return fail_at(d, (size_t)(at - d->text), "nested deeper than 32 levels", error);
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else {
            next = mark_end(at);
            bad = at;
            what = "this is not JSON";
        }
        if (!next) return fail_at(d, (size_t)(bad - d->text), what, error);
        at = next;
    }
    return FTMEM_OK;
}

/* ---- tree to entries */

/* A key's place in the flattened document: the path so far plus one part. */
typedef struct place {
    char path[FTMEM_JSON_MAX_PATH + 1];
    size_t length;
} place;

static bool is_container(const cJSON *item)
{
    return cJSON_IsObject(item) || cJSON_IsArray(item);
}

/* Goes down to child number `index` of a container; false if the path gets too long. */
static bool descend(place *to, const place *from, const cJSON *child, size_t index, bool array)
{
    char number[24];
    const char *part = child->string;
    size_t dot = from->length ? 1 : 0, length;
    if (array) {
        snprintf(number, sizeof number, "%zu", index);
        part = number;
    }
    length = strlen(part);
    if (from->length + dot + length > FTMEM_JSON_MAX_PATH) return false;
    memcpy(to->path, from->path, from->length);
    if (dot) to->path[from->length] = '.';
    memcpy(to->path + from->length + dot, part, length + 1);
    to->length = from->length + dot + length;
    return true;
}

static void fill_entry(ftmem_entry *entry, const cJSON *item)
{
    double number = item->valuedouble;
    if (is_container(item)) {
        entry->type = CONTAINER;
    } else if (cJSON_IsNumber(item)) {
        bool whole = number > -EXACT_LIMIT && number < EXACT_LIMIT && (double)(int64_t)number == number;
        entry->type = whole ? FTMEM_ENTRY_INT : FTMEM_ENTRY_REAL;
        entry->integer = whole ? (int64_t)number : 0;
        entry->real = number;
    } else if (cJSON_IsString(item)) {
        entry->type = FTMEM_ENTRY_TEXT;
        entry->text = item->valuestring;
    } else {
        entry->type = cJSON_IsBool(item) ? FTMEM_ENTRY_BOOL : FTMEM_ENTRY_NULL;
        entry->integer = cJSON_IsTrue(item) ? 1 : 0;
    }
}

/* Counts the values under a container (d->entries is NULL), or fills their entries. */
static ftmem_status flatten(document *d, const cJSON *container, const place *at, ftmem_error *error)
{
    size_t index = 0;
    bool array = cJSON_IsArray(container);
    for (const cJSON *child = container->child; child; child = child->next, index++) {
        ftmem_status status = FTMEM_OK;
        place here;
        if (!descend(&here, at, child, index, array)) {
            return fail(error, FTMEM_E_RANGE, "", at->path, "%.100s: a key is longer than %d characters.", d->name, FTMEM_JSON_MAX_PATH);
        }
        if (cJSON_IsNumber(child) && !isfinite(child->valuedouble)) {
            return fail(error, FTMEM_E_RANGE, here.path, "", "%.100s: the number of \"%.80s\" is too large.", d->name, here.path);
        }
        if (d->entries) {
            char *key = memcpy(d->keys + d->key_filled, here.path, here.length + 1);
            d->key_filled += here.length + 1;
            d->entries[d->filled].key = key;
            fill_entry(&d->entries[d->filled++], child);
        } else {
            d->key_bytes += here.length + 1;
            if (++d->count > FTMEM_JSON_MAX_VALUES) {
                return fail(error, FTMEM_E_RANGE, "", "", "%.100s holds more than %d values.", d->name, FTMEM_JSON_MAX_VALUES);
            }
        }
        if (is_container(child)) status = flatten(d, child, &here, error);
        if (status != FTMEM_OK) return status;
    }
    return FTMEM_OK;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ftmem_status check_duplicates(const document *d, ftmem_error *error)
{
    const char **keys = malloc((d->count + 1) * sizeof *keys), *twice = NULL;
    if (!keys) return fail_memory(error);
    for (size_t i = 0; i < d->count; i++) keys[i] = d->entries[i].key;
    qsort(keys, d->count, sizeof *keys, compare_keys);
    for (size_t i = 1; i < d->count && !twice; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0) twice = keys[i];
    }
    free(keys);
    if (!twice) return FTMEM_OK;
    return fail(error, FTMEM_E_SYNTAX, twice, "", "%.100s gives \"%.100s\" twice.", d->name, twice);
}

static ftmem_status make_entries(document *d, ftmem_error *error)
{
    place top = { "", 0 };
    ftmem_status status = flatten(d, d->root, &top, error);
    if (status != FTMEM_OK) return status;
    d->keys = malloc(d->key_bytes + 1);
    d->entries = calloc(d->count + 1, sizeof *d->entries);
    if (!d->keys || !d->entries) return fail_memory(error);
    status = flatten(d, d->root, &top, error);
    return status == FTMEM_OK ? check_duplicates(d, error) : status;
}

/* ---- documents */

static void close_document(document *d)
{
    cJSON_Delete(d->root);
    free(d->entries);
    free(d->keys);
    free(d->text);
}

/* From d->text to d->entries. */
static ftmem_status parse(document *d, ftmem_error *error)
{
    const char *end = NULL;
    ftmem_status status = check_text(d, error);
    if (status != FTMEM_OK) return status;
    d->root = cJSON_ParseWithLengthOpts(d->text, d->size + 1, &end, 1);
    if (!d->root) {
        size_t offset = end ? (size_t)(end - d->text) : 0;
        return fail_at(d, offset < d->size ? offset : d->size, offset < d->size ? "this is not JSON" : "the text ends too early", error);
    }
    if (!cJSON_IsObject(d->root)) return fail_at(d, 0, "the document is not an object", error);
    return make_entries(d, error);
}

static ftmem_status open_text(document *d, const char *text, size_t size, ftmem_error *error)
{
    d->name = "The JSON text";
    if (!text) return fail(error, FTMEM_E_ARGUMENT, "text", "NULL", "The JSON text is NULL.");
    if (size > FTMEM_JSON_MAX_BYTES) return fail(error, FTMEM_E_RANGE, "", "", "%s is larger than %d bytes.", d->name, FTMEM_JSON_MAX_BYTES);
    d->text = malloc(size + 1);
    if (!d->text) return fail_memory(error);
    memcpy(d->text, text, size);
    d->text[size] = '\0';
    d->size = size;
    return parse(d, error);
}

static ftmem_status open_file(document *d, const char *path, ftmem_error *error)
{
    FILE *file;
    bool failed;
    d->name = path;
    if (!path) return fail(error, FTMEM_E_ARGUMENT, "path", "NULL", "The path is NULL.");
    file = fopen(path, "rb");
    if (!file) return fail(error, FTMEM_E_IO, "", path, "%.150s cannot be opened: %s.", path, strerror(errno));
    d->text = malloc(FTMEM_JSON_MAX_BYTES + 2);
    if (!d->text) {
        fclose(file);
        return fail_memory(error);
    }
    errno = 0;
    d->size = fread(d->text, 1, FTMEM_JSON_MAX_BYTES + 1, file);
    failed = ferror(file) != 0;
    if (failed) fail(error, FTMEM_E_IO, "", path, "%.150s cannot be read: %s.", path, strerror(errno));
    fclose(file);
    if (failed) return FTMEM_E_IO;
    if (d->size > FTMEM_JSON_MAX_BYTES) return fail(error, FTMEM_E_RANGE, "", path, "%.100s is larger than %d bytes.", path, FTMEM_JSON_MAX_BYTES);
    d->text[d->size] = '\0';
    return parse(d, error);
}

/* ---- models */

/* From the entries whose key starts with `prefix`, which is taken off. */
static ftmem_status model_from_entries(const document *d, const char *prefix, ftmem_model *model, ftmem_error *error)
{
    ftmem_status status;
    size_t length = strlen(prefix), count = 0;
    ftmem_entry *chosen = calloc(d->count + 1, sizeof *chosen);
    if (!chosen) return fail_memory(error);
    for (size_t i = 0; i < d->count; i++) {
        if (d->entries[i].type == CONTAINER || strncmp(d->entries[i].key, prefix, length) != 0) continue;
        chosen[count] = d->entries[i];
        chosen[count++].key += length;
    }
    status = ftmem_model_from_entries(chosen, count, model, error);
    free(chosen);
    return status;
}

/* "x/llama-3.2-1b/config.json" names llama-3.2-1b, "x/llama.json" llama; "config.json" alone says nothing. */
static void name_after_file(ftmem_model *model, const char *path)
{
    const char *slash = strrchr(path, '/'), *start = slash ? slash + 1 : path;
    size_t length = strlen(start);
    if (strcmp(start, "config.json") == 0) {
        if (!slash) return;
        start = slash;
        while (start > path && start[-1] != '/') start--;
        length = (size_t)(slash - start);
    } else if (length > 5 && strcmp(start + length - 5, ".json") == 0) {
        length -= 5;
    }
    if (length == 0) return;
    if (length >= sizeof model->name) length = sizeof model->name - 1;
    memcpy(model->name, start, length);
    model->name[length] = '\0';
}

static bool names_itself(const document *d)
{
    for (size_t i = 0; i < d->count; i++) {
        const ftmem_entry *entry = &d->entries[i];
        if (strcmp(entry->key, "_name_or_path") == 0) return entry->type == FTMEM_ENTRY_TEXT && entry->text[0];
    }
    return false;
}

ftmem_status ftmem_model_from_json_text(const char *text, size_t size, ftmem_model *model, ftmem_error *error)
{
    document d = { 0 };
    ftmem_status status = open_text(&d, text, size, error);
    if (status == FTMEM_OK) status = model_from_entries(&d, "", model, error);
    close_document(&d);
    return status;
}

ftmem_status ftmem_model_from_json_file(const char *path, ftmem_model *model, ftmem_error *error)
{
    document d = { 0 };
    ftmem_status status = open_file(&d, path, error);
    if (status == FTMEM_OK) status = model_from_entries(&d, "", model, error);
    if (status == FTMEM_OK && !names_itself(&d)) name_after_file(model, path);
    close_document(&d);
    return status;
}

/* ---- jobs */

/* What a job file is read into; copied to the caller at the end. */
typedef struct reading {
    const document *d;
    const char *directory;
    ftmem_job job;
    ftmem_model model;
    ftmem_adapter adapter;
    bool has_adapter;
} reading;

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), tail = strlen(suffix);
    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

static ftmem_status fail_type(const ftmem_entry *entry, const char *wanted, ftmem_error *error)
{
    static const char *const kinds[] = { "null", "a truth value", "an integer", "a number", "a text" };
    const char *given = entry->type == CONTAINER ? "an object or array" : kinds[entry->type];
    return fail(error, FTMEM_E_TYPE, entry->key, given, "%.80s must be %s, and is %s.", entry->key, wanted, given);
}

static ftmem_status read_model(reading *r, const ftmem_entry *entry, ftmem_error *error)
{
    char path[PATH_CAPACITY];
    bool absolute;
    if (entry->type == CONTAINER) return model_from_entries(r->d, "model.", &r->model, error);
    if (entry->type != FTMEM_ENTRY_TEXT) return fail_type(entry, "a name, a path or an object", error);
    if (!ends_with(entry->text, ".json")) return ftmem_model_find(entry->text, &r->model, error);
    if (!r->directory) return fail(error, FTMEM_E_UNSUPPORTED, "model", entry->text, "A model's file cannot be named here, since no directory was given.");
    absolute = entry->text[0] == '/' || !r->directory[0];
    if (snprintf(path, sizeof path, "%s%s%s", absolute ? "" : r->directory, absolute ? "" : "/", entry->text) >= PATH_CAPACITY) {
        return fail(error, FTMEM_E_RANGE, "model", entry->text, "The path of the model's file is longer than %d characters.", PATH_CAPACITY - 1);
    }
    return ftmem_model_from_json_file(path, &r->model, error);
}

static ftmem_status find_model(reading *r, ftmem_error *error)
{
    for (size_t i = 0; i < r->d->count; i++) {
        if (strcmp(r->d->entries[i].key, "model") == 0) return read_model(r, &r->d->entries[i], error);
    }
    return fail(error, FTMEM_E_MISSING, "model", "", "%.100s gives no \"model\".", r->d->name);
}

/* The text that ftmem_set takes for a value. */
static ftmem_status value_text(const ftmem_entry *entry, const ftmem_field *field, char *text, size_t capacity, ftmem_error *error)
{
    cJSON number = { 0 };
    switch (entry->type) {
    case FTMEM_ENTRY_TEXT:
        if (strlen(entry->text) >= capacity) return fail(error, FTMEM_E_RANGE, entry->key, "", "The text of %.80s is too long.", entry->key);
        memcpy(text, entry->text, strlen(entry->text) + 1);
        return FTMEM_OK;
    case FTMEM_ENTRY_INT:
        if (field->type == FTMEM_TYPE_ENUM || field->type == FTMEM_TYPE_TEXT) return fail_type(entry, "a text", error);
        snprintf(text, capacity, "%" PRId64, entry->integer);
        return FTMEM_OK;
    case FTMEM_ENTRY_REAL:
        if (field->type != FTMEM_TYPE_REAL) return fail_type(entry, field->type == FTMEM_TYPE_INT ? "an integer below 2^53" : "a text", error);
        number.type = cJSON_Number;
        number.valuedouble = entry->real;
        cJSON_PrintPreallocated(&number, text, (int)capacity, 0); /* with a point in every locale */
        return FTMEM_OK;
    case FTMEM_ENTRY_BOOL:
        if (!field->enum_name || strcmp(field->enum_name, "switch") != 0) break;
        memcpy(text, entry->integer ? "on" : "off", entry->integer ? 3 : 4);
        return FTMEM_OK;
    default: break;
    }
    return fail_type(entry, field->type == FTMEM_TYPE_REAL ? "a number" : field->type == FTMEM_TYPE_INT ? "an integer" : "a text", error);
}

/* One LoRA target, or several with "," or "+" between them, as ftmem_set has it. */
static ftmem_status add_targets(reading *r, const ftmem_entry *entry, ftmem_error *error)
{
    ftmem_status status = FTMEM_OK;
    const char *at = entry->text;
    if (entry->type != FTMEM_ENTRY_TEXT) return fail_type(entry, "a module name", error);
    while (status == FTMEM_OK) {
        char name[96];
        size_t length = strcspn(at, ",+");
        const char *end = at + length;
        while (length > 0 && *at == ' ') at++, length--;
        while (length > 0 && at[length - 1] == ' ') length--;
        if (length >= sizeof name) return fail(error, FTMEM_E_UNKNOWN_NAME, entry->key, entry->text, "No module has so long a name.");
        memcpy(name, at, length);
        name[length] = '\0';
        status = ftmem_adapter_target(&r->adapter, &r->model, name, error);
        if (!*end) break;
        at = end + 1;
    }
    return status;
}

/* A set given as an array: its texts with commas between them. *used gets the entries that it took. */
static ftmem_status set_array(reading *r, size_t index, void *object, size_t *used, ftmem_error *error)
{
    const ftmem_entry *set = &r->d->entries[index];
    bool targets = strcmp(set->key, "adapter.targets") == 0;
    size_t length = strlen(set->key), filled = 0;
    char text[256] = "";
    *used = 1;
    for (size_t i = index + 1; i < r->d->count; i++, ++*used) {
        const ftmem_entry *item = &r->d->entries[i];
        if (!starts_with(item->key, set->key) || item->key[length] != '.') break;
        if (targets) {
            ftmem_status status = add_targets(r, item, error);
            if (status != FTMEM_OK) return status;
            continue;
        }
        if (item->type != FTMEM_ENTRY_TEXT) return fail_type(item, "a text", error);
        if (filled + strlen(item->text) + 2 > sizeof text) return fail(error, FTMEM_E_RANGE, set->key, "", "The list of %.80s is too long.", set->key);
        filled += (size_t)snprintf(text + filled, sizeof text - filled, "%s%s", filled ? "," : "", item->text);
    }
    return filled ? ftmem_set(set->key, text, object, error) : FTMEM_OK;
}

/* Where a path belongs; NULL if it is none of a job file. */
static void *object_of(reading *r, const char *key)
{
    if (starts_with(key, "job.")) return &r->job;
    if (starts_with(key, "adapter.")) return &r->adapter;
    return starts_with(key, "gpu.") ? &r->job.gpu : NULL;
}

/* "model", "gpu", ...: what is no member of an object. */
static ftmem_status read_top(reading *r, const ftmem_entry *entry, ftmem_error *error)
{
    if (strcmp(entry->key, "model") == 0 || starts_with(entry->key, "model.")) return FTMEM_OK; /* find_model read it */
    if (strcmp(entry->key, "adapter") == 0) {
        r->has_adapter = entry->type == CONTAINER;
        return entry->type == CONTAINER || entry->type == FTMEM_ENTRY_NULL ? FTMEM_OK : fail_type(entry, "an object", error);
    }
    if (strcmp(entry->key, "gpu") == 0) {
        if (entry->type == FTMEM_ENTRY_TEXT) return ftmem_gpu_find(entry->text, &r->job.gpu, error);
        return entry->type == CONTAINER || entry->type == FTMEM_ENTRY_NULL ? FTMEM_OK : fail_type(entry, "a name or an object", error);
    }
    if (strcmp(entry->key, "job") == 0) return entry->type == CONTAINER ? FTMEM_OK : fail_type(entry, "an object", error);
    return fail(error, FTMEM_E_UNKNOWN_NAME, entry->key, "", "A job file has no \"%.80s\": it has model, adapter, gpu and job.", entry->key);
}

/* Reads the entry at `index`; *used gets how many entries that took. */
static ftmem_status read_entry(reading *r, size_t index, size_t *used, ftmem_error *error)
{
    const ftmem_entry *entry = &r->d->entries[index];
    const ftmem_field *field = ftmem_field_find(entry->key);
    void *object = object_of(r, entry->key);
    ftmem_status status;
    char text[256];
    *used = 1;
    if (!object) return read_top(r, entry, error);
    if (starts_with(entry->key, "adapter.")) r->has_adapter = true;
    if (!field) return ftmem_set(entry->key, "", object, error); /* says which names there are */
    if (strcmp(field->path, entry->key) != 0) return fail(error, FTMEM_E_UNKNOWN_NAME, entry->key, "", "There is no %.80s; write %s.", entry->key, field->path);
    if (entry->type == FTMEM_ENTRY_NULL) return FTMEM_OK;
    if (entry->type == CONTAINER && field->type == FTMEM_TYPE_SET) return set_array(r, index, object, used, error);
    if (entry->type == FTMEM_ENTRY_TEXT && strcmp(entry->key, "adapter.targets") == 0) return add_targets(r, entry, error);
    status = value_text(entry, field, text, sizeof text, error);
    return status == FTMEM_OK ? ftmem_set(entry->key, text, object, error) : status;
}

static ftmem_status read_job(reading *r, ftmem_error *error)
{
    size_t used = 0;
    ftmem_status status = find_model(r, error);
    for (size_t i = 0; i < r->d->count && status == FTMEM_OK; i += used) status = read_entry(r, i, &used, error);
    return status;
}

static ftmem_status check_outputs(const ftmem_job *job, const ftmem_model *model, const ftmem_adapter *adapter, ftmem_error *error)
{
    if (!job || !model || !adapter) return fail(error, FTMEM_E_ARGUMENT, job ? model ? "adapter" : "model" : "job", "NULL", "A result is NULL.");
    if (!sized(job->struct_size, sizeof *job)) return fail(error, FTMEM_E_STRUCT_SIZE, "job", "", "ftmem_job is not initialised: use FTMEM_JOB_INIT.");
    if (!sized(model->struct_size, sizeof *model)) {
        return fail(error, FTMEM_E_STRUCT_SIZE, "model", "", "ftmem_model is not initialised: use FTMEM_MODEL_INIT.");
    }
    if (!sized(adapter->struct_size, sizeof *adapter)) {
        return fail(error, FTMEM_E_STRUCT_SIZE, "adapter", "", "ftmem_adapter is not initialised: use FTMEM_ADAPTER_INIT.");
    }
    return FTMEM_OK;
}

/* Copies all but the caller's own struct_size. */
static void copy_out(void *to, const void *from, size_t size)
{
    memcpy((char *)to + sizeof(uint32_t), (const char *)from + sizeof(uint32_t), size - sizeof(uint32_t));
}

static ftmem_status job_from_document(const document *d, const char *directory, ftmem_job *job, ftmem_model *model, ftmem_adapter *adapter, ftmem_error *error)
{
    reading r = { .d = d, .directory = directory };
    ftmem_status status;
    ftmem_job_init(&r.job, sizeof r.job);
    ftmem_gpu_init(&r.job.gpu, sizeof r.job.gpu);
    ftmem_model_init(&r.model, sizeof r.model);
    ftmem_adapter_init(&r.adapter, sizeof r.adapter);
    status = read_job(&r, error);
    if (status != FTMEM_OK) return status;
    r.job.model = model;
    r.job.adapter = r.has_adapter ? adapter : NULL;
    copy_out(job, &r.job, sizeof r.job);
    copy_out(model, &r.model, sizeof r.model);
    copy_out(adapter, &r.adapter, sizeof r.adapter);
    return FTMEM_OK;
}

ftmem_status ftmem_job_from_json_text(const char *text, size_t size, const char *directory, ftmem_job *job, ftmem_model *model, ftmem_adapter *adapter,
                                      ftmem_error *error)
{
    document d = { 0 };
    ftmem_status status = check_outputs(job, model, adapter, error);
    if (status == FTMEM_OK) status = open_text(&d, text, size, error);
    if (status == FTMEM_OK) status = job_from_document(&d, directory, job, model, adapter, error);
    close_document(&d);
    return status;
}

/* The part of `path` before its last slash. */
static ftmem_status directory_of(const char *path, char *directory, ftmem_error *error)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= PATH_CAPACITY) return fail(error, FTMEM_E_RANGE, "path", "", "The path is longer than %d characters.", PATH_CAPACITY - 1);
    memcpy(directory, path, length);
    directory[length] = '\0';
    if (slash == path) memcpy(directory, "/.", 3);
    return FTMEM_OK;
}

ftmem_status ftmem_job_from_json_file(const char *path, ftmem_job *job, ftmem_model *model, ftmem_adapter *adapter, ftmem_error *error)
{
    document d = { 0 };
    char directory[PATH_CAPACITY];
    ftmem_status status = check_outputs(job, model, adapter, error);
    if (status == FTMEM_OK) status = open_file(&d, path, error);
    if (status == FTMEM_OK) status = directory_of(path, directory, error);
    if (status == FTMEM_OK) status = job_from_document(&d, directory, job, model, adapter, error);
    close_document(&d);
    return status;
}
