"""Verdicts <-> verdicts.json, validated when written and read; their counts; README's table."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.claims import decide
from pipeline.claims.predicted import predicted
from pipeline.claims.types import (
    DECIDED,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    VERDICTS,
    Claim,
    Verdict,
)
from pipeline.documents import read_made
from pipeline.errors import ClaimError
from pipeline.files import marks, replace_marked, write_text
from pipeline.metrics import headline
from pipeline.metrics.results import Results
from pipeline.metrics.statistics import ALPHA, MIN_REPEATS, Interval
from pipeline.schemas import validate
from pipeline.text import NONE, markdown, pipe_table, plural, significant

UNTESTED = "cannot be tested on this hardware with these runs"
"""`NOT_TESTABLE` in a sentence: the machine or the study lacks what these claims need."""


def to_dict(verdict: Verdict) -> dict[str, Any]:
    """One verdict as plain JSON types."""
    claim, effect, published = verdict.claim, verdict.effect, verdict.claim.published
    limits = claim.region.limits if claim.region else (0.0, 0.0)
    low, high = (bound if math.isfinite(bound) else None for bound in limits)
    return {
        "id": claim.id,
        "publication": claim.document,
        "sentence": claim.sentence,
        "source": claim.source,
        "place": claim.place,
        "disagreement": claim.disagreement,
        "part_of": claim.part_of,
        "kind": claim.kind,
        "question": question(claim),
        "shared_effect": claim.shared_effect,
        "verdict": verdict.verdict,
        "line": verdict.line,
        "why": verdict.why,
        "against": verdict.against,
        "takes": verdict.takes,
        "scale": verdict.scale,
        "notes": list(verdict.notes),
        "effect": effect and {
            "value": effect.value, "low": effect.low, "high": effect.high, "unit": "1",
            "interval": effect.how, "repeats": effect.n,
        },
        "claimed": claim.region and {"low": low, "high": high, "text": str(claim.region)},
        "published": published and {"value": published.value, "source": published.source},
        "predicted": asdict(predicted(claim)),
        "runs": list(verdict.runs),
        "p_value": verdict.p_value,
        "worlds": [{"world": name, "verdict": word} for name, word in verdict.worlds],
    }  # fmt: skip


def question(claim: Claim) -> str:
    """The effect that a claim is about, without what it should be.

    Claims of one publication with the same test of the same cells, of which sources say different
    things, ask the same question.
    """
    said = ("comparison", "bound", "tolerance")
    test = {key: value for key, value in sorted(claim.test.items()) if key not in said}
    asked = [claim.document, str(claim.made_at), test]
    # A cell stands by its name.
    return json.dumps(asked, ensure_ascii=False, default=lambda selector: selector.name)


def write_verdicts(study: str, verdicts: Sequence[Verdict], final: Path) -> list[dict[str, Any]]:
    """Validate, write and return them as they were written; equal verdicts give equal bytes."""
    made = [to_dict(verdict) for verdict in verdicts]
    content = {"schema_version": 1, "study": study, "verdicts": made}
    validate(content, "verdicts", final)
    write_text(final, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return made


def read_verdicts(path: Path, study: str | None = None) -> list[dict[str, Any]]:
    """The verdicts of a file, on `study` where one is given.

    Raises ClaimError when it is missing or of another study, RecordError when it does not fit the
    schema.
    """
    content = read_made(path, "", ClaimError, "python -m pipeline claims")
    validate(content, "verdicts", path)
    if study not in (None, content["study"]):
        raise ClaimError(
            f"{path} is of study {content['study']!r}, not of {study!r}; give that study's verdicts"
        )
    return list(content["verdicts"])


def effect_text(one: Mapping[str, Any]) -> str:
    """The effect of a verdict with its interval, or why it has none; a dash without an effect."""
    if (effect := one["effect"]) is None:
        return NONE
    repeats, how = effect.get("repeats", MIN_REPEATS), effect.get("interval", "")
    value = Interval(effect["value"], effect["low"], effect["high"], repeats, how)
    claimed = one["claimed"] or {}
    limits = [at for at in (claimed.get("low"), claimed.get("high")) if at is not None]
    return decide.effect_text(value, limits, plural(repeats, "run"))


def in_words(one: Mapping[str, Any]) -> dict[str, str]:
    """The effect on a claim, what was claimed and published; a dash where there is none.

    With the effect of an open claim stands what leaves it open besides the interval, and what would
    decide it.
    """
    published, effect = one.get("published"), effect_text(one)
    if one["effect"] is None and one["claimed"] is None:
        # A finding without a number, such as equal steps.
        holds = {REPRODUCED: "holds", NOT_REPRODUCED: "does not hold"}.get(one["verdict"], NONE)
        return {"measured": holds, "claimed": "it holds", "published": NONE}
    # The question has the metric.
    if '"phase_bubble' in one.get("question", ""):
        effect += " (replayed)"
    # Older files have neither.
    against, takes = one.get("against"), one.get("takes")
    measured = [effect, *filter(None, [against, takes and f"to decide it takes at least {takes}"])]
    return {
        "measured": "; ".join(measured),
        "claimed": one["claimed"]["text"] if one["claimed"] else NONE,
        "published": significant(published["value"]) if published else NONE,
    }


def compound(verdicts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Each sentence that was split into claims, with what became of its parts together.

    It is reproduced where all parts are, and `partly reproduced` where some are.
    """
    parts: dict[str, list[str]] = defaultdict(list)
    for one in verdicts:
        if whole := one.get("part_of"):
            parts[whole].append(one["verdict"])
    outcomes = []
    for whole, words in parts.items():
        each = ", ".join(f"{words.count(word)} {word}" for word in VERDICTS if word in words)
        partly = "partly reproduced, " if REPRODUCED in words else ""
        together = f"{partly}of {len(words)} parts {each}"
        if len({*words}) == 1:
            every = "both" if len(words) == 2 else f"all {len(words)}"
            together = f"{words[0]} in {every} parts"
        outcomes.append((whole, together))
    return outcomes


