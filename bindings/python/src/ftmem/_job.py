"""Keyword arguments -> fields of the C structs."""
from __future__ import annotations

import numbers
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping

from ftmem import _fields, _model
from ftmem._core import CData, MEMORY_SIZE, NULL, call, copy, encode, failure, ffi, lib, names, new, text
from ftmem._errors import Conflict, FtmemError, Missing, OutOfRange, UnknownKeyword, UnknownName, Unsupported, WrongType
from ftmem._types import Gpu

if TYPE_CHECKING:
    from ftmem._prediction import Prediction

Values = dict[str, Any]  # path -> value as given

ALIASES = {
    "batch_size": "job.micro_batch",
    "per_device_train_batch_size": "job.micro_batch",
    "micro_batch_size": "job.micro_batch",
    "seq_len": "job.sequence",
    "seq_length": "job.sequence",
    "max_length": "job.sequence",
    "max_seq_length": "job.sequence",
    "sequence_length": "job.sequence",
    "gradient_accumulation_steps": "job.accumulation",
    "eval_batch_size": "job.eval_batch",
    "per_device_eval_batch_size": "job.eval_batch",
    "num_labels": "job.classes",
    "r": "adapter.rank",
    "lora_r": "adapter.rank",
    "target_modules": "adapter.targets",
    "rank_pattern": "adapter.ranks",
    "method": "adapter.kind",
    "gradient_checkpointing": "job.recompute",
    "activation_checkpointing": "job.recompute",
    "use_liger_kernel": "job.loss",
    "bf16": "job.autocast",
    "fp16": "job.autocast",
    "optim": "job.optimizer",
    "attn_implementation": "job.attention",
}
PRECISIONS = {
    "bf16": ("bf16", "auto"), "fp16": ("fp16", "auto"), "fp32": ("fp32", "auto"),
    "amp_bf16": ("fp32", "bf16"), "amp_fp16": ("fp32", "fp16"),
}  # dtype of the weights, autocast
NOT_MODELLED_PRECISIONS = ("fp8", "float8", "nvfp4", "mxfp4")
METHOD_ALIASES = {
    "rslora": "lora", "lora_plus": "lora", "loraplus": "lora", "lora+": "lora", "pissa": "lora", "olora": "lora", "lorafa": "lora_fa",
    "prompt_tuning": "prompt", "prefix_tuning": "prefix",
}
ATTENTIONS = {"flash_attention_2": "flash2", "flash_attn_2": "flash2"}
NOT_MODELLED_ATTENTIONS = ("flash_attention_3", "flash_attention_4", "flex_attention", "paged", "kernels-community")
# Known to users, not to this version: refused by name. The second part says what is meant by a value that changes nothing.
NOT_MODELLED: dict[str, tuple[Any, ...]] = {
    "tokens": (), "gpus": (1,), "num_gpus": (1,), "world_size": (1,), "nproc_per_node": (1,), "deepspeed": (False, ""), "fsdp": (False, ""),
    "zero_stage": (0,), "tensor_parallel": (1,), "pipeline_parallel": (1,), "context_parallel": (1,), "offload": (False,), "torch_compile": (False,),
}
# Of optim_args: numbers that change nothing about memory, though they may about how often a projection is made anew.
NEUTRAL_OPTIM_ARGS = frozenset(
    "update_proj_gap scale beta1 beta2 beta3 alpha eps t_alpha t_beta3 weight_lr_power r lr_decay weight_decay alpha_init lamb gamma "
    "grokking_signal_decay_rate gradient_clipping decouple_lr max_lr dampening nesterov bf16_stochastic_round".split()
)
# Where GaLore and APOLLO are aimed at the linears of blocks.
BLOCK_LINEARS = ({"attn", "mlp"}, {"self_attn", "mlp"}, {r".*.attn.*", r".*.mlp.*"})
# Values that change nothing about memory.
NEUTRAL = frozenset(("lora_alpha", "learning_rate", "seed", "tf32"))
# Zero means "default" to C; whoever writes one of these as 0 made a mistake.
NEVER_ZERO = frozenset(
    ["job." + m for m in ("micro_batch", "sequence", "accumulation", "eval_batch", "loss_chunk_tokens", "recompute_every", "classes")]
    + ["model." + m for m in ("hidden", "layers", "heads", "kv_heads", "head_dim", "vocab", "ffn")] + ["adapter.rank", "gpu.memory_bytes"]
)
ON, OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")
BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)B", re.I)
SAVED = {
    "embed": ("embed_tokens", "wte", "embed_in", "word_embeddings", "embed", "embedding", "embeddings"),
    "head": ("lm_head", "embed_out", "head", "output", "score", "classifier"),
}


