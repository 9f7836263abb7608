"""What became of claims, in four words, and how many of each: the one place that counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.claims.types import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED
from pipeline.metrics.select import plural

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
