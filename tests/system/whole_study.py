"""A synthetic study made whole, with real figures: report and paper as a reader gets them."""

import json
from pathlib import Path

from pipeline import figures
from pipeline.study.study import Study
from tests.fake_results import stage
from tests.unit.page.test_page import page_results


def make(root: Path) -> Path:
    """Every status, hostile labels and logs, all figures and tables, report.html and paper/."""
    page_results(root, claims=["bai2022"])
    study = Study.of(json.loads((root / "study.json").read_text()))
    assert stage(root, "figure", *figures.catalogue.shown(study)) == 0
    assert stage(root, "page") == stage(root, "paper") == 0
    return root
