"""Expansion of a study into runs (timed, in real time, profiled), and what else follows from it.

A study becomes one `RunSpec` for each cell x link x node count x repeat; one node uses no link, so
over several links its runs are made once.
"""

from __future__ import annotations

import importlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pipeline.errors import StudyError, refuse
from pipeline.study.link import LinkSpec
from pipeline.study.spec import RunSpec, WorldSpec
from pipeline.study.study import Cell, Study

MAX_RUNS = 10_000
"""More than any study has had (`smoke`: 216), and about what one Snakemake can schedule."""

FALLBACK = "loopback"
"""Stands for the link of runs that were to be emulated and were made on the loopback."""


@lru_cache(maxsize=8)
def expand(study: Study, repeats: int | None = None) -> tuple[RunSpec, ...]:
    """All timed runs of a study, cell by cell, made once; raises StudyError on a contradiction.

    Each cell has `repeats` at every node count where they are given, else its own.
    `pipeline.resolved.runs_of` has them with strategy and layout.
    """
    cells = cells_of(study)
    worlds = [(cell, nodes) for cell in cells for nodes in cell.nodes]
    most = max(nodes for _, nodes in worlds)
    counts = [repeats or cell.repeats for cell, _ in worlds]
    names, links = [cell.name for cell in cells], study.cluster.links
    several = {"cell name": names, "link name": [link.name for link in links]}
    fallbacks = {fallback_name(arm.name): arm.name for arm in study.arms if links}
    refuse(StudyError, "", [
        *((count > 1, f"{what} {name!r} stands {count} times; make it unique")
          for what, given in several.items() for name, count in Counter(given).items()),
        *((link.name == FALLBACK,
           f"link name {FALLBACK!r} is that of no link; give it another name") for link in links),
        *((name in names,
           f"cell name {name!r} is that of {arm!r} where it is run on the loopback; give it "
           "another name") for name, arm in fallbacks.items()),
        *((link.receive_mbits == link.rate_mbits,
           f"link {link.name!r} receives at its rate_mbits {link.rate_mbits:g}; leave "
           "receive_mbits out") for link in links),
        *((most < 2,
           f"link {link.name!r}: {name} needs a cell on 2 nodes or more; leave it out or raise "
           "cluster.nodes") for link in links for name in link.conditions),
        (sum(counts) > MAX_RUNS,
         f"the study has {sum(counts)} runs, over {MAX_RUNS}: {len(worlds)} cells and node counts "
         f"of up to {max(counts)} repeats each; split it or have fewer repeats"),
    ])  # fmt: skip
    runs = tuple(
        _run(study, cell, nodes, most, repeat)
        for (cell, nodes), count in zip(worlds, counts, strict=True)
        for repeat in range(count)
    )
    for run in runs:
        run.check()
    return runs


def fallback_name(arm: str) -> str:
    """The cell of an arm's runs that were to be emulated and were made on the loopback."""
    return f"{arm}-{FALLBACK}"


def without_conditions(link: LinkSpec, links: Iterable[LinkSpec]) -> LinkSpec | None:
    """The one of `links` that is this one without its conditions; None for one that has none."""
    if not link.conditions:
        return None
    return next((x for x in links if x == replace(link.plain, name=x.name)), None)


def compares_conditions(study: Study) -> bool:
    """True where a study has a link under conditions and the same link without them."""
    links = study.cluster.links
    return any(without_conditions(link, links) for link in links)


def cells_of(study: Study) -> list[Cell]:
    """The cells of a study, over each of its links.

    Over several links an arm is one cell for each, with the link in its name, on several nodes.
    One node sends nothing over a link: it is a cell once, under the arm's own name, and the first
    link stands in its spec.
    """
    links = study.cluster.links
    cells: list[Cell] = []
    for arm in study.arms:
        if len(links) < 2:
            cells += [replace(arm, link=link) for link in links] or [arm]
            continue
        if 1 in arm.nodes:
            cells.append(replace(arm, link=links[0], nodes=(1,)))
        if several := tuple(count for count in arm.nodes if count > 1):
            cells += [
                replace(arm, link=x, nodes=several, name=f"{arm.name}-{x.name}") for x in links
            ]
    return cells


