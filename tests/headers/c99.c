/* The header alone, as C99. */
#include <ftmem.h>

int ftmem_header_c99(void);
int ftmem_header_c99(void)
{
    ftmem_model model = FTMEM_MODEL_INIT;
    ftmem_adapter adapter = FTMEM_ADAPTER_INIT;
    ftmem_gpu gpu = FTMEM_GPU_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    ftmem_parameters parameters = FTMEM_PARAMETERS_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    job.model = &model;
    job.adapter = &adapter;
    job.gpu = gpu;
    return job.struct_size == sizeof job && memory.struct_size == sizeof memory && parameters.struct_size == sizeof parameters &&
           error.struct_size == sizeof error;
}
