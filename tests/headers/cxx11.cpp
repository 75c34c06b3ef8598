// The headers alone, as C++11.
#include <ftmem.h>
#include <ftmem_json.h>

bool ftmem_header_cxx11();
bool ftmem_header_cxx11()
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
