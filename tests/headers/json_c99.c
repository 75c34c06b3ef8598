/* The JSON reader's header alone, as C99. */
#include <ftmem_json.h>

int ftmem_header_json_c99(void);
int ftmem_header_json_c99(void)
{
    return FTMEM_JSON_MAX_DEPTH;
}
