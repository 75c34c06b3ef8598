/* GPUs by catalog key, by what people and torch call them, by memory alone, and MIG slices of them. */
#include "common.h"

/* Rows hold their texts, not pointers: the tables need no relocation. */
typedef struct gpus_row {
    char key[32], name[40];
    int32_t memory_mib, torch_mib;
    int16_t sm_count;
    uint8_t sm_arch, vendor;
    int16_t gigabytes; /* as advertised */
} gpus_row;

typedef struct gpus_alias {
    char spelling[40]; /* squeezed */
    int16_t row;
} gpus_alias;

typedef struct gpus_slice {
    int16_t row;
    char profile[12];
    int32_t memory_mib;
    int16_t sm_count;
} gpus_slice;

#include "gpus.inc"

enum { GPUS_GENERIC_ARCH = 80, GPUS_MAX_NAME = 64 };

/* ------------------------------------------------------------------------------------------------ spelling */

static char gpus_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool gpus_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool gpus_is_word(char c)
{
    return (c >= 'a' && c <= 'z') || gpus_is_digit(c);
}

/* Length of the word at `from` if it is one that says nothing ("NVIDIA", "GPU"), else 0. */
static size_t gpus_empty_word(const char *from)
{
    for (const char *word = gpus_dropped; *word; word += strlen(word) + 1) {
        size_t i = 0;
        while (word[i] && gpus_lower(from[i]) == word[i]) i++;
        if (!word[i] && !gpus_is_word(gpus_lower(from[i]))) return i;
    }
    return 0;
}

/* "NVIDIA GeForce RTX 4090" and "rtx-4090" are one spelling: lower-case letters and digits, empty words left out. */
static void gpus_squeeze(const char *from, size_t length, char to[GPUS_MAX_NAME])
{
    size_t used = 0;
    bool starts = true;
    for (size_t i = 0; i < length && used + 1 < GPUS_MAX_NAME; i++) {
        size_t skip = starts ? gpus_empty_word(from + i) : 0;
        char c = gpus_lower(from[i]);
        starts = !gpus_is_word(c);
        if (skip) i += skip - 1;
        else if (!starts) to[used++] = c;
    }
    to[used] = '\0';
}

static bool gpus_spelled(const char *text, const char *squeezed)
{
    char own[GPUS_MAX_NAME];
    gpus_squeeze(text, strlen(text), own);
    return strcmp(own, squeezed) == 0;
}

/* The row that the first `length` characters of `name` mean, NULL if none. */
static const gpus_row *gpus_row_called(const char *name, size_t length)
{
    char squeezed[GPUS_MAX_NAME];
    gpus_squeeze(name, length, squeezed);
    if (!*squeezed) return NULL;
    for (int32_t i = 0; i < FTMEM__COUNT(gpus_rows); i++)
        if (gpus_spelled(gpus_rows[i].key, squeezed)) return &gpus_rows[i];
    for (int32_t i = 0; i < FTMEM__COUNT(gpus_aliases); i++)
        if (strcmp(gpus_aliases[i].spelling, squeezed) == 0) return &gpus_rows[gpus_aliases[i].row];
    for (int32_t i = 0; i < FTMEM__COUNT(gpus_rows); i++)
        if (gpus_spelled(gpus_rows[i].name, squeezed)) return &gpus_rows[i];
    return NULL;
}

/* Where the last number with "GB", "GiB" or "G" starts in the first `length` characters; `length` if they end otherwise. */
static size_t gpus_memory_at(const char *name, size_t length, int64_t *gigabytes)
{
    size_t end = length, start;
    if (end > 0 && gpus_lower(name[end - 1]) == 'b') end--;
    if (end > 0 && gpus_lower(name[end - 1]) == 'i') end--;
    if (end == 0 || gpus_lower(name[end - 1]) != 'g') return length;
    for (end--; end > 0 && name[end - 1] == ' ';) end--;
    for (start = end; start > 0 && gpus_is_digit(name[start - 1]);) start--;
    if (start == end || end - start > 4 || (start > 0 && gpus_is_word(gpus_lower(name[start - 1])))) return length;
    for (*gigabytes = 0; start < end; start++) *gigabytes = *gigabytes * 10 + (name[start] - '0');
    while (start > 0 && gpus_is_digit(name[start - 1])) start--;
    return start;
}

