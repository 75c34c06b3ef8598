/* Families of models: what each block is made of, in which order, and what transformers calls the parts. */
#ifndef FTMEM_FAMILIES_H
#define FTMEM_FAMILIES_H

#include "common.h"

/* Steps of a block. `cur` is the running value; `residual` and `branch` are set aside. (program.c) */
enum {
    FTMEM__END,
    FTMEM__RESIDUAL,              /* residual = cur */
    FTMEM__NORM,                  /* cur = norm(cur) */
    FTMEM__NORM_ASIDE,            /* branch = norm(cur) */
    FTMEM__ATTENTION,             /* cur = attention(cur) */
    FTMEM__ATTENTION_ASIDE,       /* branch = attention(cur) */
    FTMEM__MLP,                   /* cur = mlp(cur) */
    FTMEM__DROPOUT,               /* cur = dropout(cur) */
    FTMEM__DROPOUT_ASIDE,         /* branch = dropout(branch) */
    FTMEM__MULTIPLY,              /* cur = cur x residual multiplier, where the model has one */
    FTMEM__RESTART,               /* cur = residual */
    FTMEM__ADD,                   /* cur = residual + cur */
    FTMEM__ADD_BRANCH,            /* cur = branch + cur; branch is a name of the block's, alive until it returns */
    FTMEM__ADD_ASIDE,             /* cur = branch + residual */
    FTMEM__ADD_IN_PLACE,          /* cur += branch */
    FTMEM__KEEP,                  /* cur has a name of its own in the block's forward: alive until it returns */
    FTMEM__NORM_OF_RESIDUAL,      /* branch = norm(residual) */
    FTMEM__NORM_OVER,             /* cur = norm(residual) */
    FTMEM__RESIDUAL_ADD,          /* residual = dropout(branch) + residual */
    FTMEM__RESIDUAL_ATTENTION,    /* residual = attention(cur, residual), which adds them in its own forward */
    FTMEM__MLP_JOINED,            /* cur = mlp(cur, residual), likewise */
    FTMEM__ATTENTION_THEN_BRANCH, /* (cur, branch) = (branch, attention(cur)) */
    FTMEM__MLP_INLINE,            /* cur = mlp(cur), written out in the block's forward: each name is reused */
    FTMEM__JOIN_RESIDUAL_FIRST,   /* cur = (residual + branch) + cur */
    FTMEM__CONTEXT,               /* cur = attention(cur) before its output projection, whose names are gone by then */
    FTMEM__OUT_ASIDE,             /* branch = cur; cur = attention's output projection(cur) */
    FTMEM__UP,                    /* cur = activation(up(cur)) */
    FTMEM__DOWN_ASIDE,            /* branch = cur; cur = down(cur) */
    FTMEM__ADD_NORM,              /* cur = norm(cur + residual), in one expression */
    FTMEM__FORGET_BRANCH,         /* branch is a name no more */
    FTMEM__NORM_BUT_FIRST,        /* cur = norm(cur); the first block has none (modeling_modernbert.py) */
    /* of heads (head.c) */
    FTMEM__BASE_RETURNS, /* what follows belongs to the head, and the base model's names are gone */
    FTMEM__FIRST_TOKEN,  /* cur = cur[:, 0], or the mean over all tokens where the model pools so */
    FTMEM__DENSE,        /* cur = a linear of hidden x hidden */
    FTMEM__TANH,
    FTMEM__RELU,
    FTMEM__ACT, /* the model's activation */
    FTMEM__HEAD_DROPOUT,
    FTMEM__CROSS_ATTENTION,       /* cur = attention(cur) to what the stack before has made */
    FTMEM__CROSS_ATTENTION_ASIDE, /* branch = the same */
    FTMEM__DROPOUT_ADD,           /* cur = residual + dropout(cur); cur has a name until then */
    FTMEM__DROPOUT_ADD_BRANCH,    /* cur = residual + dropout(branch); cur and branch have names until then */
    FTMEM__CLAMP,                 /* cur = clamp(cur), in fp16 */
    FTMEM__ADD_NAMED,             /* cur = residual + cur; residual keeps its name until it is bound anew */
    FTMEM__EXPERTS_BESIDE,        /* cur = norm(cur) + norm(experts(norm(residual))), in blocks with experts (modeling_gemma4.py) */
    FTMEM__LAYER_INPUT,           /* cur = norm(out(act(gate(cur)) x the layer's input)), where the model has one, and the residual is added */
    FTMEM__SCALE_IN_PLACE,        /* cur *= a buffer */
    FTMEM__NARROW,                /* cur = cur.to(weight.dtype) (modeling_mamba2.py Mamba2Block) */
    FTMEM__WIDE_RESIDUAL,         /* residual = residual.float() */
    FTMEM__MIXER                  /* cur = attention, a state-space mixer or an MLP of cur: a block has one of them (modeling_nemotron_h.py) */
};

