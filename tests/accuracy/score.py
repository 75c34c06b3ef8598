#!/usr/bin/env python3
"""Scores ftmem's predictions against measured and computed memory, row by row, through the public Python API.

usage: score.py FILE... [--configs DIR]... [--per-row OUT.csv] [--json] [--details] [--phases] [--match REGEX] [--any-stack]

The kind of a file is recognised by its columns (KINDS below). Nothing is left out in silence: a row that cannot be
predicted is listed as not scored, with the name of the input that is missing or not modelled; an input that the row
leaves open is filled in as `read as` lines of the report say. How to read the report: README.md beside this file.
"""
import argparse
import collections
import csv
import json
import math
import os
import re
import statistics
import sys

import ftmem

GB, MIB, GIB = 10**9, 1 << 20, 1 << 30
TIERS = ("allocated", "reserved", "process")
PHASES = ("forward", "loss", "backward", "optimizer", "forward2", "loss2", "backward2", "optimizer2", "eval", "reference", "generation")
PER_ROW = ("file,id,source,method,tier,measured_bytes,expected_bytes,lower_bytes,upper_bytes,error,phase_measured,"
           "phase_predicted,reason_not_scored").split(",")
ELEMENT_BYTES = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int8": 1, "uint8": 1, "bool": 1, "float64": 8, "nf4": 0.5, "fp4": 0.5}
DTYPE_WORDS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class NotScored(Exception):
    """`name` is the input that is missing or not modelled, the message says why."""

    def __init__(self, name, message):
        super().__init__(f"{name}: {message}")
        self.name = name


class Job:
    """One row of a file: what was measured, what is asked of the library, and what came back."""

    def __init__(self, file, kind, number, row):
        self.file, self.kind, self.row = file, kind, row
        self.id = row.get("id") or str(number)
        self.source = self.method = self.phase = ""
        self.tiers = {}          # tier -> measured bytes
        self.phases = {}         # phase -> measured bytes
        self.model, self.fields, self.read_as = None, {}, []
        self.reason = None       # a NotScored
        self.got = None          # an Answer
        self.oracle = False
        self.sublayers = False   # the row's `layers` are parts of one block, and so is its kept_layer
        self.full_depth = True

    def error(self, tier):
        return relative(self.got.tiers[tier][1], self.tiers[tier])


# ------------------------------------------------------------------------------------------------ the library

class Answer:
    """What the score reads of a prediction; the only place that knows the names of the package's results."""

    def __init__(self, p):
        m = p.memory
        self.tiers = {t: (x.lower, x.expected, x.upper) for t in TIERS for x in [getattr(m, t)]}
        self.bound_rows = m.bound_rows
        self.phases = {k: v.allocated for k, v in m.phases.items()}
        self.phase = step_of(m.peak.phase)
        self.parameters, self.trainable = p.parameters, p.trainable
        self.flops_forward, self.flops_backward = p.flops_forward, p.flops_backward
        self.kept_bytes, self.kept_layer_bytes, self.resident_bytes = m.kept, m.kept_layer, m.resident
        self.largest = None                      # bytes of one of the largest tensors, unrounded where the dtype has whole bytes
        if m.peak.largest:
            top = m.peak.largest[0]
            each = ELEMENT_BYTES.get(DTYPE_WORDS.get(top.dtype, top.dtype))
            self.largest = math.prod(d for d in top.dims if d) * each if each else top.bytes // max(1, top.count)


def predict(model, fields):
    try:
        return Answer(ftmem.predict(model, **fields))
    except ftmem.FtmemError as e:
        raise refused(e) from None


def refused(e):
    """The library's own error, by the name of the input and, if short, its value."""
    return NotScored(f"{e.field or type(e).__name__} {e.value if len(e.value) <= 40 else ''}".strip(), str(e))


def step_of(phase):
    return str(phase).rstrip("2")


# ------------------------------------------------------------------------------------------ configs and models

class Configs:
    """Config dicts by file name: oracle_configs/ beside the scored file first, then each --configs folder."""

    def __init__(self, folders):
        self.folders, self.cache = folders, {}

    def load(self, file, name):
        """The parsed config, or None."""
        for folder in [os.path.join(os.path.dirname(os.path.abspath(file)), "oracle_configs"), *self.folders]:
            path = os.path.join(folder, name)
            if path not in self.cache:
                self.cache[path] = None
                if os.path.isfile(path):
                    with open(path, encoding="utf-8") as f:
                        self.cache[path] = json.load(f)
            if self.cache[path] is not None:
                return self.cache[path]
        return None

    def model(self, file, name):
        """By model name: a config file `owner__name.json` if there is one, else the name, for the library's catalog."""
        return self.load(file, name.replace("/", "__") + ".json") or name

    def overridden(self, file, name, overrides):
        key = (os.path.dirname(os.path.abspath(file)), name, overrides)
        if key not in self.cache:
            config = self.load(file, name)
            if config is None:
                raise NotScored("config", f"{name} is in none of the config folders")
            self.cache[key] = override(config, json.loads(overrides or "{}"))
        return self.cache[key]


def override(config, changes):
    """A config with changes, as the oracle makes its models: fewer layers also cut every list that has one item a layer."""
    config = {k: v for k, v in config.items() if k not in ("quantization_config", "auto_map")}
    if config.get("model_type") == "gemma3" and "text_config" not in config:
        config["model_type"] = "gemma3_text"
    for key, value in changes.items():           # "text_config.num_hidden_layers": inside
        *inside, last = key.split(".")
        target = config
        for part in inside:
            target[part] = dict(target[part])
            target = target[part]
        target[last] = value
    if "num_hidden_layers" in changes:
        n = changes["num_hidden_layers"]
        config.update({k: n for k in ("n_layer", "n_layers", "num_layers", "num_decoder_layers") if k in config})
        for k in ("layer_types", "mlp_layer_types", "no_rope_layers"):
            if isinstance(config.get(k), list):
                config[k] = config[k][:n]
    return config


# -------------------------------------------------------------------------------------------------- LoRA targets

BOUNDARY = {"embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings", "output_proj", "output"}
QV = ("q_proj", "v_proj")
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
FUSED_QV = (*QV, "query_key_value", "c_attn", "qkv_proj", "Wqkv")
FUSED_QKVO = (*QKVO, "out_proj", "query_key_value", "dense", "c_attn", "qkv_proj", "Wqkv")


def existing(model, names, known={}):
    """Those of `names` that are modules of the model (peft skips the others). known: model -> {name: bool}."""
    seen = known.setdefault(json.dumps(model, sort_keys=True), {})
    for n in names:
        if n not in seen:
            try:
                ftmem.predict(model, method="lora", rank=8, targets=[n])
                seen[n] = True
            except ftmem.FtmemError as e:
                if "target" not in e.field:
                    raise refused(e) from None
                seen[n] = False
    return [n for n in names if seen[n]]


def oracle_targets(model, text):
    """qv | qkvo | all | names, as the oracle resolves them where the row does not list the modules."""
    if text == "all":
        return ["all-linear"]
    if text not in ("qv", "qkvo"):
        return text.split(",")
    want = existing(model, QV if text == "qv" else QKVO)
    if text == "qkvo" and want and "o_proj" not in want:
        want += existing(model, ["out_proj"])
    return want if len(want) > 1 else existing(model, FUSED_QV if text == "qv" else FUSED_QKVO)


SHORT = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def written_targets(model, text, job):
    """Targets as published tables write them: module names, short names, or a phrase for all linears."""
    plain = re.sub(r"\(.*?\)", " ", text).replace("+ mlp", "gate up down").replace(",", " ").strip()
    if not plain:
        raise NotScored("lora_targets", "not given")
    if re.fullmatch(r"(?i)all([ -]linears?)?", plain):
        if re.search(r"(?i)\b(not|dora|output|head)\b", text):
            raise NotScored("lora_targets", f"'{text}' is not modelled")
        return ["all-linear"]
    if plain == "DEFAULT":
        raise NotScored("lora_targets", "'DEFAULT' of the framework, not named")
    names = [SHORT.get(n, n) for n in plain.split()]
    if job.fields.get("stack") == "torchtune":                # torchtune's name of attention's output
        names = ["o_proj" if n == "output_proj" else n for n in names]
    if BOUNDARY & set(names):
        raise NotScored("lora_targets", f"'{sorted(BOUNDARY & set(names))[0]}' outside the blocks is not modelled")
    found = existing(model, names)
    if not found:
        raise NotScored("lora_targets", f"none of '{' '.join(names)}' is a module of the model")
    if len(found) < len(names):
        job.read_as.append("lora_targets that the model does not have: skipped, as peft does")
    return found


