/* The JSON reader: what it reads, and what it refuses. */
#include <ftmem_json.h>

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ftmem_error error;
static ftmem_model model;
static ftmem_adapter adapter;
static ftmem_job job;

static int fresh(void **state)
{
    (void)state;
    ftmem_error_init(&error, sizeof error);
    ftmem_model_init(&model, sizeof model);
    ftmem_adapter_init(&adapter, sizeof adapter);
    ftmem_job_init(&job, sizeof job);
    return 0;
}

static ftmem_status read_model(const char *text)
{
    return ftmem_model_from_json_text(text, strlen(text), &model, &error);
}

static ftmem_status read_job(const char *text)
{
    return ftmem_job_from_json_text(text, strlen(text), FTMEM_SOURCE_DIR "/tests", &job, &model, &adapter, &error);
}

static void expect_ok(ftmem_status status)
{
    if (status != FTMEM_OK) fail_msg("%s: %s", ftmem_status_name(status), error.message);
}

/* The status, and a part of the message. */
static void expect_error(ftmem_status status, ftmem_status wanted, const char *part)
{
    if (status != wanted) fail_msg("%s instead of %s: %s", ftmem_status_name(status), ftmem_status_name(wanted), error.message);
    if (!strstr(error.message, part)) fail_msg("no \"%s\" in: %s", part, error.message);
}

#define TINY \
    "\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 100"
#define TINY_MODEL "\"model\": {" TINY "}"

/* ---- config.json */

static void test_file(void **state)
{
    (void)state;
    expect_ok(ftmem_model_from_json_file(FTMEM_SOURCE_DIR "/examples/llama-3.2-1b/config.json", &model, &error));
    assert_int_equal(model.family, FTMEM_LLAMA);
    assert_int_equal(model.hidden, 2048);
    assert_int_equal(model.ffn, 8192);
    assert_int_equal(model.layers, 16);
    assert_int_equal(model.heads, 32);
    assert_int_equal(model.kv_heads, 8);
    assert_int_equal(model.vocab, 128256);
    assert_int_equal(model.tied, FTMEM_ON);
    assert_string_equal(model.name, "llama-3.2-1b");
}

static void test_file_is_the_catalog(void **state)
{
    ftmem_parameters a = FTMEM_PARAMETERS_INIT, b = FTMEM_PARAMETERS_INIT;
    (void)state;
    job.model = &model;
    expect_ok(ftmem_model_from_json_file(FTMEM_SOURCE_DIR "/examples/llama-3.2-1b/config.json", &model, &error));
    expect_ok(ftmem_count_parameters(&job, &a, &error));
    expect_ok(ftmem_model_find("meta-llama/Llama-3.2-1B", &model, &error));
    expect_ok(ftmem_count_parameters(&job, &b, &error));
    assert_int_equal(a.total, 1235814400);
    assert_int_equal(b.total, 1235814400);
}

static void test_no_file(void **state)
{
    (void)state;
    expect_error(ftmem_model_from_json_file("no/such/config.json", &model, &error), FTMEM_E_IO, "no/such/config.json cannot be opened");
    expect_error(ftmem_model_from_json_file(FTMEM_SOURCE_DIR "/tests", &model, &error), FTMEM_E_IO, "cannot be read");
    expect_error(ftmem_model_from_json_file(NULL, &model, &error), FTMEM_E_ARGUMENT, "NULL");
    expect_error(ftmem_model_from_json_text(NULL, 3, &model, &error), FTMEM_E_ARGUMENT, "NULL");
}

static void test_text_needs_no_terminator(void **state)
{
    const char text[] = "{" TINY "}garbage";
    (void)state;
    expect_ok(ftmem_model_from_json_text(text, sizeof text - sizeof "garbage", &model, &error));
    assert_int_equal(model.hidden, 64);
    expect_error(ftmem_model_from_json_text(text, sizeof text - 1, &model, &error), FTMEM_E_SYNTAX, "not JSON");
}

