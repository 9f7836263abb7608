"""Trainings that begin with weights of files: `python -m tests.begun TOKENS OUT FOLDER...`.

Each folder is one that save_pretrained has written; OUT gets what the ranks of `parity` leave.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.study.model_files import with_files
from pipeline.study.spec import ModelSpec, RunSpec
from pipeline.training import worker
from tests.parity import rank
from tests.parity.cases import Case

STRATEGIES = {1: ("single",), 2: ("ddp", "sharded", "tensor", "pipeline_parallel")}
"""By number of ranks; `sharded` is of stage 3, and cuts weights as the two after it do."""


@dataclass(frozen=True)
class Begun(Case):
    """A case whose model lies in a folder."""

    folder: str = ""

    @property
    def model(self) -> ModelSpec:
        given = {"family": "transformers", "config": "config.json", "weights": "."}
        return ModelSpec(**with_files(given, Path(self.folder), extends=False))

    def spec(self, world: int) -> RunSpec:
        whole = super().spec(world)
        return replace(whole, workload=replace(whole.workload, steps=2, untimed_steps=1))


def cases(world: int, folders: list[str]) -> list[Begun]:
    made = []
    for folder in folders:
        [kind] = json.loads(Path(folder, "config.json").read_text())["architectures"]
        made += [Begun(one, architecture=kind, folder=folder) for one in STRATEGIES[world]]
    return made


def main(tokens: str, out: str, *folders: str) -> int:
    worker.import_heavy()
    import pipeline.models.transformers.model  # noqa: F401  # before the forks, as all that is heavy

    own: Any = rank
    own.cases_of = lambda _, world: cases(world, [*folders])
    return max(rank.start("", world, Path(tokens), Path(out)) for world in STRATEGIES)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
