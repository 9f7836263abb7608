"""What the parity suite runs: every strategy file x ranks x accumulation x precision.

A strategy joins by being a file in `pipeline/strategies`; nothing here names one but `single`, the
run that all are held against.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.study.spec import ModelSpec, OptimiserSpec, RunSpec, WorkloadSpec, WorldSpec

STEPS = 20
WORLDS = (1, 2, 4)
MUTATED_WORLD = 2
PRECISIONS = ("fp32", "bf16", "fp16", "amp_o1", "amp_o2", "apex_o2")
"""`apex_o2` meets a stand-in for Apex, see `apex_standin`."""
VARIED = ("fp32", "fp16")
RESUMED = ("fp32", "fp16", "amp_o2", "apex_o2")
MODEL = ModelSpec("gpt2", num_layers=2, width=32, num_heads=4, context=16, vocab_size=302)
"""Two, three and four ranks do not divide its vocabulary, or not into equal parts."""
OPTIMISER = OptimiserSpec(
    name="adamw",
    learning_rate=2e-3,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    weight_decay=0.01,
    max_grad_norm=1.0,
    schedule="linear",
    warmup_steps=4,
)

# Deliberate mistakes that the comparison must notice; Horovod's are the options of the same names.
MUTATIONS = (
    ("annotated", "partial_kept"),
    ("annotated", "relabelled"),
    ("annotated", "same_part"),
    ("annotated", "no_add"),
    ("ddp", "sum"),
    ("ddp", "no_clip"),
    ("ddp", "same_shard"),
    ("deepspeed", "same_shard"),
    ("horovod", "optimiser_steps"),
    ("horovod", "clip_before_synchronise"),
    ("sharded", "sum"),
    ("sharded", "same_shard"),
    ("sharded", "local_norm"),
    ("sharded", "no_reduction"),
    ("tensor", "no_enter"),
    ("tensor", "no_leave"),
    ("tensor", "part_norm"),
    ("tensor", "one_run"),
)
OPTIONS: dict[str | None, dict[str, Any]] = {
    "optimiser_steps": {"optimiser_steps": 2},
    "clip_before_synchronise": {"clip_before_synchronise": True},
}
"""Mutations that are knobs of the strategy."""

VARIANTS = {"relabelled": 1, "same_part": 1, "no_add": 1}
"""Mutations that show with other settings of the knobs than the defaults."""


@dataclass(frozen=True)
class Case:
    """One training of `STEPS` steps; `resume` stops half-way and goes on from a checkpoint.

    `mutation` breaks the step on purpose, to show that the comparison notices.
    """

    strategy: str
    precision: str = "fp32"
    accumulation: int = 1
    resume: bool = False
    mutation: str | None = None
    variant: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The strategy's knobs: its defaults, or the variant of that number."""
        variants = ({}, *strategies.load(self.strategy, {}).variants)
        return dict(variants[self.variant]) | OPTIONS.get(self.mutation, {})

    @property
    def name(self) -> str:
        """A file name."""
        parts = [self.strategy, self.precision, f"a{self.accumulation}"]
        parts += [f"v{self.variant}"] if self.variant else []
        parts += ["resume"] * self.resume + [self.mutation or ""]
        return "-".join(filter(None, parts))

    def spec(self, world: int) -> RunSpec:
        """The run on that many ranks: the same work for every world."""
        return RunSpec(
            study="parity",
            cell=self.name.replace("_", "-"),
            strategy=self.strategy,
            options=self.options,
            precision=self.precision,
            world=WorldSpec(world, 1, "cpu", "gloo", "loopback"),
            model=MODEL,
            optimiser=OPTIMISER,
            workload=WorkloadSpec(8, self.accumulation, STEPS, 2, "strong", 0),
            repeat=0,
            seed=11,
            profile=self.profiled,
        )

    @property
    def profiled(self) -> bool:
        """Whether it counts what it sends; that changes no bit of the training."""
        return self.precision == "fp32" and self.accumulation > 1 and self.strategy != "single"

    def reference(self) -> Case:
        """The same work on a single device."""
        return replace(self, strategy="single", resume=False, mutation=None, variant=0)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON types."""
        return asdict(self)


def cases_of(strategy: str, world: int) -> list[Case]:
    """All trainings of one strategy in one world."""
    found = [
        Case(strategy, p, a, variant=v)
        for v in variants_of(strategy, world)
        for p in precisions_of(strategy, v)
        for a in (1, 2)
    ]
    found += [
        Case(strategy, p, resume=True, variant=v)
        for v in variants_of(strategy, world)
        for p in precisions_of(strategy, v)
        if p in RESUMED
    ]
    if world == MUTATED_WORLD:
        found += [mutated(s, name) for s, name in MUTATIONS if s == strategy]
    return found


def mutated(strategy: str, mutation: str) -> Case:
    """The training with that mistake."""
    return Case(strategy, mutation=mutation, variant=VARIANTS.get(mutation, 0))


def variants_of(strategy: str, world: int) -> list[int]:
    """Numbers of the settings of its knobs that fit the world; 0 are the defaults."""
    numbers = range(1 + len(strategies.load(strategy, {}).variants))
    return [number for number in numbers if fits(Case(strategy, variant=number), world)]


def fits(case: Case, world: int) -> bool:
    """Whether the strategy has a layout for that many ranks."""
    try:
        strategies.check([case.spec(world)])
    except StudyError:
        return False
    return True


def precisions_of(strategy: str, variant: int) -> list[str]:
    """Those of `PRECISIONS` in which it can train; with other knobs fp32 and scaled fp16 do."""
    able = strategies.load(strategy, {}).precisions
    wanted = VARIED if variant else PRECISIONS
    return [name for name in wanted if not able or name in able]


def worlds_of(strategy: str) -> tuple[int, ...]:
    """The worlds a strategy runs in: one rank for `single`."""
    return (1,) if strategy == "single" else WORLDS


def launches() -> list[tuple[str, int]]:
    """One launch for each strategy and world."""
    return [(s, world) for s in strategies.names() for world in worlds_of(s)]
