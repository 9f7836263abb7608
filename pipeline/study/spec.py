"""Run specs: `RunSpec` and its parts (standard library only).

`pipeline.study.expansion` makes them from a study; everything downstream reads only run specs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pipeline.study.link import LinkSpec

PRECISIONS = (
    "fp32", "tf32", "bf16", "fp16", "amp_o1", "amp_o2", "bf16_masters", "bf16_reduced", "apex_o1",
    "apex_o2",
)  # fmt: skip
TIMED, PROFILED, REAL_TIME = "timed", "profiled", "in real time"
ATTENTION = "attention"
"""The policy of `WorkloadSpec.recompute` that is not for whole blocks."""


@dataclass(frozen=True)
class ModelSpec:
    """Shape of the model. `width` is the embedding size, `context` the positions per sequence.

    Of the family `transformers`, `architecture` is the class and `config` what its configuration
    has besides these sizes; with `weights_sha256` it begins with weights of that hash. `hub` at
    `revision`, `config_sha256` and `weights`, a path, say where these lay, and identify nothing.
    `pad_vocab_to`: embedding and output layer have rows up to a multiple
    of it, which no token uses and the loss does not see, as Megatron-LM pads for faster products.
    """

    family: str
    num_layers: int
    width: int
    num_heads: int
    context: int
    vocab_size: int
    architecture: str | None = None
    config: Mapping[str, Any] | None = field(default=None, hash=False)
    pad_vocab_to: int | None = None
    weights_sha256: str | None = None
    weights: str | None = None
    config_sha256: str | None = None
    hub: str | None = None
    revision: str | None = None

    def without_places(self) -> ModelSpec:
        """The model without what says where its content lay."""
        return replace(self, weights=None, config_sha256=None, hub=None, revision=None)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and of the output layer."""
        multiple = self.pad_vocab_to or 1
        return -(-self.vocab_size // multiple) * multiple


@dataclass(frozen=True)
class ObjectiveSpec:
    """The task that a model learns; a run without one predicts the next token (`causal`).

    - `causal` with `reset_positions`: from the tokens before it in its own document alone.
    - `masked`: a `share` of the tokens from those around them. `mask_token` is the id that stands
      for most of these. With `whole_words` all tokens of a word are hidden or none.
    - `masked_next_sentence`: besides, whether one segment follows another; `cls_token` and
      `sep_token` begin and end them, `pad_token` fills the sequence.
    """

    kind: str
    mask_token: int | None = None
    share: float = 0.15
    cls_token: int | None = None
    sep_token: int | None = None
    pad_token: int | None = None
    whole_words: bool = False
    reset_positions: bool = False

    @property
    def pads(self) -> bool:
        """True where sequences have padding."""
        return self.pad_token is not None

    @property
    def tokens(self) -> dict[str, int]:
        """Special tokens by the keys of a study, the one for hidden tokens first."""
        return {k: v for k, v in vars(self).items() if k.endswith("_token") and v is not None}

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> ObjectiveSpec | None:
        """The objective of a study or a spec; None, which specs leave out, is the causal one."""
        objective = None if data is None else cls(**data)
        return None if objective == cls("causal") else objective


@dataclass(frozen=True)
class OptimiserSpec:
    """AdamW or LAMB (`lamb`), clipped by the global gradient norm, with a linear warm-up.

    After `warmup_steps`, `schedule` is `constant` or `linear` (to zero after `schedule_steps`, by
    default the run's steps). `decay_matrices_only`: biases, layer norms and all else of one
    dimension have no weight decay, as in Megatron-LM and nanoGPT.
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
    decay_matrices_only: bool = False

    def rate(self, step: int, total_steps: int) -> float:
        """Learning rate of step `step` (from 0) of `total_steps`: a function of the step alone.

        Warm-up: (step + 1) / warmup_steps of the full rate; then `schedule`.
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        length = self.schedule_steps or total_steps
        return self.learning_rate * max(0, length - step) / max(1, length - self.warmup_steps)


@dataclass(frozen=True)
class PhaseSpec:
    """Steps with another batch and fewer positions, before those of the study's own.

    As BERT trains, most steps with 128 positions and the last with 512. The study's schedule runs
    through each phase anew, after a warm-up of its own, up to `learning_rate` where it is given.
    """

    steps: int
    global_batch: int
    context: int
    warmup_steps: int = 0
    learning_rate: float | None = None


@dataclass(frozen=True)
class WorkloadSpec:
    """Work of one run. `global_batch` counts sequences per optimiser step over all ranks.

    `steps` are those of all phases: of `phases`, which come first, and of the last one, which has
    this batch and the model's context. Only steps of the last are timed, the first `untimed_steps`
    of which are trained and recorded but left out.
    `scaling` says how the study's batch became `global_batch`: `strong` keeps it for every world,
    `weak` multiplies it by the number of devices that compute sequences of their own. `recompute`
    is what the backward pass computes again: True for all of a block but its input (a study may
    say `full`), numbers of the blocks of which alone it is so, `ATTENTION` for what attention
    computes of query, key and value; False (`none`).
    """

    global_batch: int
    accumulation_steps: int
    steps: int
    untimed_steps: int
    scaling: str
    checkpoint_every: int
    recompute: bool | str | tuple[int, ...] = False
    phases: tuple[PhaseSpec, ...] = ()

    def __post_init__(self) -> None:
        """Make one of several spellings, so that equal work has equal hashes."""
        spelt: Any = {"none": False, "full": True}.get(str(self.recompute), self.recompute)
        if isinstance(spelt, Sequence) and not isinstance(spelt, str):
            spelt = tuple(sorted(spelt))
        object.__setattr__(self, "recompute", spelt)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> WorkloadSpec:
        """Rebuild it from plain JSON types."""
        return cls(**{**data, "phases": tuple(PhaseSpec(**one) for one in data.get("phases", ()))})

    @property
    def earlier_steps(self) -> int:
        """Number of the steps before the last phase."""
        return sum(phase.steps for phase in self.phases)

    def first_timed(self, done: int = 0) -> int:
        """The step from which on steps are timed: a run resumed after `done` steps warms up anew.

        The last step is timed in any case, so that what is left is measured.
        """
        return min(max(done, self.earlier_steps) + self.untimed_steps, self.steps - 1)


@dataclass(frozen=True)
class WorldSpec:
    """World of a run: `nodes` x `ranks_per_node` devices, `backend` over `network`.

    `threads_per_rank` is None where each machine's cores are shared equally among its ranks; on an
    emulated node it then counts as 1. All from `link` on belong to the network `emulated` alone.
    With `yardstick` CPU seconds count by the machine's undisturbed speed
    (`pipeline.launch.emulated.yardstick`). Time is dilated as `dilated_for` nodes need it, None for
    `nodes`; `real_time` makes it a run without dilation (`pipeline.study.expansion.in_real_time`).
    """

    nodes: int
    ranks_per_node: int
    device: str
    backend: str
    network: str
    threads_per_rank: int | None = None
    link: LinkSpec | None = None
    cores_per_node: int | None = None
    yardstick: bool | None = None
    dilated_for: int | None = None
    real_time: bool | None = None

    @property
    def size(self) -> int:
        """Number of ranks (devices) in the world."""
        return self.nodes * self.ranks_per_node

    @property
    def num_machines(self) -> int:
        """Machines that the nodes need: one each over a real network, else they share one."""
        return self.nodes if self.network == "real" else 1


_FIRST = ("compile", "schedule_steps")
"""Fields that the first specs have where they are unset too; without all others hashes stay."""


def _stated(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a part of a spec that are set (0 is), lists for tuples."""
    return {
        name: [*value] if isinstance(value, tuple) else value
        for name, value in fields
        if name in _FIRST or not (value is None or value is False or value == ())
    }


@dataclass(frozen=True)
class RunSpec:
    """One training run.

    `image_digest` is the container image that the run must be inside, None where any place will do.
    `profile` makes it a profiled run (`pipeline.study.expansion.profiled`), never a timed one.
    `environment` are variables that every rank has on purpose.
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
    environment: Mapping[str, str] = field(default_factory=dict)
    objective: ObjectiveSpec | None = None

    @property
    def kind(self) -> str:
        """`TIMED`, `PROFILED` or `REAL_TIME`; only of the first kind are the study's times."""
        return PROFILED if self.profile else REAL_TIME if self.world.real_time else TIMED

    @property
    def folder(self) -> str:
        """Below `runs`: `<cell>/n<nodes>/r<repeat>`, or `p` if profiled, `t` in real time."""
        letter = {TIMED: "r", PROFILED: "p", REAL_TIME: "t"}[self.kind]
        return f"{self.cell}/n{self.world.nodes}/{letter}{self.repeat}"

    @property
    def run_id(self) -> str:
        """`<study>/` and its folder."""
        return f"{self.study}/{self.folder}"

    @property
    def global_batch_tokens(self) -> int:
        """Tokens per optimiser step over all ranks."""
        return self.workload.global_batch * self.model.context

    @property
    def recomputed_share(self) -> float:
        """Share of the blocks that are recomputed, all but their input."""
        what = self.workload.recompute
        return len(what) / self.model.num_layers if isinstance(what, tuple) else float(what is True)

    def phases(self) -> list[tuple[int, RunSpec]]:
        """Of each phase its first step, and the run as if there were no other phase."""
        if not (phases := self.workload.phases):
            return [(0, self)]
        parts, first = list[tuple[int, RunSpec]](), 0
        for one in phases:
            work = replace(self.workload, phases=(), steps=one.steps, untimed_steps=0)
            full_rate = one.learning_rate or self.optimiser.learning_rate
            own = replace(
                self,
                model=replace(self.model, context=one.context),
                workload=replace(work, global_batch=one.global_batch),
                optimiser=replace(self.optimiser, learning_rate=full_rate,
                                  warmup_steps=one.warmup_steps, schedule_steps=None),
            )  # fmt: skip
            parts.append((first, own))
            first += one.steps
        last = replace(self.workload, phases=(), steps=self.workload.steps - first)
        return [*parts, (first, replace(self, workload=last))]

    def at(self, step: int) -> tuple[int, RunSpec]:
        """First step of the phase that a step is in, and the run as if there were no other."""
        return next(one for one in reversed(self.phases()) if one[0] <= step)

    def rate(self, step: int) -> float:
        """Learning rate of a step: a function of the step alone."""
        first, phase = self.at(step)
        return phase.optimiser.rate(step - first, phase.workload.steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; fields that are unset are left out, but for those of `_FIRST`."""
        whole = asdict(self, dict_factory=_stated)
        if not self.environment:
            del whole["environment"]
        if self.objective is not None and self.objective.kind == "causal":
            del whole["objective"]["share"]
        return whole

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """Rebuild a spec from content of `spec.schema.json`; raises StudyError as `check` does."""
        world, link = data["world"], data["world"].get("link")
        nested = {
            "model": ModelSpec(**data["model"]),
            "optimiser": OptimiserSpec(**data["optimiser"]),
            "world": WorldSpec(**{**world, "link": LinkSpec(**link) if link else None}),
            "workload": WorkloadSpec.of(data["workload"]),
            "objective": ObjectiveSpec.of(data.get("objective")),
        }
        spec = cls(**{**data, **nested})
        spec.check()
        return spec

    def to_json(self) -> str:
        """Canonical text: equal specs give equal bytes."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=1) + "\n"

    def sha256(self) -> str:
        """Hash of the canonical text: of what a record says that it was made with."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def training(self) -> RunSpec:
        """The spec without what only operates a run: time limit, when state is kept, places."""
        work = replace(self.workload, checkpoint_every=0)
        return replace(self, timeout_seconds=0, workload=work, model=self.model.without_places())

    def identity(self) -> str:
        """Hash of `training()`: runs and checkpoints of equal identity are of the same training."""
        return self.training().sha256()

    def check(self) -> None:
        """Raise StudyError where the numbers contradict one another."""
        from pipeline.study.checks import check  # which reads this type

        check(self)
