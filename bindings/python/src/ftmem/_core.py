"""The one door to the C library: calls, texts, names of values."""
from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

from ftmem._errors import FtmemError, WrongType, from_status

try:
    from ftmem._ffi import ffi as ffi, lib as lib
except ImportError as missing:
    raise ImportError("ftmem's compiled part is missing: install the package (pip install .) before importing it") from missing

CData = Any
NULL = ffi.NULL
GIB = 1 << 30
ERROR_SIZE: int = ffi.sizeof("ftmem_error")
MEMORY_SIZE: int = ffi.sizeof("ftmem_memory")


def text(pointer: CData) -> str:
    """A C text; "" for NULL."""
    return str(ffi.string(pointer).decode("utf-8", "replace")) if pointer else ""


def encode(value: str, field: str) -> bytes:
    """A text for C. A zero inside would cut it short, so it is refused."""
    raw = value.encode("utf-8", "replace")
    if b"\0" in raw:
        raise WrongType(f"{field} holds a zero character.", field, value.replace("\0", "\\0"))
    return raw


def call(function: Callable[..., int], *arguments: Any) -> None:
    """Calls a function whose last parameter is the ftmem_error, which is only made when there is an error to tell."""
    status = function(*arguments, NULL)
    if status:
        raise failure(function, *arguments)


def failure(function: Callable[..., int], *arguments: Any) -> FtmemError:
    """The exception for a call that failed: C is pure, so the same call fails again and fills in the error."""
    error = ffi.new("ftmem_error *")
    error.struct_size = ERROR_SIZE
    status = function(*arguments, error)
    message = text(error.message) or f"{text(lib.ftmem_status_string(status))} ({text(lib.ftmem_status_name(status))})"
    return from_status(status, message, text(error.field), text(error.value))


def new(struct: str) -> CData:
    """A zeroed struct that knows its size."""
    made = ffi.new(f"{struct} *")
    made.struct_size = ffi.sizeof(struct)
    return made


def copy(struct: str, source: CData) -> CData:
    made = ffi.new(f"{struct} *")
    made[0] = source[0]
    return made


@lru_cache(maxsize=None)
def names(enum: str) -> tuple[str, ...]:
    """Names of an enum's values, in the order of their numbers."""
    key = enum.encode()
    found: list[str] = []
    while len(found) < 256:
        name = lib.ftmem_enum_name(key, len(found))
        if not name:
            break
        found.append(text(name))
    return tuple(found)


def name_of(enum: str, value: int) -> str:
    table = names(enum)
    return table[value] if 0 <= value < len(table) else str(value)


def versions() -> dict[str, str]:
    """Version of the C library that runs, and of the header that this package was built with."""
    return {"library": text(lib.ftmem_version_string()), "header": HEADER_VERSION}


HEADER_VERSION = f"{lib.FTMEM_VERSION_MAJOR}.{lib.FTMEM_VERSION_MINOR}.{lib.FTMEM_VERSION_PATCH}"
if text(lib.ftmem_version_string()).split(".")[:2] != HEADER_VERSION.split(".")[:2]:
    raise ImportError(f"ftmem was built for libftmem {HEADER_VERSION}, but {versions()['library']} is installed")
