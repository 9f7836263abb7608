"""Horovod: plan.py is its arithmetic, job.py joins its job, step.py reduces."""
