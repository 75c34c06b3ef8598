/*
 * The families: one operation list and one row each. Sources: transformers 5.24 modeling_<type>.py (order of steps,
 * norm and bias defaults) and peft 0.21 utils/constants.py (default LoRA targets). A new family is a row here, its
 * config keys in config.c, its name in names.inc and a golden count in tests/vectors/parameters.csv.
 */
#include "families.h"

/* Lists and rows are laid out by hand. */
/* clang-format off */
#define ON FTMEM_ON
#define OFF FTMEM_OFF
#define R(role) (1u << FTMEM_ROLE_##role)
#define STEPS(name, ...) static const uint8_t name[] = {__VA_ARGS__, FTMEM__END}

/* x + attention(norm x), then x + mlp(norm x) */
STEPS(families_sequential, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION, FTMEM__DROPOUT, FTMEM__MULTIPLY, FTMEM__ADD,
      FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP, FTMEM__DROPOUT, FTMEM__MULTIPLY, FTMEM__ADD);
STEPS(families_mlp, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP, FTMEM__ADD);
/* attention_states is a name that lives on (modeling_llama4.py Llama4TextDecoderLayer) */
STEPS(families_llama4, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION_ASIDE, FTMEM__ADD_ASIDE, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP, FTMEM__ADD);
/* norms before and after each half (Gemma-2, Gemma-3) */
STEPS(families_sandwich, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION, FTMEM__NORM, FTMEM__ADD,
      FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP, FTMEM__NORM, FTMEM__ADD);
/* modeling_gemma4.py Gemma4TextDecoderLayer */
STEPS(families_gemma4, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION, FTMEM__NORM, FTMEM__ADD,
      FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP, FTMEM__EXPERTS_BESIDE, FTMEM__NORM, FTMEM__ADD, FTMEM__LAYER_INPUT, FTMEM__SCALE_IN_PLACE);
/* norms after each half only (OLMo-2) */
STEPS(families_post_norm, FTMEM__RESIDUAL, FTMEM__ATTENTION, FTMEM__NORM, FTMEM__ADD, FTMEM__RESIDUAL, FTMEM__MLP, FTMEM__NORM, FTMEM__ADD);
/* attention(n) + mlp(n) + x with n = norm x (modeling_gptj.py GPTJBlock, modeling_phi.py PhiDecoderLayer) */
STEPS(families_side_by_side, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__KEEP, FTMEM__ATTENTION_ASIDE, FTMEM__DROPOUT_ASIDE, FTMEM__MLP, FTMEM__DROPOUT,
      FTMEM__KEEP, FTMEM__ADD_BRANCH, FTMEM__ADD);
/* attention_output and feed_forward_hidden_states are names that live on (modeling_gpt2.py GPT2Block, modeling_gpt_bigcode.py) */
STEPS(families_gpt2, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION_ASIDE, FTMEM__ADD_ASIDE, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__KEEP, FTMEM__MLP, FTMEM__ADD);
/* modeling_opt.py OPTDecoderLayer: the MLP is written out in the layer */
STEPS(families_opt, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION, FTMEM__DROPOUT, FTMEM__ADD, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP_INLINE, FTMEM__DROPOUT,
      FTMEM__ADD);
/* modeling_bloom.py BloomBlock, and modeling_mpt.py MptBlock, where the MLP alone adds the residual itself */
STEPS(families_bloom, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__RESIDUAL_ATTENTION, FTMEM__NORM_OVER, FTMEM__MLP_JOINED);
STEPS(families_mpt, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION_ASIDE, FTMEM__RESIDUAL_ADD, FTMEM__NORM_OVER, FTMEM__MLP_JOINED);
/* modeling_falcon.py FalconDecoderLayer: one norm, two norms, and one branch after the other */
STEPS(families_falcon, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__KEEP, FTMEM__ATTENTION_ASIDE, FTMEM__MLP, FTMEM__ADD_IN_PLACE, FTMEM__KEEP, FTMEM__DROPOUT, FTMEM__ADD);
STEPS(families_falcon_two, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__KEEP, FTMEM__NORM_OF_RESIDUAL, FTMEM__ATTENTION_THEN_BRANCH, FTMEM__KEEP, FTMEM__MLP,
      FTMEM__ADD_IN_PLACE, FTMEM__KEEP, FTMEM__DROPOUT, FTMEM__ADD);
STEPS(families_falcon_serial, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__KEEP, FTMEM__ATTENTION, FTMEM__KEEP, FTMEM__ADD, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__KEEP,
      FTMEM__MLP, FTMEM__KEEP, FTMEM__DROPOUT, FTMEM__ADD);
/* modeling_stablelm.py StableLmDecoderLayer: the norm's output and self_attn_output are names that live on */
STEPS(families_stablelm, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__KEEP, FTMEM__ATTENTION, FTMEM__KEEP, FTMEM__ADD, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP,
      FTMEM__DROPOUT, FTMEM__ADD);
/* x + attention(n) + mlp(n) (modeling_cohere.py CohereDecoderLayer, StableLM) */
STEPS(families_residual_first, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__KEEP, FTMEM__ATTENTION_ASIDE, FTMEM__MLP, FTMEM__DROPOUT, FTMEM__JOIN_RESIDUAL_FIRST);
/* mlp(norm2 x) + attention(norm1 x) + x (modeling_gpt_neox.py GPTNeoXLayer) */
STEPS(families_two_norms, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION_ASIDE, FTMEM__RESTART, FTMEM__DROPOUT_ASIDE, FTMEM__NORM, FTMEM__MLP,
      FTMEM__DROPOUT, FTMEM__KEEP, FTMEM__ADD_BRANCH, FTMEM__ADD);

/* modeling_nemotron_h.py NemotronHBlock */
STEPS(families_mamba2, FTMEM__RESIDUAL, FTMEM__NARROW, FTMEM__NORM, FTMEM__WIDE_RESIDUAL, FTMEM__MIXER, FTMEM__ADD); /* modeling_mamba2.py Mamba2Block */
STEPS(families_one_part, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MIXER, FTMEM__ADD);

/* modeling_bert.py BertLayer: norms after each half, each in a module that its input outlives */
STEPS(families_bert, FTMEM__RESIDUAL, FTMEM__CONTEXT, FTMEM__OUT_ASIDE, FTMEM__DROPOUT, FTMEM__ADD_NORM, FTMEM__FORGET_BRANCH, FTMEM__RESIDUAL, FTMEM__UP,
      FTMEM__DOWN_ASIDE, FTMEM__DROPOUT, FTMEM__ADD_NORM);

/* modeling_distilbert.py TransformerBlock; modeling_albert.py AlbertLayer */
STEPS(families_distilbert, FTMEM__RESIDUAL, FTMEM__ATTENTION, FTMEM__ADD_NORM, FTMEM__RESIDUAL, FTMEM__MLP_INLINE, FTMEM__DROPOUT, FTMEM__ADD_NORM);
STEPS(families_albert, FTMEM__RESIDUAL, FTMEM__RESIDUAL_ATTENTION, FTMEM__RESTART, FTMEM__MLP_INLINE, FTMEM__ADD_NORM);

/* modeling_modernbert.py ModernBertEncoderLayer: attn_output is a name that lives on */
STEPS(families_modernbert, FTMEM__RESIDUAL, FTMEM__NORM_BUT_FIRST, FTMEM__ATTENTION, FTMEM__KEEP, FTMEM__ADD, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP, FTMEM__ADD);

/* heads: modeling_roberta.py RobertaClassificationHead, modeling_distilbert.py DistilBertForSequenceClassification; modeling_bert.py BertPooler and BertForSequenceClassification, BertLMPredictionHead, BertForTokenClassification; modeling_vit.py */
STEPS(families_head_modernbert, FTMEM__BASE_RETURNS, FTMEM__FIRST_TOKEN, FTMEM__DENSE, FTMEM__ACT, FTMEM__NORM, FTMEM__HEAD_DROPOUT);
STEPS(families_head_modernbert_tokens, FTMEM__BASE_RETURNS, FTMEM__DENSE, FTMEM__ACT, FTMEM__NORM, FTMEM__HEAD_DROPOUT);
STEPS(families_head_roberta, FTMEM__BASE_RETURNS, FTMEM__FIRST_TOKEN, FTMEM__HEAD_DROPOUT, FTMEM__DENSE, FTMEM__TANH, FTMEM__HEAD_DROPOUT);
STEPS(families_head_distilbert, FTMEM__BASE_RETURNS, FTMEM__FIRST_TOKEN, FTMEM__DENSE, FTMEM__RELU, FTMEM__HEAD_DROPOUT);
STEPS(families_head_pooled, FTMEM__FIRST_TOKEN, FTMEM__DENSE, FTMEM__TANH, FTMEM__BASE_RETURNS, FTMEM__HEAD_DROPOUT);
STEPS(families_head_transform, FTMEM__BASE_RETURNS, FTMEM__DENSE, FTMEM__ACT, FTMEM__NORM);
STEPS(families_head_dropout, FTMEM__BASE_RETURNS, FTMEM__HEAD_DROPOUT);
STEPS(families_head_first, FTMEM__BASE_RETURNS, FTMEM__FIRST_TOKEN);

