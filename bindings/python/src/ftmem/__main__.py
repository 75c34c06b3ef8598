"""The command `ftmem`, also `python -m ftmem`."""
from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, NoReturn, Sequence

import ftmem
from ftmem._core import names
from ftmem._errors import FtmemError, Unsupported
from ftmem._fields import keyword_of, keywords, nearest, table
from ftmem._job import ALIASES, EXPANDERS, OFF, ON, PRECISIONS, methods

EPILOG = "exit codes: 0 fits, or no GPU given; 10 does not fit; 11 fits only in a part of the interval; 2 bad input; 3 not modelled"
FRIENDLY_HELP = {
    "gpu": 'name ("4090", "A100 80GB", "24GB"), or "auto"',
    "method": "one of " + ", ".join(methods()),
    "precision": "one of " + ", ".join(PRECISIONS) + "; amp_ is autocast over fp32 weights",
    "gradient_checkpointing": "true, false or reentrant", "activation_checkpointing": "the same",
    "bf16": "autocast to bf16, as Trainer's bf16", "fp16": "autocast to fp16, as Trainer's fp16",
    "use_liger_kernel": "Liger-Kernel: fused linear cross-entropy, norm, rotation and MLP", "optim": "transformers' name of the optimizer",
    "optim_args": 'as transformers has them ("rank=64")', "optim_target_modules": "where GaLore and APOLLO project: attn and mlp",
    "attn_implementation": "sdpa, eager or flash_attention_2",
}
SWITCH_WORDS = (*ON, *OFF, *names("switch"), *names("recompute"))
BARE_TRUE = ("gradient_checkpointing", "activation_checkpointing", "recompute", "bf16", "fp16", "use_liger_kernel")


class BadUsage(Exception):
    """A command line that cannot be read."""


class Parser(argparse.ArgumentParser):
    """Says one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise BadUsage(message)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def build_parser() -> tuple[Parser, Parser]:
    top = Parser(prog="ftmem", description="How much GPU memory a fine-tuning run will need.", epilog=EPILOG, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"ftmem {ftmem.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    predict = commands.add_parser(
        "predict", help="memory of one job", usage="ftmem predict MODEL [--FIELD VALUE ...]", epilog=EPILOG, allow_abbrev=False
    )
    predict.add_argument("model", metavar="MODEL", nargs="?", help="name, path to config.json or its folder, or a parameter count such as 7B")
    predict.add_argument("--json", action="store_true", help="schema ftmem.prediction/1 on standard output")
    predict.add_argument("--strict", action="store_true", help="exit with 10 also where only a part of the interval fits")
    predict.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="any field by its path, job.micro_batch=4")
    add_fields(predict)
    for name, text in (("gpus", "the GPUs that are known"), ("models", "the models that are known"), ("fields", "every field and flag")):
        listing = commands.add_parser(name, help=text, allow_abbrev=False)
        listing.add_argument("pattern", metavar="PATTERN", nargs="?", default="", help="a part of the name")
        listing.add_argument("--json", action="store_true")
    return top, predict


def add_fields(parser: Parser) -> None:
    """A flag for every friendly keyword and every row of the field table."""
    friendly = parser.add_argument_group("common")
    for name in dict.fromkeys(("gpu", *EXPANDERS, *ALIASES)):
        if "." in name or len(name) == 1 or name == "rank_pattern":  # a mapping is no word
            continue
        text = FRIENDLY_HELP.get(name) or f"same as {flag(keyword_of(table()[ALIASES[name]]))}" if name in ALIASES else FRIENDLY_HELP.get(name, "")
        add_flag(friendly, name, text or table()[keywords()[name]].doc)
    groups = {name: parser.add_argument_group(f"{name} fields") for name in ("job", "adapter", "gpu", "model")}
    for row in table().values():
        name = keyword_of(row)
        if name != row.path and name not in EXPANDERS and name not in ALIASES:
            add_flag(groups[row.object], name, f"{row.doc}{f' ({row.unit})' if row.unit else ''}; default: {row.default}")


def add_flag(group: Any, name: str, text: str) -> None:
    bare = {"nargs": "?", "const": "true"} if may_be_bare(name) else {}
    group.add_argument(flag(name), dest=f"field {name}", metavar="X", help=text.replace("%", "%%"), **bare)


def may_be_bare(name: str) -> bool:
    """A switch, whose flag alone means true."""
    path = keywords().get(name)
    return name in BARE_TRUE or (path is not None and table()[path].enum == "switch")


def spell_out(arguments: Sequence[str]) -> list[str]:
    """`--bf16 gpt2` as `--bf16=true gpt2`: a bare flag must not take the model for its value."""
    found = []
    for word, following in zip(arguments, [*arguments[1:], ""]):
        bare = word.startswith("--") and may_be_bare(word[2:].replace("-", "_"))
        found.append(f"{word}=true" if bare and following.lower() not in SWITCH_WORDS else word)
    return found


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of predict() that the command line holds."""
    found = {key[6:]: value for key, value in vars(options).items() if key.startswith("field ") and value is not None}
    for pair in options.set:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            raise BadUsage(f"--set {pair}: write PATH=VALUE, such as --set job.micro_batch=4")
        found[path.strip()] = value
    return found


