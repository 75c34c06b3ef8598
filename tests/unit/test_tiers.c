/* Reserved, process, the intervals, what a card offers, and the verdict. */
#include "step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MIB = 1 << 20 };

/* A run whose tiers were measured on a T4; each test changes one thing. */
typedef struct fixture {
    ftmem_model model;
    ftmem_adapter adapter;
    ftmem_job job;
    ftmem_memory memory;
} fixture;

static void begin(fixture *f)
{
    memset(f, 0, sizeof *f);
    ftmem_model_init(&f->model, sizeof f->model);
    ftmem_adapter_init(&f->adapter, sizeof f->adapter);
    ftmem_job_init(&f->job, sizeof f->job);
    f->model.hidden = 2048;
    f->model.ffn = 8192;
    f->model.layers = 24;
    f->model.heads = 32;
    f->model.vocab = 49152;
    f->model.tied = FTMEM_ON;
    f->adapter.kind = FTMEM_ADAPTER_LORA;
    f->adapter.rank = 32;
    f->adapter.targets = 1u << FTMEM_ROLE_Q | 1u << FTMEM_ROLE_K | 1u << FTMEM_ROLE_V | 1u << FTMEM_ROLE_O;
    f->job.model = &f->model;
    f->job.adapter = &f->adapter;
    f->job.dtype = FTMEM_FP16;
    f->job.micro_batch = 4;
    f->job.recompute = FTMEM_RECOMPUTE_FULL;
    f->job.loss = FTMEM_LOSS_HELD;
    f->job.repeat_kv = FTMEM_ON;
    f->job.grad_clip = FTMEM_OFF;
    assert_int_equal(ftmem_gpu_find("t4", &f->job.gpu, NULL), FTMEM_OK);
}

static const ftmem_memory *predict(fixture *f)
{
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_memory_init(&f->memory, sizeof f->memory);
    if (ftmem_predict_memory(&f->job, &f->memory, &error) != FTMEM_OK) fail_msg("%s", error.message);
    return &f->memory;
}

static void assert_near(uint64_t bytes, uint64_t mib, uint64_t per_mille)
{
    uint64_t want = mib * MIB, apart = bytes > want ? bytes - want : want - bytes;
    if (apart > want / 1000 * per_mille) fail_msg("%llu bytes instead of %llu MiB", (unsigned long long)bytes, (unsigned long long)mib);
}

static void assert_in_order(const ftmem_memory *m)
{
    const ftmem_range *tier[3] = { &m->allocated, &m->reserved, &m->process };
    int32_t i;
    for (i = 0; i < 3; i++) {
        assert_true(tier[i]->lower <= tier[i]->expected);
        assert_true(tier[i]->expected <= tier[i]->upper);
        if (i == 0) continue;
        assert_true(tier[i - 1]->lower <= tier[i]->lower);
        assert_true(tier[i - 1]->expected <= tier[i]->expected);
        assert_true(tier[i - 1]->upper <= tier[i]->upper);
    }
    assert_true(m->process.expected - m->reserved.expected == m->context_bytes);
}

static void assert_phases(const ftmem_memory *m)
{
    uint64_t most = 0;
    int32_t p;
    for (p = 0; p < FTMEM_PHASE_END; p++) {
        if (!m->phase_allocated[p]) {
            assert_true(m->phase_process[p] == 0);
            continue;
        }
        assert_true(m->phase_process[p] >= m->phase_allocated[p] + m->context_bytes);
        assert_true(m->phase_process[p] >= most);
        most = m->phase_process[p];
    }
    assert_true(most == m->process.expected);
}

static void test_order(void **state)
{
    static const int32_t kinds[] = { FTMEM_ADAPTER_NONE, FTMEM_ADAPTER_LORA, FTMEM_ADAPTER_QLORA, FTMEM_ADAPTER_LORA8 };
    static const char *const gpus[] = { "t4", "rtx-4090", "h100", "a100-sxm-80gb:1g.10gb", "mi300x" };
    fixture f;
    int32_t k, g, b;
    (void)state;
    for (k = 0; k < FTMEM__COUNT(kinds); k++)
        for (g = 0; g < FTMEM__COUNT(gpus); g++)
            for (b = 1; b <= 64; b *= 4) {
                begin(&f);
                f.adapter.kind = kinds[k];
                if (!kinds[k]) f.job.adapter = NULL;
                f.job.micro_batch = b;
                f.job.eval = b % 3 ? FTMEM_ON : FTMEM_OFF;
                assert_int_equal(ftmem_gpu_find(gpus[g], &f.job.gpu, NULL), FTMEM_OK);
                assert_in_order(predict(&f));
                assert_phases(&f.memory);
            }
}

static void test_measured_run(void **state)
{
    fixture f;
    const ftmem_memory *m;
    (void)state;
    begin(&f);
    m = predict(&f);
    assert_near(m->allocated.expected, 6529, 5);
    assert_near(m->reserved.expected, 7094, 40);
    assert_near(m->process.expected, 7235, 40);
    assert_near(m->context_bytes, 138, 30);
    assert_true(m->bound_rows > 30);
    assert_int_equal(m->verdict, FTMEM_FITS);
}

static void test_no_rows_behind_a_fused_kernel(void **state)
{
    fixture f;
    (void)state;
    begin(&f);
    f.job.attention = FTMEM_FLASH2;
    f.job.loss = FTMEM_LOSS_FUSED;
    assert_int_equal(predict(&f)->bound_rows, 0);
}

