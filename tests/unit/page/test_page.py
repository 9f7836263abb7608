"""The report of a study, and the page of all claims."""

import csv
import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline import figures, tables
from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.write import count, question, read_verdicts
from pipeline.metrics import table as metrics_table
from pipeline.page import index
from pipeline.page.page import LOG_LINES, log_end, tidy
from pipeline.study.expansion import expand, profiled
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from pipeline.text import NONE
from tests.claims_worlds import CLAIMS
from tests.fake_records import make_study
from tests.fake_results import make_results, stage
from tests.outline import Outline

HOSTILE = "</pre><script>alert('log')</script><img src=x onerror=alert(1)> & \"done\""
LABEL = "DDP <script>alert('label')</script>"
REASONS = {
    "horovod-apex": ("unsupported", "apex.amp is not importable"),
    "sps": ("oom", "rank 0 was killed"),
    "dps": ("failed", f"rank 1: {HOSTILE}"),
    "horovod": ("timeout", "300 s passed"),
}


def outcome(spec: RunSpec) -> tuple[str, str] | None:
    """All statuses: the first repeat at the most nodes of each of these cells went wrong."""
    if spec.cell == "horovod-apex":
        return REASONS[spec.cell]
    wrong = spec.world.nodes == 4 and spec.repeat == 0
    return REASONS.get(spec.cell) if wrong else None


def page_results(root: Path, **changes: Any) -> Path:
    """Results of a study with a hostile label, every status, and a log of nearly every run."""
    study = make_study(repeats=2, **changes)
    study["cells"][2]["label"] = LABEL
    make_results(root, study, outcome)
    for spec in expand(Study.of(study)):
        if spec.cell != "horovod-apex":
            lines = [f"line {number} of {spec.run_id}" for number in range(30)]
            log = root / "runs" / spec.folder / "log.txt"
            log.write_text("\n".join([*lines, HOSTILE]) + "\n")
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = page_results(tmp_path_factory.mktemp("results"), claims=["bai2022"])
    assert stage(folder, "page") == 0
    return folder


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


def run_text(outline: Outline, name: str) -> str:
    [row] = [text for text in outline.runs if f" {name}" in f" {text}"]
    return " ".join(row.split())


def test_every_run_is_listed_with_status_reason_and_log(outline: Outline, root: Path) -> None:
    study = json.loads((root / "study.json").read_text())
    specs = expand(Study.of(study))
    assert len(outline.runs) == len(specs)
    for spec in specs:
        text = run_text(outline, spec.folder)
        status, reason = outcome(spec) or ("ok", "")
        assert f" {status} " in text and reason in text
        # Its step time in milliseconds, a dash where there is none.
        assert re.search(rf" {status} {'[0-9.,]+' if status == 'ok' else NONE} ", text)
    text, first = run_text(outline, "single/n1/r0"), 31 - LOG_LINES
    assert f"line {first} of" in text and f"line {first - 1} of" not in text
    assert "No log: the run folder holds no log.txt." in run_text(outline, "horovod-apex/n1/r0")


def test_a_fall_back_to_tcp_is_said_in_red(root: Path, page: str, tmp_path: Path) -> None:
    assert "fell back" not in page
    folder = Path(shutil.copytree(root, tmp_path / "results"))
    table = metrics_table.read(folder / "metrics.parquet")
    over_tcp = table[table["metric"] == "git_commit"].iloc[:1].assign(metric="nccl_tcp", value=1.0)
    both = pd.concat([table, over_tcp], ignore_index=True)
    metrics_table.write(both, folder / "metrics.parquet")
    assert stage(folder, "page") == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert '<p class="alarm">NCCL fell back to TCP sockets in 1 run: ' in text


def test_the_page_asks_for_nothing_from_outside(root: Path, outline: Outline) -> None:
    """And leads only to places of its own and to records that lie beside it."""
    places = [
        value
        for _, keys in outline.elements
        for key, value in keys.items()
        if key in ("src", "href", "srcset", "action", "data", "poster")
    ]
    beside = [str(place) for place in places if str(place).startswith("runs/")]
    assert places and all(str(place).startswith(("data:", "#", "runs/")) for place in places)
    assert len(beside) > 30 and all((root / place).is_file() for place in beside)
    ids = {keys["id"] for _, keys in outline.elements if "id" in keys}
    assert {str(place)[1:] for place in places if str(place).startswith("#")} <= ids


def test_the_result_comes_first_then_a_section_for_each_question(page: str) -> None:
    parts = ["result", "verdicts", "parity", "scaling", "time", "memory", "runs", "environment"]
    assert re.findall(r'<section id="(\w+)"', page) == [*parts, "reproduce"]
    first = page.split("</section>")[0]
    assert 'id="figure-throughput"' in first and 'id="table-summary"' in first
    assert "<h1>" in first and "GPT-2 with 1.07 M parameters on 1, 2 and 4 nodes" in first
    # Two repeats decide nothing, and so no sentence is bold.
    assert 'class="finding"' not in first and "the data do not decide which has more" in first
    study = make_study(claims=["bai2022"])
    for name in figures.catalogue.shown(Study.of(study)):
        assert page.count(f'id="figure-{name}"') == 1
    for name in tables.catalogue.shown(Study.of(study)):
        assert page.count(f'id="table-{name}"') == 1


