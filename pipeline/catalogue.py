"""Folders of which each file makes one output: the figures, the tables, and the stage of each."""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import options, strategies
from pipeline.parallel.mesh import DATA
from pipeline.resolved import resolve
from pipeline.study.expansion import compares_conditions, expand
from pipeline.study.real_time import in_real_time
from pipeline.study.study import Study

if TYPE_CHECKING:
    import pandas as pd

VERDICTS, CONDITIONS, PROFILE, LAYOUTS = "verdicts", "conditions", "profile", "layouts"
REAL_TIME = "real_time"
"""Needs that an output may have, as its `NEEDS` says; without it the study does not have it.

Verdicts are on the published claims that the study names; conditions are those of its links; a
profile is that of its profiled runs; real time is that of its runs in it; layouts are profiled
cells of which one has another axis than that of the data.
"""

WANTED = ("CAPTION", "NEEDS")
"""Constants of a file that are read."""


@dataclass(frozen=True)
class Catalogue:
    """The files of a package, read and not imported; each makes one output of a `kind`."""

    kind: str
    package: str
    folder: str

    def constants(self, name: str) -> dict[str, str]:
        """Value of the constant `name` by the name of each file that has it, in their order."""
        paths = sorted(Path(self.folder).glob("*.py"))
        own = {path.stem: _constants(path.read_text(encoding="utf-8")) for path in paths}
        return {stem: values[name] for stem, values in own.items() if name in values}

    def captions(self) -> dict[str, str]:
        """Caption of each by name, in alphabetical order."""
        return self.constants("CAPTION")

    def names(self) -> list[str]:
        """Names of all figures or tables, in alphabetical order."""
        return list(self.captions())

    def needing_verdicts(self) -> list[str]:
        """Names of those that are about claims, which get the verdicts too."""
        return [name for name, what in self.constants("NEEDS").items() if what == VERDICTS]

    def shown(self, study: Study) -> list[str]:
        """Names of those that a study has: all whose need it meets."""
        met = {
            VERDICTS: bool(study.claims),
            CONDITIONS: compares_conditions(study),
            PROFILE: study.profile_steps is not None,
            REAL_TIME: bool(in_real_time(study)),
            LAYOUTS: study.profile_steps is not None and has_layouts(study),
        }
        needs = self.constants("NEEDS")
        return [name for name in self.names() if name not in needs or met[needs[name]]]

    def add_arguments(self, parser: argparse.ArgumentParser, formats: str) -> None:
        """Declare what the stage of every such package takes; `formats` as `{pdf,svg}`."""
        names = self.names()
        about = f"files in pipeline/{self.kind}s: {', '.join(names)}"
        parser.add_argument("names", choices=names, metavar="NAME", nargs="+", help=about)
        parser.add_argument("--metrics", type=options.path, required=True, help="metrics.parquet")
        parser.add_argument(
            "--verdicts", type=options.file, help="verdicts.json, for one on claims"
        )
        parser.add_argument(
            "--out", type=options.new_folder, required=True, help=f"folder for NAME.{formats}"
        )

    def load(
        self, names: Sequence[str], frame: pd.DataFrame, verdicts: Path | None
    ) -> Iterator[tuple[str, Any, list[Any]]]:
        """For each name its module and what it works on: the table of equal work, and verdicts."""
        from pipeline.claims.write import verdicts_for
        from pipeline.metrics.comparison import require_equal_work

        for name in names:
            module = importlib.import_module(f"{self.package}.{name}")
            require_equal_work(frame, module.COMPARES, f"{self.kind} {name}")
            study = str(frame["study"].iloc[0])
            wanted = self.needing_verdicts()
            yield name, module, [frame, *verdicts_for(name, verdicts, wanted, study)]


def has_layouts(study: Study) -> bool:
    """True where a cell cuts the model: its layout has another axis than that of the data.

    A strategy that this checkout does not have, as an archive may name one, is not asked.
    """
    known = strategies.names()
    worlds = {(r.cell, r.world): r for r in expand(study) if r.strategy in known}
    return any(name != DATA for r in worlds.values() for name, _ in resolve(r).layout.axes)


@cache
def _constants(source: str) -> dict[str, str]:
    """Value of each module-level constant of `WANTED` in the text of a file, on one line."""
    return {
        target.id: " ".join(str(ast.literal_eval(node.value)).split())
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in WANTED
    }
