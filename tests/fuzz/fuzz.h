/* What the fuzz targets share. */
#ifndef FTMEM_FUZZ_H
#define FTMEM_FUZZ_H

#include <ftmem.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_REQUIRE(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

/* An error that came back must say something, in bounds. */
static inline void fuzz_check_error(ftmem_status status, const ftmem_error *error)
{
    FUZZ_REQUIRE(status > FTMEM_OK && status < FTMEM_STATUS_END);
    FUZZ_REQUIRE(error->status == status);
    FUZZ_REQUIRE(error->message[0] && memchr(error->message, 0, sizeof error->message));
    FUZZ_REQUIRE(memchr(error->field, 0, sizeof error->field) && memchr(error->value, 0, sizeof error->value));
}

static inline void fuzz_check_range(const ftmem_range *range)
{
    FUZZ_REQUIRE(range->lower <= range->expected && range->expected <= range->upper);
    FUZZ_REQUIRE(range->upper <= (uint64_t)INT64_MAX);
}

/* Each change makes it better, and the list is whole whatever its capacity. */
static inline void fuzz_check_fixes(const ftmem_job *job, const ftmem_memory *memory)
{
    ftmem_fix all[FTMEM_FIX_END], some[2];
    int32_t count = -1, again = -2;
    memset(all, 0x55, sizeof all);
    memset(some, 0xaa, sizeof some);
    FUZZ_REQUIRE(ftmem_fixes(job, all, FTMEM_FIX_END, &count, NULL) == FTMEM_OK && count >= 0 && count < FTMEM_FIX_END);
    FUZZ_REQUIRE(ftmem_fixes(job, some, 2, &again, NULL) == FTMEM_OK && again == count);
    for (int32_t i = 0; i < count; i++) {
        FUZZ_REQUIRE(all[i].code > 0 && all[i].code < FTMEM_FIX_END && all[i].text && all[i].value >= 0);
        FUZZ_REQUIRE(all[i].verdict >= FTMEM_VERDICT_UNKNOWN && all[i].verdict < FTMEM_VERDICT_END);
        FUZZ_REQUIRE(all[i].process.upper < memory->process.upper);
        fuzz_check_range(&all[i].process);
        if (i < 2) FUZZ_REQUIRE(memcmp(&all[i], &some[i], sizeof some[i]) == 0);
    }
}

static inline void fuzz_check_sum(const ftmem_job *job)
{
    ftmem_sum_term terms[FTMEM_SUM_CAPACITY];
    int32_t count = -1;
    FUZZ_REQUIRE(ftmem_your_sum(job, terms, &count, NULL) == FTMEM_OK && count > 0 && count <= FTMEM_SUM_CAPACITY);
    for (int32_t i = 0; i < count; i++)
        FUZZ_REQUIRE(terms[i].name && terms[i].bytes_per_parameter >= 0 && terms[i].rule_bytes + terms[i].ours_bytes < UINT64_MAX);
}

/* Asked again, on a stack that other calls have used meanwhile, the answer is the same to the byte. */
static inline void fuzz_check_again(const ftmem_job *job, const ftmem_memory *first)
{
    ftmem_memory again;
    memset(&again, 0x55, sizeof again);
    again.struct_size = sizeof again;
    FUZZ_REQUIRE(ftmem_predict_memory(job, &again, NULL) == FTMEM_OK);
    FUZZ_REQUIRE(memcmp(first, &again, sizeof again) == 0);
}

/* Whatever the job, an answer adds up or is refused. */
static inline void fuzz_check_prediction(const ftmem_job *job)
{
    ftmem_memory memory = FTMEM_MEMORY_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    ftmem_status status = ftmem_predict_memory(job, &memory, &error);
    uint64_t sum = 0, parts;
    if (status != FTMEM_OK) {
        fuzz_check_error(status, &error);
        return;
    }
    for (int32_t i = 0; i < FTMEM_CLASS_CAPACITY; i++) sum += memory.at_peak[i];
    parts = memory.weights_bytes + memory.gradients_bytes + memory.states_bytes + memory.activations_bytes + memory.overhead_bytes;
    FUZZ_REQUIRE(sum == memory.allocated.expected);
    FUZZ_REQUIRE(parts == memory.allocated.expected);
    fuzz_check_range(&memory.allocated);
    fuzz_check_range(&memory.reserved);
    fuzz_check_range(&memory.process);
    FUZZ_REQUIRE(memory.reserved.expected >= memory.allocated.expected && memory.process.expected >= memory.reserved.expected);
    FUZZ_REQUIRE(memory.parameters > 0 && memory.trainable >= 0);
    FUZZ_REQUIRE(memory.flops_forward >= 0 && memory.flops_forward < 1e300 && memory.flops_backward >= 0 && memory.flops_backward < 1e300);
    FUZZ_REQUIRE(memory.largest_count >= 0 && memory.largest_count <= FTMEM_TENSOR_CAPACITY);
    FUZZ_REQUIRE(memory.note_count >= 0 && memory.note_count <= FTMEM_NOTE_CAPACITY);
    FUZZ_REQUIRE(memory.peak_op && memory.peak_part);
    for (int32_t i = 0; i < memory.note_count; i++) {
        char text[128];
        size_t needed = 0;
        ftmem_note_text(&memory.notes[i], text, sizeof text, &needed);
        FUZZ_REQUIRE(needed > 1);
    }
    fuzz_check_fixes(job, &memory);
    fuzz_check_sum(job);
    fuzz_check_again(job, &memory);
}

/* The next line of the input, cut to capacity - 1; NULL at the end. */
static inline const char *fuzz_line(const uint8_t **at, size_t *left, char *line, size_t capacity)
{
    const uint8_t *end = *left ? memchr(*at, '\n', *left) : NULL;
    size_t length = end ? (size_t)(end - *at) : *left, kept = length < capacity ? length : capacity - 1;
    if (*left == 0) return NULL;
    memcpy(line, *at, kept);
    line[kept] = '\0';
    *at += end ? length + 1 : length;
    *left -= end ? length + 1 : length;
    return line;
}

#endif
