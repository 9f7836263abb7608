#!/bin/sh
# Run Snakemake so that a killed run can simply be started again.
#
#   sh envs/run_workflow.sh [arguments of snakemake]
#
# Snakemake's own lock is a file that survives SIGKILL. Here the kernel's lock, which does not, decides
# who works in this folder; a left-over lock file is removed only when no Snakemake is alive here.
set -eu

# A person's profile is for another workflow, unless it is asked for; and Python finds the packages
# of the lock, whatever the shell says.
if [ -n "${SNAKEMAKE_PROFILE:-}" ]; then
    echo "note: SNAKEMAKE_PROFILE is not used here; give --profile $SNAKEMAKE_PROFILE for it" >&2
fi
# So has a shell that a person sets up: rules run in bash, which would read that first.
unset SNAKEMAKE_PROFILE BASH_ENV
for name in $(env | sed -n 's/^\(PYTHON[A-Z0-9_]\{1,\}\)=.*/\1/p'); do
    unset "$name"
done

# Snakemake and its plugin for SLURM call these on every machine, and print a traceback without them.
for program in flock which; do
    if ! command -v "$program" >/dev/null; then
        echo "error: the program '$program' is missing; install the package that has it (Debian:" \
            "util-linux for flock, debianutils for which)" >&2
        exit 2
    fi
done

snakemake=.venv/bin/snakemake
here=$(pwd -P)
# rules call `python`: the one that the lock was installed for
PATH=$here/.venv/bin:$PATH
export PATH

# What still works in this folder: a Snakemake that was started by hand, without the kernel's lock, or
# a stage that outlived its Snakemake and would write the same files as its successor.
others() {
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/cwd" 2>/dev/null)" = "$here" ] || continue
        case $(readlink "$process/exe" 2>/dev/null) in *python*) ;; *) continue ;; esac
        # What only looks on (`watch`), and what waits for this script (`follow`), writes no result.
        words=$(tr '\0' '\n' <"$process/cmdline" 2>/dev/null) || continue
        if echo "$words" | grep -Eq '(^|/)snakemake$|^pipeline(\.[a-z.]+)?$' &&
            ! echo "$words" | grep -Eqx 'watch|follow'; then
            echo "${process#/proc/} ($(echo "$words" | tr '\n' ' ' | cut -c 1-100))"
        fi
    done
}

has_locks() {
    [ -n "$(find .snakemake/locks -type f 2>/dev/null | head -n 1)" ]
}

mkdir -p .snakemake
# Snakemake asks for the user's name and keeps a cache; in a container there may be neither.
id -un >/dev/null 2>&1 || export USER="${USER:-user$(id -u)}"
cache=${XDG_CACHE_HOME:-${HOME-}/.cache}/snakemake
if ! mkdir -p "$cache" 2>/dev/null || [ ! -w "$cache" ]; then
    export XDG_CACHE_HOME="$here/.snakemake/cache"
    mkdir -p "$XDG_CACHE_HOME"
    echo "note: $cache cannot be written; caches go to $XDG_CACHE_HOME" >&2
fi
# Appending: who waits must not remove what the holder has written of itself.
exec 9>>.snakemake/samestep.lock
# True where the lock is had within so many seconds, false where another has it. Another status than 1
# is no lock of another's, but a call that failed (no locks on NFS, for example).
is_ours() {
    status=0
    flock --timeout "$1" 9 || status=$?
    if [ "$status" -gt 1 ]; then
        echo "error: .snakemake/samestep.lock cannot be locked; put the checkout on a file system" \
            "with locks (of NFS: mounted with lockd, or a local disk)" >&2
        exit 2
    fi
    [ "$status" = 0 ]
}

if ! is_ours 0; then
    echo "note: another run works in this folder; waiting for it to end:" \
        "$(tail -n 1 .snakemake/samestep.lock)" >&2
    noted=""
    until is_ours 1; do
        holder=$(sed -n 's/^process \([0-9][0-9]*\) on .*/\1/p' .snakemake/samestep.lock | tail -n 1)
        if [ -n "$holder" ] && [ "$noted" != "$holder" ] &&
            grep -q '^State:[[:space:]]*T' "/proc/$holder/status" 2>/dev/null; then
            noted=$holder
            echo "note: process $holder, which works here, is stopped; \`kill -CONT $holder\`" \
                "continues it, \`kill -KILL $holder\` ends it and what it finished stays" >&2
        fi
    done
fi
printf 'process %s on %s since %s: snakemake %s\n' "$$" "$(uname -n)" "$(date '+%F %T %Z')" "$*" \
    >.snakemake/samestep.lock

if has_locks; then
    noted=""
    while busy=$(others) && [ -n "$busy" ]; do
        [ -n "$noted" ] || echo "note: still at work here: process" $busy"; waiting for its end" >&2
        noted=yes
        sleep 1
    done
    if has_locks; then
        echo "note: the last run was killed; taking up where it stopped" >&2
        "$snakemake" "$@" --unlock --quiet all
    fi
fi

# Snakemake keeps descriptor 9, and with it the lock, as long as it lives; its jobs do not get it.
exec "$snakemake" "$@" --rerun-incomplete
