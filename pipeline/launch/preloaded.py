"""Processes that have loaded what a run needs and fork it, which takes longer than a small run.

Snakemake's main process starts them and they end with it: one that has the stage `train` (0.4 to
0.5 CPU seconds), without torch, and one with torch for each number of threads that ranks of the
study have. The nodes of an emulated run, torchrun and each of its ranks are forks of the latter,
in the environment, the folder and with the output of whoever asks. Where none answers, each loads
for itself and is otherwise the same. Only for runs on this machine, outside of a container image; a
stage outlives the end of the process that its ranks are forks of, and starts the run again.

    python -m pipeline.launch.preloaded serve-stages NAME
    python -m pipeline.launch.preloaded serve-ranks MODEL... NAME      (a model's spec in JSON)
    python -m pipeline.launch.preloaded emulated|torchrun|rank OPTIONS   (asks, else does it itself)

Who asks starts quickly, so heavy modules are imported where they are used.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.machine import inherited, processes
from pipeline.machine.processes import die_with_parent, exit_status

if TYPE_CHECKING:
    from pipeline.resolved import ResolvedRun

# Names of sockets in the environment: of the process with the stage, in that of Snakemake's jobs,
# and of a process with torch, where a number of threads follows.
STAGES, RANKS = "SAMESTEP_WAITING", "SAMESTEP_PRELOADED"
EMULATED, TORCHRUN, RANK = "emulated", "torchrun", "rank"
PROGRAMS = {
    EMULATED: "pipeline.launch.emulated.build",
    TORCHRUN: "torch.distributed.run",
    RANK: "pipeline.training.worker",
}
"""Role of a process with torch -> the module that plays it."""

ANSWER_SECONDS = 60.0
"""Time for a guard to say that it has begun; a process that was stopped never does."""

_MODULE = "pipeline.launch.preloaded"
_LONGEST_REQUEST = 1 << 20
_BEGUN, _REFUSED = b"begun", b"refused"
Work = Callable[[], int]


def start_stages() -> None:
    """Start the process with the stage, and name it to the jobs of this one."""
    start((_MODULE, "serve-stages"), STAGES, inherited.for_stages(os.environ))


def start_ranks(runs: Iterable[ResolvedRun], of_site: Mapping[str, str] | None = None) -> None:
    """Start and name the processes with torch for these runs; `of_site`: the site's variables."""
    from pipeline.machine.limits import usable_cores

    cores = len(usable_cores())
    alone = [run for run in runs if run.spec.world.num_machines == 1]
    wanted = {run.threads_on(cores): run.spec.environment for run in alone}
    models = {json.dumps(asdict(run.spec.model), sort_keys=True) for run in alone}
    for threads, environment in sorted(wanted.items()):
        settings = {**(of_site or {}), **environment, **inherited.threads(threads)}
        # Libraries read some of it as they are loaded, so it is that of the ranks, and no more.
        rank = inherited.for_ranks(os.environ, settings)
        start((_MODULE, "serve-ranks", *sorted(models)), variable(threads), rank)


def variable(threads: int | str) -> str:
    """The environment variable that names the process for so many threads."""
    return f"{RANKS}_{threads}"


def words(what: str, *, loaded: bool) -> tuple[str, ...]:
    """Words after `python` that start a program; `loaded`: by a preloaded process."""
    return ("-m", _MODULE, what) if loaded else ("-m", PROGRAMS[what])


def start(words: Sequence[str], variable: str, environment: Mapping[str, str]) -> None:
    """Start `python -m WORDS NAME` and leave its name in `variable` of this environment.

    The name is one of Linux's abstract sockets, which end with their process: a kill leaves no file
    behind. It has the `environment` given, and ends with this process.
    """
    import secrets

    name = f"samestep-{secrets.token_hex(16)}"
    command = [sys.executable, "-m", *words, name]
    process = processes.start(command, environment, Path(os.devnull))
    os.environ[variable] = name
    atexit.register(partial(processes.stop, [process], grace_seconds=1))


def ask_stage(arguments: Sequence[str]) -> int | None:
    """Have `python -m pipeline ARGUMENTS` done; its exit status, None to do it here."""
    try:
        return ask(STAGES, arguments)
    except ConnectionError as error:
        print(f"{error}; the stage is started again", file=sys.stderr)
        return None


def ask(variable: str, arguments: Sequence[str], *, again: bool = False) -> int | None:
    """Have the work done by the process that `variable` names; its exit status.

    None where there is no such process, or it has other settings. The work ends with this process
    and gets its interrupts. `again`: what the work starts may ask in turn. Raises ConnectionError
    where it ended without an answer.
    """
    name = os.environ.get(variable)
    if not name:
        return None
    request = {
        "arguments": list(arguments),
        "cwd": str(Path.cwd()),
        "environment": {k: v for k, v in os.environ.items() if again or k != variable},
    }
    # Packets, each read as it was sent; the end of either process is an empty one.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST_REQUEST)
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(f"\0{name}")
            _check_user(connection)
            # The outputs of this process go with it.
            socket.send_fds(connection, [json.dumps(request).encode()], [1, 2])
            answer = connection.recv(64)
            if not answer:
                raise ConnectionResetError("it ended before it began")
        except OSError as error:
            print(
                f"the preloaded process does not answer: the run loads for itself ({error})",
                file=sys.stderr,
            )
            return None
        connection.settimeout(None)
        while answer == _BEGUN:
            try:
                answer = connection.recv(64)
            except KeyboardInterrupt as error:  # passed on, and its end is waited for
                number = signal.SIGTERM if error.args else signal.SIGINT
                with contextlib.suppress(OSError):
                    connection.send(str(int(number)).encode())
            except OSError:
                answer = b""
    if not answer:
        raise ConnectionError("the preloaded process or its guard ended without an answer")
    return None if answer == _REFUSED else int(answer)


