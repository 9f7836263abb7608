"""Context parallelism: plan.py is its arithmetic, step.py its cut sequences and what they send."""
