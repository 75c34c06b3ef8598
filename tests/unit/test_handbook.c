/* The rules of thumb to the digit, and the five questions that everybody can answer as one complete call. GB = 1e9 bytes. */
#include <ftmem.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Products of whole numbers below 2^53: exact in a double, so nothing is compared with a tolerance. */
static void assert_exact(double got, double want)
{
    if (got != want) fail_msg("%.17g instead of %.17g", got, want);
}

/* ------------------------------------------------------------------------------------------------------- rules */

static void bytes_by_dtype(void **state)
{
    (void)state;
    assert_exact(ftmem_handbook_bytes_per_parameter(FTMEM_FP32), 4);
    assert_exact(ftmem_handbook_bytes_per_parameter(FTMEM_BF16), 2);
    assert_exact(ftmem_handbook_bytes_per_parameter(FTMEM_FP16), 2);
    assert_exact(ftmem_handbook_bytes_per_parameter(FTMEM_INT8), 1);
    assert_exact(ftmem_handbook_bytes_per_parameter(FTMEM_NF4), 0.5);
    assert_exact(ftmem_handbook_bytes_per_parameter(FTMEM_FP4), 0.5);
}

static void other_dtypes_have_no_rule(void **state)
{
    static const int32_t others[] = { FTMEM_DTYPE_AUTO, FTMEM_INT64, FTMEM_BOOL, FTMEM_DTYPE_END, -1, INT32_MAX, INT32_MIN };
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_exact(ftmem_handbook_bytes_per_parameter(others[i]), 0);
        assert_exact(ftmem_handbook_full_bytes(7e9, others[i]), 0);
        assert_exact(ftmem_handbook_estimate_bytes(7e9, 4, 2048, others[i]), 0);
    }
}

/* 7 B: 28 + 28 + 56 = 112 GB, four times the weights; 14 + 14 + 56 = 84 GB, six times. */
static void seven_billion(void **state)
{
    double fp32 = 7e9 * ftmem_handbook_bytes_per_parameter(FTMEM_FP32), bf16 = 7e9 * ftmem_handbook_bytes_per_parameter(FTMEM_BF16);
    (void)state;
    assert_exact(fp32, 28e9);
    assert_exact(bf16, 14e9);
    assert_exact(7e9 * ftmem_handbook_bytes_per_parameter(FTMEM_INT8), 7e9);
    assert_exact(7e9 * ftmem_handbook_bytes_per_parameter(FTMEM_NF4), 3.5e9);
    assert_exact(ftmem_handbook_full_bytes(7e9, FTMEM_FP32), 28e9 + 28e9 + 56e9);
    assert_exact(ftmem_handbook_full_bytes(7e9, FTMEM_BF16), 14e9 + 14e9 + 56e9);
    assert_exact(ftmem_handbook_full_bytes(7e9, FTMEM_FP32), 4 * fp32);
    assert_exact(ftmem_handbook_full_bytes(7e9, FTMEM_FP16), 6 * bf16);
}

static void the_table(void **state)
{
    static const struct {
        double parameters, fp32, bf16;
    } rows[] = { { 1e9, 16e9, 12e9 }, { 7e9, 112e9, 84e9 }, { 13e9, 208e9, 156e9 }, { 70e9, 1120e9, 840e9 } };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_exact(ftmem_handbook_full_bytes(rows[i].parameters, FTMEM_FP32), rows[i].fp32);
        assert_exact(ftmem_handbook_full_bytes(rows[i].parameters, FTMEM_BF16), rows[i].bf16);
    }
}

/* 104.43 GiB and 78.36 GiB for 7 B, batch 4, sequence 2048. */
static void estimate_memory(void **state)
{
    const double gib = 1073741824.0;
    double fp32 = ftmem_handbook_estimate_bytes(7e9, 4, 2048, FTMEM_FP32), bf16 = ftmem_handbook_estimate_bytes(7e9, 4, 2048, FTMEM_BF16);
    (void)state;
    assert_exact(fp32, 112e9 + 4.0 * 2048 * 4096 * 4);
    assert_exact(bf16, 84e9 + 4.0 * 2048 * 4096 * 4);
    assert_int_equal((int)(fp32 / gib * 100 + 0.5), 10443);
    assert_int_equal((int)(bf16 / gib * 100 + 0.5), 7836);
    assert_exact(ftmem_handbook_estimate_bytes(7e9, 1, 8192, FTMEM_BF16) - 84e9, 4 * (ftmem_handbook_estimate_bytes(7e9, 1, 2048, FTMEM_BF16) - 84e9));
    assert_exact(ftmem_handbook_estimate_bytes(7e9, 0, 0, FTMEM_BF16), 84e9);
}

/* -------------------------------------------------------------------------------------------------- predictions */

/* Pure bf16, 1 x 2048, with one field set by its path. */
static ftmem_memory predict(const ftmem_model *model, const char *path, const char *value)
{
    ftmem_job job = FTMEM_JOB_INIT;
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    job.model = model;
    job.micro_batch = 1;
    job.sequence = 2048;
    job.dtype = FTMEM_BF16;
    if (ftmem_set(path, value, &job, &error) != FTMEM_OK || ftmem_predict_memory(&job, &memory, &error) != FTMEM_OK) fail_msg("%s", error.message);
    return memory;
}

