from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.claims.load import FOLDER, files_of, load_claims, parse
from pipeline.errors import ClaimError
from pipeline.study.study import Study
from tests.fake_records import make_study

SMALL: dict[str, Any] = {
    "publication": "A paper",
    "reference": "bai2022",
    "sources": {"talk": "Slides of the talk"},
    "made_at": {"device": "cuda", "hardware": "V100", "nodes": 1, "ranks_per_node": 4,
                "parameters": 1.0e8},
    "cells": {
        "a": {"strategy": "ddp", "precision": "fp32"},
        "b": {"strategy": "horovod", "precision": "mixed", "options": {"empty_cache": True}},
    },
    "claims": [
        {"id": "first", "sentence": "A is faster.", "source": {"key": "talk", "place": "page 1"},
         "published": {"over": ["speedup-amp-horovod"], "under": ["speedup-amp-dps"]},
         "test": {"kind": "ratio", "metric": "step_seconds", "a": "a", "b": "b",
                  "where": "one_machine", "comparison": "about", "bound": 2, "tolerance": 0.25}},
    ],
}  # fmt: skip


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The small file with one value replaced, or dropped where it is `...`."""
    content = deepcopy(SMALL)
    place: Any = content
    *most, last = path
    for key in most:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return content


def test_a_claim_has_its_full_source_scale_and_region() -> None:
    [claim] = parse(SMALL, "here")
    assert claim.source == "Slides of the talk, page 1"
    assert str(claim.made_at) == "4 V100 with 100 M parameters"
    assert claim.region is not None and claim.region.limits == (1.5, 2.5)
    assert str(claim.region) == "1.5 to 2.5"
    assert str(claim.test["b"]) == "horovod in mixed with empty_cache = True"
    assert claim.published is not None and claim.published.value == 2.0
    assert claim.published.source == "Slides of the talk, page 13"


FIRST = ("claims", 0)
TEST = (*FIRST, "test")
A = ("cells", "a")
OVER = (*FIRST, "published", "over")
RATIOS = {"metric": "step_seconds", "where": "one_machine", "comparison": "above", "bound": 1}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        # The schema is asked: one rule of each sort is enough.
        (("extra",), 1, "extra"),
        ((*TEST, "kind"), "vibes", "vibes"),
        ((*TEST, "bound"), ..., "bound"),
        ((*TEST, "a"), "c", "claim first names the cell 'c'; use one of a, b"),
        ((*FIRST, "source", "key"), "blog", "names the source 'blog'; use one of talk"),
        (OVER, ["step-z"], "no number 'step-z'"),
        (("reference",), ..., "has published figures, but the file names no reference"),
        (("reference",), "../smoke", "no published figures of '../smoke'; use one of"),
        # A file whose parts are right by themselves and mean nothing together.
        ((*A, "strategy"), "../ddp", "use one of"),
        ((*A, "options"), {"no_knob": True}, "no option 'no_knob'"),
        (A, {"strategy": "tensor", "precision": "fp32", "axes": {"tenser": 2}},
         "no axis 'tenser'; expected data,"),
        (A, {"strategy": "annotated", "precision": "fp32", "axes": {"n": 2},
             "options": {"axes": {"data": 0, "m": 2}}}, "no axis 'n'"),
        (A, {"strategy": "single", "precision": "fp32", "nodes": 2}, "single runs on 1 rank"),
        (A, {"strategy": "ddp", "precision": "fp32", "min_batch_per_rank": 9,
             "max_batch_per_rank": 3}, "min_batch_per_rank 9"),
        (("cells", "twin"), SMALL["cells"]["a"], "select the same runs"),
        ((*TEST, "b"), "a", "a and b are both 'a'; name two cells"),
        (TEST, {"kind": "ratio_of_ratios", "a": "a", "b": "b", "c": "a", "d": "b", **RATIOS},
         "both ratios are 'a' over 'b'"),
        ((*TEST, "comparison"), "above", "leave tolerance out"),
        ((*TEST, "tolerance"), ..., "never exactly its bound"),
        ((*FIRST, "published", "under"), ["speedup-amp-horovod"], "both over and under"),
        (OVER, [f"utilisation-sps/{'9' * 150}/rank"], "no cell"),
        (OVER, ["utilisation-sps/\u0661/utilisation"], "no cell"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(ClaimError, match=message):
        parse(changed(path, value), "here")


def test_an_id_stands_once(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    assert [claim.id for claim in load_claims(path)] == ["first"]
    with pytest.raises(ClaimError, match="'first' stands twice, also in"):
        load_claims(path, path)
    path.write_text(yaml.safe_dump(changed(("claims",), SMALL["claims"] * 2)))
    with pytest.raises(ClaimError, match="'first' stands twice, also in"):
        load_claims(path)


def test_a_study_that_names_unknown_claims_is_refused() -> None:
    assert files_of(Study.of(make_study())) == []
    assert files_of(Study.of(make_study(claims=["bai2022"]))) == [FOLDER / "bai2022/claims.yaml"]
    # As studies in archives name them.
    assert files_of(Study.of(make_study(claims=["ptdp"]))) == [FOLDER / "ptdp2021/claims.yaml"]
    with pytest.raises(ClaimError, match="the claims 'bai2021'; use one of alpa2022"):
        files_of(Study.of(make_study(claims=["bai2021"])))
