"""Results of a study: its table of metrics, and what every reader of it asks, derived once.

Figures, tables, claims, paper and page are handed one `Results`. What follows from the whole table,
such as cells, links and comparisons, is made at the first use and kept: the table never changes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.errors import ComparisonError
from pipeline.metrics import table as tidy
from pipeline.metrics.contrasts import FASTER, SLOWER
from pipeline.metrics.labels import short_label
from pipeline.metrics.parity import NOT_COMPARED
from pipeline.study.equal_work import FIELDS
from pipeline.study.expansion import FALLBACK

KEYS = ["cell", "nodes"]
"""Columns that identify a row of level `cell`."""

STATUSES = ("ok", "disturbed", "oom", "unsupported", "failed", "timeout")
"""Of runs, as tables and page list them."""

LEVELS = {"run": "timed", "profile": "profiled", "real_time": "real-time"}
"""Levels of the table of metrics that are about runs, and what these are called."""

_PAIR = [*KEYS, "other", "other_nodes"]
_ORDER = ["cell_order", "nodes", "repeat", "rank", "step"]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as plain mappings."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def bounds_of(name: str) -> dict[str, str]:
    """Names of a value and of its bounds."""
    return {"value": name, "low": f"{name}_low", "high": f"{name}_high"}


def interval_notes(values: pd.DataFrame) -> str:
    """Ways in which the intervals of these rows were made, each once; not of a base over itself."""
    texts = [text for text in values["interval"].dropna().unique() if not text.startswith("exact")]
    return "; ".join(texts) or "none"


@dataclass(frozen=True)
class SpeedTest:
    """Answer on a pair of cells; all figures are NaN where they were not to be compared.

    `ratio` is the throughput of the first over that of the second, `low` and `high` its interval;
    `p_value` is corrected for the number of comparisons, `n` the smaller number of repeats.
    """

    verdict: str
    ratio: float
    low: float
    high: float
    p_value: float
    n: int

    @property
    def compared(self) -> bool:
        """True where the two may be compared; else `verdict` says why not."""
        return not self.verdict.startswith(NOT_COMPARED)


@dataclass(frozen=True, eq=False)
class Results:
    """A table of metrics, as `pipeline.metrics.table` describes it."""

    table: pd.DataFrame

    @classmethod
    def read(cls, path: Path, study: str | None = None) -> Results:
        """Results of the file that `metrics` wrote; raises RecordError as `table.read` does."""
        return cls(tidy.read(path, study))

    def pick(self, level: str, *metrics: str) -> pd.DataFrame:
        """Rows of one level and of these metrics, ordered by cells, nodes, repeats and steps."""
        table = self.table
        asked = (table["level"] == level) & table["metric"].isin(metrics)
        # What has no repeat, rank or step comes last. All columns are taken once.
        order = table.loc[asked, _ORDER].sort_values(_ORDER).index
        return table.loc[order].reset_index(drop=True)

    def beside(
        self,
        frame: pd.DataFrame,
        metric: str,
        names: Mapping[str, str],
        level: str = "cell",
        keys: Sequence[str] = KEYS,
    ) -> pd.DataFrame:
        """`frame` with columns of a metric, by the `names` that they get; NaN where it has none."""
        rows = self.pick(level, metric)[[*keys, *names]].rename(columns=dict(names))
        return frame.merge(rows, on=list(keys), how="left")

    def fact(self, metric: str, default: str = "unknown") -> str:
        """The distinct texts of a fact, over all runs where it is theirs, joined by commas."""
        texts = self.table.loc[self.table["metric"] == metric, "text"].dropna().unique()
        return ", ".join(texts) if len(texts) else default

    def most_sent(self, metric: str = "sent_bytes") -> pd.DataFrame:
        """Bytes of a step, of the rank that sends most in each profiled run, the most first.

        Along all axes, or along one where `metric` names it, as `sent_bytes:data`; by the formulas
        it is `predicted_sent_bytes`. Columns `cell`, `nodes`, `run_id`, `rank` and `value`.
        """
        names = self.table["metric"].astype(str)
        named = names == metric if ":" in metric else names.str.startswith(f"{metric}:")
        rows = self.table[(self.table["level"] == "profile") & named]
        each = rows.groupby([*KEYS, "run_id", "rank"], sort=False)["value"].sum().reset_index()
        ordered = each.sort_values("value", ascending=False, kind="stable")
        return ordered.drop_duplicates([*KEYS, "run_id"]).reset_index(drop=True)

    # What the study is made of: cells, arms, links and numbers of nodes.

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell, in the study's order, with what all its rows share, and its link."""
        columns = "cell label cell_order strategy precision precision_ran arm arm_label".split()
        # A cell at one node names no link, and at several its own: the first link that it names.
        known = self.table.drop_duplicates(["cell", "link"]).dropna(subset=["cell"])
        each = known.drop_duplicates("cell").sort_values("cell_order")[columns]
        over = known.dropna(subset=["link"]).drop_duplicates("cell").set_index("cell")["link"]
        return each.assign(link=each["cell"].map(over)).reset_index(drop=True)

    def arms(self, frame: pd.DataFrame | None = None) -> list[str]:
        """Short names of the arms, of all or of those in `frame`, in the order of the study."""
        own = self.cells if frame is None else self.cells[self.cells["cell"].isin(frame["cell"])]
        return list(dict.fromkeys(own["arm"]))

    @cached_property
    def links(self) -> list[str]:
        """Texts of the links that the runs compare, in order; one `""` where they compare none.

        `FALLBACK` is the last where runs that were to be emulated were made on the loopback.
        """
        names = self.cells
        if (names["cell"] == names["arm"]).all():
            return [""]
        compared = list(dict.fromkeys(names["link"].dropna()))
        # Emulated runs whose cell names no link stand in a panel without a name.
        beside = compared == [FALLBACK] and bool((names["cell"] == names["arm"]).any())
        return ["", FALLBACK] if beside else compared

    def over_link(self, link: str) -> list[str]:
        """Cells that ran over a link, in the study's order; those of one node, which use none, too.

        Loopback fallbacks get a panel of their own.
        """
        keep = self.cells["link"] == link
        if link != FALLBACK:
            keep |= self.cells["cell"] == self.cells["arm"]
        return list(self.cells.loc[keep, "cell"])

    @cached_property
    def node_counts(self) -> list[int]:
        """All node counts of the study, ascending."""
        return sorted(int(n) for n in self.table["nodes"].dropna().unique())

    @cached_property
    def speedup_name(self) -> str:
        """`scaled speedup` under weak scaling, where the batch grows with the devices."""
        scaling = set(self.table["scaling"].dropna())
        if scaling == {"weak"}:
            return "scaled speedup"
        return "speedup or scaled speedup" if "weak" in scaling else "speedup"

    @cached_property
    def declared(self) -> set[str]:
        """Fields of equal work that the study itself sets out to compare."""
        return {*self.fact("compares", "").split()}

    def require_equal_work(self, compares: Collection[str], what: str = "comparison") -> None:
        """Raise ComparisonError naming the first field of equal work in which runs differ.

        Only rows of runs that finished are compared; `compares` lists the fields that may differ,
        besides those that are `declared`. Profiled runs, which are shorter, are held against the
        timed ones where their rows are made.
        """
        if unknown := sorted({*compares} - {*FIELDS}):
            raise ComparisonError(
                f"{what} compares {unknown[0]!r}, which is no field of equal work; use one of "
                + ", ".join(FIELDS)
            )
        table = self.table
        compared = (table["status"] == "ok") & table["cell"].notna() & (table["level"] != "profile")
        ran = table.loc[compared, ["cell", "nodes", "scaling", "data_devices", *FIELDS]]
        for field in (field for field in FIELDS if field not in {*compares, *self.declared}):
            places = ran.drop_duplicates(["cell", "nodes", field])
            values = places[field]
            if field == "global_batch" and (places["scaling"] == "weak").all():
                values = values / places["data_devices"]
            different = values[values != values.iloc[0]] if len(values) else values
            if different.empty:
                continue
            first, other = places.iloc[0], places.loc[different.index[0]]
            raise ComparisonError(
                f"{what} refuses: {field} is {first[field]} in cell {first['cell']!r} at "
                f"{first['nodes']} nodes and {other[field]} in {other['cell']!r} at "
                f"{other['nodes']} nodes; make the cells do equal work or declare that {field} is "
                "compared"
            )

    # Runs: how many, and what became of them; `headline` says it in sentences.

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row for each timed run, of any status."""
        return self.pick("run", "status")

    @cached_property
    def planned(self) -> dict[str, int]:
        """Number of runs of each kind of `LEVELS`, whatever became of them."""
        return {kind: len(self.pick(level, "status")) for level, kind in LEVELS.items()}

    @cached_property
    def finished(self) -> dict[str, int]:
        """Number of those that finished."""
        texts = {kind: self.pick(level, "status")["text"] for level, kind in LEVELS.items()}
        return {kind: int((own == "ok").sum()) for kind, own in texts.items()}

    @cached_property
    def places(self) -> list[dict[str, Any]]:
        """One row for each cell and node count, with the labels of sentences.

        `axes` are the ranks along each axis of its mesh, none in former records, `parameters` those
        of the model that it trained.
        """
        axes: defaultdict[tuple[str, int], dict[str, int]] = defaultdict(dict)
        for one in records(self.table[self.table["metric"].str.startswith("axis:")]):
            name = str(one["metric"]).removeprefix("axis:")
            axes[one["cell"], one["nodes"]][name] = int(one["value"])
        trained = self.pick("run", "num_parameters").dropna(subset=["value"])
        sizes = {(one["cell"], one["nodes"]): one["value"] for one in records(trained)}
        rows = records(self.pick("cell", "num_ok"))
        for row in rows:
            key = row["cell"], row["nodes"]
            row |= {"label": short_label(row), "axes": axes[key]}
            row["parameters"] = sizes.get(key, math.nan)
        return rows

    def least(self, metric: str) -> float:
        """The smallest value of a fact over all timed runs; NaN where no run has it."""
        return float(self.pick("run", metric)["value"].min())

    # Comparisons of cells, and how far emulated times may be off.

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """One row for each comparison; the ratio is the throughput of the cell over the other's."""
        columns = [*_PAIR, "arm", "link", "base", "text"]
        frame = self.pick("comparison", "speed_verdict")[columns]
        frame = frame.rename(columns={"text": "verdict"})
        frame["other_arm"] = frame["other"].map(self.cells.set_index("cell")["arm"])
        names = {**bounds_of("rate_ratio"), "n": "repeats", "interval": "interval"}
        frame = self.beside(frame, "rate_ratio", names, "comparison", _PAIR)
        for metric in ("p_value", "smallest_p_value", "effect_size", "largest_effect_size"):
            frame = self.beside(frame, metric, {"value": metric}, "comparison", _PAIR)
        return frame

    @cached_property
    def _tests(self) -> dict[tuple[Any, Any], SpeedTest]:
        """Tests by the two (cell, nodes); a pair is in the table once, in the study's order."""
        tests = {}
        for row in records(self.comparisons):
            one, other = (row["cell"], row["nodes"]), (row["other"], row["other_nodes"])
            ratio, low, high = (row[name] for name in bounds_of("rate_ratio").values())
            verdict, n = row["verdict"], 0 if pd.isna(row["repeats"]) else row["repeats"]
            tests[one, other] = SpeedTest(verdict, ratio, low, high, row["p_value"], n)
            # `b` over `a` from `a` over `b`.
            inverse = {FASTER: SLOWER, SLOWER: FASTER}.get(verdict, verdict)
            tests[other, one] = SpeedTest(inverse, 1 / ratio, 1 / high, 1 / low, row["p_value"], n)
        return tests

    def compared(self, one: tuple[str, int], other: tuple[str, int]) -> SpeedTest | None:
        """Test of (cell, nodes) `one` against `other`; None where none was planned."""
        return self._tests.get((one, other))

    @cached_property
    def against_plain(self) -> pd.DataFrame:
        """One row for each cell under a condition at each node count, condition by condition.

        Only conditions call for a comparison of two cells of one arm on as many nodes. `cell` and
        `plain` are the two, `condition` is the name of the link, `adds` what it adds to the text of
        `plain_link`; `ratio`, `low` and `high` are of step times, NaN where the two are not
        compared.
        """
        frame, known = self.comparisons, self.cells.set_index("cell")
        alike = (frame["other_arm"] == frame["arm"]) & (frame["nodes"] == frame["other_nodes"])
        frame = frame[alike].rename(columns={"other": "plain"})
        plain_link = frame["plain"].map(known["link"])
        names = zip(frame["cell"], frame["arm"], strict=True)
        texts = zip(frame["link"], plain_link, strict=True)
        links = [*known["link"].dropna().unique()]
        frame = frame.assign(
            arm_label=frame["cell"].map(known["arm_label"]),
            condition=[cell.removeprefix(f"{arm}-") for cell, arm in names],
            adds=[link.removeprefix(f"{plain}, ") for link, plain in texts],
            plain_link=plain_link,
            ratio=1 / frame["rate_ratio"],
            low=1 / frame["rate_ratio_high"],
            high=1 / frame["rate_ratio_low"],
            place=frame["link"].map(links.index),
        )
        frame = frame.sort_values(["place", "nodes"], kind="stable", ignore_index=True)
        frame = self.beside(frame, "step_seconds", bounds_of("seconds"))
        of_plain = bounds_of("plain_seconds")
        seconds = self.pick("cell", "step_seconds")[[*KEYS, *of_plain]]
        frame = frame.merge(seconds.rename(columns={"cell": "plain", **of_plain}), how="left")
        columns = ["arm", "arm_label", "condition", "adds", "link", "plain_link", "verdict"]
        numbers = ["interval", "ratio", "low", "high", "p_value", *bounds_of("seconds").values()]
        return frame[["cell", "plain", "nodes", *columns, *numbers, *of_plain.values()]]

    @cached_property
    def last_place(self) -> pd.DataFrame:
        """Throughputs of the cells at the most nodes, over the last link without conditions."""
        rates = self.pick("cell", "tokens_per_second")
        most = rates[rates["nodes"] == rates["nodes"].max()]
        plain = most[~most["link"].isin(set(self.against_plain["link"]))]
        links = plain["link"].where(plain["cell"] != plain["arm"]).dropna()
        over_last: pd.DataFrame = plain[plain["link"] == links.iloc[-1]] if len(links) else plain
        return over_last

    @cached_property
    def bias(self) -> float | None:
        """Share by which a ratio of emulated times may be off; None where it was not measured."""
        values = self.pick("study", "emulation_bias")["value"]
        return None if values.empty else float(values.iloc[0])
