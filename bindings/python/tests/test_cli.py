"""The command line: exit codes, one sentence for a mistake, and the JSON documents."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Callable

import ftmem
import pytest
from ftmem import __main__ as cli

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SIZES = {"lower", "expected", "upper"}


def one_sentence(result: subprocess.CompletedProcess[str]) -> str:
    assert result.stderr.startswith("ftmem: ") and result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    "arguments, part",
    [
        ((), "predict"),
        (("frobnicate",), "frobnicate"),
        (("predict",), "model"),
        (("predict", "gpt22"), "gpt2"),
        (("predict", "gpt2", "--batch-size", "-1"), "job.micro_batch"),
        (("predict", "gpt2", "--batch-size", "0"), "job.micro_batch"),
        (("predict", "gpt2", "--batch-size", "many"), "many"),
        (("predict", "gpt2", "--batch-size"), "--batch-size"),
        (("predict", "gpt2", "--bach-size", "2"), "--batch-size"),
        (("predict", "gpt2", "--gpu", "rtx-4091"), "rtx-4090"),
        (("predict", "gpt2", "--rank", "8"), "method"),
        (("predict", "gpt2", "--set", "micro_batch"), "PATH=VALUE"),
        (("predict", "gpt2", "--set", "job.micro_bach=2"), "job.micro_batch"),
        (("predict", "gpt2", "--micro-batch", "2", "--batch-size", "4"), "micro_batch"),
        (("predict", "./missing.json"), "missing.json"),
        (("predict", "."), "config.json"),
        (("predict", "\x1b[31mgpt2"), "gpt2"),
        (("gpus", "rtx-4091"), "rtx-4090"),
        (("models", "nothing of the kind"), "matches"),
        (("fields", "microbach"), "micro_batch"),
    ],
)
def test_bad_input_is_2_and_one_sentence(command: Run, arguments: tuple[str, ...], part: str) -> None:
    result = command(*arguments)
    assert result.returncode == 2, result.stderr
    assert part in one_sentence(result) and "\x1b" not in result.stderr


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model_type": "llama"', '{"model_type": "llama", "hidden_size": "x"}'])
def test_bad_files_are_2(command: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    result = command("predict", "config.json")
    assert result.returncode == 2 and "config.json" in one_sentence(result) or "hidden_size" in result.stderr


@pytest.mark.parametrize("arguments", [("--optim", "galore_adamw_8bit"), ("--method", "boft"), ("--attn-implementation", "flex_attention")])
def test_not_modelled_is_3(command: Run, arguments: tuple[str, ...]) -> None:
    result = command("predict", "gpt2", *arguments, "--json")
    assert result.returncode == 3
    one_sentence(result)
    body = json.loads(result.stdout)
    assert (body["schema"], body["exit_code"], body["error"], body["status"]) == ("ftmem.error/1", 3, "Unsupported", 6)
    assert body["field"] and body["message"]


def test_a_screen(command: Run) -> None:
    result = command("predict", "gpt2", "--batch-size", "2", "--seq-len", "128", "--gradient-checkpointing")
    assert result.returncode == 0 and not result.stderr and "\x1b" not in result.stdout
    assert result.stdout.startswith("NO GPU GIVEN") and "2 x 128" in result.stdout and "recompute" in result.stdout
    assert result.stdout.strip() == str(ftmem.predict("gpt2", batch_size=2, seq_len=128, gradient_checkpointing=True))


def test_a_bare_switch_leaves_the_model_alone(command: Run) -> None:
    wanted = command("predict", "gpt2", "--gradient-checkpointing", "true", "--bf16", "on", "--grad-clip", "false").stdout
    assert wanted and command("predict", "--gradient-checkpointing", "--bf16", "gpt2", "--grad-clip", "off").stdout == wanted


def test_ascii_terminals(command: Run) -> None:
    result = command("predict", "gpt2", PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and "gpt2 ? full" in result.stdout


def test_json(command: Run, config: dict, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = command("predict", "config.json", "--method", "lora", "--set", "job.micro_batch=2", "--gpu", "rtx-4090", "--json")
    body = json.loads(result.stdout)
    assert not result.stderr and result.returncode == body["exit_code"]
    assert set(body) == {
        "schema", "version", "verdict", "fits", "exit_code", "model", "job", "memory", "parameters", "trainable", "flops", "fixes", "your_sum",
        "notes",
    }
    assert body["schema"] == "ftmem.prediction/1" and body["version"] == ftmem.__version__
    assert set(body["memory"]) == {
        "allocated", "reserved", "process", "usable", "components", "phases", "peak", "resident", "kept", "kept_layer", "context", "bound_rows",
        "host", "host_pinned",
    }
    assert all(set(body["memory"][tier]) == SIZES for tier in ("allocated", "reserved", "process"))
    assert set(body["memory"]["components"]) == {"weights", "gradients", "states", "activations", "overhead"}
    assert set(body["memory"]["peak"]) == {"phase", "op", "part", "layer", "kernel", "composition", "largest"}
    assert set(body["memory"]["peak"]["largest"][0]) == {"bytes", "count", "dims", "kind", "dtype", "op", "part"}
    assert all(set(phase) == {"allocated", "process"} for phase in body["memory"]["phases"].values())
    assert body["job"]["job.micro_batch"] == 2 and body["job"]["adapter.kind"] == "lora"
    assert all(set(fix) == {"name", "text", "verdict", "fits", "value", "process"} for fix in body["fixes"])
    assert all(set(note) == {"kind", "field", "value", "text"} for note in body["notes"])
    assert all(type(size) is int for size in sizes(body["memory"]))
    assert body["memory"] == json.loads(json.dumps(ftmem.predict(config, method="lora", micro_batch=2, gpu="rtx-4090").to_dict()))["memory"]


def sizes(node: Any) -> Any:
    if isinstance(node, dict):
        for inner in node.values():
            yield from sizes(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from sizes(inner)
    elif not isinstance(node, str):
        yield node


@pytest.mark.parametrize("verdict, strict, code", [(1, False, 0), (2, False, 11), (2, True, 10), (3, False, 10), (0, False, 0)])
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: int, strict: bool, code: int) -> None:
    p = ftmem.predict("gpt2", gpu="h100")
    p._c.verdict = verdict
    monkeypatch.setattr(ftmem, "predict", lambda *a, **k: p)
    assert cli.main(["predict", "gpt2", *(["--strict"] if strict else [])]) == code
    assert f"exit {code}" in capsys.readouterr().out.splitlines()[0]


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli.main(["predict", "gpt2"]) == 0
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli.main(["predict", "gpt2"]) == 0
    assert "\x1b[" not in capsys.readouterr().out


def test_listings(command: Run) -> None:
    gpus = json.loads(command("gpus", "--json").stdout)
    assert gpus["schema"] == "ftmem.gpus/1" and "rtx-4090" in [g["name"] for g in gpus["gpus"]]
    models = json.loads(command("models", "llama-3.1", "--json").stdout)
    assert models["schema"] == "ftmem.models/1" and "meta-llama/Llama-3.1-8B" in models["models"]
    fields = json.loads(command("fields", "--json").stdout)
    assert fields["schema"] == "ftmem.fields/1" and "job.micro_batch" in [f["path"] for f in fields["fields"]]
    assert command("gpus", "4090").stdout.startswith("rtx-4090")


def test_every_field_has_a_flag() -> None:
    _, predict = cli.build_parser()
    flags = {option for action in predict._actions for option in action.option_strings}
    for f in ftmem.fields():
        assert f.keyword == f.path or cli.flag(f.keyword) in flags, f.path
    assert "--gpu" in flags and "--max-length" in flags
    predict.format_help()


def test_a_reader_that_leaves(command: Run) -> None:
    import sys

    result = subprocess.run(f"'{sys.executable}' -m ftmem models | head -1", shell=True, capture_output=True, text=True, timeout=120)
    assert result.stdout and "Traceback" not in result.stderr and "Exception ignored" not in result.stderr
