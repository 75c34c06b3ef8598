/* From config.json entries to a model: every family's keys, class defaults, refusals, and errors that name the key. */
#include "catalog.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX_ENTRIES = 64, TEXT = 1024 };

typedef struct config {
    char text[TEXT];
    ftmem_entry entries[MAX_ENTRIES];
    size_t count;
} config;

/* "model_type=llama hidden_size=4096 sliding_window=null": values as in JSON, strings without quotes. */
static void read_config(const char *text, config *c)
{
    c->count = 0;
    assert_true(strlen(text) < TEXT);
    strcpy(c->text, text);
    for (char *at = strtok(c->text, " "); at; at = strtok(NULL, " ")) {
        char *value = strchr(at, '=');
        assert_non_null(value);
        *value = '\0';
        assert_true(c->count < MAX_ENTRIES);
        ftmem__unpack_one(at, value + 1, &c->entries[c->count++]);
    }
}

static ftmem_status build(const char *text, ftmem_model *model, ftmem_error *error)
{
    config c;
    *model = (ftmem_model)FTMEM_MODEL_INIT;
    *error = (ftmem_error)FTMEM_ERROR_INIT;
    read_config(text, &c);
    return ftmem_model_from_entries(c.entries, c.count, model, error);
}

static ftmem_model built(const char *text)
{
    ftmem_model model;
    ftmem_error error;
    if (build(text, &model, &error) != FTMEM_OK) fail_msg("%s: %s", text, error.message);
    return model;
}

/* Eleven switches in the order of the struct, '1' for on. Every one must be on or off. */
static void check_switches(const ftmem_model *m, const char *want)
{
    const int32_t got[] = {
        m->tied, m->qkv_bias, m->o_bias, m->mlp_bias, m->norm_bias, m->qk_norm, m->parallel, m->two_norms, m->head_bias, m->scaled, m->alibi
    };
    char text[12] = "";
    for (int i = 0; i < 11; i++) {
        assert_true(got[i] == FTMEM_ON || got[i] == FTMEM_OFF);
        text[i] = got[i] == FTMEM_ON ? '1' : '0';
    }
    assert_string_equal(text, want);
}

/* ------------------------------------------------------------------------------------------------- families */

