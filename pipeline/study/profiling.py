"""Profiled runs: short runs of their own that say what a step's time is spent on.

A study asks for them by `profile: {steps: N, repeats: R}`. Profiling disturbs what it measures, so
they are apart from the timed runs: R (1 by default) for each cell and node count, the beginnings of
its first repeats. R may be over the number of timed ones, where a study is about bubbles; with
`cells: [NAME]` only these have R and each other cell has one, which is enough for its bytes.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.errors import StudyError
from pipeline.study.expansion import cells_of, expand
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study

FORWARD, BACKWARD, COMMUNICATION, OPTIMISER = "forward", "backward", "communication", "optimiser"
REST, DATA = "rest", "data"

MARKED = (FORWARD, BACKWARD, COMMUNICATION, OPTIMISER)
"""Phases that a strategy marks; see `pipeline.parallel.types.Phases`."""

WEIGHTS = "weights"
"""The half of a split backward pass that gives gradients of weights (zero bubble)."""

IN_STEP = (*MARKED, REST)
"""The phases that add up to the time of a step; `rest` is what no mark claims."""

PHASES = (*IN_STEP, DATA)
"""All phases. `data` is reading and moving the batch, which is done before the timed step."""


def profiled(study: Study) -> list[RunSpec]:
    """The profiled runs of a validated study; none where it asks for none.

    They train the untimed steps and then `profile.steps` more with the learning rates of the whole
    run, so their losses are the first ones of the timed run. Raises StudyError where that is
    longer.
    """
    if (steps := study.profile_steps) is None:
        return []
    often = {c.name for c in cells_of(study) if c.arm in (study.profile_cells or (c.arm,))}
    runs = []
    for spec in expand(study, study.profile_repeats):
        if spec.repeat and spec.cell not in often:
            continue
        work, optimiser = spec.workload, spec.optimiser
        untimed = work.first_timed()
        if untimed + steps > work.steps:
            raise StudyError(
                f"{spec.run_id}: profile.steps {steps} after {untimed} untimed steps are more than "
                f"the {work.steps} steps of a run; set profile.steps to at most "
                f"{work.steps - untimed}"
            )
        # The schedule keeps the length of the timed run, so the rates of its first steps are equal.
        length = optimiser.schedule_steps or work.steps - work.earlier_steps
        optimiser = replace(optimiser, schedule_steps=length)
        work = replace(work, steps=untimed + steps, checkpoint_every=0)
        runs.append(replace(spec, profile=True, optimiser=optimiser, workload=work))
    return runs
