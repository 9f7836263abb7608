"""Contradictions in a run spec whose parts are right by themselves."""

from __future__ import annotations

from pipeline.errors import StudyError, refuse
from pipeline.study.spec import RunSpec

LEAST_PAIR = 5
"""Positions of two segments of a token each, and the special tokens around them."""
NODES_OF_ONE_MACHINE = 254
"""Emulated nodes have addresses of one /24 network."""


def check(spec: RunSpec) -> None:
    """Raise StudyError where the numbers contradict one another."""
    world, model, work = spec.world, spec.model, spec.workload
    backend = {"cpu": "gloo", "cuda": "nccl"}[world.device]
    longest = max((part.context for part in work.phases), default=0)
    last_steps = work.steps - work.earlier_steps
    refuse(StudyError, f"{spec.run_id}: ", [
        (world.backend != backend,
         f"backend {world.backend} does not serve device {world.device}; set cluster.backend to "
         f"{backend}"),
        (world.network == "emulated" and world.device != "cpu",
         "emulated nodes have no GPUs; set cluster.device to cpu or cluster.network to real"),
        (world.network != "real" and world.nodes > NODES_OF_ONE_MACHINE,
         f"one machine cannot be {world.nodes} nodes, at most {NODES_OF_ONE_MACHINE}, the "
         "addresses of one /24 network; lower cluster.nodes or set cluster.network to real"),
        (model.width % model.num_heads,
         f"model.width {model.width} is not a multiple of model.num_heads {model.num_heads}; "
         "change one of them"),
        (longest > model.context,
         f"a phase has {longest} positions, the model {model.context}; raise model.context, or "
         "lower the phase's context"),
        (work.phases and world.yardstick,
         "cluster.yardstick measures passes of one shape, and phases have several; set it to null"),
        (work.untimed_steps >= last_steps,
         f"untimed_steps {work.untimed_steps} leaves none of {last_steps} steps to time; lower "
         "workload.untimed_steps or raise workload.steps"),
    ])  # fmt: skip
    if (objective := spec.objective) is None or objective.kind == "causal":
        return
    tokens, pairs = objective.tokens, objective.kind == "masked_next_sentence"
    for _, phase in spec.phases():
        context, of_step = phase.model.context, phase.global_batch_tokens
        hidden = objective.share * of_step
        refuse(StudyError, f"{spec.run_id}: ", [
            *((token >= model.vocab_size,
               f"objective.{key} {token} is not below model.vocab_size {model.vocab_size}; lower "
               "it or raise model.vocab_size") for key, token in tokens.items()),
            (len({*tokens.values()}) < len(tokens),
             f"{tokens} are not all different; make them so"),
            (pairs and context < LEAST_PAIR,
             f"model.context {context} has no room for two segments and three special tokens; set "
             f"it to {LEAST_PAIR} or more"),
            (hidden < 1,
             f"objective.share {objective.share:g} hides {hidden:.2g} of the {of_step} tokens of a "
             "step, so most steps would train on nothing; raise it"),
        ])  # fmt: skip
