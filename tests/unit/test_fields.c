/* The field table: complete, consistent, every row settable and checked on both sides. */
#include "common.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

typedef union any_object {
    ftmem_model model;
    ftmem_adapter adapter;
    ftmem_gpu gpu;
    ftmem_job job;
    char bytes[1024];
} any_object;

static void init_object(int32_t object, any_object *x)
{
    memset(x, 0, sizeof *x);
    if (object == FTMEM_OBJECT_MODEL) assert_int_equal(ftmem_model_init(&x->model, sizeof x->model), FTMEM_OK);
    if (object == FTMEM_OBJECT_ADAPTER) assert_int_equal(ftmem_adapter_init(&x->adapter, sizeof x->adapter), FTMEM_OK);
    if (object == FTMEM_OBJECT_GPU) assert_int_equal(ftmem_gpu_init(&x->gpu, sizeof x->gpu), FTMEM_OK);
    if (object == FTMEM_OBJECT_JOB) assert_int_equal(ftmem_job_init(&x->job, sizeof x->job), FTMEM_OK);
}

static double get(const ftmem_field *field, const any_object *x)
{
    const char *at = x->bytes + field->offset;
    int64_t wide;
    int32_t narrow;
    double real;
    if (field->type == FTMEM_TYPE_REAL) return memcpy(&real, at, sizeof real), real;
    if (field->size == 8) return memcpy(&wide, at, sizeof wide), (double)wide;
    return memcpy(&narrow, at, sizeof narrow), (double)narrow;
}

static void put(const ftmem_field *field, any_object *x, double value)
{
    char *at = x->bytes + field->offset;
    int64_t wide = value < 9e18 && value > -9e18 ? (int64_t)value : 0;
    int32_t narrow = (int32_t)wide;
    if (field->type == FTMEM_TYPE_REAL) memcpy(at, &value, sizeof value);
    else if (field->size == 8) memcpy(at, &wide, sizeof wide);
    else memcpy(at, &narrow, sizeof narrow);
}

static bool is_number(const ftmem_field *field)
{
    return field->type == FTMEM_TYPE_INT || field->type == FTMEM_TYPE_REAL;
}

static ftmem_status validate(const ftmem_field *field, const any_object *x, ftmem_error *error)
{
    return ftmem__fields_validate(field->object, x, error);
}

#define FOR_EACH_FIELD(field) \
    for (int32_t i_ = 0; i_ < ftmem_field_count(); ++i_) \
        for (const ftmem_field *field = ftmem_field_at(i_); field; field = NULL)

/* --------------------------------------------------------------------------------------------------- the table */

static void the_table_ends_where_it_says(void **state)
{
    (void)state;
    assert_true(ftmem_field_count() > 60);
    assert_null(ftmem_field_at(-1));
    assert_null(ftmem_field_at(ftmem_field_count()));
    assert_null(ftmem_field_at(INT32_MAX));
    assert_null(ftmem_field_at(INT32_MIN));
}

static void every_row_is_complete(void **state)
{
    (void)state;
    static const char *const objects[] = { "model.", "adapter.", "gpu.", "job." };
    FOR_EACH_FIELD(field)
    {
        assert_in_range(field->object, 0, FTMEM_OBJECT_END - 1);
        assert_int_equal(strncmp(field->path, objects[field->object], strlen(objects[field->object])), 0);
        assert_non_null(field->unit);
        assert_true(strlen(field->doc) > 5 && strlen(field->default_text) > 0);
        assert_null(strchr(field->doc, '\n'));
        assert_true(field->minimum <= field->maximum && field->minimum >= 0);
        bool named = field->type == FTMEM_TYPE_ENUM || field->type == FTMEM_TYPE_SET;
        assert_true((field->enum_name != NULL) == named);
        assert_true(field->size == 8 || field->size == 4 || field->type == FTMEM_TYPE_TEXT);
    }
}

static void every_path_is_found_and_is_unique(void **state)
{
    (void)state;
    FOR_EACH_FIELD(field) assert_ptr_equal(ftmem_field_find(field->path), field);
    assert_null(ftmem_field_find(NULL));
    assert_null(ftmem_field_find(""));
    assert_null(ftmem_field_find("job."));
    assert_null(ftmem_field_find("micro_batch"));
    assert_ptr_equal(ftmem_field_find("job.Micro-Batch"), ftmem_field_find("job.micro_batch"));
}

