"""What the manuscript may say about published claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.metrics.select import listed, plural


def claim_facts(verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of the verdicts and what the sources disagree on; empty where nothing was claimed."""
    if not verdicts:
        return {}
    by_verdict: dict[str, list[dict[str, Any]]] = {}
    for one in verdicts:
        by_verdict.setdefault(one["verdict"], []).append(one)
    untested = by_verdict.get("not testable here", [])
    tested = [one for one in verdicts if one["effect"] or one not in untested]
    elsewhere = [one for one in tested if not _at_its_scale(one)]
    return {
        "publications": listed(dict.fromkeys(one["publication"] for one in verdicts)),
        "total": plural(len(verdicts), "claim"),
        "reproduced": len(by_verdict.get("reproduced", [])),
        "not_reproduced": len(by_verdict.get("not reproduced", [])),
        "untested": len(untested),
        "undecided": sum(one["effect"] is not None for one in untested),
        "all_elsewhere": bool(tested) and len(elsewhere) == len(tested),
        "some_elsewhere": len(elsewhere),
        "disagreements": sum(one["disagreement"] is not None for one in verdicts),
    }


def _at_its_scale(one: dict[str, Any]) -> bool:
    return "tested at that scale" in str(one["scale"])
