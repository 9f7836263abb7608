"""From a folder of results to all that `artifact` writes: document, criteria of badges, SBOM.

Needs and times are those of the records; set-up and analysis leave none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline import schemas
from pipeline.archive.pack import check_made
from pipeline.artifact import badges, sbom
from pipeline.claims.write import outcome, read_verdicts
from pipeline.errors import SamestepError
from pipeline.metrics import table
from pipeline.metrics.counts import LEVELS
from pipeline.metrics.format import significant
from pipeline.metrics.select import fact, listed, pick, plural, seconds_of_runs
from pipeline.paper.numbers import collect
from pipeline.study.load import load_study
from pipeline.study.study import Study
from pipeline.text import markdown, markdown_code

ROOT = Path(__file__).parents[2]
LICENCE = "Apache-2.0"
KICK_SECONDS = 30 * 60
"""Reviewers of artifacts first look whether anything runs at all, in half an hour."""

_DATA_LICENCES = {
    "python-docs": "that of Python itself (PSF), as part of which the text comes",
    "json": "that of the files, which the study does not record",
    "text": "that of the files, which the study does not record",
    "hub": "that of the data set, as its page on the hub says",
}


def build(results: Path) -> tuple[str, dict[str, Any], list[badges.Check]]:
    """Text of artifact.md, the SPDX document and the criteria of the badges of a finished study.

    Raises SamestepError where there are no metrics.
    """
    metrics = results / "metrics" / "metrics.parquet"
    if not metrics.is_file():
        raise SamestepError(
            f"{results} holds no metrics/metrics.parquet; run the study with make paper first"
        )
    study = load_study(results / "study.json")
    # Of a record that is missing or other than when the table was made, that says nothing.
    check_made(study, results)
    frame = table.read(metrics, study.name)
    verdicts: list[dict[str, Any]] = []
    if (path := results / "claims" / "verdicts.json").is_file():
        verdicts = read_verdicts(path, study.name)
    manifest = image = None
    if (path := results / "tokens" / "manifest.json").is_file():
        manifest = schemas.read(path, "manifest", "python -m pipeline tokens")
    numbers = collect(study, frame, verdicts) | needs(study, frame, manifest)
    if (path := ROOT / "images" / "samestep.json").is_file():
        image = schemas.read(path, "image", "make image")
    ran_inside = image and image["image_digest"] == numbers["appendix"]["image"]
    bill = sbom.document(
        study.name,
        (ROOT / "envs" / "requirements.lock").read_text(encoding="utf-8"),
        f"{numbers['date']['iso']}T00:00:00Z",
        {name: numbers["environment"][name] for name in ("python", "horovod", "samestep")},
        image if ran_inside else None,
    )
    commits = sorted(pick(frame, "run", "git_commit")["text"].dropna().astype(str).unique())
    checks = badges.checks(ROOT, numbers, commits)
    text = render(
        numbers,
        experiments=per_claim(frame, verdicts, study.name, numbers["study"]["snakemake"]),
        commits=commits,
        checks=checks,
    )
    return text, bill, checks


def needs(
    study: Study, table: pd.DataFrame, manifest: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Hardware of the runs, and times and sizes over all of them, failed ones included.

    `manifest` is that of the token shards, None where it is not there. The records of profiled runs
    and of those in real time are among the sizes.
    """
    every, profiled, _ = (seconds_of_runs(table, level) for level in LEVELS)
    spans, num_bytes = (
        pd.concat([pick(table, level, *names) for level in LEVELS])
        for names in (("started_at", "ended_at"), ("record_bytes",))
    )
    times = pd.to_datetime(spans["text"])
    memory = pick(table, "rank", "peak_memory_bytes").groupby("run_id")["value"].sum()
    sizes = sorted(pick(table, "run", "memory_bytes")["value"].dropna().unique())
    # The run that finished soonest is the first thing to try; there is none where none finished.
    finished = every.loc[every["status"] == "ok", "seconds"]
    kick = {} if finished.empty else {
        "time": duration(finished.min()), "fits": bool(finished.min() < KICK_SECONDS),
    }  # fmt: skip
    tokens = {} if manifest is None else {
        "count": f"{manifest['num_tokens']:,}",
        "documents": f"{manifest['num_documents']:,}",
        "size": size(manifest["num_tokens"] * {"uint16": 2, "uint32": 4}[manifest["dtype"]]),
    }  # fmt: skip
    runs = table[table["level"] == "run"]
    versions = ("python", "torch", "horovod", "samestep")
    return {
        "environment": {
            "cpu": fact(runs, "cpu_model"),
            "gpus": fact(runs, "gpus"),
            **{name: fact(runs, f"version:{name}", "") for name in versions},
        },
        "appendix": {
            "licence": LICENCE,
            "data_licence": _DATA_LICENCES[study.corpus["source"]],
            "total": duration(every["seconds"].sum()),
            "profiled": "" if profiled.empty else duration(profiled["seconds"].sum()),
            "elapsed": duration((times.max() - times.min()).total_seconds()),
            "memory": listed(f"{value / 2**30:.1f} GiB" for value in sizes),
            # The most that the ranks of one run asked for at once.
            "peak": "" if memory.empty else size(memory.max()),
            "records": size(num_bytes["value"].sum()),
            "tokens": tokens,
            "image": fact(table, "image_digest"),
            "kick": kick,
        },
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


def render(numbers: Mapping[str, Any], **parts: Any) -> str:
    """`artifact.md.j2` filled with the paper's facts and these parts."""
    # The result is Markdown: the template escapes every value with the filter `text` or `code`.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["text"] = lambda value: markdown(str(value))
    environment.filters["code"] = lambda value: markdown_code(str(value))
    return environment.get_template("artifact.md.j2").render(**numbers, **parts)


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
    entries = []
    for one in verdicts:
        runs = [run for run in one["runs"] if run in seconds.index]
        if not runs:
            continue
        peaks = memory.reindex(runs).dropna()
        entries.append({
            "id": one["id"],
            "sentence": one["sentence"],
            "verdict": outcome(one),
            "runs": len(runs),
            "command": f"{snakemake} {' '.join(targets(runs, study))}",
            "time": duration(float(seconds[runs].sum())),
            "memory": size(float(peaks.max())) if len(peaks) else "not recorded",
            "disk": size(float(disk.reindex(runs).fillna(0).sum())),
        })  # fmt: skip
    return entries


def targets(runs: Sequence[str], study: str) -> list[str]:
    """Records of these runs as targets of the workflow, with braces of bash over what they share.

    Runs are `study/cell/nN/rR`; the targets are exactly those.
    """
    repeats, by_nodes = defaultdict(list), defaultdict(list)
    for run in runs:
        _, cell, nodes, repeat = run.split("/")
        repeats[cell, nodes].append(repeat)
    for (cell, nodes), own in repeats.items():
        by_nodes[nodes, tuple(sorted(own))].append(cell)

    def braces(parts: Sequence[str]) -> str:
        return parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}"

    return [
        f"results/{study}/runs/{braces(cells)}/{nodes}/{braces(own)}/run.json"
        for (nodes, own), cells in by_nodes.items()
    ]
