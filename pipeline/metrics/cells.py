"""The repeats of a cell at one node count together: rows of level `cell`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.metrics import flops
from pipeline.metrics.facts import mixed
from pipeline.metrics.runs import Run
from pipeline.metrics.statistics import (
    MIN_REPEATS,
    Floats,
    Interval,
    interval_of_ratio,
    repeats_interval,
    values_interval,
)
from pipeline.metrics.table import Rows, interval_row, row
from pipeline.study.equal_work import unequal_work
from pipeline.study.expansion import without_conditions
from pipeline.study.link import LinkSpec
from pipeline.text import plural


@dataclass(frozen=True)
class CellRuns:
    """All repeats of one cell at one node count."""

    runs: Sequence[Run]

    @property
    def name(self) -> str:
        """Name in the column `base`, by the short name of the cell, which is unique."""
        return f"{self.context['cell']}, {plural(self.context['nodes'], 'node')}"

    @cached_property
    def ok(self) -> list[Run]:
        """Runs that finished."""
        return [run for run in self.runs if run.ok]

    @cached_property
    def context(self) -> dict[str, Any]:
        """Columns that all rows of level `cell` share; status is ok when any run finished."""
        lead = (self.ok or self.runs)[0].context
        of_one_run = ("run_id", "repeat", "seed")
        shared = {name: value for name, value in lead.items() if name not in of_one_run}
        reasons = sorted({str(run.context["reason"]) for run in self.runs if not run.ok})
        return shared | {"level": "cell", "reason": "; ".join(reasons) or None}

    @property
    def link(self) -> LinkSpec | None:
        """The link between the nodes where these were emulated and several."""
        world = (self.ok or self.runs)[0].record.spec.world
        emulated = self.context["network"] == "emulated"
        return world.link if emulated and world.nodes > 1 else None

    @cached_property
    def run_rates(self) -> Floats:
        """Tokens per second of each finished run, shape (runs,)."""
        # Steps of one run share what made that run fast or slow, so it counts once.
        medians = [np.median(run.throughput_seconds) for run in self.ok]
        return np.asarray(self.context["global_batch_tokens"] / np.asarray(medians))

    @cached_property
    def step_seconds(self) -> Interval:
        """Median of the runs' median step times, over the repeats."""
        return repeats_interval([run.timed_seconds for run in self.ok])

    @cached_property
    def rate(self) -> Interval:
        """Tokens per second, over the repeats, by the clock of throughput."""
        seconds = repeats_interval([run.throughput_seconds for run in self.ok])
        return seconds.rate(self.context["global_batch_tokens"])

    def over(self, base: CellRuns) -> Interval:
        """Ratio of the throughputs of two groups."""
        if base is self:
            return Interval(1.0, 1.0, 1.0, len(self.ok), "exact: the base itself")
        return interval_of_ratio(self.rate, base.rate)


Groups = Mapping[tuple[str, int], CellRuns]


def group_runs(runs: Sequence[Run]) -> dict[tuple[str, int], CellRuns]:
    """Runs by (cell, nodes), in the order of the study."""
    grouped: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.context["cell"], run.context["nodes"]), []).append(run)
    return {key: CellRuns(members) for key, members in grouped.items()}


def cell_rows(groups: Groups) -> list[Rows]:
    """Rows of every cell at every node count; one that never finished has the counts alone."""
    parts = []
    for group in groups.values():
        values = [
            row("num_runs", "count", float(len(group.runs))),
            row("num_ok", "count", float(len(group.ok))),
        ]
        if group.ok:
            records = [run.record for run in group.ok]
            values += [
                interval_row("step_seconds", "s", group.step_seconds),
                interval_row("tokens_per_second", "tokens/s", group.rate),
                row("timed_steps", "count", float(sum(run.timed.sum() for run in group.ok))),
                *_over_repeats(group, [run.quantities for run in group.ok]),
            ]
            # Over its own smallest node count, then over the base, with what would be ideal.
            base, first = find_base(group, groups), find_own_base(group, groups)
            if base is not None:
                if first is not None:
                    own = group.over(first)
                    values.append(interval_row("own_speedup", "1", own, base=first.name))
                ideal = group.context["world_size"] / base.context["world_size"]
                ratio, of = group.over(base), {"base": base.name}
                values += [
                    interval_row("speedup", "1", ratio, **of),
                    interval_row("efficiency", "1", ratio.times(1 / ideal), **of),
                    row("ideal_speedup", "1", ideal, **of),
                    interval_row("base_tokens_per_second", "tokens/s", base.rate, **of),
                ]
            # Whether the runs that are pooled were made under different circumstances, and which.
            differ = mixed([record.run for record in records])
            per_token = float(np.mean([flops.flops_per_token(record) for record in records]))
            per_step = per_token * group.context["global_batch_tokens"]
            values += [
                row("mixed", "1", float(bool(differ)), text=differ or "no"),
                row("model_flops_per_step", "FLOP", per_step),
                interval_row("model_flops_per_second", "FLOP/s", group.rate.times(per_token)),
                *_over_repeats(group, [*map(flops.utilisations, records, group.run_rates)]),
            ]
        parts.append(Rows(group.context, values))
    return parts


