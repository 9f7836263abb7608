"""Text of `artifact.md`, which answers reviewers of an artifact, from a folder of results.

Needs and times are those of the records; set-up and analysis leave none. The criteria are those of
the ACM's badges, version 1.1, https://www.acm.org/publications/policies/artifact-review-and-badging-current.
A self-check grants nothing: what no file of ours can tell counts as unmet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline import schemas
from pipeline.archive.pack import check_made
from pipeline.claims.write import UNTESTED, read_verdicts
from pipeline.errors import SamestepError
from pipeline.metrics.format import significant
from pipeline.metrics.results import LEVELS, Results
from pipeline.paper.numbers import collect
from pipeline.study.load import load_study
from pipeline.text import listed, markdown, markdown_code, plural

ROOT = Path(__file__).parents[2]
KICK_SECONDS = 30 * 60
"""Reviewers of artifacts first look whether anything runs at all, in half an hour."""

Check = tuple[str, str, bool, str]
"""Badge, what it asks for, True where that is met, and on what grounds."""

_DATA_LICENCES = {
    "python-docs": "that of Python itself (PSF), as part of which the text comes",
    "hub": "that of the data set, as its page on the hub says",
}
_DOCUMENTS = ("README.md", "LICENSE", "CITATION.cff", "docs", "envs/requirements.lock")
_FOR_REUSE = ("docs", "tests", "workflow/schemas", "pipeline/strategies", "CHANGELOG.md")
# A DOI that CITATION.cff has of this work (those of its references are indented further), and
# prefixes that stand for one: 10.5072 is the test prefix of DataCite.
_DOI = re.compile(r"^(?:doi| {0,2}- value| {2,4}value): *[\"']?(10\.\d{4,9}/[^\s\"']+)", re.M)
_PLACEHOLDER = re.compile(r"10\.(0000|1234|5072|5555|9999)/|x{3,}|0{5,}|placeholder|todo", re.I)


def build(results: Path) -> tuple[str, list[Check]]:
    """Text of artifact.md and the criteria of the badges; SamestepError without metrics."""
    metrics = results / "metrics" / "metrics.parquet"
    if not metrics.is_file():
        raise SamestepError(
            f"{results} holds no metrics/metrics.parquet; run the study with make paper first"
        )
    study = load_study(results / "study.json")
    # Of a record that is missing or other than when the table was made, that says nothing.
    check_made(study, results)
    made_of = Results.read(metrics, study.name)
    verdicts: list[dict[str, Any]] = []
    if (path := results / "claims" / "verdicts.json").is_file():
        verdicts = read_verdicts(path, study.name)
    numbers = collect(study, made_of, verdicts) | needs(made_of, study.corpus["source"])
    if (path := results / "tokens" / "manifest.json").is_file():
        made = schemas.read(path, "manifest", "python -m pipeline tokens")
        numbers["tokens"] = f"{made['num_documents']:,} documents, {made['num_tokens']:,} tokens"
    commits = sorted(made_of.pick("run", "git_commit")["text"].dropna().astype(str).unique())
    checks = badges(ROOT, numbers, commits)
    # The result is Markdown: the template escapes every value with the filter `text` or `code`.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["text"] = lambda value: markdown(str(value))
    environment.filters["code"] = lambda value: markdown_code(str(value))
    template = environment.get_template("artifact.md.j2")
    own = {"experiments": per_claim(made_of, verdicts), "commits": commits, "checks": checks}
    return template.render(numbers | own), checks


def needs(results: Results, source: str) -> dict[str, Any]:
    """Hardware, times and sizes over all runs, failed, profiled and real-time ones included.

    `source` is that of the study's corpus.
    """
    every, profiled, _ = (results.seconds_of_runs(level) for level in LEVELS)
    spans, num_bytes = (
        pd.concat([results.pick(level, *names) for level in LEVELS])
        for names in (("started_at", "ended_at"), ("record_bytes",))
    )
    times = pd.to_datetime(spans["text"])
    memory = results.pick("rank", "peak_memory_bytes").groupby("run_id")["value"].sum()
    sizes = sorted(results.pick("run", "memory_bytes")["value"].dropna().unique())
    return {
        "cpu": results.fact("cpu_model"),
        "gpus": results.fact("gpus"),
        "versions": {name: results.fact(f"version:{name}", "none")
                     for name in ("python", "torch", "horovod", "samestep")},
        "tokens": "not given to this command",
        "data_licence": _DATA_LICENCES.get(
            source, "that of the files, which the study does not record"
        ),
        "total": duration(every["seconds"].sum()),
        "profiled": duration(profiled["seconds"].sum()) if len(profiled) else "none",
        "elapsed": duration((times.max() - times.min()).total_seconds()),
        "memory": listed(f"{value / 2**30:.1f} GiB" for value in sizes),
        # The most that the ranks of one run asked for at once.
        "peak": size(memory.max()),
        "records": size(num_bytes["value"].sum()),
        "image": results.fact("image_digest"),
        # The run that finished soonest is the first thing to try; NaN where none finished.
        "kick_seconds": every.loc[every["status"] == "ok", "seconds"].min(),
    }  # fmt: skip


def duration(seconds: float) -> str:
    """`45 seconds`, `12 minutes` or `3.4 hours`: two digits are enough to plan with."""
    for unit, length in (("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{significant(seconds / length, 2)} {unit}s"
    return plural(round(seconds), "second")


def size(num_bytes: float) -> str:
    """`1.2 MB`, in powers of a thousand, as disks are sold; NaN was not recorded."""
    if math.isnan(num_bytes):
        return "not recorded"
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    unit, length = next((one for one in units if num_bytes >= one[1]), units[-1])
    return f"{significant(num_bytes / length, 2)} {unit}"


def per_claim(results: Results, verdicts: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Id, verdict, number of runs, time, memory and disk of each tested claim.

    Time is the sum over the runs behind the claim, memory the most that the ranks of one of them
    needed together, disk the size of their records.
    """
    each = pd.DataFrame({
        "seconds": results.seconds_of_runs().set_index("run_id")["seconds"],
        "memory": results.pick("rank", "peak_memory_bytes").groupby("run_id")["value"].sum(),
        "disk": results.pick("run", "record_bytes").set_index("run_id")["value"],
    })  # fmt: skip
    entries: list[tuple[str, ...]] = []
    for one in verdicts:
        runs = each.reindex(one["runs"]).dropna(subset=["seconds"])
        if len(runs):
            sizes = (size(runs["memory"].max()), size(runs["disk"].sum()))
            taken = duration(float(runs["seconds"].sum()))
            entries.append((one["id"], one["verdict"], str(len(runs)), taken, *sizes))
    return entries


