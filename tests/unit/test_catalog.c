/* The shipped catalogs: GPUs by every kind of name, MIG slices, models by name, shapes from a parameter count. */
#include "catalog.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "models.inc"

/* ------------------------------------------------------------------------------------------------------- GPUs */

static ftmem_gpu gpu(const char *name)
{
    ftmem_gpu found = FTMEM_GPU_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    if (ftmem_gpu_find(name, &found, &error) != FTMEM_OK) fail_msg("%s: %s", name, error.message);
    return found;
}

static void test_gpu_names(void **state)
{
    static const struct {
        const char *typed, *key;
    } rows[] = {
        { "rtx-4090", "rtx-4090" },
        { "4090", "rtx-4090" },
        { "RTX 4090", "rtx-4090" },
        { "rtx4090", "rtx-4090" },
        { "RTX 4090 24GB", "rtx-4090" },
        { "NVIDIA GeForce RTX 4090", "rtx-4090" },
        { "NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop-16gb" },
        { "a100", "a100-sxm-80gb" },
        { "A100 80GB", "a100-sxm-80gb" },
        { "a100-80gb", "a100-sxm-80gb" },
        { "A100 40GB", "a100-sxm-40gb" },
        { "NVIDIA A100-SXM4-80GB", "a100-sxm-80gb" },
        { "NVIDIA A100-SXM4-40GB", "a100-sxm-40gb" },
        { "NVIDIA A100 80GB PCIe", "a100-pcie-80gb" },
        { "NVIDIA A100-PCIE-40GB", "a100-pcie-40gb" },
        { "h100", "h100-sxm-80gb" },
        { "NVIDIA H100 80GB HBM3", "h100-sxm-80gb" },
        { "NVIDIA H100 PCIe", "h100-pcie-80gb" },
        { "NVIDIA H100 NVL", "h100-nvl-94gb" },
        { "NVIDIA H200", "h200-sxm-141gb" },
        { "NVIDIA B200", "b200-sxm-180gb" },
        { "Tesla T4", "t4" },
        { "l40s", "l40s" },
        { "NVIDIA L4", "l4" },
        { "NVIDIA A10G", "a10g" },
        { "Tesla V100-SXM2-16GB", "v100-sxm2-16gb" },
        { "V100-32GB", "v100-sxm2-32gb" },
        { "NVIDIA RTX A6000", "rtx-a6000" },
        { "NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada" },
        { "Quadro RTX 6000", "quadro-rtx-6000-24gb" },
        { "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-blackwell-ws" },
        { "mi300x", "mi300x" },
        { "AMD Instinct MI300X", "mi300x" },
        { "AMD Radeon RX 7900 XTX", "rx-7900-xtx" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) assert_string_equal(gpu(rows[i].typed).name, rows[i].key);
}

static void test_gpu_figures(void **state)
{
    (void)state;
    ftmem_gpu t4 = gpu("t4"), a100 = gpu("a100-sxm-80gb"), mi300x = gpu("mi300x");
    assert_int_equal(t4.sm_arch, 75);
    assert_int_equal(t4.sm_count, 40);
    assert_int_equal(t4.memory_bytes, INT64_C(15360) << 20);
    assert_int_equal(t4.torch_bytes, INT64_C(14912) << 20);
    assert_int_equal(a100.sm_arch, 80);
    assert_int_equal(a100.sm_count, 108);
    assert_int_equal(gpu("b200").sm_arch, 100);
    assert_int_equal(gpu("rtx-5090").sm_arch, 120);
    assert_int_equal(mi300x.vendor, 1);
    assert_int_equal(mi300x.sm_arch, 0);
}

static void test_gpu_memory_alone(void **state)
{
    (void)state;
    ftmem_gpu g = gpu("24GB");
    assert_string_equal(g.name, "24GB");
    assert_int_equal(g.memory_bytes, INT64_C(24) << 30);
    assert_int_equal(g.sm_arch, 80);
    assert_int_equal(g.vendor, 0);
    assert_int_equal(g.torch_bytes, 0);
    assert_int_equal(gpu("48 GB").memory_bytes, INT64_C(48) << 30);
    assert_string_equal(gpu("80gib").name, "80GB");
}

static void test_gpu_slices(void **state)
{
    ftmem_gpu g = gpu("a100-sxm-80gb:1g.10gb");
    (void)state;
    assert_string_equal(g.name, "a100-sxm-80gb:1g.10gb");
    assert_int_equal(g.memory_bytes, INT64_C(9728) << 20);
    assert_int_equal(g.torch_bytes, 0);
    assert_int_equal(g.sm_count, 14);
    assert_int_equal(g.sm_arch, 80);
    assert_string_equal(gpu("H100:3G.40GB").name, "h100-sxm-80gb:3g.40gb");
}

static void test_gpu_errors(void **state)
{
    static const struct {
        const char *name, *value, *says;
        ftmem_status status;
    } rows[] = {
        { "rtx 409", "rtx 409", "rtx-4090", FTMEM_E_UNKNOWN_NAME },
        { "h1000", "h1000", "nearest first", FTMEM_E_UNKNOWN_NAME },
        { "RTX 4090 48GB", "RTX 4090 48GB", "rtx-4090 has 24 GB", FTMEM_E_UNKNOWN_NAME },
        { "", "", "nearest first", FTMEM_E_UNKNOWN_NAME },
        { "NVIDIA", "NVIDIA", "nearest first", FTMEM_E_UNKNOWN_NAME },
        { "0GB", "0GB", "nearest first", FTMEM_E_UNKNOWN_NAME },
        { "99999GB", "99999GB", "nearest first", FTMEM_E_UNKNOWN_NAME },
        { "GB", "GB", "nearest first", FTMEM_E_UNKNOWN_NAME },
        { "h100:9g.99gb", "9g.99gb", "1g.10gb", FTMEM_E_UNKNOWN_NAME },
        { "h100:", "", "1g.10gb", FTMEM_E_UNKNOWN_NAME },
        { "t4:1g.5gb", "1g.5gb", "No MIG slices", FTMEM_E_UNSUPPORTED },
        { "b200:1g.23gb", "1g.23gb", "not known", FTMEM_E_UNSUPPORTED },
    };
    ftmem_gpu found = FTMEM_GPU_INIT, before = FTMEM_GPU_INIT, unset = { 0 };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ftmem_error error = FTMEM_ERROR_INIT;
        assert_int_equal(ftmem_gpu_find(rows[i].name, &found, &error), rows[i].status);
        assert_string_equal(error.field, "gpu");
        assert_string_equal(error.value, rows[i].value);
        if (!strstr(error.message, rows[i].says)) fail_msg("%s: %s", rows[i].name, error.message);
        assert_memory_equal(&found, &before, sizeof found);
    }
    assert_int_equal(ftmem_gpu_find(NULL, &found, NULL), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_gpu_find("t4", NULL, NULL), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_gpu_find("t4", &unset, NULL), FTMEM_OK); /* as in a job that JOB_INIT made */
    assert_int_equal(unset.struct_size, sizeof unset);
    unset.struct_size = 4;
    assert_int_equal(ftmem_gpu_find("t4", &unset, NULL), FTMEM_E_STRUCT_SIZE);
}

