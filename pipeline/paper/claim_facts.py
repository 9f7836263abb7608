"""What the manuscript may say about published claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.claims.types import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, UNDECIDED
from pipeline.claims.write import compound, count, error_rate, outcome, total
from pipeline.metrics.select import listed


def claim_facts(verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of the verdicts and what the sources disagree on; empty where nothing was claimed."""
    if not verdicts:
        return {}
    number = count(verdicts)
    tested = [one for one in verdicts if outcome(one) != NOT_TESTABLE]
    elsewhere = [one for one in tested if not _at_its_scale(one)]
    return {
        "publications": listed(dict.fromkeys(one["publication"] for one in verdicts)),
        "total": total(verdicts),
        "error_rate": error_rate(verdicts),
        "reproduced": number[REPRODUCED],
        "not_reproduced": number[NOT_REPRODUCED],
        "undecided": number[UNDECIDED],
        "untested": number[NOT_TESTABLE],
        "outcome": _outcome(
            {word: number[word] for word in (REPRODUCED, NOT_REPRODUCED, UNDECIDED)}
        ),
        "all_elsewhere": bool(tested) and len(elsewhere) == len(tested),
        "some_elsewhere": len(elsewhere),
        "disagreements": sum(one["disagreement"] is not None for one in verdicts),
        "compound": [
            {"sentence": whole.removesuffix("."), "outcome": became}
            for whole, became in compound(verdicts)
        ],
        "reasons": reasons(verdicts),
        "untested_claims": sum(outcome(one) == NOT_TESTABLE for one in verdicts),
    }


def _outcome(number: Mapping[str, int]) -> str:
    """`2 came out as reproduced and 1 as undecided`: what was found at least once."""
    found = [(word, count) for word, count in number.items() if count]
    if not found:
        return "none could be tested"
    return listed(f"{n} {'as' if i else 'came out as'} {word}" for i, (word, n) in enumerate(found))


def reasons(verdicts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Why claims are not testable here, the most frequent reason first, with how many have it.

    `parts` are the details of a reason that several details share, as in `needs a GPU: <detail>`.
    """
    untested = [one for one in verdicts if outcome(one) == NOT_TESTABLE]
    return [
        {"why": why, "count": len(group), "parts": _parts(why, group)}
        for why, group in by_reason(untested)
    ]


def by_reason(untested: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """These claims by why they are not testable, what is before a colon where several share it."""
    heads = Counter(head for head, colon, _ in {_split(one["why"]) for one in untested} if colon)
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in untested:
        head, colon, _ = _split(one["why"])
        found.setdefault(head if colon and heads[head] > 1 else one["why"], []).append(one)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def _split(why: str) -> tuple[str, str, str]:
    return why.partition(": ")


def _parts(why: str, group: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    details = Counter(_split(one["why"])[2] for one in group if one["why"] != why)
    return [{"why": text, "count": number} for text, number in details.most_common()]


def _at_its_scale(one: dict[str, Any]) -> bool:
    return "tested at that scale" in str(one["scale"])