enum {
    FTMEM__RMS,
    FTMEM__RMS_PLUS_ONE,
    FTMEM__RMS_FP32_WEIGHT,
    FTMEM__LAYER,
    FTMEM__LAYER_NO_PARAMETERS,
    FTMEM__LAYER_FP32,
    FTMEM__RMS_T5,
    FTMEM__RMS_WIDENED,
    FTMEM__RMS_POW
};                                                                                                                                   /* norm kinds */
enum { FTMEM__ROPE, FTMEM__ROPE_INTERLEAVED, FTMEM__LEARNED, FTMEM__ALIBI, FTMEM__RELATIVE, FTMEM__UNROTATED, FTMEM__POSITIONLESS }; /* positions */
enum { FTMEM__GATED, FTMEM__GATED_FUSED, FTMEM__PLAIN, FTMEM__GATED_T5, FTMEM__PLAIN_NAMED };                                        /* MLP kinds */
/* FUSED: split in one; SLICED: three slices of one projection; HEADS: each head's three parts, split in one; SELECTED: each
   head's three parts, selected one by one; INDEXED: modeling_falcon.py FalconAttention._split_heads. */
enum { FTMEM__QKV_SEPARATE, FTMEM__QKV_FUSED, FTMEM__QKV_SLICED, FTMEM__QKV_HEADS, FTMEM__QKV_SELECTED, FTMEM__QKV_INDEXED, FTMEM__QKV_UNBOUND };
enum {
    FTMEM__EAGER_SHARED,
    FTMEM__EAGER_FALCON,
    FTMEM__EAGER_MPT,
    FTMEM__EAGER_BLOOM,
    FTMEM__EAGER_T5,
    FTMEM__EAGER_SINKS,
    FTMEM__EAGER_SINKS_NAMED
}; /* eager attention: transformers' usual one, or the model's own */
/* Rotation: the whole head; a slice of it, joined with the rest in apply_rotary_pos_emb, or in the attention's own frame; PAIRS: the
   latter over neighbours, before heads come first, with tables widened in each call. */
/* Latent attention rotates pairs as complex numbers (modeling_deepseek_v2.py), or pairs taken apart (modeling_deepseek_v3.py).
   HALVES: both halves of a head with tables half as wide (modeling_gpt_oss.py). */
enum {
    FTMEM__TURN_WHOLE,
    FTMEM__TURN_JOINED,
    FTMEM__TURN_APART,
    FTMEM__TURN_PAIRS,
    FTMEM__TURN_JOINED_LATE,
    FTMEM__TURN_COMPLEX,
    FTMEM__TURN_INTERLEAVED,
    FTMEM__TURN_HALVES,
    FTMEM__TURN_BEFORE
}; /* BEFORE: whole heads, before they come first */
enum {
    FTMEM__TABLES_CAST,
    FTMEM__TABLES_FP32,
    FTMEM__TABLES_CAST_QK_FP32,
    FTMEM__TABLES_QK_FP32_TWICE,
    FTMEM__TABLES_TURNED_FP32,
    FTMEM__TABLES_REPEATED
}; /* cos and sin in the stream's dtype or fp32; q and k widened before, or for each use, or after pairs were turned, by tables of each call. REPEATED: each call makes its own */
enum {
    FTMEM__EMBED_TOKENS,
    FTMEM__EMBED_SEGMENTS,
    FTMEM__EMBED_PATCHES,
    FTMEM__EMBED_NORMED,
    FTMEM__EMBED_IMAGE
}; /* the embedding: program.c, encoder.c, image.c */
enum { FTMEM__BRIDGE_LLAVA, FTMEM__BRIDGE_GEMMA3, FTMEM__BRIDGE_QWEN, FTMEM__BRIDGE_MISTRAL3, FTMEM__BRIDGE_PALIGEMMA };
enum { FTMEM__QK_PER_HEAD, FTMEM__QK_WHOLE, FTMEM__QK_OWN_WEIGHTS }; /* where q/k norms work; a weight for each head */