def test_every_claim_has_its_verdict(page: str, root: Path) -> None:
    verdicts = json.loads((root / "verdicts.json").read_text())["verdicts"]
    table = page.split('<section id="verdicts">')[1].split("</section>")[0]
    assert all(f"<code>{one['id']}</code>" in table for one in verdicts)
    tested = table.split("<details class=")[0]
    assert ">undecided</span>" in tested and ">not testable here</span>" not in tested
    assert count(verdicts)["undecided"] > 0
    # Under six runs there is a value and no interval.
    assert "(no interval: 2 runs)" in tested
    assert "because of communication: <em>not testable here in all 3 parts</em>." in table
    for word, number in count(verdicts).items():
        assert f">{number} {word}</span>" in page
        words = [one["verdict"] for one in verdicts]
        assert table.count(f">{word}</span>") == words.count(word)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[31mred\x1b[0m and \x00zero\x07", "red and zero"),
        ('File "/usr/lib/site-packages/torch/nn/x.py", line 3', 'File ".../torch/nn/x.py", line 3'),
        ("read /proc/cpuinfo and a/b/c/d/e", "read /proc/cpuinfo and a/b/c/d/e"),
        ("see https://example.org/a/b/c/d", "see https://example.org/a/b/c/d"),
        ("x" * 1000, "x" * 400 + " ..."),
    ],
)  # fmt: skip
def test_a_line_of_a_log_is_made_fit_to_be_shown(line: str, shown: str) -> None:
    assert tidy(line) == shown


def test_profiled_runs_are_listed_and_a_study_without_claims_has_no_section_of_them(
    tmp_path: Path,
) -> None:
    root = page_results(tmp_path, profile={"steps": 8}, cells=make_study()["cells"][:3])
    assert stage(root, "page") == 0
    text = (root / "report.html").read_text()
    page = Outline(text)
    study = Study.of(json.loads((root / "study.json").read_text()))
    timed, short = len(expand(study)), len(profiled(study))
    assert len(page.runs) == timed + short
    assert f"<dt>{timed} timed and {short} profiled runs</dt>" in text
    assert f"profiled ok {NONE}" in run_text(page, "single/n1/p0")
    assert 'id="verdicts"' not in text and 'href="#verdicts"' not in text


ENDED, REFUSED = "The end of the log", "The log is a symlink, which is not"


@pytest.mark.parametrize(
    ("make", "lines", "note"),
    [
        (lambda log: log.write_text("\n\n"), (), "The log is empty."),
        (lambda log: log.write_text("one\rtwo\n"), ("one", "two"), ENDED),
        (lambda log: log.write_bytes(b"\xff\xfe line\n" * 100_000),
         ("\ufffd\ufffd line",) * LOG_LINES, ENDED),
        (lambda log: log.symlink_to("/etc/hostname"), (), REFUSED),
        (lambda log: log.mkdir(), (), "The log cannot be read: it is a folder"),
        (os.mkfifo, (), "The log cannot be read: it is a FIFO"),
    ],
    ids=["empty", "short", "huge and binary", "of elsewhere", "folder", "FIFO"],
)  # fmt: skip
def test_of_a_log_the_end_is_shown_and_of_what_is_none_nothing(tmp_path, make, lines, note) -> None:
    make(tmp_path / "log.txt")
    shown, about = log_end(tmp_path / "log.txt")
    assert shown == lines and about.startswith(note)


ROOT = Path(__file__).parents[3]
CLAIM = "sublinear-nodes"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with zipfile.ZipFile(ROOT / "docs/example/smoke.zip") as archive:
        [name] = [one for one in archive.namelist() if one.endswith("claims/verdicts.json")]
        content = json.loads(archive.read(name))
    path = tmp_path_factory.mktemp("shipped") / "verdicts.json"
    path.write_text(json.dumps(content))

    def today(one: dict[str, Any]) -> dict[str, Any]:
        """The verdict as if made on the claim as it stands now, whatever its wording was."""
        claim = CLAIMS[one["id"]]
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
    put(tmp_path / "run #2", "a-first-study", undecided)
    untested = [one | {"verdict": "not testable here", "effect": None} for one in shipped]
    put(tmp_path / "run #2", "one-gpu", untested)
    put(tmp_path / "run #2", "smoke", shipped)
    rows = index.write(tmp_path / "run #2", tmp_path / "index.html")
    claims = [claim for path in FOLDER.glob("*/claims.yaml") for claim in load_claims(path)]
    assert len(rows) == len(claims)
    [row] = [one for one in rows if one["id"] == CLAIM]
    assert (row["study"], row["verdict"]) == ("smoke", "reproduced")
    assert row["others"] == "a-first-study undecided"
    not_run = [one for one in rows if one["verdict"] == index.NOT_RUN]
    assert len(not_run) == len(claims) - len(shipped)
    # What several publications say of one effect counts once.
    effects = {one["about"] for one in not_run}
    assert index.counts(rows)[index.NOT_RUN] == len(effects) < len(not_run)
    page = (tmp_path / "index.html").read_text()
    # In a style no character may be escaped, in an address some have to be.
    assert (ROOT / "pipeline/page/style.css").read_text() in page
    assert 'href="run%20%232/smoke/report.html"' in page
    assert f"n = {row['repeats']}</span>" in page
    with (tmp_path / "index.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(claims)
