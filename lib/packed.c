/* Packed key/value lists, the form in which catalogs and class defaults are compiled in: words by turns, a key and a value. */
#include "catalog.h"

#include "packed_words.inc" /* packed_words: the commonest words, in pages */

/* A word is spelled, with a NUL, or a code: 0x80 + its place, or two bytes, the second one never NUL. */
const char *ftmem__packed_after(const char *part)
{
    int32_t first = (unsigned char)*part;
    return first < 0x80 ? part + strlen(part) + 1 : part + (first < 0x80 + PACKED_ONE_BYTE ? 1 : 2);
}

static const char *packed_word(const char *part)
{
    int32_t place = (unsigned char)*part - 0x80;
    if (place < 0) return part;
    if (place >= PACKED_ONE_BYTE) place = PACKED_ONE_BYTE + (place - PACKED_ONE_BYTE) * 255 + (unsigned char)part[1] - 1;
    const char *word = packed_words[place / PACKED_PAGE];
    for (place %= PACKED_PAGE; place > 0; place--) word += strlen(word) + 1;
    return word;
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
        ftmem__unpack_one(packed_word(packed), packed_word(value), &entries[count++]);
        packed = ftmem__packed_after(value);
    }
    return count;
}

const char *ftmem__packed_value(const char *packed, const char *key)
{
    while (*packed) {
        const char *value = ftmem__packed_after(packed);
        if (strcmp(packed_word(packed), key) == 0) return packed_word(value);
        packed = ftmem__packed_after(value);
    }
    return NULL;
}
