"""One function for each kind of test: a claim and a study -> its outcome in one world.

A new kind is a function here, its shape in `workflow/schemas/claims.schema.yaml`, and its way to
each verdict in `tests/claims_worlds.py`. `decide.Outcome` is what a function returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product

import numpy as np

from pipeline.claims.decide import Beside, Contrast, Outcome
from pipeline.claims.quantities import (
    RATE,
    Quantity,
    facts,
    lost_shares,
    measure,
    over_repeats,
    ratio,
    seconds_to_loss,
)
from pipeline.claims.types import Claim, NotTestableError
from pipeline.claims.worlds import ONE_MACHINE, SEVERAL_NODES, Evidence, Place, choose
from pipeline.metrics.parity import EQUAL, UNEQUAL
from pipeline.metrics.statistics import MIN_REPEATS, Interval
from pipeline.text import listed, plural


def _named(metric: str, *cells: str) -> str:
    """A metric of a cell, or of one cell over another, for a reader."""
    name, _, axis = metric.partition(":")
    along = f" along the axis {axis}" if axis else ""
    return f"{facts(name).words or name.replace('_', ' ')}{along} of {' over '.join(cells)}"


def _joined(places: Sequence[Place]) -> str:
    return ", ".join(place.label for place in places)


def _extreme(intervals: Sequence[Interval], least: bool = True) -> Interval:
    """The least or the greatest of several, with the bounds of that.

    The lower bound of the greatest errs more often than each: a decision on that side is corrected
    for their number by `decide`.
    """
    of: Callable[..., float] = min if least else max
    hows = "; ".join(dict.fromkeys(one.how for one in intervals))
    return Interval(
        of(one.value for one in intervals), of(one.low for one in intervals),
        of(one.high for one in intervals), min(one.n for one in intervals), hows,
    )  # fmt: skip


def _extreme_ratio(
    pairs: Sequence[tuple[Quantity, Quantity]], least: bool
) -> tuple[Interval, list[Contrast]]:
    """The extreme of the ratios of these pairs, and the samples behind them."""
    ratios = [ratio(one.interval, other.interval) for one, other in pairs]
    samples = [(one.values, other.values) for one, other in pairs]
    sampled = [(ones, others) for ones, others in samples if len(ones) and len(others)]
    return _extreme(ratios, least), sampled


def compare(claim: Claim, evidence: Evidence, word: str = "", least: bool = True) -> Outcome:
    """Metric of `a` over that of `b`, or its throughput over the `word` of the others.

    None of the others may be missing.
    """
    test = claim.test
    metric = test.get("metric", RATE)
    rivals = test.get("others") or [test["b"]]
    places = choose(evidence, claim, [test["a"], *rivals], test["where"])
    if metric == "seconds_to_loss":
        first, *others = seconds_to_loss(evidence, places)
    else:
        first, *others = (measure(evidence, place, metric) for place in places)
    effect, contrasts = _extreme_ratio([(first, other) for other in others], least)
    rival = f"the {word} of {_joined(places[1:])}" if word else places[1].label
    what, timed = _named(metric, places[0].label, rival), facts(metric).is_time
    # Time goes up where speed goes down: the planned comparisons are of throughputs.
    faster = [(places[0], place) for place in places[1:]]
    slower = [(place, places[0]) for place in places[1:]]
    speeds = {RATE: faster, "step_seconds": slower}.get(metric, [])
    return Outcome(places, what, effect, contrasts, least, speeds=speeds, num_times=timed)


def ratio_of_ratios(claim: Claim, evidence: Evidence) -> Outcome:
    """(a / b) over (c / d)."""
    test = claim.test
    places = choose(evidence, claim, [test[key] for key in "abcd"], test["where"])
    a, b, c, d = (measure(evidence, place, test["metric"]).interval for place in places)
    of = [place.label for place in places]
    what = f"{_named(test['metric'], *of[:2])}, over the same of {of[2]} over {of[3]}"
    timed = 2 * facts(test["metric"]).is_time
    return Outcome(places, what, ratio(ratio(a, b), ratio(c, d)), num_times=timed)


def formula(claim: Claim, evidence: Evidence) -> Outcome:
    """Metric of `a` over what the formula of its strategy says, which is the publication's."""
    test, metric = claim.test, claim.test["metric"]
    [place] = choose(evidence, claim, [test["a"]], test["where"])
    # The schedule alone has the formula of the bubble.
    said = "phase_bubble_formula" if metric.startswith("phase_bubble") else f"predicted_{metric}"
    measured, expected = (measure(evidence, place, one) for one in (metric, said))
    effect = ratio(measured.interval, expected.interval)
    of_it = measured.values / expected.interval.value
    what = f"{_named(metric, place.label)} over its formula"
    return Outcome([place], what, effect, [(of_it, np.ones(1))] if len(of_it) else [])


