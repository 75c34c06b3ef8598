#!/bin/sh
# ./setup.sh        installs the Python package into .venv and predicts a first job
# ./setup.sh test   installs what the tests need and runs every test, C and Python
# Missing Debian packages are installed as root or with sudo; where that cannot be, the line to type is printed.
set -eu
cd "$(dirname "$0")"
goal=${1:-install}
case $goal in install | test) ;; *) sed -n '2,3s/^# //p' "$0" && exit 2 ;; esac

has() { command -v "$1" >/dev/null 2>&1; }
missing_packages() {
    has python3 || echo python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || echo python3-dev
    has cc || echo gcc
    echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 || echo libc6-dev
    [ "$goal" = test ] || return 0
    has cmake || echo cmake
    has make || echo make
    has c++ || echo g++
    has pkg-config || echo pkg-config
    pkg-config --exists cmocka 2>/dev/null || echo libcmocka-dev
    pkg-config --exists libcjson 2>/dev/null || echo libcjson-dev
}
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y "$@" >/dev/null; }

missing=$(missing_packages | xargs)
if [ -n "$missing" ]; then
    line="apt-get install $missing"
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    if has apt-get && { [ -z "$as_root" ] || has sudo; }; then
        echo "setup: $line"
        apt install --no-install-recommends $missing 2>/dev/null || { apt update && apt install --no-install-recommends $missing; } || true
        missing=$(missing_packages | xargs)
    fi
    if [ -n "$missing" ]; then
        echo "setup: as root, run: $line" >&2
        exit 1
    fi
fi

python=.venv/bin/python
$python -c '' 2>/dev/null || python3 -m venv --clear .venv
pip() { $python -m pip --disable-pip-version-check -q "$@"; }
$python -c 'import cffi, setuptools, wheel' 2>/dev/null || pip install 'cffi>=1.15' 'setuptools>=61' wheel
extra=
[ "$goal" = install ] || extra='[test]'
pip install --no-build-isolation "./bindings/python$extra"

if [ "$goal" = install ]; then
    echo '.venv/bin/ftmem predict examples/llama-3.2-1b/config.json --method lora --rank 16 --batch-size 4 --seq-len 2048 --gpu rtx-4090'
    .venv/bin/ftmem predict examples/llama-3.2-1b/config.json --method lora --rank 16 --batch-size 4 --seq-len 2048 --gpu rtx-4090 ||
        [ $? -eq 10 ] || [ $? -eq 11 ] # "does not fit" is an answer
    exit
fi

jobs=$(getconf _NPROCESSORS_ONLN)
cmake -S . -B build/test -DFTMEM_JSON=ON -DFTMEM_TESTS=ON >/dev/null
cmake --build build/test -j "$jobs"
ctest --test-dir build/test --output-on-failure -j "$jobs"
$python -m pytest bindings/python
$python -m pytest tests/accuracy