static void test_integers_are_exact(void **state)
{
    (void)state;
    expect_ok(read_model("{" TINY ", \"max_position_embeddings\": 1099511627775}"));
    assert_int_equal(model.max_positions, 1099511627775);
    assert_int_not_equal(read_model("{" TINY ", \"max_position_embeddings\": 9007199254740993}"), FTMEM_OK);
    assert_string_equal(error.field, "max_position_embeddings");
    assert_int_not_equal(read_model("{" TINY ", \"max_position_embeddings\": 1024.5}"), FTMEM_OK);
    assert_string_equal(error.field, "max_position_embeddings");
}

static void test_untouched_on_failure(void **state)
{
    ftmem_model before = model;
    ftmem_job job_before = job;
    (void)state;
    assert_int_not_equal(read_model("{" TINY ", \"hidden_size\": "), FTMEM_OK);
    assert_int_not_equal(read_job("{" TINY_MODEL ", \"job\": {\"micro_batch\": 2, \"sequence\": -1}}"), FTMEM_OK);
    assert_memory_equal(&model, &before, sizeof model);
    assert_memory_equal(&job, &job_before, sizeof job);
}

/* ---- malformed texts: one named test a row */

typedef struct bad {
    const char *name, *text, *part;
} bad;

static const bad bad_texts[] = {
    { "empty", "", "line 1, column 1: the text ends too early" },
    { "white space only", " \n ", "the text ends too early" },
    { "truncated object", "{\n  \"hidden_size\": 4096,\n", "the text ends too early" },
    { "truncated value", "{\"hidden_size\":", "the text ends too early" },
    { "truncated text", "{\n \"model_type\": \"lla", "line 2, column 16: this text does not end" },
    { "truncated escape", "{\"model_type\": \"lla\\", "this text does not end" },
    { "line and column", "{\n  \"a\": 1,\n  \"b\" 2\n}", "line 3, column 7" },
    { "comment", "{ // no\n}", "line 1, column 3" },
    { "trailing comma", "{\"a\": 1,}", "line 1, column" },
    { "single quotes", "{'a': 1}", "line 1, column 2" },
    { "after the document", "{} {}", "line 1, column 4" },
    { "NaN", "{\"a\": NaN}", "line 1, column 7" },
    { "Infinity", "{\"a\": -Infinity}", "line 1, column 7: this number is malformed" },
    { "leading zero", "{\"a\": 01}", "line 1, column 7: this number is malformed" },
    { "plus", "{\"a\": +1}", "line 1, column 7" },
    { "no digit after the point", "{\"a\": 1.}", "this number is malformed" },
    { "no digit in the exponent", "{\"a\": 1e}", "this number is malformed" },
    { "two points", "{\"a\": 1.2.3}", "this number is malformed" },
    { "hexadecimal", "{\"a\": 0x10}", "line 1, column 8" },
    { "number of 63 characters", "{\"a\": 111111111111111111111111111111111111111111111111111111111111111}", "this number is malformed" },
    { "control character in a text", "{\"a\": \"x\ty\"}", "line 1, column 9: a control character inside a text" },
    { "control character between", "{\"a\":\v1}", "line 1, column 6: this is not JSON" },
    { "zero character in a text", "{\"a\": \"x\\u0000y\"}", "line 1, column 9: a zero character" },
    { "unpaired surrogate", "{\"a\": \"\\ud800\"}", "line 1, column" },
    { "array", "[1, 2]", "the document is not an object" },
    { "number", "4", "the document is not an object" },
    { "duplicate", "{\"a\": 1, \"a\": 2}", "gives \"a\" twice" },
    { "duplicate deep", "{\"a\": {\"b\": [1, {\"c\": 1, \"c\": 1}]}}", "gives \"a.b.1.c\" twice" },
    { "duplicate object", "{\"a\": {\"x\": 1}, \"a\": {\"y\": 1}}", "gives \"a\" twice" },
    { "duplicate by path", "{\"a\": {\"x\": 1}, \"a.x\": 1}", "gives \"a.x\" twice" },
};
#define BAD_TEXTS (sizeof bad_texts / sizeof bad_texts[0])

