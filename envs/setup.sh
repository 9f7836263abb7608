#!/bin/sh
# Make .venv hold exactly envs/requirements.lock; called by `make setup` when the stamp is missing.
#
#   sh envs/setup.sh STAMP    STAMP is written last, so a killed set-up is never taken for a done one;
#                             of one that ends in -paper, which trains nothing, torch is left out
#
# PIP_ARGS adds options to `pip install`, such as an index of CPU-only wheels. `pip download`, which
# fetches Horovod, gets them too and must know them: not --upgrade or --user.
set -eu

stamp=$1
venv=.venv
python=$(sh envs/preflight.sh)

# One set-up at a time: `make test` and `make paper` may be started together.
no_locks() {
    echo "error: $1 cannot be locked, so nothing was installed; put the checkout on a file system with" \
        "locks (of NFS: mounted with lockd, or a local disk)" >&2
    exit 2
}
mkdir -p .cache
exec 8>.cache/setup.lock
flock 8 || no_locks .cache/setup.lock
[ ! -e "$stamp" ] || exit 0

# Without it every program that reads it would say so, and only then would something fail.
if [ ! -f envs/requirements.lock ] || [ ! -r envs/requirements.lock ]; then
    echo "error: envs/requirements.lock is missing or cannot be read, so nothing was installed;" \
        "get it back with git checkout envs/requirements.lock" >&2
    exit 2
fi

# A study that runs here must not lose its packages, and one that starts meanwhile waits for set-up.
mkdir -p .snakemake
exec 9>>.snakemake/samestep.lock
status=0
flock --nonblock 9 || status=$?
[ "$status" -le 1 ] || no_locks .snakemake/samestep.lock
if [ "$status" = 1 ]; then
    echo "error: $venv is in use by $(tail -n 1 .snakemake/samestep.lock), so set-up changes nothing;" \
        "wait for its end or stop it, and run make again" >&2
    exit 2
fi
printf 'process %s on %s since %s: set-up\n' "$$" "$(uname -n)" "$(date '+%F %T %Z')" \
    >.snakemake/samestep.lock

# Packages of an interrupted installation can look whole, and scripts of a moved checkout start
# another Python: both begin anew, which pip's cache makes quick. A symlink to a checkout does not move it.
here=$(pwd -P)
home=$(cat "$venv/.home" 2>/dev/null || echo "$here")
if [ -e "$venv/.installing" ] || [ "$(cd "$home" 2>/dev/null && pwd -P)" != "$here" ] ||
    ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    # Clearing goes through a symlink and empties the environment of whoever it belongs to.
    if [ -L "$venv" ]; then
        echo "error: $venv is a symlink to $(readlink "$venv"), the environment of $home, which set-up" \
            "would clear; remove the symlink and run make again" >&2
        exit 2
    fi
    "$python" -m venv --clear "$venv"
fi

# Packages go into this environment, whatever pip is told to do elsewhere.
unset PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_DRY_RUN PIP_NO_DEPS PIP_CONSTRAINT
echo "setup: installing envs/requirements.lock into $venv (minutes the first time)"
echo "$here" >"$venv/.home"
: >"$venv/.installing"
# Python compiles what it imports at its first import; to compile all took 40 of pip's 77 CPU seconds.
# shellcheck disable=SC2086  # PIP_ARGS is a list of options
install() {
    "$venv/bin/python" -m pip install --quiet --no-compile --no-input --disable-pip-version-check \
        ${PIP_ARGS:-} "$@"
}

# The parts of the lock that name one of these packages, each with its hashes.
locked() {
    awk -v names=" $* " '/^[a-z0-9]/ { split($1, part, "=="); wanted = index(names, " " part[1] " ") }
        wanted' envs/requirements.lock
}

# pip takes hashes for all packages or for none, and torch has none (envs/lock.sh): it comes when all that
# it needs is there but the libraries of CUDA, which its own metadata pins.
case $stamp in *-paper) trains=false ;; *) trains=true ;; esac
if "$trains"; then
    locked filelock fsspec jinja2 markupsafe mpmath networkx numpy sympy typing-extensions \
        cffi cloudpickle packaging psutil pycparser pyyaml setuptools wheel >"$venv/.first.txt"
    install --require-hashes --no-deps --requirement "$venv/.first.txt"
    torch=$(sed -n '/^torch==/p' envs/requirements.lock)
    install "$torch"
    # Horovod needs no more: it is compiled while the rest is fetched.
    "$venv/bin/python" -m envs.build_horovod --compile-only 8>&- 9>&- &
    trap 'kill $! 2>/dev/null' EXIT
fi
sed '/^torch==/d' envs/requirements.lock >"$venv/.hashed.txt"
install --require-hashes --requirement "$venv/.hashed.txt"
wait
trap - EXIT
cp envs/samestep "$venv/bin/samestep"
rm -f "$venv/.installing" "$venv"/.stamp-*
: >"$stamp"
