/*
 * ftmem.h - how much GPU memory a fine-tuning run will need, before it is launched.
 *
 * A training step is a short program of operations over symbolic dimensions. The library interprets that program
 * the way torch's autograd does (which tensor is made, kept, released, by which operation) and reads every answer
 * off the walk: parameters, FLOPs, kept activations, the peak of each phase and the tensors that make it.
 *
 * Conventions
 *   - Every function returns an ftmem_status. Results go through the last pointers and are untouched on failure.
 *     The optional ftmem_error (may be NULL) names the field, the value and what would be right.
 *   - Every struct starts with struct_size. Initialise with FTMEM_X_INIT or ftmem_x_init(&x, sizeof x); then set only
 *     what you know. Zero means "default" in every other field; each field says what that default is. Switches whose
 *     default is not "off" are FTMEM_AUTO / FTMEM_ON / FTMEM_OFF.
 *   - Sizes are bytes. GiB = 2^30 bytes, GB = 1e9 bytes. "tokens" are tokens of one micro-batch on one GPU.
 *   - Tiers: allocated = live tensors (torch.cuda.max_memory_allocated), reserved = held by the caching allocator
 *     (max_memory_reserved), process = what the card loses (nvidia-smi).
 *   - No function allocates, prints, reads a file or the locale, or keeps state: all are reentrant, and any number
 *     of threads may call them at once on different output structs. A prediction needs about 64 KiB of stack.
 *   - Enum values are append-only. Members are int32_t; an unknown value is an error, never "auto".
 */
#ifndef FTMEM_H
#define FTMEM_H

#include <stddef.h>
#include <stdint.h>

#define FTMEM_VERSION_MAJOR 0
#define FTMEM_VERSION_MINOR 1
#define FTMEM_VERSION_PATCH 0
#define FTMEM_VERSION_STRING "0.1.0"

#ifndef FTMEM_API
#if defined(_WIN32) && defined(FTMEM_SHARED)
#define FTMEM_API __declspec(dllimport)
#elif defined(__GNUC__)
#define FTMEM_API __attribute__((visibility("default")))
#else
#define FTMEM_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the linked library, "major.minor.patch". */
FTMEM_API const char *ftmem_version_string(void);

/* ---------------------------------------------------------------------------------------------------- status */

typedef int32_t ftmem_status;

enum {
    FTMEM_OK = 0,
    FTMEM_E_ARGUMENT = 1,     /* a required pointer is NULL, or a call is out of order */
    FTMEM_E_STRUCT_SIZE = 2,  /* struct_size is 0, too small, or larger with a non-zero tail */
    FTMEM_E_RANGE = 3,        /* a value is outside its field's range */
    FTMEM_E_OVERFLOW = 4,     /* a product of the given numbers does not fit in 63 bits */
    FTMEM_E_CONFLICT = 5,     /* two values contradict each other (heads do not divide, ...) */
    FTMEM_E_UNSUPPORTED = 6,  /* understood, but not modelled: the error names the field and value */
    FTMEM_E_UNKNOWN_NAME = 7, /* no such model, GPU, field, enum value: the error lists the nearest names */
    FTMEM_E_MISSING = 8,      /* a required value was not given */
    FTMEM_E_TYPE = 9,         /* a config value has the wrong type, or a text is not a number */
    FTMEM_E_BUFFER = 10,      /* the caller's buffer is too small; the needed size was stored */
    FTMEM_E_SYNTAX = 11,      /* a JSON document is malformed (ftmem_json.h) */
    FTMEM_E_IO = 12,          /* a file cannot be read (ftmem_json.h) */
    FTMEM_STATUS_END = 13
};

/* "FTMEM_E_RANGE"; "FTMEM_E_?" for a number that is no status. Never NULL. */
FTMEM_API const char *ftmem_status_name(ftmem_status status);
/* One short sentence for people. Never NULL. */
FTMEM_API const char *ftmem_status_string(ftmem_status status);

typedef struct ftmem_error {
    uint32_t struct_size;
    ftmem_status status;
    char field[64];    /* dotted path, "job.micro_batch"; empty if none applies */
    char value[96];    /* the offending value as text */
    char message[256]; /* one complete sentence: field, value, what would be right */
} ftmem_error;

/* ----------------------------------------------------------------------------------------------------- enums */

enum { FTMEM_AUTO = 0, FTMEM_ON = 1, FTMEM_OFF = 2 }; /* ftmem_switch */

/* Element types. Bytes an element: fp32 4, bf16 2, fp16 2, int8 1; nf4 and fp4 are half a byte plus block maxima. */
enum { FTMEM_DTYPE_AUTO = 0, FTMEM_FP32 = 1, FTMEM_BF16 = 2, FTMEM_FP16 = 3, FTMEM_INT8 = 4, FTMEM_NF4 = 5, FTMEM_FP4 = 6, FTMEM_INT64 = 7, FTMEM_BOOL = 8, FTMEM_DTYPE_END = 9 };

/* Decoder families, named by Hugging Face's model_type. Each is one operation list (lib/families.c). */
enum {
    FTMEM_FAMILY_AUTO = 0, /* llama, when dimensions are given explicitly */
    FTMEM_LLAMA = 1, FTMEM_MISTRAL = 2, FTMEM_QWEN2 = 3, FTMEM_QWEN3 = 4, FTMEM_GEMMA = 5, FTMEM_GEMMA2 = 6,
    FTMEM_GEMMA3 = 7, FTMEM_PHI = 8, FTMEM_PHI3 = 9, FTMEM_GPT2 = 10, FTMEM_GPT_NEOX = 11, FTMEM_GPTJ = 12,
    FTMEM_OPT = 13, FTMEM_BLOOM = 14, FTMEM_MPT = 15, FTMEM_FALCON = 16, FTMEM_STARCODER2 = 17,
    FTMEM_GPT_BIGCODE = 18, FTMEM_OLMO = 19, FTMEM_OLMO2 = 20, FTMEM_OLMO3 = 21, FTMEM_SMOLLM3 = 22,
    FTMEM_GRANITE = 23, FTMEM_STABLELM = 24, FTMEM_COHERE = 25, FTMEM_COHERE2 = 26,
    /* code outside transformers, loaded with trust_remote_code */
    FTMEM_QWEN = 27, FTMEM_BAICHUAN = 28, FTMEM_CHATGLM = 29, FTMEM_INTERNLM2 = 30, FTMEM_ORION = 31, FTMEM_MINICPM = 32,
    /* mixtures of experts */
    FTMEM_MIXTRAL = 33, FTMEM_QWEN3_MOE = 34,
    FTMEM_DEEPSEEK_V2 = 35, FTMEM_DEEPSEEK_V3 = 36, FTMEM_GLM4_MOE = 37, FTMEM_MINIMAX_M2 = 38, FTMEM_OLMOE = 39, FTMEM_DEEPSEEK_V32 = 40, FTMEM_GLM_MOE_DSA = 41,
    FTMEM_T5 = 42, FTMEM_BART = 43, FTMEM_WHISPER = 44, /* encoder and decoder: two stacks */
    /* encoders and vision */
    FTMEM_BERT = 45, FTMEM_ROBERTA = 46, FTMEM_ALBERT = 47, FTMEM_DISTILBERT = 48, FTMEM_MODERNBERT = 49, FTMEM_VIT = 50,
    /* vision towers, whose configs are read inside those of vision-language models (ftmem_model.tower) */
    FTMEM_CLIP_VISION_MODEL = 51, FTMEM_SIGLIP_VISION_MODEL = 52, FTMEM_PIXTRAL = 53, FTMEM_QWEN2_5_VL_VISION = 54, FTMEM_QWEN3_VL_VISION = 55,
    /* latent attention with dense MLPs; sinks; code outside transformers */
    FTMEM_MINICPM3 = 56, FTMEM_MIMO_V2_FLASH = 57, FTMEM_DEEPSEEK = 58,
    FTMEM_QWEN2_MOE = 59, FTMEM_GPT_OSS = 60,
    FTMEM_MINISTRAL3 = 61, FTMEM_MIMO = 62, FTMEM_NEMOTRON_H = 63, FTMEM_GRANITEMOEHYBRID = 64, FTMEM_BAMBA = 65, FTMEM_MAMBA2 = 66,
    /* gated delta-net linear attention beside full attention */
    FTMEM_QWEN3_NEXT = 67, FTMEM_QWEN3_5 = 68, FTMEM_QWEN3_5_MOE = 69,
    FTMEM_KIMI_K25_VISION = 70, FTMEM_DOTS1 = 71, FTMEM_FLEX_OLMO = 72, FTMEM_GRANITEMOE = 73, FTMEM_GLM4_MOE_LITE = 74, FTMEM_ERNIE4_5_MOE = 75,
    FTMEM_GEMMA4 = 76, FTMEM_GEMMA4_VISION = 77, FTMEM_GEMMA4_AUDIO = 78, /* the latter two: its towers */
    FTMEM_LLAMA4 = 79, FTMEM_QWEN2_VL_VISION = 80,
    FTMEM_MLLAMA_TEXT_MODEL = 81, FTMEM_MLLAMA_VISION_MODEL = 82, /* the latter: its tower */
    FTMEM_GLM = 83, FTMEM_GLM4 = 84, FTMEM_SEED_OSS = 85, FTMEM_NEMOTRON_NAS = 86,
    FTMEM_FAMILY_END = 87
};

