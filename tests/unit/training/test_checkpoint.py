"""What ranks leave on disk: whole and hashed checkpoints, and the rows of their steps."""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import LaunchError, PeerError, SamestepError
from pipeline.parallel.types import Piece, Shards
from pipeline.records import Step
from pipeline.training import checkpoint, step_files
from pipeline.training.step_files import ROW, StepFile, path_of, read_steps, whole_steps
from tests.shards import shards_of

OWNER = checkpoint.key("training", "tokens", "network")

PART = "rank0.safetensors"

TENSORS = {"weights/w": torch.arange(6.0).view(3, 2), "optimiser/w/step": torch.tensor(4.0)}
STATE = shards_of(TENSORS, {"scale": 2.0})


def test_the_newest_two_are_kept(tmp_path) -> None:
    for step in (4, 8, 12):
        checkpoint.save(tmp_path, step, STATE, OWNER)
    assert checkpoint.steps(tmp_path) == [12, 8]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000008", "step-00000012"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit": lambda folder: flip(folder / PART),
    "gone": lambda folder: (folder / PART).unlink(),
    "another place of a piece": lambda folder: edit(folder, tensors={}),
    "numbers cut": lambda folder: os.truncate(folder / checkpoint.ABOUT, 30),
    "numbers changed": lambda folder: edit(folder, scalars={"scale": 4.0}),
    "of an earlier version": lambda folder: (folder / checkpoint.ABOUT).write_text(
        json.dumps({"step": 8, "scalars": {}, "owner": "training:tokens"})
    ),
}


def edit(folder: Path, **changes: object) -> None:
    about = json.loads((folder / checkpoint.ABOUT).read_text())
    (folder / checkpoint.ABOUT).write_text(json.dumps(about | changes))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damage_is_found_before_a_checkpoint_is_used(tmp_path, damage) -> None:
    for step in (4, 8):
        checkpoint.save(tmp_path, step, STATE, OWNER)
    damage(tmp_path / "step-00000008")
    fault = checkpoint.fault(tmp_path, 8, OWNER)
    assert fault is not None and ("damaged" in fault or "missing" in fault)
    assert checkpoint.fault(tmp_path, 4, OWNER) is None
    checkpoint.drop(tmp_path, 8)
    assert checkpoint.steps(tmp_path) == [4]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("training", "other", "network"), "of another training or other tokens"),
        (("training", "tokens", "other"), "made on network and this start has other"),
    ],
)
def test_it_is_for_its_own_training_tokens_and_network(tmp_path, other, message) -> None:
    checkpoint.save(tmp_path, 4, STATE, OWNER)
    assert message in str(checkpoint.fault(tmp_path, 4, checkpoint.key(*other)))


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch) -> None:
    final, sent = tmp_path / "step-00000004", []
    monkeypatch.setattr(
        checkpoint, "to_disk", lambda path: sent.append((path.name, final.exists()))
    )
    checkpoint.save(tmp_path, 4, STATE, "abc")
    names = [PART, "state.json"]
    assert sorted(sent) == [(name, False) for name in names]
    assert sorted(path.name for path in final.iterdir()) == names


RANKS = 4


def rows_of(rank: int) -> Shards:
    """A row of three each, and none for the last rank; the scalar is the root's."""
    rows = [Piece("weights/w", (3, 2), (rank, 0), torch.full((1, 2), float(rank)))]
    count = [Piece("optimiser/w/step", (), (), torch.tensor(4.0))] if rank == 0 else []
    return Shards([*(rows if rank < 3 else ()), *count], {"scale": 2.0})


