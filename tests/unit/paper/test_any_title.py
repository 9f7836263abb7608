"""Any title or label -> typst, HTML, a figure, the manuscript's front matter -> the same text."""

import json
import re
import subprocess
import tempfile
from pathlib import Path

import pypandoc
import typst
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pipeline.fonts import files, printed
from pipeline.paper.export import TYPST
from pipeline.paper.manuscript import SOURCES
from pipeline.text import markdown
from tests.unit.paper.test_titles import cells_of, typst_text
from tests.unit.test_text import TEXTS, words

# Not shrunk: what fails is found by the marks of the first difference.
FEW = settings(
    phases=[Phase.explicit, Phase.generate],
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
MANY = st.lists(TEXTS.filter(words), min_size=40, max_size=60)


@given(MANY)
@FEW
def test_typst_prints_every_label_of_a_table_as_given(texts: list[str]) -> None:
    rows = "\n".join(f"| {markdown(text)} | b |" for text in texts)
    source = f"| A | B |\n|---|---|\n{rows}\n\n: c {{#tbl:all}}\n"
    command = [pypandoc.get_pandoc_path(), "--from=markdown", f"--to={TYPST}", "--wrap=none"]
    command += ["--columns=100000", f"--lua-filter={SOURCES / 'literal.lua'}"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.typ"
        file.write_text(f"#set smartquote(enabled: false)\n{done.stdout}", encoding="utf-8")
        [found] = json.loads(typst.query(str(file), "<tbl:all>", root=folder))
    printed = [_hyphens(words(typst_text(cell))) for cell in cells_of(found)]
    assert printed[2::2] == [_hyphens(words(text)) for text in texts]


@given(MANY)
@FEW
def test_typst_has_a_glyph_for_all_that_is_printed(texts: list[str]) -> None:
    """PDF/UA-1 allows no box; a document that claims it is refused where there is one."""
    source = "\n\n".join(markdown(printed(text)) for text in texts)
    command = [pypandoc.get_pandoc_path(), "--from=markdown", f"--to={TYPST}", "--wrap=none"]
    command += [f"--lua-filter={SOURCES / 'literal.lua'}"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    template = (SOURCES / "template.typ").read_text(encoding="utf-8")
    (fonts,) = re.findall(r"#set text\(font: \(.*?\)", template)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.typ"
        file.write_text(f'#set document(title: "x")\n{fonts})\n{done.stdout}', encoding="utf-8")
        compiler = typst.Compiler(
            root=folder, ignore_system_fonts=True, font_paths=[str(path.parent) for path in files()]
        )
        assert compiler.compile(input=str(file), format="pdf", pdf_standards=["ua-1"])


def _hyphens(text: str) -> str:
    """typst prints a hyphen before digits as a minus."""
    return text.replace("\N{MINUS SIGN}", "-")