/* The activation of the MLP. GELU_NEW is the tanh form written out in Python (GPT-2, GPT-J, Phi); GELU_TANH the fused kernel. */
enum { FTMEM_ACT_AUTO = 0, FTMEM_SILU = 1, FTMEM_GELU = 2, FTMEM_GELU_TANH = 3, FTMEM_GELU_NEW = 4, FTMEM_RELU = 5, FTMEM_GELU_FAST = 6, FTMEM_GELU_BLOOM = 7,
       FTMEM_RELU2 = 8, FTMEM_QUICK_GELU = 9, FTMEM_ACT_END = 10 };

/* Vision towers with what leads from them to the text model, named by the vision-language model's model_type. */
enum {
    FTMEM_TOWER_NONE = 0, FTMEM_TOWER_LLAVA = 1, FTMEM_TOWER_GEMMA3 = 2, FTMEM_TOWER_MISTRAL3 = 3, FTMEM_TOWER_QWEN2_5_VL = 4,
    FTMEM_TOWER_QWEN3_VL = 5, FTMEM_TOWER_KIMI_K25 = 6, FTMEM_TOWER_GEMMA4 = 7, FTMEM_TOWER_QWEN2_VL = 8, FTMEM_TOWER_PALIGEMMA = 9, FTMEM_TOWER_PHI3_V = 10,
    FTMEM_TOWER_MLLAMA = 11, FTMEM_TOWER_END = 12
};

/* What is trained: an adapter by PEFT's method. The base may be stored in any format (ftmem_adapter.quant). */
enum {
    FTMEM_ADAPTER_NONE = 0,  /* full fine-tuning (see ftmem_job.freeze) */
    FTMEM_ADAPTER_LORA = 1,  /* LoRA over 16-bit or fp32 weights */
    FTMEM_ADAPTER_QLORA = 2, /* LoRA over bitsandbytes' 4-bit linears */
    FTMEM_ADAPTER_LORA8 = 3, /* LoRA over bitsandbytes' LLM.int8 linears */
    FTMEM_ADAPTER_LORA_FA = 4, /* LoRA with A frozen (PEFT's create_lorafa_optimizer) */
    FTMEM_ADAPTER_VERA = 5,
    FTMEM_ADAPTER_ADALORA = 6,
    FTMEM_ADAPTER_IA3 = 7,
    FTMEM_ADAPTER_LOHA = 8,
    FTMEM_ADAPTER_LOKR = 9,
    FTMEM_ADAPTER_OFT = 10,
    FTMEM_ADAPTER_BOFT = 11,
    FTMEM_ADAPTER_PROMPT = 12,   /* prompt tuning */
    FTMEM_ADAPTER_PREFIX = 13,   /* prefix tuning */
    FTMEM_ADAPTER_P_TUNING = 14,
    FTMEM_ADAPTER_MISS = 15, /* PEFT's MissConfig; of init_weights "bat" and "mini" the two after it */
    FTMEM_ADAPTER_MISS_BAT = 16,
    FTMEM_ADAPTER_MISS_MINI = 17,
    FTMEM_ADAPTER_HIRA = 18,
    FTMEM_ADAPTER_PVERA = 19,
    FTMEM_ADAPTER_FOURIERFT = 20,
    FTMEM_ADAPTER_DELORA = 21,
    FTMEM_ADAPTER_ROAD = 22,
    FTMEM_ADAPTER_C3A = 23,
    FTMEM_ADAPTER_GRALORA = 24,
    FTMEM_ADAPTER_BEFT = 25,
    FTMEM_ADAPTER_DEFT = 26, /* decomposition_method "relu" */
    FTMEM_ADAPTER_DEFT_PARA = 27, /* para, by QR */
    FTMEM_ADAPTER_GLORA = 28, /* paths A and B low-rank */
    FTMEM_ADAPTER_GLORA_VECTOR = 29, /* paths A and B one column each */
    FTMEM_ADAPTER_PEANUT = 30, /* of depth 0, with ReLU */
    FTMEM_ADAPTER_TINYLORA = 31,
    FTMEM_ADAPTER_RANDLORA = 32,
    FTMEM_ADAPTER_PSOFT = 33, /* by a full decomposition and a solver */
    FTMEM_ADAPTER_MICA = 34, /* LoRA with B frozen (init_lora_weights "mica") */
    FTMEM_ADAPTER_END = 35
};

/* How the linears of a frozen base are stored (lib/quant.c). INT8, NF4 and FP4 have the values of the element types. */
enum {
    FTMEM_QUANT_AUTO = 0,    /* what the kind says: NF4 for QLORA, INT8 for LORA8, else NONE */
    FTMEM_QUANT_NONE = 1,
    FTMEM_QUANT_FP8 = 2,     /* e4m3 with a scale for each block of 128 x 128 (transformers' FP8Linear) */
    FTMEM_QUANT_MXFP4 = 3,   /* refused: transformers trains over it dequantised only */
    FTMEM_QUANT_INT8 = 4,    /* bitsandbytes LLM.int8 */
    FTMEM_QUANT_NF4 = 5, FTMEM_QUANT_FP4 = 6, /* bitsandbytes 4-bit: the same bytes */
    FTMEM_QUANT_GPTQ4 = 7, FTMEM_QUANT_GPTQ8 = 8, FTMEM_QUANT_AWQ = 9, FTMEM_QUANT_HQQ4 = 10, FTMEM_QUANT_HQQ8 = 11,
    FTMEM_QUANT_AQLM = 12,   /* 2 bits: one codebook of 16-bit codes */
    FTMEM_QUANT_TORCHAO_INT8 = 13,
    FTMEM_QUANT_TORCHAO_INT4 = 14, /* refused: PEFT does */
    FTMEM_QUANT_END = 15
};

enum {
    FTMEM_OPTIMIZER_AUTO = 0,          /* ADAMW, as transformers' Trainer and torch on CUDA */
    FTMEM_ADAMW = 1,                   /* torch AdamW, foreach */
    FTMEM_ADAMW_FUSED = 2,
    FTMEM_ADAMW_LOOP = 3,              /* foreach=False, fused=False */
    FTMEM_ADAMW_8BIT = 4,              /* bitsandbytes, block-wise */
    FTMEM_PAGED_ADAMW_8BIT = 5,        /* states of large tensors in managed memory, unseen by torch */
    FTMEM_SGD = 6,
    FTMEM_SGD_MOMENTUM = 7,
    FTMEM_ADAFACTOR = 8,               /* transformers' Adafactor without momentum */
    FTMEM_PAGED_ADAMW_32BIT = 9,
    FTMEM_ADAMW_32BIT = 10,  /* bitsandbytes, fp32 states */
    FTMEM_ADAMW_APEX = 11,  /* apex FusedAdam */
    FTMEM_ADAMW_DEEPSPEED = 12,  /* DeepSpeed FusedAdam */
    FTMEM_ADAMW_ANYPRECISION = 13,  /* torchdistx, as transformers calls it: fp32 states */
    FTMEM_ADAMW_ANYPRECISION_KAHAN = 14,  /* ... use_kahan_summation, bf16 states and compensation */
    FTMEM_ADAMW_TORCHAO_8BIT = 15,  /* torchao AdamW8bit */
    FTMEM_ADAMW_TORCHAO_4BIT = 16,  /* torchao AdamW4bit in blocks of 256, as transformers calls it */
    FTMEM_ADAMW_TORCHAO_4BIT_128 = 17,  /* ... in blocks of 128, torchao's default */
    FTMEM_ADAMW_TORCHAO_FP8 = 18,  /* torchao AdamWFp8 */
    FTMEM_ADAMW_CPU_OFFLOAD = 19,  /* torchao CPUOffloadOptimizer over AdamW */
    FTMEM_ADEMAMIX = 20,
    FTMEM_ADEMAMIX_8BIT = 21,
    FTMEM_PAGED_ADEMAMIX_32BIT = 22,
    FTMEM_PAGED_ADEMAMIX_8BIT = 23,
    FTMEM_LION_32BIT = 24,
    FTMEM_LION_8BIT = 25,
    FTMEM_PAGED_LION_32BIT = 26,
    FTMEM_PAGED_LION_8BIT = 27,
    FTMEM_LION_PYTORCH = 28,  /* lion-pytorch, without Triton */
    FTMEM_RMSPROP = 29,  /* torch, foreach */
    FTMEM_RMSPROP_32BIT = 30,
    FTMEM_RMSPROP_8BIT = 31,
    FTMEM_ADAGRAD = 32,  /* torch, foreach */
    FTMEM_LAMB = 33,  /* bitsandbytes */
    FTMEM_LAMB_8BIT = 34,
    FTMEM_ADAFACTOR_MOMENTUM = 35,  /* transformers' Adafactor with beta1 */
    FTMEM_CAME = 36,
    FTMEM_GALORE_ADAMW = 37,
    FTMEM_GALORE_ADAMW_LAYERWISE = 38,
    FTMEM_APOLLO_ADAMW = 39,
    FTMEM_APOLLO_ADAMW_LAYERWISE = 40,
    FTMEM_LOMO = 41,
    FTMEM_ADALOMO = 42,
    FTMEM_GROKADAMW = 43,  /* states on the host between steps */
    FTMEM_SCHEDULE_FREE_ADAMW = 44,
    FTMEM_SCHEDULE_FREE_RADAM = 45,
    FTMEM_SCHEDULE_FREE_SGD = 46,
    FTMEM_STABLE_ADAMW = 47,  /* torch-optimi, its Triton kernels */
    FTMEM_OPTIMI_ADAMW = 48,  /* torch-optimi, the loop; Kahan summation over 16-bit weights */
    FTMEM_MUON = 49,  /* torch.optim.Muon for matrices of blocks, foreach AdamW for the rest */
    FTMEM_SOPHIA = 50,
    FTMEM_GALORE_ADAFACTOR = 51,
    FTMEM_OPTIMIZER_END = 52
};

