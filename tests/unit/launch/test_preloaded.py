"""A process that forks runs: what the run sees, how it ends, and when nobody is asked."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline.launch import fork_server, preloaded
from pipeline.machine.control_groups import usable_cores

SERVER = """
import os, sys, time
from pathlib import Path
from pipeline.launch.fork_server import serve

def run():
    sys.argv.pop(1)
    print("said", sys.argv[1:], os.environ["MARK"], flush=True)
    Path(sys.argv[1]).write_text(str(os.getpid()))
    if sys.argv[2] == "wait":
        time.sleep(60)
    return int(sys.argv[2])

serve(sys.argv[1], lambda: run, ["OMP_NUM_THREADS"])
"""
ASK = "import sys; from pipeline.launch.preloaded import ask; sys.exit(ask('rank', sys.argv[1:]))"


ONE_THREAD = preloaded.variable(1)


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


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_run_has_the_arguments_environment_folder_and_output_of_the_asker(
    server, tmp_path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK, "here.txt", "7"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 7
    assert done.stdout == "said ['here.txt', '7'] of the asker\n"
    assert (tmp_path / "here.txt").is_file()


@pytest.mark.parametrize("victim", ["asker", "server"])
def test_the_run_ends_with_the_asker_and_with_the_server(server, tmp_path, victim) -> None:
    file = tmp_path / "pid"
    asker = subprocess.Popen([sys.executable, "-c", ASK, str(file), "wait"])
    wait_until(lambda: file.is_file() and file.read_text())
    pid = int(file.read_text())
    assert alive(pid)
    os.kill((asker if victim == "asker" else server).pid, signal.SIGKILL)
    code = asker.wait(timeout=20)
    assert victim == "asker" or code == 128 + signal.SIGKILL
    wait_until(lambda: not alive(pid))


@pytest.mark.parametrize("victim", ["guard", "run"])
def test_a_kill_of_the_guard_or_of_the_run_is_told_as_such(server, tmp_path, victim) -> None:
    file = tmp_path / "pid"
    command = [sys.executable, "-c", ASK, str(file), "wait"]
    asker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: file.is_file() and file.read_text())
    pid = int(file.read_text())
    os.kill(pid if victim == "run" else psutil.Process(pid).ppid(), signal.SIGKILL)
    _, said = asker.communicate(timeout=20)
    assert asker.returncode == 128 + signal.SIGKILL
    assert ("ended without an answer" in said) == (victim == "guard")
    wait_until(lambda: not alive(pid))


INTERRUPTED = """
import signal, sys
from pipeline.launch import fork_server

def interrupt(number, frame):
    raise KeyboardInterrupt("by signal 15")

signal.signal(signal.SIGTERM, interrupt)
sys.exit(fork_server.ask("SAMESTEP_PRELOADED_1", sys.argv[1:]))
"""


def test_an_interrupt_of_the_asker_ends_the_work_by_the_same_signal(server, tmp_path) -> None:
    file = tmp_path / "pid"
    asker = subprocess.Popen([sys.executable, "-c", INTERRUPTED, "rank", str(file), "wait"])
    wait_until(lambda: file.is_file() and file.read_text())
    asker.terminate()
    assert asker.wait(timeout=20) == 128 + signal.SIGTERM
    assert not alive(int(file.read_text()))


def test_a_stage_is_done_here_where_the_process_that_forked_it_was_killed(
    server, tmp_path, monkeypatch
) -> None:
    file = tmp_path / "pid"
    monkeypatch.setenv(preloaded.STAGES, os.environ[ONE_THREAD])
    command = (
        "import sys; from pipeline.launch import preloaded as p; print(p.ask_stage(sys.argv[1:]))"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", command, "rank", str(file), "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: file.is_file() and file.read_text())
    server.kill()
    said, note = asker.communicate(timeout=20)
    assert said.splitlines()[-1] == "None"
    assert "ended without an answer; the stage is started again" in note


def test_a_process_that_is_gone_is_not_waited_for(monkeypatch, capsys) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv(ONE_THREAD, raising=False)
    assert preloaded.ask("rank", ["x", "0"]) is None
    monkeypatch.setenv(ONE_THREAD, "samestep-gone")
    assert preloaded.ask("rank", ["x", "0"]) is None
    assert "does not answer: the run loads for itself" in capsys.readouterr().err


def test_an_environment_too_long_for_the_socket_is_no_kill(server, monkeypatch, capsys) -> None:
    monkeypatch.setenv("LONG", "x" * (1 << 21))
    assert preloaded.ask("rank", ["x", "0"]) is None
    assert "the run loads for itself ([Errno 90] Message too long)" in capsys.readouterr().err


def test_other_threads_than_torch_was_loaded_with_are_refused(server, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "63")
    monkeypatch.setenv(preloaded.variable(63), os.environ[ONE_THREAD])
    assert preloaded.ask("rank", ["x", "0"]) is None


def test_a_server_that_was_stopped_is_not_waited_for(server, tmp_path, monkeypatch, capsys) -> None:
    """Nor does it begin the run that it was asked for once it goes on."""
    monkeypatch.setattr(fork_server, "ANSWER_SECONDS", 0.3)
    server.send_signal(signal.SIGSTOP)
    monkeypatch.chdir(tmp_path)
    assert preloaded.ask("rank", ["begun", "0"]) is None
    assert "does not answer: the run loads for itself (timed out)" in capsys.readouterr().err
    server.send_signal(signal.SIGCONT)
    monkeypatch.setattr(fork_server, "ANSWER_SECONDS", 20)
    assert preloaded.ask("rank", ["later", "0"]) == 0
    assert (tmp_path / "later").exists() and not (tmp_path / "begun").exists()


def test_another_user_is_neither_asked_nor_served(server, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert preloaded.ask("rank", [str(tmp_path / "x"), "0"]) is None
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


def test_a_kill_of_snakemake_leaves_neither_a_process_nor_a_file(tmp_path) -> None:
    """Of the one process for all runs of so many threads; runs over several machines have none."""
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", STARTER]
    starter = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout as said:
        assert said.readline().strip() == preloaded.variable(len(usable_cores()))
    (child,) = psutil.Process(starter.pid).children()
    starter.kill()
    starter.wait()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert list(tmp_path.iterdir()) == []
