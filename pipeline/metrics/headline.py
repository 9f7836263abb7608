"""The result in sentences: on what it was measured, which cell wins, and why.

Paper, page and README print these sentences and no others of their kind. A winner is named among
cells of equal precision, and only where the test on the throughputs of six runs or more decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline import models
from pipeline.metrics.contrasts import FASTER, against_plain, compared
from pipeline.metrics.emulation import bias_sentence
from pipeline.metrics.format import ratio_interval, with_interval
from pipeline.metrics.select import (
    FEW,
    fact,
    few,
    listed,
    most_sent,
    node_counts,
    pick,
    plural,
    records,
)
from pipeline.study.profiling import COMMUNICATION

_SHARE = f"phase_share:{COMMUNICATION}"


def measured_on(table: pd.DataFrame) -> str:
    """`GPT-2 with 0.17 M parameters on 1, 2 and 4 nodes, emulated on 2 cores (Intel Xeon)`."""
    runs = pick(table, "run", "status")
    families = dict.fromkeys(str(model).split()[0] for model in runs["model"])
    sizes = sorted({value / 1e6 for value in pick(table, "run", "num_parameters")["value"]})
    with_size = f" with {listed(f'{one:.2f}' for one in sizes)} M parameters" if sizes else ""
    model = listed(map(models.label, families)) + with_size
    counts = node_counts(table)
    nodes = f"{listed(counts)} node{'' if counts == [1] else 's'}"
    cores = sorted({int(one) for one in pick(table, "run", "num_cores")["value"].dropna()})
    # `Intel Xeon @ 2.80GHz`: as the machine names it, without marks of trade.
    named = fact(table, "cpu_model")
    words = re.sub(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b", " ", named).split()
    shared = f"{listed(cores)} core{'' if cores == [1] else 's'} ({' '.join(words) or named})"
    gpus = set(fact(table, "gpus", "none").split(", ")) - {"none"}
    most = int(runs["world_size"].max())
    ranks = ("up to " if most > 1 else "") + plural(most, "rank")
    on = listed(sorted(gpus)) if gpus and (runs["device"] == "cuda").any() else ""
    places = {
        "emulated": f"emulated on {shared}",
        "loopback": f"{ranks} on {on}" if on else f"{ranks} that share {shared}",
        "real": f"{ranks} on {on or f'nodes of {shared}'}",
    }
    networks = set(runs["network"])
    return f"{model} on {nodes}, {listed(text for key, text in places.items() if key in networks)}"


def last_place(table: pd.DataFrame) -> pd.DataFrame:
    """Throughputs of the cells at the most nodes, over the last link without conditions."""
    rates = pick(table, "cell", "tokens_per_second")
    most = rates[rates["nodes"] == rates["nodes"].max()]
    plain = most[~most["link"].isin(set(against_plain(table)["link"]))]
    links = plain["link"].where(plain["cell"] != plain["arm"]).dropna()
    over_last: pd.DataFrame = plain[plain["link"] == links.iloc[-1]] if len(links) else plain
    return over_last


def place_name(rows: pd.DataFrame) -> str:
    """`4 nodes over 1 Gbit/s`: where these cells ran; the link where the study compares several."""
    if rows.empty:
        return ""
    first = rows.iloc[0]
    over = f" over {first['link']}" if first["cell"] != first["arm"] else ""
    return plural(int(first["nodes"]), "node") + over


def headline(table: pd.DataFrame) -> dict[str, Any]:
    """The sentences, by what each is about; an empty text where there is nothing to say.

    `measured_on` is the phrase. `lead` begins with it and may stand in bold only where a comparison
    is `decided`; else it says what was measured. `result` is the same without the phrase, `rest`
    what is not decided, `why` what goes with the order, and `bias` how far emulated times may be
    off. `place` and `communication` (a range of shares) are for tiles.
    """
    place = last_place(table)
    nodes = int(place["nodes"].iloc[0]) if len(place) else 0
    # The cells of one precision, best first: of fp32, or where that has under two, of the most.
    counts = place["precision"].value_counts()
    chosen = "fp32" if counts.get("fp32", 0) > 1 else counts.idxmax() if len(counts) else ""
    same = place[place["precision"] == chosen]
    same = same.sort_values("value", ascending=False, kind="stable")
    winner, rest = _ranking(table, same, nodes)
    where, lead = measured_on(table), winner or rest
    costs = {row["arm_label"]: _cost(table, row["cell"], nodes) for row in records(place)}
    # In the order of the study, which names no winner.
    own = {label: costs[label] for label in same.sort_values("cell_order")["arm_label"]}
    shares = sorted(one["share"] for one in costs.values() if "share" in one)
    # What goes with the order of these cells; nothing without profiled runs.
    why = []
    if sent := {
        label: f"{one['sent'] / 1e6:.2f} MB in {label}"
        + (f" ({one['calls']})" if one["calls"] else "")
        for label, one in own.items()
        if "sent" in one
    }:
        bytes_sent = few_or_ends(sent, {label: own[label]["sent"] for label in sent})
        why.append(f"The rank that sends most sent {bytes_sent} in a step.")
    if hid := {
        label: f"{one['share']:.0f} % in {label}" for label, one in own.items() if "share" in one
    }:
        shares_hid = few_or_ends(hid, {label: own[label]["share"] for label in hid})
        why.append(f"Of a step, communication that no computing hides was {shares_hid}.")
    return {
        "measured_on": where,
        "place": place_name(place),
        "decided": bool(winner),
        "lead": f"{where}: {lead[:1].lower()}{lead[1:]}" if lead else f"{where}.",
        "result": lead,
        "rest": rest if winner else "",
        "why": " ".join(why),
        "bias": bias_sentence(table),
        "communication": " to ".join(dict.fromkeys(f"{s:.0f} %" for s in shares[:1] + shares[-1:])),
    }


def end_of_training(table: pd.DataFrame) -> str:
    """Losses of the trainings that went to their end; empty where none recorded unseen text.

    Their last losses are of text that no step before had, so they are held against its entropy.
    """
    told = []
    for one in records(pick(table, "run", "unseen_loss")):
        own = table[(table["run_id"] == one["run_id"]) & (table["metric"] == "unigram_entropy")]
        entropy, loss = float(own["value"].iloc[0]), one["value"]
        told.append(
            f"{one['label']} on {plural(int(one['nodes']), 'node')} {loss:.3f} nats per token, "
            f"{abs(entropy - loss):.3f} {'less' if loss < entropy else 'more'} than the unigram "
            f"entropy of that text ({entropy:.3f})"
        )
    if not told:
        return ""
    steps = int(pick(table, "run", "unseen_loss")["n"].max())
    return f"Loss of the last {steps} steps, on text that no step before had: {listed(told)}."


def _ranking(table: pd.DataFrame, same: pd.DataFrame, nodes: int) -> tuple[str, str]:
    """Who wins, and what else was measured; no winner without a decided comparison."""
    if same.empty:
        return "", ""

    def rate(row: Mapping[str, Any]) -> str:
        return with_interval(row["value"], row["low"], row["high"])

    first, *others = records(same)
    # `bf16` of `torch amp O2, bf16`.
    kind = str(first["precision_ran"]).replace(",", "").split()[-1]
    cell, name = first["cell"], first["arm_label"]
    answers = [(row, compared(table, (cell, nodes), (row["cell"], nodes))) for row in others]
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
    ratios = listed(
        f"{ratio_interval(one.ratio, one.low, one.high)} times as many as {row['arm_label']}"
        for row, one in beaten[:FEW]
    )
    names = few(row["arm_label"] for row, _ in beaten)
    winner = f"{where}, {name} was faster than {names}: {rate(first)} tokens/s, {ratios}."
    rest = ""
    if undecided:
        names = few(f"{row['arm_label']} ({rate(row)} tokens/s)" for row in undecided)
        rest = f"The data do not decide between {name} and {names}."
    return winner, (rest + unlike).strip()


def few_or_ends(texts: Mapping[str, str], values: Mapping[str, float]) -> str:
    """All of up to four texts, of more the one with the least value and the one with the most."""
    if len(texts) <= FEW + 1:
        return listed(texts.values())
    ends = min(texts, key=values.__getitem__), max(texts, key=values.__getitem__)
    return " to ".join(texts[one] for one in ends)


def _cost(table: pd.DataFrame, cell: str, nodes: int) -> dict[str, Any]:
    """Per step: bytes and collectives of the rank that sends most, per cent of communication."""
    here = table[(table["cell"] == cell) & (table["nodes"] == nodes)]
    share = pick(here[here["world_size"] > 1], "cell", _SHARE)["value"]
    cost: dict[str, Any] = {} if share.empty else {"share": 100 * float(share.iloc[0])}
    if len(sent := most_sent(here)):
        most = sent.iloc[0]
        of_rank = here[(here["run_id"] == most["run_id"]) & (here["rank"] == most["rank"])]
        calls = of_rank.loc[of_rank["metric"].str.startswith("sent_bytes:"), "text"].dropna()
        cost |= {"sent": float(most["value"]), "calls": listed(calls)}
    return cost
