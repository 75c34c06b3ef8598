/* A job by ftmem_set, one field a line: "job.micro_batch=4"; "target=q_proj" and "gpu=h100" go to their own functions. */
#include "fuzz.h"

/* The field table says whose member a path is, whatever its letter case. */
static void *object_of(const char *path, ftmem_model *model, ftmem_adapter *adapter, ftmem_job *job)
{
    const ftmem_field *field = ftmem_field_find(path);
    switch (field ? field->object : FTMEM_OBJECT_JOB) {
    case FTMEM_OBJECT_MODEL: return model;
    case FTMEM_OBJECT_ADAPTER: return adapter;
    case FTMEM_OBJECT_GPU: return &job->gpu;
    default: return job;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ftmem_model model = FTMEM_MODEL_INIT;
    ftmem_adapter adapter = FTMEM_ADAPTER_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    char line[160];
    if (ftmem_model_from_parameters(1e9, &model, NULL) != FTMEM_OK) abort();
    job.model = &model;
    while (fuzz_line(&data, &size, line, sizeof line)) {
        ftmem_error error = FTMEM_ERROR_INIT;
        ftmem_status status;
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = '\0';
        if (strcmp(line, "target") == 0) status = ftmem_adapter_target(&adapter, &model, value, &error);
        else if (strcmp(line, "gpu") == 0) status = ftmem_gpu_find(value, &job.gpu, &error);
        else if (strcmp(line, "model") == 0) status = ftmem_model_find(value, &model, &error);
        else status = ftmem_set(line, value, object_of(line, &model, &adapter, &job), &error);
        if (status != FTMEM_OK) fuzz_check_error(status, &error);
        if (adapter.kind || adapter.rank || adapter.targets) job.adapter = &adapter;
    }
    fuzz_check_prediction(&job);
    return 0;
}
