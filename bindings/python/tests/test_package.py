"""Types, and what is generated from the header and from lib/."""
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent.parent
checkout = pytest.mark.skipif(not (ROOT / "tools" / "amalgamate.py").is_file(), reason="not in a checkout")


def test_types() -> None:
    pytest.importorskip("mypy")
    result = subprocess.run([sys.executable, "-m", "mypy", "--strict"], cwd=PACKAGE, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@checkout
def test_generated_files_are_current() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "gen_cdef.py"), "--check"], check=True)


@checkout
def test_one_file_compiles_alone(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([sys.executable, str(ROOT / "tools" / "amalgamate.py"), "--out", str(tmp_path)], check=True)
    subprocess.run([compiler, "-std=c11", "-Wall", "-Wextra", "-c", "ftmem.c", "-o", "ftmem.o"], cwd=tmp_path, check=True)


@checkout
def test_names_that_two_files_share_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "lib").mkdir()
    shutil.copy(ROOT / "include" / "ftmem.h", tmp_path / "include")
    (tmp_path / "lib" / "a.c").write_text(
        "#define N 1\ntypedef struct row { int at; } row;\nenum { LIMIT = 2, REST };\n"
        "static const row table[LIMIT] = { { N }, { 2 } };\nstatic int find(int at) { return table[at].at + REST; }\n"
        'int ftmem__a(void) { return find(1) + (int)sizeof "find"; }\n'
    )
    (tmp_path / "lib" / "b.c").write_text(
        "#define N 3\ntypedef struct row { long find; } row;\nenum { LIMIT = 3 };\n"
        'static const char *const table[LIMIT] = {\n#include "t.inc"\n};\n'
        "static int find(row *at) { return (int)at->find + table[N - 1][0]; }\nint ftmem__b(void) { row one = { .find = 1 }; return find(&one); }\n"
    )
    (tmp_path / "lib" / "t.inc").write_text('"find", "b", "c",\n')
    subprocess.run([sys.executable, str(ROOT / "tools" / "amalgamate.py"), "--root", str(tmp_path)], check=True)
    text = (tmp_path / "dist" / "ftmem.c").read_text()
    assert 'sizeof "find"' in text and '"find", "b", "c",' in text and "find__b" in text
