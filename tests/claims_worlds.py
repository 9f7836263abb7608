"""TEST ONLY: a synthetic study that has every cell of the shipped claims, made to come out any way.

No number here was measured. `make_world` is a study at the scale of Bai 2022; `arranged` sets what
a claim's test measures, so that its effect is a chosen value with chosen bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from pipeline.claims.load import FOLDER, load_claims, parse
from pipeline.claims.quantities import RATE
from pipeline.claims.types import Claim, Selector
from pipeline.claims.worlds import Evidence, Place
from pipeline.metrics.contrasts import FASTER, SLOWER, UNDECIDED
from pipeline.metrics.results import Results
from pipeline.study.study import Study
from tests.fake_records import make_records, make_study, table_of

CLAIMS = {claim.id: claim for claim in load_claims(FOLDER / "bai2022/claims.yaml")}
"""Those of Bai 2022, by their ids."""

Bounds = tuple[float, float, float]
"""Low, value and high; two of six repeats have each, so that an interval has these bounds."""

REPEATS = 6

PARAMETERS = 106_000_000
ONE: Bounds = (1.0, 1.0, 1.0)

CELLS: list[dict[str, Any]] = [
    {"name": "one", "strategy": "single", "precision": "fp32", "nodes": [1], "ranks_per_node": 1},
    {"name": "server", "strategy": "parameter_server", "precision": "fp32", "nodes": [1],
     "options": {"engine": "data_parallel"}},
    {"name": "ddp", "strategy": "ddp", "precision": "fp32"},
    {"name": "ring", "strategy": "horovod", "precision": "fp32"},
    {"name": "ddp-mixed", "strategy": "ddp", "precision": "apex_o2"},
    {"name": "ring-mixed", "strategy": "horovod", "precision": "apex_o1"},
    {"name": "ddp-emptying", "strategy": "ddp", "precision": "fp32", "nodes": [1],
     "options": {"empty_cache": True}},
    {"name": "ddp-small", "strategy": "ddp", "precision": "fp32", "nodes": [1],
     "workload": {"global_batch": 8}},
]  # fmt: skip


CLUSTER: dict[str, Any] = {"device": "cuda", "ranks_per_node": 4, "nodes": [1, 2],
                           "backend": "nccl", "network": "real"}  # fmt: skip


def world_study(*names: str, **changes: Any) -> dict[str, Any]:
    """A study on 4 V100 a node at 1 and 2 nodes, of the cells of these names or of all."""
    cells = [
        {"label": cell["name"], **cell} for cell in CELLS if not names or cell["name"] in names
    ]
    study = make_study(
        cluster=CLUSTER, cells=cells, repeats=REPEATS, compares=["global_batch"],
        profile={"steps": 4}, seeds=list(range(1, REPEATS + 1)),
    )  # fmt: skip
    work = {**study["workload"], "steps": 12, "untimed_steps": 4}
    optimiser = {**study["optimiser"], "warmup_steps": 2}
    whole = {**study, "study": "world", "workload": work, "optimiser": optimiser, **changes}
    return {key: value for key, value in whole.items() if value is not None}


def make_world(*names: str, **changes: Any) -> Evidence:
    """The study above and its table of metrics, in which every run finished."""
    study = world_study(*names, **changes)
    table = table_of(study, make_records(study, lambda spec: None))
    # Effects are arranged cell by cell; then `agree` or `decide` says what the rank test found.
    table = _lengthened(table)
    table.loc[table["metric"] == "num_parameters", "value"] = float(PARAMETERS)
    table.loc[table["metric"] == "gpus", "text"] = "NVIDIA V100, NVIDIA V100"
    # Low precision is four times as fast as fp32.
    fast = (table["metric"] == "peak_flops_per_second") & (table["precision"] != "fp32")
    table.loc[fast, ["value", "low", "high"]] *= 4
    return Evidence(Study.of(study), Results(table))


def _lengthened(table: pd.DataFrame) -> pd.DataFrame:
    """The table with times of a hundred steps and more a run, and a profiled run a repeat."""
    timed = (table["metric"] == "step_seconds") & table["timed"].fillna(False).astype(bool)
    times = table[timed & (table["level"] == "step")]
    profile = table[table["level"] == "profile"]
    more = [
        times.assign(step=times["step"] + 100 * number)
        for number in range(1, 1 + 100 // max(1, times["step"].nunique()))
    ]
    names = profile["run_id"].str.removesuffix("p0")
    more += [profile.assign(run_id=names + f"p{n}", repeat=n) for n in range(1, REPEATS)]
    whole = pd.concat([table, *(part for part in more if len(part))], ignore_index=True)
    return whole.astype(table.dtypes.to_dict())


def agree(evidence: Evidence, metric: str) -> None:
    """Make the planned comparisons say what the runs of `metric` do: apart, or undecided."""
    table = evidence.results.table
    runs = table[(table["level"] == "run") & (table["metric"] == metric)]
    ends = {key: (own.min(), own.max()) for key, own in runs.groupby(["cell", "nodes"])["value"]}
    words = (FASTER, SLOWER) if metric != "step_seconds" else (SLOWER, FASTER)
    rows = table[table["metric"] == "speed_verdict"]
    found = {}
    for index, *row in rows[[*_ONE, *_OTHER]].itertuples():
        keys = tuple(row[:2]), tuple(row[2:])
        if ends.keys() >= {*keys}:
            (low, high), (least, most) = (ends[key] for key in keys)
            found[index] = words[0] if low > most else words[1] if high < least else UNDECIDED
    # At once: each assignment copies the column.
    table.loc[list(found), "text"] = list(found.values())


_ONE, _OTHER = ("cell", "nodes"), ("other", "other_nodes")


def apart(evidence: Evidence, one: Place, other: Place) -> Evidence:
    """The same study in which the comparison of two places was not planned."""
    table = evidence.results.table
    rows = table[table["level"] == "comparison"]
    gone = [
        index
        for index, *row in rows[[*_ONE, *_OTHER]].itertuples()
        if {tuple(row[:2]), tuple(row[2:])} == {one.key, other.key}
    ]
    return on(evidence, table.drop(index=gone))


def decide(evidence: Evidence, one: Place, other: Place, verdict: str, p_value: float) -> Evidence:
    """The same study in which the rank test compared two places with this outcome."""
    evidence = apart(evidence, one, other)
    shared = {**one.row, "level": "comparison", "base": other.cell, "other": other.cell,
              "other_nodes": other.nodes}  # fmt: skip
    values: dict[str, tuple[float, str]] = {
        "rate_ratio": (1.0, ""), "p_value": (p_value, ""), "effect_size": (0.9, ""),
        "speed_verdict": (0.0, verdict),
    }  # fmt: skip
    rows = [
        {**shared, "metric": m, "value": v, "low": v, "high": v, "n": 3, "text": t}
        for m, (v, t) in values.items()
    ]
    return with_rows(evidence, pd.DataFrame(rows))


def with_rows(evidence: Evidence, rows: pd.DataFrame) -> Evidence:
    """The same study with more rows in its table."""
    table = evidence.results.table
    added = rows.reindex(columns=table.columns).astype(object)
    whole = pd.concat([table.astype(object), added], ignore_index=True)
    return on(evidence, whole.astype(table.dtypes.to_dict()))


def on(evidence: Evidence, table: pd.DataFrame) -> Evidence:
    """The same study with another table."""
    return Evidence(evidence.study, Results(table))


def copy(evidence: Evidence) -> Evidence:
    """The same study with a table of its own."""
    return on(evidence, evidence.results.table.copy())


def arranged(evidence: Evidence, claim: Claim, effect: Bounds) -> Evidence:
    """The same study, in which the effect of the claim's test is `effect`.

    A kind or metric unknown here is an error.
    """
    evidence, places = copy(evidence), evidence.places  # these are remembered
    test, table = claim.test, evidence.results.table
    match claim.kind:
        case "ratio" | "ratio_of_ratios" | "best" | "worst" | "robust":
            # All at one, and the cell that the claim is about at the effect.
            metric, wanted = test.get("metric", RATE), selectors(claim)
            for selector in reversed(wanted):
                for place in places(selector):
                    bounds = effect if selector is wanted[0] else ONE
                    set_metric(evidence, place, metric, bounds)
            if claim.kind in ("ratio", "best", "worst") and metric in (RATE, "step_seconds"):
                agree(evidence, metric)
        case "efficiency":
            for place in (p for selector in test["cells"] for p in places(selector)):
                set_metric(evidence, place, RATE, _scaled(2, effect) if place.nodes == 2 else ONE)
        case "explained":
            # Two nodes are as fast as one, so half of the speedup is lost; a share is sending.
            for place in (p for selector in test["cells"] for p in places(selector)):
                set_metric(evidence, place, RATE, ONE)
                for repeat, share in _each(effect):
                    # Passes are as much faster on several nodes as they ideally are.
                    ideally = 2 / place.nodes
                    phases = {"communication": share / 2, "forward": ideally * (1 - share / 2)}
                    _set_phases(evidence, place, repeat, phases)
        case "utilisation":
            # Every rank is off by the effect, each repeat by one of its bounds.
            [place, *_] = places(test["a"])
            for rank, expected in enumerate(test["expected"]):
                for repeat, distance in _each(effect):
                    rows = _rows(table, place, "rank", "mean_utilisation", repeat)
                    table.loc[rows & (table["rank"] == rank), "value"] = expected * (1 + distance)
        case "fits":
            # Below the bound 1 the large cell runs out of memory, above it finishes.
            for key, text in (("fits", "ok"), ("too_large", "oom" if effect[1] < 1 else "ok")):
                for place in places(test[key]):
                    table.loc[_rows(table, place, "run", "status"), "text"] = text
        case "memory_formula":
            values = test["values_per_parameter"] * test["bytes_per_value"] * float(PARAMETERS)
            for place in places(test["a"]):
                set_metric(evidence, place, "peak_memory_bytes", _scaled(values, effect))
        case _:
            raise KeyError(claim.kind)
    return evidence


def without(evidence: Evidence, selector: Selector) -> Evidence:
    """The study without the cells that the selector means."""
    gone = {place.cell for place in evidence.places(selector)}
    arms = tuple(arm for arm in evidence.study.arms if arm.name not in gone)
    table = evidence.results.table[~evidence.results.table["cell"].isin(gone)].copy()
    return Evidence(replace(evidence.study, arms=arms), Results(table))


def a_claim(test: dict[str, Any], cell: dict[str, Any] | None = None, **more: Any) -> Claim:
    """One claim on cells of DDP (`a`) and Horovod (`b`), with published figures of PTD-P."""
    made_at = {"device": "cuda", "hardware": "V100", "nodes": 2, "ranks_per_node": 4,
               "parameters": float(PARAMETERS)}  # fmt: skip
    content = {
        "publication": "PTD-P",
        "reference": "ptdp2021",
        "sources": {"paper": "arXiv 2104.04473"},
        "made_at": made_at,
        "cells": {"a": {"strategy": "ddp", "precision": "fp32"} | (cell or {}),
                  "b": {"strategy": "horovod", "precision": "fp32"}},
        "claims": [{"id": "one", "sentence": "It does.", "source": {"key": "paper", "place": "x"},
                    "test": test, **more}],
    }  # fmt: skip
    return parse(content, "here")[0]


def selectors(claim: Claim) -> list[Selector]:
    """Every selector of a claim's test, the one that it is about first."""
    test = claim.test
    one = [test[key] for key in ("a", "b", "c", "d", "fits", "too_large") if key in test]
    return [*one, *test.get("others", []), *test.get("cells", [])]