# ------------------------------------------------------------------------------------------ reading the row kinds

def on(text):
    return str(text).strip().lower() in ("1", "true", "yes")


def integer(row, name):
    text = (row.get(name) or "").strip()
    if not text:
        raise NotScored(name, "not given")
    try:
        return int(float(text))
    except ValueError:
        raise NotScored(name, f"'{text}' is not a number") from None


def pick(row, name, table, default=None):
    """table[row[name]], or not scored by the column's name."""
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return default
    if text not in table:
        raise NotScored(name, f"'{text}' is not modelled" if text else "not given")
    return table[text]


DTYPES = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}
ORACLE_OPTIMIZERS = {"adamw_foreach": "adamw", "adamw_fused": "adamw_fused", "adamw_loop": "adamw_loop", "adamw8bit": "adamw_8bit",
                     "paged_adamw8bit": "paged_adamw_8bit", "sgd": "sgd", "adafactor": "adafactor"}


# columns peft_config and peft_args: the class of PEFT's config, and its arguments in our words
PEFT_METHODS = {"VeraConfig": "vera", "IA3Config": "ia3", "AdaLoraConfig": "adalora", "LoHaConfig": "loha", "LoKrConfig": "lokr", "OFTConfig": "oft",
                "PromptTuningConfig": "prompt", "PromptEncoderConfig": "p_tuning", "LoraConfig": "lora", "MissConfig": "miss", "HiraConfig": "hira",
                "PveraConfig": "pvera", "FourierFTConfig": "fourierft", "DeloraConfig": "delora", "RoadConfig": "road", "C3AConfig": "c3a",
                "GraloraConfig": "gralora", "BeftConfig": "beft", "DeftConfig": "deft", "GloraConfig": "glora", "PeanutConfig": "peanut", "TinyLoraConfig": "tinylora",
                "RandLoraConfig": "randlora", "PsoftConfig": "psoft"}
# an argument that makes it another method of ours
PEFT_VARIANTS = {("miss", "init_weights", "bat"): "miss_bat", ("miss", "init_weights", "mini"): "miss_mini", ("deft", "para", True): "deft_para",
                 ("glora", "config_A_B", "vector"): "glora_vector", ("lora", "init_lora_weights", "mica"): "mica"}
PEFT_ARGUMENTS = {"r": "rank", "init_r": "rank", "vera_dropout": "dropout", "lora_dropout": "dropout", "decompose_factor": "factors", "oft_block_size": "block_size",
                  "num_virtual_tokens": "virtual_tokens", "encoder_hidden_size": "encoder_hidden", "rank_pattern": "rank_pattern",
                  "mini_r": "block_size", "n_frequency": "coefficients", "u": "coefficients", "gralora_k": "factors", "feedforward_modules": "feedforward", "variant": "factors"}
PEFT_DROPOUTS = "pvera_dropout hira_dropout miss_dropout gralora_dropout deft_dropout tinylora_dropout randlora_dropout psoft_dropout".split()


ORACLE_BASES = {"gptq4": "gptq_4bit", "gptq8": "gptq_8bit", "awq": "awq", "hqq4": "hqq_4bit", "hqq8": "hqq_8bit", "aqlm": "aqlm", "torchao8": "torchao_int8", "fp8": "fp8"}


def oracle_peft(r, fields):
    """What the row's PEFT config says over LoRA's columns."""
    method = PEFT_METHODS.get(r["peft_config"])
    if method is None:
        raise NotScored("peft_config", f"'{r['peft_config']}' is not modelled")
    if fields["method"] in ("qlora", "lora8") and method != "lora":
        fields["quant"] = {"qlora": "nf4", "lora8": "int8"}[fields["method"]]
    if method != "lora" or fields["method"] == "lora":
        fields["method"] = method
    fields.pop("rank")
    dropout = fields.pop("dropout")
    if dropout:
        fields["dropout"] = dropout
    for name, value in json.loads(r["peft_args"] or "{}").items():
        if name in PEFT_ARGUMENTS:
            fields[PEFT_ARGUMENTS[name]] = int(value[-1]) if name == "variant" else value
        if name in PEFT_DROPOUTS:
            fields["dropout"] = value
        if name == "block_size":
            fields["block_size"] = value
        fields["method"] = PEFT_VARIANTS.get((fields["method"], name, value if isinstance(value, (str, bool)) else None), fields["method"])
        if name == "trainable_token_indices":
            fields["trainable_tokens"] = len(value)
        if name == "lora_fa":                     # not PEFT's: A is frozen, as create_lorafa_optimizer does
            fields["quant"] = {"qlora": "nf4"}.get(r["method"], "none")
            fields["method"] = "lora_fa"


TASKS = {"causal": "causal_lm", "seq2seq": "causal_lm", "speech": "causal_lm", "classify": "classify", "masked": "masked_lm", "tokens": "token_classify",
         "image": "image_classify", "vlm": "causal_lm"}


def join_loss(job):
    """A model that computes its loss in its own forward: the row has no phase of that name."""
    for step in ("", "2"):
        if job.oracle and job.phases.get("loss" + step) == 0:
            job.got.phases["forward" + step] = max(job.got.phases["forward" + step], job.got.phases.get("loss" + step, 0))


def config_depth(config):
    """Blocks of the longest stack of an encoder-decoder; None for other models."""
    depths = [config[k] for k in ("num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers") if config.get(k)]
    return max(depths) if config.get("is_encoder_decoder") and depths else None


def read_oracle(job, configs, options):
    r, f = job.row, job.fields
    model = job.model = configs.overridden(job.file, r["config"], r.get("overrides", ""))
    depth = config_depth(model)
    job.sublayers = depth is not None and bool(r.get("layers")) and int(r["layers"]) != depth
    f.update(dtype=pick(r, "dtype", DTYPES), attention=pick(r, "attn", {"sdpa": "sdpa", "eager": "eager", "math": "sdpa_math"}),
             sm_arch=integer({"arch": r["arch"].removeprefix("sm")}, "arch"), repeat_kv=r.get("gqa") == "repeat",
             mask=pick(r, "mask", {"none": "none", "padded": "padded"}), micro_batch=integer(r, "batch"), sequence=integer(r, "seq"),
             accumulation=integer(r, "accum"), loss=pick(r, "loss", {k: k for k in ("held", "loop", "dropped", "fused", "chunked")}),
             grad_clip=on(r["clip"]), cublas_workspace=True, eval=True,
             recompute=pick(r, "ckpt", {"": "none", "reentrant": "reentrant", "nonreentrant": "full"}),
             offload_checkpoints=r.get("ckpt_offload") == "1",
             **{"recompute_" + k: r["ckpt_" + k] for k in ("save", "first", "last", "every") if r.get("ckpt_" + k)},
             task=TASKS.get(r["task"]))
    oracle_optimizer(r["opt"], f)
    if f["task"] is None:
        predict(model, {"method": "full"})        # a model that is not modelled is refused by the library, with its name
        raise NotScored("task", f"'{r['task']}' is not modelled")
    if r["task"] == "image":
        del f["sequence"]                         # the image has tokens of its own
    for field in ("images", "image_height", "image_width"):
        if int(r.get(field) or 0):
            f[field] = int(r[field])
    if int(r.get("enc_seq") or 0):
        f["encoder_sequence"] = int(r["enc_seq"])
    if re.match(r"[1-4]\.", r.get("transformers") or ""):
        f["transformers_version"] = ".".join(r["transformers"].split(".")[:2])
    if r["loss"] == "chunked":
        f["loss_chunk_tokens"] = integer(r, "chunk")
    if r.get("objective"):
        oracle_objective(r, f, model)
    if r["autocast"]:
        f["autocast"] = pick(r, "autocast", DTYPES)
    if int(r.get("eval_batch") or 0):
        f["eval_batch"] = int(r["eval_batch"])
    f["eval_keep_logits"] = pick(r, "eval_logits", {"drop": False, "keep": True}, False)
    if on(r.get("ssm_kernels", "")):
        f["ssm_kernels"] = True
    if r.get("freeze"):
        f.update(oracle_freeze(r["freeze"]))
    f["method"] = pick(r, "method", {k: k for k in ("full", "lora", "qlora", "lora8")})
    if f["method"] == "full":
        return
    f["rank"], f["dropout"] = integer(r, "r"), float(r["dropout"] or 0)
    if f["method"] in ("qlora", "lora8"):
        f["kbit_fp32"] = on(r["kbit_fp32"])
    if f["method"] == "qlora":
        f["double_quant"] = on(r["double_quant"])
    if not on(r["adapter_fp32"]) and f["method"] in ("lora", "qlora"):  # PEFT takes the dtype of the base, which int8 has none of
        f["adapter_dtype"] = f["dtype"]
    if r.get("modules_to_save"):
        f["modules_to_save"] = r["modules_to_save"].split(",")
    if on(r.get("use_dora", "")):
        f["use_dora"] = True
    if r.get("layers_to_transform"):
        which, _, n = r["layers_to_transform"].partition(":")
        if which not in ("first", "last"):
            raise NotScored("layers_to_transform", f"'{r['layers_to_transform']}' is not modelled")
        f["layers_" + which] = int(n)
    if r.get("base"):
        f["quant"] = pick(r, "base", ORACLE_BASES)
    if r.get("peft_config"):
        oracle_peft(r, f)
        if f["method"] in ("prompt", "p_tuning"):
            return
    listed = (r.get("lora_modules") or "").split()
    if "experts" in listed:  # a wrapper of the experts' 3-D parameters, nested: what all-linear gives
        listed = ["all-linear"]
    if "experts." in r["targets"]:  # LoraConfig.target_parameters among the target modules
        listed = r["targets"].split(",")
    f["targets"] = listed if listed else oracle_targets(model, r["targets"])