#define LLAMA_MODULES {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL}
#define LLAMA_LIKE .block = families_sequential, .activation = FTMEM_SILU, .mlp = FTMEM__GATED, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, \
    .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)
#define LLAMA_PARTS .block = families_sequential, .activation = FTMEM_SILU, .tied = OFF, .o_bias = OFF, .mlp_bias = OFF, \
    .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF
/* modeling_glm.py, modeling_glm4.py: half of each head rotates, in pairs, by tables that each call repeats */
#define GLM_LIKE .activation = FTMEM_SILU, .mlp = FTMEM__GATED_FUSED, .turn = FTMEM__TURN_JOINED, .tables = FTMEM__TABLES_REPEATED, .tied = OFF, .qkv_bias = ON, .o_bias = OFF, \
    .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .default_targets = R(Q) | R(V), \
    .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", NULL, NULL, "gate_up_proj", "down_proj", "embed_tokens", "lm_head", NULL, NULL}
#define QWEN3_PARTS .block = families_sequential, .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, \
    .norm_bias = OFF, .qk_norm = ON, .parallel = OFF, .two_norms = OFF, .head_bias = OFF
#define OLMO2_PARTS .norm_each = true, .views_last = true, .block = families_post_norm, .norm = FTMEM__RMS_FP32_WEIGHT, .qk_norm_kind = FTMEM__QK_WHOLE, .tables = FTMEM__TABLES_FP32, \
    .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = ON, .parallel = OFF, .two_norms = OFF, .head_bias = OFF
/* peft/utils/transformers_weight_conversion.py: in these families gate_proj, up_proj and down_proj (w1, w3 and w2) mean the
   experts' parameters, in dense blocks and shared experts nothing. */
#define MOE_MODULES {"q_proj", "k_proj", "v_proj", NULL, "o_proj", NULL, NULL, NULL, NULL, "embed_tokens", "lm_head", NULL, NULL, \
    "mlp.gate", "experts.gate_up_proj", "experts.down_proj", NULL}
#define MOE_PLAIN_MODULES {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL, \
    "mlp.gate", "experts.gate_up_proj", "experts.down_proj", NULL}
#define QWEN2_MOE_MODULES {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL, \
    "mlp.gate", "experts.gate_up_proj", "experts.down_proj", "shared_expert_gate"}
#define GRANITE_MOE_MODULES {"q_proj", "k_proj", "v_proj", NULL, "o_proj", NULL, NULL, NULL, NULL, "embed_tokens", "lm_head", NULL, NULL, \
    "block_sparse_moe.router", "experts.gate_up_proj", "experts.down_proj", NULL}
#define LLAMA4_MODULES {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL, \
    "feed_forward.router", "experts.gate_up_proj", "experts.down_proj", NULL}
#define GPT_OSS_MODULES {"q_proj", "k_proj", "v_proj", NULL, "o_proj", NULL, NULL, NULL, NULL, "embed_tokens", "lm_head", NULL, NULL, \
    "mlp.router", "experts.gate_up_proj", "experts.down_proj", NULL}
#define LATENT_DENSE_MODULES {"q_proj", NULL, NULL, NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL, \
    NULL, NULL, NULL, NULL, "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}
#define LATENT_MODULES {"q_proj", NULL, NULL, NULL, "o_proj", NULL, NULL, NULL, NULL, "embed_tokens", "lm_head", NULL, NULL, \
    "mlp.gate", "experts.gate_up_proj", "experts.down_proj", NULL, "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}
#define LATENT_PLAIN_MODULES {"q_proj", NULL, NULL, NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL, \
    "mlp.gate", "experts.gate_up_proj", "experts.down_proj", NULL, "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}
#define SPARSE_MODULES {"q_proj", NULL, NULL, NULL, "o_proj", NULL, NULL, NULL, NULL, "embed_tokens", "lm_head", NULL, NULL, \
    "mlp.gate", "experts.gate_up_proj", "experts.down_proj", NULL, "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "wq_b", "wk", "weights_proj"}
#define QWEN3_NEXT_MODULES {"q_proj", "k_proj", "v_proj", "in_proj_qkvz", "o_proj", NULL, NULL, NULL, NULL, "embed_tokens", "lm_head", NULL, NULL, \
    "mlp.gate", "experts.gate_up_proj", "experts.down_proj", "shared_expert_gate", [FTMEM_ROLE_LINEAR_B] = "in_proj_ba", [FTMEM_ROLE_MIXER_OUT] = "out_proj"}
#define QWEN3_5_MODULES(...) {"q_proj", "k_proj", "v_proj", "in_proj_qkv", "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL, \
    [FTMEM_ROLE_MIXER_IN] = "in_proj_z", [FTMEM_ROLE_LINEAR_B] = "in_proj_b", [FTMEM_ROLE_LINEAR_A] = "in_proj_a", [FTMEM_ROLE_MIXER_OUT] = "out_proj" __VA_ARGS__}
#define QWEN3_HYBRID QWEN3_PARTS, .since = 524, .norm = FTMEM__RMS_PLUS_ONE, .norm_each = true, .turn = FTMEM__TURN_JOINED_LATE, .gated_output = true
#define GPT_LIKE .block = families_gpt2, .dropout_inside = true, GPT_PARTS
#define ENCODER .norm = FTMEM__LAYER, .positions = FTMEM__LEARNED, .mlp = FTMEM__PLAIN, .activation = FTMEM_GELU, .bidirectional = true, .positional_masks = true, .qkv_bias = ON, .o_bias = ON, \
    .mlp_bias = ON, .norm_bias = ON, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF
#define BERT_LIKE ENCODER, .embedding = FTMEM__EMBED_SEGMENTS, .task = FTMEM_TASK_MASKED_LM, .no_final_norm = true, .softmax_uncast = true, \
    .softmax_own_dtype = true, .loss_own_dtype = true, .tied = ON, .head_bias = ON
#define GPT_PARTS .norm = FTMEM__LAYER, .mlp = FTMEM__PLAIN, .tied = ON, .qkv_bias = ON, .o_bias = ON, .mlp_bias = ON, .norm_bias = ON, \
    .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF

/* modeling_t5.py T5LayerSelfAttention, T5LayerCrossAttention, T5LayerFF: a sublayer's values are names to its end */
#define T5_ATTENTION FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION_ASIDE, FTMEM__DROPOUT_ADD_BRANCH, FTMEM__CLAMP
#define T5_FF FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP, FTMEM__DROPOUT_ADD, FTMEM__CLAMP
STEPS(families_t5_encoder, T5_ATTENTION, T5_FF);
STEPS(families_t5_decoder, T5_ATTENTION, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__CROSS_ATTENTION_ASIDE, FTMEM__DROPOUT_ADD_BRANCH, FTMEM__CLAMP, T5_FF);
#define T5_PARTS .model_type = "t5", .norm = FTMEM__RMS_T5, .positions = FTMEM__RELATIVE, .eager = FTMEM__EAGER_T5, .tied = ON, .qkv_bias = OFF, .o_bias = OFF, \
    .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .embed_named = true, .end_dropout = true, .positional_masks = true, \
    .down_never_quantized = true, .scale_before_head = true, .loss_own_dtype = true, .default_targets = R(Q) | R(V)
#define T5_PLAIN T5_PARTS, .mlp = FTMEM__PLAIN_NAMED, .activation = FTMEM_RELU, \
    .modules = {"q", "k", "v", NULL, "o", NULL, "wi", NULL, "wo", "shared", "lm_head", NULL, "relative_attention_bias"}
#define T5_GATED T5_PARTS, .mlp = FTMEM__GATED_T5, .activation = FTMEM_GELU_NEW, \
    .modules = {"q", "k", "v", NULL, "o", "wi_0", "wi_1", NULL, "wo", "shared", "lm_head", NULL, "relative_attention_bias"}
static const ftmem__family families_t5_plain_encoder = {.block = families_t5_encoder, T5_PLAIN};
static const ftmem__family families_t5_gated_encoder = {.block = families_t5_encoder, T5_GATED};
static const ftmem__family families_t5_gated = {.block = families_t5_decoder, .encoder = &families_t5_gated_encoder, .keeps_cache = true, T5_GATED};

/* modeling_bart.py BartEncoderLayer, BartDecoderLayer: a norm after each sum; residual is a name to the end */
#define BART_END FTMEM__DROPOUT, FTMEM__ADD_NAMED, FTMEM__NORM
#define BART_ATTENTION FTMEM__RESIDUAL, FTMEM__ATTENTION, BART_END
#define BART_FF FTMEM__RESIDUAL, FTMEM__MLP_INLINE, BART_END
STEPS(families_bart_encoder, BART_ATTENTION, BART_FF);
STEPS(families_bart_decoder, BART_ATTENTION, FTMEM__RESIDUAL, FTMEM__CROSS_ATTENTION, BART_END, BART_FF);
#define BART_PARTS .norm = FTMEM__LAYER, .mlp = FTMEM__PLAIN, .positions = FTMEM__LEARNED, .eager = FTMEM__EAGER_T5, .activation = FTMEM_GELU, .tied = ON, \
    .qkv_bias = ON, .o_bias = ON, .mlp_bias = ON, .norm_bias = ON, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .loss_own_dtype = true, \
    .modules = {"q_proj", "k_proj", "v_proj", NULL, "out_proj", NULL, "fc1", NULL, "fc2", "embed_tokens", "lm_head", NULL, "embed_positions"}
