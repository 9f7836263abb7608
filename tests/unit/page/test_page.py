import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline import figures, tables
from pipeline.__main__ import main
from pipeline.claims.write import count
from pipeline.claims.write import outcome as claim_outcome
from pipeline.metrics import table as metrics_table
from pipeline.metrics.collect import run_folder
from pipeline.metrics.format import NONE
from pipeline.page.page import _PLACED, _SECTIONS, LOG_LINES, log_end, tidy
from pipeline.study.expansion import expand
from pipeline.study.profiling import profiled
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from tests.fake_records import make_study, write_records

DOT = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="4"/></svg>'
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


def make_results(root: Path, **changes: Any) -> Path:
    """Records, logs and verdicts by the real stages, with a dot in place of each figure."""
    study = make_study(repeats=2, **changes)
    study["cells"][2]["label"] = LABEL
    (root / "study.json").write_text(json.dumps(study))
    runs, metrics = write_records(root / "runs", study, outcome), str(root / "metrics.parquet")
    for spec in expand(Study.of(study)):
        if spec.cell != "horovod-apex":
            lines = [f"line {number} of {spec.run_id}" for number in range(30)]
            (run_folder(runs, spec) / "log.txt").write_text("\n".join([*lines, HOSTILE]) + "\n")
    arguments = ["--study", str(root / "study.json")]
    assert main(["metrics", *arguments, "--runs", str(runs), "--out", metrics]) == 0
    if study.get("claims"):
        verdicts = str(root / "verdicts.json")
        assert main(["claims", *arguments, "--metrics", metrics, "--out", verdicts]) == 0
    (root / "figures").mkdir()
    for name in figures.catalogue.shown(Study.of(study)):
        (root / "figures" / f"{name}.svg").write_text(DOT)
    return root


def report(root: Path) -> int:
    """Make root/report.html by the stage."""
    parts = ["--study", "study.json", "--metrics", "metrics.parquet", "--figures", "figures"]
    parts += ["--runs", "runs", "--out", "report.html"]
    if (root / "verdicts.json").exists():
        parts += ["--verdicts", "verdicts.json"]
    return main(["page", *(p if p.startswith("--") else str(root / p) for p in parts)])


