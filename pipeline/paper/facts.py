"""Facts of the runs for the sentences of manuscript and page, in plain JSON types."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.claims.types import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, UNDECIDED
from pipeline.claims.write import compound, count, counted, in_words, total
from pipeline.metrics.bands import BANDS, FIRST_STEPS
from pipeline.metrics.cells import WITHIN
from pipeline.metrics.format import limit, scientific
from pipeline.metrics.headline import end_of_training, not_profiled
from pipeline.metrics.parity import EQUAL, NOT_COMPARED, UNEQUAL
from pipeline.metrics.results import Results, records
from pipeline.metrics.statistics import ALPHA, CONFIDENCE, DRIFT_ALPHA, DRIFT_SHARE, MIN_REPEATS
from pipeline.paper.manuscript import BIBLIOGRAPHY
from pipeline.text import listed, markdown, plural, significant

MOST_DETAILS = 3
"""Grounds that stand behind a reason for which claims are not testable."""


def emulation(results: Results) -> dict[str, Any]:
    """Facts of the runs on emulated nodes; `any` is false where there are none."""
    dilation = results.pick("run", "dilation")
    # Runs that were to be emulated and were made on the loopback, and why.
    reasons, fell_back = results.pick("run", "network_reason")["text"], {}
    if len(reasons):
        runs = plural(len(reasons), "timed run")
        fell_back = {"runs": runs, "reasons": "; ".join(reasons.unique())}
    if dilation.empty:
        return {"any": False, "fell_back": fell_back}
    real = results.pick("real_time", "status")
    return {
        "any": True,
        "fell_back": fell_back,
        "links": listed(dict.fromkeys(dilation["link"].dropna())),
        "mtu": listed(f"{one:g}" for one in sorted(results.pick("run", "mtu")["value"].unique())),
        "cores": f"{results.pick('run', 'cores_per_node')['value'].max():g}",
        "dilation": f"{dilation['value'].max():g}",
        "yardstick": not results.pick("run", "machine_speed").empty,
        "copies": not results.pick("run", "copies").empty,
        "accuracy": {
            "measured": results.bias is not None and not real.empty,
            "runs": plural(len(real), "run"),
            "reasons": "; ".join(real["reason"].dropna().unique()),
        },
    }


def measurement(results: Results) -> dict[str, Any]:
    """The method of measurement: intervals, order and drift."""
    table = results.table
    of_study = {row["metric"]: row for row in records(table[table["level"] == "study"])}
    # How exact the speedups are; nothing where none has several runs.
    sizing = {}
    if (exact := of_study.get("exact_speedups")) and exact["n"]:
        sizing = {
            "exact": f"{int(exact['value'])} of {plural(int(exact['n']), 'speedup')}",
            "within": f"{100 * WITHIN:g}",
            "spread": significant(100 * of_study["spread_of_runs"]["value"], 2),
        }
    return {
        "percent": f"{100 * CONFIDENCE:g}",
        "min_repeats": MIN_REPEATS,
        "alpha": f"{ALPHA:g}",
        "few": bool((results.pick("cell", "num_ok")["value"] < MIN_REPEATS).any()),
        "sizing": sizing,
        "freely": "throughput_clock" in of_study,
        "order": results.fact("order_kept"),
        "drift_percent": f"{100 * DRIFT_SHARE:g}",
        "drift_alpha": f"{DRIFT_ALPHA:g}",
    }


def split(results: Results) -> dict[str, Any]:
    """Number of profiled runs, and how far they are from the timed ones; empty where none is asked.

    `deviation` is relative, of losses and norms, `slowdown` of the median step; both are empty
    where no profiled run finished beside a timed one.
    """
    status = results.pick("profile", "status")
    if status.empty:
        return {}
    table = results.table
    ended = table[(table["level"] == "profile") & (table["status"] == "ok")]
    apart = results.pick("profile", "profile_deviation")["value"]
    slower = results.pick("profile", "profile_slowdown")["value"].agg(["min", "max"])
    return {
        "runs": plural(len(status), "profiled run"),
        "finished": int((status["text"] == "ok").sum()),
        "sent": bool(ended["metric"].str.startswith("predicted_sent_bytes:").any()),
        "missing": not_profiled(results),
        "deviation": scientific(float(apart.max())) if len(apart) else "",
        "slowdown": " to ".join(dict.fromkeys(f"{value:.2f}" for value in slower)),
    }


def loss(results: Results) -> dict[str, Any]:
    """First and final loss over all cells and repeats, in nats per token."""
    steps = results.pick("step", "loss").dropna(subset=["value"])
    if steps.empty:
        return {}
    first = steps[steps["step"] == steps["step"].min()]["value"]
    last = steps[steps["step"] == steps["step"].max()]["value"]
    ranges = (
        dict.fromkeys(f"{end:.3f}" for end in (one.min(), one.max())) for one in (first, last)
    )
    begins, ends = map(" to ".join, ranges)
    return {
        "first": begins,
        "last": ends,
        "falls": bool(last.max() < first.min()),
        "end": end_of_training(results),
    }


def parity(results: Results) -> dict[str, Any]:
    """Counts of the verdicts, the worst deviations and the bands that were applied."""
    verdicts = results.pick("cell", "parity_verdict")
    equal, unequal = verdicts[verdicts["text"] == EQUAL], verdicts[verdicts["text"].isin(UNEQUAL)]
    skipped = verdicts[~verdicts["text"].isin([EQUAL, *UNEQUAL])]
    keys, band_of = ["cell", "nodes", "base"], results.pick("cell", "parity_band")
    again = results.pick("cell", "repeats_bit_equal")
    steps = results.pick("cell", "parity_steps")["value"].dropna()

    def largest(band: str, *metrics: str) -> str:
        """Of the comparisons that fall under a band."""
        under = band_of.loc[band_of["text"] == band, keys]
        rows = results.pick("cell", *(f"parity_{metric}" for metric in metrics))
        return scientific(float(rows.merge(under, on=keys)["value"].max()))

    def place(row: Mapping[str, Any]) -> str:
        base = "" if pd.isna(row["base"]) else f" against {row['base']}"
        return f"{row['label']} at {plural(int(row['nodes']), 'node')}{base}"

    return {
        "compared": plural(len(equal) + len(unequal), "comparison"),
        "any_compared": len(equal) + len(unequal) > 0,
        "reference": "a run of equal work, a single device's where there is one",
        "equal": len(equal),
        "all_equal": len(unequal) == 0,
        "unequal": [place(row) for row in records(unequal)],
        "skipped": [
            f"{place(row)} ({row['text'].removeprefix(f'{NOT_COMPARED}: ')})"
            for row in records(skipped)
        ],
        "bands": [
            {
                "name": band.name,
                "first": limit(band.first_step),
                "early": limit(band.first_steps),
                "reason": band.reason,
                "worst_first": largest(band.name, "loss_first", "norm_first"),
                "worst_early": largest(band.name, "loss_early", "norm_early"),
                "worst_loss": largest(band.name, "loss_all"),
                "worst_norm": largest(band.name, "norm_all"),
            }
            for band in BANDS
            if band.name in set(band_of["text"])
        ],
        "steps": plural(int(steps.max()) if len(steps) else FIRST_STEPS, "step"),
        "repeated": plural(len(again), "setting") if len(again) else "",
        "not_deterministic": listed(dict.fromkeys(again.loc[again["value"] == 0.0, "arm_label"])),
    }


def claims(verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of the verdicts and what the sources disagree on; empty where nothing was claimed."""
    if not verdicts:
        return {}
    number = count(verdicts)
    tested = [one for one in verdicts if one["verdict"] != NOT_TESTABLE]
    scaled = [one for one in tested if not one["scale"].startswith("made on paper")]
    tested.sort(key=lambda one: one["verdict"] == UNDECIDED)
    untested = [one for one in verdicts if one["verdict"] == NOT_TESTABLE]
    publications = list(dict.fromkeys(one["publication"] for one in verdicts))
    return {
        "publications": listed(publications),
        "cited": listed(map(cited, publications)),
        "total": total(verdicts),
        "counted": counted(verdicts),
        "reproduced": number[REPRODUCED],
        "not_reproduced": number[NOT_REPRODUCED],
        "undecided": number[UNDECIDED],
        # A formula and a sentence on any mesh have no scale.
        "all_elsewhere": bool(scaled)
        and not any("tested at that scale" in str(one["scale"]) for one in scaled),
        "disagreements": sum(one["disagreement"] is not None for one in verdicts),
        "compound": [
            {"sentence": whole.removesuffix("."), "outcome": became}
            for whole, became in compound(verdicts)
        ],
        "tested": [
            {"sentence": _noted(one, verdicts), "outcome": one["verdict"], **in_words(one)}
            for one in tested
        ],
        "published": any(one.get("published") for one in tested),
        "replayed": any("replayed bubble" in one["why"] for one in tested),
        "reasons": [
            {"why": _in_full(why, own), "count": len(own)} for why, own in by_reason(untested)
        ],
        "untested_claims": f"{len(untested)} of {plural(len(verdicts), 'claim')}",
    }  # fmt: skip


