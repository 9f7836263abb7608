"""What the tests of the paper share: its text and its files, made from records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from pipeline import figures, tables
from pipeline.__main__ import main
from pipeline.metrics import table as tidy
from pipeline.metrics.results import Results
from pipeline.paper.manuscript import render, source
from pipeline.paper.numbers import collect
from pipeline.study.study import Study

SOURCE = source()
DOT = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="4"/></svg>'


def make_results(root: Path, study: dict[str, Any], table: pd.DataFrame) -> Path:
    """A results folder with real tables and a dot in place of each figure."""
    (root / "study.yaml").write_text(yaml.safe_dump(study))
    tidy.write(table, root / "metrics.parquet")
    args = ["--study", str(root / "study.yaml"), "--metrics", str(root / "metrics.parquet")]
    assert main(["claims", *args, "--out", str(root / "verdicts.json")]) == 0
    args = ["--metrics", str(root / "metrics.parquet"), "--out", str(root / "tables")]
    assert main(["table", *tables.catalogue.shown(Study.of(study)), *args]) == 0
    (root / "figures").mkdir()
    for name in figures.catalogue.shown(Study.of(study)):
        (root / "figures" / f"{name}.svg").write_text(DOT)
        (root / "figures" / f"{name}.pdf").write_bytes(b"%PDF-1.4\n")
    return root


def make_paper(root: Path, out: Path, *more: str) -> int:
    args = ["paper", "--study", str(root / "study.yaml")]
    args += ["--metrics", str(root / "metrics.parquet"), "--figures", str(root / "figures")]
    args += ["--tables", str(root / "tables"), "--generated", str(out / "generated")]
    if (root / "verdicts.json").exists():
        args += ["--verdicts", str(root / "verdicts.json")]
    return main([*args, "--out", str(out / "paper"), *more])


def text_of(
    study: dict[str, Any], table: pd.DataFrame, folder: Path, verdicts: Sequence[Any] = ()
) -> str:
    """The manuscript on one line, with the tables of `folder`."""
    numbers = collect(Study.of(study), Results(table), verdicts)
    return " ".join(render(SOURCE, numbers, folder / "tables").split())
