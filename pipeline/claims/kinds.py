"""One function for each kind of test: a claim and a study -> what was found in one world.

A new kind is a function here, its shape in `workflow/schemas/claims.schema.yaml`, and its way to
each verdict in `tests/claims_worlds.py`. `decide.Found` is what a function gives back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pipeline.claims.choose import ONE_MACHINE, SEVERAL_NODES, choose
from pipeline.claims.decide import RATE, TIMES, Contrast, Found, extreme, joined, named
from pipeline.claims.over_nodes import efficiency, explained, trend
from pipeline.claims.quantities import (
    by_formula,
    measure,
    over_repeats,
    own,
    ratio,
    seconds_to_loss,
)
from pipeline.claims.types import Claim, NotTestableError, Selector
from pipeline.claims.worlds import Evidence
from pipeline.metrics.parity import EQUAL, UNEQUAL
from pipeline.metrics.select import listed, pick, plural
from pipeline.metrics.statistics import MIN_REPEATS, Interval

# How a run ends that could have continued: a sign against robustness.
_BROKEN = ("failed", "oom", "timeout")


def ratio_of_two(claim: Claim, evidence: Evidence) -> Found:
    """Metric of `a` over that of `b`."""
    test = claim.test
    metric, compares = test["metric"], test.get("compares", ())
    places = choose(evidence, claim, [test["a"], test["b"]], test["where"], compares)
    if metric == "seconds_to_loss":
        one, other = seconds_to_loss(evidence, places)
    else:
        one, other = (measure(evidence, place, metric) for place in places)
    # Time goes up where speed goes down.
    turned = {"step_seconds": places[::-1], RATE: places}.get(metric)
    speeds = [(turned[0], turned[1])] if turned else []
    effect, timed = ratio(one.interval, other.interval), int(metric in TIMES)
    # Counted bytes have no noise.
    sampled = len(one.values) and len(other.values)
    contrasts = [Contrast(one.values, other.values)] if sampled else []
    return Found(places, named(metric, places), effect, contrasts, speeds=speeds, num_times=timed)


def ratio_of_ratios(claim: Claim, evidence: Evidence) -> Found:
    """(a / b) over (c / d)."""
    test = claim.test
    places = choose(evidence, claim, [test[key] for key in "abcd"], test["where"])
    a, b, c, d = (measure(evidence, place, test["metric"]).interval for place in places)
    what = f"{named(test['metric'], places[:2])}, over the same of {joined(places[2:])}"
    timed = 2 * int(test["metric"] in TIMES)
    return Found(places, what, ratio(ratio(a, b), ratio(c, d)), num_times=timed)


def formula(claim: Claim, evidence: Evidence) -> Found:
    """Metric of `a` over what the formula of its strategy says, which is the publication's."""
    test = claim.test
    [place] = choose(evidence, claim, [test["a"]], test["where"])
    measured, expected = (of(evidence, place, test["metric"]) for of in (measure, by_formula))
    what = f"{named(test['metric'], [place])} over its formula"
    value = expected.interval.value
    contrasts = [Contrast(measured.values / value)] if len(measured.values) and value else []
    return Found([place], what, ratio(measured.interval, expected.interval), contrasts)


def against_each(
    claim: Claim, evidence: Evidence, word: str, combined: str, of: Callable[..., float]
) -> Found:
    """Throughput of `a` over the `word` of the others, of which none may be missing."""
    test = claim.test
    places = choose(evidence, claim, [test["a"], *test["others"]], test["where"])
    first, *others = (measure(evidence, place, RATE) for place in places)
    effects = [ratio(first.interval, other.interval) for other in others]
    contrasts = [Contrast(first.values, other.values) for other in others]
    what = f"throughput of {places[0].label} over the {word} of {joined(places[1:], ', ')}"
    speeds = [(places[0], place) for place in places[1:]]
    effect = extreme(effects, of)
    return Found(places, what, effect, contrasts, combined, speeds=speeds, num_times=1)