/* What the class makes of an empty config, family by family; some need a key that has no default. */
static void test_class_defaults(void **state)
{
    static const struct {
        const char *type, *switches;
        int32_t family, activation;
        int64_t hidden, ffn, layers, heads, kv_heads, head_dim, rotary, rows, window;
    } rows[] = {
        /*             tied qkv o mlp norm qk par two head scaled alibi */
        { "llama", "00000000000", FTMEM_LLAMA, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "mistral", "00000000000", FTMEM_MISTRAL, FTMEM_SILU, 4096, 14336, 32, 32, 8, 128, 128, 0, 4096 },
        { "qwen2", "01000000000", FTMEM_QWEN2, FTMEM_SILU, 4096, 22016, 32, 32, 32, 128, 128, 0, 0 },
        { "qwen3", "00000100000", FTMEM_QWEN3, FTMEM_SILU, 4096, 22016, 32, 32, 32, 128, 128, 0, 0 },
        { "gemma", "10000000000", FTMEM_GEMMA, FTMEM_GELU_TANH, 3072, 24576, 28, 16, 16, 256, 256, 0, 0 },
        { "gemma2", "10000000000", FTMEM_GEMMA2, FTMEM_GELU_TANH, 2304, 9216, 26, 8, 4, 256, 256, 0, 4096 },
        { "gemma3_text", "10000100000", FTMEM_GEMMA3, FTMEM_GELU_TANH, 2304, 9216, 26, 8, 4, 256, 256, 0, 4096 },
        { "phi", "01111010100", FTMEM_PHI, FTMEM_GELU_NEW, 2048, 8192, 24, 32, 32, 64, 32, 0, 0 },
        { "phi3", "00000000000", FTMEM_PHI3, FTMEM_SILU, 3072, 8192, 32, 32, 32, 96, 96, 0, 0 },
        { "gpt2", "11111000000", FTMEM_GPT2, FTMEM_GELU_NEW, 768, 3072, 12, 12, 12, 64, 0, 1024, 0 },
        { "gpt_neox", "01111011000", FTMEM_GPT_NEOX, FTMEM_GELU, 6144, 24576, 44, 64, 64, 96, 24, 0, 0 },
        { "gptj", "00011010100", FTMEM_GPTJ, FTMEM_GELU_NEW, 4096, 16384, 28, 16, 16, 256, 64, 0, 0 },
        { "opt", "11111000000", FTMEM_OPT, FTMEM_RELU, 768, 3072, 12, 12, 12, 64, 0, 2050, 0 },
        { "bloom", "11111000001", FTMEM_BLOOM, FTMEM_GELU_BLOOM, 64, 256, 2, 8, 8, 8, 0, 0, 0 },
        { "mpt", "10000000001", FTMEM_MPT, FTMEM_GELU, 2048, 8192, 24, 16, 16, 128, 0, 0, 0 },
        { "falcon", "10001010000", FTMEM_FALCON, FTMEM_GELU, 4544, 18176, 32, 71, 1, 64, 64, 0, 0 },
        { "starcoder2", "11111000000", FTMEM_STARCODER2, FTMEM_GELU_TANH, 3072, 12288, 30, 24, 2, 128, 128, 0, 0 },
        { "gpt_bigcode", "11111000000", FTMEM_GPT_BIGCODE, FTMEM_GELU_TANH, 768, 3072, 12, 12, 1, 64, 0, 1024, 0 },
        { "olmo", "00000000000", FTMEM_OLMO, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "olmo2", "00000100000", FTMEM_OLMO2, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "olmo3", "00000100000", FTMEM_OLMO3, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 4096 },
        { "smollm3", "10000000000", FTMEM_SMOLLM3, FTMEM_SILU, 2048, 11008, 36, 16, 4, 128, 128, 0, 0 },
        { "granite", "00000000010", FTMEM_GRANITE, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "stablelm", "00001000000", FTMEM_STABLELM, FTMEM_SILU, 2560, 6912, 32, 32, 32, 80, 20, 0, 0 },
        { "cohere", "10000010010", FTMEM_COHERE, FTMEM_SILU, 8192, 22528, 40, 64, 64, 128, 128, 0, 0 },
        { "cohere2", "10000010010", FTMEM_COHERE2, FTMEM_SILU, 8192, 22528, 40, 64, 64, 128, 128, 0, 4096 },
        { "bert", "11111000100", FTMEM_BERT, FTMEM_GELU, 768, 3072, 12, 12, 12, 64, 0, 0, 0 },
        { "roberta", "11111000100", FTMEM_ROBERTA, FTMEM_GELU, 768, 3072, 12, 12, 12, 64, 0, 512, 0 },
        { "albert", "11111000100", FTMEM_ALBERT, FTMEM_GELU_NEW, 4096, 16384, 12, 64, 64, 64, 0, 0, 0 },
        { "distilbert", "11111000100", FTMEM_DISTILBERT, FTMEM_GELU, 768, 3072, 6, 12, 12, 64, 0, 0, 0 },
        { "modernbert", "10000000100", FTMEM_MODERNBERT, FTMEM_GELU, 768, 1152, 22, 12, 12, 64, 64, 0, 64 },
        { "vit", "01111000100", FTMEM_VIT, FTMEM_GELU, 768, 3072, 12, 12, 12, 64, 0, 0, 0 },
        { "mixtral", "00000000000", FTMEM_MIXTRAL, FTMEM_SILU, 4096, 14336, 32, 32, 8, 128, 128, 0, 0 },
        { "qwen3_moe", "00000100000", FTMEM_QWEN3_MOE, FTMEM_SILU, 2048, 6144, 24, 32, 4, 64, 64, 0, 0 },
        { "deepseek_v2 num_experts_per_tok=6", "00000000000", FTMEM_DEEPSEEK_V2, FTMEM_SILU, 4096, 11008, 32, 32, 32, 192, 64, 0, 0 },
        { "deepseek_v3", "00000000000", FTMEM_DEEPSEEK_V3, FTMEM_SILU, 7168, 18432, 61, 128, 128, 192, 64, 0, 0 },
        { "glm4_moe head_dim=128", "00000000000", FTMEM_GLM4_MOE, FTMEM_SILU, 4096, 10944, 46, 96, 8, 128, 64, 0, 0 },
        { "minimax_m2", "00000100000", FTMEM_MINIMAX_M2, FTMEM_SILU, 3072, 1536, 62, 48, 8, 128, 128, 0, 0 },
        { "olmoe", "00000100000", FTMEM_OLMOE, FTMEM_SILU, 2048, 2048, 16, 16, 16, 128, 128, 0, 0 },
        { "deepseek_v32", "00000000000", FTMEM_DEEPSEEK_V32, FTMEM_SILU, 7168, 18432, 61, 128, 128, 192, 64, 0, 0 },
        { "glm_moe_dsa", "00000000000", FTMEM_GLM_MOE_DSA, FTMEM_SILU, 6144, 12288, 78, 64, 64, 256, 64, 0, 0 },
        { "minicpm3", "10000000010", FTMEM_MINICPM3, FTMEM_SILU, 2560, 6400, 62, 40, 40, 96, 32, 0, 0 },
        { "mimo_v2_flash", "00000000000", FTMEM_MIMO_V2_FLASH, FTMEM_SILU, 4096, 16384, 48, 64, 4, 192, 64, 0, 129 },
        { "deepseek n_routed_experts=64 num_experts_per_tok=6", "00000000000", FTMEM_DEEPSEEK, FTMEM_SILU, 4096, 11008, 30, 32, 32, 128, 128, 0, 0 },
        { "granitemoehybrid", "00000000010", FTMEM_GRANITEMOEHYBRID, FTMEM_SILU, 4096, 1024, 32, 32, 32, 128, 128, 0, 0 },
        { "bamba", "00000000000", FTMEM_BAMBA, FTMEM_SILU, 4096, 14336, 32, 32, 8, 128, 64, 0, 0 },
        { "mamba2", "00000000000", FTMEM_MAMBA2, FTMEM_SILU, 4096, 16384 /* no block has an MLP */, 64, 128, 128, 32, 0, 0, 0 },
        { "qwen", "01000000000", FTMEM_QWEN, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "chatglm multi_query_attention=true", "00000000000", FTMEM_CHATGLM, FTMEM_SILU, 4096, 13696, 28, 32, 1, 128, 64, 0, 0 },
        { "baichuan max_position_embeddings=4096", "00000000000", FTMEM_BAICHUAN, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "internlm2", "01100000000", FTMEM_INTERNLM2, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "orion", "00001000000", FTMEM_ORION, FTMEM_SILU, 5120, 15360, 40, 40, 40, 128, 128, 0, 0 },
        { "minicpm", "10000000010", FTMEM_MINICPM, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "t5", "10000000010", FTMEM_T5, FTMEM_RELU, 512, 2048, 6, 8, 8, 64, 0, 0, 0 },
        { "bart", "11111000000", FTMEM_BART, FTMEM_GELU, 1024, 4096, 12, 16, 16, 64, 0, 1026, 0 },
        { "gemma4_text", "10000100000", FTMEM_GEMMA4, FTMEM_GELU_TANH, 2304, 9216, 30, 8, 4, 256, 256, 0, 512 },
        { "qwen2_moe", "01000000000", FTMEM_QWEN2_MOE, FTMEM_SILU, 2048, 5632, 24, 16, 16, 128, 128, 0, 0 },
        { "gpt_oss", "01100000000", FTMEM_GPT_OSS, FTMEM_SILU, 2880, 2880, 36, 64, 8, 64, 64, 0, 128 },
        { "dots1 n_routed_experts=128 num_experts_per_tok=6", "00000100000", FTMEM_DOTS1, FTMEM_SILU, 4608, 10944, 62, 32, 32, 144, 144, 0, 0 },
        { "flex_olmo", "00000100000", FTMEM_FLEX_OLMO, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "granitemoe", "00000000010", FTMEM_GRANITEMOE, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "glm4_moe_lite", "00000000000", FTMEM_GLM4_MOE_LITE, FTMEM_SILU, 2048, 10240, 47, 20, 20, 256, 64, 0, 0 },
        { "ernie4_5_moe", "10000000000", FTMEM_ERNIE4_5_MOE, FTMEM_SILU, 2560, 12288, 28, 20, 4, 128, 128, 0, 0 },
        { "llama4_text", "00000100000", FTMEM_LLAMA4, FTMEM_SILU, 5120, 16384, 48, 40, 8, 128, 128, 0, 8192 },
        { "ministral3", "00000000000", FTMEM_MINISTRAL3, FTMEM_SILU, 4096, 14336, 34, 32, 8, 128, 128, 0, 0 },
        { "mimo", "01000000000", FTMEM_MIMO, FTMEM_SILU, 4096, 22016, 32, 32, 32, 128, 128, 0, 0 },
        { "nemotron_h", "00000000000", FTMEM_NEMOTRON_H, FTMEM_RELU2, 4096, 21504, 4, 32, 8, 128, 0, 0, 0 },
        { "qwen3_next", "00000100000", FTMEM_QWEN3_NEXT, FTMEM_SILU, 2048, 5632, 48, 16, 2, 256, 64, 0, 0 },
        { "qwen3_5_text", "00000100000", FTMEM_QWEN3_5, FTMEM_SILU, 4096, 12288, 32, 16, 4, 256, 64, 0, 0 },
        { "qwen3_5_moe_text", "00000100000", FTMEM_QWEN3_5_MOE, FTMEM_SILU, 2048, 8192 /* no block has a dense MLP */, 40, 16, 2, 256, 64, 0, 0 },
        { "glm", "01000000000", FTMEM_GLM, FTMEM_SILU, 4096, 13696, 40, 32, 2, 128, 64, 0, 0 },
        { "glm4", "01000000000", FTMEM_GLM4, FTMEM_SILU, 4096, 13696, 40, 32, 2, 128, 64, 0, 0 },
        { "seed_oss", "01000000000", FTMEM_SEED_OSS, FTMEM_SILU, 4096, 27648, 64, 80, 8, 128, 128, 0, 0 },
        { "nemotron-nas block_configs.0.ffn.ffn_mult=4", "00000000000", FTMEM_NEMOTRON_NAS, FTMEM_SILU, 4096, 11008, 32, 32, 32, 128, 128, 0, 0 },
        { "whisper", "11111000000", FTMEM_WHISPER, FTMEM_GELU, 384, 1536, 4, 6, 6, 64, 0, 448, 0 },
    };
    (void)state;
    assert_int_equal(sizeof rows / sizeof rows[0], FTMEM_FAMILY_END - 1 - 11); /* towers, and mllama's text model, are no models of their own */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[96];
        snprintf(text, sizeof text, "model_type=%s", rows[i].type);
        ftmem_model m = built(text);
        assert_int_equal(m.family, rows[i].family);
        check_switches(&m, rows[i].switches);
        assert_int_equal(m.activation, rows[i].activation);
        assert_int_equal(m.hidden, rows[i].hidden);
        assert_int_equal(m.ffn, rows[i].ffn);
        assert_int_equal(m.layers, rows[i].layers);
        assert_int_equal(m.heads, rows[i].heads);
        assert_int_equal(m.kv_heads, rows[i].kv_heads);
        assert_int_equal(m.head_dim, rows[i].head_dim);
        assert_int_equal(m.rotary_dim, rows[i].rotary);
        assert_int_equal(m.position_rows, rows[i].rows);
        assert_int_equal(m.sliding_window, rows[i].window);
        assert_int_equal(m.inferred, 0);
        text[strlen(text) - strlen(strchr(rows[i].type, ' ') ? strchr(rows[i].type, ' ') : "")] = '\0';
        assert_string_equal(m.name, text + strlen("model_type="));
    }
}

