# To be sourced (`. envs/begin_job.sh`) at the start of a SLURM batch script of POSIX sh that was sent with
# `--signal=B:USR1@120`: on that signal the training of the job writes a checkpoint at its next step and
# ends, and no other one starts. A job that SLURM may queue again is queued again, unless all of it ended
# well meanwhile; any other ends with the status of what it ran, so that Snakemake sends it again. A shell
# runs no trap before its foreground child ends, so the script runs once more as a background child, which
# finds the variable set, runs the lines `before` of workflow/site.yaml and goes on after this one.
# shellcheck shell=sh

if [ "${SAMESTEP_STOP:-}" != "$PWD/.snakemake/stop-$SLURM_JOB_ID" ]; then
    mkdir -p .snakemake
    export SAMESTEP_STOP="$PWD/.snakemake/stop-$SLURM_JOB_ID"
    rm -f "$SAMESTEP_STOP"
    trap ': >"$SAMESTEP_STOP"' USR1
    sh "$0" "$@" &
    status=0
    wait $! || status=$?
    # `wait` returns at each signal.
    while kill -0 $! 2>/dev/null; do
        status=0
        wait $! || status=$?
    done
    if [ -e "$SAMESTEP_STOP" ]; then
        rm "$SAMESTEP_STOP"
        if [ "$status" != 0 ] && scontrol show job "$SLURM_JOB_ID" | grep -q 'Requeue=1'; then
            scontrol requeue "$SLURM_JOB_ID"
        fi
    fi
    exit "$status"
fi

if [ -e workflow/site.yaml ]; then
    SITE_LINES=$(.venv/bin/python -m pipeline before --site workflow/site.yaml) || exit 2
    eval "$SITE_LINES"
    # Rules call `python`: the checkout's, also after a line that loads another.
    export PATH="$PWD/.venv/bin:$PATH"
fi
