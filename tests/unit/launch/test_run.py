"""How the stage `train` resumes, and starts again where it got no port or was lost."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import torch

from pipeline.__main__ import ALL
from pipeline.errors import CorpusError, LostError
from pipeline.launch import run as cli
from pipeline.launch import torchrun
from pipeline.launch.outcome import Ended
from pipeline.launch.torchrun import Launch, Place, RunPaths
from pipeline.machine.inherited import SENT_AGAIN
from pipeline.records import Step, read_record
from pipeline.resolved import resolve
from pipeline.study.expansion import expand
from pipeline.study.link import LinkSpec
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from pipeline.training import checkpoint, fence
from pipeline.training.step_files import packed, path_of
from tests.fake_records import EMULATED, make_record, make_study
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
LATER = "2026-01-01T00:01:00+00:00"
KILLED = Ended([-9], False, NOW, NOW)


def test_a_lost_run_is_left_to_the_scheduler_inside_a_job(paths, monkeypatch) -> None:
    """On one node as on several."""
    monkeypatch.setenv(SENT_AGAIN, "yes")
    with pytest.raises(LostError, match="lost in attempt 2 of 3"):
        cli._lost(RUN, paths, KILLED, 2)
    assert cli._lost(RUN, paths, KILLED, 3) is None


@pytest.fixture
def stage(small_tokens, tmp_path, monkeypatch):
    """The stage with stand-ins for its launchers: each start ends as told.

    A start leaves a checkpoint of step 3 with its steps. Returns the steps that each start was
    told to resume from.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # as a shell of an allocation has it

    def run(spec: RunSpec, *ends: Ended | str, tokens: Path = small_tokens) -> list[str]:
        told: list[str] = []

        def follow(spec: RunSpec, launch: Launch, paths: RunPaths) -> Ended:
            end = ends[len(told)]
            told.extend(w for w in launch.commands[0] if w.startswith("--resume-from"))
            (owner,) = [w for w in launch.commands[0] if w.startswith("--owner=")]
            checkpoint.save(paths.checkpoints, 3, STATE, owner.partition("=")[2])
            path_of(paths.ranks, 0).write_bytes(ROWS)
            paths.log.touch()
            if isinstance(end, Ended):
                return end
            error = {"kind": end, "type": "SomeError", "message": "why"}
            (paths.ranks / "rank0.error.json").write_text(json.dumps(error))
            return replace(KILLED, exit_codes=[1])

        monkeypatch.setattr(cli, "follow", follow)
        file = tmp_path / "spec.json"
        file.write_text(spec.to_json())
        parser = argparse.ArgumentParser()
        ALL["train"].add_arguments(parser)
        words = ["--spec", str(file), "--tokens", str(tokens), "--out", str(tmp_path)]
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


def test_a_killed_run_is_started_again_from_its_checkpoint(stage, tmp_path, capsys) -> None:
    told = stage(ONE, KILLED, "lost", KILLED)
    assert told == ["--resume-from=0", "--resume-from=3", "--resume-from=3"]
    record = read_record(tmp_path)
    assert record.status == "failed" and "killed by signal 9" in record.run["reason"]
    assert capsys.readouterr().err.count("it is started again") == 2
    assert (tmp_path / "log.txt").read_text().count("lost in attempt") == 2
    first, second = record.run["execution"]["interruptions"]
    assert "lost in attempt 1 of 3 (killed by signal 9" in first and "2 of 3 (SomeError" in second


@pytest.mark.parametrize("kind", ["failed", "unsupported", "oom"])
def test_a_run_that_says_why_it_failed_is_started_once(stage, tmp_path, kind) -> None:
    assert stage(ONE, kind) == ["--resume-from=0"]
    assert read_record(tmp_path).status == kind


def test_out_of_time_it_keeps_its_checkpoint_for_a_longer_limit(stage, tmp_path) -> None:
    out_of_time = replace(KILLED, exit_codes=[], timed_out=True)
    assert stage(ONE, out_of_time) == ["--resume-from=0"]
    assert read_record(tmp_path).status == "timeout"
    assert not (tmp_path / "ranks/launch").exists(), "a rank that is left leaves nothing"
    work = replace(ONE.workload, checkpoint_every=3)
    longer = replace(ONE, timeout_seconds=2 * ONE.timeout_seconds, workload=work)
    assert stage(longer, out_of_time) == ["--resume-from=3"]
    assert stage(replace(longer, seed=1), out_of_time) == ["--resume-from=0"]


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


