"""Published figures and data sheets: each number with its source, and what does not fit."""

import json
from typing import Any

import pytest

from pipeline import reference
from pipeline.errors import ClaimError
from pipeline.reference import parse
from pipeline.reference.devices import DEVICES, datasheet_peak


def small() -> dict[str, Any]:
    """A file of one number and one table."""
    source = {"document": "paper", "place": "table 1"}
    return {
        "schema_version": 1,
        "id": "small",
        "title": "A study",
        "documents": {"paper": {"title": "The paper", "where": "arXiv 1234.56789"}},
        "numbers": [
            {"id": "step", "what": "step time", "value": 2.5, "unit": "s", "read": "table",
             "source": source, "setting": {"device": "GPU"}},
        ],
        "tables": [
            {"id": "many", "what": "step times", "read": "text", "source": source,
             "setting": {"device": "GPU"},
             "columns": [{"name": "mesh", "unit": "text"}, {"name": "step", "unit": "s"}],
             "rows": [["4x4", 1.5]]},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("study", "cell", "value", "place"),
    [
        ("bai2022", "step-dps-fp32-b2", 0.193, "Appendix of the paper, figure 17"),
        ("ptdp2021", "weak-scaling/10/share_of_peak", 52, "table 1, row 10"),
        ("gspmd2021", "dense-16b/2/step", 3.43, "table 3, row 2"),
        ("ptdp2021", "weak/1/throughput", None, "have no table 'weak'"),
        ("ptdp2021", "weak-scaling/11/throughput", None, "use a row from 1 to 10"),
        ("ptdp2021", "weak-scaling/0/throughput", None, "use a row from 1 to 10"),
        ("ptdp2021", "weak-scaling/1/speed", None, "one of the columns parameters, heads"),
        ("ptdp2021", "against-zero-3/1/scheme", None, "is a word; name a number"),
    ],
)
def test_a_cell_of_a_table_is_a_number(study: str, cell: str, value: float, place: str) -> None:
    if value is None:
        with pytest.raises(ClaimError, match=place):
            reference.load(study).number(cell)
        return
    number = reference.load(study).number(cell)
    assert number.value == value and number.source.endswith(place)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("extra",), 1, "extra"),
        (("numbers", 0, "unit"), "furlongs", "furlongs"),
        (("numbers", 0, "source", "document"), "blog", "names the document 'blog'"),
        (("tables", 0, "id"), "step", "'step' stands twice"),
        (("tables", 0, "rows", 0), ["4x4"], r"row 0 of many is \['4x4'\]; expected 2 values"),
        (("tables", 0, "rows", 0), [4, 1.5], "words only in columns of unit text"),
    ],
)
def test_what_does_not_fit_is_named(path: tuple[Any, ...], value: object, message: str) -> None:
    broken: Any = small()
    *most, last = path
    place = broken
    for key in most:
        place = place[key]
    place[last] = value
    with pytest.raises(ClaimError, match=message):
        parse(json.dumps(broken), "here")


def test_the_small_file_itself_is_sound_and_text_that_is_none_one_line() -> None:
    assert parse(json.dumps(small()), "here").number("step").source == "The paper, table 1"
    with pytest.raises(ClaimError, match="here is not JSON"):
        parse("{", "here")


@pytest.mark.parametrize(
    ("name", "dtype", "teraflops"),
    [
        ("Tesla V100-SXM2-32GB", "float16", 125),
        ("Tesla V100-PCIE-16GB", "float32", 14),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H200", "bfloat16", 989),
        ("Tesla V100-SXM2-32GB", "bfloat16", None),  # Volta has no such units
        ("NVIDIA H100 PCIe", "float16", None),
        ("Intel(R) Xeon(R) Processor", "float32", None),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(name, dtype, teraflops) -> None:
    found = datasheet_peak(name, dtype)
    if teraflops is None:
        assert found is None
        return
    assert found is not None and found.flops_per_second == pytest.approx(1e12 * teraflops)
    assert "https://" in found.source


def test_every_peak_of_the_file_names_a_document() -> None:
    content = json.loads(DEVICES.read_text(encoding="utf-8"))
    named = {peak["document"] for device in content["devices"] for peak in device["peaks"]}
    assert named <= content["documents"].keys()
