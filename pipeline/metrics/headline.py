"""The result in sentences: on what it was measured, which cell wins and why, and how runs ended.

Paper, page, figures and README print these sentences and no others of their kind. A winner is named
among cells of equal precision, and only where the test on the throughputs of six runs or more
decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline import models
from pipeline.metrics.contrasts import FASTER, SLOWER
from pipeline.metrics.emulation import WHERE_MEASURED
from pipeline.metrics.format import ratio_interval, with_interval
from pipeline.metrics.parity import UNEQUAL
from pipeline.metrics.results import LEVELS, Results, records
from pipeline.metrics.runs import TIMER_SHARE
from pipeline.metrics.statistics import DRIFT
from pipeline.study.profiling import COMMUNICATION
from pipeline.text import FEW, few, listed, numbered, plural

_NETWORKS = {
    "emulated": "emulated nodes on one machine",
    "loopback": "loopback (all nodes share the cores of one machine)",
    "real": "a real network between nodes",
}


def measured_on(results: Results) -> str:
    """`GPT-2 with 0.17 M parameters on 1, 2 and 4 nodes, emulated on 2 cores (Intel Xeon)`."""
    runs = results.runs
    families = dict.fromkeys(str(model).split()[0] for model in runs["model"])
    sizes = sorted({value / 1e6 for value in results.pick("run", "num_parameters")["value"]})
    with_size = f" with {listed(f'{one:.2f}' for one in sizes)} M parameters" if sizes else ""
    model = listed(map(models.label, families)) + with_size
    cores = sorted({int(one) for one in results.pick("run", "num_cores")["value"].dropna()})
    # `Intel Xeon @ 2.80GHz`: as the machine names it, without marks of trade.
    named = results.fact("cpu_model")
    words = re.sub(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b", " ", named).split()
    shared = f"{numbered(cores, 'core')} ({' '.join(words) or named})"
    gpus = set(results.fact("gpus", "none").split(", ")) - {"none"}
    most = int(runs["world_size"].max())
    ranks = ("up to " if most > 1 else "") + plural(most, "rank")
    on = listed(sorted(gpus)) if gpus and (runs["device"] == "cuda").any() else ""
    places = {
        "emulated": f"emulated on {shared}",
        "loopback": f"{ranks} on {on}" if on else f"{ranks} that share {shared}",
        "real": f"{ranks} on {on or f'nodes of {shared}'}",
    }
    networks = set(runs["network"])
    where = listed(text for key, text in places.items() if key in networks)
    return f"{model} on {numbered(results.node_counts, 'node')}, {where}"


def place_name(rows: pd.DataFrame) -> str:
    """`4 nodes over 1 Gbit/s`: where these cells ran; the link where the study compares several."""
    if rows.empty:
        return ""
    first = rows.iloc[0]
    over = f" over {first['link']}" if first["cell"] != first["arm"] else ""
    return plural(int(first["nodes"]), "node") + over


def headline(results: Results) -> dict[str, Any]:
    """The sentences, by what each is about; an empty text where there is nothing to say.

    `measured_on` is a phrase. `result` may stand in bold only where a comparison is `decided`; else
    it says what was measured. `rest` is what is not decided, `why` what goes with the order, and
    `bias` how far emulated times may be off. `place` and `communication` (a range of shares) are
    for tiles.
    """
    place = results.last_place
    nodes = int(place["nodes"].iloc[0]) if len(place) else 0
    # The cells of one precision, best first: of fp32, or where that has under two, of the most.
    counts = place["precision"].value_counts()
    chosen = "fp32" if counts.get("fp32", 0) > 1 else counts.idxmax() if len(counts) else ""
    same = place[place["precision"] == chosen]
    same = same.sort_values("value", ascending=False, kind="stable")
    winner, rest = _ranking(results, same)
    if len(batches := sorted({int(n) for n in same["global_batch"].dropna()})) > 1:
        differ = f"Global batches differ ({listed(batches)} sequences), so equal tokens are not"
        rest = f"{rest} {differ} equal training.".strip()
    # What goes with the order of these cells, of each the rank that sends most and its share of
    # communication; nothing without profiled runs.
    exposed = results.pick("cell", f"phase_share:{COMMUNICATION}")
    exposed = exposed[(exposed["nodes"] == nodes) & (exposed["world_size"] > 1)]
    exposed_of: dict[str, tuple[float, str]] = {}
    for one in records(exposed):
        share, low, high = (100 * one[key] for key in ("value", "low", "high"))
        exposed_of[one["cell"]] = share, f"{ratio_interval(share, low, high, 0)} %"
    most_of = {one["cell"]: one for one in reversed(records(results.most_sent()))
               if one["nodes"] == nodes}  # fmt: skip
    shares: dict[str, tuple[float, str]] = {}
    sent: dict[str, tuple[float, str]] = {}
    # In the order of the study, which names no winner.
    for row in records(same.sort_values("cell_order")):
        cell, label = row["cell"], row["arm_label"]
        if cell in exposed_of:
            share, text = exposed_of[cell]
            shares[label] = share, f"{text} with {label}"
        if (most := most_of.get(cell)) is not None:
            text = f"{most['value'] / 1e6:.2f} MB with {label}"
            # What a step sends may grow with its batch.
            text += f" of {row['global_batch']:.0f} sequences" * (len(batches) > 1)
            sent[label] = most["value"], text
    why = []
    if sent:
        at = plural(nodes, "node")
        why.append(f"On {at} the busiest rank sends in a step {_few_or_ends(sent)}.")
    if shares:
        exposure = _few_or_ends(shares).replace(" %", " % of a step", 1)
        # Of stages it has what they wait for each other.
        has_bubble = not results.pick("cell", "phase_bubble").empty
        waits = ", in a pipeline with its bubble," if has_bubble else ""
        why.append(f"Exposed (not overlapped) communication{waits} was {exposure}.")
    ends = sorted(exposed_of[cell][0] for cell in place["cell"] if cell in exposed_of)
    return {
        "measured_on": measured_on(results),
        "place": place_name(place),
        "decided": bool(winner),
        "result": winner or rest,
        "rest": rest if winner else "",
        "why": " ".join(why),
        "bias": bias_sentence(results),
        "communication": " to ".join(dict.fromkeys(f"{s:.0f} %" for s in ends[:1] + ends[-1:])),
    }


def end_of_training(results: Results) -> str:
    """Losses of whole trainings against the entropy of their last, unseen text; or empty."""
    losses = results.pick("run", "unseen_loss")
    entropies = results.pick("run", "unigram_entropy").groupby("run_id")["value"].first()
    texts = []
    for one in records(losses):
        entropy, loss = float(entropies[one["run_id"]]), one["value"]
        texts.append(
            f"{one['label']} on {plural(int(one['nodes']), 'node')} {loss:.3f} nats per token, "
            f"{abs(entropy - loss):.3f} {'less' if loss < entropy else 'more'} than the unigram "
            f"entropy of that text ({entropy:.3f})"
        )
    sentences = []
    if texts:
        last = int(losses["n"].max())
        sentences.append(
            f"Loss of the last {last} steps, on text that no step before had: {listed(texts)}."
        )
    # One cell of each batch: all of a batch take the same steps.
    needed = results.pick("cell", "steps_to_loss").drop_duplicates("global_batch_tokens")
    if not needed.empty:
        counts = [
            f"{one['value']:.0f} steps of {one['global_batch_tokens']:,.0f} tokens"
            for one in records(needed)
        ]
        sentences.append(
            f"The mean loss of {int(needed['n'].max())} steps fell to {needed['text'].iloc[0]} "
            f"nats after {listed(counts)}; the table of scaling has the node hours of cells that "
            "take these steps."
        )
    return " ".join(sentences)


def bias_sentence(results: Results) -> str:
    """The bias of emulated times in a sentence, the same in all documents; empty without any."""
    if not (results.runs["network"] == "emulated").any():
        return ""
    # Of the cells that have an interval, the least ratio first.
    accurate = results.pick("cell", "accuracy").dropna(subset=["low", "high"])
    bias, rows = results.bias, records(accurate.sort_values("value", kind="stable"))
    if bias == 0.0:
        return "Each emulated node had cores of its own, so no time was dilated."
    if bias is None or not rows:
        return (
            "How far emulated times are off was not measured here, so no comparison of times is "
            f"decided (it is measured by {WHERE_MEASURED})."
        )
    extremes = [
        f"{ratio_interval(one['value'], one['low'], one['high'])} ({one['label']} on "
        f"{plural(int(one['nodes']), 'node')})"
        for one in (rows[:1] if len(rows) == 1 else [rows[0], rows[-1]])
    ]
    held = max(int(one["nodes"]) for one in rows)
    beyond = ""
    if max(results.node_counts) > held:
        beyond = f" No time on more than {plural(held, 'node')} was held against real time."
    return (
        f"Emulated steps took {' to '.join(extremes)} times as long as in real time. Ratios of "
        f"emulated times may be off by {100 * bias:.0f} % (by the worst pair) and are decided only "
        f"beyond that; shares of communication by more.{beyond} Intervals are of one session alone."
    )


def planned(results: Results) -> str:
    """`18 timed and 3 profiled runs`: the kinds of which there are any."""
    kinds = [(kind, n) for kind, n in results.planned.items() if n or kind == "timed"]
    *others, (last, number) = kinds
    return listed([*(f"{n} {kind}" for kind, n in others), plural(number, f"{last} run")])


def unfinished(results: Results, level: str = "run") -> dict[Any, tuple[str, str]]:
    """Sentence and reason for the runs of a `level` that did not finish, by cell and ending."""
    status = results.pick(level, "status")
    endings: dict[Any, tuple[str, str]] = {}
    keys = ["cell_order", "cell", "label", "text", "reason"]
    for (_, cell, label, text, reason), part in status[status["text"] != "ok"].groupby(keys):
        nodes = sorted(int(n) for n in part["nodes"].unique())
        asked = int(((status["cell"] == cell) & status["nodes"].isin(nodes)).sum())
        at = f"{plural(asked, 'run')} at {numbered(nodes, 'node')}"
        sentence = f"{label}: {text} in {len(part)} of {at}"
        endings[cell, text, reason, *nodes] = (sentence, str(reason))
    return endings


def missing(results: Results) -> list[str]:
    """One sentence for each way in which a cell did not finish, with its reason."""
    return [f"{sentence} ({reason})" for sentence, reason in unfinished(results).values()]


def not_profiled(results: Results) -> list[str]:
    """One sentence for each way in which only the profiled runs of a cell did not finish."""
    timed, profiled = unfinished(results), unfinished(results, "profile")
    return [f"{text} ({why})" for key, (text, why) in profiled.items() if key not in timed]


def mixed(results: Results) -> list[str]:
    """One sentence for each difference between runs of a cell, with the cells that have it."""
    rows = results.pick("cell", "mixed")
    sentences = []
    for text, part in rows[rows["value"] > 0].groupby("text", sort=False):
        cells = (f"{row['label']} at {plural(row['nodes'], 'node')}" for row in records(part))
        sentences.append(f"{listed(cells)}: the runs differ in {text}")
    return sentences


def setting(results: Results) -> str:
    """One line on what the numbers are: study, device, network and scaling."""
    runs = results.runs
    device = runs["device"].iloc[0].upper()
    # One real node has no network.
    networks = set(runs["network"]) - ({"real"} if runs["nodes"].max() == 1 else set())
    on = ", ".join(filter(None, [device, listed(_NETWORKS[name] for name in sorted(networks))]))
    if (dilation := results.pick("run", "dilation")["value"].max()) > 1:
        on += f", time dilated by a factor of up to {dilation:g}"
    tokens = listed(f"{n:,}" for n in sorted({int(n) for n in runs["global_batch_tokens"]}))
    last = " of the last phase" if runs["schedule"].str.contains(" after ").any() else ""
    return (
        f"Study {runs['study'].iloc[0]}: {on}; "
        f"{listed(sorted(runs['scaling'].unique()))} scaling, {tokens} tokens per step{last}; "
        "measured here"
    )


def repeats(results: Results) -> str:
    """`5 repeats`, or the range where cells differ."""
    counts = results.pick("cell", "num_ok")["value"]
    finished = sorted({int(n) for n in counts[counts > 0]})
    if len(finished) > 1:
        return f"{finished[0]} to {finished[-1]} repeats"
    return plural(finished[0], "repeat") if finished else "no finished run"


def warnings(results: Results) -> list[str]:
    """Lines on what whoever makes these results must not miss, printed by `metrics`."""
    frame = results.table
    status = frame[frame.level.isin(LEVELS) & (frame.metric == "status")]
    notes = [
        f"{row['run_id']}: {row['status']}: {row['reason']}"
        for row in records(status[status.status != "ok"])
    ]
    drifts = frame[frame.metric.isin(["drift", "order_drift"]) & (frame.text == DRIFT)]
    for row in records(drifts):
        what = "the runs in their order" if row["level"] == "study" else row["run_id"]
        notes.append(f"{what}: step times drifted by {100 * row['value']:+.1f} %")
    slow = frame[(frame.metric == "timer_overhead_share") & (frame.value > TIMER_SHARE)]
    notes += [
        f"{row['run_id']}: reading the clock takes {100 * row['value']:.1f} % of a step, over "
        f"{100 * TIMER_SHARE:g} %; make the steps longer"
        for row in records(slow)
    ]
    notes += [f"mixed: {note}" for note in mixed(results)]
    verdicts = frame[(frame.metric == "parity_verdict") & frame.text.isin(UNEQUAL)]
    return notes + [
        f"{row['text']}: {row['label']} at {row['nodes']} nodes left the tolerance of its "
        f"training against {row['base']}"
        for row in records(verdicts)
    ]


def _ranking(results: Results, same: pd.DataFrame) -> tuple[str, str]:
    """Sentence on the winner, empty without a decided comparison, and one on all else."""
    if same.empty:
        return "", ""

    def rate(row: Mapping[str, Any]) -> str:
        return with_interval(row["value"], row["low"], row["high"])

    first, *others = records(same)
    # `bf16` of `torch amp O2, bf16`.
    kind = str(first["precision_ran"]).replace(",", "").split()[-1]
    name, at = first["arm_label"], (first["cell"], first["nodes"])
    answers = [(row, results.compared(at, (row["cell"], row["nodes"]))) for row in others]
    beaten = [(row, one) for row, one in answers if one and one.verdict == FASTER]
    undecided = [row for row, one in answers if one and one.compared and one.verdict != FASTER]
    apart = [row["arm_label"] for row, one in answers if one is None or not one.compared]
    why = "because work or training were not the same"
    unlike = f" Not compared with {few(apart)}, {why}." if apart else ""
    where = f"At {place_name(same)} in {kind}"
    if not beaten:
        if len(others) > FEW:
            cells = f"which of {len(undecided) + 1} cells is fastest"
            still_open = f"the data do not decide {cells}" if undecided else "nothing is compared"
            return "", f"{where}, {still_open}.{unlike}"
        # In the order of the study: the order of throughputs would name a winner.
        rates = listed(
            f"{row['arm_label']} trained {rate(row)}"
            for row in records(same.sort_values("cell_order"))
        )
        still_open = "; the data do not decide which has more" if undecided else ""
        return "", f"{where}, {rates} tokens/s{still_open}.{unlike}"
    ratios = few(
        f"{ratio_interval(one.ratio, one.low, one.high)} times that of {row['arm_label']}"
        for row, one in beaten
    )
    winner = f"{where}, {name} had a throughput of {rate(first)} tokens/s, {ratios}."
    # What is slower than one device alone is no gain, however it is ordered.
    known, rest = results.comparisons, ""
    at_place = known["cell"].isin(same["cell"]) & (known["nodes"] == first["nodes"])
    alone = known[at_place & (known["other_nodes"] < known["nodes"])]
    if len(alone) == len(same) and not (alone["verdict"] == FASTER).any():
        all_slower = (alone["verdict"] == SLOWER).all()
        how = "All were slower" if all_slower else "None is shown to be faster"
        labels = results.cells.set_index("cell")["label"]
        bases = dict.fromkeys(
            f"{labels[one['other']]} on {plural(int(one['other_nodes']), 'node')}"
            for one in records(alone)
        )
        rest = f"{how} than {listed(bases)}. "
    if undecided:
        names = few(f"{row['arm_label']} ({rate(row)} tokens/s)" for row in undecided)
        rest += f"The data do not decide between {name} and {names}."
    return winner, (rest + unlike).strip()


def _few_or_ends(values: Mapping[str, tuple[float, str]]) -> str:
    """The texts of all of up to four values, of more those of the least and the most."""
    if len(values) <= FEW + 1:
        return listed(text for _, text in values.values())
    least, most = (end(values.values(), key=lambda one: one[0]) for end in (min, max))
    return f"from {least[1]} to {most[1]}"
