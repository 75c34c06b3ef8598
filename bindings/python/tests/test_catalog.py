"""A name of the catalog means what its config.json means."""
from __future__ import annotations

from pathlib import Path

import pytest

import ftmem
from ftmem import _model
from ftmem._ffi import ffi

CONFIGS = Path(__file__).parents[3] / "tests" / "data" / "configs"
NAMES = sorted(path.stem.replace("__", "/", 1) for path in CONFIGS.glob("*__*.json"))


def members(model: _model.Model) -> bytes:
    """The bytes of the C struct, without its name."""
    kind = ffi.typeof("ftmem_model")
    name = dict(kind.fields)["name"]
    raw = bytes(ffi.buffer(model.c))
    return raw[: name.offset] + raw[name.offset + ffi.sizeof(name.type):]


@pytest.mark.parametrize("name", sorted(set(NAMES) & set(ftmem.models())))
def test_name_is_config(name: str) -> None:
    assert members(_model.resolve(name)) == members(_model.resolve(CONFIGS / (name.replace("/", "__", 1) + ".json")))
