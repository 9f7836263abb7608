"""Read two result sets and hold their runs against one another, by cell, nodes and repeat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ComparisonError
from pipeline.metrics.parity import relative_deviation
from pipeline.metrics.runs import FORMER_CLOCK, Run, load_run
from pipeline.metrics.statistics import Floats, Interval, interval_of_ratio, repeats_interval
from pipeline.records import find_records, read_record

Place = tuple[str, int]
SERIES = {"loss": "loss", "gradient norm": "grad_norm"}


@dataclass(frozen=True)
class ResultSet:
    """All records of timed runs below `results/<study>/runs`, by (cell, nodes) and repeat."""

    folder: Path
    runs: Mapping[Place, Mapping[int, Run]]

    @classmethod
    def read(cls, folder: Path) -> ResultSet:
        """Raises ComparisonError where there is no record, RecordError where one is invalid."""
        found: dict[Place, dict[int, Run]] = {}
        for path in find_records(folder / "runs"):
            record = read_record(path)
            spec = record.spec
            if spec.profile:
                continue
            place, names = (spec.cell, spec.world.nodes), ("label", "arm", "arm_label")
            label = dict.fromkeys(names, spec.cell) | {"cell_order": 0}
            run = load_run(record, {**label, "precision_ran": spec.precision})
            if spec.repeat in found.setdefault(place, {}):
                raise ComparisonError(f"{folder} holds {spec.run_id} twice; compare one study")
            found[place][spec.repeat] = run
        if not found:
            raise ComparisonError(
                f"{folder} holds no record; give the folder of a study, such as results/smoke, "
                "which has runs/<cell>/n<nodes>/r<repeat>/run.json"
            )
        return cls(folder, dict(sorted(found.items())))

    def facts(self) -> dict[str, str]:
        """Versions, hardware, source and image, each with all values that the runs have."""
        found: dict[str, set[str]] = {}
        for runs in self.runs.values():
            for run in runs.values():
                for key, value in _facts(run.record.run):
                    found.setdefault(key, set()).add(value)
        return {key: ", ".join(sorted(values)) for key, values in sorted(found.items())}


def _facts(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in ("versions", "hardware", "provenance", "data"):
        for key, value in run[part].items():
            yield f"{part}.{key}", str(value)
    yield "execution.clock", run["execution"].get("clock", FORMER_CLOCK)


@dataclass(frozen=True)
class Difference:
    """The first step at which two series are apart by more than was allowed."""

    series: str
    repeat: int
    step: int
    one: float
    other: float
    relative: float


@dataclass(frozen=True)
class Match:
    """One cell at one node count in both sets; a repeat counts where both finished it."""

    place: Place
    one: Mapping[int, Run]
    other: Mapping[int, Run]
    allowed: float
    """Largest relative difference of a loss or a gradient norm; 0 asks for equal bits."""

    @cached_property
    def pairs(self) -> dict[int, tuple[Run, Run]]:
        """Both runs of each repeat that finished in both sets."""
        both = sorted({*self.one} & {*self.other})
        return {
            r: (self.one[r], self.other[r]) for r in both if self.one[r].ok and self.other[r].ok
        }

    @cached_property
    def unmatched(self) -> list[str]:
        """Repeats that are in one set only, or ended differently."""
        found = []
        for repeat in sorted({*self.one, *self.other}):
            ends = [_status(side, repeat) for side in (self.one, self.other)]
            if ends[0] != ends[1]:
                found.append(f"r{repeat} is {ends[0]} and {ends[1]}")
        return found

    @cached_property
    def spec_differences(self) -> list[str]:
        """`key: a and b` for each part of the spec that differs in any repeat."""
        found: dict[str, None] = {}
        for repeat in sorted({*self.one} & {*self.other}):
            a, b = (_flat(side[repeat].record.run["spec"]) for side in (self.one, self.other))
            for key in sorted({*a, *b}):
                if a.get(key) != b.get(key):
                    found[f"{key}: {a.get(key)} and {b.get(key)}"] = None
        return list(found)

    def deviations(self, series: str) -> dict[int, Floats]:
        """Relative difference at each common step, by repeat."""
        return {r: _deviation(a, b, series) for r, (a, b) in self.pairs.items()}

    @cached_property
    def differences(self) -> list[Difference]:
        """The first differing step of each series, over all repeats."""
        found = []
        for name, series in SERIES.items():
            own = [
                _first(name, repeat, self.pairs[repeat], deviation, series, self.allowed)
                for repeat, deviation in self.deviations(series).items()
            ]
            present = [difference for difference in own if difference is not None]
            found += sorted(present, key=lambda d: (d.step, d.repeat))[:1]
        return found

    @cached_property
    def lengths_differ(self) -> bool:
        """Whether two runs of a repeat have another number of steps."""
        return any(len(a.loss) != len(b.loss) for a, b in self.pairs.values())

    @cached_property
    def same_training(self) -> bool:
        """Every repeat in both sets, ended alike, and all series within what is allowed."""
        return not (self.differences or self.unmatched or self.lengths_differ)

    @cached_property
    def times(self) -> tuple[Interval, Interval, Interval] | None:
        """Median step time of each set and their ratio, the second over the first."""
        sides = [[run.timed_seconds for run in side.values() if run.ok]
                 for side in (self.one, self.other)]  # fmt: skip
        if not all(sides):
            return None
        one, other = (repeats_interval(side) for side in sides)
        return one, other, interval_of_ratio(other, one)

    @property
    def times_agree(self) -> bool | None:
        """Whether the interval of the ratio holds 1; None without times."""
        return None if self.times is None else bool(self.times[2].low <= 1 <= self.times[2].high)


@dataclass(frozen=True)
class Comparison:
    """All that two sets share, and the cells that only one of them has."""

    one: ResultSet
    other: ResultSet
    matches: Sequence[Match]
    only_one: Sequence[Place]
    only_other: Sequence[Place]
    environment: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def equal(self, times: str) -> bool:
        """Whether nothing differs; `times` is `ignore` or `interval`."""
        trained = all(match.same_training for match in self.matches)
        timed = times == "ignore" or all(match.times_agree is not False for match in self.matches)
        return trained and timed and not self.only_one and not self.only_other


def compare(one: ResultSet, other: ResultSet, allowed: float) -> Comparison:
    """Match the sets; raises ComparisonError where no run finished in both."""
    shared = [place for place in one.runs if place in other.runs]
    matches = [Match(place, one.runs[place], other.runs[place], allowed) for place in shared]
    if not any(match.pairs for match in matches):
        raise ComparisonError(
            f"no run finished in both {one.folder} and {other.folder}, so nothing can be compared; "
            "give two result sets of one study"
        )
    a, b = one.facts(), other.facts()
    differing = {k: (a.get(k, "none"), b.get(k, "none")) for k in sorted({*a, *b})}
    return Comparison(
        one, other, matches,
        [place for place in one.runs if place not in other.runs],
        [place for place in other.runs if place not in one.runs],
        {key: pair for key, pair in differing.items() if pair[0] != pair[1]},
    )  # fmt: skip


def _status(runs: Mapping[int, Run], repeat: int) -> str:
    return runs[repeat].record.status if repeat in runs else "absent"


def _flat(value: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, part in value.items():
        found |= _flat(part, f"{at}{key}.") if isinstance(part, Mapping) else {f"{at}{key}": part}
    return found


def _deviation(one: Run, other: Run, series: str) -> Floats:
    a, b = getattr(one, series), getattr(other, series)
    common = min(len(a), len(b))
    return relative_deviation(b[:common], a[:common])


def _first(
    name: str, repeat: int, pair: tuple[Run, Run], deviation: Floats, series: str, allowed: float
) -> Difference | None:
    apart = np.flatnonzero(deviation > allowed)
    if not len(apart):
        return None
    step = int(apart[0])
    one, other = (float(getattr(run, series)[step]) for run in pair)
    return Difference(name, repeat, step, one, other, float(deviation[step]))
