"""Measurements that forks of one process share, so that later ones need not repeat them.

`begin` is called before the forks; without it nothing is kept. They lie in a memory file of the
kernel that ends with its last process.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import Any

_NAME = "samestep-session"
_handle: int | None = None


def begin() -> None:
    """Keep what this process and its forks find out from now on."""
    global _handle
    _handle = os.memfd_create(_NAME)


def recall(key: str, seconds: float) -> Any:
    """The value kept under the key in the last so many seconds, None where none was."""
    kept = {} if _handle is None else _read(_handle)
    kept_at, value = kept.get(key, (-seconds, None))
    return value if time.monotonic() - kept_at < seconds else None


def keep(key: str, value: Any) -> None:
    """Keep a value that JSON can hold."""
    if _handle is None:
        return
    fcntl.lockf(_handle, fcntl.LOCK_EX)  # a lock of the process, not of the handle that forks share
    try:
        # Of the monotonic clock, which is one for all processes of the machine and is never set.
        text = json.dumps(_read(_handle) | {key: (time.monotonic(), value)}).encode()
        os.ftruncate(_handle, 0)
        os.pwrite(_handle, text, 0)
    finally:
        fcntl.lockf(_handle, fcntl.LOCK_UN)


def _read(handle: int) -> dict[str, tuple[float, Any]]:
    """All that is kept; nothing where it is being written at this moment."""
    try:
        return dict(json.loads(os.pread(handle, os.fstat(handle).st_size, 0)))
    except ValueError:
        return {}