static void test_bad_text(void **state)
{
    const bad *row = *state;
    fresh(NULL);
    expect_error(read_model(row->text), FTMEM_E_SYNTAX, row->part);
    expect_error(read_job(row->text), FTMEM_E_SYNTAX, row->part);
}

static void test_zero_byte(void **state)
{
    (void)state;
    expect_error(ftmem_model_from_json_text("{\"a\": 1\0}", 9, &model, &error), FTMEM_E_SYNTAX, "line 1, column 8: this is not JSON");
    expect_error(ftmem_model_from_json_text("{}\0", 3, &model, &error), FTMEM_E_SYNTAX, "line 1, column 3: this is not JSON");
}

/* Every beginning of a valid file is refused with a position, and read no further than it goes (the sanitizers watch). */
static void test_truncated_anywhere(void **state)
{
    FILE *file = fopen(FTMEM_SOURCE_DIR "/examples/llama-3.2-1b/config.json", "rb");
    static char text[8192];
    size_t size;
    (void)state;
    assert_non_null(file);
    size = fread(text, 1, sizeof text, file);
    fclose(file);
    while (size > 0 && text[size - 1] != '}') size--;
    for (size_t cut = 0; cut < size; cut++) {
        char *own = malloc(cut + 1);
        memcpy(own, text, cut);
        expect_error(ftmem_model_from_json_text(own, cut, &model, &error), FTMEM_E_SYNTAX, "line ");
        free(own);
    }
    expect_ok(ftmem_model_from_json_text(text, size, &model, &error));
}

/* ---- limits */

static void test_depth(void **state)
{
    static char text[200000];
    (void)state;
    memset(text, '[', sizeof text - 1);
    expect_error(read_model(text), FTMEM_E_SYNTAX, "nested deeper than 32 levels");
    memcpy(text, "{\"a\":", 5);
    expect_error(read_model(text), FTMEM_E_SYNTAX, "line 1, column 37: nested deeper than 32 levels");
}

static void test_size(void **state)
{
    size_t size = FTMEM_JSON_MAX_BYTES + 1;
    char *text = malloc(size);
    (void)state;
    assert_non_null(text);
    memset(text, ' ', size);
    expect_error(ftmem_model_from_json_text(text, size, &model, &error), FTMEM_E_RANGE, "larger than 4194304 bytes");
    expect_error(ftmem_model_from_json_text(text, size - 1, &model, &error), FTMEM_E_SYNTAX, "the text ends too early");
    for (size_t i = 0; i < size; i++) text[i] = i % 2 ? ',' : '1'; /* as many values as fit */
    memcpy(text, "{\"a\":[", 6);
    memcpy(text + size - 4, " ]}", 3);
    expect_error(ftmem_model_from_json_text(text, size - 1, &model, &error), FTMEM_E_RANGE, "more than 65536 values");
    free(text);
}

static void test_key_length(void **state)
{
    char text[400];
    (void)state;
    memset(text, 'k', sizeof text);
    memcpy(text, "{\"", 2);
    memcpy(text + 2 + 256, "\":1}", 5);
    expect_error(read_model(text), FTMEM_E_RANGE, "longer than 255");
    expect_error(read_model("{\"a\": {\"b\": 1e999}}"), FTMEM_E_RANGE, "\"a.b\" is too large");
}

/* ---- job files */

