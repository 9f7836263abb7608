"""Errors on the published points and their bars; no constant predicts its own points."""

import re
from collections import Counter, defaultdict
from copy import deepcopy
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from pipeline.cost import bars
from pipeline.cost.constants import Constants, content, device_of
from pipeline.cost.job import jobs_of
from pipeline.cost.points import family_of, fastest, kind_of, predict_row
from pipeline.cost.score import (
    by_source,
    errors_by,
    every,
    grown,
    points,
    scored,
    sets,
    source_of,
    suspect,
)
from pipeline.files import marks
from pipeline.tables.points import in_markdown


def test_all_points_but_suspect_ones_are_scored() -> None:
    assert not any(row.row["suspect"] for row in scored())
    # What ran is scored or suspect, and none is refused; what did not run is counted apart.
    count = sum(row["measured"] - row["suspect"] for row in sets())
    assert len(every()) == len(scored()) == count
    assert {row["point"] for row in every()}.isdisjoint(row["point"] for row in suspect())
    for key in ("points", "device"):
        assert sum(row["n"] for row in errors_by(key)) == count
    assert sum(row["measured"] + row["untimed"] for row in sets()) == len(points())


def test_an_error_has_the_sign_of_what_is_predicted_and_none_within_a_range() -> None:
    [within] = [one for one in every() if one["point"] == "ptdp_table1-0001"]
    assert within["model"] == 0.0 and within["band"] == ""
    [slow] = [one for one in every() if one["point"] == "bai2022-0001"]
    assert slow["model"] < 0 and slow["band"] == "out" and not slow["low"] <= 1 <= slow["high"]


def test_an_error_is_taken_from_the_layout_that_was_answered() -> None:
    """One of several that crosses nodes has another band than the first of them."""
    [row] = [one for one in scored() if one.row["id"] == "alpa_gpt_e2e-0027"]
    for which, constants in (("out", Constants(row.source)), ("own", Constants())):
        job, best, most = fastest(row.row, constants)
        assert kind_of(job, constants) != kind_of(row.job, constants)
        assert row.off(which) == pytest.approx(best.seconds / row.measured - 1, rel=1e-4)
        assert most > 1.0


FEWEST_OF_A_SET = 8
OWN_SET = "samestep_h200"
"""Scored, but in no band: most of its few steps wait for one host, as those of no publication."""
WIDENED = 2.1
"""Factor on the logarithm of a band of residuals from which constants were chosen."""


def band(kind: str, share: float = 0.90) -> list[float]:
    """Ratios measured / predicted between which `share` of the points of a kind lie; 2 digits.

    Every set has the same weight: the next paper is like one of these, not like one of their rows.
    Of an implementation without constants of its own (`unknown`) each set was left out, and those
    that have some even so tell nothing; of one with (`known`) the residuals are those of the
    constants that were chosen with them, widened.
    Sets of few points tell no tail. Larger worlds from a measured one are `base`. What is off
    in two steps falls out of their ratio: of one model and device it is `pair`, and `scaled` where
    also all else is alike but the number of devices and the batch.
    """
    whose, _, where = kind.partition(" ")
    which = "own" if whose == "known" else "out"
    ratios: dict[str, list[float]] = defaultdict(list)
    sizes = Counter(row.source for row in scored())
    rows = [
        row
        for row in scored()
        if kind_of(row.job, Constants()).endswith(" " + where)
        and sizes[row.source] >= FEWEST_OF_A_SET
        and row.source != OWN_SET
    ]
    if kind == "base":
        for source, larger in grown().items():
            ratios[source] += [measured / predicted for measured, predicted, _ in larger]
    elif whose in ("pair", "scaled"):
        # Residuals of one set that are alike, in both orders.
        alike: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for row in rows:
            pair = row.row["model"], row.row["hardware"]
            key = pair if whose == "pair" else family_of(row.row)
            alike[row.source, *key].append(row.measured / row.steps("out")[1])
        for (source, *_), residuals in alike.items():
            ratios[source] += [a / b for a, b in permutations(residuals, 2)]
    else:
        for row in rows:
            if whose == "unknown" and row.kinds["out"].startswith("known"):
                continue
            ratios[row.source].append(row.measured / row.steps(which)[1])
    values = [ratio for each in ratios.values() for ratio in each]
    weights = [1 / len(each) for each in ratios.values() for _ in each]
    ends = np.quantile(
        values, [(1 - share) / 2, (1 + share) / 2], weights=weights, method="inverted_cdf"
    )
    return [round(float(end) ** (WIDENED if which == "own" else 1.0), 2) for end in ends]


