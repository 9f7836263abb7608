"""What the parity suite runs: every strategy file x ranks x accumulation x precision.

A strategy joins by being a file in `pipeline/strategies`; nothing here names one but `single`, the
run that all are held against.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import models, strategies
from pipeline.errors import StudyError, UnsupportedError
from pipeline.parallel.mesh import PIPELINE
from pipeline.study.model_files import with_files
from pipeline.study.spec import (
    ATTENTION,
    ModelSpec,
    ObjectiveSpec,
    OptimiserSpec,
    PhaseSpec,
    RunSpec,
    WorkloadSpec,
    WorldSpec,
)

REFERENCE = "single"
STEPS, FEW = 6, 3
"""Steps of a case; fewer of one that is there for what its first steps show, see `Case.few`."""
OVERFLOW_STEP = 1
WORLDS = (1, 2, 4)
WIDE = 8
"""Ranks of the launch of all strategies, and of three axes of two ranks each."""
MATRIX = [("fp32", 1), ("fp32", 4), ("bf16_masters", 4)]
"""Precisions and micro-batches that every setting is trained in, on every number of ranks."""
ON_TWO = [("bf16_reduced", 4)]
"""The same on two ranks alone: what travels is rounded besides."""
MASTERS = "bf16_masters"
"""Here micro-batches of a rank and of a single device are alike, and fp32 sums alone reordered."""
TIED_NARROW = (("sharded", 0), ("sharded", 2), ("sharded", 3), ("sharded", 5))
"""But where FSDP2 adds both gradients of a tied embedding, which it does in bfloat16."""
CHOSEN = "SAMESTEP_PARITY_OF"
"""Environment variable: strategies, with commas, whose references alone are trained, else all; for
BEGUN the folders of models."""
TOGETHER, BEGUN = "together", "begun"
"""In place of a strategy: what all run in one launch, see `together` and `begun_cases`."""
BRIEF_BATCH = 32
"""Of the cells of the matrix that no longer case is: eight ranks have four micro-batches each."""
PRECISIONS = ("fp32", "bf16", "fp16", "amp_o2", "bf16_masters", "apex_o2")
"""`apex_o2` meets a stand-in for Apex, see `apex_standin`; amp_o1 has the bits of bf16 here."""
VARIED = ("fp32", "fp16")
LAYERS = (2, 4, 8)
"""Layers of the model: the first number of which a case has a layout; a stage needs a layer."""
RESUMED = ("fp32", "fp16", "bf16_masters", "apex_o2")
EXAMPLES = models.examples()
ARCHITECTURES = tuple(name for name, model in EXAMPLES.items() if model.architecture)
"""Classes of transformers, which strategies that cut no model must train."""
PLANNED = ("Llama", "GPTNeoX", "Qwen3", "Mistral", "Phi", "Bert")
"""With which names of those begin whose layers a tensor axis cuts."""
NARROW = ("LlamaForCausalLM", "BertForPreTraining")
"""Trained in narrow numbers too, the latter also in micro-batches."""
MIXTURE = "MixtralForCausalLM"
"""Trained in fp32, with every setting and in micro-batches: in narrow numbers a token near a tie
may go to another expert in another layout."""
CUT: dict[str, tuple[str, ...]] = {
    "tensor": tuple(name for name in ARCHITECTURES if name.startswith(PLANNED)),
    "pipeline_parallel": tuple(name for name in ARCHITECTURES if name != MIXTURE),
    "hybrid": (*NARROW, "Qwen3ForCausalLM"),
}
"""Classes that strategies which cut layers train."""
UNTRIED = ("annotated", "context", "deepspeed")
"""Strategies that train none."""
OBJECTIVES = {
    "BertForMaskedLM": ObjectiveSpec("masked", mask_token=301, share=0.05, whole_words=True),
    "BertForPreTraining": ObjectiveSpec("masked_next_sentence", 301, 0.05, 302, 303, 304),
}
"""Of classes that fill gaps: so few that ranks and micro-batches have unequal numbers, or none."""
APART = ObjectiveSpec("causal", reset_positions=True)
MISCOUNTED = ("own_weight", "means_of_pieces", "own_masks", "padding_counted", "padding_read")
"""Mutations that show where targets have weights: each rank divides by its own weight, each
micro-batch by its own, masks are those of the position within the rank, padding is hidden and
counted like text, stages behind the first take it for text."""
NARROWLY = MISCOUNTED[:-1]
"""Those of them that must show in bf16 too."""
MORE: dict[str, tuple[dict[str, Any], ...]] = {"hybrid": ({"tensor": 4, "data": 1},)}
"""Settings of the knobs besides a strategy's own: tensor x pipeline alone on eight ranks."""
STATED = {("pipeline_parallel", 1): [1, 3], ("hybrid", 3): [1, 3]}
"""Settings in which the suite states the layers of each stage, and unequal ones."""
OPTIMISER = OptimiserSpec("adamw", 2e-3, 0.9, 0.999, 1e-8, 0.01, 1.0, "linear", warmup_steps=4)

