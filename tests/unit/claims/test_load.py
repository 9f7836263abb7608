from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.claims.load import FOLDER, files_of, load_claims, parse
from pipeline.errors import ClaimError
from pipeline.study.load import find_study, load_study
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


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("extra",), 1, "extra"),
        (("cells", "a", "precison"), "fp32", "precison"),
        (("cells", "a", "precision"), "amp_o1", "amp_o1"),
        ((*FIRST, "sentense"), "x", "sentense"),
        ((*FIRST, "source", "place"), ..., "place"),
        ((*FIRST, "test", "kind"), "vibes", "vibes"),
        ((*FIRST, "test", "metric"), "joules", "joules"),
        ((*FIRST, "test", "bound"), ..., "bound"),
        ((*FIRST, "test", "comparison"), "nearly", "nearly"),
        ((*FIRST, "test", "expected"), [1.0], "expected"),
        ((*FIRST, "test", "a"), "c", "claim first names the cell 'c'; use one of a, b"),
        ((*FIRST, "source", "key"), "blog", "names the source 'blog'; use one of talk"),
        ((*FIRST, "published", "over"), ["step-z"], "no number 'step-z'"),
        (("reference",), ..., "has published figures, but the file names no reference"),
        (("claims",), [*SMALL["claims"], *SMALL["claims"]], "'first' stands twice"),
        (("claims",), SMALL["claims"] * 301, "breaks maxItems: 300"),
        (("reference",), "../smoke", "no published figures of '../smoke'; use one of"),
        ((*FIRST, "sentence"), " \u200b", "'visible'"),
        (("publication",), "\u00a0", "'visible'"),
        ((*FIRST, "test", "bound"), 0, "bound"),
        ((*FIRST, "test", "tolerance"), 1.5, "tolerance"),
        ((*FIRST, "test", "b"), "a", "a and b are both 'a'; name two cells"),
    ],
)
def test_what_does_not_fit_is_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(ClaimError, match=message):
        parse(changed(path, value), "here")


def test_the_small_file_itself_is_sound(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    assert [claim.id for claim in load_claims(tmp_path / "small.yaml")] == ["first"]


def test_a_file_that_is_missing_or_not_yaml_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ClaimError, match="does not exist; see workflow/config"):
        load_claims(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ClaimError, match="is not YAML") as caught:
        load_claims(tmp_path / "bad.yaml")
    assert "\n" not in str(caught.value)


def test_a_study_that_names_unknown_claims_is_refused() -> None:
    assert files_of(Study.of(make_study())) == []
    assert files_of(Study.of(make_study(claims=["bai2022"]))) == [FOLDER / "bai2022/claims.yaml"]
    # As studies in archives name them.
    assert files_of(Study.of(make_study(claims=["ptdp"]))) == [FOLDER / "ptdp2021/claims.yaml"]
    with pytest.raises(ClaimError, match="the claims 'bai2021'; use one of alpa2022"):
        files_of(Study.of(make_study(claims=["bai2021"])))


@pytest.mark.parametrize("name", ["smoke", "bai2022", "bai2022-as-published"])
def test_every_shipped_study_is_held_against_the_claims(name: str) -> None:
    assert files_of(load_study(find_study(name)))
