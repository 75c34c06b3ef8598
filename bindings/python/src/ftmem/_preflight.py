"""preflight(): reads what a training script already holds, by attribute names; nothing is imported from it."""
from __future__ import annotations

import sys
from typing import Any, Mapping

from ftmem._core import GIB
from ftmem._errors import Conflict, DoesNotFit, Missing, Unsupported
from ftmem._prediction import Prediction, predict

# attribute of the training arguments -> keyword
ARGUMENTS = {
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "optim": "optim",
    "optim_args": "optim_args",
    "optim_target_modules": "optim_target_modules",
    "use_liger_kernel": "use_liger_kernel",
}
REFUSED = ("deepspeed", "fsdp", "torch_compile", "activation_offloading")
LENGTHS = ("max_length", "max_seq_length")
ADAPTER = {
    "r": "rank", "init_r": "rank", "target_modules": "target_modules", "lora_dropout": "dropout", "vera_dropout": "dropout", "modules_to_save": "modules_to_save",
    "use_dora": "use_dora", "rank_pattern": "rank_pattern", "num_virtual_tokens": "virtual_tokens", "oft_block_size": "block_size",
    "decompose_factor": "factors",
}
# of a PEFT config, attribute -> values that change nothing
PEFT_REFUSED: dict[str, tuple[Any, ...]] = {
    "layers_to_transform": (), "target_parameters": (), "bias": ("none",), "lora_bias": (), "decompose_both": (), "module_dropout": (),
    "rank_dropout": (), "oft_dropout": (), "coft": (), "block_share": (), "alora_invocation_tokens": (), "use_qalora": (),
}
PEFT_METHODS = {
    "LORA": "lora", "VERA": "vera", "ADALORA": "adalora", "IA3": "ia3", "LOHA": "loha", "LOKR": "lokr", "OFT": "oft", "BOFT": "boft",
    "PROMPT_TUNING": "prompt", "PREFIX_TUNING": "prefix", "P_TUNING": "p_tuning",
}


def preflight(
    model: Any, args: Any = None, *, peft_config: Any = None, gpu: Any = "auto", strict: bool = False, **keywords: Any
) -> Prediction:
    """Predicts the run that is about to start, and raises DoesNotFit if it will not fit.

    model:    a trainer (its model and args are read), or a model as predict() takes it together with `args`
    strict:   the 95 % bound has to fit; otherwise the expected size has to
    keywords: as for predict(); they win over what was read
    """
    metrics = False
    if args is None and hasattr(model, "model") and hasattr(model, "args"):
        metrics = getattr(model, "compute_metrics", None) is not None
        model, args = model.model, model.args
    found = {**from_model(model), **from_adapter(peft_config or adapter_of(model), model), **from_arguments(args), **versions()}
    if metrics and "eval_batch_size" in found and not getattr(args, "prediction_loss_only", False):
        found["eval_keep_logits"] = True
    found = {k: v for k, v in found.items() if not shadowed(k, keywords)}
    given = {**found, **keywords, "gpu": gpu}
    if gpu is None:
        raise Missing('gpu is None; preflight needs a GPU: name one, or pass "auto".', "gpu")
    if not any(name in given for name in (*LENGTHS, "seq_len", "seq_length", "sequence", "sequence_length")):
        raise Missing("the arguments give no sequence length; pass max_length.", "max_length")
    return gate(predict(base_of(model), **given), strict)


def gate(prediction: Prediction, strict: bool) -> Prediction:
    if prediction.fits or (prediction.verdict == "may_fit" and not strict):
        return prediction
    if prediction.verdict == "unknown":
        raise Missing("there is no verdict: the GPU has no memory size.", "gpu")
    m = prediction.memory
    best = next((f" It would fit with this change: {f.text}." for f in prediction.fixes if f.fits), "")
    raise DoesNotFit(
        f"the run needs {m.process.expected / GIB:.1f} GiB (95 % below {m.process.upper / GIB:.1f}), "
        f"the GPU offers {m.usable / GIB:.1f}.{best}",
        prediction,
    )


def shadowed(name: str, keywords: Mapping[str, Any]) -> bool:
    """Whether a keyword of the caller sets what `name` would."""
    from ftmem._job import ALIASES
    from ftmem._fields import keywords as known

    def path(key: str) -> str:
        return "job.autocast" if key == "precision" else ALIASES.get(key) or known().get(key) or key

    return path(name) in {path(k) for k in keywords}


def versions() -> dict[str, Any]:
    """Of the libraries that are loaded."""
    found = {}
    for name in ("transformers", "torch"):
        version = str(getattr(sys.modules.get(name), "__version__", ""))
        parts = version.split(".")
        if len(parts) > 1 and parts[0].isdecimal() and parts[1].isdecimal():
            found[f"{name}_version"] = f"{parts[0]}.{parts[1]}"
    return found