DECAYED = replace(OPTIMISER, weight_decay=10.0, decay_matrices_only=True)
"""Decay of norms would move their weights of 1 by 2 % a step, 200 times what parity allows."""

LAMB = replace(DECAYED, name="lamb", learning_rate=2e-2)
"""Each step moves each matrix by 2 % of its norm."""

MUTATIONS = {
    "annotated": "partial_kept relabelled:1 same_part:1 no_add:1 part_ratio:1",
    "context": "keys_alone ranks_in_order first_positions not_averaged",
    "ddp": "sum no_clip recomputed_unmasked same_shard own_weight means_of_pieces own_masks "
    "padding_counted one_phase rate_of_all own_balance narrow_reduction",
    "deepspeed": "same_shard",
    "horovod": "optimiser_steps clip_before_synchronise own_weight means_of_pieces own_masks "
    "own_balance narrow_masters",
    "hybrid": "untied part_norm rest_twice no_enter no_average:1 same_shard:1 stale_rows:1 "
    "uncut_alone:3 narrow_reduction:1 cut_ratio:2 rows_ratio:2",
    "local_sgd": "same_shard never_one no_momentum",
    "parameter_server": "own_weight means_of_pieces own_masks own_balance narrow_reduction",
    "pipeline_parallel": "sum untied tied_twice part_norm twice stage_order layers_unread:1 "
    "means_of_pieces padding_read borders_unread narrow_masters stage_ratio",
    "sharded": "sum same_shard local_norm no_reduction own_weight means_of_pieces own_masks "
    "own_balance narrow_reduction:1 part_ratio rows_ratio:1 replicas_apart:3 replicas_apart:4",
    "tensor": "no_enter no_leave part_norm one_run recomputed_without_sum uncut_alone:2 "
    "heads_alone cut_ratio no_reduction:3 local_norm:3 uncut_alone:4",
}
"""Deliberate mistakes that the comparison must notice, each with the number of the setting of the
knobs where it shows with another than the defaults. Horovod's first are options of these names."""
RATIOS = ("part_ratio", "rows_ratio", "cut_ratio", "stage_ratio")
"""Norms of LAMB are of a shard, of rows, of a tensor rank's part, or of all that a stage holds."""
SHOWN: dict[str, dict[str, Any]] = {
    **{name: {"accumulation": 4, "architecture": NARROW[1]} for name in MISCOUNTED},
    # Where BERT is trained, the other strategies have it on GPT-2.
    **{name: {"lamb": True, "architecture": NARROW[1]} for name in RATIOS},
    "own_balance": {"architecture": MIXTURE},  # of a router: over a rank's tokens, then their mean
    "heads_alone": {"architecture": "Qwen3ForCausalLM"},  # norms of heads, some on each rank
    "borders_unread": {"documents": True},
    # Gradients are reduced in bfloat16; masters begin each update as the weights.
    **{name: {"precision": MASTERS} for name in ("narrow_reduction", "narrow_masters")},
    # All steps have the last batch, or one schedule.
    **{name: {"phased": True} for name in ("one_phase", "rate_of_all")},
    "recomputed_without_sum": {"recompute": True},
    "recomputed_unmasked": {"recompute": ATTENTION},
}
"""Mutations by what a case needs for them to show, where plain GPT-2 in fp32 is not enough."""
SLOW = ("narrow_masters",)
"""Mutations that show in later steps than the first `FEW`."""
OF_EACH_CLASS = (
    ("ddp", "sum"), ("tensor", "no_enter"), ("tensor", "no_leave"), ("pipeline_parallel", "twice"),
)  # fmt: skip
"""Mutations that must show in each class of transformers that the strategy trains."""
UNSEEN = ("deepspeed",)
"""Strategies whose gradients a library keeps to itself."""
ONE_NORM = "one_norm"
"""The gradient of one layer norm is scaled by 1.5, in every strategy, in fp32 and bf16."""
SEEN = "padding_seen"
"""The loss sees the columns that pad the vocabulary, in every strategy."""
PHASES = (PhaseSpec(4, global_batch=16, context=8, warmup_steps=2, learning_rate=4e-3),)
"""Of a case that is `phased`; a run that resumes does so before they end."""
CHANGED: dict[str, tuple[tuple[str, str], ...]] = {
    "ddp": (("fp16", "sum"), ("bf16", ""), ("powersgd", "no_feedback")),
    "horovod": (("fp16", ""),),
    "parameter_server": (("late1", "not_late"), ("late2", "weights_not_late")),
}
"""Changes of the step by strategy, compressions or `LATE`, each with a mistake that must show."""
LATE = {"late1": 1, "late2": 2}
"""Of a parameter server: updates that the weights of a pass lack."""
OPTIONS: dict[str | None, dict[str, Any]] = {
    "optimiser_steps": {"optimiser_steps": 2},
    "clip_before_synchronise": {"clip_before_synchronise": True},
}
"""Mutations that are knobs of the strategy."""


