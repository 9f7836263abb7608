"""Tensor parallelism: plan.py is its arithmetic, step.py its cut layers and what they send."""
