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