def together(folder: Path, step: int, given: Callable[[int], Shards]) -> list[Exception | None]:
    """All ranks save, each in its thread; what each raised."""
    waiting, answers = threading.Barrier(RANKS, timeout=20), [True] * RANKS
    raised: list[Exception | None] = [None] * RANKS

    def work(rank: int) -> None:
        def agree(good: bool) -> bool:
            answers[rank] = good
            waiting.wait()
            all_good = all(answers)
            waiting.wait()
            return all_good

        try:
            checkpoint.save(folder, step, given(rank), OWNER, rank=rank, size=RANKS, agree=agree)
        except Exception as error:
            raised[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a rank waits for ever"
    return raised


@pytest.mark.parametrize("full", [(1,), (0,), (0, 2), (3,)])
def test_a_full_disk_of_some_ranks_is_one_error_and_leaves_nothing(
    tmp_path, monkeypatch, full
) -> None:
    together(tmp_path, 4, rows_of)
    real = checkpoint.write

    def write(folder: Path, rank: int, shards: Shards) -> None:
        real(folder, rank, shards)
        if rank in full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", write)
    raised = together(tmp_path, 8, rows_of)
    for rank, error in enumerate(raised):
        assert isinstance(error, SamestepError)
        assert isinstance(error, PeerError) == (rank not in full)
        assert ("No space left" in str(error)) == (rank in full)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


def test_pieces_that_do_not_make_up_their_tensor_are_no_checkpoint(tmp_path) -> None:
    root, *_ = together(tmp_path, 4, lambda rank: rows_of(min(rank, 1)))
    assert "wrote 8 numbers of weights/w of shape [3, 2]" in str(root)
    assert list(tmp_path.iterdir()) == []


def test_a_longer_run_of_another_spec_does_not_push_out_the_new_one(tmp_path) -> None:
    checkpoint.save(tmp_path, 3000, STATE, "old")
    checkpoint.save(tmp_path, 900, STATE, "old")
    (tmp_path / ".step-00000500.77.tmp").mkdir()
    (tmp_path / "step-of-somebody").write_text("hello")
    checkpoint.save(tmp_path, 1000, STATE, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["step-00001000"]
    assert checkpoint.fault(tmp_path, 1000, "new") is None


PHASES = {"forward": 0.1, "backward": 0.2, "rest": 1 / 3, "data": 0.0}


def made(step: int, rank: int = 0, **given: Any) -> Step:
    base = Step(step, rank, 0.1 + step / 3, 2**33, 1 / 7, 2.0 / 3, 3e-4, True, cpu_seconds=1 / 9)
    return replace(base, **given)


def leave(folder: Path, *written: Step) -> None:
    """These steps, on the disk, as their ranks write them."""
    for rank in sorted({step.rank for step in written}):
        with StepFile(folder, rank) as steps:
            for step in written:
                if step.rank == rank:
                    steps.write(step)
            steps.to_disk()


def test_steps_are_read_back_to_the_bit(tmp_path: Path) -> None:
    written = [made(0, timed=False), made(1, loss=None, grad_norm=None), made(2)]
    leave(tmp_path, *written, made(0, 1))
    assert read_steps(tmp_path) == [written[0], made(0, 1), *written[1:]]
    assert path_of(tmp_path, 0).stat().st_size == 3 * ROW.size


def test_a_profiled_run_has_its_phases_and_passes(tmp_path: Path) -> None:
    passes = [["forward", 0, 0, 0.25], ["backward", 0, 0, 0.5]]
    profiled: dict[str, Any] = {"phases": PHASES, "cpu_phases": PHASES, "passes": passes}
    written = [made(0, **profiled), made(1, **profiled, loss=None)]
    leave(tmp_path, *written)
    assert read_steps(tmp_path) == written
    profile = tmp_path / "rank0.profile.jsonl"
    profile.write_text(profile.read_text()[:-5])
    assert read_steps(tmp_path) == written[:1], "a line that a kill cut off"
    profile.write_text("{}]\n" * 2)
    assert read_steps(tmp_path) == []


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda rows: rows[:-1], 3),
        (lambda rows: rows + rows[:9], 4),
        (lambda rows: rows[: 2 * ROW.size] + bytes(2 * ROW.size), 2),
        (lambda rows: rows[: ROW.size] + rows[2 * ROW.size :], 1),
        (lambda rows: rows[:90] + bytes([rows[90] ^ 4]) + rows[91:], 1),
        (lambda rows: bytes(len(rows)), 0),
        (lambda rows: b"", 0),
    ],
    ids=["cut off", "in the making", "zeros", "a row is missing", "a bit", "all zeros", "empty"],
)
def test_steps_end_where_the_rows_are_damaged(tmp_path: Path, damage, left: int) -> None:
    leave(tmp_path, *map(made, range(4)))
    path = path_of(tmp_path, 0)
    path.write_bytes(damage(path.read_bytes()))
    assert [step.step for step in read_steps(tmp_path)] == list(range(left))
    assert whole_steps(tmp_path, 0, 9) == left
    assert whole_steps(tmp_path, 0, 1) == min(left, 1)


def test_rows_of_another_rank_are_none_of_ours(tmp_path: Path) -> None:
    leave(tmp_path, *(made(step, 1) for step in range(3)))
    path_of(tmp_path, 1).rename(path_of(tmp_path, 0))
    assert whole_steps(tmp_path, 0, 3) == 0 and read_steps(tmp_path) == []


def test_a_resume_cuts_back_to_the_checkpoint_or_is_refused(tmp_path: Path) -> None:
    leave(tmp_path, *map(made, range(4)))
    with path_of(tmp_path, 0).open("ab") as stream:
        stream.write(b"half of a row")
    with StepFile(tmp_path, 0, done=2) as steps:
        steps.write(made(2, loss=5.0))
    assert read_steps(tmp_path) == [made(0), made(1), made(2, loss=5.0)]
    with pytest.raises(LaunchError, match=r"rank0\.steps has 3 of the checkpoint's 4 steps"):
        StepFile(tmp_path, 0, done=4)
    with StepFile(tmp_path, 0) as steps:
        assert read_steps(tmp_path) == [], "a start anew keeps nothing"
        steps.to_disk()


def test_a_profiled_run_is_cut_back_too(tmp_path: Path) -> None:
    written = [made(n, phases=PHASES) for n in range(3)]
    leave(tmp_path, *written)
    assert all(step_files.is_one(path) for path in tmp_path.iterdir())
    with StepFile(tmp_path, 0, done=1) as steps:
        steps.write(made(1, phases=PHASES, loss=5.0))
    assert read_steps(tmp_path) == [written[0], made(1, phases=PHASES, loss=5.0)]


def test_a_rank_of_an_earlier_start_does_not_write_into_the_new_file(tmp_path: Path) -> None:
    with StepFile(tmp_path, 0) as old:
        old.write(made(0))
        with StepFile(tmp_path, 0, done=1) as new:
            old.write(made(1, loss=9.0))
            new.write(made(1))
    assert read_steps(tmp_path) == [made(0), made(1)]


def test_a_full_disk_at_the_index_stops_all_ranks(tmp_path, monkeypatch) -> None:
    def refuse(path: Path) -> None:
        if path.name == checkpoint.ABOUT:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "to_disk", refuse)
    root, *others = together(tmp_path, 4, rows_of)
    assert "No space left" in str(root)
    assert all(isinstance(error, PeerError) for error in others)
    assert list(tmp_path.iterdir()) == []
