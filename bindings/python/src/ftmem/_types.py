"""What answers are made of: frozen, slotted dataclasses. Sizes are bytes."""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping

GIB = 1 << 30


def gib(size: float) -> str:
    """12.34 GiB."""
    return f"{size / GIB:.2f} GiB"


class _Record:
    """Pickling for frozen classes with __slots__, which Python before 3.11 lacks."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Range(_Record):
    """An interval in bytes; 95 % of measured runs fall under `upper`."""

    __slots__ = ("lower", "expected", "upper")
    lower: int
    expected: int
    upper: int

    def __repr__(self) -> str:
        return f"Range(lower={gib(self.lower)}, expected={gib(self.expected)}, upper={gib(self.upper)})"


@dataclass(frozen=True)
class Tensor(_Record):
    """One kind of tensor that is alive at the peak, `count` of them with `bytes` together."""

    __slots__ = ("bytes", "count", "dims", "kind", "dtype", "op", "part")
    bytes: int
    count: int
    dims: tuple[int, ...]
    kind: str  # class of memory: "logits", "kept", ...
    dtype: str
    op: str  # operation that made it
    part: str  # part of the model

    def __str__(self) -> str:
        dims = " x ".join(str(d) for d in self.dims)
        times = f" x {self.count}" if self.count > 1 else ""
        return f"{' '.join(filter(None, (self.part, self.op)))} {dims} {self.dtype}{times}: {gib(self.bytes)}"


@dataclass(frozen=True)
class Peak(_Record):
    """The moment that needs most. `composition` maps classes of memory to bytes and sums to the allocated peak."""

    __slots__ = ("phase", "op", "part", "layer", "kernel", "composition", "largest")
    phase: str
    op: str  # operation whose execution is the peak
    part: str  # "attention", "mlp", "head", ...
    layer: int  # block, from 0; -1: outside the blocks
    kernel: str  # that attention takes
    composition: Mapping[str, int]
    largest: tuple[Tensor, ...]


@dataclass(frozen=True)
class Phase(_Record):
    """Expected peak of one phase."""

    __slots__ = ("name", "allocated", "process")
    name: str
    allocated: int
    process: int


@dataclass(frozen=True)
class Components(_Record):
    """The terms that people add up, at the peak; they sum to allocated.expected."""

    __slots__ = ("weights", "gradients", "states", "activations", "overhead")
    weights: int
    gradients: int
    states: int
    activations: int
    overhead: int


@dataclass(frozen=True)
class Memory(_Record):
    """Memory of one GPU: allocated (live tensors), reserved (the caching allocator), process (what the card loses)."""

    __slots__ = (
        "allocated", "reserved", "process", "usable", "phases", "components", "peak", "resident", "kept", "kept_layer",
        "context", "bound_rows", "host", "host_pinned",
    )
    allocated: Range
    reserved: Range
    process: Range
    usable: int  # what the device offers this process; 0: no device given
    phases: Mapping[str, Phase]
    components: Components
    peak: Peak
    resident: int  # before the first step
    kept: int  # by autograd at the end of the first forward pass
    kept_layer: int  # of those, born in the middle block
    context: int  # CUDA context and libraries, inside process
    bound_rows: int  # measured runs behind the interval
    host: int  # CPU memory of what is offloaded
    host_pinned: int  # of those, page-locked


@dataclass(frozen=True)
class Fix(_Record):
    """One single change to the job, and the process tier after it."""

    __slots__ = ("name", "text", "verdict", "process", "value")
    name: str
    text: str
    verdict: str
    process: Range
    value: int  # new micro-batch, sequence, ... where one applies; else 0

    @property
    def fits(self) -> bool | None:
        return None if self.verdict == "unknown" else self.verdict == "fits"


@dataclass(frozen=True)
class Note(_Record):
    """Something that was assumed or is worth knowing; `text` is the sentence."""

    __slots__ = ("kind", "field", "value", "text")
    kind: str  # "assumed", "kernel", "eval_higher", ...
    field: str
    value: int
    text: str


@dataclass(frozen=True)
class Term(_Record):
    """One term of the sum that people do in their heads, beside what is alive at the peak."""

    __slots__ = ("name", "bytes_per_parameter", "rule", "ours")
    name: str
    bytes_per_parameter: float
    rule: int
    ours: int


@dataclass(frozen=True)
class Gpu(_Record):
    """A GPU, from the catalog or described by hand; predict(gpu=...) takes it."""

    __slots__ = ("name", "memory_bytes", "torch_bytes", "sm_arch", "sm_count", "vendor")
    name: str
    memory_bytes: int  # what nvidia-smi calls total
    torch_bytes: int  # torch's total_memory; 0: a calibrated difference is taken off
    sm_arch: int  # compute capability x 10
    sm_count: int
    vendor: int  # 0 NVIDIA, 1 AMD, 2 Intel, 3 Apple


@dataclass(frozen=True)
class Parameters(_Record):
    """Parameter counts, shared matrices once."""

    __slots__ = ("total", "trainable", "embedding", "head", "block", "adapters", "active")
    total: int
    trainable: int
    embedding: int
    head: int
    block: int
    adapters: int
    active: int  # of the base model, those that one token passes


@dataclass(frozen=True)
class Field(_Record):
    """One input: `keyword` for predict(), `path` for errors and --set."""

    __slots__ = ("path", "keyword", "type", "unit", "values", "minimum", "maximum", "default", "doc")
    path: str
    keyword: str
    type: str  # "int", "real", "enum", "set" or "text"
    unit: str
    values: tuple[str, ...]  # of an enum
    minimum: float
    maximum: float
    default: str
    doc: str
