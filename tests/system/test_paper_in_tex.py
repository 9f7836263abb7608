"""The LaTeX export compiled by a real TeX, in classes of conferences with one and two columns."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import ran
from tests.system.whole_study import make

pytestmark = [
    pytest.mark.skipif(
        not shutil.which("pdflatex"),
        reason="no TeX; Debian packages texlive-latex-extra texlive-publishers lmodern",
    )
]
CLASSES = (
    ("article", "10pt"),
    ("acmart", "sigconf,nonacm"),
    ("acmart", "manuscript,nonacm"),
    ("IEEEtran", "conference"),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize(("name", "options"), CLASSES)
def test_the_class_is_a_matter_of_one_line(results: Path, name: str, options: str) -> None:
    has = subprocess.run(["kpsewhich", f"{name}.cls"], capture_output=True)
    if has.returncode:
        pytest.skip(f"no class {name}; Debian package texlive-publishers")
    export = (results / "paper/paper.tex").read_text(encoding="utf-8")
    text, lines = re.subn(
        r"^\\documentclass.*", rf"\\documentclass[{options}]{{{name}}}", export, flags=re.MULTILINE
    )
    assert lines == 1
    source = results / "paper" / f"{name}-{options.split(',')[0]}.tex"
    source.write_text(text, encoding="utf-8")
    # Twice, as a reader would, for the references inside of the document.
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", source.name]
    for _ in range(2):
        done = ran(command, cwd=source.parent, errors="replace", timeout=300)
        assert done.returncode == 0, done.stdout[-2000:]
    assert source.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert "undefined references" not in done.stdout