def robust(claim: Claim, evidence: Evidence) -> Found:
    """Worst place of `a` over one and several nodes, over that of the best of the others.

    The place at one world is the throughput over that of the world's best cell. A run of `a` that
    broke settles the claim, where that cell had as many runs as any decision needs.
    """
    test = claim.test
    status = pick(evidence.table, "run", "status")
    for place in evidence.places(test["a"]):
        ended = own(status, place)
        bad = ended[ended["text"].isin(_BROKEN)]
        if len(bad) and len(ended) >= MIN_REPEATS:
            runs = f"{plural(len(bad), 'run')} of {place.label} on {place.ranks} ranks"
            return Found([place], runs, holds=False, why=f"{runs} ended as {bad['text'].iloc[0]}")
    selectors: list[Selector] = [test["a"], *test["others"]]
    worlds = [choose(evidence, claim, selectors, w) for w in (ONE_MACHINE, SEVERAL_NODES)]
    at = []
    for places in worlds:
        rates = [measure(evidence, place, RATE).interval for place in places]
        at.append([_relative(rates, place) for place in range(len(rates))])
    first, *others = (extreme(relative, min) for relative in zip(*at, strict=True))
    names = worlds[0]
    what = f"lowest relative throughput of {names[0].label} over that of {joined(names[1:], ', ')}"
    everywhere = [p for places in worlds for p in places]
    return Found(everywhere, what, ratio(first, extreme(others, max)), num_times=2)


def _relative(rates: Sequence[Interval], place: int) -> Interval:
    """Throughput over that of the fastest of these, which may be the one itself."""
    rate = rates[place]
    others = extreme([other for number, other in enumerate(rates) if number != place], max)
    return Interval(
        rate.value / max(rate.value, others.value), rate.low / max(rate.low, others.high),
        rate.high / max(rate.high, others.low), min(rate.n, others.n), rate.how,
    )  # fmt: skip


def absolute(claim: Claim, evidence: Evidence) -> Found:
    """A metric of one cell in `unit`s of the claim: no ratio, so only at the machine stated.

    `judge` asks the hardware and the model of `made_at` before.
    """
    test = claim.test
    made = claim.made_at
    [place] = choose(evidence, claim, [test["a"]], test["where"])
    if (place.nodes, place.ranks) != made.world:
        raise NotTestableError(f"it is of {made}, and {place.label} ran on {place.ranks} ranks")
    found = measure(evidence, place, test["metric"])
    what = f"{named(test['metric'], [place])} in {UNITS[test['metric']]}"
    timed = int(test["metric"] in TIMES)
    return Found([place], what, found.interval, [Contrast(found.values)], num_times=timed)


UNITS: Mapping[str, str] = {
    "step_seconds": "s",
    "tokens_per_second": "tokens/s",
    "peak_memory_bytes": "bytes",
    "mean_utilisation": "1",
    "model_flops_utilisation": "1",
    "device_teraflops": "TFLOP/s a device",
}
"""Of the metrics that a claim may state as they are."""


def utilisation(claim: Claim, evidence: Evidence) -> Found:
    """Largest relative distance of any rank's mean utilisation from the expected one."""
    test = claim.test
    [place] = choose(evidence, claim, [test["a"]], test["where"])
    ranks = own(pick(evidence.table, "rank", "mean_utilisation"), place)
    expected = test["expected"]
    count = int(ranks.groupby("run_id")["rank"].nunique().min()) if len(ranks) else 0
    if count != len(expected):
        raise NotTestableError(
            f"{place.label} recorded {count} of {len(expected)} devices that the claim names"
        )
    distance = over_repeats(
        max(abs(v / e - 1) for v, e in zip(run.sort_values("rank")["value"], expected, strict=True))
        for _, run in ranks.groupby("run_id", sort=True)
    )
    what = f"largest distance of a rank of {place.label} from the published utilisation"
    return Found([place], what, distance.interval, [Contrast(distance.values)])


