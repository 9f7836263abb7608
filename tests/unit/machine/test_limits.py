"""What is known before ranks start."""

import os
import sys

import pytest

from pipeline.errors import LaunchError
from pipeline.machine import limits
from tests.programs import ran

CHECK = """
import resource, sys
from pipeline.machine import limits
resource.setrlimit(resource.RLIMIT_NOFILE, (12, int(sys.argv[1])))
limits.check(2)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_too_few_open_files_are_said_at_once_and_a_soft_limit_is_raised() -> None:
    results = [ran([sys.executable, "-c", CHECK, hard]) for hard in ("12", "500")]
    assert "may open 12 files here, 2 ranks need 72 each; raise" in results[0].stderr
    assert results[1].stdout == "500\n", results[1].stderr


def test_a_loopback_that_is_down_is_said_before_a_rank_waits_for_it() -> None:
    code = "from pipeline.machine import limits; limits.check(2)"
    done = ran(["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code])
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert "does not reach itself at 127.0.0.1 (Network is unreachable)" in done.stderr


def test_more_ranks_than_memory_has_room_for_are_refused_before_a_run() -> None:
    with pytest.raises(LaunchError, match=r"32512 ranks .* need 1,588 GiB at least.*; lower"):
        limits.check(254 * 128)


@pytest.mark.parametrize("number", limits.SHORT_OF)
def test_a_socket_that_cannot_be_had_is_no_network_that_is_down(monkeypatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("socket.socket", refuse)
    with pytest.raises(LaunchError, match=rf"no port .*{os.strerror(number)}.*ulimit") as error:
        limits.free_port()
    assert "ip link" not in str(error.value)


def test_a_folder_that_takes_no_temporary_file_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(LaunchError, match=r"temporary files cannot be written in .*; free space"):
        limits.check(1)


def test_kills_for_want_of_memory_are_counted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("pipeline.machine.control_groups.lineage", lambda: [])
    file = tmp_path / "vmstat"
    monkeypatch.setattr(limits, "KILLS", file)
    assert limits.oom_kills() is None
    file.write_text("nr_free 7\noom_kill 3\n")
    assert limits.oom_kills() == 3
