"""The report as a reader sees it: opened in a real Chromium, wide and narrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import figures
from pipeline.__main__ import main
from pipeline.study.study import Study
from tests.system.chromium import PROGRAM, Page, chromium
from tests.unit.page.test_page import make_results, report

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium; Debian package chromium"),
]
WIDTHS = (1280, 390)
OVERFLOW = """Array.from(document.querySelectorAll("body *"))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll"))
    .map(e => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with every status, hostile labels and logs, and the real figures."""
    root = make_results(tmp_path_factory.mktemp("results"), claims=["bai2022"])
    for name in shown(root):
        given = ["--metrics", str(root / "metrics.parquet"), "--out", str(root / "figures")]
        assert main(["figure", name, "--verdicts", str(root / "verdicts.json"), *given]) == 0
    assert report(root) == 0
    return root


def shown(root: Path) -> list[str]:
    """Names of the figures that the study has."""
    return figures.catalogue.shown(Study.of(json.loads((root / "study.json").read_text())))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Page, results: Path) -> Page:
    """The report, freshly opened in a window of this width."""
    browser.size(request.param)
    browser.open(results / "report.html")
    return browser


def test_the_console_is_silent(page: Page) -> None:
    assert page.complaints() == []
    page.evaluate("console.error('to be heard')")
    assert len(page.complaints()) == 1


def test_nothing_is_fetched_but_the_page_itself(page: Page, results: Path) -> None:
    first, *others = page.requests()
    assert first == (results / "report.html").resolve().as_uri()
    assert all(address.startswith("data:") for address in others)


def test_every_image_has_loaded_and_has_a_text(page: Page, results: Path) -> None:
    images = page.evaluate(
        "Array.from(document.images).map(i => [i.complete, i.naturalWidth, i.alt.length])"
    )
    assert len(images) == len(shown(results))
    assert all(complete and width > 0 and text > 0 for complete, width, text in images)


def test_the_page_is_no_wider_than_the_window(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.evaluate(
        OVERFLOW
    )
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(OVERFLOW) == []


def test_text_is_large_enough_to_be_read(page: Page) -> None:
    """Letters of the page in pixels, and a figure no smaller than its own text allows."""
    sizes = page.evaluate(
        """Array.from(document.querySelectorAll("p, td, li, figcaption, pre, dd"))
        .map(e => parseFloat(getComputedStyle(e).fontSize))"""
    )
    assert min(sizes) >= 12
    assert page.evaluate("Math.min(...Array.from(document.images).map(i => i.width))") >= 600


def test_runs_are_filtered_and_sorted(page: Page) -> None:
    shown = """Array.from(document.querySelectorAll("#run-groups tbody"))
        .filter(run => !run.hidden && !run.closest("[hidden]"))
        .map(run => run.dataset.%s)"""
    everything = page.evaluate(shown % "status")
    assert page.evaluate("document.getElementById('run-count').textContent") == (
        f"{len(everything)} of {len(everything)} runs"
    )
    choose = """(([id, value]) => {
        const field = document.getElementById(id);
        field.value = value;
        field.dispatchEvent(new Event(field.tagName === "INPUT" ? "input" : "change"));
    })"""
    page.evaluate(f"{choose}(['run-status', 'unsupported'])")
    assert set(page.evaluate(shown % "status")) == {"unsupported"}
    page.evaluate(f"{choose}(['run-status', ''])")
    page.evaluate(f"{choose}(['run-words', 'rank was killed'])")
    assert page.evaluate(shown % "status") == ["oom"]
    assert page.evaluate("Array.from(document.querySelectorAll('#run-groups > :not([hidden])'))"
                         ".every(group => group.open)")  # fmt: skip
    page.evaluate(f"{choose}(['run-words', ''])")
    page.evaluate(f"{choose}(['run-order', 'fastest'])")
    seconds = page.evaluate(
        "Array.from(document.getElementById('run-groups').children).map(g => g.dataset.seconds)"
    )
    numbers = [float(text) for text in seconds if text]
    assert numbers == sorted(numbers) and seconds[-1] == ""
    assert len(page.evaluate(shown % "status")) == len(everything)
    page.evaluate(f"{choose}(['run-order', 'study'])")
    assert page.evaluate(shown % "status") == everything


def test_without_a_script_every_run_is_there(browser: Page, results: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(results / "report.html")
        root = browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        for selector, number in (("#run-groups tbody", 32), ("#run-controls[hidden]", 1)):
            found = browser.call("DOM.querySelectorAll", nodeId=root, selector=selector)
            assert len(found["nodeIds"]) == number
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
