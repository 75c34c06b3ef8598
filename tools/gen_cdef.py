#!/usr/bin/env python3
"""What cffi and mypy need to know of include/ftmem.h, taken from the header itself.

    tools/gen_cdef.py             writes bindings/python/src/ftmem/_ffi.cdef.txt and _ffi.pyi
    tools/gen_cdef.py --check     changes nothing; exit code 1 if one of them is out of date

Structs come out exactly, so that the C compiler's layout is compared with the declared one when the module is used.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = pathlib.Path("bindings/python/src/ftmem")
INTEGER = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(FTMEM_\w+)[ \t]+((?:0[xX][0-9a-fA-F]+|\d+)[uUlL]*)[ \t]*$", re.M)
FUNCTION = re.compile(r"^(?P<type>[\w *]*?[\w*])\s*\b(?P<name>ftmem_\w+)\((?P<arguments>[^()]*)\)$", re.S)
NUMBERS = {"int32_t": "int", "int64_t": "int", "uint32_t": "int", "uint64_t": "int", "size_t": "int", "ftmem_status": "int", "double": "float"}


def statements(header):
    """Declarations in order: (text) without comments, preprocessor lines, C++ parts and FTMEM_API."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    defines = INTEGER.findall(text)
    text = re.sub(r"#ifdef __cplusplus\b.*?#(?:else|endif)[^\n]*", "", text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", text, flags=re.M)
    text = text.replace("FTMEM_API ", "")
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "{") - (c == "}")
        if c == ";" and depth == 0:
            found.append(" ".join(text[start:i].split()))
            start = i + 1
    rest = text[start:].strip()
    if rest:
        raise SystemExit(f"gen_cdef: cannot read the end of the header: {rest[:60]!r}")
    return defines, found


def layout(statement):
    """One member or enumerator a line, for diffs that can be read."""
    if "{" not in statement:
        return statement + ";"
    head, body = statement.split("{", 1)
    body, tail = body.rsplit("}", 1)
    separator = "," if head.split()[-1] == "enum" or "enum" in head.split()[:2] else ";"
    parts = [p.strip() for p in body.split(separator) if p.strip()]
    end = "" if separator == "," else ";"
    joined = (",\n" if separator == "," else "\n").join(f"    {p}{end}" for p in parts)
    return f"{head.strip()} {{\n{joined}\n}}{(' ' + tail.strip()) if tail.strip() else ''};"


def cdef(header):
    defines, found = statements(header)
    lines = ["/* From include/ftmem.h by tools/gen_cdef.py. */"]
    lines += [f"#define {name} {value.rstrip('uUlL')}" for name, value in defines]
    return "\n".join(lines + [layout(s) for s in found]) + "\n"


def argument_type(text):
    if "*" in text or "[" in text:
        return "bytes | CData" if "const char" in text else "CData"
    return NUMBERS[text.split()[-2] if len(text.split()) > 1 else text]


def function_stub(statement):
    match = FUNCTION.match(statement)
    if match is None:
        return None
    arguments = match["arguments"].strip()
    names = []
    if arguments != "void":
        for part in arguments.split(","):
            name = re.search(r"(\w+)\s*(?:\[\w*\])?$", part.strip()).group(1)
            names.append(f"{name}: {argument_type(part.strip())}")
    result = "CData" if "*" in match["type"] else NUMBERS[match["type"].split()[-1]]
    return f"    def {match['name']}({', '.join(['self'] + names + ['/'])}) -> {result}: ..."


def stub(header):
    defines, found = statements(header)
    constants = [name for name, _ in defines]
    functions = []
    for statement in found:
        if statement.startswith("enum"):
            body = statement.split("{", 1)[1].rsplit("}", 1)[0]
            constants += [part.split("=")[0].strip() for part in body.split(",") if part.strip()]
        functions.append(function_stub(statement))
    lines = ['"""From include/ftmem.h by tools/gen_cdef.py."""', "from typing import Any, Final", "", "CData = Any", "ffi: Any", ""]
    lines += ["class _Lib:"] + [f"    {name}: Final[int]" for name in constants] + [f for f in functions if f] + ["", "lib: _Lib"]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the checkout (default: where this script is)")
    options = parser.parse_args()
    header = (options.root / "include" / "ftmem.h").read_text(encoding="utf-8")
    stale = []
    for name, text in (("_ffi.cdef.txt", cdef(header)), ("_ffi.pyi", stub(header))):
        target = options.root / PACKAGE / name
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(PACKAGE / name))
        if not options.check:
            target.write_bytes(text.encode())
    if options.check and stale:
        sys.exit(f"out of date, run tools/gen_cdef.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
