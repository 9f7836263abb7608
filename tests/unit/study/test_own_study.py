"""The page on a study of one's own: what it shows is copied, checked and planned as it stands."""

import re
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from pipeline.__main__ import main
from tests.programs import ran

PAGE = Path("docs/own-study.md").read_text(encoding="utf-8")


def test_the_page_s_study_meets_no_refusal(tmp_path: Path, monkeypatch, capsys) -> None:
    study, *_ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/study.yaml").write_text(study)
    Path("mine/text.txt").write_text("a text\n\nof two blocks\n\n" * 20)
    shown = re.findall(r"^python -m pipeline (.*)$", PAGE, re.MULTILINE)
    assert [line.split()[0] for line in shown] == ["check", "doctor", "plan"]
    for line in shown:
        assert main(line.split()) == 0
        said = capsys.readouterr()
        assert said.err == "" and "warning" not in said.out
    assert "mine: Three strategies on my text" in said.out


def test_a_seventh_publication_is_a_folder(tmp_path: Path) -> None:
    """The page's three files in a copy of this checkout: found, checked, listed, in the index."""
    for name in ("pipeline", "workflow", "paper"):
        copytree(name, tmp_path / name, ignore=ignore_patterns("*.pyc.*"))
    (folder := tmp_path / "workflow/config/seventh").mkdir()
    _, claims, study = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (published,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    files = {"claims.yaml": claims, "published.json": published, "study.yaml": study}
    for name, text in files.items():
        (folder / name).write_text(text)
    (page := tmp_path / "page.md").write_text("<!-- studies: begin -->\n<!-- studies: end -->\n")

    code = "import sys; from pipeline.__main__ import main; [main(x.split()) for x in sys.argv[1:]]"
    commands = ("check --study seventh", "index --list", "index --readme page.md")
    command = [sys.executable, "-c", code, *commands]
    done = ran(command, cwd=tmp_path)
    first, *listed = done.stdout.split()
    assert first == "results/seventh" and "seventh" in listed, done.stderr
    row = "| `seventh` | What a rank of the seventh paper sends | Seventh |"
    assert row in page.read_text()


@pytest.mark.parametrize("cluster", re.findall(r"`(cluster: \{.*?\})`", PAGE))
def test_what_the_page_says_besides_is_a_study(tmp_path: Path, cluster: str) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: smoke\nstudy: own\n{cluster}\n")
    assert main(["check", "--study", str(own)]) == 0


def test_the_studies_of_the_page_on_models_are_such(tmp_path: Path, monkeypatch) -> None:
    """The first is of ten lines at most; one begins with the weights that the page's code saves."""
    page = Path("docs/models.md").read_text(encoding="utf-8")
    studies = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(studies) == 4 and studies[0].count("\n") <= 10
    assert "architecture: LlamaForCausalLM" in studies[0]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    for study in studies:
        (name,) = re.findall(r"^study: (.*)$", study, re.MULTILINE)
        Path(f"{name}.yaml").write_text(study)
        assert main(["check", "--study", f"{name}.yaml"]) == 0