enum {
    FTMEM_ATTENTION_AUTO = 0, /* SDPA, as transformers chooses */
    FTMEM_SDPA = 1,           /* torch's scaled_dot_product_attention: flash, memory-efficient or math by dtype, mask, head shape and GPU */
    FTMEM_EAGER = 2,          /* written out in Python: scores of sequence x sequence exist */
    FTMEM_FLASH2 = 3,         /* the flash-attention 2 package */
    FTMEM_SDPA_MATH = 4,      /* SDPA with its fused kernels switched off */
    FTMEM_ATTENTION_END = 5
};

enum { FTMEM_KERNEL_NONE = 0, FTMEM_KERNEL_FLASH = 1, FTMEM_KERNEL_EFFICIENT = 2, FTMEM_KERNEL_MATH = 3, FTMEM_KERNEL_EAGER = 4, FTMEM_KERNEL_END = 5 };

enum {
    FTMEM_RECOMPUTE_NONE = 0,
    FTMEM_RECOMPUTE_FULL = 1,      /* every block, torch.utils.checkpoint(use_reentrant=False): the default of transformers 5 */
    FTMEM_RECOMPUTE_REENTRANT = 2, /* every block, use_reentrant=True */
    FTMEM_RECOMPUTE_OFF = 3,       /* none, said aloud: a stack's default does not apply */
    FTMEM_RECOMPUTE_END = 4
};

/* What a recomputed block keeps beside its input: results of operations that a policy of torch.utils.checkpoint's
   create_selective_checkpoint_contexts saves. */
enum {
    FTMEM_SAVE_AUTO = 0,
    FTMEM_SAVE_NOTHING = 1,
    FTMEM_SAVE_ATTENTION = 2,      /* of the fused attention kernels (TRL's selective checkpointing) */
    FTMEM_SAVE_EVERY_SECOND = 3,   /* and of every second matrix product without a bias (torchtitan's op policy) */
    FTMEM_SAVE_MATMULS = 4,        /* and of all matrix products */
    FTMEM_SAVE_END = 5
};

enum {
    FTMEM_LOSS_AUTO = 0,    /* LOSS_DROPPED */
    FTMEM_LOSS_DROPPED = 1, /* transformers' loss, `outputs` released before backward (Trainer) */
    FTMEM_LOSS_HELD = 2,    /* transformers' loss, `outputs` alive to the end of its own step (hand-written loop in a function) */
    FTMEM_LOSS_LOOP = 3,    /* `outputs` alive until the next forward has returned (script-level variable) */
    FTMEM_LOSS_CHUNKED = 4, /* head and loss on loss_chunk_tokens at a time, recomputed in backward */
    FTMEM_LOSS_FUSED = 5,   /* Liger-like fused linear cross-entropy: logits never exist as a whole */
    FTMEM_LOSS_SPLIT = 6,   /* head, then loss, on loss_chunk_tokens at a time without recomputation: every chunk's log-softmax is kept (torchtune, litgpt) */
    FTMEM_LOSS_TILES = 7,   /* TRL's fused head (1.15 and later): log-probabilities from tiles of 4096 tokens x 32768 words, made again in backward */
    FTMEM_LOSS_MEAN = 8,    /* logits.mean() of outputs that are held: loops that measure memory */
    FTMEM_LOSS_SMOOTHED = 9,/* transformers' LabelSmoother (Trainer's label_smoothing_factor) */
    FTMEM_LOSS_END = 10
};

/* What is trained for: which forwards a step runs, on which model, and what its loss is. The memory is that of TRL's trainers,
   whatever their loss_type is, unless said. AUTO: SFT. */
enum {
    FTMEM_OBJECTIVE_AUTO = 0,
    FTMEM_OBJECTIVE_SFT = 1,    /* cross-entropy, or the loss of job.task */
    FTMEM_OBJECTIVE_DPO = 2,    /* DPOTrainer: chosen and rejected rows in one forward, and the reference's forward beside it; also IPO, hinge, ... */
    FTMEM_OBJECTIVE_KTO = 3,    /* KTOTrainer: a forward without gradients on mismatched rows first; the reference runs on both */
    FTMEM_OBJECTIVE_REWARD = 4, /* RewardTrainer: chosen and rejected rows, one score a row */
    FTMEM_OBJECTIVE_GRPO = 5,   /* GRPOTrainer's training step: rows of prompt and completion; reference (none unless asked for) before it */
    FTMEM_OBJECTIVE_RLOO = 6,   /* RLOOTrainer's: with a reference */
    FTMEM_OBJECTIVE_ORPO = 7,   /* ORPOTrainer: pairs, whole logits, cross-entropy of the chosen rows beside the pair's loss; no reference */
    FTMEM_OBJECTIVE_CPO = 8,    /* CPOTrainer, likewise */
    FTMEM_OBJECTIVE_SIMPO = 9,  /* CPOTrainer with loss_type simpo and cpo_alpha 0: no cross-entropy */
    FTMEM_OBJECTIVE_GKD = 10,   /* GKDTrainer: whole logits of the trained model and of a teacher (job.teacher), and the generalised Jensen-Shannon divergence */
    FTMEM_OBJECTIVE_END = 11
};

/* Where log-probabilities of a reference come from. AUTO: the trained model with its adapters switched off, without adapters a copy;
   of GRPO none. */
enum {
    FTMEM_REFERENCE_AUTO = 0, FTMEM_REFERENCE_NONE = 1,
    FTMEM_REFERENCE_COPY = 2,        /* a second model, as loaded, whose parameters ask for gradients and never get any */
    FTMEM_REFERENCE_ADAPTER_OFF = 3, /* PEFT's disable_adapter */
    FTMEM_REFERENCE_PRECOMPUTED = 4, /* before training: columns of the batch */
    FTMEM_REFERENCE_END = 5
};

/* What generates the completions of GRPO and RLOO. AUTO: TRANSFORMERS there. */
enum {
    FTMEM_GENERATION_AUTO = 0,
    FTMEM_GENERATION_NONE = 1,         /* not on this card, or not counted: a vLLM server */
    FTMEM_GENERATION_TRANSFORMERS = 2, /* generate() of the trained model with a growing cache of keys and values */
    FTMEM_GENERATION_END = 3
};

enum { FTMEM_MASK_AUTO = 0, FTMEM_MASK_NONE = 1, FTMEM_MASK_PADDED = 2, FTMEM_MASK_END = 3 }; /* AUTO: NONE */

/* Head of the model and its loss. AUTO: the family's, CAUSAL_LM of decoders, MASKED_LM of text encoders, IMAGE_CLASSIFY of
   vision encoders. CLASSIFY is one label a row (with one class: regression), TOKEN_CLASSIFY one a token. */
enum {
    FTMEM_TASK_AUTO = 0, FTMEM_TASK_CAUSAL_LM = 1, FTMEM_TASK_CLASSIFY = 2, FTMEM_TASK_MASKED_LM = 3, FTMEM_TASK_TOKEN_CLASSIFY = 4,
    FTMEM_TASK_IMAGE_CLASSIFY = 5, FTMEM_TASK_END = 6
};

/* What torch.compile compiles, for ftmem_job.compile; a set is an OR. What a compiled graph keeps is decided by its partitioner
   (torch/_functorch/partitioners.py min_cut_rematerialization_partition): inputs of matrix products and what products and
   reductions made; what lies between is computed again, fused. */
enum {
    FTMEM_COMPILE_BLOCKS = 1, /* each block a graph (torchtune's compile_model, transformers' layers) */
    FTMEM_COMPILE_LOSS = 2    /* the cross-entropy a graph; logits are not widened */
};

/* Kernels that replace what transformers writes out, for ftmem_job.kernels; a set is an OR. Each is a rule row (lib/ops.inc). */
enum {
    FTMEM_FUSED_NORM = 1,  /* RMSNorm in one kernel: Liger-Kernel, Unsloth, fms-acceleration */
    FTMEM_FUSED_ROPE = 2,  /* rotation in place of queries and keys */
    FTMEM_FUSED_MLP = 4,   /* act(gate) x up in one kernel (Liger's SwiGLU and GeGLU) */
    FTMEM_FUSED_CE = 8,    /* cross-entropy over logits that exist, whose gradient is written over them */
    FTMEM_FUSED_LORA = 16  /* a linear and its LoRA in one autograd function (Unsloth's LoRA_QKV, LoRA_W and LoRA_MLP) */
};

