#!/bin/sh
# All runs of a study on one number of nodes, in one allocation and in their random order: compared runs
# share their machines, and the queue is waited for once. From the checkout, for each node count:
#
#   sbatch --nodes=4 workflow/profiles/allocation/job.sh runs_on_4 --configfile workflow/config/bai2022/study.yaml
#
# An allocation that is preempted, lost or at the end of its time is queued again and goes on where it
# stopped: finished runs are kept, and the one that ran resumes from its last checkpoint.
# Allocations of one checkout start one after another.
#
#SBATCH --job-name=samestep --dependency=singleton
#SBATCH --exclusive
#SBATCH --requeue --open-mode=append
#SBATCH --signal=B:USR1@120
#
# What the site asks for: remove a # and fill in.
##SBATCH --partition=gpu --account=my-project
##SBATCH --gpus-per-node=8 --time=24:00:00
set -eu
. envs/checkpoint_on_signal.sh
exec sh envs/run_workflow.sh --profile workflow/profiles/allocation "$@"
