"""The page of all claims: the study that says most of each, and what no study has run."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.write import question, read_verdicts
from pipeline.page import index

ROOT = Path(__file__).parents[3]
CLAIM = "sublinear-nodes"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with zipfile.ZipFile(ROOT / "docs/example/smoke.zip") as archive:
        [name] = [one for one in archive.namelist() if one.endswith("claims/verdicts.json")]
        content = json.loads(archive.read(name))
    path = tmp_path_factory.mktemp("shipped") / "verdicts.json"
    path.write_text(json.dumps(content))
    claims = {claim.id: claim for claim in load_claims(FOLDER / "bai2022/claims.yaml")}

    def today(one: dict[str, Any]) -> dict[str, Any]:
        """The verdict as if made on the claim as it stands now, whatever its wording was."""
        claim = claims[one["id"]]
        return one | {"sentence": claim.sentence, "question": question(claim)}

    return [today(one) for one in read_verdicts(path)]


def put(results: Path, study: str, verdicts: list[dict[str, Any]]) -> None:
    folder = results / study / "claims"
    folder.mkdir(parents=True)
    own = [one | {"runs": [f"{study}/a/n1/r0"] if one["runs"] else []} for one in verdicts]
    content = {"schema_version": 1, "study": study, "verdicts": own}
    (folder / "verdicts.json").write_text(json.dumps(content))


def test_every_shipped_claim_has_a_row_with_the_verdict_that_says_most(tmp_path, shipped) -> None:
    undecided = [
        one | {"verdict": "undecided", "line": f"undecided: {one['why']}", "p_value": None}
        if one["id"] == CLAIM
        else one
        for one in shipped
    ]
    put(tmp_path, "a-first-study", undecided)
    put(tmp_path, "smoke", shipped)
    found = index.write(tmp_path, tmp_path / "index.html")
    claims = [claim for path in FOLDER.glob("*/claims.yaml") for claim in load_claims(path)]
    assert len(found) == len(claims)
    [row] = [one for one in found if one["id"] == CLAIM]
    assert (row["study"], row["verdict"]) == ("smoke", "reproduced")
    not_run = [one for one in found if one["verdict"] == index.NOT_RUN]
    assert len(not_run) == len(claims) - len(shipped)
    # What several publications say of one effect counts once.
    effects = {one["about"] for one in not_run}
    assert index.counts(found)[index.NOT_RUN] == len(effects) < len(not_run)
    assert {one["publication"] for one in found if one["about"] == "memory of 1F1B"} == {
        "PTD-P", "MT-NLG 530B", "Alpa",
    }  # fmt: skip
    page = (tmp_path / "index.html").read_text()
    assert 'href="./smoke/report.html"' in page or 'href="smoke/report.html"' in page
    with (tmp_path / "index.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(claims)


def test_studies_that_need_no_gpu_and_no_cluster_are_listed(capsys) -> None:
    assert main(["index", "--list"]) == 0
    named = capsys.readouterr().out.split()
    papers = {"ptdp2021", "gspmd2021", "gspmd2021-annotations", "mtnlg2022", "alpa2022"}
    assert papers | {"smoke", "lin2020", "bai2022-laptop", "eight-nodes"} <= set(named)
    others = {"bai2022", "one-gpu", "cluster-check", "layouts", "ptdp2021-as-published"}
    assert not others & set(named)


def test_a_folder_without_verdicts_is_one_line(tmp_path, capsys) -> None:
    assert main(["index", "--results", str(tmp_path)]) == 2
    assert "run one (make paper), or all (make studies)" in capsys.readouterr().err
