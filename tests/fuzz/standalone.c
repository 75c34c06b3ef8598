/*
 * Runs a fuzz target without libFuzzer: standalone FILE|FOLDER...
 * Each file as it is, cut at every length (at most 100 of them), and after each of a fixed number of small, repeatable mutations.
 */
#include "fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

#define MAX_SIZE 65536
#define MAX_CUTS 100
#define MUTATIONS 150

static uint64_t state;
static long runs;

static uint32_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* Inputs get a block of their own size, so that a sanitizer sees a byte read too far. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *own = malloc(size ? size : 1);
    if (!own) abort();
    memcpy(own, data, size);
    LLVMFuzzerTestOneInput(own, size);
    free(own);
    runs++;
}

static size_t mutate(uint8_t *data, size_t size)
{
    static const char *const pieces[] = { "0", "-1", "9223372036854775807", "1e308", "\"", "{", "[", "\n", "=", "null", ".5", "\xff", "4096", "," };
    size_t at = next_random() % size, other = next_random() % size, length;
    const char *piece = pieces[next_random() % (sizeof pieces / sizeof pieces[0])];
    switch (next_random() % 5) {
    case 0: data[at] ^= (uint8_t)(1u << (next_random() % 8)); return size;
    case 1: data[at] = data[other]; return size;
    case 2: /* delete */
        length = 1 + next_random() % 8;
        if (at + length >= size) return size;
        memmove(data + at, data + at + length, size - at - length);
        return size - length;
    default: /* insert */
        length = strlen(piece);
        memmove(data + at + length, data + at, size - at);
        memcpy(data + at, piece, length);
        return size + length;
    }
}

static void run_file(const char *path)
{
    static uint8_t original[MAX_SIZE], changed[MAX_SIZE + 256];
    FILE *file = fopen(path, "rb");
    size_t size, step;
    if (!file) {
        perror(path);
        exit(2);
    }
    size = fread(original, 1, sizeof original, file);
    fclose(file);
    run(original, size);
    if (size == 0) return;
    step = size / MAX_CUTS + 1;
    for (size_t cut = 0; cut < size; cut += step) run(original, cut);
    state = 0x9e3779b97f4a7c15u + size;
    for (int i = 0; i < MUTATIONS; i++) {
        size_t length = size;
        memcpy(changed, original, size);
        for (uint32_t n = 1 + next_random() % 4; n > 0 && length > 1; n--) length = mutate(changed, length);
        run(changed, length);
    }
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void run_folder(const char *path)
{
    struct dirent **names = NULL;
    int count = scandir(path, &names, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.') run_file(file);
        free(names[i]);
    }
    free(names);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (stat(argv[i], &info) != 0) {
            perror(argv[i]);
            return 2;
        }
        if (S_ISDIR(info.st_mode)) run_folder(argv[i]);
        else run_file(argv[i]);
    }
    printf("%ld inputs\n", runs);
    return runs ? 0 : 2;
}
