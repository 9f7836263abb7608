"""Needs, times, sizes and licences of a study, for the paper and the artifact description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.metrics.counts import LEVELS
from pipeline.metrics.format import significant
from pipeline.metrics.select import fact, listed, pick, plural, records, seconds_of_runs
from pipeline.study.study import Study

LICENCE = "Apache-2.0"
# Reviewers of artifacts first look whether anything runs at all, in half an hour.
KICK_SECONDS = 30 * 60
_DATA_LICENCES = {
    "python-docs": "that of Python itself (PSF), as part of which the text comes",
    "json": "that of the files, which the study does not record",
    "text": "that of the files, which the study does not record",
    "hub": "that of the data set, as its page on the hub says",
}


def appendix(
    study: Study, table: pd.DataFrame, manifest: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The facts as JSON types; `manifest` is that of the token shards, None where it is not given.

    Times and sizes are sums over all runs, whatever became of them; the profiled runs and those in
    real time have a time of their own, but their records are among the sizes.
    """
    runs, profiled, real = (seconds_of_runs(table, level) for level in LEVELS)
    of_every = {name: pd.concat([pick(table, level, name) for level in LEVELS])
                for name in ("started_at", "ended_at", "record_bytes")}  # fmt: skip
    spans = pd.to_datetime([*of_every["started_at"]["text"], *of_every["ended_at"]["text"]])
    worlds = pick(table, "run", "status")
    memory = pick(table, "rank", "peak_memory_bytes").groupby("run_id")["value"].sum()
    sizes = sorted(pick(table, "run", "memory_bytes")["value"].dropna().unique())
    tokens = {} if manifest is None else {
        "count": f"{manifest['num_tokens']:,}",
        "documents": f"{manifest['num_documents']:,}",
        "size": size(manifest["num_tokens"] * {"uint16": 2, "uint32": 4}[manifest["dtype"]]),
        "sha256": str(manifest["text_sha256"])[:12],
    }  # fmt: skip
    # The run that finished soonest is the first thing to try; there is none where none finished.
    finished = records(runs[runs["status"] == "ok"].sort_values("seconds", kind="stable"))
    kick = {
        "target": f"results/{study.name}/runs/{finished[0]['run_id'].partition('/')[2]}/run.json",
        "time": duration(finished[0]["seconds"]),
        "fits": bool(finished[0]["seconds"] < KICK_SECONDS),
    } if finished else {}  # fmt: skip
    return {
        "licence": LICENCE,
        "data_licence": _DATA_LICENCES[study.corpus["source"]],
        "total": duration(runs["seconds"].sum()),
        "profiled": "" if profiled.empty else duration(profiled["seconds"].sum()),
        "real_time": "" if real.empty else duration(real["seconds"].sum()),
        "elapsed": duration((spans.max() - spans.min()).total_seconds()),
        # What the runs were on, and the most that one of them asked for at once.
        "hardware": {
            "memory": listed(f"{value / 2**30:.1f} GiB" for value in sizes),
            "ranks": plural(int(worlds["world_size"].max()), "rank"),
            "nodes": plural(int(worlds["nodes"].max()), "node"),
            "peak": "" if memory.empty else size(memory.max()),
        },
        "records": size(of_every["record_bytes"]["value"].sum()),
        "tokens": tokens,
        "image": fact(table, "image_digest"),
        "kick": kick,
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
