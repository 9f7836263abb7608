"""Pipelines: plan.py is their arithmetic, stages.py cuts a model, step.py runs it."""
