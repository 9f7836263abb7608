"""Which cell is faster, and do the data decide? `python -m pipeline table comparisons`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.comparison import FIELDS
from pipeline.metrics.contrasts import FASTER, SLOWER
from pipeline.metrics.format import NONE
from pipeline.metrics.select import records
from pipeline.metrics.verdicts import comparisons
from pipeline.tables.columns import once

CAPTION = (
    "Cells against each other over one link and at the same number of nodes, by short name: "
    "throughput of the row over that of the column. A mark stands where the difference is "
    "decided, > where the row is faster and < where it is slower: where the p-value of the exact "
    "rank-sum test on the runs (Wilcoxon, Mann and Whitney), corrected for all pairs of the block "
    "(Holm), is under 0.05 and the interval of the ratio leaves out 1, on emulated nodes also all "
    "that their times are known to be off by. A dash stands where the two did not do equal work "
    "or train alike. Intervals, p-values and effect sizes are in the table's CSV."
)
# Equal work is checked for every pair; one that did not do it reads `not compared`.
COMPARES = FIELDS
MARKS = {FASTER: " >", SLOWER: " <"}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each comparison; the ratio is that of the cell over the other one."""
    return comparisons(table)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """A matrix for each link and number of nodes, one below the other; see the caption."""
    alike = (frame["nodes"] == frame["other_nodes"]) & (frame["arm"] != frame["other_arm"])
    pairs = frame[alike].assign(over=frame["link"].where(frame["cell"] != frame["arm"]).fillna(""))
    order = list(dict.fromkeys([*pairs["arm"], *pairs["other_arm"]]))
    shown = []
    for (over, nodes), block in pairs.groupby(["over", "nodes"], sort=False):
        texts = {}
        for row in records(block):
            text = f"{row['rate_ratio']:.2f}{MARKS.get(row['verdict'], '')}"
            texts[row["arm"], row["other_arm"]] = NONE if pd.isna(row["rate_ratio"]) else text
        for arm in (one for one in order if one in set(block["arm"])):
            place = {"Link": over or NONE, "Nodes": str(nodes), "Cell": arm}
            shown.append(place | {other: texts.get((arm, other), "") for other in order[1:]})
    found = pd.DataFrame(shown, columns=["Link", "Nodes", "Cell", *order[1:]])
    if pairs["over"].any():
        return once(found, "Link", "Nodes")
    return once(found.drop(columns="Link"), "Nodes")
