/* Status, errors, short texts and names. */
#include "common.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* -------------------------------------------------------------------------------------------------- status */

static void status_texts_exist_for_every_int(void **state)
{
    (void)state;
    static const ftmem_status odd[] = { INT32_MIN, -1, FTMEM_STATUS_END, 1000, INT32_MAX };
    for (ftmem_status s = 0; s < FTMEM_STATUS_END; ++s) {
        assert_int_equal(strncmp(ftmem_status_name(s), "FTMEM_", 6), 0);
        assert_string_not_equal(ftmem_status_name(s), "FTMEM_E_?");
        assert_true(strlen(ftmem_status_string(s)) > 5);
    }
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; ++i) {
        assert_string_equal(ftmem_status_name(odd[i]), "FTMEM_E_?");
        assert_non_null(ftmem_status_string(odd[i]));
    }
}

static void status_names_are_the_constants(void **state)
{
    (void)state;
    assert_string_equal(ftmem_status_name(FTMEM_OK), "FTMEM_OK");
    assert_string_equal(ftmem_status_name(FTMEM_E_UNKNOWN_NAME), "FTMEM_E_UNKNOWN_NAME");
    assert_string_equal(ftmem_status_name(FTMEM_E_IO), "FTMEM_E_IO");
}

static void version_is_the_headers(void **state)
{
    (void)state;
    assert_string_equal(ftmem_version_string(), FTMEM_VERSION_STRING);
}

static void a_failure_without_an_error_only_returns_its_status(void **state)
{
    (void)state;
    assert_int_equal(ftmem__fail(NULL, FTMEM_E_IO, "f", "v", "m"), FTMEM_E_IO);
    assert_int_equal(ftmem__fail_int(NULL, FTMEM_E_RANGE, "f", 1, "m"), FTMEM_E_RANGE);
}

static void an_uninitialised_error_is_left_untouched(void **state)
{
    (void)state;
    static const uint32_t sizes[] = { 0, 4, sizeof(ftmem_error) - 1, 100000, UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        ftmem_error error, before;
        memset(&error, 0x5a, sizeof error);
        error.struct_size = sizes[i];
        memcpy(&before, &error, sizeof error);
        assert_int_equal(ftmem__fail(&error, FTMEM_E_IO, "f", "v", "m"), FTMEM_E_IO);
        assert_memory_equal(&error, &before, sizeof error);
    }
}

static void a_later_and_longer_error_is_written(void **state)
{
    (void)state;
    struct {
        ftmem_error known;
        char later[64];
    } error;
    memset(&error, 0, sizeof error);
    error.known.struct_size = sizeof error;
    ftmem__fail(&error.known, FTMEM_E_RANGE, "f", "v", "m");
    assert_int_equal(error.known.status, FTMEM_E_RANGE);
    assert_int_equal(error.known.struct_size, sizeof error);
    assert_string_equal(error.known.message, "m");
}

static void assert_terminated(const ftmem_error *error)
{
    assert_non_null(memchr(error->field, 0, sizeof error->field));
    assert_non_null(memchr(error->value, 0, sizeof error->value));
    assert_non_null(memchr(error->message, 0, sizeof error->message));
}

static void an_error_stays_well_formed_with_huge_texts(void **state)
{
    (void)state;
    char *huge = malloc(100001);
    ftmem_error error = FTMEM_ERROR_INIT;
    assert_non_null(huge);
    memset(huge, 'x', 100000);
    huge[100000] = '\0';
    ftmem__fail(&error, FTMEM_E_RANGE, huge, huge, huge);
    assert_terminated(&error);
    assert_int_equal(strlen(error.value), sizeof error.value - 1);
    assert_string_equal(error.message + sizeof error.message - 4, "...");
    free(huge);
}

static void an_error_never_ends_within_a_utf8_character(void **state)
{
    (void)state;
    char text[200];
    for (size_t shift = 0; shift < 4; ++shift) {
        ftmem_error error = FTMEM_ERROR_INIT;
        memset(text, 'a', shift);
        for (size_t i = shift; i + 4 < sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 4); /* euro signs */
        ftmem__fail(&error, FTMEM_E_RANGE, "f", text, "m");
        size_t length = strlen(error.value);
        assert_true(length >= sizeof error.value - 4);
        assert_int_equal((length - 3 - shift) % 3, 0);
        assert_string_equal(error.value + length - 3, "...");
    }
}

