"""Layouts of the published sizes: shapes, memory by hand, and every strategy among them."""

from __future__ import annotations

import pytest

from pipeline import strategies
from pipeline.__main__ import main
from pipeline.errors import StudyError
from pipeline.models import num_parameters
from pipeline.planner.sizes import layouts, sizes, world_of

SIZES = {one.id: one for one in sizes()}


def test_the_sizes_have_the_parameters_that_they_are_named_after() -> None:
    counts = {name: num_parameters(one.model) for name, one in SIZES.items()}
    assert counts["124M"] == 124_439_808  # as of the released model
    named = {"355M": 355e6, "774M": 774e6, "1.5B": 1.558e9, "6.7B": 6.66e9, "13B": 12.85e9}
    for name, expected in (named | {"175B": 174.6e9}).items():
        assert counts[name] == pytest.approx(expected, rel=1e-3)
    assert next(iter(SIZES)) == "124M" and all("http" in one.source for one in SIZES.values())


def test_the_parts_of_a_rank_are_those_by_hand() -> None:
    """124,439,808 parameters, on eight GPUs in fp32: 8 bytes of AdamW for each, sharded or not."""
    count = 124_439_808
    found = {one.name: one for one in layouts(SIZES["124M"], 8, "fp32")}
    whole, sharded = found["ddp"].plan.memory, found["sharded"].plan.memory
    assert (whole.parameters, whole.gradients, whole.optimiser) == (4 * count, 4 * count, 8 * count)
    assert (sharded.gradients, sharded.optimiser) == (count // 2, count)
    assert whole.activations == sharded.activations
    tensor = found["tensor ranks=4"]
    assert tensor.axes == (("data", 2), ("tensor", 4)) and tensor.mesh == "data 2 x tensor 4"
    # 12 of 16 values of a block are parts: of one sequence, as with every other layout
    assert tensor.plan.memory.activations == int((4 + 12 / 4) / 16 * whole.activations)


def test_every_strategy_is_among_them_and_what_cannot_be_laid_out_is_not() -> None:
    found = layouts(SIZES["1.5B"], 8, "fp32")
    assert {one.strategy for one in found} == {*strategies.names()} - {"tensor"}  # 25 heads
    assert [one.mesh for one in found if one.strategy == "single"] == ["data 1"]
    assert not any(one.strategy == "sharded" for one in layouts(SIZES["124M"], 8, "amp_o2"))


def test_a_strategy_that_refuses_the_model_on_all_devices_is_not_planned_on_one() -> None:
    found = layouts(SIZES["124M"], 64, "fp32")  # 12 layers
    assert not [one.mesh for one in found if one.name == "pipeline_parallel"]
    assert {one.strategy for one in found if one.plan.spec.world.size == 1} == {"single"}


def test_the_largest_is_tried_with_tensor_axes_of_a_node_and_long_pipelines() -> None:
    found = {one.mesh: one.plan.memory for one in layouts(SIZES["175B"], 64, "bf16")}
    deep = found["pipeline 8 x data 1 x tensor 8"]
    assert deep.peak < min(m.peak for mesh, m in found.items() if "tensor 8" not in mesh)


@pytest.mark.parametrize(("devices", "nodes"), [(1, 1), (6, 1), (8, 1), (64, 8)])
def test_devices_fill_their_nodes(devices: int, nodes: int) -> None:
    assert (world_of(devices).nodes, world_of(devices).size) == (nodes, devices)


@pytest.mark.parametrize("devices", [-1, 0, 12, 2048])
def test_other_numbers_of_devices_are_refused(devices: int) -> None:
    with pytest.raises(StudyError, match=f"{devices} devices are not 1 to 8 or a multiple"):
        world_of(devices)


def test_the_command_shows_every_size_and_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model-sizes", "--device", "a100-80"]) == 0
    said = capsys.readouterr().out
    assert all(f"GPT {name} (" in said for name in SIZES)
    assert "does not fit" in said and "fits" in said
    assert "Within 10 % of 80 GiB is tight." in said
    assert main(["plan", "--model-sizes", "--devices", "12"]) == 2
