"""The layout that `plan --auto` chooses, held against every layout, measured on emulated nodes.

    python -m bench.auto --out bench/results/auto.json [--cases tiny-1gbit deep-300mbit]

One calibration (operators and collectives, no step) predicts all `CASES`.
Each layout that a strategy can run is measured once with the micro-batches that the planner gives
it, pipelines also with half and twice as many; then those near the best and the chosen one, in
alternation. A layout fits a memory where its largest rank did, as measured: what the planner
dropped is measured too, and may be the best. Left out, and named, are those that can change no
verdict: predicted at over `FAR` times the choice, and no end of a band reaches the other one's. The
fastest of each mesh is none of them, nor are `ddp` and `single`, with which the choice is compared.

Cases that stand in the file, of the same calibration, are kept: a bench that was stopped continues,
and one of a few cases can be completed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from scipy.stats import kendalltau

from bench.emulated.runs import Runs, Variant, least_factor, order
from bench.scaffold import ROOT, about, parser, write
from pipeline.cost.constants import content as constants
from pipeline.emulation.nodes import why_not
from pipeline.files import write_text
from pipeline.launch import calibrate, preloaded
from pipeline.machine.limits import usable_cores
from pipeline.metrics.runs import load_run
from pipeline.models import num_parameters
from pipeline.planner.auto import choose, layouts_of, run_of
from pipeline.planner.here import BAND, Calibration, predict
from pipeline.planner.memory import MEBIBYTE
from pipeline.planner.operators import of_study
from pipeline.planner.ranking import Cluster, Ranked
from pipeline.resolved import resolve
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study

CALIBRATION = Path("results/auto_calibration.json")
SECONDS = 120.0
"""Of measuring for the calibration of all cases."""
ROUNDS, CLOSE = 3, 1.25
"""Runs of a layout that is at most so many times as slow as the best one; others have one."""
FAR = 2.0
LEAST_NEAR, LEAST_WINNERS, MOST_MINUTES = 10, 4, 45.0
SIMPLE = ("single", "ddp")

BASE = ROOT / "workflow/config/ptdp2021/study.yaml"
STEPS, UNTIMED = 4, 2

MODELS: Mapping[str, Mapping[str, int]] = {
    # Few weights and many tokens: gradients are cheap to send.
    "tiny": {"num_layers": 2, "width": 64, "num_heads": 2, "context": 64},
    "narrow": {"num_layers": 8, "width": 128, "num_heads": 4, "context": 64},
    # Many weights and few tokens: gradients are dear, what passes between stages is not.
    "deep": {"num_layers": 8, "width": 256, "num_heads": 4, "context": 16},
    # Large products of few sequences, which a tensor axis alone can cut.
    "wide": {"num_layers": 2, "width": 512, "num_heads": 4, "context": 64},
}


@dataclass(frozen=True)
class Case:
    """A model with `batch` sequences a step; `mib` is the memory of a node, 0 for enough."""

    name: str
    model: str
    batch: int
    nodes: int
    mbits: float
    mib: int = 0

    def study(self) -> Study:
        """The study for which `plan --auto` chooses a layout."""
        base = load_study(BASE)
        content = base.to_dict()
        link = {"name": f"{self.mbits:g}mbit", "rate_mbits": self.mbits}
        nodes = [n for n in (1, 2, 4) if n <= self.nodes]
        single = {"name": "single", "label": "Single device", "strategy": "single",
                  "precision": "fp32", "nodes": [1]}  # fmt: skip
        work = {"global_batch": self.batch, "steps": STEPS, "untimed_steps": UNTIMED}
        return base.but(
            study=self.name, model=content["model"] | MODELS[self.model],
            cluster=content["cluster"] | {"nodes": nodes, "links": [link]},
            workload=content["workload"] | work, cells=[single], repeats=1,
            profile=None, claims=None, compares=None,
        )  # fmt: skip

    def specs(self) -> list[RunSpec]:
        """Every run that the planner may predict."""
        return [run.spec for run in layouts_of(self.study())]


CASES = (
    Case("tiny-1gbit", "tiny", 16, 4, 1000),
    Case("tiny-100mbit", "tiny", 32, 4, 100),
    Case("tiny-20mbit", "tiny", 16, 4, 20),
    Case("narrow-1gbit", "narrow", 16, 4, 1000),
    Case("deep-300mbit", "deep", 16, 4, 300),
    Case("deep-2500mbit", "deep", 16, 4, 2500),
    Case("deep-300mbit-2", "deep", 16, 2, 300),
    Case("deep-2500mbit-2-small", "deep", 16, 2, 2500, 390),
    Case("wide-2500mbit", "wide", 1, 4, 2500),
    Case("wide-300mbit", "wide", 1, 4, 300),
    Case("wide-2500mbit-2", "wide", 1, 2, 2500),
    Case("wide-2500mbit-small", "wide", 8, 4, 2500, 390),
)


@dataclass(frozen=True)
class Taken:
    """Seconds of a step of a run, and the memory of its largest rank."""

    seconds: float
    mib: float


def main() -> int:
    """Measure, print and write; 1 where nodes cannot be emulated here."""
    options, names = parser(__doc__), [case.name for case in CASES]
    options.add_argument("--cases", nargs="+", choices=names, default=names)
    args = options.parse_args()
    if (reason := why_not()) is not None:
        print(f"error: no emulated nodes here: {reason}", file=sys.stderr)
        return 1
    content = calibrated()
    here = {key: content["hardware"][key] for key in ("cpu_model", "num_cores")}
    here |= {"calibrated_at": content["measured_at"]}
    results = kept(args.out, here)
    # They have torch loaded and fork the runs, as in a study.
    preloaded.start_ranks([resolve(CASES[0].specs()[0])])
    for case in CASES:
        if case.name in results or case.name not in args.cases:
            continue
        results[case.name] = of_case(case, Calibration.of(content))
        shown = {key: value for key, value in results[case.name].items() if key != "layouts"}
        print(json.dumps(shown), file=sys.stderr, flush=True)
        write(args.out, {**here, **summary(list(results.values())), "cases": results})
    print(json.dumps(summary(list(results.values())), indent=1))
    print(f"-> {args.out}")
    return 0


def calibrated() -> dict[str, Any]:
    """The figures of this machine for all cases: those of CALIBRATION if it has them, or new."""
    here = about()
    runs = [resolve(spec) for case in CASES for spec in case.specs()]
    if CALIBRATION.is_file():
        content: dict[str, Any] = json.loads(CALIBRATION.read_text(encoding="utf-8"))
        keys = ("cpu_model", "num_cores")
        same = all(content["hardware"][key] == here["hardware"][key] for key in keys)
        if same and set(Calibration.of(content).operators) >= set(of_study(runs)):
            return content
    # Of runs over one link the last is taken: that of the largest model, which has the most sizes.
    runs.sort(key=lambda run: num_parameters(run.spec.model))
    content = here | calibrate.figures(runs, runs, usable_cores(), SECONDS)
    write_text(CALIBRATION, json.dumps(content) + "\n")
    return content


def kept(out: Path, here: Mapping[str, Any]) -> dict[str, Any]:
    """Cases of an earlier call of the same calibration that are stated now as they were then."""
    content = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    if any(content.get(key) != value for key, value in here.items()):
        return {}
    stated = {case.name: asdict(case) for case in CASES}
    return {
        name: case
        for name, case in content["cases"].items()
        if name in stated and stated[name].items() <= case.items()
    }


def of_case(case: Case, calibration: Calibration) -> dict[str, Any]:
    """All layouts of a case, measured, and how the choice stands among them."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="samestep-auto-") as folder:
        layouts = measured(case, calibration, Runs(Path(folder), case.study()))
    return {
        **asdict(case),
        **{key: value for key, value in about().items() if key != "hardware"},
        "minutes": round((time.monotonic() - begun) / 60, 2),
        **judged(layouts, case.mib),
        "layouts": layouts,
    }