def _run(study: Study, cell: Cell, nodes: int, most: int, repeat: int) -> RunSpec:
    cluster, work = study.cluster, cell.workload
    world = WorldSpec(
        nodes=nodes,
        ranks_per_node=cell.ranks_per_node,
        device=cluster.device,
        backend=cluster.backend,
        network=cluster.network,
        threads_per_rank=cluster.threads_per_rank,
        # On one node no condition of a link holds, and none is part of its identity.
        link=cell.link.plain if cell.link and nodes == 1 else cell.link,
        cores_per_node=cluster.cores_per_node,
        yardstick=cluster.yardstick,
        # One factor for all node counts: what it does not stretch would bend a curve over nodes.
        dilated_for=most if cluster.network == "emulated" and nodes < most else None,
    )
    weak = work.scaling == "weak"
    factor = data_devices(cell.strategy, cell.options, world) if weak else 1
    optimiser = cell.optimiser
    if study.begin_steps is not None:
        # The length of the schedule is that of the whole training, so a beginning takes its steps.
        length = optimiser.schedule_steps or work.steps - work.earlier_steps
        optimiser = replace(optimiser, schedule_steps=length)
        if repeat > 0 or f"{cell.arm}/n{nodes}" not in study.whole:
            work = replace(work, steps=study.begin_steps)
    return RunSpec(
        study=study.name,
        cell=cell.name,
        strategy=cell.strategy,
        precision=cell.precision,
        world=world,
        model=study.model,
        optimiser=optimiser,
        workload=replace(
            work,
            global_batch=work.global_batch * factor,
            phases=tuple(
                replace(phase, global_batch=phase.global_batch * factor) for phase in work.phases
            ),
        ),
        repeat=repeat,
        seed=study.seeds[repeat % len(study.seeds)],
        compile=study.compile,
        timeout_seconds=study.timeout_seconds,
        image_digest=study.image_digest,
        options=cell.options,
        environment=study.environment,
        objective=study.objective,
    )


def data_devices(strategy: str, options: Mapping[str, Any], world: WorldSpec) -> int:
    """Devices that compute sequences of their own; StudyError where the layout cannot be."""
    return int(plugin(strategy, options).layout(world).data_devices)


def plugin(strategy: str, options: Mapping[str, Any]) -> Any:
    """The strategy of that name, found by it: nothing here imports one. Raises StudyError."""
    return importlib.import_module("pipeline.strategies").load(strategy, options)


def tokens_spec(study: Study) -> dict[str, Any]:
    """Exactly those parts of a study on which its token shards depend.

    `min_tokens` is one global batch of the largest world: (sequences x context) + 1.
    """
    largest = max(p.global_batch_tokens for run in expand(study) for _, p in run.phases())
    return {
        "corpus": dict(study.corpus),
        "tokenizer": dict(study.tokenizer),
        "context": study.model.context,
        "model_vocab_size": study.model.vocab_size,
        "min_tokens": largest + 1,
    }


def run_order(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """The runs in a random order that the study's seeds fix: repeats first, shuffled inside.

    Drift of the machine then spreads over all cells instead of hitting one (Hoefler & Belli, SC15).
    """
    # A text seeds `random` alike in all processes, since it is hashed by SHA-512.
    generator = random.Random(f"{[(run.study, run.seed) for run in runs]}")
    shuffled = generator.sample(runs, len(runs))
    return sorted(shuffled, key=lambda run: run.repeat)


def in_real_time(study: Study) -> tuple[RunSpec, ...]:
    """The runs in real time, against which times of emulated nodes are held; none by default.

    A study asks for them by `cluster.real_time: true`. Two nodes fit a machine of two cores without
    dilation: so its cells on two nodes (or on the fewest of several) and the single device, the
    base of speedups, run again without it, in as many repeats. An emulated step should take as
    long; these times are used for nothing else.
    """
    runs = expand(study)
    several = [spec for spec in runs if spec.world.nodes > 1]
    if not study.cluster.real_time or not several:
        return ()
    fewest = min(spec.world.nodes for spec in several)
    held = [spec for spec in several if spec.world.nodes == fewest]
    # Of links with and without conditions the latter are enough: a condition shapes a cable and
    # stretches a rank's time as dilation does.
    plain = [spec for spec in held if spec.world.link and not spec.world.link.conditions]
    alone = [spec for spec in runs if (spec.strategy, spec.world.nodes) == ("single", 1)]
    chosen = {spec.run_id for spec in [*alone, *(plain or held)]}
    return tuple(
        replace(
            spec,
            world=replace(spec.world, real_time=True, yardstick=None, dilated_for=None),
            workload=replace(spec.workload, checkpoint_every=0),
        )
        for spec in runs
        if spec.run_id in chosen
    )


def profiled(study: Study) -> tuple[RunSpec, ...]:
    """The profiled runs, which say what a step's time is spent on; none by default.

    A study asks for them by `profile: {steps: N, repeats: R}`. Profiling disturbs what it measures,
    so they are apart from the timed runs: R (1 by default) for each cell and node count; with
    `cells: [NAME]` only these have R, and each other cell one, which is enough for its bytes.

    They train the untimed steps and then N more with the learning rates of the whole run, so their
    losses are the first ones of the timed run. Raises StudyError where that is longer.
    """
    if (steps := study.profile_steps) is None:
        return ()
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
    return tuple(runs)


def every_run(study: Study) -> list[RunSpec]:
    """All runs of a study: timed, in real time, profiled."""
    return [*expand(study), *in_real_time(study), *profiled(study)]


def planned_order(study: Study) -> list[RunSpec]:
    """All runs in the order in which they are to be made.

    Those in real time follow the timed ones of their repeat, so that the machine is as it was. The
    profiled ones come last: they stand between no two timed ones.
    """
    timed = [*run_order(expand(study)), *run_order(in_real_time(study))]
    return [*sorted(timed, key=lambda run: run.repeat), *profiled(study)]
