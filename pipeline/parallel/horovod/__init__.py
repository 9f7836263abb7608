"""Horovod: whether it can be used here, membership, and its optimisation step."""
