"""One function for each kind of test: a claim and a study -> what was found.

A new kind is a function here, its shape in `workflow/schemas/claims.schema.yaml`, and its way to
each verdict in `tests/claims_worlds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.claims.quantities import (
    estimate,
    largest,
    over_repeats,
    own,
    ratio,
    seconds_to_loss,
    smallest,
)
from pipeline.claims.types import Claim, Estimate, NotTestableError, Selector
from pipeline.claims.worlds import ONE_MACHINE, SEVERAL_NODES, Evidence, Place, choose
from pipeline.metrics.select import pick, plural

_RATE = "tokens_per_second"
_TIMES = (_RATE, "step_seconds", "seconds_to_loss")
# How a run ends that could have gone on: a sign against robustness.
_BROKEN = ("failed", "oom", "timeout")


@dataclass(frozen=True)
class Found:
    """What a test found: the effect and what it is of, or a finding that is no number."""

    places: Sequence[Place]
    what: str
    effect: Estimate | None = None
    holds: bool | None = None
    why: str = ""
    speeds: Sequence[tuple[Place, Place]] = ()
    """Pairs of which the effect says that the first is faster, or slower, than the second."""
    timed: bool = False
    """Whether the effect is a ratio of times, which emulated nodes may bend."""


def ratio_of_two(claim: Claim, evidence: Evidence) -> Found:
    """Metric of `a` over that of `b`."""
    test = claim.test
    compares = test.get("compares", ())
    places = choose(evidence, claim, [test["a"], test["b"]], test["where"], compares)
    if test["metric"] == "seconds_to_loss":
        one, other = seconds_to_loss(evidence, places)
    else:
        one, other = (estimate(evidence, place, test["metric"]) for place in places)
    # Time goes up where speed goes down.
    turned = {"step_seconds": places[::-1], _RATE: places}.get(test["metric"])
    speeds = [(turned[0], turned[1])] if turned else []
    what, timed = _over(test["metric"], places), test["metric"] in _TIMES
    return Found(places, what, ratio(one, other), speeds=speeds, timed=timed)


def ratio_of_ratios(claim: Claim, evidence: Evidence) -> Found:
    """(a / b) over (c / d)."""
    test = claim.test
    places = choose(evidence, claim, [test[key] for key in "abcd"], test["where"])
    a, b, c, d = (estimate(evidence, place, test["metric"]) for place in places)
    what = f"{_over(test['metric'], places[:2])}, over the same of {_cells(places[2:])}"
    return Found(places, what, ratio(ratio(a, b), ratio(c, d)), timed=test["metric"] in _TIMES)


def best(claim: Claim, evidence: Evidence) -> Found:
    """Throughput of `a` over that of the best of the others, of which none may be missing."""
    test = claim.test
    places = choose(evidence, claim, [test["a"], *test["others"]], test["where"])
    first, *others = (estimate(evidence, place, _RATE) for place in places)
    what = f"throughput of {places[0].cell} over the best of {_cells(places[1:], ', ')}"
    speeds = [(places[0], place) for place in places[1:]]
    return Found(places, what, ratio(first, largest(others)), speeds=speeds, timed=True)


def robust(claim: Claim, evidence: Evidence) -> Found:
    """Worst place of `a` over one and several nodes, over that of the best of the others.

    The place at one world is the throughput over that of the world's best cell. A run of `a` that
    broke settles the claim.
    """
    test = claim.test
    selectors: list[Selector] = [test["a"], *test["others"]]
    broken = _broken(evidence, selectors[0])
    if broken is not None:
        return broken
    worlds = [choose(evidence, claim, selectors, w) for w in (ONE_MACHINE, SEVERAL_NODES)]
    at = [[_relative(evidence, place, places) for place in places] for places in worlds]
    first, *others = (smallest(relative) for relative in zip(*at, strict=True))
    names = worlds[0]
    what = f"lowest relative throughput of {names[0].cell} over that of {_cells(names[1:], ', ')}"
    everywhere = [p for places in worlds for p in places]
    return Found(everywhere, what, ratio(first, largest(others)), timed=True)


def _relative(evidence: Evidence, place: Place, places: Sequence[Place]) -> Estimate:
    """Throughput over that of the fastest of these places, which may be the place itself."""
    rate = estimate(evidence, place, _RATE)
    others = largest([estimate(evidence, p, _RATE) for p in places if p is not place])
    return Estimate(
        rate.value / max(rate.value, others.value),
        rate.low / max(rate.low, others.high),
        rate.high / max(rate.high, others.low),
        rate.how,
    )


def _broken(evidence: Evidence, selector: Selector) -> Found | None:
    places = evidence.places(selector)
    status = pick(evidence.table, "run", "status")
    for place in places:
        bad = own(status, place)
        bad = bad[bad["text"].isin(_BROKEN)]
        if len(bad):
            runs = f"{plural(len(bad), 'run')} of {place.cell} on {place.ranks} ranks"
            return Found([place], runs, holds=False, why=f"{runs} ended as {bad['text'].iloc[0]}")
    return None


def efficiency(claim: Claim, evidence: Evidence) -> Found:
    """Largest efficiency of the cells on several nodes, each against itself on one node."""
    found: list[Place] = []
    shares = []
    for selector in claim.test["cells"]:
        [many] = choose(evidence, claim, [selector], SEVERAL_NODES)
        one = next((p for p in evidence.places(selector) if _is_base(p, many)), None)
        if one is None or one.row["status"] != "ok":
            raise NotTestableError(f"{many.cell} has no finished run on one node to compare with")
        found += [many, one]
        times = ratio(estimate(evidence, many, _RATE), estimate(evidence, one, _RATE))
        factor = many.ranks / one.ranks
        shares.append(
            Estimate(times.value / factor, times.low / factor, times.high / factor, times.how)
        )
    cells = ", ".join(place.cell for place in found if place.nodes > 1)
    what = f"largest efficiency of {cells} on {found[0].nodes} nodes against one"
    return Found(found, what, largest(shares), timed=True)


def _is_base(place: Place, many: Place) -> bool:
    """The same arm on one node with the same work in all, or for each rank under weak scaling."""
    share = place.ranks if place.row["scaling"] == "weak" else 1
    others = many.ranks if many.row["scaling"] == "weak" else 1
    same = place.row["global_batch"] / share == many.row["global_batch"] / others
    return bool(place.beside(many) and place.nodes == 1 and same)


def utilisation(claim: Claim, evidence: Evidence) -> Found:
    """Largest relative distance of any rank's mean utilisation from the expected one."""
    test = claim.test
    [place] = choose(evidence, claim, [test["a"]], test["where"])
    ranks = own(pick(evidence.table, "rank", "mean_utilisation"), place)
    expected = test["expected"]
    count = int(ranks.groupby("run_id")["rank"].nunique().min()) if len(ranks) else 0
    if count != len(expected):
        raise NotTestableError(
            f"{place.cell} recorded {count} of {len(expected)} devices that the claim names"
        )
    distance = [
        max(abs(v / e - 1) for v, e in zip(run.sort_values("rank")["value"], expected, strict=True))
        for _, run in ranks.groupby("run_id", sort=True)
    ]
    what = f"largest distance of a rank of {place.cell} from the published utilisation"
    return Found([place], what, over_repeats(distance))