/* Many names carry their memory ("RTX 4090 24GB"): it may be left out or added, but must not be another one. */
static const gpus_row *gpus_search(const char *name, size_t length)
{
    int64_t gigabytes = 0;
    const gpus_row *row = gpus_row_called(name, length);
    size_t rest = gpus_memory_at(name, length, &gigabytes);
    if (row || rest == length) return row;
    row = gpus_row_called(name, rest);
    return row && row->gigabytes == gigabytes ? row : NULL;
}

/* "RTX 4090 48GB": the card is known, but not with that memory. */
static const gpus_row *gpus_of_other_memory(const char *name)
{
    int64_t gigabytes = 0;
    size_t length = strlen(name), rest = gpus_memory_at(name, length, &gigabytes);
    return rest < length ? gpus_row_called(name, rest) : NULL;
}

/* ------------------------------------------------------------------------------------------------- devices */

static void gpus_device(const gpus_row *row, ftmem_gpu *gpu)
{
    ftmem__text name = ftmem__text_in(gpu->name, sizeof gpu->name);
    gpu->sm_arch = row->sm_arch;
    gpu->memory_bytes = (int64_t)row->memory_mib << 20;
    gpu->torch_bytes = (int64_t)row->torch_mib << 20;
    gpu->sm_count = row->sm_count;
    gpu->vendor = row->vendor;
    ftmem__put(&name, row->key);
}

/* "24GB": an Ampere card of so many GiB, which is what people mean by GB on a card. */
static bool gpus_generic(const char *name, ftmem_gpu *gpu)
{
    int64_t gigabytes = 0;
    ftmem__text text = ftmem__text_in(gpu->name, sizeof gpu->name);
    if (gpus_memory_at(name, strlen(name), &gigabytes) != 0 || gigabytes == 0) return false;
    gpu->sm_arch = GPUS_GENERIC_ARCH;
    gpu->memory_bytes = gigabytes << 30;
    ftmem__put_int(&text, gigabytes);
    ftmem__put(&text, "GB");
    return true;
}

/* ------------------------------------------------------------------------------------------------- slices */

/* Profiles of the card whose row `context` is. */
static const char *gpus_profile_at(const void *context, int32_t index)
{
    const gpus_slice *slice = &gpus_slices[index];
    return &gpus_rows[slice->row] == context ? slice->profile : NULL;
}

static const gpus_slice *gpus_slice_of(const gpus_row *row, const char *profile)
{
    for (int32_t i = 0; i < FTMEM__COUNT(gpus_slices); i++)
        if (&gpus_rows[gpus_slices[i].row] == row && ftmem__same(gpus_slices[i].profile, profile)) return &gpus_slices[i];
    return NULL;
}

static bool gpus_has_slices(const gpus_row *row)
{
    for (int32_t i = 0; i < FTMEM__COUNT(gpus_slices); i++)
        if (&gpus_rows[gpus_slices[i].row] == row) return true;
    return false;
}

static ftmem_status gpus_slice_device(const gpus_row *row, const char *profile, ftmem_gpu *gpu, ftmem_error *error)
{
    const ftmem__names profiles = { gpus_profile_at, row, FTMEM__COUNT(gpus_slices) };
    const gpus_slice *slice = gpus_slice_of(row, profile);
    ftmem__text name = ftmem__text_in(gpu->name, sizeof gpu->name);
    if (!slice && !gpus_has_slices(row))
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "gpu", profile,
                           "No MIG slices are known for this GPU; name the card alone, or give gpu.memory_bytes of the slice.");
    if (!slice) return ftmem__fail_unknown(error, "gpu", "MIG profile", profile, &profiles);
    if (slice->memory_mib == 0)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "gpu", profile,
                           "The memory of this MIG slice is not known; give gpu.memory_bytes as nvidia-smi mig -lgip shows it.");
    gpus_device(row, gpu);
    name.needed = strlen(gpu->name);
    ftmem__put(&name, ":");
    ftmem__put(&name, slice->profile);
    gpu->memory_bytes = (int64_t)slice->memory_mib << 20;
    gpu->torch_bytes = 0;
    gpu->sm_count = slice->sm_count;
    return FTMEM_OK;
}

