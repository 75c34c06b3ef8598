#!/usr/bin/env python3
"""One C file and one header out of lib/ and include/, to be dropped into any build.

    tools/amalgamate.py [--out dist]      writes OUT/ftmem.c and OUT/ftmem.h;  cc -std=c11 -c OUT/ftmem.c

Every lib/*.c in alphabetical order, lib/*.h once, lib/*.inc wherever it is included. ftmem_json.c, which needs cJSON, is
left out. File-local names (static functions and tables, types, constants) that two files share are renamed in each file
after the first, and a file's macros end with it, so that lib/ may be written as if every file were alone.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXCLUDED = {"ftmem_json.c"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*\n', re.M)
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)", re.M)
# Comments, text and character literals are passed over; what is left is tokens.
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|[0-9][\w.]*|->|\n|[^\w\s]', re.S)
WORD = re.compile(r"[A-Za-z_]\w*\Z")


class Failure(Exception):
    """A message for the user, without a traceback."""


def read(path):
    text = path.read_text(encoding="utf-8")
    return text if text.endswith("\n") else text + "\n"


def blank(match):
    return "\n" * match.group().count("\n") + " "


def tokens(text):
    """Code tokens of a file without preprocessor lines."""
    text = re.sub(r'/\*.*?\*/|//[^\n]*', blank, text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", text, flags=re.M)
    return [t for t in TOKEN.findall(text) if t != "\n"]


def local_names(text):
    """Names at file scope with internal linkage: what may clash once files share a translation unit."""
    names, found = set(), tokens(text)
    depth, start = 0, 0
    for i, token in enumerate(found):
        if token in "([{" and len(token) == 1:
            if depth == 0:
                head = found[start:i]
                if token == "{" and head[:1] == ["enum"] or head[:2] == ["typedef", "enum"]:
                    names.update(enumerators(found, i))
                if token == "{" and len(head) >= 2 and head[-2] in ("struct", "union", "enum"):
                    names.add(head[-1])
                if "static" in head and token in "([" and "=" not in head and WORD.match(head[-1]):
                    names.add(head[-1])
            depth += 1
        elif token in ")]}" and len(token) == 1:
            depth -= 1
            if depth == 0 and token == "}" and found[i + 1 : i + 2] != [";"] and not is_declaration(found[start:i]):
                start = i + 1  # end of a function
        elif depth == 0 and token in ";=":
            head = found[start:i]
            if head[:1] == ["typedef"] and WORD.match(head[-1]):
                names.add(head[-1])
            elif "static" in head and "(" not in head and "=" not in head and WORD.match(head[-1]):
                names.add(head[-1])
            if token == ";":
                start = i + 1
    return names


def is_declaration(head):
    return head[:1] == ["typedef"] or "=" in head or (head[:1] and head[0] in ("struct", "union", "enum") and "(" not in head)


def enumerators(found, brace):
    expected, depth = True, 0
    for token in found[brace + 1 :]:
        if depth == 0 and token == "}":
            return
        depth += token in ("(", "{")
        depth -= token in (")", "}")
        if expected and WORD.match(token):
            yield token
        expected = depth == 0 and token == ","


def rename(text, mapping):
    """Whole identifiers only; members (after . or ->), text and comments stay."""
    last = ""

    def one(match):
        nonlocal last
        token = match.group()
        member, last = last in (".", "->"), token
        return token if member else mapping.get(token, token)

    return TOKEN.sub(one, text)


def inline(path, seen, renames, stack=()):
    """The text of a file with its project includes in place. `seen` maps the headers that are in already to their names."""
    if path in stack:
        raise Failure(f"{path.name} includes itself")

    def one(match):
        name = match.group(1)
        if pathlib.PurePath(name).name == "ftmem.h":
            return ""
        target = (path.parent / name).resolve()
        if not target.is_file():
            raise Failure(f"{path.name} includes {name}, which is not in lib/")
        header = target.suffix == ".h"
        if header and target in seen:
            return ""
        if header:
            seen[target] = local_names(read(target))
        return f"/* {target.name} */\n" + inline(target, seen, {} if header else renames, stack + (path,))

    return INCLUDE.sub(one, rename(read(path), renames))


def version(header):
    parts = [re.search(rf"#define FTMEM_VERSION_{p} (\d+)", header) for p in ("MAJOR", "MINOR", "PATCH")]
    if None in parts:
        raise Failure("include/ftmem.h defines no version")
    return ".".join(p.group(1) for p in parts)


def build(root):
    """The texts of ftmem.c and ftmem.h."""
    header = read(root / "include" / "ftmem.h")
    sources = sorted(p for p in (root / "lib").glob("*.c") if p.name not in EXCLUDED)
    if not sources:
        raise Failure("lib/ holds no C file")
    seen, taken, parts = {}, set(), []
    for path in sources:
        own = local_names(read(path))
        suffix = "__" + re.sub(r"\W", "_", path.stem)
        text = inline(path, seen, {name: name + suffix for name in own & taken.union(*seen.values())})
        taken |= own
        macros = sorted(set(MACRO.findall(read(path))))
        parts.append(f"/* {'-' * 100} {path.name} */\n{text}" + "".join(f"#undef {name}\n" for name in macros))
    head = f"/* libftmem {version(header)}, all of it in one file. Made by tools/amalgamate.py: change lib/, not this. */\n"
    return head + '#include "ftmem.h"\n\n' + "\n".join(parts), header


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the checkout (default: where this script is)")
    parser.add_argument("--out", type=pathlib.Path, help="folder to write to (default: dist in the checkout)")
    options = parser.parse_args()
    out = options.out or options.root / "dist"
    try:
        source, header = build(options.root)
        out.mkdir(parents=True, exist_ok=True)
        for name, text in (("ftmem.c", source), ("ftmem.h", header)):
            target = out / name
            if not target.exists() or target.read_text(encoding="utf-8") != text:  # keeps time stamps for builds
                target.write_bytes(text.encode())
    except (Failure, OSError) as failure:
        sys.exit(f"amalgamate: {failure}")


if __name__ == "__main__":
    main()