def by_reason(untested: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """These claims by why they are not testable, the most frequent reason first.

    A reason that several claims share with other details, as in `needs a GPU: <detail>`, is what
    stands before the colon.
    """
    texts = {one["why"] for one in untested}
    # A colon within braces is one of a setting.
    parts = {text: text.partition(": ")[0] for text in texts}
    head_of = {text: text if "{" in part else part for text, part in parts.items()}
    heads = Counter(head for text, head in head_of.items() if text != head)
    claims_of: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in untested:
        head = head_of[one["why"]]
        claims_of[head if heads[head] > 1 else one["why"]].append(one)
    return sorted(claims_of.items(), key=lambda item: -len(item[1]))


def _in_full(reason: str, own: Sequence[Mapping[str, Any]]) -> str:
    """A reason with what each of its claims adds to it, unless that is too much."""
    details = Counter(one["why"].removeprefix(f"{reason}: ") for one in own)
    if {*details} == {reason} or len(details) > MOST_DETAILS:
        return reason
    each = [f"{detail} ({n})" if len(details) > 1 else detail for detail, n in details.items()]
    return f"{reason}: {'; '.join(each)}"


def _noted(verdict: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    """The sentence of a claim with where it stands, and what ran otherwise than published.

    Of several publications its own is named, of several sources of one the source too.
    """
    publication, source = verdict["publication"], str(verdict["source"])
    place = str(verdict.get("place", source))  # older files name the source alone

    def title(one: Mapping[str, Any]) -> str:
        return str(one["source"]).removesuffix(f", {one.get('place', '')}")

    of_it = [one for one in verdicts if one["publication"] == publication]
    whose = f"{publication}: " if len(of_it) < len(verdicts) else ""
    where = source if len({title(one) for one in of_it}) > 1 else place
    return f"{whose}{verdict['sentence']} ({'; '.join([where, *verdict['notes']])})"


def cited(publication: str) -> str:
    """A publication in Markdown, cited where an entry of the references has it as `shorttitle`."""
    # No library reads it as it stands: pandoc writes titles of BibTeX in sentence case, `PTD-p`.
    entries = BIBLIOGRAPHY.read_text(encoding="utf-8").split("\n@")
    of_it = (one for one in entries if f"shorttitle = {{{publication}}}" in one)
    keys = [one.partition("{")[2].partition(",")[0] for one in of_it]
    return markdown(publication) + (f" [@{keys[0]}]" if keys else "")
