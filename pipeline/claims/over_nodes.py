"""Kinds of test that hold several node counts of a cell against one another.

`kinds.py` has all others and says how a kind is added.
"""

from __future__ import annotations

from pipeline.claims.choose import SEVERAL_NODES, choose
from pipeline.claims.decide import RATE, TIMES, Contrast, Found, extreme, named
from pipeline.claims.quantities import communication_share, measure, ratio
from pipeline.claims.types import Claim, NotTestableError, Quantity
from pipeline.claims.worlds import Evidence, Place
from pipeline.metrics.statistics import Interval


def efficiency(claim: Claim, evidence: Evidence) -> Found:
    """Largest efficiency of the cells on several nodes, each against itself on one node."""
    pairs, contrasts = _against_one_node(claim, evidence)
    effects = [ratio(m.interval, o.interval).times(1 / f) for m, o, f in contrasts]
    cells = ", ".join(many.label for many, _ in pairs)
    what = f"largest efficiency of {cells} on {pairs[0][0].nodes} nodes against one"
    values = [Contrast(m.values / f, o.values) for m, o, f in contrasts]
    places = [place for pair in pairs for place in pair]
    return Found(places, what, extreme(effects, max), values, "any", num_times=1)


def explained(claim: Claim, evidence: Evidence) -> Found:
    """Smallest share that exposed communication has of the speedup lost on several nodes.

    A step that does nothing else than compute and communicate, and computes at the ideal speedup,
    has efficiency 1 - c where c is its share of exposed communication; so the share is
    c / (1 - efficiency). Profiled runs give c, one run each.
    """
    pairs, contrasts = _against_one_node(claim, evidence)
    shares = []
    for (many, _), (rate, base, factor) in zip(pairs, contrasts, strict=True):
        kept = ratio(rate.interval, base.interval).times(1 / factor)
        if kept.high >= 1:
            raise NotTestableError(
                f"{many.label} on {many.nodes} nodes lost no speedup that the data show"
            )
        lost = Interval(1 - kept.value, 1 - kept.high, 1 - kept.low, kept.n, kept.how)
        shares.append(ratio(communication_share(evidence, many).interval, lost))
    places = [place for pair in pairs for place in pair]
    what = "smallest share of exposed communication in the lost speedup of "
    return Found(
        places, what + ", ".join(m.label for m, _ in pairs), extreme(shares, min), num_times=1
    )


def _against_one_node(
    claim: Claim, evidence: Evidence
) -> tuple[list[tuple[Place, Place]], list[tuple[Quantity, Quantity, float]]]:
    """Pairs (several nodes, one node), and of each both throughputs and the ideal speedup."""
    pairs, measured = [], []
    for many in choose(evidence, claim, claim.test["cells"], SEVERAL_NODES):
        # The same arm on one node with the same work: the batch, or that of each device.
        beside = [p for p in evidence.places(many.selector) if p.nodes == 1 and p.beside(many)]
        one = next((p for p in beside if _work(p) == _work(many)), None)
        if one is None or one.row["status"] != "ok":
            raise NotTestableError(f"{many.label} has no finished run on one node to compare with")
        pairs.append((many, one))
        rates = measure(evidence, many, RATE), measure(evidence, one, RATE)
        measured.append((*rates, many.ranks / one.ranks))
    return pairs, measured


def _work(place: Place) -> float:
    """Global batch, under weak scaling that of each device."""
    devices = place.row["data_devices"] if place.row["scaling"] == "weak" else 1
    return float(place.row["global_batch"] / devices)


def trend(claim: Claim, evidence: Evidence) -> Found:
    """Steepest or flattest step of a metric from one node count of a cell to the next.

    `above` a bound asks it of the smallest ratio of a node count to the one before, `below` of the
    largest, so that the trend holds all along.
    """
    test = claim.test
    ok = [p for p in evidence.places(test["a"]) if p.row["status"] == "ok"]
    line = sorted((p for p in ok if p.beside(ok[0]) or ok[0].beside(p)), key=lambda p: p.nodes)
    line = list({p.nodes: p for p in line}.values())
    if len(line) < 3:
        raise NotTestableError(f"a trend needs {test['a']} on three node counts or more")
    if evidence.judged:
        raise NotTestableError("a trend is over all node counts, so it has one world")
    values = [measure(evidence, place, test["metric"]) for place in line]
    steps = list(zip(values[1:], values[:-1], strict=True))
    effects = [ratio(one.interval, before.interval) for one, before in steps]
    contrasts = [Contrast(one.values, before.values) for one, before in steps]
    rising = test["comparison"] == "above"
    what = f"{'least' if rising else 'largest'} ratio from one node count to the next in "
    return Found(
        line, what + named(test["metric"], line[:1]), extreme(effects, min if rising else max),
        contrasts, "all" if rising else "any", num_times=int(test["metric"] in TIMES),
    )  # fmt: skip
