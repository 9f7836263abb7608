"""Which GPU DeepSpeed takes, by a stand-in for the package."""

import os
import sys
from types import SimpleNamespace

from pipeline.strategies.deepspeed import step


def test_a_second_node_on_the_same_machine_takes_its_own_gpu(monkeypatch) -> None:
    deepspeed = SimpleNamespace(logger=SimpleNamespace(setLevel=lambda _: None))
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    monkeypatch.setitem(sys.modules, "deepspeed.comm.torch", SimpleNamespace())
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    step.load("cuda")
    assert os.environ["LOCAL_RANK"] == "1"
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    step.load("cpu")
    assert os.environ["LOCAL_RANK"] == "0"