#define BART .model_type = "bart", BART_PARTS, .embed_norm_last = true, .no_final_norm = true, .embed_scale = true, .default_targets = R(Q) | R(V)
static const ftmem__family families_bart_source = {.block = families_bart_encoder, .positions_by_row = true, .positional_masks = true, BART};
/* modeling_whisper.py WhisperEncoderLayer, WhisperDecoderLayer: the norm comes first */
#define WHISPER_ATTENTION FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__ATTENTION, FTMEM__DROPOUT, FTMEM__ADD_NAMED
#define WHISPER_FF FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__MLP_INLINE, FTMEM__DROPOUT, FTMEM__ADD_NAMED
STEPS(families_whisper_encoder, WHISPER_ATTENTION, WHISPER_FF, FTMEM__CLAMP);
STEPS(families_whisper_decoder, WHISPER_ATTENTION, FTMEM__RESIDUAL, FTMEM__NORM, FTMEM__CROSS_ATTENTION, FTMEM__DROPOUT, FTMEM__ADD_NAMED, WHISPER_FF);
#define WHISPER .model_type = "whisper", BART_PARTS, .scaled_query = true, .dense_heads = true, .k_unbiased = true
static const ftmem__family families_whisper_source = {.block = families_whisper_encoder, .fed_features = true, .positional_masks = true, WHISPER};

#define DEEPSEEK_V3_PARTS .model_type = "deepseek_v3", LLAMA_PARTS, .qkv_bias = OFF, .turn = FTMEM__TURN_INTERLEAVED, .router = FTMEM__ROUTER_SIGMOID_GROUPED, .router_norm = ON, \
    .router_fp32 = true, .default_targets = R(Q_UP) | R(KV_UP)
/* peft/utils/transformers_weight_conversion.py goes by the model type, which here is the whole model's */
static const ftmem__family families_deepseek_v3_seen = {DEEPSEEK_V3_PARTS, .modules = LATENT_PLAIN_MODULES};

