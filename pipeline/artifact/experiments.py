"""What it takes to repeat the runs of each claim: command, minutes, memory, disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.claims.write import outcome
from pipeline.metrics.select import pick, seconds_of_runs
from pipeline.paper.appendix import duration, size


def per_claim(
    table: pd.DataFrame, verdicts: Sequence[Mapping[str, Any]], study: str, snakemake: str
) -> list[dict[str, Any]]:
    """One entry for each tested claim, in the order of the verdicts.

    Time is the sum over the runs behind the claim, memory the most that the ranks of one of them
    needed together, disk the size of their records; all as texts, by the records.
    """
    seconds = seconds_of_runs(table).set_index("run_id")["seconds"]
    memory = pick(table, "rank", "peak_memory_bytes").groupby("run_id")["value"].sum()
    disk = pick(table, "run", "record_bytes").set_index("run_id")["value"]
    found = []
    for one in verdicts:
        runs = [run for run in one["runs"] if run in seconds.index]
        if not runs:
            continue
        peaks = memory.reindex(runs).dropna()
        found.append({
            "id": one["id"],
            "sentence": one["sentence"],
            "verdict": outcome(one),
            "runs": len(runs),
            "command": f"{snakemake} {' '.join(targets(runs, study))}",
            "time": duration(float(seconds[runs].sum())),
            "memory": size(float(peaks.max())) if len(peaks) else "not recorded",
            "disk": size(float(disk.reindex(runs).fillna(0).sum())),
        })  # fmt: skip
    return found


def targets(runs: Sequence[str], study: str) -> list[str]:
    """Records of these runs as targets of the workflow, with braces of bash over what they share.

    Runs are `study/cell/nN/rR`; the targets are exactly those.
    """
    by_nodes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    repeats: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        _, cell, nodes, repeat = run.split("/")
        repeats.setdefault((cell, nodes), []).append(repeat)
    for (cell, nodes), own in repeats.items():
        by_nodes.setdefault((nodes, tuple(sorted(own))), []).append(cell)
    return [
        f"results/{study}/runs/{_braces(cells)}/{nodes}/{_braces(own)}/run.json"
        for (nodes, own), cells in by_nodes.items()
    ]


def _braces(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}"
