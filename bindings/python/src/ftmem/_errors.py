"""Exceptions: one class for each status of the C library, all of them below FtmemError."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftmem._prediction import Prediction


class FtmemError(Exception):
    """Anything that ftmem reports. The text is one sentence; the attributes are for programs.

    status: number of the C status, 0 if the error is Python's own
    field:  dotted path of the field ("job.micro_batch"), key of a config or name of an argument; "" if none applies
    value:  the offending value as text
    """

    status: int = 0

    def __init__(self, message: str, field: str = "", value: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        if status is not None:
            self.status = status

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.field, self.value, self.status)


class BadArgument(FtmemError, ValueError):
    """FTMEM_E_ARGUMENT: a call is out of order."""

    status = 1


class BadStructSize(FtmemError, RuntimeError):
    """FTMEM_E_STRUCT_SIZE: the library and this package do not belong together."""

    status = 2


class OutOfRange(FtmemError, ValueError):
    """FTMEM_E_RANGE: a value is outside its field's range."""

    status = 3


class TooLarge(FtmemError, OverflowError):
    """FTMEM_E_OVERFLOW: a product of the given numbers does not fit in 63 bits."""

    status = 4


class Conflict(FtmemError, ValueError):
    """FTMEM_E_CONFLICT: two values contradict each other."""

    status = 5


class Unsupported(FtmemError, NotImplementedError):
    """FTMEM_E_UNSUPPORTED: understood, but not modelled; field and value say what."""

    status = 6


class UnknownName(FtmemError, LookupError):
    """FTMEM_E_UNKNOWN_NAME: no such model, GPU, field or value; the text lists the nearest names."""

    status = 7


class Missing(FtmemError, ValueError):
    """FTMEM_E_MISSING: a required value was not given."""

    status = 8


class WrongType(FtmemError, TypeError):
    """FTMEM_E_TYPE: a value has the wrong type."""

    status = 9


class BufferTooSmall(FtmemError, BufferError):
    """FTMEM_E_BUFFER: the caller's buffer is too small."""

    status = 10


class BadSyntax(FtmemError, ValueError):
    """FTMEM_E_SYNTAX: a JSON document is malformed; the text says where."""

    status = 11


class CannotRead(FtmemError, OSError):
    """FTMEM_E_IO: a file cannot be read."""

    status = 12


class UnknownStatus(FtmemError, RuntimeError):
    """A status that this package does not know."""

    status = -1


class UnknownKeyword(UnknownName, TypeError):
    """A keyword argument or flag that does not exist; the text lists the nearest ones."""


class DoesNotFit(FtmemError):
    """Raised by preflight(). `prediction` carries the figures and, as `prediction.fixes`, what would make it fit."""

    def __init__(self, message: str, prediction: Prediction | None = None) -> None:
        super().__init__(message, "gpu", "")
        self.prediction = prediction

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.prediction)


BY_STATUS: dict[int, type[FtmemError]] = {
    c.status: c
    for c in (
        BadArgument, BadStructSize, OutOfRange, TooLarge, Conflict, Unsupported, UnknownName, Missing, WrongType,
        BufferTooSmall, BadSyntax, CannotRead,
    )
}


def from_status(status: int, message: str, field: str = "", value: str = "") -> FtmemError:
    """The exception for a status of the C library."""
    return BY_STATUS.get(status, UnknownStatus)(message, field, value, status)
