"""The answer: a lazy view over the C result. Dataclasses are made when they are looked at, and then kept."""
from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, overload

from ftmem._core import CData, GIB, MEMORY_SIZE, NULL, call, failure, ffi, lib, name_of, names, new, text
from ftmem._errors import FtmemError, WrongType
from ftmem._job import Job, canonical, prepare
from ftmem import _model
from ftmem._types import Components, Fix, Memory, Note, Parameters, Peak, Phase, Range, Tensor, Term

VERDICTS = ("unknown", "fits", "may_fit", "does_not_fit")
EXIT_CODES = {"unknown": 0, "fits": 0, "may_fit": 11, "does_not_fit": 10}


def verdict_name(code: int) -> str:
    return VERDICTS[code] if 0 <= code < len(VERDICTS) else str(code)


@lru_cache(maxsize=None)
def constants(prefix: str) -> dict[int, str]:
    """number -> lower-case name, of enums without a name table."""
    found = {getattr(lib, n): n[len(prefix):].lower() for n in dir(lib) if n.startswith(prefix) and not n.endswith(("_END", "_CAPACITY"))}
    return dict(sorted(found.items()))


def make_range(c: CData) -> Range:
    return Range(c.lower, c.expected, c.upper)


def make_tensor(c: CData) -> Tensor:
    dims = tuple(d for d in c.dims if d)
    return Tensor(c.bytes, c.count, dims, name_of("class", c.tensor_class), name_of("dtype", c.dtype), text(c.op), text(c.part))


def make_peak(c: CData) -> Peak:
    composition = {name: c.at_peak[i] for i, name in enumerate(names("class")) if c.at_peak[i]}
    largest = tuple(make_tensor(c.largest[i]) for i in range(c.largest_count))
    return Peak(name_of("phase", c.peak_phase), text(c.peak_op), text(c.peak_part), c.peak_layer, name_of("kernel", c.kernel), composition, largest)


def make_memory(c: CData) -> Memory:
    phases = {
        name: Phase(name, c.phase_allocated[i], c.phase_process[i])
        for i, name in enumerate(names("phase"))
        if c.phase_allocated[i] or c.phase_process[i]
    }
    components = Components(c.weights_bytes, c.gradients_bytes, c.states_bytes, c.activations_bytes, c.overhead_bytes)
    return Memory(
        make_range(c.allocated), make_range(c.reserved), make_range(c.process), c.usable_bytes, phases, components, make_peak(c),
        c.resident_bytes, c.kept_bytes, c.kept_layer_bytes, c.context_bytes, c.bound_rows, c.host_bytes, c.host_pinned_bytes,
    )


def note_text(note: CData) -> str:
    """The sentence of a note, however long."""
    needed = ffi.new("size_t *")
    lib.ftmem_note_text(note, NULL, 0, needed)
    buffer = ffi.new("char[]", max(int(needed[0]), 1))
    lib.ftmem_note_text(note, buffer, len(buffer), needed)
    return text(buffer)