class Outline(HTMLParser):
    """What a browser would see: elements with their attributes, and the text of each run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.runs: list[str] = []
        self.text = ""
        self._within = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tbody" and "data-status" in dict(attrs):
            self.runs.append("")
            self._within = True

    def handle_endtag(self, tag: str) -> None:
        self._within = self._within and tag != "tbody"

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"
        if self._within:
            self.runs[-1] += f" {data}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_results(tmp_path_factory.mktemp("results"), claims=["bai2022"])
    assert report(folder) == 0
    return folder


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


def run_text(outline: Outline, name: str) -> str:
    [found] = [text for text in outline.runs if f" {name}" in f" {text}"]
    return " ".join(found.split())


def test_every_run_is_listed_with_its_status_and_reason(outline: Outline, root: Path) -> None:
    study = json.loads((root / "study.json").read_text())
    specs = expand(Study.of(study))
    assert len(outline.runs) == len(specs)
    for spec in specs:
        text = run_text(outline, spec.run_id.partition("/")[2])
        status, reason = outcome(spec) or ("ok", "")
        assert f" {status} " in text and reason in text
        # Its step time in milliseconds, a dash where there is none.
        assert re.search(rf" {status} {'[0-9.,]+' if status == 'ok' else NONE} ", text)


def test_the_end_of_a_log_is_shown_and_a_missing_one_is_said(outline: Outline) -> None:
    text = run_text(outline, "single/n1/r0")
    first = 31 - LOG_LINES
    assert f"line {first} of" in text and f"line {first - 1} of" not in text
    assert "No log: the run folder holds no log.txt." in run_text(outline, "horovod-apex/n1/r0")


def test_a_fall_back_to_tcp_is_said_in_red(root: Path, page: str, tmp_path: Path) -> None:
    assert "fell back" not in page
    folder = Path(shutil.copytree(root, tmp_path / "results"))
    table = metrics_table.read(folder / "metrics.parquet")
    over_tcp = table[table["metric"] == "git_commit"].iloc[:1].assign(metric="nccl_tcp", value=1.0)
    both = pd.concat([table, over_tcp], ignore_index=True)
    metrics_table.write(both, folder / "metrics.parquet")
    assert report(folder) == 0
    told = (folder / "report.html").read_text(encoding="utf-8")
    assert '<p class="alarm">NCCL fell back to TCP sockets in 1 run: ' in told


def test_the_page_is_the_same_bytes_twice_and_elsewhere(root, page, tmp_path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    assert report(tmp_path / "copy") == 0
    assert (tmp_path / "copy/report.html").read_text() == page
    assert str(root) not in page


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


def test_what_is_placed_by_name_exists() -> None:
    """All other figures and tables have a section of their own."""
    named = {*_PLACED, *(name for section in _SECTIONS for name in section[-1])}
    assert named <= {*figures.catalogue.captions, *tables.catalogue.captions}


def test_runs_with_an_exception_come_first_and_open(page: str) -> None:
    section = page.split('<div id="run-groups">')[1].split("</section>")[0]
    groups = re.findall(r'<details class="group"[^>]*>\n<summary>(.*?)</summary>', section)
    opened = re.findall(r'<details class="group"([^>]*)>', section)
    wrong = [bool(re.search("oom|failed|timeout|unsupported", text)) for text in groups]
    assert wrong == sorted(wrong, reverse=True) and any(wrong) and not all(wrong)
    assert [text.endswith(" open") for text in opened] == wrong


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
        assert table.count(f">{word}</span>") == [claim_outcome(one) for one in verdicts].count(
            word
        )


def test_a_missing_figure_is_an_error(root, tmp_path, capsys) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    (copy / "figures/speedup.svg").unlink()
    assert report(copy) == 2
    assert "run `python -m pipeline figure speedup` first" in capsys.readouterr().err


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


def test_logs_that_are_empty_short_binary_or_huge(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("\n\n")
    assert log_end(log) == ((), "The log is empty.")
    log.write_text("one\rtwo\n")
    assert log_end(log) == (("one", "two"), "The end of the log")
    log.write_bytes(b"\xff\xfe line\n" * 100_000)
    lines, note = log_end(log)
    assert len(lines) == LOG_LINES and note == "The end of the log"


def test_profiled_runs_are_listed_and_a_study_without_claims_has_no_section_of_them(
    tmp_path: Path,
) -> None:
    root = make_results(tmp_path, profile={"steps": 8})
    assert report(root) == 0
    text = (root / "report.html").read_text()
    page = Outline(text)
    study = Study.of(json.loads((root / "study.json").read_text()))
    timed, short = len(expand(study)), len(profiled(study))
    assert len(page.runs) == timed + short
    assert f"<dt>{timed} timed and {short} profiled runs</dt>" in text
    assert f"profiled ok {NONE}" in run_text(page, "single/n1/p0")
    assert 'id="verdicts"' not in text and 'href="#verdicts"' not in text


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (lambda log: log.symlink_to("/etc/hostname"), "The log is a symlink, which is not"),
        (lambda log: log.symlink_to(log.name), "The log is a symlink, which is not"),
        (lambda log: log.mkdir(), "The log cannot be read: it is a folder"),
        (os.mkfifo, "The log cannot be read: it is a FIFO"),
    ],
    ids=["of elsewhere", "of itself", "folder", "FIFO"],
)
def test_what_is_no_log_is_said_and_nothing_of_elsewhere_is_shown(tmp_path, make, note) -> None:
    make(tmp_path / "log.txt")
    lines, said = log_end(tmp_path / "log.txt")
    assert lines == () and said.startswith(note)
