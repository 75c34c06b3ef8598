"""Builds ftmem._ffi with cffi in API mode: the compiler checks every declaration against ftmem.h.

The C library is compiled into the extension, as one file. In a checkout that file is made from ../../lib whenever the
package is built; a source distribution carries its own copy in csrc/. FTMEM_USE_SYSTEM=1 links an installed libftmem
instead, and fails if there is none.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
CSRC = HERE / "csrc"
AMALGAMATE = HERE.parent.parent / "tools" / "amalgamate.py"
USE_SYSTEM = os.environ.get("FTMEM_USE_SYSTEM", "0") not in ("", "0")


def refresh():
    """csrc/ftmem.c and csrc/ftmem.h as lib/ says now; a source distribution (it has PKG-INFO) is left as it is."""
    if USE_SYSTEM:
        return
    if AMALGAMATE.is_file() and not (HERE / "PKG-INFO").exists():
        subprocess.run([sys.executable, str(AMALGAMATE), "--out", str(CSRC)], check=True)
    elif not (CSRC / "ftmem.c").is_file():
        raise SystemExit("ftmem: neither ../../tools/amalgamate.py nor csrc/ftmem.c is here: the C library is missing")


def version():
    """From the header; a source distribution without its copy of C still has PKG-INFO."""
    if (HERE / "PKG-INFO").exists():
        return re.search(r"^Version: (.+)$", (HERE / "PKG-INFO").read_text(encoding="utf-8"), re.M).group(1)
    header = (HERE.parent.parent / "include" / "ftmem.h").read_text(encoding="utf-8")
    return re.search(r'FTMEM_VERSION_STRING "(.+)"', header).group(1)


def source():
    """Arguments of FFI.set_source after the module's name."""
    if USE_SYSTEM:
        return {"source": "#include <ftmem.h>", "libraries": ["ftmem"]}
    flags = [] if os.name == "nt" else ["-std=c11", "-O2", "-ffp-contract=off", "-fvisibility=hidden"]
    return {
        "source": '#include "ftmem.h"',
        "sources": ["csrc/ftmem.c"],  # relative: objects stay below build/
        "include_dirs": ["csrc"],
        "depends": ["csrc/ftmem.h"],
        "define_macros": [("FTMEM_API", "")],  # no symbol leaves the extension
        "extra_compile_args": flags,
        "libraries": [] if os.name == "nt" else ["m"],
    }


refresh()
ffibuilder = FFI()
ffibuilder.cdef((HERE / "src" / "ftmem" / "_ffi.cdef.txt").read_text(encoding="utf-8"))
ffibuilder.set_source("ftmem._ffi", **source())

if __name__ == "__main__":
    os.chdir(HERE)
    ffibuilder.compile(verbose=True)