def from_arguments(args: Any) -> dict[str, Any]:
    """Keywords from TrainingArguments, SFTConfig and their like."""
    if args is None:
        return {}
    for name in REFUSED:
        if getattr(args, name, None):
            raise Unsupported(f"{name} is not modelled in this version.", name, str(getattr(args, name)))
    if int(getattr(args, "world_size", 1) or 1) > 1 or int(getattr(args, "n_gpu", 1) or 1) > 1:
        raise Unsupported("more than one GPU is not modelled in this version.", "world_size", str(getattr(args, "world_size", "")))
    found = {keyword: getattr(args, name) for name, keyword in ARGUMENTS.items() if getattr(args, name, None) is not None}
    for name in ("bf16", "fp16"):
        if getattr(args, name, False):
            found[name] = True
    for name in LENGTHS:
        if getattr(args, name, None):
            found["max_length"] = getattr(args, name)
            break
    found.update(recompute_of(args))
    if str(getattr(getattr(args, "eval_strategy", "no"), "value", getattr(args, "eval_strategy", "no"))) != "no":
        found["eval_batch_size"] = getattr(args, "per_device_eval_batch_size", None)
    clip = getattr(args, "max_grad_norm", None)
    if clip is not None and not clip:
        found["grad_clip"] = False
    return found


def recompute_of(args: Any) -> dict[str, Any]:
    """transformers before 5 checkpoints reentrantly unless it is told otherwise."""
    name = next((n for n in ("activation_checkpointing", "gradient_checkpointing") if getattr(args, n, False)), None)
    if name is None:
        return {}
    options = getattr(args, f"{name}_kwargs", None) or {}
    version = str(getattr(sys.modules.get("transformers"), "__version__", "5")).split(".")[0]
    if options.get("selective"):  # trl/models/selective_activation_checkpointing.py
        return {"gradient_checkpointing": True, "recompute_save": "attention"}
    reentrant = options.get("use_reentrant", version.isdecimal() and int(version) < 5)
    return {"gradient_checkpointing": "reentrant" if reentrant else True}


def base_of(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model


def adapter_of(model: Any) -> Any:
    """The adapter config of a PEFT model."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, Mapping):
        return configs
    if len(configs) > 1:
        raise Unsupported("more than one adapter is not modelled.", "peft_config", ", ".join(map(str, configs)))
    return next(iter(configs.values()), None)


def from_model(model: Any) -> dict[str, Any]:
    """The attention implementation that a loaded model has settled on."""
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return {"attn_implementation": chosen} if isinstance(chosen, str) else {}


def base_format(model: Any) -> str | None:
    """How a loaded model's linears are stored: transformers' quantization_method, with bits where it has several."""
    if getattr(model, "is_loaded_in_4bit", False):
        return "nf4"
    if getattr(model, "is_loaded_in_8bit", False):
        return "int8"
    config = getattr(getattr(model, "config", None), "quantization_config", None)
    method = getattr(model, "quantization_method", None)
    name = str(getattr(method, "value", method or "")).lower()
    bits = getattr(config, "bits", None) or getattr(config, "nbits", None) or 0
    if not name:
        return None
    found = {"fp8": "fp8", "awq": "awq", "aqlm": "aqlm", "mxfp4": "mxfp4"}.get(name) or {
        ("gptq", 4): "gptq_4bit", ("gptq", 8): "gptq_8bit", ("hqq", 4): "hqq_4bit", ("hqq", 8): "hqq_8bit"}.get((name, int(bits)))
    if found is None:
        raise Unsupported(f"a base model in the format {name} is not modelled.", "quantization_method", name)
    return found


def from_adapter(peft: Any, model: Any) -> dict[str, Any]:
    """Keywords from a PEFT config."""
    stored = base_format(model)
    if peft is None:
        if stored:
            raise Conflict("the model is quantised, but no peft_config was given; quantised weights cannot be trained.", "peft_config")
        return {}
    kind = str(getattr(getattr(peft, "peft_type", "LORA"), "value", getattr(peft, "peft_type", "LORA")))
    if kind not in PEFT_METHODS:
        raise Unsupported(f"adapters of type {kind} are not modelled.", "peft_type", kind)
    for name, neutral in PEFT_REFUSED.items():
        value = getattr(peft, name, None)
        if value and value not in neutral:
            raise Unsupported(f"{name} is not modelled in this version.", name, str(value))
    found = {keyword: getattr(peft, name) for name, keyword in ADAPTER.items() if getattr(peft, name, None)}
    if found.get("factors") == -1:                             # as square as possible, our default
        del found["factors"]
    if kind in ("IA3", "OFT", "PROMPT_TUNING", "P_TUNING"):     # they have no rank; AdaLoRA's is init_r
        found.pop("rank", None)
    tokens = getattr(peft, "trainable_token_indices", None)
    if isinstance(tokens, (list, tuple)):
        found["trainable_tokens"] = len(tokens)
    elif tokens:
        raise Unsupported("trainable_token_indices of several modules is not modelled.", "trainable_token_indices", str(tokens)[:40])
    shorthand = {"nf4": "qlora", "int8": "lora8"}.get(stored or "") if kind == "LORA" else None
    if stored and not shorthand:
        found["quant"] = stored
    return {**found, "method": shorthand or PEFT_METHODS[kind]}
