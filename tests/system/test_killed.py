"""Signals in the middle of a run, outside of any job: it resumes and ends as if undisturbed.

With real launchers and on emulated nodes; more faults are in `test_faults.py`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.emulation.nodes import why_not
from pipeline.launch import preloaded
from pipeline.resolved import resolve
from pipeline.study.link import LinkSpec
from pipeline.study.spec import RunSpec
from pipeline.training.step_files import ROW, path_of
from tests.parity.cases import Case
from tests.programs import wait_until
from tests.system.fault_table import ITSELF, NEXT, REAL
from tests.system.litter import adopt_orphans, none_left
from tests.system.stage import losses, words_of

ROOT = Path(__file__).parents[2]
STEPS, EVERY = 600, 50
HURRIED = """
import sys
from pathlib import Path
from pipeline.__main__ import main
from tests.system.fault_stage import time_passes

time_passes(Path(sys.argv.pop(1)))
sys.exit(main(sys.argv[1:]))
"""
"""The stage, whose time limit is over once there is a file."""

REASON = why_not()

emulation = pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}")


def run_of(strategy: str, nodes: int, network: str) -> RunSpec:
    """A run on `nodes` nodes of one rank each, long enough to be killed on a fast machine too."""
    run = Case(strategy).spec(nodes)
    work = replace(run.workload, steps=STEPS, checkpoint_every=EVERY)
    world = replace(run.world, network=network, threads_per_rank=1)
    if network == "emulated":
        link = LinkSpec("200mbit", 200)
        world = replace(world, threads_per_rank=None, link=link, cores_per_node=1)
    return replace(run, world=world, workload=work)


class Stage:
    """`python -m pipeline train`, started; `end` waits for its record."""

    def __init__(
        self, spec: RunSpec, tokens: Path, out: Path, program: Sequence[str] = ("-m", "pipeline")
    ) -> None:
        self.out = out
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        temporary = out.with_name("tmp")
        temporary.mkdir(exist_ok=True)
        environment["TMPDIR"] = str(temporary)
        self.process = subprocess.Popen(
            [sys.executable, *program, *words_of(spec, tokens, out)], cwd=ROOT, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_for(self, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 300
        while not (value := found()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.01)
        return value

    def wait_for_a_checkpoint(self) -> None:
        self.wait_for(lambda: list(self.out.glob("checkpoints/step-*/state.json")))

    def kill(self, victim: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the first process of the run that was started with `-m victim`."""

        def of_the_run() -> list[psutil.Process]:
            children = psutil.Process(self.process.pid).children(recursive=True)
            return [child for child in children if _module(child) == victim]

        self.wait_for(of_the_run)[0].send_signal(number)

    def rank(self, number: int, served: psutil.Process) -> psutil.Process:
        """The rank of emulated nodes that writes this step file; forks of a preloaded process."""
        writing = str(path_of(self.out / "ranks", number))
        for one in served.children(recursive=True):
            with suppress(psutil.Error):
                if writing in [file.path for file in one.open_files()]:
                    return one
        raise AssertionError(self.log())

    def steps_done(self) -> int:
        return path_of(self.out / "ranks", 0).stat().st_size // ROW.size

    def end(self) -> tuple[dict[str, Any], str]:
        """The record and what the stage said."""
        _, said = self.process.communicate(timeout=200)
        assert self.process.returncode == 0, said + self.log()
        return json.loads((self.out / "run.json").read_text()), said

    def log(self) -> str:
        path = self.out / "log.txt"
        return path.read_text()[-3000:] if path.is_file() else ""


