"""What is known of a run before its nodes are built."""

import os
from argparse import Namespace
from dataclasses import replace

import pytest

from pipeline.errors import MissingError
from pipeline.launch.emulated import build
from pipeline.resolved import resolve
from pipeline.strategies.ddp import Ddp
from pipeline.study.link import LinkSpec
from tests.parity.cases import Case


def test_a_missing_package_is_the_reason_however_busy_the_machine_is(monkeypatch) -> None:
    def missing(self: Ddp) -> None:
        raise MissingError("package so_and_so is not installed")

    def too_late() -> None:
        pytest.fail("a network was entered first")

    monkeypatch.setattr(Ddp, "check", missing)
    monkeypatch.setattr(build, "enter_private_network", too_late)
    spec = Case("ddp").spec(2)
    link = LinkSpec("gigabit", 1000)
    world = replace(spec.world, network="emulated", link=link, cores_per_node=1, dilated_for=2)
    with pytest.raises(MissingError, match="so_and_so"):
        build._run(resolve(replace(spec, world=world)), Namespace(yardstick=None), os.getpid())
