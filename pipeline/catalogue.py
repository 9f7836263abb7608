"""Names, captions and needs of all figures, or of all tables, and which of them a study has."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline import options, strategies
from pipeline.metrics.statistics import MIN_REPEATS
from pipeline.parallel.mesh import DATA
from pipeline.resolved import runs_of
from pipeline.study.expansion import compares_conditions, expand, in_real_time
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from pipeline.study.switches import switches


@dataclass(frozen=True)
class Catalogue:
    """Outputs of a `kind`: the caption of each by name, and the needs that some have of a study.

    `needs_met` says what a need is.
    """

    kind: str
    captions: Mapping[str, str]
    needs: Mapping[str, str]

    def shown(self, study: Study) -> list[str]:
        """Names of those that a study has: all whose need it meets."""
        met = needs_met(study)
        return [name for name in self.captions if name not in self.needs or met[self.needs[name]]]

    def add_arguments(self, parser: argparse.ArgumentParser, formats: str) -> None:
        """Declare what the stage of the outputs takes; `formats` as `{pdf,svg}`."""
        about = f"{self.kind}s of pipeline/{self.kind}s: {', '.join(self.captions)}"
        parser.add_argument(
            "names", choices=[*self.captions], metavar="NAME", nargs="+", help=about
        )
        parser.add_argument("--metrics", type=options.path, required=True, help="metrics.parquet")
        parser.add_argument(
            "--out", type=options.new_folder, required=True, help=f"folder for NAME.{formats}"
        )


def of_folder(kind: str, folder: str) -> Catalogue:
    """The files of a folder that have a `CAPTION`, read and not imported; one may have `NEEDS`."""
    texts: dict[str, dict[str, str]] = {"CAPTION": {}, "NEEDS": {}}
    for path in sorted(Path(folder).glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign([ast.Name(name)], ast.Constant(text)) if name in texts:
                    texts[name][path.stem] = " ".join(str(text).split())
    return Catalogue(kind, texts["CAPTION"], texts["NEEDS"])


def needs_met(study: Study) -> dict[str, bool]:
    """Needs of figures and tables, each with True where the study meets it.

    A need is `conditions` of its links, a `profile` (profiled runs), runs in `real_time`,
    `switches` (changes made by turns), `spread` (a cell of as many repeats as an interval needs),
    or `layouts`: profiled cells of which one cuts the model, so that its layout has another axis
    than that of the data. A strategy that this checkout does not have, as an archive may name one,
    is not asked.
    """
    has_profile = study.profile_steps is not None
    runs = runs_of(study, _known) if has_profile else ()
    return {
        "conditions": compares_conditions(study),
        "profile": has_profile,
        "real_time": bool(in_real_time(study)),
        "switches": bool(switches(study)),
        "spread": any(arm.repeats >= MIN_REPEATS for arm in study.arms),
        "layouts": any(name != DATA for run in runs for name, _ in run.layout.axes),
    }


def _known(study: Study) -> list[RunSpec]:
    names = strategies.names()
    return [spec for spec in expand(study) if spec.strategy in names]
