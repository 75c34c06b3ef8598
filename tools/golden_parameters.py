#!/usr/bin/env python3
"""Golden parameter data, taken from real transformers and peft classes.

Every in-scope config.json is built as a causal language model on the meta device (shapes only, no weights, no
network) and counted.  Written below --out (the root of a checkout):

  tests/data/configs/NAME.json     the configs: byte copies of real ones; made__*.json come from MADE below;
                                   those of OTHER_TYPES are out of scope, for tests of refusal
  tests/vectors/parameters.csv     parameter counts, and what peft would train, one row a config in scope
  tests/vectors/other_parameters.csv  the same totals of encoders and vision-language models, each with the head of its task
  tests/vectors/linear_modules.csv modules that hold parameters, one model for each distinct structure
  data/config_defaults.csv         what a configuration class assumes for a key that config.json omits

parameters.csv
  embedding_params  token and learned-position tables;  block_params  all transformer blocks together
  head_params       parameters of the output embedding that it does not share with the input embedding
  params            all of these, plus what is left: final norm, norm on the embeddings, OPT's projections

linear_modules.csv
  module            relative to block 0; modules outside the blocks have their whole name (lm_head, model.norm, ...)
  out_features      for a norm: the elements of its weight, 0 where it has none
  bias              true or false, for norms too

config_defaults.csv, column value
  32000, true, null, silu                 the value itself
  =num_attention_heads                    an expression over other keys, checked here against the class
  =cycle(sliding_attention*5+full_attention*1)    kinds of layers, repeated over the depth
  alias:n_head                            another name for that key; it wins if a file has both

usage: golden_parameters.py --configs DIR [DIR ...] --out DIR
"""
import argparse
import csv
import dataclasses
import importlib.metadata
import itertools
import json
import os
import pathlib
import shutil
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peft
import torch
import transformers
from torch import nn
from transformers import initialization
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.pytorch_utils import Conv1D

TYPES = (
    "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 gpt2 gpt_neox gptj opt bloom mpt falcon starcoder2 "
    "gpt_bigcode olmo olmo2 olmo3 smollm3 granite stablelm cohere cohere2 mixtral qwen3_moe deepseek_v2 deepseek_v3 glm4_moe "
    "minimax_m2 olmoe minicpm3 deepseek_v32 glm_moe_dsa mimo_v2_flash qwen2_moe gpt_oss ministral3 nemotron_h granitemoehybrid bamba mamba2 "
    "qwen3_next qwen3_5_text qwen3_5_moe_text dots1 flex_olmo granitemoe glm4_moe_lite ernie4_5_moe llama4_text "
    "glm glm4 seed_oss"
).split()

# Out of scope: mixtures of experts, hybrids, encoders, encoder-decoders, vision, code that transformers does not have.
OTHER_TYPES = (
    "llama4 bert t5 clip vit llava mllama "
    "qwen3_vl phi-msft minicpm"
).split()

