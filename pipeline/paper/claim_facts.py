"""What the manuscript may say about published claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.claims.types import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, UNDECIDED
from pipeline.claims.write import compound, count, effect_text, error_rate, outcome, total
from pipeline.metrics.format import NONE, significant
from pipeline.metrics.select import listed


def claim_facts(verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of the verdicts and what the sources disagree on; empty where nothing was claimed."""
    if not verdicts:
        return {}
    number = count(verdicts)
    tested = [one for one in verdicts if outcome(one) != NOT_TESTABLE]
    elsewhere = [one for one in tested if "tested at that scale" not in str(one["scale"])]
    # `2 came out as reproduced and 1 as undecided`: what was found at least once.
    known = [w for w in (REPRODUCED, NOT_REPRODUCED, UNDECIDED) if number[w]]
    words = [f"{number[w]} {'as' if i else 'came out as'} {w}" for i, w in enumerate(known)]
    return {
        "publications": listed(dict.fromkeys(one["publication"] for one in verdicts)),
        "total": total(verdicts),
        "error_rate": error_rate(verdicts),
        "reproduced": number[REPRODUCED],
        "not_reproduced": number[NOT_REPRODUCED],
        "undecided": number[UNDECIDED],
        "untested": number[NOT_TESTABLE],
        "outcome": listed(words) if words else "none could be tested",
        "all_elsewhere": bool(tested) and len(elsewhere) == len(tested),
        "some_elsewhere": len(elsewhere),
        "disagreements": sum(one["disagreement"] is not None for one in verdicts),
        "compound": [
            {"sentence": whole.removesuffix("."), "outcome": became}
            for whole, became in compound(verdicts)
        ],
        "tested": [
            {"sentence": one["sentence"], "outcome": outcome(one), "measured": effect_text(one),
             "claimed": (one["claimed"] or {}).get("text", NONE),
             "published": significant(one["published"]["value"]) if one["published"] else NONE}
            for one in tested
        ],
        "reasons": reasons(verdicts),
        "untested_claims": sum(outcome(one) == NOT_TESTABLE for one in verdicts),
    }  # fmt: skip


def reasons(verdicts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Why claims are not testable here, the most frequent reason first, with how many have it.

    `parts` are the details of a reason that several details share, as in `needs a GPU: <detail>`.
    """
    found = []
    for why, group in by_reason([one for one in verdicts if outcome(one) == NOT_TESTABLE]):
        details = Counter(one["why"].partition(": ")[2] for one in group if one["why"] != why)
        parts = [{"why": text, "count": number} for text, number in details.most_common()]
        found.append({"why": why, "count": len(group), "parts": parts})
    return found


def by_reason(untested: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """These claims by why they are not testable, what is before a colon where several share it."""
    texts = {one["why"] for one in untested}
    heads = Counter(text.partition(": ")[0] for text in texts if ": " in text)
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in untested:
        head = one["why"].partition(": ")[0]
        found.setdefault(head if heads[head] > 1 else one["why"], []).append(one)
    return sorted(found.items(), key=lambda item: -len(item[1]))