/* configuration_t5.py, configuration_bart.py, configuration_whisper.py: what stands before the decoder. */
static void test_encoders(void **state)
{
    (void)state;
    ftmem_model m = built("model_type=t5 feed_forward_proj=gated-gelu num_layers=4 num_decoder_layers=2 tie_word_embeddings=false dropout_rate=0.2");
    assert_true(m.gated == FTMEM_ON && m.activation == FTMEM_GELU_NEW && m.tied == FTMEM_ON && m.scaled == FTMEM_OFF);
    assert_true(m.encoder_layers == 4 && m.layers == 2 && m.relative_buckets == 32 && m.mlp_dropout == 0.2 && m.embed_dropout == 0.2);
    m = built("model_type=t5 num_hidden_layers=3 num_decoder_layers=null feed_forward_proj=gated-silu");
    assert_true(m.encoder_layers == 3 && m.layers == 3 && m.activation == FTMEM_SILU);
    m = built("model_type=bart encoder_layers=3 encoder_ffn_dim=64 encoder_attention_heads=8 decoder_layers=1 activation_dropout=0.1");
    assert_true(m.encoder_layers == 3 && m.layers == 1 && m.encoder_ffn == 64 && m.encoder_heads == 8 && m.heads == 16 && m.mlp_dropout == 0.1);
    m = built("model_type=whisper num_mel_bins=128 max_source_positions=1500");
    assert_true(m.encoder_channels == 128 && m.encoder_positions == 1500 && m.max_positions == 448);
}

