"""The C library's table of fields: keywords, paths, and members of structs."""
from __future__ import annotations

from functools import lru_cache
from typing import Any, Iterable, NamedTuple

from ftmem._core import CData, ffi, lib, name_of, names, text
from ftmem._types import Field

# Where two objects have a member of the same name, the bare keyword means the first of these.
OBJECTS = {lib.FTMEM_OBJECT_JOB: "job", lib.FTMEM_OBJECT_ADAPTER: "adapter", lib.FTMEM_OBJECT_GPU: "gpu", lib.FTMEM_OBJECT_MODEL: "model"}
PREFIXES = {"job": (), "adapter": ("lora_", "adapter_"), "gpu": ("gpu_",), "model": ("model_",)}
TYPES = {
    lib.FTMEM_TYPE_INT: "int", lib.FTMEM_TYPE_REAL: "real", lib.FTMEM_TYPE_ENUM: "enum", lib.FTMEM_TYPE_SET: "set",
    lib.FTMEM_TYPE_TEXT: "text",
}
PARTS = {
    "embed": lib.FTMEM_PART_EMBED, "head": lib.FTMEM_PART_HEAD, "first_layers": lib.FTMEM_PART_FIRST_LAYERS,
    "last_layers": lib.FTMEM_PART_LAST_LAYERS, "all_but": lib.FTMEM_PART_ALL_BUT,
}


class Row(NamedTuple):
    path: str
    object: str
    member: str
    type: str
    enum: str
    unit: str
    doc: str
    default: str
    minimum: float
    maximum: float
    size: int
    offset: int


@lru_cache(maxsize=None)
def table() -> dict[str, Row]:
    """path -> row, in the order of the C table."""
    rows: dict[str, Row] = {}
    for index in range(lib.ftmem_field_count()):
        f = lib.ftmem_field_at(index)
        path = text(f.path)
        rows[path] = Row(
            path, OBJECTS[f.object], path.split(".", 1)[1], TYPES[f.type], text(f.enum_name), text(f.unit), text(f.doc),
            text(f.default_text), f.minimum, f.maximum, f.size, f.offset,
        )
    return rows


@lru_cache(maxsize=None)
def keywords() -> dict[str, str]:
    """keyword -> path. Bare members first, then the unambiguous forms with the object in front."""
    found: dict[str, str] = {}
    rows = table().values()
    for wanted in OBJECTS.values():
        for row in rows:
            if row.object == wanted and row.member not in ("name", "kind"):
                found.setdefault(row.member, row.path)
    for row in rows:
        for prefix in PREFIXES[row.object]:
            found.setdefault(prefix + row.member, row.path)
        found[row.path] = row.path
    return found


def keyword_of(row: Row) -> str:
    """The shortest keyword that means this field."""
    candidates = (row.member, *(prefix + row.member for prefix in PREFIXES[row.object]), row.path)
    return next(k for k in candidates if keywords().get(k) == row.path)


def fields() -> tuple[Field, ...]:
    """Every input there is: each is a keyword of predict() and a flag of the command line."""
    return tuple(
        Field(r.path, keyword_of(r), r.type, r.unit, values_of(r), r.minimum, r.maximum, r.default, r.doc)
        for r in table().values()
    )


def values_of(row: Row) -> tuple[str, ...]:
    """Names that the field takes."""
    if row.type == "set":
        return tuple(set_names(row, int(row.maximum)))
    return names(row.enum) if row.enum else ()


_INTEGERS = {("int", 8): "int64_t *", ("int", 4): "int32_t *", ("enum", 4): "int32_t *", ("set", 4): "uint32_t *", ("real", 8): "double *"}


def read(struct: CData, row: Row) -> Any:
    """Value of one member: a number, a name, a list of names or a text."""
    address = ffi.cast("char *", struct) + row.offset
    if row.type == "text":
        return ffi.string(address, row.size).decode("utf-8", "replace")
    value = ffi.cast(_INTEGERS[row.type, row.size], address)[0]
    if row.type == "enum":
        return name_of(row.enum, value)
    if row.type == "set":
        return list(set_names(row, value))
    return value


def set_names(row: Row, bits: int) -> Iterable[str]:
    if row.path == "adapter.targets":
        return (name for i, name in enumerate(names("role")) if bits >> i & 1)
    return (name for name, bit in PARTS.items() if bits & bit)


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Names that a typo may have meant."""
    import difflib

    pool = list(known)
    close = difflib.get_close_matches(word.lower(), pool, count, 0.55)
    return close or sorted(k for k in pool if word and (word.lower() in k or k in word.lower()))[:count]
