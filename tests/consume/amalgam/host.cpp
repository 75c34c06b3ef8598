// A C++ program around the single C file.
#include "ftmem.h"

#include <cstdio>
#include <cstring>

int main()
{
    ftmem_job job = FTMEM_JOB_INIT;
    ftmem_model model = FTMEM_MODEL_INIT;
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    if (std::strcmp(ftmem_version_string(), FTMEM_VERSION_STRING) != 0) return 1;
    if (ftmem_model_from_parameters(1e9, &model, &error) != FTMEM_OK) return 2;
    job.model = &model;
    if (ftmem_predict_memory(&job, &memory, &error) != FTMEM_OK) {
        std::puts(error.message);
        return 3;
    }
    return memory.allocated.expected > 0 ? 0 : 4;
}