/* The software whose rules apply. */
enum {
    FTMEM_STACK_AUTO = 0,         /* TRANSFORMERS */
    FTMEM_STACK_TRANSFORMERS = 1, /* transformers' models and Trainer, and PEFT */
    FTMEM_STACK_TRL = 2,
    FTMEM_STACK_PEFT = 3,          /* PEFT in a loop of one's own */
    FTMEM_STACK_UNSLOTH = 4,
    FTMEM_STACK_TORCHTUNE = 5,
    FTMEM_STACK_LITGPT = 6,
    FTMEM_STACK_AXOLOTL = 7,
    FTMEM_STACK_LLAMA_FACTORY = 8,
    FTMEM_STACK_SWIFT = 9,
    FTMEM_STACK_FMS = 10,          /* fms-hf-tuning */
    FTMEM_STACK_END = 11
};

/* Weight-bearing parts of a block, the unit in which LoRA targets are chosen. A set is a bit mask of (1 << role). */
enum {
    FTMEM_ROLE_Q = 0, FTMEM_ROLE_K = 1, FTMEM_ROLE_V = 2, FTMEM_ROLE_QKV = 3, FTMEM_ROLE_O = 4,
    FTMEM_ROLE_GATE = 5, FTMEM_ROLE_UP = 6, FTMEM_ROLE_GATE_UP = 7, FTMEM_ROLE_DOWN = 8,
    FTMEM_ROLE_EMBED = 9, FTMEM_ROLE_HEAD = 10, FTMEM_ROLE_NORM = 11, FTMEM_ROLE_POSITION = 12,
    FTMEM_ROLE_ROUTER = 13,       /* of a mixture of experts: experts x hidden */
    FTMEM_ROLE_EXPERTS_UP = 14,   /* gate and up of all experts: experts x 2 expert_ffn x hidden */
    FTMEM_ROLE_EXPERTS_DOWN = 15, /* experts x hidden x expert_ffn */
    FTMEM_ROLE_SHARED_GATE = 16,  /* weighs the shared expert: 1 x hidden */
    /* of multi-head latent attention; FTMEM_ROLE_Q where queries have no latent */
    FTMEM_ROLE_Q_DOWN = 17,  /* hidden to q_rank */
    FTMEM_ROLE_Q_UP = 18,    /* q_rank to heads x head_dim */
    FTMEM_ROLE_KV_DOWN = 19, /* hidden to kv_rank + rotary_dim; to the experts' latent */
    FTMEM_ROLE_KV_UP = 20,   /* kv_rank to heads x (head_dim - rotary_dim + value_dim); from the experts' latent */
    /* of the indexer that chooses which tokens sparse attention sees; it works without gradients */
    FTMEM_ROLE_INDEX_Q = 21, FTMEM_ROLE_INDEX_K = 22, FTMEM_ROLE_INDEX_WEIGHTS = 23,
    FTMEM_ROLE_POOL = 24,  /* a linear between the blocks and the head: BERT's pooler, the transform before a masked LM's decoder */
    FTMEM_ROLE_WIDEN = 25, /* from the width of the token embedding to that of the blocks (ALBERT), or of the inputs of all layers (Gemma 4) */
    FTMEM_ROLE_TOWER = 26, /* linears of a vision tower, its projector and multi-token prediction that have no name of the text model's */
    /* of blocks that are neither attention nor MLP: MIXER_OUT is one that PEFT refuses for LoRA in state-space mixers. Queries, keys and
       values of linear attention are FTMEM_ROLE_QKV */
    FTMEM_ROLE_MIXER_IN = 27,  /* of a state-space mixer; of linear attention the gate of its output; the gate of a layer's own input (Gemma 4) */
    FTMEM_ROLE_MIXER_OUT = 28, /* its output projection */
    FTMEM_ROLE_LAYER_OUT = 29, /* what leads from a layer's own input back to the stream (Gemma 4) */
    FTMEM_ROLE_LINEAR_B = 29,  /* in linear attention: how much each token writes, where one linear makes both also how much the state decays */
    FTMEM_ROLE_LINEAR_A = 30,  /* how much the state decays */
    FTMEM_ROLE_END = 31
};
#define FTMEM_ROLES_ALL_LINEAR 0x7fffe1ffu /* every linear but the head: PEFT's "all-linear" */

/* Parts for ftmem_job.freeze; a set is an OR. */
enum { FTMEM_PART_EMBED = 1, FTMEM_PART_HEAD = 2, FTMEM_PART_FIRST_LAYERS = 4, FTMEM_PART_LAST_LAYERS = 8, FTMEM_PART_ALL_BUT = 16, FTMEM_PART_TOWER = 32, FTMEM_PART_BIASES = 64,
       FTMEM_PART_VISION = 128, FTMEM_PART_PROJECTOR = 256 };

/* Classes of live memory, the rows of live[class][moment]. */
enum {
    FTMEM_CLASS_WEIGHTS = 0,      /* base weights as stored, frozen or trained, 16-bit or fp32 */
    FTMEM_CLASS_QUANTIZED = 1,    /* 4-bit and int8 weights with their scales */
    FTMEM_CLASS_ADAPTERS = 2,     /* LoRA matrices and modules_to_save copies */
    FTMEM_CLASS_BUFFERS = 3,      /* buffers and the input batch */
    FTMEM_CLASS_GRADIENTS = 4,
    FTMEM_CLASS_MASTER = 5,       /* fp32 master copies of 16-bit weights */
    FTMEM_CLASS_STATES = 6,       /* optimizer states */
    FTMEM_CLASS_KEPT = 7,         /* activations that autograd keeps from forward */
    FTMEM_CLASS_RECOMPUTED = 8,   /* activations of the one block that is being recomputed */
    FTMEM_CLASS_LOGITS = 9,       /* logits, their log-softmax and their gradients */
    FTMEM_CLASS_TEMPORARY = 10,   /* gradients of activations and step temporaries */
    FTMEM_CLASS_WORKSPACE = 11,   /* inside kernels: cuBLAS, attention accumulators, dequantised weights */
    FTMEM_CLASS_END = 12
};
#define FTMEM_CLASS_CAPACITY 16

enum {
    FTMEM_PHASE_LOAD = 0, FTMEM_PHASE_FORWARD = 1, FTMEM_PHASE_LOSS = 2, FTMEM_PHASE_BACKWARD = 3, FTMEM_PHASE_OPTIMIZER = 4,
    FTMEM_PHASE_FORWARD2 = 5, FTMEM_PHASE_LOSS2 = 6, FTMEM_PHASE_BACKWARD2 = 7, FTMEM_PHASE_OPTIMIZER2 = 8, /* later steps: the states exist */
    FTMEM_PHASE_EVAL = 9, FTMEM_PHASE_SAVE = 10,
    FTMEM_PHASE_REFERENCE = 11,  /* forwards without gradients of a step, of whatever model */
    FTMEM_PHASE_GENERATION = 12, /* completions are generated */
    FTMEM_PHASE_END = 13
};
#define FTMEM_PHASE_CAPACITY 16

enum { FTMEM_VERDICT_UNKNOWN = 0, FTMEM_FITS = 1, FTMEM_MAY_FIT = 2, FTMEM_DOES_NOT_FIT = 3, FTMEM_VERDICT_END = 4 };

/* Where a figure comes from. */
enum { FTMEM_FROM_EXACT = 1, FTMEM_FROM_RULE = 2, FTMEM_FROM_CALIBRATION = 3, FTMEM_FROM_ASSUMPTION = 4 };

/* Each enum above has a name table: "dtype", "family", "tower", "activation", "adapter", "quant", "optimizer", "attention", "kernel",
   "recompute", "save", "loss", "objective", "reference", "generation", "mask", "task", "stack", "role", "class", "phase", "verdict", "switch"; "part", "fused", "compiled" and "vendor" name
   the bits of ftmem_job.freeze, ftmem_job.kernels and ftmem_job.compile and the values of ftmem_gpu.vendor. */
FTMEM_API const char *ftmem_enum_name(const char *enum_name, int32_t value); /* NULL if there is none */
FTMEM_API ftmem_status ftmem_enum_parse(const char *enum_name, const char *text, int32_t *value, ftmem_error *error);

/* ----------------------------------------------------------------------------------------------------- model */

#define FTMEM_MAX_LAYERS 512 /* more is FTMEM_E_UNSUPPORTED */

/* One stack of blocks with its embedding and head, and the encoder before it if it has one. Self-contained and copyable: nothing
   points elsewhere. */
