"""What a run is: `RunSpec`, its parts, and how a study becomes runs (standard library only).

A study is the mapping of a `workflow/config/*.yaml` file after validation by
`workflow/schemas/config.schema.yaml`. `expand(study)` turns it into one `RunSpec` for each
cell x node count x repeat; everything downstream reads only run specs.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.errors import StudyError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "amp_o1", "amp_o2", "apex_o1", "apex_o2")


@dataclass(frozen=True)
class ModelSpec:
    """Shape of the model. `width` is the embedding size, `context` the positions per sequence."""

    family: str
    num_layers: int
    width: int
    num_heads: int
    context: int
    vocab_size: int


@dataclass(frozen=True)
class OptimiserSpec:
    """AdamW with clipping by the global gradient norm and a linear warm-up of `warmup_steps`.

    After the warm-up, `schedule` is `constant` or `linear` (to zero after `schedule_steps`, by
    default the run's steps).
    """

    name: str
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float
    schedule: str
    warmup_steps: int
    schedule_steps: int | None = None


@dataclass(frozen=True)
class WorkloadSpec:
    """Work of one run. `global_batch` counts sequences per optimiser step over all ranks.

    The first `untimed_steps` are trained and recorded but left out of the timing.
    `scaling` says how the study's batch became `global_batch`: `strong` keeps it for every world
    size, `weak` multiplies it by the world size.
    """

    global_batch: int
    accumulation_steps: int
    steps: int
    untimed_steps: int
    scaling: str
    checkpoint_every: int


@dataclass(frozen=True)
class LinkSpec:
    """The cable of an emulated node, full duplex: Mbit/s each way, one-way delay in microseconds.

    `name` is part of the names of the cells that run over it.
    """

    name: str
    rate_mbits: float
    delay_us: int = 0

    @property
    def text(self) -> str:
        """`1 Gbit/s`, with the delay where there is one."""
        rate = self.rate_mbits
        text = f"{rate / 1000:g} Gbit/s" if rate >= 1000 else f"{rate:g} Mbit/s"
        return text + (f", {self.delay_us} µs" if self.delay_us else "")


@dataclass(frozen=True)
class WorldSpec:
    """Where a run happens: `nodes` x `ranks_per_node` devices, `backend` over `network`.

    `threads_per_rank` is None where each machine's cores are shared equally among its ranks. `link`
    and `cores_per_node` belong to the network `emulated` alone.
    """

    nodes: int
    ranks_per_node: int
    device: str
    backend: str
    network: str
    threads_per_rank: int | None = None
    link: LinkSpec | None = None
    cores_per_node: int | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorldSpec:
        """Rebuild it from plain JSON types; raises TypeError on a missing or unknown key."""
        link = data.get("link")
        return cls(**{**data, "link": LinkSpec(**link) if link else None})

    @property
    def size(self) -> int:
        """Number of ranks (devices) in the world."""
        return self.nodes * self.ranks_per_node

    @property
    def num_machines(self) -> int:
        """Machines that the nodes need: one each over a real network, else they share one."""
        return self.nodes if self.network == "real" else 1


@dataclass(frozen=True)
class RunSpec:
    """One training run; `run_id` is derived and names its folder below `results/`.

    `image_digest` is the container image that the run must be inside, None where any place will do.
    `profile` makes it a profiled run (`pipeline.profiling`), which is never a timed one.
    """

    study: str
    cell: str
    strategy: str
    precision: str
    world: WorldSpec
    model: ModelSpec
    optimiser: OptimiserSpec
    workload: WorkloadSpec
    repeat: int
    seed: int
    compile: bool = False
    timeout_seconds: int = 3600
    image_digest: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    profile: bool = False

    @property
    def run_id(self) -> str:
        """`<study>/<cell>/n<nodes>/r<repeat>`, and `p<repeat>` at the end of a profiled one."""
        kind = "p" if self.profile else "r"
        return f"{self.study}/{self.cell}/n{self.world.nodes}/{kind}{self.repeat}"

    @property
    def global_batch_tokens(self) -> int:
        """Tokens per optimiser step over all ranks."""
        return self.workload.global_batch * self.model.context

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; later fields are left out where unset, so earlier specs keep hashes."""
        whole = asdict(self) | {"options": dict(self.options)}
        later = [(whole, "image_digest")]
        later += [(whole["world"], n) for n in ("threads_per_rank", "link", "cores_per_node")]
        for place, name in later:
            if place[name] is None:
                del place[name]
        if not self.profile:
            del whole["profile"]
        return whole

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """Rebuild a spec; raises StudyError on a missing or unknown key."""
        parts: dict[str, Any] = {
            "model": ModelSpec,
            "optimiser": OptimiserSpec,
            "workload": WorkloadSpec,
        }
        try:
            nested = {name: kind(**data[name]) for name, kind in parts.items()}
            nested["world"] = WorldSpec.from_dict(data["world"])
            spec = cls(**{**data, **nested})
        except (KeyError, TypeError) as error:
            raise StudyError(
                f"run spec does not fit RunSpec ({error}); "
                "remove the file, snakemake writes it again"
            ) from error
        spec.check()
        return spec

    def to_json(self) -> str:
        """Canonical text: equal specs give equal bytes."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=1) + "\n"

    def sha256(self) -> str:
        """Hash of the canonical text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def check(self) -> None:
        """Raise StudyError where the numbers contradict one another."""
        _check_world(self)
        _check_model(self.model)
        work = self.workload
        if work.untimed_steps >= work.steps:
            raise StudyError(
                f"{self.run_id}: untimed_steps {work.untimed_steps} leaves none of {work.steps} "
                "steps to time; lower workload.untimed_steps or raise workload.steps"
            )
        if self.precision not in PRECISIONS:
            raise StudyError(
                f"{self.run_id}: precision {self.precision!r} is unknown; use one of "
                + ", ".join(PRECISIONS)
            )


def _check_world(spec: RunSpec) -> None:
    size, work = spec.world.size, spec.workload
    backend = {"cpu": "gloo", "cuda": "nccl"}[spec.world.device]
    if spec.world.backend != backend:
        raise StudyError(
            f"{spec.run_id}: backend {spec.world.backend} does not serve device "
            f"{spec.world.device}; set cluster.backend to {backend}"
        )
    if spec.world.network == "emulated" and spec.world.device != "cpu":
        raise StudyError(
            f"{spec.run_id}: emulated nodes have no GPUs; set cluster.device to cpu or "
            "cluster.network to real"
        )
    pieces = size * work.accumulation_steps
    if work.global_batch % size:
        raise StudyError(
            f"{spec.run_id}: world size {size} does not divide the global batch "
            f"{work.global_batch}; set workload.global_batch to a multiple of {size}"
        )
    if work.global_batch % pieces:
        raise StudyError(
            f"{spec.run_id}: global batch {work.global_batch} is not ranks({size}) x "
            f"accumulation_steps({work.accumulation_steps}) x a whole micro-batch; "
            f"set workload.global_batch to a multiple of {pieces}"
        )


def _check_model(model: ModelSpec) -> None:
    if model.width % model.num_heads:
        raise StudyError(
            f"model.width {model.width} is not a multiple of model.num_heads "
            f"{model.num_heads}; change one of them"
        )


def repeat_bounds(study: Mapping[str, Any]) -> tuple[int, int]:
    """Fewest and most repeats of a cell; equal where the study fixes their number."""
    repeats = study["repeats"]
    if isinstance(repeats, int):
        return repeats, repeats
    least, most = repeats["at_least"], repeats["at_most"]
    if most < least:
        raise StudyError(f"repeats.at_most {most} is under repeats.at_least {least}; raise at_most")
    return least, most


def expand(study: Mapping[str, Any]) -> list[RunSpec]:
    """All runs of a validated study, cell by cell; raises StudyError on a contradiction.

    With adaptive repeats these are all that there may be; `pipeline.metrics.adaptive` says which
    of them are called for.
    """
    cells = cells_of(study)
    names = [cell["name"] for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"cell name {name!r} stands {names.count(name)} times; make it unique")
    runs = [
        _run(study, cell, nodes, repeat)
        for cell in cells
        for nodes in cell.get("nodes", study["cluster"]["nodes"])
        for repeat in range(repeat_bounds(study)[1])
    ]
    for run in runs:
        run.check()
    return runs


def links_of(study: Mapping[str, Any]) -> list[LinkSpec]:
    """The links of an emulated network; none elsewhere. Raises StudyError on a contradiction."""
    cluster = study["cluster"]
    emulated = cluster["network"] == "emulated"
    for key in ("links", "cores_per_node"):
        if emulated != (key in cluster):
            raise StudyError(
                f"cluster.{key} belongs to cluster.network emulated, given {cluster['network']}; "
                f"{'add it' if emulated else 'leave it out'}"
            )
    return [LinkSpec(**link) for link in cluster.get("links", [])]


def cells_of(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells of a study; over several links each is one cell a link, its `link` in its name.

    `arm` is the name that the study gave. A cell of one node uses no link, so it stands once, with
    the first.
    """
    links, found = links_of(study), []
    for cell in study["cells"]:
        alone = cell.get("nodes", study["cluster"]["nodes"]) == [1]
        own: list[dict[str, Any]] = [{"link": asdict(link)} for link in links]
        if len(links) > 1 and not alone:
            own = [o | {"name": f"{cell['name']}-{o['link']['name']}"} for o in own]
        found += [{"arm": cell["name"], **cell, **o} for o in (own[:1] if alone else own) or [{}]]
    return found


def _run(study: Mapping[str, Any], cell: Mapping[str, Any], nodes: int, repeat: int) -> RunSpec:
    cluster = study["cluster"]
    work = study["workload"] | cell.get("workload", {})
    optimiser = study["optimiser"] | cell.get("optimiser", {})
    world = WorldSpec(
        nodes=nodes,
        ranks_per_node=cell.get("ranks_per_node", cluster["ranks_per_node"]),
        device=cluster["device"],
        backend=cluster["backend"],
        network=cluster["network"],
        threads_per_rank=cluster.get("threads_per_rank"),
        link=LinkSpec(**cell["link"]) if "link" in cell else None,
        cores_per_node=cluster.get("cores_per_node"),
    )
    factor = world.size if work["scaling"] == "weak" else 1
    seeds = study["seeds"]
    return RunSpec(
        study=study["study"],
        cell=cell["name"],
        strategy=cell["strategy"],
        precision=cell["precision"],
        world=world,
        model=ModelSpec(**study["model"]),
        optimiser=OptimiserSpec(**optimiser),
        workload=WorkloadSpec(**{**work, "global_batch": work["global_batch"] * factor}),
        repeat=repeat,
        seed=seeds[repeat % len(seeds)],
        compile=study.get("compile", False),
        timeout_seconds=study["timeout_seconds"],
        image_digest=study.get("image_digest"),
        options=dict(cell.get("options", {})),
    )


def tokens_spec(study: Mapping[str, Any]) -> dict[str, Any]:
    """What the token shards of a study depend on, and nothing else.

    `min_tokens` is one global batch of the largest world: (sequences x context) + 1.
    """
    largest = max(run.workload.global_batch for run in expand(study))
    return {
        "corpus": study["corpus"],
        "tokenizer": study["tokenizer"],
        "context": study["model"]["context"],
        "model_vocab_size": study["model"]["vocab_size"],
        "min_tokens": largest * study["model"]["context"] + 1,
    }


def run_order(runs: list[RunSpec]) -> list[RunSpec]:
    """The runs in a random order that the study's seeds fix: repeats first, shuffled inside.

    Drift of the machine then spreads over all cells instead of hitting one (Hoefler & Belli, SC15).
    """
    generator = random.Random(f"{[(run.study, run.seed) for run in runs]}")
    shuffled = generator.sample(runs, len(runs))
    return sorted(shuffled, key=lambda run: run.repeat)
