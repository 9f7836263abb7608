"""Checkpoints: whole, checked by their hashes, and only for the training that wrote them."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file

from pipeline.errors import SamestepError
from pipeline.parallel.types import TrainState
from pipeline.training import checkpoint

OWNER = checkpoint.key("training", "tokens", "network")

STATE = TrainState(
    weights={"w": torch.arange(6.0).view(2, 3).t()},
    optimiser={"w.exp_avg": torch.ones(3, 2), "w.step": torch.tensor(4.0)},
    scalars={"scale": 2.0},
)


def test_a_state_survives_the_disk(tmp_path) -> None:
    checkpoint.save(tmp_path, 4, STATE, "abc")
    assert checkpoint.fault(tmp_path, 4, "abc") is None
    again = checkpoint.load(tmp_path, 4)
    assert torch.equal(again.weights["w"], STATE.weights["w"])
    assert again.optimiser.keys() == STATE.optimiser.keys()
    assert again.scalars == STATE.scalars


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
    "a bit of the weights": lambda folder: flip(folder / checkpoint.WEIGHTS),
    "a bit of the moments": lambda folder: flip(folder / checkpoint.OPTIMISER),
    "cut": lambda folder: os.truncate(folder / checkpoint.WEIGHTS, 40),
    "empty": lambda folder: os.truncate(folder / checkpoint.OPTIMISER, 0),
    "gone": lambda folder: (folder / checkpoint.WEIGHTS).unlink(),
    "other shapes": lambda folder: save_file({"w": torch.ones(2)}, folder / checkpoint.WEIGHTS),
    "a foreign file": lambda folder: (folder / checkpoint.WEIGHTS).write_text("hello"),
    "numbers cut": lambda folder: os.truncate(folder / checkpoint.ABOUT, 30),
    "numbers changed": lambda folder: edit(folder, scalars={"scale": 4.0}),
    "not a folder": lambda folder: replaced(folder),
}


def replaced(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("hello")


def edit(folder: Path, **changes: object) -> None:
    about = json.loads((folder / checkpoint.ABOUT).read_text())
    (folder / checkpoint.ABOUT).write_text(json.dumps(about | changes))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damage_is_found_before_a_checkpoint_is_used(tmp_path, damage) -> None:
    for step in (4, 8):
        checkpoint.save(tmp_path, step, STATE, OWNER)
    damage(tmp_path / "step-00000008")
    said = checkpoint.fault(tmp_path, 8, OWNER)
    assert said is not None and ("damaged" in said or "missing" in said)
    assert checkpoint.fault(tmp_path, 4, OWNER) is None
    checkpoint.drop(tmp_path, 8)
    assert checkpoint.steps(tmp_path) == [4]


def test_one_of_an_earlier_version_cannot_be_checked(tmp_path) -> None:
    checkpoint.save(tmp_path, 4, STATE, OWNER)
    about = {"step": 4, "scalars": {}, "owner": "training:tokens"}
    (tmp_path / "step-00000004" / checkpoint.ABOUT).write_text(json.dumps(about))
    assert "of an earlier version" in str(checkpoint.fault(tmp_path, 4, OWNER))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (("other", "tokens", "network"), "of another training or other tokens"),
        (("training", "other", "network"), "of another training or other tokens"),
        (("training", "tokens", "other"), "made on network and this start has other"),
    ],
)
def test_it_is_for_its_own_training_tokens_and_network(tmp_path, other, said) -> None:
    checkpoint.save(tmp_path, 4, STATE, OWNER)
    assert said in str(checkpoint.fault(tmp_path, 4, checkpoint.key(*other)))


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch) -> None:
    final, sent = tmp_path / "step-00000004", []
    monkeypatch.setattr(
        checkpoint, "to_disk", lambda path: sent.append((path.name, final.exists()))
    )
    checkpoint.save(tmp_path, 4, STATE, "abc")
    names = ["optimiser.safetensors", "state.json", "weights.safetensors"]
    assert sorted(sent) == [(name, False) for name in names]
    assert sorted(path.name for path in final.iterdir()) == names


def test_nothing_half_written_stays_when_the_disk_refuses(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", refuse)
    with pytest.raises(SamestepError, match="No space left"):
        checkpoint.save(tmp_path, 4, STATE, "abc")
    assert list(tmp_path.iterdir()) == []


def test_a_longer_run_of_another_spec_does_not_push_out_the_new_one(tmp_path) -> None:
    checkpoint.save(tmp_path, 3000, STATE, "old")
    checkpoint.save(tmp_path, 900, STATE, "old")
    (tmp_path / ".step-00000500.77.tmp").mkdir()
    (tmp_path / "step-of-somebody").write_text("hello")
    checkpoint.save(tmp_path, 1000, STATE, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["step-00001000"]
    assert checkpoint.fault(tmp_path, 1000, "new") is None


def test_where_there_is_no_folder_there_is_no_checkpoint(tmp_path) -> None:
    assert checkpoint.steps(tmp_path / "none") == []
