"""The model argument: a name, a file, a Hugging Face config or module, a dict, or a parameter count -> ftmem_model."""
from __future__ import annotations

import json
import math
import numbers
import os
import re
import stat
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple

from ftmem._core import CData, call, encode, ffi, lib, new, text
from ftmem._errors import BadSyntax, CannotRead, Missing, OutOfRange, TooLarge, UnknownName, Unsupported, WrongType

MAX_FILE = 16 << 20  # bytes of a config.json
MAX_ENTRIES = 100_000
MAX_DEPTH = 32
COUNT = re.compile(r"(\d+(?:_\d+)*(?:\.\d+)?(?:e\d+)?)\s*([kmbt]?)", re.I)
SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
REPO = re.compile(r"[A-Za-z0-9][\w.\-]*(?:/[A-Za-z0-9][\w.\-]*)?")
DTYPES = {
    "torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "float32": "fp32", "bfloat16": "bf16",
    "float16": "fp16", "float": "fp32", "half": "fp16",
}


class Model(NamedTuple):
    """A resolved model. `c` is never changed afterwards; `hints` are fields that a live module has shown."""

    c: CData
    label: str
    hints: dict[str, Any]


def resolve(model: Any) -> Model:
    """The model that the caller means, or an error in one sentence."""
    if model is None:
        return Model(new("ftmem_model"), "model", {})
    if isinstance(model, bool):
        raise WrongType(f"model is {model}; give a name, a path, a config or a parameter count.", "model", str(model))
    if isinstance(model, os.PathLike):
        return from_path(Path(model))
    if isinstance(model, str):
        return from_text(model)
    if isinstance(model, numbers.Real):
        return from_count(float(model))
    if isinstance(model, Mapping):
        return from_config(model)
    return from_object(model)


# ---------------------------------------------------------------------------------------------------------- texts


def from_text(name: str) -> Model:
    name = name.strip()
    if not name:
        raise Missing("model is empty; give a name, a path or a parameter count.", "model")
    encode(name, "model")
    if name.endswith(".json") or name.startswith((".", "~", os.sep)) or os.path.isfile(os.path.join(name, "config.json")):
        return from_path(Path(name).expanduser())
    count = COUNT.fullmatch(name)
    if count:
        return from_count(float(count[1].replace("_", "")) * SCALE[count[2].lower()])
    return from_catalog(name)


def from_catalog(name: str) -> Model:
    """The shipped catalog first, so that a name means the same on every machine; then the local Hugging Face cache."""
    made = new("ftmem_model")
    try:
        call(lib.ftmem_model_find, encode(name, "model"), made)
    except UnknownName:
        cached = cached_config(name)
        if cached is None:
            raise
        return from_path(cached, label=name.rsplit("/", 1)[-1])
    return Model(made, short(text(made.name) or name), {})


def short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def from_count(parameters: float) -> Model:
    made = new("ftmem_model")
    if math.isnan(parameters):
        raise OutOfRange("model is not a number; a parameter count such as 7e9 is.", "model", "nan")
    call(lib.ftmem_model_from_parameters, parameters, made)
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if parameters >= unit:
            return Model(made, f"{parameters / unit:.4g}{letter} parameters", {})
    return Model(made, f"{parameters:.4g} parameters", {})


# ---------------------------------------------------------------------------------------------------------- files


def cache_folder() -> Path:
    """Where huggingface_hub keeps downloads."""
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if hub:
        return Path(hub).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def cached_config(name: str) -> Path | None:
    """config.json of a repository in the local cache: of its main branch, else of the newest snapshot."""
    if not REPO.fullmatch(name):
        return None
    folder = cache_folder() / ("models--" + name.replace("/", "--"))
    try:
        main = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        main = ""
    found = [p for p in folder.glob("snapshots/*/config.json") if p.is_file()]
    return max(found, key=lambda p: (p.parent.name == main, p.stat().st_mtime), default=None)


def from_path(path: Path, label: str = "") -> Model:
    """A config.json, or a folder that holds one."""
    if path.is_dir():
        path = path / "config.json"
    config = read_json(path)
    return from_config(config, label or str(config.get("_name_or_path") or "") or path.absolute().parent.name)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    raw = read_bytes(path)
    name = str(path)
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadSyntax(f"{name} is not UTF-8 text (byte {error.start}).", name) from None
    except json.JSONDecodeError as error:
        raise BadSyntax(f"{name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}.", name) from None
    except RecursionError:
        raise BadSyntax(f"{name} is nested too deeply.", name) from None
    except ValueError:
        raise BadSyntax(f"{name} holds a number with too many digits.", name) from None
    if not isinstance(value, dict):
        raise WrongType(f"{name} holds a JSON {kind_of(value)}; a model config is an object.", name)
    return value


