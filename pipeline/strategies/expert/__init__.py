"""Expert parallelism: plan.py is its arithmetic, step.py its cut experts and what they send."""