static void test_gpu_list(void **state)
{
    ftmem_gpu row = FTMEM_GPU_INIT;
    (void)state;
    assert_true(ftmem_gpu_count() > 100);
    for (int32_t i = 0; i < ftmem_gpu_count(); i++) {
        assert_int_equal(ftmem_gpu_at(i, &row), FTMEM_OK);
        ftmem_gpu found = gpu(row.name);
        assert_memory_equal(&found, &row, sizeof row);
        assert_true(row.memory_bytes >= INT64_C(8) * 1000 * 1000 * 1000);
        assert_true(row.torch_bytes >= 0 && row.torch_bytes < row.memory_bytes);
        assert_true(row.sm_arch == 0 || (row.sm_arch >= 60 && row.sm_arch <= 121));
    }
    assert_int_equal(ftmem_gpu_at(-1, &row), FTMEM_E_RANGE);
    assert_int_equal(ftmem_gpu_at(ftmem_gpu_count(), &row), FTMEM_E_RANGE);
}

/* ----------------------------------------------------------------------------------------------------- models */

static ftmem_status find(const char *name, ftmem_model *model, ftmem_error *error)
{
    *model = (ftmem_model)FTMEM_MODEL_INIT;
    *error = (ftmem_error)FTMEM_ERROR_INIT;
    return ftmem_model_find(name, model, error);
}

static void test_model_names(void **state)
{
    ftmem_model model;
    ftmem_error error;
    (void)state;
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = { "meta-llama/Llama-3.1-8B", "llama-3.1-8b", "META-LLAMA/LLAMA-3.1-8B" };
        assert_int_equal(find(names[i], &model, &error), FTMEM_OK);
        assert_string_equal(model.name, "meta-llama/Llama-3.1-8B");
        assert_int_equal(model.hidden, 4096);
        assert_int_equal(model.ffn, 14336);
        assert_int_equal(model.kv_heads, 8);
        assert_int_equal(model.vocab, 128256);
        assert_int_equal(model.inferred, 0);
    }
    assert_int_equal(find("gpt2", &model, &error), FTMEM_OK);
    assert_int_equal(model.family, FTMEM_GPT2);
    assert_int_equal(find("Qwen2.5-0.5B-Instruct", &model, &error), FTMEM_OK);
    assert_int_equal(model.tied, FTMEM_ON);
    assert_int_equal(find("mistral-7b-instruct-v0.2", &model, &error), FTMEM_OK);
    assert_int_equal(model.sliding_window, 0);
}

