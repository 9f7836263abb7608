"""Only the latest launch of a run may leave results in its folder.

A scheduler that lost sight of a node starts a run again while the ranks on that node may live on.
Each launch writes its token into the folder; whoever holds an older one has been superseded.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from pipeline.files import write_text

FILE = "launch"


def claim(folder: Path) -> str:
    """Make a new launch the latest one of `folder`; returns its token."""
    token = secrets.token_hex(8)
    write_text(folder / FILE, token)
    return token


def release(folder: Path) -> None:
    """End the latest launch of `folder`: what is left of it leaves nothing there."""
    (folder / FILE).unlink(missing_ok=True)


def lost(folder: Path, token: str) -> str | None:
    """Reason why the launch of `token` may write to `folder` no more; None where it may.

    Raises OSError where that cannot be read, which says nothing of another start.
    """
    try:
        # Read anew each time: it is another node that claims, and only the shared folder tells.
        latest = (folder / FILE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return "the folder of this run was removed or emptied under it"
    return None if latest == token else "a later start of this run took over"
