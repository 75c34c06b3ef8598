"""The rules of thumb to the digit, and the five questions that everybody can answer as one complete call. GB = 1e9 bytes."""
from __future__ import annotations

import ftmem
import pytest

GB, GIB = 1e9, 1 << 30
# parameters in billions: full fp32, full bf16 (the book's third column, with checkpointing, is quoted there and computed nowhere)
TABLE = {1: (16, 12), 7: (112, 84), 13: (208, 156), 70: (1120, 840)}
# billions: 12 and 20 bytes a parameter
RANGES = {7: (84, 140), 13: (156, 260), 70: (840, 1400)}


# --------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("dtype, size", [("fp32", 4), ("bf16", 2), ("fp16", 2), ("int8", 1), ("nf4", 0.5), ("fp4", 0.5)])
def test_bytes_per_parameter(dtype: str, size: float) -> None:
    assert ftmem.handbook_bytes_per_parameter(dtype) == size


@pytest.mark.parametrize("dtype, gigabytes", [("fp32", 28), ("bf16", 14), ("int8", 7), ("nf4", 3.5)])
def test_weights_of_seven_billion(dtype: str, gigabytes: float) -> None:
    assert 7e9 * ftmem.handbook_bytes_per_parameter(dtype) == gigabytes * GB


def test_seven_billion_trained() -> None:
    assert ftmem.handbook_full_bytes(7e9, "fp32") == (28 + 28 + 56) * GB == 112 * GB
    assert ftmem.handbook_full_bytes(7e9, "bf16") == ftmem.handbook_full_bytes(7e9) == (14 + 14 + 56) * GB == 84 * GB


@pytest.mark.parametrize("dtype, multiplier", [("fp32", 4), ("bf16", 6)])
def test_multipliers(dtype: str, multiplier: int) -> None:
    assert ftmem.handbook_full_bytes(1, dtype) == multiplier * ftmem.handbook_bytes_per_parameter(dtype)


@pytest.mark.parametrize("billions", TABLE)
def test_table(billions: int) -> None:
    assert (ftmem.handbook_full_bytes(billions * 1e9, "fp32"), ftmem.handbook_full_bytes(billions * 1e9, "bf16")) == tuple(
        gigabytes * GB for gigabytes in TABLE[billions]
    )


@pytest.mark.parametrize("billions", RANGES)
def test_twelve_to_twenty_bytes(billions: int) -> None:
    low, high = RANGES[billions]
    assert low * GB == 12 * billions * 1e9 == ftmem.handbook_full_bytes(billions * 1e9, "bf16")
    assert high * GB == 20 * billions * 1e9


def test_checkpointing_rule_is_below_its_own_states() -> None:
    """"60 to 70 GB" for a 7 B model whose weights, gradients and states are 84 by the same book."""
    assert 70 * GB < ftmem.handbook_full_bytes(7e9, "bf16")


@pytest.mark.parametrize("dtype, gib", [("fp32", "104.43"), ("bf16", "78.36")])
def test_estimate_memory_of_the_book(dtype: str, gib: str) -> None:
    estimate = ftmem.handbook_estimate_bytes(7e9, batch_size=4, seq_len=2048, dtype=dtype)
    assert estimate == ftmem.handbook_full_bytes(7e9, dtype) + 4 * 2048 * 4096 * 4
    assert f"{estimate / GIB:.2f}" == gib


def test_a_sequence_four_times_as_long() -> None:
    full = ftmem.handbook_full_bytes(7e9)
    assert ftmem.handbook_estimate_bytes(7e9, 1, 8192) - full == 4 * (ftmem.handbook_estimate_bytes(7e9, 1, 2048) - full)


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_no_rule(dtype: str) -> None:
    assert ftmem.handbook_full_bytes(7e9, dtype) == ftmem.handbook_estimate_bytes(7e9, dtype=dtype) == 0


def test_unknown_dtype() -> None:
    with pytest.raises(ftmem.UnknownName, match="bf61"):
        ftmem.handbook_full_bytes(7e9, "bf61")


# ---------------------------------------------------------------------------------------------- beside the prediction


def test_effective_batch() -> None:
    """1 x 16 and 16 x 1 are one batch to the optimizer, and not to memory."""
    steps = ftmem.predict("7B", batch_size=1, gradient_accumulation_steps=16, seq_len=2048).memory.allocated.expected
    rows = ftmem.predict("7B", batch_size=16, seq_len=2048).memory.allocated.expected
    assert 2 * steps < rows


def test_mixed_precision_halves_what_was_loaded_in_half() -> None:
    fp32, bf16, amp = (ftmem.predict("7B", seq_len=2048, precision=p).memory.components for p in ("fp32", "bf16", "amp_bf16"))
    assert bf16.weights == pytest.approx(fp32.weights / 2, rel=1e-3) and bf16.states == pytest.approx(fp32.states / 2, rel=1e-3)
    assert (amp.weights, amp.states) == (fp32.weights, fp32.states)


def test_autocast_keeps_copies_besides() -> None:
    """16-bit copies of fp32 weights live to the end of backward, unless blocks are recomputed."""
    amp, half = (ftmem.predict("7B", seq_len=64, precision=p).memory for p in ("amp_bf16", "bf16"))
    assert amp.kept - half.kept > 0.8 * 2 * 7e9


def test_checkpointing_saves_more_than_the_rule() -> None:
    without, with_it = (ftmem.predict("7B", seq_len=2048, gradient_checkpointing=c).memory.kept for c in (False, True))
    assert with_it < 0.3 * without


def test_activations_and_sequence() -> None:
    """Linear with sdpa, as the rule has it; eager attention keeps scores of sequence x sequence."""
    sdpa, eager = (
        [ftmem.predict("7B", method="qlora", seq_len=s, attention=a).memory.components.activations for s in (2048, 8192)]
        for a in ("sdpa", "eager")
    )
    assert sdpa[1] / sdpa[0] == pytest.approx(4, rel=0.01)
    assert eager[1] > 8 * eager[0]


# ------------------------------------------------------------------------------------------------- the five questions


@pytest.mark.parametrize("method", ["full", "lora", "qlora", "lora8"])
@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "7B", 13e9, "70b"])
def test_five_questions_are_a_complete_call(model: object, method: str) -> None:
    """Model or size, sequence, batch, method, GPU type."""
    p = ftmem.predict(model, seq_len=4096, batch_size=2, method=method, gpu="A100 80GB")
    assert p.verdict in ("fits", "may_fit", "does_not_fit") and p.fits is (p.verdict == "fits")
    assert 70 * GB < p.memory.usable < 86 * GB
    assert p.memory.process.upper >= p.memory.process.expected >= p.memory.allocated.expected > 0
    assumed = {n.field for n in p.notes if n.kind == "assumed"}
    assert not assumed & {"job.sequence", "job.micro_batch", "gpu.sm_arch"}
    assert {"job.dtype", "job.optimizer", "job.attention"} <= assumed


def test_the_handbooks_signature() -> None:
    estimate = ftmem.estimate_memory("7B", batch_size=4, seq_len=2048, precision="bf16")
    assert isinstance(estimate, float)
    assert estimate == estimate.prediction.memory.process.expected / GIB
    assert estimate.prediction.job.resolved()["job.micro_batch"] == 4