def _module(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    return words[words.index("-m") + 1] if "-m" in words else ""


@pytest.fixture(scope="module")
def undisturbed(small_tokens, tmp_path_factory, serving) -> Callable[[str, int], list[Any]]:
    """Losses and gradient norms of a run of a strategy that nothing happens to.

    Its ranks are forks of what is preloaded, which changes no bit.
    """
    serving()  # before a test counts the processes
    made: dict[tuple[str, int], list[Any]] = {}

    def of(strategy: str, nodes: int) -> list[Any]:
        if (strategy, nodes) not in made:
            out = tmp_path_factory.mktemp("undisturbed")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(preloaded.variable(1), serving()[1])
                stage = Stage(run_of(strategy, nodes, "loopback"), small_tokens, out)
            assert stage.end()[0]["status"] == "ok"
            made[strategy, nodes] = losses(out)
        return made[strategy, nodes]

    return of


def check_resumed(stage: Stage, expected: list[Any], why: int | str = signal.SIGKILL) -> int:
    """The record is `ok`, of two attempts, with the losses of an undisturbed run to the bit.

    `why` the first one was lost is a signal, or words. Returns the steps that its checkpoint had.
    """
    told_why = why if isinstance(why, str) else f"killed by signal {why}"
    record, said = stage.end()
    assert record["status"] == "ok", record["reason"] + stage.log()
    assert record["execution"]["resumed_from_step"] >= EVERY
    assert losses(stage.out) == expected
    assert said.count("lost in attempt") == 1 and f"attempt 1 of 3 ({told_why}" in said
    (told,) = record["execution"]["interruptions"]
    assert f"lost in attempt 1 of 3 ({told_why}" in told
    assert "lost in attempt 1 of 3" in (stage.out / "log.txt").read_text()
    left = sorted(path.name for path in stage.out.iterdir())
    assert left == ["log.txt", "run.json", "spec.json", "steps.jsonl"]
    return int(record["execution"]["resumed_from_step"])


@pytest.fixture
def faulted(tmp_path, measured) -> Iterator[Callable[..., None]]:
    """Does a fault to a stage that has a checkpoint, and checks what comes of it and is left."""

    def fault(name: str, stage: Stage, do: Callable[[], object], *expected: Any) -> None:
        stage.wait_for_a_checkpoint()
        done = stage.steps_done()
        begun = time.monotonic()
        do()
        resumed = check_resumed(stage, *expected)
        seconds = time.monotonic() - begun
        measured(name, REAL[name], "ok", ITSELF, max(0, done - resumed), seconds)

    adopt_orphans()
    with none_left(tmp_path / "tmp"):
        yield fault


@pytest.mark.parametrize(
    ("name", "victim", "number"),
    [
        ("real-rank-9", "pipeline.training.worker", signal.SIGKILL),
        ("real-torchrun-9", "torch.distributed.run", signal.SIGKILL),
        ("real-torchrun-15", "torch.distributed.run", signal.SIGTERM),
    ],
)
def test_on_the_loopback(
    name, victim, number, undisturbed, small_tokens, tmp_path, faulted
) -> None:
    nodes = 2 if name == "real-rank-9" else 1
    expected = undisturbed("ddp", nodes)
    stage = Stage(run_of("ddp", nodes, "loopback"), small_tokens, tmp_path / "out")
    faulted(name, stage, partial(stage.kill, victim, number), expected, number)


def test_a_stopped_torchrun(undisturbed, small_tokens, tmp_path, measured) -> None:
    """Its rank ends, and it does not: the time limit passes, and the next start resumes."""
    expected = undisturbed("ddp", 1)
    spec, late = run_of("ddp", 1, "loopback"), tmp_path / "late"
    program = ("-c", HURRIED, str(late))
    stage = Stage(spec, small_tokens, tmp_path / "out", program)
    stage.wait_for_a_checkpoint()
    stage.kill("torch.distributed.run", signal.SIGSTOP)
    late.touch()
    record, _ = stage.end()
    assert record["status"] == "timeout"
    assert "was stopped by a signal (SIGSTOP)" in record["reason"]
    begun = time.monotonic()
    stage = Stage(spec, small_tokens, tmp_path / "out")
    record, _ = stage.end()
    assert (record["status"], losses(stage.out)) == ("ok", expected)
    name, done = "real-torchrun-stop", record["execution"]["resumed_from_step"]
    measured(name, REAL[name], "timeout", NEXT, STEPS - done, time.monotonic() - begun)


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[[], tuple[psutil.Process, str]]]:
    """A preloaded process and its name; another one where a test has killed the last."""
    ends, variable, names = list[Callable[[], None]](), preloaded.variable(1), list[str]()

    def living() -> list[psutil.Process]:
        mine = psutil.Process().children()
        return [one for one in mine if _module(one) == "pipeline.launch.preloaded"]

    def one() -> tuple[psutil.Process, str]:
        if not living():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(variable, "")
                patch.setattr("atexit.register", ends.append)
                preloaded.start_ranks([resolve(run_of("single", 1, "loopback"))])
                names.append(os.environ[variable])
            wait_until(lambda: f"@{names[-1]}" in Path("/proc/net/unix").read_text())
        return living()[0], names[-1]

    yield one
    for end in ends:
        end()


@pytest.fixture
def served(serving, monkeypatch) -> psutil.Process:
    """The preloaded process that the stages of a test ask."""
    process, name = serving()
    monkeypatch.setenv(preloaded.variable(1), name)
    return process


@emulation
@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "depth"), [("preloaded-9", 0), ("guard-9", 1), ("run-9", 2)], ids=lambda v: str(v)
)
def test_of_what_is_preloaded(
    name, depth, served, undisturbed, small_tokens, tmp_path, faulted
) -> None:
    expected = undisturbed("single", 1)
    stage = Stage(run_of("single", 1, "emulated"), small_tokens, tmp_path / "out")

    def kill() -> None:
        process = served
        for _ in range(depth):
            (process,) = process.children()
        process.kill()

    faulted(name, stage, kill, expected)


@emulation
@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "number"), [("node-rank-9", signal.SIGKILL), ("node-rank-15", signal.SIGTERM)]
)
def test_a_rank_on_emulated_nodes(
    name, number, served, undisturbed, small_tokens, tmp_path, faulted
) -> None:
    expected = undisturbed("ddp", 2)
    stage = Stage(run_of("ddp", 2, "emulated"), small_tokens, tmp_path / "out")
    faulted(name, stage, lambda: stage.rank(1, served).send_signal(number), expected, number)
