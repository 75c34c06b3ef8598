/* A prediction allocates nothing, needs a bounded stack, keeps no state, and is the same from any number of threads. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <ftmem.h>

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A sanitizer has a malloc, and a use of the stack, of its own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define THREADS 4
#define REPEATS 25
#define STACK_BYTES (1 << 20)
#define STACK_LIMIT (128 << 10) /* musl gives a thread 128 KiB */

/* ---- every malloc of the process, libc's own calls included, is counted */

static atomic_long heap_calls;

#if defined(__GLIBC__) && !SANITIZED
#define COUNTS_HEAP 1
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *old);
void *malloc(size_t size)
{
    heap_calls++;
    return __libc_malloc(size);
}
void *calloc(size_t count, size_t size)
{
    heap_calls++;
    return __libc_calloc(count, size);
}
void *realloc(void *old, size_t size)
{
    heap_calls++;
    return __libc_realloc(old, size);
}
void free(void *old)
{
    heap_calls++;
    __libc_free(old);
}
#else
#define COUNTS_HEAP 0
#endif

/* ---- jobs that reach much of the library */

typedef struct sample {
    ftmem_model model;
    ftmem_adapter adapter;
    ftmem_job job;
} sample;

static void make_sample(sample *s, const char *name, int32_t kind, int32_t recompute, int32_t attention)
{
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_model_init(&s->model, sizeof s->model);
    ftmem_adapter_init(&s->adapter, sizeof s->adapter);
    ftmem_job_init(&s->job, sizeof s->job);
    if (ftmem_model_find(name, &s->model, &error) != FTMEM_OK || ftmem_gpu_find("rtx-4090", &s->job.gpu, &error) != FTMEM_OK) fail_msg("%s", error.message);
    s->adapter.kind = kind;
    s->job.model = &s->model;
    s->job.adapter = kind == FTMEM_ADAPTER_NONE ? NULL : &s->adapter;
    s->job.micro_batch = 2;
    s->job.sequence = 1024; /* as many as gpt2 has positions */
    s->job.recompute = recompute;
    s->job.attention = attention;
    s->job.eval = FTMEM_ON;
}

#define SAMPLES 4
static sample samples[SAMPLES];

static int make_samples(void **state)
{
    (void)state;
    make_sample(&samples[0], "meta-llama/Llama-3.2-1B", FTMEM_ADAPTER_NONE, FTMEM_RECOMPUTE_NONE, FTMEM_ATTENTION_AUTO);
    make_sample(&samples[1], "meta-llama/Llama-3.1-8B", FTMEM_ADAPTER_QLORA, FTMEM_RECOMPUTE_FULL, FTMEM_ATTENTION_AUTO);
    make_sample(&samples[2], "google/gemma-2-9b", FTMEM_ADAPTER_LORA, FTMEM_RECOMPUTE_REENTRANT, FTMEM_EAGER);
    make_sample(&samples[3], "gpt2", FTMEM_ADAPTER_NONE, FTMEM_RECOMPUTE_NONE, FTMEM_EAGER);
    return 0;
}

/* Compared byte by byte, so the padding must be the same as well. */
static void predict(const ftmem_job *job, ftmem_memory *memory)
{
    ftmem_error error = FTMEM_ERROR_INIT;
    memset(memory, 0, sizeof *memory);
    memory->struct_size = sizeof *memory;
    if (ftmem_predict_memory(job, memory, &error) != FTMEM_OK) {
        fprintf(stderr, "%s\n", error.message);
        abort();
    }
}

/* ---- tests */