def _over_repeats(group: CellRuns, each: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Quantities that a run has one of; the repeats give their median and its interval."""
    cores = "cores" if group.context["device"] == "cpu" else "1"
    units = {"peak_memory_bytes": "bytes", "peak_flops_per_second": "FLOP/s",
             "mean_utilisation": cores, **dict.fromkeys(flops.NAMES, "1")}  # fmt: skip
    # Only what every run has: a median of some of them would be of another cell.
    return [
        interval_row(name, units.get(name, "s"), values_interval([one[name] for one in each]))
        for name in each[0]
        if all(name in one for one in each)
    ]


def find_base(group: CellRuns, groups: Groups) -> CellRuns | None:
    """The group that a speedup is taken over, or None where that did not finish.

    The strategy `single` on one node, else the same arm at its smallest node count.
    """
    own = group.context
    # Times over another kind of network are no base.
    of_base = {"network": own["network"], "strategy": "single", "nodes": 1}
    alone = [g for g in groups.values() if g.ok and of_base.items() <= g.context.items()]
    # In fp32, so that all speedups of a table have one base; where it did not run, in the same.
    for precision in ("fp32", own["precision"]):
        if single := [g for g in alone if g.context["precision"] == precision]:
            # Best one of equal work: under weak scaling with as large a batch per device.
            scaled = [g for g in single if g.context["scaling"] == own["scaling"]]
            return next((g for g in scaled if not unequal_work(own, g.context, ())), single[0])
    # A study without a single device has the arm itself to be faster than.
    return find_own_base(group, groups)


def find_own_base(group: CellRuns, groups: Groups) -> CellRuns | None:
    """The same arm at its smallest node count over the same network, or None if it did not finish.

    Over several links the arm's one node is a cell of its own, which has the arm's name.
    """
    own = group.context
    names = (own["cell"], own["arm"])
    line = [
        g
        for g in groups.values()
        if g.context["network"] == own["network"] and g.context["cell"] in names
    ]
    first = min(line, key=lambda g: int(g.context["nodes"]))
    return first if first.ok else None


def find_plain(group: CellRuns, groups: Groups) -> CellRuns | None:
    """The finished group of the same arm, nodes and link, without this one's conditions."""
    links = {
        other.link: other
        for other in groups.values()
        if other.ok
        and other.link is not None
        and all(other.context[key] == group.context[key] for key in ("arm", "nodes"))
    }
    plain = without_conditions(group.link, links) if group.link else None
    return None if plain is None else links[plain]


LOSS_STEPS = 50
"""Steps over which a loss is averaged before it is held against a study's `target_loss`."""


def cost_rows(target: float | None, groups: Groups) -> list[Rows]:
    """Rows of level `cell`: steps and node hours until the loss falls to `target` (nats).

    The steps are those of a whole run of equal work in the same precision; the time of a step is
    the cell's own. No rows for a cell of which no such run gets there.
    """
    reached: list[tuple[CellRuns, int]] = []
    for group in groups.values() if target is not None else ():
        for run in group.ok:
            # Means over windows of steps: the loss of one batch may fall below by chance.
            sums = np.cumsum(np.concatenate([[0.0], run.loss]))
            means = (sums[LOSS_STEPS:] - sums[:-LOSS_STEPS]) / LOSS_STEPS
            if (steps := np.flatnonzero(means <= target)).size:
                reached.append((group, int(steps[0]) + LOSS_STEPS))
    parts = []
    for group in groups.values():
        own = group.context
        for base, count in reached if group.ok else ():
            # Under weak scaling work is equal where the batch of a device is, and steps differ.
            same_batch = base.context["global_batch_tokens"] == own["global_batch_tokens"]
            same_losses = base.context["precision"] == own["precision"]
            if not (same_batch and same_losses) or unequal_work(own, base.context, ()):
                continue
            at = {"base": base.name, "text": f"{target:g}"}
            hours = group.step_seconds.times(count * own["nodes"] / 3600)
            values = [
                row("steps_to_loss", "count", float(count), n=LOSS_STEPS, **at),
                interval_row("node_hours", "h", hours, **at),
            ]
            parts.append(Rows(own, values))
            break
    return parts


WITHIN = 0.05
"""An interval within this share of its value to either side counts as exact."""


def exactness_rows(groups: Groups) -> list[dict[str, Any]]:
    """Rows of level `study`: how many speedups are exact, and how far runs of a cell spread.

    The spread says how many repeats would make them so (docs/statistics.md).
    """
    several = [group for group in groups.values() if len(group.ok) > 1]
    if not several:
        return []
    bases = [(group, find_base(group, groups)) for group in several]
    ratios = [
        group.over(base)
        for group, base in bases
        if base and base is not group and min(len(group.ok), len(base.ok)) >= MIN_REPEATS
    ]
    exact = sum(max(r.high / r.value - 1, 1 - r.low / r.value) <= WITHIN for r in ratios)
    # On the logarithm a spread is relative, and that of a ratio is the root of the two squares.
    spreads = [float(np.std(np.log(group.run_rates), ddof=1)) for group in several]
    about = f"speedups with an interval within {100 * WITHIN:g} % of their value"
    spread = "standard deviation of the logarithms of a cell's runs, the median cell"
    return [
        row("exact_speedups", "count", float(exact), n=len(ratios), text=about),
        row("spread_of_runs", "1", float(np.median(spreads)), n=len(spreads), text=spread),
    ]
