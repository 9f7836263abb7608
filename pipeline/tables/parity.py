"""Does each cell compute the same training? `python -m pipeline table parity`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.comparison import FIELDS
from pipeline.metrics.format import NONE, limit, scientific
from pipeline.metrics.parity import EQUAL, UNEQUAL
from pipeline.metrics.select import KEYS, beside, listed, pick
from pipeline.tables.columns import PLACE, once

CAPTION = (
    "Largest relative deviation of each cell from its single-device reference over all links, "
    "numbers of nodes and repeats, in loss and in the gradient norm before clipping: at the first "
    "step and over the early steps, which decide; a later drift is reported in the text. "
    "'Tolerance' holds the bands of both for the rows from there on. 'Ranks bit-equal' says "
    "whether all ranks ended with the same weights to the bit. The verdict counts the places, "
    "each a link and a number of nodes, that stayed within."
)
# Parity holds each cell against a reference whose work it checks itself.
COMPARES = FIELDS
_TITLES = {
    "Loss, first": "parity_loss_first",
    "Norm, first": "parity_norm_first",
    "Loss, early": "parity_loss_early",
    "Norm, early": "parity_norm_early",
}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell, node count and reference."""
    keys = [*KEYS, "base"]
    found = pick(table, "cell", "parity_verdict")[[*PLACE, "label", "base", "text"]]
    found = found.rename(columns={"text": "verdict"})
    for metric in _TITLES.values():
        names = {"value": metric, "text": f"{metric}_tolerance"}
        found = beside(found, table, metric, names, keys=keys)
    return beside(found, table, "weights_bit_equal", {"value": "weights_bit_equal", "n": "ranks"})


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text: a row for each cell and reference, the worst of all places, by band."""
    shown = []
    named = frame.assign(base=frame["base"].fillna(""))
    for (_, base), part in named.groupby(["arm", "base"], sort=False):
        known = part.dropna(subset=["parity_loss_first"])
        bands = known[["parity_loss_first_tolerance", "parity_loss_early_tolerance"]].astype(float)
        several = part[part["ranks"] > 1]
        apart = sorted({int(n) for n in several.loc[several["weights_bit_equal"] == 0, "nodes"]})
        bits = f"not on {listed(apart)} nodes" if apart else "yes"
        shown.append({
            "Tolerance": ", ".join(map(limit, bands.max())) if len(known) else NONE,
            "Cell": part["arm_label"].iloc[0],
            "Reference": base or NONE,
            **{title: scientific(part[name].max()) for title, name in _TITLES.items()},
            "Ranks bit-equal": bits if len(several) else "one rank",
            "Verdict": _verdict(part),
        })  # fmt: skip
    columns = ["Tolerance", "Cell", "Reference", *_TITLES, "Ranks bit-equal", "Verdict"]
    # Rows of one band stand together, in the order in which the bands come.
    found = pd.DataFrame(shown, columns=columns)
    band = pd.factorize(found["Tolerance"])[0]
    return once(found.iloc[band.argsort(kind="stable")].reset_index(drop=True), "Tolerance")


def _verdict(part: pd.DataFrame) -> str:
    """How many places are equal, the others by name; what was not compared, with its reason."""
    words = part["verdict"]
    unequal = part[words.isin(UNEQUAL)]
    skipped = sorted(set(words[~words.isin([EQUAL, *UNEQUAL])]))
    if len(unequal):
        nodes = listed(sorted({int(n) for n in unequal["nodes"]}))
        found = listed(dict.fromkeys(unequal["verdict"]))
        return "; ".join([f"{found} in {len(unequal)} of {len(part)} (nodes {nodes})", *skipped])
    equal = int((words == EQUAL).sum())
    return "; ".join([*([f"{EQUAL} in {equal} of {len(part)}"] if equal else []), *skipped])
