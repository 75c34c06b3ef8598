/* What the catalog shares with the mapping of configs: packed key/value lists, and the mapping itself. */
#ifndef FTMEM_CATALOG_H
#define FTMEM_CATALOG_H

#include "common.h"

/* A packed list is one string of words, key after value after key, ended by an empty key (packed.c). A table of such
   strings needs one pointer a row, and the same reader serves class defaults and the model catalog. */
size_t ftmem__unpack(const char *packed, ftmem_entry *entries, size_t capacity); /* how many were stored */
void ftmem__unpack_one(const char *key, const char *value, ftmem_entry *entry);
const char *ftmem__packed_value(const char *packed, const char *key); /* NULL if there is none */
const char *ftmem__packed_after(const char *part);                    /* the part that follows */

/* ftmem_model_from_entries before it is handed to the caller. The model's name is `name` if that is not NULL. */
ftmem_status ftmem__model_build(const ftmem_entry *entries, size_t count, const char *name, ftmem_model *model, ftmem_error *error);

#endif
