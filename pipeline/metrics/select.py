"""Questions that figures, tables and the paper ask of the tidy table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.study.expansion import FALLBACK

_NETWORKS = {
    "emulated": "emulated nodes on one machine",
    "loopback": "loopback (all nodes share the cores of one machine)",
    "real": "a real network between nodes",
}


KEYS = ["cell", "nodes"]
"""Columns that identify a row of level `cell`."""

_ORDER = ["cell_order", "nodes", "repeat", "rank", "step"]


def pick(table: pd.DataFrame, level: str, *metrics: str) -> pd.DataFrame:
    """Rows of one level and of these metrics, in the order of cells, nodes, repeats and steps."""
    places = np.flatnonzero((table["level"] == level) & table["metric"].isin(metrics))
    # The last key leads; what has no repeat, rank or step comes last. All columns are taken once.
    keys = [table[name].array.take(places).to_numpy(float, na_value=np.inf) for name in _ORDER]
    return table.take(places[np.lexsort(keys[::-1])]).reset_index(drop=True)


def most_sent(table: pd.DataFrame, prefix: str = "sent_bytes") -> pd.DataFrame:
    """Bytes of a step along all axes, of the rank that sends most in each profiled run.

    Columns `cell`, `nodes`, `run_id`, `rank` and `value`; the prefix may be that of the formulas.
    """
    named = table["metric"].astype(str).str.startswith(f"{prefix}:")
    rows = table[(table["level"] == "profile") & named]
    each = rows.groupby([*KEYS, "run_id", "rank"], sort=False)["value"].sum().reset_index()
    ordered = each.sort_values("value", ascending=False, kind="stable")
    return ordered.drop_duplicates([*KEYS, "run_id"]).reset_index(drop=True)


def beside(
    frame: pd.DataFrame,
    table: pd.DataFrame,
    metric: str,
    names: Mapping[str, str],
    level: str = "cell",
    keys: Sequence[str] = KEYS,
) -> pd.DataFrame:
    """`frame` with columns of a metric, by the `names` that they get; nothing where it has none."""
    rows = pick(table, level, metric)[[*keys, *names]].rename(columns=dict(names))
    return frame.merge(rows, on=list(keys), how="left")


def bounds_of(name: str) -> dict[str, str]:
    """Names of a value and of its bounds."""
    return {"value": name, "low": f"{name}_low", "high": f"{name}_high"}


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as plain mappings."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def fact(table: pd.DataFrame, metric: str, default: str = "unknown") -> str:
    """The distinct texts of a fact over all runs, joined by commas."""
    texts = table.loc[table["metric"] == metric, "text"].dropna().unique()
    return ", ".join(texts) if len(texts) else default


def interval_notes(values: pd.DataFrame) -> str:
    """Ways in which the intervals of these rows were made, each once; not of a base over itself."""
    texts = [text for text in values["interval"].dropna().unique() if not text.startswith("exact")]
    return "; ".join(texts) or "none"


def speedup_name(table: pd.DataFrame) -> str:
    """Name of the ratio of two throughputs: under weak scaling it is a scaled speedup.

    There the batch grows with the devices, so the two did not do the same work in a step.
    """
    scaling = set(table["scaling"].dropna())
    if scaling == {"weak"}:
        return "scaled speedup"
    return "speedup, under weak scaling scaled speedup" if "weak" in scaling else "speedup"


def node_counts(table: pd.DataFrame) -> list[int]:
    """All node counts of the study, ascending."""
    return sorted(int(n) for n in table["nodes"].dropna().unique())


def cells(table: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, in the study's order, with what all its rows share, and its link if any."""
    columns = ["cell", "label", "cell_order", "strategy", "precision", "precision_ran"]
    columns += ["arm", "arm_label"]
    # A figure asks some ten times: of the many rows those few that are a cell's first over a link.
    firsts = table.loc[~table.duplicated(["cell", "link"]), [*columns, "link"]]
    known = firsts.dropna(subset=["cell"])
    each = known.drop_duplicates("cell").sort_values("cell_order")[columns]
    over = known.dropna(subset=["link"]).drop_duplicates("cell").set_index("cell")["link"]
    return each.assign(link=each["cell"].map(over)).reset_index(drop=True)


def links(table: pd.DataFrame) -> list[str]:
    """Texts of the links that the runs compare, in order; one `""` where they compare none.

    `FALLBACK` is the last where runs that were to be emulated were made on the loopback.
    """
    names = cells(table)
    if (names["cell"] == names["arm"]).all():
        return [""]
    compared = list(dict.fromkeys(names["link"].dropna()))
    # Emulated runs whose cell names no link stand in a panel without a name.
    beside = compared == [FALLBACK] and bool((names["cell"] == names["arm"]).any())
    return ["", FALLBACK] if beside else compared