def fits(claim: Claim, evidence: Evidence) -> Found:
    """Whether one cell finished where the other ran out of memory."""
    wanted = [claim.test[key] for key in ("fits", "too_large")]
    fitting, large = map(evidence.places, wanted)
    if evidence.judged:
        raise NotTestableError("what fits is asked on one node, so it has one world")
    status = pick(evidence.table, "run", "status")
    for one in fitting:
        other = next((p for p in large if p.nodes == one.nodes and p.ranks == one.ranks), None)
        if other is None or one.nodes > 1:
            continue
        ends = []
        for place in (one, other):
            ended = own(status, place)["text"]
            if len(ended) < MIN_REPEATS:
                runs = f"{plural(len(ended), 'run')} of the {MIN_REPEATS} that a decision needs"
                raise NotTestableError(f"{place.label} has {runs}")
            kinds = sorted({*ended})
            # The worst of them counts: out of memory before ok.
            ends.append("oom" if kinds in (["oom"], ["ok", "oom"]) else " and ".join(kinds))
        why = f"{one.label} is {ends[0]}, {other.label} is {ends[1]}"
        if not {*ends} <= {"ok", "oom"}:
            raise NotTestableError(why)
        what = f"whether {one.label} finishes and {other.label} runs out of memory"
        return Found([one, other], what, holds=ends == ["ok", "oom"], why=why)
    raise NotTestableError(f"the study has no pair of {' and '.join(map(str, wanted))} on one node")


def same_steps(claim: Claim, evidence: Evidence) -> Found:
    """Parity of all cells over several nodes with the single device."""
    if evidence.judged:
        raise NotTestableError("all node counts are asked at once, so it has one world")
    places = []
    for selector in claim.test["cells"]:
        found = [p for p in evidence.places(selector) if p.nodes > 1]
        if not found:
            raise NotTestableError(f"the study has no cell of {selector} on several nodes")
        places += found
    verdicts, apart = pick(evidence.table, "cell", "parity_verdict"), []
    for place in places:
        words = {*own(verdicts, place)["text"]}
        if not words or not words <= {EQUAL, *UNEQUAL}:
            raise NotTestableError(f"{place.label} was not held against a single device")
        apart += [place.label] if words != {EQUAL} else []
    names = joined(places, ", ")
    why = f"{names} took the steps of a single device, within the bands of parity"
    if apart:
        why = f"{listed(apart)} left the bands of parity around the single device's steps"
    return Found(places, f"whether {names} took the same steps", holds=not apart, why=why)


def memory_formula(claim: Claim, evidence: Evidence) -> Found:
    """Measured memory at an empty batch over that of the parameters' values.

    Memory is a line over the batch of a rank; through the smallest and the largest batch that the
    cell ran with, it is drawn back to an empty batch.
    """
    test = claim.test
    if evidence.judged:
        raise NotTestableError("the formula is held against all batches, so it has one world")
    places = evidence.places(test["a"])
    cell = [p for p in places if p.row["status"] == "ok" and p.beside(places[0])]
    by_batch = {float(p.row["global_batch"] / p.ranks): p for p in cell}
    if len(by_batch) < 2:
        raise NotTestableError(f"the study has no two batches a rank of {test['a']}")
    low, high = min(by_batch), max(by_batch)
    one, two = (measure(evidence, by_batch[b], "peak_memory_bytes").interval for b in (low, high))
    values = test["values_per_parameter"] * test["bytes_per_value"]
    predicted = values * evidence.fact("num_parameters")
    part = high - low

    def intercept(small: float, large: float) -> float:
        return float((high * small - low * large) / part / predicted)

    effect = Interval(
        intercept(one.value, two.value), intercept(one.low, two.high),
        intercept(one.high, two.low), min(one.n, two.n),
        f"corners of a line through {low:g} and {high:g} sequences a rank; {one.how}",
    )  # fmt: skip
    what = f"measured memory of {by_batch[low].label} at an empty batch over the predicted one"
    return Found([by_batch[low], by_batch[high]], what, effect)


KINDS: Mapping[str, Callable[[Claim, Evidence], Found]] = {
    "ratio": ratio_of_two,
    "ratio_of_ratios": ratio_of_ratios,
    "formula": formula,
    "best": partial(against_each, word="best", combined="all", of=min),
    "worst": partial(against_each, word="least", combined="any", of=max),
    "robust": robust,
    "efficiency": efficiency,
    "explained": explained,
    "trend": trend,
    "absolute": absolute,
    "utilisation": utilisation,
    "fits": fits,
    "same_steps": same_steps,
    "memory_formula": memory_formula,
}