HEADS = {"tiles": "tiles", "logits": "dropped", "": "dropped"}


def oracle_objective(r, fields, model):
    """Rows of TRL's trainers: `head` says whether log-probabilities come of tiles or of whole logits, `completion` how many tokens of a row are scored."""
    if r["objective"] in ("mean", "smoothed"):  # losses of Trainer's, not objectives
        fields["loss"], fields["outputs_fp32"] = r["objective"], bool(r["autocast"])
        return
    fields["objective"] = r["objective"]
    fields["loss"] = pick(r, "head", HEADS, "tiles")
    if r["objective"] in ("grpo", "rloo"):
        fields["generation"] = r.get("generation") or "none"
    if r["objective"] == "reward":
        fields["loss"], fields["task"] = "dropped", "classify"
    if r["objective"] == "gkd":
        fields["teacher"] = override(model, {"num_hidden_layers": int(r["teacher"])})
    elif r.get("reference") and r["objective"] != "sft":
        fields["reference"] = r["reference"]
    if int(r.get("completion") or 0):
        fields["completion_sequence"] = int(r["completion"])


def oracle_optimizer(text, f):
    """'adamw_foreach', with '_in_backward' or, under a gradient scaler, '_scaled' behind it."""
    name = text.removesuffix("_in_backward").removesuffix("_scaled")
    f["optimizer"], f["grad_scaler"] = ORACLE_OPTIMIZERS.get(name, name), text.endswith("_scaled")
    if text.endswith("_in_backward"):
        f["optimizer_in_backward"] = True


def oracle_freeze(text):
    """'all-but:last:2+head' -> the library's set of parts and numbers of layers."""
    parts, out = [], {}
    if text.startswith("all-but:"):
        parts.append("all_but")
    for item in text.removeprefix("all-but:").split("+"):
        which, _, n = item.partition(":")
        if which not in ("embed", "head", "first", "last", "biases", "tower", "vision", "projector"):
            raise NotScored("freeze", f"'{text}' is not modelled")
        parts.append(which + "_layers" if n else which)
        if n:
            out[f"freeze_{which}_layers"] = int(n)
    return {"freeze": parts, **out}


def tiers_oracle(job):
    r = job.row
    job.oracle, job.full_depth = True, "num_hidden_layers" not in (r.get("overrides") or "")
    name = os.path.basename(job.file)
    job.source = ("oracle_wide" if "eval_logits" in r else "oracle") + (", full depth" if job.full_depth else ", fewer layers")
    job.source = job.source if name.startswith("oracle") else f"{name} {job.source}"
    job.method, job.phase = r["method"], step_of(r["peak_phase"])
    job.tiers = {"allocated": int(r["peak"])}
    job.phases = {p: int(r["peak_" + p]) for p in PHASES if r.get("peak_" + p)}