static const ftmem__family families_rows[FTMEM_FAMILY_END] = {
    [FTMEM_WHISPER] = {.block = families_whisper_decoder, .encoder = &families_whisper_source, .positions_by_row = true, WHISPER},
    [FTMEM_BART] = {.block = families_bart_decoder, .encoder = &families_bart_source, .logits_buffer = true, BART},
    [FTMEM_T5] = {.block = families_t5_decoder, .encoder = &families_t5_plain_encoder, .gated_form = &families_t5_gated, .keeps_cache = true, T5_PLAIN},
    [FTMEM_GRANITEMOEHYBRID] = {.model_type = "granitemoehybrid", LLAMA_PARTS, .since = 500, .qkv_bias = OFF, .mlp = FTMEM__GATED_FUSED, .router = FTMEM__ROUTER_CHOSEN_WIDE,
        .embed_scale = true, .scale_outside = true, .logit_scale = true, .ids_held = true, .tables_asked = true,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", NULL, NULL, "input_linear", "output_linear", "embed_tokens", "lm_head", [FTMEM_ROLE_ROUTER] = "router",
                    [FTMEM_ROLE_EXPERTS_UP] = "experts.gate_up_proj", [FTMEM_ROLE_EXPERTS_DOWN] = "experts.down_proj", [FTMEM_ROLE_MIXER_IN] = "in_proj",
                    [FTMEM_ROLE_MIXER_OUT] = "out_proj"}},
    [FTMEM_BAMBA] = {.model_type = "bamba", LLAMA_PARTS, .since = 500, .qkv_bias = OFF, .mlp = FTMEM__GATED, .turn = FTMEM__TURN_JOINED, .returns_weights = true,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", [FTMEM_ROLE_MIXER_IN] = "in_proj",
                    [FTMEM_ROLE_MIXER_OUT] = "out_proj"}},
    [FTMEM_MAMBA2] = {.model_type = "mamba2", .since = 500, .block = families_mamba2, .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF,
        .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .positions = FTMEM__POSITIONLESS, .logits_fp32 = true,
        .head_narrowed = true, .refused_targets = R(MIXER_OUT),
        .modules = {NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "embeddings", "lm_head", [FTMEM_ROLE_MIXER_IN] = "in_proj", [FTMEM_ROLE_MIXER_OUT] = "out_proj"}},
    [FTMEM_NEMOTRON_H] = {.model_type = "nemotron_h", .block = families_one_part, .norm = FTMEM__RMS_WIDENED, .positions = FTMEM__UNROTATED, .mlp = FTMEM__PLAIN, .activation = FTMEM_RELU2,
        .router = FTMEM__ROUTER_SIGMOID_GROUPED, .router_norm = ON, .router_fp32 = true, .logits_fp32 = true, .refused_targets = R(MIXER_OUT), .since = 500, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF,
        .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", NULL, "up_proj", NULL, "down_proj", "embeddings", "lm_head", [FTMEM_ROLE_ROUTER] = "mixer.gate",
                    [FTMEM_ROLE_EXPERTS_UP] = "experts.up_proj", [FTMEM_ROLE_EXPERTS_DOWN] = "experts.down_proj", [FTMEM_ROLE_KV_DOWN] = "fc1_latent_proj",
                    [FTMEM_ROLE_KV_UP] = "fc2_latent_proj", [FTMEM_ROLE_MIXER_IN] = "in_proj", [FTMEM_ROLE_MIXER_OUT] = "out_proj"},
        .default_targets = R(Q) | R(K) | R(V) | R(O)},
    [FTMEM_MINISTRAL3] = {.model_type = "ministral3", LLAMA_LIKE, .scaled_by_position = true},
    [FTMEM_MIMO] = {.model_type = "mimo", LLAMA_PARTS, .remote_code = true, .qkv_bias = ON,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", [FTMEM_ROLE_TOWER] = "input_proj"},
        .default_targets = R(Q) | R(V)},
    [FTMEM_LLAMA] = {.model_type = "llama", LLAMA_LIKE},
    [FTMEM_MISTRAL] = {.model_type = "mistral", .loss_in_model = true, LLAMA_LIKE},
    [FTMEM_QWEN2] = {.model_type = "qwen2", .table_buffers_before = 445, .block = families_sequential, .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = ON, .o_bias = OFF, .mlp_bias = OFF,
        .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_QWEN3] = {.model_type = "qwen3", .norm_each = true, .block = families_sequential, .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF,
        .norm_bias = OFF, .qk_norm = ON, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_GEMMA] = {.model_type = "gemma", .small_buffers = 1, .block = families_sequential, .norm = FTMEM__RMS_PLUS_ONE, .activation = FTMEM_GELU_TANH, .tied = ON, .qkv_bias = OFF,
        .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .embed_scale = true,
        .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_GEMMA2] = {.model_type = "gemma2", .small_buffers = 1, .block = families_sandwich, .norm = FTMEM__RMS_PLUS_ONE, .activation = FTMEM_GELU_TANH, .tied = ON, .qkv_bias = OFF,
        .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .embed_scale = true,
        .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_GEMMA3] = {.model_type = "gemma3_text", .small_buffers = 1, .block = families_sandwich, .norm = FTMEM__RMS_PLUS_ONE, .activation = FTMEM_GELU_TANH, .tied = ON, .qkv_bias = OFF,
        .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = ON, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .embed_scale = true, .tables_by_kind = true,
        .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_GEMMA4] = {.router_linear = true, .model_type = "gemma4_text", .small_buffers = 1, .block = families_gemma4, .norm = FTMEM__RMS_POW, .activation = FTMEM_GELU_TANH, .tied = ON, .qkv_bias = OFF,
        .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = ON, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .embed_scale = true, .tables_by_kind = true, .by_kind = true, .turn = FTMEM__TURN_BEFORE,
        .no_flash = true, .router = FTMEM__ROUTER_SOFTMAX_NORMED, .router_norm = ON,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL,
                    [FTMEM_ROLE_ROUTER] = "router.proj", [FTMEM_ROLE_WIDEN] = "per_layer_model_projection", [FTMEM_ROLE_MIXER_IN] = "per_layer_input_gate",
                    [FTMEM_ROLE_LAYER_OUT] = "per_layer_projection"}, .default_targets = R(Q) | R(V)},
    [FTMEM_PHI] = {.model_type = "phi", .table_buffers_before = 445, .turn = FTMEM__TURN_APART, .block = families_side_by_side, .parallel_block = families_side_by_side, .norm = FTMEM__LAYER, .mlp = FTMEM__PLAIN,
        .activation = FTMEM_GELU_NEW, .tied = OFF, .qkv_bias = ON, .o_bias = ON, .mlp_bias = ON, .norm_bias = ON, .qk_norm = OFF, .parallel = ON, .two_norms = OFF,
        .head_bias = ON, .modules = {"q_proj", "k_proj", "v_proj", NULL, "dense", NULL, "fc1", NULL, "fc2", "embed_tokens", "lm_head", NULL, NULL},
        .default_targets = R(Q) | R(V) | R(UP) | R(DOWN)},
    [FTMEM_PHI3] = {.model_type = "phi3", .block = families_sequential, .activation = FTMEM_SILU, .mlp = FTMEM__GATED_FUSED, .qkv = FTMEM__QKV_SLICED, .turn = FTMEM__TURN_JOINED, .tied = OFF,
        .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF,
        .modules = {NULL, NULL, NULL, "qkv_proj", "o_proj", NULL, NULL, "gate_up_proj", "down_proj", "embed_tokens", "lm_head", NULL, NULL}},
    [FTMEM_GPT2] = {.model_type = "gpt2", .loss_own_dtype_v4 = true, GPT_LIKE, .softmax_own_dtype = true, .positions = FTMEM__LEARNED, .activation = FTMEM_GELU_NEW, .qkv = FTMEM__QKV_FUSED,
        .modules = {NULL, NULL, NULL, "c_attn", "attn.c_proj", NULL, "c_fc", NULL, "mlp.c_proj", "wte", "lm_head", NULL, "wpe"}, .default_targets = R(QKV)},
    [FTMEM_GPT_NEOX] = {.model_type = "gpt_neox", .table_buffers_before = 445, .loss_own_dtype_v4 = true, .block = families_sequential, .parallel_block = families_two_norms, .two_norm_block = families_two_norms,
        .norm = FTMEM__LAYER, .mlp = FTMEM__PLAIN, .qkv = FTMEM__QKV_HEADS, .turn = FTMEM__TURN_JOINED_LATE, .activation = FTMEM_GELU, .tied = OFF, .qkv_bias = ON, .o_bias = ON, .mlp_bias = ON,
        .norm_bias = ON, .qk_norm = OFF, .parallel = ON, .two_norms = ON, .head_bias = OFF,
        .modules = {NULL, NULL, NULL, "query_key_value", "dense", NULL, "dense_h_to_4h", NULL, "dense_4h_to_h", "embed_in", "embed_out", NULL, NULL},
        .default_targets = R(QKV)},
    [FTMEM_GPTJ] = {.model_type = "gptj", .turn = FTMEM__TURN_PAIRS, .wide_scores = true, .dropout_inside = true, .softmax_own_dtype = true, .block = families_side_by_side, .parallel_block = families_side_by_side, .norm = FTMEM__LAYER, .mlp = FTMEM__PLAIN,
        .positions = FTMEM__ROPE_INTERLEAVED, .activation = FTMEM_GELU_NEW, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = ON, .norm_bias = ON, .qk_norm = OFF,
        .parallel = ON, .two_norms = OFF, .head_bias = ON,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "out_proj", NULL, "fc_in", NULL, "fc_out", "wte", "lm_head", NULL, NULL}, .default_targets = R(Q) | R(V)},
    [FTMEM_OPT] = {.model_type = "opt", .loss_own_dtype_v4 = true, .positions_by_row = true, .scaled_query = true, .block = families_opt, GPT_PARTS, .positions = FTMEM__LEARNED, .activation = FTMEM_RELU,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "out_proj", NULL, "fc1", NULL, "fc2", "embed_tokens", "lm_head", NULL, "embed_positions"},
        .default_targets = R(Q) | R(V)},
    [FTMEM_BLOOM] = {.model_type = "bloom", .loss_own_dtype_v4 = true, .block = families_bloom, .dropout_inside = true, .returns_weights = true, GPT_PARTS, .positions = FTMEM__ALIBI, .activation = FTMEM_GELU_BLOOM, .qkv = FTMEM__QKV_SELECTED, .eager = FTMEM__EAGER_BLOOM, .embed_norm = true,
        .modules = {NULL, NULL, NULL, "query_key_value", "dense", NULL, "dense_h_to_4h", NULL, "dense_4h_to_h", "word_embeddings", "lm_head", NULL, NULL},
        .default_targets = R(QKV)},
    [FTMEM_MPT] = {.model_type = "mpt", .loss_own_dtype_v4 = true, .block = families_mpt, .dropout_inside = true, .returns_weights = true, .norm = FTMEM__LAYER, .mlp = FTMEM__PLAIN, .positions = FTMEM__ALIBI, .qkv = FTMEM__QKV_FUSED, .eager = FTMEM__EAGER_MPT,
        .activation = FTMEM_GELU, .tied = ON, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF,
        .head_bias = OFF, .modules = {NULL, NULL, NULL, "Wqkv", "out_proj", NULL, "up_proj", NULL, "down_proj", "wte", "lm_head", NULL, NULL}, .default_targets = R(QKV)},
    [FTMEM_FALCON] = {.model_type = "falcon", .table_buffers_before = 445, .loss_own_dtype_v4 = true, .block = families_falcon_serial, .parallel_block = families_falcon, .two_norm_block = families_falcon_two, .returns_weights = true,
        .norm = FTMEM__LAYER, .mlp = FTMEM__PLAIN, .qkv = FTMEM__QKV_INDEXED, .eager = FTMEM__EAGER_FALCON, .activation = FTMEM_GELU, .tied = ON, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF,
        .norm_bias = ON, .qk_norm = OFF, .parallel = ON, .two_norms = OFF, .head_bias = OFF, .never_quantized = true, .bias_apart = true, .always_mask = true,
        .modules = {NULL, NULL, NULL, "query_key_value", "dense", NULL, "dense_h_to_4h", NULL, "dense_4h_to_h", "word_embeddings", "lm_head", NULL, NULL},
        .default_targets = R(QKV)},
    [FTMEM_STARCODER2] = {.model_type = "starcoder2", .table_buffers_before = 445, .block = families_sequential, .dropout_inside = true, GPT_PARTS, .activation = FTMEM_GELU_TANH,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", NULL, "c_fc", NULL, "c_proj", "embed_tokens", "lm_head", NULL, NULL}, .default_targets = R(Q) | R(V)},
    [FTMEM_GPT_BIGCODE] = {.model_type = "gpt_bigcode", .returns_cache = true, .loss_own_dtype_v4 = true, .mask_buffer = true, GPT_LIKE, .positions = FTMEM__LEARNED, .activation = FTMEM_GELU_TANH, .qkv = FTMEM__QKV_HEADS,
        .modules = {NULL, NULL, NULL, "c_attn", "attn.c_proj", NULL, "c_fc", NULL, "mlp.c_proj", "wte", "lm_head", NULL, "wpe"}, .default_targets = R(QKV)},
    [FTMEM_OLMO] = {.model_type = "olmo", LLAMA_LIKE, .views_last = true, .norm = FTMEM__LAYER_NO_PARAMETERS, .tables = FTMEM__TABLES_FP32},
    [FTMEM_OLMO2] = {.model_type = "olmo2", OLMO2_PARTS, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_OLMO3] = {.model_type = "olmo3", .norm_each = true, .views_last = true, .block = families_post_norm, .tables_by_kind = true, .norm = FTMEM__RMS_FP32_WEIGHT, .qk_norm_kind = FTMEM__QK_WHOLE, .tables = FTMEM__TABLES_FP32, .activation = FTMEM_SILU,
        .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = ON, .parallel = OFF, .two_norms = OFF, .head_bias = OFF,
        .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_SMOLLM3] = {.model_type = "smollm3", .block = families_sequential, .activation = FTMEM_SILU, .tied = ON, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF,
        .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_GRANITE] = {.model_type = "granite", .loss_in_model = true, LLAMA_LIKE, .embed_scale = true, .scale_outside = true, .logit_scale = true},
    [FTMEM_STABLELM] = {.model_type = "stablelm", .table_buffers_before = 445, .loss_own_dtype_v4 = true, .views_last = true, .qk_norm_kind = FTMEM__QK_OWN_WEIGHTS, .block = families_stablelm, .parallel_block = families_residual_first, .norm = FTMEM__LAYER, .turn = FTMEM__TURN_APART,
        .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = ON, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF,
        .head_bias = OFF, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_COHERE] = {.model_type = "cohere", .qk_norm_kind = FTMEM__QK_OWN_WEIGHTS, .block = families_residual_first, .parallel_block = families_residual_first, .norm = FTMEM__LAYER_FP32, .tables = FTMEM__TABLES_CAST_QK_FP32,
        .positions = FTMEM__ROPE_INTERLEAVED, .activation = FTMEM_SILU, .tied = ON, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF,
        .parallel = ON, .two_norms = OFF, .head_bias = OFF, .logit_scale = true, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_COHERE2] = {.model_type = "cohere2", .qk_norm_kind = FTMEM__QK_OWN_WEIGHTS, .block = families_residual_first, .parallel_block = families_residual_first, .norm = FTMEM__LAYER_FP32, .tables = FTMEM__TABLES_CAST_QK_FP32,
        .positions = FTMEM__ROPE_INTERLEAVED, .activation = FTMEM_SILU, .tied = ON, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF,
        .parallel = ON, .two_norms = OFF, .head_bias = OFF, .logit_scale = true, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    /* Code that comes with the model's files: parts and order from the repository's modeling file, each part's
       operations as transformers writes that form. */
    [FTMEM_QWEN] = {.model_type = "qwen", LLAMA_PARTS, .remote_code = true, .qkv_bias = ON, .qkv = FTMEM__QKV_FUSED, .tables = FTMEM__TABLES_FP32,
        .modules = {NULL, NULL, NULL, "c_attn", "attn.c_proj", "w2", "w1", NULL, "mlp.c_proj", "wte", "lm_head", NULL, NULL}, .default_targets = R(QKV)},
    [FTMEM_BAICHUAN] = {.model_type = "baichuan", LLAMA_PARTS, .remote_code = true, .qkv_bias = OFF, .qkv = FTMEM__QKV_SELECTED, .tables = FTMEM__TABLES_FP32, .normed_head = true,
        .modules = {NULL, NULL, NULL, "W_pack", "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", NULL, NULL}, .default_targets = R(QKV)},
    [FTMEM_CHATGLM] = {.model_type = "chatglm", LLAMA_PARTS, .remote_code = true, .qkv_bias = ON, .qkv = FTMEM__QKV_FUSED, .mlp = FTMEM__GATED_FUSED, .norm = FTMEM__RMS_FP32_WEIGHT,
        .turn = FTMEM__TURN_APART,
        .modules = {NULL, NULL, NULL, "query_key_value", "dense", NULL, NULL, "dense_h_to_4h", "dense_4h_to_h", "word_embeddings", "output_layer", NULL, NULL}, .default_targets = R(QKV)},
    [FTMEM_INTERNLM2] = {.model_type = "internlm2", LLAMA_PARTS, .remote_code = true, .qkv_bias = OFF, .qkv = FTMEM__QKV_SELECTED,
        .modules = {NULL, NULL, NULL, "wqkv", "wo", "w1", "w3", NULL, "w2", "tok_embeddings", "output", NULL, NULL}, .default_targets = R(QKV)},
    [FTMEM_ORION] = {.model_type = "orion", .remote_code = true, .block = families_sequential, .norm = FTMEM__LAYER, .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF,
        .mlp_bias = OFF, .norm_bias = ON, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_MINICPM] = {.model_type = "minicpm", LLAMA_PARTS, .qkv_bias = OFF, .remote_code = true, .embed_scale = true, .scale_outside = true, .scale_before_head = true,
        .experts_apart = true, .router_linear = true, .router = FTMEM__ROUTER_SOFTMAX_CAST, .router_norm = ON, .default_targets = R(Q) | R(V),
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj", "embed_tokens", "lm_head", [FTMEM_ROLE_ROUTER] = "gate"}},
    [FTMEM_MIXTRAL] = {.model_type = "mixtral", .table_buffers_before = 448, LLAMA_PARTS, .qkv_bias = OFF, .router = FTMEM__ROUTER_SOFTMAX, .experts_as = FTMEM__EXPERTS_AS_W, .router_norm = ON, .modules = MOE_MODULES,
        .default_targets = R(Q) | R(V)},
    [FTMEM_QWEN3_MOE] = {.model_type = "qwen3_moe", QWEN3_PARTS, .norm_each = true, .router = FTMEM__ROUTER_SOFTMAX_CAST, .experts_as = FTMEM__EXPERTS_AS_PROJ, .router_norm = OFF, .modules = MOE_MODULES,
        .default_targets = R(Q) | R(V)},
    [FTMEM_DEEPSEEK_V2] = {.model_type = "deepseek_v2", LLAMA_PARTS, .qkv_bias = OFF, .turn = FTMEM__TURN_COMPLEX, .router = FTMEM__ROUTER_SOFTMAX_SCALED, .experts_as = FTMEM__EXPERTS_AS_PROJ, .router_fp32 = true,
        .modules = LATENT_MODULES, .default_targets = R(Q) | R(KV_UP)},
    [FTMEM_DEEPSEEK_V3] = {DEEPSEEK_V3_PARTS, .tower_form = &families_deepseek_v3_seen, .experts_as = FTMEM__EXPERTS_AS_PROJ, .modules = LATENT_MODULES},
    [FTMEM_MINICPM3] = {.model_type = "minicpm3", LLAMA_PARTS, .qkv_bias = OFF, .embed_scale = true, .scale_before_head = true, .modules = LATENT_DENSE_MODULES,
        .default_targets = R(Q_UP) | R(KV_UP)},
    [FTMEM_DEEPSEEK_V32] = {.model_type = "deepseek_v32", LLAMA_PARTS, .qkv_bias = OFF, .turn = FTMEM__TURN_INTERLEAVED, .router = FTMEM__ROUTER_SIGMOID_GROUPED, .router_norm = ON,
        .experts_as = FTMEM__EXPERTS_AS_PROJ, .router_fp32 = true, .always_mask = true, .index_halves = true, .no_flash = true, .modules = SPARSE_MODULES, .default_targets = R(Q_UP) | R(KV_UP)},
    [FTMEM_GLM_MOE_DSA] = {.model_type = "glm_moe_dsa", LLAMA_PARTS, .qkv_bias = OFF, .turn = FTMEM__TURN_INTERLEAVED, .router = FTMEM__ROUTER_SIGMOID_GROUPED, .router_norm = ON,
        .experts_as = FTMEM__EXPERTS_AS_PROJ, .router_fp32 = true, .always_mask = true, .hands_index = true, .no_flash = true, .modules = SPARSE_MODULES, .default_targets = R(Q_UP) | R(KV_UP)},
    [FTMEM_MIMO_V2_FLASH] = {.model_type = "mimo_v2_flash", LLAMA_PARTS, .qkv_bias = OFF, .turn = FTMEM__TURN_JOINED, .tables_by_kind = true, .eager = FTMEM__EAGER_SINKS, .always_mask = true,
        .sliding_kv_twice = true, .scaled_values = true, .no_flash = true, .router = FTMEM__ROUTER_SIGMOID_GROUPED, .router_norm = ON, .router_fp32 = true,
        .modules = MOE_PLAIN_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_GLM] = {.model_type = "glm", .block = families_sequential, GLM_LIKE},
    [FTMEM_GLM4] = {.model_type = "glm4", .block = families_sandwich, GLM_LIKE},
    /* modeling_seed_oss.py: dropout at the end of the attention and of the MLP */
    [FTMEM_SEED_OSS] = {.model_type = "seed_oss", LLAMA_PARTS, .qkv_bias = ON, .dropout_inside = true, .modules = LLAMA_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_NEMOTRON_NAS] = {.model_type = "nemotron-nas", LLAMA_LIKE, .remote_code = true, .by_width = true, .mlp_block = families_mlp},
    [FTMEM_MLLAMA_TEXT_MODEL] = {.model_type = "mllama_text_model", LLAMA_LIKE, .extra_rows = 8, .keeps_cache = true},
    [FTMEM_DEEPSEEK] = {.model_type = "deepseek", LLAMA_LIKE, .remote_code = true, .experts_apart = true, .router = FTMEM__ROUTER_SOFTMAX_CAST, .router_norm = OFF},
    [FTMEM_GLM4_MOE] = {.model_type = "glm4_moe", QWEN3_PARTS, .turn = FTMEM__TURN_JOINED, .router = FTMEM__ROUTER_SIGMOID_GROUPED, .router_norm = ON, .experts_as = FTMEM__EXPERTS_AS_PROJ,
        .router_fp32 = true, .modules = MOE_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_MINIMAX_M2] = {.model_type = "minimax_m2", QWEN3_PARTS, .qk_norm_kind = FTMEM__QK_WHOLE, .norm_each = true, .views_last = true, .turn = FTMEM__TURN_JOINED, .router = FTMEM__ROUTER_SIGMOID, .router_norm = ON,
        .experts_as = FTMEM__EXPERTS_AS_W, .modules = MOE_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_OLMOE] = {.model_type = "olmoe", QWEN3_PARTS, .qk_norm_kind = FTMEM__QK_WHOLE, .norm_each = true, .views_last = true, .router = FTMEM__ROUTER_SOFTMAX_CAST, .router_norm = OFF,
        .experts_as = FTMEM__EXPERTS_AS_PROJ, .modules = MOE_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_QWEN2_MOE] = {.model_type = "qwen2_moe", LLAMA_PARTS, .qkv_bias = ON, .router = FTMEM__ROUTER_SOFTMAX_CAST, .router_norm = OFF, .since = 500, .window_mask_made = true, .shared_gated = true, .modules = QWEN2_MOE_MODULES,
        .default_targets = R(Q) | R(V)},
    [FTMEM_GPT_OSS] = {.model_type = "gpt_oss", .block = families_sequential, .norm = FTMEM__RMS_FP32_WEIGHT, .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = ON, .o_bias = ON, .mlp_bias = OFF,
        .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .expert_bias = ON, .turn = FTMEM__TURN_HALVES, .eager = FTMEM__EAGER_SINKS_NAMED, .always_mask = true,
        .since = 500, .no_flash = true, .router = FTMEM__ROUTER_CHOSEN, .experts_gate = FTMEM__GATE_CLAMPED, .modules = GPT_OSS_MODULES, .default_targets = R(Q) | R(V)},
    /* modeling_qwen3_next.py Qwen3NextDecoderLayer: linear attention and attention in one place; peft/utils/constants.py has no targets for them */
    [FTMEM_QWEN3_NEXT] = {.model_type = "qwen3_next", QWEN3_HYBRID, .linear_joined = true, .shared_gated = true, .router = FTMEM__ROUTER_SOFTMAX_CAST, .router_norm = ON, .experts_as = FTMEM__EXPERTS_AS_PROJ,
        .modules = QWEN3_NEXT_MODULES},
    [FTMEM_QWEN3_5] = {.model_type = "qwen3_5_text", QWEN3_HYBRID, .tables_by_row = true, .modules = QWEN3_5_MODULES()},
    [FTMEM_QWEN3_5_MOE] = {.model_type = "qwen3_5_moe_text", QWEN3_HYBRID, .tables_by_row = true, .shared_gated = true, .router = FTMEM__ROUTER_SOFTMAX_CAST, .router_norm = ON,
        .modules = QWEN3_5_MODULES(, [FTMEM_ROLE_ROUTER] = "mlp.gate", [FTMEM_ROLE_EXPERTS_UP] = "experts.gate_up_proj",
                                   [FTMEM_ROLE_EXPERTS_DOWN] = "experts.down_proj", [FTMEM_ROLE_SHARED_GATE] = "shared_expert_gate")},
    [FTMEM_DOTS1] = {.model_type = "dots1", QWEN3_PARTS, .norm_each = true, .since = 500, .router = FTMEM__ROUTER_SIGMOID_GROUPED, .router_norm = OFF, .experts_as = FTMEM__EXPERTS_AS_PROJ,
        .router_fp32 = true, .modules = MOE_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_FLEX_OLMO] = {.model_type = "flex_olmo", OLMO2_PARTS, .since = 500, .router = FTMEM__ROUTER_SOFTMAX_CAST, .router_norm = OFF, .experts_as = FTMEM__EXPERTS_AS_PROJ,
        .modules = MOE_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_GRANITEMOE] = {.model_type = "granitemoe", LLAMA_PARTS, .qkv_bias = OFF, .embed_scale = true, .scale_outside = true, .logit_scale = true, .since = 500,
        .router = FTMEM__ROUTER_CHOSEN_WIDE, .modules = GRANITE_MOE_MODULES, .default_targets = R(Q) | R(V)},
    [FTMEM_GLM4_MOE_LITE] = {.model_type = "glm4_moe_lite", LLAMA_PARTS, .qkv_bias = OFF, .turn = FTMEM__TURN_INTERLEAVED, .since = 500, .router = FTMEM__ROUTER_SIGMOID_GROUPED,
        .router_norm = ON, .experts_as = FTMEM__EXPERTS_AS_PROJ, .router_fp32 = true, .modules = LATENT_MODULES, .default_targets = R(Q_UP) | R(KV_UP)},
    [FTMEM_ERNIE4_5_MOE] = {.model_type = "ernie4_5_moe", .block = families_sequential, .activation = FTMEM_SILU, .tied = ON, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF,
        .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .tables = FTMEM__TABLES_TURNED_FP32, .since = 500, .shared_first = true, .router = FTMEM__ROUTER_SOFTMAX_BIASED,
        .router_norm = ON, .router_fp32 = true, .experts_as = FTMEM__EXPERTS_AS_PROJ, .modules = MOE_MODULES, .default_targets = R(Q) | R(V)},
    /* AutoModelForCausalLM's class: the whole model's, Llama4ForConditionalGeneration, fails in its own forward (5.24 reads image_outputs
       of an output that has none) */
    [FTMEM_LLAMA4] = {.model_type = "llama4_text", .block = families_llama4, .activation = FTMEM_SILU, .tied = OFF, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF,
        .qk_norm = ON, .parallel = OFF, .two_norms = OFF, .head_bias = OFF, .turn = FTMEM__TURN_COMPLEX, .softmax_own_dtype = true, .softmax_uncast = true, .no_flash = true, .since = 500,
        .normed_after = true, .scaled_unrotated = true, .experts_dense = true, .router = FTMEM__ROUTER_SCATTERED, .refused_targets = R(ROUTER), .modules = LLAMA4_MODULES,
        .default_targets = R(Q) | R(V)},
    [FTMEM_BERT] = {.model_type = "bert", BERT_LIKE, .block = families_bert, .id_buffers = 2,
        .head = {[FTMEM_TASK_CLASSIFY] = families_head_pooled, [FTMEM_TASK_MASKED_LM] = families_head_transform, [FTMEM_TASK_TOKEN_CLASSIFY] = families_head_dropout},
        .modules = {"query", "key", "value", NULL, "attention.output.dense", NULL, "intermediate.dense", NULL, "output.dense", "word_embeddings", "classifier", NULL,
                    "position_embeddings", [FTMEM_ROLE_POOL] = "dense"}, .default_targets = R(Q) | R(V)},
    [FTMEM_ROBERTA] = {.model_type = "roberta", BERT_LIKE, .block = families_bert, .id_buffers = 2, .positions_by_row = true, .head_unquantized = true,
        .head = {[FTMEM_TASK_CLASSIFY] = families_head_roberta, [FTMEM_TASK_MASKED_LM] = families_head_transform, [FTMEM_TASK_TOKEN_CLASSIFY] = families_head_dropout},
        .modules = {"query", "key", "value", NULL, "attention.output.dense", NULL, "intermediate.dense", NULL, "output.dense", "word_embeddings", "classifier", NULL,
                    "position_embeddings", [FTMEM_ROLE_POOL] = "dense"}, .default_targets = R(Q) | R(V)},
    [FTMEM_ALBERT] = {.model_type = "albert", BERT_LIKE, .block = families_albert, .id_buffers = 2, .norm_inside = true, .shared_blocks = true,
        .head = {[FTMEM_TASK_CLASSIFY] = families_head_pooled, [FTMEM_TASK_MASKED_LM] = families_head_transform, [FTMEM_TASK_TOKEN_CLASSIFY] = families_head_dropout},
        .modules = {"query", "key", "value", NULL, "attention.dense", NULL, "ffn", NULL, "ffn_output", "word_embeddings", "classifier", NULL, "position_embeddings", [FTMEM_ROLE_POOL] = "pooler",
                    [FTMEM_ROLE_WIDEN] = "embedding_hidden_mapping_in"}},
    [FTMEM_DISTILBERT] = {.model_type = "distilbert", BERT_LIKE, .block = families_distilbert, .id_buffers = 1,
        .head = {[FTMEM_TASK_CLASSIFY] = families_head_distilbert, [FTMEM_TASK_MASKED_LM] = families_head_transform, [FTMEM_TASK_TOKEN_CLASSIFY] = families_head_dropout},
        .modules = {"q_lin", "k_lin", "v_lin", NULL, "out_lin", NULL, "lin1", NULL, "lin2", "word_embeddings", "classifier", NULL, "position_embeddings", [FTMEM_ROLE_POOL] = "vocab_transform"}},
    [FTMEM_MODERNBERT] = {.model_type = "modernbert", .small_buffers = 2, .norm = FTMEM__LAYER, .mlp = FTMEM__GATED_FUSED, .qkv = FTMEM__QKV_UNBOUND, .tables = FTMEM__TABLES_QK_FP32_TWICE,
        .block = families_modernbert, .embedding = FTMEM__EMBED_NORMED, .task = FTMEM_TASK_MASKED_LM, .bidirectional = true, .tables_by_kind = true, .first_plain = true,
        .head_apart = true, .head_unbiased = true, .activation = FTMEM_GELU, .tied = ON, .qkv_bias = OFF, .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF,
        .parallel = OFF, .two_norms = OFF, .head_bias = ON,
        .head = {[FTMEM_TASK_CLASSIFY] = families_head_modernbert, [FTMEM_TASK_MASKED_LM] = families_head_transform,
                 [FTMEM_TASK_TOKEN_CLASSIFY] = families_head_modernbert_tokens},
        .modules = {NULL, NULL, NULL, "Wqkv", "attn.Wo", NULL, NULL, "Wi", "mlp.Wo", "tok_embeddings", "classifier", [FTMEM_ROLE_POOL] = "dense"}},
    [FTMEM_VIT] = {.model_type = "vit", ENCODER, .block = families_sequential, .embedding = FTMEM__EMBED_PATCHES, .task = FTMEM_TASK_IMAGE_CLASSIFY, .tied = OFF,
        .head_bias = ON, .head = {[FTMEM_TASK_IMAGE_CLASSIFY] = families_head_first},
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", NULL, "fc1", NULL, "fc2", "patch_embeddings", "classifier", NULL, "position_embeddings", [FTMEM_ROLE_POOL] = "classifier"}},
};

/* Vision towers: modeling_clip.py CLIPVisionModel, modeling_siglip.py SiglipVisionModel */
#define TOWER .norm = FTMEM__LAYER, .positions = FTMEM__LEARNED, .mlp = FTMEM__PLAIN, .bidirectional = true, .tied = OFF, .qkv_bias = ON, .o_bias = ON, \
    .mlp_bias = ON, .norm_bias = ON, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .block = families_sequential, .embedding = FTMEM__EMBED_IMAGE
#define CLIP_MODULES {"q_proj", "k_proj", "v_proj", NULL, "out_proj", NULL, "fc1", NULL, "fc2"}
static const ftmem__family families_towers[FTMEM_TOWER_END] = {
    [FTMEM_TOWER_LLAVA] = {.model_type = "clip_vision_model", TOWER, .activation = FTMEM_QUICK_GELU, .class_token = true, .embed_norm = true, .modules = CLIP_MODULES},
    [FTMEM_TOWER_GEMMA3] = {.model_type = "siglip_vision_model", TOWER, .activation = FTMEM_GELU_TANH, .patch_bias = true, .image_masks = true, .bridge = FTMEM__BRIDGE_GEMMA3,
        .modules = CLIP_MODULES},
    [FTMEM_TOWER_PALIGEMMA] = {.model_type = "siglip_vision_model", TOWER, .activation = FTMEM_GELU_TANH, .patch_bias = true, .image_masks = true, .bridge = FTMEM__BRIDGE_PALIGEMMA,
        .modules = CLIP_MODULES},
    /* modeling_pixtral.py PixtralVisionModel */
    [FTMEM_TOWER_MISTRAL3] = {.model_type = "pixtral", .block = families_sequential, .embedding = FTMEM__EMBED_IMAGE, .norm = FTMEM__RMS, .positions = FTMEM__ROPE,
        .activation = FTMEM_GELU, .bidirectional = true, .any_size = true, .packed = true, .embed_norm = true, .bridge = FTMEM__BRIDGE_MISTRAL3, .tied = OFF, .qkv_bias = OFF,
        .o_bias = OFF, .mlp_bias = OFF, .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF,
        .modules = {"q_proj", "k_proj", "v_proj", NULL, "o_proj", "gate_proj", "up_proj", NULL, "down_proj"}},
    /* modeling_qwen2_5_vl.py Qwen2_5_VisionTransformerPretrainedModel */
    [FTMEM_TOWER_QWEN2_5_VL] = {.model_type = "qwen2_5_vl_vision", .block = families_sequential, .embedding = FTMEM__EMBED_IMAGE, .norm = FTMEM__RMS, .positions = FTMEM__ROPE,
        .tables = FTMEM__TABLES_CAST_QK_FP32, .qkv = FTMEM__QKV_HEADS, .activation = FTMEM_SILU, .bidirectional = true, .any_size = true, .chunked = true,
        .bridge = FTMEM__BRIDGE_QWEN, .tied = OFF, .qkv_bias = ON, .o_bias = ON, .mlp_bias = ON, .norm_bias = OFF, .qk_norm = OFF, .parallel = OFF, .two_norms = OFF,
        .modules = {NULL, NULL, NULL, "qkv", "proj", "gate_proj", "up_proj", NULL, "down_proj"}},
    /* modeling_qwen2_vl.py Qwen2VisionTransformerPretrainedModel */
    [FTMEM_TOWER_QWEN2_VL] = {.model_type = "qwen2_vl_vision", .block = families_sequential, .embedding = FTMEM__EMBED_IMAGE, .norm = FTMEM__LAYER, .positions = FTMEM__ROPE,
        .tables = FTMEM__TABLES_CAST_QK_FP32, .qkv = FTMEM__QKV_HEADS, .mlp = FTMEM__PLAIN, .activation = FTMEM_QUICK_GELU, .bidirectional = true, .any_size = true,
        .chunked = true, .bridge = FTMEM__BRIDGE_QWEN, .tied = OFF, .qkv_bias = ON, .o_bias = ON, .mlp_bias = ON, .norm_bias = ON, .qk_norm = OFF, .parallel = OFF,
        .two_norms = OFF, .modules = {NULL, NULL, NULL, "qkv", "proj", NULL, "fc1", NULL, "fc2"}},
    /* modeling_qwen3_vl.py Qwen3VLVisionModel */
    [FTMEM_TOWER_QWEN3_VL] = {.model_type = "qwen3_vl_vision", .block = families_sequential, .embedding = FTMEM__EMBED_IMAGE, .norm = FTMEM__LAYER, .positions = FTMEM__ROPE,
        .tables = FTMEM__TABLES_CAST_QK_FP32, .qkv = FTMEM__QKV_HEADS, .mlp = FTMEM__PLAIN, .activation = FTMEM_GELU_TANH, .bidirectional = true, .any_size = true, .chunked = true,
        .patch_bias = true, .resampled = true, .no_input_leaf = true, .bridge = FTMEM__BRIDGE_QWEN, .tied = OFF, .qkv_bias = ON, .o_bias = ON, .mlp_bias = ON, .norm_bias = ON,
        .qk_norm = OFF, .parallel = OFF, .two_norms = OFF, .modules = {NULL, NULL, NULL, "qkv", "proj", NULL, "linear_fc1", NULL, "linear_fc2"}},
};

/* clang-format on */

static bool families_modelled(const ftmem_model *model)
{
    return model->family >= 0 && model->family < FTMEM_FAMILY_END && families_rows[model->family].block != NULL;
}

const ftmem__family *ftmem__family_of(const ftmem_model *model)
{
    const ftmem__family *row = &families_rows[families_modelled(model) ? model->family : FTMEM_LLAMA];
    if (row->tower_form && model->tower) return row->tower_form;
    return row->gated_form && model->gated == FTMEM_ON ? row->gated_form : row;
}

static void families_int(int64_t *member, int64_t value)
{
    if (*member == 0) *member = value;
}

static void families_switch(int32_t *member, int32_t value)
{
    if (*member == FTMEM_AUTO) *member = value;
}

static void families_switches(ftmem_model *model, const ftmem__family *row)
{
    families_switch(&model->activation, row->activation);
    families_switch(&model->tied, row->tied);
    families_switch(&model->qkv_bias, row->qkv_bias);
    families_switch(&model->o_bias, row->o_bias);
    families_switch(&model->mlp_bias, row->mlp_bias);
    families_switch(&model->norm_bias, row->norm_bias);
    families_switch(&model->qk_norm, row->qk_norm);
    families_switch(&model->parallel, row->parallel);
    families_switch(&model->two_norms, row->two_norms);
    families_switch(&model->head_bias, row->head_bias);
    families_switch(&model->router_norm, row->router_norm ? row->router_norm : OFF);
    families_switch(&model->expert_bias, row->expert_bias ? row->expert_bias : OFF);
    families_switch(&model->ssm_bias, OFF);
    families_switch(&model->ssm_conv_bias, ON);
    families_switch(&model->scaled, row->logit_scale || row->scale_before_head ? ON : OFF);
    families_switch(&model->alibi, row->positions == FTMEM__ALIBI ? ON : OFF);
}

int64_t ftmem__image_tokens(const ftmem_model *model)
{
    int64_t side = model->patch_size > 0 ? model->image_size / model->patch_size : 0;
    return side * side + 1;
}

static void families_by_kind(ftmem_model *model)
{
    families_int(&model->full_head_dim, model->head_dim);
    families_int(&model->full_kv_heads, model->kv_heads);
    families_int(&model->shared_kv_ffn, model->ffn);
    families_int(&model->layer_input_vocab, model->layer_input > 0 ? model->vocab : 0);
    families_switch(&model->full_values_from_keys, OFF);
}

void ftmem__model_defaults(ftmem_model *model)
{
    const ftmem__family *row = ftmem__family_of(model);
    if (model->family == 0) model->family = FTMEM_LLAMA;
    families_switches(model, row);
    families_int(&model->kv_heads, model->heads);
    families_int(&model->head_dim, model->heads > 0 ? model->hidden / model->heads : 0);
    families_int(&model->rotary_dim, model->head_dim);
    families_int(&model->value_dim, model->head_dim);
    if (row->mlp == FTMEM__PLAIN) families_int(&model->ffn, 4 * model->hidden);
    if (row->embedding == FTMEM__EMBED_PATCHES || model->tower) families_int(&model->channels, 3);
    families_int(&model->position_rows, row->embedding == FTMEM__EMBED_PATCHES ? ftmem__image_tokens(model) : 0);
    if (model->experts > 0) families_int(&model->expert_ffn, model->ffn);
    if (model->ssm_heads > 0) families_int(&model->ssm_groups, 1);
    if (model->ssm_heads > 0) families_int(&model->conv_kernel, 4);
    if (model->linear_key_heads > 0) {
        families_int(&model->linear_value_heads, model->linear_key_heads);
        families_int(&model->linear_value_dim, model->linear_key_dim);
        families_int(&model->conv_kernel, 4);
    }
    families_int(&model->position_rows, row->positions == FTMEM__LEARNED ? model->max_positions : 0);
    if (row->by_kind) families_by_kind(model);
    if (row->positions == FTMEM__RELATIVE) families_int(&model->relative_buckets, 32);
    if (!row->encoder) return;
    families_int(&model->encoder_layers, model->layers);
    families_int(&model->encoder_hidden, model->hidden);
    families_int(&model->encoder_ffn, model->ffn);
    families_int(&model->encoder_heads, model->heads);
    families_int(&model->encoder_positions, model->position_rows);
    if (row->encoder->fed_features) families_int(&model->encoder_channels, 80); /* WhisperConfig.num_mel_bins */
}

void ftmem__model_encoder(const ftmem_model *model, ftmem_model *encoder)
{
    *encoder = *model;
    encoder->layers = model->encoder_layers;
    encoder->hidden = model->encoder_hidden;
    encoder->ffn = model->encoder_ffn;
    encoder->heads = encoder->kv_heads = model->encoder_heads;
    encoder->head_dim = model->encoder_heads == model->heads ? model->head_dim : model->encoder_hidden / model->encoder_heads;
    encoder->value_dim = encoder->head_dim;
    encoder->position_rows = model->encoder_positions;
    memset(encoder->layer_kind, 0, sizeof encoder->layer_kind);
}

const ftmem__family *ftmem__family_tower(const ftmem_model *model)
{
    const ftmem__family *row = &families_towers[model->tower];
    return row->block ? row : NULL;
}

int64_t ftmem__tower_tokens(const ftmem_model *model, const ftmem_job *job)
{
    int64_t height = job->image_height ? job->image_height : model->image_size, width = job->image_width ? job->image_width : model->image_size;
    return (height / model->patch_size) * (width / model->patch_size) + ftmem__family_tower(model)->class_token;
}

int64_t ftmem__image_features(const ftmem_model *model, const ftmem_job *job)
{
    int64_t merge = model->tower_merge > 1 ? model->tower_merge * model->tower_merge : 1, tokens = ftmem__tower_tokens(model, job);
    if (model->tower_tokens > 0) return model->tower_tokens;
    if (model->tower_class_token != FTMEM_ON) tokens -= ftmem__family_tower(model)->class_token;
    return tokens / merge;
}

void ftmem__model_tower(const ftmem_model *model, ftmem_model *tower)
{
    const ftmem__family *row = ftmem__family_tower(model);
    int64_t i;
    memset(tower, 0, sizeof *tower);
    tower->struct_size = model->struct_size;
    tower->layers = model->tower_layers;
    tower->hidden = tower->embedding_width = model->tower_hidden;
    tower->ffn = model->tower_ffn;
    tower->heads = tower->kv_heads = model->tower_heads;
    tower->head_dim = tower->rotary_dim = tower->value_dim = model->tower_hidden / model->tower_heads;
    tower->activation = model->tower_activation;
    tower->image_size = model->image_size;
    tower->position_rows = model->tower_positions;
    tower->patch_size = model->patch_size;
    tower->channels = model->channels * (model->temporal_patch > 0 ? model->temporal_patch : 1);
    for (i = 0; i < tower->layers && i < FTMEM_MAX_LAYERS; i++)
        if (model->tower_full_every > 0 && (i + 1) % model->tower_full_every != 0) tower->layer_kind[i] = FTMEM__LAYER_SLIDING;
    families_switches(tower, row);
}

static ftmem_status families_required(const ftmem_model *model, ftmem_error *error)
{
    const char *missing = NULL;
    bool vision = ftmem__family_of(model)->embedding == FTMEM__EMBED_PATCHES;
    if (model->hidden == 0) missing = "model.hidden";
    else if (model->layers == 0) missing = "model.layers";
    else if (model->heads == 0) missing = "model.heads";
    else if (model->vocab == 0 && !vision) missing = "model.vocab";
    else if (model->ffn == 0) missing = "model.ffn";
    else if (model->image_size == 0 && vision) missing = "model.image_size";
    else if (model->patch_size == 0 && vision) missing = "model.patch_size";
    else if (model->index_heads > 0 && model->index_dim == 0) missing = "model.index_dim";
    else if (model->index_heads > 0 && model->index_tokens == 0) missing = "model.index_tokens";
    else if (model->linear_key_heads > 0 && model->linear_key_dim == 0) missing = "model.linear_key_dim";
    else if (model->experts > 0 && model->experts_per_token == 0) missing = "model.experts_per_token";
    else if (model->position_rows == 0 && ftmem__family_of(model)->positions == FTMEM__LEARNED) missing = "model.position_rows";
    if (!missing) return FTMEM_OK;
    return ftmem__fail(error, FTMEM_E_MISSING, missing, "0",
                       "A required dimension of the model is missing: give it, or take the model from a config or the catalog.");
}

/* Blocks choose among widths that are there, in families of such blocks alone. */
static ftmem_status families_check_widths(const ftmem_model *model, ftmem_error *error)
{
    int64_t i, given = 0;
    bool chosen = true;
    for (i = 0; i < FTMEM__COUNT(model->ffn_widths); i++) {
        given |= model->ffn_widths[i];
        if (model->ffn_widths[i] < 0 || model->ffn_widths[i] > 1 << 26)
            return ftmem__fail_int(error, FTMEM_E_RANGE, "model.ffn_widths", model->ffn_widths[i], "model.ffn_widths has a width outside 1 to 67108864.");
    }
    if (!ftmem__family_of(model)->by_width && given == 0) return FTMEM_OK;
    if (!ftmem__family_of(model)->by_width)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "model.ffn_widths", "given", "model.ffn_widths is modelled in the family nemotron-nas alone.");
    for (i = 0; i < model->layers; i++) chosen = chosen && model->ffn_widths[ftmem__layer_width(model->layer_kind[i])] > 0;
    return chosen ? FTMEM_OK
                  : ftmem__fail(error, FTMEM_E_MISSING, "model.ffn_widths", "0", "model.layer_kind names a place of model.ffn_widths that has no width.");
}

const uint8_t *ftmem__family_block(const ftmem__family *family, const ftmem_model *model)
{
    if (model->parallel != FTMEM_ON) return family->block;
    return model->two_norms == FTMEM_ON ? family->two_norm_block : family->parallel_block;
}

static ftmem_status families_fail_form(const ftmem_model *model, ftmem_error *error)
{
    if (model->two_norms == FTMEM_ON)
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "model.two_norms", "on",
                           "model.two_norms is on, but no block of this family has a norm for each branch");
    return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "model.parallel", "on",
                       "model.parallel is on, but in no block of this family do attention and MLP read the same stream");
}

