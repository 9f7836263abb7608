#!/bin/sh
# Linters, formats, types and boundaries: every one runs, and one failure fails the whole.
set -u

bin=.venv/bin
failed=""
check() {
    name=$1
    shift
    if output=$("$@" 2>&1); then
        echo "ok      $name"
    else
        printf 'FAILED  %s\n%s\n' "$name" "$output"
        failed="$failed $name"
    fi
}

check ruff "$bin/ruff" check .
check format "$bin/ruff" format --check .
check mypy "$bin/mypy"
check snakefmt "$bin/snakefmt" --check Snakefile workflow/rules
check snakemake-lint "$bin/snakemake" --lint
check boundaries "$bin/lint-imports" --no-cache

if [ -n "$failed" ]; then
    echo "error: failed:$failed" >&2
    exit 1
fi
