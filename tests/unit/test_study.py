from pathlib import Path

import pytest
from matplotlib.font_manager import findfont, get_font

from pipeline.study import font_warning, load_study

CJK = "分散学習한국어\N{KATAKANA LETTER KA}、\N{FULLWIDTH LATIN CAPITAL LETTER A}"


def test_characters_that_would_be_boxes_are_named_once() -> None:
    study = {"title": "分散 of 分", "cells": [{"label": "DDP 学"}]}
    assert font_warning(study) == (
        "warning: the fonts of figures and PDF have no 分 散 学 and show a box for each; "
        "use Latin, Greek or Cyrillic letters in title and labels"
    )


@pytest.mark.parametrize("title", ["Plain", "Größe, µs, Ωмега “quoted” → ≥ 2"])
def test_what_the_fonts_have_is_not_warned_of(title: str) -> None:
    assert font_warning({"title": title, "cells": []}) is None
    glyphs = get_font(findfont("DejaVu Sans")).get_charmap()
    assert all(ord(character) in glyphs for character in title)
    assert not any(ord(character) in glyphs for character in CJK)
    assert all(character in str(font_warning({"title": CJK, "cells": []})) for character in CJK)


@pytest.mark.parametrize("study", sorted(Path("workflow/config").glob("*.yaml")))
def test_the_shipped_studies_have_no_such_characters(study: Path) -> None:
    assert font_warning(load_study(study)) is None
