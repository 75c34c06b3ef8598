"""The model argument in all its forms, and files that are not what they should be."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ftmem
import pytest


class Config:
    """As transformers' configs behave."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self._name_or_path = "org/some-model"
        self.model_type = values.get("model_type", "")

    def to_dict(self) -> dict[str, Any]:
        return {**self.values, "torch_dtype": Dtype("torch.float32"), "id2label": {0: "LABEL_0", 1: "LABEL_1"}}


class Dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class Parameter:
    def __init__(self, count: int, dtype: str) -> None:
        self.count, self.dtype = count, Dtype(dtype)

    def numel(self) -> int:
        return self.count


class Module:
    def __init__(self, config: Any = None, dtype: str = "torch.float16") -> None:
        self._parameters = [Parameter(5_000_000, dtype), Parameter(2_000_000, dtype)]
        if config is not None:
            self.config = config

    def parameters(self) -> Any:
        return iter(self._parameters)


def bytes_of(model: Any, **keywords: Any) -> int:
    return ftmem.predict(model, **keywords).memory.allocated.expected


def test_dict_file_folder_and_object_agree(config: dict, tmp_path: Path) -> None:
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    wanted = bytes_of(config)
    for model in (folder, str(folder), folder / "config.json", str(folder / "config.json"), Config(config)):
        assert bytes_of(model) == wanted
    assert ftmem.predict(folder).job.label == ftmem.predict(Config(config)).job.label == "some-model"


def test_relative_folder(config: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("\ufeff" + json.dumps(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert bytes_of("out") == bytes_of("./out") == bytes_of(config)


def test_cache_is_read_offline(config: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models--org--private"
    for commit, layers in (("aaaa", 2), ("bbbb", 4), ("cccc", 6)):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbbb")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert bytes_of("org/private") == bytes_of(config)
    assert ftmem.predict("org/private").job.label == "private"
    with pytest.raises(ftmem.UnknownName):
        ftmem.predict("org/../private")


def test_modules(config: dict) -> None:
    p = ftmem.predict(Module(Config(config)))
    assert p.job.resolved()["job.dtype"] == "fp16"
    assert p.memory.allocated == ftmem.predict(config, dtype="fp16").memory.allocated
    assert bytes_of(Module(Config(config)), precision="fp32") == bytes_of(config, precision="fp32")
    bare = ftmem.predict(Module())
    assert bare.memory.allocated == ftmem.predict(7_000_000, dtype="fp16").memory.allocated


def test_counts() -> None:
    wanted = bytes_of(7e9)
    assert wanted == bytes_of("7B") == bytes_of("7b") == bytes_of(7_000_000_000) == bytes_of("7e9") == bytes_of("7_000M")
    assert bytes_of("350M") < wanted
    assert ftmem.predict("7B").job.label == "7B parameters"
    assert any(note.kind == "inferred" for note in ftmem.predict("7B").notes)


def test_explicit_dimensions(config: dict) -> None:
    by_hand = ftmem.predict(hidden=256, ffn=688, layers=4, heads=8, kv_heads=4, vocab=1000, tied=False)
    assert by_hand.parameters == ftmem.predict(config).parameters
    assert ftmem.predict(config, vocab=2000).parameters > by_hand.parameters


@pytest.mark.parametrize("model", [True, object(), b"gpt2", [1, 2]])
def test_no_model(model: Any) -> None:
    with pytest.raises(ftmem.WrongType):
        ftmem.predict(model)


@pytest.mark.parametrize("model", ["", "  ", "gpt2\0", 5.0, -1e9, float("nan"), float("inf"), "9e99", None])
def test_useless_model(model: Any) -> None:
    with pytest.raises(ftmem.FtmemError):
        ftmem.predict(model)


HOSTILE = {
    "empty": b"",
    "truncated": b'{"model_type": "llama", "hidden_size": 2',
    "nothing but brackets": b"[" * 100_000,
    "deep objects": b'{"a":' * 40 + b"1" + b"}" * 40,
    "deeper objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "not text": b"\xff\xfe\x00\x01",
    "array": b"[]",
    "null": b"null",
    "number": b"12",
    "text": b'"llama"',
    "long number": b'{"model_type": "llama", "hidden_size": ' + b"9" * 10_000 + b"}",
    "wide number": b'{"model_type": "llama", "hidden_size": 99999999999999999999}',
    "infinite": b'{"model_type": "llama", "hidden_size": 1e999}',
    "nan": b'{"model_type": "llama", "hidden_size": NaN}',
    "negative": b'{"model_type": "llama", "hidden_size": -4096}',
    "wrong type": b'{"model_type": "llama", "hidden_size": "4096"}',
    "no type": b'{"hidden_size": 4096}',
    "type is a list": b'{"model_type": ["llama"]}',
    "zero character": b'{"model_type": "llama\\u0000", "hidden_size": 64}',
    "zero character in a key": b'{"model_type\\u0000": "llama"}',
    "lone surrogate": b'{"model_type": "\\ud800"}',
    "absurd": b'{"model_type": "llama", "hidden_size": 9000000000000000000, "num_hidden_layers": 9000000000000000000}',
    "other family": b'{"model_type": "mamba"}',
    "many keys": b"{" + b",".join(b'"k%d": 0' % i for i in range(100_001)) + b"}",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ftmem.FtmemError) as caught:
        ftmem.predict(path)
    assert str(caught.value) and "\n" not in str(caught.value)


def test_every_truncation(config: dict, tmp_path: Path) -> None:
    path, whole = tmp_path / "config.json", json.dumps(config)
    for length in range(len(whole)):
        path.write_text(whole[:length])
        with pytest.raises(ftmem.BadSyntax, match=r"config\.json:1:\d+: "):
            ftmem.predict(path)


def test_place_of_the_mistake(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n  "model_type": "llama",\n  "hidden_size": 4096 "x"\n}')
    with pytest.raises(ftmem.BadSyntax, match=r"config\.json:3:23: not valid JSON: Expecting ',' delimiter\.$"):
        ftmem.predict(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ftmem.CannotRead, match="No such file"):
        ftmem.predict(tmp_path / "missing.json")
    with pytest.raises(OSError):
        ftmem.predict(tmp_path)
    with pytest.raises(ftmem.CannotRead):
        ftmem.predict(Path("\0"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.json")
        with pytest.raises(ftmem.CannotRead, match="regular"):
            ftmem.predict(tmp_path / "pipe.json")
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(ftmem.CannotRead, match="larger"):
        ftmem.predict(tmp_path / "large.json")


def test_config_that_is_its_own_part(config: dict) -> None:
    config["self"] = config
    with pytest.raises(ftmem.Unsupported, match="deep"):
        ftmem.predict(config)
