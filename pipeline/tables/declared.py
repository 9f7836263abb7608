"""Every table of a study: a caption, its columns and what it needs. No pandas, for dry runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pipeline.metrics.format import probability, ratio_interval, scientific, with_interval
from pipeline.study.equal_work import FIELDS
from pipeline.study.profiling import COMMUNICATION
from pipeline.text import NONE, significant

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """A column as text: its title, the column of numbers, what these are multiplied by, their look.

    `name` is a metric of a cell, or a column that the rows of the table have besides. `write` takes
    the value, or with `bounded` the value and both bounds.
    """

    title: str
    name: str
    scale: float | None = None
    write: Callable[..., str] = significant
    bounded: bool = False

    def texts(self, frame: pd.DataFrame) -> list[str]:
        """The text of each row, a dash where it has no value."""
        ends = ("", "_low", "_high") if self.bounded else ("",)
        values = frame[[self.name + end for end in ends]]
        if self.scale is not None:
            values = self.scale * values
        absent = frame[self.name].isna()
        return [
            NONE if none else self.write(*row)
            for none, row in zip(absent, values.itertuples(index=False), strict=True)
        ]


def text(title: str, name: str) -> Column:
    """A column of words or of whole numbers, as they are."""
    return Column(title, name, write=str)


def interval(title: str, name: str, scale: float = 1) -> Column:
    """A column of values with their intervals."""
    return Column(title, name, scale, with_interval, bounded=True)


def ratio(title: str, name: str, scale: float = 1, decimals: int = 2) -> Column:
    """A column of ratios with their intervals, all with as many decimals."""
    return Column(title, name, scale, partial(ratio_interval, decimals=decimals), bounded=True)


@dataclass(frozen=True)
class Table:
    """A table as declared: its numbers are the CSV, its columns all other formats.

    The function of `pipeline.tables.rows` that has the table's name gives the rows, one of
    `pipeline.tables.texts` their text: without one the columns stand beside what a row is about.
    `needs` is what the study must have (`pipeline.catalogue`), `compares` the fields of equal work
    that may differ.
    """

    caption: str
    columns: Sequence[Column] = ()
    needs: str = ""
    compares: Collection[str] = ("precision",)


MEBIBYTES, MEGABYTES, MILLISECONDS, PER_CENT, GIGA = 1 / 2**20, 1e-6, 1000, 100, 1e-9
"""Factors by which bytes, seconds, shares and rates are multiplied to be shown."""

whole, hundredths, thousandths = "{:,.0f}".format, "{:.2f}".format, "{:.3f}".format

SUMMARY = Table(
    "Cells at the most nodes, the highest throughput first. Efficiency: speedup over the ratio of "
    "ranks. Same training: loss and gradient norm within the tolerance of parity of the cell's "
    "reference, which has its batch. Exposed: share of a step that is communication without "
    "computation. Memory: peak of each run's largest rank.",
    (
        interval("Tokens/s", "tokens_per_second"),
        ratio("Speedup", "speedup"),
        Column("Efficiency", "efficiency", write=hundredths),
        text("Base", "base"),
        text("Same training", "same_training"),
        ratio("Exposed [%]", f"phase_share:{COMMUNICATION}", PER_CENT, decimals=0),
        Column("Memory [MiB]", "peak_memory_bytes", MEBIBYTES, whole),
    ),
)
SCALING = Table(
    "Throughput, its speedup over the base, and efficiency: speedup over the ratio of ranks. Own: "
    "throughput over that of the same cell on its fewest nodes. 'Against it': faster or "
    "slower than the base by the test. Steps: until the loss that the study states, of one "
    "whole run of this batch and precision. Node hours: of these steps. The CSV has all intervals.",
    (
        interval("Tokens/s", "tokens_per_second"),
        ratio("Speedup", "speedup"),
        Column("Efficiency", "efficiency", write=hundredths),
        Column("Own", "own_speedup", write=hundredths),
        text("Base", "base"),
        text("Against it", "verdict"),
        Column("Steps", "steps_to_loss", write=whole),
        Column("Node hours", "node_hours"),
    ),
)
COMPARISONS = Table(
    "Throughput of the row over that of the column, by short name, at the same number of nodes and "
    "over one link. > or <: the row is faster or slower, by the exact rank-sum test on the runs "
    "(corrected by Holm for all pairs of the block, p under 0.05) and an interval of the ratio "
    "that leaves out 1, on emulated nodes also all that their times may be off by. A dash for a "
    "ratio: the two did not do equal work, apart from what the study compares, or train alike. The "
    "CSV has intervals, p-values and effect sizes.",
    # Equal work is checked for every pair; one that did not do it has a dash.
    compares=FIELDS,
)
STEP_TIME = Table(
    "Median over the repeats of the runs' median step times, with its 95 % interval from six "
    "repeats on; the same of the runs' mean and largest step. P95: their 95th percentile, from 100 "
    "timed steps on. Free running: a step of a series that nothing waited for between, which gives "
    "the throughput.",
    (
        text("Ranks", "world_size"),
        interval("Step time [ms]", "step_seconds", MILLISECONDS),
        Column("Mean", "mean_step_seconds", MILLISECONDS),
        Column("P95", "p95_step_seconds", MILLISECONDS),
        Column("Largest", "largest_step_seconds", MILLISECONDS),
        Column("Free running", "free_step_seconds", MILLISECONDS),
        Column("Repeats", "num_ok", write=whole),
        Column("Timed steps", "timed_steps", write=whole),
    ),
)
ACCURACY = Table(
    "Median step times in real time, each node on cores of its own, and emulated, and the second "
    "over the first, with 95 % intervals over the repeats. Where runs in real time timed their "
    "forward passes, both count by the yardstick. By how much two of these ratios may differ is "
    "what a ratio of emulated times may be off by.",
    (
        interval("Real time [ms]", "real_time_step_seconds", MILLISECONDS),
        interval("Emulated [ms]", "step_seconds", MILLISECONDS),
        ratio("Ratio", "accuracy"),
    ),
    needs="real_time",
    compares=FIELDS,
)
WHAT_IF = Table(
    "Median step times without and under each condition, the ratio of the two and its interval, "
    "and the p-value of the exact rank-sum test between them, corrected for the cells over that "
    "link (Holm). 'Slower' or 'faster' stands where p is under 0.05 and the interval leaves out 1.",
    (
        text("Condition", "condition"),
        interval("Without [ms]", "plain_seconds", MILLISECONDS),
        interval("Under it [ms]", "seconds", MILLISECONDS),
        ratio("Ratio", "ratio"),
        Column("p", "p_value", write=probability),
        text("Verdict", "verdict"),
    ),
    needs="conditions",
)
PARITY = Table(
    "Largest relative deviation of each cell from its reference over all places (a link and a "
    "number of nodes) and repeats, in loss and in gradient norm before clipping: at the first step "
    "and over the early steps, which decide. 'Tolerance': the bands of both, for the rows from "
    "there on. 'Ranks bit-equal': all ranks ended with the same weights to the bit. The verdict "
    "counts places.",
    (
        Column("Loss, first", "parity_loss_first", write=scientific),
        Column("Norm, first", "parity_norm_first", write=scientific),
        Column("Loss, early", "parity_loss_early", write=scientific),
        Column("Norm, early", "parity_norm_early", write=scientific),
    ),
    compares=FIELDS,
)
STATUS = Table(
    "Runs that did not end ok, with their reason, and runs that drifted; all others did neither. A "
    "status other than ok is a result and enters no average. 'Drift' counts runs whose step time "
    "changed by over 5 % from the first to the last third of the timed steps, beyond chance.",
    compares=FIELDS,
)
MEMORY = Table(
    "Peak memory of rank 0, and of the largest other rank where its peak differs by over 5 % or "
    "its prediction at all, in MiB, medians over the repeats. Base: Python and its libraries on a "
    "CPU, whose size makes small amounts uncertain; zero on a GPU. 'Model': parameters, gradients, "
    "optimiser, buffers of the reduction, activations and loss, predicted from the spec. Ratios "
    "are predicted over measured above the base. Formula 24: of Bai 2022, appendix C.4.",
    (
        Column("Rank", "rank", write=whole),
        Column("Measured", "peak_memory_bytes", MEBIBYTES, whole),
        Column("Base", "base_memory_bytes", MEBIBYTES, whole),
        Column("Model", "predicted_memory_bytes", MEBIBYTES, whole),
        Column("Ratio", "predicted_ratio", write=hundredths),
        Column("Formula 24", "formula_memory_bytes", MEBIBYTES, whole),
        Column("Its ratio", "formula_ratio", write=hundredths),
    ),
)
UTILISATION = Table(
    "Rate: model FLOPs, (6 N + 12 L d s) a token with N weights in matrix products, L layers, "
    "width d and context s, over time. Peak: best matrix product of a rank in the run's number "
    "format, measured after the training. MFU: rate over the peaks of all ranks; HFU also counts "
    "recomputed activations and padding. Datasheet: dense peak of the device, and the share of it "
    "reached. Network: share reached of the throughput that the links allow if nodes send no more "
    "than a sum of gradients takes. Busy: cores that a rank keeps busy on a CPU, share of time "
    "that its device is busy on a GPU.",
    (
        text("Ranks", "world_size"),
        Column("A step [GFLOP]", "model_flops_per_step", GIGA),
        interval("Rate [GFLOP/s]", "model_flops_per_second", GIGA),
        Column("Peak [GFLOP/s]", "peak_flops_per_second", GIGA),
        Column("MFU [%]", "model_flops_utilisation", PER_CENT),
        Column("HFU [%]", "hardware_flops_utilisation", PER_CENT),
        Column("Datasheet [GFLOP/s]", "datasheet_flops_per_second", GIGA),
        Column("Share [%]", "share_of_datasheet", PER_CENT),
        Column("Network [%]", "share_of_network_bound", PER_CENT),
        Column("Busy", "mean_utilisation", write=hundredths),
    ),
)
SENDS = Table(
    "Bytes that the rank that sends most sends in a step along each axis of the layout: by the "
    "formula of its strategy, and counted in the profiled run (a ring sends (n-1)/n of what it "
    "scatters or gathers, twice that in an all-reduce). Neither has headers and acknowledgements, "
    "formulas no padding and single numbers. Between nodes: of the counted bytes what goes to a "
    "rank of another node. Horovod fuses its calls into fewer messages.",
    (
        text("Axis", "axis"),
        text("Formula", "formula"),
        Column("Predicted", "predicted_bytes", write=whole),
        Column("Counted", "counted_bytes", write=whole),
        Column("Between nodes", "between_nodes_bytes", write=whole),
        Column("Counted over predicted", "ratio", write=thousandths),
        text("Calls", "calls"),
    ),
    needs="profile",
)
LAYOUTS = Table(
    "Each layout beside its formulas. Memory: above its base, of each run's largest rank; model: "
    "the planner's. Ideal: the single device's step over the ranks, for as many tokens, times one "
    "and the bubble's formula. Sent: by the rank that sends most, counted in the profiled run. "
    "Bubble: idle time of a pipeline's ranks over that of their passes, from the passes of the "
    "profiled run (on emulated nodes each with the median time of its kind and stage) replayed as "
    "if messages took no time; schedule: the same of passes made equally "
    "long, as in its formula. Waits: share of a profiled step in which a rank computes nothing.",
    (
        text("Ranks", "world_size"),
        Column("Memory [MiB]", "memory_bytes", MEBIBYTES),
        Column("Model [MiB]", "predicted_memory_bytes", MEBIBYTES),
        interval("Step [ms]", "step_seconds", MILLISECONDS),
        Column("Ideal [ms]", "ideal_seconds", MILLISECONDS),
        Column("Sent [MB]", "sent_bytes", MEGABYTES),
        Column("Formula [MB]", "predicted_sent_bytes", MEGABYTES),
        Column("Bubble [%]", "phase_bubble", PER_CENT),
        Column("Schedule [%]", "phase_bubble_schedule", PER_CENT),
        Column("Formula [%]", "phase_bubble_formula", PER_CENT),
        Column("Waits [%]", f"phase_share:{COMMUNICATION}", PER_CENT),
    ),
    needs="layouts",
)
ENVIRONMENT = Table(
    "What the runs recorded; where they differ, all texts, and the least and the largest of "
    "numbers. A run stalled where TCP timed out and a step took so long, or over a second and over "
    "twenty times the median; its steps stay in the data.",
    compares=FIELDS,
)
TABLES = {name.lower(): one for name, one in sorted(globals().items()) if isinstance(one, Table)}
"""Every declaration above, by its name in small letters."""
