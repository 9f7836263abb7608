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
    }


def _outcome(number: Mapping[str, int]) -> str:
    """`2 came out as reproduced and 1 as undecided`: what was found at least once."""
    found = [(word, count) for word, count in number.items() if count]
    if not found:
        return "none could be tested"
    return listed(f"{n} {'as' if i else 'came out as'} {word}" for i, (word, n) in enumerate(found))


def reasons(verdicts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Why claims are not testable here, the most frequent reason first, with how many have it."""
    why = Counter(one["why"] for one in verdicts if outcome(one) == NOT_TESTABLE)
    return [{"why": text, "count": number} for text, number in why.most_common()]


def _at_its_scale(one: dict[str, Any]) -> bool:
    return "tested at that scale" in str(one["scale"])
