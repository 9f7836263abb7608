"""Verdicts <-> verdicts.json, validated when written and when read."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.claims.types import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, Region, Verdict
from pipeline.documents import read_made
from pipeline.errors import ClaimError
from pipeline.files import write_text
from pipeline.metrics.select import plural
from pipeline.schemas import validate


def to_dict(verdict: Verdict) -> dict[str, Any]:
    """One verdict as plain JSON types."""
    claim, effect, published = verdict.claim, verdict.effect, verdict.claim.published
    return {
        "id": claim.id,
        "publication": claim.document,
        "sentence": claim.sentence,
        "source": claim.source,
        "disagreement": claim.disagreement,
        "kind": claim.kind,
        "verdict": verdict.verdict,
        "line": verdict.line,
        "why": verdict.why,
        "scale": verdict.scale,
        "notes": list(verdict.notes),
        "effect": None
        if effect is None
        else {"value": effect.value, "low": effect.low, "high": effect.high, "unit": "1",
              "interval": effect.how},
        "claimed": None if claim.region is None else _claimed(claim.region),
        "published": None
        if published is None
        else {"value": published.value, "source": published.source},
        "runs": list(verdict.runs),
    }  # fmt: skip


def _claimed(region: Region) -> dict[str, Any]:
    low, high = (bound if math.isfinite(bound) else None for bound in region.limits)
    return {"low": low, "high": high, "text": str(region)}


def write_verdicts(study: str, verdicts: Sequence[Verdict], final: Path) -> None:
    """Validate and write; equal verdicts give equal bytes."""
    content = {"schema_version": 1, "study": study, "verdicts": [to_dict(v) for v in verdicts]}
    validate(content, "verdicts", final)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(final, text + "\n")


def read_verdicts(path: Path) -> list[dict[str, Any]]:
    """The verdicts of a file; raises ClaimError when it is missing, RecordError when unfit."""
    content = read_made(path, "", ClaimError, "python -m pipeline claims")
    validate(content, "verdicts", path)
    return list(content["verdicts"])


def verdicts_for(
    name: str, path: Path | None, needing: Collection[str]
) -> list[list[dict[str, Any]]]:
    """The extra argument of a figure or table on claims; nothing for all others."""
    if name not in needing:
        return []
    if path is None:
        raise ClaimError(f"{name} is about claims; give it --verdicts verdicts.json")
    return [read_verdicts(path)]


UNDECIDED = "undecided"
OUTCOMES = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, NOT_TESTABLE)


def outcome(one: Mapping[str, Any]) -> str:
    """What became of a claim, given its verdict as `verdicts.json` holds it.

    A claim without a verdict that has an effect was tested, and the data settle nothing.
    """
    open_ = one["verdict"] == NOT_TESTABLE and one["effect"] is not None
    return UNDECIDED if open_ else str(one["verdict"])


def count(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many claims came out in each way, in the order of `OUTCOMES`."""
    found = [outcome(one) for one in verdicts]
    return {word: found.count(word) for word in OUTCOMES}


def counted(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """`26 claims: 1 reproduced, 0 not reproduced, 1 undecided, 24 not testable here`."""
    each = ", ".join(f"{number} {word}" for word, number in count(verdicts).items())
    return f"{plural(len(verdicts), 'claim')}: {each}"