# --------------------------------------------------------------------------------------------------- friendly names


def switch(name: str, value: Any) -> bool:
    """True or False from what people and command lines write."""
    if isinstance(value, (bool, numbers.Integral)) and value in (0, 1):
        return bool(value)
    word = str(value).lower()
    if word in ON or word in OFF:
        return word in ON
    raise WrongType(f"{name} is {value!r}, but must be true or false.", name, str(value))


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    word = str(getattr(value, "value", value)).lower()
    word = _model.DTYPES.get(word, word)
    if word in known:
        return word
    raise UnknownName(f"{name} is {value!r}; there are {', '.join(known)}.", name, str(value))


def methods() -> tuple[str, ...]:
    return ("full", *(n for n in names("adapter") if n != "none"))


def expand_method(name: str, value: Any) -> Values:
    word = str(getattr(value, "value", value)).lower()
    word = choice(name, METHOD_ALIASES.get(word, word), methods())
    return {"adapter.kind": "none" if word == "full" else word}


def expand_precision(name: str, value: Any) -> Values:
    if any(w in str(value).lower() for w in NOT_MODELLED_PRECISIONS):
        raise Unsupported(f"{name} {value} is not modelled; there are {', '.join(PRECISIONS)}.", name, str(value))
    dtype, autocast = PRECISIONS[choice(name, value, PRECISIONS)]
    return {"job.dtype": dtype, "job.autocast": autocast}


def expand_recompute(name: str, value: Any) -> Values:
    word = str(value).lower()
    if word in names("recompute"):
        return {"job.recompute": word}
    try:
        return {"job.recompute": "full" if switch(name, value) else "none"}
    except WrongType:
        raise UnknownName(f"{name} is {value!r}; there are true, false, {', '.join(names('recompute'))}.", name, str(value)) from None


def expand_mixed(name: str, value: Any) -> Values:
    return {"job.autocast": name} if switch(name, value) else {}


def expand_liger(name: str, value: Any) -> Values:
    """liger_kernel's apply_liger_kernel_to_llama and its like: rope, rms_norm, swiglu and the fused loss by default."""
    return {"job.loss": "fused", "job.kernels": ("norm", "rope", "mlp")} if switch(name, value) else {}


def expand_attention(name: str, value: Any) -> Values:
    word = str(value).lower()
    if word.startswith(NOT_MODELLED_ATTENTIONS):
        raise Unsupported(f"{name} {word} is not modelled; there are {', '.join(names('attention')[1:])}.", name, word)
    return {"job.attention": ATTENTIONS.get(word, word)}


def expand_optim_args(name: str, value: Any) -> Values:
    """transformers' optim_args: "rank=64, update_proj_gap=100"."""
    found: Values = {}
    for item in filter(None, str(value).replace(" ", "").split(",")):
        key, _, number = item.partition("=")
        if key == "rank":
            found["job.optimizer_rank"] = number
        elif key not in NEUTRAL_OPTIM_ARGS:
            raise Unsupported(f"{name} {item} is not modelled; {key} may change what the optimizer keeps.", name, item)
    return found


def expand_optim_targets(name: str, value: Any) -> Values:
    if isinstance(value, str) or set(value) not in BLOCK_LINEARS:
        raise Unsupported(f"{name} is {value}; only the linears of blocks are modelled, as ['attn', 'mlp'] means them.", name, str(value))
    return {}


