"""A study as its file states it, typed: cells, cluster, work, repeats (standard library only)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.errors import StudyError, refuse
from pipeline.study.link import LinkSpec
from pipeline.study.spec import ModelSpec, ObjectiveSpec, OptimiserSpec, WorkloadSpec


@dataclass(frozen=True)
class ClusterSpec:
    """Nodes and network of the runs.

    `links`, `cores_per_node`, `yardstick` and `real_time` belong to the network `emulated`.
    """

    device: str
    ranks_per_node: int
    nodes: tuple[int, ...]
    backend: str
    network: str
    links: tuple[LinkSpec, ...] = ()
    cores_per_node: int | None = None
    threads_per_rank: int | None = None
    yardstick: bool | None = None
    real_time: bool | None = None


@dataclass(frozen=True)
class Cell:
    """A strategy in a precision, with all that it does not state itself from the study.

    `arm` is the name that the study gave; over several links `name` has the link's name too.
    `repeats` are its timed runs at a node count: the study's, or fewer where it says so. `own` is
    what it states of workload, optimiser and options, by these names.
    """

    name: str
    arm: str
    label: str
    strategy: str
    precision: str
    nodes: tuple[int, ...]
    ranks_per_node: int
    repeats: int
    workload: WorkloadSpec
    optimiser: OptimiserSpec
    own: Mapping[str, Mapping[str, Any]]
    link: LinkSpec | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The strategy's knobs that the cell sets."""
        return dict(self.own["options"])


@dataclass(frozen=True, eq=False)
class Study:
    """A validated study after `extends`; `Study.of` makes one from the mapping of its file.

    A study equals itself alone, so that its runs are kept by it and made once.

    `arms` are its cells before links are told apart (`pipeline.study.expansion.cells_of`).
    `profile_steps` is None where no run is profiled. `begin_steps` is None where all runs train to
    the end, else the steps of all but the first repeats of `whole`, each `<cell>/n<nodes>`.
    """

    name: str
    title: str
    corpus: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    model: ModelSpec
    objective: ObjectiveSpec | None
    optimiser: OptimiserSpec
    workload: WorkloadSpec
    cluster: ClusterSpec
    arms: tuple[Cell, ...]
    repeats: int
    seeds: tuple[int, ...]
    timeout_seconds: int
    profile_steps: int | None
    profile_repeats: int
    profile_cells: tuple[str, ...]
    begin_steps: int | None
    whole: tuple[str, ...]
    target_loss: float | None
    claims: tuple[str, ...]
    compares: tuple[str, ...]
    compile: bool
    image_digest: str | None
    environment: Mapping[str, str]
    content: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Study:
        """The study of a mapping that fits the schema; raises StudyError on a contradiction."""
        content = copy.deepcopy(dict(content))
        cluster = _cluster(content["cluster"])
        profile, begin = content.get("profile", {}), content.get("beginnings", {})
        return cls(
            name=content["study"],
            title=content.get("title", content["study"]),
            corpus=content["corpus"],
            tokenizer=content["tokenizer"],
            model=ModelSpec(**content["model"]),
            objective=ObjectiveSpec.of(content.get("objective")),
            optimiser=OptimiserSpec(**content["optimiser"]),
            workload=WorkloadSpec.of(content["workload"]),
            cluster=cluster,
            arms=tuple(_arm(content, cell, cluster) for cell in content["cells"]),
            repeats=content["repeats"],
            seeds=tuple(content["seeds"]),
            timeout_seconds=content["timeout_seconds"],
            profile_steps=profile.get("steps"),
            profile_repeats=profile.get("repeats", 1),
            profile_cells=tuple(profile.get("cells", ())),
            begin_steps=begin.get("steps"),
            whole=tuple(begin.get("whole", ())),
            target_loss=begin.get("target_loss"),
            claims=tuple(content.get("claims", ())),
            compares=tuple(content.get("compares", ())),
            compile=content.get("compile", False),
            image_digest=content.get("image_digest"),
            environment=content.get("environment", {}),
            content=content,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the mapping that it was made from, a copy of one's own."""
        return copy.deepcopy(dict(self.content))

    def but(self, **changes: Any) -> Study:
        """The study with other top-level keys of its file; None leaves a key out."""
        whole = {**self.content, **changes}
        return Study.of({key: value for key, value in whole.items() if value is not None})


def _cluster(content: Mapping[str, Any]) -> ClusterSpec:
    network = content["network"]
    emulated = network == "emulated"
    elsewhere = "has no", "leave it out, or set network to emulated"
    needs, fix = ("needs", "add it") if emulated else elsewhere
    refuse(StudyError, "cluster.", [
        *((emulated != (key in content), f"network {network} {needs} cluster.{key}; {fix}")
          for key in ("links", "cores_per_node")),
        *((key in content and not emulated,
           f"{key} belongs to cluster.network emulated, given {network}; leave it out")
          for key in ("yardstick", "real_time")),
    ])  # fmt: skip
    links = tuple(LinkSpec(**link) for link in content.get("links", []))
    return ClusterSpec(**{**content, "nodes": tuple(content["nodes"]), "links": links})


def _arm(study: Mapping[str, Any], cell: Mapping[str, Any], cluster: ClusterSpec) -> Cell:
    own = {part: dict(cell.get(part, {})) for part in ("workload", "optimiser", "options")}
    return Cell(
        name=cell["name"],
        arm=cell["name"],
        label=cell["label"],
        strategy=cell["strategy"],
        precision=cell["precision"],
        nodes=tuple(cell.get("nodes", cluster.nodes)),
        ranks_per_node=cell.get("ranks_per_node", cluster.ranks_per_node),
        repeats=min(study["repeats"], cell.get("repeats", study["repeats"])),
        workload=replace(WorkloadSpec.of(study["workload"]), **own["workload"]),
        optimiser=replace(OptimiserSpec(**study["optimiser"]), **own["optimiser"]),
        own=own,
    )
