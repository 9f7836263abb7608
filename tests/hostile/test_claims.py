"""Claims whose parts are right by themselves and mean nothing together."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hostile.entries import Laid
from tests.hostile.entry import refusal

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@cache
def _shipped() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(
        (ROOT / "workflow/config/bai2022/claims.yaml").read_text()
    )
    return content


def _same_claims(cells: dict[str, Any], claim: dict[str, Any]) -> dict[str, Any]:
    content = _shipped()
    return content | {
        "cells": {**content["cells"], **cells},
        "claims": [content["claims"][0] | claim],
    }


def _selector(**changes: Any) -> dict[str, Any]:
    """A file of claims whose cell `odd` is wrong."""
    return _same_claims({"odd": {"strategy": "ddp", "precision": "fp32"} | changes}, {})


def _test(kind: str, **keys: Any) -> dict[str, Any]:
    """A file of claims of one test."""
    return _same_claims({}, {"test": {"kind": kind, **keys}})


def _published(**keys: Any) -> dict[str, Any]:
    return _same_claims({}, {"published": keys})


_RATIO = {"metric": "step_seconds", "where": "one_machine", "comparison": "above", "bound": 1}
_FIGURE = "step-dps-fp32-b2"

CLAIMS: dict[str, tuple[dict[str, Any], str]] = {
    "a strategy of nobody": (_selector(strategy="nobody"), "use one of"),
    "no strategy": (_selector(strategy=""), "use one of"),
    "a strategy by its path": (_selector(strategy="../ddp"), "use one of"),
    "a strategy's own file": (_selector(strategy="_star"), "use one of"),
    "a strategy in other letters": (_selector(strategy="dd\u0440"), "use one of"),
    "a knob of another": (_selector(options={"no_knob": True}), "no option 'no_knob'"),
    "a knob as text": (_selector(options={"static_graph": "yes"}), "static_graph"),
    "an axis that no mesh has": (
        _selector(strategy="tensor", axes={"tenser": 2}), "no axis 'tenser'; expected data,",
    ),
    "an axis of another annotation": (
        _selector(strategy="annotated", options={"axes": {"data": 0, "m": 2}}, axes={"n": 2}),
        "no axis 'n'",
    ),
    "one device on several nodes": (
        _selector(strategy="single", nodes=2), "strategy single runs on 1 rank",
    ),
    "more at least than at most": (
        _selector(min_batch_per_rank=9, max_batch_per_rank=3), "min_batch_per_rank 9",
    ),
    "a cell without a name": (
        _same_claims({"": {"strategy": "ddp", "precision": "fp32"}}, {}), "cells",
    ),
    "an enormous number of nodes": (_selector(nodes=10**9), "nodes"),
    "an id without end": (_same_claims({}, {"id": "a" * 300}), "id"),
    "hardware without a name": (
        _same_claims({}, {"needs": {"hardware": "", "because": "x"}}), "hardware",
    ),
    "a ratio of itself": (_test("ratio", a="sps", b="sps", **_RATIO), "name two cells"),
    "a ratio of ratios of itself": (
        _test("ratio_of_ratios", a="sps", b="sps", c="dps", d="single", **_RATIO), "two cells",
    ),
    "a ratio over itself": (
        _test("ratio_of_ratios", a="sps", b="dps", c="sps", d="dps", **_RATIO), "both",
    ),
    "what fits is too large": (
        _test("fits", fits="sps", too_large="sps", where="one_machine"), "name two cells",
    ),
    "a cell under two names": (_selector(), "select the same runs"),
    "how far, without about": (
        _test("ratio", a="sps", b="dps", **_RATIO, tolerance=0.1), "leave tolerance out",
    ),
    "published figures over themselves": (
        _published(over=[_FIGURE], under=[_FIGURE]), "both over and under",
    ),
    "about, without how far": (
        _test("ratio", a="sps", b="dps", **{**_RATIO, "comparison": "about"}), "tolerance",
    ),
    "a share of nothing": (
        _test("utilisation", a="sps", where="one_machine", expected=[0], tolerance=0.1),
        "expected",
    ),
    "an effect that is not finite": (_published(over=[_FIGURE] * 400), "over"),
    "a row of 150 digits": (
        _published(over=[f"utilisation-sps/{'9' * 150}/rank"]), "no cell",
    ),
    "a row in other digits": (_published(over=["utilisation-sps/\u0661/utilisation"]), "no cell"),
}  # fmt: skip
"""Files of claims, and what their refusal says."""


def num_inputs() -> int:
    """How many there are; one is claims that are given twice."""
    return len(CLAIMS) + 1


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_whose_parts_do_not_fit(laid: Laid, here: Path, name: str) -> None:
    content, words = CLAIMS[name]
    (here / "claims.yaml").write_text(yaml.safe_dump(content))
    given = ("--study", laid.study, "--metrics", laid.metrics, "--out", "out.json")
    assert words in refusal(here, "claims", *given, "--claims", "claims.yaml")


def test_claims_that_are_given_twice(laid: Laid, here: Path) -> None:
    path = ROOT / "workflow/config/bai2022/claims.yaml"
    given = ("--study", laid.study, "--metrics", laid.metrics, "--out", "out.json")
    said = refusal(here, "claims", *given, "--claims", path, path)
    assert "claims.yaml" in said and "stands twice" in said
