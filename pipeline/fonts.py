"""The fonts of figures and PDF, and what these show of a text that has a character without a glyph.

The fonts come with packages of the lock, so that pages are the same everywhere; what is installed
on a machine is never asked. matplotlib brings `DejaVu Sans`; one file of another package has
Chinese, Japanese and Korean. No package of the lock has all emoji, and none has every script.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

PLAIN, FAMILY = "DejaVu Sans", "Noto Sans CJK JP"
# Of these nothing is seen by itself: blanks, marks, format characters, the colours of a skin.
_UNSEEN = ("Cc", "Cf", "Me", "Mn", "Sk", "Zl", "Zp", "Zs")


def fallback() -> Path | None:
    """File of the font `FAMILY`, or None where it is not installed; its package is not imported."""
    return _file("notojp_matplotlib", "fonts/NotoSansCJKjp-Regular.otf")


def files() -> list[Path]:
    """All font files at hand, in the order in which they are asked for a character."""
    plain = _file("matplotlib", "mpl-data/fonts/ttf/DejaVuSans.ttf")
    return [path for path in (plain, fallback()) if path is not None]


def printed(text: str) -> str:
    """`text` as figures, PDF and LaTeX show it, without a character that would be a box.

    What has no glyph becomes letters that mean the same, or else its name in parentheses.
    """
    if text.isascii():
        return text
    shown = []
    for has_glyphs, characters in groupby(text, _has_glyph):
        run = "".join(characters)
        alike = unicodedata.normalize("NFKC", run)
        if has_glyphs:
            shown.append(run)
        elif run.isspace():
            shown.append(" ")
        elif all(map(_has_glyph, alike)):
            shown.append(alike)
        elif words := [name for name in map(_name, run) if name]:
            shown.append(f"({', '.join(words)})")
    return "".join(shown)


def _name(character: str) -> str:
    """Name of a symbol, number of any other character; '' where nothing is seen."""
    category = unicodedata.category(character)
    if category in _UNSEEN:
        return ""
    number = f"U+{ord(character):04X}"
    return unicodedata.name(character, number).lower() if category[0] == "S" else number


def _has_glyph(character: str) -> bool:
    return character.isascii() or any(ord(character) in _characters(path) for path in files())


@cache
def _file(package: str, name: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / name
    return path if path.is_file() else None


@cache
def _characters(path: Path) -> frozenset[int]:
    from fontTools.ttLib import TTFont  # type: ignore[import-untyped]

    with TTFont(path, lazy=True) as font:
        return frozenset(font.getBestCmap())
