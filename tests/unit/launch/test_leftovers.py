"""What an earlier start left: a good checkpoint is resumed from, all else goes."""

import json
from pathlib import Path

import pytest
import torch

from pipeline import strategies
from pipeline.launch.leftovers import clear
from pipeline.launch.torchrun import RunPaths
from pipeline.training import checkpoint
from tests.parity.cases import Case
from tests.shards import shards_of

LAYOUT = strategies.load("ddp", {}).layout(Case("ddp").spec(2).world)
STATE = shards_of({"weights/w": torch.ones(2), "optimiser/w/exp_avg": torch.ones(2)})
OURS = checkpoint.key("training", "tokens", "the loopback network")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run of two ranks with checkpoints of steps 2 and 3, and the lines of 4 steps."""
    made = RunPaths(tmp_path / "spec.json", tmp_path / "tokens", tmp_path)
    made.ranks.mkdir()
    for step in (2, 3):
        checkpoint.save(made.checkpoints, step, STATE, OURS)
    leave_steps(made, 4, 4)
    return made


def leave_steps(paths: RunPaths, *counts: int, after: str = "") -> None:
    for rank, count in enumerate(counts):
        lines = [json.dumps({"step": step, "rank": rank}) + "\n" for step in range(count)]
        (paths.ranks / f"rank{rank}.jsonl").write_text("".join(lines) + after)


def test_the_newest_checkpoint_with_the_lines_of_its_steps_is_resumed_from(paths) -> None:
    assert clear(LAYOUT, paths, OURS) == (3, [])
    assert (paths.ranks / "rank0.jsonl").is_file() and paths.checkpoints.is_dir()


@pytest.mark.parametrize("after", ["", '{"step": 2', "\0\0\n", '{"step": 9, "rank": 1}\n', "[]\n"])
def test_one_that_is_ahead_of_its_steps_falls_back_to_the_one_before(paths, after) -> None:
    """The lines end, are cut off, are damaged, or are of another step."""
    leave_steps(paths, 4, 2, after=after)
    done, said = clear(LAYOUT, paths, OURS)
    assert done == 2
    assert said == ["the checkpoint of step 3 is not used: rank1.jsonl ends at step 2"]
    assert [path.name for path in paths.checkpoints.iterdir()] == ["step-00000002"]


def test_where_none_is_good_the_run_starts_anew_and_says_so(paths) -> None:
    leave_steps(paths, 4)
    (paths.ranks / "rank1.jsonl").unlink()
    done, said = clear(LAYOUT, paths, OURS)
    assert (done, len(said)) == (0, 3)
    assert said[0].endswith("rank1.jsonl ends at step 0")
    assert said[2] == "no good checkpoint is left, the run starts anew"
    assert not paths.checkpoints.exists() and not list(paths.ranks.iterdir())


@pytest.mark.parametrize(
    ("owner", "why"),
    [
        (checkpoint.key("another", "tokens", "the loopback network"), "of another training"),
        (
            checkpoint.key("training", "tokens", "emulated nodes"),
            "made on the loopback network and this start has emulated nodes",
        ),
    ],
)
def test_another_run_s_checkpoints_are_dropped(paths, owner, why) -> None:
    done, said = clear(LAYOUT, paths, owner)
    assert done == 0 and why in said[0]
    assert not paths.checkpoints.exists()


def test_what_is_left_beside_a_checkpoint_and_its_steps_is_dropped(paths) -> None:
    """Of a killed attempt: measurements, folders of copies, errors, half-written files."""
    (paths.ranks / "copy1").mkdir()
    for name in ("copy1/rank0.jsonl", "emulation.json", "rank0.error.json", "rank1.json"):
        (paths.ranks / name).write_text("old")
    (paths.ranks / ".rank0.jsonl.77.tmp.jsonl").write_text("half")
    (paths.out / ".run.json.77.tmp.json").write_text("half")
    assert clear(LAYOUT, paths, OURS)[0] == 3
    assert sorted(path.name for path in paths.ranks.iterdir()) == ["rank0.jsonl", "rank1.jsonl"]
    assert sorted(path.name for path in paths.out.iterdir()) == ["checkpoints", "ranks"]
