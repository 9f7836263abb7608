#!/bin/sh
# Name every missing system tool, with the Debian package that holds it, before anything is installed.
#
#   sh envs/preflight.sh      prints the Python to use on stdout; exit 1 when something is missing
#
# PYTHON=/path/to/python3 chooses the interpreter; otherwise the first of python3, python3.14 ...
# python3.11 that is new enough is taken. CXX chooses the C++ compiler.
set -u

missing=""
add() {
    missing="$missing
  $1 - Debian package: $2"
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

python=""
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if command -v "$candidate" >/dev/null 2>&1 && is_new_enough "$candidate"; then
        python=$(command -v "$candidate")
        break
    fi
done

if [ -z "$python" ]; then
    found=$(${PYTHON:-python3} --version 2>&1) || found="none found"
    case $found in Python*) ;; *) found="none found" ;; esac
    add "python 3.11 or later as ${PYTHON:-python3} ($found)" \
        "python3 python3-venv python3-dev (Debian 12 or later)"
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        add "the venv module of $python" "python3-venv"
    "$python" -c 'import os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not os.path.isfile(header))' 2>/dev/null ||
        add "Python.h of $python" "python3-dev"
fi

compiler=""
for candidate in ${CXX:-c++ g++ clang++}; do
    if command -v "$candidate" >/dev/null 2>&1; then
        compiler=$candidate
        break
    fi
done
[ -n "$compiler" ] || add "a C++ compiler (${CXX:-c++, g++ or clang++})" "g++"

command -v cmake >/dev/null 2>&1 || add "cmake" "cmake"
command -v flock >/dev/null 2>&1 || add "flock" "util-linux"

if [ -n "$missing" ]; then
    printf 'error: missing system tools, nothing was installed:%s\n' "$missing" >&2
    printf 'On Debian: apt-get install python3 python3-venv python3-dev g++ cmake make git\n' >&2
    exit 1
fi
printf '%s\n' "$python"