EXPANDERS: dict[str, Callable[[str, Any], Values]] = {
    "method": expand_method, "precision": expand_precision, "gradient_checkpointing": expand_recompute,
    "activation_checkpointing": expand_recompute, "recompute": expand_recompute,
    "bf16": expand_mixed, "fp16": expand_mixed, "use_liger_kernel": expand_liger,
    "attn_implementation": expand_attention, "attention": expand_attention, "optim_args": expand_optim_args,
    "optim_target_modules": expand_optim_targets,
}
for _path in ("job.recompute", "job.attention"):
    EXPANDERS[_path] = EXPANDERS[_path.split(".")[1]]
FRIENDLY = tuple(dict.fromkeys(("gpu", "teacher", *EXPANDERS, *ALIASES)))


@lru_cache(maxsize=None)
def known_keywords() -> frozenset[str]:
    return frozenset(_fields.keywords()) | frozenset(FRIENDLY)


def canonical(given: Mapping[str, Any]) -> Values:
    """{path: value} from keyword arguments; None stands for "as if it were not given"."""
    values: Values = {}
    source: dict[str, str] = {}
    for name, value in given.items():
        for path, one in expand(name, value).items():
            if values.get(path) is not None and one is not None and values[path] != one:
                raise Conflict(f"{source[path]} and {name} both set {path}, to {values[path]} and {one}.", path, str(one))
            if values.get(path) is None:
                values[path], source[path] = one, name
    return values


def expand(name: str, value: Any) -> Values:
    if name in ("gpu", "teacher"):
        return {name: value}
    if name in NOT_MODELLED:
        if value is None or any(value == harmless and type(value) is type(harmless) for harmless in NOT_MODELLED[name]):
            return {}
        raise Unsupported(f"{name} is not modelled in this version.", name, str(value))
    if name in NEUTRAL:
        return {}
    path = ALIASES.get(name) or _fields.keywords().get(name)
    if name in EXPANDERS and value is not None:
        return EXPANDERS[name](name, value)
    if name in EXPANDERS:
        return {} if path is None else {path: None}
    if path is None:
        close = _fields.nearest(name, known_keywords())
        hint = f"did you mean {' or '.join(close)}?" if close else "ftmem.fields() lists all of them."
        raise UnknownKeyword(f"there is no keyword {name}; {hint}", name, str(value))
    return {path: value}


# ------------------------------------------------------------------------------------------------ values into structs


def as_text(path: str, value: Any) -> str:
    """The text that ftmem_set reads."""
    row = _fields.table()[path]
    value = getattr(value, "value", value) if row.type == "enum" else value
    if isinstance(value, bool):
        if row.enum != "switch":
            raise WrongType(f"{path} is {value}, but must be {kind(row)}.", path, str(value))
        return "on" if value else "off"
    if isinstance(value, numbers.Integral):
        return checked_zero(path, str(int(value)))
    if isinstance(value, numbers.Real):
        real = float(value)
        return checked_zero(path, str(int(real)) if row.type == "int" and real.is_integer() else repr(real))
    word = str(value).strip()
    if row.unit == "bytes" or path.endswith("_bytes"):
        word = bytes_text(word)
    if path.endswith("_version"):
        word = version_text(path, word)
    if row.enum == "switch" and word.lower() in ON + OFF:
        word = "on" if word.lower() in ON else "off"
    return checked_zero(path, _model.DTYPES.get(word.lower(), word) if row.enum == "dtype" else word)


def kind(row: _fields.Row) -> str:
    if row.type == "enum":
        return f"one of {', '.join(names(row.enum))}"
    return {"int": "a whole number", "real": "a number", "set": "a list of names", "text": "a text"}[row.type]


def checked_zero(path: str, word: str) -> str:
    if path in NEVER_ZERO and word.strip("0") == "" and word:
        raise OutOfRange(f"{path} is 0, but must be at least 1.", path, word)
    return word


