"""Parity of every cell with a reference, best `single`: deviations, and a verdict on them.

Loss hides a gradient that is wrong by a factor, because AdamW divides it out; the gradient norm
before clipping does not. Both are compared, at the first step (same weights, so only rounding may
differ) and over the first `FIRST_STEPS` steps, which decide. What comes later is reported without a
verdict: two sound trainings drift apart, as two seeds do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.metrics.bands import FIRST_STEPS, Band, band_of
from pipeline.metrics.cells import CellRuns, Groups
from pipeline.metrics.runs import Run
from pipeline.metrics.statistics import Floats
from pipeline.metrics.table import Rows, row
from pipeline.study.equal_work import FIELDS, schedule_text, without_lossy_wire
from pipeline.text import listed

EQUAL, NOT_EQUAL, DIVERGED = "equal", "NOT EQUAL", "diverged"
UNEQUAL = (NOT_EQUAL, DIVERGED)
"""Verdicts on a cell whose times belong to another training."""

NOT_COMPARED = "not compared"

Deviation = Mapping[str, float]
"""Largest relative deviations of one run, or of several, in loss and unclipped gradient norm.

`loss_first`, `norm_first` are of the first step, `_early` over the first `FIRST_STEPS`, `_all` over
the whole run. Steps at which a loss scaler skipped the update in either run are in none of them.
"""


def relative_deviation(values: Floats, reference: Floats) -> Floats:
    """|value - reference| / |reference|; 0 where both are NaN, inf where only one is.

    The first axis is steps; of two lengths the steps that both have are compared.
    """
    count = min(len(values), len(reference))
    values, reference = values[:count], reference[:count]
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation = np.abs(values - reference) / np.abs(reference)
    both, one = np.isnan(values) & np.isnan(reference), np.isnan(values) ^ np.isnan(reference)
    deviation[both | (values == reference)] = 0.0
    deviation[one] = math.inf
    return np.asarray(deviation, dtype=np.float64)


def deviation_of(run: Run, reference: Run) -> Deviation | None:
    """Distance of `run` from `reference`.

    None where a loss or norm of either was not finite, or no step of the first was left to compare.
    Of two lengths the steps that both have are compared.
    """
    # A run to the end and one of its beginnings take the same first steps.
    count = min(len(run.loss), len(reference.loss))
    losses, norms = ([run.loss[:count], reference.loss[:count]],
                     [run.grad_norm[:count], reference.grad_norm[:count]])  # fmt: skip
    skips = [skipped_steps(one)[:count] for one in (run, reference)]
    skipped = skips[0] | skips[1]
    if np.isnan(losses).any() or (np.isnan(norms) & ~np.array(skips)).any():
        return None
    # A skipped step moves no weights and has no norm to compare.
    early = np.flatnonzero(~skipped[:FIRST_STEPS])
    if not early.size:
        return None
    apart = {"loss": relative_deviation(*losses), "norm": relative_deviation(*norms)}
    steps = {"first": early[:1], "early": early, "all": ~skipped}
    return {
        f"{name}_{part}": float(deviation[at].max())
        for part, at in steps.items()
        for name, deviation in apart.items()
    }


def skipped_steps(run: Run) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Steps (steps,) that a loss scaler skipped: the scaled gradient overflowed, the loss not."""
    scaled = bool(run.record.run["precision"]["loss_scaling"])
    return np.isnan(run.grad_norm) & ~np.isnan(run.loss) & scaled


def references(group: CellRuns, groups: Groups) -> list[tuple[CellRuns, Band]]:
    """The references of a group, each with the band that applies.

    A cell of equal work in the same precision, and for every reduced precision also one in fp32;
    see `_reference`. A single device is held against its own precision alone: no strategy is
    tested by how far two number formats are apart.
    """
    own = str(group.context["precision"])
    alone = group.context["strategy"] == "single"
    precisions = [own] if alone else dict.fromkeys([own, "fp32"])
    known = [_reference(group, groups, precision) for precision in precisions]
    dtype = group.ok[0].record.run["precision"]["compute_dtype"]
    return [
        (one, band_of(dtype, same=one.context["precision"] == own, wire=lossy(group) != lossy(one)))
        for one in known
        if one is not None
    ]


def _reference(group: CellRuns, groups: Groups, precision: str) -> CellRuns | None:
    """The cell in `precision` that a group is held against; None where the study has none.

    The first of equal work among `single`, the other cells on one device, those of the same world.
    """
    finished = [g for g in groups.values() if g.ok and g.context["precision"] == precision]
    alone = [g for g in finished if g.context["world_size"] == 1]
    # Under weak scaling this one has the whole global batch, by accumulation.
    single = [g for g in alone if g.context["strategy"] == "single"]
    ranked = single + (alone if precision == group.context["precision"] else [])
    here = [g for g in finished if not lossy(g)]
    for size in ("nodes", "world_size"):
        here = [g for g in here if g.context[size] == group.context[size]]
    equal = [g for g in [*ranked, *here] if not unequal_training_work(g, group)]
    # A cell is no reference of its own unless it is the single device.
    own = any(one is group for one in [*single, *ranked[:1]])
    if equal and (equal[0] is not group or own):
        return equal[0]
    # Of other work: named as the reference, and nothing is compared with it.
    return next(iter(ranked), None)


