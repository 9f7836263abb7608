"""The stage `train` in a fork of a process that has torch loaded, with one fault in it.

Loading torch takes longer than these runs, so the stage is forked, and its launchers and ranks are
forks of it: `torchrun` here stands in for the real one, in its words, which `test_killed` starts.
All else is the real thing. A fault happens in a rank, after it has written the row of a step.
"""

import errno
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from pipeline import files
from pipeline.__main__ import main as samestep
from pipeline.launch import run as launching
from pipeline.machine import processes
from pipeline.machine.processes import Child
from pipeline.records import Step
from pipeline.training import checkpoint, worker
from pipeline.training.step_files import StepFile

PRELOADED = (
    "tests.system.fault_stage",
    "pipeline.training.loop",
    "pipeline.training.checkpoint",
    "pipeline.models.gpt2.model",
    "pipeline.strategies.ddp",
    "torch.distributed",
    "torch._dynamo",
    "safetensors.torch",
)
"""What the process that is forked has imported."""

AT = 12
"""The step (from 0) after which the fault happens: three steps after a checkpoint."""

ENDS_AS_A_RUNTIME = signal.SIGUSR1


@dataclass(frozen=True)
class Stage:
    """One start: the stage's options, its temporary folder, where it speaks, and its fault.

    `marker` is a file that says that the fault has been; `often` repeats it in every attempt.
    """

    out: Path
    tokens: Path
    temporary: Path
    fault: str = ""
    rank: int = 1
    often: bool = False

    @property
    def marker(self) -> Path:
        return self.temporary.with_name("fault")

    @property
    def said(self) -> Path:
        return self.temporary.with_name("said.txt")


def run(stage: Stage) -> NoReturn:
    """Be the stage: what `python -m pipeline train` does, to its exit status."""
    os.setsid()
    output = os.open(stage.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stderr = sys.stdout = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ["TMPDIR"] = str(stage.temporary)
    os.environ.pop("SAMESTEP_SENT_AGAIN", None)
    tempfile.tempdir = None
    processes.start = start  # type: ignore[assignment]
    processes.stop = partial(processes.stop, grace_seconds=1)
    write_step = StepFile.write

    def step_written(steps: StepFile, step: Step) -> None:
        mine = step.step == AT and step.rank == stage.rank
        if mine and stage.fault in FAULTS and (stage.often or not stage.marker.exists()):
            stage.marker.touch()
            if stage.fault in BEFORE_THE_ROW:
                FAULTS[stage.fault](stage)
            write_step(steps, step)
            FAULTS[stage.fault](stage)
        else:
            write_step(steps, step)

    StepFile.write = step_written  # type: ignore[method-assign, assignment]
    OF_THE_STAGE.get(stage.fault, lambda stage: None)(stage)
    signal.signal(signal.SIGTERM, _interrupt)
    words = [f"--spec={stage.out}/spec.json", f"--tokens={stage.tokens}", f"--out={stage.out}"]
    status = samestep(["train", *words])
    sys.stderr.flush()
    os._exit(status)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt(f"by signal {signum}")


def _to(process: Callable[[], int], number: int) -> Callable[[Stage], None]:
    """Send a signal, and wait for what comes of it."""

    def send(stage: Stage) -> None:
        os.kill(process(), number)
        time.sleep(60)

    return send


def _stage() -> int:
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(") ")[2].split()[1])


def _raise(error: Exception) -> Callable[[Stage], None]:
    def fail(stage: Stage) -> None:
        raise error

    return fail


def _change_tokens(stage: Stage) -> None:
    shard = next(stage.tokens.glob("*.bin"))
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def _wait(stage: Stage) -> None:
    time.sleep(60)


FULL = OSError(errno.ENOSPC, "No space left on device")

FAULTS: Mapping[str, Callable[[Stage], None]] = {
    "rank killed": _to(os.getpid, signal.SIGKILL),
    "rank ended": _to(os.getpid, signal.SIGTERM),
    "rank crashed": _to(os.getpid, signal.SIGSEGV),
    "rank stopped": _to(os.getpid, signal.SIGSTOP),
    "rank waits": _wait,
    "rank raises": _raise(ZeroDivisionError("division by zero")),
    "rank out of memory": _raise(MemoryError("no more")),
    "peer lost": _raise(RuntimeError("Read error [127.0.0.1]: Connection reset by peer")),
    "launcher killed": _to(os.getppid, signal.SIGKILL),
    "launcher ended": _to(os.getppid, signal.SIGTERM),
    "launcher stopped": _to(os.getppid, signal.SIGSTOP),
    "launcher 137": _to(os.getppid, ENDS_AS_A_RUNTIME),
    "stage killed": _to(_stage, signal.SIGKILL),
    "stage ended": _to(_stage, signal.SIGTERM),
    "stage stopped": _to(_stage, signal.SIGSTOP),
    "full at a step": _raise(FULL),
    "tokens removed": lambda stage: shutil.rmtree(stage.tokens),
    "tokens changed": _change_tokens,
    "folder removed": lambda stage: shutil.rmtree(stage.out),
    "marked": lambda stage: None,
    "waits for another start": _wait,
}
"""What happens in a rank."""

