"""Only the latest launch of a run leaves results."""

import errno
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from pipeline.errors import LaunchError
from pipeline.training import fence
from pipeline.training.worker import check_ours
from tests.parity.cases import Case


def test_a_later_launch_takes_the_folder_over(tmp_path) -> None:
    first = fence.claim(tmp_path)
    assert fence.holds(tmp_path, first)
    second = fence.claim(tmp_path)
    assert fence.holds(tmp_path, second) and not fence.holds(tmp_path, first)
    check_ours(Namespace(out=tmp_path, launch=second))
    with pytest.raises(LaunchError, match="a later start of this run took over"):
        check_ours(Namespace(out=tmp_path, launch=first))


def test_a_folder_that_is_gone_belongs_to_nobody(tmp_path) -> None:
    assert not fence.holds(tmp_path / "gone", "token")


def test_a_folder_that_cannot_be_read_belongs_to_no_later_launch(tmp_path, monkeypatch) -> None:
    token = fence.claim(tmp_path)

    def fail(*_: object, **__: object) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(OSError, match="Stale"):
        fence.lost(tmp_path, token)


@pytest.mark.parametrize(("token", "leaves"), [(None, True), ("an older one", False)])
def test_a_rank_of_an_older_launch_does_not_even_say_why_it_failed(tmp_path, token, leaves) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(Case("single").spec(1).to_json())
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    latest = fence.claim(ranks)
    options = ("--spec", spec, "--tokens", tmp_path / "no-tokens", "--out", ranks)
    command = [sys.executable, "-m", "pipeline.training.worker", *map(str, options)]
    command += ["--checkpoints", str(tmp_path), "--launch", token or latest]
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    reason = ranks / "rank0.error.json"
    assert reason.exists() == leaves
    assert not leaves or json.loads(reason.read_text())["type"] == "CorpusError"
