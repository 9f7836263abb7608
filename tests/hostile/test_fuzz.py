"""Damage that nobody thought of: archives and the texts of a report, always the same."""

import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from pipeline import figures
from pipeline.files import write_text
from pipeline.metrics.build import build
from pipeline.metrics.results import Results
from pipeline.page.page import render
from pipeline.study.study import Study
from pipeline.text import is_visible, unprintable
from tests.fake_records import a_verdict
from tests.hostile.entries import Laid
from tests.hostile.entry import settled
from tests.outline import Outline


def test_an_archive_of_changed_bytes(laid: Laid, tmp_path: Path) -> None:
    from pipeline.archive.pack import contents, write_zip

    write_zip(contents(laid.results), tmp_path / "good.zip")
    whole = (tmp_path / "good.zip").read_bytes()
    choice = random.Random(0)
    path = tmp_path / "bad.zip"
    for _ in range(60):
        at, put = int(choice.random() * len(whole)), choice.randbytes(choice.randint(1, 6))
        path.write_bytes(whole[:at] + put + whole[at + choice.randint(0, 9) :])
        settled(tmp_path, "unpack", "--archive", path, "--into", tmp_path / "out")


MARKUP = [
    "<", ">", "&", '"', "'", "`", "=", "/", "--", "]]>", "<!--", "-->", "</script>", "</style>",
    "</title>", "</pre>", "</td></table>", "<script>alert(1)</script>", "<img src=x onerror=a()>",
    "javascript:", "&#60;", "&lt;", "&amp", "{{ 7*7 }}", "{% x %}", "${x}", "\\", "\t", "\n", "\r",
    "\u2028", "\u00a0", "\u200b", "\u0301", "ß", "分", "🙂", "\ud7ff", "\U000e0041", "א",
]  # fmt: skip
"""What some reader of HTML, of a template or of a script takes for its own."""

TEXTS = st.lists(st.sampled_from(MARKUP) | st.text(max_size=8), min_size=1, max_size=12).map(
    "".join
)


def shape(page: Outline) -> list[tuple[str, ...]]:
    """The elements of a page with the names of their attributes."""
    return [(tag, *sorted(attributes)) for tag, attributes in page.elements]


def page_of(laid: Laid, folder: Path, text: str, other: str) -> str:
    """The report of a study whose title, labels, log and claim are texts."""
    study = json.loads(laid.study.read_text())
    study |= {"title": text, "claims": ["bai2022"]}
    for cell, label in zip(study["cells"], (text, other), strict=True):
        cell["label"] = label
    made, runs = Study.of(study), folder / "runs"
    shutil.copytree(laid.results / "runs", runs, dirs_exist_ok=True)
    frame = build(made, runs)
    verdict = a_verdict()["verdicts"][0]
    verdict |= {"id": "sps-slower-than-one", "kind": "ratio"}
    verdict |= {"sentence": text, "source": other, "why": text, "document": other}
    for path in runs.glob("*/*/*"):
        (path / "log.txt").write_text(f"{text}\n{other}", encoding="utf-8")
    for name in figures.catalogue.shown(made):
        write_text(folder / "figures" / f"{name}.svg", "<svg></svg>")
    return render(made, Results(frame), [verdict], folder / "figures", runs)


@pytest.fixture(scope="module")
def plain(laid: Laid, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, ...]]:
    """The elements of the report where no text is a special one."""
    folder = tmp_path_factory.mktemp("plain")
    return shape(Outline(page_of(laid, folder, "plain text", "other text")))


@settings(
    max_examples=1, phases=[Phase.explicit, Phase.generate], derandomize=True, database=None,
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@example("".join(MARKUP), "'\"" + "".join(reversed(MARKUP)))
@given(TEXTS, TEXTS)
def test_a_report_of_any_text(laid: Laid, plain, tmp_path: Path, text: str, other: str) -> None:
    """Whatever the texts are, the page has the elements that it has with plain ones, no more."""
    if any(unprintable(one) or not is_visible(one) for one in (text, other)):
        return  # no study has such a title
    found = Outline(page_of(laid, tmp_path, text, other))
    assert shape(found) == plain
    shown = " ".join("".join(found.texts).split())
    assert all(" ".join(one.split()) in shown for one in (text, other))