/* Routers: scores by softmax in fp32, then the best; CAST to the logits' dtype; SCALED by a constant. SIGMOID: the best by
   score and a bias, their scores gathered; GROUPED: from the best groups, and scaled. CHOSEN: the best logits, which have a
   bias, and then softmax of those alone; WIDE: without one, in fp32. BIASED: softmax in fp32 whatever autocast says, the best by
   score and a frozen bias, their scores gathered and divided. SCATTERED: the sigmoid of the best logits, the others' are minus infinity. */
enum {
    FTMEM__ROUTER_NONE,
    FTMEM__ROUTER_CHOSEN,
    FTMEM__ROUTER_CHOSEN_WIDE,
    FTMEM__ROUTER_SOFTMAX_BIASED,
    FTMEM__ROUTER_SCATTERED,
    FTMEM__ROUTER_SOFTMAX,
    FTMEM__ROUTER_SOFTMAX_CAST,
    FTMEM__ROUTER_SOFTMAX_SCALED,
    FTMEM__ROUTER_SOFTMAX_NORMED, /* of a norm of the stream; the weights times a parameter (modeling_gemma4.py Gemma4TextRouter) */
    FTMEM__ROUTER_SIGMOID,
    FTMEM__ROUTER_SIGMOID_GROUPED
};

/* How experts put gate and up together: halves of one product; every other column of it, clamped (modeling_gpt_oss.py). */
enum { FTMEM__GATE_HALVES, FTMEM__GATE_CLAMPED };

/* What PEFT calls the experts: nothing else than the parameters' names, which "all-linear" leaves alone; gate_proj, up_proj and
   down_proj; w1, w3 and w2. */
enum { FTMEM__EXPERTS_AS_PARAMETERS, FTMEM__EXPERTS_AS_PROJ, FTMEM__EXPERTS_AS_W };

static inline bool ftmem__is_linear(int32_t role) /* a matrix of a block that LoRA can adapt */
{
    return (FTMEM_ROLES_ALL_LINEAR >> role & 1u) != 0;
}

/* Halves of ftmem_model.layer_kind. */
enum {
    FTMEM__LAYER_FULL,
    FTMEM__LAYER_SLIDING,
    FTMEM__LAYER_NO_ROTATION,
    FTMEM__LAYER_SHARED_INDEX,
    FTMEM__LAYER_SSM,
    FTMEM__LAYER_NONE,
    FTMEM__LAYER_LINEAR,
    FTMEM__LAYER_KINDS
};
/* Beside them, where blocks hand on which keys they have chosen (ftmem__shape_layer_kind): the block before has just chosen,
   or has handed on itself what it was given. */
/* Likewise, where last blocks take keys and values of earlier ones: the block whose they are, and one that takes them. */
enum { FTMEM__LAYER_STORES = 64, FTMEM__LAYER_REUSES = 128 };
enum { FTMEM__LAYER_HANDED_NEW = 64, FTMEM__LAYER_HANDED_OLD = 128, FTMEM__LAYER_HANDED = 192 };
enum { FTMEM__MLP_DENSE, FTMEM__MLP_EXPERTS, FTMEM__MLP_NONE, FTMEM__MLP_KINDS };
static inline uint8_t ftmem__layer_attention(uint8_t kind)
{
    return kind & 7;
}
static inline uint8_t ftmem__layer_mlp(uint8_t kind)
{
    return (kind & (uint8_t)~FTMEM__LAYER_HANDED) >> 4;
}
/* Where blocks have MLPs of different widths: the place of this one's in ftmem_model.ffn_widths. */
enum { FTMEM__LAYER_WIDTH = 8 | FTMEM__LAYER_HANDED };
static inline int32_t ftmem__layer_width(uint8_t kind)
{
    return (kind >> 6) * 2 + (kind >> 3 & 1);
}
static inline uint8_t ftmem__layer_of_width(int32_t place)
{
    return (uint8_t)((place >> 1) << 6 | (place & 1) << 3);
}

