"""A process that has its modules loaded and forks what it is asked for, as if it were just started.

Loading takes longer than the work of a small run. `start` starts such a process, which ends with
the caller; `ask` has it do the work in the environment, the folder and with the output of whoever
asks; `serve` is its loop. This module itself imports little, so that who asks starts quickly.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.machine import processes
from pipeline.machine.processes import die_with_parent, exit_status

ANSWER_SECONDS = 60.0
"""Time for a guard to say that it has begun; a process that was stopped never does."""

_LONGEST_REQUEST = 1 << 20
_OTHER, _BEGUN, _NO_FORK = b"other settings", b"begun", b"no process more"
Work = Callable[[], int]


def start(words: Sequence[str], variable: str, environment: Mapping[str, str]) -> None:
    """Start `python -m WORDS NAME` and leave its name in `variable` of this environment.

    The name is one of Linux's abstract sockets, which end with their process: a kill leaves no file
    behind. It has the `environment` given, and ends with this process.
    """
    import secrets  # who asks does without

    name = f"samestep-{secrets.token_hex(16)}"
    command = [sys.executable, "-m", *words, name]
    process = processes.start(command, environment, Path(os.devnull))
    os.environ[variable] = name
    atexit.register(partial(processes.stop, [process], grace_seconds=1))


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
    if answer in (_OTHER, _NO_FORK):
        return None
    if not answer:
        raise ConnectionError("the preloaded process or its guard ended without an answer")
    return int(answer)


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
    from pipeline.machine.forks import Child  # who asks does without

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
        connection.send(_OTHER)
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
        child = Child(begin, at_exit=False)
    except OSError:
        connection.send(_NO_FORK)
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
    for target, given in zip((1, 2), outputs, strict=True):
        os.dup2(given, target)
    # The server's own know the files that these were: whether one can seek there, for example.
    for name, number in (("stdout", 1), ("stderr", 2)):
        encoding = getattr(sys, name).encoding
        setattr(sys, name, open(number, "w", 1, encoding, closefd=False))  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    try:
        return work()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