@dataclass(frozen=True)
class Case:
    """One training; `resume` stops half-way and resumes from a checkpoint.

    `mutation` breaks the step on purpose, to show that the comparison notices. `overflow` makes a
    gradient infinite on one rank. `resume_variant` numbers the knobs that it resumes with.
    `recompute`: activations are recomputed, which must change no bit. `brief`: of more sequences.
    `decay`: strong weight decay, of matrices alone. `lamb`: the same, by LAMB.
    `padded`: the vocabulary has masked rows, held against a single device without. `phased`: most
    steps have other shapes, see `PHASES`. `documents`: those of one sequence are kept apart.
    `change`: one of `CHANGED`. `replicas`: so many ranks of the strategy's own algorithm, written
    out in one process; see `written_out`. `folder`: holds the model with its weights, as
    save_pretrained leaves it.
    """

    strategy: str
    precision: str = "fp32"
    accumulation: int = 1
    resume: bool = False
    mutation: str | None = None
    variant: int = 0
    overflow: bool = False
    resume_variant: int | None = None
    num_layers: int = LAYERS[0]
    recompute: bool | str | tuple[int, ...] = False
    brief: bool = False
    architecture: str | None = None
    decay: bool = False
    padded: bool = False
    lamb: bool = False
    phased: bool = False
    documents: bool = False
    change: str = ""
    replicas: int = 0
    folder: str = ""

    @property
    def few(self) -> bool:
        """True where what it is there for shows in its first steps, so that it takes no more."""
        if self.brief:
            return True
        if self.phased or self.change or self.lamb or self.mutation in SLOW:
            return False
        narrow = self.variant and self.precision != "fp32"
        kinds = self.architecture, self.padded, self.overflow, self.documents, self.mutation
        return any(kinds) or bool(narrow)

    @property
    def steps(self) -> int:
        return FEW if self.few else STEPS

    @property
    def options(self) -> dict[str, Any]:
        """The strategy's knobs: its defaults, or the variant of that number."""
        changed: dict[str, Any] = {"compression": self.change} if self.change else {}
        if self.change in LATE:
            changed = {"staleness": LATE[self.change]}
        return self.options_of(self.variant) | OPTIONS.get(self.mutation, {}) | changed

    def options_of(self, variant: int) -> dict[str, Any]:
        """The defaults, or the variant of that number."""
        return settings_of(self.strategy)[variant]

    @property
    def name(self) -> str:
        """A file name: what differs from a plain case, but for the folder."""
        own = {f.name: getattr(self, f.name) for f in fields(self)[3:-1]}
        more = {name: value for name, value in own.items() if value != getattr(Case, name)}
        more = {name: str(value).strip("(,)") for name, value in more.items()}
        words = [name if value == "True" else f"{name}-{value}" for name, value in more.items()]
        return "-".join([self.strategy, self.precision, f"a{self.accumulation}", *words])

    def spec(self, world: int) -> RunSpec:
        """The run on that many ranks: the same work for every world."""
        batch, phases = BRIEF_BATCH if self.brief else 8, PHASES if self.phased else ()
        timed = strategies.load(self.strategy, self.options).period if self.few else STEPS - 2
        untimed = 1 if self.phased else self.steps - timed
        work = WorkloadSpec(
            batch, self.accumulation, self.steps, untimed, "strong", 0, self.recompute, phases
        )
        return RunSpec(
            study="parity", cell=self.name.replace("_", "-"), strategy=self.strategy,
            options=self.options, precision=self.precision, model=self.model, workload=work,
            world=WorldSpec(world, 1, "cpu", "gloo", "loopback"), repeat=0, seed=11,
            optimiser=LAMB if self.lamb else DECAYED if self.decay else OPTIMISER,
            objective=APART if self.documents else OBJECTIVES.get(self.architecture or ""),
            profile=self.profiled,
        )  # fmt: skip

    @property
    def changed(self) -> bool:
        """True where its step differs from that of a single device on purpose."""
        return bool(self.change or strategies.load(self.strategy, {}).algorithm)

    @property
    def model(self) -> ModelSpec:
        """Our own GPT-2, a class of transformers of the same sizes, or the one of the folder."""
        if self.folder:
            given = {"family": "transformers", "config": "config.json", "weights": "."}
            return ModelSpec(**with_files(given, Path(self.folder), extends=False))
        if self.architecture is None:
            rows = 128 if self.padded else None
            return replace(models.example(), num_layers=self.num_layers, pad_vocab_to=rows)
        return replace(EXAMPLES[self.architecture], num_layers=self.num_layers)

    @property
    def profiled(self) -> bool:
        """True where it counts what it sends; that changes no bit of the training."""
        counted = self.precision in ("fp32", "bf16_masters", "bf16_reduced")
        several = self.strategy != REFERENCE and not self.replicas
        return counted and self.accumulation > 1 and several

    @property
    def weights_wanted(self) -> bool:
        """True where its final weights, too, are held against those of a single device.

        Putting them together takes a collective for each of them.
        """
        disturbed = self.resume or self.overflow or self.recompute or self.brief or self.padded
        plain = not (self.mutation or self.change or disturbed)
        return self.precision == "fp32" and plain

    def reference(self, world: int) -> Case:
        """The same work on a single device; in MASTERS in the same micro-batches.

        Of what changes the step: its own algorithm, written out.
        """
        if self.changed:
            plain = replace(self, mutation=None, resume=False, recompute=False, padded=False)
            return replace(plain, replicas=world)
        plain = replace(self, mutation=None, variant=0, resume=False, resume_variant=None)
        plain = replace(plain, padded=False, strategy=REFERENCE, recompute=False)
        if self.precision != MASTERS:
            return plain
        spec, strategy = self.spec(world), strategies.load(self.strategy, self.options)
        layout = strategy.layout(spec.world)
        pieces = layout.data_parallel * strategy.pieces(spec, layout)
        return replace(plain, accumulation=pieces)