static void test_no_heap(void **state)
{
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    static ftmem_fix fixes[FTMEM_FIX_END];
    static ftmem_sum_term terms[FTMEM_SUM_CAPACITY];
    ftmem_parameters parameters = FTMEM_PARAMETERS_INIT;
    ftmem_model model = FTMEM_MODEL_INIT;
    ftmem_gpu gpu = FTMEM_GPU_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_status statuses = FTMEM_OK;
    void *volatile probe; /* or the compiler takes the pair away */
    long before;
    (void)state;
    if (!COUNTS_HEAP) skip();
    before = heap_calls;
    probe = malloc(1);
    free(probe);
    assert_int_equal(heap_calls - before, 2); /* the counter counts */

    before = heap_calls;
    for (int i = 0; i < SAMPLES; i++) {
        int32_t count = 0;
        char text[256];
        statuses |= ftmem_predict_memory(&samples[i].job, &memory, &error);
        statuses |= ftmem_fixes(&samples[i].job, fixes, FTMEM_FIX_END, &count, &error);
        statuses |= ftmem_your_sum(&samples[i].job, terms, &count, &error);
        statuses |= ftmem_count_parameters(&samples[i].job, &parameters, &error);
        for (int32_t n = 0; n < memory.note_count; n++) ftmem_note_text(&memory.notes[n], text, sizeof text, NULL);
        statuses |= ftmem_set("job.margin", "0.25", &samples[i].job, &error);
        statuses |= ftmem_set("job.margin", "0", &samples[i].job, &error);
        ftmem_format_gib(memory.process.upper, text, sizeof text);
    }
    ftmem_model_find("no such model at all", &model, &error); /* nearest names are looked for */
    statuses |= ftmem_gpu_find("a100-sxm-80gb:1g.10gb", &gpu, &error);
    statuses |= ftmem_model_from_parameters(7e9, &model, &error);
    assert_int_equal(statuses, FTMEM_OK);
    assert_int_equal(heap_calls - before, 0);
}

static void *predict_all(void *results)
{
    ftmem_memory *memory = results;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (int i = 0; i < SAMPLES; i++) predict(&samples[i].job, &memory[i]);
    }
    return NULL;
}

static void test_threads_agree(void **state)
{
    static ftmem_memory expected[SAMPLES], results[THREADS][SAMPLES];
    pthread_t threads[THREADS];
    (void)state;
    predict_all(expected);
    for (int t = 0; t < THREADS; t++) assert_int_equal(pthread_create(&threads[t], NULL, predict_all, results[t]), 0);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    for (int t = 0; t < THREADS; t++) assert_memory_equal(results[t], expected, sizeof expected);
}

/* The order of questions changes no answer. */
static void test_no_state(void **state)
{
    static ftmem_memory forward[SAMPLES], backward[SAMPLES];
    (void)state;
    for (int i = 0; i < SAMPLES; i++) predict(&samples[i].job, &forward[i]);
    for (int i = SAMPLES - 1; i >= 0; i--) predict(&samples[i].job, &backward[i]);
    assert_memory_equal(forward, backward, sizeof forward);
}

/* A whole error struct and everything else that the caller gave is read, never written. */
static void test_inputs_untouched(void **state)
{
    static sample before;
    static ftmem_memory memory;
    (void)state;
    for (int i = 0; i < SAMPLES; i++) {
        memcpy(&before, &samples[i], sizeof before);
        predict(&samples[i].job, &memory);
        assert_memory_equal(&before, &samples[i], sizeof before);
    }
}

static ftmem_memory stack_memory;

static void *predict_on_stack(void *job)
{
    predict(job, &stack_memory);
    return NULL;
}

static void test_stack_is_bounded(void **state)
{
    enum { PATTERN = 0x5a };
    (void)state;
    if (SANITIZED) skip();
    for (int i = 0; i < SAMPLES; i++) {
        pthread_attr_t attributes;
        pthread_t thread;
        size_t untouched = 0;
        unsigned char *stack = NULL;
        if (posix_memalign((void **)&stack, 65536, STACK_BYTES) != 0) fail();
        memset(stack, PATTERN, STACK_BYTES);
        pthread_attr_init(&attributes);
        assert_int_equal(pthread_attr_setstack(&attributes, stack, STACK_BYTES), 0);
        assert_int_equal(pthread_create(&thread, &attributes, predict_on_stack, &samples[i].job), 0);
        pthread_join(thread, NULL);
        pthread_attr_destroy(&attributes);
        while (untouched < STACK_BYTES && stack[untouched] == PATTERN) untouched++;
        print_message("%s: %zu bytes of stack\n", samples[i].model.name, STACK_BYTES - untouched);
        assert_in_range(STACK_BYTES - untouched, 1, STACK_LIMIT);
        free(stack);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_heap),          cmocka_unit_test(test_threads_agree),    cmocka_unit_test(test_no_state),
        cmocka_unit_test(test_inputs_untouched), cmocka_unit_test(test_stack_is_bounded),
    };
    return cmocka_run_group_tests(tests, make_samples, NULL);
}
