#include <ftmem.h>
#include <stdio.h>

int main(void) {
    ftmem_model   model   = FTMEM_MODEL_INIT;
    ftmem_adapter adapter = FTMEM_ADAPTER_INIT;
    ftmem_job     job     = FTMEM_JOB_INIT;
    ftmem_memory  memory  = FTMEM_MEMORY_INIT;
    ftmem_error   error   = FTMEM_ERROR_INIT;

    if (ftmem_model_find("meta-llama/Llama-3.1-8B", &model, &error) != FTMEM_OK) { puts(error.message); return 2; }
    adapter.kind = FTMEM_ADAPTER_QLORA;
    adapter.rank = 16;

    job.model = &model;
    job.adapter = &adapter;
    if (ftmem_gpu_find("rtx-4090", &job.gpu, &error) != FTMEM_OK) { puts(error.message); return 2; }   /* a typo is an error, never a default */
    job.micro_batch = 2;
    job.sequence = 4096;
    job.recompute = FTMEM_RECOMPUTE_FULL;

    if (ftmem_predict_memory(&job, &memory, &error) != FTMEM_OK) { puts(error.message); return 2; }
    return memory.verdict == FTMEM_FITS ? 0 : 10;
}
