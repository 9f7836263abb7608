"""Which repeats does a study call for, given the records so far?

With a fixed number that is all of them. With `repeats: {at_least, at_most, within}` all cells get
another repeat each until the interval of every median step time lies within the share `within` of
it, or `at_most` is reached. All, since all are compared: with one another at a node count, and
through the base of their speedups over the node counts. Cells with unequal numbers of runs would
give the noisy ones the more. The rule uses the first repeats only, in their order, so that the
same records always call for the same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.documents import read_made
from pipeline.errors import RecordError
from pipeline.records import RunRecord
from pipeline.study.expansion import expand
from pipeline.study.profiling import profiled
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study

# A rule that stops when an interval is narrow favours intervals that are narrow by luck; measured
# by simulation with at least 6 and at most 20 repeats (docs/decisions, faster-and-repeats).
COVERAGE = "92 to 96 %"


def called_for(study: Study, runs: Path) -> list[RunSpec]:
    """The runs that the study calls for, in its order; those of fixed repeats are all.

    Reads the records below `runs`; cells are not followed beyond the first missing record.
    """
    specs = expand(study)
    least, within = study.repeats.at_least, study.repeats.within
    if within is None:
        return specs
    most = study.repeats.at_most
    cells: dict[tuple[str, int], list[RunSpec]] = {}
    for spec in specs:
        cells.setdefault((spec.cell, spec.world.nodes), []).append(spec)
    counts = _of_compared(cells, runs, (least, most), within)
    return [spec for key, own in cells.items() for spec in own[: counts[key]]]


def _of_compared(
    cells: Mapping[tuple[str, int], Sequence[RunSpec]],
    runs: Path,
    bounds: tuple[int, int],
    within: float,
) -> dict[tuple[str, int], int]:
    """How many repeats each of these cells, which are compared with one another, is called for.

    A cell of which no run finished is not repeated beyond the fewest.
    """
    least, most = bounds
    done = {key: _done(own, runs) for key, own in cells.items()}
    if any(len(records) < least for records in done.values()):
        return dict.fromkeys(cells, least)
    live = {key for key, records in done.items() if _finished(records[:least])}
    count = least
    while count < most and not all(settled(done[key][:count], within) for key in live):
        count += 1
        if any(len(done[key]) < count for key in live):
            break
    return {key: count if key in live else least for key in cells}


def _done(specs: Sequence[RunSpec], runs: Path) -> list[RunRecord]:
    """Records of a cell in the order of its repeats, up to the first that is missing."""
    from pipeline.metrics.collect import read_run, run_folder

    found: list[RunRecord] = []
    for spec in specs:
        if not (run_folder(runs, spec) / "run.json").is_file():
            break
        found.append(read_run(runs, spec))
    return found


def _finished(records: Sequence[RunRecord]) -> bool:
    return any(record.status == "ok" for record in records)


def run_files(
    study: Study,
    results: str,
    repeats: int | None,
    name: str,
    get_round: Callable[..., Any],
) -> list[str]:
    """Paths of the file `name` of all runs among the first `repeats`; None: of every run.

    `results` is the study's folder, in which its runs lie.

    For the workflow: `get_round(repeat=r)` is the checkpoint that wrote which runs of repeat r are
    called for, and raises where it has yet to run. Repeats that every cell has ask for none.
    """
    least, most = study.repeats.at_least, study.repeats.at_most
    last = most if repeats is None else repeats
    ids = [spec.run_id for spec in expand(study) if spec.repeat < min(last, least)]
    for repeat in range(least, last):
        chosen = Path(get_round(repeat=repeat).output[0])
        called = read_made(chosen, "", RecordError, "python -m pipeline repeats")
        if not called:
            break
        ids += called
    if repeats is None:
        ids += [spec.run_id for spec in profiled(study)]
    folders = (run_id.partition("/")[2] for run_id in ids)
    return [f"{results}/runs/{folder}/{name}" for folder in folders]


def settled(records: Sequence[RunRecord], within: float) -> bool:
    """Whether more repeats are needless: the interval is narrow, or no run finished at all."""
    from pipeline.metrics.runs import load_run
    from pipeline.metrics.statistics import MIN_REPEATS, repeats_interval

    finished = [load_run(r, {}).timed_seconds for r in records if r.status == "ok"]
    if not finished:
        return True
    if len(finished) < MIN_REPEATS:
        return False
    found = repeats_interval(finished)
    return max(found.high - found.value, found.value - found.low) <= within * found.value