def test_a_start_that_was_overtaken_is_no_attempt(stage, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cli, "_see_all_ranks", lambda paths, *rest: fence.claim(paths.ranks))
    with pytest.raises(LostError, match="a later start of this run took over"):
        stage(ONE, KILLED)
    assert not (tmp_path / "run.json").exists()


def test_no_record_is_made_of_tokens_that_changed_meanwhile(
    stage, small_tokens, tmp_path, monkeypatch
) -> None:
    tokens = tmp_path / "tokens"
    shutil.copytree(small_tokens, tokens)
    monkeypatch.setattr(cli, "_see_all_ranks", lambda *given: turn_a_bit(tokens))
    with pytest.raises(CorpusError, match=r"changed while it trained, no record: .*SHA-256"):
        stage(ONE, KILLED, tokens=tokens)
    assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "run.json").exists()


def turn_a_bit(tokens: Path) -> None:
    shard = next(tokens.glob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[0] ^= 1
    shard.write_bytes(content)


def test_a_clock_that_is_set_back_leaves_a_run_its_duration() -> None:
    begun, ended = (datetime.fromisoformat(text) for text in cli._times(time.monotonic() - 90))
    assert 89 <= (ended - begun).total_seconds() <= 91


@pytest.mark.parametrize(
    ("code", "name"), [(1, "rank1.error.json"), (0, "rank1.json")], ids=["a reason", "its part"]
)
def test_what_another_node_wrote_may_show_late(paths, monkeypatch, code, name) -> None:
    (paths.ranks / "rank0.json").touch()
    looks = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            (paths.ranks / name).touch()

    monkeypatch.setattr("time.sleep", look)
    ended = Ended([code], False, "", "")
    cli._see_all_ranks(paths, LAYOUT, ended, Place(1, 1, scheduler=("srun",)))
    assert len(looks) == 3
    (paths.ranks / name).unlink()
    cli._see_all_ranks(paths, LAYOUT, ended, Place(1, 1))
    assert len(looks) == 3, "on one machine all is seen at once"


def test_a_run_that_stalled_is_kept_and_told(small_tokens, tmp_path, monkeypatch, capsys) -> None:
    """One line, and the same line in the record, whose status stays `ok`."""
    runs = expand(Study.of(make_study(cluster=EMULATED)))
    spec = next(run for run in runs if run.world.nodes == 1)
    fake = make_record(spec).run
    (rank, *_), emulation = fake["ranks"], fake["execution"]["emulation"]
    about = {
        "rank": rank | {"tcp": {"RetransSegs": 9, "TCPTimeouts": 7}},
        "precision": fake["precision"],
        "model": fake["model"],
        "versions": fake["versions"],
        "host": "here",
        "as_root": False,
        "image_digest": None,
        "resumed_from_step": 0,
        "settings": {},
    }

    rows = b"".join(packed(step(n, spec)) for n in range(spec.workload.steps))

    def follow(spec: RunSpec, launch: Launch, paths: RunPaths) -> Ended:
        path_of(paths.ranks, 0).write_bytes(rows)
        (paths.ranks / "rank0.json").write_text(json.dumps(about))
        (paths.ranks / "emulation.json").write_text(json.dumps(emulation))
        return Ended([0], False, NOW, LATER)

    monkeypatch.setattr(cli, "follow", follow)
    (tmp_path / "spec.json").write_text(spec.to_json())
    parser = argparse.ArgumentParser()
    ALL["train"].add_arguments(parser)
    words = [f"--spec={tmp_path}/spec.json", f"--tokens={small_tokens}", f"--out={tmp_path}"]
    assert ALL["train"].run(parser.parse_args(words)) == 0
    record = read_record(tmp_path)
    assert record.status == "ok"
    said = record.run["execution"]["emulation"]["stalled"]
    assert said == "node 0 had RetransSegs 9, TCPTimeouts 7"
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "stalled" in one]
    assert line == f"{spec.run_id}: warning: stalled, kept in the data: {said}"