def fits(claim: Claim, evidence: Evidence) -> Found:
    """Whether one cell finished where the other ran out of memory."""
    fitting, large = (evidence.places(claim.test[key]) for key in ("fits", "too_large"))
    for one in fitting:
        other = next((p for p in large if p.nodes == one.nodes and p.ranks == one.ranks), None)
        if other is None or one.nodes > 1:
            continue
        ended = tuple(_ends(evidence, place) for place in (one, other))
        what = f"whether {one.cell} finishes and {other.cell} runs out of memory"
        why = f"{one.cell} is {ended[0]}, {other.cell} is {ended[1]}"
        if set(ended) <= {"ok", "oom"}:
            return Found([one, other], what, holds=ended == ("ok", "oom"), why=why)
        raise NotTestableError(why)
    wanted = (claim.test[key] for key in ("fits", "too_large"))
    raise NotTestableError(f"the study has no pair of {' and '.join(map(str, wanted))} on one node")


def _ends(evidence: Evidence, place: Place) -> str:
    """How the runs of a place ended, the worst of them: out of memory before ok."""
    ended = set(own(pick(evidence.table, "run", "status"), place)["text"])
    return "oom" if ended <= {"ok", "oom"} and "oom" in ended else " and ".join(sorted(ended))


def memory_formula(claim: Claim, evidence: Evidence) -> Found:
    """Measured memory at an empty batch over that of the parameters' values.

    Memory is a line over the batch of a rank; through the smallest and the largest batch that the
    cell ran with, it is drawn back to an empty batch.
    """
    test = claim.test
    places = evidence.places(test["a"])
    cell = [p for p in places if p.row["status"] == "ok" and p.beside(places[0])]
    by_batch = {float(p.row["global_batch"] / p.ranks): p for p in cell}
    if len(by_batch) < 2:
        raise NotTestableError(f"the study has no two batches a rank of {test['a']}")
    low, high = min(by_batch), max(by_batch)
    one, two = (estimate(evidence, by_batch[b], "peak_memory_bytes") for b in (low, high))
    values = test["values_per_parameter"] * test["bytes_per_value"]
    predicted = values * evidence.fact("num_parameters")
    part = high - low

    def intercept(small: float, large: float) -> float:
        return float((high * small - low * large) / part / predicted)

    effect = Estimate(
        intercept(one.value, two.value), intercept(one.low, two.high),
        intercept(one.high, two.low), f"line through {low:g} and {high:g} sequences a rank",
    )  # fmt: skip
    what = f"measured memory of {by_batch[low].cell} at an empty batch over the predicted one"
    return Found([by_batch[low], by_batch[high]], what, effect)


def _over(metric: str, places: Sequence[Place]) -> str:
    name = {_RATE: "throughput", "step_seconds": "step time"}.get(metric, metric.replace("_", " "))
    return f"{name} of {_cells(places)}"


def _cells(places: Sequence[Place], join: str = " over ") -> str:
    return join.join(place.cell for place in places)


KINDS: Mapping[str, Callable[[Claim, Evidence], Found]] = {
    "ratio": ratio_of_two,
    "ratio_of_ratios": ratio_of_ratios,
    "best": best,
    "robust": robust,
    "efficiency": efficiency,
    "utilisation": utilisation,
    "fits": fits,
    "memory_formula": memory_formula,
}