static void an_error_has_no_control_characters(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem__fail(&error, FTMEM_E_RANGE, "f", "a\nb\x1b[1m\x7f", "m");
    assert_string_equal(error.value, "a?b?[1m?");
}

static void an_error_takes_null_texts(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem__fail(&error, FTMEM_E_RANGE, NULL, NULL, NULL);
    assert_string_equal(error.field, "");
    assert_string_equal(error.value, "");
    assert_string_equal(error.message, ftmem_status_string(FTMEM_E_RANGE));
}

static void an_error_shows_extreme_integers(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem__fail_int(&error, FTMEM_E_RANGE, "f", INT64_MIN, "m");
    assert_string_equal(error.value, "-9223372036854775808");
    ftmem__fail_int(&error, FTMEM_E_RANGE, "f", INT64_MAX, "m");
    assert_string_equal(error.value, "9223372036854775807");
}

/* ---------------------------------------------------------------------------------------------------- texts */

static void a_text_is_cut_terminated_and_counted(void **state)
{
    (void)state;
    char buffer[8];
    for (size_t capacity = 0; capacity <= sizeof buffer; ++capacity) {
        memset(buffer, '#', sizeof buffer);
        ftmem__text text = ftmem__text_in(buffer, capacity);
        ftmem__put(&text, "abcd");
        ftmem__put_int(&text, -12345);
        assert_int_equal(text.needed, 10);
        if (capacity > 0) assert_int_equal(strlen(buffer), capacity - 1);
        if (capacity > 0) assert_int_equal(strncmp(buffer, "abcd-12345", capacity - 1), 0);
        for (size_t i = capacity; i < sizeof buffer; ++i) assert_int_equal(buffer[i], '#');
    }
}

static const char *real(char *buffer, double value, int decimals)
{
    ftmem__text text = ftmem__text_in(buffer, 64);
    ftmem__put_real(&text, value, decimals);
    return buffer;
}

static void reals_are_written_in_fixed_notation(void **state)
{
    (void)state;
    char b[64];
    assert_string_equal(real(b, 0, 2), "0.00");
    assert_string_equal(real(b, 1.005, 1), "1.0");
    assert_string_equal(real(b, 0.05, 2), "0.05");
    assert_string_equal(real(b, 9.996, 2), "10.00");
    assert_string_equal(real(b, -3.25, 1), "-3.3");
    assert_string_equal(real(b, 12345678.9, 0), "12345679");
    assert_string_equal(real(b, 1e14, 3), "100000000000000.000");
    assert_string_equal(real(b, 1.5e300, 2), "1.5e+300");
    assert_string_equal(real(b, 1e15 / 2, 100), "500000000000000.0000");
}

static const char *number(char *buffer, double value)
{
    ftmem__text text = ftmem__text_in(buffer, 64);
    ftmem__put_number(&text, value);
    return buffer;
}

static void numbers_are_written_with_as_few_digits_as_they_need(void **state)
{
    (void)state;
    char b[64];
    assert_string_equal(number(b, 0), "0");
    assert_string_equal(number(b, 1048576), "1048576");
    assert_string_equal(number(b, 0.999), "0.999");
    assert_string_equal(number(b, 0.01), "0.01");
    assert_string_equal(number(b, -2.5), "-2.5");
    assert_string_equal(number(b, 1125899906842624.0), "1125899906842624");
    assert_string_equal(number(b, 1e-7), "1e-07");
    assert_string_equal(number(b, 1e300 * 1e300), "inf");
    assert_string_equal(number(b, -1e300 * 1e300), "-inf");
    assert_string_equal(number(b, 1e300 * 1e300 * 0.0), "nan");
}