def bytes_text(word: str) -> str:
    """"1.5GiB" -> "1610612736"."""
    match = BYTES.fullmatch(word)
    if not match:
        return word
    base = 1024 if match[2].lower().endswith("i") else 1000
    return str(int(float(match[1]) * base ** ("KMGT".index(match[2][0].upper()) + 1)))


def version_text(path: str, word: str) -> str:
    """"4.57.1" -> "457", major x 100 + minor."""
    parts = word.split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return word
    if int(parts[1]) > 99:
        raise OutOfRange(f"{path} is {word}; the minor number is at most 99.", path, word)
    return str(int(parts[0]) * 100 + int(parts[1]))


def words(path: str, value: Any) -> list[str]:
    """A list of names from a list, or from a text with commas."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(v, str) for v in value):
        raise WrongType(f"{path} is {value!r}, but must be a name or a list of names.", path, str(value))
    found = [v.strip() for v in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if not all(found):
        raise WrongType(f"{path} holds an empty name.", path, "")
    return found


def put_targets(adapter: CData, model: CData, value: Any) -> None:
    path = "adapter.targets"
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        call(lib.ftmem_set, path.encode(), str(int(value)).encode(), adapter)
        return
    chosen = words(path, value)
    if not chosen:
        raise Missing(f"{path} is empty; leave it out for the family's default, or name modules.", path)
    for word in chosen:
        if re.search(r"[*+?()|\\\[\]^$]", word) or any(part.isdecimal() for part in word.split(".")):
            raise Unsupported(f"{path} {word} selects modules by pattern or layer, which is not modelled; give module names.", path, word)
        put_target(adapter, model, word)


def put_target(adapter: CData, model: CData, word: str) -> None:
    """A module's name, its path within a block ("self_attn.q_proj"), or a role ("q")."""
    roles = names("role")
    role = text(lib.ftmem_role_module(model, roles.index(word))) if word in roles else ""
    last = word.rsplit(".", 1)[-1]
    for name in dict.fromkeys((word, role, last)):
        if name and lib.ftmem_adapter_target(adapter, model, encode(name, "adapter.targets"), NULL) == lib.FTMEM_OK:
            return
    call(lib.ftmem_adapter_target, adapter, model, encode(word, "adapter.targets"))


def put_ranks(adapter: CData, model: CData, value: Any) -> None:
    """PEFT's rank_pattern: module names and their ranks."""
    if not isinstance(value, Mapping):
        raise WrongType(f"rank_pattern is {value!r}, but must map module names to ranks.", "adapter.ranks", str(value))
    for word, rank in value.items():
        found = new("ftmem_adapter")
        put_target(found, model, word)
        for role in range(len(adapter.ranks)):
            if found.targets >> role & 1:
                adapter.ranks[role] = int(rank)


def put_feedforward(adapter: CData, model: CData, value: Any) -> None:
    """IA3's feedforward_modules."""
    found = new("ftmem_adapter")
    put_targets(found, model, value)
    put_bits(adapter, "feedforward", found.targets, "adapter.feedforward")


def put_saved(adapter: CData, model: CData, value: Any) -> None:
    path, bits = "adapter.modules_to_save", 0
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        bits = int(value)
    else:
        for word in words(path, value):
            bits |= saved_part(path, word.rsplit(".", 1)[-1], model)
    put_bits(adapter, "modules_to_save", bits, path)


def saved_part(path: str, word: str, model: CData) -> int:
    for part, role in (("embed", lib.FTMEM_ROLE_EMBED), ("head", lib.FTMEM_ROLE_HEAD)):
        if word in SAVED[part] or word == text(lib.ftmem_role_module(model, role)).rsplit(".", 1)[-1]:
            return _fields.PARTS[part]
    raise Unsupported(f"{path} {word} is not modelled; the embedding and the head are.", path, word)


JOB_SETS = ("job.kernels", "job.compile", "job.freeze")  # names in any order, as a list or with "+"


