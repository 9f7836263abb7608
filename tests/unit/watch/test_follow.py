"""The workflow with its output in a file: what is shown of it, and how it ends."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import MissingError, SamestepError
from pipeline.strategies.horovod.plan import Horovod
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from pipeline.watch import follow as module
from pipeline.watch.follow import Follower, follow
from pipeline.watch.state import Ended, Watched
from tests.fake_records import make_study, write_records

STUDY = make_study(repeats=1, study="tiny")
NOISE = "Select jobs to execute...\nrule train:\n    input: a, b\n" + "x" * 5000 + "\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)


def run(results: Path, script: str, out: io.StringIO) -> int:
    return follow(Watched(Study.of(STUDY), results), ["sh", "-c", script], out)


def log_of(results: Path) -> Path:
    (path,) = results.glob("logs/workflow/*.txt")
    return path


def test_what_the_workflow_says_is_in_the_file_and_progress_is_shown(tmp_path: Path) -> None:
    write_records(tmp_path / "runs", STUDY)
    (tmp_path / "noise").write_text(NOISE)
    out = io.StringIO()
    assert run(tmp_path, f"cat {tmp_path}/noise; echo to stderr >&2", out) == 0
    assert log_of(tmp_path).read_text() == NOISE + "to stderr\n"
    shown = out.getvalue().splitlines()
    assert len(shown) == 1 and "16 of 16 runs (" in shown[0]
    assert "making the metrics" in shown[0]
    assert (tmp_path / "logs/progress.txt").read_text().split("  ", 1)[1] == f"{shown[0]}\n"


def test_words_that_somebody_should_know_are_shown_at_once(tmp_path: Path) -> None:
    said = [
        "note: another run works in this folder",
        "warning: the fonts have no 字",
        "error: the tokens are gone; make them again",
        "tiny/dps/n2/r0: oom: rank 0 was killed",
        "mixed: two processors",
    ]
    (tmp_path / "said").write_text(NOISE + "\n".join(said) + "\n")
    (tmp_path / "wait").touch()
    out = io.StringIO()
    child = f"cat {tmp_path}/said; while [ -e {tmp_path}/wait ]; do sleep 0.02; done"

    class Waits(io.StringIO):
        def write(self, text: str) -> int:
            if said[-1] in text:
                (tmp_path / "wait").unlink()
            return out.write(text)

    assert run(tmp_path, child, Waits()) == 0
    assert [line for line in out.getvalue().splitlines() if " runs" not in line] == said


def test_what_holds_for_every_run_is_shown_once(tmp_path: Path) -> None:
    said = [f"tiny/dps/n{nodes}/r0: no emulated network here: no ip" for nodes in (1, 2, 4)]
    other = "tiny/dps/n4/r0: oom: rank 0 was killed"
    (tmp_path / "said").write_text("\n".join([*said, other]) + "\n")
    out = io.StringIO()
    assert run(tmp_path, f"cat {tmp_path}/said", out) == 0
    assert [line for line in out.getvalue().splitlines() if " runs" not in line] == [said[0], other]


def test_a_failure_shows_the_last_lines_and_the_file(tmp_path: Path) -> None:
    out = io.StringIO()
    script = (
        "seq 1 100; echo 'error: the cause; the fix'; echo Exiting because a job failed; exit 1"
    )
    assert run(tmp_path, script, out) == 1
    shown = out.getvalue().splitlines()
    assert shown.count("error: the cause; the fix") == 1
    assert "100" in shown and "62" not in shown and "Exiting because a job failed" in shown
    assert shown[-1] == f"error: the workflow failed; all it said is in {log_of(tmp_path)}"


def test_a_killed_workflow_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, "kill -9 $$", io.StringIO()) == 137


def test_a_flood_of_warnings_ends_with_the_name_of_the_file(tmp_path: Path) -> None:
    out = io.StringIO()
    run(tmp_path, "for i in $(seq 1 500); do echo warning: $i; done", out)
    shown = [line for line in out.getvalue().splitlines() if " runs" not in line]
    assert len(shown) == module.MOST_WORDS + 1 and shown[-1].startswith("more such lines are in")


def test_a_terminal_has_one_line_that_is_rewritten(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    script = "echo 'tiny/dps/n2/r0: step 3/10, 5,000 tokens/s, 2 s left'; sleep 0.3; echo error: x"
    run(tmp_path, script, out)
    assert "\n" not in out.getvalue().replace("error: x\n", "")
    assert "now dps/n2/r0: step 3/10, 5,000 tokens/s, 2 s left" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


def test_without_a_terminal_lines_are_few(tmp_path: Path) -> None:
    watched, out = Watched(Study.of(make_study(repeats=8)), tmp_path), io.StringIO()
    log = tmp_path / "log.txt"
    log.touch()
    (tmp_path / "logs").mkdir()
    shown = Follower(watched, log, out)
    for place, spec in enumerate(watched.planned):
        run = Ended(spec, "ok", 30.0 * place, 30.0 * place + 30, 0.1)

        def update(run: Ended = run) -> list[Ended]:
            watched.ended[run.spec.run_id] = run
            return [run]

        watched.update = update  # type: ignore[method-assign]
        shown.update()
    lines = out.getvalue().splitlines()
    assert len(watched.planned) > 50 and len(lines) == module.LINES + 1
    assert lines[0].startswith(f"1 of {len(watched.planned)} runs, about ")
    assert len((tmp_path / "logs/progress.txt").read_text().splitlines()) == len(lines)


def test_a_command_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SamestepError, match=r"could not start 'no-such' with its log in .*No such"):
        follow(Watched(Study.of(STUDY), tmp_path), ["no-such"], io.StringIO())
    assert not [*tmp_path.iterdir()]


def test_a_signal_ends_the_workflow_too(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(STUDY))
    child = "trap 'touch ended; exit 3' TERM; touch begun; while :; do sleep 0.05; done"
    command = [sys.executable, "-m", "pipeline", "follow", "--study", "tiny.json", "--results", "."]
    process = subprocess.Popen(
        [*command, "--", "sh", "-c", child], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert "interrupted by signal 15" in process.communicate(timeout=60)[1]
    assert process.returncode == 143 and (tmp_path / "ended").exists()


def test_a_stopped_process_of_the_workflow_is_named_once(tmp_path: Path, monkeypatch) -> None:
    """What the workflow waits for, its user sees nothing of."""
    monkeypatch.setattr(module, "STOPPED_EVERY", 1)
    out = io.StringIO()
    stop = "sh -c 'echo $$ >pid; kill -STOP $$' & "
    script = f"cd {tmp_path}; {stop} sleep 1; kill -CONT $(cat pid); wait"
    assert run(tmp_path, script, out) == 0
    pid = (tmp_path / "pid").read_text().strip()
    told = f"note: process {pid} is stopped; `kill -CONT {pid}` continues it"
    assert out.getvalue().splitlines().count(told) == 1


def test_a_broken_pipe_leaves_no_orphan(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            if "begun" in text:
                raise BrokenPipeError
            return len(text)

    child = f"trap 'touch {tmp_path}/ended; exit 3' TERM; echo note: begun; "
    with pytest.raises(BrokenPipeError):
        run(tmp_path, f"{child} while :; do sleep 0.05; done", Gone())
    assert (tmp_path / "ended").exists()


def test_a_record_that_a_disk_emptied_is_set_aside_and_named(tmp_path: Path) -> None:
    write_records(tmp_path / "runs", STUDY)
    emptied, cut, steps = (tmp_path / "runs/dps" / name / "r0" for name in ("n1", "n2", "n4"))
    (emptied / "run.json").write_text("")
    (cut / "run.json").write_bytes((cut / "run.json").read_bytes()[:99])
    (steps / "steps.jsonl").write_text("")
    watched, out = Watched(Study.of(STUDY), tmp_path), io.StringIO()
    assert follow(watched, ["sh", "-c", "exit 0"], out, retry=True) == 0
    damaged = {emptied, cut, steps}
    assert {path.parent for path in tmp_path.rglob("run.json.damaged")} == damaged
    assert not any((folder / "run.json").exists() for folder in damaged)
    assert all(f"kept as {folder}/run.json.damaged: its" in out.getvalue() for folder in damaged)


def test_runs_that_lacked_a_package_are_made_again_once_it_is_there(tmp_path: Path, monkeypatch):
    lacking = {"dps": "MissingError", "horovod": "MissingError", "sps": "UnsupportedError"}

    def fail(spec: RunSpec) -> tuple[str, str] | None:
        kind = lacking.get(spec.cell)
        return ("unsupported", f"{kind}: package so_and_so is not installed") if kind else None

    def check(self: Horovod) -> None:
        raise MissingError("Horovod is not installed: no compiler")

    monkeypatch.setattr(Horovod, "check", check)
    write_records(tmp_path / "runs", STUDY, fail)
    watched, out = Watched(Study.of(STUDY), tmp_path), io.StringIO()
    assert follow(watched, ["sh", "-c", 'echo "$0" "$@"'], out, retry=True) == 0
    again = {str(tmp_path / f"runs/dps/n{nodes}/r0/run.json") for nodes in (1, 2, 4)}
    option, *forced = log_of(tmp_path).read_text().split()
    assert option == "--forcerun" and set(forced) == again
    assert "note: 3 runs that lacked a package which is there now: tried again" in out.getvalue()