static void gib_are_formatted_to_their_size(void **state)
{
    (void)state;
    char b[32];
    assert_int_equal(ftmem_format_gib(13207024435u, b, sizeof b), 8);
    assert_string_equal(b, "12.3 GiB");
    ftmem_format_gib(0, b, sizeof b);
    assert_string_equal(b, "0.00 GiB");
    ftmem_format_gib(UINT64_C(1) << 30, b, sizeof b);
    assert_string_equal(b, "1.00 GiB");
    ftmem_format_gib(UINT64_C(80) << 30, b, sizeof b);
    assert_string_equal(b, "80.0 GiB");
    ftmem_format_gib(UINT64_C(1) << 20, b, sizeof b);
    assert_string_equal(b, "0.0010 GiB");
    ftmem_format_gib(UINT64_MAX, b, sizeof b);
    assert_string_equal(b, "17179869184.0 GiB");
}

static void gib_are_cut_to_the_buffer(void **state)
{
    (void)state;
    char b[4] = "###";
    assert_int_equal(ftmem_format_gib(13207024435u, NULL, 0), 8);
    assert_int_equal(ftmem_format_gib(13207024435u, NULL, 50), 8);
    assert_int_equal(ftmem_format_gib(13207024435u, b, sizeof b), 8);
    assert_string_equal(b, "12.");
}

/* -------------------------------------------------------------------------------------------------- parsing */

static void assert_int(const char *text, int64_t expected)
{
    int64_t value = 77;
    assert_true(ftmem__parse_int(text, &value));
    assert_true(value == expected);
}

static void whole_numbers_are_read_however_written(void **state)
{
    (void)state;
    assert_int("0", 0);
    assert_int("-0", 0);
    assert_int("+17", 17);
    assert_int("15_360_000", 15360000);
    assert_int("1e9", 1000000000);
    assert_int("1.5e3", 1500);
    assert_int("2.50e1", 25);
    assert_int("4096.0", 4096);
    assert_int("120e-1", 12);
    assert_int("0e9999999999", 0);
    assert_int("9223372036854775807", INT64_MAX);
    assert_int("-9223372036854775808", INT64_MIN);
    assert_int("000000000000000000000000000007", 7);
}

static void what_is_no_whole_number_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "",
                                       "-",
                                       "+",
                                       ".",
                                       "e3",
                                       "1e",
                                       "1e+",
                                       "0x10",
                                       " 1",
                                       "1 ",
                                       "1.5",
                                       "1e-1",
                                       "_1",
                                       "1_",
                                       "1__0",
                                       "1,5",
                                       "9223372036854775808",
                                       "-9223372036854775809",
                                       "1e19",
                                       "1e999999999999",
                                       "18446744073709551616",
                                       "nan",
                                       "inf",
                                       "12abc",
                                       "--1" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        int64_t value = 77;
        if (ftmem__parse_int(bad[i], &value)) fail_msg("\"%s\" was read as a whole number", bad[i]);
        assert_int_equal(value, 77);
    }
}

static void reals_are_read_as_the_compiler_reads_them(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = { { "0", 0 },       { "0.1", 0.1 },     { "-0.05", -0.05 }, { ".5", .5 },    { "5.", 5. },  { "1e-5", 1e-5 }, { "1_000.5", 1000.5 },
                 { "1e22", 1e22 }, { "3.25E+2", 325 }, { "1e-400", 0 },    { "0e9999", 0 }, { "7e9", 7e9 } };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; ++i) {
        double value = -1;
        assert_true(ftmem__parse_real(good[i].text, &value));
        assert_true(value == good[i].value);
    }
    double value = 0;
    assert_true(ftmem__parse_real("123456789012345678901234567890", &value));
    assert_true(value > 1.2345678901e29 && value < 1.2345678902e29);
    assert_true(ftmem__parse_real("1e300", &value) && value > 0.999999999999e300 && value < 1.000000000001e300);
}

static void what_is_no_real_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "", ".", "nan", "inf", "-inf", "infinity", "1e400", "0,5", "1.2.3", "0x1p3", "1f", " 1" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        double value = 77;
        if (ftmem__parse_real(bad[i], &value)) fail_msg("\"%s\" was read as a number", bad[i]);
        assert_true(value == 77);
    }
}