static void test_dropouts(void **state)
{
    (void)state;
    ftmem_model m = built("model_type=gpt2 attn_pdrop=0.25 resid_pdrop=0.5 embd_pdrop=0");
    assert_true(m.attention_dropout == 0.25 && m.hidden_dropout == 0.5 && m.embed_dropout == 0);
    m = built("model_type=gpt2");
    assert_true(m.attention_dropout == 0.1 && m.hidden_dropout == 0.1 && m.embed_dropout == 0.1);
    m = built("model_type=opt");
    assert_true(m.attention_dropout == 0 && m.hidden_dropout == 0.1 && m.embed_dropout == 0);
    m = built("model_type=phi3 embd_pdrop=0.5 resid_pdrop=0.25"); /* the class has no dropout after the embedding */
    assert_true(m.embed_dropout == 0 && m.hidden_dropout == 0.25);
    m = built("model_type=gpt_neox hidden_dropout=0.5"); /* one key for both places */
    assert_true(m.embed_dropout == 0.5 && m.hidden_dropout == 0.5);
    m = built("model_type=mpt attn_config.attn_pdrop=0.5 resid_pdrop=0.25 emb_pdrop=0.25"); /* only the first is read */
    assert_true(m.attention_dropout == 0.5 && m.hidden_dropout == 0.5 && m.embed_dropout == 0);
    m = built("model_type=starcoder2 attention_dropout=0.5 residual_dropout=0.25 embedding_dropout=0.125");
    assert_true(m.attention_dropout == 0.5 && m.hidden_dropout == 0.25 && m.embed_dropout == 0.125);
}

static void test_biases(void **state)
{
    (void)state;
    ftmem_model m = built("model_type=llama attention_bias=true mlp_bias=true");
    check_switches(&m, "01110000000");
    m = built("model_type=mistral attention_bias=true"); /* the class has no such key */
    check_switches(&m, "00000000000");
    m = built("model_type=qwen2 attention_bias=false");
    check_switches(&m, "01000000000");
    m = built("model_type=gpt_neox attention_bias=false");
    check_switches(&m, "00011011000");
    m = built("model_type=starcoder2 use_bias=false");
    check_switches(&m, "10001000000");
    m = built("model_type=mpt no_bias=false expansion_ratio=2 attn_config.qk_ln=true"); /* accepted and never read */
    check_switches(&m, "10000000001");
    assert_int_equal(m.ffn, 8192);
    m = built("model_type=stablelm use_qkv_bias=true qk_layernorm=true use_parallel_residual=true");
    check_switches(&m, "01001110000");
    m = built("model_type=gpt_neox use_parallel_residual=false"); /* two norms, but one after the other */
    check_switches(&m, "01111000000");
}

