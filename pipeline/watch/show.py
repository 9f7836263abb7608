"""A watched study as one line, and as the matrix of cells x nodes with medians as they come."""

from __future__ import annotations

from collections import Counter

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipeline.study.spec import TIMED
from pipeline.watch.state import Ended, Watched, medians

_LAST = 3
_BAR = 12
# As a verdict or a status is coloured elsewhere; the words say the same without a colour.
_COLOURS = {"ok": "green", "unsupported": "yellow"}


def line(watched: Watched, now: str = "") -> str:
    """`37 of 84 runs, about 4 min left; last: DDP, 4 nodes, 26.4 ms a step`.

    `now` is what is under way, in words, beside the phase that `Watched.phase` knows of.
    """
    done, planned = _counts(watched)
    parts = [f"{done} of {planned} runs"]
    if counts := _not_ok([*watched.ended.values()]):
        parts[0] += f" ({', '.join(f'{count} {status}' for status, count in counts.items())})"
    if done < planned:
        left = watched.seconds_left()
        parts[0] += "" if left is None else f", about {duration(left)} left"
        if watched.ended:
            last = max(watched.ended.values(), key=lambda run: run.ended)
            parts.append(f"last: {_outcome(watched, last)}")
    if now:
        parts.append(f"now {now}")
    elif (phase := watched.phase()) is not None:
        parts.append(phase)
    return "; ".join(parts)


def bar(watched: Watched) -> tuple[str, str]:
    """The part of a bar that is filled, and the rest of it."""
    done, planned = _counts(watched)
    filled = round(_BAR * done / planned) if planned else _BAR
    return "━" * filled, "─" * (_BAR - filled)


def matrix(watched: Watched) -> Group:
    """Cells x nodes: runs ended of those planned, their median step time, what went wrong."""
    nodes = sorted({run.world.nodes for run in watched.planned})
    said = f"{watched.study.name}: median step time in ms, runs ended of those planned"
    table = Table(title=Text(said), title_justify="left")
    table.add_column("cell", no_wrap=True)
    for count in nodes:
        table.add_column(f"{count} node{'' if count == 1 else 's'}", justify="right", no_wrap=True)
    known = medians(watched.ended.values())
    for cell in dict.fromkeys(run.cell for run in watched.planned):
        table.add_row(cell, *(_entry(watched, known, cell, count) for count in nodes))
    filled, rest = bar(watched)
    last = sorted(watched.ended.values(), key=lambda run: run.ended)[-_LAST:]
    others = {
        "profiled runs": [run for run in watched.planned if run.profile],
        "runs in real time": [run for run in watched.planned if run.world.real_time],
    }
    notes = [
        f"{what}: {sum(run.run_id in watched.ended for run in runs)}/{len(runs)}"
        for what, runs in others.items()
        if runs
    ]
    return Group(
        table,
        Text(filled, style="green") + Text(rest, style="dim") + Text(f"  {line(watched)}"),
        Text("; ".join(notes) or "no profiled runs", style="dim"),
        *(Text(_outcome(watched, run), style=_COLOURS.get(run.status, "red")) for run in last),
    )


def duration(seconds: float) -> str:
    """Whole seconds, minutes or hours and minutes, whichever a person would say."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _counts(watched: Watched) -> tuple[int, int]:
    planned = watched.planned
    return sum(run.run_id in watched.ended for run in planned), len(planned)


def _not_ok(ended: list[Ended]) -> Counter[str]:
    """Status -> runs that ended with it, `ok` left out."""
    return Counter(run.status for run in ended if run.status != "ok")


def _entry(watched: Watched, known: dict[tuple[str, int], float], cell: str, nodes: int) -> Text:
    own = [r for r in watched.planned if (r.cell, r.world.nodes, r.kind) == (cell, nodes, TIMED)]
    if not own:
        return Text("")
    ended = [watched.ended[run.run_id] for run in own if run.run_id in watched.ended]
    text = Text()
    if (cell, nodes) in known:
        text.append(f"{_milliseconds(known[cell, nodes])}  ", style="bold")
    for status, count in _not_ok(ended).items():
        text.append(f"{count} {status}  ", style=_COLOURS.get(status, "red"))
    whole = len(ended) == len(own)
    return text.append(f"{len(ended)}/{len(own)}", style="green" if whole else "dim")


def _outcome(watched: Watched, run: Ended) -> str:
    """`DDP, 4 nodes, 1gbit, 26.4 ms a step`; the link where the study has several."""
    world = run.spec.world
    parts = [watched.labels[run.spec.cell]]
    parts.append(f"{world.nodes} node{'' if world.nodes == 1 else 's'}")
    if world.link is not None and len(watched.study.cluster.links) > 1:
        parts.append(world.link.name)
    if run.step_seconds is not None:
        parts.append(f"{_milliseconds(run.step_seconds)} ms a step")
    else:
        parts.append(run.spec.kind if run.status == "ok" else run.status)
    return ", ".join(parts)


def _milliseconds(seconds: float) -> str:
    """Three significant digits, or all of a whole number that is longer."""
    value = 1000 * seconds
    return f"{value:#.3g}".rstrip(".") if value < 100 else f"{value:,.0f}"
