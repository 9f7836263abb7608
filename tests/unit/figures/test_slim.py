"""The lighter SVG: the same things at the same places, in fewer letters."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import numpy as np
import pytest

from pipeline.figures import theme
from pipeline.figures.slim import slim

USE = "{http://www.w3.org/2000/svg}use"
HREF = "{http://www.w3.org/1999/xlink}href"
LABEL = """a <g style="x"> & "b" --> 'c' translate(1.23456 0) \x07 \ufffe"""


@pytest.fixture(scope="module")
def drawn() -> str:
    """As matplotlib writes it: dots with an opacity of their own and of their colour, and words."""
    theme.apply()
    figure, axes = plt.subplots()
    spread = np.linspace(0.1, 0.9, 40)
    axes.scatter(spread, spread**2, color="#0072B2", alpha=0.5)
    axes.plot(spread, spread**3, marker="s", label=LABEL)
    axes.legend()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()


def parsed(drawing: str) -> ET.Element:
    return ET.fromstring(re.sub("<!--.*?-->", "", drawing, flags=re.DOTALL))


def places(drawing: str) -> list[tuple[float, float]]:
    """Where letters and dots stand, whether moved there or placed there."""
    found = []
    for use in parsed(drawing).iter(USE):
        moved = re.findall(r"translate\(([-.\d]+) ([-.\d]+)\)", use.get("transform", ""))
        x, y = moved[0] if moved else (use.get("x", "0"), use.get("y", "0"))
        found.append((float(x), float(y)))
    return found


def test_it_is_lighter_and_stays_as_it_is(drawn: str) -> None:
    light = slim(drawn)
    assert len(light) < 0.7 * len(drawn)
    assert slim(drawn) == light and slim(light) == light
    assert "Matplotlib" not in light


def test_letters_and_dots_stand_where_they_stood(drawn: str) -> None:
    before, after = places(drawn), places(slim(drawn))
    assert len(before) > 100
    np.testing.assert_allclose(after, before, atol=0.0051)


def test_every_name_leads_to_the_same_shape(drawn: str) -> None:
    def shapes(drawing: str) -> list[int]:
        root = parsed(drawing)
        known = {one.get("id"): one for one in root.iter() if one.get("id")}
        return [len(known[use.get(HREF, "")[1:]].get("d", "").split()) for use in root.iter(USE)]

    assert shapes(slim(drawn)) == shapes(drawn)


def test_a_group_says_the_style_of_its_dots_but_no_opacity() -> None:
    head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    dots = '<use xlink:href="#a" style="{0}"/>' * 2
    for style, shared in (("fill: #fff; fill-opacity: 0.4", True), ("opacity: 0.4", False)):
        [group] = ET.fromstring(slim(f"{head}<g>{dots.format(style)}</g></svg>"))
        assert (group.get("style") == style) is shared
        assert [dot.get("style") for dot in group] == [None if shared else style] * 2


def test_scales_are_kept_and_places_rounded() -> None:
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="1.23456pt">'
    light = slim(f'{head}<g transform="translate(1.23456 -0.001) scale(0.015625)"/></svg>')
    assert 'width="1.23456pt"' in light
    assert 'transform="translate(1.23 0) scale(0.015625)"' in light