static void test_falcon(void **state)
{
    (void)state;
    ftmem_model m = built("model_type=falcon hidden_size=8192 num_attention_heads=128 num_kv_heads=8 new_decoder_architecture=true");
    assert_int_equal(m.kv_heads, 8);
    check_switches(&m, "10001011000");
    m = built("model_type=falcon hidden_size=4096 num_attention_heads=32 num_kv_heads=8 new_decoder_architecture=true num_ln_in_parallel_attn=1");
    check_switches(&m, "10001010000");
    m = built("model_type=falcon hidden_size=2048 num_attention_heads=32 alibi=true bias=true multi_query=false parallel_attn=false");
    assert_int_equal(m.kv_heads, 32);
    assert_int_equal(m.rotary_dim, 0);
    check_switches(&m, "11111000001");
    m = built("model_type=falcon num_kv_heads=71"); /* multi-query whatever the key says */
    assert_int_equal(m.kv_heads, 1);
    m = built("model_type=RefinedWeb hidden_size=8192 n_head=128 n_head_kv=8 n_layer=60");
    assert_int_equal(m.family, FTMEM_FALCON);
    assert_int_equal(m.layers, 60);
    assert_int_equal(m.kv_heads, 8);
    check_switches(&m, "10001011000");
    m = built("model_type=RefinedWebModel n_head=71 n_layer=32 hidden_size=4544");
    assert_int_equal(m.kv_heads, 1);
}

static void test_rotation(void **state)
{
    (void)state;
    assert_int_equal(built("model_type=phi hidden_size=2560 partial_rotary_factor=0.4").rotary_dim, 32);
    assert_int_equal(built("model_type=phi partial_rotary_factor=0.4 rope_parameters.partial_rotary_factor=0.25").rotary_dim, 16);
    assert_int_equal(built("model_type=gpt_neox rotary_pct=1.0").rotary_dim, 96);
    assert_int_equal(built("model_type=gptj rotary_dim=32").rotary_dim, 32);
    assert_int_equal(built("model_type=phi3 num_attention_heads=24 partial_rotary_factor=0.75").rotary_dim, 96);
    assert_int_equal(built("model_type=llama partial_rotary_factor=1.0").rotary_dim, 128);
}

/* ----------------------------------------------------------------------------------------- layers and windows */

static void check_kinds(const char *text, const char *want)
{
    ftmem_model m = built(text);
    assert_int_equal(m.layers, strlen(want));
    for (int64_t i = 0; i < m.layers; i++)
        if (m.layer_kind[i] != want[i] - '0') fail_msg("%s: layer %d is of kind %d", text, (int)i, m.layer_kind[i]);
    assert_int_equal(m.layer_kind[m.layers], 0);
}

static void test_layer_kinds(void **state)
{
    (void)state;
    check_kinds("model_type=mistral num_hidden_layers=3", "111");
    check_kinds("model_type=mistral num_hidden_layers=3 sliding_window=null", "000");
    check_kinds("model_type=phi3 num_hidden_layers=2 sliding_window=2047", "11");
    check_kinds("model_type=qwen2 num_hidden_layers=4 max_window_layers=2", "0000");
    check_kinds("model_type=qwen2 num_hidden_layers=4 max_window_layers=2 use_sliding_window=true", "0011");
    check_kinds("model_type=qwen3 num_hidden_layers=3 max_window_layers=0 use_sliding_window=true", "111");
    check_kinds("model_type=gemma2 num_hidden_layers=5", "10101");
    check_kinds("model_type=gemma3_text num_hidden_layers=7", "1111101");
    check_kinds("model_type=gemma3_text num_hidden_layers=5 sliding_window_pattern=2", "10101");
    check_kinds("model_type=gemma2 num_hidden_layers=4 sliding_window_pattern=4", "1010"); /* the class does not read it */
    check_kinds("model_type=olmo3 num_hidden_layers=5", "11101");
    check_kinds("model_type=cohere2 num_hidden_layers=5", "11121");
    check_kinds("model_type=smollm3 num_hidden_layers=5", "00020");
    check_kinds("model_type=smollm3 num_hidden_layers=5 no_rope_layer_interval=2", "02020");
    check_kinds("model_type=smollm3 num_hidden_layers=3 no_rope_layers.0=0 no_rope_layers.1=1 no_rope_layers.2=1", "200");
    check_kinds("model_type=gemma2 num_hidden_layers=2 layer_types.0=full_attention layer_types.1=sliding_attention", "01");
    check_kinds("model_type=llama num_hidden_layers=2 sliding_window=128", "00");
}