def robust(claim: Claim, evidence: Evidence) -> Outcome:
    """Worst place of `a` over one and several nodes, over that of the best of the others.

    The place at one world is the throughput over that of the world's best cell. A run of `a` that
    broke settles the claim, where that cell had as many runs as any decision needs.
    """
    test = claim.test
    if (begin := evidence.study.begin_steps) is not None:
        raise NotTestableError(
            f"robustness is asked of whole trainings, and most runs here end after {begin} of "
            f"{evidence.study.workload.steps} steps"
        )
    for place in evidence.places(test["a"]):
        ended = evidence.rows(place, "run", "status")["text"]
        # Endings of runs that could have continued.
        bad = ended[ended.isin(("failed", "oom", "timeout"))]
        if len(bad) and len(ended) >= MIN_REPEATS:
            runs = f"{plural(len(bad), 'run')} of {place.label} on {place.ranks} ranks"
            return Outcome([place], holds=False, why=f"{runs} ended as {bad.iloc[0]}")
    selectors = [test["a"], *test["others"]]
    worlds = [choose(evidence, claim, selectors, w) for w in (ONE_MACHINE, SEVERAL_NODES)]
    at = []
    for places in worlds:
        rates = [measure(evidence, place, RATE).interval for place in places]
        relative = []
        for rate in rates:
            # Bounds by the rivals' opposite ends: no correlation between two cells is presumed.
            best = _extreme([other for other in rates if other is not rate], least=False)
            relative.append(Interval(
                rate.value / max(rate.value, best.value), rate.low / max(rate.low, best.high),
                rate.high / max(rate.high, best.low), min(rate.n, best.n), rate.how,
            ))  # fmt: skip
        at.append(relative)
    # Of each cell its worst place; the two worlds are in the order of `at`.
    first, *others = (_extreme(relative) for relative in zip(*at, strict=True))
    cell, *rivals = worlds[0]
    what = f"lowest relative throughput of {cell.label} over that of {_joined(rivals)}"
    effect = ratio(first, _extreme(others, least=False))
    return Outcome([*worlds[0], *worlds[1]], what, effect, num_times=2)


def absolute(claim: Claim, evidence: Evidence) -> Outcome:
    """A metric of one cell in `unit`s of the claim: no ratio, so only at the machine stated.

    `judge` asks the hardware and the model of `made_at` before.
    """
    test, made, metric = claim.test, claim.made_at, claim.test["metric"]
    [place] = choose(evidence, claim, [test["a"]], test["where"])
    if (place.nodes, place.ranks) != made.world:
        raise NotTestableError(f"it is of {made}, and {place.label} ran on {place.ranks} ranks")
    value = measure(evidence, place, metric)
    what, timed = f"{_named(metric, place.label)} in {facts(metric).unit}", facts(metric).is_time
    return Outcome([place], what, value.interval, [(value.values, np.ones(1))], num_times=timed)


def utilisation(claim: Claim, evidence: Evidence) -> Outcome:
    """Largest relative distance of any rank's mean utilisation from the expected one."""
    test, expected = claim.test, claim.test["expected"]
    [place] = choose(evidence, claim, [test["a"]], test["where"])
    ranks = evidence.rows(place, "rank", "mean_utilisation")
    count = int(ranks.groupby("run_id")["rank"].nunique().min()) if len(ranks) else 0
    if count != len(expected):
        raise NotTestableError(
            f"{place.label} recorded {count} of {len(expected)} devices that the claim names"
        )
    distance = over_repeats(
        max(abs(run.sort_values("rank")["value"].to_numpy(float) / expected - 1))
        for _, run in ranks.groupby("run_id", sort=True)
    )
    what = f"largest distance of a rank of {place.label} from the published utilisation"
    return Outcome([place], what, distance.interval, [(distance.values, np.ones(1))])


