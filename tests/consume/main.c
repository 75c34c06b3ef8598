/* What every way of consuming the library builds and runs: the linked library is the header's, and answers. */
#include <ftmem.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    ftmem_model model = FTMEM_MODEL_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    char text[32];

    if (strcmp(ftmem_version_string(), FTMEM_VERSION_STRING) != 0) return 1;
    if (ftmem_model_find("meta-llama/Llama-3.2-1B", &model, &error) != FTMEM_OK) {
        puts(error.message);
        return 2;
    }
    job.model = &model;
    if (ftmem_predict_memory(&job, &memory, &error) != FTMEM_OK) {
        puts(error.message);
        return 3;
    }
    ftmem_format_gib(memory.allocated.expected, text, sizeof text);
    printf("ftmem %s: %s\n", ftmem_version_string(), text);
    return memory.allocated.expected > 0 ? 0 : 4;
}
