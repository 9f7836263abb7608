"""A process that has torch loaded and forks runs: `python -m pipeline.launch.emulated.preloaded`.

Loading takes longer than a small run trains. Snakemake's main process starts one of these, which
ends with it; each run on emulated nodes then is a fork of it, in the environment, the folder and
with the output of whoever asks. Without one a run loads for itself and is otherwise the same.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pipeline import strategies
from pipeline.launch.torchrun import threads_per_rank
from pipeline.machine import image, processes
from pipeline.machine.facts import usable_cores
from pipeline.machine.processes import die_with_parent, exit_status
from pipeline.study.spec import RunSpec

VARIABLE = "SAMESTEP_PRELOADED"
"""Name of the socket, in the environment of Snakemake's jobs.

It is one of Linux's abstract names, which end with their process: a kill leaves no file behind.
"""

ANSWER_SECONDS = 60.0
"""How long a guard may take to say that it has begun; a process that was stopped never does."""

_LONGEST_REQUEST = 1 << 20
_READ_AT_LOAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_OTHER, _BEGUN = b"other settings", b"begun"


def start(spec: RunSpec) -> None:
    """Start one for runs like this, and name it to the jobs of this process, with which it ends."""
    layout = strategies.load(spec.strategy, spec.options).layout(spec.world)
    threads = threads_per_rank(spec, layout, usable_cores())
    name = f"samestep-{secrets.token_hex(16)}"
    environment = os.environ | dict.fromkeys(_READ_AT_LOAD, str(threads))
    command = [sys.executable, "-m", __name__, name]
    process = processes.start(command, environment, Path(os.devnull))
    os.environ[VARIABLE] = name
    atexit.register(partial(processes.stop, [process], grace_seconds=1))


def ask(arguments: Sequence[str]) -> int | None:
    """Have the run done by the preloaded process; its exit status, None where there is no fit one.

    When this process ends, however it ends, so does the run. Inside a container image nobody is
    asked, as whoever could be is outside.
    """
    name = os.environ.get(VARIABLE)
    if not name or image.digest_from_within() is not None:
        return None
    request = {
        "arguments": list(arguments),
        "cwd": str(Path.cwd()),
        "environment": dict(os.environ),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(_address(name))
            _check_user(connection)
            answer = _sent(connection, json.dumps(request).encode())
        except OSError as error:
            said = f"the preloaded process does not answer: the run loads for itself ({error})"
            print(said, file=sys.stderr)
            return None
        if answer == _BEGUN:
            connection.settimeout(None)
            answer = _received(connection)
    if answer == _OTHER:
        return None
    if not answer:
        print("the preloaded process or its guard ended without an answer", file=sys.stderr)
        return exit_status(-signal.SIGKILL)  # nothing else ends them so
    return int(answer)


def _address(name: str) -> str:
    return f"\0{name}"


def _check_user(connection: socket.socket) -> None:
    """Raise PermissionError where another user is at the other end: the name has no mode."""
    size = struct.calcsize("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", peer)
    if user != os.getuid():
        raise PermissionError(f"its socket is that of user {user}")


def _sent(connection: socket.socket, request: bytes) -> bytes:
    """The first answer to a request, which the outputs of this process go with.

    Raises TimeoutError where none comes in time.
    """
    try:
        socket.send_fds(connection, [request], [1, 2])
        return connection.recv(64)
    except TimeoutError:
        raise
    except OSError:
        return b""


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(64)
    except OSError:
        return b""


def serve(name: str, run: Callable[[], int]) -> None:
    """Serve forever under a name: fork `run` per request, as if its sender had called it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST_REQUEST)
        listener.bind(_address(name))
        listener.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards are nobody's to wait for
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    os._exit(_guard(connection, run))


def _guard(connection: socket.socket, run: Callable[[], int]) -> int:
    """Fork the run and tell its exit code; kill it when the asker has gone."""
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
    if any(request["environment"].get(name) != os.environ.get(name) for name in _READ_AT_LOAD):
        connection.send(_OTHER)
        return 0
    try:
        connection.send(_BEGUN)
    except OSError:
        return 0  # it has waited for too long and does the run itself
    os.setsid()
    child = os.fork()
    if child == 0:
        connection.close()
        _become(request, outputs, run)
    gone = os.pidfd_open(child)
    ready, _, _ = select.select([connection.fileno(), gone], [], [])
    if connection.fileno() in ready:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    code = exit_status(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with contextlib.suppress(OSError):
        connection.send(str(code).encode())
    return 0


def _become(request: dict[str, object], outputs: Sequence[int], run: Callable[[], int]) -> None:
    """In the fork: take the asker's place and run; never returns."""
    code = 1
    try:
        die_with_parent()
        for target, given in zip((1, 2), outputs, strict=True):
            os.dup2(given, target)
        os.chdir(str(request["cwd"]))
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        sys.argv[1:] = list(request["arguments"])  # type: ignore[call-overload]
        code = run()
    except SystemExit as error:
        code = int(error.code) if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Load, then serve under the name that the first argument gives."""
    die_with_parent()
    from pipeline.launch.emulated import start as emulated
    from pipeline.training import worker

    worker.import_heavy()
    serve(sys.argv[1], emulated.run_here)


if __name__ == "__main__":
    main()
