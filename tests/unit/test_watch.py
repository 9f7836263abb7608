"""A study while it runs: what its records say, what is shown of the workflow, and how it ends."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import distribution
from pathlib import Path

import pytest

from pipeline import watch as module
from pipeline.errors import MissingError
from pipeline.strategies.horovod.plan import Horovod
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from pipeline.watch import ANSWER, Follower, Watched, follow
from tests.fake_records import make_study, write_records
from tests.programs import ran

# Each takes half a minute; one is out of memory, and Apex is unsupported.
STUDY = make_study(repeats=2, study="tiny")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
NOISE = "Select jobs to execute...\nrule train:\n    input: a, b\n" + "x" * 5000 + "\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)


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


def run(results: Path, script: str, out: io.StringIO) -> int:
    return follow(Watched(Study.of(STUDY), results), ["sh", "-c", script], out)


def log_of(results: Path) -> Path:
    (path,) = results.glob("logs/workflow/*.txt")
    return path


def words(out: io.StringIO) -> list[str]:
    """Lines printed above the progress line."""
    return [line for line in out.getvalue().splitlines() if " runs" not in line]


def test_runs_appear_as_their_records_do(watched: Watched) -> None:
    paths = files(watched)
    away = [path.rename(path.with_suffix(".away")) for path in paths]
    watched.update()
    assert watched.line("dps/n2/r1: step 3/10") == (
        f"0 of {len(paths)} runs; now dps/n2/r1: step 3/10"
    )
    for path, final in zip(away[:-4], paths, strict=False):
        path.rename(final)
    watched.update()
    assert re.fullmatch(
        rf"{len(paths) - 4} of {len(paths)} runs \(.*\d unsupported.*\), about 0:02:00 left; "
        r"last: .+/n[124]/r\d, .+",
        watched.line(),
    )
    # One that is repeated has not ended until it is there again.
    paths[0].unlink()
    watched.update()
    assert "about 0:02:30 left" in watched.line()


def test_watch_prints_once_without_torch_or_pandas(watched: Watched, tmp_path: Path) -> None:
    """In a process of its own, from a folder that holds `results/tiny`."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tiny").symlink_to(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(STUDY))
    files(watched)[0].unlink()
    asked = "import sys, pipeline.__main__ as m; s = m.main(['watch', '--study', 'tiny.json']);"
    asked += " print(s, {'torch', 'pandas', 'matplotlib'} & {*sys.modules})"
    done = ran([sys.executable, "-c", asked], cwd=tmp_path, env=ENVIRONMENT, check=True)
    planned = len(watched.planned)
    assert re.fullmatch(rf"{planned - 1} of {planned} runs .* left; .*\n0 set\(\)\n", done.stdout)


def test_words_that_somebody_should_know_are_shown_at_once_and_once(tmp_path: Path) -> None:
    said = [
        "note: another run works in this folder",
        "warning: the fonts have no 字",
        "tiny/dps/n1/r0: no emulated network here: no ip",
        "tiny/dps/n2/r0: oom: rank 0 was killed",
        "mixed: two processors",
    ]
    again = "tiny/dps/n2/r0: no emulated network here: no ip"
    (tmp_path / "said").write_text(NOISE + "\n".join([*said[:-1], again, said[-1]]) + "\n")
    (tmp_path / "wait").touch()
    out = io.StringIO()

    class Waits(io.StringIO):
        def write(self, text: str) -> int:
            if said[-1] in text:
                (tmp_path / "wait").unlink()
            return out.write(text)

    child = f"cat {tmp_path}/said; while [ -e {tmp_path}/wait ]; do sleep 0.02; done"
    assert run(tmp_path, child, Waits()) == 0
    assert words(out) == said


def test_a_failure_shows_the_last_lines_and_the_file(tmp_path: Path) -> None:
    out = io.StringIO()
    script = "seq 1 100; echo 'error: the cause; the fix'; echo Exiting; kill -9 $$"
    assert run(tmp_path, script, out) == 137
    shown = words(out)
    assert shown.count("error: the cause; the fix") == 1
    assert "100" in shown and "62" not in shown and "Exiting" in shown
    assert shown[-1] == f"error: the workflow failed; all it said is in {log_of(tmp_path)}"