def count(verdicts: Sequence[Mapping[str, Any]], order: Sequence[str] = VERDICTS) -> dict[str, int]:
    """Number of effects of each verdict, in `order`.

    Claims on one effect, by sources that disagree or by several publications, count once: the first
    of the words that any of them came out with, so reproduced where one of the sources is.
    """
    words_of: dict[str, list[str]] = defaultdict(list)
    for one in verdicts:
        effect = one.get("shared_effect") or one.get("question") or one["id"]
        words_of[effect].append(one["verdict"])
    words = [min(each, key=order.index) for each in words_of.values()]
    return {word: words.count(word) for word in order}


def total(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """`26 claims`, or `26 claims on 23 effects` where several are on the same."""
    effects = sum(count(verdicts).values())
    claims = plural(len(verdicts), "claim")
    return claims if effects == len(verdicts) else f"{claims} on {plural(effects, 'effect')}"


def counted(verdicts: Sequence[Mapping[str, Any]], reasons: str = "") -> str:
    """`26 claims on 23 effects: 1 reproduced, ... 21 effects cannot be tested on ...`.

    `reasons` says where those of the last stand. Where some are decided, their error rate follows.
    """
    numbers = count(verdicts)
    unit = "claim" if sum(numbers.values()) == len(verdicts) else "effect"
    untested = numbers.pop(NOT_TESTABLE)
    text = f"{total(verdicts)}: {', '.join(f'{n} {word}' for word, n in numbers.items())}."
    if untested:
        text += f" {plural(untested, unit)} {UNTESTED}{reasons and f'; {reasons}'}."
    if any(one["verdict"] in DECIDED and one.get("p_value") is not None for one in verdicts):
        text += f" Family-wise error rate: {100 * ALPHA:g} %."
    return text


def finding(results: Results) -> str:
    """The result in the sentences of the paper, below it what goes with it and how far it holds."""
    sentences = headline.headline(results)
    result, *rest = (markdown(sentences[name]) for name in ("result", "rest", "why", "bias"))
    result = f"**{result}**" if sentences["decided"] else result
    first = f"{result} ({markdown(sentences['measured_on'])}.)".strip()
    return "\n".join([first, "", *(f"- {text}" for text in rest if text)])


def block(study: str, verdicts: Sequence[Mapping[str, Any]], runs: str) -> str:
    """A row for each tested claim, and how many came out in each way; `runs` counts the study's."""
    rows = []
    for one in verdicts:
        if one["verdict"] != NOT_TESTABLE:
            words = in_words(one)
            sentence = markdown(one["sentence"])
            rows.append([sentence, one["verdict"], words["measured"], words["claimed"]])
    heads = (
        "published claim, in our own words",
        "verdict",
        "effect, with its interval",
        "reproduced if",
    )
    table = f"{pipe_table(heads, rows)}\n" if rows else ""
    rest = counted(verdicts, "the paper gives the reasons")
    return f"{table}\nThe study `{study}`, {runs}. {rest}"


def update_readme(
    path: Path, study: str, verdicts: Sequence[Mapping[str, Any]], results: Results
) -> None:
    """Put verdicts, and a finding if it has marks, into a file; SamestepError without marks."""
    replace_marked(path, f"verdicts of {study}", block(study, verdicts, headline.planned(results)))
    if marks(f"finding of {study}")[0] in path.read_text(encoding="utf-8"):
        replace_marked(path, f"finding of {study}", finding(results))