def set_metric(evidence: Evidence, place: Place, metric: str, bounds: Bounds) -> None:
    """Make a metric of one place `bounds`, or twice that where it cannot be below one."""
    table = evidence.results.table
    level, stored = {
        "mean_utilisation": ("rank", metric),
        "memory_asymmetry": ("rank", "peak_memory_bytes"),
        "step_spread": ("step", "step_seconds"),
        "loss_roughness": ("step", "loss"),
        "seconds_to_loss": ("step", "step_seconds"),
    }.get(metric, ("run", metric))
    rows = table.loc[_rows(table, place, level, stored), ["repeat", "step", "rank", "timed"]]
    assert len(rows) or metric == "time_asymmetry", metric
    value = rows["repeat"].astype(float).map(dict(_each(bounds)))
    match metric:
        case "step_spread":
            # A fifth of the steps takes so many times the median.
            value = (2 * value).where(rows["step"] % 5 == 0, 1.0)
        case "memory_asymmetry":
            value = (2 * value).where(rows["rank"] == 0, 1.0)
        case "time_asymmetry":
            # Every rank's step takes as long: one computes longer, the others wait.
            for repeat, ratio in _each(bounds):
                waits = {"forward": 1.0, "communication": 2 * ratio}
                _set_phases(evidence, place, repeat, waits)
                busy = {"forward": 2 * ratio, "communication": 1.0}
                _set_phases(evidence, place, repeat, busy, rank=0)
        case "loss_roughness":
            # Losses jump from 0 and back, in each repeat, which has a seed of its own.
            value = value.where(rows["step"] % 2 == 0, 0.0)
        case "seconds_to_loss":
            # The last step reaches the loss; before the first timed step no second counts.
            steps = table.loc[_rows(table, place, "step", "loss"), "step"]
            last = steps.max()
            table.loc[steps.index, "value"] = np.where(steps == last, 1.0, 5.0)
            value = value.where(rows["step"] == last, 0.0)
            value = value.where(rows["timed"].fillna(False).astype(bool), 1000.0)
    table.loc[rows.index, "value"] = value


