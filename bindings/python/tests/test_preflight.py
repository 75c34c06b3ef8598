"""preflight() reads trainers, arguments and adapters by their attributes."""
from __future__ import annotations

import sys
from types import SimpleNamespace as Thing
from typing import Any

import ftmem
import pytest
from ftmem import _preflight

ARGUMENTS: dict[str, Any] = dict(
    per_device_train_batch_size=2, gradient_accumulation_steps=4, gradient_checkpointing=True, gradient_checkpointing_kwargs=None, bf16=True,
    fp16=False, optim=Thing(value="adamw_torch_fused"), max_length=512, per_device_eval_batch_size=8, use_liger_kernel=False,
    eval_strategy=Thing(value="no"), max_grad_norm=1.0, deepspeed=None, fsdp=[], torch_compile=False, world_size=1, n_gpu=1,
)


def lora(**more: Any) -> Thing:
    return Thing(**{"peft_type": Thing(value="LORA"), "r": 4, "target_modules": {"q_proj", "v_proj"}, "lora_dropout": 0.1, "modules_to_save": None, "use_dora": False, **more})


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Looks at what was asked; the verdict is the test's."""
    asked: list[ftmem.Prediction] = []
    answer = {"verdict": 1}
    original = _preflight.predict

    def predict(*a: Any, **k: Any) -> ftmem.Prediction:
        p = original(*a, **k)
        p._c.verdict = answer["verdict"]
        asked.append(p)
        return p

    monkeypatch.setattr(_preflight, "predict", predict)
    return Thing(asked=asked, answer=answer, fields=lambda: asked[-1].job.resolved())


def test_arguments(config: dict, verdict: Any) -> None:
    ftmem.preflight(config, Thing(**ARGUMENTS), gpu="h100")
    r = verdict.fields()
    assert (r["job.micro_batch"], r["job.accumulation"], r["job.sequence"]) == (2, 4, 512)
    assert (r["job.recompute"], r["job.autocast"], r["job.optimizer"]) == ("full", "bf16", "adamw_fused")
    assert (r["job.eval"], r["job.grad_clip"], r["job.loss"]) == ("off", "on", "dropped")


def test_low_rank_optimizers(config: dict, verdict: Any) -> None:
    more = dict(optim="galore_adamw", optim_args="rank=4, update_proj_gap=100", gradient_accumulation_steps=1)
    ftmem.preflight(config, Thing(**{**ARGUMENTS, **more, "optim_target_modules": ["attn", "mlp"]}), gpu="h100")
    r = verdict.fields()
    assert (r["job.optimizer"], r["job.optimizer_rank"], r["job.optimizer_in_backward"]) == ("galore_adamw", 4, "off")
    with pytest.raises(ftmem.Unsupported, match="optim_target_modules"):
        ftmem.preflight(config, Thing(**{**ARGUMENTS, **more, "optim_target_modules": "all-linear"}), gpu="h100")
    with pytest.raises(ftmem.Unsupported, match="momentum"):
        ftmem.preflight(config, Thing(**{**ARGUMENTS, "optim": "sgd", "optim_args": "momentum=0.9"}), gpu="h100")


def test_evaluation_clipping_liger(config: dict, verdict: Any) -> None:
    args = Thing(**{**ARGUMENTS, "eval_strategy": "steps", "max_grad_norm": 0.0, "use_liger_kernel": True})
    trainer = Thing(model=config, args=args, compute_metrics=print)
    ftmem.preflight(trainer, gpu="h100")
    r = verdict.fields()
    assert (r["job.eval"], r["job.eval_batch"], r["job.grad_clip"], r["job.loss"], r["job.eval_keep_logits"]) == ("on", 8, "off", "fused", "on")


def test_keywords_win(config: dict, verdict: Any) -> None:
    ftmem.preflight(config, Thing(**ARGUMENTS), gpu="h100", batch_size=1, seq_len=64, recompute=False, precision="fp32", loss="chunked")
    r = verdict.fields()
    assert (r["job.micro_batch"], r["job.sequence"], r["job.recompute"], r["job.dtype"], r["job.autocast"]) == (1, 64, "none", "fp32", "auto")


def test_adapters(config: dict, verdict: Any) -> None:
    ftmem.preflight(config, Thing(**ARGUMENTS), peft_config=lora(), gpu="h100")
    r = verdict.fields()
    assert (r["adapter.kind"], r["adapter.rank"], r["adapter.targets"], r["adapter.dropout"]) == ("lora", 4, ["q", "v"], 0.1)


def test_wrapped_model(config: dict, verdict: Any) -> None:
    inner = Thing(config=config, parameters=lambda: iter(()), dtype="torch.bfloat16")
    wrapped = Thing(peft_config={"default": lora()}, get_base_model=lambda: inner, is_loaded_in_4bit=True, config=config)
    ftmem.preflight(wrapped, Thing(**ARGUMENTS), gpu="h100")
    assert verdict.fields()["adapter.kind"] == "qlora"


