/* Config entries, one a line: "key TYPE value", where TYPE is n(ull), b(ool), i(nteger), r(eal) or t(ext). */
#include "fuzz.h"

#define MAX_ENTRIES 64

typedef struct row {
    char line[160];
} row;

static void read_entry(char *line, ftmem_entry *entry)
{
    char *type = strchr(line, ' ');
    memset(entry, 0, sizeof *entry);
    entry->key = line;
    if (!type) return;
    *type++ = '\0';
    switch (*type) {
    case 'b': entry->type = FTMEM_ENTRY_BOOL; break;
    case 'i': entry->type = FTMEM_ENTRY_INT; break;
    case 'r': entry->type = FTMEM_ENTRY_REAL; break;
    case 't': entry->type = FTMEM_ENTRY_TEXT; break;
    case 'x': entry->type = 99; break; /* no type at all */
    default: entry->type = FTMEM_ENTRY_NULL; break;
    }
    if (*type) type++;
    if (*type == ' ') type++;
    entry->integer = strtoll(type, NULL, 10);
    entry->real = strtod(type, NULL);
    entry->text = type;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static row rows[MAX_ENTRIES];
    ftmem_entry entries[MAX_ENTRIES];
    ftmem_model model = FTMEM_MODEL_INIT, before = FTMEM_MODEL_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    ftmem_status status;
    size_t count = 0;
    while (count < MAX_ENTRIES && fuzz_line(&data, &size, rows[count].line, sizeof rows[count].line)) {
        read_entry(rows[count].line, &entries[count]);
        count++;
    }
    status = ftmem_model_from_entries(entries, count, &model, &error);
    if (status != FTMEM_OK) {
        fuzz_check_error(status, &error);
        FUZZ_REQUIRE(memcmp(&model, &before, sizeof model) == 0);
        return 0;
    }
    job.model = &model;
    fuzz_check_prediction(&job);
    return 0;
}
