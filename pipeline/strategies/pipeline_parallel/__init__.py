"""Pipelines: plan.py and schedule.py are arithmetic, stages.py cuts a model, step.py runs it."""
