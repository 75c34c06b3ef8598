/* Packed key/value lists: "key\0value\0...\0", the form in which catalogs and class defaults are compiled in. */
#include "catalog.h"

#include "packed_keys.inc" /* packed_keys: the commonest keys, packed; in a list each is one byte, 0x80 + its place */

const char *ftmem__packed_after(const char *part)
{
    return part + strlen(part) + 1;
}

static const char *packed_key(const char *part)
{
    const char *key = packed_keys;
    int32_t place = (unsigned char)*part;
    if (place < 0x80) return part;
    while (place-- > 0x80) key = ftmem__packed_after(key);
    return key;
}

void ftmem__unpack_one(const char *key, const char *value, ftmem_entry *entry)
{
    memset(entry, 0, sizeof *entry);
    entry->key = key;
    if (strcmp(value, "null") == 0) return;
    if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) {
        entry->type = FTMEM_ENTRY_BOOL;
        entry->integer = value[0] == 't';
    } else if (ftmem__parse_int(value, &entry->integer)) {
        entry->type = FTMEM_ENTRY_INT;
    } else if (ftmem__parse_real(value, &entry->real)) {
        entry->type = FTMEM_ENTRY_REAL;
    } else {
        entry->type = FTMEM_ENTRY_TEXT;
        entry->text = value;
    }
}

size_t ftmem__unpack(const char *packed, ftmem_entry *entries, size_t capacity)
{
    size_t count = 0;
    while (*packed && count < capacity) {
        const char *value = ftmem__packed_after(packed);
        ftmem__unpack_one(packed_key(packed), value, &entries[count++]);
        packed = ftmem__packed_after(value);
    }
    return count;
}

const char *ftmem__packed_value(const char *packed, const char *key)
{
    while (*packed) {
        const char *value = ftmem__packed_after(packed);
        if (strcmp(packed_key(packed), key) == 0) return value;
        packed = ftmem__packed_after(value);
    }
    return NULL;
}