static void a_comma_locale_changes_nothing(void **state)
{
    (void)state;
    static const char *const locales[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "de_DE", "German", "" };
    char b[64];
    double value = 0;
    for (size_t i = 0; i < sizeof locales / sizeof locales[0] && !setlocale(LC_ALL, locales[i]); ++i) {}
    ftmem_format_gib(13207024435u, b, sizeof b);
    assert_string_equal(b, "12.3 GiB");
    assert_true(ftmem__parse_real("0.5", &value) && value == 0.5);
    assert_false(ftmem__parse_real("0,5", &value));
    assert_string_equal(number(b, 0.999), "0.999");
    setlocale(LC_ALL, "C");
}

static void texts_are_compared_without_case(void **state)
{
    (void)state;
    assert_true(ftmem__same("BF16", "bf16"));
    assert_false(ftmem__same("gpt-neox", "gpt_neox"));
    assert_true(ftmem__alike("GPT-NeoX", "gpt_neox"));
    assert_true(ftmem__alike("may fit", "MAY_FIT"));
    assert_false(ftmem__alike("gpt", "gpt2"));
    assert_false(ftmem__alike("gpt2", "gpt"));
    assert_true(ftmem__same("", ""));
    assert_false(ftmem__same("\xc3\x84", "\xc3\xa4"));
}

static void distance_counts_edits_and_favours_containment(void **state)
{
    (void)state;
    assert_int_equal(ftmem__distance("adamw", "AdamW"), 0);
    assert_int_equal(ftmem__distance("adamx", "adamw"), 1);
    assert_int_equal(ftmem__distance("", "abc"), 3);
    assert_int_equal(ftmem__distance("abc", ""), 3);
    assert_true(ftmem__distance("llama", "meta-llama/Llama-3.1-8B") < ftmem__distance("llama", "opt"));
    char huge[5001];
    memset(huge, 'a', 5000);
    huge[5000] = '\0';
    assert_true(ftmem__distance(huge, "adamw") > 40);
    assert_int_equal(ftmem__distance(huge, huge), 0);
}

/* ---------------------------------------------------------------------------------------------------- names */

static const struct {
    const char *name;
    int32_t first, end;
} enums[] = {
    { "switch", 0, 3 },
    { "dtype", 0, FTMEM_DTYPE_END },
    { "family", 0, FTMEM_FAMILY_END },
    { "tower", 0, FTMEM_TOWER_END },
    { "activation", 0, FTMEM_ACT_END },
    { "adapter", 0, FTMEM_ADAPTER_END },
    { "optimizer", 0, FTMEM_OPTIMIZER_END },
    { "attention", 0, FTMEM_ATTENTION_END },
    { "kernel", 0, FTMEM_KERNEL_END },
    { "recompute", 0, FTMEM_RECOMPUTE_END },
    { "loss", 0, FTMEM_LOSS_END },
    { "mask", 0, FTMEM_MASK_END },
    { "task", 0, FTMEM_TASK_END },
    { "stack", 0, FTMEM_STACK_END },
    { "role", 0, FTMEM_ROLE_END },
    { "class", 0, FTMEM_CLASS_END },
    { "phase", 0, FTMEM_PHASE_END },
    { "verdict", 0, FTMEM_VERDICT_END },
    { "vendor", 0, 4 },
};
#define ENUM_COUNT (sizeof enums / sizeof enums[0])

static void every_enum_value_has_a_name_that_reads_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENUM_COUNT; ++i)
        for (int32_t v = enums[i].first; v < enums[i].end; ++v) {
            int32_t back = -1;
            const char *name = ftmem_enum_name(enums[i].name, v);
            if (!name) fail_msg("%s has no name for %d", enums[i].name, (int)v);
            assert_int_equal(ftmem_enum_parse(enums[i].name, name, &back, NULL), FTMEM_OK);
            assert_int_equal(back, v);
        }
}

static void values_outside_an_enum_have_no_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENUM_COUNT; ++i) {
        assert_null(ftmem_enum_name(enums[i].name, -1));
        assert_null(ftmem_enum_name(enums[i].name, enums[i].end));
        assert_null(ftmem_enum_name(enums[i].name, INT32_MIN));
        assert_null(ftmem_enum_name(enums[i].name, INT32_MAX));
    }
    assert_null(ftmem_enum_name("no such enum", 0));
    assert_null(ftmem_enum_name(NULL, 0));
}

