import json

import pytest

from pipeline.reference.devices import DEVICES, datasheet_peak
from pipeline.schemas import first_error


@pytest.mark.parametrize(
    ("name", "dtype", "teraflops"),
    [
        ("Tesla V100-SXM2-32GB", "float16", 125),
        ("Tesla V100-PCIE-16GB", "float32", 14),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H200", "bfloat16", 989),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(name, dtype, teraflops) -> None:
    found = datasheet_peak(name, dtype)
    assert found is not None and found.flops_per_second == pytest.approx(1e12 * teraflops)
    assert "https://" in found.source


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Tesla V100-SXM2-32GB", "bfloat16"),  # Volta has no such units
        ("NVIDIA H100 PCIe", "float16"),
        ("NVIDIA H200 NVL", "float16"),
        ("Intel(R) Xeon(R) Processor", "float32"),
    ],
)
def test_what_no_source_gives_has_no_peak(name: str, dtype: str) -> None:
    assert datasheet_peak(name, dtype) is None


def test_the_file_fits_its_schema_and_every_peak_names_a_document() -> None:
    content = json.loads(DEVICES.read_text(encoding="utf-8"))
    assert first_error(content, "devices") is None
    named = {peak["document"] for device in content["devices"] for peak in device["peaks"]}
    assert named <= content["documents"].keys()