def test_a_signal_ends_the_workflow_too(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(STUDY))
    child = "trap 'touch ended; exit 3' TERM; touch begun; while :; do sleep 0.05; done"
    command = [sys.executable, "-m", "pipeline", "follow", "--study", "tiny.json", "--results", "."]
    process = subprocess.Popen(
        [*command, "--", "sh", "-c", child],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert "interrupted by signal 15" in process.communicate(timeout=60)[1]
    assert process.returncode == 143 and (tmp_path / "ended").exists()


def test_the_installed_snakemake_says_what_is_waited_for() -> None:
    """Else each workflow that is ended would lose the run under way."""
    scheduler = "snakemake/scheduling/job_scheduler.py"
    [file] = [one for one in distribution("snakemake").files or [] if str(one) == scheduler]
    assert ANSWER in Path(str(file.locate())).read_bytes()


@pytest.mark.parametrize(
    ("to_sigterm", "code"), [("", 4), (f"echo {ANSWER.decode()}; sleep 0.6; exit 3", 3)]
)
def test_a_workflow_that_does_not_answer_is_interrupted(
    to_sigterm: str, code: int, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Snakemake, whose handler of SIGTERM may wait for ever; one that answers has its time."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    script = f"trap '{to_sigterm}' TERM; trap 'exit 4' INT; echo begun"
    script += "; while :; do sleep 0.05; done"
    log = tmp_path / "log.txt"
    # These tests may be a job in the background, which has SIGINT ignored, as its children have.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with log.open("wb") as stream:
            child = subprocess.Popen(["bash", "-c", script], stdout=stream)
        while not log.read_bytes():
            time.sleep(0.02)
        Follower(watched, log, Terminal()).end(child)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert child.wait(timeout=60) == code


def test_a_record_that_a_disk_emptied_is_set_aside_and_named(watched: Watched) -> None:
    runs = watched.results / "runs/dps"
    emptied, cut, steps = (runs / name / "r0" for name in ("n1", "n2", "n4"))
    (emptied / "run.json").write_text("")
    (cut / "run.json").write_bytes((cut / "run.json").read_bytes()[:99])
    (steps / "steps.jsonl").write_text("")
    said = watched.set_aside()
    damaged = {emptied, cut, steps}
    assert {path.parent for path in watched.results.rglob("run.json.damaged")} == damaged
    assert not any((folder / "run.json").exists() for folder in damaged)
    assert len(said) == 3 and watched.set_aside() == []
    assert all(f"kept as {folder}/run.json.damaged: its" in "".join(said) for folder in damaged)


def test_runs_that_lacked_a_package_are_made_again_once_it_is_there(tmp_path: Path, monkeypatch):
    lacking = {"dps": "MissingError", "horovod": "MissingError", "sps": "UnsupportedError"}

    def fail(spec: RunSpec) -> tuple[str, str] | None:
        kind = lacking.get(spec.cell)
        return ("unsupported", f"{kind}: package so_and_so is not installed") if kind else None

    def check(self: Horovod) -> None:
        raise MissingError("Horovod is not installed: no compiler")

    monkeypatch.setattr(Horovod, "check", check)
    study = make_study(repeats=1, study="tiny")
    write_records(tmp_path / "runs", study, fail)
    watched, out = Watched(Study.of(study), tmp_path), io.StringIO()
    assert follow(watched, ["sh", "-c", 'echo "$0" "$@"'], out, retry=True) == 0
    again = {str(tmp_path / f"runs/dps/n{nodes}/r0/run.json") for nodes in (1, 2, 4)}
    option, *forced = log_of(tmp_path).read_text().split()
    assert option == "--forcerun" and set(forced) == again
    assert "note: 3 runs that lacked a package which is there now: tried again" in out.getvalue()
