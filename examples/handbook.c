/*
 * The rules of thumb of docs/handbook.md, each beside a real prediction and the terms that make the difference.
 * GB = 1e9 bytes, GiB = 2^30. Predictions are the expected peak of the allocated tier: what torch.cuda.max_memory_allocated
 * would say, the CUDA context not counted.
 */
#include <ftmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB 1e9
#define GIB 1073741824.0

/* ---- asking */

typedef struct question {
    ftmem_model model;
    ftmem_adapter adapter;
    ftmem_job job;
} question;

static void must(ftmem_status status, const ftmem_error *error)
{
    if (status == FTMEM_OK) return;
    fprintf(stderr, "handbook: %s\n", error->message);
    exit(2);
}

/* settings: "job.sequence=2048 job.dtype=fp32 ...", paths of the field table. */
static void set_all(question *q, const char *settings)
{
    ftmem_error error = FTMEM_ERROR_INIT;
    char text[256], *word;
    snprintf(text, sizeof text, "%s", settings);
    for (word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        must(ftmem_set(word, value, strncmp(word, "adapter.", 8) == 0 ? (void *)&q->adapter : (void *)&q->job, &error), &error);
    }
}

/* The peak of a decoder of so many billion parameters, whose shape is inferred; 1 x 2048 tokens unless settings say otherwise. */
static ftmem_memory predict(double billions, const char *settings)
{
    question q = { FTMEM_MODEL_INIT, FTMEM_ADAPTER_INIT, FTMEM_JOB_INIT };
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    must(ftmem_model_from_parameters(billions * 1e9, &q.model, &error), &error);
    q.job.model = &q.model;
    q.job.micro_batch = 1;
    q.job.sequence = 2048;
    set_all(&q, settings);
    q.job.adapter = q.adapter.kind == FTMEM_ADAPTER_NONE ? NULL : &q.adapter;
    must(ftmem_predict_memory(&q.job, &memory, &error), &error);
    return memory;
}

/* ---- which term makes the difference */

typedef struct term {
    const char *name;
    double gb; /* prediction less rule */
} term;

static int larger(const void *a, const void *b)
{
    double x = ((const term *)a)->gb, y = ((const term *)b)->gb;
    x = x < 0 ? -x : x;
    y = y < 0 ? -y : y;
    return (x < y) - (x > y);
}

/* The rule has weights, gradients and states, in bytes a parameter; every other class of live memory it leaves out. */
static void print_terms(const ftmem_memory *m, double parameters, const double rule[3])
{
    static const int32_t left_out[] = { FTMEM_CLASS_KEPT, FTMEM_CLASS_RECOMPUTED, FTMEM_CLASS_LOGITS, FTMEM_CLASS_TEMPORARY, FTMEM_CLASS_WORKSPACE };
    term terms[8] = { { "weights", ((double)m->weights_bytes - rule[0] * parameters) / GB },
                      { "gradients", ((double)m->gradients_bytes - rule[1] * parameters) / GB },
                      { "states", ((double)m->states_bytes - rule[2] * parameters) / GB } };
    for (int i = 0; i < 5; i++) terms[3 + i] = (term){ ftmem_enum_name("class", left_out[i]), (double)m->at_peak[left_out[i]] / GB };
    qsort(terms, 8, sizeof terms[0], larger);
    for (int i = 0; i < 2; i++)
        if (terms[i].gb > 0.05 || terms[i].gb < -0.05) printf("  %s %+.1f", terms[i].name, terms[i].gb);
    printf("  at %s\n", m->peak_op);
}

static void print_line(const char *rule, double said, double billions, const char *settings, const double terms[3])
{
    ftmem_memory m = predict(billions, settings);
    printf("%-44s %8.1f %9.1f  ", rule, said, (double)m.allocated.expected / GB);
    print_terms(&m, billions * 1e9, terms);
}

static void print_head(const char *title)
{
    printf("\n%-44s %8s %9s   %s\n", title, "rule GB", "predicted", "what makes the difference, GB");
}

/* ---- the rules */