/* -------------------------------------------------------------------------------------------------- look-up */

static const char *gpus_key_at(const void *context, int32_t index)
{
    (void)context;
    return gpus_rows[index].key;
}

static ftmem_status gpus_fail_unknown(const char *name, ftmem_error *error)
{
    static const ftmem__names keys = { gpus_key_at, NULL, FTMEM__COUNT(gpus_rows) };
    char message[256], shown[64];
    const gpus_row *row = gpus_of_other_memory(name);
    ftmem__text text = ftmem__text_in(message, sizeof message);
    if (!row) return ftmem__fail_unknown(error, "gpu", "GPU", name, &keys);
    ftmem__copy(shown, sizeof shown, name);
    ftmem__put(&text, "\"");
    ftmem__put(&text, shown);
    ftmem__put(&text, "\" is no known GPU: ");
    ftmem__put(&text, row->key);
    ftmem__put(&text, " has ");
    ftmem__put_int(&text, row->gigabytes);
    ftmem__put(&text, " GB; for a card with other memory, set gpu.memory_bytes.");
    return ftmem__fail(error, FTMEM_E_UNKNOWN_NAME, "gpu", name, message);
}

static ftmem_status gpus_lookup(const char *name, ftmem_gpu *gpu, ftmem_error *error)
{
    const char *colon = strchr(name, ':');
    const gpus_row *row = gpus_search(name, colon ? (size_t)(colon - name) : strlen(name));
    if (row && colon) return gpus_slice_device(row, colon + 1, gpu, error);
    if (row) gpus_device(row, gpu);
    else if (!gpus_generic(name, gpu)) return gpus_fail_unknown(name, error);
    return FTMEM_OK;
}

/* A job holds a GPU by value, and JOB_INIT leaves it zeroed. Its size never changes, so that 0 can stand for it. */
static ftmem_status gpus_writable(const ftmem_gpu *gpu, ftmem_error *error)
{
    if (gpu && gpu->struct_size == 0) return FTMEM_OK;
    return ftmem__exportable(gpu, FTMEM__GPU_MINIMUM, "gpu", error);
}

static void gpus_store(const ftmem_gpu *found, ftmem_gpu *gpu)
{
    if (gpu->struct_size == 0) gpu->struct_size = (uint32_t)sizeof *gpu;
    ftmem__export(gpu, found, sizeof *found);
}

ftmem_status ftmem_gpu_find(const char *name, ftmem_gpu *gpu, ftmem_error *error)
{
    ftmem_gpu found = FTMEM_GPU_INIT;
    if (!name) return ftmem__fail(error, FTMEM_E_ARGUMENT, "name", "NULL", "name must not be NULL.");
    ftmem_status status = gpus_writable(gpu, error);
    if (status == FTMEM_OK) status = gpus_lookup(name, &found, error);
    if (status == FTMEM_OK) gpus_store(&found, gpu);
    return status;
}

int32_t ftmem_gpu_count(void)
{
    return FTMEM__COUNT(gpus_rows);
}

ftmem_status ftmem_gpu_at(int32_t index, ftmem_gpu *gpu)
{
    ftmem_gpu found = FTMEM_GPU_INIT;
    ftmem_status status = gpus_writable(gpu, NULL);
    if (status != FTMEM_OK) return status;
    if (index < 0 || index >= FTMEM__COUNT(gpus_rows)) return FTMEM_E_RANGE;
    gpus_device(&gpus_rows[index], &found);
    gpus_store(&found, gpu);
    return FTMEM_OK;
}
