"""How far emulated nodes may be trusted, as `make bench` measured it: facts and rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import pandas as pd

from pipeline.metrics.emulation import bias_of
from pipeline.metrics.format import ratio_interval
from pipeline.metrics.select import listed, pick, plural
from pipeline.study.link import LinkSpec

Row = tuple[str, str]
"""What is compared, and what was found."""


def validation_facts(result: Mapping[str, Any] | None, table: pd.DataFrame) -> dict[str, Any]:
    """The checks of `bench/emulation.py`; no rows where they were not run. JSON types only.

    They are of this machine where all runs recorded the same processor model and number of cores.
    `former` are results of a version before 0.3, which had other checks.
    """
    if result is None or "version" not in result:
        return {"rows": [], "former": result is not None}
    hardware = result["hardware"]
    cpus, cores = (set(pick(table, "run", n)["text"]) for n in ("cpu_model", "num_cores"))
    here = (cpus, cores) == ({hardware["cpu_model"]}, {str(hardware["num_cores"])})
    reference = result["eight_nodes"][0]["reference"]
    return {
        "measured_at": result["measured_at"][:10],
        "here": here and bool(hardware["cpu_model"]),
        "cpu": hardware["cpu_model"] or "an unknown processor",
        "cores": plural(hardware["num_cores"], "core"),
        "commit": (result["git_commit"] or "unknown")[:12],
        "repeats": result["repeats"],
        "parameters": f"{result['num_parameters'] / 1e6:.2g}",
        "link": LinkSpec("", result["rate_mbits"]).text,
        "undilated": reference["factor"] == 1,
        "bench": f"{100 * result['largest_bias']:.1f}",
        "yardstick": _yardstick(result["largest_bias"], bias_of(table)),
        "dropped": _count(result, "dropped"),
        "disturbed": _count(result, "disturbed"),
        "rows": [
            {"what": what, "expected": expected, "found": found}
            for rows, expected in CHECKS
            for what, found in rows(result)
        ],
    }


def _yardstick(bench: float, total: float | None) -> str:
    """The part of the bias, in per cent, that a yardstick adds; empty where it adds nothing."""
    if total is None or total <= bench:
        return ""
    return f"{100 * ((1 + total) / (1 + bench) - 1):.1f}"


def _count(result: Mapping[str, Any], what: str) -> int:
    """Figures `dropped`, or kept although `disturbed`, in all checks that are lists."""
    lists = (value for value in result.values() if isinstance(value, list))
    return sum(one.get(what, 0) for found in lists for one in found)


def _invariance(result: Mapping[str, Any]) -> Iterator[Row]:
    return map(_alike, result["invariance"])


def _eight_nodes(result: Mapping[str, Any]) -> Iterator[Row]:
    return map(_alike, result["eight_nodes"])


def _alike(one: Mapping[str, Any]) -> Row:
    """A cell at several factors over the first of these."""
    factors = listed(f"{ratio['factor']:g}" for ratio in one["ratios"])
    what = f"{one['cell']}, {plural(one['nodes'], 'node')}: factor {factors}"
    return f"{what}, over {one['reference']['factor']:g}", _intervals(one["ratios"])


def _parts(result: Mapping[str, Any]) -> Iterator[Row]:
    """What of these ratios the machine adds, and what the emulation."""
    ones = [
        r for name in ("invariance", "eight_nodes") for one in result[name] for r in one["ratios"]
    ]
    for key, what in (
        ("cpu_seconds", "CPU seconds of a step in all these"),
        ("at_equal_cpu_seconds", "Step time in all these, had it the CPU seconds of the reference"),
    ):
        found = [one[key] for one in ones]
        yield f"{what}, smallest and largest", f"{min(found):.2f} and {max(found):.2f}"


def _shorter(result: Mapping[str, Any]) -> Iterator[Row]:
    kinds = [result["cpu_seconds"][name] for name in ("steps", "phases")]
    found = listed(f"{parts['shorter']:,} of {parts['number']:,}" for parts in kinds)
    least = [f"{parts['least']:.3f}" for parts in kinds if parts["least"] is not None]
    what = "Steps and phases of a rank that are shorter than their CPU seconds"
    yield what, f"{found}; smallest ratio {listed(least)}"


def _phase_length(result: Mapping[str, Any]) -> Iterator[Row]:
    for seconds, group in groupby(result["phase_length"], key=lambda one: one["cpu_seconds"]):
        ones = list(group)
        factors = listed(f"{one['factor']:g}" for one in ones)
        what = f"Work of {1e3 * seconds:g} ms, factor {factors}, over its CPU seconds"
        shown = (ratio_interval(one["value"], one["p5"], one["p95"]) for one in ones)
        yield what, ", ".join(shown)


def _bandwidth(result: Mapping[str, Any]) -> Iterator[Row]:
    for rate, group in groupby(result["bandwidth"], key=lambda one: one["rate_mbits"]):
        ones = list(group)
        link = LinkSpec("", rate).text
        yield f"All-reduce over {link}, {_nodes(ones)}: bandwidth over the rate", _intervals(ones)


def _twice_as_slow(result: Mapping[str, Any]) -> Iterator[Row]:
    ones = result["twice_as_slow"]
    yield f"Longer step at half the rate over what a ring costs, {_nodes(ones)}", _intervals(ones)


def _nodes(ones: Iterable[Mapping[str, Any]]) -> str:
    counts = [one["nodes"] for one in ones]
    return f"{listed(counts)} nodes"


def _intervals(ones: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(ratio_interval(one["value"], one["low"], one["high"]) for one in ones)


CHECKS: tuple[tuple[Callable[[Mapping[str, Any]], Iterator[Row]], str], ...] = (
    (_invariance, "1 ± 0.05"),
    (_eight_nodes, "1 ± 0.05"),
    (_parts, "1"),
    (_shorter, "0"),
    (_phase_length, "1"),
    (_bandwidth, "0.9 or more"),
    (_twice_as_slow, "1"),
)
"""Rows of each check of the bench, and what an exact emulation gives."""
