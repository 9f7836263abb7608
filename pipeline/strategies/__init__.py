"""Strategies, each one file or one folder; adding one is adding a file (see `base.Strategy`).

A folder has two files: `plan.py`, the strategy's arithmetic, in which no torch is loaded, and
`step.py`, which its `build` imports: there the reader sees what is sent, and when.
`names()` lists them without importing any; `load(name, options)` makes one.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import models
from pipeline.errors import StudyError, refuse
from pipeline.strategies.base import SYMBOLS, Strategy
from pipeline.study.spec import (
    ATTENTION,
    ModelSpec,
    ObjectiveSpec,
    OptimiserSpec,
    RunSpec,
    WorkloadSpec,
    WorldSpec,
)
from pipeline.text import pipe_table

FOLDER = Path(__file__).parent
MAX_KNOB = 1_000_000
"""Largest number that a knob takes: MiB, milliseconds and counts."""


def names() -> list[str]:
    """Names of all strategies: stems of this folder's files but `base`, and its folders."""
    return sorted({path.stem for path in FOLDER.iterdir() if _file(path.stem) is not None})


def _file(name: str) -> Path | None:
    """The file of the strategy of that name, or None; names come from a person's study."""
    if not name.isidentifier() or name == "base" or name.startswith("_"):
        return None
    both = (FOLDER / f"{name}.py", FOLDER / name / "plan.py")
    return next((path for path in both if path.is_file()), None)


def about(name: str) -> str:
    """First paragraph of a strategy's module, which describes it."""
    document = sys.modules[_kind(name).__module__].__doc__ or ""
    return " ".join(document.split("\n\n")[0].split())


def table() -> str:
    """A Markdown table of all strategies: what each is, its knobs with defaults, its packages."""
    rows = []
    for name in names():
        strategy = load(name, {})
        knobs = ", ".join(f"`{f.name}` {getattr(strategy, f.name)}" for f in fields(strategy))
        needs = ", ".join(strategy.requires)
        rows.append((f"`{name}`", about(name), knobs or "none", needs or "torch alone"))
    return pipe_table(("strategy", "what it is", "knobs and defaults", "needs"), rows)


def sent_table() -> str:
    """A Markdown table: what each strategy splits and sends, and when to use it.

    A row for each setting of its knobs that splits or sends something else, and what the symbols
    are. The formulas are those of `Strategy.sends` for a small model on four ranks.
    """
    rows = []
    for name in names():
        seen: set[tuple[str, str]] = set()
        for options in ({}, *load(name, {}).variants):
            strategy, spec = load(name, options), _example(name, options)
            sent = strategy.sends_unstated
            if not sent:
                axes = strategy.sends(spec, strategy.layout(spec.world), 0, 1)
                sent = "; ".join(f"{one.axis}: {one.formula}" for one in axes) or "nothing"
            if (strategy.split, sent) not in seen:
                seen.add((strategy.split, sent))
                knobs = ", ".join(
                    f"`{key}`" if isinstance(value, dict) else f"`{key}` {value}"
                    for key, value in options.items()
                )
                named = f"`{name}`, {knobs}" if knobs else f"`{name}`"
                rows.append((named, strategy.split, sent, strategy.use or "-"))
    table = pipe_table(
        ("strategy", "what is split", "sent by a rank in a step", "when to use it"), rows
    )
    symbols = "; ".join(f"{symbol}: {about}" for symbol, about in SYMBOLS.items())
    return f"{table}\n\n{symbols}."


def models_table() -> str:
    """A Markdown table: the models of `models.examples`, and which strategies take each.

    Strategies that take the same ones for the same reasons share a column. Reasons are those of
    `check`, numbered below the table.
    """
    examples, columns = models.examples(), dict[tuple[str, ...], list[str]]()
    for name in names():
        refusals = tuple(_refusal(name, one, model) for one, model in examples.items())
        columns.setdefault(refusals, []).append(f"`{name}`")
    reasons = list(dict.fromkeys(why for column in columns for why in column if why))
    rows = []
    for number, name in enumerate(examples):
        whys = [column[number] for column in columns]
        rows.append([f"`{name}`", *(f"no ({1 + reasons.index(w)})" if w else "yes" for w in whys)])
    table = pipe_table(["model", *(", ".join(together) for together in columns.values())], rows)
    return "\n".join([table, "", *(f"{n}. {why}" for n, why in enumerate(reasons, 1))])


def _refusal(name: str, example: str, model: ModelSpec) -> str:
    """Reason why a strategy with its defaults does not take a model; empty where it does.

    On two ranks, which divide key and value heads, or as many as it has a layout for.
    """
    kind, last = models.family(model).objectives(model)[0], model.vocab_size - 1
    others = (last - 1, last - 2, last - 3) if kind == "masked_next_sentence" else ()
    objective = None if kind == "causal" else ObjectiveSpec(kind, last, 0.15, *others)
    run = _example(name, {}, (2, 4, 1))
    work = replace(run.workload, steps=1 + load(name, {}).period)
    try:
        check([replace(run, model=model, objective=objective, workload=work)])
    except StudyError as error:
        why = re.split("[:;] ", str(error).removeprefix(f"{run.run_id}: "))[0]
        return why.replace(example, "the class")
    return ""


def example(name: str, options: Mapping[str, Any] | None = None) -> ModelSpec:
    """A small model that the strategy trains with these options, or its defaults."""
    own = load(name, options or {}).example
    return models.examples()[own] if own else models.example()


