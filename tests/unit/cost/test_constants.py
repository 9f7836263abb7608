"""Constants: held to their limits, and none derived from the points that it predicts."""

import re

import pytest

from pipeline.cost.constants import Constants, content
from pipeline.cost.points import predict_row
from pipeline.cost.score import points, source_of


def test_each_constant_has_a_source_and_is_held_to_what_is_physical() -> None:
    for kind in ("devices", "profiles"):
        for owner, entry in content()[kind].items():
            for name, constant in entry["constants"].items():
                low, high = constant["limits"]
                values = (constant["value"], *constant.get("without", {}).values())
                assert all(low <= value <= high for value in values), (owner, name)
                assert constant["source"] in ("data sheet", "measured", "assumed"), (owner, name)
                assert constant["from"] or constant["source"] != "measured", (owner, name)
                assert constant["unit"], (owner, name)


@pytest.mark.parametrize(
    ("hardware", "link"),
    [("A800-SXM4-80GB", 200), ("NVIDIA A100-SXM4-80GB", 300), ("A100-PCIE-40GB", 31.5),
     ("H800", 200), ("V100S-PCIE-32GB", 15.75), ("V100-32GB-DGX2", 150)],
)  # fmt: skip
def test_a_variant_of_a_device_states_what_differs(hardware, link) -> None:
    devices = content()["devices"]
    name = next(n for n in devices if re.search(devices[n]["pattern"], hardware))
    of = Constants().device(name)
    assert of["link_gb_s"] == link and set(of) == set(Constants().device("H100"))


def test_no_set_is_predicted_with_a_constant_derived_from_it() -> None:
    for source in {source_of(row) for row in points()}:
        constants = Constants(source)
        for row in points():
            if source_of(row) == source:
                predict_row(row, constants)
        assert source not in constants.used


def test_what_was_left_out_is_the_default_or_the_value_without() -> None:
    assert Constants().profile("nanotron")["overlap"] == 0
    out_of = Constants("nanotron_h100")
    assert out_of.profile("nanotron") == out_of.profile("other")
    own, out = (Constants(source).device("H100") for source in ("", "nanotron_h100"))
    assert own["network_share"] != out["network_share"] == 0.85
