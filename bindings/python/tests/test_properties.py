"""Properties that hold for every job, on made-up small decoders of every family: what may grow, what must add up.

The kernel of attention is held fixed: it depends on dtype, mask, head width and GPU, and another kernel may well need less for
more. Sequences stay on one side of a sliding window for the same reason.
"""
from __future__ import annotations

from typing import Any

import ftmem
from hypothesis import assume, given, settings
from hypothesis import strategies as st

Keywords = dict  # of predict()
FIELDS = {f.path: f for f in ftmem.fields()}
# Decoders that a few dimensions describe: no experts, latents, encoders or several stacks.
FAMILIES = FIELDS["model.family"].values[1 : FIELDS["model.family"].values.index("mixtral")]
FULL_ONLY = ("galore_adafactor", "galore_adamw", "galore_adamw_layerwise", "apollo_adamw", "apollo_adamw_layerwise", "lomo", "adalomo")
OPTIMIZERS = tuple(o for o in FIELDS["job.optimizer"].values[1:] if o not in FULL_ONLY)
# States of a tensor are 8-bit from 4096 elements on, and leave torch's count from 100,000 on: more can be less.
EVEN_OPTIMIZERS = tuple(o for o in OPTIMIZERS if not any(w in o for w in ("8bit", "4bit", "fp8", "paged", "offload")))
LOSSES = [x for x in FIELDS["job.loss"].values[1:] if x != "tiles"]  # not of heads with a bias
METHODS = ("full", "lora", "qlora", "lora8")
TIERS = ("allocated", "reserved", "process")
check = settings(deadline=None)


# ---------------------------------------------------------------------------------------------------------------- jobs


@st.composite
def dimensions(draw: st.DrawFn) -> Keywords:
    """A small decoder of any family."""
    heads = draw(st.sampled_from((1, 2, 4, 8)))
    return {
        "family": draw(st.sampled_from(FAMILIES)), "heads": heads, "hidden": heads * 16 * draw(st.integers(1, 4)),
        "kv_heads": draw(st.sampled_from([k for k in (1, 2, 4, 8) if heads % k == 0])), "ffn": draw(st.integers(8, 1024)),
        "vocab": draw(st.integers(16, 8192)), "layers": draw(st.integers(1, 6)), "max_positions": 8192, "position_rows": 8192,
        "tied": draw(st.sampled_from(("auto", "on", "off"))), "hidden_dropout": draw(st.sampled_from((0.0, 0.1))),
        "attention_dropout": draw(st.sampled_from((0.0, 0.1))),
    }


@st.composite
def windowed(draw: st.DrawFn) -> Keywords:
    """A model with sliding-window layers; every sequence is shorter than its window, or none is."""
    config = {
        "model_type": draw(st.sampled_from(("gemma2", "gemma3_text", "olmo3", "cohere2"))), "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
        "num_hidden_layers": draw(st.integers(1, 7)), "sliding_window": draw(st.sampled_from((1, 100_000))),
    }
    return {"model": config}


@st.composite
def training(draw: st.DrawFn, methods: tuple[str, ...]) -> Keywords:
    """How the model is trained: everything but its dimensions."""
    precision = draw(st.sampled_from(("bf16", "fp16", "fp32", "amp_bf16", "amp_fp16")))
    attention = ("eager", "sdpa", "sdpa_math") if precision == "fp32" else ("eager", "sdpa", "sdpa_math", "flash2")
    job: Keywords = {
        "method": draw(st.sampled_from(methods)), "precision": precision, "attention": draw(st.sampled_from(attention)),
        "sm_arch": draw(st.sampled_from((75, 80))), "batch_size": draw(st.integers(1, 4)), "seq_len": draw(st.integers(1, 2048)),
        "loss": draw(st.sampled_from(LOSSES)), "optimizer": draw(st.sampled_from(OPTIMIZERS)),
        "recompute": draw(st.sampled_from(("none", "full", "reentrant"))), "accumulation": draw(st.integers(1, 3)),
        "mask": draw(st.sampled_from(("none", "padded"))), "eval": draw(st.booleans()), "repeat_kv": draw(st.booleans()),
        "grad_clip": draw(st.booleans()),
    }
    if job["method"] != "full":
        job.update(rank=draw(st.integers(1, 64)), target_modules="all-linear", lora_dropout=draw(st.sampled_from((0.0, 0.05))))
    return job


