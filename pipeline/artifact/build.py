"""From a folder of results to all that `artifact` writes: document, criteria of badges, SBOM."""

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
from pipeline.metrics.select import pick, seconds_of_runs
from pipeline.paper.appendix import duration, size
from pipeline.paper.numbers import collect
from pipeline.study.load import load_study
from pipeline.text import markdown, markdown_code

ROOT = Path(__file__).parents[2]


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
    numbers = collect(study, frame, verdicts, manifest)
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
