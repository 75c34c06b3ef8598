"""Parameter counts against torch's: every row of tests/vectors/parameters.csv, to the integer.

The rows were counted on real transformers and PEFT classes (tools/golden_parameters.py); the configs are in tests/data/configs.
"""
from __future__ import annotations

import csv
import json
import pathlib
from typing import Any

import ftmem
import pytest

TESTS = pathlib.Path(__file__).resolve().parents[3] / "tests"
# Understood and not modelled: the key that the refusal has to name. A row leaves this list when its structure is modelled.
REFUSED = {
    "made__opt-350m": "do_layer_norm_before",
    "made__opt-no-bias": "layer_norm_elementwise_affine",
    "made__smollm3-biases": "use_sliding_window",
}
# Configs of these are read inside those of vision-language models.
TOWERS = {"gemma4_vision", "gemma4_audio", "clip_vision_model", "siglip_vision_model", "pixtral", "qwen2_vl_vision", "qwen2_5_vl_vision", "qwen3_vl_vision", "kimi_k25_vision",
          "mllama_vision_model", "mllama_text_model"}
# Not in transformers: counted by hand in test_remote_code.py.
REMOTE = {"nemotron-nas", "qwen", "baichuan", "chatglm", "internlm2", "orion", "minicpm", "deepseek", "mimo"}
# The first block is not like the others: its parameters times the depth are not those of all blocks.
UNEVEN = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "mimo_v2_flash", "glm4_moe", "dots1", "glm4_moe_lite", "ernie4_5_moe", "nemotron_h", "granitemoehybrid", "bamba"}
# Never trained: a bias for each of 64 experts, in 27 blocks (modeling_ernie4_5_moe.py Ernie4_5_MoeStatics).
FROZEN = {"made__default-ernie4_5_moe": 27 * 64}
# Two stacks: counted in golden/two_stacks.csv of tests/accuracy.
ENCODED = {"t5", "bart", "whisper"}


def rows() -> list[dict[str, str]]:
    path = TESTS / "vectors" / "parameters.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def config_of(name: str) -> dict[str, Any]:
    """The config that the row was counted with: the language model of a vision-language one, and not quantised."""
    config = json.loads((TESTS / "data" / "configs" / f"{name}.json").read_text())
    config = config.get("text_config", config)
    config.pop("quantization_config", None)
    return dict(config)


def modelled() -> list[Any]:
    return [pytest.param(r, id=r["config"]) for r in rows() if r["config"] not in REFUSED]


def adaptable() -> list[Any]:
    """PEFT refuses all-linear where it would adapt a state-space mixer's out_proj."""
    return [pytest.param(r, id=r["config"]) for r in rows() if r["config"] not in REFUSED and r["lora_r16_all_linear_trainable"]]


def prepared(row: dict[str, str], **keywords: Any) -> ftmem.Job:
    return ftmem.prepare(config_of(row["config"]), seq_len=8, **keywords)


@pytest.mark.skipif(not rows(), reason="the vectors are in the repository, not in a source distribution")
def test_the_vectors_are_there() -> None:
    names = [r["config"] for r in rows()]
    assert len(names) == len(set(names)) > 100
    assert set(REFUSED) < set(names)
    others = {r["model_type"].replace("-", "_") for r in other_rows()} | {"deberta_v2"} | TOWERS
    assert {r["model_type"] for r in rows()} | others >= set(next(f.values for f in ftmem.fields() if f.path == "model.family")[1:]) - {"gemma3"} - REMOTE - ENCODED


@pytest.mark.parametrize("row", modelled())
def test_counts(row: dict[str, str]) -> None:
    job = prepared(row)
    prediction, resolved = job.predict(), job.resolved()
    counts = prediction.counts
    positions = resolved["model.position_rows"] * resolved["model.hidden"]  # torch's embedding count includes the table of positions
    got = {
        "params": counts.total, "embedding_params": counts.embedding + positions, "head_params": counts.head,
        "block_params": counts.block * resolved["model.layers"],
    }
    if row["model_type"] in UNEVEN:
        del got["block_params"]
    assert got == {name: int(row[name]) for name in got}
    assert prediction.parameters == counts.total and prediction.trainable == counts.trainable == counts.total - FROZEN.get(row["config"], 0)
    assert counts.adapters == 0


@pytest.mark.parametrize("row", adaptable())
def test_lora_counts(row: dict[str, str]) -> None:
    """Rank 16 on every linear of the blocks."""
    prediction = prepared(row, method="lora", rank=16, target_modules="all-linear").predict()
    assert prediction.trainable == int(row["lora_r16_all_linear_trainable"])
    assert prediction.counts.adapters == prediction.counts.trainable == prediction.trainable
    assert prediction.parameters == int(row["params"])