FAMILIES = (("qwen2.5", "qwen2"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("smollm3", "smollm3"), ("smollm", "llama"), ("tinyllama", "llama"),
            ("llama", "llama"), ("mistral", "mistral"), ("gemma-2", "gemma2"), ("gemma-3", "gemma3_text"), ("gemma", "gemma"), ("phi-3", "phi3"))


def read_t4(job, configs, options):
    r, f = job.row, job.fields
    family = next((b for a, b in FAMILIES if a in r["model"].lower()), None)
    if family is None:
        raise NotScored("model", f"no family is known for '{r['model']}'")
    job.model = {
        "model_type": family, "hidden_size": integer(r, "hidden"), "num_hidden_layers": integer(r, "layers"), "intermediate_size": integer(r, "ffn"),
        "num_attention_heads": integer(r, "heads"), "num_key_value_heads": integer(r, "kv_heads"), "head_dim": integer(r, "head_dim"),
        "vocab_size": integer(r, "vocab"), "tie_word_embeddings": on(r["tied"]), "max_position_embeddings": integer(r, "seq")}
    f.update(
        method=pick(r, "method", {"full": "full", "lora": "lora", "qlora": "qlora"}), dtype=pick(r, "compute_dtype", DTYPES), gpu=gpu_name(r),
        micro_batch=integer(r, "batch"), sequence=integer(r, "seq"), attention=pick(r, "attn", {"sdpa": "sdpa", "eager": "eager"}), repeat_kv=True,
        optimizer=pick(r, "optimizer", {"adamw_fp32": "adamw"}), loss="held", recompute="full" if on(r["ckpt"]) else "none", grad_clip=False, eval=False)
    if f["method"] == "full":
        return
    f.update(rank=integer(r, "lora_rank"), targets=[SHORT.get(t, t) for t in r["lora_targets"].split(";")])
    if f["method"] == "qlora":
        pick(r, "quant", {"nf4": 1})
        f["double_quant"] = on(r["double_quant"])


def tiers_t4(job):
    r = job.row
    job.source, job.method = "t4 " + (r.get("src") or ""), r["method"]
    job.tiers = {"allocated": mib(r, "peak_allocated_mib"), "reserved": mib(r, "peak_reserved_mib"), "process": mib(r, "peak_reserved_mib", "cuda_context_mib")}
    job.phases = {"forward": mib(r, "peak_forward_mib"), "optimizer": mib(r, "peak_optimizer_mib"), "resident": mib(r, "resident_before_step_mib")}


def mib(row, *names):
    return round(sum(float(row[n]) for n in names) * MIB) if all(row.get(n) for n in names) else None


def read_4080(job, configs, options):
    r, f = job.row, job.fields
    job.model = configs.model(job.file, r["model"])
    checkpointed = on(r["ckpt"])
    f.update(
        method=pick(r, "method", {"lora": "lora", "qlora": "qlora"}), dtype="bf16", gpu="rtx-4080", micro_batch=integer(r, "b"), sequence=integer(r, "s"),
        rank=integer(r, "r"), targets=list(QKVO), optimizer=pick(r, "opt", {"paged_adamw_8bit": "paged_adamw_8bit"}), loss="held",
        recompute="full" if checkpointed else "none", attention="sdpa" if checkpointed else "sdpa_math", grad_clip=False, eval=False)
    if f["method"] == "qlora":
        f["double_quant"] = pick(r, "quant", {"nf4_double_quant": True, "nf4": False})


def tiers_4080(job):
    r = job.row
    job.source, job.method = "rtx-4080", r["method"]
    job.tiers = {"allocated": round(float(r["peak_alloc"]) * GIB), "reserved": round(float(r["peak_res"]) * GIB)}
    job.phases = {"resident": round(float(r["after_load"]) * GIB)}


def read_tpf(job, configs, options):
    r, f = job.row, job.fields
    if (r.get("image") or "").strip():
        raise NotScored("image", "image models are not modelled")
    job.model = configs.model(job.file, r["model"])
    f.update(
        method="full", gpu=gpu_name(r), micro_batch=integer(r, "batch"), sequence=integer(r, "seq"), attention="sdpa", loss="loop", grad_clip=False, eval=False,
        optimizer=pick(r, "optimizer", {"adamw": "adamw", "adamw8bit": "adamw_8bit", "sgd": "sgd"}),
        recompute=pick(r, "ckpt", {"False": "none", "True": "full"}))
    f["dtype"], cast = pick(r, "precision", {
        "amp": ("fp32", "fp16"), "amp_bf16": ("fp32", "bf16"), "fp32": ("fp32", None), "bf16": ("bf16", None), "fp16": ("fp16", None)})
    if cast:
        f["autocast"] = cast
    job.read_as.append("loss not given: outputs held until the next forward (loop)")
    if r["precision"] == "amp":
        job.read_as.append("precision amp: fp32 weights under fp16 autocast")


def tiers_tpf(job):
    job.source, job.method = "tpf " + (job.row.get("gpu") or ""), "full"
    job.tiers = {"allocated": mib(job.row, "alloc_mib"), "reserved": mib(job.row, "reserved_mib"), "process": mib(job.row, "process_mib")}


# The wide table of published single-GPU peaks.
#
# The wide table names frameworks in prose: the first pattern that matches gives the stack. None: not modelled.
STACKS = ((r"thunder|badam|diffusers|deepspeed|megatron|xtuner|torchao|scratch", None), (r"unsloth", "unsloth"), (r"lit-?gpt", "litgpt"),
          (r"torchtune", "torchtune"), (r"^fms", "fms"), (r"ms-swift", "swift"), (r"axolotl", "axolotl"), (r"\btrl\b|sfttrainer", "trl"),
          (r"custom loop", "peft"), (r"\b(hf|peft|transformers)\b", "transformers"))
# What a source does not print in its rows: the versions that ran (requirements files and dates of the sources, truth/single_gpu.md).
VERSIONS = {"fms": {"transformers_version": "4.45"}, "swift": {"transformers_version": "4.38"}, "litgpt": {"bitsandbytes_version": "0.41"}}
# Kernels of fms-acceleration's framework_config; fused LoRA is for quantised models only (framework_plugin_fast_kernels.py).
FMS_KERNELS = {"none": (), "baseline-peft-bnb": (), "accelerated-peft-bnb": (), "foak-fast-kernels": ("norm", "rope", "ce"),
               "accelerated-peft-bnb-foak": ("norm", "rope", "ce", "lora"), "foak-fast-kernels-liger": ("norm", "rope"),
               "accelerated-peft-bnb-foak-liger": ("norm", "rope", "lora")}
# Models of the table by the name of another repository with the same dimensions.
SAME_MODEL = {"XiaomiMiMo/MiMo-7B-RL": "XiaomiMiMo/MiMo-7B-Base", "mistralai/Ministral-3-3B-Reasoning-2512": "mistralai/Ministral-3-3B-Instruct-2512",
              "unsloth/gpt-oss-20b": "openai/gpt-oss-20b", "unsloth/qwen3-14b-unsloth-bnb-4bit": "Qwen/Qwen3-14B", "unsloth/tinyllama-bnb-4bit": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
              **{f"mistralai/{m}-Small-{v}": "mistralai/Mistral-Small-24B-Instruct-2501" for m, v in (("Devstral", 2507), ("Magistral", 2506), ("Magistral", 2507))}}
# litgpt's own configuration of a model that has no config.json in transformers' form (litgpt/config.py).
OWN_MODEL = {"stabilityai/stablelm-base-alpha-3b": {
    "model_type": "gpt_neox", "hidden_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 32, "intermediate_size": 16384, "vocab_size": 50688,
    "rotary_pct": 0.25, "max_position_embeddings": 4096, "use_parallel_residual": True, "tie_word_embeddings": False}}
SINGLE_OPTIMIZERS = {"torch AdamW (foreach default)": "adamw", "torch AdamW": "adamw", "adamw_torch": "adamw", "torch AdamW fused": "adamw_fused",
                     "adamw_torch_fused": "adamw_fused", "torch AdamW foreach=False": "adamw_loop", "bnb AdamW8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "AdamW8bit": "adamw_8bit",
                     "bnb PagedAdamW8bit": "paged_adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit", "bnb PagedAdamW": "paged_adamw_32bit",
                     "paged_adamw_32bit": "paged_adamw_32bit", "SGD": "sgd", "torch SGD": "sgd", "HF Adafactor": "adafactor", "Adafactor": "adafactor",
                     "torchao AdamW8bit": "adamw_torch_8bit", "torchao AdamW4bit": "adamw_torch_4bit", "torchao AdamWFp8": "ao_adamw_fp8",
                     "GaLore AdamW r128": "galore_adamw", "GaLore AdamW r64": "galore_adamw", "GaLore AdamW r32": "galore_adamw", "Muon": "muon",
                     "GaLore AdamW r128 per-parameter": "galore_adamw_layerwise", "GaLore AdamW per-parameter": "galore_adamw_layerwise"}
SINGLE_WEIGHTS = {"nf4": ("qlora", False), "nf4-dq": ("qlora", True), "int8 (bnb)": ("lora8", None)}
SINGLE_BASES = {"gptq-int4": "gptq_4bit", "gptq-int8": "gptq_8bit", "hqq-int4": "hqq_4bit"}


def by_design(reason):
    """A row that no rule could score: nothing was measured, or what was measured is not told apart."""
    return reason.name in ("outcome", "peak_mem_gb", "mem_kind", "completeness")


def stack_of(text, options):
    for pattern, stack in STACKS:
        if re.search("(?i)" + pattern, text):
            if stack is None and not options.any_stack:
                break
            return stack or "transformers"
    if options.any_stack:
        return "transformers"
    raise NotScored("framework", f"'{text}' is not modelled" if text else "not given")


def versions(f, stack, notes, source):
    f.update(VERSIONS.get(stack, {}))
    if "fsdp_qlora" in source:                                # notebooks of early 2024
        f["transformers_version"] = "4.38"
    for field, name in (("transformers_version", "transformers"), ("torch_version", "torch"), ("bitsandbytes_version", "bnb")):
        found = re.search(rf"\b{name} (\d+\.\d+)", notes)
        if found:
            f[field] = found[1]


def read_single(job, configs, options):
    r, f, notes = job.row, job.fields, job.row.get("notes") or ""
    if (r.get("outcome") or "ok") != "ok":
        raise NotScored("outcome", f"{r['outcome']}: there is no measured peak")
    if not (r.get("peak_mem_gb") or "").strip():
        raise NotScored("peak_mem_gb", "not given")
    if not job.tiers:
        raise NotScored("mem_kind", f"'{r.get('mem_kind')}' is no tier")
    if r["completeness"] == "C" and not options.grade_c:
        raise NotScored("completeness", "C: for sanity only")
    if r["unit"] == "unknown":
        job.read_as.append("unit unknown: GiB")
    stack = f["stack"] = stack_of(r.get("framework") or "", options)
    versions(f, stack, notes, r.get("source") or "")
    method = pick(r, "method", {"full": "full", "lora": "lora", "qlora": "qlora", "freeze": "full", "other": "lora"})
    single_kernels(job, stack, notes)
    if r.get("compile", "") not in ("no", ""):
        if stack != "torchtune":
            raise NotScored("compile", f"'{r['compile']}' is modelled for torchtune only")
        f["compile"] = ["blocks", "loss"]
    single_precision(job, method, notes)
    single_shape(job)
    single_loss(job, stack, notes)
    name, _, where = r["optimizer"].partition(", ")
    if r["optimizer"].startswith("none (one forward+backward"):
        name = "SGD"                              # nothing is kept, and its update comes after the peak
    if name == "lora-fa":                         # PEFT's create_lorafa_optimizer: A is frozen, moments of B one tensor at a time
        f["method"], name = "lora_fa", "torch AdamW foreach=False"
    f["optimizer"] = pick({"optimizer": name}, "optimizer", SINGLE_OPTIMIZERS)
    if stack == "torchtune" and name == "torch AdamW":        # the recipe's default, fused
        del f["optimizer"]
        job.read_as.append("fused or not is not given: the stack's default")
    if where == "optimizer_in_bwd":
        f["optimizer_in_backward"] = True
    if " r" in name:
        f["optimizer_rank"] = int(re.search(r" r(\d+)", name)[1])
    if f["loss"] == "held":
        job.read_as.append("loss of a custom loop not given: outputs held to the end of the step")
    if "process" in job.tiers or (r.get("gpu") or "").strip():
        f["gpu"] = gpu_name(r)
    name = SAME_MODEL.get(r["model"], r["model"])
    job.model = OWN_MODEL.get(name) or written_model(name) or configs.model(job.file, name)
    if r["method"] == "freeze":
        single_freeze(job, notes)
    if r["method"] == "other":
        single_other(job, stack, notes)
    elif f["method"] != "full":
        single_adapter(job, stack, notes)


# peft_type of the notes: our method, and the field with its size where the rank column has none, as the run's name writes it or
# as the trained count says
PEFT_TYPES = {"ADALORA": ("adalora", "rank"), "IA3": ("ia3", "feedforward"), "LOHA": ("loha", "rank"), "LOKR": ("lokr", "rank"), "OFT": ("oft", "blocks"),
              "VERA": ("vera", "rank"), "PROMPT_TUNING": ("prompt", "virtual_tokens"), "P_TUNING": ("p_tuning", "virtual_tokens"), "MISS": ("miss", "rank"),
              "HIRA": ("hira", "rank"), "PVERA": ("pvera", "rank"), "FOURIERFT": ("fourierft", "coefficients"), "DELORA": ("delora", "rank"), "ROAD": ("road", "factors"),
              "C3A": ("c3a", "block_size"), "GRALORA": ("gralora", "rank"), "BEFT": ("beft", None), "DEFT": ("deft", "rank"), "GLORA": ("glora", "trained_rank"),
              "PEANUT": ("peanut", "rank"), "TINYLORA": ("tinylora", "coefficients"), "RANDLORA": ("randlora", "rank"), "PSOFT": ("psoft", "trained_rank")}
# a word in the name of a run that makes it another method; None: one that is not modelled
PEFT_RUNS = {("miss", "-bat"): "miss_bat", ("miss", "-mini"): "miss_mini", ("deft", "-para"): "deft_para", ("glora", "-vector"): "glora_vector",
             ("psoft", "-fast"): None, ("tinylora", "-weight-tying"): None}
TRAINED_SIZES = {"virtual_tokens": (10, 20, 30, 50, 100, 200), "coefficients": (64, 1000, 5000), "factors": (1, 2, 4), "block_size": (32, 64, 128, 256),
                 "rank": (8, 16, 32, 64, 128, 256), "feedforward": (("down_proj",), ("gate_proj", "up_proj", "down_proj"))}
TUNERS = {"adalora": "adalora", "dora": "lora"}               # ms-swift's names


def run_number(row, word):
    """`rank32` in the name of a run."""
    found = re.search(rf"{word}-?(\d+)", row["source"])
    return int(found[1]) if found else None


def with_trained_count(job, field, sizes):
    """The first size that trains as many parameters as the notes say."""
    trained = re.search(r"\btrainable=(\d+)", job.row.get("notes") or "")
    for size in sizes:
        if trained and predict(job.model, {**job.fields, field: size}).trainable == int(trained[1]):
            return size
    raise NotScored("method", f"{field} is not given, and no usual one trains {trained[1] if trained else 'a known number of'} parameters")


def single_size(job, field):
    """What the size of the method is: of the row's column, of the name of the run, or by the trained count."""
    r, f = job.row, job.fields
    if field == "rank":
        f["rank"] = int(r["lora_rank"]) if r["lora_rank"] else run_number(r, "rank")
    elif field == "blocks":                                   # PEFT's r is a number of blocks, of the one width that q and v read
        f["block_size"] = job.model["hidden_size"] // run_number(r, "rank")
    elif field:
        field = field.removeprefix("trained_")
        f[field] = with_trained_count(job, field, TRAINED_SIZES[field])
    if f["method"] == "miss_mini":
        f["block_size"] = with_trained_count(job, "block_size", TRAINED_SIZES["block_size"])


def single_run(job):
    """The variant of a method that the run's name says."""
    for (method, word), variant in PEFT_RUNS.items():
        if job.fields["method"] == method and word in job.row["source"]:
            if not variant:
                raise NotScored("method", f"{method.upper()} as in '{word[1:]}' is not modelled")
            job.fields["method"] = variant


def single_other(job, stack, notes):
    r, f = job.row, job.fields
    kind, tuner = re.search(r"peft_type=(\w+)", notes), TUNERS.get(notes.partition(";")[0])
    if not tuner and (not kind or kind[1] not in PEFT_TYPES):
        raise NotScored("method", f"'{kind[1] if kind else notes.partition(';')[0]}' is not modelled")
    if f["method"] == "qlora":
        f["quant"] = "nf4"
    f["method"], size = PEFT_TYPES[kind[1]] if kind else (tuner, None)
    single_run(job)
    if "LSTM" in r["source"]:
        raise NotScored("method", "P_TUNING by an LSTM is not modelled")
    if f["method"] == "lora":                                 # the tuner is DoRA
        f["use_dora"] = True
        size = "rank"
    if r["lora_targets"]:
        f["targets"] = written_targets(job.model, r["lora_targets"], job)
    if run_number(r, "factor"):
        f["factors"] = run_number(r, "factor")
    single_size(job, size)


def single_freeze(job, notes):
    """LISA: embedding, head and some blocks are trained, whichever they are."""
    f, active = job.fields, re.search(r"LISA (\d+) activated layers", notes)
    if not active:
        raise NotScored("method", f"'{notes.partition(';')[0]}' is not modelled")
    f["freeze"], f["freeze_last_layers"] = ["all_but", "embed", "head", "last_layers"], int(active[1])
    job.read_as.append("which blocks are trained is not given: the last ones")


def written_model(name):
    """'random Llama 1B (h2048 L24 heads16 kv16 ff4096 vocab32000)'; None if the name says no dimensions."""
    found = re.search(r"Llama.*\(h(\d+) L(\d+) heads(\d+) kv(\d+) ff(\d+) vocab(\d+)\)", name)
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    return {"model_type": "llama", "tie_word_embeddings": False, **dict(zip(keys, map(int, found.groups())))} if found else None


def single_kernels(job, stack, notes):
    f = job.fields
    config = re.search(r"framework_config=([^;]*)", notes)
    if config and config[1].strip() not in FMS_KERNELS:
        raise NotScored("kernels", f"'{config[1].strip()}' is not modelled")
    kernels = FMS_KERNELS[config[1].strip()] if config else ()
    if re.search("use_liger_kernel|Liger norms/rope/glu", notes):
        kernels = ("norm", "rope", "mlp")
    if kernels:
        f["kernels"] = list(kernels)
    where = job.row.get("offload", "")
    if where.startswith("activations to CPU"):
        f["offload_checkpoints"] = True
    elif where not in ("no", ""):
        raise NotScored("offload", f"'{where}' is not modelled")
    if stack == "unsloth":                                    # the notebooks' own switches, not the stack's defaults
        f["offload_checkpoints"] = where.startswith("activations to CPU")


def single_precision(job, method, notes):
    r, f = job.row, job.fields
    weights, compute = (r.get("weight_dtype") or "").strip(), DTYPES.get((r.get("compute_dtype") or "").strip())
    if weights in SINGLE_WEIGHTS:
        kind, double = SINGLE_WEIGHTS[weights]
        if method not in ("qlora", "lora"):
            raise NotScored("weight_dtype", f"'{weights}' with method {method}")
        f["dtype"], f["method"] = compute or pick(r, "compute_dtype", DTYPES), kind
        if double is not None:
            f["double_quant"] = double
        if re.search("no fp32 upcast", notes):
            f["kbit_fp32"] = False
        elif re.search("upcasts? non-int|prepare_model_for_kbit", notes):
            f["kbit_fp32"] = True
        elif f["stack"] in ("transformers", "peft", "swift", "trl"):
            job.read_as.append("k-bit preparation not given: fp32 upcast of what is not quantised")
    elif weights in SINGLE_BASES:
        f["dtype"], f["method"], f["quant"] = compute or pick(r, "compute_dtype", DTYPES), "lora", SINGLE_BASES[weights]
    else:
        if method == "qlora":
            raise NotScored("weight_dtype", f"'{weights}' is not modelled" if weights else "not given")
        f["dtype"], f["method"] = pick(r, "weight_dtype", DTYPES), method
    amp = re.search(r"AMP=(\w+)|\b(bf16|fp16) AMP\b|\b(no) AMP\b|-true\b", notes)
    stated = next((g for g in amp.groups() if g), "off") if amp else None
    if f["dtype"] == "fp32" and compute in ("bf16", "fp16"):
        f["autocast"] = compute
    elif stated in ("bf16", "fp16"):
        f["autocast"] = stated
    elif stated is None and f["stack"] in ("trl", "axolotl", "unsloth", "swift"):
        f["autocast"] = f["dtype"]
        job.read_as.append("autocast not given: that of the Trainer, in the compute dtype")
    elif stated is None and f["dtype"] != "fp32" and f["stack"] != "torchtune":
        job.read_as.append("autocast not given: off")


def single_shape(job):
    r, f = job.row, job.fields
    f.update(micro_batch=integer(r, "micro_batch"), sequence=integer(r, "seq_len"), eval=False)
    if r.get("grad_accum"):
        f["accumulation"] = integer(r, "grad_accum")
    f["attention"] = pick(r, "attention", {"flash": "flash2", "sdpa": "sdpa", "eager": "eager"})
    rows = (r.get("packing_or_padded") or "").strip()
    if not rows and f["micro_batch"] > 1:
        raise NotScored("packing_or_padded", "not given")
    if "images" in rows:
        raise NotScored("packing_or_padded", f"'{rows}' is not modelled")
    f["mask"] = "padded" if rows.startswith("padded") and f["micro_batch"] > 1 and f["stack"] not in ("litgpt", "torchtune") else "none"
    if re.match("padded to longest|no padding", rows) and not re.search("empty_cache", r.get("notes") or ""):
        f["varied_lengths"] = True
    f["recompute"] = pick(r, "grad_checkpointing", {"none": "off", "full": "full"})
    if f["recompute"] == "full" and f["stack"] in ("fms", "unsloth", "llama-factory"):
        f["recompute"] = "reentrant"
    elif f["recompute"] == "full":
        job.read_as.append("form of checkpointing not given: non-reentrant")


def single_loss(job, stack, notes):
    r, f = job.row, job.fields
    if "logits.mean()" in notes:
        f["loss"] = "mean"
        if "transformers_version" not in f:      # before 4.46 the model itself widens its logits
            raise NotScored("transformers", "the version that ran, on which the dtype of the logits depends, is not given")
    elif stack == "litgpt" or "CHUNKED_CE" in notes:
        f["loss"] = "split"
    elif stack == "unsloth" and not (r.get("fused_ce_or_liger") or "").strip():
        f.update(stack_version="2024.5", loss="dropped")
        job.read_as.append("loss of unsloth not given: its kernel over logits")
    elif pick(r, "fused_ce_or_liger", {"yes": True, "no": False}):
        f["loss"] = "fused"
    elif stack == "peft":
        f["loss"] = "held"
    else:
        f["loss"] = "dropped"


def single_adapter(job, stack, notes):
    r, f = job.row, job.fields
    f["rank"] = integer(r, "lora_rank")
    drop = re.search(r"dropout (\d+(?:\.\d+)?)", notes)
    if drop:
        f["dropout"] = float(drop[1])
    if re.search("use_dora|DoRA", notes + (r.get("lora_targets") or "")):
        f["use_dora"] = True
    cast = re.search(r"adapters?(?: params)?(?: are| in)? (fp16|bf16)|LoRA[^;]*all (bf16|fp16)", notes)
    if cast:
        f["adapter_dtype"] = cast[1] or cast[2]
    if stack == "litgpt" and re.match(r"q v\b", r.get("lora_targets") or ""):
        return                                                # the stack's default: parts of one projection
    f["targets"] = written_targets(job.model, r.get("lora_targets") or "", job)


def check_single(job):
    """A trained count in the notes that is not ours says that another variant of the method ran."""
    trained = re.search(r"\btrainable=(\d+)", job.row.get("notes") or "")
    if trained and abs(int(trained[1]) - job.got.trainable) > 1e-5 * job.got.trainable:      # AdaLoRA's ranknum counts or not, by version
        raise NotScored("method", f"{trained[1]} trained parameters are given, {job.got.trainable} are predicted: another variant of '{job.row['method']}'")


MARKS = (("length a cap", r"seq_len (is|=) ?(the |a )?(\w+ )?cap|real lengths unknown"), ("with generation", "eval generation"),
         ("older software", "OLDER SOFTWARE"))


def tiers_single(job):
    r = job.row
    notes = r.get("notes") or ""
    marks = [m for m, p in MARKS if re.search(p, notes)]
    job.source = re.sub(r"[-_]?\d+\w*$", "", job.id) + " " + (r.get("completeness") or "?") + (f" ({', '.join(marks)})" if marks else "")
    job.method = r.get("method") or ""
    tier = {"allocated": "allocated", "reserved": "reserved", "nvidia-smi": "process"}.get(r.get("mem_kind"))
    if tier and (r.get("peak_mem_gb") or "").strip() and r.get("unit") in ("GB", "GiB", "unknown"):
        job.tiers = {tier: round(float(r["peak_mem_gb"]) * (GB if r["unit"] == "GB" else GIB))}


def gpu_name(row):
    """What the library's catalog is asked for; one GPU, or not scored."""
    text = re.sub(r"^(NVIDIA|Tesla|GeForce)\s+", "", re.sub(r"^NVIDIA\s+", "", (row.get("gpu") or "").strip()))
    if not text:
        raise NotScored("gpu", "not given")
    if re.search(r"[,，/]|unknown|\.\.\.", text):
        raise NotScored("gpu", f"'{row['gpu']}' is not one GPU")
    size = re.fullmatch(r"(\d+)\s*GB GPU", text)
    if size:
        return size[1] + "GB"
    memory = (row.get("gpu_mem_gb") or "").strip()
    if re.fullmatch(r"A100|H100|V100", text) and memory:
        return f"{text} {round(float(memory))}GB"
    return text


def read_other(job, configs, options):
    raise NotScored("kind", "kind not supported yet")


def tiers_other(job):
    job.source, job.method = os.path.basename(job.file), job.row.get("method") or ""


# kind, columns that tell it (a name with "!" must be absent), what is measured, what is asked, a check of the answer
KINDS = (
    ("oracle", ("config", "overrides", "opt", "peak", "peak_phase", "loss", "ckpt"), tiers_oracle, read_oracle, None),
    ("ground_truth_t4", ("compute_dtype", "peak_allocated_mib", "peak_reserved_mib", "hidden", "kv_heads"), tiers_t4, read_t4, None),
    ("ground_truth_4080", ("quant", "s", "b", "r", "peak_alloc", "peak_res", "after_load"), tiers_4080, read_4080, None),
    ("ground_truth_tpf", ("precision", "alloc_mib", "reserved_mib", "process_mib", "image"), tiers_tpf, read_tpf, None),
    ("truth_single_gpu", ("peak_mem_gb", "mem_kind", "unit", "seq_len", "micro_batch", "weight_dtype", "!n_gpus"), tiers_single, read_single, check_single),
    ("other", (), tiers_other, read_other, None),
)


def kind_of(columns):
    columns = set(columns)
    return next(k for k in KINDS if all(c[1:] not in columns if c.startswith("!") else c in columns for c in k[1]))


def score_file(path, configs, options):
    """Every row of a file as a Job."""
    with open(path, newline="", encoding="utf-8-sig") as f:
        reader = csv.DictReader(f)
        kind, _, tiers, read, check = kind_of(reader.fieldnames or ())
        jobs = []
        for number, row in enumerate(reader, 1):
            row = {k: v or "" for k, v in row.items() if k is not None}
            if options.match and not re.search(options.match, " ".join(row.values())):
                continue
            job = Job(path, kind, number, row)
            jobs.append(job)
            try:
                try:
                    tiers(job)
                    job.tiers = {t: b for t, b in job.tiers.items() if b}
                    read(job, configs, options)
                    job.got = predict(job.model, job.fields)
                    join_loss(job)
                    if check:
                        check(job)
                except KeyError as e:
                    raise NotScored(e.args[0], "the file has no such column") from e
                except ValueError as e:
                    raise NotScored("row", f"a cell cannot be read: {e}") from e
            except NotScored as e:
                job.reason, job.got = e, None
    return kind, jobs


# ------------------------------------------------------------------------------------------------------ figures

def relative(ours, truth):
    return ours / truth - 1 if truth else 0.0 if not ours else math.inf


def quantile(values, q):
    """The nearest-rank quantile."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def summary(errors):
    size = [abs(e) for e in errors] or [0]
    return {"rows": len(errors), "exact": sum(e == 0 for e in errors), "median": statistics.median(size), "p90": quantile(size, 0.9), "p95": quantile(size, 0.95),
            "worst_under": min(errors, default=0), "worst_over": max(errors, default=0)}


def groups(jobs):
    """source, method, tier -> figures, in order of appearance."""
    rows = collections.OrderedDict()
    for j in jobs:
        for tier in j.tiers or {"": None}:
            rows.setdefault((j.source, j.method if j.kind != "other" else "", tier), []).append(j)
    out = []
    for (source, method, tier), members in rows.items():
        scored = [j for j in members if j.got]
        design = sum(bool(j.reason and by_design(j.reason)) for j in members)
        g = {"source": source, "method": method, "tier": tier, "rows": len(members), "scored": len(scored), "not_scored": len(members) - len(scored) - design, "by_design": design,
             "not_scored_by": dict(collections.Counter(j.reason.name for j in members if j.reason).most_common())}
        if scored:
            g.update({k: v for k, v in summary([j.error(tier) for j in scored]).items() if k != "rows"})
            upper = [j.got.tiers[tier][2] / j.tiers[tier] for j in scored]
            g["coverage"] = sum(u >= 1 for u in upper) / len(upper)
            g["slack"] = sum(upper) / len(upper) - 1
            g["bound_rows"] = sorted({j.got.bound_rows for j in scored})
        out.append(g)
    return out


def two_highest(phases):
    """Highest step-less phase and how far the second is below it."""
    top = {}
    for k, v in phases.items():
        top[step_of(k)] = max(v, top.get(step_of(k), 0))
    order = sorted(top.values(), reverse=True)
    return 1 - order[1] / order[0] if len(order) > 1 and order[0] else 1.0


def largest_right(job):
    """None where the row does not say; a tie of the oracle's first entries (totals within 0.5 %) counts for either."""
    sizes, first = [], None
    for item in (job.row.get("largest_at_peak") or "").split("; "):
        m = re.fullmatch(r"(.*) (\S*) (\S*) x(\d+) (\d+)", item)
        if not m:
            continue
        total = int(m[5])
        first = first or total
        if total < first * 0.995:
            break
        dims, each = m[2], ELEMENT_BYTES.get(m[3])
        sizes.append(math.prod(int(d) for d in dims.split("x")) * each if each and re.fullmatch(r"[\dx]+", dims) else total // int(m[4]))
    if not sizes or job.got.largest is None:
        return None
    return any(abs(job.got.largest - s) < 512 for s in sizes)


def oracle_figures(jobs):
    """What the computed rows say beyond the peak."""
    out = {"rows": len(jobs)}
    accum = lambda j: int(j.row["accum"])
    counts = {"parameters": lambda j: j.got.parameters == int(j.row["params"]), "trainable": lambda j: j.got.trainable == int(j.row["trainable"]),
              "flops_forward": lambda j: j.got.flops_forward * accum(j) == float(j.row["flops_fwd"]),
              "flops_backward": lambda j: j.got.flops_backward * accum(j) == float(j.row["flops_bwd"])}
    out["equal"] = {k: sum(map(f, jobs)) for k, f in counts.items()}
    whole = [j for j in jobs if not j.sublayers]
    sizes = {"kept_layer": lambda j: (j.got.kept_layer_bytes, "kept_layer"), "kept_bytes": lambda j: (j.got.kept_bytes, "kept_bytes"),
             "resident": lambda j: (j.got.resident_bytes, "resident")}
    out["sizes"] = {k: summary([relative(f(j)[0], int(j.row[f(j)[1]])) for j in (whole if k == "kept_layer" else jobs) if j.row[f(j)[1]]]) for k, f in sizes.items()}
    for p in PHASES:
        errors = [relative(j.got.phases.get(p, 0), j.phases[p]) for j in jobs if j.phases.get(p)]
        if errors:
            out["sizes"]["peak_" + p] = summary(errors)
    out["sizes"]["peak"] = summary([j.error("allocated") for j in jobs])
    clear = [j for j in jobs if two_highest({**j.phases, "load": int(j.row["resident"])}) >= 0.005]
    out["phase_right"], out["phase_rows"], out["phase_left_out"] = sum(j.got.phase == j.phase for j in clear), len(clear), len(jobs) - len(clear)
    tops = [x for x in map(largest_right, jobs) if x is not None]
    out["largest_right"], out["largest_rows"] = sum(tops), len(tops)
    return out


def oracle_sections(jobs):
    """name -> figures: all, then full depth and fewer layers, each for full fine-tuning and for adapters."""
    jobs = [j for j in jobs if j.oracle and j.got]
    wanted = [("all rows", jobs)]
    for depth in (True, False):
        for adapter in (False, True):
            wanted.append((("full depth" if depth else "fewer layers") + (", adapters" if adapter else ", full fine-tuning"),
                           [j for j in jobs if j.full_depth == depth and (j.method != "full") == adapter]))
    return {name: oracle_figures(members) for name, members in wanted if members}


# -------------------------------------------------------------------------------------------------------- output

def percent(x):
    return f"{100 * x:+.2f}" if math.isfinite(x) else "inf"


def size(x):
    return f"{100 * x:.2f}" if math.isfinite(x) else "inf"


def spread(s, *more):
    """Columns of a summary: median, `more`, p95, worst under, worst over."""
    return [*(size(s[k]) for k in ("median", *more, "p95")), percent(s["worst_under"]), percent(s["worst_over"])]


def table(head, rows, out):
    rows = [[str(c) for c in r] for r in rows]
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    left = [all(not re.match(r"[-+]?\d", r[i]) for r in rows) for i in range(len(head))]
    for r in [head, *rows]:
        print("  ".join(c.ljust(w) if l else c.rjust(w) for c, w, l in zip(r, widths, left)).rstrip(), file=out)


def report(result, jobs, options, out):
    print("per source, method and tier; errors in % of the measured bytes (expected / measured - 1)\n", file=out)
    rows = []
    for g in result["groups"]:
        figures = [*spread(g, "p90"), size(g["coverage"]), percent(g["slack"]), " ".join(map(str, g["bound_rows"]))] if g["scored"] else [""] * 8
        rows.append([g["source"], g["method"], g["tier"] or "-", g["rows"], g["not_scored"], g["by_design"], *figures])
    table(["source", "method", "tier", "rows", "not scored", "by design", "median", "p90", "p95", "worst under", "worst over", "upper covers", "upper slack", "bound rows"], rows, out)
    for title, design in (("not scored, by input (rows):", False), ("no row to score, by design (rows):", True)):
        names = {n: v for n, v in result["not_scored_by"].items() if any(j.reason and j.reason.name == n and by_design(j.reason) == design for j in jobs)}
        if names:
            print("\n" + title, file=out)
        for name, n in names.items():
            example = next(j for j in jobs if j.reason and j.reason.name == name)
            print(f"  {n:5d}  {name:32s} e.g. {os.path.basename(example.file)}:{example.id}  {example.reason}"[:230], file=out)
    if result["read_as"]:
        print("\nopen inputs, and what they were read as (scored rows):", file=out)
        for text, n in result["read_as"].items():
            print(f"  {n:5d}  {text}", file=out)
    for name, o in result["oracle"].items():
        n = o["rows"]
        print(f"\noracle, {name}: {n} rows", file=out)
        print("  equal: " + ", ".join(f"{k} {v}/{n}" for k, v in o["equal"].items()), file=out)
        print(f"  phase of the peak right {o['phase_right']}/{o['phase_rows']} ({o['phase_left_out']} near ties left out), "
              f"largest tensor at the peak right {o['largest_right']}/{o['largest_rows']}", file=out)
        table(["  figure", "rows", "exact", "median", "p90", "p95", "worst under", "worst over"],
              [["  " + k, s["rows"], s["exact"], *spread(s, "p90")] for k, s in o["sizes"].items()], out)
    if options.details:
        details(jobs, out)


def label(job):
    """The settings of a row in a few words."""
    f, r = job.fields, job.row
    name = job.model if isinstance(job.model, str) else r.get("model") or (r.get("config") or "").removesuffix(".json")
    words = [*(f.get(k) for k in ("method", "dtype", "attention", "recompute", "loss", "optimizer")), f.get("autocast") and "autocast-" + f["autocast"]]
    words += [w for k, v, w in (("mask", "padded", "padded"), ("kbit_fp32", False, "no-upcast"), ("grad_clip", True, "clip"), ("repeat_kv", True, "repeat"),
                                ("task", "classify", "classify"), ("eval_keep_logits", True, "keep-logits")) if f.get(k) == v and k in f]
    words += [f.get("dropout") and f"dropout{f['dropout']}", f.get("eval_batch") and f"eval{f['eval_batch']}", f.get("targets") and r.get("targets"),
              *(r.get(k) for k in ("freeze", "modules_to_save", "layers_to_transform")), "" if job.full_depth else "cut"]
    return f"{name} {f.get('micro_batch')}x{f.get('sequence')}x{f.get('accumulation', 1)} " + " ".join(str(w) for w in words if w and w != "none")


def details(jobs, out):
    scored = [j for j in jobs if j.got]
    families = collections.OrderedDict()
    for j in sorted((j for j in scored if j.oracle), key=lambda j: j.model["model_type"]):
        families.setdefault((j.model["model_type"], "full" if j.method == "full" else "adapters"), []).append(j)
    if families:
        print("\noracle rows by family (allocated)", file=out)
        rows = []
        for (family, what), members in families.items():
            s = summary([j.error("allocated") for j in members])
            o = oracle_figures(members)
            rows.append([family, what, s["rows"], *spread(s), *o["equal"].values(), o["sizes"]["kept_layer"]["exact"], o["sizes"]["resident"]["exact"]])
        table(["family", "method", "rows", "median", "p95", "worst under", "worst over", "params=", "trainable=", "fwd flops=", "bwd flops=", "kept layer=",
               "resident="], rows, out)
    for tier in TIERS:
        worst = sorted((j for j in scored if tier in j.tiers), key=lambda j: -abs(j.error(tier)))[:20]
        if worst:
            print(f"\nworst rows, {tier}", file=out)
        for j in worst:
            print(f"  {percent(j.error(tier)):>8s}  {os.path.basename(j.file)}:{j.id}  {j.phase or '?'} -> {j.got.phase}  {label(j)}", file=out)
    rest = [j for j in jobs if j.reason]
    if rest:
        print("\nnot scored, each row", file=out)
    for j in rest:
        print(f"  {os.path.basename(j.file)}:{j.id}  {j.reason}"[:200], file=out)


def phase_lines(jobs, out):
    """For whoever works on the rules: every figure of a row beside the truth, as errors in %, '=' where equal."""
    mark = lambda ours, truth: "=" if ours == truth else percent(relative(ours, truth))
    for j in jobs:
        where = f"{os.path.basename(j.file)}:{j.id}"
        if not j.got:
            print(f"{where}  not scored  {j.reason}", file=out)
            continue
        words = [f"{t}={mark(j.got.tiers[t][1], b)}" for t, b in j.tiers.items()]
        if j.oracle:
            r, a = j.row, int(j.row["accum"])
            words += [f"{k}={mark(v, int(float(r[c] or 0)))}" for k, v, c in (
                ("params", j.got.parameters, "params"), ("trainable", j.got.trainable, "trainable"), ("fwd_flops", j.got.flops_forward * a, "flops_fwd"),
                ("bwd_flops", j.got.flops_backward * a, "flops_bwd"), ("resident", j.got.resident_bytes, "resident"),
                ("kept_layer", j.got.kept_layer_bytes, "kept_layer"), ("kept", j.got.kept_bytes, "kept_bytes"))]
        words += [f"{p}={mark(j.got.resident_bytes if p == 'resident' else j.got.phases.get(p, 0), b)}" for p, b in j.phases.items() if b]
        print(f"{where}  {' '.join(words)}  {j.phase or '?'}->{j.got.phase}  {label(j)}", file=out)


def finite(x):
    """JSON has no infinity: null, where the truth is 0 and the prediction is not."""
    if isinstance(x, dict):
        return {k: finite(v) for k, v in x.items()}
    if isinstance(x, list):
        return [finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def write_rows(path, jobs):
    with open(path, "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(PER_ROW)
        for j in jobs:
            for tier, measured in (j.tiers or {"": ""}).items():
                got = j.got.tiers[tier] if j.got else ("", "", "")
                w.writerow([os.path.basename(j.file), j.id, j.source, j.method, tier, measured, got[1], got[0], got[2],
                            f"{j.error(tier):.6f}" if j.got else "", j.phase, j.got.phase if j.got else "", str(j.reason or "")])


def score(files, configs=(), options=None):
    """The jobs of the files and the figures over them."""
    options = options or parser().parse_args(list(files))
    store, jobs, kinds = Configs([*configs, *options.configs]), [], {}
    for path in files:
        kinds[path], more = score_file(path, store, options)
        jobs += more
    count = lambda items: dict(collections.Counter(items).most_common())
    return jobs, {
        "version": 1, "library": str(getattr(ftmem, "__version__", "")), "files": {os.path.basename(p): k for p, k in kinds.items()}, "groups": groups(jobs),
        "not_scored_by": count(j.reason.name for j in jobs if j.reason), "read_as": count(t for j in jobs if j.got for t in j.read_as),
        "oracle": oracle_sections(jobs)}


def parser():
    p = argparse.ArgumentParser(description="Score ftmem's predictions against measured memory.")
    p.add_argument("files", nargs="+", metavar="FILE", help="a CSV of measured or computed rows")
    p.add_argument("--configs", action="append", default=[], metavar="DIR", help="a folder of config.json files, owner__name.json (may be repeated)")
    p.add_argument("--per-row", metavar="OUT.csv", help="write one line for each row and tier")
    p.add_argument("--json", action="store_true", help="print the figures as JSON")
    p.add_argument("--details", action="store_true", help="also by family, the worst rows, and every row that was not scored")
    p.add_argument("--phases", action="store_true", help="print one line a row with the error of every phase, for work on the rules")
    p.add_argument("--match", metavar="REGEX", help="only rows whose text matches")
    p.add_argument("--grade-c", action="store_true", help="score published rows of completeness C too")
    p.add_argument("--any-stack", action="store_true", help="score rows of other frameworks and kernels too, as if they were transformers")
    return p


def main(argv=None):
    options = parser().parse_args(argv)
    try:
        jobs, result = score(options.files, options=options)
    except (OSError, UnicodeDecodeError, csv.Error, json.JSONDecodeError) as e:
        print(f"score.py: {e}", file=sys.stderr)
        return 2
    if options.per_row:
        write_rows(options.per_row, jobs)
    if options.json:
        print(json.dumps(finite(result), indent=1, allow_nan=False))
    elif options.phases:
        phase_lines(jobs, sys.stdout)
    else:
        report(result, jobs, options, sys.stdout)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:      # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