def cases_of(strategy: str, world: int) -> list[Case]:
    """All trainings of one launch: of a strategy in a world, or of all together."""
    if strategy == TOGETHER:
        return together(world)
    if strategy == BEGUN:
        return begun_cases(world, os.environ[CHOSEN].split(","))
    found = longer_cases(strategy, world)
    found += [
        case_of(strategy, world, v, p, resume=True)
        for v in variants_of(strategy, world)
        for p in resumed_in(strategy, world, v)
    ]
    found += [case for case in mutants(strategy) if world == world_of_mutant(case)]
    found += overflow_cases(strategy, world) + decay_cases(strategy, world)
    found += padded_cases(strategy, world) + phased_cases(strategy, world)
    found += packed_cases(strategy, world) + changed_cases(strategy, world)
    found += brief_cases(strategy, world) if world == 2 else []
    found += recomputed_cases(strategy, world) + model_cases(strategy, world)
    found += lamb_models(strategy, world) if world == 2 else []
    if strategy == REFERENCE:
        chosen = list(filter(None, os.environ.get(CHOSEN, "").split(","))) or strategies.names()
        others = [(name, n) for name, n in launches() if name in chosen and name != REFERENCE]
        found += [one for name, n in others for one in references(cases_of(name, n), n)]
    return list(dict.fromkeys(found))


