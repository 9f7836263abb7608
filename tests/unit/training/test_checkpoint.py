"""Checkpoints: whole or absent, and only for the spec that wrote them."""

import pytest
import safetensors.torch
import torch

from pipeline.errors import SamestepError
from pipeline.parallel.types import TrainState
from pipeline.training import checkpoint

STATE = TrainState(
    weights={"w": torch.arange(6.0).view(2, 3).t()},
    optimiser={"w.exp_avg": torch.ones(3, 2), "w.step": torch.tensor(4.0)},
    scalars={"scale": 2.0},
)


def test_a_state_survives_the_disk(tmp_path) -> None:
    checkpoint.save(tmp_path, 4, STATE, "abc")
    again = checkpoint.load(tmp_path, checkpoint.latest_step(tmp_path, "abc"))
    assert torch.equal(again.weights["w"], STATE.weights["w"])
    assert again.optimiser.keys() == STATE.optimiser.keys()
    assert again.scalars == STATE.scalars


def test_the_newest_is_kept_and_another_spec_starts_anew(tmp_path) -> None:
    checkpoint.save(tmp_path, 4, STATE, "abc")
    checkpoint.save(tmp_path, 8, STATE, "abc")
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000008"]
    assert checkpoint.latest_step(tmp_path, "abc") == 8
    assert checkpoint.latest_step(tmp_path, "other") == 0


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
    (tmp_path / ".step-00000500.77.tmp").mkdir()
    checkpoint.save(tmp_path, 1000, STATE, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["step-00001000"]
    assert checkpoint.latest_step(tmp_path, "new") == 1000


def test_other_tokens_are_another_owner() -> None:
    assert checkpoint.key("spec", "tokens") != checkpoint.key("spec", "other")


def test_no_checkpoint_means_step_zero(tmp_path) -> None:
    assert checkpoint.latest_step(tmp_path / "none", "abc") == 0
