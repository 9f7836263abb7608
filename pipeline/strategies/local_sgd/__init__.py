"""Local SGD and DiLoCo: plan.py is their arithmetic, step.py synchronises."""