static void every_enum_value_of_a_range_has_a_name(void **state)
{
    (void)state;
    FOR_EACH_FIELD(field)
    {
        if (field->type != FTMEM_TYPE_ENUM) continue;
        for (int32_t v = (int32_t)field->minimum; v <= (int32_t)field->maximum; ++v) assert_non_null(ftmem_enum_name(field->enum_name, v));
        assert_non_null(ftmem_enum_name(field->enum_name, 0));
    }
}

/* What is deliberately no field: sizes, pointers, the nested GPU (it has rows of its own), layer kinds, ranks by role, reserved. */
static void mark(char *used, size_t offset, size_t size)
{
    for (size_t i = offset; i < offset + size; ++i) {
        assert_int_equal(used[i], 0);
        used[i] = 1;
    }
}

static void mark_others(int32_t object, char *used)
{
    mark(used, 0, sizeof(uint32_t));
    if (object == FTMEM_OBJECT_MODEL) mark(used, offsetof(ftmem_model, reserved), sizeof(int32_t));
    if (object == FTMEM_OBJECT_MODEL) mark(used, offsetof(ftmem_model, layer_kind), FTMEM_MAX_LAYERS);
    if (object == FTMEM_OBJECT_MODEL) mark(used, offsetof(ftmem_model, ffn_widths), sizeof(((ftmem_model *)0)->ffn_widths));
    if (object == FTMEM_OBJECT_ADAPTER) mark(used, offsetof(ftmem_adapter, ranks), 16 * sizeof(int32_t));
    if (object == FTMEM_OBJECT_GPU) mark(used, offsetof(ftmem_gpu, reserved), 8 * sizeof(int64_t));
    if (object == FTMEM_OBJECT_JOB) mark(used, offsetof(ftmem_job, model), 2 * sizeof(void *));
    if (object == FTMEM_OBJECT_JOB) mark(used, offsetof(ftmem_job, teacher), sizeof(void *));
    if (object == FTMEM_OBJECT_JOB) mark(used, offsetof(ftmem_job, gpu), sizeof(ftmem_gpu));
    if (object == FTMEM_OBJECT_JOB) mark(used, offsetof(ftmem_job, reserved), sizeof(int32_t));
}

static void the_table_covers_every_byte_of_the_inputs_once(void **state)
{
    (void)state;
    static const size_t sizes[] = { sizeof(ftmem_model), sizeof(ftmem_adapter), sizeof(ftmem_gpu), sizeof(ftmem_job) };
    for (int32_t object = 0; object < FTMEM_OBJECT_END; ++object) {
        char used[2048] = { 0 };
        mark_others(object, used);
        FOR_EACH_FIELD(field) if (field->object == object) mark(used, (size_t)field->offset, (size_t)field->size);
        for (size_t i = 0; i < sizes[object]; ++i)
            if (!used[i]) fail_msg("byte %d of object %d is no field", (int)i, (int)object);
    }
}

/* -------------------------------------------------------------------------------------------------- validation */

static void fresh_objects_are_valid(void **state)
{
    (void)state;
    for (int32_t object = 0; object < FTMEM_OBJECT_END; ++object) {
        any_object x;
        init_object(object, &x);
        assert_int_equal(ftmem__fields_validate(object, &x, NULL), FTMEM_OK);
    }
}

static void both_ends_of_every_range_are_allowed(void **state)
{
    (void)state;
    FOR_EACH_FIELD(field)
    {
        any_object x;
        if (field->type == FTMEM_TYPE_TEXT) continue;
        init_object(field->object, &x);
        put(field, &x, field->minimum);
        assert_int_equal(validate(field, &x, NULL), FTMEM_OK);
        put(field, &x, field->maximum);
        assert_int_equal(validate(field, &x, NULL), FTMEM_OK);
    }
}

static void assert_refused(const ftmem_field *field, double value)
{
    any_object x;
    ftmem_error error = FTMEM_ERROR_INIT;
    init_object(field->object, &x);
    put(field, &x, value);
    if (validate(field, &x, &error) != FTMEM_E_RANGE) fail_msg("%s accepts %g", field->path, value);
    assert_string_equal(error.field, field->path);
    assert_true(strlen(error.value) > 0);
    assert_int_equal(strncmp(error.message, field->path, strlen(field->path)), 0);
    assert_non_null(strstr(error.message, "it must be "));
}

