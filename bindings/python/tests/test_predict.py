"""Predictions, jobs and sweeps."""
from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ftmem
import pytest
from ftmem import _prediction
from ftmem._core import new


def test_a_prediction_adds_up(config: dict) -> None:
    p = ftmem.predict(config, method="lora", rank=8, batch_size=2, seq_len=256, gradient_checkpointing=True, gpu="rtx-4090")
    m = p.memory
    c = m.components
    assert sum(m.peak.composition.values()) == m.allocated.expected
    assert c.weights + c.gradients + c.states + c.activations + c.overhead == m.allocated.expected
    for tier in (m.allocated, m.reserved, m.process):
        assert 0 < tier.lower <= tier.expected <= tier.upper
        assert all(type(v) is int for v in (tier.lower, tier.expected, tier.upper))
    assert m.allocated.expected <= m.process.expected
    assert max(phase.allocated for phase in m.phases.values()) == m.allocated.expected
    assert m.peak.phase in m.phases
    assert m.peak.largest and m.peak.largest[0].bytes >= m.peak.largest[-1].bytes
    assert 0 < p.trainable < p.parameters
    assert p.counts.trainable == p.trainable and p.counts.total == p.parameters
    assert 0 < p.flops_forward < p.flops_backward


def test_nothing_is_made_until_it_is_read(config: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("make_memory", "make_range", "make_tensor", "make_peak", "note_text", "Fix", "Note", "Term"):
        original = getattr(_prediction, name)
        monkeypatch.setattr(_prediction, name, lambda *a, _n=name, _o=original: (made.append(_n), _o(*a))[1])
    p = ftmem.prepare(config, gpu="h100").predict()
    assert p.verdict and p.parameters and p.trainable and p.exit_code in (0, 10, 11)
    assert p.fits in (True, False, None)
    assert not made
    assert p.memory is p.memory and made.count("make_memory") == 1 and "Fix" not in made
    assert p.fixes is p.fixes and p.notes is p.notes and p.your_sum is p.your_sum


def test_replace_makes_another_job(config: dict) -> None:
    job = ftmem.prepare(config, method="lora", rank=4, batch_size=1, precision="amp_bf16")
    before = job.predict().memory
    larger = job.replace(micro_batch=4)
    assert larger.predict().memory.allocated.expected > before.allocated.expected
    assert job.predict().memory == before
    assert larger.replace(batch_size=None).predict().memory == before
    assert job.replace(method="full").resolved()["job.micro_batch"] == 1
    assert job.replace(method="full").predict().trainable == job.predict().parameters
    assert job.replace(precision="bf16").resolved()["job.autocast"] == "auto"
    assert job.replace(gpu="h100").replace(gpu=None).predict().verdict == "unknown"


def test_aliases_mean_the_same(config: dict) -> None:
    wanted = ftmem.prepare(config, micro_batch=2, sequence=128, recompute="full", optimizer="adamw_8bit", attention="eager").resolved()
    for keywords in (
        {"batch_size": 2, "seq_len": 128, "gradient_checkpointing": True, "optim": "adamw_bnb_8bit", "attn_implementation": "eager"},
        {"per_device_train_batch_size": "2", "max_length": 128.0, "activation_checkpointing": "on", "optim": "adamw_8bit", "attention": "EAGER"},
        {"job.micro_batch": 2, "job.sequence": "128", "job.recompute": True, "job.optimizer": "adamw_8bit", "job.attention": "eager"},
    ):
        assert ftmem.prepare(config, **keywords).resolved() == wanted


def test_friendly_values(config: dict) -> None:
    def field(path: str, **keywords: Any) -> Any:
        return ftmem.prepare(config, **keywords).resolved()[path]

    assert field("job.recompute", gradient_checkpointing="reentrant") == "reentrant"
    assert field("job.recompute", gradient_checkpointing=False) == "none"
    assert field("job.autocast", bf16=True) == "bf16"
    assert field("job.loss", use_liger_kernel=True) == "fused"
    assert field("job.eval", eval_batch_size=8) == "on"
    with pytest.raises(ftmem.Conflict):
        field("job.eval", eval_batch_size=8, eval=False)
    assert field("job.transformers_version", transformers_version="4.57.1") == 457
    assert field("job.used_by_others_bytes", used_by_others_bytes="1.5GiB") == 3 << 29
    assert field("job.freeze", freeze=["embed", "head"]) == ["embed", "head"]
    assert field("job.freeze", freeze_first_layers=2) == ["first_layers"]
    assert field("job.dtype", dtype="torch.float16") == "fp16"
    assert field("job.grad_clip", grad_clip=False) == "off"
    assert field("adapter.dtype", method="lora", lora_dtype="bf16") == "bf16"
    assert field("adapter.targets", method="lora", target_modules=["self_attn.q_proj", "v_proj"]) == ["q", "v"]
    assert field("adapter.targets", method="lora", targets="q,v") == ["q", "v"]
    assert field("adapter.modules_to_save", method="lora", modules_to_save=["lm_head", "embed_tokens"]) == ["embed", "head"]
    assert field("adapter.rank", method="lora", rank=4, lora_alpha=32) == 4


def test_every_field_is_a_keyword(config: dict) -> None:
    for f in ftmem.fields():
        assert f.doc and f.default and f.type in ("int", "real", "enum", "set", "text")
        assert bool(f.values) == (f.type in ("enum", "set"))
        ftmem.prepare(config, **{f.keyword: None, f.path: None})


def test_gpu_forms(config: dict) -> None:
    card = ftmem.gpu("4090")
    assert card in ftmem.gpus() and card.memory_bytes > 20 << 30
    by_name, by_hand = (ftmem.predict(config, gpu=g) for g in ("4090", card))
    assert by_name.memory == by_hand.memory and by_name.verdict == by_hand.verdict
    assert ftmem.predict(config).fits is None
    with pytest.raises(ftmem.WrongType):
        ftmem.gpu(4090)  # type: ignore[arg-type]


def test_a_gpu_by_memory_alone(config: dict) -> None:
    assert ftmem.prepare(config, gpu="24GB").resolved()["gpu.memory_bytes"] >= 23 << 30


def test_catalogs() -> None:
    assert "meta-llama/Llama-3.1-8B" in ftmem.models()
    assert ftmem.models("*/llama-3.1-8b") == ("meta-llama/Llama-3.1-8B",)
    assert ftmem.models("no such model") == ()
    for name in ftmem.models():
        assert ftmem.prepare(name).label


def test_estimate_is_a_float(config: dict) -> None:
    e = ftmem.estimate_memory(config, batch_size=4, seq_len=512)
    assert isinstance(e, float) and e == e.prediction.memory.process.expected / 2**30
    assert e > ftmem.estimate_memory(config)
    assert e + 1 > e and f"{e:.1f}" == f"{float(e):.1f}" and float(pickle.loads(pickle.dumps(e))) == e
    assert e.prediction.job.resolved()["job.micro_batch"] == 4
    assert ftmem.estimate_memory(config, precision="fp32") > ftmem.estimate_memory(config, precision="bf16")


def test_handbook() -> None:
    assert ftmem.handbook_bytes_per_parameter("bf16") == 2
    assert ftmem.handbook_full_bytes(7e9, "fp32") == 7e9 * 16
    assert ftmem.handbook_estimate_bytes(7e9, 4, 2048, "bf16") == 7e9 * 12 + 4 * 2048 * 4096 * 4
    with pytest.raises(ftmem.UnknownName):
        ftmem.handbook_bytes_per_parameter("bf17")


def test_sweep_of_dicts(config: dict) -> None:
    rows = [{"batch_size": 1}, {"batch_size": 4}, {"model": "gpt2", "micro_batch": 2}, ftmem.prepare(config, batch_size=4, seq_len=128)]
    sweep = ftmem.predict_many(rows, config, seq_len=128, gpu="h100")
    assert len(sweep) == 4 and len(sweep[1:3]) == 2
    single = ftmem.predict(config, batch_size=4, seq_len=128, gpu="h100")
    assert sweep[1].memory == single.memory
    assert list(sweep.upper)[1] == list(sweep.upper)[3] == single.memory.process.upper
    assert list(sweep.expected)[0] < list(sweep.expected)[1]
    assert [p.verdict for p in sweep] == list(sweep.verdict)
    assert "4 jobs" in repr(sweep) and len(ftmem.predict_many([])) == 0
    with pytest.raises(AttributeError):
        sweep.nonsense


def test_sweep_of_an_array(config: dict) -> None:
    numpy = pytest.importorskip("numpy")
    rows = numpy.array([(1, 128, "none"), (2, 256, "full")], dtype=[("batch_size", "i4"), ("seq_len", "i8"), ("recompute", "U8")])
    sweep = ftmem.predict_many(rows, config, method="lora")
    assert isinstance(sweep.expected, numpy.ndarray) and sweep.fits.dtype == bool
    assert sweep.expected[1] == ftmem.predict(config, method="lora", batch_size=2, seq_len=256, recompute="full").memory.process.expected


def test_sweep_names_the_bad_job(config: dict) -> None:
    with pytest.raises(ftmem.OutOfRange, match="^job 1: job.micro_batch"):
        ftmem.predict_many([{"batch_size": 1}, {"batch_size": -1}], config)
    for jobs in ("7B", {"batch_size": 1}, 3, [3]):
        with pytest.raises(ftmem.WrongType):
            ftmem.predict_many(jobs, config)


def test_results_travel(config: dict) -> None:
    p = ftmem.predict(config, method="lora", rank=4, gpu="h100")
    again = pickle.loads(pickle.dumps(p))
    assert again.memory == p.memory and again.notes == p.notes
    assert copy.deepcopy(p.memory) == p.memory == pickle.loads(pickle.dumps(p.memory))


def test_results_are_frozen(config: dict) -> None:
    p = ftmem.predict(config)
    for thing in (p.memory, p.memory.process, p.memory.peak):
        with pytest.raises(AttributeError):
            thing.expected = 1  # type: ignore[union-attr, misc]


def test_texts(config: dict) -> None:
    p = ftmem.predict(config, method="qlora", rank=16, batch_size=2, seq_len=256, gpu="rtx-4090")
    screen = str(p)
    for part in ("GiB expected, 95 % below", "QLoRA r16", "2 x 256", "peak: ", "weights", "gradients + states", "activations", "allocated",
                 "overhead", "process", "phases (", "ASSUMED"):
        assert part in screen
    assert "\x1b" not in screen and all(line == line.rstrip() for line in screen.splitlines())
    assert repr(p).startswith("<Prediction ") and "\n" not in repr(p)
    assert "GiB" in repr(p.memory.process) and "adapter.rank=16" in repr(p.job)


@pytest.mark.parametrize("verdict, word, code, fits", [(0, "NO VERDICT", 0, None), (1, "FITS", 0, True), (2, "MAY FIT", 11, False), (3, "DOES NOT FIT", 10, False)])
def test_verdicts(config: dict, verdict: int, word: str, code: int, fits: bool | None) -> None:
    p = ftmem.predict(config, gpu="h100")
    p._c.verdict = verdict
    assert (p.exit_code, p.fits) == (code, fits)
    assert str(p).startswith(word) and f"exit {code}" in str(p).splitlines()[0]
    assert p.to_dict()["exit_code"] == code


def test_threads(config: dict) -> None:
    job = ftmem.prepare(config, method="lora", rank=8)
    wanted = job.predict().memory
    with ThreadPoolExecutor(4) as pool:
        assert all(m == wanted for m in pool.map(lambda _: job.predict().memory, range(64)))


def test_struct_sizes_are_checked(config: dict) -> None:
    job = ftmem.prepare(config)
    job._job.struct_size = 0
    with pytest.raises(ftmem.BadStructSize):
        job.predict()
    assert new("ftmem_gpu").struct_size


def test_versions_and_names() -> None:
    assert ftmem.versions()["library"] == ftmem.__version__ == ftmem.versions()["header"]
    assert set(ftmem.__all__) <= set(dir(ftmem)) and all(getattr(ftmem, name) is not None for name in ftmem.__all__)
    with pytest.raises(AttributeError):
        ftmem.nonsense


def test_importing_is_light() -> None:
    code = "import sys, ftmem; ftmem.predict('7B'); print([m for m in ('numpy', 'rich', 'yaml', 'torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
