#!/bin/sh
# Name every missing system tool, with the Debian package that holds it, before anything is installed.
#
#   sh envs/preflight.sh      prints the Python to use on stdout; exit 1 when something is missing
#
# PYTHON=/path/to/python3 chooses the interpreter; otherwise the first of python3, python3.14 ...
# python3.11 that is new enough is taken. What only Horovod needs, envs/build_horovod.py asks for.
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
    version=$(${PYTHON:-python3} --version 2>&1) || version="none found"
    case $version in Python*) ;; *) version="none found" ;; esac
    add "python 3.11 or later as ${PYTHON:-python3} ($version)" \
        "python3 python3-venv (Debian 12 or later)"
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        add "the venv module of $python" "python3-venv"
fi

command -v flock >/dev/null 2>&1 || add "flock" "util-linux"

if [ -n "$missing" ]; then
    printf 'error: missing system tools, nothing was installed:%s\n' "$missing" >&2
    printf 'On Debian: apt-get install python3 python3-venv python3-dev g++ cmake make git\n' >&2
    exit 1
fi
printf '%s\n' "$python"
