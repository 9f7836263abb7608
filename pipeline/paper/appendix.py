"""What the artifact appendix may say: needs, times, sizes, licences, and which claim is where.

Its fields are those of the artifact appendices of the ACM and of cTuning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.claims.load import files_of, load_claims
from pipeline.claims.write import outcome
from pipeline.errors import ClaimError
from pipeline.figures.left_out import left_out
from pipeline.metrics.format import significant
from pipeline.metrics.select import cells, fact, listed, pick, plural, records, seconds_of_runs
from pipeline.study.profiling import COMMUNICATION
from pipeline.study.study import Study
from pipeline.text import markdown_code

LICENCE = "Apache-2.0"
# Reviewers of artifacts first look whether anything runs at all, in half an hour.
KICK_SECONDS = 30 * 60
_DATA_LICENCES = {
    "python-docs": "that of Python itself (PSF), as part of which the text comes",
    "json": "that of the files, which the study does not record",
    "text": "that of the files, which the study does not record",
    "hub": "that of the data set, as its page on the hub says",
}
# Where a quantity is shown: figure, table. The first key that a claim's test has counts.
SHOWN_IN: dict[str, tuple[str | None, str | None]] = {
    "tokens_per_second": ("throughput", "scaling"),
    "step_seconds": ("step_time", "step_time"),
    "step_spread": ("step_time", "step_time"),
    "time_asymmetry": ("time_split", None),
    "seconds_to_loss": ("loss_time", None),
    "loss_roughness": ("loss_step", None),
    "peak_memory_bytes": ("memory", "resources"),
    "memory_asymmetry": ("memory", "resources"),
    "mean_utilisation": (None, "resources"),
    "model_flops_utilisation": (None, "utilisation"),
    "device_teraflops": (None, "utilisation"),
    # kinds of test without a metric of their own
    "best": ("throughput", "scaling"),
    "worst": ("throughput", "scaling"),
    "robust": ("throughput", "scaling"),
    "efficiency": ("speedup", "scaling"),
    "explained": ("time_split", None),
    "utilisation": (None, "resources"),
    "memory_formula": ("memory", "resources"),
    "fits": (None, "resources"),
}


def appendix(
    study: Study,
    table: pd.DataFrame,
    verdicts: Sequence[dict[str, Any]],
    manifest: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The facts as JSON types; `manifest` is that of the token shards, None where it is not given.

    Times and sizes are sums over all runs, whatever became of them; the profiled runs have a time
    of their own, but their records are among the sizes.
    """
    runs, profiled = seconds_of_runs(table), seconds_of_runs(table, "profile")
    ends = [*pick(table, "run", "ended_at")["text"], *pick(table, "profile", "ended_at")["text"]]
    spans = pd.to_datetime([*runs["text"], *profiled["text"], *ends])
    sizes = [pick(table, level, "record_bytes")["value"].sum() for level in ("run", "profile")]
    longest = records(runs.sort_values("seconds", kind="stable"))[-1]
    return {
        "licence": LICENCE,
        "data_licence": _DATA_LICENCES[study.corpus["source"]],
        "strategies": listed(markdown_code(name) for name in cells(table)["strategy"].unique()),
        "experiments": plural(len(runs.drop_duplicates(["cell", "nodes"])), "experiment"),
        "total": duration(runs["seconds"].sum()),
        "profiled": "" if profiled.empty else duration(profiled["seconds"].sum()),
        "elapsed": duration((spans.max() - spans.min()).total_seconds()),
        "longest": longest["run_id"],
        "longest_time": duration(longest["seconds"]),
        "hardware": _hardware(table),
        "records": size(sum(sizes)),
        "tokens": {} if manifest is None else _tokens(manifest),
        "checkpoint": _checkpoint(study, table),
        "image": fact(table, "image_digest"),
        "kick": _kick(study, runs),
        "claims": _claims(study, verdicts, _absent(table)),
    }