static void test_job(void **state)
{
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    (void)state;
    expect_ok(read_job("{\"model\": \"meta-llama/Llama-3.1-8B\",\n"
                       " \"adapter\": {\"kind\": \"qlora\", \"rank\": 16, \"dropout\": 0.05, \"targets\": [\"q_proj\", \"v_proj\"], \"modules_to_save\": "
                       "[\"embed\", \"head\"]},\n"
                       " \"gpu\": \"rtx-4090\",\n"
                       " \"job\": {\"micro_batch\": 2, \"sequence\": 4096, \"recompute\": \"full\", \"eval\": true, \"grad_clip\": false, \"margin\": 0.25, "
                       "\"loss\": null}}"));
    assert_ptr_equal(job.model, &model);
    assert_ptr_equal(job.adapter, &adapter);
    assert_int_equal(adapter.kind, FTMEM_ADAPTER_QLORA);
    assert_int_equal(adapter.rank, 16);
    assert_true(adapter.dropout == 0.05);
    assert_int_equal(adapter.targets, 1 << FTMEM_ROLE_Q | 1 << FTMEM_ROLE_V);
    assert_int_equal(adapter.modules_to_save, FTMEM_PART_EMBED | FTMEM_PART_HEAD);
    assert_true(job.gpu.memory_bytes > INT64_C(20) << 30);
    assert_int_equal(job.micro_batch, 2);
    assert_int_equal(job.sequence, 4096);
    assert_int_equal(job.recompute, FTMEM_RECOMPUTE_FULL);
    assert_int_equal(job.eval, FTMEM_ON);
    assert_int_equal(job.grad_clip, FTMEM_OFF);
    assert_true(job.margin == 0.25);
    assert_int_equal(job.loss, FTMEM_LOSS_AUTO);
    expect_ok(ftmem_predict_memory(&job, &memory, &error));
}

static void test_job_full(void **state)
{
    (void)state;
    adapter.rank = 77;
    expect_ok(read_job("{" TINY_MODEL ", \"gpu\": {\"memory_bytes\": 25757220864, \"sm_arch\": 89}, \"job\": {\"freeze\": \"embed\"}, \"adapter\": null}"));
    assert_null(job.adapter);
    assert_int_equal(adapter.rank, 0);
    assert_int_equal(model.hidden, 64);
    assert_int_equal(job.gpu.memory_bytes, 25757220864);
    assert_int_equal(job.gpu.sm_arch, 89);
    assert_int_equal(job.freeze, FTMEM_PART_EMBED);
}

static void test_job_targets_in_one_text(void **state)
{
    (void)state;
    expect_ok(read_job("{" TINY_MODEL ", \"adapter\": {\"kind\": \"lora\", \"targets\": \"q_proj, v_proj\"}}"));
    assert_int_equal(adapter.targets, 1 << FTMEM_ROLE_Q | 1 << FTMEM_ROLE_V);
    expect_ok(read_job("{" TINY_MODEL ", \"adapter\": {\"targets\": \"all-linear\", \"kind\": \"lora\"}}"));
    assert_true(adapter.targets != 0);
}

static void test_job_model_by_path(void **state)
{
    (void)state;
    expect_ok(read_job("{\"model\": \"../examples/llama-3.2-1b/config.json\"}"));
    assert_string_equal(model.name, "llama-3.2-1b");
    expect_error(read_job("{\"model\": \"no.json\"}"), FTMEM_E_IO, "no.json cannot be opened");
    expect_error(ftmem_job_from_json_text("{\"model\": \"x.json\"}", 19, NULL, &job, &model, &adapter, &error), FTMEM_E_UNSUPPORTED, "no directory");
}

/* A job file and its config in one folder, wherever that is. */
static void test_job_file(void **state)
{
    char folder[] = "/tmp/ftmem-json-XXXXXX", path[64], config[64];
    FILE *file;
    (void)state;
    if (!mkdtemp(folder)) skip();
    snprintf(path, sizeof path, "%s/job.json", folder);
    snprintf(config, sizeof config, "%s/tiny.json", folder);
    file = fopen(path, "w");
    fputs("{\"model\": \"tiny.json\", \"job\": {\"micro_batch\": 3}}", file);
    fclose(file);
    file = fopen(config, "w");
    fputs("{" TINY "}", file);
    fclose(file);
    expect_ok(ftmem_job_from_json_file(path, &job, &model, &adapter, &error));
    assert_int_equal(job.micro_batch, 3);
    assert_string_equal(model.name, "tiny");
    remove(config);
    expect_error(ftmem_job_from_json_file(path, &job, &model, &adapter, &error), FTMEM_E_IO, "tiny.json");
    remove(path);
    remove(folder);
}

