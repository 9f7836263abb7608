"""The cell that predictions choose in each setting of a study, held against the other cells there.

A setting is a most number of nodes over one link, and cells that take one step: equal work in one
precision. As `plan --auto` does, a choice may leave nodes idle. No measured step enters it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pipeline.metrics.format import ratio_interval
from pipeline.metrics.statistics import Interval, interval_of_ratio
from pipeline.resolved import ResolvedRun
from pipeline.study.equal_work import model_text, schedule_text, updates_per_step
from pipeline.text import NONE, align

Place = tuple[str, int]
"""A cell and its number of nodes."""


def settings(runs: Iterable[ResolvedRun]) -> list[tuple[str, dict[Place, str]]]:
    """Name of each setting, and its candidates with their names; one node is part of them all."""
    alike = defaultdict[tuple[object, ...], dict[Place, ResolvedRun]](dict)
    for run in runs:
        spec = run.spec
        same = spec.workload.global_batch, spec.precision
        work = *same, schedule_text(spec), updates_per_step(spec), model_text(spec)
        alike[work].setdefault((spec.cell, spec.world.nodes), run)
    made = []
    for (batch, precision, *_), places in alike.items():
        several = [(nodes, run.link) for (_, nodes), run in places.items() if nodes > 1]
        for most, link in dict.fromkeys(several):
            over, suffix = (f" over {link.text}", f"-{link.name}") if link else ("", "")
            candidates = {
                (cell, nodes): f"{cell.removesuffix(suffix)} on {nodes}"
                for (cell, nodes), run in places.items()
                if nodes == 1 or (nodes <= most and run.link == link)
            }
            name = f"{most} nodes{over}, {batch} sequences in {precision}"
            made.append((name, candidates))
    return made


def choices(
    runs: Iterable[ResolvedRun],
    rows: Iterable[Mapping[str, str]],
    measured: Mapping[Place, Interval],
    search: float,
) -> list[str]:
    """A line for each setting with measured cells: the choice over the fastest other one.

    `rows` are those of `here.predict_study`; all times are in seconds. Under 1 the choice is the
    fastest; the interval has the noise between runs, not what emulated times are off.
    """
    # A cell that nothing predicts cannot be chosen, but may be faster than the choice.
    predicted = {
        (row["cell"], int(row["nodes"])): float(row["step_s_pred"])
        for row in rows
        if row["step_s_pred"]
    }
    times = ("predicted ms", "measured ms")
    headings = ("setting", "chosen", *times, "fastest other", *times, "chosen over other")
    table: list[Sequence[str]] = [headings]
    won = 0
    for name, candidates in settings(runs):
        known = [place for place in candidates if place in predicted]
        chosen = min(known, key=predicted.__getitem__, default=None)
        others = [place for place in candidates if place in measured and place != chosen]
        if chosen is None or not others:
            continue
        other = min(others, key=lambda place: measured[place].value)
        shown = "did not run"
        if chosen in measured:
            over = interval_of_ratio(measured[chosen], measured[other])
            shown = ratio_interval(over.value, over.low, over.high)
            won += over.value <= 1
        cells: list[str] = []
        for place in (chosen, other):
            cells.append(candidates[place])
            cells.append(f"{1e3 * predicted[place]:.1f}" if place in predicted else NONE)
            cells.append(f"{1e3 * measured[place].value:.1f}" if place in measured else NONE)
        table.append((name, *cells, shown))
    if not table[1:]:
        return []
    of = f"the fastest in {won} of {len(table) - 1} settings."
    return [*align(table), f"Chosen in {search:.2g} s without a step: {of}"]
