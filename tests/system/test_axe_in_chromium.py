"""The report held against axe-core in Chromium: wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.axe import findings, source
from tests.system.chromium import PROGRAM, Page, chromium
from tests.system.whole_study import make

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium; Debian package chromium"),
]
OPEN = "document.querySelectorAll('details').forEach(d => { d.open = true })"


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return source()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.parametrize(
    ("document", "width", "scheme"),
    [
        ("report.html", 1280, "light"),
        ("report.html", 1280, "dark"),
        ("report.html", 390, "light"),
    ],
)
def test_axe_finds_nothing(
    browser: Page, results: Path, axe: str, document: str, width: int, scheme: str
) -> None:
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=wanted)
    browser.size(width)
    browser.open(results / document)
    for unfold in ("null", OPEN):
        browser.evaluate(unfold)
        found = findings(browser, axe)
        assert found["rules"] > 10, "axe has looked"
        assert found["violations"] == []
        # What a box that scrolls cuts off it cannot see, nor a sign of a formula;
        # test_report_in_chromium.py computes the contrast of every text.
        assert {one[0] for one in found["unsure"]} <= {"color-contrast"}


def test_axe_sees_what_is_broken(browser: Page, results: Path, axe: str) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[])
    browser.open(results / "report.html")
    browser.evaluate(
        "document.querySelector('img').removeAttribute('alt');"
        "document.querySelector('dd').style.color = '#eee'; document.documentElement.lang = ''"
    )
    found = {one[0] for one in findings(browser, axe)["violations"]}
    assert {"image-alt", "html-has-lang", "color-contrast"} <= found
