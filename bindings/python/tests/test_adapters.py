"""Adapters against PEFT's own counts (tests/vectors/adapters.csv, made by tools/golden_adapters.py), and base formats against arithmetic."""
from __future__ import annotations

import csv
import json
import pathlib
from typing import Any

import ftmem
import pytest

TESTS = pathlib.Path(__file__).resolve().parents[3] / "tests"
LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 512}


def rows() -> list[Any]:
    path = TESTS / "vectors" / "adapters.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def config_of(row: dict[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((TESTS / "data" / "configs" / f"{row['config']}.json").read_text())
    config["num_hidden_layers"] = int(row["layers"])
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]]
    return config


@pytest.mark.skipif(not rows(), reason="the vectors are in the repository, not in a source distribution")
def test_every_method_has_rows() -> None:
    methods = {r["method"] for r in rows()}
    assert methods >= {"lora", "vera", "adalora", "ia3", "loha", "lokr", "oft", "prompt", "p_tuning"}
    assert all(len({r["config"] for r in rows() if r["method"] == m}) >= 3 for m in methods)


@pytest.mark.parametrize("row", [pytest.param(r, id=f"{r['config']}-{r['method']}-{n}") for n, r in enumerate(rows())])
def test_counts(row: dict[str, str]) -> None:
    targets = {"target_modules": row["targets"].split()} if row["targets"] else {}
    p = ftmem.predict(config_of(row), method=row["method"], dtype="fp32", seq_len=8, **targets, **json.loads(row["keywords"]))
    assert (p.parameters, p.trainable, p.counts.adapters) == (int(row["params"]), int(row["trainable"]), int(row["adapters"]))


def stored(**keywords: Any) -> int:
    """Bytes of what is quantised, at load."""
    p = ftmem.predict(LLAMA, method="lora", rank=8, target_modules="q_proj", seq_len=16, **keywords)
    plain = ftmem.predict(LLAMA, method="lora", rank=8, target_modules="q_proj", seq_len=16)
    return int(p.memory.resident) - int(plain.memory.resident) + 2 * dense()


def dense() -> int:
    h, f, kv = 256, 1024, 128
    return 2 * (h * h * 2 + 2 * h * kv + 3 * h * f)


def tensors(*sizes: int) -> int:
    return sum(-(-s // 512) * 512 for s in sizes)


SHAPES = ((256, 256), (256, 128), (256, 128), (256, 256), (256, 1024), (256, 1024), (1024, 256))  # in, out
FORMATS = {
    "gptq_4bit": lambda i, o: tensors(i * o // 2, i // 128 * o // 2, i // 128 * o * 2, 4 * i, 1, 1),
    "gptq_8bit": lambda i, o: tensors(i * o, i // 128 * o, i // 128 * o * 2, 4 * i, 1, 1),
    "awq": lambda i, o: tensors(i * o // 2, i // 128 * o // 2, i // 128 * o * 2),
    "hqq_4bit": lambda i, o: tensors(i * o // 2, i * o // 64 * 2, i * o // 64 * 2),
    "hqq_8bit": lambda i, o: tensors(i * o, i * o // 64 * 2, i * o // 64 * 2),
    "aqlm": lambda i, o: tensors(i // 8 * o * 2, 65536 * 8 * 2, 2 * o),
    "torchao_int8": lambda i, o: tensors(i * o, 4 * o),
    "fp8": lambda i, o: tensors(i * o, 4 * (i // 128) * (o // 128)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_stored_bytes(name: str) -> None:
    """Packed codes, scales and zeros of each linear, each tensor rounded to 512 bytes."""
    assert stored(quant=name) == 2 * sum(FORMATS[name](i, o) for i, o in SHAPES)


def test_groups_are_an_input() -> None:
    assert stored(quant="gptq", quant_group=32) - stored(quant="gptq") == 2 * sum(
        tensors(i // 32 * o // 2, i // 32 * o * 2) - tensors(i // 128 * o // 2, i // 128 * o * 2) for i, o in SHAPES)


@pytest.mark.parametrize("keywords, field", [
    ({"method": "lora", "quant": "mxfp4"}, "quant"), ({"method": "lora", "quant": "torchao_int4"}, "quant"),
    ({"method": "boft"}, "kind"), ({"method": "prefix", "virtual_tokens": 8}, "kind"),
    ({"method": "loha", "quant": "nf4"}, "quant"), ({"method": "vera", "quant": "gptq"}, "quant"),
    ({"method": "lora", "quant": "awq", "use_dora": True}, "use_dora"),
    ({"method": "lora", "trainable_tokens": 4, "loss": "fused"}, "trainable_tokens"),
])
def test_refused_by_name(keywords: dict[str, Any], field: str) -> None:
    with pytest.raises(ftmem.Unsupported) as caught:
        ftmem.predict(LLAMA, target_modules="q_proj", seq_len=16, **keywords)
    assert field in caught.value.field


@pytest.mark.parametrize("keywords, error", [
    ({"method": "qlora", "quant": "none"}, ftmem.Conflict), ({"method": "lora8", "quant": "nf4"}, ftmem.Conflict),
    ({"method": "lora", "quant": "gptq", "kbit_fp32": True}, ftmem.Conflict), ({"method": "lora", "quant": "awq", "double_quant": True}, ftmem.Conflict),
    ({"method": "prompt"}, ftmem.Missing), ({"method": "lora", "virtual_tokens": 8}, ftmem.Conflict),
])
def test_contradictions(keywords: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ftmem.predict(LLAMA, target_modules="q_proj", seq_len=16, **keywords)


@pytest.mark.parametrize("keywords", [{"method": "ia3"}, {"method": "lora", "quant": "gptq"}])
def test_mixtures_of_experts_take_plain_lora(keywords: dict[str, Any]) -> None:
    experts = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    assert ftmem.predict(experts, method="lora", target_modules="q_proj", seq_len=16).trainable
    with pytest.raises(ftmem.Unsupported, match="mixture of experts"):
        ftmem.predict(experts, target_modules="q_proj", seq_len=16, **keywords)


def test_shorthands() -> None:
    """qlora is LoRA over 4 bits; rsLoRA has LoRA's tensors."""
    same = {"rank": 8, "target_modules": "q_proj", "seq_len": 16}
    assert ftmem.predict(LLAMA, method="qlora", **same).memory.allocated == ftmem.predict(LLAMA, method="lora", quant="nf4", **same).memory.allocated
    assert ftmem.predict(LLAMA, method="rslora", **same).memory.allocated == ftmem.predict(LLAMA, method="lora", **same).memory.allocated