static void both_sides_of_every_range_are_refused(void **state)
{
    (void)state;
    FOR_EACH_FIELD(field)
    {
        if (field->type == FTMEM_TYPE_TEXT) continue;
        double step = field->type == FTMEM_TYPE_REAL ? 0.0005 : 1;
        assert_refused(field, field->maximum + step);
        assert_refused(field, -step);
        if (field->minimum - step > 0) assert_refused(field, field->minimum - step);
        assert_refused(field, field->size == 4 ? -2147483648.0 : -8e18);
        assert_refused(field, field->size == 4 ? 2147483647.0 : 8e18);
    }
}

static void no_real_may_be_nan_or_infinite(void **state)
{
    (void)state;
    double infinity = 1e300 * 1e300;
    FOR_EACH_FIELD(field)
    {
        if (field->type != FTMEM_TYPE_REAL) continue;
        assert_refused(field, infinity);
        assert_refused(field, -infinity);
        assert_refused(field, infinity * 0);
    }
}

static void messages_say_field_value_and_range(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    job.micro_batch = -4;
    assert_int_equal(ftmem__fields_validate(FTMEM_OBJECT_JOB, &job, &error), FTMEM_E_RANGE);
    assert_string_equal(error.message, "job.micro_batch is -4; it must be between 1 and 1048576 rows");
    assert_string_equal(error.value, "-4");
    job.micro_batch = 0;
    job.dtype = FTMEM_NF4;
    ftmem__fields_validate(FTMEM_OBJECT_JOB, &job, &error);
    assert_string_equal(error.message, "job.dtype is nf4; it must be fp32, bf16 or fp16");
    job.dtype = 0;
    job.margin = 1.5;
    ftmem__fields_validate(FTMEM_OBJECT_JOB, &job, &error);
    assert_string_equal(error.message, "job.margin is 1.5; it must be between 0.01 and 0.9");
    job.margin = 0;
    job.freeze = 512;
    ftmem__fields_validate(FTMEM_OBJECT_JOB, &job, &error);
    assert_string_equal(error.message, "job.freeze is 512; it must be a set of embed+head+first_layers+last_layers+all_but+tower+biases+vision+projector");
}

static void unterminated_texts_are_refused(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_gpu gpu = FTMEM_GPU_INIT;
    memset(gpu.name, 'x', sizeof gpu.name);
    assert_int_equal(ftmem__fields_validate(FTMEM_OBJECT_GPU, &gpu, &error), FTMEM_E_RANGE);
    assert_string_equal(error.field, "gpu.name");
    gpu.name[5] = '\0'; /* what follows the end of a text does not matter */
    assert_int_equal(ftmem__fields_validate(FTMEM_OBJECT_GPU, &gpu, NULL), FTMEM_OK);
}

static void reserved_members_must_be_zero(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_model model = FTMEM_MODEL_INIT;
    ftmem_gpu gpu = FTMEM_GPU_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    model.reserved = 1;
    gpu.reserved[7] = 1;
    job.reserved = 1;
    assert_int_equal(ftmem__fields_validate(FTMEM_OBJECT_MODEL, &model, &error), FTMEM_E_RANGE);
    assert_string_equal(error.field, "model.reserved");
    assert_int_equal(ftmem__fields_validate(FTMEM_OBJECT_GPU, &gpu, &error), FTMEM_E_RANGE);
    assert_int_equal(ftmem__fields_validate(FTMEM_OBJECT_JOB, &job, &error), FTMEM_E_RANGE);
    assert_string_equal(error.field, "job.reserved");
}

/* ----------------------------------------------------------------------------------------------------- setting */

static void every_number_is_set_from_text(void **state)
{
    (void)state;
    FOR_EACH_FIELD(field)
    {
        any_object x;
        char text[64];
        if (!is_number(field)) continue;
        init_object(field->object, &x);
        snprintf(text, sizeof text, "%.17g", field->maximum);
        assert_int_equal(ftmem_set(field->path, text, &x, NULL), FTMEM_OK);
        assert_true(get(field, &x) == field->maximum);
        assert_int_equal(ftmem_set(field->path, "0", &x, NULL), FTMEM_OK);
        assert_true(get(field, &x) == 0);
    }
}

static void every_enum_is_set_by_each_of_its_names(void **state)
{
    (void)state;
    FOR_EACH_FIELD(field)
    {
        any_object x;
        if (field->type != FTMEM_TYPE_ENUM) continue;
        init_object(field->object, &x);
        for (int32_t v = (int32_t)field->minimum; v <= (int32_t)field->maximum; ++v) {
            assert_int_equal(ftmem_set(field->path, ftmem_enum_name(field->enum_name, v), &x, NULL), FTMEM_OK);
            assert_true(get(field, &x) == v);
        }
        assert_int_equal(ftmem_set(field->path, ftmem_enum_name(field->enum_name, 0), &x, NULL), FTMEM_OK);
        assert_true(get(field, &x) == 0);
    }
}

