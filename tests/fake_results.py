"""TEST ONLY: results of a synthetic study by the real stages, a dot in place of each figure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import figures, tables
from pipeline.__main__ import main
from pipeline.study.study import Study
from tests.fake_records import fail, make_records, table_of, write_records, write_table

DOT = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="4"/></svg>'
STAGES = {
    "claims": "--study study.json --metrics metrics.parquet --out verdicts.json",
    "figure": "--metrics metrics.parquet --out figures",
    "table": "--metrics metrics.parquet --out tables",
    "paper": "--study study.json --metrics metrics.parquet --figures figures --tables tables "
    "--generated generated --out paper",
    "page": "--study study.json --metrics metrics.parquet --figures figures --runs runs "
    "--out report.html",
}


def stage(root: Path, name: str, *names: str, out: Path | None = None) -> int:
    """Exit status of a stage on the results below `root`, whose products it writes below `out`."""
    words = STAGES[name].split()
    if name in ("paper", "page") and (root / "verdicts.json").exists():
        words += ["--verdicts", "verdicts.json"]
    made = {"--out", "--generated"}
    paths = [
        word if word.startswith("--") else str((out or root if before in made else root) / word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return main([name, *names, *paths])


def make_results(root: Path, study: Mapping[str, Any], failures: Any = fail) -> Path:
    """Records, metrics, verdicts and tables of a study below `root`, which is returned."""
    (root / "study.json").write_text(json.dumps(study))
    write_records(root / "runs", study, failures)
    write_table(table_of(study, make_records(study, failures)), root)
    if study.get("claims"):
        assert stage(root, "claims") == 0
    assert stage(root, "table", *tables.catalogue.shown(Study.of(study))) == 0
    (root / "figures").mkdir()
    for name in figures.catalogue.shown(Study.of(study)):
        (root / "figures" / f"{name}.svg").write_text(DOT)
        (root / "figures" / f"{name}.pdf").write_bytes(b"%PDF-1.4\n")
    return root
