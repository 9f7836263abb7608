"""Read two result sets and hold their runs against one another, by cell, nodes and repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipeline.compare.times import DIFFERENT, Times, cell_times
from pipeline.errors import ComparisonError
from pipeline.metrics.collect import flat
from pipeline.metrics.facts import mixed
from pipeline.metrics.parity import relative_deviation
from pipeline.metrics.runs import Run, load_run
from pipeline.records import find_records, read_record
from pipeline.study.spec import TIMED

CellKey = tuple[str, int]
SERIES = {"loss": "loss", "gradient norm": "grad_norm"}


@dataclass(frozen=True)
class ResultSet:
    """All records of timed runs below `results/<study>/runs`, by (cell, nodes) and repeat."""

    folder: Path
    runs: Mapping[CellKey, Mapping[int, Run]]

    @classmethod
    def read(cls, folder: Path) -> ResultSet:
        """Raises ComparisonError where there is no record, RecordError where one is invalid."""
        runs: dict[CellKey, dict[int, Run]] = {}
        for path in find_records(folder / "runs"):
            record = read_record(path)
            spec = record.spec
            place = path.relative_to(folder / "runs").as_posix()
            if place != spec.folder:
                raise ComparisonError(
                    f"{path} holds the record of {spec.run_id}; bring it to the folder of its run"
                )
            if spec.kind != TIMED:
                continue
            cell, names = (spec.cell, spec.world.nodes), ("label", "arm", "arm_label")
            # Two folders may be of studies that label a cell otherwise; its name identifies it.
            label = dict.fromkeys(names, spec.cell) | {"cell_order": 0}
            run = load_run(record, {**label, "precision_ran": spec.precision})
            runs.setdefault(cell, {})[spec.repeat] = run
        if not runs:
            raise ComparisonError(
                f"{folder} holds no record; give the folder of a study, such as results/smoke, "
                "which has runs/<cell>/n<nodes>/r<repeat>/run.json"
            )
        return cls(folder, dict(sorted(runs.items())))

    def facts(self) -> dict[str, str]:
        """Versions, hardware, source and image, each with all values that the runs have."""
        facts: defaultdict[str, set[str]] = defaultdict(set)
        for run in (run for runs in self.runs.values() for run in runs.values()):
            about = run.record.run
            parts = {part: about[part] for part in ("versions", "hardware", "provenance", "data")}
            parts["execution"] = {"clock": about["execution"]["clock"]}
            of_ranks = [{"ranks": rank.get("environment", {})} for rank in about["ranks"]]
            for part in (parts, *of_ranks):
                for key, value in flat(part, depth=2).items():
                    facts[key].add(str(value))
        return {key: ", ".join(sorted(values)) for key, values in sorted(facts.items())}


class Difference(NamedTuple):
    """The first step at which two series of a rank are apart by more than was allowed."""

    series: str
    repeat: int
    step: int
    rank: int
    one: float
    other: float
    relative: float


@dataclass(frozen=True)
class Match:
    """One cell at one node count in both sets; a repeat counts where both finished it."""

    place: CellKey
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
    def finished(self) -> tuple[list[Run], list[Run]]:
        """The runs of each set that finished."""
        one, other = ([r for r in side.values() if r.ok] for side in (self.one, self.other))
        return one, other

    @cached_property
    def unmatched(self) -> list[str]:
        """Repeats that are in one set only, or ended differently."""
        sides = (self.one, self.other)
        ends = {
            repeat: [s[repeat].record.status if repeat in s else "absent" for s in sides]
            for repeat in sorted({*self.one, *self.other})
        }
        return [f"r{repeat} is {a} and {b}" for repeat, (a, b) in ends.items() if a != b]

    @cached_property
    def spec_differences(self) -> list[str]:
        """`key: a and b` for each part of the spec that differs in any repeat."""
        lines: list[str] = []
        for repeat in sorted({*self.one} & {*self.other}):
            a, b = (flat(side[repeat].record.run["spec"]) for side in (self.one, self.other))
            pairs = _differing(a, b, None).items()
            lines += [f"{key}: {mine} and {theirs}" for key, (mine, theirs) in pairs]
        return list(dict.fromkeys(lines))

    @cached_property
    def differences(self) -> list[Difference]:
        """The first differing step of each series, over all repeats.

        Where the ranks are not as many, rank 0 stands for all.
        """
        firsts = []
        for name, series in SERIES.items():
            own = []
            for repeat, pair in self.pairs.items():
                # Values of all steps of all ranks, shape (steps, ranks).
                a, b = (
                    pd.DataFrame(map(vars, run.record.steps), columns=["step", "rank", series])
                    .pivot(index="step", columns="rank", values=series)
                    .to_numpy(dtype=np.float64)
                    for run in pair
                )
                # All ranks have the loss and norm of the whole batch, so one stands for all.
                if a.shape[1] != b.shape[1]:
                    a, b = a[:, :1], b[:, :1]
                common = min(len(a), len(b))
                apart = relative_deviation(b[:common], a[:common])
                for step, rank in np.argwhere(apart > self.allowed)[:1].tolist():
                    values = (float(side[step, rank]) for side in (a, b, apart))
                    own.append(Difference(name, repeat, step, rank, *values))
            firsts += sorted(own, key=lambda d: (d.step, d.repeat))[:1]
        return firsts

    @property
    def lengths_differ(self) -> bool:
        """True where two runs of a repeat have another number of steps."""
        return any(len(a.loss) != len(b.loss) for a, b in self.pairs.values())

    @cached_property
    def mixed(self) -> list[str]:
        """Circumstances that differ between the runs of a set, such as `A: torch 2.12 and 2.13`."""
        texts = (mixed([run.record.run for run in runs]) for runs in self.finished)
        return [f"{name}: {text}" for name, text in zip("AB", texts, strict=True) if text]


@dataclass(frozen=True)
class Comparison:
    """Two sets and the cells that they share.

    `times` are the step times of cells that finished in both, `alone` the cells that A, or B, has
    alone.
    """

    one: ResultSet
    other: ResultSet
    matches: Sequence[Match]
    times: Mapping[CellKey, Times]
    alone: Mapping[str, list[CellKey]]

    @property
    def environment(self) -> dict[str, tuple[str, str]]:
        """Facts of both sets that differ."""
        return _differing(self.one.facts(), self.other.facts(), "none")

    @property
    def same_coverage(self) -> bool:
        """True where both sets have the same runs and each ended alike in both."""
        return not any(self.alone.values()) and not any(m.unmatched for m in self.matches)

    @property
    def same_training(self) -> bool:
        """True where no loss and no gradient norm is apart, in as many steps."""
        return not any(match.differences or match.lengths_differ for match in self.matches)

    def count(self, verdict: str) -> int:
        """Cells whose times have this verdict."""
        return sum(times.verdict == verdict for times in self.times.values())

    def equal(self, times: str) -> bool:
        """True where nothing that was asked for differs; `times` is `ignore` or `interval`."""
        same = self.same_coverage and self.same_training
        return same and (times == "ignore" or self.count(DIFFERENT) == 0)


def compare(one: ResultSet, other: ResultSet, allowed: float) -> Comparison:
    """Match the sets; raises ComparisonError where no run finished in both."""
    shared = [place for place in one.runs if place in other.runs]
    matches = [Match(place, one.runs[place], other.runs[place], allowed) for place in shared]
    if not any(match.pairs for match in matches):
        raise ComparisonError(
            f"no run finished in both {one.folder} and {other.folder}, so nothing can be compared; "
            "give two result sets of one study"
        )
    times = cell_times({match.place: match.finished for match in matches})
    sides = {"A": one.runs, "B": other.runs}
    alone = {name: [key for key in runs if key not in shared] for name, runs in sides.items()}
    return Comparison(one, other, matches, times, alone)


def _differing(
    one: Mapping[str, Any], other: Mapping[str, Any], absent: Any
) -> dict[str, tuple[Any, Any]]:
    """Values of both for each key in which they differ."""
    both = {k: (one.get(k, absent), other.get(k, absent)) for k in sorted({*one, *other})}
    return {key: pair for key, pair in both.items() if pair[0] != pair[1]}
