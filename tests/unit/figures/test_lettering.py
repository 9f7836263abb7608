"""Words of a drawing as text, which the PDF embeds as a font and a reader can search."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import typst

from pipeline import fonts
from pipeline.figures import theme
from pipeline.figures.lettering import as_text, keep

SVG = "{http://www.w3.org/2000/svg}"
WORDS = ("a - - b -- c", "唐詩 & <DDP>", "two\nlines")


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> str:
    theme.apply()
    figure, axes = plt.subplots(figsize=(4, 3))
    axes.plot([1, 2, 4], [1, 2, 4], marker="s", label=WORDS[0])
    axes.legend()
    axes.set_title(WORDS[1])
    axes.set_ylabel(WORDS[2])
    [path] = theme.save(figure, tmp_path_factory.mktemp("drawn"), "some", ["svg"])
    return path.read_text(encoding="utf-8")


def words(drawing: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(drawing).iter(f"{SVG}text")]


def test_browsers_get_outlines_and_the_pdf_gets_every_word(drawing: str) -> None:
    assert words(drawing) == []
    found = words(as_text(drawing))
    assert {"a - - b -- c", "唐詩 & <DDP>", "two", "lines"} <= set(found)
    assert "4.0" in found


def test_no_outline_of_a_letter_is_left_and_no_name_leads_nowhere(drawing: str) -> None:
    light = as_text(drawing)
    root = ET.fromstring(light)
    used = re.findall(r'href="#(\w+)"', light)
    assert set(used) <= {one.get("id") for one in root.iter()}
    assert len(light) < 0.6 * len(drawing)
    assert as_text(light) == light


def test_words_stand_upright_where_their_outlines_stood(drawing: str) -> None:
    texts = list(ET.fromstring(as_text(drawing)).iter(f"{SVG}text"))
    outlines = re.findall(r'transform="(translate\([^"]*scale\([^"]*)"', drawing)
    moved = [re.match(r"translate\([^)]*\)", one) for one in outlines]
    assert [one.get("transform", "").startswith(m[0]) for one, m in zip(texts, moved) if m]  # noqa: B905
    turned = [one for one in texts if "rotate" in one.get("transform", "")]
    assert {"".join(one.itertext()) for one in turned} == {"two", "lines"}
    assert not [one for one in texts if re.search(r"scale\(\S+ -", one.get("transform", ""))]


def test_typst_sets_them_in_the_fonts_of_packages(drawing: str, tmp_path: Path) -> None:
    (tmp_path / "outlines.svg").write_text(drawing, encoding="utf-8")
    (tmp_path / "words.svg").write_text(as_text(drawing), encoding="utf-8")
    made: dict[str, bytes] = {}
    for name in ("outlines", "words"):
        source = tmp_path / f"{name}.typ"
        source.write_text(f'#set document(title: "a")\n#image("{name}.svg", alt: "a drawing")')
        paths = [str(path.parent) for path in fonts.files()]
        compiler = typst.Compiler(ignore_system_fonts=True, font_paths=paths, root=str(tmp_path))
        pdf = compiler.compile(input=str(source), format="pdf", pdf_standards=["ua-1"])
        assert isinstance(pdf, bytes)
        made[name] = pdf
    assert b"+DejaVuSans" in made["words"] and b"+DejaVuSans" not in made["outlines"]
    assert b"+NotoSansCJKjp" in made["words"]


def test_what_no_xml_may_hold_is_left_out_and_an_outline_in_use_elsewhere_is_kept() -> None:
    glyph = '<defs><path id="u1" d="M 0 0" /></defs><use xlink:href="#u1" />'
    other = '<g id="text_9"><g><use xlink:href="#u1" /></g></g>'
    head = f'<svg xmlns="{SVG[1:-1]}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    kept = keep(f'{head}<g id="w"><g>{glyph}</g></g>{other}</svg>', {"w": "bell\x07 \ufffe"})
    light = as_text(kept)
    assert words(light) == ["bell "]
    assert light.count('id="u1"') == 1 and light.count('href="#u1"') == 1


def test_a_drawing_without_its_words_stays_as_it_is() -> None:
    plain = '<svg xmlns="http://www.w3.org/2000/svg"><g id="text_1"><path d="M 0 0" /></g></svg>'
    assert as_text(plain) == plain