def jobs(*methods: str) -> st.SearchStrategy[Keywords]:
    how = training(methods or METHODS)
    return st.builds(merged, dimensions() | windowed(), how)


def merged(model: Keywords, job: Keywords) -> Keywords:
    return {**model, **job}


def ask(keywords: Keywords, **changed: Any) -> ftmem.Prediction:
    return ftmem.predict(**{**keywords, **changed})


def grows(job: Keywords, **changed: Any) -> None:
    """The change does not lower the allocated peak."""
    before, after = ask(job), ask(job, **changed)
    assume(before.memory.peak.kernel == after.memory.peak.kernel)
    assert before.memory.allocated.expected <= after.memory.allocated.expected


# ------------------------------------------------------------------------------------------------------------ monotone


@check
@given(jobs(), st.integers(1, 4))
def test_more_rows_need_no_less(job: Keywords, more: int) -> None:
    grows(job, batch_size=job["batch_size"] + more)


@check
@given(jobs(), st.integers(1, 2048))
def test_longer_rows_need_no_less(job: Keywords, more: int) -> None:
    grows(job, seq_len=job["seq_len"] + more)


@check
@given(st.builds(merged, dimensions(), training(METHODS)), st.integers(1, 4))
def test_more_blocks_need_no_less(job: Keywords, more: int) -> None:
    grows(job, layers=job["layers"] + more)


@check
@given(jobs("lora", "qlora", "lora8"), st.sampled_from(EVEN_OPTIMIZERS), st.integers(1, 64))
def test_a_higher_rank_needs_no_less(job: Keywords, optimizer: str, more: int) -> None:
    grows({**job, "optimizer": optimizer}, rank=job["rank"] + more)


@check
@given(jobs(), st.integers(1, 5))
def test_accumulation_needs_no_less(job: Keywords, more: int) -> None:
    grows({**job, "accumulation": 1}, accumulation=1 + more)


@check
@given(jobs("full"), st.sampled_from(FULL_ONLY))
def test_optimizers_of_full_training(job: Keywords, optimizer: str) -> None:
    assert ask({**job, "optimizer": optimizer, "accumulation": 1}).memory.allocated.expected > 0


@check
@given(jobs("full"), st.sampled_from(("adamw", "adamw_fused", "sgd", "adamw_8bit")))
def test_gradients_that_go_need_no_more(job: Keywords, optimizer: str) -> None:
    """A fused update takes nothing, one in backward no more than all at once; states of the first step come a little earlier."""
    job = {**job, "optimizer": optimizer, "accumulation": 1}
    assert ask(job, optimizer_in_backward=True).memory.allocated.expected <= ask(job).memory.allocated.expected


# ------------------------------------------------------------------------------------------------------ less is trained


@check
@given(jobs("full"), st.sampled_from(("lora", "qlora", "lora8")), st.integers(1, 8))
def test_adapters_keep_fewer_states(job: Keywords, method: str, rank: int) -> None:
    """Where the rank is small beside the widths. Rank r over a 16-bit square of side 4 r is as large as the square: its matrices are fp32."""
    assume("model" not in job)
    wide = {**job, "hidden": 256, "ffn": 256 + job["ffn"], "optimizer": "adamw"}
    adapted = ask(wide, method=method, rank=rank, target_modules="all-linear")
    assert adapted.memory.components.states <= ask(wide).memory.components.states


@check
@given(jobs())
def test_recompute_keeps_no_more(job: Keywords) -> None:
    """Where every block is trained or adapted. Blocks below the first trained one keep nothing until they are checkpointed.

    MPT's table of distances, an argument of every block, is as long as the longest sequence; a checkpoint holds it.
    """
    job = {**job, "max_positions": job["seq_len"]} if job.get("family") == "mpt" else job
    assert ask(job, recompute="full").memory.kept <= ask(job, recompute="none").memory.kept


FREEZE = {"embed": st.booleans(), "head": st.booleans(), "first": st.integers(0, 3), "last": st.integers(0, 3)}