def _set_phases(
    evidence: Evidence, place: Place, repeat: int, phases: dict[str, float], rank: int | None = None
) -> None:
    """Seconds of the phases of a profiled run, of all ranks or of one; none of any other."""
    table = evidence.results.table
    own = table.loc[_at(table, place, "profile"), ["repeat", "rank", "metric"]]
    own = own[(own["repeat"] == repeat) & own["metric"].str.startswith("phase_seconds:")]
    if rank is not None:
        own = own[own["rank"] == rank]
    names = own["metric"].str.removeprefix("phase_seconds:")
    table.loc[own.index, "value"] = [phases.get(name, 0.0) for name in names]


def _each(bounds: Bounds) -> list[tuple[int, float]]:
    """The value of each repeat."""
    return list(enumerate(bounds[number // 2] for number in range(REPEATS)))


def _rows(
    table: pd.DataFrame, place: Place, level: str, metric: str, repeat: int | None = None
) -> pd.Series[bool]:
    rows = _at(table, place, level) & (table["metric"] == metric)
    return rows if repeat is None else rows & (table["repeat"] == repeat).fillna(False)


def _at(table: pd.DataFrame, place: Place, level: str) -> pd.Series[bool]:
    own = (table["cell"] == place.cell) & (table["nodes"] == place.nodes)
    return own & (table["level"] == level)


def effects(claim: Claim) -> dict[str, Bounds]:
    """An effect for each verdict that the claim's region can give."""
    low, high = (0.0, 1.0) if claim.region is None else claim.region.limits
    bound = low if np.isfinite(low) and low > 0 else high
    above, below = _scaled(bound, (1.4, 1.5, 1.6)), _scaled(bound, (0.6, 0.65, 0.7))
    inside, outside = (above, below) if bound == low else (below, above)
    if claim.region is not None and np.isfinite([low, high]).all():
        middle = (low + high) / 2
        inside, outside = _scaled(middle, (0.99, 1.0, 1.01)), _scaled(high, (1.4, 1.5, 1.6))
        bound = low
    undecided = _scaled(bound, (0.2, 0.8, 1.6))
    return {"reproduced": inside, "not reproduced": outside, "undecided": undecided}


def _scaled(factor: float, bounds: Sequence[float]) -> Bounds:
    low, value, high = (factor * bound for bound in bounds)
    return low, value, high
