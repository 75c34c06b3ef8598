#!/usr/bin/env python3
"""data/stacks.csv as lib/stacks.inc: the defaults that a software stack brings.

    tools/gen_stacks.py           writes the table
    tools/gen_stacks.py --check   writes nothing; exit code 1 if the committed table is not what the CSV gives
"""
import csv
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE, TARGET = ROOT / "data" / "stacks.csv", ROOT / "lib" / "stacks.inc"
HEAD = "/* Made by tools/gen_stacks.py from data/stacks.csv, which says where each row comes from: change it there. */\n"
NEWEST = 2**31 - 1


def names():
    """(name table, name) -> C constant."""
    text = (ROOT / "lib" / "names.inc").read_text(encoding="utf-8")
    return {(table, name): constant for table, constant, name in re.findall(r'FTMEM__(?:NAME|ALIAS)\("(\w+)", (\w+), "([^"]+)"\)', text)}


def fields():
    """path -> (kind, name table)."""
    text = (ROOT / "lib" / "fields.inc").read_text(encoding="utf-8")
    return {f"{obj}.{member}": (kind, table) for kind, obj, member, table in re.findall(r'(INT|ENUM|SET)\((\w+), (\w+), "(\w*)"', text)}


def value(row, known, tables):
    kind, table = known[row["field"]]
    if kind == "INT":
        return str(int(row["value"]))
    parts = [tables[table, word] for word in row["value"].split("+")]
    if kind == "SET" and table == "role":
        parts = [f"1 << {p}" for p in parts]
    return " | ".join(parts)


def table(rows):
    tables, known, out = names(), fields(), [HEAD]
    for row in rows:
        when = " | ".join(f"STACK_{w.upper().replace('-', '_')}" for w in row["when"].split()) or "0"
        stack = tables["stack", row["stack"]]
        out.append(f"STACK_DEFAULT({stack}, {row['from'] or 0}, {row['before'] or NEWEST}, \"{row['field']}\", {value(row, known, tables)}, {when})\n")
    return "".join(out)


def main(arguments):
    with open(SOURCE, newline="", encoding="utf-8") as file:
        text = table(list(csv.DictReader(file)))
    if arguments == ["--check"]:
        if TARGET.read_text(encoding="utf-8") == text:
            return 0
        print("lib/stacks.inc is not what data/stacks.csv gives: run tools/gen_stacks.py", file=sys.stderr)
        return 1
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    TARGET.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
