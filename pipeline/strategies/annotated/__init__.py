"""Annotated tensors: plan.py is their arithmetic, search.py finds the best, step.py DTensors."""