typedef struct bad_job {
    const char *name, *text;
    ftmem_status status;
    const char *part;
} bad_job;

static const bad_job bad_jobs[] = {
    { "no model", "{\"job\": {}}", FTMEM_E_MISSING, "gives no \"model\"" },
    { "model is a number", "{\"model\": 7000000000}", FTMEM_E_TYPE, "model must be a name, a path or an object" },
    { "no such model", "{\"model\": \"no/such-model\"}", FTMEM_E_UNKNOWN_NAME, "" },
    { "unknown at the top", "{" TINY_MODEL ", \"jobs\": {}}", FTMEM_E_UNKNOWN_NAME, "no \"jobs\"" },
    { "unknown value at the top", "{" TINY_MODEL ", \"$schema\": \"x\"}", FTMEM_E_UNKNOWN_NAME, "$schema" },
    { "unknown field", "{" TINY_MODEL ", \"job\": {\"micro_bach\": 1}}", FTMEM_E_UNKNOWN_NAME, "job.micro_batch" },
    { "unknown object", "{" TINY_MODEL ", \"job\": {\"batches\": {}}}", FTMEM_E_UNKNOWN_NAME, "job.batches" },
    { "other case", "{" TINY_MODEL ", \"job\": {\"Micro_Batch\": 2}}", FTMEM_E_UNKNOWN_NAME, "write job.micro_batch" },
    { "unknown null", "{" TINY_MODEL ", \"job\": {\"batches\": null}}", FTMEM_E_UNKNOWN_NAME, "job.batches" },
    { "pointer", "{" TINY_MODEL ", \"job\": {\"model\": 5}}", FTMEM_E_UNKNOWN_NAME, "job.model" },
    { "job is an array", "{" TINY_MODEL ", \"job\": [1]}", FTMEM_E_UNKNOWN_NAME, "job.0" },
    { "job is a text", "{" TINY_MODEL ", \"job\": \"x\"}", FTMEM_E_TYPE, "job must be an object" },
    { "adapter is a text", "{" TINY_MODEL ", \"adapter\": \"qlora\"}", FTMEM_E_TYPE, "adapter must be an object" },
    { "gpu is a number", "{" TINY_MODEL ", \"gpu\": 24}", FTMEM_E_TYPE, "gpu must be a name" },
    { "no such gpu", "{" TINY_MODEL ", \"gpu\": \"rtx-9999x\"}", FTMEM_E_UNKNOWN_NAME, "" },
    { "fraction", "{" TINY_MODEL ", \"job\": {\"micro_batch\": 1.5}}", FTMEM_E_TYPE, "an integer below 2^53" },
    { "beyond 2^53", "{" TINY_MODEL ", \"job\": {\"micro_batch\": 9007199254740992}}", FTMEM_E_TYPE, "an integer below 2^53" },
    { "out of range", "{" TINY_MODEL ", \"job\": {\"micro_batch\": -4}}", FTMEM_E_RANGE, "job.micro_batch" },
    { "number for an enum", "{" TINY_MODEL ", \"job\": {\"optimizer\": 1}}", FTMEM_E_TYPE, "job.optimizer must be a text" },
    { "no such enum value", "{" TINY_MODEL ", \"job\": {\"optimizer\": \"adamv\"}}", FTMEM_E_UNKNOWN_NAME, "" },
    { "truth for a number", "{" TINY_MODEL ", \"job\": {\"micro_batch\": true}}", FTMEM_E_TYPE, "must be an integer" },
    { "truth for an enum", "{" TINY_MODEL ", \"job\": {\"optimizer\": true}}", FTMEM_E_TYPE, "must be a text" },
    { "array for a number", "{" TINY_MODEL ", \"job\": {\"micro_batch\": [1]}}", FTMEM_E_TYPE, "an object or array" },
    { "target that matches nothing", "{" TINY_MODEL ", \"adapter\": {\"kind\": \"lora\", \"targets\": [\"w_pack\"]}}", FTMEM_E_UNKNOWN_NAME, "q_proj" },
    { "target is a number", "{" TINY_MODEL ", \"adapter\": {\"targets\": [1]}}", FTMEM_E_TYPE, "adapter.targets.0 must be a module name" },
    { "set of numbers", "{" TINY_MODEL ", \"job\": {\"freeze\": [1]}}", FTMEM_E_TYPE, "job.freeze.0 must be a text" },
};
#define BAD_JOBS (sizeof bad_jobs / sizeof bad_jobs[0])

