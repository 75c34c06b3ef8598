/*
 * bench: time of one ftmem_predict_memory, beside a fixed loop of integer work timed in the same run, so that figures of
 * different machines and days can be compared by their ratio. The best of several rounds, since other processes only add.
 */
#include <ftmem.h>

#include <stdio.h>
#include <time.h>

#define ROUNDS 9
#define REFERENCE_STEPS 4096 /* one unit of the ratio */

static double now_ns(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static volatile uint64_t sink;

static void reference(const ftmem_job *job)
{
    uint64_t x = 88172645463325252u;
    (void)job;
    for (int i = 0; i < REFERENCE_STEPS; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    sink = x;
}

static void predict(const ftmem_job *job)
{
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    if (ftmem_predict_memory(job, &memory, NULL) == FTMEM_OK) sink = memory.allocated.expected;
}

/* ns of one call: as many calls a round as take about 20 ms. */
static double best_ns(void (*call)(const ftmem_job *), const ftmem_job *job)
{
    double start = now_ns(), best = 0;
    long calls = 0;
    for (; now_ns() - start < 2e7; calls++) call(job);
    for (int round = 0; round < ROUNDS; round++) {
        double ns;
        start = now_ns();
        for (long i = 0; i < calls; i++) call(job);
        ns = (now_ns() - start) / (double)calls;
        if (round == 0 || ns < best) best = ns;
    }
    return best;
}

static void report(const char *name, const ftmem_job *job, double unit)
{
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    double ns;
    if (ftmem_predict_memory(job, &memory, &error) != FTMEM_OK) {
        printf("%-32s %s\n", name, error.message);
        return;
    }
    ns = best_ns(predict, job);
    printf("%-32s %10.0f ns  %8.2f x reference\n", name, ns, ns / unit);
}

int main(void)
{
    ftmem_model llama = FTMEM_MODEL_INIT, gemma = FTMEM_MODEL_INIT;
    ftmem_adapter adapter = FTMEM_ADAPTER_INIT;
    ftmem_job full = FTMEM_JOB_INIT, qlora, kinds;
    ftmem_error error = FTMEM_ERROR_INIT;
    double unit = best_ns(reference, NULL);

    if (ftmem_model_find("meta-llama/Llama-3.1-8B", &llama, &error) != FTMEM_OK || ftmem_model_find("google/gemma-2-9b", &gemma, &error) != FTMEM_OK ||
        ftmem_gpu_find("h100", &full.gpu, &error) != FTMEM_OK) {
        puts(error.message);
        return 2;
    }
    full.model = &llama;
    full.micro_batch = 4;
    full.sequence = 2048;
    kinds = qlora = full;
    adapter.kind = FTMEM_ADAPTER_QLORA;
    adapter.rank = 16;
    qlora.adapter = &adapter;
    qlora.recompute = FTMEM_RECOMPUTE_FULL;
    kinds.model = &gemma;

    printf("%-32s %10.0f ns  (%d xorshift steps)\n", "reference", unit, REFERENCE_STEPS);
    report("Llama-3.1-8B, full", &full, unit);
    report("Llama-3.1-8B, QLoRA, recompute", &qlora, unit);
    report("gemma-2-9b, full, two layer kinds", &kinds, unit);
    return 0;
}
