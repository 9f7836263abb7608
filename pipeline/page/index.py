"""One page on every shipped claim of every publication, from the verdicts of several studies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from pipeline.claims.load import FOLDER, files_of, load_claims
from pipeline.claims.predicted import predicted
from pipeline.claims.types import NOT_TESTABLE, VERDICTS, Claim
from pipeline.claims.write import count, effect_text, question, read_verdicts
from pipeline.errors import StudyError
from pipeline.files import write_text
from pipeline.page import TEMPLATES, looks
from pipeline.study.expansion import every_run
from pipeline.study.load import load_study, shipped_studies
from pipeline.text import markdown, pipe_table, plural

NOT_RUN = "not run"
_VERDICTS = Path("claims/verdicts.json")


def studies_here() -> list[str]:
    """Names of the shipped studies on claims that one machine without a GPU can run."""
    studies = [load_study(path) for path in shipped_studies().values()]
    return [
        one.name
        for one in studies
        if one.claims and one.cluster.device == "cpu" and one.cluster.network != "real"
    ]


def studies_table() -> str:
    """A Markdown row for each shipped study: its title, publications, runs and what it needs."""
    lines = list[list[str]]()
    for name, path in shipped_studies().items():
        study, publications = load_study(path), list[str]()
        for file in files_of(study):
            publications += dict.fromkeys(claim.document for claim in load_claims(file))
        # Devices and text, as `2 nodes of 4 GPUs, a corpus`.
        cluster, nodes = study.cluster, max(study.cluster.nodes)
        needs = "2 cores"
        if cluster.device == "cuda":
            each = plural(cluster.ranks_per_node, "GPU")
            needs = each if nodes == 1 else f"{plural(nodes, 'node')} of {each}"
        elif cluster.network == "real":
            needs = f"a cluster of {plural(nodes, 'node')}"
        needs += ", a corpus" if study.corpus["source"] == "json" else ""
        runs = str(len(every_run(study)))
        lines.append([f"`{name}`", markdown(study.title), ", ".join(publications), runs, needs])
    return pipe_table(("study", "what", "claims of", "runs", "needs"), lines)


def rows(results: Path) -> list[dict[str, Any]]:
    """A row for each shipped claim: its verdict in the study that says most of it.

    A decided verdict says more than an undecided one, and that more than 'not testable here'; of
    two alike the one of more runs is taken. Raises StudyError where no study has verdicts.
    """
    files = sorted(results.glob(f"*/{_VERDICTS}"))
    if not files:
        raise StudyError(
            f"no study in {results} has {_VERDICTS}; run one (make paper), or all (make studies)"
        )
    known: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
    for path in files:
        study = path.parents[1].name
        for one in read_verdicts(path, study):
            known.setdefault((one["publication"], one["id"]), []).append((study, one))
    # Reproduced or not says equally much: the preferred verdict must not be the pleasant one.
    order = dict(zip(VERDICTS, (0, 0, 1, 2), strict=True))
    entries = []
    for path in sorted(FOLDER.glob("*/claims.yaml")):
        for claim in load_claims(path):
            tested = known.get((claim.document, claim.id), [])
            # Verdicts on the claim as it stands now, not as it was when they were made.
            asked, limits = question(claim), claim.region and claim.region.limits
            claimed = limits and tuple(one if isfinite(one) else None for one in limits)
            own = [
                (study, one)
                for study, one in tested
                if one["sentence"] == claim.sentence
                and (one.get("question") or asked) == asked
                and (one["claimed"] and (one["claimed"]["low"], one["claimed"]["high"])) == claimed
            ]
            own.sort(key=lambda of: (order[of[1]["verdict"]], -len(of[1]["runs"])))
            row = _row(claim, *(own[0] if own else ("", None)))
            row["others"] = ", ".join(
                f"{study} {one['verdict']}"
                for study, one in own[1:]
                if one["verdict"] != NOT_TESTABLE
            )
            if tested and not own:
                row["why"] = f"{tested[0][0]} tested another version of this claim; run it again"
            entries.append(row)
    return entries


def _row(claim: Claim, study: str, one: Mapping[str, Any] | None) -> dict[str, Any]:
    effect, model = (one and one["effect"]) or {}, predicted(claim)
    return {
        "publication": claim.document,
        "id": claim.id,
        "sentence": claim.sentence,
        "place": claim.source,
        "study": study,
        "verdict": one["verdict"] if one else NOT_RUN,
        "effect": effect.get("value"),
        "low": effect.get("low"),
        "high": effect.get("high"),
        "repeats": effect.get("repeats"),
        "claimed": str(claim.region) if claim.region else None,
        "predicted": model.value,
        "predicted_low": model.low,
        "predicted_high": model.high,
        "prediction": model.line,
        "why": "; ".join([one["why"], *one["notes"], one["scale"]])
        if one
        else f"made on {claim.made_at}",
        "about": claim.shared_effect or question(claim),
        "shown": effect_text(one or {"effect": None}),
        "expected": model.shown,
    }


def counts(entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Number of effects by verdict; those that were not run come last."""
    return count([{**one, "question": one["about"]} for one in entries], (*VERDICTS, NOT_RUN))


def write(results: Path, out: Path) -> list[dict[str, Any]]:
    """Write the page to `out` and the same rows beside it as CSV; returns the rows."""
    table_file = out.with_suffix(".csv")
    if table_file == out:
        raise StudyError(
            f"--out {out} is the page, beside which its CSV lies; give a name in .html"
        )
    entries = rows(results)
    publications: dict[str, list[dict[str, Any]]] = {}
    for one in entries:
        publications.setdefault(one["publication"], []).append(one)
    page = TEMPLATES.get_template("index.html.j2").render(
        **looks(),
        publications={name: (counts(own), own) for name, own in publications.items()},
        entries=entries,
        total=counts(entries),
        studies=sorted({one["study"] for one in entries} - {""}),
        results=quote(Path(os.path.relpath(results, out.parent)).as_posix()),
        quiet=(NOT_TESTABLE, NOT_RUN),
    )
    write_text(out, page)
    # As objects, so that a column of whole numbers with gaps stays one.
    table = pd.DataFrame(entries, dtype=object).drop(columns=["shown", "expected"])
    write_text(table_file, table.to_csv(index=False, lineterminator="\n"))
    return entries
