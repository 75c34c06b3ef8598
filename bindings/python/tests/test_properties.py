"""Properties that hold for every job, on made-up small decoders of every family: what may grow, what must add up.

The kernel of attention is held fixed: it depends on dtype, mask, head width and GPU, and another kernel may well need less for
more. Sequences stay on one side of a sliding window for the same reason.
"""
from __future__ import annotations

from typing import Any

import ftmem
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

FAMILIES = next(f.values for f in ftmem.fields() if f.path == "model.family")[1:]
LOSSES = ("dropped", "held", "loop", "chunked", "fused")
OPTIMIZERS = next(f.values for f in ftmem.fields() if f.path == "job.optimizer")[1:]
TIERS = ("allocated", "reserved", "process")
Keywords = dict  # of predict()


@st.composite
def models(draw: st.DrawFn) -> Keywords:
    """Dimensions of a small decoder."""
    heads = draw(st.sampled_from((1, 2, 4, 8)))
    return {
        "family": draw(st.sampled_from(FAMILIES)), "heads": heads, "hidden": heads * 16 * draw(st.integers(1, 4)),
        "kv_heads": draw(st.sampled_from([k for k in (1, 2, 4, 8) if heads % k == 0])), "ffn": draw(st.integers(8, 1024)),
        "vocab": draw(st.integers(16, 8192)), "layers": draw(st.integers(1, 6)), "max_positions": 8192, "position_rows": 8192,
        "tied": draw(st.sampled_from(("auto", "on", "off"))), "hidden_dropout": draw(st.sampled_from((0.0, 0.1))),
        "attention_dropout": draw(st.sampled_from((0.0, 0.1))),
    }


@st.composite
def training(draw: st.DrawFn, method: str = "") -> Keywords:
    """How the model is trained: everything but its dimensions."""
    method = method or draw(st.sampled_from(("full", "lora", "qlora", "lora8")))
    precision = draw(st.sampled_from(("bf16", "fp16", "fp32", "amp_bf16", "amp_fp16")))
    kernels = ("eager", "sdpa", "sdpa_math") if precision == "fp32" else ("eager", "sdpa", "sdpa_math", "flash2")
    job: Keywords = {
        "method": method, "precision": precision, "attention": draw(st.sampled_from(kernels)), "sm_arch": draw(st.sampled_from((75, 80))),
        "batch_size": draw(st.integers(1, 4)), "seq_len": draw(st.integers(1, 512)), "loss": draw(st.sampled_from(LOSSES)),
        "optimizer": draw(st.sampled_from(OPTIMIZERS)), "recompute": draw(st.sampled_from(("none", "full", "reentrant"))),
        "accumulation": draw(st.integers(1, 3)), "mask": draw(st.sampled_from(("none", "padded"))),
        "eval": draw(st.booleans()), "repeat_kv": draw(st.booleans()),
    }
    if method != "full":
        job |= {"rank": draw(st.integers(1, 64)), "target_modules": "all-linear", "dropout": draw(st.sampled_from((0.0, 0.05)))}
    return job


def jobs(method: str = "") -> st.SearchStrategy[Keywords]:
    return st.builds(lambda model, job: {**model, **job}, models(), training(method))


def peak(keywords: Keywords) -> int:
    return ftmem.predict(None, **keywords).memory.allocated.expected


def grows(keywords: Keywords, keyword: str, more: int) -> None:
    """`more` of one keyword does not lower the allocated peak."""
    less, greater = ftmem.predict(None, **keywords), ftmem.predict(None, **{**keywords, keyword: keywords[keyword] + more})
    assume(less.memory.peak.kernel == greater.memory.peak.kernel)
    assert less.memory.allocated.expected <= greater.memory.allocated.expected


# ------------------------------------------------------------------------------------------------------------ monotone


@given(jobs(), st.integers(1, 4))
def test_more_rows_need_no_less(job: Keywords, more: int) -> None:
    grows(job, "batch_size", more)


@given(jobs(), st.integers(1, 512))
def test_longer_rows_need_no_less(job: Keywords, more: int) -> None:
    grows(job, "seq_len", more)


@given(jobs(), st.integers(1, 4))
def test_more_blocks_need_no_less(job: Keywords, more: int) -> None:
    grows(job, "layers", more)


@given(jobs("lora") | jobs("qlora") | jobs("lora8"), st.integers(1, 64))
def test_a_higher_rank_needs_no_less(job: Keywords, more: int) -> None:
    grows(job, "rank", more)
