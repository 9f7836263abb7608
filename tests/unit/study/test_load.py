import json
from pathlib import Path

import pytest
import yaml

from pipeline.errors import StudyError
from pipeline.study.load import CONFIG, load_study, results_folder
from tests.fake_records import a_cell


def write(path: Path, **content: object) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_study_states_what_differs_from_the_one_it_extends(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = write(tmp_path / "own.yaml", extends="smoke", study="own", title="Own", repeats=7,
                workload={"steps": 20}, profile=None)  # fmt: skip
    smoke, mine = load_study(CONFIG / "smoke/study.yaml").to_dict(), load_study(own).to_dict()
    assert mine["workload"] == smoke["workload"] | {"steps": 20}
    assert (mine["study"], mine["repeats"], "profile" in mine) == ("own", 7, False)
    assert {key: mine[key] for key in ("model", "cells", "cluster")} == {
        key: smoke[key] for key in ("model", "cells", "cluster")
    }
    further = write(
        tmp_path / "further.yaml",
        extends="own.yaml",
        study="further",
        corpus={"source": "json", "paths": ["a.json"]},
        cluster={"network": "loopback"}
        | dict.fromkeys(("links", "cores_per_node", "yardstick", "real_time")),
    )
    mine = load_study(further).to_dict()
    assert mine["corpus"] == {"source": "json", "paths": ["a.json"]}
    assert not {"links", "cores_per_node"} & {*mine["cluster"]}
    assert results_folder(further) == Path("results/further")


def test_title_and_claims_are_of_one_study_alone(tmp_path: Path) -> None:
    """A text of one's own has no paper about another study's sentences."""
    assert load_study(CONFIG / "smoke/study.yaml").claims == ("bai2022",)
    own = load_study(write(tmp_path / "own.yaml", extends="smoke", study="own"))
    assert (own.title, own.claims) == ("own", ())
    assert not {"title", "claims"} & {*own.to_dict()}


def test_profiled_repeats_of_named_cells_are_of_one_study_alone(tmp_path: Path) -> None:
    """They serve its claims, and a study with other cells would have to take them back."""
    cells = [a_cell("one", "single", "One", nodes=[1])]
    named = {"steps": 4, "repeats": 6, "cells": ["dps"]}
    first = write(tmp_path / "first.yaml", extends="smoke", study="first", profile=named)
    own = write(tmp_path / "own.yaml", extends="first.yaml", study="own", cells=cells)
    assert load_study(first).to_dict()["profile"] == named
    assert load_study(own).to_dict()["profile"] == {"steps": 4}


def test_paths_are_relative_to_the_file_that_states_them(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine/sets/a").mkdir(parents=True)
    absolute = str(tmp_path / "b.txt")
    corpus = {"source": "text", "paths": ["t.txt", "../u.txt", absolute], "document": "block"}
    tokenizer = {"kind": "pretrained", "name": "none", "revision": None}
    write(tmp_path / "mine/base.yaml", extends="smoke", study="base", corpus=corpus,
          tokenizer=tokenizer)  # fmt: skip
    mine = load_study(write(tmp_path / "own.yaml", extends="mine/base.yaml", study="own"))
    assert mine.corpus["paths"] == ["mine/t.txt", "u.txt", absolute]
    assert mine.tokenizer["name"] == "mine/none"

    def hub(name: str) -> str:
        corpus = {"source": "hub", "name": name, "split": "a", "revision": "0" * 40, "column": "a"}
        path = write(tmp_path / "mine/hub.yaml", extends="smoke", study="hub", corpus=corpus)
        return str(load_study(path).corpus["name"])

    assert (hub("sets/a"), hub("owner/name")) == ("mine/sets/a", "owner/name")
    # What the workflow wrote is resolved, wherever it lies.
    (tmp_path / "results/own").mkdir(parents=True)
    whole = tmp_path / "results/own/study.json"
    whole.write_text(json.dumps(mine.to_dict()))
    assert load_study(whole).to_dict() == mine.to_dict()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"extends": 3}, "extends 3 is no name"),
        ({"extends": "none.yaml", "study": "a"}, "none.yaml does not exist"),
        ({"extends": "smoke"}, "no name of its own"),
        ({"extends": "x" * 300, "study": "a"}, "is no path"),
        ({"extends": "two.yaml", "study": "smoke"}, "name of the study 'smoke' that it extends"),
        ({"extends": "round.yaml", "study": "a"}, "comes back to itself"),
        ({"extends": "list.yaml", "study": "a"}, "is no mapping"),
        ({"extends": "smoke", "study": "a", "workload": {"stesp": 3}}, "'stesp'"),
        ({"extends": "smoke", "study": "a", "model": None}, "'model' is a required property"),
        ({"study": "a"}, "state it, or `extends: smoke`, which has all that a study needs$"),
    ],
)
def test_a_wrong_extension_is_one_line(tmp_path, content, message) -> None:
    write(tmp_path / "round.yaml", extends="own.yaml")
    write(tmp_path / "two.yaml", extends="smoke", study="two")
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(StudyError, match=message) as caught:
        load_study(write(tmp_path / "own.yaml", **content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", ["profle: null", "cluster: {yardstik: null}", "model: {wdth: null}"]
)
def test_a_misspelt_key_is_not_removed_without_a_word(tmp_path: Path, line: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"study: mine\nextends: smoke\n{line}\n")
    with pytest.raises(StudyError, match=r"unknown keys '(profle|yardstik|wdth)'"):
        load_study(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    "text",
    [f'study: "{name}"' for name in ("", ".", "..", "../results", "a/b", "/", "mine\\n", "~")]
    + ["title: x", "[study]", "study: 7", "study: null"],
)
def test_what_is_no_name_of_a_folder_has_no_results(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(StudyError, match="no name of a study"):
        results_folder(tmp_path / "mine.yaml")


def test_a_cell_that_cannot_be_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for wrong, message in (
        ({"strategy": "ddpp"}, "strategy 'ddpp' has no file of its own"),
        ({"options": {"bucket_mb": 1}}, "strategy ddp has no option 'bucket_mb'"),
        ({"strategy": "sharded", "options": {"stage": 4}}, "strategy sharded option stage 4"),
    ):
        cells = [a_cell("one"), a_cell("two", nodes=[2]) | wrong]
        path.write_text(yaml.safe_dump({"extends": "smoke", "study": "mine", "cells": cells}))
        with pytest.raises(StudyError) as refused:
            load_study(path)
        assert str(refused.value).startswith(f"{path}: cells.1 (two): {message}")
