#!/usr/bin/env python3
"""data/tiers.csv as lib/tiers.inc: the constants between allocated, reserved and process.

    tools/gen_tiers.py           writes the table
    tools/gen_tiers.py --check   writes nothing; exit code 1 if the committed table is not what the CSV gives
"""
import csv
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE, TARGET = ROOT / "data" / "tiers.csv", ROOT / "lib" / "tiers.inc"
HEAD = "/* Made by tools/gen_tiers.py from data/tiers.csv, which says where each figure comes from: change it there. */\n"


def table(rows):
    values = {r["name"]: int(r["value"]) for r in rows}
    arches = sorted(int(n.removeprefix("context_sm")) for n in values if re.fullmatch(r"context_sm\d+", n))
    out = [HEAD, "enum {"]
    for r in rows:
        if not re.search(r"_sm\d+$|^sm_usual_\d+$", r["name"]):
            out.append(f"    TIERS_{r['name'].upper()} = {int(r['value'])}, /* {r['unit']}: {r['meaning']} */")
    out += ["    TIERS_END", "};\n", "/* CUDA context and libraries, ascending by architecture. */",
            "static const tiers_context tiers_contexts[] = {", "    /* from sm_arch, KiB per SM, usual SMs */"]
    out += [f"    {{ {a}, {values[f'context_sm{a}']}, {values[f'sm_usual_{a}']} }}," for a in arches]
    return "\n".join(out) + "\n};\n"


def main(arguments):
    with open(SOURCE, newline="", encoding="utf-8") as file:
        text = table(list(csv.DictReader(file)))
    if arguments == ["--check"]:
        if TARGET.read_text(encoding="utf-8") == text:
            return 0
        print("lib/tiers.inc is not what data/tiers.csv gives: run tools/gen_tiers.py", file=sys.stderr)
        return 1
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    TARGET.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
