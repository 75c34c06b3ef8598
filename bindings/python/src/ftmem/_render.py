"""How a prediction looks: the screen as lines of styled spans, and the JSON document."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

from ftmem._core import GIB, HEADER_VERSION, lib, names, text
from ftmem._types import Note, Range, Tensor

if TYPE_CHECKING:
    from ftmem._job import Job
    from ftmem._prediction import Prediction

Span = tuple[str, str]  # text, style of rich or ""
Line = list[Span]
BAR, LABEL, NUMBER, DETAIL = 20, 20, 8, 56  # widths
VERDICT_LOOK = {
    "fits": ("FITS", "bold green"), "may_fit": ("MAY FIT", "bold yellow"), "does_not_fit": ("DOES NOT FIT", "bold red"),
    "unknown": ("NO VERDICT", "bold"),
}
LATER = ("eval_higher", "later_step")
METHOD_NAMES = {"none": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA", "lora8": "LoRA over 8-bit"}
WEIGHTS = ("weights", "quantized", "adapters", "buffers")
STATES = ("gradients", "master", "states")


class Unit:
    """GiB with as many decimals as the size of the whole deserves."""

    def __init__(self, whole: int) -> None:
        self.decimals = 1 if whole >= 10 * GIB else 2 if whole >= GIB // 10 else 4

    def __call__(self, size: float) -> str:
        return f"{size / GIB:.{self.decimals}f}"


# --------------------------------------------------------------------------------------------------------- job line


def job_line(job: Job) -> str:
    """Llama-3.1-8B · QLoRA r16 · 2 x 4096 · recompute · rtx-4090."""
    r = job.resolved()
    return " · ".join(filter(None, (job.label, method(r, job), batch(r), precision(r), switches(r), str(r.get("gpu.name") or ""))))


def method(r: dict[str, Any], job: Job) -> str:
    kind = r.get("adapter.kind", "none")
    name = METHOD_NAMES.get(kind, kind)
    if kind == "none":
        frozen = r.get("job.freeze")
        return f"{name}, frozen: {' '.join(frozen)}" if frozen else name
    return f"{name} r{r.get('adapter.rank')} {targets(r.get('adapter.targets') or (), job)}".rstrip()


def targets(chosen: Iterable[str], job: Job) -> str:
    """"all-linear", or module names joined with "+"."""
    modules = {role: text(lib.ftmem_role_module(job._model, i)) for i, role in enumerate(names("role"))}
    linear = {role for i, role in enumerate(names("role")) if modules[role] and lib.FTMEM_ROLES_ALL_LINEAR >> i & 1}
    return "all-linear" if set(chosen) == linear else "+".join(modules[role] or role for role in chosen)


def batch(r: dict[str, Any]) -> str:
    steps = r.get("job.accumulation") or 1
    return f"{r.get('job.micro_batch')} x {r.get('job.sequence')}" + (f" x {steps} accumulated" if steps > 1 else "")


def precision(r: dict[str, Any]) -> str:
    autocast = r.get("job.autocast")
    return f"{r.get('job.dtype')}" + (f", {autocast} autocast" if autocast and autocast not in ("auto", "none") else "")


def switches(r: dict[str, Any]) -> str:
    recompute = {"full": "recompute", "reentrant": "recompute (reentrant)"}.get(r.get("job.recompute", ""), "")
    return " · ".join(filter(None, (recompute, str(r.get("job.optimizer") or ""))))


# ------------------------------------------------------------------------------------------------------------ lines


def lines(p: Prediction, code: int | None = None) -> list[Line]:
    """The whole screen. Parts that the library cannot answer are left out."""
    code = p.exit_code if code is None else code
    show = Unit(p.memory.process.expected)
    return [
        *head(p, show, code), blank(), *rows(p, show), *phases(p, show), *later(p), *your_sum(p, show), blank(), *changes(p, show), *assumed(p),
    ]


def blank() -> Line:
    return [("", "")]


def head(p: Prediction, show: Unit, code: int) -> Iterable[Line]:
    word, style = VERDICT_LOOK[p.verdict]
    word = word if p.job.resolved().get("gpu.memory_bytes") else "NO GPU GIVEN"
    m = p.memory
    usable = f", usable {show(m.usable)}" if m.usable else ""
    figures = f"   {show(m.process.expected)} GiB expected, 95 % below {show(m.process.upper)}{usable}"
    yield [(word, style), (figures, ""), (f"exit {code}".rjust(max(8, 88 - len(word) - len(figures))), "dim")]
    yield [(job_line(p.job), "")]
    yield [(f"peak: {moment(p)} (GiB)", "")]


def moment(p: Prediction) -> str:
    """backward, softmax of attention, block 0, step 2."""
    peak = p.memory.peak
    phase, step = (peak.phase[:-1], ", step 2") if peak.phase.endswith("2") else (peak.phase, "")
    op = peak.op[: -len(" backward")] if phase == "backward" and peak.op.endswith(" backward") else peak.op
    place = " of ".join(filter(None, (op, peak.part)))
    layer = f", block {peak.layer}" if peak.layer >= 0 else ""
    return f"{phase}{', ' if place else ''}{place}{layer}{step}"


def row(label: str, number: str, detail: str = "", share: float | None = None, style: str = "") -> Line:
    bar = "" if share is None else "#" * round(BAR * min(max(share, 0.0), 1.0))
    words = f"{label:<{LABEL}}{number:>{NUMBER}}   {detail}"
    return [(f"{words:<{LABEL + NUMBER + DETAIL + 3}}  ", style), (bar, "cyan")]


def rows(p: Prediction, show: Unit) -> Iterable[Line]:
    m, whole = p.memory, max(p.memory.process.expected, 1)
    c = m.components
    yield row("weights", show(c.weights), classes(p, WEIGHTS, show), c.weights / whole)
    yield row("gradients + states", show(c.gradients + c.states), trained(p, show), (c.gradients + c.states) / whole)
    yield row("activations", show(c.activations), largest(p, show), c.activations / whole)
    if c.overhead:
        yield row("workspace", show(c.overhead), "buffers, and inside kernels", c.overhead / whole)
    yield row("allocated", show(m.allocated.expected), "<- torch max_memory_allocated", style="bold")
    allocator = m.reserved.expected - m.allocated.expected
    others = p.job._job.used_by_others_bytes
    detail = f"allocator {show(allocator)}, CUDA {show(m.context)}" + (f"; used by others {show(others)}" if others else "")
    yield row("overhead", show(m.process.expected - m.allocated.expected), detail, (whole - m.allocated.expected) / whole)
    yield row("process", show(m.process.expected), "<- nvidia-smi", style="bold")


def classes(p: Prediction, wanted: Iterable[str], show: Unit) -> str:
    found = p.memory.peak.composition
    parts = [f"{name} {show(found[name])}" for name in wanted if found.get(name, 0) * 200 > p.memory.process.expected]
    return ", ".join(parts) if len(parts) > 1 or parts and not parts[0].startswith("weights") else ""


def trained(p: Prediction, show: Unit) -> str:
    parts = classes(p, STATES, show)
    return f"{count(p.trainable)} trainable" + (f"; {parts}" if "," in parts else "")


def count(number: int) -> str:
    for scale, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= scale:
            return f"{number / scale:.4g} {letter}"
    return str(number)


def largest(p: Prediction, show: Unit) -> str:
    """The largest activations, as many as there is room for."""
    shown = ""
    for t in p.memory.peak.largest:
        if t.kind in ("kept", "recomputed", "logits", "temporary"):
            longer = f"{shown}; {tensor(t, show)}" if shown else tensor(t, show)
            if shown and len(longer) > DETAIL:
                break
            shown = longer
    return shown


def tensor(t: Tensor, show: Unit) -> str:
    dims = " x ".join(str(d) for d in t.dims)
    times = f"{t.count} x " if t.count > 1 else ""
    return f"{times}{t.part if t.part == 'head' or not t.op else t.op} {dims} {t.dtype} = {show(t.bytes)}"


def phases(p: Prediction, show: Unit) -> Iterable[Line]:
    found = p.memory.phases.values()
    tier = "process" if any(phase.process for phase in found) else "allocated"
    shown = "  ".join(f"{phase.name} {show(getattr(phase, tier))}" for phase in found if getattr(phase, tier))
    yield [(f"{f'phases ({tier})':<{LABEL}}", ""), (shown, "")]


def later(p: Prediction) -> Iterable[Line]:
    for note in p.notes:
        if note.kind in LATER:
            yield [(f"{'later':<{LABEL}}", "yellow"), (note.text, "")]


def your_sum(p: Prediction, show: Unit) -> Iterable[Line]:
    try:
        terms = p.your_sum
    except Exception as error:
        if not quiet(error):
            raise
        return
    if terms:
        rate, total = sum(t.bytes_per_parameter for t in terms), sum(t.rule for t in terms)
        missed = sorted((t for t in terms if not t.rule and t.ours), key=lambda t: -t.ours)
        misses = ", ".join(f"{t.name} {show(t.ours)}" for t in missed)
        yield [(f"{'your sum':<{LABEL}}", ""), (f"{rate:.4g} B/parameter {show(total)}" + (f": misses {misses}" if misses else ""), "")]


def quiet(error: Exception) -> bool:
    """Extra lines that the library cannot give for this job are left out."""
    from ftmem._errors import Unsupported

    return isinstance(error, Unsupported)


def changes(p: Prediction, show: Unit) -> Iterable[Line]:
    try:
        fixes = p.fixes
    except Exception as error:
        if not quiet(error):
            raise
        return
    if not fixes or p.verdict == "fits":
        return
    yield [(f"{'CHANGE':<52}95 % below", "bold")]
    for number, fix in enumerate(fixes, 1):
        word = {"fits": "fits", "may_fit": "may fit"}.get(fix.verdict, "")
        yield [(f"{number} {fix.text:<50}{show(fix.process.upper):>10}   ", ""), (word, "green" if word == "fits" else "yellow")]
    yield blank()


def assumed(p: Prediction) -> Iterable[Line]:
    """What was assumed, close together; then the other notes, one a line."""
    taken = [brief(n) for n in p.notes if n.kind == "assumed"]
    yield from titled("ASSUMED", wrap(taken, 80))
    yield from titled("NOTE", [n.text for n in p.notes if n.kind != "assumed" and n.kind not in LATER])


def titled(title: str, texts: Iterable[str]) -> Iterable[Line]:
    for words in texts:
        yield [(f"{title:<9}", "bold"), (words, "")]
        title = ""


def brief(note: Note) -> str:
    """"job.dtype was not given: bf16 assumed" -> "dtype bf16"; a sentence of another form stays."""
    start, end = f"{note.field} was not given: ", " assumed"
    if note.field and note.text.startswith(start) and note.text.endswith(end):
        return f"{note.field.split('.', 1)[-1]} {note.text[len(start) : -len(end)]}"
    return note.text


def wrap(items: Iterable[str], width: int) -> Iterable[str]:
    line = ""
    for item in items:
        longer = f"{line} · {item}" if line else item
        if line and len(longer) > width:
            yield line
            longer = item
        line = longer
    if line:
        yield line


def plain(p: Prediction) -> str:
    """The screen without colours."""
    return join(lines(p))


def join(screen: Iterable[Line]) -> str:
    texts = ["".join(words for words, _ in line).rstrip() for line in screen]
    while texts and not texts[-1]:
        texts.pop()
    return "\n".join(texts)


# --------------------------------------------------------------------------------------------------------- documents


def span(r: Range) -> dict[str, int]:
    return {"lower": r.lower, "expected": r.expected, "upper": r.upper}


def record(thing: Any) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in thing.__slots__}


def document(p: Prediction) -> dict[str, Any]:
    """Schema ftmem.prediction/1: every size an integer, in bytes. Members are only ever added to it."""
    m = p.memory
    peak = record(m.peak)
    peak["composition"] = dict(m.peak.composition)
    peak["largest"] = [{**record(t), "dims": list(t.dims)} for t in m.peak.largest]
    return {
        "schema": "ftmem.prediction/1",
        "version": HEADER_VERSION,
        "verdict": p.verdict,
        "fits": p.fits,
        "exit_code": p.exit_code,
        "model": p.job.label,
        "job": p.job.resolved(),
        "memory": {
            "allocated": span(m.allocated), "reserved": span(m.reserved), "process": span(m.process), "usable": m.usable,
            "components": record(m.components), "phases": {n: {"allocated": f.allocated, "process": f.process} for n, f in m.phases.items()},
            "peak": peak, "resident": m.resident, "kept": m.kept, "kept_layer": m.kept_layer, "context": m.context,
            "bound_rows": m.bound_rows, "host": m.host, "host_pinned": m.host_pinned,
        },
        "parameters": p.parameters,
        "trainable": p.trainable,
        "flops": {"forward": p.flops_forward, "backward": p.flops_backward},
        "fixes": optional(lambda: [{**record(f), "process": span(f.process), "fits": f.fits} for f in p.fixes]),
        "your_sum": optional(lambda: [record(t) for t in p.your_sum]),
        "notes": [record(n) for n in p.notes],
    }


def optional(make: Any) -> Any:
    try:
        return make()
    except Exception as error:
        if quiet(error):
            return None
        raise