def test_the_bands_are_those_of_the_residuals() -> None:
    for kind, ends in content()["band"].items():
        assert band(kind) == ends


@pytest.mark.parametrize(
    ("path", "names"),
    [("docs/planner.md", ["errors", "bars", "limits"]), ("README.md", ["errors by GPU"])],
)
def test_the_page_has_the_parts_that_are_computed(path: str, names: list[str]) -> None:
    text = Path(path).read_text(encoding="utf-8")
    for name in names:
        first, last = marks(name)
        before, _, rest = text.partition(first)
        written, _, after = rest.partition(last)
        assert written.strip() == in_markdown()[name], f"python -m pipeline predict --page {path}"
        if name == "errors":
            prose = re.sub(r"^\|.*$|<!--.*-->", "", f"{before} {after}", flags=re.MULTILINE)
            assert len(prose.split()) <= 1400


def test_each_constant_has_a_source_and_is_held_to_what_is_physical() -> None:
    for kind in ("devices", "profiles"):
        for owner, entry in content()[kind].items():
            for name, constant in entry["constants"].items():
                low, high = constant["limits"]
                values = (constant["value"], *constant.get("without", {}).values())
                assert all(low <= value <= high for value in values), (owner, name)
                source = constant["source"]
                assert source in ("data sheet", "published", "measured", "assumed"), (owner, name)
                assert bool(constant["from"]) == (source == "measured"), (owner, name)
                assert ("where" in constant) == (source == "published"), (owner, name)
                assert constant["unit"], (owner, name)


@pytest.mark.parametrize(
    ("hardware", "link"),
    [("A800-SXM4-80GB", 200), ("NVIDIA A100-SXM4-80GB", 300), ("A100-PCIE-40GB", 31.5),
     ("H800", 200), ("V100S-PCIE-32GB", 15.75), ("V100-32GB-DGX2", 150), ("8xH200", 450)],
)  # fmt: skip
def test_a_variant_of_a_device_states_what_differs(hardware, link) -> None:
    devices = content()["devices"]
    name = next(n for n in devices if re.search(devices[n]["pattern"], hardware))
    of = Constants().device(name)
    assert of["link_gb_s"] == link and set(of) == set(Constants().device("H100"))


@pytest.mark.parametrize(("gib", "rate"), [("79.15", 2039), ("39.4", 1555), ("", 1555)])
def test_an_a100_is_told_by_its_memory(gib: str, rate: int) -> None:
    row = next(row for row in points() if row["hardware"] == "A100-80GB")
    job = jobs_of({**row, "hardware": "A100-SXM4", "device_gib": gib})[0]
    assert device_of(job, Constants()).constants["memory_gb_s"] == rate


def test_no_set_is_predicted_with_a_constant_derived_from_it(monkeypatch) -> None:
    """Its predictions stay as they are whatever such a constant is."""
    for source in by_source():
        rows = [row for row in points() if source_of(row) == source]
        before = [predict_row(row, Constants(source)) for row in rows]
        other, changed = deepcopy(content()), 0
        for entry in (*other["devices"].values(), *other["profiles"].values()):
            for constant in entry["constants"].values():
                if source in constant["from"]:
                    constant["value"], changed = 1.5 * constant["value"] + 1, changed + 1
        with monkeypatch.context() as patched:
            patched.setattr("pipeline.cost.constants.content", lambda other=other: other)
            assert [predict_row(row, Constants(source)) for row in rows] == before
            if changed:
                assert [predict_row(row, Constants()) for row in rows] != before


def test_each_bar_that_is_missed_and_no_other_says_which_part_is_wrong() -> None:
    rows = bars.rows()
    assert {row["verdict"] for row in rows} == {"met", "missed"}
    for row in rows:
        assert bool(row["wrong"]) == (row["verdict"] == "missed"), row
    assert len(bars.missed()) == len(bars.WRONG)


def test_every_set_has_a_bar() -> None:
    named = {bar.what.partition(" ")[0] for bar in bars.BARS}
    assert set(by_source()) <= named