/* Blocks that differ: which keys and values the last ones take must be there. */
static ftmem_status families_check_kinds(const ftmem_model *model, ftmem_error *error)
{
    int64_t i, own = model->layers - model->shared_kv_layers;
    int32_t seen = 0;
    if (!ftmem__family_of(model)->by_kind && (model->full_head_dim || model->full_kv_heads || model->shared_kv_layers || model->layer_input))
        return ftmem__fail(error, FTMEM_E_UNSUPPORTED, "model.full_head_dim", "given",
                           "model.full_head_dim, full_kv_heads, shared_kv_layers and layer_input are modelled in the family gemma4 alone.");
    if (!ftmem__family_of(model)->by_kind) return FTMEM_OK;
    for (i = 0; i < own && i < model->layers; i++) seen |= 1 << ftmem__layer_attention(model->layer_kind[i]);
    for (; i < model->layers; i++)
        if (!(seen >> ftmem__layer_attention(model->layer_kind[i]) & 1))
            return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.shared_kv_layers", model->shared_kv_layers,
                                   "model.shared_kv_layers leaves no block of the same kind whose keys and values could be taken.");
    if (model->heads % model->full_kv_heads == 0) return FTMEM_OK;
    return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.full_kv_heads", model->full_kv_heads, "model.full_kv_heads must divide model.heads.");
}