def fits(claim: Claim, evidence: Evidence) -> Outcome:
    """Endings of two cells on one node: one finished, the other ran out of memory."""
    wanted = [claim.test[key] for key in ("fits", "too_large")]
    alike = [
        (one, other)
        for one, other in product(*map(evidence.places, wanted))
        if one.nodes == other.nodes == 1 and one.ranks == other.ranks
    ]
    if not alike:
        cells = " and ".join(map(str, wanted))
        raise NotTestableError(f"the study has no pair of {cells} on one node")
    ends = []
    for place in alike[0]:
        ended = evidence.rows(place, "run", "status")["text"]
        if len(ended) < MIN_REPEATS:
            runs = f"{plural(len(ended), 'run')} of the {MIN_REPEATS} that a decision needs"
            raise NotTestableError(f"{place.label} has {runs}")
        kinds = sorted({*ended})
        # The worst of them counts: out of memory before ok.
        ends.append("oom" if kinds in (["oom"], ["ok", "oom"]) else " and ".join(kinds))
    one, other = (place.label for place in alike[0])
    why = f"{one} is {ends[0]}, {other} is {ends[1]}"
    if not {*ends} <= {"ok", "oom"}:
        raise NotTestableError(why)
    return Outcome(alike[0], holds=ends == ["ok", "oom"], why=why)


def same_steps(claim: Claim, evidence: Evidence) -> Outcome:
    """Parity of all cells over several nodes with the single device."""
    places: list[Place] = []
    for selector in claim.test["cells"]:
        several = [p for p in evidence.places(selector) if p.nodes > 1]
        if not several:
            raise NotTestableError(f"the study has no cell of {selector} on several nodes")
        places += several
    apart: list[str] = []
    for place in places:
        words = {*evidence.rows(place, "cell", "parity_verdict")["text"]}
        if not words or not words <= {EQUAL, *UNEQUAL}:
            raise NotTestableError(f"{place.label} was not held against a single device")
        apart += [place.label] if words != {EQUAL} else []
    why = f"{_joined(places)} took the steps of a single device, within the bands of parity"
    if apart:
        why = f"{listed(apart)} left the bands of parity around the single device's steps"
    return Outcome(places, holds=not apart, why=why)


def memory_formula(claim: Claim, evidence: Evidence) -> Outcome:
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
    one, two = (measure(evidence, by_batch[b], "peak_memory_bytes").interval for b in (low, high))
    values = test["values_per_parameter"] * test["bytes_per_value"]
    predicted = values * evidence.results.least("num_parameters")

    def intercept(small: float, large: float) -> float:
        return float((high * small - low * large) / (high - low) / predicted)

    # The line is lowest at an empty batch where it is steepest.
    effect = Interval(
        intercept(one.value, two.value), intercept(one.low, two.high),
        intercept(one.high, two.low), min(one.n, two.n),
        f"corners of a line through {low:g} and {high:g} sequences a rank; {one.how}",
    )  # fmt: skip
    what = f"measured memory of {by_batch[low].label} at an empty batch over the predicted one"
    return Outcome([by_batch[low], by_batch[high]], what, effect)


def efficiency(claim: Claim, evidence: Evidence) -> Outcome:
    """Largest efficiency of the cells on several nodes, each against itself on one node."""
    pairs, kept, contrasts = _against_one_node(claim, evidence)
    cells = _joined([many for many, _ in pairs])
    what = f"largest efficiency of {cells} on {pairs[0][0].nodes} nodes, each against itself on one"
    places = [place for pair in pairs for place in pair]
    return Outcome(places, what, _extreme(kept, least=False), contrasts, least=False, num_times=1)


def explained(claim: Claim, evidence: Evidence) -> Outcome:
    """Smallest share that exposed communication has of the speedup lost on several nodes.

    A step that does nothing else than compute and communicate, and computes at the ideal speedup,
    has efficiency 1 - c where c is its share of exposed communication; so the share is
    c / (1 - efficiency). Profiled runs give c, one run each. It must decide alike where passes that
    take longer than at the ideal speedup count as communication, which may run on the same core.
    """
    pairs, efficiencies, _ = _against_one_node(claim, evidence)
    shares, exposed, with_slower = [], list[Interval](), list[float]()
    for (many, one), kept in zip(pairs, efficiencies, strict=True):
        if kept.high >= 1:
            raise NotTestableError(
                f"{many.label} on {many.nodes} nodes lost no speedup that the data show"
            )
        # What is kept most is lost least: the bounds change places.
        lost = Interval(1 - kept.value, 1 - kept.high, 1 - kept.low, kept.n, kept.how)
        communication, slower = lost_shares(evidence, many, one)
        exposed.append(communication)
        shares.append(ratio(communication, lost))
        with_slower.append((communication.value + slower) / lost.value)

    def bent(off: float) -> tuple[float, float]:
        lows, highs = zip(*(map(partial(_bent_share, off), exposed, efficiencies)), strict=True)
        return min(lows), min(highs)

    places = [place for pair in pairs for place in pair]
    cells = _joined([many for many, _ in pairs])
    what = f"smallest share of exposed communication in the lost speedup of {cells}"
    how = "with what passes take longer than ideal counted as communication it is"
    # A value alone: `lost_shares` has no interval of what passes are slowed by.
    other, n = min(with_slower), min(one.n for one in shares)
    alone = Interval(other, other, other, n, "no interval")
    slowed = Beside(alone, how, "a machine on which passes of several nodes are no slower")
    return Outcome(places, what, _extreme(shares), beside=slowed, bent=bent)


