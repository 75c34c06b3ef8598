"""Objectives: which forwards a step has, and in which direction they move the peak."""
from __future__ import annotations

from typing import Any

import ftmem
import pytest

MODEL = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 5632,
         "vocab_size": 32000, "tie_word_embeddings": False}
JOB: dict[str, Any] = {"batch_size": 2, "seq_len": 512}


def ask(**more: Any) -> ftmem.Prediction:
    return ftmem.predict(MODEL, **{**JOB, **more})


def test_a_precomputed_reference_saves_the_second_model() -> None:
    """TRL's advice to precompute the reference's log-probabilities: the copy's 16-bit weights are not there, nor its forward."""
    with_copy, without = (ask(method="full", objective="dpo", reference=r) for r in ("copy", "precomputed"))
    assert with_copy.memory.resident - without.memory.resident >= 2 * with_copy.parameters
    assert with_copy.memory.allocated.expected - without.memory.allocated.expected >= 2 * with_copy.parameters
    assert "reference" in with_copy.memory.phases and "reference" not in without.memory.phases
    assert with_copy.flops_forward == 2 * without.flops_forward


def test_with_an_adapter_the_reference_costs_a_forward_only() -> None:
    off, precomputed, copy = (ask(method="lora", objective="dpo", reference=r) for r in ("adapter_off", "precomputed", "copy"))
    assert abs(off.memory.resident - precomputed.memory.resident) <= 1024
    assert precomputed.memory.allocated.expected - 1024 <= off.memory.allocated.expected < copy.memory.allocated.expected
    assert ask(method="lora", objective="dpo").memory.allocated.expected == off.memory.allocated.expected  # the trainer's default


@pytest.mark.parametrize("objective", ["dpo", "kto", "orpo", "cpo", "simpo", "reward", "grpo", "rloo"])
@pytest.mark.parametrize("more", [{"method": "full"}, {"method": "qlora", "recompute": "full", "eval": True}])
def test_a_prediction_adds_up(objective: str, more: dict) -> None:
    p = ask(objective=objective, **more)
    assert sum(p.memory.peak.composition.values()) == p.memory.allocated.expected
    assert max(phase.allocated for phase in p.memory.phases.values()) == p.memory.allocated.expected


def test_a_pair_is_two_rows() -> None:
    pairs, rows = ask(method="full", objective="simpo", batch_size=2), ask(method="full", batch_size=4)
    assert pairs.memory.kept_layer == rows.memory.kept_layer


def test_tiles_grow_with_scored_tokens_up_to_a_tile() -> None:
    """trl/kernels/chunked_logprob.py: torch.empty((min(N, 4096), 32768)) in the dtype of the matmul."""
    model = {**MODEL, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
    few, many, more = (ftmem.predict(model, method="lora", objective="grpo", batch_size=8, seq_len=1025, completion_sequence=c).memory.allocated.expected
                       for c in (128, 512, 1024))
    assert 3072 * 32768 * 2 <= many - few < 3072 * 32768 * 2.1
    assert more - many < 4096 * 32768 * 0.2


def test_a_cache_of_keys_and_values() -> None:
    """Two tensors a block of [rows, 4 heads, tokens, 128] in bf16: 8 more tokens of 64 rows in 8 blocks, and those of the one that is copied."""
    few, many = (ask(method="lora", objective="grpo", seq_len=n, completion_sequence=n - 8, generation_batch=64).memory.phases["generation"].allocated
                 for n in (2048, 2056))
    assert 0 <= many - few - (2 * 8 + 1) * 64 * 4 * 128 * 8 * 2 <= 2048  # the batch grows too


def test_generation_elsewhere() -> None:
    here, elsewhere = (ask(method="lora", objective="grpo", completion_sequence=256, generation=g).memory.phases for g in ("transformers", "none"))
    assert "generation" in here and "generation" not in elsewhere
    with pytest.raises(ftmem.Unsupported):
        ftmem.predict("deepseek-ai/DeepSeek-V2-Lite", method="lora", objective="grpo")


@pytest.mark.parametrize("fields", [{"objective": "dpo", "generation": "none"}, {"objective": "sft", "reference": "copy"}, {"objective": "dpo", "reference": "adapter_off", "method": "full"},
                                    {"objective": "orpo", "reference": "copy"}, {"objective": "reward", "task": "causal_lm"},
                                    {"objective": "dpo", "completion_sequence": 512}])
def test_contradictions(fields: dict) -> None:
    with pytest.raises(ftmem.Conflict):
        ask(**{"method": "lora", **fields})


@pytest.mark.parametrize("fields", [{"objective": "dpo", "reference": "none"}, {"objective": "grpo", "reference": "precomputed"}, {"objective": "dpo", "loss": "fused"},
                                    {"objective": "orpo", "loss": "tiles"}, {"objective": "dpo", "eval": True, "eval_batch": 1},
                                    {"objective": "dpo", "stack": "trl", "stack_version": "0.24"}])
def test_refused_by_name(fields: dict) -> None:
    with pytest.raises(ftmem.Unsupported):
        ask(**{"method": "lora", **fields})


def test_an_encoder_has_no_objective() -> None:
    with pytest.raises(ftmem.Unsupported):
        ftmem.predict("google-bert/bert-base-uncased", method="full", objective="dpo", task="masked_lm")