static void test_bad_job(void **state)
{
    const bad_job *row = *state;
    fresh(NULL);
    expect_error(read_job(row->text), row->status, row->part);
    assert_true(error.message[0] != '\0');
}

static void test_structs_must_be_initialised(void **state)
{
    static const char text[] = "{" TINY_MODEL "}";
    (void)state;
    job.struct_size = 0;
    expect_error(read_job(text), FTMEM_E_STRUCT_SIZE, "FTMEM_JOB_INIT");
    fresh(NULL);
    adapter.struct_size = 3;
    expect_error(read_job(text), FTMEM_E_STRUCT_SIZE, "FTMEM_ADAPTER_INIT");
    fresh(NULL);
    expect_error(ftmem_job_from_json_text(text, sizeof text - 1, NULL, &job, NULL, &adapter, &error), FTMEM_E_ARGUMENT, "NULL");
    assert_int_equal(ftmem_job_from_json_text("{", 1, NULL, &job, &model, &adapter, NULL), FTMEM_E_SYNTAX);
    fresh(NULL);
    model.struct_size = 0;
    expect_error(read_model("{" TINY "}"), FTMEM_E_STRUCT_SIZE, "");
}

/* A decimal comma in the process's locale changes nothing. */
static void test_locale(void **state)
{
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "de_DE", "ru_RU.UTF-8" };
    bool found = false;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !found; i++) found = setlocale(LC_ALL, names[i]) != NULL;
    if (!found) skip();
    expect_ok(read_job("{" TINY_MODEL ", \"job\": {\"margin\": 0.25}}"));
    setlocale(LC_ALL, "C");
    assert_true(job.margin == 0.25);
}

/* ---- */

#define ONE(function) \
    { \
#function, function, fresh, NULL, NULL \
    }

int main(void)
{
    static const struct CMUnitTest tests[] = {
        ONE(test_file),
        ONE(test_file_is_the_catalog),
        ONE(test_no_file),
        ONE(test_text_needs_no_terminator),
        ONE(test_integers_are_exact),
        ONE(test_untouched_on_failure),
        ONE(test_zero_byte),
        ONE(test_truncated_anywhere),
        ONE(test_depth),
        ONE(test_size),
        ONE(test_key_length),
        ONE(test_job),
        ONE(test_job_full),
        ONE(test_job_targets_in_one_text),
        ONE(test_job_model_by_path),
        ONE(test_job_file),
        ONE(test_structs_must_be_initialised),
        ONE(test_locale),
    };
    static struct CMUnitTest rows[BAD_TEXTS + BAD_JOBS];
    for (size_t i = 0; i < BAD_TEXTS; i++) rows[i] = (struct CMUnitTest){ bad_texts[i].name, test_bad_text, NULL, NULL, (void *)&bad_texts[i] };
    for (size_t i = 0; i < BAD_JOBS; i++) rows[BAD_TEXTS + i] = (struct CMUnitTest){ bad_jobs[i].name, test_bad_job, NULL, NULL, (void *)&bad_jobs[i] };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL) + cmocka_run_group_tests_name("refused", rows, NULL, NULL);
}
