"""Each strategy at the largest world, a line each; `python -m pipeline table summary`."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.contrasts import against_plain
from pipeline.metrics.format import NONE, ratio_interval, with_interval
from pipeline.metrics.select import cells, pick, plural, records, speedup_name
from pipeline.study.profiling import COMMUNICATION
from pipeline.tables.write import PLACE, places

CAPTION = (
    "Every cell at the largest world, the highest throughput first. Efficiency is speedup over the "
    "ratio of ranks. Exposed is the share of a step that is communication which no computing hides "
    "(profiled runs), and memory is the peak of the largest rank. The table of scaling has every "
    "link and node count."
)
COMPARES = {"precision"}
_SHARE = f"phase_share:{COMMUNICATION}"
_MEASURES = {
    "tokens_per_second": "tokens_per_second",
    "speedup": "speedup",
    "efficiency": "efficiency",
    _SHARE: "communication_share",
    "peak_memory_bytes": "peak_memory_bytes",
}
_MEBIBYTE = 2**20


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell of that place, the highest throughput first; bytes, shares of 1."""
    rates = pick(table, "cell", "tokens_per_second")
    found = _last_place(table, rates)[[*PLACE, "label", "world_size", "scaling"]]
    for metric, name in _MEASURES.items():
        rows = pick(table, "cell", metric)[["cell", "nodes", "value", "low", "high"]]
        names = {"value": name, "low": f"{name}_low", "high": f"{name}_high"}
        found = found.merge(rows.rename(columns=names), on=["cell", "nodes"], how="left")
    base = pick(table, "cell", "speedup")[["cell", "nodes", "base"]]
    found = found.merge(base, on=["cell", "nodes"], how="left")
    return found.sort_values("tokens_per_second", ascending=False, ignore_index=True)


def largest(table: pd.DataFrame) -> dict[str, Any]:
    """The facts of the largest world in words; empty where no run on several nodes finished.

    `first` and `last` have the highest and the lowest throughput; `last` is empty for one cell.
    """
    rows = records(build(table).dropna(subset=["speedup"]))
    if not rows or rows[0]["nodes"] == 1:
        return {"first": {}, "last": {}, "nodes": "", "efficiencies": "", "communication": ""}
    link = rows[0]["link"] if rows[0]["cell"] != rows[0]["arm"] else ""
    shares = [100 * row["communication_share"] for row in rows if row["world_size"] > 1]
    shares = [share for share in shares if not pd.isna(share)]
    return {
        "nodes": plural(int(rows[0]["nodes"]), "node") + (f" over {link}" if link else ""),
        "first": _said(rows[0], table),
        "last": _said(rows[-1], table) if len(rows) > 1 else {},
        "efficiencies": _span([f"{row['efficiency']:.2f}" for row in rows]),
        "communication": _span([f"{share:.0f} %" for share in shares]),
    }


def _said(row: dict[str, Any], table: pd.DataFrame) -> dict[str, str]:
    """Label, tokens per second, speedup with its interval, and whose throughput that is over."""
    labels = cells(table).set_index("cell")["arm_label"]
    base, _, nodes = str(row["base"]).partition(", ")
    value = ratio_interval(row["speedup"], row["speedup_low"], row["speedup_high"])
    return {
        "label": row["arm_label"],
        "rate": f"{row['tokens_per_second']:,.0f}",
        "speedup": value,
        "base": ("its own" if base == row["arm"] else f"that of {labels[base]}") + f" on {nodes}",
    }


def _span(texts: list[str]) -> str:
    """`0.07 to 0.21`, or the one value that all have."""
    ranked = sorted(texts, key=lambda text: float(text.removesuffix(" %")))
    return " to ".join(dict.fromkeys([*ranked[:1], *ranked[-1:]]))


def _last_place(table: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """Rows of `rates` at the most nodes, over the last link without conditions."""
    most = rates[rates["nodes"] == rates["nodes"].max()]
    plain = most[~most["link"].isin(set(against_plain(table)["link"]))]
    links = plain["link"].where(plain["cell"] != plain["arm"]).dropna()
    place: pd.DataFrame = plain[plain["link"] == links.iloc[-1]] if len(links) else plain
    return place


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text; shares in per cent, memory in MiB."""
    name, shown = speedup_name(frame).partition(",")[0].capitalize(), []
    for row in records(frame):
        speedup = (row[f"speedup{end}"] for end in ("", "_low", "_high"))
        rate = (row[f"tokens_per_second{end}"] for end in ("", "_low", "_high"))
        memory = row["peak_memory_bytes"]
        shown.append(
            {
                "Tokens/s": with_interval(*rate),
                name: ratio_interval(*speedup),
                "Efficiency": NONE if pd.isna(row["efficiency"]) else f"{row['efficiency']:.2f}",
                "Base": NONE if pd.isna(row["base"]) else row["base"],
                "Exposed [%]": _per_cent(row),
                "Memory [MiB]": NONE if pd.isna(memory) else f"{memory / _MEBIBYTE:,.0f}",
            }
        )
    columns = ["Tokens/s", name, "Efficiency", "Base", "Exposed [%]", "Memory [MiB]"]
    return pd.DataFrame(places(frame)).join(pd.DataFrame(shown, columns=columns))


def _per_cent(row: dict[str, float]) -> str:
    value, low, high = (100 * row[f"communication_share{end}"] for end in ("", "_low", "_high"))
    return ratio_interval(value, low, high, 0)
