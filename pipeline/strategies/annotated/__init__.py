"""Annotated tensors: annotations.py is their language, plan.py arithmetic, step.py DTensors."""