def put_set(job: CData, path: str, value: Any) -> None:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    parts = str(int(value)) if whole else "+".join(words(path, value))
    call(lib.ftmem_set, path.encode(), encode(parts, path), job)


def put_bits(struct: CData, member: str, bits: int, path: str) -> None:
    if not 0 <= bits < 1 << 31:
        raise OutOfRange(f"{path} is {bits}, which is no set of parts.", path, str(bits))
    setattr(struct, member, getattr(struct, member) | bits)


def put_gpu(job: CData, value: Any) -> None:
    if isinstance(value, Gpu):
        job.gpu.name = encode(value.name, "gpu.name")[:63]
        for member in ("memory_bytes", "torch_bytes", "sm_arch", "sm_count", "vendor"):
            put_number(job.gpu, member, getattr(value, member))
    elif isinstance(value, str):
        if value == "auto":
            put_gpu(job, visible_gpu())
        else:
            job.gpu = named_gpu(value)[0]
    else:
        raise WrongType(f'gpu is {value!r}; give a name, "auto", an ftmem.Gpu or None.', "gpu", str(value))


@lru_cache(maxsize=64)
def named_gpu(name: str) -> CData:
    """The catalog's card; a sweep looks each up once."""
    found = new("ftmem_gpu")
    call(lib.ftmem_gpu_find, encode(name, "gpu"), found)
    return found


def put_number(struct: CData, member: str, value: int) -> None:
    try:
        setattr(struct, member, value)
    except (OverflowError, TypeError):
        raise WrongType(f"gpu.{member} is {value!r}, but must be a whole number.", f"gpu.{member}", str(value)) from None


def visible_gpu() -> Gpu:
    """The current CUDA device of a torch that the caller has imported."""
    import sys

    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available():
        raise Missing('gpu is "auto", but no imported torch sees a CUDA device; name the GPU.', "gpu", "auto")
    seen = cuda.get_device_properties(cuda.current_device())
    total, arch = int(seen.total_memory), int(seen.major) * 10 + int(seen.minor)
    try:
        found = named_gpu(str(seen.name))
        known = abs(int(found.memory_bytes) - total) < total // 8  # the name's card, not a slice of it
    except FtmemError:
        known = False
    name, memory = (text(found.name), int(found.memory_bytes)) if known else (str(seen.name), total)
    return Gpu(name, memory, total, arch, int(getattr(seen, "multi_processor_count", 0)), 0)


# -------------------------------------------------------------------------------------------------------------- job


def adapter_kind(values: Values) -> bool:
    """Whether there is an adapter; its fields without a method are a mistake, not something to ignore."""
    stray = [p for p, v in values.items() if p.startswith("adapter.") and p != "adapter.kind" and v is not None]
    kind_given = values.get("adapter.kind")
    if kind_given is not None and str(kind_given) not in ("none", "0"):
        return True
    if stray and kind_given is None:
        raise Missing(f'{stray[0]} was given without a method; say method="lora", "qlora" or "lora8".', "method", "")
    if stray:
        raise Conflict(f"{stray[0]} was given, but full fine-tuning has no adapter.", stray[0], str(values[stray[0]]))
    return False


