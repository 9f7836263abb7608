"""Runs in real time: the truth that the times of emulated nodes are held against.

A study asks for them by `cluster.real_time: true`. Two nodes fit a machine with as many cores
without dilation, each on its own: so its cells on two nodes (where it has none, on the fewest of
several) are made once more at factor 1 and without a yardstick, as often as they are timed, and so
is the single device, over which speedups are taken. What such a step takes is what the emulated
one should take; no time of these runs goes anywhere else. Of links with and without conditions
the latter are enough: a condition shapes a cable and stretches a rank's time as dilation does.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.study.expansion import expand, run_order
from pipeline.study.profiling import profiled
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study


def in_real_time(study: Study) -> list[RunSpec]:
    """The runs in real time of a validated study; none where it asks for none."""
    runs = expand(study)
    several = [spec for spec in runs if spec.world.nodes > 1]
    if not study.cluster.real_time or not several:
        return []
    fewest = min(spec.world.nodes for spec in several)
    held = [spec for spec in several if spec.world.nodes == fewest]
    plain = [spec for spec in held if spec.world.link and not spec.world.link.conditions]
    alone = [spec for spec in runs if (spec.strategy, spec.world.nodes) == ("single", 1)]
    chosen = {spec.run_id for spec in [*alone, *(plain or held)]}
    return [
        replace(
            spec,
            world=replace(spec.world, real_time=True, yardstick=None, dilated_for=None),
            workload=replace(spec.workload, checkpoint_every=0),
        )
        for spec in runs
        if spec.run_id in chosen
    ]


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