static void parts_have_names(void **state)
{
    (void)state;
    for (int32_t bit = 1; bit <= FTMEM_PART_ALL_BUT; bit *= 2) {
        int32_t back = -1;
        const char *name = ftmem_enum_name("part", bit);
        assert_non_null(name);
        assert_int_equal(ftmem_enum_parse("part", name, &back, NULL), FTMEM_OK);
        assert_int_equal(back, bit);
    }
    assert_null(ftmem_enum_name("part", 3));
}

static void what_people_type_is_understood(void **state)
{
    (void)state;
    static const struct {
        const char *enum_name, *text;
        int32_t value;
    } rows[] = {
        { "dtype", "torch.bfloat16", FTMEM_BF16 },
        { "dtype", "Float32", FTMEM_FP32 },
        { "dtype", "BF16", FTMEM_BF16 },
        { "optimizer", "adamw_torch_fused", FTMEM_ADAMW_FUSED },
        { "optimizer", "AdamW-8bit", FTMEM_ADAMW_8BIT },
        { "optimizer", "adamw_bnb_8bit", FTMEM_ADAMW_8BIT },
        { "optimizer", "paged_adamw8bit", FTMEM_PAGED_ADAMW_8BIT },
        { "attention", "flash_attention_2", FTMEM_FLASH2 },
        { "adapter", "QLoRA", FTMEM_ADAPTER_QLORA },
        { "adapter", "full", FTMEM_ADAPTER_NONE },
        { "family", "GPT-NeoX", FTMEM_GPT_NEOX },
        { "family", "gemma3_text", FTMEM_GEMMA3 },
        { "switch", "true", FTMEM_ON },
        { "switch", "0", FTMEM_OFF },
        { "switch", "No", FTMEM_OFF },
        { "verdict", "does_not_fit", FTMEM_DOES_NOT_FIT },
        { "role", "gate_up_proj", FTMEM_ROLE_GATE_UP },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        int32_t value = -1;
        if (ftmem_enum_parse(rows[i].enum_name, rows[i].text, &value, NULL) != FTMEM_OK) fail_msg("%s is unknown", rows[i].text);
        assert_int_equal(value, rows[i].value);
    }
}

static void an_unknown_name_lists_the_nearest_first(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    int32_t value = 77;
    assert_int_equal(ftmem_enum_parse("optimizer", "adamx", &value, &error), FTMEM_E_UNKNOWN_NAME);
    assert_int_equal(value, 77);
    assert_int_equal(error.status, FTMEM_E_UNKNOWN_NAME);
    assert_string_equal(error.field, "optimizer");
    assert_string_equal(error.value, "adamx");
    const char *list = strstr(error.message, "nearest first: ");
    assert_non_null(list);
    assert_int_equal(strncmp(list, "nearest first: adamw, ", 22), 0);
    assert_non_null(strstr(list, "adafactor"));
    assert_non_null(strstr(list, ", ..."));   /* as many as fit */
    assert_null(strstr(list, "adamw_torch")); /* aliases are not offered */
}

