#!/bin/sh
# run.sh subdir|package|pkgconfig|amalgam SOURCE BUILD: builds and runs the tiny project of that name, in BUILD/consume.
# package and pkgconfig use an installation that was moved to another folder first. 77: a tool for it is missing.
set -eu
kind=$1 source=$2 build=$3
here=$source/tests/consume
work=$build/consume/$kind
config=$source/examples/llama-3.2-1b/config.json
rm -rf "$work"
mkdir -p "$work"

install_moved() { # sets prefix
    cmake --install "$build" --prefix "$work/first" >"$work/install.log"
    mv "$work/first" "$work/moved here"
    prefix="$work/moved here"
    if grep -rIl "$work/first" "$prefix"; then
        echo "these files name the place of installation" >&2
        exit 1
    fi
}
configure_and_build() { # folder, further arguments of cmake
    folder=$1
    shift
    cmake -S "$here/$folder" -B "$work/build" "$@" >"$work/configure.log"
    cmake --build "$work/build" >"$work/build.log"
}

case $kind in
subdir)
    for shared in OFF ON; do
        configure_and_build subdir -DFTMEM_SOURCE_DIR="$source" -DBUILD_SHARED_LIBS=$shared --no-warn-unused-cli
        "$work/build/consume"
        rm -rf "$work/build"
    done
    ;;
package)
    install_moved
    configure_and_build package -DCMAKE_PREFIX_PATH="$prefix"
    for program in ftmem ftmem_static ftmem_shared; do "$work/build/$program"; done
    if [ -x "$work/build/json" ]; then "$work/build/json" "$config"; fi
    cmake -S "$source/examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure-examples.log"
    cmake --build "$work/examples" >"$work/build-examples.log"
    ;;
pkgconfig)
    command -v pkg-config >/dev/null || exit 77
    install_moved
    mv "$prefix" "$work/moved" # the compiler's command line is not quoted by pkg-config's users
    prefix=$work/moved
    found=$(find "$prefix" -name ftmem.pc)
    PKG_CONFIG_PATH=$(dirname "$found")
    LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
    export PKG_CONFIG_PATH LD_LIBRARY_PATH OUT="$work"
    make -s -C "$here/pkgconfig" shared
    "$work/shared"
    if [ -e "$PKG_CONFIG_PATH/ftmem_json.pc" ]; then
        make -s -C "$here/pkgconfig" json
        "$work/json" "$config"
    fi
    rm "$LD_LIBRARY_PATH"/libftmem.so*
    make -s -C "$here/pkgconfig" static
    "$work/static"
    ;;
amalgam)
    strict="-Wall -Wextra -Werror"
    python3 "$source/tools/amalgamate.py" --out "$work"
    cd "$work"
    ${CC:-cc} -std=c11 $strict -c ftmem.c
    ${CC:-cc} -I. "$here/main.c" ftmem.c -lm -o c-host # as the README has it, no flags
    ./c-host
    command -v ${CXX:-c++} >/dev/null || exit 77
    ${CXX:-c++} -std=c++11 $strict -I. "$here/amalgam/host.cpp" ftmem.o -lm -o cxx-host
    ./cxx-host
    ;;
*)
    echo "run.sh: there is no $kind" >&2
    exit 2
    ;;
esac