static void test_nested_gemma3(void **state)
{
    (void)state;
    ftmem_model m = built("model_type=gemma3 text_config.hidden_size=1152 text_config.num_attention_heads=4 text_config.num_key_value_heads=1 hidden_size=7");
    assert_int_equal(m.family, FTMEM_GEMMA3);
    assert_int_equal(m.hidden, 1152);
    assert_int_equal(m.kv_heads, 1);
    m = built("model_type=gemma3 hidden_size=1152 num_attention_heads=4 num_key_value_heads=1 sliding_window_pattern=6");
    assert_int_equal(m.hidden, 1152);
}

/* -------------------------------------------------------------------------------------------- names and nulls */

static void test_other_names(void **state)
{
    (void)state;
    assert_int_equal(built("model_type=gpt2 hidden_size=1024 num_hidden_layers=24 num_attention_heads=16").layers, 24);
    assert_int_equal(built("model_type=gpt2 n_layer=12 num_hidden_layers=24").layers, 24); /* the other name wins */
    assert_int_equal(built("model_type=bloom hidden_size=64 n_embed=1024 num_attention_heads=16").hidden, 1024);
    assert_int_equal(built("model_type=bloom hidden_size=1024 n_embed=null").hidden, 1024);
    assert_int_equal(built("model_type=llama hidden_size=1 hidden_size=2048").hidden, 2048); /* the last one, as in Python */
    assert_int_equal(built("model_type=gpt2 n_inner=null n_embd=1024 n_head=16").ffn, 4096);
    assert_int_equal(built("model_type=llama head_dim=null num_key_value_heads=null").kv_heads, 32);
    assert_string_equal(built("model_type=llama _name_or_path=org/some-model").name, "org/some-model");
}

/* --------------------------------------------------------------------------------------------------- refusals */

typedef struct bad_config {
    const char *text, *field, *value, *says;
    ftmem_status status;
} bad_config;

static void check_bad(const bad_config *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ftmem_model model, before = FTMEM_MODEL_INIT;
        ftmem_error error;
        ftmem_status status = build(rows[i].text, &model, &error);
        if (status != rows[i].status || strcmp(error.field, rows[i].field) != 0 || strcmp(error.value, rows[i].value) != 0 ||
            !strstr(error.message, rows[i].says))
            fail_msg("%s: %d, %s, %s, %s", rows[i].text, (int)status, error.field, error.value, error.message);
        assert_memory_equal(&model, &before, sizeof model);
    }
}
#define CHECK_BAD(rows) check_bad(rows, sizeof(rows) / sizeof((rows)[0]))

