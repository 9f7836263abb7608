"""Which figures of a machine that others use too are taken."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.emulation import measured
from pipeline.errors import DisturbedError, UnsupportedError
from pipeline.machine import session
from pipeline.study.link import LinkSpec
from tests.parity.cases import Case

PLAIN = Case("ddp").spec(2)
SPEC = replace(PLAIN, world=replace(PLAIN.world, network="emulated", cores_per_node=1))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only sleeping moves."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def answers(*given: list[float]) -> Callable[[], list[float]]:
    """One after the other, the last one for ever."""
    left = list(given)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


QUIET, BUSY = [0.9, 1.0], [0.2, 1.0]
LINK = LinkSpec("plain", 1000)
REACHED, SLOW = [950.0, 940.0], [950.0, 300.0]
SPINNER = "another program uses core 0: python (process 7)"


PAUSE, LATE = measured.PAUSE_SECONDS, measured.PATIENCE_SECONDS
CASES: dict[str, tuple[list[list[float]], list[list[float]], tuple[Any, ...], float, int]] = {
    "a quiet machine is measured once": ([QUIET], [REACHED], (QUIET, REACHED, None), 0, 0),
    "a busy one is waited for, and said once": (
        [BUSY, BUSY, QUIET], [REACHED], (QUIET, REACHED, None), 2 * PAUSE, 2,
    ),
    "work that comes while rates are measured spoils them": (
        [QUIET, BUSY, QUIET], [SLOW, REACHED], (QUIET, REACHED, None), PAUSE, 2,
    ),
    "a rate that is missed once is measured again": (
        [QUIET], [SLOW, SLOW, REACHED], (QUIET, REACHED, None), 2 * PAUSE, 2,
    ),
    "one that a quiet machine never reaches is told soon": (
        [QUIET], [SLOW], (QUIET, SLOW, None), 2 * PAUSE, 2,
    ),
    "a machine that stays busy is told with the programs": (
        [BUSY], [SLOW], (BUSY, [], f"{SPINNER}, other (process 8)"), LATE + PAUSE, 1,
    ),
    "one node has no rate": ([QUIET], [[]], (QUIET, [], None), 0, 0),
}  # fmt: skip
"""Looks at the cores, at the rates, what is taken, the seconds, and how many lines are told."""


def measure(
    link: LinkSpec = LINK,
    repeat: int = 0,
    places: Sequence[Sequence[int]] = ((0,), (1,)),
    tell: Any = print,
    factor: float = 1,
) -> Any:
    """The record of a run on nodes that have these cores."""
    spec = replace(SPEC, world=replace(SPEC.world, link=link), repeat=repeat)
    nodes: Any = SimpleNamespace(count=len(places), tcp=dict, places=places, dilation=factor)
    return measured.measure(spec, nodes, tell)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Entries that the session keeps."""
    kept: dict[str, object] = {}
    monkeypatch.setattr(session, "keep", kept.__setitem__)
    monkeypatch.setattr(session, "recall", lambda key, seconds: kept.get(key))
    monkeypatch.setattr(measured, "_latency", lambda *_: 7.5)
    return kept


@pytest.mark.parametrize("name", CASES)
def test_figures_are_those_of_a_quiet_machine(clock, kept, monkeypatch, name) -> None:
    cores, rates, taken, seconds, lines = CASES[name]
    look, rate, told = answers(*cores), answers(*rates), list[str]()

    def wait(pause: float, late: Sequence[int]) -> str:
        time.sleep(pause)
        return SPINNER if not told else f"{SPINNER}, other (process 8)"

    for function, fake in (("_cores", look), ("_rates", rate)):
        monkeypatch.setattr(measured, function, lambda *_, fake=fake: fake())
    monkeypatch.setattr(measured, "busy_programs", wait)
    places = [[0], [1]] if rates[0] else [[0]]
    found = measure(places=places, tell=told.append)
    keys = ("measured_cores", "measured_mbits", "disturbed_by")
    assert (tuple(found.get(key) for key in keys), clock[0]) == (taken, seconds)
    assert told == [f"waits: {SPINNER}", "the machine is quiet again"][:lines]
    assert kept["busy"] == (taken[-1] is not None)


@pytest.mark.parametrize(("factor", "waits"), [(1, True), (2, False)])
def test_nodes_that_are_not_dilated_need_nearly_all_of_their_cores(
    clock, kept, monkeypatch, factor: float, waits: bool
) -> None:
    """With less they could decide nothing, nor could the study: such a run is tried again."""
    monkeypatch.setattr(measured, "_cores", lambda *_: [0.8, 1.0])
    monkeypatch.setattr(measured, "_rates", lambda *_: REACHED)

    def wait(pause: float, _: Sequence[int]) -> str:
        time.sleep(pause)
        return SPINNER

    monkeypatch.setattr(measured, "busy_programs", wait)
    assert ("disturbed_by" in measure(factor=factor)) == waits


def test_a_run_that_was_disturbed_is_no_result() -> None:
    found = {"cores_per_node": 2, "dilation": 4.0, "measured_cores": [2.0, 1.3]}
    with pytest.raises(DisturbedError, match=r"core 0.*a node of 2 cores got 1\.30 of them"):
        measured.check(found | {"disturbed_by": SPINNER})


@pytest.mark.parametrize(
    ("link", "rates", "said"),
    [
        (LinkSpec("plain", 1000), [950, 650], "1000 Mbit/s cannot .* 650 Mbit/s were"),
        (LinkSpec("plain", 1000), [], None),
        (LinkSpec("down", 1000, receive_mbits=250), [240, 245], None),
        (LinkSpec("shared", 1000, uplink_mbits=400), [390, 980, 395, 990], None),
        (LinkSpec("shared", 1000, uplink_mbits=400), [390, 500, 395, 990], "1000 Mbit/s .* 500 "),
        (LinkSpec("shared", 1000, uplink_mbits=400), [390, 980, 200, 990], "400 Mbit/s .* 200 "),
    ],
)
def test_a_rate_is_missed_where_a_node_gets_less_than_its_way_lets_through(
    link, rates, said
) -> None:
    found = {"link": link.to_dict(), "dilation": 2.0, "measured_mbits": rates}
    if said is None:
        measured.check(found)
        return
    with pytest.raises(UnsupportedError, match=said):
        measured.check(found)


def test_rates_of_the_same_links_are_measured_once_in_a_while(kept, monkeypatch) -> None:
    measuring: list[str] = []

    def noted(name: str, figures: list[float], *_: object) -> list[float]:
        measuring.append(name)
        return figures

    monkeypatch.setattr(measured, "_cores", partial(noted, "cores", [1.0, 1.0]))
    monkeypatch.setattr(measured, "_rates", partial(noted, "rates", [95.0, 96.0]))
    link = LinkSpec("fast", 100)
    first, second = measure(link, 0), measure(link, 1)
    assert measuring == ["cores", "rates", "cores"]
    assert first["measured_mbits"] == second["measured_mbits"] == [95.0, 96.0]
    assert first["latency_us"] == second["latency_us"] == 7.5
    assert "rates_measured_by" not in first
    assert second["rates_measured_by"] == replace(SPEC, repeat=0).run_id
    assert "rates_measured_by" not in measure(LinkSpec("other", 99), 2)


def test_rates_that_were_not_reached_are_not_kept(kept, monkeypatch, clock) -> None:
    monkeypatch.setattr(measured, "_cores", lambda *_: [1.0, 1.0])
    monkeypatch.setattr(measured, "_rates", lambda *_: [95.0, 20.0])
    measure(LinkSpec("slow", 100))
    assert kept == {"busy": False}
