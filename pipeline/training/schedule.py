"""The learning-rate schedule: a linear warm-up, then constant or linear to zero."""

from __future__ import annotations

from pipeline.study.spec import OptimiserSpec


def learning_rate(step: int, total_steps: int, spec: OptimiserSpec) -> float:
    """Rate of step `step` (from 0) of `total_steps`: a function of the step alone.

    Warm-up: (step + 1) / warmup_steps of the full rate; then `schedule`.
    """
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    if spec.schedule == "constant":
        return spec.learning_rate
    length = spec.schedule_steps or total_steps
    return spec.learning_rate * max(0, length - step) / max(1, length - spec.warmup_steps)