static void test_unsupported(void **state)
{
    static const bad_config rows[] = {
        { "model_type=longcat_flash", "model_type", "longcat_flash", "mixture of experts", FTMEM_E_UNSUPPORTED },
        { "model_type=some_new_moe", "model_type", "some_new_moe", "mixture of experts", FTMEM_E_UNSUPPORTED },
        { "model_type=electra", "model_type", "electra", "an encoder", FTMEM_E_UNSUPPORTED },
        { "model_type=never_heard_of", "model_type", "never_heard_of", "not known", FTMEM_E_UNSUPPORTED },
        { "model_type=llama num_local_experts=8", "num_local_experts", "8", "mixtures of experts", FTMEM_E_UNSUPPORTED },
        { "model_type=llama vision_config.model_type=siglip", "vision_config", "", "text_config", FTMEM_E_UNSUPPORTED },
        { "model_type=llava vision_config.model_type=dinov2", "vision_config.model_type", "dinov2", "tower", FTMEM_E_UNSUPPORTED },
        { "model_type=gemma3 vision_config.hidden_size=8", "vision_config.vision_use_head", "true", "pooling head", FTMEM_E_UNSUPPORTED },
        { "model_type=mistral3 multimodal_projector_bias=true vision_config.hidden_size=64", "multimodal_projector_bias", "true", "class default",
          FTMEM_E_UNSUPPORTED },
        { "model_type=pixtral", "model_type", "pixtral", "vision tower", FTMEM_E_UNSUPPORTED },
        { "model_type=bert is_decoder=true", "is_decoder", "true", "decoders", FTMEM_E_UNSUPPORTED },
        { "model_type=albert num_hidden_groups=2", "num_hidden_groups", "2", "groups", FTMEM_E_UNSUPPORTED },
        { "model_type=modernbert mlp_dropout=0.1", "mlp_dropout", "0.1", "dropout", FTMEM_E_UNSUPPORTED },
        { "model_type=llama quantization_config.quant_method=gptq", "quantization_config", "gptq", "gptq", FTMEM_E_UNSUPPORTED },
        { "model_type=llama quantization_config.bits=4", "quantization_config", "", "no quant_method", FTMEM_E_UNSUPPORTED },
        { "model_type=llama hidden_act=relu6", "hidden_act", "relu6", "silu", FTMEM_E_UNSUPPORTED },
        { "model_type=llama num_hidden_layers=513", "num_hidden_layers", "513", "512", FTMEM_E_UNSUPPORTED },
        { "model_type=llama partial_rotary_factor=0.5", "partial_rotary_factor", "0.5", "whole heads", FTMEM_E_UNSUPPORTED },
        { "model_type=llama output_hidden_states=true", "output_hidden_states", "true", "hidden states", FTMEM_E_UNSUPPORTED },
        { "model_type=opt word_embed_proj_dim=512", "word_embed_proj_dim", "512", "hidden_size", FTMEM_E_UNSUPPORTED },
        { "model_type=opt do_layer_norm_before=false", "do_layer_norm_before", "false", "OPT-350M", FTMEM_E_UNSUPPORTED },
        { "model_type=opt layerdrop=0.1", "layerdrop", "0.1", "at random", FTMEM_E_UNSUPPORTED },
        { "model_type=bart encoder_layerdrop=0.1", "encoder_layerdrop", "0.1", "at random", FTMEM_E_UNSUPPORTED },
        { "model_type=t5 feed_forward_proj=gated-tanh", "feed_forward_proj", "tanh", "gelu_new", FTMEM_E_UNSUPPORTED },
        { "model_type=mt5", "model_type", "mt5", "an encoder-decoder", FTMEM_E_UNSUPPORTED },
        { "model_type=olmo clip_qkv=8.0", "clip_qkv", "8", "clipped", FTMEM_E_UNSUPPORTED },
        { "model_type=mpt attn_config.clip_qkv=6", "attn_config.clip_qkv", "6", "clipped", FTMEM_E_UNSUPPORTED },
        { "model_type=bloom apply_residual_connection_post_layernorm=true", "apply_residual_connection_post_layernorm", "true", "residual",
          FTMEM_E_UNSUPPORTED },
        { "model_type=gpt2 add_cross_attention=true", "add_cross_attention", "true", "cross-attention", FTMEM_E_UNSUPPORTED },
        { "model_type=gpt2 reorder_and_upcast_attn=true", "reorder_and_upcast_attn", "true", "fp32", FTMEM_E_UNSUPPORTED },
        { "model_type=gemma3_text use_bidirectional_attention=true", "use_bidirectional_attention", "true", "causal", FTMEM_E_UNSUPPORTED },
        { "model_type=falcon attention_dropout=0.1", "attention_dropout", "0.1", "Falcon", FTMEM_E_UNSUPPORTED },
        { "model_type=qwen2 num_hidden_layers=1 layer_types.0=linear_attention", "layer_types.0", "linear_attention", "full_attention", FTMEM_E_UNSUPPORTED },
        { "model_type=nemotron_h mamba_hidden_act=gelu", "mamba_hidden_act", "gelu", "silu", FTMEM_E_UNSUPPORTED },
        { "model_type=nemotron_h hybrid_override_pattern=MEX", "hybrid_override_pattern", "MEX", "letters", FTMEM_E_UNSUPPORTED },
        { "model_type=nemotron_h layers_block_type.0=conv", "layers_block_type.0", "conv", "linear_attention", FTMEM_E_UNSUPPORTED },
        { "model_type=smollm3 use_sliding_window=true sliding_window=64", "use_sliding_window", "true", "without rotation", FTMEM_E_UNSUPPORTED },
    };
    (void)state;
    CHECK_BAD(rows);
    built("model_type=llama quantization_config.quant_method=bitsandbytes quantization_config.load_in_4bit=true");
    built("model_type=qwen3 num_experts=0 n_routed_experts=null output_attentions=false");
    built("model_type=mpt attn_config.clip_qkv=null");
}

