"""What the library knows: GPUs, models, fields, and the handbook's rules of thumb."""
from __future__ import annotations

import fnmatch

from ftmem._core import CData, call, encode, ffi, lib, new, text
from ftmem._errors import UnknownName, WrongType
from ftmem._types import Gpu


def make_gpu(c: CData) -> Gpu:
    return Gpu(text(c.name), c.memory_bytes, c.torch_bytes, c.sm_arch, c.sm_count, c.vendor)


def gpu(name: str) -> Gpu:
    """A GPU by catalog key ("rtx-4090"), by what people type ("A100 80GB"), by memory ("24GB"), or a MIG slice."""
    if not isinstance(name, str):
        raise WrongType(f"the name of a GPU is a text, not {name!r}.", "gpu", str(name))
    found = new("ftmem_gpu")
    call(lib.ftmem_gpu_find, encode(name, "gpu"), found)
    return make_gpu(found)


def gpus() -> tuple[Gpu, ...]:
    """The GPUs of the catalog."""
    found, made = new("ftmem_gpu"), []
    for index in range(lib.ftmem_gpu_count()):
        if lib.ftmem_gpu_at(index, found) == lib.FTMEM_OK:
            made.append(make_gpu(found))
    return tuple(made)


def models(pattern: str = "") -> tuple[str, ...]:
    """Names of the catalog's models: all, those that contain a text, or those that match a pattern such as "*8b*"."""
    names = (text(lib.ftmem_model_name_at(i)) for i in range(lib.ftmem_model_count()))
    word = pattern.lower()
    if any(c in word for c in "*?["):
        return tuple(n for n in names if fnmatch.fnmatchcase(n.lower(), word))
    return tuple(n for n in names if word in n.lower())


def _dtype(dtype: str) -> int:
    value = ffi.new("int32_t *")
    try:
        call(lib.ftmem_enum_parse, b"dtype", encode(dtype, "dtype"), value)
    except UnknownName as error:
        raise UnknownName(error.message, "dtype", dtype) from None
    return int(value[0])


def handbook_bytes_per_parameter(dtype: str) -> float:
    """fp32 4, bf16 and fp16 2, int8 1, nf4 and fp4 0.5. Quoted, not endorsed."""
    return lib.ftmem_handbook_bytes_per_parameter(_dtype(dtype))


def handbook_full_bytes(parameters: float, dtype: str = "bf16") -> float:
    """Weights, gradients and states of full AdamW training by the handbook's rule, bytes."""
    return lib.ftmem_handbook_full_bytes(parameters, _dtype(dtype))


def handbook_estimate_bytes(parameters: float, batch_size: float = 1, seq_len: float = 1024, dtype: str = "bf16") -> float:
    """The handbook's estimate_memory, bytes; compare it with predict()."""
    return lib.ftmem_handbook_estimate_bytes(parameters, batch_size, seq_len, _dtype(dtype))