def over_link(table: pd.DataFrame, link: str) -> list[str]:
    """Cells that ran over a link, in the study's order; those of one node, which use none, too.

    Loopback fallbacks get a panel of their own.
    """
    names = cells(table)
    keep = names["link"] == link
    if link != FALLBACK:
        keep |= names["cell"] == names["arm"]
    return list(names.loc[keep, "cell"])


def over(link: str) -> str:
    """Name of a panel of cells over a link; empty where the study compares none."""
    return f"links of {link}" if link not in ("", FALLBACK) else link


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(items: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`; `a; b, x and c` where an item has a comma itself."""
    words = [str(item) for item in items]
    between = "; " if any(", " in word for word in words) else ", "
    return " and ".join([between.join(words[:-1]), words[-1]] if len(words) > 1 else words)


FEW = 3


def few(items: Iterable[object]) -> str:
    """As `listed`; of over four items the first three and the number of the others."""
    words = [*items]
    more = [f"{len(words) - FEW} more"]
    return listed(words if len(words) <= FEW + 1 else [*words[:FEW], *more])


def not_ok(table: pd.DataFrame, level: str = "run") -> list[dict[str, Any]]:
    """Runs that did not finish: one for each cell, status and reason, with the nodes it was at.

    `sentence` is that in words, without the reason; `level` is `run` for the timed runs, `profile`
    for the profiled ones.
    """
    status, endings = pick(table, level, "status"), []
    keys = ["cell_order", "cell", "label", "text", "reason"]
    for (_, cell, label, text, reason), part in status[status["text"] != "ok"].groupby(keys):
        nodes = sorted(int(n) for n in part["nodes"].unique())
        planned = int(((status["cell"] == cell) & status["nodes"].isin(nodes)).sum())
        at = f"{listed(nodes)} node{'' if nodes == [1] else 's'}"
        sentence = f"{label}: {text} in {len(part)} of {plural(planned, 'run')} at {at}"
        endings.append(
            {"place": (cell, text, reason, nodes), "sentence": sentence, "reason": reason}
        )
    return endings


def missing_notes(table: pd.DataFrame) -> list[str]:
    """One sentence for each way in which a cell did not finish, with its reason."""
    return [f"{one['sentence']} ({one['reason']})" for one in not_ok(table)]


def missing_cells(table: pd.DataFrame) -> str:
    """Cells that did not finish and how often, without their reasons; empty where all did."""
    return "; ".join(dict.fromkeys(one["sentence"] for one in not_ok(table)))


def not_profiled(table: pd.DataFrame) -> list[str]:
    """One sentence for each way in which a profiled run did not finish, and the timed runs did."""
    timed = [one["place"] for one in not_ok(table)]
    others = [one for one in not_ok(table, "profile") if one["place"] not in timed]
    return [f"{one['sentence']} ({one['reason']})" for one in others]


def mixed_notes(table: pd.DataFrame) -> list[str]:
    """One sentence for each difference between the runs of a cell, with the cells that have it."""
    rows = pick(table, "cell", "mixed")
    rows = rows[rows["value"] > 0]
    return [
        listed(f"{row['label']} at {plural(int(row['nodes']), 'node')}" for row in records(part))
        + f": the runs differ in {text}"
        for text, part in rows.groupby("text", sort=False)
    ]


def setting(table: pd.DataFrame) -> str:
    """One line on what the numbers are: study, device, network, scaling, origin."""
    runs = table[table["level"] == "run"]
    first = runs.iloc[0]
    device = {"cpu": "CPU", "cuda": "CUDA"}[first["device"]]
    network = listed(_NETWORKS[name] for name in sorted(runs["network"].unique()))
    if (dilation := pick(table, "run", "dilation")["value"].max()) > 1:
        network += f", time dilated up to {dilation:g} times"
    tokens = listed(sorted(f"{int(n):,}" for n in runs["global_batch_tokens"].unique()))
    return (
        f"Study {first['study']}: {device}, {network}; {listed(sorted(runs['scaling'].unique()))} "
        f"scaling, "
        f"{tokens} tokens per step; {listed(sorted(runs['origin'].unique()))} here"
    )


def repeats(table: pd.DataFrame) -> str:
    """`5 repeats`, or the range where cells differ."""
    counts = pick(table, "cell", "num_ok")
    finished = sorted({int(n) for n in counts.loc[counts["value"] > 0, "value"]})
    if not finished:
        return "no finished run"
    if len(finished) == 1:
        return plural(finished[0], "repeat")
    return f"{finished[0]} to {finished[-1]} repeats"


def seconds_of_runs(table: pd.DataFrame, level: str = "run") -> pd.DataFrame:
    """One row per run of any status, with `seconds` from its recorded start to its recorded end.

    `level` is `run` for the timed runs, `profile` for the profiled ones.
    """
    started, ended = (pick(table, level, metric) for metric in ("started_at", "ended_at"))
    ends = ended.set_index("run_id")["text"]
    spans = pd.to_datetime(started["run_id"].map(ends)) - pd.to_datetime(started["text"])
    return started.assign(seconds=spans.dt.total_seconds())