ftmem_status ftmem__model_check(const ftmem_model *model, ftmem_error *error)
{
    ftmem_status status;
    if (model->family > 0 && !families_modelled(model))
        return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "model.family", model->family, "This family is not modelled.");
    status = families_required(model, error);
    if (status != FTMEM_OK) return status;
    if (model->image_size > 0 && model->patch_size > model->image_size)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.patch_size", model->patch_size, "model.patch_size cannot exceed model.image_size.");
    if (model->layers > FTMEM_MAX_LAYERS)
        return ftmem__fail_int(error, FTMEM_E_UNSUPPORTED, "model.layers", model->layers, "More layers than the published limit of 512 are not modelled.");
    if (!ftmem__family_block(ftmem__family_of(model), model)) return families_fail_form(model, error);
    status = families_check_widths(model, error);
    if (status != FTMEM_OK) return status;
    if (model->head_dim == 0)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.heads", model->heads,
                               "model.heads is larger than model.hidden; hidden / heads must be at least 1.");
    status = families_check_kinds(model, error);
    if (status != FTMEM_OK) return status;
    if (model->heads % model->kv_heads)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.kv_heads", model->kv_heads, "model.kv_heads must divide model.heads.");
    if (model->experts_per_token > model->experts)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.experts_per_token", model->experts_per_token,
                               "model.experts_per_token cannot exceed model.experts.");
    if (model->linear_key_heads > 0 && model->linear_value_heads % model->linear_key_heads)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.linear_key_heads", model->linear_key_heads,
                               "model.linear_key_heads must divide model.linear_value_heads.");
    if (model->index_heads > 0 && (model->q_rank == 0 || model->index_dim < model->rotary_dim))
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.index_heads", model->index_heads,
                               "model.index_heads is given; an indexer needs model.q_rank, and model.index_dim not below model.rotary_dim.");
    if (model->rotary_dim > model->head_dim)
        return ftmem__fail_int(error, FTMEM_E_CONFLICT, "model.rotary_dim", model->rotary_dim, "model.rotary_dim cannot exceed model.head_dim.");
    return FTMEM_OK;
}
