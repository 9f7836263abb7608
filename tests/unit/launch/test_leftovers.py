"""What an earlier start left: a good checkpoint is resumed from, all else goes."""

from pathlib import Path

import pytest
import torch

from pipeline import strategies
from pipeline.launch.leftovers import clear
from pipeline.launch.torchrun import RunPaths
from pipeline.records import Step
from pipeline.training import checkpoint
from pipeline.training.step_files import packed, path_of
from tests.parity.cases import Case
from tests.shards import shards_of

LAYOUT = strategies.load("ddp", {}).layout(Case("ddp").spec(2).world)
STATE = shards_of({"weights/w": torch.ones(2), "optimiser/w/exp_avg": torch.ones(2)})
OURS = checkpoint.key("training", "tokens", "the loopback network")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run of two ranks with checkpoints of steps 2 and 3, and the rows of 4 steps."""
    made = RunPaths(tmp_path / "spec.json", tmp_path / "tokens", tmp_path)
    made.ranks.mkdir()
    for step in (2, 3):
        checkpoint.save(made.checkpoints, step, STATE, OURS)
    leave_steps(made, 4, 4)
    return made


def step_of(step: int, rank: int) -> Step:
    return Step(step, rank, 0.1, 8, 1.0, 1.0, 0.1, True)


def leave_steps(paths: RunPaths, *counts: int, after: bytes = b"") -> None:
    for rank, count in enumerate(counts):
        rows = [packed(step_of(step, rank)) for step in range(count)]
        path_of(paths.ranks, rank).write_bytes(b"".join(rows) + after)


def test_the_newest_checkpoint_with_the_rows_of_its_steps_is_resumed_from(paths) -> None:
    assert clear(LAYOUT, paths, OURS) == (3, [])
    assert path_of(paths.ranks, 0).is_file() and paths.checkpoints.is_dir()


@pytest.mark.parametrize(
    "after", [b"", packed(step_of(2, 1))[:9], bytes(99), packed(step_of(9, 1))]
)
def test_one_that_is_ahead_of_its_steps_falls_back_to_the_one_before(paths, after) -> None:
    """The rows end, are cut off, are zeros, or are of another step."""
    leave_steps(paths, 4, 2, after=after)
    done, said = clear(LAYOUT, paths, OURS)
    assert done == 2
    assert said == ["the checkpoint of step 3 is not used: rank1.steps ends at step 2"]
    assert [path.name for path in paths.checkpoints.iterdir()] == ["step-00000002"]


def test_where_none_is_good_the_run_starts_anew_and_says_so(paths) -> None:
    leave_steps(paths, 4)
    path_of(paths.ranks, 1).unlink()
    done, said = clear(LAYOUT, paths, OURS)
    assert (done, len(said)) == (0, 3)
    assert said[0].endswith("rank1.steps ends at step 0")
    assert said[2] == "no good checkpoint is left, the run starts anew"
    assert not paths.checkpoints.exists() and not list(paths.ranks.iterdir())


def test_what_is_left_beside_a_checkpoint_and_its_steps_is_dropped(paths) -> None:
    """Of a killed attempt: measurements, torchrun's folder, errors, half-written files."""
    (paths.ranks / "torchrun").mkdir()
    for name in ("torchrun/log", "emulation.json", "rank0.error.json", "rank1.json"):
        (paths.ranks / name).write_text("old")
    (paths.ranks / ".rank0.steps.77.tmp.steps").write_text("half")
    (paths.out / ".run.json.77.tmp.json").write_text("half")
    assert clear(LAYOUT, paths, OURS)[0] == 3
    assert sorted(path.name for path in paths.ranks.iterdir()) == ["rank0.steps", "rank1.steps"]
    assert sorted(path.name for path in paths.out.iterdir()) == ["checkpoints", "ranks"]
