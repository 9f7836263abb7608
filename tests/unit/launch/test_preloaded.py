"""A process that forks runs: what the run sees, how it ends, and when nobody is asked."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline import models
from pipeline.launch import preloaded
from pipeline.machine import session
from pipeline.machine.limits import usable_cores
from pipeline.models import build
from pipeline.resolved import resolve
from pipeline.study.spec import ModelSpec
from tests.parity.cases import Case
from tests.programs import ran, wait_until

SERVER = """
import os, sys, time
from pathlib import Path
from pipeline.launch.preloaded import serve

def run():
    sys.argv.pop(1)
    print("said", sys.argv[1:], os.environ["MARK"], flush=True)
    Path(sys.argv[1]).write_text(str(os.getpid()))
    if sys.argv[2] == "wait":
        time.sleep(60)
    return int(sys.argv[2])

serve(sys.argv[1], lambda: run, ["OMP_NUM_THREADS"])
"""
ONE_THREAD = preloaded.variable(1)
ASK = "from pipeline.launch.preloaded import main; main()"


@pytest.fixture
def server(tmp_path, monkeypatch):
    name = f"samestep-test-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process = subprocess.Popen([sys.executable, "-c", SERVER, name])
    wait_until(lambda: listens(name))
    monkeypatch.setenv(ONE_THREAD, name)
    monkeypatch.setenv("MARK", "of the asker")
    yield process
    process.kill()
    process.wait()


def listens(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex(f"\0{name}") == 0


@pytest.fixture
def asked(server, tmp_path):
    """Ask for a run that waits; the asker, and the process of the run."""
    file = tmp_path / "pid"

    def ask() -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", ASK, "rank", str(file), "wait"]
        asker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: file.is_file() and file.read_text())
        return asker, int(file.read_text())

    return ask


def test_the_run_has_the_arguments_environment_folder_and_output_of_the_asker(
    server, tmp_path
) -> None:
    done = ran(
        [sys.executable, "-c", ASK, "rank", "here.txt", "7"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        timeout=30,
    )
    assert done.returncode == 7
    assert done.stdout == "said ['here.txt', '7'] of the asker\n"
    assert (tmp_path / "here.txt").is_file()


@pytest.mark.parametrize("victim", ["asker", "server", "guard", "run"])
def test_all_end_together_and_a_kill_is_told_as_such(server, asked, victim) -> None:
    asker, run = asked()
    pids = {"asker": asker.pid, "server": server.pid, "guard": psutil.Process(run).ppid()}
    os.kill(pids.get(victim, run), signal.SIGKILL)
    _, errors = asker.communicate(timeout=20)
    assert asker.returncode == -signal.SIGKILL
    assert ("ended without an answer" in errors) == (victim in ("guard", "server"))
    wait_until(lambda: not Path(f"/proc/{run}").exists())


def test_an_interrupt_of_the_asker_ends_the_work_by_the_same_signal(asked) -> None:
    asker, run = asked()
    asker.terminate()
    asker.communicate(timeout=20)
    assert asker.returncode == -signal.SIGTERM
    assert not Path(f"/proc/{run}").exists()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({ONE_THREAD: ""}, ""),
        ({ONE_THREAD: "samestep-gone"}, "does not answer: the run loads for itself ([Errno 111]"),
        ({"LONG": "x" * (1 << 21)}, "the run loads for itself ([Errno 90] Message too long)"),
        ({"OMP_NUM_THREADS": "63", preloaded.variable(63): "SERVER"}, ""),
    ],
    ids=["none", "gone", "too long for the socket", "other threads than it loaded torch with"],
)
def test_where_no_fit_process_answers_nobody_waits(
    server, monkeypatch, capsys, variables, message
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, os.environ[ONE_THREAD] if value == "SERVER" else value)
    name = preloaded.variable(os.environ["OMP_NUM_THREADS"])
    assert preloaded.ask(name, ["rank", "x", "0"]) is None
    assert message in capsys.readouterr().err


def test_a_server_that_was_stopped_is_not_waited_for(server, tmp_path, monkeypatch, capsys) -> None:
    """Nor does it begin the run that it was asked for once it goes on."""
    monkeypatch.setattr(preloaded, "ANSWER_SECONDS", 0.3)
    server.send_signal(signal.SIGSTOP)
    monkeypatch.chdir(tmp_path)
    assert preloaded.ask(ONE_THREAD, ["rank", "begun", "0"]) is None
    assert "does not answer: the run loads for itself (timed out)" in capsys.readouterr().err
    server.send_signal(signal.SIGCONT)
    monkeypatch.setattr(preloaded, "ANSWER_SECONDS", 20)
    assert preloaded.ask(ONE_THREAD, ["rank", "later", "0"]) == 0
    assert (tmp_path / "later").exists() and not (tmp_path / "begun").exists()


def test_another_user_is_neither_asked_nor_served(server, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert preloaded.ask(ONE_THREAD, ["rank", str(tmp_path / "x"), "0"]) is None
    assert "its socket is that of user" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


STARTER = """
import os, time
from pipeline.launch import preloaded
from pipeline.resolved import resolve
from tests.parity.cases import Case

one = Case("single").spec(1)
over = Case("ddp").spec(2)
object.__setattr__(over.world, "network", "real")
object.__setattr__(over.world, "threads_per_rank", 7)
preloaded.start_ranks(map(resolve, [one, one, over]))
print(*(name for name in os.environ if name.startswith("SAMESTEP_PRELOADED")), flush=True)
time.sleep(60)
"""


def test_a_process_with_torch_has_the_models_of_its_runs_loaded(monkeypatch) -> None:
    """transformers imports a class at its first use, for seconds, which each rank would do anew."""
    started, built = list[tuple[str, ...]](), list[ModelSpec]()
    monkeypatch.setattr(preloaded, "start", lambda words, *_: started.append(words))
    monkeypatch.setattr(build, "deferred_model", lambda model, seed: built.append(model))
    monkeypatch.setattr(session, "begin", lambda: None)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # it sets it
    both = [*models.examples().values()][:2]
    runs = [replace(Case("single").spec(1), model=one, repeat=r) for one in both for r in (0, 1)]
    preloaded.start_ranks(map(resolve, runs))
    ((_, what, *given),) = started
    preloaded.load_ranks(given)
    assert what == "serve-ranks" and {str(one) for one in built} == {str(one) for one in both}


def test_a_kill_of_snakemake_leaves_neither_a_process_nor_a_file(tmp_path) -> None:
    """Of the one process for all runs of so many threads; runs over several machines have none."""
    more = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd()), "OF_NOBODY": "1"}
    environment = os.environ | more
    command = [sys.executable, "-c", STARTER]
    starter = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout as lines:
        assert lines.readline().strip() == preloaded.variable(len(usable_cores()))
    (child,) = psutil.Process(starter.pid).children()
    # Libraries read as they are loaded, so it has what ranks have alone.
    assert "OF_NOBODY" not in child.environ()
    starter.kill()
    starter.wait()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert list(tmp_path.iterdir()) == []