class Job:
    """A prepared question. It cannot be changed; replace() makes another one."""

    __slots__ = ("_adapter", "_job", "_model", "_teacher", "_values", "label", "_source", "__weakref__")

    def __init__(self, source: _model.Model, values: Values) -> None:
        self._source, self._values, self.label = source, values, source.label
        merged = {**source.hints, **{p: v for p, v in values.items() if v is not None}}
        if "job.eval_batch" in merged:
            merged.setdefault("job.eval", "on")
        own = any(p.startswith("model.") for p in merged)
        self._model = copy("ftmem_model", source.c) if own else source.c
        self._adapter = new("ftmem_adapter") if adapter_kind(values) else None
        self._job = new("ftmem_job")
        teacher = merged.pop("teacher", None)
        self._fill(merged)
        self._teacher = None if teacher is None else _model.resolve(teacher).c
        self._job.teacher = NULL if self._teacher is None else self._teacher
        self._job.model = self._model
        self._job.adapter = self._adapter if self._adapter is not None else NULL

    def _fill(self, values: Values) -> None:
        job, late = self._job, {}
        objects = {"model": self._model, "adapter": self._adapter, "gpu": ffi.addressof(job, "gpu"), "job": job}
        if "gpu" in values:
            put_gpu(job, values["gpu"])
        for path, value in values.items():
            if path in ("adapter.targets", "adapter.ranks", "adapter.feedforward", "adapter.modules_to_save", *JOB_SETS):
                late[path] = value
            elif path != "gpu" and objects[path.split(".", 1)[0]] is not None:
                call(lib.ftmem_set, path.encode(), encode(as_text(path, value), path), objects[path.split(".", 1)[0]])
        if self._adapter is not None and "adapter.targets" in late:
            put_targets(self._adapter, self._model, late["adapter.targets"])
        if self._adapter is not None and "adapter.ranks" in late:
            put_ranks(self._adapter, self._model, late["adapter.ranks"])
        if self._adapter is not None and "adapter.feedforward" in late:
            put_feedforward(self._adapter, self._model, late["adapter.feedforward"])
        if self._adapter is not None and "adapter.modules_to_save" in late:
            put_saved(self._adapter, self._model, late["adapter.modules_to_save"])
        for path in JOB_SETS:
            if path in late:
                put_set(job, path, late[path])
        for part in ("first_layers", "last_layers"):
            if getattr(job, f"freeze_{part}"):
                put_bits(job, "freeze", _fields.PARTS[part], "job.freeze")

    def predict(self) -> Prediction:
        """The memory of this job. About ten microseconds beside C's own time."""
        from ftmem._prediction import Prediction

        memory = ffi.new("ftmem_memory *")
        memory.struct_size = MEMORY_SIZE
        if lib.ftmem_predict_memory(self._job, memory, NULL):
            raise failure(lib.ftmem_predict_memory, self._job, memory)
        return Prediction(self, memory)

    def replace(self, **keywords: Any) -> Job:
        """The same question with some keywords changed; None takes one back to its default."""
        changes = canonical(keywords)
        values = {**self._values, **changes}
        if values.get("adapter.kind") == "none" and "adapter.kind" in changes:
            values = {p: v for p, v in values.items() if p == "adapter.kind" or p in changes or not p.startswith("adapter.")}
        return Job(self._source, values)

    def resolved(self) -> dict[str, Any]:
        """Every field with its default filled in, by path."""
        job, adapter = new("ftmem_job"), new("ftmem_adapter")
        call(lib.ftmem_resolve, self._job, job, adapter if self._adapter is not None else NULL)
        objects = {"job": job, "gpu": ffi.addressof(job, "gpu"), "model": self._model, "adapter": adapter}
        if self._adapter is None:
            del objects["adapter"]
        return {p: _fields.read(objects[r.object], r) for p, r in _fields.table().items() if r.object in objects}

    def __repr__(self) -> str:
        given = "".join(f", {p}={v!r}" for p, v in self._values.items() if v is not None)
        return f"<Job {self.label}{given}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (bytes(ffi.buffer(self._source.c)), self.label, self._source.hints, self._values)


def restore(model: bytes, label: str, hints: dict[str, Any], values: Values) -> Job:
    """Unpickles a Job."""
    made = new("ftmem_model")
    if len(model) != ffi.sizeof("ftmem_model"):
        raise WrongType("the pickled job comes from another version of ftmem.", "model", "")
    ffi.memmove(made, model, len(model))
    return Job(_model.Model(made, label, hints), values)


def prepare(model: Any = None, **keywords: Any) -> Job:
    """A reusable job: the work of reading the model and the keywords is done once."""
    values = canonical(keywords)
    return Job(_model.resolve(model), values)