def measured(case: Case, calibration: Calibration, runs: Runs) -> list[dict[str, Any]]:
    """Each layout of a case with its prediction and what was measured of it."""
    layouts, factor = candidates(case, calibration), least_factor(case.nodes)
    reasons = {place: f"left out, {ratio:.1f} times the choice as predicted"
               for place, ratio in far(layouts).items()}  # fmt: skip
    places = [place for place in range(len(layouts)) if place not in reasons]
    print(f"{case.name}: {len(places)} of {len(layouts)} layouts", file=sys.stderr)

    def take(place: int) -> Taken | None:
        """A run, again where it failed; what its record says where it did twice is the reason."""
        run = partial(runs.record, Variant(layouts[place].spec, factor), 2)
        if isinstance(record := runs.machine.undisturbed(run), str):
            reasons[place] = record
            return None
        peak = max(rank["peak_memory_bytes"] for rank in record.run["ranks"])
        return Taken(float(median(load_run(record, {}).timed_seconds)), peak / MEBIBYTE)

    always = [place for place in places if layouts[place].chosen]
    rounds = in_rounds(places, take, case.mib, always)
    return [
        {"layout": one.name, "mesh": one.mesh, "chosen": one.chosen,
         "strategy": one.spec.strategy, "options": one.spec.options,
         "nodes": one.spec.world.nodes, "predicted_seconds": one.predicted_seconds,
         "seconds": median(run.seconds for run in taken) if taken else None,
         "mib": max((run.mib for run in taken), default=None),
         "runs": len(taken), "reason": reasons.get(place)}
        for place, one in enumerate(layouts)
        for taken in [rounds.get(place, [])]
    ]  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A layout of a case with what is predicted of it; `mesh` are its axes alone."""

    name: str
    mesh: str
    spec: RunSpec
    predicted_seconds: float
    chosen: bool


def candidates(case: Case, calibration: Calibration) -> list[Candidate]:
    """All layouts that are ranked, with the case's memory and with enough, the choice among them.

    Pipelines also with half and twice the micro-batches that the planner gives them.
    """
    study = case.study()
    every, within = (
        choose(study, Cluster("cpu", mib / 1024, case.nodes, 1, 0.0), "fp32", calibration)
        for mib in (0, case.mib)
    )
    cells: dict[str, tuple[Ranked, Mapping[str, Any]]] = {}
    for one in (*within, *every):
        options = one.cell["options"]
        asked: list[Mapping[str, Any]] = [options]
        if one.job.pp > 1:
            count = options["microbatches"]
            asked += [{**options, "microbatches": n} for n in (count // 2, 2 * count) if n]
        for each in asked:
            cell = {**one.cell, "options": each}
            cells.setdefault(json.dumps(cell, sort_keys=True), (one, cell))
    layouts: list[Candidate] = []
    for ranked, own in cells.values():
        if (run := run_of(study, own)) is None:
            continue  # more micro-batches than sequences
        pieces = run.strategy.pieces(run.spec, run.layout)
        again = ", recomputed" if run.spec.workload.recompute else ""
        if layers := own["options"].get("layers"):
            again += ", stages of " + "-".join(map(str, layers))
        layouts.append(
            Candidate(
                name=f"{ranked.name}, {pieces} micro-batch{'es'[: 2 * (pieces > 1)]}{again}",
                mesh=ranked.name.partition(",")[0],
                spec=replace(run.spec, cell=f"layout{len(layouts)}"),
                predicted_seconds=predict(run, calibration).seconds,
                chosen=own == within[0].cell,
            )
        )
    return layouts


def far(layouts: Sequence[Candidate]) -> dict[int, float]:
    """Places of the layouts that no run can make the best, with their step over the choice's."""
    choice = next(one.predicted_seconds for one in layouts if one.chosen)
    low, high = constants()["band"][BAND]
    # The fastest of each mesh is measured, so that none is dismissed by its prediction alone.
    by_time = sorted(range(len(layouts)), key=lambda place: -layouts[place].predicted_seconds)
    fastest = {layouts[place].mesh: place for place in by_time}.values()
    return {
        place: one.predicted_seconds / choice
        for place, one in enumerate(layouts)
        if one.predicted_seconds > max(FAR, high / low) * choice
        and place not in fastest
        and one.spec.strategy not in SIMPLE
    }