static void test_model_errors(void **state)
{
    ftmem_model model, before = FTMEM_MODEL_INIT;
    ftmem_error error;
    (void)state;
    assert_int_equal(find("llama3-8b", &model, &error), FTMEM_E_UNKNOWN_NAME);
    assert_string_equal(error.value, "llama3-8b");
    assert_non_null(strstr(error.message, "Llama-3.1-8B"));
    assert_memory_equal(&model, &before, sizeof model);
    assert_int_equal(find("meta-lama/Llama-3.1-8B", &model, &error), FTMEM_E_UNKNOWN_NAME);
    assert_non_null(strstr(error.message, "meta-llama/Llama-3.1-8B"));
    assert_int_equal(find("", &model, &error), FTMEM_E_UNKNOWN_NAME);
    assert_int_equal(find("deepseek-ai/DeepSeek-V4-Pro", &model, &error), FTMEM_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "mixture of experts"));
    assert_int_equal(find("meta-llama/Llama-3.2-11B-Vision-Instruct", &model, &error), FTMEM_E_UNSUPPORTED);
    assert_int_equal(ftmem_model_find(NULL, &model, &error), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_model_find("gpt2", NULL, &error), FTMEM_E_ARGUMENT);
}

/* Every listed model can be built by its own name, and every refused one says why. */
static void test_model_rows(void **state)
{
    ftmem_model model;
    ftmem_error error;
    (void)state;
    assert_int_equal(ftmem_model_count(), FTMEM__COUNT(models_rows));
    for (int32_t i = 0; i < ftmem_model_count(); i++) {
        const char *name = ftmem_model_name_at(i);
        if (find(name, &model, &error) != FTMEM_OK) fail_msg("%s: %s", name, error.message);
        assert_string_equal(model.name, name);
    }
    assert_null(ftmem_model_name_at(-1));
    assert_null(ftmem_model_name_at(ftmem_model_count()));
    for (int32_t i = 0; i < FTMEM__COUNT(models_refused); i++) {
        if (find(models_refused[i], &model, &error) != FTMEM_E_UNSUPPORTED) fail_msg("%s is not refused", models_refused[i]);
        if (strstr(error.message, "not known")) fail_msg("%s: %s", models_refused[i], error.message);
    }
}

/* ------------------------------------------------------------------------------------------- parameter counts */

static double llama_parameters(const ftmem_model *m)
{
    double h = (double)m->hidden, kv = (double)(m->kv_heads * m->head_dim);
    double block = 2 * h * h + 2 * h * kv + 3 * h * (double)m->ffn + 2 * h;
    return block * (double)m->layers + h * (double)m->vocab * (m->tied == FTMEM_ON ? 1 : 2) + h;
}

static void test_model_from_parameters(void **state)
{
    ftmem_model m = FTMEM_MODEL_INIT;
    (void)state;
    for (double p = 1e6; p <= 1e13; p *= 1.003) {
        assert_int_equal(ftmem_model_from_parameters(p, &m, NULL), FTMEM_OK);
        double ratio = llama_parameters(&m) / p;
        if (ratio < 0.99 || ratio > 1.01 || m.ffn < m.hidden || m.ffn > 8 * m.hidden) fail_msg("%.0f: %.4f, ffn %d", p, ratio, (int)m.ffn);
        assert_true(m.layers >= 1 && m.layers <= FTMEM_MAX_LAYERS && m.heads % m.kv_heads == 0 && m.hidden % m.heads == 0);
        assert_int_equal(m.inferred, 1);
    }
    assert_int_equal(ftmem_model_from_parameters(7e9, &m, NULL), FTMEM_OK);
    assert_int_equal(m.hidden, 4096);
    assert_int_equal(m.layers, 32);
    assert_string_equal(m.name, "7000000000 parameters");
}

static void test_parameter_range(void **state)
{
    static const double bad[] = { 0, -1, 999999, 1.1e13, 1e300 };
    ftmem_model m = FTMEM_MODEL_INIT, before = FTMEM_MODEL_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    double zero = 0;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ftmem_model_from_parameters(bad[i], &m, &error), FTMEM_E_RANGE);
        assert_string_equal(error.field, "parameters");
    }
    assert_int_equal(ftmem_model_from_parameters(zero / zero, &m, &error), FTMEM_E_RANGE);
    assert_string_equal(error.value, "nan");
    assert_memory_equal(&m, &before, sizeof m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_names),
        cmocka_unit_test(test_gpu_figures),
        cmocka_unit_test(test_gpu_memory_alone),
        cmocka_unit_test(test_gpu_slices),
        cmocka_unit_test(test_gpu_errors),
        cmocka_unit_test(test_gpu_list),
        cmocka_unit_test(test_model_names),
        cmocka_unit_test(test_model_errors),
        cmocka_unit_test(test_model_rows),
        cmocka_unit_test(test_parameter_range),
        cmocka_unit_test(test_model_from_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