typedef struct ftmem_model {
    uint32_t struct_size;
    int32_t family;           /* FTMEM_LLAMA, ...; 0: llama */
    char name[96];            /* for messages only */
    int64_t hidden;           /* h, width of the residual stream; required */
    int64_t ffn;              /* f, width of the MLP; 0: 4 h (required for gated MLPs) */
    int64_t layers;           /* number of blocks; required */
    int64_t heads;            /* query heads; required */
    int64_t kv_heads;         /* key/value heads; 0: heads */
    int64_t head_dim;         /* 0: hidden / heads */
    int64_t vocab;            /* rows of the embedding; required of text models */
    int64_t max_positions;    /* longest sequence the config allows; 0: not limited */
    int64_t position_rows;    /* rows of a learned position table (GPT-2, OPT); 0: max_positions */
    int64_t rotary_dim;       /* dimensions of a head that rotate; 0: head_dim where the family rotates */
    int64_t sliding_window;   /* tokens; 0: none */
    double attention_dropout; /* probability; 0: none */
    double hidden_dropout;    /* residual dropout of a block; 0: none */
    double embed_dropout;     /* after the embedding; 0: none */
    double attention_softcap; /* 0: none */
    double logit_softcap;     /* 0: none */
    int32_t activation;       /* 0: the family's */
    int32_t tied;             /* switch: head shares the embedding's matrix; AUTO: the family's class default */
    int32_t qkv_bias;         /* switch; AUTO: the family's */
    int32_t o_bias;           /* switch; AUTO: the family's */
    int32_t mlp_bias;         /* switch; AUTO: the family's */
    int32_t norm_bias;        /* switch, LayerNorm families; AUTO: the family's */
    int32_t qk_norm;          /* switch; AUTO: the family's */
    int32_t parallel;         /* switch: attention and MLP read the same stream side by side; AUTO: the family's */
    int32_t two_norms;        /* switch: a parallel block with a norm for each branch (Falcon new decoder, GPT-NeoX); AUTO: the family's */
    int32_t head_bias;        /* switch; AUTO: the family's */
    int32_t scaled;           /* switch: multipliers on embedding, residual or logits differ from 1 (Granite, Cohere); AUTO: the family's */
    int32_t alibi;            /* switch: attention bias by distance instead of rotation (Falcon-RW); AUTO: the family's */
    int32_t inferred;         /* 1: dimensions were inferred from a parameter count */
    int32_t reserved;
    /* Per layer. Low three bits: 0 full attention, 1 sliding window, 2 full without rotation, 3 sparse with the index of the
       layer before, 4 a state-space mixer, 5 none, 6 linear attention by the gated delta rule. Bits 4 and 5: the MLP; 0 dense,
       1 experts, 2 none. Bits 3, 6 and 7, where ffn_widths is given: the place of the MLP's width there, bit 3 the lowest. */
    uint8_t layer_kind[FTMEM_MAX_LAYERS];
    int64_t experts;           /* routed experts of a block with experts; 0: a dense model. All of them are parameters */
    int64_t experts_per_token; /* of those, how many work on one token; required with experts */
    int64_t expert_ffn;        /* width of one routed expert; 0: ffn */
    int64_t shared_ffn;        /* width of the expert that every token passes (several: together); 0: none */
    int64_t q_rank;            /* multi-head latent attention: width of the queries' latent; 0: they have none */
    int64_t kv_rank;           /* width of the latent of keys and values; 0: ordinary attention. head_dim is that of queries and
                                  keys, rotary_dim the rotated part of it, shared by all heads in the keys */
    int64_t value_dim;         /* width of a value head; 0: head_dim */
    int64_t router_groups;     /* experts are in so many groups, of which some are chosen first; 0: 1, no groups */
    int64_t index_heads;       /* sparse attention: heads of the indexer; 0: none */
    int64_t index_dim;         /* width of one of its heads; required with index_heads */
    int64_t index_tokens;      /* tokens that each query sees; required with index_heads */
    int32_t router_norm;       /* switch: the chosen experts' weights are divided by their sum; AUTO: the family's */
    int32_t expert_bias;       /* switch: biases in the experts; AUTO: the family's */
    /* The stack that runs before the decoder, in families that have one; elsewhere 0. */
    int64_t encoder_layers;    /* blocks; 0: layers */
    int64_t encoder_hidden;    /* width of its stream; 0: hidden */
    int64_t encoder_ffn;       /* width of its MLP; 0: ffn */
    int64_t encoder_heads;     /* 0: heads */
    int64_t encoder_positions; /* tokens that its position table has, or that each input makes (Whisper); 0: position_rows */
    int64_t encoder_channels;  /* of what is fed to a convolution: mel bins (Whisper); 0: the family's */
    int64_t relative_buckets;  /* rows of a table of relative positions (T5); 0: 32 */
    double mlp_dropout;        /* between activation and down projection; 0: none */
    int32_t gated;             /* switch: the MLP has a gate, in families that come in both forms (T5); AUTO: the family's */
    int32_t dequantized;       /* 1: the config's weights are in a format that is not trained (fp8, MXFP4, ...): taken as converted to job.dtype */
    int64_t type_vocab;       /* rows of the table of token types (BERT's segments); 0: none */
    int64_t embedding_width;  /* of the token embedding, where a projection widens it (ALBERT); 0: hidden */
    int64_t image_size;       /* pixels of a square image's side; tokens follow from it; 0: not a vision model */
    int64_t patch_size;       /* pixels of a patch's side */
    int64_t channels;         /* of a pixel; 0: 3 */
    int64_t labels;           /* of the config's classifier, the default of job.classes; 0: 2 */
    double head_dropout;      /* probability before a classifier; 0: none */
    int64_t tower_hidden;     /* width of the vision tower's blocks */
    int64_t tower_ffn;        /* of its MLP */
    int64_t tower_layers;     /* its blocks */
    int64_t tower_positions;  /* rows of its position table; 0: its patches */
    int64_t tower_merge;      /* side of the square of patches that become one token; 0: 1 */
    int64_t tower_taps;       /* blocks whose output goes to the text model besides the last one's (Qwen3-VL) */
    int64_t temporal_patch;   /* frames of a patch; 0: 1 */
    int32_t tower;            /* FTMEM_TOWER_...: a vision-language model, of which this is the text model; 0: none */
    int32_t mean_pooling;     /* switch: a classifier reads the mean of all tokens instead of the first one; AUTO: off */
    int64_t full_head_dim;    /* of blocks of full attention where window blocks have head_dim (Gemma 4); 0: head_dim */
    int64_t full_kv_heads;    /* likewise; 0: kv_heads */
    int64_t shared_kv_layers; /* so many last blocks take keys and values of the last block before them of their kind; 0: none */
    int64_t shared_kv_ffn;    /* width of their MLP; 0: ffn */
    int64_t layer_input;      /* width of the embedding that each block is given beside the stream; 0: none */
    int64_t layer_input_vocab;/* rows of its table; 0: vocab */
    int64_t tower_head_dim;   /* width of a head of the vision tower, where they are normalised one by one (Gemma 4) */
    int64_t audio_layers;     /* blocks of an audio tower (Gemma 4); 0: none */
    int64_t audio_hidden;     /* width of its stream; required with it */
    int64_t audio_heads;      /* required with it */
    int64_t audio_kernel;     /* of its convolution over time; required with it */
    int64_t audio_channels;   /* of its first convolution; required with it */
    int64_t audio_channels_last; /* of its second one; required with it */
    int64_t audio_out;        /* width of its result; required with it */
    int32_t full_values_from_keys; /* switch: blocks of full attention have no projection of values (Gemma 4's k=v); AUTO: off */
    int32_t tower_clipped;    /* switch: linears of the vision tower have bounds as buffers; AUTO: off */
    int32_t tower_standardized; /* switch: its result is shifted and scaled by buffers; AUTO: off */
    int32_t audio_clipped;    /* switch: linears of the audio tower have bounds as buffers; AUTO: off */
    int64_t ssm_heads;        /* of a state-space mixer (Mamba 2); 0: the model has none */
    int64_t ssm_head_dim;     /* width of one of its heads */
    int64_t ssm_state;        /* width of its state, for each dimension of a head */
    int64_t ssm_groups;       /* of heads, which share B and C; 0: 1 */
    int64_t ssm_chunk;        /* tokens of a chunk of its scan */
    int64_t expert_latent;    /* width of what routed experts read and write, between two linears (Nemotron 3 Super); 0: hidden */
    int32_t ssm_bias;         /* switch: biases in the mixer's linears; AUTO: off */
    int32_t ssm_conv_bias;    /* switch: a bias in its convolution; AUTO: on */
    int64_t mtp_layers;       /* blocks for multi-token prediction that are built and do not run (MiMo); 0: none */
    int64_t linear_key_heads;   /* linear attention: heads of queries and keys; 0: no block has it */
    int64_t linear_value_heads; /* heads of its values, a multiple; 0: linear_key_heads */
    int64_t linear_key_dim;     /* width of one of its query or key heads; required with linear_key_heads */
    int64_t linear_value_dim;   /* of one of its value heads; 0: linear_key_dim */
    int64_t conv_kernel;        /* tokens that the convolution of a state-space mixer or of linear attention sees; 0: 4 */
    int64_t tower_heads;      /* heads of the vision tower; required with job.images */
    int64_t tower_unread;     /* its last blocks whose output nobody reads: features are taken before them (LLaVA: 1) */
    int64_t tower_tokens;     /* tokens that the projector makes of an image (Gemma-3's mm_tokens_per_image); 0: its patches, merged */
    int64_t tower_window;     /* pixels of a window's side, in towers that attend in windows (Qwen2.5-VL); 0: they do not */
    int64_t tower_full_every; /* every so many blocks one attends to the whole image; 0: all do */
    int32_t tower_activation; /* of the tower's MLP; AUTO: the tower's usual one */
    int32_t tower_class_token; /* switch: the class token's feature is among those handed on (LLaVA's select strategy "full"); AUTO: off */
    int64_t tower_tap_first;  /* blocks before the first of tower_taps; 0: tower_tap_every */
    int64_t tower_tap_every;  /* from one to the next; 0: as many as leaves the last one in the tower */
    int64_t cross_layers;        /* blocks that attend to images alone, and do not run without them (Llama 3.2 Vision); not among `layers`; 0: none */
    int64_t tower_global_layers; /* blocks of a second encoder on top of the tower; 0: none */
    int64_t tower_tiles;         /* tiles that an image is cut into at most; 0: it is not cut */
    int64_t tower_ratios;        /* aspect ratios that have positions of their own; 0: none */
    int64_t tower_out;           /* width of the tower's result; 0: tower_hidden */
    int64_t ffn_widths[8];       /* widths that blocks choose their MLP's from (Nemotron-NAS), as layer_kind says; 0: no such place, all have ffn */
} ftmem_model;