static void multipliers(void)
{
    static const struct {
        const char *name, *settings;
        int32_t dtype;
    } stored[] = {
        { "fp32", "job.dtype=fp32", FTMEM_FP32 },
        { "bf16", "job.dtype=bf16", FTMEM_BF16 },
        { "int8", "adapter.kind=lora8", FTMEM_INT8 },
        { "int4", "adapter.kind=qlora", FTMEM_NF4 },
    };
    print_head("parameters x bytes x 1: loaded, 7 B");
    for (int i = 0; i < 4; i++) {
        ftmem_memory m = predict(7, stored[i].settings);
        double quantized = (double)m.at_peak[FTMEM_CLASS_QUANTIZED], said = 7e9 * ftmem_handbook_bytes_per_parameter(stored[i].dtype);
        printf("%-44s %8.1f %9.1f  ", stored[i].name, said / GB, (double)m.phase_allocated[FTMEM_PHASE_LOAD] / GB);
        if (quantized > 0) printf("  quantised %.1f, embedding, head and norms in fp32 %.1f", quantized / GB, (double)m.at_peak[FTMEM_CLASS_WEIGHTS] / GB);
        printf("\n");
    }
    print_head("parameters x bytes x 4 to 6: AdamW, 7 B");
    print_line("fp32 x 4: 28 + 28 + 56", ftmem_handbook_full_bytes(7e9, FTMEM_FP32) / GB, 7, "job.dtype=fp32", (const double[]){ 4, 4, 8 });
    print_line("bf16 x 6: 14 + 14 + 56", ftmem_handbook_full_bytes(7e9, FTMEM_BF16) / GB, 7, "job.dtype=bf16", (const double[]){ 2, 2, 8 });
}

static void table(void)
{
    static const double sizes[] = { 1, 7, 13, 70 };
    static const double quoted[] = { 8, 60, 110, 600 }; /* not computed by the book either */
    char rule[64];
    print_head("the table");
    for (int i = 0; i < 4; i++) {
        double n = sizes[i];
        snprintf(rule, sizeof rule, "%.0f B, full, fp32", n);
        print_line(rule, ftmem_handbook_full_bytes(n * 1e9, FTMEM_FP32) / GB, n, "job.dtype=fp32", (const double[]){ 4, 4, 8 });
        snprintf(rule, sizeof rule, "%.0f B, full, bf16", n);
        print_line(rule, ftmem_handbook_full_bytes(n * 1e9, FTMEM_BF16) / GB, n, "job.dtype=bf16", (const double[]){ 2, 2, 8 });
        snprintf(rule, sizeof rule, "%.0f B, with checkpointing (quoted)", n);
        print_line(rule, quoted[i], n, "job.dtype=bf16 job.recompute=full", (const double[]){ 2, 2, 8 });
    }
}

static void bytes_per_parameter(void)
{
    static const double sizes[] = { 7, 13, 70 };
    char rule[64];
    print_head("12 to 20 bytes a parameter");
    for (int i = 0; i < 3; i++) {
        snprintf(rule, sizeof rule, "%.0f B: %.0f to %.0f; pure bf16", sizes[i], 12 * sizes[i], 20 * sizes[i]);
        print_line(rule, 12 * sizes[i], sizes[i], "job.dtype=bf16", (const double[]){ 2, 2, 8 });
        snprintf(rule, sizeof rule, "%.0f B: %.0f to %.0f; bf16, fp32 master weights", sizes[i], 12 * sizes[i], 20 * sizes[i]);
        print_line(rule, 20 * sizes[i], sizes[i], "job.dtype=bf16 job.master_weights=on", (const double[]){ 4, 2, 12 });
    }
}

static void checkpointing(void)
{
    ftmem_memory none = predict(7, "job.dtype=bf16 job.micro_batch=4"), full = predict(7, "job.dtype=bf16 job.micro_batch=4 job.recompute=full");
    printf("\ncheckpointing, 7 B in bf16, 4 x 2048\n");
    printf("  rule: saves about 30 %% of activations, total 60 to 70 GB; its own weights, gradients and states are %.0f GB\n",
           ftmem_handbook_full_bytes(7e9, FTMEM_BF16) / GB);
    printf("  kept for backward: %.1f GB without, %.1f GB with, %.0f %% less; peak %.1f and %.1f GB\n", (double)none.kept_bytes / GB,
           (double)full.kept_bytes / GB, 100 - 100.0 * (double)full.kept_bytes / (double)none.kept_bytes, (double)none.allocated.expected / GB,
           (double)full.allocated.expected / GB);
}

