#!/bin/sh
# All runs of a study on one number of nodes, in one allocation and in their random order: compared runs
# share their machines, and the queue is waited for once. `python -m pipeline allocate --study STUDY` prints
# the command for each number of nodes, with what workflow/site.yaml asks for.
#
# An allocation that is preempted, lost or at the end of its time is queued again and goes on where it
# stopped: finished runs are kept, and the one that ran resumes from its last checkpoint.
# Allocations of one checkout start one after another.
#
#SBATCH --job-name=samestep --dependency=singleton
#SBATCH --requeue --open-mode=append
#SBATCH --signal=B:USR1@120
# Before `set -u`, with which scripts of modules may fail.
. envs/begin_job.sh
set -eu
exec sh envs/run_workflow.sh --profile workflow/profiles/allocation "$@"
