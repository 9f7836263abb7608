"""What a fork finds out, a later fork of the same process knows."""

import os
import time

import pytest

from pipeline.machine import session


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "_handle", None)
    yield
    if session._handle is not None:
        os.close(session._handle)


def test_forks_share_what_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    session.keep("rate 0", [1.0])
    assert session.recall("rate 0", 60) is None, "it has not begun"
    session.begin()
    children = []
    for number in range(8):
        if (child := os.fork()) == 0:
            session.keep(f"rate {number}", [number, 2.5])
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert [session.recall(f"rate {n}", 60) for n in range(8)] == [[n, 2.5] for n in range(8)]
    assert session.recall("another", 60) is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert session.recall("rate 0", 60) is None