def _check_user(connection: socket.socket) -> None:
    """Raise PermissionError where another user is at the other end: the name has no mode."""
    size = struct.calcsize("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", peer)
    if user != os.getuid():
        raise PermissionError(f"its socket is that of user {user}")


def serve(name: str, load: Callable[[], Work], alike: Collection[str] = ()) -> None:
    """Serve forever under a name: fork per request and do the work, as if its sender did it.

    `load` imports what the work needs and returns it; who asks meanwhile waits. A sender whose
    environment differs in one of `alike` is refused: libraries read those as they are loaded.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        work = load()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards are nobody's to wait for
        while True:
            connection, _ = listener.accept()
            with connection:
                try:
                    guard = os.fork()
                except OSError:  # a process more is refused; who asked loads for itself
                    continue
                if guard == 0:
                    listener.close()
                    os._exit(_guard(connection, work, alike))


def _guard(connection: socket.socket, work: Work, alike: Collection[str]) -> int:
    """Fork the work and tell its exit code; kill it when the asker has gone."""
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _check_user(connection)
    except PermissionError:
        return 1
    text, outputs, _, _ = socket.recv_fds(connection, _LONGEST_REQUEST, 2)
    if not text:
        return 0  # whoever asked has gone
    request = json.loads(text)
    if any(request["environment"].get(name) != os.environ.get(name) for name in alike):
        connection.send(_REFUSED)
        return 0
    try:
        connection.send(_BEGUN)
    except OSError:
        return 0  # it has waited for too long and does the work itself
    # Out of the server's group and terminal: signals come by way of the asker alone.
    os.setsid()

    def begin() -> int:
        connection.close()
        return _become(request, outputs, work)

    try:
        child = processes.Child(begin, at_exit=False)
    except OSError:  # no process more
        connection.send(_REFUSED)
        return 0
    # The child gets the signals that the asker sends; it is killed when the asker has gone.
    gone, asker = os.pidfd_open(child.pid), connection.fileno()
    while gone not in select.select([asker, gone], [], [])[0]:
        try:
            number = int(connection.recv(64) or signal.SIGKILL)
        except OSError:
            number = signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)
        if number == signal.SIGKILL:
            break
    code = exit_status(child.wait())
    with contextlib.suppress(OSError):
        connection.send(str(code).encode())
    return 0


def _become(request: dict[str, Any], outputs: Sequence[int], work: Work) -> int:
    """In the fork: take the asker's place and work; the exit code."""
    for target, given, name in zip((1, 2), outputs, ("stdout", "stderr"), strict=True):
        os.dup2(given, target)
        # The server's own know the file that this was: whether one can seek there, for example.
        encoding = getattr(sys, name).encoding
        setattr(sys, name, open(target, "w", 1, encoding, closefd=False))  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    try:
        return work()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1


def load_stages() -> Work:
    """Entry of `python -m pipeline`, with all that a run's stage imports loaded."""
    from pipeline.launch import run  # noqa: F401
    from pipeline.machine import session

    session.begin()
    # The command line is above this layer, and is found by its name as `python -m` finds it.
    return importlib.import_module("pipeline.__main__").program  # type: ignore[no-any-return]


def load_ranks(models: Iterable[str]) -> Work:
    """Entry of a process with torch, with all that it imports for these models loaded."""
    # A process that has asked CUDA for its GPUs cannot fork ranks that use one; NVML may be asked.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch.distributed.run

    from pipeline.launch.emulated.build import run_here
    from pipeline.machine import session
    from pipeline.study.spec import ModelSpec
    from pipeline.training import worker

    session.begin()
    worker.import_heavy(ModelSpec(**json.loads(model)) for model in models)

    def torchrun() -> int:
        torch.distributed.run.main()  # raises where a rank failed
        return 0

    parts = {EMULATED: run_here, TORCHRUN: torchrun, RANK: worker.main}
    return lambda: parts[sys.argv.pop(1)]()


def main() -> None:
    """Serve, or have a preloaded process do what is asked and end as it ended."""
    what, *options = sys.argv[1:]
    die_with_parent()
    if what == "serve-stages":
        serve(options[0], load_stages)
    if what == "serve-ranks":
        *models, name = options
        serve(name, partial(load_ranks, models), [*inherited.stated(os.environ)])
    processes.interrupt_on_sigterm()  # passed on, so that whoever is ended says so
    name = variable(os.environ.get("OMP_NUM_THREADS", "1"))
    try:
        code = ask(name, [what, *options], again=what == TORCHRUN)
    except ConnectionError as error:
        print(error, file=sys.stderr)
        code = exit_status(-signal.SIGKILL)  # nothing else ends them so
    if code is None:
        command = [sys.executable, *words(what, loaded=False), *options]
        os.execv(sys.executable, command)  # noqa: S606, our own words
    processes.end_as(code)


if __name__ == "__main__":
    main()