@pytest.mark.parametrize("version, options, wanted", [("4.57.1", None, "reentrant"), ("5.1", None, "full"), ("4.57.1", {"use_reentrant": False}, "full")])
def test_reentrant_by_version(config: dict, verdict: Any, monkeypatch: pytest.MonkeyPatch, version: str, options: Any, wanted: str) -> None:
    monkeypatch.setitem(sys.modules, "transformers", Thing(__version__=version))
    ftmem.preflight(config, Thing(**{**ARGUMENTS, "gradient_checkpointing_kwargs": options}), gpu="h100")
    r = verdict.fields()
    assert r["job.recompute"] == wanted
    assert r["job.transformers_version"] == int(version.split(".")[0]) * 100 + int(version.split(".")[1])


@pytest.mark.parametrize("code, strict, raises", [(1, False, False), (2, False, False), (2, True, True), (3, False, True)])
def test_gate(config: dict, verdict: Any, code: int, strict: bool, raises: bool) -> None:
    verdict.answer["verdict"] = code
    if not raises:
        assert isinstance(ftmem.preflight(config, max_length=64, gpu="h100", strict=strict), ftmem.Prediction)
        return
    with pytest.raises(ftmem.DoesNotFit, match="GiB") as caught:
        ftmem.preflight(config, max_length=64, gpu="h100", strict=strict)
    assert caught.value.prediction is verdict.asked[-1]


@pytest.mark.parametrize("name, value", [("deepspeed", "z3.json"), ("fsdp", ["full_shard"]), ("torch_compile", True), ("world_size", 8)])
def test_refused_by_name(config: dict, name: str, value: Any) -> None:
    with pytest.raises(ftmem.Unsupported):
        ftmem.preflight(config, Thing(**{**ARGUMENTS, name: value}), gpu="h100")


@pytest.mark.parametrize("peft", [lora(peft_type="BOFT"), lora(bias="all"), lora(layers_to_transform=[1]), lora(target_modules=r".*q_proj")])
def test_refused_adapters(config: dict, peft: Any) -> None:
    with pytest.raises(ftmem.Unsupported):
        ftmem.preflight(config, Thing(**ARGUMENTS), peft_config=peft, gpu="h100")


@pytest.mark.parametrize("peft, field, value", [
    (lora(use_dora=True), "adapter.use_dora", "on"), (lora(peft_type="IA3", target_modules={"v_proj", "down_proj"}), "adapter.kind", "ia3"),
    (lora(trainable_token_indices=[1, 5, 7]), "adapter.trainable_tokens", 3),
    (Thing(peft_type=Thing(value="PROMPT_TUNING"), num_virtual_tokens=20), "adapter.virtual_tokens", 20),
    (Thing(peft_type=Thing(value="ADALORA"), r=8, init_r=12, target_modules={"q_proj"}), "adapter.rank", 12),
])
def test_other_adapters(config: dict, verdict: Any, peft: Any, field: str, value: Any) -> None:
    ftmem.preflight(config, Thing(**ARGUMENTS), peft_config=peft, gpu="h100")
    assert verdict.asked[-1].job.resolved()[field] == value


@pytest.mark.parametrize("method, bits, quant", [("gptq", 4, "gptq_4bit"), ("awq", 4, "awq"), ("hqq", None, None)])
def test_base_formats(method: str, bits: int | None, quant: str | None) -> None:
    model = Thing(quantization_method=Thing(value=method), config=Thing(quantization_config=Thing(bits=bits)))
    if quant is None:
        with pytest.raises(ftmem.Unsupported):
            _preflight.from_adapter(lora(), model)
    else:
        assert _preflight.from_adapter(lora(), model)["quant"] == quant


def test_what_has_to_be_said(config: dict) -> None:
    with pytest.raises(ftmem.Missing, match="max_length"):
        ftmem.preflight(config, gpu="h100")
    with pytest.raises(ftmem.Missing, match="gpu"):
        ftmem.preflight(config, gpu=None, max_length=64)
    with pytest.raises(ftmem.Conflict, match="peft_config"):
        ftmem.preflight(Thing(config=config, is_loaded_in_4bit=True), gpu="h100", max_length=64)


def test_the_card_that_torch_sees(config: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 25_253_904_384
    seen = Thing(name="NVIDIA GeForce RTX 4090", total_memory=total, major=8, minor=9, multi_processor_count=128)
    cuda = Thing(is_available=lambda: True, current_device=lambda: 0, get_device_properties=lambda _: seen)
    monkeypatch.setitem(sys.modules, "torch", Thing(cuda=cuda, __version__="2.8.0+cu128"))
    r = ftmem.prepare(config, gpu="auto").resolved()
    assert (r["gpu.name"], r["gpu.torch_bytes"], r["gpu.sm_arch"]) == ("rtx-4090", total, 89)
    seen.name = "Some Card of 2031"
    r = ftmem.prepare(config, gpu="auto").resolved()
    assert (r["gpu.name"], r["gpu.memory_bytes"]) == ("Some Card of 2031", total)