def lossy(group: CellRuns) -> bool:
    """True where its gradients lose digits on their way, by a knob that the strategy declares."""
    spec = group.runs[0].record.spec
    return schedule_text(spec) != schedule_text(without_lossy_wire(spec))


def unequal_training_work(one: CellRuns, other: CellRuns) -> list[str]:
    """Fields of equal work in which two groups differ; precision and a lossy wire aside."""
    contexts = [
        {**g.context, "schedule": schedule_text(without_lossy_wire(g.runs[0].record.spec))}
        for g in (one, other)
    ]
    return [f for f in FIELDS if f != "precision" and contexts[0][f] != contexts[1][f]]


def parity_rows(groups: Groups) -> list[Rows]:
    """Rows of metric `parity_*` for each cell, node count and reference, and of every step."""
    finished = [group for group in groups.values() if group.ok]
    parts = []
    for group in finished:
        # Whether all ranks held the same final weights in every repeat; `n` counts the ranks.
        held = [[rank["weights_sha256"] for rank in run.record.run["ranks"]] for run in group.ok]
        equal = all(len(set(hashes)) == 1 for hashes in held)
        bits = row("weights_bit_equal", "1", float(equal), n=max(map(len, held)))
        parts.append(Rows(group.context, [bits, *_deterministic(group)]))
    steps = []
    for group in finished:
        if held_against := references(group, groups):
            steps += _step_deviations(group, [one for one, _ in held_against])
        else:
            none = f"{NOT_COMPARED}: no single-device run in this precision"
            parts.append(Rows(group.context, [_verdict(none)]))
        for reference, band in held_against:
            if reference is not group:
                about = {**group.context, "base": reference.name}
                parts.append(Rows(about, _values(group, reference, band)))
    return parts + steps


def _values(group: CellRuns, reference: CellRuns, band: Band) -> list[dict[str, Any]]:
    pairs = _same_seeds(group, reference)
    if not pairs:
        return [_verdict(f"{NOT_COMPARED}: no run of the same seed")]
    if unequal := unequal_training_work(group, reference):
        return [_verdict(f"{NOT_COMPARED}: not the same {listed(unequal).replace('_', ' ')}")]
    apart = [deviation_of(run, other) for run, other in pairs]
    known = [deviation for deviation in apart if deviation is not None]
    if len(known) < len(pairs):
        return [_verdict(DIVERGED)]
    # Of several repeats the worst counts: one that left the band is another training.
    worst = {name: max(one[name] for one in known) for name in known[0]}
    within = max(worst["loss_first"], worst["norm_first"]) <= band.first_step
    within &= max(worst["loss_early"], worst["norm_early"]) <= band.first_steps
    limits = {"first": {"text": f"{band.first_step:g}"}, "early": {"text": f"{band.first_steps:g}"}}
    steps = min(FIRST_STEPS, len(pairs[0][0].loss))
    return [
        *(
            row(f"parity_{name}", "1", value, n=len(pairs), **limits.get(name.split("_")[1], {}))
            for name, value in worst.items()
        ),
        {"metric": "parity_band", "text": band.name},
        row("parity_steps", "count", float(steps), text="first steps that decide"),
        _verdict(EQUAL if within else NOT_EQUAL),
    ]


def _verdict(text: str) -> dict[str, Any]:
    return row("parity_verdict", "1", float(text == EQUAL), text=text)


def _deterministic(group: CellRuns) -> list[dict[str, Any]]:
    """Bit-equality of losses and norms between runs of one seed; `n` counts such runs.

    No row where every run has a seed of its own. Horovod on several ranks may differ here, since it
    sums gradients in the order in which they are ready.
    """
    by_seed: dict[int, list[Run]] = {}
    for run in group.ok:
        by_seed.setdefault(run.context["seed"], []).append(run)
    again = [runs for runs in by_seed.values() if len(runs) > 1]
    if not again:
        return []
    same = not any(
        relative_deviation(getattr(run, name), getattr(first, name)).any()
        for first, *others in again
        for run in others
        for name in ("loss", "grad_norm")
    )
    about = "losses and gradient norms of runs of one seed"
    return [row("repeats_bit_equal", "1", float(same), n=sum(map(len, again)), text=about)]


def _same_seeds(group: CellRuns, reference: CellRuns) -> list[tuple[Run, Run]]:
    """Runs with the reference's of the same seed, of the same repeat where there are several."""
    pairs = []
    for run in group.ok:
        seed, repeat = run.context["seed"], run.context["repeat"]
        same = [other for other in reference.ok if other.context["seed"] == seed]
        exact = [other for other in same if other.context["repeat"] == repeat]
        pairs += [(run, other) for other in (exact or same)[:1]]
    return pairs


def _step_deviations(group: CellRuns, held_against: Sequence[CellRuns]) -> list[Rows]:
    """Relative deviation of each run's loss at every step, from the last reference of equal work.

    In a reduced precision that is the one in fp32 where there is one.
    """
    alike = [one for one in held_against if not unequal_training_work(group, one)]
    if not alike or (reference := alike[-1]) is group:
        return []
    parts = []
    for run, other in _same_seeds(group, reference):
        deviation, timed = relative_deviation(run.loss, other.loss).tolist(), run.timed.tolist()
        values = [
            row("loss_deviation", "1", apart, step=step, timed=timed[step])
            for step, apart in enumerate(deviation)
        ]
        parts.append(Rows({**run.context, "level": "step", "base": reference.name}, values))
    return parts
