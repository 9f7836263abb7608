"""The numbers of a table as text: a function, named as the table, where it is more than columns."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.contrasts import FASTER, SLOWER
from pipeline.metrics.format import limit
from pipeline.metrics.results import STATUSES, records
from pipeline.tables.declared import Table
from pipeline.text import NONE


def shown(frame: pd.DataFrame, declared: Table) -> pd.DataFrame:
    """`frame` as text: what its rows are about, then the columns of the table."""
    table = pd.DataFrame({**places(frame), **{c.title: c.texts(frame) for c in declared.columns}})
    # Where the batch grows with the devices the two did not do the same work in a step.
    scaled = "scaling" in frame and set(frame["scaling"]) == {"weak"}
    return table.rename(columns={"Speedup": "Scaled speedup"}) if scaled else table


def places(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Columns that say what a row is about: the cell, its link where links are compared, its nodes.

    A cell at one node, which uses no link, has a dash.
    """
    # Only a cell that is named for its link, and so not as its arm, is about that link.
    over = frame["link"].astype(object).where(frame["cell"] != frame["arm"]).fillna(NONE)
    link = {} if (over == NONE).all() else {"Link": list(over)}
    nodes = [str(count) for count in frame["nodes"]]
    return {"Cell": list(frame["arm_label"]), **link, "Nodes": nodes}


def sends(frame: pd.DataFrame, declared: Table) -> pd.DataFrame:
    """As `shown`; rows that differ in their `Link` alone stand once, with all of these links."""
    table = shown(frame, declared)
    if "Link" not in table:
        return table
    others = [name for name in table if name != "Link"]
    return table.groupby(others, sort=False)["Link"].agg(", ".join).reset_index()[list(table)]


def comparisons(frame: pd.DataFrame, _declared: Table) -> pd.DataFrame:
    """A matrix of all pairs for each link and number of nodes, one below the other."""
    alike = (frame["nodes"] == frame["other_nodes"]) & (frame["arm"] != frame["other_arm"])
    pairs = frame[alike].assign(over=frame["link"].where(frame["cell"] != frame["arm"]).fillna(""))
    # The first cell of a pair is the earlier one of the study, so the first of all is no column.
    order = list(dict.fromkeys([*pairs["arm"], *pairs["other_arm"]]))
    marks = {FASTER: " >", SLOWER: " <"}
    shown = []
    for (over, nodes), block in pairs.groupby(["over", "nodes"], sort=False):
        texts = {}
        for row in records(block):
            text = f"{row['rate_ratio']:.2f}{marks.get(row['verdict'], '')}"
            texts[row["arm"], row["other_arm"]] = NONE if pd.isna(row["rate_ratio"]) else text
        for arm in (one for one in order if one in set(block["arm"])):
            place = {"Link": over or NONE, "Nodes": str(nodes), "Cell": arm}
            shown.append(place | {other: texts.get((arm, other), "") for other in order[1:]})
    table = pd.DataFrame(shown, columns=["Link", "Nodes", "Cell", *order[1:]])
    return table if pairs["over"].any() else table.drop(columns="Link")


def parity(frame: pd.DataFrame, declared: Table) -> pd.DataFrame:
    """A row for each cell and reference, the worst of all places; rows of one band together."""
    shown = []
    named = frame.assign(base=frame["base"].fillna(""))
    for (_, base), part in named.groupby(["arm", "base"], sort=False):
        known = part.dropna(subset=["parity_loss_first"])
        bands = known[["parity_loss_first_tolerance", "parity_loss_early_tolerance"]].astype(float)
        several = part[part["ranks"] > 1]
        bits = "yes" if (several["weights_bit_equal"] == 1).all() else "no"
        verdicts = part["verdict"].value_counts(sort=False)
        shown.append({
            "Tolerance": ", ".join(map(limit, bands.max())) if len(known) else NONE,
            "Cell": part["arm_label"].iloc[0],
            "Reference": base or NONE,
            **{one.title: one.write(part[one.name].max()) for one in declared.columns},
            "Ranks bit-equal": bits if len(several) else "one rank",
            "Verdict": "; ".join(f"{word} in {n} of {len(part)}" for word, n in verdicts.items()),
        })  # fmt: skip
    titles = [one.title for one in declared.columns]
    columns = ["Tolerance", "Cell", "Reference", *titles, "Ranks bit-equal", "Verdict"]
    table = pd.DataFrame(shown, columns=columns)
    band = pd.factorize(table["Tolerance"])[0]
    return table.iloc[band.argsort(kind="stable")].reset_index(drop=True)


def status(frame: pd.DataFrame, _declared: Table) -> pd.DataFrame:
    """Rows of which a run did not end ok, or drifted."""
    drifted = frame["drifted"] > 0
    frame = frame[(frame["ok"] < frame["runs"]) | drifted].reset_index(drop=True)
    shown = []
    for row in records(frame):
        which = f" ({row['drifts']})" if row["drifts"] else ""
        drift = f"{row['drifted']} of {row['drift_tested']}{which}"
        ended = ", ".join(f"{row[one]} {one}" for one in STATUSES if row[one])
        drift = drift if row["drift_tested"] else NONE
        shown.append((str(row["runs"]), ended, drift, row["reasons"] or NONE))
    texts = pd.DataFrame(shown, columns=["Runs", "Status", "Drift", "Reason"])
    return pd.DataFrame(places(frame)).join(texts)


def environment(frame: pd.DataFrame, _declared: Table) -> pd.DataFrame:
    """Items and values, hashes shortened to 12 digits."""
    short = frame["value"].str.replace(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b", r"\1", regex=True)
    return pd.DataFrame({"Item": frame["item"], "Value": short})
