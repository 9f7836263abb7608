"""A lighter SVG that looks the same: matplotlib writes six decimals and the style of every dot.

A hundredth of a point is far below what a screen or a printer shows.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
HREF = f"{{{_LINK}}}href"
_COMMENT = re.compile("<!--.*?-->", re.DOTALL)
_LONG = re.compile(r"-?\d+\.\d{3,}")
_MOVED = re.compile(r"translate\([^()]*\)")
_ONLY_MOVED = re.compile(r"translate\((?P<x>[-.\d]+) (?P<y>[-.\d]+)\)")
_PLACES = ("d", "x", "y", "width", "height", "points")


def slim(drawing: str) -> str:
    """The same drawing in fewer letters; equal drawings give equal texts."""
    # The text of a label stands in a comment, and may hold what no XML may.
    root = ET.fromstring(_COMMENT.sub("", drawing))  # noqa: S314 (matplotlib just wrote it)
    for about in root.findall(f"{{{SVG}}}metadata"):
        root.remove(about)
    names = {path.get("id", ""): f"u{place}" for place, path in enumerate(_named(root))}
    for path in list(_named(root)):
        path.set("id", names[path.get("id", "")])
    for one in root.iter():
        one.text, one.tail = _kept(one.text), _kept(one.tail)
        if one is not root:
            _round(one)
        if one.tag == f"{{{SVG}}}use":
            _shorten(one, names)
        elif one.tag == f"{{{SVG}}}g":
            _share_style(one)
    return written(root)


def written(root: ET.Element) -> str:
    """An SVG as the text of a file, without prefixes before its own elements."""
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", _LINK)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _named(root: ET.Element) -> Iterator[ET.Element]:
    """Letters and markers, which are drawn once and used again by their names."""
    for defined in root.iter(f"{{{SVG}}}defs"):
        yield from (path for path in defined.iterfind(f"{{{SVG}}}path") if path.get("id"))


def _kept(text: str | None) -> str | None:
    """What stands between two elements, where it is more than indentation."""
    return text if text and text.strip() else None


def _round(one: ET.Element) -> None:
    """Places to a hundredth; a scale is kept, as all below it is multiplied by it."""
    for key in _PLACES:
        if value := one.get(key):
            one.set(key, _LONG.sub(_short, " ".join(value.split())))
    if moved := one.get("transform"):
        one.set("transform", _MOVED.sub(lambda found: _LONG.sub(_short, found[0]), moved))


def _short(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _shorten(use: ET.Element, names: dict[str, str]) -> None:
    """A letter or marker by its short name, at a place instead of moved there."""
    name = use.get(HREF, "").removeprefix("#")
    use.set(HREF, f"#{names.get(name, name)}")
    moved = _ONLY_MOVED.fullmatch(use.get("transform", ""))
    if moved and not {"x", "y"} & set(use.keys()):
        del use.attrib["transform"]
        for key in ("x", "y"):
            if float(moved[key]):
                use.set(key, moved[key])


def _share_style(group: ET.Element) -> None:
    """The style of all dots of a group said once, by the group; an opacity is not inherited."""
    styles = {dot.get("style") for dot in group}
    if len(group) < 2 or len(styles) > 1 or group.get("style"):
        return
    [style] = styles
    own = [part.split(":")[0].strip() for part in (style or "").split(";")]
    if style and "opacity" not in own and all(dot.tag == f"{{{SVG}}}use" for dot in group):
        group.set("style", style)
        for dot in group:
            del dot.attrib["style"]
