import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pipeline import figures, tables
from pipeline.__main__ import main
from pipeline.errors import SamestepError
from pipeline.metrics import table as tidy
from pipeline.paper.manuscript import SOURCES, render
from pipeline.paper.numbers import collect
from tests.fake_records import make_study, make_table

SOURCE = (SOURCES / "manuscript.md").read_text(encoding="utf-8")
DOT = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="4"/></svg>'


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return make_study(repeats=2)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


@pytest.fixture(scope="module")
def folder(
    study: dict[str, Any], table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A results folder with real tables and a dot in place of each figure."""
    root = tmp_path_factory.mktemp("results")
    (root / "study.yaml").write_text(yaml.safe_dump(study))
    tidy.write(table, root / "metrics.parquet")
    for name in tables.names():
        args = ["--metrics", str(root / "metrics.parquet"), "--out", str(root / "tables")]
        assert main(["table", name, *args]) == 0
    (root / "figures").mkdir()
    for name in figures.names():
        (root / "figures" / f"{name}.svg").write_text(DOT)
        (root / "figures" / f"{name}.pdf").write_bytes(b"%PDF-1.4\n")
    return root


def make_paper(root: Path, out: Path) -> int:
    args = ["paper", "--study", str(root / "study.yaml")]
    args += ["--metrics", str(root / "metrics.parquet"), "--figures", str(root / "figures")]
    args += ["--tables", str(root / "tables"), "--generated", str(out / "generated")]
    return main([*args, "--out", str(out / "paper")])


def text_of(study: dict[str, Any], table: pd.DataFrame, folder: Path) -> str:
    text = render(SOURCE, collect(study, table), folder / "tables")
    return " ".join(text.split())


def test_the_paper_is_the_same_bytes_twice(folder: Path, tmp_path: Path) -> None:
    for run in ("a", "b"):
        assert make_paper(folder, tmp_path / run) == 0
    for kind in ("pdf", "tex", "html"):
        one, other = (tmp_path / run / "paper" / f"paper.{kind}" for run in ("a", "b"))
        size = len(one.read_bytes())
        assert size > 10_000
        if kind == "tex":
            # Figures are included by a path relative to the file, which is the same here.
            folders = r"\{[^{}]*figures/"
            assert re.sub(folders, "{", one.read_text()) == re.sub(folders, "{", other.read_text())
        else:
            assert one.read_bytes() == other.read_bytes()


def test_latex_finds_its_figures_and_html_needs_none(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "results"
    shutil.copytree(folder, root)
    assert make_paper(root, root) == 0
    latex = (root / "paper" / "paper.tex").read_text()
    included = re.findall(r"\{([^{}]*\.pdf)\}", latex)
    assert sorted(Path(path).stem for path in included) == figures.names()
    assert all((root / "paper" / path).is_file() for path in included)
    html = (root / "paper" / "paper.html").read_text()
    assert not re.search(r'(src|href)="(?!data:|#|https://)', html)
    assert "Hoefler" in html


def test_no_number_is_typed_by_hand() -> None:
    body = SOURCE.split("---", 2)[2]
    prose = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|\[-?@[^\]]*\]", "", body, flags=re.DOTALL)
    assert re.findall(r"\S*\d\S*", prose) == []


def test_every_figure_and_table_is_shown_once_and_referred_to() -> None:
    for kind, names in (("figure", figures.names()), ("table", tables.names())):
        assert sorted(re.findall(rf'\b{kind}\("(\w+)"\)', SOURCE)) == names
        assert set(re.findall(rf'see_{kind}\("(\w+)"\)', SOURCE)) == set(names)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ runs.invented }}", "invented"),
        ('{{ figure("nothing") }}', "shows figure 'nothing'"),
        ('{{ see_table("scaling") }}', "refers to 'scaling'"),
        ("{% if %}", r"manuscript\.md:1"),
    ],
)
def test_an_unknown_name_is_an_error(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SamestepError, match=message):
        render(source, {"runs": {}}, tmp_path)


def test_numbers_are_plain_json(study: dict[str, Any], table: pd.DataFrame) -> None:
    numbers = collect(study, table)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert numbers["date"]["text"] == "2 January 2026"


def test_the_text_says_what_ran_and_what_did_not(
    study: dict[str, Any], table: pd.DataFrame, folder: Path
) -> None:
    text = text_of(study, table, folder)
    assert "Of 32 runs, 25 finished" in text
    assert "oom in 1 of 2 runs at 4 nodes" in text
    assert "NOT EQUAL" not in text
    assert "more ranks than there are cores" in text
    assert "Scaling is strong" in text


def test_a_cell_out_of_tolerance_is_said_aloud(
    study: dict[str, Any], table: pd.DataFrame, folder: Path
) -> None:
    broken = table.copy()
    verdict = (broken["metric"] == "parity_verdict") & (broken["cell"] == "dps")
    broken.loc[verdict, "text"] = "NOT EQUAL"
    text = text_of(study, broken, folder)
    assert "Not all cells computed the same training" in text
    assert "**NOT EQUAL: Distributed Parameter Server (DDP) at 1 node against single" in text


def test_overlapping_intervals_settle_no_order(
    study: dict[str, Any], table: pd.DataFrame, folder: Path
) -> None:
    assert "its interval lies above all others" in text_of(study, table, folder)
    wide = table.copy()
    rates = (wide["metric"] == "tokens_per_second") & (wide["level"] == "cell")
    wide.loc[rates, "low"], wide.loc[rates, "high"] = 0.0, 1e9
    text = text_of(study, wide, folder)
    assert "its interval lies above all others" not in text
    assert "so the order among them is not settled by these runs" in text


@pytest.mark.parametrize(("low", "high", "said"), [
    (1.2, 1.9, "lies above the base for Horovod"),
    (0.2, 0.9, "more nodes made training slower, for Horovod"),
    (0.9, 1.1, "no speedup is shown, for Horovod"),
])  # fmt: skip
def test_a_speedup_is_claimed_only_where_the_interval_allows(
    study: dict[str, Any], table: pd.DataFrame, folder: Path, low: float, high: float, said: str
) -> None:
    chosen = table.copy()
    rows = (chosen["metric"] == "speedup") & (chosen["cell"] == "horovod")
    chosen.loc[rows, ["value", "low", "high"]] = [(low + high) / 2, low, high]
    others = (chosen["metric"] == "speedup") & (chosen["cell"] != "horovod")
    assert said in text_of(study, chosen[~others], folder)


def test_a_chinese_corpus_weak_scaling_and_no_single_cell(folder: Path) -> None:
    cells = [{"name": "dps", "label": "DDP * [a_b]", "strategy": "ddp", "precision": "fp32"}]
    changes: dict[str, Any] = {
        "repeats": 1,
        "cells": cells,
        "title": "Táng poems & 唐詩 #1",
        "corpus": {"source": "json", "paths": ["data/tang_poems.json"]},
        "tokenizer": {"kind": "char"},
    }
    changes["workload"] = {**make_study()["workload"], "scaling": "weak", "global_batch": 4}
    text = text_of(make_study(**changes), make_table(**changes), folder)
    assert "the strings of `tang_poems.json`" in text
    assert "one token a character" in text
    assert "Scaling is weak" in text
    assert r"DDP \* \[a\_b\]" in text
    assert "global_batch differ".replace("_", r"\_") in text


def test_a_study_of_which_nothing_ran_is_still_a_paper(tmp_path: Path) -> None:
    cells = [{"name": "a", "label": "Apex", "strategy": "horovod", "precision": "apex_o1"}]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(make_study(repeats=1, cells=cells)))
    tidy.write(make_table(repeats=1, cells=cells), tmp_path / "metrics.parquet")
    for name in tables.names():
        args = ["--metrics", str(tmp_path / "metrics.parquet"), "--out", str(tmp_path / "tables")]
        assert main(["table", name, *args]) == 0
    (tmp_path / "figures").mkdir()
    assert make_paper(tmp_path, tmp_path) == 0
    text = (tmp_path / "generated" / "manuscript.md").read_text()
    assert "No run finished, so there is no result to report" in text


def test_what_a_cell_sets_for_itself_is_said(folder: Path) -> None:
    study = make_study(repeats=2)
    own = {"workload": {"global_batch": 8}, "options": {"bucket_cap_mb": 1}}
    study["cells"][2] |= own
    study["compares"] = ["global_batch"]
    table = make_table(**{key: study[key] for key in ("repeats", "cells", "compares")})
    text = text_of(study, table, folder)
    assert "with workload.global\\_batch = 8 and options.bucket\\_cap\\_mb = 1" in text
    assert "what a cell sets for itself stands in the list of cells" in text
    assert "at every world size" not in text
    plain = text_of(make_study(repeats=2), make_table(repeats=2), folder)
    assert "at every world size" in plain and "sets for itself" not in plain
