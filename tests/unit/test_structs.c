/* Structs across versions: initialisers, import and export. Layouts are asserted where they are compiled (lib/structs.c). */
#include "common.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ------------------------------------------------------------------------------------------------ initialisers */

#define CHECK_INIT(name, MACRO) \
    do { \
        ftmem_##name by_macro = MACRO, by_call; \
        memset(&by_call, 0x5a, sizeof by_call); \
        assert_int_equal(ftmem_##name##_init(&by_call, sizeof by_call), FTMEM_OK); \
        assert_memory_equal(&by_macro, &by_call, sizeof by_call); \
        assert_int_equal(by_call.struct_size, sizeof by_call); \
    } while (0)

static void init_macro_and_function_agree_byte_for_byte(void **state)
{
    (void)state;
    CHECK_INIT(error, FTMEM_ERROR_INIT);
    CHECK_INIT(model, FTMEM_MODEL_INIT);
    CHECK_INIT(adapter, FTMEM_ADAPTER_INIT);
    CHECK_INIT(gpu, FTMEM_GPU_INIT);
    CHECK_INIT(job, FTMEM_JOB_INIT);
    CHECK_INIT(memory, FTMEM_MEMORY_INIT);
    CHECK_INIT(parameters, FTMEM_PARAMETERS_INIT);
}

#define CHECK_INIT_SIZES(name) \
    do { \
        struct { \
            ftmem_##name known; \
            char later[128]; \
        } x; \
        char zero[sizeof x] = { 0 }; \
        memset(&x, 0x5a, sizeof x); \
        assert_int_equal(ftmem_##name##_init(NULL, sizeof x.known), FTMEM_E_ARGUMENT); \
        assert_int_equal(ftmem_##name##_init(&x.known, 0), FTMEM_E_STRUCT_SIZE); \
        assert_int_equal(ftmem_##name##_init(&x.known, sizeof x.known - 1), FTMEM_E_STRUCT_SIZE); \
        assert_int_equal(ftmem_##name##_init(&x.known, (size_t)-1), FTMEM_E_STRUCT_SIZE); \
        assert_int_equal(x.known.struct_size, 0x5a5a5a5a); \
        assert_int_equal(ftmem_##name##_init(&x.known, sizeof x), FTMEM_OK); \
        assert_int_equal(x.known.struct_size, sizeof x); \
        assert_memory_equal((char *)&x + 4, zero, sizeof x - 4); \
    } while (0)

static void init_refuses_short_and_absurd_sizes_and_takes_longer_ones(void **state)
{
    (void)state;
    CHECK_INIT_SIZES(error);
    CHECK_INIT_SIZES(model);
    CHECK_INIT_SIZES(adapter);
    CHECK_INIT_SIZES(gpu);
    CHECK_INIT_SIZES(job);
    CHECK_INIT_SIZES(memory);
    CHECK_INIT_SIZES(parameters);
}

/* --------------------------------------------------------------------------------------- a struct in two versions */

typedef struct first_version {
    uint32_t struct_size;
    int32_t a;
} first_version;

typedef struct second_version {
    uint32_t struct_size;
    int32_t a, b, c;
} second_version;

static void a_struct_of_our_version_is_copied(void **state)
{
    (void)state;
    second_version from = { sizeof from, 1, 2, 3 }, to;
    memset(&to, 0x5a, sizeof to);
    assert_int_equal(ftmem__import(&to, sizeof to, &from, sizeof(first_version), "thing", NULL), FTMEM_OK);
    assert_memory_equal(&to, &from, sizeof to);
}

static void a_shorter_struct_is_filled_with_zeros(void **state)
{
    (void)state;
    first_version from = { sizeof from, 1 };
    second_version to, expected = { sizeof to, 1, 0, 0 };
    memset(&to, 0x5a, sizeof to);
    assert_int_equal(ftmem__import(&to, sizeof to, &from, sizeof from, "thing", NULL), FTMEM_OK);
    assert_memory_equal(&to, &expected, sizeof to);
}

static void a_longer_struct_is_taken_when_its_tail_is_zero(void **state)
{
    (void)state;
    second_version from = { sizeof from, 1, 0, 0 };
    first_version to, expected = { sizeof to, 1 };
    assert_int_equal(ftmem__import(&to, sizeof to, &from, sizeof to, "thing", NULL), FTMEM_OK);
    assert_memory_equal(&to, &expected, sizeof to);
}

static void a_longer_struct_is_refused_when_its_tail_is_not_zero(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    second_version from = { sizeof from, 1, 0, 0 };
    first_version to = { 77, 78 }, before = to;
    for (size_t i = sizeof to; i < sizeof from; ++i) {
        memset((char *)&from + sizeof to, 0, sizeof from - sizeof to);
        ((char *)&from)[i] = 1;
        assert_int_equal(ftmem__import(&to, sizeof to, &from, sizeof to, "thing", &error), FTMEM_E_STRUCT_SIZE);
    }
    assert_memory_equal(&to, &before, sizeof to);
    assert_string_equal(error.field, "thing.struct_size");
    assert_string_equal(error.value, "16");
}

static void a_size_of_zero_or_below_the_first_version_is_refused(void **state)
{
    (void)state;
    for (uint32_t size = 0; size < sizeof(first_version); ++size) {
        ftmem_error error = FTMEM_ERROR_INIT;
        second_version from = { size, 1, 2, 3 }, to = { 77, 78, 79, 80 }, before = to;
        assert_int_equal(ftmem__import(&to, sizeof to, &from, sizeof(first_version), "thing", &error), FTMEM_E_STRUCT_SIZE);
        assert_memory_equal(&to, &before, sizeof to);
        assert_non_null(strstr(error.message, "thing.struct_size is "));
        assert_non_null(strstr(error.message, "at least 8 bytes"));
    }
}

/* The tail must not be read: a sanitizer would see it. */
static void an_absurd_size_is_refused_unread(void **state)
{
    (void)state;
    static const uint32_t sizes[] = { 100000, 0x5a5a5a5a, UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        second_version from = { sizes[i], 1, 2, 3 }, to;
        assert_int_equal(ftmem__import(&to, sizeof to, &from, sizeof(first_version), "thing", NULL), FTMEM_E_STRUCT_SIZE);
    }
}

static void a_null_struct_is_refused(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    second_version to;
    assert_int_equal(ftmem__import(&to, sizeof to, NULL, sizeof to, "thing", &error), FTMEM_E_ARGUMENT);
    assert_string_equal(error.message, "thing is NULL, but it is required");
    assert_int_equal(ftmem__exportable(NULL, sizeof to, "thing", &error), FTMEM_E_ARGUMENT);
}

static void results_fill_as_much_as_the_caller_has(void **state)
{
    (void)state;
    second_version full = { sizeof full, 1, 2, 3 }, same = { sizeof same, 0, 0, 0 };
    struct {
        first_version known;
        int32_t fence;
    } shorter = { { sizeof(first_version), 0 }, 77 };
    struct {
        second_version known;
        int32_t later;
    } longer = { { sizeof longer, 0, 0, 0 }, 77 };
    ftmem__export(&same, &full, sizeof full);
    assert_memory_equal(&same, &full, sizeof full);
    ftmem__export(&shorter, &full, sizeof full);
    assert_int_equal(shorter.known.a, 1);
    assert_int_equal(shorter.known.struct_size, sizeof(first_version));
    assert_int_equal(shorter.fence, 77);
    ftmem__export(&longer, &full, sizeof full);
    assert_int_equal(longer.known.c, 3);
    assert_int_equal(longer.known.struct_size, sizeof longer);
    assert_int_equal(longer.later, 0);
}

static void an_uninitialised_result_is_refused(void **state)
{
    (void)state;
    ftmem_memory memory;
    memset(&memory, 0, sizeof memory);
    assert_int_equal(ftmem__exportable(&memory, FTMEM__MEMORY_MINIMUM, "memory", NULL), FTMEM_E_STRUCT_SIZE);
    memset(&memory, 0xff, sizeof memory);
    assert_int_equal(ftmem__exportable(&memory, FTMEM__MEMORY_MINIMUM, "memory", NULL), FTMEM_E_STRUCT_SIZE);
    assert_int_equal(ftmem_memory_init(&memory, sizeof memory), FTMEM_OK);
    assert_int_equal(ftmem__exportable(&memory, FTMEM__MEMORY_MINIMUM, "memory", NULL), FTMEM_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_macro_and_function_agree_byte_for_byte),
        cmocka_unit_test(init_refuses_short_and_absurd_sizes_and_takes_longer_ones),
        cmocka_unit_test(a_struct_of_our_version_is_copied),
        cmocka_unit_test(a_shorter_struct_is_filled_with_zeros),
        cmocka_unit_test(a_longer_struct_is_taken_when_its_tail_is_zero),
        cmocka_unit_test(a_longer_struct_is_refused_when_its_tail_is_not_zero),
        cmocka_unit_test(a_size_of_zero_or_below_the_first_version_is_refused),
        cmocka_unit_test(an_absurd_size_is_refused_unread),
        cmocka_unit_test(a_null_struct_is_refused),
        cmocka_unit_test(results_fill_as_much_as_the_caller_has),
        cmocka_unit_test(an_uninitialised_result_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
