"""Contradictions in a run spec whose parts are right by themselves."""

from __future__ import annotations

from pipeline.errors import StudyError
from pipeline.study.spec import RunSpec

LEAST_PAIR = 5
"""Positions of two segments of a token each, and the special tokens around them."""
NODES_OF_ONE_MACHINE = 254
"""Emulated nodes have addresses of one /24 network."""


def check(spec: RunSpec) -> None:
    """Raise StudyError where the numbers contradict one another."""
    world, model, work = spec.world, spec.model, spec.workload
    backend = {"cpu": "gloo", "cuda": "nccl"}[world.device]
    if world.backend != backend:
        raise StudyError(
            f"{spec.run_id}: backend {world.backend} does not serve device {world.device}; set "
            f"cluster.backend to {backend}"
        )
    if world.network == "emulated" and world.device != "cpu":
        raise StudyError(
            f"{spec.run_id}: emulated nodes have no GPUs; set cluster.device to cpu or "
            "cluster.network to real"
        )
    if world.network != "real" and world.nodes > NODES_OF_ONE_MACHINE:
        raise StudyError(
            f"{spec.run_id}: one machine cannot be {world.nodes} nodes, at most "
            f"{NODES_OF_ONE_MACHINE}, the addresses of one /24 network; lower cluster.nodes or "
            "set cluster.network to real"
        )
    if model.width % model.num_heads:
        raise StudyError(
            f"model.width {model.width} is not a multiple of model.num_heads {model.num_heads}; "
            "change one of them"
        )
    for _, phase in spec.phases():
        _check_objective(phase)
    for part in work.phases:
        if part.context > model.context:
            raise StudyError(
                f"{spec.run_id}: a phase has {part.context} positions, the model "
                f"{model.context}; raise model.context, or lower the phase's context"
            )
    if work.phases and world.yardstick:
        raise StudyError(
            f"{spec.run_id}: cluster.yardstick measures passes of one shape, and phases have "
            "several; set it to null"
        )
    if work.earlier_steps + work.untimed_steps >= work.steps:
        raise StudyError(
            f"{spec.run_id}: untimed_steps {work.untimed_steps} leaves none of "
            f"{work.steps - work.earlier_steps} steps to time; lower workload.untimed_steps or "
            "raise workload.steps"
        )


def _check_objective(spec: RunSpec) -> None:
    """Raise StudyError where special tokens or what is hidden do not fit the model and the batch.

    `spec` is a phase: each has its own batch and context.
    """
    objective, model = spec.objective, spec.model
    if objective is None or objective.kind == "causal":
        return
    for key, token in objective.tokens.items():
        if token >= model.vocab_size:
            raise StudyError(
                f"{spec.run_id}: objective.{key} {token} is not below model.vocab_size "
                f"{model.vocab_size}; lower it or raise model.vocab_size"
            )
    if len({*objective.tokens.values()}) < len(objective.tokens):
        raise StudyError(f"{spec.run_id}: {objective.tokens} are not all different; make them so")
    if objective.kind == "masked_next_sentence" and model.context < LEAST_PAIR:
        raise StudyError(
            f"{spec.run_id}: model.context {model.context} has no room for two segments and three "
            f"special tokens; set it to {LEAST_PAIR} or more"
        )
    hidden = objective.share * spec.global_batch_tokens
    if hidden < 1:
        raise StudyError(
            f"{spec.run_id}: objective.share {objective.share:g} hides {hidden:.2g} of the "
            f"{spec.global_batch_tokens} tokens of a step, so most steps would train on nothing; "
            "raise it"
        )
