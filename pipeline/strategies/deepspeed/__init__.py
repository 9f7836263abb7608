"""DeepSpeed: plan.py is its arithmetic, package.py imports it, step.py runs its engine."""