/* Model from the shipped catalog by name ("meta-llama/Llama-3.1-8B"; the part after "/" alone, and letter case, do
   not matter). UNKNOWN_NAME lists the nearest names; UNSUPPORTED names the part that is not modelled. */
FTMEM_API ftmem_status ftmem_model_find(const char *name, ftmem_model *model, ftmem_error *error);
FTMEM_API int32_t ftmem_model_count(void);
FTMEM_API const char *ftmem_model_name_at(int32_t index); /* NULL outside 0 <= index < count */

/* One entry of a Hugging Face config.json, flattened: key is the dotted path ("rope_scaling.factor",
   "layer_types.3"). Nothing is retained. */
enum { FTMEM_ENTRY_NULL = 0, FTMEM_ENTRY_BOOL = 1, FTMEM_ENTRY_INT = 2, FTMEM_ENTRY_REAL = 3, FTMEM_ENTRY_TEXT = 4 };
typedef struct ftmem_entry {
    const char *key;
    int32_t type;     /* FTMEM_ENTRY_... */
    int32_t reserved;
    int64_t integer;  /* INT and BOOL */
    double real;      /* REAL */
    const char *text; /* TEXT */
} ftmem_entry;
/* Keys that the config omits take the class defaults of transformers for its model_type (data/config_defaults.csv). */
FTMEM_API ftmem_status ftmem_model_from_entries(const ftmem_entry *entries, size_t count, ftmem_model *model, ftmem_error *error);
/* A llama-like shape for a bare parameter count, and said to be so (model->inferred). 1e6 <= parameters <= 1e13. */
FTMEM_API ftmem_status ftmem_model_from_parameters(double parameters, ftmem_model *model, ftmem_error *error);

/* --------------------------------------------------------------------------------------------------- adapter */

typedef struct ftmem_adapter {
    uint32_t struct_size;
    int32_t kind;            /* FTMEM_ADAPTER_...; 0: none */
    int64_t rank;            /* r; 0: PEFT's default: 8, VERA 256, ADALORA 12, ... */
    uint32_t targets;        /* bit mask of roles; 0: the family's default in PEFT (see ftmem_adapter_target) */
    int32_t dtype;           /* of the LoRA matrices; 0: fp32 over 16-bit weights (PEFT >= 0.12, autocast_adapter_dtype) */
    double dropout;          /* LoRA dropout probability; 0: none */
    uint32_t modules_to_save;/* bit mask of FTMEM_PART_EMBED and FTMEM_PART_HEAD: trained whole, as copies */
    int32_t quant;           /* FTMEM_QUANT_...: how the base's linears are stored; 0: what the kind says */
    int32_t double_quant;    /* switch, NF4 and FP4; AUTO: on (the QLoRA recipe; bitsandbytes' own default is off) */
    int32_t kbit_fp32;       /* switch: prepare_model_for_kbit_training turns what is not quantised into fp32; AUTO: on for NF4, FP4 and INT8 */
    int32_t use_dora;        /* switch, LORA, QLORA and LORA8: weight-decomposed LoRA; AUTO: off */
    int32_t layers_first;    /* adapt only the first n blocks; 0: all */
    int32_t layers_last;     /* adapt only the last n blocks; 0: all */
    int32_t ends_bf16;       /* switch: after kbit_fp32 embedding and head go back to bf16 (TRL's peft_module_casting_to_bf16); AUTO: off */
    int32_t quant_group;     /* weights that share a scale; 0: the format's usual: GPTQ, AWQ and FP8 128, HQQ 64, AQLM 8 */
    int32_t virtual_tokens;  /* PROMPT, PREFIX, P_TUNING: num_virtual_tokens; required there */
    int32_t block_size;      /* OFT, BOFT: side of a rotation; C3A; MISS_MINI: mini_r; 0: 32, BOFT 4, C3A 256 */
    int32_t factors;         /* BOFT: boft_n_butterfly_factor, 0: 1; LOKR: decompose_factor, 0: as square as possible; ROAD: variant
                                1, 2 or 4, 0: 1; GRALORA: gralora_k, 0: 2 */
    int32_t encoder_hidden;  /* P_TUNING: encoder_hidden_size; 0: the model's width */
    int32_t trainable_tokens;/* LORA, QLORA, LORA8: how many rows of the embedding trainable_token_indices names; 0: none */
    int32_t ranks[16];       /* by role: rank_pattern; 0: `rank` */
    int32_t coefficients;    /* FOURIERFT 1000: n_frequency; TINYLORA 64: u; 0: those */
    uint32_t feedforward;    /* IA3, bit mask of roles: feedforward_modules, scaled before the linear; 0: DOWN */
} ftmem_adapter;

/* Adds the role(s) that `name` means in this model ("q_proj", "c_attn", "all-linear") to adapter->targets.
   UNKNOWN_NAME lists the family's module names: a target that matches nothing is an error. */
FTMEM_API ftmem_status ftmem_adapter_target(ftmem_adapter *adapter, const ftmem_model *model, const char *name, ftmem_error *error);
/* Module name of a role in this model ("q_proj"), NULL if the family has no such linear. */
FTMEM_API const char *ftmem_role_module(const ftmem_model *model, int32_t role);

/* ------------------------------------------------------------------------------------------------------- GPU */

/* Growth is inside reserved[]: the size never changes, since a job holds one by value. */
typedef struct ftmem_gpu {
    uint32_t struct_size;
    int32_t sm_arch;            /* compute capability x 10: 75, 80, 86, 89, 90, 100, 120; 0: 80, and listed as assumed */
    char name[64];              /* catalog key, with ":profile" for a MIG slice */
    int64_t memory_bytes;       /* what nvidia-smi calls total; 0: no device, no verdict */
    int64_t torch_bytes;        /* torch's total_memory, lower; 0: memory_bytes less a calibrated difference */
    int32_t sm_count;           /* streaming multiprocessors; 0: unknown */
    int32_t vendor;             /* 0 NVIDIA, 1 AMD, 2 Intel, 3 Apple */
    int64_t reserved[8];
} ftmem_gpu;

/* GPU by catalog key ("rtx-4090"), by what people type ("4090", "A100 80GB", "h100"), by memory alone ("24GB", a
   generic sm80 card), or a MIG slice ("a100-sxm-80gb:1g.10gb"). */
FTMEM_API ftmem_status ftmem_gpu_find(const char *name, ftmem_gpu *gpu, ftmem_error *error);
FTMEM_API int32_t ftmem_gpu_count(void);
FTMEM_API ftmem_status ftmem_gpu_at(int32_t index, ftmem_gpu *gpu);

/* ------------------------------------------------------------------------------------------------------- job */

