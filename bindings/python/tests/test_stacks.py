"""A stack's defaults: rows of data/stacks.csv, taken where nothing was given, and listed as assumed."""
from __future__ import annotations

import csv
import pathlib
from typing import Any

import ftmem
import pytest

ROWS = pathlib.Path(__file__).resolve().parents[3] / "data" / "stacks.csv"


def stacks() -> list[str]:
    return sorted({row["stack"] for row in csv.DictReader(ROWS.read_text().splitlines())})


def assumed(**fields: Any) -> dict[str, int]:
    p = ftmem.predict("meta-llama/Llama-3.2-1B", micro_batch=1, sequence=1024, **fields)
    return {note.field: note.value for note in p.notes if note.kind == "assumed"}


@pytest.mark.parametrize("stack", stacks())
def test_every_default_is_listed(stack: str) -> None:
    notes = assumed(method="qlora", autocast="bf16", recompute="full", stack=stack)
    rows = [row for row in csv.DictReader(ROWS.read_text().splitlines()) if row["stack"] == stack]
    for row in rows:
        if row["before"] or row["field"] == "job.recompute" or "no-autocast" in row["when"].split():
            continue
        assert row["field"] in notes, row


def test_what_is_given_stays() -> None:
    assert "job.kernels" in assumed(method="qlora", stack="unsloth")
    assert "job.kernels" not in assumed(method="qlora", stack="unsloth", kernels=["norm"])
    assert assumed(method="qlora", stack="unsloth")["adapter.rank"] == 16
    assert "job.recompute" not in assumed(method="qlora", stack="unsloth", recompute="off", offload_checkpoints=False)


def test_versions() -> None:
    old, new = (assumed(method="qlora", stack="unsloth", stack_version=v) for v in ("2024.5", "2024.11"))
    assert "job.loss" in new and new["job.loss"] != old["job.loss"]
    assert "adapter.ends_bf16" in assumed(method="qlora", stack="trl", stack_version="0.12", autocast="bf16")
    assert "adapter.ends_bf16" not in assumed(method="qlora", stack="trl", stack_version="1.16", autocast="bf16")


def test_offloaded_checkpoints_are_host_memory() -> None:
    """16 blocks, each with its input of 4 rows x 1024 tokens x 2048 features x 2 bytes; torch's own count of such a step is in golden/recompute.csv."""
    job = {"method": "lora", "micro_batch": 4, "sequence": 1024, "recompute": "reentrant"}
    kept, moved = (ftmem.predict("meta-llama/Llama-3.2-1B", offload_checkpoints=o, **job).memory for o in (False, True))
    assert (kept.host, kept.host_pinned) == (0, 0)
    assert (moved.host, moved.host_pinned) == (16 * 4 * 1024 * 2048 * 2, 0)


def test_offload_needs_checkpoints() -> None:
    with pytest.raises(ftmem.Conflict):
        assumed(method="lora", recompute="none", offload_checkpoints=True)
    kept = [ftmem.predict("meta-llama/Llama-3.2-1B", method="lora", micro_batch=4, sequence=1024, recompute="reentrant", offload_checkpoints=o).memory.kept
            for o in (False, True)]
    assert kept[0] - kept[1] == 15 * 4 * 1024 * 2048 * 2      # one bf16 stream for each of 16 blocks; the first one's is a leaf, which the graph holds


def test_fused_kernels_keep_what_their_sources_save() -> None:
    """Bytes a token that the middle block keeps, by hand from ctx.save_for_backward: h 2048, q 2048, k and v 512, f 8192, 32 heads."""
    h, kv, f, heads = 2048, 512, 8192, 32
    common: dict[str, Any] = dict(method="qlora", kbit_fp32=False, rank=8, micro_batch=1, sequence=1024, attention="flash2", targets=["all-linear"],
                                  adapter_dtype="bf16", dtype="bf16", kernels=["norm", "rope", "mlp", "lora"])
    p = ftmem.predict("meta-llama/Llama-3.2-1B", **common)
    norms = 2 * (h * 2 + 4)                                   # input and 1 / rms of each row
    attention = h * 2 + (h + 2 * kv) * 2 + h * 2 + heads * 4  # LoRA_QKV's X; q, k, v and the output; log-sum-exp; LoRA_W's X is that output
    mlp = h * 2 + 2 * f * 2                                   # LoRA_MLP: X, e, g
    assert abs(p.memory.kept_layer / 1024 - (norms + attention + mlp)) < 4


def test_litgpt_keeps_what_torch_counts() -> None:
    """litgpt 0.4's own LoRA GPT (Llama-2-7B, bf16-true, r 8 on q and v, dropout 0.05, 2 x 1304 tokens) under torch 2.13's fake tensors: 176834 bytes
    a token in a block, 25 of them an index of the zero padding that every call makes."""
    p = ftmem.predict("meta-llama/Llama-2-7b-hf", method="lora", micro_batch=2, sequence=1304, dropout=0.05, stack="litgpt", attention="sdpa")
    assert abs(p.memory.kept_layer / (2 * 1304) + 25 - 176834) < 8
