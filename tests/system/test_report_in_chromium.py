"""The report as a reader sees it, in a real Chromium, wide and narrow; axe-core looks too."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import figures
from pipeline.study.study import Study
from pipeline.text import NONE
from tests.system.chromium import PROGRAM, Page, axe_findings, axe_source, chromium
from tests.system.whole_study import make

pytestmark = [pytest.mark.skipif(PROGRAM is None, reason="no chromium; Debian package chromium")]
WIDTHS = (1280, 390)
OPEN = "document.querySelectorAll('details').forEach(d => { d.open = true })"
OVERFLOW = """Array.from(document.querySelectorAll("body *"))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll"))
    .map(e => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with every status, hostile labels and logs, and the real figures."""
    return make(tmp_path_factory.mktemp("results"))


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


def test_the_page_is_whole_fetches_nothing_and_is_silent(page: Page, results: Path) -> None:
    first, *others = page.requests()
    assert first == (results / "report.html").resolve().as_uri()
    assert all(address.startswith("data:") for address in others)
    images = page.evaluate(
        "Array.from(document.images).map(i => [i.complete, i.naturalWidth, i.alt.length])"
    )
    study = Study.of(json.loads((results / "study.json").read_text()))
    assert len(images) == len(figures.catalogue.shown(study))
    assert all(complete and width > 0 and text > 0 for complete, width, text in images)
    assert page.complaints() == []
    page.evaluate("console.error('to be heard')")
    assert len(page.complaints()) == 1


def test_nothing_is_wider_than_the_window_and_what_scrolls_says_so(page: Page) -> None:
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits), page.evaluate(OVERFLOW)
    page.evaluate(OPEN)
    assert page.evaluate(fits) and page.evaluate(OVERFLOW) == []
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    boxes = page.evaluate(
        """Array.from(document.querySelectorAll("figure .scroll, details.table .scroll")).map(b => [
            b.ariaLabel, b.scrollWidth > b.clientWidth + 1,
            b.parentElement.querySelector(".cue").checkVisibility()])"""
    )
    assert len(boxes) > 10
    assert [box for box in boxes if box[1] != box[2]] == []


def test_tiles_leave_no_gap_and_text_is_large_enough_to_be_read(page: Page) -> None:
    """Letters of the page in pixels, and a figure no smaller than its own text allows."""
    tiles = page.evaluate(
        """Array.from(document.querySelectorAll(".tiles > div"), tile => [
            tile.getBoundingClientRect().top, tile.scrollWidth - tile.clientWidth,
            tile.getBoundingClientRect().right])"""
    )
    rows = {top for top, _, _ in tiles}
    ends = [max(right for at, _, right in tiles if at == top) for top in rows]
    assert max(ends) - min(ends) < 1
    assert [over for _, over, _ in tiles if over > 0] == []
    sizes = page.evaluate(
        """Array.from(document.querySelectorAll("p, td, li, figcaption, pre, dd"))
        .map(e => parseFloat(getComputedStyle(e).fontSize))"""
    )
    assert min(sizes) >= 12
    # A figure's letters have at least 7 points, which are 9.3 pixels of its own size.
    scale = "Math.min(...Array.from(document.images).map(i => i.width / i.naturalWidth))"
    assert page.evaluate(scale) >= 0.98


def test_runs_are_filtered(page: Page) -> None:
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


# What axe does not look at of WCAG 2.2.
RULES = """(() => {
    const wrong = [];
    const all = (selector) => Array.from(document.querySelectorAll(selector));
    const ids = all("[id]").map(e => e.id);
    ids.filter((id, i) => ids.indexOf(id) !== i).forEach(id => wrong.push(`id ${id} twice`));
    all("figure").filter(e => !e.querySelector("figcaption"))
        .forEach(() => wrong.push("figcaption"));
    all("th").filter(e => !e.scope)
        .forEach(e => wrong.push(`th without scope: ${e.textContent}`));
    all("table").filter(e => !e.querySelector("th"))
        .forEach(() => wrong.push("table without heads"));
    all("a[href^='#']").filter(e => !document.getElementById(e.hash.slice(1)))
        .forEach(e => wrong.push(`${e.hash} leads nowhere`));
    all("a, button, summary, input, select").filter(e => e.getClientRects().length).forEach(e => {
        const box = e.getBoundingClientRect();
        if (box.height < 23.5) { wrong.push(`${box.height} px high: ${e.outerHTML.slice(0, 80)}`); }
    });
    return wrong;
})()"""
AT = """(() => { const e = document.activeElement; const s = getComputedStyle(e);
    return [e.tagName, Math.round(e.getBoundingClientRect().top + scrollY),
        s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2,
        e.getAttribute("aria-label") || e.textContent.trim().slice(0, 40)]; })()"""


def press(page: Page, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                  windowsVirtualKeyCode=code, **text)  # fmt: skip


def test_structure_and_sizes(page: Page) -> None:
    """WCAG 1.3.1, 2.4.4, 2.5.8, folds closed and open, where axe does not look."""
    assert page.evaluate(RULES) == []
    page.evaluate(OPEN)
    assert page.evaluate(RULES) == []
    page.evaluate("document.querySelector('h2').id = 'runs'")
    assert page.evaluate(RULES) == ["id runs twice"]


def test_a_keyboard_reaches_all_in_order_and_sees_where_it_is(page: Page) -> None:
    """WCAG 2.1.1, 2.4.3, 2.4.7: tab goes down the page, each place is outlined, Enter unfolds."""
    seen = []
    for _ in range(60):
        press(page, "Tab", 9)
        seen.append(page.evaluate(AT))
        if seen[-1][0] == "BODY":
            break
    places = [place for place in seen if place[0] != "BODY"]
    assert all(visible for _, _, visible, _ in places), places
    after = [top for tag, top, *_ in places if tag != "A"]
    assert len(after) > 10 and after == sorted(after)
    page.evaluate("document.querySelector('details.table:not([open]) > summary').focus()")
    press(page, "Enter", 13)
    assert page.evaluate("document.activeElement.parentElement.open")


def test_tables_are_sorted_and_filtered(page: Page) -> None:
    rows = """Array.from(document.querySelector("#table-scaling tbody").rows)
        .filter(r => !r.hidden).map(r => Array.from(r.cells, c => c.textContent))"""
    head = "document.querySelectorAll('#table-scaling th button')[%d]"
    printed = page.evaluate(rows)
    names = page.evaluate(
        "Array.from(document.querySelectorAll('#table-scaling th button'), b => b.textContent)"
    )
    column = next(place for place, name in enumerate(names) if "tokens/s" in name.lower())
    for _ in range(2):
        page.evaluate(f"{head % column}.click()")
    assert page.evaluate(f"{head % column}.parentElement.getAttribute('aria-sort')") == "descending"
    down = page.evaluate(rows)
    texts = [row[column].split(" ")[0].replace(",", "") for row in down]
    rates = [float(text) for text in texts if text != NONE]
    assert rates == sorted(rates, reverse=True) and len(down) == len(printed)
    assert texts[len(rates) :] == [NONE] * (len(texts) - len(rates)), "dashes stand last"
    assert all(row[0] for row in down), "a row apart from its group says which cell it is of"
    page.evaluate(f"{head % column}.click()")
    assert page.evaluate(rows) == printed
    page.evaluate("""(() => { const field = document.querySelector("#table-scaling .filter input");
        field.value = "horovod"; field.dispatchEvent(new Event("input")); })()""")
    found = page.evaluate(rows)
    assert 0 < len(found) < len(printed) and all("Horovod" in row[0] for row in found)


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return axe_source()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_axe_finds_nothing(browser: Page, results: Path, axe: str, width: int, scheme: str) -> None:
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=wanted)
    browser.size(width)
    browser.open(results / "report.html")
    for unfold in ("null", OPEN):
        browser.evaluate(unfold)
        found = axe_findings(browser, axe)
        assert found["rules"] > 10, "axe has looked"
        assert found["violations"] == []
        # What a box that scrolls cuts off it cannot see, nor a sign of a formula.
        assert {one[0] for one in found["unsure"]} <= {"color-contrast"}


def test_axe_sees_what_is_broken(browser: Page, results: Path, axe: str) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[])
    browser.open(results / "report.html")
    browser.evaluate(
        "document.querySelector('img').removeAttribute('alt');"
        "document.querySelector('dd').style.color = '#eee'; document.documentElement.lang = ''"
    )
    found = {one[0] for one in axe_findings(browser, axe)["violations"]}
    assert {"image-alt", "html-has-lang", "color-contrast"} <= found
