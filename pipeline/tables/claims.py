"""Verdicts on published claims; `python -m pipeline table claims --verdicts FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipeline.claims.write import outcome
from pipeline.metrics.comparison import FIELDS
from pipeline.metrics.format import NONE, significant

CAPTION = (
    "Published claims and what became of them. A claim is reproduced, or not, only where the whole "
    "interval of its effect is on one side of what it says, else it is undecided; a verdict from "
    "another scale than the claim's own says so. Effects are ratios and have no unit. What is "
    "predicted is the cost model's, at the publication's own scale with a band of 90 %, no verdict."
)
# The claims check equal work for themselves, each over its own cells.
COMPARES = FIELDS
NEEDS = "verdicts"


def build(_table: pd.DataFrame, verdicts: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row for each claim; the ids of the runs behind it are joined by spaces."""
    texts = ("id", "publication", "sentence", "source", "disagreement", "line")
    found = []
    for one in verdicts:
        effect = one["effect"] or dict.fromkeys(("value", "low", "high", "interval"))
        found.append({
            **{key: one[key] for key in texts},
            "verdict": outcome(one),
            "effect": effect["value"],
            "effect_low": effect["low"],
            "effect_high": effect["high"],
            "interval": effect["interval"],
            "claimed": (one["claimed"] or {}).get("text"),
            "published": (one["published"] or {}).get("value"),
            "predicted": _prediction(one),
            "num_runs": len(one["runs"]),
            "runs": " ".join(one["runs"]),
        })  # fmt: skip
    return pd.DataFrame(found)


def _prediction(one: dict[str, Any]) -> str | None:
    """The line of the cost model, where it has a number; earlier files have no such key."""
    found = one.get("predicted") or {}
    return found["line"] if found.get("value") is not None else None


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text; the line says what was compared, where, and why there is no verdict."""
    shown = []
    for row in frame.to_dict("records"):
        other = "" if pd.isna(row["disagreement"]) else f" But: {row['disagreement']}"
        model = "" if pd.isna(row["predicted"]) else f"; {row['predicted']}"
        shown.append({
            "Claim": f"{row['id']}: {row['sentence']} ({row['source']}){other}",
            "Published": NONE if pd.isna(row["published"]) else significant(row["published"]),
            "Verdict": row["verdict"],
            "Grounds": row["line"].partition(": ")[2] + model,
        })  # fmt: skip
    return pd.DataFrame(shown)