def in_rounds(
    places: Sequence[int], take: Callable[[int], Taken | None], mib: int, always: Collection[int]
) -> dict[int, list[Taken]]:
    """Every one once, then in turn those that fit and are near the best, and `always` some."""
    taken: dict[int, list[Taken]] = {place: [] for place in places}
    left = list(places)
    for repeat in range(ROUNDS):
        for place in order(repeat, len(left)):
            if (one := take(left[place])) is not None:
                taken[left[place]].append(one)
        seconds = {
            place: median(run.seconds for run in taken[place])
            for place in left
            if taken[place] and (not mib or max(run.mib for run in taken[place]) <= mib)
        }
        best = min(seconds.values(), default=0.0)
        left = [p for p, own in seconds.items() if p in always or own <= CLOSE * best]
    return taken


def judged(layouts: Sequence[Mapping[str, Any]], mib: int) -> dict[str, Any]:
    """The chosen layout over the best that fits, and over the fastest of DDP and one device.

    Both are None where the choice did not run or fit. Also how far predictions were off.
    """
    ran = [one for one in layouts if one["seconds"] is not None]
    fitting = [one for one in ran if not mib or one["mib"] <= mib]
    fitting.sort(key=lambda one: one["seconds"])
    if not fitting:
        raise SystemExit(f"no layout ran and fits: {next(one['reason'] for one in layouts)}")
    best = fitting[0]
    chosen = next(one for one in layouts if one["chosen"])
    others = [one for one in fitting if one["mesh"] != best["mesh"]]
    simple = [one for one in fitting if one["strategy"] in SIMPLE]

    def over(one: Mapping[str, Any], other: Sequence[Mapping[str, Any]]) -> float | None:
        """The first over the first of some others."""
        return float(one["seconds"] / other[0]["seconds"]) - 1 if one in fitting and other else None

    pairs = [(one["predicted_seconds"], one["seconds"]) for one in ran]
    return {
        "best": best["layout"],
        "best_mesh": best["mesh"],
        "next_mesh": others[0]["layout"] if others else None,
        "next_mesh_over_best": over(others[0], fitting) if others else None,
        "choice": chosen["layout"],
        "over_best": over(chosen, fitting),
        "over_simple": over(chosen, simple),
        "median_error": median(abs(p / m - 1) for p, m in pairs),
        "tau": float(kendalltau(*zip(*pairs, strict=True)).statistic) if pairs[1:] else None,
    }


def summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of choices near the best, the winners, and whether all bars are met."""
    overs = [case["over_best"] for case in cases if case["over_best"] is not None]
    near, next_near = (sum(over <= share for over in overs) for share in (0.10, 0.20))
    winners = sorted({case["best_mesh"] for case in cases})
    worse = [case["name"] for case in cases if (case["over_simple"] or 0.0) > 0]
    minutes = sum(case["minutes"] for case in cases)
    return {
        "within_10_percent": near,
        "within_20_percent": next_near,
        "of": len(cases),
        "slower_than_ddp_or_single": worse,
        "winners": winners,
        "minutes": round(minutes, 1),
        "met": next_near == len(CASES)
        and minutes <= MOST_MINUTES
        and near >= LEAST_NEAR
        and not worse
        and len(winners) >= LEAST_WINNERS,
    }


if __name__ == "__main__":
    sys.exit(main())
