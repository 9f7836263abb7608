#!/bin/sh
# Make .venv hold exactly envs/requirements.lock; called by `make setup` when the stamp is missing.
#
#   sh envs/setup.sh STAMP    STAMP is written last, so a killed set-up is never taken for a done one
#
# PIP_ARGS adds options to `pip install`, such as an index of CPU-only wheels. `pip download`, which
# fetches Horovod, gets them too and must know them: not --upgrade or --user.
set -eu

stamp=$1
venv=.venv
python=$(sh envs/preflight.sh)

# One set-up at a time: `make test` and `make paper` may be started together.
mkdir -p .cache
exec 8>.cache/setup.lock
flock 8
[ ! -e "$stamp" ] || exit 0

# Packages of an interrupted installation can look whole, and scripts of a moved checkout start
# another Python: both begin anew, which pip's cache makes quick.
home=$(cat "$venv/.home" 2>/dev/null || pwd -P)
if [ -L "$venv" ] && [ "$home" != "$(pwd -P)" ]; then
    echo "error: $venv is a symlink to $(readlink "$venv"), the environment of $home, which set-up" \
        "would clear; remove the symlink and run make again" >&2
    exit 1
fi
# Without it every program that reads it would say so, and only then would something fail.
if [ ! -f envs/requirements.lock ] || [ ! -r envs/requirements.lock ]; then
    echo "error: envs/requirements.lock is missing or cannot be read, so nothing was installed;" \
        "get it back with git checkout envs/requirements.lock" >&2
    exit 2
fi
if [ -e "$venv/.installing" ] || [ "$home" != "$(pwd -P)" ] ||
    ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    # Clearing goes through a symlink and empties the environment of whoever it belongs to.
    if [ -L "$venv" ]; then
        echo "error: $venv is a symlink to $(readlink "$venv"), which is not cleared;" \
            "remove the symlink or set the environment up where it lies" >&2
        exit 2
    fi
    "$python" -m venv --clear "$venv"
fi

echo "setup: installing envs/requirements.lock into $venv (minutes the first time)"
pwd -P >"$venv/.home"
: >"$venv/.installing"
# shellcheck disable=SC2086  # PIP_ARGS is a list of options
install() {
    "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check ${PIP_ARGS:-} "$@"
}

# pip takes hashes for all packages or for none, and torch has none (envs/lock.sh): it comes second, when
# all that it needs is there but the libraries of CUDA, which its own metadata pins.
torch=$(sed -n '/^torch==/p' envs/requirements.lock)
sed '/^torch==/d' envs/requirements.lock >"$venv/.hashed.txt"
install --require-hashes --requirement "$venv/.hashed.txt"
install "$torch"
cp envs/samestep "$venv/bin/samestep"
rm -f "$venv/.installing" "$venv"/.stamp-*
: >"$stamp"