def _bent_share(off: float, exposed: Interval, kept: Interval) -> tuple[float, float]:
    """Ends of the share of the lost speedup where a step is up to `off` times too long or short.

    The emulated step counts as 1: `exposed` is communication, and `kept`, the efficiency, what the
    step would take without any loss. A true step of `step` differs in its computing or in its
    communication, which nothing tells apart.
    """

    def shares(communication: float, ideal: float) -> Iterator[float]:
        for step in (1 / off, off):
            for part in (communication, max(0.0, communication + step - 1)):
                yield part / (step - ideal) if step > ideal else math.nan

    lows, highs = [*shares(exposed.low, kept.low)], [*shares(exposed.high, kept.high)]
    if any(map(math.isnan, lows + highs)):  # such a step loses no speedup
        return -math.inf, math.inf
    return min(lows), max(highs)


def _against_one_node(
    claim: Claim, evidence: Evidence
) -> tuple[list[tuple[Place, Place]], list[Interval], list[Contrast]]:
    """Pairs (several nodes, one node), and of each the efficiency and the runs behind it."""

    def work(place: Place) -> float:
        """Global batch, under weak scaling that of each device."""
        devices = place.row["data_devices"] if place.row["scaling"] == "weak" else 1
        return float(place.row["global_batch"] / devices)

    pairs, efficiencies, contrasts = [], [], []
    for many in choose(evidence, claim, claim.test["cells"], SEVERAL_NODES):
        # The same arm on one node with the same work: the batch, or that of each device.
        beside = [p for p in evidence.places(many.selector) if p.nodes == 1 and p.beside(many)]
        one = next((p for p in beside if work(p) == work(many)), None)
        if one is None or one.row["status"] != "ok":
            raise NotTestableError(f"{many.label} has no finished run on one node to compare with")
        pairs.append((many, one))
        rate, base = measure(evidence, many, RATE), measure(evidence, one, RATE)
        ideal = many.ranks / one.ranks
        efficiencies.append(ratio(rate.interval, base.interval).times(1 / ideal))
        contrasts.append((rate.values / ideal, base.values))
    return pairs, efficiencies, contrasts


def trend(claim: Claim, evidence: Evidence) -> Outcome:
    """Ratio of a metric of a cell at a node count to that at the one before.

    The smallest for a claim `above` a bound, else the largest, so that the trend holds all along.
    """
    test, metric = claim.test, claim.test["metric"]
    ok = [
        p
        for p in evidence.places(test["a"])
        if p.row["status"] == "ok"
        and not evidence.rows(p, "cell", "parity_verdict")["text"].isin(UNEQUAL).any()
    ]
    # The cell over one link, with the one node that over several links is a cell of its own.
    line = sorted((p for p in ok if p.beside(ok[0]) or ok[0].beside(p)), key=lambda p: p.nodes)
    line = list({p.nodes: p for p in line}.values())
    if len(line) < 3:
        raise NotTestableError(f"a trend needs {test['a']} on three node counts or more")
    values = [measure(evidence, place, metric) for place in line]
    least = test["comparison"] == "above"
    steps = [(one, before) for before, one in pairwise(values)]
    effect, contrasts = _extreme_ratio(steps, least)
    word = "least" if least else "largest"
    what = f"{word} ratio from one node count to the next in {_named(metric, line[0].label)}"
    return Outcome(line, what, effect, contrasts, least, num_times=facts(metric).is_time)


KINDS: Mapping[str, Callable[[Claim, Evidence], Outcome]] = {
    "ratio": compare,
    "best": partial(compare, word="best"),
    "worst": partial(compare, word="least", least=False),
    **{
        function.__name__: function
        for function in (
            ratio_of_ratios, formula, robust, efficiency, explained, trend, absolute, utilisation,
            fits, same_steps, memory_formula,
        )
    },
}  # fmt: skip