def model_cases(strategy: str, world: int) -> list[Case]:
    """Each class of transformers on two ranks in fp32; `NARROW` with every setting, in bf16 too.

    Where layers are cut see `cut_cases`.
    """
    if strategy in CUT:
        return cut_cases(strategy, world)
    if strategy in UNTRIED or world != 2:
        return []
    able = precisions_of(strategy, 0)
    return [
        Case(strategy, precision, pieces, variant=variant, architecture=name)
        for name in ARCHITECTURES
        for variant in (variants_of(strategy, world) if name in (*NARROW, MIXTURE) else (0,))
        for precision in (("fp32",) if variant or name not in NARROW else ("fp32", MASTERS))
        for pieces in ((1, 4) if name in (*NARROW[1:], MIXTURE) else (1,))
        if precision in able
    ]


def cut_cases(strategy: str, world: int) -> list[Case]:
    """Each class with a plan, those of `PLANNED` in micro-batches, where what is sent is counted.

    `NARROW` also in bf16, recomputed, under every schedule of a pipeline, and with a second axis.
    """
    bert = Case(strategy, resume=True, architecture=NARROW[1])
    if world == 4:
        variant = int(mutated_world(strategy) == 2)
        names = CUT[strategy] if not variant else NARROW
        own = case_of(strategy, world, variant, accumulation=2)
        found = [replace(own, architecture=name) for name in names]
        return found + [bert] * (not variant)
    if world != 2 or mutated_world(strategy) != 2:
        return []
    found = [
        Case(strategy, accumulation=4 if name.startswith(PLANNED) else 1, architecture=name)
        for name in CUT[strategy]
    ]
    for case in (one for one in list(found) if one.architecture in NARROW):
        found += [replace(case, recompute=True), replace(case, precision="bf16")]
        found.append(replace(case, recompute=ATTENTION))
        if strategy != "tensor":
            every = [case_of(strategy, world, v) for v in variants_of(strategy, world) if v]
            found += [replace(case, variant=v.variant, num_layers=v.num_layers) for v in every]
    return [*found, bert] if strategy != "tensor" else found


def together(world: int) -> list[Case]:
    """What all strategies train in one launch, for `tests/system/test_parity_matrix.py`.

    Brief cases on 4 and 8 ranks, longer ones on 8; on one rank, what these are held against.
    """
    if world == 1:
        return list(dict.fromkeys(c for w in (4, WIDE) for c in references(together(w), w)))
    brief = [case for name in wide_strategies() for case in brief_cases(name, world)]
    if world < WIDE:
        return brief + models_on_four()
    return wide_cases() + [case for case in brief if on_eight(case)]


def begun_cases(world: int, folders: list[str]) -> list[Case]:
    """Trainings that begin with the weights of a folder, cut in each way; alone on one rank."""
    several = ("ddp", "sharded", "tensor", "pipeline_parallel")
    made = []
    for folder in folders:
        [kind] = json.loads(Path(folder, "config.json").read_text())["architectures"]
        for strategy in (REFERENCE,) if world == 1 else several:
            made.append(Case(strategy, architecture=kind, folder=folder))
    return made


def models_on_four() -> list[Case]:
    """Each class by each strategy that cuts it along one axis, and `NARROW` by LAMB."""
    cut = {"sharded": ARCHITECTURES} | {name: CUT[name] for name in ("tensor", "pipeline_parallel")}
    made = [replace(case_of(s, 4, brief=True), architecture=name) for s in cut for name in cut[s]]
    return made + [case for name in wide_strategies() for case in lamb_models(name, 4)]


def on_eight(case: Case) -> bool:
    """True where eight ranks train it; four train all, and only eight have three axes at once."""
    return not case.variant or (case.precision == "fp32" and case.accumulation > 1)


def longer_cases(strategy: str, world: int) -> list[Case]:
    """The trainings of all steps that nothing disturbs."""
    if world == WIDE:
        return [case for case in wide_cases() if case.strategy == strategy]
    return [
        case_of(strategy, world, v, p, a)
        for v in variants_of(strategy, world)
        for p in precisions_of(strategy, v, world)
        for a in accumulations_of(strategy, world, v, p)
    ]


