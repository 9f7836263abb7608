"""Tables of the cost model's errors on published points, for docs/planner.md and its paper.

They are declared as those of a study are, but their rows come from `pipeline.cost`, not from runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from pipeline.cost import bars, score
from pipeline.tables.declared import PER_CENT, Column, Table, text, whole
from pipeline.text import prose

if TYPE_CHECKING:  # the workflow asks for the names of the tables
    import pandas as pd

_tenths = "{:.1f}".format


def _signed(value: float) -> str:
    return f"{round(value):+d}" if round(value) else "0"


def _pair(title: str, name: str) -> tuple[Column, Column]:
    """Columns of the mean and of the median error."""
    return (
        Column(f"{title} mean", name, PER_CENT, _tenths),
        Column(f"{title} median", f"{name}_median", PER_CENT, _tenths),
    )


_SET = (text("Points", "points"), text("n", "n"))
_EACH = (Column("Measured [s]", "measured"), Column("Own", "own", PER_CENT, _signed))
_WAYS = (
    "Constant: the best single utilisation for the very set, known only afterwards. Neighbour: the "
    "utilisation of the most alike point of another set. Model: without any constant that was "
    "derived from the set. Own: the model with all of them, which is no test where some were."
)

TABLES = {
    "sets": Table(
        "The points. Measured: steps with a time, of which the suspect ones are shown and never "
        "scored (the source contradicts itself, or shows a defect of its own code). Without a "
        "time: layouts that crashed, or of which only the memory was published.",
        (
            text("Points", "points"),
            text("GPU", "hardware"),
            text("GPUs", "gpus"),
            text("Measured", "measured"),
            text("Suspect", "suspect"),
            text("Without a time", "untimed"),
            text("Source", "source"),
        ),
    ),
    "errors": Table(
        "Errors by set, in per cent: |predicted over measured step - 1|, to the nearer end where a "
        f"range is predicted. {_WAYS} In band: share of points in the 90 % band of the model.",
        (
            *_SET,
            *(one for way in score.WAYS for one in _pair(way.capitalize(), way)),
            Column("In band", "in_band", PER_CENT, whole),
        ),
    ),
    "devices": Table(
        "Mean errors by kind of GPU, in per cent, and the share of points in the band.",
        (
            text("GPU", "device"),
            text("n", "n"),
            *(Column(name.capitalize(), name, PER_CENT, _tenths) for name in score.WAYS),
            Column("In band", "in_band", PER_CENT, whole),
        ),
    ),
    "bars": Table(
        "The bars; those on sets are on the mean error of their steps. Found: without the "
        "constants derived from the set. Own: with all, which decides nothing. Memory, fit and "
        "band are over all points.",
        (
            text("Bar on", "what"),
            text("Bar", "bar"),
            text("Found", "found"),
            text("Own", "own"),
            text("Verdict", "verdict"),
        ),
    ),
    "peaks": Table(
        "Errors of the peak memory of the largest rank, in per cent: the median, and within which "
        "nine tenths of the points lie.",
        (
            *_SET,
            Column("Model median", "median", PER_CENT, _tenths),
            Column("Model nine tenths", "nine_tenths", PER_CENT, _tenths),
            Column("Own median", "own_median", PER_CENT, _tenths),
            Column("Own nine tenths", "own_nine_tenths", PER_CENT, _tenths),
        ),
    ),
    "growth": Table(
        "Larger worlds from the measured step of the smallest (--base), errors in per cent. "
        "Linear: the seconds of the smallest for a sequence and device.",
        (*_SET, *_pair("Linear", "linear"), *_pair("Model", "model")),
    ),
    "suspect": Table(
        "Suspect points, which no score counts: the error with all constants, in per cent of the "
        "measured step, and why.",
        (text("Point", "point"), *_EACH, text("Why", "why")),
    ),
    "every": Table(
        "Every point that is scored: predicted over measured step - 1 in per cent, by a constant "
        "utilisation (Const.), the nearest neighbour (Neigh.), the model without the constants "
        "derived from the set (Model) and with all (Own). Out: the band of the model does not "
        "hold the measured step.",
        (
            text("Point", "point"),
            _EACH[0],
            Column("Const.", "constant", PER_CENT, _signed),
            Column("Neigh.", "neighbour", PER_CENT, _signed),
            Column("Model", "model", PER_CENT, _signed),
            _EACH[1],
            text("Band", "band"),
        ),
    ),
}

ROWS: dict[str, Callable[[], Iterable[Mapping[str, Any]]]] = {
    "sets": score.sets,
    "errors": partial(score.errors_by, "points"),
    "devices": partial(score.errors_by, "device"),
    "bars": bars.rows,
    "peaks": score.memory_by_set,
    "growth": score.growth_by_set,
    "suspect": score.suspect,
    "every": score.every,
}


@cache
def made(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The raw numbers of a table and its text."""
    import pandas as pd

    raw = pd.DataFrame([*ROWS[name]()])
    return raw, pd.DataFrame({one.title: one.texts(raw) for one in TABLES[name].columns})


def in_markdown() -> dict[str, str]:
    """The parts of docs/planner.md and README that are generated, by the name of their marks."""
    from pipeline.tables.write import to_markdown

    missed = "\n".join(f"- {line}" for line in bars.missed())
    table, why = to_markdown(made("bars")[1]), "Wrong where missed:"
    return {
        "errors": "\n\n".join(
            f"{prose(TABLES[name].caption)}\n\n{to_markdown(made(name)[1]).rstrip()}"
            for name in ("errors", "peaks", "growth")
        ),
        "bars": f"{table}\n{why}\n\n{missed}",
        "limits": "\n".join(f"- {line}" for line in bars.LIMITS),
        "errors by GPU": to_markdown(made("devices")[1].drop(columns=["Own", "In band"])).rstrip(),
    }