# Counted with another head than a causal one: the class that builds it, and what the library calls the task ("": its default).
OTHER_HEADS = {
    "bert": ("AutoModelForMaskedLM", ""), "roberta": ("AutoModelForMaskedLM", ""), "xlm-roberta": ("AutoModelForMaskedLM", ""),
    "albert": ("AutoModelForMaskedLM", ""), "distilbert": ("AutoModelForMaskedLM", ""), "modernbert": ("AutoModelForMaskedLM", ""),
    "vit": ("AutoModelForImageClassification", ""),
    "llava": ("AutoModelForImageTextToText", ""), "gemma3": ("AutoModelForImageTextToText", ""),
    "mistral3": ("AutoModelForImageTextToText", ""), "qwen2_5_vl": ("AutoModelForImageTextToText", ""),
    "gemma4": ("AutoModelForImageTextToText", ""), "gemma4_text": ("AutoModelForCausalLM", ""),
    "qwen2_vl": ("AutoModelForImageTextToText", ""), "paligemma": ("AutoModelForImageTextToText", ""),
    "qwen3_vl": ("AutoModelForImageTextToText", ""), "qwen3_vl_moe": ("AutoModelForImageTextToText", ""), "kimi_k25": ("AutoModelForImageTextToText", ""),
    "qwen3_5": ("AutoModelForImageTextToText", ""), "qwen3_5_moe": ("AutoModelForImageTextToText", ""),
}
MORE_HEADS = {"AutoModelForSequenceClassification": "classify", "AutoModelForTokenClassification": "token_classify"}
OTHER_MADE = {
    "roberta-base": {"model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
    "xlm-roberta-base": {"model_type": "xlm-roberta", "vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
    "distilbert": {"model_type": "distilbert", "pad_token_id": 0},
    "albert-base-v2": {"model_type": "albert", "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "modernbert-base": {"model_type": "modernbert", "classifier_pooling": "mean", "global_attn_every_n_layers": 3, "local_attention": 128},
    "vit-large-patch32-384": {"model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                              "intermediate_size": 4096, "image_size": 384, "patch_size": 32, "qkv_bias": False, "num_labels": 1000},
    "mistral3-mistral": {"model_type": "mistral3", "tie_word_embeddings": False,
                         "text_config": {"model_type": "mistral", "num_hidden_layers": 3, "num_key_value_heads": 8, "head_dim": 128},
                         "vision_config": {"model_type": "pixtral", "num_hidden_layers": 2, "image_size": 1540, "patch_size": 14}},
}

# Configs that no file covers: classes without a real config here, and branches that change the shape.
# The first of each type is what its class makes of an empty config.
MADE = {f"default-{typ}": {"model_type": typ} for typ in TYPES} | {
    "default-dots1": {"model_type": "dots1", "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},    # nor for these
    "default-glm4_moe": {"model_type": "glm4_moe", "head_dim": 128},                   # the class would cut 96 heads of 4096 off at 42
    "default-deepseek_v2": {"model_type": "deepseek_v2", "num_experts_per_tok": 6},    # the class has no default for it
    "default-glm4_moe": {"model_type": "glm4_moe", "head_dim": 128},    # 96 heads do not divide its 4096
    "llama-biases": {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 16, "attention_bias": True,
                     "mlp_bias": True},
    "llama-head_dim": {"model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 96},
    "mistral-attention_bias": {"model_type": "mistral", "num_hidden_layers": 2, "attention_bias": True},
    "qwen2-head_dim": {"model_type": "qwen2", "num_hidden_layers": 2, "num_attention_heads": 16, "head_dim": 128,
                       "num_key_value_heads": 8, "tie_word_embeddings": True},
    "qwen3-attention_bias": {"model_type": "qwen3", "num_hidden_layers": 2, "attention_bias": True},
    "gemma-attention_bias": {"model_type": "gemma", "num_hidden_layers": 2, "attention_bias": True},
    "gemma2-untied": {"model_type": "gemma2", "num_hidden_layers": 3, "tie_word_embeddings": False},
    "gemma3_text-pattern": {"model_type": "gemma3_text", "num_hidden_layers": 5, "sliding_window_pattern": 2},
    "phi-qk_layernorm": {"model_type": "phi", "num_hidden_layers": 2, "num_key_value_heads": 8, "qk_layernorm": True},
    "phi-tied": {"model_type": "phi", "num_hidden_layers": 2, "tie_word_embeddings": True},
    "phi3-tied": {"model_type": "phi3", "num_hidden_layers": 2, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "gpt2-n_inner": {"model_type": "gpt2", "n_layer": 2, "n_inner": 2048, "tie_word_embeddings": False},
    "gpt_neox-no-bias": {"model_type": "gpt_neox", "num_hidden_layers": 2, "attention_bias": False},
    "gptj-n_inner": {"model_type": "gptj", "n_layer": 2, "n_inner": 8192},
    "opt-350m": {"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                 "ffn_dim": 4096, "word_embed_proj_dim": 512, "do_layer_norm_before": False},
    "opt-no-bias": {"model_type": "opt", "num_hidden_layers": 2, "enable_bias": False,
                    "layer_norm_elementwise_affine": False},
    "bloom-560m": {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16},
    "mpt-expansion_ratio": {"model_type": "mpt", "n_layers": 2, "expansion_ratio": 2, "no_bias": False,
                            "attn_config": {"qk_ln": True, "alibi": True}},
    "falcon-7b": {"model_type": "falcon", "num_hidden_layers": 32, "multi_query": True, "parallel_attn": True,
                  "hidden_size": 4544, "num_attention_heads": 71, "bias": False, "new_decoder_architecture": False},
    "falcon-rw-1b": {"model_type": "falcon", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
                     "vocab_size": 50304, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
    "falcon-one-norm": {"model_type": "falcon", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,
                        "num_kv_heads": 8, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1,
                        "ffn_hidden_size": 12288, "tie_word_embeddings": False},
    "starcoder2-no-bias": {"model_type": "starcoder2", "num_hidden_layers": 2, "use_bias": False},
    "gpt_bigcode-multi_head": {"model_type": "gpt_bigcode", "n_layer": 2, "multi_query": False},
    "olmo-biases": {"model_type": "olmo", "num_hidden_layers": 2, "num_key_value_heads": 8, "attention_bias": True,
                    "tie_word_embeddings": True},
    "olmo2-biases": {"model_type": "olmo2", "num_hidden_layers": 2, "num_key_value_heads": 8, "attention_bias": True},
    "olmo3-biases": {"model_type": "olmo3", "num_hidden_layers": 5, "num_key_value_heads": 8, "attention_bias": True},
    "smollm3-biases": {"model_type": "smollm3", "num_hidden_layers": 4, "attention_bias": True, "mlp_bias": True,
                       "use_sliding_window": True, "sliding_window": 4096},
    "granite-biases": {"model_type": "granite", "num_hidden_layers": 2, "num_key_value_heads": 8,
                       "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "stablelm-parallel": {"model_type": "stablelm", "num_hidden_layers": 2, "num_key_value_heads": 8,
                          "use_parallel_residual": True, "use_qkv_bias": True, "qk_layernorm": True},
    "cohere-qk_norm": {"model_type": "cohere", "num_hidden_layers": 2, "num_key_value_heads": 8, "use_qk_norm": True,
                       "attention_bias": True},
    "qwen3_next-dense": {"model_type": "qwen3_next", "num_hidden_layers": 5, "num_experts": 16, "decoder_sparse_step": 2, "mlp_only_layers": [1],
                         "full_attention_interval": 2, "attention_bias": True, "linear_num_value_heads": 16, "linear_conv_kernel_dim": 3},
    "qwen3_5_text-tied": {"model_type": "qwen3_5_text", "num_hidden_layers": 3, "tie_word_embeddings": True, "linear_value_head_dim": 64,
                          "layer_types": ["full_attention", "linear_attention", "linear_attention"]},
    "cohere2-bias": {"model_type": "cohere2", "num_hidden_layers": 5, "num_key_value_heads": 8, "attention_bias": True,
                     "tie_word_embeddings": False},
}

# Fields of a configuration class that say nothing about the shape or the memory of training.
IRRELEVANT = {
    "initializer_range", "init_std", "use_cache", "pretraining_tp", "slow_but_exact", "init_device", "is_decoder",
    "classifier_dropout", "add_cross_attention", "original_max_position_embeddings", "rope_parameters",
    "use_bidirectional_attention", "norm_type", "router_aux_loss_coef", "embedding_fraction", "attn_config", "_remove_final_layer_norm",
    "use_mamba_kernels", "time_step_min", "time_step_max", "time_step_limit", "time_step_floor", "mamba_ssm_cache_dtype", "rescale_prenorm_residual",
    "num_logits_to_keep", "mamba_proj_bias", "residual_in_fp32", "moe_shared_expert_overlap", "mtp_layers_block_type", "num_nextn_predict_layers",
}
IRRELEVANT_ENDS = ("_token_id", "_eps", "_epsilon")
IRRELEVANT_STARTS = ("summary_",)

HEADS_FROM = "hidden_size//num_attention_heads"
# What a key that is absent is computed from. Those marked "model" are computed by the model, not by the configuration.
DERIVED = {
    "num_key_value_heads": "num_attention_heads",
    "num_kv_heads": "num_attention_heads",
    "word_embed_proj_dim": "hidden_size",
    "ffn_hidden_size": "4*hidden_size",
    "head_dim": HEADS_FROM,
    "n_inner": "4*n_embd",                                                       # model
    "num_ln_in_parallel_attn": "2 if new_decoder_architecture else null",        # model
}
# Classes that do not declare head_dim, but whose models use it when the file has it (checked below).
UNDECLARED_HEAD_DIM = "qwen2 phi phi3 starcoder2 olmo olmo2 olmo3 smollm3 granite cohere cohere2 glm4_moe".split()
ALIASES = {"falcon": {"n_embed": "hidden_size"}, "bloom": {"n_embed": "hidden_size"},
           "nemotron_h": {"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_chunk_size": "chunk_size"}}    # beside attribute_map
ROTARY_KEY = {"glm4_moe": "partial_rotary_factor", "phi": "partial_rotary_factor", "phi3": "partial_rotary_factor", "stablelm": "partial_rotary_factor",
              "qwen3_next": "partial_rotary_factor", "qwen3_5_text": "partial_rotary_factor", "qwen3_5_moe_text": "partial_rotary_factor",
              "gpt_neox": "rotary_pct"}
WINDOW_PATTERN = {"gemma3_text": 6, "cohere2": 4}        # sliding_window_pattern: read, but not declared


def note(text):
    print(text, file=sys.stderr, flush=True)


def load(path):
    """A config.json as the key/value pairs of its text model, and that model's type."""
    cfg = json.loads(path.read_text())
    if cfg.get("model_type") == "gemma3":
        cfg = cfg.get("text_config", cfg)
        cfg["model_type"] = "gemma3_text"
    for key in ("quantization_config", "auto_map"):
        cfg.pop(key, None)
    return cfg.pop("model_type", None), cfg


def build(typ, cfg):
    conf = CONFIG_MAPPING[typ](**cfg)
    with initialization.no_init_weights(), torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(conf)
    model.tie_weights()
    return model


def count(params):
    """Elements of parameters, each one once."""
    return sum({id(p): p.numel() for p in params}.values())


def blocks_of(model):
    """The outermost list of modules: the transformer's blocks."""
    name, blocks = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList))
    assert len(blocks) == model.config.num_hidden_layers, name
    return name, blocks


def trainable_with_lora(model):
    if model.config.model_type == "llama4_text":    # the adapted router, a linear that returns a tuple, fails in its forward
        return ""
    lora = peft.LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    try:
        with torch.device("meta"):
            adapted = peft.get_peft_model(model, lora)
    except Exception as err:
        note(f"  peft refuses {model.config.model_type}: {err}")
        return ""
    return count(p for p in adapted.parameters() if p.requires_grad)


def parameter_row(model):
    _, blocks = blocks_of(model)
    inside = {id(p) for p in blocks.parameters()}
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    tables = [p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()]
    assert not inside & {id(p) for p in tables}
    known = {id(p) for p in tables}
    return {
        "params": count(model.parameters()),
        "embedding_params": count(tables),
        "head_params": count(p for p in head.parameters() if id(p) not in known),
        "block_params": count(blocks.parameters()),
        "tied": str(head.weight is table.weight).lower(),
    }


def layer_kinds(conf):
    n = conf.num_hidden_layers
    kinds = getattr(conf, "layer_types", None)
    if not kinds:
        kinds = ["sliding_attention" if getattr(conf, "sliding_window", None) else "full_attention"] * n
    names = sorted(set(kinds), key=kinds.index)
    return "+".join(f"{k}*{kinds.count(k)}" for k in names)


def describe(module):
    """(class, in_features, out_features, bias) of a module that is a norm or holds parameters itself, else None."""
    weight, cls = getattr(module, "weight", None), type(module).__name__
    bias = str(getattr(module, "bias", None) is not None).lower()
    if isinstance(module, Conv1D):
        return cls, module.nx, module.nf, bias
    if isinstance(module, nn.Linear):
        return cls, module.in_features, module.out_features, bias
    if isinstance(module, nn.Embedding):
        return cls, *weight.shape, bias
    if "Norm" in cls and not list(module.children()):
        if weight is None and not hasattr(module, "normalized_shape"):    # Llama4TextL2Norm
            return None
        size = weight.shape[-1] if weight is not None else module.normalized_shape[-1]
        return cls, size, weight.numel() if weight is not None else 0, bias
    return None


def described(root):
    """(name, class, in_features, out_features, bias) of each module that describe knows, and of the parameters of others."""
    for name, module in root.named_modules():
        if d := describe(module):
            yield name, *d
        elif own := list(module.named_parameters(recurse=False)):
            for key, weight in own:
                yield f"{name}.{key}", type(module).__name__, weight.shape[-1], weight.numel() // weight.shape[-1], "false"


def module_rows(model):
    """Of the last block, where blocks differ (dense ones first), and of what stands outside the blocks."""
    where, blocks = blocks_of(model)
    outside = [row for row in described(model) if not row[0].startswith(where + ".")]
    return list(described(blocks[-1])) + outside


def text(value):
    """A value as the table has it: as in JSON, but strings without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def resolved(typ, key, **cfg):
    return getattr(CONFIG_MAPPING[typ](**cfg), key)


def check_derived(typ, key, expr):
    """Does the class, or the model, follow the expression when the keys it is made of change?"""
    depth = next(f for f in ("num_hidden_layers", "n_layer", "n_layers")
                 if f in {g.name for g in dataclasses.fields(CONFIG_MAPPING[typ])})
    for heads, hidden in ((8, 512), (16, 1024)):
        cfg = {"num_attention_heads": heads, "hidden_size": hidden, depth: 1}
        names = dict(cfg, n_embd=hidden, new_decoder_architecture=False, null=None)
        want = eval(expr, {"__builtins__": {}}, names)
        if key == "n_inner":
            got = next(m[3] for m in module_rows(build(typ, cfg)) if m[0] in ("mlp.c_fc", "mlp.fc_in"))
        elif typ in UNDECLARED_HEAD_DIM and key == "head_dim":
            given = count(build(typ, dict(cfg, num_key_value_heads=4, head_dim=want)).parameters())
            other = count(build(typ, dict(cfg, num_key_value_heads=4, head_dim=2 * want)).parameters())
            got = want if given == count(build(typ, dict(cfg, num_key_value_heads=4)).parameters()) != other else None
        elif key == "num_ln_in_parallel_attn":
            norms = [sum(m[1] == "LayerNorm" and "." not in m[0] for m in module_rows(build(typ, dict(cfg, **new))))
                     for new in ({}, {"new_decoder_architecture": True})]
            got = None if norms == [1, 2] else norms
        else:
            got = resolved(typ, key, **cfg)
        assert got == want, (typ, key, expr, got, want)


def layer_pattern(typ):
    """The default order of kinds of layers, as a cycle."""
    kinds = CONFIG_MAPPING[typ](num_hidden_layers=48).layer_types
    if resolved(typ, "layer_types", use_sliding_window=True, sliding_window=16, num_hidden_layers=48) != kinds:
        window = CONFIG_MAPPING[typ](use_sliding_window=True, sliding_window=16, num_hidden_layers=48)
        if hasattr(window, "max_window_layers"):
            want = [i >= window.max_window_layers for i in range(48)]
            rule = "use_sliding_window and layer>=max_window_layers"
        else:
            want = [not rope for rope in window.no_rope_layers]
            rule = "use_sliding_window and sliding_window and not no_rope_layers[layer]"
        assert [k == "sliding_attention" for k in window.layer_types] == want and set(kinds) == {"full_attention"}
        return f"=sliding_attention if {rule} else full_attention"
    first = ""
    if kinds[0] == "full_attention" != kinds[1] and kinds[5] == "full_attention":    # the first one beside the cycle
        kinds, first = ["sliding_attention"] + kinds[1:], ", the first full_attention"
    period = next(p for p in range(1, 49) if all(k == kinds[i % p] for i, k in enumerate(kinds)))
    parts = [f"{k}*{len(list(g))}" for k, g in itertools.groupby(kinds[:period])]
    return f"=cycle({'+'.join(parts)}){first}"


def default_rows(typ):
    cls = CONFIG_MAPPING[typ]
    base = {f.name for f in dataclasses.fields(transformers.PreTrainedConfig)}
    rows = []
    for field in dataclasses.fields(cls):
        key, value = field.name, field.default
        if key == "head_dim" and hasattr(cls(), "kv_lora_rank"):    # of the rotated part: the library adds the parts up
            continue
        if key in base | IRRELEVANT or key.endswith(IRRELEVANT_ENDS) or key.startswith(IRRELEVANT_STARTS):
            continue
        value = value.default if isinstance(value, dataclasses.Field) else value
        if value is None and key in DERIVED and resolved(typ, key) is not None:
            check_derived(typ, key, DERIVED[key])
            value = "=" + DERIVED[key]
        elif key == "layer_types" and set(cls().layer_types) == {"indexed_attention"}:    # of the cache: all layers are alike
            continue
        elif key == "layer_types" and typ in ("qwen2_moe", "llama4_text"):    # windows are refused; chunks follow from no_rope_layers
            continue
        elif key == "layer_types":
            value = layer_pattern(typ)
        elif key == "no_rope_layers":
            assert resolved(typ, key, no_rope_layer_interval=3) == [int((i + 1) % 3 != 0) for i in range(cls().num_hidden_layers)]
            value = "=(layer+1)%no_rope_layer_interval!=0"
        rows.append((key, text(value)))
    if typ in UNDECLARED_HEAD_DIM:
        check_derived(typ, "head_dim", HEADS_FROM)
        rows.append(("head_dim", "=" + HEADS_FROM))
    if typ in ROTARY_KEY:
        assert resolved(typ, "rope_parameters", **{ROTARY_KEY[typ]: 0.125})["partial_rotary_factor"] == 0.125
        rows.append((ROTARY_KEY[typ], text(cls().rope_parameters["partial_rotary_factor"])))
    if typ == "glm4_moe_lite":
        assert cls().mlp_layer_types.count("dense") == 1 and cls().mlp_layer_types[0] == "dense"
        rows.append(("first_k_dense_replace", "1"))
    if typ == "mimo_v2_flash":    # one fraction for both kinds of layers
        factors = {kind["partial_rotary_factor"] for kind in cls().rope_parameters.values()}
        assert cls().mlp_layer_types.count("dense") == 1 and cls().mlp_layer_types[0] == "dense"
        rows += [("partial_rotary_factor", text(*factors)), ("first_k_dense_replace", "1")]
    if typ in WINDOW_PATTERN:
        default, two = WINDOW_PATTERN[typ], cls(sliding_window_pattern=2).layer_types
        assert cls().layer_types == cls(sliding_window_pattern=default).layer_types != two
        rows.append(("sliding_window_pattern", text(default)))
    if typ == "mpt":
        sub = type(cls().attn_config)
        rows += [("attn_config." + f.name, text(f.default)) for f in dataclasses.fields(sub) if f.name not in base]
    for key, name in (cls.attribute_map | ALIASES.get(typ, {})).items():
        if "layers_block_type" in (key, name):
            continue  # a list
        if resolved(typ, name, **{key: 24}) == resolved(typ, name, **{key: 24, name: 48}) == 24:
            rows.append((key, "alias:" + name))
        else:
            note(f"  {typ}: {key} does not win over {name}: no alias")
    return rows


def build_other(typ, cfg, auto):
    with initialization.no_init_weights(), torch.device("meta"):
        model = getattr(transformers, auto).from_config(CONFIG_MAPPING[typ](**cfg))
    model.tie_weights()
    return model


def other_lora(model, task):
    lora = peft.LoraConfig(r=16, target_modules="all-linear", task_type=task)
    try:
        with torch.device("meta"):
            return count(p for p in peft.get_peft_model(model, lora).parameters() if p.requires_grad)
    except Exception as err:
        note(f"  peft refuses {model.config.model_type}: {err}")
        return ""


def other_rows(dirs, folder, version):
    """Totals of encoders and vision-language models, with each of their heads."""
    rows = []
    found = [(path.stem, path) for path in sorted((p for d in dirs for p in d.glob("*.json")), key=lambda p: p.name)]
    for name, cfg in OTHER_MADE.items():
        (folder / f"made__{name}.json").write_text(json.dumps(cfg, indent=2) + "\n")
        found.append((f"made__{name}", folder / f"made__{name}.json"))
    found += [(path.stem, path) for path in sorted(folder.glob("made__gemma4*.json"))]
    for name, path in found:
        cfg = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("quantization_config", "auto_map")}
        typ = cfg.pop("model_type", None)
        if typ not in OTHER_HEADS or (typ == "gemma3" and "vision_config" not in cfg):
            continue
        if path.parent != folder:
            shutil.copyfile(path, folder / path.name)
        auto, task = OTHER_HEADS[typ]
        heads = [(auto, task)] + (list(MORE_HEADS.items()) if auto == "AutoModelForMaskedLM" else [])
        for auto, task in heads:
            try:
                params = count(build_other(typ, cfg, auto).parameters())
            except Exception as err:
                note(f"  skipped {name} ({typ}): {type(err).__name__}: {err}")
                continue
            peft_task = {"classify": "SEQ_CLS"}.get(task, "CAUSAL_LM" if "ImageText" in auto else None)
            lora = other_lora(build_other(typ, cfg, auto), peft_task) if task != "token_classify" else ""
            rows.append((name, typ, task, params, lora, *version.values()))
    return rows


def write_csv(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(header)
        out.writerows(rows)
    note(f"{path}: {len(rows)} rows")


def gather(dirs, folder):
    """Put the configs into the folder; return those in scope as (name, type, keys)."""
    folder.mkdir(parents=True, exist_ok=True)
    found, others = [], set()
    for path in sorted((p for d in dirs for p in d.glob("*.json")), key=lambda p: p.name):
        named = json.loads(path.read_text()).get("model_type")
        typ, cfg = load(path)
        if typ not in TYPES:
            if named in OTHER_TYPES and named not in others:
                others.add(named)
                shutil.copyfile(path, folder / path.name)
            continue
        shutil.copyfile(path, folder / path.name)
        found.append((path.stem, typ, cfg))
    for name, cfg in MADE.items():
        (folder / f"made__{name}.json").write_text(json.dumps(cfg, indent=2) + "\n")
        found.append((f"made__{name}", *load(folder / f"made__{name}.json")))
    note(f"{folder}: {len(found) - len(MADE)} real and {len(MADE)} made configs in scope, {len(others)} others")
    note(f"  no such other type: {' '.join(t for t in OTHER_TYPES if t not in others) or '-'}")
    return found


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--configs", type=pathlib.Path, nargs="+", required=True, help="folders of config.json files")
    args.add_argument("--out", type=pathlib.Path, required=True, help="root of the checkout to write to")
    args.add_argument("--as-of", default="2026-11-30", help="date of config_defaults.csv (default: %(default)s)")
    args = args.parse_args()
    torch.set_num_threads(1)

    version = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")}
    parameters, modules, structures = [], [], set()
    for name, typ, cfg in gather(args.configs, args.out / "tests/data/configs"):
        try:
            model = build(typ, cfg)
        except Exception as err:
            note(f"  skipped {name} ({typ}): {type(err).__name__}: {err}")
            continue
        rows = module_rows(model)
        structure = typ, tuple((n, c, b) for n, c, _, _, b in rows)
        if structure not in structures:
            structures.add(structure)
            modules += [(name, typ, layer_kinds(model.config), *row) for row in rows]
        row = parameter_row(model)
        lora = trainable_with_lora(model)
        parameters.append((name, typ, row["params"], row["embedding_params"], row["head_params"], row["block_params"],
                           lora, row["tied"], *version.values()))
        del model
    write_csv(args.out / "tests/vectors/parameters.csv",
              ("config", "model_type", "params", "embedding_params", "head_params", "block_params",
               "lora_r16_all_linear_trainable", "tied", *version), parameters)
    write_csv(args.out / "tests/vectors/other_parameters.csv",
              ("config", "model_type", "task", "params", "lora_r16_all_linear_trainable", *version),
              other_rows(args.configs, args.out / "tests/data/configs", version))
    write_csv(args.out / "tests/vectors/linear_modules.csv",
              ("config", "model_type", "layer_kinds", "module", "class", "in_features", "out_features", "bias"),
              modules)
    defaults = [(typ, key, value, f"transformers {version['transformers']} {CONFIG_MAPPING[typ].__name__}", args.as_of)
                for typ in TYPES for key, value in default_rows(typ)]
    write_csv(args.out / "data/config_defaults.csv", ("model_type", "key", "value", "source", "as_of"), defaults)


if __name__ == "__main__":
    main()
