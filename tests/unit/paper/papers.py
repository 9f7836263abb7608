"""What the tests of the paper share: its text and its files, made from records."""

import json
from copy import deepcopy
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


Key = tuple[str, bytes]
_COLLECTED: dict[Key, dict[str, Any]] = {}
_RESULTS: dict[Key, Path] = {}


def key_of(study: dict[str, Any], table: pd.DataFrame) -> Key:
    """The same for equal studies and tables."""
    return json.dumps(study), pd.util.hash_pandas_object(table).to_numpy().tobytes()


def shared_results(study: dict[str, Any], table: pd.DataFrame, folders: Any) -> Path:
    """A folder as of `make_results`, not to be changed: made once of equal studies and tables."""
    key = key_of(study, table)
    if key not in _RESULTS:
        _RESULTS[key] = make_results(folders.mktemp("results"), study, table)
    return _RESULTS[key]


def collected(study: dict[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """The paper's numbers, which take a second: made once of equal studies and tables."""
    key = key_of(study, table)
    if key not in _COLLECTED:
        _COLLECTED[key] = collect(Study.of(study), Results(table))
    return deepcopy(_COLLECTED[key])


def text_of(study: dict[str, Any], table: pd.DataFrame, folder: Path) -> str:
    text = render(SOURCE, collected(study, table), folder / "tables")
    return " ".join(text.split())
