"""How the stage `train` goes on where launchers cannot meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import strategies
from pipeline.errors import LaunchError
from pipeline.spec import RunSpec
from pipeline.training import cli
from pipeline.training.launcher import Launch, Place, RunPaths, plan
from pipeline.training.outcome import Ended
from tests.parity.cases import Case

TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
    "network address. port: {}, useIpv6: false, code: -98, name: EADDRINUSE, message: address "
    "already in use\n"
)


class Launchers:
    """Stands in for `cli.follow`: each start ends with the next exit code and line of the log."""

    def __init__(self, *ends: tuple[int, str]) -> None:
        self.ends, self.ports = list(ends), list[str]()

    def follow(self, spec: RunSpec, launch: Launch, paths: RunPaths) -> Ended:
        port = next(w for w in launch.commands[0] if w.startswith("--master-port=")).split("=")[1]
        self.ports.append(port)
        code, line = self.ends.pop(0)
        with paths.log.open("a") as log:
            log.write(line.format(port))
        return Ended([code], False, "", "")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Start a run on port 1 with stand-in launchers; the ports after it are 2, 3, ..."""
    later = iter(range(2, 9))
    monkeypatch.setattr(cli, "free_port", lambda address: next(later))

    def start(launchers: Launchers) -> Ended:
        monkeypatch.setattr(cli, "follow", launchers.follow)
        run, paths = Case("ddp").spec(1), RunPaths(tmp_path, tmp_path, tmp_path)
        layout, place = strategies.load("ddp", {}).layout(run.world), Place(1, 1)
        launch = plan(run, layout, paths, place)
        return cli._follow_on_a_free_port(run, layout, paths, launch, place)

    return start


def test_a_taken_port_is_tried_no_more_and_told(start, tmp_path, capsys) -> None:
    launchers = Launchers((1, TAKEN), (0, ""))
    assert start(launchers).exit_codes == [0]
    assert launchers.ports == ["1", "2"]
    said = "port 1 was taken before its use; again with port 2\n"
    assert (tmp_path / "log.txt").read_text().endswith(said)
    assert said in capsys.readouterr().err


def test_an_end_is_bounded_and_no_result(start) -> None:
    launchers = Launchers(*[(1, TAKEN)] * 4)
    with pytest.raises(LaunchError, match=r"ports 1, 2, 3 were free when probed and taken when"):
        start(launchers)
    assert launchers.ports == ["1", "2", "3"]


@pytest.mark.parametrize(
    "end",
    [(1, "a bug\n"), (1, TAKEN.replace("port: {},", "port: 11,")), (0, TAKEN)],
    ids=["another reason", "another port", "a good end"],
)
def test_nothing_else_starts_a_run_again(start, end) -> None:
    launchers = Launchers(end)
    assert start(launchers).exit_codes == [end[0]]
    assert launchers.ports == ["1"]
