"""Phases of a step, by which a profiled run (`pipeline.study.expansion.profiled`) divides it."""

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