static void every_text_is_set_and_bounded(void **state)
{
    (void)state;
    FOR_EACH_FIELD(field)
    {
        any_object x;
        char text[200];
        ftmem_error error = FTMEM_ERROR_INIT;
        if (field->type != FTMEM_TYPE_TEXT) continue;
        init_object(field->object, &x);
        memset(text, 'n', sizeof text);
        text[field->size - 1] = '\0';
        assert_int_equal(ftmem_set(field->path, text, &x, NULL), FTMEM_OK);
        assert_string_equal(x.bytes + field->offset, text);
        text[field->size - 1] = 'n';
        text[field->size] = '\0';
        assert_int_equal(ftmem_set(field->path, text, &x, &error), FTMEM_E_RANGE);
        assert_string_equal(error.field, field->path);
        assert_int_equal(ftmem_set(field->path, "", &x, NULL), FTMEM_OK);
        assert_int_equal(x.bytes[field->offset], 0);
    }
}

static void sets_are_set_by_names_or_a_number(void **state)
{
    (void)state;
    ftmem_adapter a = FTMEM_ADAPTER_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    assert_int_equal(ftmem_set("adapter.targets", "q+v", &a, NULL), FTMEM_OK);
    assert_int_equal(a.targets, 5);
    assert_int_equal(ftmem_set("adapter.targets", " q_proj, v_proj ,o", &a, NULL), FTMEM_OK);
    assert_int_equal(a.targets, 1 | 4 | 16);
    assert_int_equal(ftmem_set("adapter.targets", "all-linear", &a, NULL), FTMEM_OK);
    assert_int_equal(a.targets, FTMEM_ROLES_ALL_LINEAR);
    assert_int_equal(ftmem_set("adapter.targets", "all-linear+head", &a, NULL), FTMEM_OK);
    assert_int_equal(a.targets, FTMEM_ROLES_ALL_LINEAR | 1 << FTMEM_ROLE_HEAD);
    assert_int_equal(ftmem_set("adapter.targets", "511", &a, NULL), FTMEM_OK);
    assert_int_equal(a.targets, 511);
    assert_int_equal(ftmem_set("adapter.targets", "none", &a, NULL), FTMEM_OK);
    assert_int_equal(a.targets, 0);
    assert_int_equal(ftmem_set("job.freeze", "embed+head+all_but", &job, NULL), FTMEM_OK);
    assert_int_equal(job.freeze, 1 | 2 | 16);
}

static void bad_sets_change_nothing(void **state)
{
    (void)state;
    static const char *const bad[] = { "", "+", "q+", "q,,v", "q v", "q+nothing", "norm", "2048", "-1", "q_proj|v_proj" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        ftmem_error error = FTMEM_ERROR_INIT;
        ftmem_adapter a = FTMEM_ADAPTER_INIT;
        a.targets = 16;
        if (ftmem_set("adapter.targets", bad[i], &a, &error) == FTMEM_OK) fail_msg("targets accept \"%s\"", bad[i]);
        assert_string_equal(error.field, "adapter.targets");
        assert_int_equal(a.targets, 16);
    }
}

static void text_that_is_no_number_is_a_type_error(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    job.micro_batch = 7;
    assert_int_equal(ftmem_set("job.micro_batch", "four", &job, &error), FTMEM_E_TYPE);
    assert_string_equal(error.message, "job.micro_batch is \"four\"; it must be a whole number between 1 and 1048576 rows");
    assert_int_equal(ftmem_set("job.micro_batch", "1.5", &job, &error), FTMEM_E_TYPE);
    assert_int_equal(ftmem_set("job.micro_batch", "", &job, &error), FTMEM_E_TYPE);
    assert_int_equal(ftmem_set("job.margin", "nan", &job, &error), FTMEM_E_TYPE);
    assert_int_equal(ftmem_set("job.margin", "inf", &job, &error), FTMEM_E_TYPE);
    assert_int_equal(ftmem_set("job.margin", "0,2", &job, &error), FTMEM_E_TYPE);
    assert_int_equal(job.micro_batch, 7);
}

