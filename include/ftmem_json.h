/*
 * ftmem_json.h - models and jobs from JSON files, over cJSON: the optional library ftmem_json (link ftmem::json, or
 * `pkg-config --cflags --libs ftmem_json`). The core knows no JSON and needs none of this.
 *
 *   - Malformed JSON is FTMEM_E_SYNTAX, with line and column (in bytes, from 1); a file that cannot be read FTMEM_E_IO.
 *   - Strict: no comments, no duplicate keys (two that flatten to the same dotted path are duplicates), nothing after
 *     the document. Integers are exact: where one is needed, a number with a fraction or beyond 2^53 is refused.
 *   - Unlike the core these functions use the heap while they run, and cJSON reads the locale's decimal point: no other
 *     thread may call setlocale meanwhile. Results are untouched on failure.
 */
#ifndef FTMEM_JSON_H
#define FTMEM_JSON_H

#include "ftmem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of a document: beyond them it is refused. Real config.json files stay under 100 kB and 8 levels. */
#define FTMEM_JSON_MAX_BYTES 4194304
#define FTMEM_JSON_MAX_DEPTH 32
#define FTMEM_JSON_MAX_VALUES 65536
#define FTMEM_JSON_MAX_PATH 255

/* Model from the text of a Hugging Face config.json. The text needs no terminator. */
FTMEM_API ftmem_status ftmem_model_from_json_text(const char *text, size_t size, ftmem_model *model, ftmem_error *error);
/* The same from a file. Where the config gives no name, the model is named after the file or, for "config.json", its folder. */
FTMEM_API ftmem_status ftmem_model_from_json_file(const char *path, ftmem_model *model, ftmem_error *error);

/*
 * A job file:
 *
 *     {
 *       "model": "meta-llama/Llama-3.1-8B",
 *       "adapter": { "kind": "qlora", "rank": 16, "targets": ["q_proj", "v_proj"] },
 *       "gpu": "rtx-4090",
 *       "job": { "micro_batch": 2, "sequence": 4096, "recompute": "full" }
 *     }
 *
 * "model" is a name of the catalog, an object with the keys of a config.json, or the path of a file that ends in
 * ".json", from the folder of the job file. "adapter" may be missing: full fine-tuning. "gpu" is what ftmem_gpu_find
 * takes, or an object with members of ftmem_gpu. Other members are the paths of the field table (ftmem_field_at);
 * switches may be true or false, null is "not given", and a key that is not known is FTMEM_E_UNKNOWN_NAME.
 *
 * On success job->model is `model`, and job->adapter is `adapter`, or NULL where the file gives none. `adapter` is
 * written in both cases.
 */
FTMEM_API ftmem_status ftmem_job_from_json_file(const char *path, ftmem_job *job, ftmem_model *model, ftmem_adapter *adapter, ftmem_error *error);
/* The same from text. directory: where a model's path starts; NULL: such a path is FTMEM_E_UNSUPPORTED, and no file is read. */
FTMEM_API ftmem_status ftmem_job_from_json_text(const char *text, size_t size, const char *directory, ftmem_job *job, ftmem_model *model,
                                                ftmem_adapter *adapter, ftmem_error *error);

#ifdef __cplusplus
}
#endif

#endif /* FTMEM_JSON_H */