@check
@given(jobs("full"), st.fixed_dictionaries(FREEZE), st.fixed_dictionaries(FREEZE))
def test_freezing_more_adds_no_gradients(job: Keywords, some: Keywords, others: Keywords) -> None:
    """With accumulation, so that the peak has all gradients whichever its moment is."""
    more = {k: max(some[k], others[k]) for k in some}
    assume("model" not in job)
    fixed = {**job, "layers": 6, "accumulation": 2}
    gradients = [ask(fixed, **frozen(f)).memory.components.gradients for f in (some, more)]
    assert gradients[0] >= gradients[1]


def frozen(parts: Keywords) -> Keywords:
    """Keywords that freeze these parts."""
    named = [p for p in ("embed", "head") if parts[p]]
    found: Keywords = {f"freeze_{p}_layers": parts[p] for p in ("first", "last") if parts[p]}
    return {**found, "freeze": named} if named else found


# ------------------------------------------------------------------------------------------------------------- adds up


@check
@given(jobs())
def test_parts_sum_to_the_peak(job: Keywords) -> None:
    m = ask(job).memory
    c = m.components
    assert sum(m.peak.composition.values()) == m.allocated.expected
    assert c.weights + c.gradients + c.states + c.activations + c.overhead == m.allocated.expected
    assert max(p.allocated for p in m.phases.values()) == m.phases[m.peak.phase].allocated == m.allocated.expected


@check
@given(jobs())
def test_the_largest_tensors_belong_to_the_peak(job: Keywords) -> None:
    peak = ask(job).memory.peak
    for kind in {t.kind for t in peak.largest}:
        assert sum(t.bytes for t in peak.largest if t.kind == kind) <= peak.composition[kind]


CARDS = st.sampled_from(({}, {"gpu": "rtx-4090", "sm_arch": None}, {"gpu": "t4", "sm_arch": None}, {"gpu": "24GB", "sm_arch": None}))
SMALL_CARDS = st.builds(lambda size: {"memory_bytes": size}, st.integers(1 << 28, 1 << 31))  # that a small job fills


@check
@given(jobs(), CARDS | SMALL_CARDS)
def test_tiers_and_bounds_are_ordered(job: Keywords, card: Keywords) -> None:
    m = ask(job, **card).memory
    for tier in TIERS:
        r = getattr(m, tier)
        assert 0 < r.lower <= r.expected <= r.upper
    for bound in ("lower", "expected", "upper"):
        assert getattr(m.allocated, bound) <= getattr(m.reserved, bound) <= getattr(m.process, bound)


@check
@given(jobs(), SMALL_CARDS, st.integers(0, 1 << 27))
def test_the_verdict_is_the_bound(job: Keywords, card: Keywords, others: int) -> None:
    p = ask(job, **card, used_by_others_bytes=others)
    m = p.memory
    assert m.usable <= card["memory_bytes"] - others
    assert p.fits is (m.process.upper <= m.usable)
    assert (p.verdict == "does_not_fit") is (m.process.expected > m.usable)


@check
@given(jobs())
def test_only_adapters_are_trained_by_adapters(job: Keywords) -> None:
    p = ask(job)
    assert 0 < p.trainable <= p.counts.total + p.counts.adapters
    assert p.trainable == (p.parameters if job["method"] == "full" else p.counts.adapters)


# ----------------------------------------------------------------------------------------------------------- the same


@check
@given(jobs())
def test_asked_twice_answers_the_same(job: Keywords) -> None:
    first = ask(job, gpu="rtx-4090", sm_arch=None).to_dict()
    assert first == ask(job, gpu="rtx-4090", sm_arch=None).to_dict()
    assert first == ftmem.prepare(**{**job, "gpu": "rtx-4090", "sm_arch": None}).replace().predict().to_dict()


@check
@given(st.lists(jobs(), max_size=5))
def test_a_sweep_is_its_jobs(sweep: list[Keywords]) -> None:
    many = ftmem.predict_many(sweep)
    each = [ask(job) for job in sweep]
    assert len(many) == len(sweep)
    assert [int(x) for x in many.allocated] == [p.memory.allocated.expected for p in each]
    assert [int(x) for x in many.upper] == [p.memory.process.upper for p in each]
    assert [int(x) for x in many.trainable] == [p.trainable for p in each]
    assert list(many.verdict) == [p.verdict for p in each]
    assert [p.to_dict() for p in many] == [p.to_dict() for p in each]