typedef struct ftmem__family {
    const char *model_type;
    const struct ftmem__family *encoder;                    /* the stack before this one; NULL: none */
    const struct ftmem__family *tower_form;                 /* the same inside a vision-language model, where PEFT sees other modules */
    const struct ftmem__family *gated_form;                 /* the same with a gated MLP, where models come in both forms */
    const uint8_t *block, *parallel_block, *two_norm_block; /* FTMEM__END-terminated */
    const uint8_t *mlp_block;                               /* of a block without attention; NULL: the same as the others' */
    const uint8_t *head[FTMEM_TASK_END];                    /* by task: steps before the last linear; NULL: a decoder's, or none */
    uint8_t router, experts_as, experts_gate;
    uint8_t norm, positions, mlp, qkv, qk_norm_kind, activation, turn, tables, eager, embedding;
    uint8_t task;          /* the default of job.task; 0: causal LM */
    uint8_t id_buffers;    /* buffers of one number a position */
    uint8_t small_buffers; /* of up to 512 bytes besides a rotation's two: a scale, further frequencies */
    /* class defaults of the model's switches: FTMEM_ON or FTMEM_OFF */
    uint8_t tied, qkv_bias, o_bias, mlp_bias, norm_bias, qk_norm, parallel, two_norms, head_bias, router_norm, expert_bias;
    bool by_width : 1;            /* blocks have MLPs of different widths, and some no attention (modeling_decilm.py) */
    uint8_t extra_rows;           /* of the embedding, beyond the vocabulary (modeling_mllama.py: for the image token) */
    bool router_linear : 1;       /* the router is an nn.Linear, not a parameter (modeling_gemma4.py, modeling_minicpm.py) */
    bool router_fp32 : 1;         /* the router's weight stays in fp32, and its input is widened */
    bool embed_scale : 1;         /* the embedding is multiplied (Gemma; Granite where `scaled`) */
    bool logit_scale : 1;         /* the logits are, where `scaled` */
    bool norm_each : 1;           /* queries are normalised before keys are projected (modeling_qwen3.py, modeling_olmo2.py) */
    bool views_last : 1;          /* heads are separated after all three projections (modeling_olmo.py, modeling_stablelm.py) */
    bool tables_by_kind : 1;      /* sliding and full blocks rotate differently (modeling_gemma3.py, modeling_olmo3.py) */
    bool scale_outside : 1;       /* the multiplication stands in the model's forward, not in the embedding's (modeling_granite.py) */
    bool embed_norm : 1;          /* and normalised (BLOOM) */
    bool softmax_own_dtype : 1;   /* eager attention does not go to fp32 for its softmax */
    bool dropout_inside : 1;      /* of a branch: in the attention's and the MLP's own forward */
    bool scaled_query : 1;        /* q_proj(x) * scaling before attention, which scales by 1 (modeling_opt.py OPTAttention) */
    bool wide_scores : 1;         /* eager attention multiplies fp32 copies of queries and keys (modeling_gptj.py) */
    bool positions_by_row : 1;    /* each row looks its positions up, which are summed from the mask (modeling_opt.py) */
    bool bias_apart : 1;          /* a linear's bias is added by an operation of its own (modeling_falcon.py FalconLinear) */
    bool always_mask : 1;         /* create_causal_mask is told not to skip it (modeling_falcon.py) */
    bool returns_weights : 1;     /* a block returns (stream, attention weights): the caller's tuple holds them */
    bool index_halves : 1;        /* the indexer rotates halves, not pairs (modeling_deepseek_v32.py) */
    bool hands_index : 1;         /* a block returns the keys that its indexer has chosen, for the next ones (modeling_glm_moe_dsa.py) */
    bool sliding_kv_twice : 1;    /* window blocks have twice as many key and value heads (modeling_mimo_v2_flash.py) */
    bool scaled_values : 1;       /* v_proj(x) * a constant (modeling_mimo_v2_flash.py) */
    bool experts_apart : 1;       /* experts are linears of their own, in code outside transformers (modeling_deepseek.py) */
    bool no_flash : 1;            /* the class refuses flash-attention */
    bool mask_buffer : 1;         /* a boolean buffer of positions x positions (modeling_gpt_bigcode.py GPTBigCodeModel) */
    bool bidirectional : 1;       /* no causal mask; none at all unless rows are padded */
    bool no_final_norm : 1;       /* the last block's output is the base model's */
    bool softmax_uncast : 1;      /* its result goes into the matmul as it is */
    bool norm_inside : 1;         /* attention's own forward adds the residual and normalises (modeling_albert.py AlbertAttention) */
    bool shared_blocks : 1;       /* all blocks are one module */
    bool head_unquantized : 1;    /* the head's name is one that transformers does not quantise (lm_head) */
    bool first_plain : 1;         /* the first block has a norm less */
    bool head_apart : 1;          /* the head's dense and norm are modules beside the classifier, which alone PEFT saves */
    bool head_unbiased : 1;       /* the head's dense has no bias */
    bool returns_cache : 1;       /* with use_cache: even checkpointed blocks return keys and values, views of the fused projection (modeling_gpt_bigcode.py) */
    bool loss_own_dtype_v4 : 1;   /* transformers before 4.50: cross-entropy in the logits' dtype (modeling_gpt2.py GPT2LMHeadModel) */
    int32_t table_buffers_before; /* version of transformers until which each block has cos and sin of every position as buffers (4.44 and 4.47 read) */
    bool loss_in_model : 1;       /* transformers 4.46 and 4.47: the model's forward still widens and shifts the logits itself (modeling_mistral.py) */
    bool never_quantized : 1;     /* linears of a class of its own, which bitsandbytes leaves alone (Falcon) */
    bool scale_before_head : 1;   /* the head's input is scaled, where `scaled`, not the logits (MiniCPM) */
    bool normed_head : 1;         /* training multiplies by normalize(head.weight) (Baichuan 2 NormHead) */
    bool remote_code : 1;         /* not in transformers: the model's repository brings the code */
    bool embed_named : 1;         /* the embedding keeps its name beside its dropout (modeling_t5.py T5Stack) */
    bool positional_masks : 1;    /* blocks take their masks as positional arguments, which a reentrant checkpoint lets go (modeling_t5.py) */
    bool embed_norm_last : 1;     /* after the positions were added (modeling_bart.py) */
    bool logits_buffer : 1;       /* a buffer is added to the logits (modeling_bart.py final_logits_bias) */
    bool dense_heads : 1;         /* queries, keys and values are copied to heads first (modeling_whisper.py) */
    bool fed_features : 1;        /* the embedding is two convolutions over features of a fixed length (modeling_whisper.py WhisperEncoder) */
    bool k_unbiased : 1;          /* keys have no bias (modeling_whisper.py) */
    bool end_dropout : 1;         /* after the final norm (modeling_t5.py T5Stack) */
    bool keeps_cache : 1;         /* keys and values go through a cache in training too: model.config.use_cache does not reach the
                                            decoder's own config (modeling_t5.py T5Stack) */
    bool loss_own_dtype : 1;      /* CrossEntropyLoss of the logits as they are, in the model's own forward (modeling_t5.py, modeling_bert.py) */
    bool by_kind : 1;             /* full blocks have heads of their own, and blocks with keys of others an MLP of their own (modeling_gemma4.py) */
    bool down_never_quantized : 1; /* _keep_in_fp32_modules has the down projection (modeling_t5.py) */
    int32_t since;                 /* the version of transformers that has this code; 0: any that is modelled */
    uint32_t refused_targets;      /* linears at which PEFT fails, though all-linear means them */
    bool ids_held : 1;             /* position_ids is a name of the model's forward, no argument of its blocks (modeling_granitemoehybrid.py) */
    bool tables_asked : 1;         /* cos and sin are made where some block rotates (position_embedding_type) */
    bool head_narrowed : 1;        /* lm_head(x.to(weight.dtype)) (modeling_mamba2.py) */
    bool window_mask_made : 1;     /* a mask of windows is made even where no block has one (modeling_qwen2_moe.py: sliding_window becomes 0) */
    bool experts_dense : 1;        /* every expert works on every token, weighed by its score (modeling_llama4.py Llama4TextMoe) */
    bool normed_after : 1;         /* queries and keys that rotate are normalised afterwards, without weights (modeling_llama4.py Llama4TextL2Norm) */
    bool scaled_unrotated : 1;     /* queries that do not rotate are multiplied by a number for each position (modeling_llama4.py) */
    bool shared_first : 1;         /* the shared expert comes before the router (modeling_ernie4_5_moe.py) */
    bool shared_gated : 1;         /* the shared expert comes first, and is weighed by a sigmoid (modeling_qwen2_moe.py) */
    bool logits_fp32 : 1;          /* lm_head(...).float() in the model's forward (modeling_nemotron_h.py) */
    bool scaled_by_position : 1;   /* rotated queries are multiplied by a number for each position (modeling_ministral3.py get_llama_4_attn_scale) */
    bool tables_by_row : 1;        /* tables for each row: positions are given in time, height and width (modeling_qwen3_5.py) */
    bool gated_output : 1;         /* queries come with a gate, by whose sigmoid attention's result is multiplied (modeling_qwen3_next.py Qwen3NextAttention) */
    bool linear_joined : 1;        /* linear attention has two input projections, not four (modeling_qwen3_next.py Qwen3NextGatedDeltaNet) */
    bool class_token : 1;          /* before the patches */
    bool patch_bias : 1;           /* the convolution over patches has one */
    bool image_masks : 1;          /* the text model's masks let tokens of one image see each other (modeling_gemma3.py token_type_ids) */
    bool resampled : 1;            /* a learned table of positions is resampled to each image's grid (modeling_qwen3_vl.py) */
    bool no_input_leaf : 1;        /* enable_input_require_grads finds no embedding in it (modeling_qwen3_vl.py Qwen3VLVisionModel) */
    bool packed : 1;               /* all images are one row, with a mask between them (modeling_pixtral.py) */
    bool any_size : 1;             /* images of any size, whose merged patches are whole */
    bool chunked : 1;              /* attention takes images apart, and windows where it has them (modeling_qwen2_5_vl.py) */
    uint8_t bridge;                /* from a tower to the text model: FTMEM__BRIDGE_... (image.c) */
    const char *modules[FTMEM_ROLE_END]; /* by role; NULL: the family has no such linear */
    uint32_t default_targets;            /* PEFT's TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING */
} ftmem__family;

uint32_t ftmem__family_targets(const ftmem__family *family);                               /* roles that "all-linear" means */
const ftmem__family *ftmem__family_of(const ftmem_model *model);                           /* model->family 0: llama */
const uint8_t *ftmem__family_block(const ftmem__family *family, const ftmem_model *model); /* NULL: the family has no block of this form */
int64_t ftmem__image_tokens(const ftmem_model *model);                                     /* of an image: patches and the class token */
void ftmem__model_defaults(ftmem_model *model);                                            /* fills what is 0 */
void ftmem__model_encoder(const ftmem_model *model, ftmem_model *encoder);                 /* the stack before it, as a model of its own */
const ftmem__family *ftmem__family_tower(const ftmem_model *model);                        /* of model->tower; NULL: it does not run */
int64_t ftmem__tower_tokens(const ftmem_model *model, const ftmem_job *job);               /* of an image inside its tower */
int64_t ftmem__image_features(const ftmem_model *model, const ftmem_job *job);             /* tokens whose places an image takes */
void ftmem__model_tower(const ftmem_model *model, ftmem_model *tower);                     /* likewise, as a model */
ftmem_status ftmem__model_check(const ftmem_model *model, ftmem_error *error);

#endif