typedef struct ftmem_job {
    uint32_t struct_size;
    int32_t stack;                /* 0: transformers + PEFT; its defaults are rows of data/stacks.csv */
    const ftmem_model *model;     /* required */
    const ftmem_adapter *adapter; /* NULL: full fine-tuning */
    ftmem_gpu gpu;                /* memory_bytes 0: no verdict */
    int64_t micro_batch;          /* b, rows a forward pass; 0: 1 */
    int64_t sequence;             /* s, tokens of the longest row after padding or packing; 0: 1024, or the tokens of an image */
    int64_t accumulation;         /* micro-batches a step; 0: 1 */
    int64_t eval_batch;           /* rows of an evaluation pass; 0: micro_batch */
    int64_t loss_chunk_tokens;    /* LOSS_CHUNKED; 0: 256 */
    int64_t recompute_every;      /* recompute every n-th block; 0: 1 (all) */
    int64_t used_by_others_bytes; /* of the card, by other processes and the display; 0: none */
    int64_t classes;              /* labels of a classifier; 0: the model's, else 2 */
    double margin;                /* verdict by the handbook's margin instead of the bound: 0.2 .. 0.3; 0: use the bound */
    int32_t task;                 /* 0: the family's, causal LM for decoders */
    int32_t dtype;                /* of the weights as loaded; 0: bf16 */
    int32_t autocast;             /* FTMEM_BF16 or FTMEM_FP16: torch.autocast around forward (Trainer's bf16=True / fp16=True); 0: none */
    int32_t master_weights;       /* switch: fp32 master copies of 16-bit weights in the optimizer; AUTO: off */
    int32_t optimizer;            /* 0: ADAMW (foreach) */
    int32_t attention;            /* 0: SDPA */
    int32_t repeat_kv;            /* switch: K and V are copied to all heads (transformers before 4.48); AUTO: off */
    int32_t mask;                 /* 0: none (dense or packed rows); PADDED: a 2-D padding mask is passed */
    int32_t recompute;            /* 0: none (transformers' default) */
    int32_t loss;                 /* 0: DROPPED */
    int32_t grad_clip;            /* switch: clip_grad_norm_ before the step; AUTO: on (Trainer's max_grad_norm 1.0) */
    int32_t eval;                 /* switch: an evaluation pass belongs to the run; AUTO: off */
    int32_t eval_keep_logits;     /* switch: evaluation keeps logits on the GPU for metrics; AUTO: off */
    int32_t freeze;               /* OR of FTMEM_PART_...: full fine-tuning with parts frozen; with ALL_BUT: only these are trained */
    int32_t freeze_first_layers;  /* n for PART_FIRST_LAYERS */
    int32_t freeze_last_layers;   /* n for PART_LAST_LAYERS */
    int32_t expandable_segments;  /* switch: PYTORCH_ALLOC_CONF=expandable_segments:True; AUTO: off */
    int32_t cublas_workspace;     /* switch: count cuBLAS workspaces as torch does; AUTO: on */
    int32_t transformers_version; /* major x 100 + minor, 524 = 5.24; 0: 524, and listed as assumed */
    int32_t torch_version;        /* major x 100 + minor, 213 = 2.13; 0: 213, and listed as assumed */
    int32_t kernels;              /* OR of FTMEM_FUSED_...: kernels of Liger-Kernel, Unsloth and the like; 0: none */
    int32_t outputs_fp32;         /* switch: accelerate converts the outputs of an autocast forward to fp32; AUTO: off */
    int32_t use_cache;            /* switch: the model returns keys and values, and its outputs hold them (transformers 4, use_cache left on); AUTO: off */
    int32_t varied_lengths;       /* switch: rows of a run differ in length, so that cached blocks fit badly (reserved and process); AUTO: off */
    int32_t compile;              /* OR of FTMEM_COMPILE_...: what torch.compile compiles; 0: nothing. Blocks: of RMSNorm, whole rotation and a gated MLP only */
    int32_t stack_version;        /* of the stack, major x 100 + minor; 0: the newest that the table knows */
    int32_t bitsandbytes_version; /* major x 100 + minor, 43 = 0.43; 0: 50. Before 0.43 a 4-bit linear keeps its input */
    int32_t offload_checkpoints;  /* switch: the inputs of checkpointed blocks go to CPU memory: with reentrance Unsloth's way, else page-locked
                                     (torchtune, TRL; what they move besides stays here); AUTO: off */
    int32_t ssm_kernels;          /* switch: mamba-ssm and causal-conv1d are installed, whose kernels state-space mixers then run; AUTO: off */
    int32_t reserved;
    int64_t encoder_sequence;     /* tokens of the encoder's longest row; 0: what the model fixes, else sequence */
    int64_t optimizer_rank;       /* GaLore, APOLLO: rank of the projected gradients; 0: 128 (transformers) */
    int32_t optimizer_in_backward;/* switch: each tensor is updated as its gradient arrives, which is then freed; AUTO: as the optimizer does */
    int32_t grad_scaler;          /* switch: torch.amp.GradScaler; AUTO: on under autocast to fp16 */
    int64_t images;               /* images of a row, which go through the vision tower; their tokens are counted in sequence. 0: rows of text alone */
    int64_t image_height;         /* pixels of an image as the processor hands it on; 0: model.image_size */
    int64_t image_width;          /* likewise */
    int32_t objective;            /* FTMEM_OBJECTIVE_...; 0: SFT. A row of micro_batch is then a sample: a pair of DPO is two rows of the model */
    int32_t reference;            /* FTMEM_REFERENCE_..., of objectives that have one */
    int64_t completion_sequence;  /* tokens of a row that an objective scores; 0: all but the first */
    int64_t generation_batch;     /* rows that are generated at once; 0: micro_batch x accumulation (TRL's default) */
    int32_t recompute_save;       /* FTMEM_SAVE_...; 0: nothing */
    int32_t recompute_first;      /* recompute the first n blocks only (Megatron's method "block"); 0: all */
    int32_t recompute_last;       /* recompute the last n blocks only; 0: all */
    int32_t generation;           /* FTMEM_GENERATION_..., of objectives that generate */
    const ftmem_model *teacher;   /* GKD: the teacher, in job.dtype without an adapter; NULL: a second model like `model` */
} ftmem_job;

/* ------------------------------------------------------------------------------------------------- the fields */

/* Every input field is one row of one table; validation, error names, ftmem_set, command lines and schemas read it. */
enum { FTMEM_OBJECT_MODEL = 0, FTMEM_OBJECT_ADAPTER = 1, FTMEM_OBJECT_GPU = 2, FTMEM_OBJECT_JOB = 3, FTMEM_OBJECT_END = 4 };
enum { FTMEM_TYPE_INT = 0, FTMEM_TYPE_REAL = 1, FTMEM_TYPE_ENUM = 2, FTMEM_TYPE_SET = 3, FTMEM_TYPE_TEXT = 4 };
typedef struct ftmem_field {
    const char *path;      /* "job.micro_batch" */
    const char *unit;      /* "rows", "tokens", "bytes", "" */
    const char *enum_name; /* for TYPE_ENUM: name table */
    const char *doc;       /* one line */
    const char *default_text; /* what 0 means, one phrase */
    double minimum, maximum;  /* inclusive, of a given (non-zero) value */
    int32_t object;        /* FTMEM_OBJECT_... */
    int32_t type;          /* FTMEM_TYPE_... */
    int32_t size;          /* bytes of the member */
    int32_t offset;        /* in its struct */
} ftmem_field;
FTMEM_API int32_t ftmem_field_count(void);
FTMEM_API const ftmem_field *ftmem_field_at(int32_t index);         /* NULL outside */
FTMEM_API const ftmem_field *ftmem_field_find(const char *path);    /* NULL if there is none */
/* Sets one member from text: object is the ftmem_model, ftmem_adapter, ftmem_gpu or ftmem_job that the path belongs to. */
FTMEM_API ftmem_status ftmem_set(const char *path, const char *text, void *object, ftmem_error *error);

/* --------------------------------------------------------------------------------------------------- results */

typedef struct ftmem_range {
    uint64_t lower, expected, upper; /* bytes; upper: 95 % of measured runs fall under it */
} ftmem_range;

/* One kind of tensor alive at the peak. */
typedef struct ftmem_tensor {
    uint64_t bytes;     /* all of them together, rounded to 512 as the allocator does */
    int64_t count;      /* how many of this shape */
    int64_t dims[3];    /* tokens x width, or rows x heads x ...; unused are 0 */
    int32_t tensor_class; /* FTMEM_CLASS_... */
    int32_t dtype;
    const char *op;     /* operation that made it ("linear", "log_softmax"); static text */
    const char *part;   /* part of the model ("mlp.up", "head"); static text */
} ftmem_tensor;
#define FTMEM_TENSOR_CAPACITY 8

/* A thing that was assumed or is worth knowing. ftmem_note_text makes the sentence. */
enum {
    FTMEM_NOTE_ASSUMED = 1,     /* field was not given; value is what was taken */
    FTMEM_NOTE_INFERRED = 2,    /* shape inferred from a parameter count */
    FTMEM_NOTE_KERNEL = 3,      /* the attention kernel that will run; value is FTMEM_KERNEL_... */
    FTMEM_NOTE_MATH_TRAP = 4,   /* grouped heads in fp32: sdpa falls to the math kernel, scores exist */
    FTMEM_NOTE_EVAL_HIGHER = 5, /* evaluation peaks above training */
    FTMEM_NOTE_LATER_STEP = 6,  /* the peak comes in step 2, when the states exist */
    FTMEM_NOTE_CKPT_FROZEN = 7, /* checkpointing makes frozen blocks keep inputs and pass gradients */
    FTMEM_NOTE_REMOTE_CODE = 9, /* the model's code is not in transformers: parameters are exact, activations those of the same form there */
    FTMEM_NOTE_DEQUANTIZED = 10, /* the weights are stored in a format that is not trained: predicted as converted to job.dtype on loading */
    FTMEM_NOTE_PLAIN_SSM = 11,  /* state-space mixers in plain torch code, not in the kernels of mamba-ssm */
    FTMEM_NOTE_SSM_KERNELS = 12, /* the mixers in those kernels, by their sources */
    FTMEM_NOTE_PLAIN_LINEAR = 13, /* linear attention in plain torch code, not in the kernels of flash-linear-attention */
    FTMEM_NOTE_TIER = 8         /* reserved and process are calibrated, with few rows behind them */
};
typedef struct ftmem_note {
    int32_t code;
    int32_t value;
    const char *field; /* static path, or NULL */
} ftmem_note;
#define FTMEM_NOTE_CAPACITY 32