def matrix(world: int) -> list[tuple[str, int]]:
    """`MATRIX`, and on two ranks `ON_TWO` besides."""
    return MATRIX + (ON_TWO if world == 2 else [])


def brief_cases(strategy: str, world: int) -> list[Case]:
    """The cells of the matrix that no longer case trains: settings of the knobs x `MATRIX`."""
    if world == 1:
        return []
    longer, variants = longer_cases(strategy, world), variants_of(strategy, world)
    cells = [(v, p, a) for v in variants for p, a in matrix(world) if trains_in(strategy, v, p)]
    return [
        case_of(strategy, world, v, p, a, brief=True)
        for v, p, a in cells
        if case_of(strategy, world, v, p, a) not in longer
    ]


def overflow_cases(strategy: str, world: int) -> list[Case]:
    """Every setting with a step that is skipped, where the strategy scales its loss."""
    able = "fp16" in precisions_of(strategy, 0) and world > 1
    variants = variants_of(strategy, world) if able else []
    return [case_of(strategy, world, v, "fp16", overflow=True) for v in variants]


def decay_cases(strategy: str, world: int) -> list[Case]:
    """Every setting in fp32, the defaults also with master weights; in one world, the same code.

    By LAMB where the strategy takes it, and the defaults by AdamW too.
    """
    if world != mutated_world(strategy):
        return []
    found = [case_of(strategy, world, decay=True)]
    if MASTERS in precisions_of(strategy, 0):
        found.append(case_of(strategy, world, 0, MASTERS, decay=True))
    lamb = [replace(case, decay=False, lamb=True) for case in found]
    lamb += [case_of(strategy, world, v, lamb=True) for v in variants_of(strategy, world)[1:]]
    lamb.append(case_of(strategy, world, lamb=True, resume=True))
    if not fits(lamb[0], world):
        lamb = [replace(c, decay=True, lamb=False) for c in lamb if not c.resume]
    return list(dict.fromkeys(found + lamb))


def lamb_models(strategy: str, world: int) -> list[Case]:
    """`NARROW` by LAMB, with the defaults and each product of two axes; brief on four ranks."""
    if strategy in (*UNTRIED, REFERENCE) or Case(strategy).changed:
        return []
    made = [
        case_of(strategy, world, variant, lamb=True, brief=world > 2)
        for variant in variants_of(strategy, world)
        if not variant or len(axes_of(strategy, world, variant)) > 1
    ]
    able = [case for case in made if not case.options.get("sequence")]
    return [replace(case, architecture=name) for name in NARROW for case in able]


def changed_cases(strategy: str, world: int) -> list[Case]:
    """Each change of `CHANGED` in fp32 with micro-batches, where what is sent is counted.

    On two ranks under autocast too, and those resume that can. Late ones are late on one rank too.
    """
    found = []
    for name, _ in CHANGED.get(strategy, ()):
        if world < 2 and name not in LATE:
            continue
        case = Case(strategy, accumulation=2, change=name)
        found.append(case)
        if world == 2:
            found.append(replace(case, precision="bf16"))
            if strategies.load(strategy, case.options).resumes:
                found.append(replace(case, resume=True))
    return found


def padded_cases(strategy: str, world: int) -> list[Case]:
    """Every setting in fp32; in one world, the same code."""
    if world != (1 if strategy == REFERENCE else mutated_world(strategy)):
        return []
    return [case_of(strategy, world, v, padded=True) for v in variants_of(strategy, world)]


def phased_cases(strategy: str, world: int) -> list[Case]:
    """A run of two phases that goes on in the first one, with other knobs where they fit.

    And one of BERT, with micro-batches, where stages hand on other shapes and padding.
    """
    if world != mutated_world(strategy) or strategy == REFERENCE or Case(strategy).changed:
        return []
    other = variants_of(strategy, world)[-1]
    case = case_of(strategy, world, other, phased=True, resume=True)
    found = [replace(case, variant=0, resume_variant=other)]
    if strategy == "pipeline_parallel":
        found.append(Case(strategy, accumulation=2, phased=True, architecture=NARROW[1]))
    return found


