"""The font of Chinese, Japanese and Korean characters, which no font of matplotlib or typst has.

It comes as one file in a package of the lock, so that pages are the same everywhere; what is
installed on a machine is never asked.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

FAMILY = "Noto Sans CJK JP"
_PACKAGE, _FILE = "notojp_matplotlib", "fonts/NotoSansCJKjp-Regular.otf"


def fallback() -> Path | None:
    """File of the font `FAMILY`, or None where it is not installed; its package is not imported."""
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / _FILE
    return path if path.is_file() else None


def is_wide(character: str) -> bool:
    """Whether a character is East Asian wide, as those of `FAMILY` are (emoji are, too)."""
    return unicodedata.east_asian_width(character) in ("W", "F")


def missing(texts: Iterable[str]) -> list[str]:
    """Wide characters of these texts that no font at hand has, each once."""
    wide = dict.fromkeys(c for text in texts for c in text if is_wide(c))
    path = fallback()
    return [c for c in wide if path is None or ord(c) not in _characters(path)] if wide else []


@cache
def _characters(path: Path) -> frozenset[int]:
    from fontTools.ttLib import TTFont  # type: ignore[import-untyped]

    with TTFont(path, lazy=True) as font:
        return frozenset(font.getBestCmap())
