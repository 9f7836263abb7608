"""What the results folder says of a study that runs, as a line and as a matrix."""

import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pipeline.__main__ import main
from pipeline.metrics.runs import load_run
from pipeline.records import read_record
from pipeline.study.study import Study
from pipeline.watch.show import duration, line, matrix
from pipeline.watch.state import Watched, medians
from tests.fake_records import make_study, write_records

# Each takes half a minute; one is out of memory, and Apex is unsupported.
STUDY = make_study(repeats=2, study="tiny")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records"), STUDY)


@pytest.fixture
def watched(tmp_path: Path, records: Path) -> Watched:
    """A study of which all runs have ended, not read yet."""
    shutil.copytree(records, tmp_path / "runs")
    return Watched(Study.of(STUDY), tmp_path)


def files(watched: Watched) -> list[Path]:
    return sorted(watched.results.glob("runs/**/run.json"), key=os.path.getmtime)


def drawn(watched: Watched) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(matrix(watched))
    return console.export_text()


def test_medians_are_made_as_those_of_the_metrics(watched: Watched) -> None:
    assert len(watched.update()) == len(watched.planned) and watched.update() == []
    read = [read_record(path.parent) for path in files(watched)]
    runs = [load_run(record, {}) for record in read if not record.spec.profile]
    places = {(run.record.spec.cell, run.record.spec.world.nodes) for run in runs if run.ok}
    expected = {
        (cell, nodes): np.median([
            np.median(run.timed_seconds) for run in runs
            if run.ok and (run.record.spec.cell, run.record.spec.world.nodes) == (cell, nodes)
        ])
        for cell, nodes in places
    }  # fmt: skip
    assert medians(watched.ended.values()) == pytest.approx(expected)


def test_runs_appear_as_their_records_do(watched: Watched) -> None:
    paths = files(watched)
    away = [path.rename(path.with_suffix(".away")) for path in paths]
    assert watched.update() == [] and watched.seconds_left() is None
    assert line(watched, "dps n2 r1: step 3/10") == (
        f"0 of {len(paths)} runs; now dps n2 r1: step 3/10"
    )
    for path, final in zip(away[:-4], paths, strict=False):
        path.rename(final)
    assert len(watched.update()) == len(paths) - 4
    assert watched.seconds_left() == pytest.approx(4 * 30)
    assert f"{len(paths) - 4} of {len(paths)} runs (" in line(watched)
    assert re.search(r", about 2 min left; last: .+, [124] nodes?, ", line(watched))
    # One that is repeated has not ended until it is there again.
    paths[0].unlink()
    assert watched.update() == [] and watched.seconds_left() == pytest.approx(5 * 30)


def test_a_record_of_another_training_or_a_damaged_one_has_not_ended(watched: Watched) -> None:
    one, other, third, fourth = files(watched)[:4]
    run = json.loads(one.read_text())
    run["spec"]["seed"] += 1
    one.write_text(json.dumps(run))
    other.write_text("{")
    third.write_text('{"spec": 7}')
    fourth.write_text(json.dumps({**json.loads(fourth.read_text()), "started_at": 7}))
    watched.update()
    assert len(watched.ended) == len(watched.planned) - 4


def test_the_product_that_is_out_of_date_is_named(watched: Watched) -> None:
    watched.update()
    assert watched.phase() == "making the metrics"
    assert line(watched).endswith("; making the metrics")
    for place, name in enumerate(
        ("metrics/metrics.parquet", "figures/a.svg", "tables/a.csv", "paper/paper.pdf")
    ):
        (watched.results / name).parent.mkdir(exist_ok=True)
        (watched.results / name).touch()
        os.utime(watched.results / name, (4e9 + place, 4e9 + place))
    assert watched.phase() == "making the report"
    (watched.results / "report.html").touch()
    os.utime(watched.results / "report.html", (5e9, 5e9))
    assert watched.phase() is None
    os.utime(watched.results / "metrics/metrics.parquet", (6e9, 6e9))
    assert watched.phase() == "making the figures"


def test_the_matrix_shows_cells_medians_and_what_went_wrong(watched: Watched) -> None:
    files(watched)[-1].unlink()
    watched.update()
    text = drawn(watched)
    assert "1 node " in text and "4 nodes" in text
    assert "2 unsupported  2/2" in text and "1 oom  2/2" in text and " 1/2" in text
    known = medians(watched.ended.values())
    assert f"{1000 * known['dps', 2]:.3g}"[:3] in text


def test_before_the_first_run_the_phase_is_named(tmp_path: Path) -> None:
    watched = Watched(Study.of(STUDY), tmp_path)
    planned = len(watched.planned)
    assert line(watched) == f"0 of {planned} runs; cutting the text into tokens"
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens/manifest.json").touch()
    assert line(watched) == f"0 of {planned} runs"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (7260, "2 h 1 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_watch_once_prints_without_torch_or_pandas(watched: Watched, tmp_path: Path) -> None:
    """In a process of its own, from a folder that holds `results/tiny`."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tiny").symlink_to(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(STUDY))
    asked = "import sys, pipeline.__main__ as m; s = m.main(['watch', '--study', 'tiny.json',"
    asked += " '--once']); print(s, {'torch', 'pandas', 'matplotlib'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}, check=True,
    )  # fmt: skip
    assert "dps" in done.stdout and done.stdout.endswith("0 set()\n")


def test_watch_ends_when_all_runs_have_ended(watched, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tiny").symlink_to(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(STUDY))
    assert main(["watch", "--study", "tiny.json"]) == 0
    assert "median step time in ms" in capsys.readouterr().out


@contextmanager
def no_more_files() -> Iterator[None]:
    """The limit of open files is reached: every call that opens one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_record_that_cannot_be_read_now_is_not_a_damaged_one(watched: Watched) -> None:
    before = files(watched)
    with no_more_files():
        watched.update()
        with pytest.raises(OSError, match="Too many open files"):
            watched.set_aside()
    assert files(watched) == before