static void every_unknown_name_gives_a_complete_sentence(void **state)
{
    (void)state;
    char huge[3000];
    memset(huge, 'q', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    const char *const texts[] = { "", "x", "fp3", "qwen0", huge };
    for (size_t i = 0; i < ENUM_COUNT; ++i)
        for (size_t t = 0; t < sizeof texts / sizeof texts[0]; ++t) {
            ftmem_error error = FTMEM_ERROR_INIT;
            int32_t value = 77;
            assert_int_equal(ftmem_enum_parse(enums[i].name, texts[t], &value, &error), FTMEM_E_UNKNOWN_NAME);
            assert_terminated(&error);
            size_t length = strlen(error.message);
            assert_true(length < sizeof error.message - 1);
            assert_non_null(strstr(error.message, "nearest first: "));
            assert_int_not_equal(error.message[length - 1], ' ');
        }
}

static void a_list_that_does_not_fit_is_cut_after_a_whole_name(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    int32_t value;
    ftmem_enum_parse("family", "qwen4-is-a-name-that-nobody-knows-yet", &value, &error);
    size_t length = strlen(error.message);
    assert_string_equal(error.message + length - 5, ", ...");
    ftmem_enum_parse("family", "qwen0", &value, &error);
    assert_non_null(strstr(error.message, "nearest first: qwen2, qwen3, qwen"));
}

static void an_unknown_enum_lists_the_enums(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    int32_t value;
    assert_int_equal(ftmem_enum_parse("dtypes", "fp32", &value, &error), FTMEM_E_UNKNOWN_NAME);
    assert_non_null(strstr(error.message, "nearest first: dtype, "));
}

static void null_arguments_of_enum_parse_are_refused(void **state)
{
    (void)state;
    ftmem_error error = FTMEM_ERROR_INIT;
    int32_t value;
    assert_int_equal(ftmem_enum_parse(NULL, "fp32", &value, &error), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_enum_parse("dtype", NULL, &value, &error), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_enum_parse("dtype", "fp32", NULL, &error), FTMEM_E_ARGUMENT);
    assert_int_equal(error.status, FTMEM_E_ARGUMENT);
}

static void sets_are_written_by_name(void **state)
{
    (void)state;
    char b[128];
    ftmem__text text = ftmem__text_in(b, sizeof b);
    ftmem__put_set(&text, "role", 1u << FTMEM_ROLE_Q | 1u << FTMEM_ROLE_V);
    assert_string_equal(b, "q+v");
    text = ftmem__text_in(b, sizeof b);
    ftmem__put_set(&text, "part", FTMEM_PART_EMBED | FTMEM_PART_ALL_BUT);
    assert_string_equal(b, "embed+all_but");
    text = ftmem__text_in(b, sizeof b);
    ftmem__put_set(&text, "role", 0);
    assert_string_equal(b, "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_texts_exist_for_every_int),
        cmocka_unit_test(status_names_are_the_constants),
        cmocka_unit_test(version_is_the_headers),
        cmocka_unit_test(a_failure_without_an_error_only_returns_its_status),
        cmocka_unit_test(an_uninitialised_error_is_left_untouched),
        cmocka_unit_test(a_later_and_longer_error_is_written),
        cmocka_unit_test(an_error_stays_well_formed_with_huge_texts),
        cmocka_unit_test(an_error_never_ends_within_a_utf8_character),
        cmocka_unit_test(an_error_has_no_control_characters),
        cmocka_unit_test(an_error_takes_null_texts),
        cmocka_unit_test(an_error_shows_extreme_integers),
        cmocka_unit_test(a_text_is_cut_terminated_and_counted),
        cmocka_unit_test(reals_are_written_in_fixed_notation),
        cmocka_unit_test(numbers_are_written_with_as_few_digits_as_they_need),
        cmocka_unit_test(gib_are_formatted_to_their_size),
        cmocka_unit_test(gib_are_cut_to_the_buffer),
        cmocka_unit_test(whole_numbers_are_read_however_written),
        cmocka_unit_test(what_is_no_whole_number_is_refused),
        cmocka_unit_test(reals_are_read_as_the_compiler_reads_them),
        cmocka_unit_test(what_is_no_real_is_refused),
        cmocka_unit_test(a_comma_locale_changes_nothing),
        cmocka_unit_test(texts_are_compared_without_case),
        cmocka_unit_test(distance_counts_edits_and_favours_containment),
        cmocka_unit_test(every_enum_value_has_a_name_that_reads_back),
        cmocka_unit_test(values_outside_an_enum_have_no_name),
        cmocka_unit_test(parts_have_names),
        cmocka_unit_test(what_people_type_is_understood),
        cmocka_unit_test(an_unknown_name_lists_the_nearest_first),
        cmocka_unit_test(every_unknown_name_gives_a_complete_sentence),
        cmocka_unit_test(a_list_that_does_not_fit_is_cut_after_a_whole_name),
        cmocka_unit_test(an_unknown_enum_lists_the_enums),
        cmocka_unit_test(null_arguments_of_enum_parse_are_refused),
        cmocka_unit_test(sets_are_written_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
