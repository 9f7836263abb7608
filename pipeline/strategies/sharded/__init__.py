"""ZeRO: plan.py is its arithmetic, rows.py stage 1, step.py stages 2 and 3 and the step of all."""
