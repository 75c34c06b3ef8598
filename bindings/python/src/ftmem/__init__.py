"""How much GPU memory a fine-tuning run will need, before it is launched.

    import ftmem
    p = ftmem.predict("meta-llama/Llama-3.1-8B", method="qlora", rank=16, batch_size=2, seq_len=4096,
                      gradient_checkpointing=True, gpu="rtx-4090")
    print(p)                    # the whole table
    p.fits, p.memory.process.upper, p.memory.peak.phase, p.fixes
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftmem._catalog import gpu, gpus, handbook_bytes_per_parameter, handbook_estimate_bytes, handbook_full_bytes, models
    from ftmem._core import HEADER_VERSION as __version__, versions
    from ftmem._errors import (
        BadArgument, BadStructSize, BadSyntax, BufferTooSmall, CannotRead, Conflict, DoesNotFit, FtmemError, Missing, OutOfRange,
        TooLarge, UnknownKeyword, UnknownName, UnknownStatus, Unsupported, WrongType,
    )
    from ftmem._fields import fields
    from ftmem._job import Job, prepare
    from ftmem._prediction import MemoryEstimate, Prediction, Predictions, estimate_memory, predict, predict_many
    from ftmem._preflight import preflight
    from ftmem._types import Components, Field, Fix, Gpu, Memory, Note, Parameters, Peak, Phase, Range, Tensor, Term

# Names are loaded when they are first used, so that importing ftmem costs next to nothing.
_HOMES = {
    "_catalog": "gpu gpus handbook_bytes_per_parameter handbook_estimate_bytes handbook_full_bytes models",
    "_core": "versions",
    "_errors": "BadArgument BadStructSize BadSyntax BufferTooSmall CannotRead Conflict DoesNotFit FtmemError Missing OutOfRange "
    "TooLarge UnknownKeyword UnknownName UnknownStatus Unsupported WrongType",
    "_fields": "fields",
    "_job": "Job prepare",
    "_prediction": "MemoryEstimate Prediction Predictions estimate_memory predict predict_many",
    "_preflight": "preflight",
    "_types": "Components Field Fix Gpu Memory Note Parameters Peak Phase Range Tensor Term",
}
_HOME = {name: home for home, listed in _HOMES.items() for name in listed.split()}

__all__ = [
    "BadArgument", "BadStructSize", "BadSyntax", "BufferTooSmall", "CannotRead", "Components", "Conflict", "DoesNotFit", "Field", "Fix",
    "FtmemError", "Gpu", "Job", "Memory", "MemoryEstimate", "Missing", "Note", "OutOfRange", "Parameters", "Peak", "Phase",
    "Prediction", "Predictions", "Range", "Tensor", "Term", "TooLarge", "UnknownKeyword", "UnknownName", "UnknownStatus",
    "Unsupported", "WrongType", "__version__", "estimate_memory", "fields", "gpu", "gpus", "handbook_bytes_per_parameter",
    "handbook_estimate_bytes", "handbook_full_bytes", "models", "predict", "predict_many", "preflight", "prepare", "versions",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        return importlib.import_module("ftmem._core").HEADER_VERSION
    if name not in _HOME:
        raise AttributeError(f"module 'ftmem' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ftmem.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
