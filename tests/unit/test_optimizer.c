/* Optimizers against their own classes: every row of tests/vectors/optimizers.csv (tools/golden_optimizers.py), to the byte. */
#include "step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { COLUMNS = 7 };
static ftmem_model model;
static ftmem_job job;
static ftmem__walk walk;

/* One block whose parameters are these shapes: "4096x1024 1000". */
static void given_shapes(const char *text, int32_t dtype)
{
    char *end;
    walk.params.count = 0;
    while (*text) {
        ftmem__param *p = &walk.params.at[walk.params.count++];
        memset(p, 0, sizeof *p);
        p->n = strtoll(text, &end, 10);
        if (*end == 'x') {
            p->rows = p->n;
            p->n *= strtoll(end + 1, &end, 10);
        }
        p->role = p->rows ? FTMEM_ROLE_Q : FTMEM_ROLE_NORM;
        p->dtype = (uint8_t)dtype;
        p->trained = p->base = true;
        p->copies = 1;
        text = *end == ' ' ? end + 1 : end;
    }
}

static void given_walk(void)
{
    ftmem_model_init(&model, sizeof model);
    ftmem_job_init(&job, sizeof job);
    model.family = FTMEM_LLAMA;
    model.layers = 1;
    job.model = &model;
    job.optimizer_rank = 128;
    walk.shape.model = &model;
    walk.shape.job = &job;
    walk.shape.family = ftmem__family_of(&model);
    walk.stack[0].shape = &walk.shape;
    walk.stacks = walk.kinds = 1;
    walk.kind[0].layers = walk.kind[0].alike = 1;
}

static int32_t parsed(const char *enum_name, const char *text)
{
    int32_t value = 0;
    assert_int_equal(ftmem_enum_parse(enum_name, text, &value, NULL), FTMEM_OK);
    return value;
}

static void check(const char *name, const char *text, int64_t got)
{
    if (*text && got != strtoll(text, NULL, 10)) fail_msg("%s: %lld instead of %s", name, (long long)got, text);
}

static void check_row(char *column[COLUMNS])
{
    char name[800];
    ftmem__totals t;
    job.optimizer = parsed("optimizer", column[0]);
    given_shapes(column[2], parsed("dtype", column[1]));
    ftmem__totals_fill(&t, &walk);
    snprintf(name, sizeof name, "%s %s %s", column[0], column[1], column[2]);
    check(name, column[3], t.state_bytes);
    check(name, column[4], t.first_step_bytes);
    check(name, column[5], t.step_bytes);
}

static void test_rows(void **state)
{
    FILE *file = fopen(FTMEM_TEST_DATA "/vectors/optimizers.csv", "r");
    char line[256], *column[COLUMNS];
    int rows = 0, i;
    (void)state;
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    for (given_walk(); fgets(line, sizeof line, file); rows++) {
        column[0] = line;
        for (i = 1; i < COLUMNS; i++) {
            column[i] = strchr(column[i - 1], ',');
            assert_non_null(column[i]);
            *column[i]++ = 0;
        }
        check_row(column);
    }
    fclose(file);
    assert_true(rows > 500);
}

/* Every value has a row: a rule for any tensor. */
static void test_every_optimizer_has_a_rule(void **state)
{
    ftmem__param p = { 0 };
    (void)state;
    given_walk();
    for (job.optimizer = 1; job.optimizer < FTMEM_OPTIMIZER_END; job.optimizer++) {
        const ftmem__rule *rule = ftmem__optimizer_of(&job)->rule;
        int32_t last = 2;
        while (last > 0 && rule[last].of == FTMEM__NO_RULE) last--;
        assert_int_equal(rule[last].of, FTMEM__ALL);
        assert_non_null(ftmem__rule_for(&job, &p));
    }
}

static void test_known_and_not_modelled(void **state)
{
    ftmem_error error = FTMEM_ERROR_INIT;
    int32_t value = 7;
    (void)state;
    assert_int_equal(ftmem_enum_parse("optimizer", "galore_adamw_8bit", &value, &error), FTMEM_E_UNSUPPORTED);
    assert_int_equal(value, 7);
    assert_string_equal(error.value, "galore_adamw_8bit");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_every_optimizer_has_a_rule),
                                        cmocka_unit_test(test_known_and_not_modelled) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
