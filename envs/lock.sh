#!/bin/sh
# Compile the locks beside their .in files with pip-tools: requirements, validator, deepspeed and axe.
#
#   sh envs/lock.sh [options of pip-compile, such as --upgrade]
#
# A lock names no index and no path, and the hashes of all files that PyPI has of a version, so that it
# holds on every platform. torch alone stands without hashes and without the local tag of one index's
# build (`2.13.0+cpu`): each index serves builds of its own of the same version. DeepSpeed's lock leaves
# out what requirements.lock has, since it is installed besides that; axe's holds the one package that is
# asked for, since only a file of it is read.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The parts of the second lock whose package is in the first file, or with `asked=0` those that are not.
parts='NR == FNR { if (/^[a-z].*==/) { sub(/==.*/, ""); has[$0] = 1 }; next }
       /^[a-z].*==/ { package = $0; sub(/==.*/, "", package); skip = (package in has) != asked }
       !skip'

export DS_ACCELERATOR=cpu DS_BUILD_OPS=0 # what DeepSpeed's sdist asks for its metadata
for name in requirements validator deepspeed axe; do
    lock=envs/$name.lock
    # An existing lock holds versions still unless they are asked to move.
    cp "$lock" "$work/$name.lock" 2>/dev/null || :
    CUSTOM_COMPILE_COMMAND="make lock" .venv/bin/pip-compile "$@" --quiet --allow-unsafe --strip-extras \
        --generate-hashes \
        --no-emit-find-links --no-emit-index-url --no-emit-trusted-host --no-emit-options \
        --output-file="$work/$name.lock" "envs/$name.in"
    awk '/^torch==/ { sub(/\+[a-z0-9.]+/, ""); sub(/ \\$/, ""); torch = 1; print; next }
         torch && /^ +--hash=/ { next }
         { torch = 0; print }' "$work/$name.lock" >"$work/clean.lock"
    if grep -nE '(^--|://|@ file)|^[^#]*[[:space:]]/' "$work/clean.lock"; then
        echo "error: the lines above tie $lock to one machine; install from a plain index" >&2
        exit 1
    fi
    case $name in
        deepspeed) awk -v asked=0 "$parts" envs/requirements.lock "$work/clean.lock" >"$lock.new" ;;
        axe) awk -v asked=1 "$parts" envs/axe.in "$work/clean.lock" >"$lock.new" ;;
        *) cp "$work/clean.lock" "$lock.new" ;;
    esac
    mv "$lock.new" "$lock"
done
