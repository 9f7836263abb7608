"""Annotations against a mesh and a model's shapes: what is refused, and in what words."""

from __future__ import annotations

import pytest

from pipeline.errors import StudyError
from pipeline.strategies.annotated.annotations import alike, mesh_axes, resolve, share

SHAPES = {
    "h.0.up.weight": (8, 4),
    "h.1.up.weight": (8, 4),
    "h.0": (None, 6, 4),
    "h.1": (None, 6, 4),
}
AXES = (("data", 2), ("model", 4))


def test_axes_are_in_one_order_whatever_the_file_s() -> None:
    """A spec is kept with sorted keys, so the order of a mapping may say nothing."""
    assert mesh_axes({"model": 2, "data": 0, "cut": 2}, 8) == (
        ("data", 2),
        ("cut", 2),
        ("model", 2),
    )
    assert mesh_axes({"model": 0}, 4) == (("data", 1), ("model", 4))


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"data": 2, "model": 2}, "data 2 x model 2 do not make 8 ranks; .* is data 4 x model 2"),
        ({"data": 0, "model": 3}, "data 0 x model 3 do not make 8 ranks; .* is data 4 x model 2"),
        ({"model": 3, "rows": 5}, "data 1 x model 3 x rows 5 do not .* data 1 x model 2 x rows 4"),
        ({"data": 0, "model": 0}, "do not make 8 ranks; name at most 4, one of them of size 0"),
        ({"Model": 2}, "axis 'Model' of size 2 is none; name it by small letters"),
        ({"model": True}, "axis 'model' of size True is none"),
    ],
)
def test_axes_that_do_not_fit_name_their_factors(axes, said) -> None:
    with pytest.raises(StudyError, match=said):
        mesh_axes(axes, 8)


def test_patterns_find_their_tensors() -> None:
    found = resolve({"*.up.weight": ["model", None], "h.0": ["data", None, "model"]}, AXES, SHAPES)
    assert found == {
        "h.0.up.weight": ("model", None),
        "h.1.up.weight": ("model", None),
        "h.0": ("data", None, "model"),
    }
    assert share((8, 4), found["h.0.up.weight"], dict(AXES)) == 1 / 4


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"h.*.down.weight": ["model", None]}, "h.*.down.weight: no such tensor; the model has h"),
        ({"h.0.up.weight": ["tensor", None]}, "the axis 'tensor'; use one of data, model, or add"),
        ({"h.0.up.weight": ["model"]}, "has 1 dims, the tensor (8, 4) has 2; give an axis or null"),
        ({"h.0.up.weight": ["model", "model"]}, "uses an axis for two dims (model, model)"),
        ({"h.0.up.weight": "model"}, "annotation of h.0.up.weight is 'model'; give a list"),
        ({"h.0": ["data", "model", None]}, "does not divide dim 1 of h.0 (sequences, 6, 4)"),
        (
            {"h.0.up.weight": [None, "model"], "*.up.weight": ["model", None]},
            "contradicts an earlier one of h.0.up.weight ([model, null])",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line_with_names_and_the_fix(annotations, said) -> None:
    with pytest.raises(StudyError) as error:
        resolve(annotations, AXES, SHAPES)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_equal_blocks_are_one_line() -> None:
    found = alike({"h.0": ["partial"], "h.1": ["partial"], "h.0.ln": ["shard 0"], "h.1.ln": ["x"]})
    assert found == {"h.*": ["partial"], "h.0.ln": ["shard 0"], "h.1.ln": ["x"]}