def _example(name: str, options: Mapping[str, Any], ranks: tuple[int, ...] = (4, 1)) -> RunSpec:
    """A run on the first of these numbers of ranks that the strategy has a layout for."""
    for nodes in ranks:
        world = WorldSpec(nodes, 1, "cpu", "gloo", "loopback")
        with suppress(StudyError):
            load(name, options).layout(world)
            break
    model = example(name, options)
    return RunSpec(
        study="example",
        cell="example",
        strategy=name,
        precision="fp32",
        world=world,
        model=model if model.architecture else replace(model, num_layers=12),
        optimiser=OptimiserSpec("adamw", 6e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, "constant", 0),
        workload=WorkloadSpec(16, 4, 3, 1, "strong", 0),
        repeat=0,
        seed=0,
        options=options,
    )  # fmt: skip


def check(runs: Iterable[RunSpec]) -> None:
    """Raise StudyError for a run whose model, strategy, options or world do not go together."""
    for run in runs:
        models.check(run.model, run.objective)
        strategy, work, what = load(run.strategy, run.options), run.workload, run.objective
        last = work.recompute[-1] if isinstance(work.recompute, tuple) and work.recompute else -1
        layers, where = run.model.num_layers, f"{run.run_id}: "
        refuse(StudyError, where, [
            (what is not None and not strategy.weighs,
             f"weights and borders of tokens are not taken; objective {what and what.kind} has "
             f"them, and strategy {run.strategy} averages over all tokens alike: use another "
             "strategy"),
            (last >= layers,
             f"workload.recompute names block {last}, and the model has blocks 0 to {layers - 1}"),
        ])  # fmt: skip
        models.num_parameters(run.model)  # raises where its family cannot make it
        if work.recompute == ATTENTION:  # raises where it cannot be told apart
            models.family(run.model).recomputed_flops_per_token(run.model, ATTENTION)
        for _, phase in run.phases():
            strategy.check_spec(phase)
            try:
                strategy.layout(run.world).check_batch(phase)
            except StudyError as fault:
                raise StudyError(f"{where}{fault}") from None
        untimed, (count, unlike) = work.first_timed(), strategy.unlike
        timed = work.steps - untimed
        steps = "profile.steps" if run.profile else "workload.steps less untimed_steps"
        refuse(StudyError, where, [
            (work.checkpoint_every and not strategy.resumes,
             f"workload.checkpoint_every {work.checkpoint_every}, but strategy {run.strategy} with "
             "these options keeps a state that no checkpoint holds; set it to 0"),
            (untimed < count,
             f"steps before step {count} {unlike}, and {untimed} are untimed; raise "
             f"workload.untimed_steps to {count}"),
            (timed % strategy.period,
             f"{timed} timed steps are no whole rounds of {strategy.period}, of which strategy "
             f"{run.strategy} sends in one alone; set {steps} to a multiple"),
            (run.world.yardstick and not strategy.whole_forward,
             "cluster.yardstick needs forward passes of the whole model, which strategy "
             f"{run.strategy} does not have; set it to null in the study, and CPU seconds count as "
             "they are"),
        ])  # fmt: skip


def load(name: str, options: Mapping[str, Any]) -> Strategy:
    """The strategy of that name with its knobs set.

    Raises StudyError for an unknown one, and for one whose file cannot be imported or makes none.
    """
    if _file(name) is None:  # the metrics ask for thousands
        raise StudyError(
            f"strategy {name[:80]!r} has no file of its own in pipeline/strategies; use one of "
            + ", ".join(names())
            + "; `plan --auto` chooses one" * (name == "auto")
        )
    kind = _kind(name)
    knobs = sorted(field.name for field in fields(kind))
    refuse(StudyError, f"strategy {name} has no option ", [
        (option not in knobs, f"{option!r}; use one of {', '.join(knobs) or 'none'}")
        for option in options
    ])  # fmt: skip
    try:
        strategy, defaults = kind(**options), kind()
    except TypeError as error:
        raise _broken(name, "makes no strategy", error) from error
    for option, value in options.items():
        wanted = type(getattr(defaults, option))
        is_one = type(value) is wanted or (wanted is float and type(value) is int)
        least, most = {knob: limits for knob, *limits in kind.ranges}.get(option, (0, MAX_KNOB))
        is_number = is_one and wanted in (int, float)
        known = dict(kind.choices).get(option, (value,))
        refuse(StudyError, f"strategy {name} option {option} ", [
            (not is_one, f"= {value!r} is no {wanted.__name__}; fix the cell's options"),
            (is_number and not least <= value <= most,
             f"= {value!r} is not from {least} to {most}; fix the cell's options"),
            (value not in known,
             f"{value!r} is unknown; use one of {', '.join(map(str, known))}"),
        ])  # fmt: skip
    return strategy


@cache
def _kind(name: str) -> type[Strategy]:
    """The strategy of that name; raises StudyError where its file is broken or has not just one.

    A class from which another of the file derives is what several strategies share.
    """
    where = "" if (FOLDER / f"{name}.py").is_file() else ".plan"
    try:
        module = importlib.import_module(f"{__name__}.{name}{where}")
    except Exception as error:  # whatever a file does wrong, it is named
        raise _broken(name, "cannot be imported", error) from error
    own = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Strategy)
        and kind.__module__ == module.__name__
    ]
    kinds = [kind for kind in own if not any(kind in other.__mro__[1:] for other in own)]
    if len(kinds) != 1:
        raise StudyError(f"{module.__file__} defines {len(kinds)} strategies; expected exactly one")
    return kinds[0]


def _broken(name: str, what: str, error: Exception) -> StudyError:
    file = _file(name)
    assert file is not None
    reason = " ".join(str(error).split())[:200]
    return StudyError(
        f"pipeline/strategies/{file.relative_to(FOLDER)} {what} ({type(error).__name__}: {reason});"
        " mend that file, or move it out of the folder"
    )
