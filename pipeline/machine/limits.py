"""Limits of this machine that ranks need raised before they start, and kills of the kernel."""

from __future__ import annotations

import errno
import os
import resource
import socket
import tempfile
from pathlib import Path

import psutil

from pipeline.errors import LaunchError, refuse
from pipeline.machine import control_groups

FILES = 64
"""Open files of a rank besides its connections to others; torch and its store take about half."""

RANK_BYTES = 50 << 20
"""Memory of a rank besides what it shares with others: no Python with torch has less."""

ROOM = 1 << 20
LOOPBACK = "127.0.0.1"
SECONDS = 5
KILLS = Path("/proc/vmstat")
SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRINUSE,
            errno.EACCES, errno.EPERM)  # fmt: skip
"""Errors of a socket that lacks something while the network itself is up."""


def check(ranks: int) -> None:
    """Raise LaunchError where `ranks` could not start or meet here; raise the limit of files."""
    least, have = ranks * RANK_BYTES, psutil.virtual_memory().total
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES + 4 * ranks
    refuse(LaunchError, "", [
        (least > have,
         f"{ranks} ranks on one machine need {least / 2**30:,.0f} GiB at least, it has "
         f"{have / 2**30:,.0f}; lower cluster.nodes or cluster.ranks_per_node"),
        (resource.RLIM_INFINITY not in (soft, hard) and hard < needed,
         f"a process may open {hard} files here, {ranks} ranks need {needed} each; raise the "
         "limit (`ulimit -n`)"),
    ])  # fmt: skip
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    free_port()
    # Python would take the next of some folders without a word, and other programs end.
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108, where programs look
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
    except OSError as error:
        raise LaunchError(
            f"temporary files cannot be written in {folder} ({error.strerror or error}); free "
            "space there, or set TMPDIR to a folder with room"
        ) from error


def free_port(address: str = LOOPBACK) -> int:
    """A free TCP port; raises LaunchError where this machine does not reach it there."""
    try:
        with socket.socket() as listener:
            listener.bind((address, 0))
            listener.listen()
            socket.create_connection(listener.getsockname(), SECONDS).close()
            return int(listener.getsockname()[1])
    except OSError as error:
        if error.errno in SHORT_OF:
            raise LaunchError(
                f"no port can be had at {address} ({error.strerror}); raise what is too low "
                "(`ulimit -a`), end other programs, or leave the sandbox that forbids it"
            ) from error
        fix = "`ip link set lo up`" if address == LOOPBACK else "see `ip address`"
        raise LaunchError(
            f"this machine does not reach itself at {address} ({error.strerror or error}), so its "
            f"ranks would never meet; {fix}"
        ) from error


def oom_kills() -> int | None:
    """Processes that the kernel's out-of-memory killer has ended; None where it does not say.

    Those of the nearest control group that counts them, else of the whole machine.
    """
    groups = [path / "memory.events" for _, path in control_groups.lineage()]
    for path in (*groups, KILLS):
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for name, _, count in (line.partition(" ") for line in lines):
            if name == "oom_kill":
                return int(count)
    return None
