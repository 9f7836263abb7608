"""Every table of a study: a caption, its columns and what it needs. No pandas, for dry runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pipeline.metrics.format import (
    NONE,
    probability,
    ratio_interval,
    scientific,
    significant,
    with_interval,
)
from pipeline.study.equal_work import FIELDS
from pipeline.study.profiling import COMMUNICATION

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

    The function of `pipeline.tables.rows` that has the table's name gives the rows; `show` names
    one of `pipeline.tables.texts`, without which the columns stand beside what each row is about.
    `needs` is what the study must have (`pipeline.catalogue`), `compares` the fields of equal work
    that may differ.
    """

    caption: str
    columns: Sequence[Column] = ()
    show: str = "shown"
    needs: str = ""
    compares: Collection[str] = ("precision",)


MEBIBYTES, MEGABYTES, MILLISECONDS, PER_CENT, GIGA = 1 / 2**20, 1e-6, 1000, 100, 1e-9
"""Factors by which bytes, seconds, shares and rates are multiplied to be shown."""

whole, hundredths, thousandths = "{:,.0f}".format, "{:.2f}".format, "{:.3f}".format

SUMMARY = Table(
    "Every cell at the largest world, the highest throughput first. Efficiency: speedup over the "
    "ratio of ranks. Exposed: share of a step that is communication which no computing hides. "
    "Memory: peak of the largest rank. Under weak scaling the speedup is a scaled one. The table "
    "of scaling has every link and node count.",
    (
        interval("Tokens/s", "tokens_per_second"),
        ratio("Speedup", "speedup"),
        Column("Efficiency", "efficiency", write=hundredths),
        text("Base", "base"),
        ratio("Exposed [%]", f"phase_share:{COMMUNICATION}", PER_CENT, decimals=0),
        Column("Memory [MiB]", "peak_memory_bytes", MEBIBYTES, whole),
    ),
)
SCALING = Table(
    "Throughput, its speedup over the base, parallel efficiency (speedup over the ratio of ranks), "
    "and throughput over that of the same cell on its fewest nodes, with their intervals; those of "
    "ratios cover no less than the worse of their two parts. Under weak scaling the speedup is a "
    "scaled one. 'Against it' says whether the test finds the cell faster or slower than the "
    "base. A dash: no run finished, or the base did not.",
    (
        interval("Tokens/s", "tokens_per_second"),
        ratio("Speedup", "speedup"),
        ratio("Efficiency", "efficiency"),
        ratio("Over itself", "own_speedup"),
        text("Base", "base"),
        text("Against it", "verdict"),
        Column("Steps to loss", "steps_to_loss", write=whole),
        interval("Node hours to loss", "node_hours"),
    ),
)
COMPARISONS = Table(
    "Cells against each other over one link and at the same number of nodes, by short name: "
    "throughput of the row over that of the column. A mark stands where the difference is "
    "decided, > where the row is faster and < where it is slower: where the p-value of the exact "
    "rank-sum test on the runs (Wilcoxon, Mann and Whitney), corrected for all pairs of the block "
    "(Holm), is under 0.05 and the interval of the ratio leaves out 1, on emulated nodes also all "
    "that their times are known to be off by. A dash stands where the two did not do equal work "
    "or train alike. Intervals, p-values and effect sizes are in the table's CSV.",
    show="matrix",
    # Equal work is checked for every pair; one that did not do it has a dash.
    compares=FIELDS,
)
STEP_TIME = Table(
    "Median over the repeats of the runs' median step times, with its 95 % interval from six "
    "repeats on. A dash stands where no run finished. Mean and largest step are those of a run, "
    "median over the repeats, and so is the 95th percentile (P95), which stands where every run "
    "has 100 timed steps; the CSV file has their intervals. Free running is a step of a series "
    "that nothing waited for between, its batch read within, and gives the throughput; all other "
    "times begin and end with an idle device.",
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
    "Accuracy of the emulated times on this machine: median step times of the same cells in real "
    "time, each node on cores of its own, and emulated, and the ratio of the second to the first, "
    "with 95 % intervals over the repeats. Where runs in real time timed their forward passes, CPU "
    "seconds of both count by the yardstick. All ratios share its level, the speed of the emulated "
    "processor; by how much two of them may differ is what a ratio of emulated times may be off "
    "by. A dash: not measured here.",
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
    "Largest relative deviation of each cell from its single-device reference over all links, "
    "numbers of nodes and repeats, in loss and in the gradient norm before clipping: at the first "
    "step and over the early steps, which decide; a later drift is reported in the text. "
    "'Tolerance' holds the bands of both for the rows from there on. 'Ranks bit-equal' says "
    "whether all ranks ended with the same weights to the bit. The verdict counts the places, "
    "each a link and a number of nodes, that stayed within.",
    (
        Column("Loss, first", "parity_loss_first", write=scientific),
        Column("Norm, first", "parity_norm_first", write=scientific),
        Column("Loss, early", "parity_loss_early", write=scientific),
        Column("Norm, early", "parity_norm_early", write=scientific),
    ),
    show="worst_of_places",
    compares=FIELDS,
)
STATUS = Table(
    "Runs that did not end as planned; all others ended ok and without drift. A status other than "
    "ok is a result: such runs are listed with their reason and enter no average. 'Drift' counts "
    "the runs whose step time changed by over 5 % from the first to the last third of the timed "
    "steps, beyond chance.",
    show="exceptions",
    compares=FIELDS,
)
MEMORY = Table(
    "Peak memory of a rank as measured and as predicted from the spec: rank 0 and, where it "
    "differs, the largest of the others; medians over the repeats, in MiB. On a CPU the base is "
    "Python and its libraries, which no formula knows; on a GPU it is zero. 'Model' counts "
    "parameters, gradients, optimiser, buffers of the reduction, activations and loss; 'formula "
    "24' is the study's own. Both are held against what was measured above the base, as predicted "
    "over measured. On a CPU small amounts are uncertain by the size of the libraries.",
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
    "Model FLOPs of a step, (6 N + 12 L d s) for each token with N weights in matrix products, L "
    "layers, width d and context s; the rate reached, with the interval of the throughput; the "
    "peak of a rank, the best matrix product in the run's number format that the rank measured "
    "after the training. MFU is the rate over the peaks of all ranks. HFU adds the FLOPs of "
    "recomputed activations and of padding, which are no model FLOPs; without them both are equal. "
    "Where more threads than cores share a machine, peaks count for the cores there are; an "
    "emulated node has whole cores in its dilated time. Datasheet: dense peak of a device and the "
    "share of it that the training reached; a dash where no source is at hand, as for every "
    "processor. Network: share reached of the throughput that the links allow at most, if nodes "
    "send no more than a sum of gradients takes. Busy: mean over the timed steps, of the cores "
    "that a rank keeps busy on a CPU, of the share of time that its device is busy on a GPU.",
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
    "What the rank that sends most sends in a step along each axis of the layout, in bytes on the "
    "wire: by the formula of its strategy, and as counted in the profiled run by the algorithm "
    "that ran (a ring sends (n-1)/n of what it scatters or gathers, and twice that in an "
    "all-reduce). n are the ranks of the axis, s those over which ZeRO cuts, m micro-batches, L "
    "blocks of a rank, T tokens of its share of the batch; G, W, B, P, A and R are bytes: of "
    "gradients, of the weights that these ranks hold together, of those of blocks and of those "
    "with more than 100,000 numbers, of an activation of T tokens, of the gradients that no axis "
    "cuts. Formulas leave out padding and "
    "single numbers, as a norm is; headers, acknowledgements and Horovod's negotiation are not "
    "counted. Calls are those of the rank; Horovod fuses its own into fewer messages. A dash: "
    "nothing was counted.",
    (
        text("Axis", "axis"),
        text("Formula", "formula"),
        Column("Predicted", "predicted_bytes", write=whole),
        Column("Counted", "counted_bytes", write=whole),
        Column("Ratio", "ratio", write=thousandths),
        text("Calls", "calls"),
    ),
    show="same_over_links",
    needs="profile",
)
LAYOUTS = Table(
    "Memory, time, bytes and waiting of each layout at equal work, each beside its formula. Memory "
    "is that of the rank that needs most above its base, median over the repeats, beside the model "
    "of the planner. Step time is the median over the repeats with its interval; its ideal is that "
    "of the single device divided by the ranks, times one and the formula of the bubble. Sent is "
    "what the rank that sends most sends in a step along all axes, counted in the profiled run. "
    "The bubble is the idle time of the ranks of a pipeline over that of their passes: measured "
    "from the computation of each pass in the profiled run, replayed in its order as if messages "
    "took no time, so that schedule and unequal stages alone make it; the schedule's part is that "
    "of the same passes made equally long, as in its formula. Waits are the share of a step of the "
    "profiled run in which a rank computes nothing: bubble, messages and reductions.",
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
    "The environment that the runs recorded. Where runs differ, all texts are listed, and the "
    "least and the largest of numbers. A run stalled where TCP timed out and a step took so long, "
    "or over a second and over twenty times the median; its steps stay in the data.",
    show="shortened",
    compares=FIELDS,
)
TABLES = {name.lower(): one for name, one in sorted(globals().items()) if isinstance(one, Table)}
"""Every declaration above, by its name in small letters."""