typedef struct ftmem_memory {
    uint32_t struct_size;
    int32_t verdict;          /* FTMEM_FITS, MAY_FIT (upper bound does not fit, expected does), DOES_NOT_FIT */
    ftmem_range allocated;    /* peak over all phases */
    ftmem_range reserved;
    ftmem_range process;
    uint64_t usable_bytes;    /* what the device offers this process (process tier); 0: no device given */
    uint64_t phase_allocated[FTMEM_PHASE_CAPACITY]; /* expected peak of each phase; 0: the phase does not occur */
    uint64_t phase_process[FTMEM_PHASE_CAPACITY];
    uint64_t at_peak[FTMEM_CLASS_CAPACITY];         /* composition at the peak; sums to allocated.expected exactly */
    ftmem_tensor largest[FTMEM_TENSOR_CAPACITY];    /* largest kinds of tensor at the peak, descending */
    int32_t largest_count;
    int32_t peak_phase;       /* FTMEM_PHASE_... */
    int32_t peak_layer;       /* block, from 0; -1: outside the blocks */
    int32_t kernel;           /* FTMEM_KERNEL_... that attention takes */
    const char *peak_op;      /* the operation whose execution is the peak; static text */
    const char *peak_part;    /* "attention", "mlp", "head", "embedding", "optimizer"; static text */
    /* the handbook's four components at the peak, and the rest: allocated.expected = their sum */
    uint64_t weights_bytes, gradients_bytes, states_bytes, activations_bytes, overhead_bytes;
    int64_t parameters;       /* of the base model, shared matrices once */
    int64_t trainable;        /* trained, adapters included */
    double flops_forward;     /* one micro-batch, by torch's FlopCounterMode (matmuls and attention; causal half not taken off).
                                 That counter does not know grouped matrix products, so the products of routed experts add nothing
                                 here: 2 x tokens x (experts_per_token x 3 x hidden x expert_ffn) for each block with experts.
                                 What LoRA adds to experts' weights (baddbmm) is counted */
    double flops_backward;    /* recomputation included */
    uint64_t kept_bytes;      /* alive at the end of the first forward and not before it: kept by autograd; logits that the loop holds are left out */
    uint64_t kept_layer_bytes;/* of those, born in the middle block */
    uint64_t resident_bytes;  /* before the first step: weights, buffers, batch */
    uint64_t context_bytes;   /* CUDA context and libraries, in process */
    int32_t bound_rows;       /* measured runs behind the interval of the allocated tier for a job of this kind */
    int32_t note_count;
    ftmem_note notes[FTMEM_NOTE_CAPACITY];
    uint64_t host_bytes;        /* of CPU memory, at its highest: what is offloaded. Models, data and Python's own come on top */
    uint64_t host_pinned_bytes; /* of those, page-locked */
} ftmem_memory;

/* Memory of one GPU for one job. Touches no memory but the stack and *memory. */
FTMEM_API ftmem_status ftmem_predict_memory(const ftmem_job *job, ftmem_memory *memory, ftmem_error *error);
/* The job with every default filled in (the adapter too, if adapter is not NULL). */
FTMEM_API ftmem_status ftmem_resolve(const ftmem_job *job, ftmem_job *resolved, ftmem_adapter *adapter, ftmem_error *error);
/* The sentence of a note, cut to capacity; *needed (may be NULL) gets the full length + 1. */
FTMEM_API ftmem_status ftmem_note_text(const ftmem_note *note, char *buffer, size_t capacity, size_t *needed);

typedef struct ftmem_parameters {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t total;     /* shared matrices once */
    int64_t trainable; /* with adapters, freezing and modules_to_save */
    int64_t embedding; /* token embedding */
    int64_t head;      /* 0 when tied */
    int64_t block;     /* one block */
    int64_t adapters;  /* LoRA matrices */
    int64_t active;    /* of the base model, those that one token passes: total less the routed experts that were not chosen for
                          it (embedding, head and a vision tower count whole); total for a dense model */
} ftmem_parameters;
FTMEM_API ftmem_status ftmem_count_parameters(const ftmem_job *job, ftmem_parameters *out, ftmem_error *error);

/* ---------------------------------------------------------------------------------------------- first answers */

/* One single change to a job, and what it does to memory. */
enum {
    FTMEM_FIX_RECOMPUTE = 1, FTMEM_FIX_FUSED_LOSS = 2, FTMEM_FIX_CHUNKED_LOSS = 3, FTMEM_FIX_HALVE_BATCH = 4, FTMEM_FIX_BATCH_ONE = 5,
    FTMEM_FIX_OPTIMIZER_8BIT = 6, FTMEM_FIX_OPTIMIZER_PAGED = 7, FTMEM_FIX_HALVE_SEQUENCE = 8, FTMEM_FIX_PURE_BF16 = 9, FTMEM_FIX_LORA = 10,
    FTMEM_FIX_QLORA = 11, FTMEM_FIX_ATTENTION_SDPA = 12, FTMEM_FIX_EVAL_BATCH_ONE = 13, FTMEM_FIX_DROP_OUTPUTS = 14,
    FTMEM_FIX_AUTOCAST = 15, FTMEM_FIX_FUSED_OPTIMIZER = 16, FTMEM_FIX_EXPANDABLE = 17, FTMEM_FIX_END = 18
};
typedef struct ftmem_fix {
    int32_t code;    /* FTMEM_FIX_... */
    int32_t verdict; /* after the change */
    const char *text;/* what to change, in the field's words; static text */
    ftmem_range process;
    int64_t value;   /* new micro-batch, sequence, ... where one applies */
} ftmem_fix;
/* Predicts each single change again and returns those that lower the peak: fitting ones first, then by memory.
   Writes at most `capacity`; *count gets how many there are. */
FTMEM_API ftmem_status ftmem_fixes(const ftmem_job *job, ftmem_fix *fixes, int32_t capacity, int32_t *count, ftmem_error *error);

/* "Your sum": the bytes-per-parameter rule that people use for this method, term by term, beside the prediction. */
typedef struct ftmem_sum_term {
    const char *name;    /* "weights", "gradients", ... */
    double bytes_per_parameter; /* of the rule; 0: the rule has no such term */
    uint64_t rule_bytes; /* what the rule says */
    uint64_t ours_bytes; /* what is alive at the peak */
} ftmem_sum_term;
#define FTMEM_SUM_CAPACITY 6
FTMEM_API ftmem_status ftmem_your_sum(const ftmem_job *job, ftmem_sum_term terms[FTMEM_SUM_CAPACITY], int32_t *count, ftmem_error *error);

/* --------------------------------------------------------------------------------------------- the handbook */

/* Rules of thumb, for quick sums; GB = 1e9 bytes. They are quoted, not endorsed: see docs/handbook.md. */
FTMEM_API double ftmem_handbook_bytes_per_parameter(int32_t dtype);                       /* fp32 4, bf16/fp16 2, int8 1, nf4/fp4 0.5; 0: unknown */
/* weights + gradients + optimizer states of full AdamW training: fp32 4+4+8, 16-bit 2+2+8 bytes a parameter. */
FTMEM_API double ftmem_handbook_full_bytes(double parameters, int32_t dtype);
/* The book's estimate_memory: weights + gradients + fp32 states + batch x sequence x 4096 x 4 bytes. */
FTMEM_API double ftmem_handbook_estimate_bytes(double parameters, double micro_batch, double sequence, int32_t dtype);

/* ------------------------------------------------------------------------------------------------ formatting */

/* "12.3 GiB", "0.42 GiB" (three significant digits, locale-free). Returns the length needed, terminator not counted. */
FTMEM_API size_t ftmem_format_gib(uint64_t bytes, char *buffer, size_t capacity);

/* ---------------------------------------------------------------------------------------------- initialisers */

FTMEM_API ftmem_status ftmem_error_init(ftmem_error *x, size_t size);
FTMEM_API ftmem_status ftmem_model_init(ftmem_model *x, size_t size);
FTMEM_API ftmem_status ftmem_adapter_init(ftmem_adapter *x, size_t size);
FTMEM_API ftmem_status ftmem_gpu_init(ftmem_gpu *x, size_t size);
FTMEM_API ftmem_status ftmem_job_init(ftmem_job *x, size_t size);
FTMEM_API ftmem_status ftmem_memory_init(ftmem_memory *x, size_t size);
FTMEM_API ftmem_status ftmem_parameters_init(ftmem_parameters *x, size_t size);

#ifdef __cplusplus
}
template <typename T> inline T ftmem__init() { T x = T(); x.struct_size = (uint32_t)sizeof(T); return x; }
#define FTMEM__INIT(type) ftmem__init<type>()
#else
#define FTMEM__INIT(type) { .struct_size = (uint32_t)sizeof(type) }
#endif
#define FTMEM_ERROR_INIT FTMEM__INIT(ftmem_error)
#define FTMEM_MODEL_INIT FTMEM__INIT(ftmem_model)
#define FTMEM_ADAPTER_INIT FTMEM__INIT(ftmem_adapter)
#define FTMEM_GPU_INIT FTMEM__INIT(ftmem_gpu)
#define FTMEM_JOB_INIT FTMEM__INIT(ftmem_job)
#define FTMEM_MEMORY_INIT FTMEM__INIT(ftmem_memory)
#define FTMEM_PARAMETERS_INIT FTMEM__INIT(ftmem_parameters)

#endif /* FTMEM_H */