class Prediction:
    """What one GPU will need. `memory`, `fixes`, `notes` and `your_sum` are worked out when they are first read."""

    __slots__ = ("job", "_c", "_memory", "_fixes", "_notes", "_sum", "__weakref__")

    def __init__(self, job: Job, c: CData) -> None:
        self.job = job
        self._c = c
        self._memory: Memory | None = None
        self._fixes: tuple[Fix, ...] | None = None
        self._notes: tuple[Note, ...] | None = None
        self._sum: tuple[Term, ...] | None = None

    @property
    def verdict(self) -> str:
        """"fits", "may_fit" (in a part of the interval), "does_not_fit"; "unknown" without a GPU."""
        return verdict_name(self._c.verdict)

    @property
    def fits(self) -> bool | None:
        """Whether the 95 % bound fits; None without a GPU."""
        verdict = self._c.verdict
        return None if verdict == lib.FTMEM_VERDICT_UNKNOWN else bool(verdict == lib.FTMEM_FITS)

    @property
    def exit_code(self) -> int:
        """Of the command line: 0 fits or no GPU given, 10 does not fit, 11 fits in a part of the interval."""
        return EXIT_CODES[self.verdict]

    @property
    def memory(self) -> Memory:
        if self._memory is None:
            self._memory = make_memory(self._c)
        return self._memory

    @property
    def parameters(self) -> int:
        """Parameters of the base model, shared matrices once."""
        return int(self._c.parameters)

    @property
    def trainable(self) -> int:
        """Parameters that are trained, adapters included."""
        return int(self._c.trainable)

    @property
    def flops_forward(self) -> float:
        """Of one micro-batch."""
        return float(self._c.flops_forward)

    @property
    def flops_backward(self) -> float:
        """Of one micro-batch, recomputation included."""
        return float(self._c.flops_backward)

    @property
    def counts(self) -> Parameters:
        """Parameter counts, part by part."""
        out = new("ftmem_parameters")
        call(lib.ftmem_count_parameters, self.job._job, out)
        return Parameters(out.total, out.trainable, out.embedding, out.head, out.block, out.adapters, out.active)

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """Single changes that lower the peak, those that make the job fit first."""
        if self._fixes is None:
            self._fixes = self._make_fixes()
        return self._fixes

    def _make_fixes(self) -> tuple[Fix, ...]:
        capacity = int(lib.FTMEM_FIX_END)
        fixes, count = ffi.new("ftmem_fix[]", capacity), ffi.new("int32_t *")
        call(lib.ftmem_fixes, self.job._job, fixes, capacity, count)
        kinds = constants("FTMEM_FIX_")
        return tuple(
            Fix(kinds.get(f.code, str(f.code)), text(f.text), verdict_name(f.verdict), make_range(f.process), f.value)
            for f in fixes[0 : min(count[0], capacity)]
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was assumed, and what is worth knowing."""
        if self._notes is None:
            kinds, found = constants("FTMEM_NOTE_"), self._c.notes
            self._notes = tuple(
                Note(kinds.get(n.code, str(n.code)), text(n.field), n.value, note_text(ffi.addressof(found, i)))
                for i, n in enumerate(found[0 : self._c.note_count])
            )
        return self._notes

    @property
    def your_sum(self) -> tuple[Term, ...]:
        """The bytes-per-parameter rule that people use for this method, beside what is alive at the peak."""
        if self._sum is None:
            terms, count = ffi.new("ftmem_sum_term[]", int(lib.FTMEM_SUM_CAPACITY)), ffi.new("int32_t *")
            call(lib.ftmem_your_sum, self.job._job, terms, count)
            self._sum = tuple(Term(text(t.name), t.bytes_per_parameter, t.rule_bytes, t.ours_bytes) for t in terms[0 : count[0]])
        return self._sum

    def to_dict(self) -> dict[str, Any]:
        """The document of `ftmem predict --json`, schema ftmem.prediction/1."""
        from ftmem._render import document

        return document(self)

    def __str__(self) -> str:
        from ftmem._render import plain

        return plain(self)

    def __repr__(self) -> str:
        from ftmem._render import job_line

        c = self._c
        usable = f", usable {c.usable_bytes / GIB:.2f}" if c.usable_bytes else ""
        sizes = f"{c.process.expected / GIB:.2f} GiB expected, 95 % below {c.process.upper / GIB:.2f}{usable}"
        return f"<Prediction {self.verdict}: {job_line(self.job)}: {sizes}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Job.predict, (self.job,)


def predict(model: Any = None, **keywords: Any) -> Prediction:
    """Predicts the memory of one fine-tuning job.

    model:    a catalog name, a path to config.json or its folder, a repository in the local Hugging Face cache, a config
              (dict or object), a torch module, or a parameter count (7e9, "7B"); None with hidden=, layers=, heads=, vocab=
    keywords: method, rank, batch_size, seq_len, gradient_checkpointing, precision, gpu, ...: see fields()
    """
    return prepare(model, **keywords).predict()


class MemoryEstimate(float):
    """GiB of the process tier, expected; a float that carries its `prediction`."""

    prediction: Prediction

    def __new__(cls, prediction: Prediction) -> MemoryEstimate:
        made = super().__new__(cls, prediction._c.process.expected / GIB)
        made.prediction = prediction
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryEstimate, (self.prediction,)


def estimate_memory(model: Any, batch_size: int = 1, seq_len: int = 1024, precision: str = "bf16", **keywords: Any) -> MemoryEstimate:
    """The handbook's signature: GiB that the process will take on the card."""
    return MemoryEstimate(predict(model, batch_size=batch_size, seq_len=seq_len, precision=precision, **keywords))


# ------------------------------------------------------------------------------------------------------------- sweeps

COLUMNS: dict[str, Callable[[CData], int]] = {
    "lower": lambda c: c.process.lower,
    "expected": lambda c: c.process.expected,
    "upper": lambda c: c.process.upper,
    "allocated": lambda c: c.allocated.expected,
    "allocated_upper": lambda c: c.allocated.upper,
    "usable": lambda c: c.usable_bytes,
    "verdict_code": lambda c: c.verdict,
    "trainable": lambda c: c.trainable,
}


class Predictions(Sequence[Prediction]):
    """Answers of a sweep: columns (numpy arrays if numpy is installed, else lists), and a Prediction for each job.

    lower, expected, upper, usable: process tier, bytes;  allocated, allocated_upper;  trainable;
    verdict: "fits", ...;  fits: True where the 95 % bound fits
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = tuple(jobs)
        memory = new("ftmem_memory")
        rows: list[tuple[int, ...]] = []
        readers = tuple(COLUMNS.values())
        for index, job in enumerate(self.jobs):
            memory.struct_size = MEMORY_SIZE
            if lib.ftmem_predict_memory(job._job, memory, NULL):
                raise at(index, failure(lib.ftmem_predict_memory, job._job, memory))
            rows.append(tuple(read(memory) for read in readers))
        columns = list(zip(*rows)) if rows else [()] * len(readers)
        self._columns = {name: array(column) for name, column in zip(COLUMNS, columns)}
        codes = [int(c) for c in self._columns["verdict_code"]]
        self._columns["verdict"] = array([verdict_name(c) for c in codes], "U16")
        self._columns["fits"] = array([c == lib.FTMEM_FITS for c in codes], "bool")

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_columns"][name]
        except KeyError:
            raise AttributeError(f"a sweep has no column {name}") from None

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Prediction, ...]: ...
    def __getitem__(self, index: int | slice) -> Prediction | tuple[Prediction, ...]:
        if isinstance(index, slice):
            return tuple(job.predict() for job in self.jobs[index])
        return self.jobs[index].predict()

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        return f"<Predictions of {len(self.jobs)} jobs: {int(sum(self.fits))} fit>"


def array(values: Iterable[Any], dtype: str = "int64") -> Any:
    try:
        import numpy
    except ImportError:
        return list(values)
    return numpy.array(list(values), dtype=dtype)


def at(index: int, error: FtmemError) -> FtmemError:
    """The same error, saying which job of the sweep it is."""
    return type(error)(f"job {index}: {error.message}", error.field, error.value, error.status)


def predict_many(jobs: Any, model: Any = None, **common: Any) -> Predictions:
    """A sweep in one call.

    jobs: Job objects, dicts of keywords (with their own "model" if they like), or a numpy structured array whose columns are
    keywords. `model` and `common` hold for every job that does not say otherwise.
    """
    return Predictions(list(each_job(rows_of(jobs), model, common)))


def rows_of(jobs: Any) -> Iterator[Any]:
    columns = getattr(getattr(jobs, "dtype", None), "names", None)
    if columns:
        return (dict(zip(columns, row)) for row in jobs.ravel().tolist())
    if isinstance(jobs, (str, bytes, Mapping)) or not hasattr(jobs, "__iter__"):
        raise WrongType("jobs must be a list of jobs or dicts, or a numpy structured array.", "jobs", type(jobs).__name__)
    return iter(jobs)


def each_job(rows: Iterator[Any], model: Any, common: Mapping[str, Any]) -> Iterator[Job]:
    """One Job a row; a model that many rows name is read once."""
    known: dict[str, _model.Model] = {}
    base, shared = canonical(common), None
    for index, row in enumerate(rows):
        try:
            if isinstance(row, Job):
                yield row.replace(**common) if common else row
                continue
            if not isinstance(row, Mapping):
                raise WrongType(f"a job is a {type(row).__name__}; give an ftmem.Job or a dict.", "jobs", type(row).__name__)
            keywords = dict(row)
            own = keywords.pop("model", None)
            if own is None:
                source = shared = shared or _model.resolve(model)
            elif isinstance(own, str):
                source = known.get(own) or known.setdefault(own, _model.resolve(own))
            else:
                source = _model.resolve(own)
            yield Job(source, {**base, **canonical(keywords)})
        except FtmemError as error:
            raise at(index, error) from None
