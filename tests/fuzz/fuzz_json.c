/* JSON text, as a config.json and as a job file. */
#include "fuzz.h"

#include <ftmem_json.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ftmem_model model = FTMEM_MODEL_INIT;
    ftmem_adapter adapter = FTMEM_ADAPTER_INIT;
    ftmem_job job = FTMEM_JOB_INIT, before = FTMEM_JOB_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_status status = ftmem_model_from_json_text((const char *)data, size, &model, &error);
    if (status != FTMEM_OK) fuzz_check_error(status, &error);
    status = ftmem_job_from_json_text((const char *)data, size, NULL, &job, &model, &adapter, &error);
    if (status != FTMEM_OK) {
        fuzz_check_error(status, &error);
        FUZZ_REQUIRE(memcmp(&job, &before, sizeof job) == 0);
        return 0;
    }
    FUZZ_REQUIRE(job.model == &model && (!job.adapter || job.adapter == &adapter));
    fuzz_check_prediction(&job);
    return 0;
}
