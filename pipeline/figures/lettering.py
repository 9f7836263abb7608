"""The words of a drawing: outlines for browsers, which need no font, and text for the PDF.

matplotlib draws every letter as a path, and says the words in no form that can be read back. So the
SVG keeps them beside the outlines (`keep`), and the paper has them set as text (`as_text`): a font
is embedded once where each outline would be drawn anew, and the figures of a PDF can be searched.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from matplotlib.figure import Figure
from matplotlib.text import Text

from pipeline.figures.slim import HREF, SVG, written
from pipeline.fonts import FAMILY, PLAIN

_GROUP, _TEXT, _DEFS = f"{{{SVG}}}g", f"{{{SVG}}}text", f"{{{SVG}}}defs"
_WORDS = "data-words"
_GID = "words"
# The text of a drawing may hold what no XML may.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]+")
# Outlines are drawn upwards at 100 units an em (`matplotlib.textpath.TextToPath.FONT_SCALE`).
_UPWARDS = re.compile(r"scale\((?P<x>[-.\d]+) -(?P<y>[.\d]+)\)")
_EM = "100"


def name(figure: Figure) -> None:
    """Give every text of a figure a name in its SVG."""
    for number, text in enumerate(_texts(figure)):
        text.set_gid(f"{_GID}{number}")


def words(figure: Figure) -> dict[str, str]:
    """The words of a figure by their names; once it is drawn, which may move the ticks."""
    return {str(text.get_gid()): text.get_text() for text in _texts(figure) if text.get_gid()}


def _texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text)]


def keep(drawing: str, named: dict[str, str]) -> str:
    """`drawing`, an SVG of a figure, with the words of each line beside its outlines."""
    root = ET.fromstring(drawing)  # noqa: S314 (a stage of the pipeline wrote it)
    for group in root.iter(_GROUP):
        words = named.get(group.get("id", ""))
        outlines = group.findall(_GROUP)
        if words is not None and len(outlines) == 1 + words.count("\n"):
            for outline, line in zip(outlines, words.split("\n"), strict=True):
                outline.set(_WORDS, _CONTROLS.sub("", line))
    return written(root)


def as_text(drawing: str) -> str:
    """The same drawing with words in place of their outlines; one that keeps none is returned."""
    if _WORDS not in drawing:
        return drawing
    root = ET.fromstring(drawing)  # noqa: S314 (a stage of the pipeline wrote it)
    shared = ET.Element(_DEFS)
    for group in list(root.iter(_GROUP)):
        if (words := group.attrib.pop(_WORDS, None)) is None:
            continue
        style, place = group.get("style", ""), group.get("transform", "")
        # What an outline defines, a text that kept no words may use too.
        shared.extend(one for defs in group.findall(_DEFS) for one in defs)
        group.clear()
        text = ET.SubElement(group, _TEXT, {
            "style": style, "transform": _UPWARDS.sub(r"scale(\g<x> \g<y>)", place),
            "font-family": f"'{PLAIN}', '{FAMILY}'", "font-size": _EM,
        })  # fmt: skip
        text.text = words
    used = {one.get(HREF, "")[1:] for one in root.iter(f"{{{SVG}}}use")}
    kept = [one for one in shared if one.get("id") in used]
    shared[:] = kept
    if kept:
        root.insert(0, shared)
    return written(root)