def packed_cases(strategy: str, world: int) -> list[Case]:
    """Every setting that fits on GPT-2, and Llama, with documents that share a sequence."""
    if world != mutated_world(strategy) or strategy == REFERENCE or Case(strategy).changed:
        return []
    made = [case_of(strategy, world, v, documents=True) for v in variants_of(strategy, world)]
    if strategy in CUT:
        made.append(replace(made[0], accumulation=2, architecture=NARROW[0]))
    return [case for case in made if fits(case, world)]


def references(cases: list[Case], world: int) -> list[Case]:
    """What these cases are held against, each once: a checkpoint against a checkpoint."""
    wanted = [case.reference(world) for case in cases]
    again = [case for case in cases if case.resume and not case.change]
    wanted += [replace(case.reference(world), resume=True) for case in again]
    return list(dict.fromkeys(wanted))


def recomputed_cases(strategy: str, world: int) -> list[Case]:
    """Every setting in fp32, with the micro-batches of which all that is sent is counted.

    The defaults also in fp16, under autocast and a loss scale, with one block alone, and with
    attention alone, which `zero_bubble` takes too. In one world: it is the same code; where that
    needs four ranks, the defaults in fp32 do.
    """
    if world != mutated_world(strategy) and strategy != REFERENCE:
        return []
    found = []
    few = world <= 2
    for variant in variants_of(strategy, world) if few else (0,):
        most = accumulations_of(strategy, world, variant)[-1]
        found.append(case_of(strategy, world, variant, accumulation=most, recompute=True))
        alone = case_of(strategy, world, variant, accumulation=most, recompute=ATTENTION)
        if not variant or alone.options.get("schedule") == "zero_bubble":
            found.append(alone)
        if not variant:
            found.append(replace(alone, recompute=(1,)))
    if few and "fp16" in precisions_of(strategy, 0):
        found.append(case_of(strategy, world, precision="fp16", recompute=True))
    return [case for case in found if fits(case, world)]


def wide_cases() -> list[Case]:
    """The trainings of all steps on eight ranks: three axes at once, and every strategy in fp32."""
    return [
        *(case_of(strategy, WIDE) for strategy in wide_strategies()),
        Case("hybrid", accumulation=4),
        Case("hybrid", "fp16", overflow=True),
        Case("hybrid", resume=True, resume_variant=1),
    ]


def wide_strategies() -> list[str]:
    """Every strategy that can run here."""
    return [name for name in strategies.names() if name != REFERENCE and runs_here(name)]


def runs_here(strategy: str) -> bool:
    """True where its packages are installed."""
    try:
        strategies.load(strategy, {}).check()
    except UnsupportedError:
        return False
    return True


def case_of(
    strategy: str,
    world: int,
    variant: int = 0,
    precision: str = "fp32",
    accumulation: int = 1,
    **options: Any,
) -> Case:
    """A case with as many layers as its layout needs."""
    made = Case(strategy, precision, accumulation, variant=variant, **options)
    deeper = [replace(made, num_layers=n) for n in LAYERS]
    return next((case for case in deeper if fits(case, world)), made)


def mutated_world(strategy: str) -> int:
    """The least world of several ranks in which the strategy's defaults have a layout."""
    return next(n for n in WORLDS if (n > 1 and fits(case_of(strategy, n), n)) or n == WORLDS[-1])


def world_of_mutant(case: Case) -> int:
    """The same, or the least larger one in which its setting of the knobs is one of its own."""
    worlds = [n for n in WORLDS if n >= mutated_world(case.strategy)]
    return next((n for n in worlds if case.variant in variants_of(case.strategy, n)), worlds[-1])


def mutants(strategy: str) -> list[Case]:
    """The cases with a mistake, all of which the comparison must notice."""
    if strategy == REFERENCE:
        return []
    world, found = mutated_world(strategy), list[Case]()
    for name in MUTATIONS.get(strategy, "").split():
        mutation, _, variant = name.partition(":")
        shown = dict(SHOWN.get(mutation, {}))
        if (strategy, mutation) == ("pipeline_parallel", "untied"):
            shown = SHOWN["padding_read"]
        elif mutation in RATIOS and strategy in UNTRIED:
            del shown["architecture"]
        precision = shown.pop("precision", "fp32")
        case = case_of(strategy, world, int(variant or 0), precision, mutation=mutation, **shown)
        found.append(case)
    found += [
        Case(strategy, accumulation=2, change=name, mutation=mutation)
        for name, mutation in CHANGED.get(strategy, ())
        if mutation
    ]
    found += [
        Case(strategy, mutation=mutation, architecture=name)
        for one, mutation in OF_EACH_CLASS
        for name in CUT.get(strategy, ARCHITECTURES)
        if one == strategy
    ]
    able = precisions_of(strategy, 0) if strategy not in UNSEEN else []
    narrow = [replace(c, precision="bf16") for c in found if c.mutation in NARROWLY]
    found += narrow if "bf16" in able else []
    found.append(case_of(strategy, world, mutation=SEEN, padded=True))
    both = [name for name in ("fp32", "bf16") if name in able]
    return found + [case_of(strategy, world, 0, name, mutation=ONE_NORM) for name in both]


