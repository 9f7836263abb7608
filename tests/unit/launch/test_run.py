"""Starts after a lost one, and what an earlier start left; tests/system has the other faults."""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.__main__ import ALL
from pipeline.errors import LostError
from pipeline.launch import run as cli
from pipeline.launch import torchrun
from pipeline.launch.outcome import Ended
from pipeline.launch.torchrun import RunPaths, StartPlace
from pipeline.machine.inherited import SENT_AGAIN
from pipeline.records import Step, read_record
from pipeline.resolved import resolve
from pipeline.study.link import LinkSpec
from pipeline.study.spec import RunSpec
from pipeline.training import checkpoint, fence
from pipeline.training.step_files import packed, path_of
from tests.fake_records import shipped
from tests.parity.cases import Case
from tests.shards import shards_of

RUN = Case("ddp").spec(2)
LAYOUT = resolve(RUN).layout


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """The folder of a run of two ranks."""
    made = RunPaths(tmp_path / "spec.json", tmp_path / "tokens", tmp_path)
    made.ranks.mkdir()
    return made


NOW = "2026-01-01T00:00:00+00:00"
KILLED = Ended([-9], False, NOW, NOW)


@pytest.fixture
def stage(small_tokens, tmp_path, monkeypatch):
    """The stage with stand-ins for its launchers: each start ends as told.

    A start leaves a checkpoint of step 3 with its steps. Returns the steps that each start was
    told to resume from.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # as a shell of an allocation has it

    def run(spec: RunSpec, *ends: Ended, attempt: int = 1) -> list[str]:
        told: list[str] = []

        def follow(spec: RunSpec, commands: Any, _: Any, paths: RunPaths, token: str) -> Ended:
            end = ends[len(told)]
            told.extend(w for w in commands[0] if w.startswith("--resume-from"))
            (owner,) = [w for w in commands[0] if w.startswith("--owner=")]
            checkpoint.save(paths.checkpoints, 3, STATE, owner.partition("=")[2])
            path_of(paths.ranks, 0).write_bytes(ROWS)
            paths.log.touch()
            return end

        monkeypatch.setattr(cli, "follow", follow)
        file = tmp_path / "spec.json"
        file.write_text(spec.to_json())
        parser = argparse.ArgumentParser()
        ALL["train"].add_arguments(parser)
        words = ["--spec", str(file), "--tokens", str(small_tokens), "--out", str(tmp_path)]
        words += ["--attempt", str(attempt)]
        assert ALL["train"].run(parser.parse_args(words)) == 0
        return told

    return run


ONE = Case("single").spec(1)
STATE = shards_of({"weights/w": torch.ones(2), "optimiser/w/exp_avg": torch.ones(2)})


def step(number: int, spec: RunSpec = ONE) -> Step:
    """A step of a run, as a rank would have left it."""
    rate = spec.optimiser.rate(number, spec.workload.steps)
    timed = number >= spec.workload.untimed_steps
    return Step(number, 0, 0.1, spec.global_batch_tokens, 1.0, 1.0, rate, timed)


ROWS = b"".join(packed(step(number)) for number in range(4))


def test_a_lost_run_is_left_to_the_scheduler_inside_a_job(stage, tmp_path, monkeypatch) -> None:
    """On one node as on several; the last of its attempts counts."""
    monkeypatch.setenv(SENT_AGAIN, "yes")
    with pytest.raises(LostError, match=r"lost in attempt 2 of 3.*no record is written"):
        stage(ONE, KILLED, attempt=2)
    assert not (tmp_path / "run.json").exists()
    stage(ONE, KILLED, attempt=3)
    assert read_record(tmp_path).status == "failed"


def test_a_run_never_resumes_on_another_network(stage, tmp_path, monkeypatch) -> None:
    """Its record says one network for all of its steps."""
    link = LinkSpec("200mbit", 200)
    world = replace(ONE.world, network="emulated", link=link, cores_per_node=1)
    spec = replace(ONE, world=world, workload=replace(ONE.workload, untimed_steps=0))
    answers = [None, "no network namespace may be made here", None]
    monkeypatch.setattr(torchrun, "why_not", lambda link: answers.pop(0))
    monkeypatch.setattr(torchrun, "RANK_BYTES", 0)
    out_of_time = replace(KILLED, exit_codes=[], timed_out=True)
    assert stage(spec, KILLED, out_of_time) == ["--resume-from=0", "--resume-from=0"]
    execution = read_record(tmp_path).run["execution"]
    assert execution["network"] == "loopback"
    assert "made on emulated nodes" in execution["interruptions"][1]
    assert "starts anew" in execution["interruptions"][2]
    assert stage(spec, out_of_time) == ["--resume-from=0"]


@pytest.mark.parametrize(("code", "name"), [(1, "rank1.error.json"), (0, "rank1.json")])
def test_what_another_node_wrote_may_show_late(paths, monkeypatch, code, name) -> None:
    (paths.ranks / "rank0.json").touch()
    looks = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            (paths.ranks / name).touch()

    monkeypatch.setattr("time.sleep", look)
    ended = Ended([code], False, "", "")
    cli._see_all_ranks(paths, LAYOUT, ended, StartPlace(1, 1, scheduler=("srun",)))
    assert len(looks) == 3
    (paths.ranks / name).unlink()
    cli._see_all_ranks(paths, LAYOUT, ended, StartPlace(1, 1))
    assert len(looks) == 3, "on one machine all is seen at once"


def test_what_nodes_wait_for_is_told_once(paths, capsys) -> None:
    script = f"printf 'waits: for a core' > {paths.ranks}/note.txt; sleep 0.4"
    ended = cli.follow(RUN, [("sh", "-c", script)], os.environ, paths, fence.claim(paths.ranks))
    assert (ended.exit_codes, ended.timed_out) == ([0], False)
    assert capsys.readouterr().err == f"{RUN.run_id}: waits: for a core\n"


def test_progress_is_told_by_whole_rows(tmp_path) -> None:
    run = shipped("smoke").spec
    run = replace(run, workload=replace(run.workload, steps=16))
    assert cli.progress(run, tmp_path) is None, "no file yet"
    row, line = packed(Step(0, 0, 0.5, 8, 1.0, 1.0, 0.1, True)), None
    for rows in (b"", row * 2 + row[:9]):
        path_of(tmp_path, 0).write_bytes(rows)
        assert line is None
        line = cli.progress(run, tmp_path)
    assert line == "step 2/16, 2,048 tokens/s, 7 s left"


OURS = checkpoint.key("training", "tokens", "the loopback network")


def test_what_is_left_beside_a_checkpoint_and_its_steps_is_dropped(paths) -> None:
    """Of a killed attempt: measurements, torchrun's folder, errors, half-written files."""
    checkpoint.save(paths.checkpoints, 3, STATE, OURS)
    for rank in range(2):
        rows = [packed(replace(step(number), rank=rank)) for number in range(4)]
        path_of(paths.ranks, rank).write_bytes(b"".join(rows))
    (paths.ranks / "torchrun").mkdir()
    for name in ("torchrun/log", "emulation.json", "rank0.error.json", "rank1.json"):
        (paths.ranks / name).write_text("old")
    (paths.ranks / ".rank0.steps.77.tmp.steps").write_text("half")
    (paths.out / ".run.json.77.tmp.json").write_text("half")
    assert paths.clear(LAYOUT, OURS) == (3, [])
    assert sorted(path.name for path in paths.ranks.iterdir()) == ["rank0.steps", "rank1.steps"]
    assert sorted(path.name for path in paths.out.iterdir()) == ["checkpoints", "ranks"]