static ftmem_model of_size(double parameters)
{
    ftmem_model model = FTMEM_MODEL_INIT;
    assert_int_equal(ftmem_model_from_parameters(parameters, &model, NULL), FTMEM_OK);
    return model;
}

/* The rule's own terms are right where its assumption is: fp32 weights, fp32 gradients, fp32 states. */
static void terms_that_hold(void **state)
{
    ftmem_model model = of_size(7e9);
    ftmem_memory m = predict(&model, "job.dtype", "fp32");
    double parameters = (double)m.parameters;
    (void)state;
    assert_in_range((uint64_t)(parameters / 7e9 * 1000), 990, 1010);
    assert_in_range((uint64_t)((double)m.weights_bytes / (4 * parameters) * 1000), 1000, 1001);
    assert_in_range((uint64_t)((double)m.states_bytes / (8 * parameters) * 1000), 1000, 1001);
}

/* torch's AdamW makes its states in the weights' dtype: in pure bf16 they are half of what the rule says. */
static void pure_bf16_states_are_half(void **state)
{
    ftmem_model model = of_size(7e9);
    ftmem_memory m = predict(&model, "job.micro_batch", "1");
    (void)state;
    assert_in_range((uint64_t)((double)m.states_bytes / (4 * (double)m.parameters) * 1000), 1000, 1001);
}

/* Autocast halves nothing that stays: weights, gradients and states are as in fp32. */
static void autocast_halves_no_weights(void **state)
{
    ftmem_model model = of_size(7e9);
    ftmem_job job = FTMEM_JOB_INIT;
    ftmem_memory fp32 = FTMEM_MEMORY_INIT, amp = FTMEM_MEMORY_INIT;
    (void)state;
    job.model = &model;
    job.sequence = 2048;
    job.dtype = FTMEM_FP32;
    assert_int_equal(ftmem_predict_memory(&job, &fp32, NULL), FTMEM_OK);
    job.autocast = FTMEM_BF16;
    assert_int_equal(ftmem_predict_memory(&job, &amp, NULL), FTMEM_OK);
    assert_int_equal(amp.weights_bytes, fp32.weights_bytes);
    assert_int_equal(amp.states_bytes, fp32.states_bytes);
    assert_int_equal(amp.resident_bytes, fp32.resident_bytes);
}

/* 1 x 16 is far from 16 x 1, and what the second micro-batch adds is not repeated by the third. */
static void accumulation_is_not_a_batch(void **state)
{
    ftmem_model model = of_size(7e9);
    uint64_t steps = predict(&model, "job.accumulation", "16").allocated.expected, rows = predict(&model, "job.micro_batch", "16").allocated.expected;
    (void)state;
    assert_true(2 * steps < rows);
    assert_int_equal(steps, predict(&model, "job.accumulation", "2").allocated.expected);
}

/* ------------------------------------------------------------------------------------------- the five questions */

/* Model or size, sequence, batch, method, GPU type: everything else has a default, and says so. */
static void five_questions(const ftmem_model *model, int32_t method)
{
    ftmem_adapter adapter = FTMEM_ADAPTER_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    adapter.kind = method;
    job.model = model;
    job.sequence = 4096;
    job.micro_batch = 2;
    job.adapter = &adapter;
    assert_int_equal(ftmem_gpu_find("A100 80GB", &job.gpu, &error), FTMEM_OK);
    if (ftmem_predict_memory(&job, &memory, &error) != FTMEM_OK) fail_msg("%s", error.message);
    assert_in_range(memory.verdict, FTMEM_FITS, FTMEM_DOES_NOT_FIT);
    assert_true(memory.usable_bytes > 70000000000 && memory.usable_bytes < 86000000000);
    assert_true(memory.allocated.expected > 0 && memory.process.upper >= memory.process.expected);
    for (int32_t i = 0; i < memory.note_count; i++) {
        const char *field = memory.notes[i].field;
        if (memory.notes[i].code != FTMEM_NOTE_ASSUMED) continue;
        assert_true(strcmp(field, "job.sequence") != 0 && strcmp(field, "job.micro_batch") != 0 && strncmp(field, "gpu.", 4) != 0);
    }
}

static void five_questions_by_name(void **state)
{
    ftmem_model model = FTMEM_MODEL_INIT;
    (void)state;
    assert_int_equal(ftmem_model_find("meta-llama/Llama-3.1-8B", &model, NULL), FTMEM_OK);
    for (int32_t method = FTMEM_ADAPTER_NONE; method < FTMEM_ADAPTER_BOFT; method++) five_questions(&model, method);
}

static void five_questions_by_size(void **state)
{
    static const double sizes[] = { 1e9, 7e9, 13e9, 70e9 };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ftmem_model model = of_size(sizes[i]);
        for (int32_t method = FTMEM_ADAPTER_NONE; method < FTMEM_ADAPTER_BOFT; method++) five_questions(&model, method);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_by_dtype),
        cmocka_unit_test(other_dtypes_have_no_rule),
        cmocka_unit_test(seven_billion),
        cmocka_unit_test(the_table),
        cmocka_unit_test(estimate_memory),
        cmocka_unit_test(terms_that_hold),
        cmocka_unit_test(pure_bf16_states_are_half),
        cmocka_unit_test(autocast_halves_no_weights),
        cmocka_unit_test(accumulation_is_not_a_batch),
        cmocka_unit_test(five_questions_by_name),
        cmocka_unit_test(five_questions_by_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
