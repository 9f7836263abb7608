"""A synthetic study made whole, with real figures: report and paper as a reader gets them."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from pipeline import figures, tables
from pipeline.__main__ import main
from pipeline.study.study import Study
from tests.unit.page.test_page import make_results, report
from tests.unit.paper.papers import make_paper


def make(root: Path) -> Path:
    """Every status, hostile labels and logs, all figures and tables, report.html and paper/."""
    make_results(root, claims=["bai2022"])
    study = json.loads((root / "study.json").read_text())
    for catalogue in (figures.catalogue, tables.catalogue):
        names = catalogue.shown(Study.of(study))
        given = [
            "--metrics",
            str(root / "metrics.parquet"),
            "--out",
            str(root / f"{catalogue.kind}s"),
        ]
        assert main([catalogue.kind, *names, *given]) == 0
    assert report(root) == 0
    (root / "study.yaml").write_text(yaml.safe_dump(study))
    assert make_paper(root, root) == 0
    return root