static void test_bad_values(void **state)
{
    static const bad_config rows[] = {
        { "hidden_size=64", "model_type", "", "missing", FTMEM_E_MISSING },
        { "model_type=null", "model_type", "", "missing", FTMEM_E_MISSING },
        { "model_type=7", "model_type", "7", "name", FTMEM_E_TYPE },
        { "model_type=llama hidden_size=null", "hidden_size", "null", "whole number", FTMEM_E_TYPE },
        { "model_type=llama hidden_size=big", "hidden_size", "big", "whole number", FTMEM_E_TYPE },
        { "model_type=llama hidden_size=4096.5", "hidden_size", "4096.5", "whole number", FTMEM_E_TYPE },
        { "model_type=llama hidden_size=true", "hidden_size", "true", "whole number", FTMEM_E_TYPE },
        { "model_type=llama hidden_size=0", "hidden_size", "0", "from 1 to", FTMEM_E_RANGE },
        { "model_type=llama hidden_size=-4096", "hidden_size", "-4096", "from 1 to", FTMEM_E_RANGE },
        { "model_type=llama intermediate_size=9223372036854775807", "intermediate_size", "9223372036854775807", "from 1 to", FTMEM_E_RANGE },
        { "model_type=llama num_hidden_layers=9223372036854775807", "num_hidden_layers", "9223372036854775807", "from 1 to 512", FTMEM_E_RANGE },
        { "model_type=llama num_attention_heads=30", "num_attention_heads", "30", "hidden_size 4096", FTMEM_E_CONFLICT },
        { "model_type=gpt2 n_head=7", "n_head", "7", "n_embd 768", FTMEM_E_CONFLICT },
        { "model_type=llama num_key_value_heads=5", "num_key_value_heads", "5", "num_attention_heads 32", FTMEM_E_CONFLICT },
        { "model_type=falcon new_decoder_architecture=true num_kv_heads=7", "num_kv_heads", "7", "num_attention_heads 71", FTMEM_E_CONFLICT },
        { "model_type=falcon new_decoder_architecture=true parallel_attn=false", "parallel_attn", "false", "parallel", FTMEM_E_CONFLICT },
        { "model_type=falcon num_ln_in_parallel_attn=2", "num_ln_in_parallel_attn", "2", "new decoder", FTMEM_E_CONFLICT },
        { "model_type=llama attention_dropout=1.5", "attention_dropout", "1.5", "probability", FTMEM_E_RANGE },
        { "model_type=llama attention_dropout=-0.1", "attention_dropout", "-0.1", "probability", FTMEM_E_RANGE },
        { "model_type=llama attention_dropout=null", "attention_dropout", "null", "probability", FTMEM_E_TYPE },
        { "model_type=gemma2 final_logit_softcapping=-1", "final_logit_softcapping", "-1", "null", FTMEM_E_RANGE },
        { "model_type=llama tie_word_embeddings=1", "tie_word_embeddings", "1", "true or false", FTMEM_E_TYPE },
        { "model_type=llama hidden_act=null", "hidden_act", "null", "activation", FTMEM_E_TYPE },
        { "model_type=phi partial_rotary_factor=2", "partial_rotary_factor", "2", "fraction", FTMEM_E_RANGE },
        { "model_type=phi partial_rotary_factor=0.05", "partial_rotary_factor", "0.05", "even number", FTMEM_E_CONFLICT },
        { "model_type=gptj rotary_dim=512", "rotary_dim", "512", "from 1 to 256", FTMEM_E_RANGE },
        { "model_type=mistral sliding_window=0", "sliding_window", "0", "or null", FTMEM_E_RANGE },
        { "model_type=gemma2 sliding_window=null", "sliding_window", "null", "sliding_attention", FTMEM_E_CONFLICT },
        { "model_type=gemma3_text sliding_window_pattern=0", "sliding_window_pattern", "0", "from 1 to", FTMEM_E_RANGE },
        { "model_type=olmo3 num_hidden_layers=2 layer_types.0=full_attention", "layer_types", "1", "one entry for each layer", FTMEM_E_CONFLICT },
        { "model_type=olmo3 num_hidden_layers=1 layer_types.1=full_attention", "layer_types.1", "full_attention", "longer", FTMEM_E_CONFLICT },
        { "model_type=olmo3 num_hidden_layers=1 layer_types.0=4", "layer_types.0", "4", "kind of layer", FTMEM_E_TYPE },
        { "model_type=smollm3 no_rope_layers.0=yes", "no_rope_layers.0", "yes", "0 or 1", FTMEM_E_TYPE },
    };
    (void)state;
    CHECK_BAD(rows);
}

static void test_bad_arguments(void **state)
{
    ftmem_entry entries[] = { { .key = "model_type", .type = FTMEM_ENTRY_TEXT, .text = "llama" }, { .key = "hidden_size", .type = 99 } };
    ftmem_model model = FTMEM_MODEL_INIT, unset = { 0 };
    ftmem_error error = FTMEM_ERROR_INIT;
    (void)state;
    assert_int_equal(ftmem_model_from_entries(entries, 2, &model, &error), FTMEM_E_ARGUMENT);
    entries[1].key = NULL;
    entries[1].type = FTMEM_ENTRY_NULL;
    assert_int_equal(ftmem_model_from_entries(entries, 2, &model, &error), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_model_from_entries(NULL, 1, &model, &error), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_model_from_entries(NULL, 0, &model, &error), FTMEM_E_MISSING);
    assert_int_equal(ftmem_model_from_entries(entries, 1, NULL, &error), FTMEM_E_ARGUMENT);
    assert_int_equal(ftmem_model_from_entries(entries, 1, &unset, &error), FTMEM_E_STRUCT_SIZE);
    assert_int_equal(ftmem_model_from_entries(entries, 1, &model, NULL), FTMEM_OK);
    entries[0].text = NULL;
    assert_int_equal(ftmem_model_from_entries(entries, 1, &model, &error), FTMEM_E_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_class_defaults), cmocka_unit_test(test_encoders),    cmocka_unit_test(test_dropouts),    cmocka_unit_test(test_biases),
        cmocka_unit_test(test_falcon),         cmocka_unit_test(test_rotation),    cmocka_unit_test(test_layer_kinds), cmocka_unit_test(test_nested_gemma3),
        cmocka_unit_test(test_other_names),    cmocka_unit_test(test_unsupported), cmocka_unit_test(test_bad_values),  cmocka_unit_test(test_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