@pytest.mark.parametrize("row", adaptable())
def test_quantised_counts_are_the_same(row: dict[str, str]) -> None:
    """A 4-bit weight counts as one parameter."""
    prediction = prepared(row, method="qlora", rank=16, target_modules="all-linear").predict()
    assert (prediction.parameters, prediction.trainable) == (int(row["params"]), int(row["lora_r16_all_linear_trainable"]))


def test_kernels_of_mixers() -> None:
    """The kernels keep less, are there for mixers alone, and read out_proj's weight as it is stored."""
    config = config_of("made__nemotron_h-small")
    plain, fused = (ftmem.predict(config, seq_len=512, ssm_kernels=k) for k in (False, True))
    assert fused.memory.kept < plain.memory.kept / 2 and fused.parameters == plain.parameters
    assert any("mamba-ssm" in str(note) for note in plain.notes) and any("mamba-ssm" in str(note) for note in fused.notes)
    with pytest.raises(ftmem.Conflict, match="no state-space"):
        ftmem.predict("meta-llama/Llama-3.2-1B", ssm_kernels=True)
    with pytest.raises(ftmem.Conflict, match="out_proj"):
        ftmem.predict(config, method="qlora", target_modules=["in_proj"], ssm_kernels=True)
    with pytest.raises(ftmem.Unsupported, match="out_proj"):
        ftmem.predict(config_of("made__bamba-small"), method="lora", target_modules=["out_proj"], ssm_kernels=True)


def test_all_linear_is_refused_as_in_peft() -> None:
    row = next(r for r in rows() if r["model_type"] == "nemotron_h")
    with pytest.raises(ftmem.Conflict, match="out_proj"):
        prepared(row, method="lora", target_modules="all-linear").predict()
    assert prepared(row, method="lora", target_modules=["in_proj", "q_proj", "up_proj"]).predict().trainable > 0


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    with pytest.raises(ftmem.Unsupported, match=REFUSED[name]):
        ftmem.prepare(config_of(name))


def other_rows() -> list[dict[str, str]]:
    path = TESTS / "vectors" / "other_parameters.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def other_config(name: str) -> dict[str, Any]:
    config = json.loads((TESTS / "data" / "configs" / f"{name}.json").read_text())
    config.pop("quantization_config", None)
    return dict(config)


@pytest.mark.parametrize("row", [pytest.param(r, id=f"{r['config']}-{r['task']}") for r in other_rows()])
def test_encoders_and_vision(row: dict[str, str]) -> None:
    """Totals with the head of each task, and what PEFT's all-linear would train: of the whole model, the tower too."""
    config, task = other_config(row["config"]), row["task"] or "auto"
    assert ftmem.prepare(config, task=task).predict().parameters == int(row["params"])
    if row["lora_r16_all_linear_trainable"]:
        prediction = ftmem.prepare(config, task=task, method="lora", rank=16, target_modules="all-linear").predict()
        assert (prediction.parameters, prediction.trainable) == (int(row["params"]), int(row["lora_r16_all_linear_trainable"]))


# Experts of a block are gate, up and down: 3 x hidden x width each.
ACTIVE = {
    # 32 blocks of 8 experts, 2 chosen: 46702792704 - 6 x 32 x 3 x 4096 x 14336, the 12.9 B of arXiv 2401.04088
    "mistralai__Mixtral-8x7B-v0.1": 12_879_925_248,
    # 48 blocks of 128 experts, 8 chosen: 30532122624 - 120 x 48 x 3 x 2048 x 768, the 3.3 B of its model card
    "Qwen__Qwen3-30B-A3B": 3_353_032_704,
    # 58 blocks of 256 experts, 8 chosen, after 3 dense ones: 671026404352 - 248 x 58 x 3 x 7168 x 2048, the 37 B of arXiv 2412.19437
    "deepseek-ai__DeepSeek-V3": 37_552_282_624,
    # 24 blocks of 32 experts with biases, 4 chosen: 20914757184 - 28 x 24 x (3 x 2880 x 2880 + 2 x 2880 + 2880); without the
    # embedding's 579133440 it is the 3.61 B of arXiv 2508.10925
    "openai__gpt-oss-20b": 4_187_440_704,
    "Qwen__Qwen3-0.6B": 596_049_920,  # dense: all
}


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters(name: str) -> None:
    for keywords in ({}, {"method": "lora", "rank": 16, "target_modules": "all-linear"}):
        assert ftmem.prepare(config_of(name), seq_len=8, **keywords).predict().counts.active == ACTIVE[name]


@pytest.mark.parametrize("version", [447, 500])
def test_active_parameters_of_experts_apart(version: int) -> None:
    job = ftmem.prepare(config_of("mistralai__Mixtral-8x7B-v0.1"), seq_len=8, transformers_version=version)
    assert job.predict().counts.active == ACTIVE["mistralai__Mixtral-8x7B-v0.1"]