BEFORE_THE_ROW = ("full at a step",)


def time_passes(marker: Path) -> None:
    """Once there is such a file, the time limit is over at once."""

    def monotonic() -> float:
        return time.monotonic() + (10**6 if marker.exists() else 0)

    launching.time = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)  # type: ignore


def _clock_is_set_back(stage: Stage) -> None:

    class Clock(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> Any:
            return datetime.now(zone) - timedelta(hours=stage.marker.exists())

    setattr(launching, "datetime", Clock)  # noqa: B010


def _full_at_a_checkpoint(stage: Stage) -> None:
    real = files.to_disk

    def to_disk(path: Path) -> None:
        if "step-00000015" in str(path) and not stage.marker.exists():
            stage.marker.touch()
            raise FULL
        real(path)

    setattr(checkpoint, "to_disk", to_disk)  # noqa: B010


def _at_the_record(error: OSError) -> Callable[[Stage], None]:
    def prepare(stage: Stage) -> None:
        real = os.replace

        def replace(source: Any, target: Any) -> None:
            if Path(target).name == "run.json":
                stage.marker.touch()
                raise error
            real(source, target)

        os.replace = replace  # type: ignore[assignment]

    return prepare


def _port_is_taken(stage: Stage) -> None:
    from pipeline.machine import limits

    listener = socket.create_server((limits.LOOPBACK, 0))
    port = int(listener.getsockname()[1])

    def taken(address: str = "") -> int:
        return port

    limits.free_port = taken
    stage.marker.touch()


OF_THE_STAGE: Mapping[str, Callable[[Stage], None]] = {
    "rank stopped": lambda stage: time_passes(stage.marker),
    "rank waits": lambda stage: time_passes(stage.marker),
    "launcher stopped": lambda stage: time_passes(stage.marker),
    "marked": _clock_is_set_back,
    "full at a checkpoint": _full_at_a_checkpoint,
    "full at the record": _at_the_record(FULL),
    "read-only at the record": _at_the_record(OSError(errno.EROFS, "Read-only file system")),
    "port taken": _port_is_taken,
}
"""What is prepared in the stage."""


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Child:
    """In place of `processes.start`: a fork that is the launcher."""

    def launcher() -> int:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stderr = sys.stdout = os.fdopen(2, "w", buffering=1, closefd=False)
        os.environ.clear()
        os.environ.update(environment)
        return torchrun(command)

    return Child(launcher, at_exit=False)


def torchrun(command: Sequence[str]) -> int:
    """Start one node's rank and report its end, as torchrun does."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    given = dict(w[2:].split("=", 1) for w in command if w.startswith("--"))
    node, nodes = int(given["node-rank"]), int(given["nnodes"])
    port = int(given["master-port"])
    options = command[list(command).index("pipeline.training.worker") + 1 :]
    signal.signal(signal.SIGTERM, _asked_to_end)
    signal.signal(ENDS_AS_A_RUNTIME, lambda *_: os._exit(128 + signal.SIGKILL))
    if node == 0:
        # Here torchrun finds its port taken, before any rank is started.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                print(f"the server socket has failed to listen. port: {port}, name: EADDRINUSE")
                return 1
    variables = {"RANK": node, "LOCAL_RANK": 0, "WORLD_SIZE": nodes, "LOCAL_WORLD_SIZE": 1,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                 "GROUP_RANK": node}  # fmt: skip
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    rank = Child(partial(worker.run, worker.parse(list(options))))
    # After the fork: it has a thread.
    store = node == 0 and TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    while (code := rank.poll()) is None:
        time.sleep(0.01)
    if code:
        print(f"Root Cause (first observed failure):\n[0]:\n  exitcode  : {code} (pid: {rank.pid})")
    elif node == 0:
        time.sleep(0.1)  # others may still ask the store
    del store
    return 1 if code else 0


def _asked_to_end(signum: int, frame: object) -> NoReturn:
    print(f"SignalException: Process {os.getpid()} got signal: {signum}", flush=True)
    os._exit(1)
