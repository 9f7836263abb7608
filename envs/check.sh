#!/bin/sh
# Linters, formats, types and boundaries: every one runs, and one failure fails the whole.
set -u

bin=.venv/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Run a check; `report` prints what it said when it failed.
check() {
    name=$1
    shift
    "$@" >"$work/$name.log" 2>&1
    echo "$?" >"$work/$name.status"
}
report() {
    if [ "$(cat "$work/$1.status")" = 0 ]; then
        echo "ok      $1"
    else
        echo "FAILED  $1"
        cat "$work/$1.log"
        failed="$failed $1"
    fi
}

# The types take as long as all others together.
check types "$bin/mypy" &
check lint "$bin/ruff" check .
check format "$bin/ruff" format --check .
check workflow-format "$bin/snakefmt" --check Snakefile from_archive.smk workflow/rules
check workflow-lint "$bin/snakemake" --lint
check boundaries "$bin/lint-imports" --no-cache
wait

failed=""
for name in lint format types workflow-format workflow-lint boundaries; do
    report "$name"
done
if [ -n "$failed" ]; then
    echo "error: failed:$failed" >&2
    exit 1
fi
