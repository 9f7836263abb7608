"""The rule of equal work: what must agree before two cells may stand in one comparison.

A figure or table declares in `COMPARES` the fields that it is about, a study in `compares`; every
other one of `FIELDS` must agree over all rows that are compared. Under weak scaling the global
batch grows with the world by definition, so there it is the batch per rank that must agree.

Specs tell all of it already, so a study that breaks the rule is refused before its first job
(`check_equal_work`). Precision is not asked there: every figure that compares cells lets it differ,
since their labels name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from pipeline.errors import StudyError
from pipeline.study.expansion import data_devices, expand, plugin
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study

FIELDS = ("global_batch", "schedule", "updates_per_step", "precision", "data", "model")


def unequal_work(
    one: Mapping[str, Any], other: Mapping[str, Any], allowed: Collection[str]
) -> list[str]:
    """Fields in which two rows of metrics are not of equal work, but for those `allowed`."""
    weak = one["scaling"] == other["scaling"] == "weak"

    def value(context: Mapping[str, Any], field: str) -> object:
        per_rank = weak and field == "global_batch"
        return context[field] / context["data_devices"] if per_rank else context[field]

    return [
        field
        for field in FIELDS
        if field not in {*allowed, "precision"} and value(one, field) != value(other, field)
    ]


def check_equal_work(study: Study) -> None:
    """Raise StudyError naming the first field in which two cells differ undeclared."""
    specs = expand(study)
    weak = all(spec.workload.scaling == "weak" for spec in specs)
    fields: Mapping[str, Callable[[RunSpec], object]] = {
        "global_batch": batch_per_rank if weak else lambda spec: spec.workload.global_batch,
        "schedule": schedule_text,
        "updates_per_step": updates_per_step,
        "model": model_text,
    }
    for field, value in fields.items():
        first = specs[0]
        other = next((spec for spec in specs if value(spec) != value(first)), None)
        if other is not None and field not in study.compares:
            what = "batch per rank" if value is batch_per_rank else field
            raise StudyError(
                f"unequal work: {what} is {value(first)} in cell {first.cell!r} at "
                f"{first.world.nodes} nodes and {value(other)} in {other.cell!r} at "
                f"{other.world.nodes} nodes, so nothing could be compared; make them equal or "
                f"declare `compares: [{field}]`"
            )


def batch_per_rank(spec: RunSpec) -> float:
    """Sequences per optimiser step of one data-parallel rank, which weak scaling keeps."""
    return spec.workload.global_batch / data_devices(spec.strategy, spec.options, spec.world)


def updates_per_step(spec: RunSpec) -> int:
    """Optimiser updates per counted step, as the spec asks."""
    return int(spec.options.get("optimiser_steps", 1))


def schedule_text(spec: RunSpec) -> str:
    """Everything that sets the update of a step but its number, comparable as one string."""
    o, work = spec.optimiser, spec.workload
    # Updates per step are a field of their own.
    changed = {k: v for k, v in changed_step(spec).items() if k != "optimiser_steps"}
    matrices = " of matrices" * o.decay_matrices_only
    options = "".join(f" {key}={value}" for key, value in changed.items())
    phases = "".join(f" after {phase}" for phase in work.phases)
    # Where the schedule has a length of its own, fewer steps are the beginning of the same
    # training. A profiled run, which is held against its own timed one alone, says its steps.
    steps = f" steps={work.steps}" if spec.profile or not o.schedule_steps else ""
    return (
        f"{o.name} lr={o.learning_rate:g} betas={o.beta1:g},{o.beta2:g} eps={o.eps:g} "
        f"decay={o.weight_decay:g}{matrices} clip={o.max_grad_norm:g} {o.schedule} "
        f"warmup={o.warmup_steps} length={o.schedule_steps or work.steps}{steps}"
        f"{options}{phases}"
    )


def changed_step(spec: RunSpec) -> dict[str, Any]:
    """The knobs that change the optimisation step, as the strategy declares, off their defaults.

    All of them where it has an algorithm of its own, which another number of ranks changes too.
    """
    usual = plugin(spec.strategy, {})
    asked = {name: spec.options.get(name, getattr(usual, name)) for name in usual.changes_the_step}
    if usual.algorithm:
        ranks = data_devices(spec.strategy, spec.options, spec.world)
        return {"algorithm": f"{usual.algorithm} of {ranks} ranks", **asked}
    return {name: value for name, value in asked.items() if value != getattr(usual, name)}


def without_lossy_wire(spec: RunSpec) -> RunSpec:
    """The run with its gradients sent in full."""
    lossy = plugin(spec.strategy, {}).lossy_wire
    full = {k: v for k, v in spec.options.items() if (k, v) not in lossy}
    return replace(spec, options=full)


def model_text(spec: RunSpec) -> str:
    """Family or class and shape of the model, comparable as one string."""
    m = spec.model
    padded = f" rows={m.vocab_rows}" if m.pad_vocab_to else ""
    config = "".join(f" {name}={value}" for name, value in sorted((m.config or {}).items()))
    begun = f" weights={m.weights_sha256[:12]}" if m.weights_sha256 else ""
    return (
        f"{m.architecture or m.family} layers={m.num_layers} width={m.width} heads={m.num_heads} "
        f"context={m.context} vocabulary={m.vocab_size}{padded}{config}{begun}"
    )
