/* The same with the JSON reader: argv[1] is a config.json. */
#include <ftmem_json.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    ftmem_model model = FTMEM_MODEL_INIT;
    ftmem_error error = FTMEM_ERROR_INIT;
    if (argc < 2 || ftmem_model_from_json_file(argv[1], &model, &error) != FTMEM_OK) {
        puts(error.message);
        return 1;
    }
    printf("%s: %d layers\n", model.name, (int)model.layers);
    return 0;
}
