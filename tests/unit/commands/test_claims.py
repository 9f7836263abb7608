"""The stage `python -m pipeline claims`, and reading what it wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.__main__ import main
from pipeline.claims.load import FOLDER
from pipeline.claims.write import read_verdicts
from pipeline.errors import ClaimError, SamestepError
from pipeline.metrics import table as tidy
from pipeline.study.load import check_study
from tests.claims_worlds import CLAIMS
from tests.fake_records import a_verdict, make_study, make_table


def run(tmp_path: Path, *more: str, **changes: Any) -> int:
    """The stage on a synthetic study."""
    study = make_study(repeats=2, **changes)
    check_study(study, "here")
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    tidy.write(make_table(repeats=2), tmp_path / "m.parquet")
    args = ["--study", str(tmp_path / "study.yaml"), "--metrics", str(tmp_path / "m.parquet")]
    return main(["claims", *args, *more, "--out", str(tmp_path / "verdicts.json")])


def test_the_stage_writes_the_same_bytes_twice(tmp_path, capsys) -> None:
    assert run(tmp_path, claims=["bai2022"]) == 0
    assert "reproduced" in capsys.readouterr().out
    first = (tmp_path / "verdicts.json").read_bytes()
    assert run(tmp_path, "--claims", str(FOLDER / "bai2022/claims.yaml")) == 0
    assert (tmp_path / "verdicts.json").read_bytes() == first
    assert [one["id"] for one in read_verdicts(tmp_path / "verdicts.json")] == list(CLAIMS)


@pytest.mark.parametrize(("text", "message"), [("  ", "'visible'"), ("a\0", "cannot be printed")])
def test_verdicts_of_another_study_or_form_are_refused(tmp_path, text, message) -> None:
    content = a_verdict()
    path = tmp_path / "verdicts.json"
    path.write_text(json.dumps(content))
    assert len(read_verdicts(path, "fake")) == 1
    with pytest.raises(ClaimError, match=r"is of study 'fake', not of 'smoke'"):
        read_verdicts(path, "smoke")
    content["verdicts"][0]["sentence"] = text
    path.write_text(json.dumps(content))
    with pytest.raises(SamestepError, match=message):
        read_verdicts(path, "fake")