static void text_out_of_range_changes_nothing(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    job.sequence = 7;
    assert_int_equal(ftmem_set("job.sequence", "-4", &job, &error), FTMEM_E_RANGE);
    assert_int_equal(ftmem_set("job.sequence", "1e12", &job, &error), FTMEM_E_RANGE);
    assert_string_equal(error.message, "job.sequence is 1000000000000; it must be between 1 and 16777216 tokens");
    assert_int_equal(job.sequence, 7);
    assert_int_equal(ftmem_set("job.autocast", "fp32", &job, &error), FTMEM_E_RANGE);
    assert_string_equal(error.message, "job.autocast is fp32; it must be bf16 or fp16");
    assert_int_equal(ftmem_set("job.optimizer", "adamx", &job, &error), FTMEM_E_UNKNOWN_NAME);
    assert_string_equal(error.field, "job.optimizer");
}

static void an_unknown_path_lists_the_nearest(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_job job = FTMEM_JOB_INIT;
    assert_int_equal(ftmem_set("job.microbatch", "4", &job, &error), FTMEM_E_UNKNOWN_NAME);
    assert_non_null(strstr(error.message, "nearest first: job.micro_batch"));
    assert_string_equal(error.value, "job.microbatch");
}

static void null_arguments_of_set_are_refused(void **state)
{
    (void)state;
    ftmem_job job = FTMEM_JOB_INIT;
    assert_int_equal(ftmem_set(NULL, "4", &job, NULL), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_set("job.sequence", NULL, &job, NULL), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_set("job.sequence", "4", NULL, NULL), FTMEM_E_ARGUMENT);
}

static void a_struct_without_the_field_is_refused(void **state)
{
    (void)state;
    ftmem_job job = FTMEM_JOB_INIT;
    job.struct_size = 0;
    assert_int_equal(ftmem_set("job.sequence", "4", &job, NULL), FTMEM_E_STRUCT_SIZE);
    job.struct_size = (uint32_t)offsetof(ftmem_job, sequence) + 4;
    assert_int_equal(ftmem_set("job.sequence", "4", &job, NULL), FTMEM_E_STRUCT_SIZE);
    job.struct_size = UINT32_MAX;
    assert_int_equal(ftmem_set("job.sequence", "4", &job, NULL), FTMEM_E_STRUCT_SIZE);
    assert_int_equal(job.sequence, 0);
}

static void the_gpu_inside_a_fresh_job_can_be_set(void **state)
{
    (void)state;
    ftmem_job job = FTMEM_JOB_INIT;
    assert_int_equal(ftmem_set("gpu.memory_bytes", "24e9", &job.gpu, NULL), FTMEM_OK);
    assert_true(job.gpu.memory_bytes == 24000000000);
}

static void setting_does_not_depend_on_the_locale(void **state)
{
    (void)state;
    ftmem_job job = FTMEM_JOB_INIT;
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) setlocale(LC_ALL, "");
    assert_int_equal(ftmem_set("job.margin", "0.25", &job, NULL), FTMEM_OK);
    setlocale(LC_ALL, "C");
    assert_true(job.margin == 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_ends_where_it_says),
        cmocka_unit_test(every_row_is_complete),
        cmocka_unit_test(every_path_is_found_and_is_unique),
        cmocka_unit_test(every_enum_value_of_a_range_has_a_name),
        cmocka_unit_test(the_table_covers_every_byte_of_the_inputs_once),
        cmocka_unit_test(fresh_objects_are_valid),
        cmocka_unit_test(both_ends_of_every_range_are_allowed),
        cmocka_unit_test(both_sides_of_every_range_are_refused),
        cmocka_unit_test(no_real_may_be_nan_or_infinite),
        cmocka_unit_test(messages_say_field_value_and_range),
        cmocka_unit_test(unterminated_texts_are_refused),
        cmocka_unit_test(reserved_members_must_be_zero),
        cmocka_unit_test(every_number_is_set_from_text),
        cmocka_unit_test(every_enum_is_set_by_each_of_its_names),
        cmocka_unit_test(every_text_is_set_and_bounded),
        cmocka_unit_test(sets_are_set_by_names_or_a_number),
        cmocka_unit_test(bad_sets_change_nothing),
        cmocka_unit_test(text_that_is_no_number_is_a_type_error),
        cmocka_unit_test(text_out_of_range_changes_nothing),
        cmocka_unit_test(an_unknown_path_lists_the_nearest),
        cmocka_unit_test(null_arguments_of_set_are_refused),
        cmocka_unit_test(a_struct_without_the_field_is_refused),
        cmocka_unit_test(the_gpu_inside_a_fresh_job_can_be_set),
        cmocka_unit_test(setting_does_not_depend_on_the_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
