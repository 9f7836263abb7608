"""Single Parameter Server: plan.py is its arithmetic, step.py what it sends."""