def duration(seconds: float) -> str:
    """`45 seconds`, `12 minutes` or `3.4 hours`: two digits are enough to plan with."""
    for unit, length in (("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{significant(seconds / length, 2)} {unit}s"
    return plural(round(seconds), "second")


def size(num_bytes: float) -> str:
    """`1.2 MB`, in powers of a thousand, as disks are sold."""
    for unit, length in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= length:
            return f"{significant(num_bytes / length, 2)} {unit}"
    return f"{significant(num_bytes / 1e3, 2)} kB"


def _hardware(table: pd.DataFrame) -> dict[str, Any]:
    """What the runs were on, and the most that one of them asked for at once."""
    runs = pick(table, "run", "status")
    memory = pick(table, "rank", "peak_memory_bytes").groupby("run_id")["value"].sum()
    sizes = sorted(pick(table, "run", "memory_bytes")["value"].dropna().unique())
    return {
        "memory": listed(f"{value / 2**30:.1f} GiB" for value in sizes),
        "ranks": plural(int(runs["world_size"].max()), "rank"),
        "nodes": plural(int(runs["nodes"].max()), "node"),
        "peak": "" if memory.empty else size(memory.max()),
    }


def _tokens(manifest: Mapping[str, Any]) -> dict[str, Any]:
    count = int(manifest["num_tokens"])
    width = {"uint16": 2, "uint32": 4}[manifest["dtype"]]
    return {
        "count": f"{count:,}",
        "documents": f"{manifest['num_documents']:,}",
        "size": size(count * width),
        "sha256": str(manifest["text_sha256"])[:12],
    }


def _checkpoint(study: Study, table: pd.DataFrame) -> str:
    """Size of a checkpoint, which lies there while a run is under way; empty where none is made.

    It holds the weights and both moments of AdamW in fp32, 12 bytes a parameter.
    """
    parameters = pick(table, "run", "num_parameters")["value"]
    if not study.workload.checkpoint_every or parameters.empty:
        return ""
    return size(12 * float(parameters.max()))


def _kick(study: Study, runs: pd.DataFrame) -> dict[str, Any]:
    """The run that finished soonest, as the first thing to try; empty where none finished."""
    finished = runs[runs["status"] == "ok"].sort_values("seconds", kind="stable")
    if finished.empty:
        return {}
    first = records(finished)[0]
    folder = str(first["run_id"]).partition("/")[2]
    return {
        "target": f"results/{study.name}/runs/{folder}/run.json",
        "time": duration(first["seconds"]),
        "fits": bool(first["seconds"] < KICK_SECONDS),
        "all_fit": bool(runs["seconds"].sum() < KICK_SECONDS),
    }


def _shares(table: pd.DataFrame) -> pd.DataFrame:
    return pick(table, "cell", f"phase_share:{COMMUNICATION}")


def _absent(table: pd.DataFrame) -> set[str]:
    """Figures that the paper of these results lacks: no profiled run finished, or left out."""
    return {*left_out(table), *(() if len(_shares(table)) else ("time_split",))}


def _claims(
    study: Study, verdicts: Sequence[dict[str, Any]], absent: Collection[str]
) -> list[dict[str, Any]]:
    """Which figure and table show what a claim is about, with the claims and their verdicts."""
    if not verdicts:
        return []
    tests = {claim.id: claim.test for path in files_of(study) for claim in load_claims(path)}
    places: dict[tuple[str | None, str | None], dict[str, list[str]]] = {}
    for one in verdicts:
        if one["id"] not in tests:
            raise ClaimError(
                f"the verdicts are on a claim {one['id']!r}, which no claims of the study "
                f"{study.name!r} have; run `python -m pipeline claims` again"
            )
        quantity = tests[one["id"]].get("metric", one["kind"])
        shown = SHOWN_IN[quantity]
        if shown[0] in absent:
            shown = (None, shown[1] or "claims")
        place = places.setdefault(shown, {})
        place.setdefault(outcome(one), []).append(one["id"])
    return [
        {
            "figure": figure,
            "table": table,
            "verdicts": [{"verdict": v, "claims": listed(ids)} for v, ids in found.items()],
        }
        for (figure, table), found in places.items()
    ]
