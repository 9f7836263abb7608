"""Annotated tensors: annotations.py is their language, plan.py arithmetic, step.py DTensors.

search.py finds the best annotations of a block.
"""
