"""Characters that a plain font lacks, from title and label to figure, PDF, LaTeX and HTML."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from pipeline import fonts
from pipeline.figures import theme
from pipeline.text import markdown

CJK = "分散学習 训练 한국어 カ、"
KHMER, RARE, PRIVATE = "\N{KHMER LETTER KA}", "\U0002d1e2", "\ue000"
needs_font = pytest.mark.skipif(
    fonts.fallback() is None, reason="this environment was made before the lock had the font"
)


@needs_font
@pytest.mark.parametrize("text", [CJK, "Größe, µs, Ωмега “quoted” → ≥ 2", "\N{CHECK MARK}"])
def test_what_the_fonts_have_is_shown_as_it_is(text: str) -> None:
    assert fonts.printed(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ✓ 学 שלום", "plain ✓ 学 שלום"),
        ("GPT 🚀🔥 now", "GPT (rocket, fire) now"),
        ("👍🏽", "(thumbs up sign)"),
        ("\N{MATHEMATICAL BOLD CAPITAL G}2", "G2"),
        (f"a {KHMER}{PRIVATE}", "a (U+1780, U+E000)"),
        ("a\x85b", "a b"),
        ("a\U000e0041b", "ab"),
    ],
)
def test_what_has_no_glyph_is_said_in_letters(text: str, shown: str) -> None:
    assert fonts.printed(text) == shown
    # It is plain where a text becomes Markdown, so that whole documents can be rewritten.
    assert fonts.printed(markdown(text)) == markdown(shown)


@needs_font
def test_a_figure_draws_them_and_embeds_the_font(tmp_path, recwarn) -> None:
    theme.apply()
    for name in ("first", "second"):
        figure = plt.figure(figsize=(3, 1))
        figure.text(0.1, 0.5, f"DDP {CJK}")
        theme.save(figure, tmp_path, name)
    assert not [w for w in recwarn if "missing from font" in str(w.message)]
    for kind in theme.FORMATS:
        assert (tmp_path / f"first.{kind}").read_bytes() == (
            tmp_path / f"second.{kind}"
        ).read_bytes()
    assert b"NotoSansCJK" in (tmp_path / "first.pdf").read_bytes()


def test_no_text_of_a_figure_has_a_box(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    theme.apply()
    figure = plt.figure(figsize=(3, 1))
    words = figure.text(0.1, 0.5, f"claim 🚀 {KHMER}")
    theme.save(figure, tmp_path, "one")
    assert words.get_text() == "claim (rocket) (U+1780)"
    assert not [w for w in recwarn if "missing from font" in str(w.message)]
