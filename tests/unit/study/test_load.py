from pathlib import Path

import pytest
from matplotlib.font_manager import findfont, get_font

from pipeline.errors import StudyError
from pipeline.study.load import check_study, font_warning, load_study
from tests.fake_records import make_study
from tests.nasty_texts import TITLE

CJK = "分散学習한국어\N{KATAKANA LETTER KA}、\N{FULLWIDTH LATIN CAPITAL LETTER A}"


def test_characters_that_would_be_boxes_are_named_once() -> None:
    study = {"title": "分散 of 分 🙂", "cells": [{"label": "DDP 学"}]}
    assert font_warning(study) == (
        "warning: the fonts of figures or PDF have no 分 散 🙂 学 and show a box for each; "
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


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("title", "a\x07b", r"title 'a\\x07b' holds '\\x07', which cannot be printed"),
        ("title", " \n", r"title ' \\n' is blank"),
        ("label", "\ud800", r"cells\.0\.label '\\ud800' holds"),
    ],
)
def test_a_text_that_nothing_can_print_stops_the_study(key: str, text: str, said: str) -> None:
    study = make_study()
    (study if key == "title" else study["cells"][0])[key] = text
    with pytest.raises(StudyError, match=said):
        check_study(study, "here")


def test_a_title_of_markup_is_a_title() -> None:
    check_study(make_study(title=TITLE), "here")