def run_predict(options: argparse.Namespace) -> int:
    keywords_given = given(options)
    if options.model is None and not any(keywords().get(k, k).startswith("model.") for k in keywords_given):
        raise BadUsage("predict needs a model: a name, a path, a parameter count, or --hidden, --layers, --heads and --vocab")
    prediction = ftmem.predict(options.model, **keywords_given)
    code = prediction.exit_code
    code = 10 if options.strict and code == 11 else code
    if options.json:
        print(json.dumps({**prediction.to_dict(), "exit_code": code}, indent=2))
    else:
        show(prediction, code)
    return code


def show(prediction: ftmem.Prediction, code: int) -> None:
    """Colours on a terminal, plain text elsewhere and under NO_COLOR."""
    from ftmem import _render

    lines = _render.lines(prediction, code)
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        print(_render.join(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*line))


def run_gpus(options: argparse.Namespace) -> int:
    found = [g for g in ftmem.gpus() if options.pattern.lower() in g.name.lower()]
    if options.json:
        keep = ("name", "memory_bytes", "torch_bytes", "sm_arch", "sm_count", "vendor")
        print(json.dumps({"schema": "ftmem.gpus/1", "gpus": [{k: getattr(g, k) for k in keep} for g in found]}, indent=2))
    else:
        for g in found:
            print(f"{g.name:<32}{g.memory_bytes / (1 << 30):>9.2f} GiB   sm_{g.sm_arch}")
    return listed(found, options.pattern, [g.name for g in ftmem.gpus()])


def run_models(options: argparse.Namespace) -> int:
    found = ftmem.models(options.pattern)
    print(json.dumps({"schema": "ftmem.models/1", "models": found}, indent=2) if options.json else "\n".join(found))
    return listed(found, options.pattern, ftmem.models())


def run_fields(options: argparse.Namespace) -> int:
    found = [f for f in ftmem.fields() if options.pattern.lower() in f.path.lower()]
    if options.json:
        keep = ("path", "keyword", "type", "unit", "values", "minimum", "maximum", "default", "doc")
        print(json.dumps({"schema": "ftmem.fields/1", "fields": [{k: getattr(f, k) for k in keep} for f in found]}, indent=2))
    else:
        for f in found:
            print(f"{f.path:<28}{flag(f.keyword) if f.keyword != f.path else '':<28}{f.doc}; default: {f.default}")
    return listed(found, options.pattern, [f.path for f in ftmem.fields()])


def listed(found: Sequence[Any], pattern: str, names: Sequence[str]) -> int:
    """Nothing found for a pattern is an answer, and a hint."""
    if found or not pattern:
        return 0
    close = nearest(pattern, names)
    print(f"ftmem: nothing matches {pattern}" + (f"; nearest: {', '.join(close)}" if close else ""), file=sys.stderr)
    return 2


RUN = {"predict": run_predict, "gpus": run_gpus, "models": run_models, "fields": run_fields}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    top, predict = build_parser()
    options, extra = top.parse_known_args(spell_out(sys.argv[1:] if arguments is None else arguments))
    if extra:
        known = [o for a in predict._actions for o in a.option_strings] if options.command == "predict" else []
        word = extra[0].split("=")[0]
        close = nearest(word, known) if word.startswith("--") else []
        raise BadUsage(f"{word} is not known here" + (f"; did you mean {' or '.join(close)}?" if close else ""))
    if options.command is None:
        raise BadUsage(f"say what to do: {', '.join(RUN)}; ftmem --help tells more")
    return options


def report(message: str, code: int, as_json: bool, error: FtmemError | None = None) -> int:
    """One sentence on standard error; with --json also a document on standard output."""
    print("ftmem: " + "".join(c if c.isprintable() else "?" for c in " ".join(message.split())), file=sys.stderr)
    if as_json:
        body = {"schema": "ftmem.error/1", "exit_code": code, "message": message}
        if error is not None:
            body.update(error=type(error).__name__, status=error.status, field=error.field, value=error.value)
        print(json.dumps(body, indent=2))
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that has no "·" gets "?"
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        options = parse(arguments)
        code = RUN[options.command](options)
        sys.stdout.flush()
        return code
    except BadUsage as error:
        return report(str(error), 2, as_json)
    except Unsupported as error:
        return report(error.message, 3, as_json, error)
    except FtmemError as error:
        return report(error.message, 2, as_json, error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return 141
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
