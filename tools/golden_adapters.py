#!/usr/bin/env python3
"""What PEFT's methods train, counted on real transformers and peft classes on the meta device (shapes only, no weights).

Writes tests/vectors/adapters.csv below --out:

  config            a file of tests/data/configs, with `layers` blocks only
  peft_config       PEFT's class; `arguments` its arguments as JSON, `targets` its target_modules
  method, keywords  the same in this library's words, for ftmem.predict()
  params            of the base model (fp32: in 16 bits AdaLoRA trains its rank numbers too, by accident of a cast)
  trainable         elements that require a gradient
  adapters          elements that PEFT added as parameters, trained or not

usage: golden_adapters.py [--out DIR]
"""
import argparse
import csv
import importlib.metadata
import json
import os
import pathlib

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peft
import torch
import transformers
from transformers import initialization

LAYERS = 2
# config, attention modules, all linears of a block, modules of IA3 with the feed-forward one last
MODELS = (
    ("meta-llama__Llama-3.2-1B", "q_proj v_proj", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj", "k_proj v_proj down_proj"),
    ("Qwen__Qwen2.5-0.5B-Instruct", "q_proj k_proj", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj", "q_proj v_proj down_proj"),
    ("google__gemma-2-2b", "q_proj o_proj", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj", "q_proj v_proj down_proj"),
    ("microsoft__phi-2", "q_proj v_proj", "q_proj k_proj v_proj dense fc1 fc2", "q_proj v_proj fc2"),
)
# class, its arguments, our method, our keywords, which of the target lists
METHODS = (
    ("LoraConfig", {"r": 16}, "lora", {"rank": 16}, 1),
    ("LoraConfig", {"r": 8, "use_dora": True}, "lora", {"rank": 8, "use_dora": True}, 1),
    ("LoraConfig", {"r": 8, "use_rslora": True, "init_lora_weights": "pissa_niter_4"}, "rslora", {"rank": 8}, 0),
    ("LoraConfig", {"r": 8, "rank_pattern": {"q_proj": 32}}, "lora", {"rank": 8, "rank_pattern": {"q_proj": 32}}, 1),
    ("LoraConfig", {"r": 8, "trainable_token_indices": list(range(12))}, "lora", {"rank": 8, "trainable_tokens": 12}, 0),
    ("LoraConfig", {"r": 8, "layers_to_transform": [0]}, "lora", {"rank": 8, "layers_first": 1}, 1),
    ("LoraConfig", {"r": 8, "modules_to_save": ["embed_tokens", "lm_head"]}, "lora", {"rank": 8, "modules_to_save": ["embed_tokens", "lm_head"]}, 0),
    ("VeraConfig", {"r": 64}, "vera", {"rank": 64}, 0),
    ("VeraConfig", {}, "vera", {}, 1),
    ("AdaLoraConfig", {"total_step": 10}, "adalora", {}, 1),
    ("AdaLoraConfig", {"total_step": 10, "init_r": 6}, "adalora", {"rank": 6}, 0),
    ("IA3Config", {"feedforward_modules": "last"}, "ia3", {}, 2),
    ("LoHaConfig", {"r": 8}, "loha", {"rank": 8}, 1),
    ("LoKrConfig", {"r": 8}, "lokr", {"rank": 8}, 1),
    ("LoKrConfig", {"r": 64, "decompose_factor": 8}, "lokr", {"rank": 64, "factors": 8}, 1),
    ("OFTConfig", {}, "oft", {}, 1),
    ("OFTConfig", {"oft_block_size": 64}, "oft", {"block_size": 64}, 0),
    ("PromptTuningConfig", {"num_virtual_tokens": 20}, "prompt", {"virtual_tokens": 20}, None),
    ("PromptEncoderConfig", {"num_virtual_tokens": 20, "encoder_hidden_size": 128}, "p_tuning", {"virtual_tokens": 20, "encoder_hidden": 128}, None),
)
FIELDS = ["config", "layers", "peft_config", "arguments", "targets", "method", "keywords", "params", "trainable", "adapters", "torch", "transformers", "peft"]


def base(path):
    config = json.loads(path.read_text())
    kind = config.pop("model_type")
    config["num_hidden_layers"] = LAYERS
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = config["layer_types"][:LAYERS]
    for key in ("quantization_config", "auto_map"):
        config.pop(key, None)
    with initialization.no_init_weights(), torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config), dtype=torch.float32)
    model.tie_weights()
    return model


def row(path, lists, method):
    name, arguments, ours, keywords, which = method
    targets = [] if which is None else lists[which].split()
    given = {k: v for k, v in arguments.items() if not (k == "init_lora_weights")}   # an initialisation changes no shape
    if given.get("feedforward_modules") == "last":
        given["feedforward_modules"] = [targets[-1]]
    model = base(path)
    params = sum(p.numel() for p in model.parameters())
    if targets:
        given["target_modules"] = targets
    with torch.device("meta"):
        made = peft.get_peft_model(model, getattr(peft, name)(task_type="CAUSAL_LM", **given))
    everything, trained = (sum(p.numel() for p in made.parameters() if p.requires_grad or not only) for only in (False, True))
    version = importlib.metadata.version
    return [path.stem, LAYERS, name, json.dumps(arguments), " ".join(targets), ours, json.dumps(keywords), params, trained, everything - params,
            version("torch"), version("transformers"), version("peft")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    out = parser.parse_args().out
    with open(out / "tests" / "vectors" / "adapters.csv", "w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(FIELDS)
        for name, *lists in MODELS:
            for method in METHODS:
                writer.writerow(row(out / "tests" / "data" / "configs" / f"{name}.json", lists, method))


if __name__ == "__main__":
    main()