static void effective_batch(void)
{
    print_head("effective batch 16: micro-batch x steps");
    print_line("1 x 16: the same memory as 1 x 1", ftmem_handbook_full_bytes(7e9, FTMEM_BF16) / GB, 7, "job.accumulation=16", (const double[]){ 2, 2, 8 });
    print_line("16 x 1", ftmem_handbook_full_bytes(7e9, FTMEM_BF16) / GB, 7, "job.micro_batch=16", (const double[]){ 2, 2, 8 });
}

static void mixed_precision(void)
{
    double fp32 = ftmem_handbook_full_bytes(7e9, FTMEM_FP32) / GB, bf16 = ftmem_handbook_full_bytes(7e9, FTMEM_BF16) / GB;
    print_head("mixed precision halves weights and gradients");
    print_line("7 B, 4 x 2048, fp32", fp32, 7, "job.dtype=fp32 job.micro_batch=4", (const double[]){ 4, 4, 8 });
    print_line("loaded in bf16", bf16, 7, "job.dtype=bf16 job.micro_batch=4", (const double[]){ 2, 2, 8 });
    print_line("bf16 autocast over fp32 weights (not halved)", bf16, 7, "job.dtype=fp32 job.autocast=bf16 job.micro_batch=4", (const double[]){ 2, 2, 8 });
}

static void longer_sequence(void)
{
    static const struct {
        const char *name, *settings;
    } ways[] = {
        { "QLoRA, sdpa", "adapter.kind=qlora job.sequence=" },
        { "QLoRA, sdpa, checkpointing", "adapter.kind=qlora job.recompute=full job.sequence=" },
        { "QLoRA, eager attention", "adapter.kind=qlora job.attention=eager job.sequence=" },
    };
    double before = 2048 * 4096 * 4.0, after = 8192 * 4096 * 4.0;
    printf("\nsequence 2k to 8k, activations of 7 B, GB      2048      8192   factor\n");
    printf("%-42s %8.2f  %8.2f  %6.1f\n", "rule: batch x sequence x 4096 x 4", before / GB, after / GB, after / before);
    for (int i = 0; i < 3; i++) {
        char settings[128];
        snprintf(settings, sizeof settings, "%s2048", ways[i].settings);
        before = (double)predict(7, settings).activations_bytes;
        snprintf(settings, sizeof settings, "%s8192", ways[i].settings);
        after = (double)predict(7, settings).activations_bytes;
        printf("%-42s %8.2f  %8.2f  %6.1f\n", ways[i].name, before / GB, after / GB, after / before);
    }
}

static void estimate_memory(void)
{
    double fp32 = ftmem_handbook_estimate_bytes(7e9, 4, 2048, FTMEM_FP32), bf16 = ftmem_handbook_estimate_bytes(7e9, 4, 2048, FTMEM_BF16);
    printf("\nestimate_memory(7 B, batch 4, sequence 2048): %.2f GiB in fp32, %.2f GiB in bf16\n", fp32 / GIB, bf16 / GIB);
    print_head("the same in GB");
    print_line("fp32", fp32 / GB, 7, "job.dtype=fp32 job.micro_batch=4", (const double[]){ 4, 4, 8 });
    print_line("bf16", bf16 / GB, 7, "job.dtype=bf16 job.micro_batch=4", (const double[]){ 2, 2, 8 });
}

int main(void)
{
    printf("Rules of thumb beside predictions: transformers, AdamW of torch, 1 x 2048 tokens where not said otherwise.\n");
    multipliers();
    table();
    bytes_per_parameter();
    checkpointing();
    effective_batch();
    mixed_precision();
    longer_sequence();
    estimate_memory();
    return 0;
}
