"""DeepSpeed: plan.py is its arithmetic, step.py runs its engine."""