def accumulations_of(
    strategy: str, world: int, variant: int, precision: str = "fp32"
) -> tuple[int, ...]:
    """A pipeline cuts the study's micro-batches, so it gets more of them, as two ranks do.

    In fp32 with and without, the others with them on two ranks.
    """
    many = world == 2 or PIPELINE in sizes_of(strategy, world, variant)
    both = (1, 4) if many else (1, 2)
    return both if precision == "fp32" or world == 2 else (1,)


def sizes_of(strategy: str, world: int, variant: int) -> dict[str, int]:
    """The axes of its layout, with their sizes."""
    case = case_of(strategy, world, variant)
    return dict(strategies.load(strategy, case.options).layout(case.spec(world).world).axes)


def axes_of(strategy: str, world: int, variant: int) -> tuple[str, ...]:
    """The axes of its layout that have several ranks."""
    return tuple(name for name, size in sizes_of(strategy, world, variant).items() if size > 1)


@cache
def variants_of(strategy: str, world: int) -> tuple[int, ...]:
    """Numbers of the settings of its knobs that fit the world; 0 are the defaults.

    Without those that state `ranks` where another has the same layout without.
    """
    kept: dict[Any, int] = {}
    for number, knobs in enumerate(settings_of(strategy)):
        if fits(case_of(strategy, world, number), world):
            others = sorted((key, str(knob)) for key, knob in knobs.items() if key != "ranks")
            kept.setdefault((*others, *sizes_of(strategy, world, number).items()), number)
    return tuple(kept.values())


@cache
def settings_of(strategy: str) -> tuple[dict[str, Any], ...]:
    """Of its knobs: the defaults, its variants, and what the suite tries besides."""
    variants = (*strategies.load(strategy, {}).variants, *MORE.get(strategy, ()))
    settings = ({}, *map(dict, variants))
    stated = {n: {"layers": layers} for (name, n), layers in STATED.items() if name == strategy}
    return tuple(knobs | stated.get(n, {}) for n, knobs in enumerate(settings))


@cache
def fits(case: Case, world: int) -> bool:
    """True where the strategy has a layout for that many ranks."""
    try:
        strategies.check([case.spec(world)])
    except StudyError:
        return False
    return True


def precisions_of(strategy: str, variant: int, world: int = 2) -> list[str]:
    """Those of `PRECISIONS` in which it can train; fp32 and scaled fp16 do with other knobs.

    And on one rank, where no strategy but the reference has anything to add.
    """
    able = strategies.load(strategy, {}).precisions
    few = variant or (world == 1 and strategy != REFERENCE)
    return [name for name in (VARIED if few else PRECISIONS) if not able or name in able]


def trains_in(strategy: str, variant: int, precision: str) -> bool:
    """True where that setting of its knobs takes the precision."""
    try:
        strategies.load(strategy, settings_of(strategy)[variant]).check_precision(precision)
    except UnsupportedError:
        return False
    return True


def resumed_in(strategy: str, world: int, variant: int) -> list[str]:
    """Precisions of the cases that resume: those that keep a state of their own, on two ranks."""
    able = precisions_of(strategy, variant, world)
    return [p for p in able if p in (RESUMED if world == 2 or strategy == REFERENCE else ("fp32",))]


def worlds_of(strategy: str) -> tuple[int, ...]:
    """The worlds a strategy runs in: one rank for `single`."""
    return (1,) if strategy == REFERENCE else WORLDS


def launches() -> list[tuple[str, int]]:
    """One launch for each strategy and world."""
    return [(s, world) for s in strategies.names() for world in worlds_of(s)]
