"""What the documents say of the code."""

import re
from pathlib import Path

from pipeline.files import marks
from pipeline.page.index import studies_table
from pipeline.study.load import load_study

README = Path("README.md").read_text(encoding="utf-8")
STATISTICS = Path("docs/statistics.md").read_text(encoding="utf-8")
EXAMPLE = Path("docs/example")


def test_modules_that_the_statistics_name_exist() -> None:
    named = set(re.findall(r"`(pipeline/[\w/.]+)`", STATISTICS))
    assert len(named) > 10
    assert [name for name in sorted(named) if not Path(name).is_file()] == []


def test_tests_that_the_statistics_name_exist() -> None:
    files = {Path("tests/unit", name) for name in re.findall(r"`(\w+/test_\w+\.py)`", STATISTICS)}
    assert len(files) > 10
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(r"`(test_\w+)`", STATISTICS))
    assert len(named) > 8
    assert [name for name in sorted(named) if f"def {name}(" not in text] == []


def test_the_readme_has_at_most_1000_words_and_a_version_of_the_changelog_40_lines() -> None:
    prose = re.sub(r"```.*?```|<!--.*?-->", "", README, flags=re.DOTALL)
    assert len(re.findall(r"\S*\w\S*", prose)) <= 1000
    versions = re.split(r"^## ", Path("CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert max(text.count("\n") for text in versions) <= 40


def test_the_table_of_studies_is_that_of_their_folders() -> None:
    text = Path("docs/studies.md").read_text(encoding="utf-8")
    begin, end = marks("studies")
    table = text.partition(begin)[2].partition(end)[0].strip()
    assert table == studies_table(), "python -m pipeline index --readme docs/studies.md"


def test_decisions_are_few_short_and_in_the_index() -> None:
    index = Path("docs/decisions/README.md").read_text(encoding="utf-8")
    records = sorted(Path("docs/decisions").glob("[0-9]*.md"))
    assert re.findall(r"\]\((\d\d-[\w-]+\.md)\)", index) == [path.name for path in records]
    assert len(records) <= 40
    for number, path in enumerate(records, 1):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. ") and path.name.startswith(f"{number:02d}-")
        assert text.count("\n") <= 18, path


def test_the_sample_is_there_small_and_linked() -> None:
    """A paper and a page for readers of the repository, who have run nothing yet."""
    files = {path.name: path.read_bytes() for path in EXAMPLE.iterdir()}
    assert set(files) == {"README.md", "one-gpu.zip", "paper.pdf", "report.png", "smoke.zip"}
    assert sum(map(len, files.values())) < 4 * 2**20
    told = files["README.md"].decode()
    assert all(f"]({name})" in told for name in files if name != "README.md")
    assert "](example/README.md)" in Path("docs/studies.md").read_text(encoding="utf-8")


def test_the_readme_s_cells_are_those_of_the_studies() -> None:
    """On GPUs those of `bai2022`; `smoke`, which needs none, has torch's precisions for Apex's."""
    rows = re.findall(
        r"^\| (.+) \| .+ \| `(\w+)` \| `(\w+)`(?: on CUDA, else torch's own `(\w+)`)? \|$",
        README,
        re.M,
    )
    gpu, cpu = (
        load_study(Path(f"workflow/config/{name}/study.yaml")) for name in ("bai2022", "smoke")
    )
    assert [(s, p) for _, s, p, _ in rows] == [(c.strategy, c.precision) for c in gpu.arms]
    assert [label for label, *_ in rows] == [arm.label for arm in cpu.arms]
    assert [(s, other or p) for _, s, p, other in rows] == [
        (c.strategy, c.precision) for c in cpu.arms
    ]
