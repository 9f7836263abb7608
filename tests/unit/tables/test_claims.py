import csv
import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from pipeline.__main__ import main
from pipeline.claims.write import outcome
from pipeline.metrics import table as tidy
from pipeline.tables.write import to_latex, to_markdown
from tests.fake_records import make_study, make_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Metrics and verdicts of the synthetic study, and the table of claims made of them."""
    root = tmp_path_factory.mktemp("claims")
    (root / "study.yaml").write_text(yaml.safe_dump(make_study(repeats=2, claims=["bai2022"])))
    tidy.write(make_table(repeats=2), root / "m.parquet")
    metrics = ["--metrics", str(root / "m.parquet")]
    judge = ["claims", "--study", str(root / "study.yaml"), *metrics]
    assert main([*judge, "--out", str(root / "v.json")]) == 0
    args = ["table", "claims", *metrics, "--verdicts", str(root / "v.json")]
    assert main([*args, "--out", str(root / "tables")]) == 0
    return root


def test_every_claim_has_a_row_with_its_verdict_and_runs(folder: Path) -> None:
    verdicts = json.loads((folder / "v.json").read_text())["verdicts"]
    with (folder / "tables" / "claims.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == [one["id"] for one in verdicts]
    assert [row["verdict"] for row in rows] == [outcome(one) for one in verdicts]
    for row, one in zip(rows, verdicts, strict=True):
        assert row["runs"].split() == one["runs"] and int(row["num_runs"]) == len(one["runs"])
        assert bool(row["effect"]) == (one["effect"] is not None)


def test_the_text_names_sentence_source_scale_and_disagreement(folder: Path) -> None:
    text = (folder / "tables" / "claims.md").read_text()
    [line] = [row for row in text.splitlines() if row.startswith("| sps-slower-than-one:")]
    assert "(Slides of the talk, page 8) But: The README speaks of" in line
    assert "made on 4 V100 with 106 M parameters, tested on 2 CPU ranks of one machine" in line
    for kind in ("tex", "html"):
        assert "sps-slower-than-one" in (folder / "tables" / f"claims.{kind}").read_text()


def test_the_table_needs_verdicts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["table", "claims", "--metrics", str(folder / "m.parquet"), "--out", str(folder / "x")]
    assert main(args) == 2
    assert "claims is about claims; give it --verdicts verdicts.json" in capsys.readouterr().err


def test_columns_of_sentences_are_wider_than_those_of_labels() -> None:
    frame = pd.DataFrame({"A": ["a" * 200], "B": ["b" * 40], "C": ["c"]})
    rule = to_markdown(frame).splitlines()[1].split("|")[1:4]
    assert [len(part) for part in rule] == [58, 30, 3]
    assert r"\begin{tabular}{p{0.36\linewidth}ll}" in to_latex(frame, "caption", "label")