def read_bytes(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CannotRead(f"{path} is not a regular file.", "model", str(path))
            raw = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, CannotRead):
            raise
        raise CannotRead(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.", "model", str(path)) from None
    if len(raw) > MAX_FILE:
        raise CannotRead(f"{path} is larger than {MAX_FILE >> 20} MiB; that is no model config.", "model", str(path))
    return raw


def open_at_once(name: str, flags: int) -> int:
    """Does not wait for the other end of a pipe."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def kind_of(value: Any) -> str:
    kinds = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


# -------------------------------------------------------------------------------------------------------- configs


def from_config(config: Mapping[Any, Any], label: str = "") -> Model:
    """A Hugging Face config as a dict."""
    made, count = new("ftmem_model"), 0
    keep: list[CData] = []  # texts must outlive the call
    pairs = list(flatten(config, "", 0, []))
    entries = ffi.new("ftmem_entry[]", len(pairs))
    for count, (key, value) in enumerate(pairs, 1):
        fill(entries[count - 1], key, value, keep)
    call(lib.ftmem_model_from_entries, entries, count, made)
    label = short(label.rstrip("/")) or text(made.name) or str(config.get("model_type") or "model")
    return Model(made, label, {})


def flatten(value: Any, key: str, depth: int, seen: list[None]) -> Iterator[tuple[str, Any]]:
    """(dotted path, scalar) for every leaf."""
    if depth > MAX_DEPTH:
        raise Unsupported(f"The config is nested more than {MAX_DEPTH} deep at {key[:60]}.", key[:60])
    if isinstance(value, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, (list, tuple)):
        items = iter(enumerate(value))
    else:
        if len(seen) >= MAX_ENTRIES:
            raise Unsupported(f"The config has more than {MAX_ENTRIES} entries.", "model")
        seen.append(None)
        yield key, value
        return
    for part, inner in items:
        yield from flatten(inner, f"{key}.{part}" if key else str(part), depth + 1, seen)


def fill(entry: CData, key: str, value: Any, keep: list[CData]) -> None:
    entry.key = hold(encode(key, "config key"), keep)
    if value is None:
        entry.type = lib.FTMEM_ENTRY_NULL
    elif isinstance(value, bool):
        entry.type, entry.integer = lib.FTMEM_ENTRY_BOOL, int(value)
    elif isinstance(value, numbers.Integral):
        if not -(1 << 63) <= int(value) < 1 << 63:
            raise TooLarge(f"{key} is a number of more than 63 bits.", key)
        entry.type, entry.integer = lib.FTMEM_ENTRY_INT, int(value)
    elif isinstance(value, numbers.Real):
        entry.type, entry.real = lib.FTMEM_ENTRY_REAL, float(value)
    else:
        entry.type, entry.text = lib.FTMEM_ENTRY_TEXT, hold(encode(str(value), key), keep)


def hold(raw: bytes, keep: list[CData]) -> CData:
    made = ffi.new("char[]", raw)
    keep.append(made)
    return made


# -------------------------------------------------------------------------------------------------------- objects


def from_object(thing: Any) -> Model:
    """A transformers config or module, or any torch module, by what it can do."""
    if hasattr(thing, "to_dict") and not hasattr(thing, "parameters"):
        return from_config_object(thing, {})
    config = getattr(thing, "config", None)
    if config is not None and (hasattr(config, "to_dict") or isinstance(config, Mapping)):
        hints = module_hints(thing)
        return from_config(config, "")._replace(hints=hints) if isinstance(config, Mapping) else from_config_object(config, hints)
    if callable(getattr(thing, "parameters", None)):
        total = sum(int(p.numel()) for p in thing.parameters())
        return from_count(float(total))._replace(hints=module_hints(thing))
    raise WrongType(
        f"model is a {type(thing).__name__}; give a name, a path, a config, a module or a parameter count.", "model", type(thing).__name__
    )


def from_config_object(config: Any, hints: dict[str, Any]) -> Model:
    values = config.to_dict()
    if not isinstance(values, Mapping):
        raise WrongType(f"to_dict() of {type(config).__name__} returned no dict.", "model", type(config).__name__)
    label = str(getattr(config, "_name_or_path", "") or values.get("_name_or_path") or "")
    model_type = values.get("model_type") or getattr(config, "model_type", None)
    return from_config({**values, "model_type": model_type} if model_type else values, label)._replace(hints=hints)


def module_hints(module: Any) -> dict[str, Any]:
    """Fields that a loaded module shows: the dtype of its weights."""
    dtype = DTYPES.get(str(getattr(module, "dtype", "")))
    if dtype is None and callable(getattr(module, "parameters", None)):
        first = next(iter(module.parameters()), None)
        dtype = DTYPES.get(str(getattr(first, "dtype", "")))
    return {"job.dtype": dtype} if dtype else {}