static void test_no_device(void **state)
{
    fixture f;
    (void)state;
    begin(&f);
    memset(&f.job.gpu, 0, sizeof f.job.gpu);
    assert_int_equal(predict(&f)->verdict, FTMEM_VERDICT_UNKNOWN);
    assert_true(f.memory.usable_bytes == 0);
    assert_true(f.memory.process.expected > f.memory.reserved.expected);
}

static void test_usable(void **state)
{
    fixture f;
    uint64_t before;
    (void)state;
    begin(&f);
    before = predict(&f)->usable_bytes;
    assert_true(before == (uint64_t)f.job.gpu.torch_bytes);
    f.job.used_by_others_bytes = INT64_C(700) * MIB;
    assert_true(predict(&f)->usable_bytes == before - UINT64_C(700) * MIB);
    f.job.gpu.torch_bytes = 0;
    f.job.used_by_others_bytes = 0;
    assert_near(predict(&f)->usable_bytes, 14912, 10);
    f.job.used_by_others_bytes = f.job.gpu.memory_bytes - MIB; /* less than the driver keeps is left */
    assert_int_equal(predict(&f)->verdict, FTMEM_DOES_NOT_FIT);
    assert_true(f.memory.usable_bytes == 0);
}

static void test_slice(void **state)
{
    fixture f;
    (void)state;
    begin(&f);
    assert_int_equal(ftmem_gpu_find("a100-sxm-80gb:1g.10gb", &f.job.gpu, NULL), FTMEM_OK);
    assert_true(predict(&f)->usable_bytes < (uint64_t)f.job.gpu.memory_bytes);
    assert_near(f.memory.usable_bytes, (uint64_t)f.job.gpu.memory_bytes / MIB, 20);
}

/* A smaller card never gets a better verdict, and all three occur. */
static void test_verdicts(void **state)
{
    fixture f;
    int32_t last = FTMEM_DOES_NOT_FIT, seen = 0;
    int64_t mib;
    (void)state;
    for (mib = 4096; mib <= 16384; mib += 64) {
        begin(&f);
        f.job.gpu.memory_bytes = mib * MIB;
        f.job.gpu.torch_bytes = 0;
        assert_true(predict(&f)->verdict <= last);
        assert_true((f.memory.verdict == FTMEM_FITS) == (f.memory.process.upper <= f.memory.usable_bytes));
        assert_true((f.memory.verdict == FTMEM_DOES_NOT_FIT) == (f.memory.process.expected > f.memory.usable_bytes));
        assert_in_order(&f.memory);
        last = f.memory.verdict;
        seen |= 1 << last;
    }
    assert_int_equal(seen, 1 << FTMEM_FITS | 1 << FTMEM_MAY_FIT | 1 << FTMEM_DOES_NOT_FIT);
}

static void test_margin(void **state)
{
    fixture f;
    uint64_t expected;
    (void)state;
    begin(&f);
    expected = predict(&f)->process.expected;
    f.job.margin = 0.25;
    f.job.gpu.torch_bytes = (int64_t)(expected / 4 * 5 + 4096);
    assert_int_equal(predict(&f)->verdict, FTMEM_FITS);
    f.job.gpu.torch_bytes = (int64_t)(expected / 4 * 5 - 4096);
    assert_int_equal(predict(&f)->verdict, FTMEM_DOES_NOT_FIT);
}

/* torch gives cached blocks back before it gives up. */
static void test_full_card(void **state)
{
    fixture f;
    (void)state;
    begin(&f);
    predict(&f);
    f.job.gpu.torch_bytes = (int64_t)(f.memory.process.expected - UINT64_C(100) * MIB);
    assert_int_equal(predict(&f)->verdict, FTMEM_MAY_FIT);
    assert_true(f.memory.process.expected == f.memory.usable_bytes);
    assert_in_order(&f.memory);
    assert_phases(&f.memory);
}

static void test_expandable_segments(void **state)
{
    fixture f;
    uint64_t before;
    (void)state;
    begin(&f);
    before = predict(&f)->reserved.expected;
    f.job.expandable_segments = FTMEM_ON;
    assert_true(predict(&f)->reserved.expected < before);
    assert_in_order(&f.memory);
}

static void test_shift_copy(void **state)
{
    fixture f;
    uint64_t before;
    (void)state;
    begin(&f);
    before = predict(&f)->reserved.expected;
    f.job.transformers_version = 444;
    assert_true(predict(&f)->reserved.expected > before);
    f.job.loss = FTMEM_LOSS_FUSED;
    before = predict(&f)->reserved.expected;
    f.job.transformers_version = 524;
    assert_true(predict(&f)->reserved.expected == before);
}

static void test_more_rows_never_less(void **state)
{
    fixture f;
    uint64_t last = 0;
    int32_t b;
    (void)state;
    for (b = 1; b <= 16; b++) {
        begin(&f);
        memset(&f.job.gpu, 0, sizeof f.job.gpu);
        f.job.adapter = NULL;
        f.job.micro_batch = b;
        f.job.sequence = 256;
        assert_true(predict(&f)->process.expected >= last);
        last = f.memory.process.expected;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_measured_run),
        cmocka_unit_test(test_no_rows_behind_a_fused_kernel),
        cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_usable),
        cmocka_unit_test(test_slice),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_margin),
        cmocka_unit_test(test_full_card),
        cmocka_unit_test(test_shift_copy),
        cmocka_unit_test(test_expandable_segments),
        cmocka_unit_test(test_more_rows_never_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