def badges(root: Path, numbers: Mapping[str, Any], commits: Sequence[str]) -> list[Check]:
    """All criteria in the order of the badges.

    `root` is the checkout, `numbers` the paper's facts with those of `needs`, `commits` the git
    commits that the records name.
    """
    runs, claims, kick = numbers["runs"], numbers["claims"], numbers["kick_seconds"]
    clean = len(commits) == 1 and "changes" not in commits[0] and commits[0] != "unknown"
    tested = claims and any(claims[word] for word in ("reproduced", "not_reproduced", "undecided"))
    cited = root / "CITATION.cff"
    named = _DOI.findall(cited.read_text(encoding="utf-8")) if cited.is_file() else []
    real = [doi for doi in named if not _PLACEHOLDER.search(doi)]
    deposited = "CITATION.cff names no DOI: deposit the file of make archive and add it"
    if named:
        deposited = f"the DOI in CITATION.cff, {named[0]}, is a placeholder"
    if real:
        deposited = f"CITATION.cff names {real[0]}; that it resolves was not looked up"

    def there(*names: str) -> tuple[bool, str]:
        missing = [name for name in names if not (root / name).exists()]
        return not missing, f"missing: {', '.join(missing)}" if missing else ", ".join(names)

    return [
        ("available", "deposited in a public archive under a persistent identifier",
         bool(real), deposited),
        ("functional", "documented", *there(*_DOCUMENTS)),
        ("functional", "consistent: one published state of the source made every run", clean,
         f"the records name {', '.join(commits) or 'no commit'}"),
        ("functional", "complete: every planned run has a record", bool(runs["any_finished"]),
         f"all {runs['planned']} ended ok" if runs["all_finished"] else
         f"of {runs['planned']}, {runs['finished']} ended ok; the others have their reasons"),
        ("functional", "exercisable: a first result within half an hour",
         bool(kick < KICK_SECONDS), "no run finished" if math.isnan(kick) else
         f"the shortest run took {duration(kick)}, set-up not counted"),
        ("reusable", "structured for reuse: documents, tests, schemas", *there(*_FOR_REUSE)),
        ("reusable", "a licence that allows reuse", *there("LICENSE")),
        ("reusable", "the environment as an image that the records name",
         numbers["image"].startswith("sha256:"), numbers["image"]),
        ("reproduced", "the claims of the paper are tested by the artifact", bool(tested),
         f"of {claims['total']}, {claims['untested']} {UNTESTED}" if claims else "no claims"),
        ("reproduced", "obtained by a team other than the authors, with this artifact", False,
         "no record tells who ran it; only reviewers can state this"),
    ]  # fmt: skip
