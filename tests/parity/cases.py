"""What the parity suite runs: every strategy file x ranks x accumulation x precision.

A strategy joins by being a file in `pipeline/strategies`. Tables here name those that need more:
mistakes that must show, classes of models, and changes of the step, each written out in
`written_out.py`. All are held against `single`. What is combined with what, and what that makes
superfluous:

- Two ranks, or four where the defaults have no layout for fewer (`mutated_world`), train all that
  does not depend on the number of ranks: each precision, mutations, recomputed blocks, phases,
  classes of transformers. LAMB, a padded vocabulary and documents apart have to do with other parts
  of a step, so each setting of the knobs trains with all three at once; mutations show each alone.
- Four ranks show what two cannot: a second axis, a stage between two others, rows that ranks do not
  divide, bytes whose share (n-1)/n is no half. Each setting trains there twice in fp32: with a
  resume, which takes the same steps as a run in one go, and in micro-batches that are counted.
  Four ranks in bf16_masters, and eight, are system tests.
- One rank has nobody to send to, and no other code for it: one case of each strategy.
- The first and the last of several micro-batches are what other code runs for. They are four where
  bytes are counted, in brief cases, and two elsewhere.
- float16 with other knobs than the defaults is the case of which a gradient overflows.
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
WORLDS = (2, 4)
WIDE = 8
"""Ranks of the launch of all strategies, and of three axes of two ranks each."""
MATRIX = [("fp32", 1), ("fp32", 4)]
"""Precisions and micro-batches that every setting is trained in, on every number of ranks."""
LEAST = [("bf16_reduced", 4)]
"""The same on the least ranks that a strategy takes: masters whose gradients travel rounded."""
MOST = [("bf16_masters", 4)]
"""The same on four ranks and more."""
MASTERS = "bf16_masters"
"""Here micro-batches of a rank and of a single device are alike, and fp32 sums alone reordered."""
TIED_NARROW = (("sharded", 0), ("sharded", 2), ("sharded", 3), ("sharded", 5), ("context", 2))
"""But where FSDP2 adds both gradients of a tied embedding, which it does in bfloat16."""
CHOSEN = "SAMESTEP_PARITY_OF"
"""Environment variable: strategies, with commas, whose references alone are trained, else all; for
BEGUN the folders of models."""
TOGETHER, BEGUN, ALONE = "together", "begun", "alone"
"""In place of a strategy: what all run in one launch, see `together`, `begun_cases` and
`alone_cases`."""
BRIEF_BATCH = 32
"""Sequences of a brief case, so that eight ranks have four micro-batches each."""
PRECISIONS = ("fp32", "bf16", "fp16", "amp_o2", "bf16_masters", "apex_o2")
"""`apex_o2` meets a stand-in for Apex, see `apex_standin`; amp_o1 has the bits of bf16 here."""
LAYERS = (2, 4, 8)
"""Layers of the model: the first number of which a case has a layout; a stage needs a layer."""
RESUMED = ("fp32", "fp16", "bf16_masters", "apex_o2")
EXAMPLES = dict(models.examples())
ARCHITECTURES = tuple(name for name, model in EXAMPLES.items() if model != models.example())
"""Classes of transformers and other families, which strategies that cut no model must train."""
PLANNED = ("Llama", "GPTNeoX", "Qwen3", "Mistral", "Phi", "Bert", "Mixtral")
"""With which names of those begin whose layers a tensor axis cuts."""
NARROW = ("LlamaForCausalLM", "BertForPreTraining")
"""Trained in narrow numbers too, the latter also in micro-batches."""
MIXTURE = "MixtralForCausalLM"
"""Trained in fp32, with every setting and in micro-batches: in narrow numbers a token near a tie
may go to another expert in another layout. `expert` and `hybrid` train it in these too."""
UNBALANCED = f"{MIXTURE}-unbalanced"
"""The same without its router's loss, which no stage could make: beside stages."""
EXAMPLES[UNBALANCED] = replace(
    EXAMPLES[MIXTURE], config={**(EXAMPLES[MIXTURE].config or {}), "router_aux_loss_coef": 0.0}
)
CUT: dict[str, tuple[str, ...]] = {
    "tensor": tuple(name for name in ARCHITECTURES if name.startswith(PLANNED)),
    "pipeline_parallel": tuple(name for name in ARCHITECTURES if name != MIXTURE),
    "hybrid": (*NARROW, "Qwen3ForCausalLM"),
    "context": tuple(n for n in ARCHITECTURES if n.startswith(PLANNED) and "Bert" not in n),
}
"""Classes that strategies which cut layers, or sequences, train."""
UNTRIED = ("annotated", "deepspeed", "expert")
"""Strategies that train none, or theirs alone (`Strategy.example`)."""
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
MORE: dict[str, tuple[dict[str, Any], ...]] = {
    "hybrid": (
        {"tensor": 4, "data": 1},
        {"zero_stage": 2, "sequence": True},
        {"tensor": 1, "context": 2, "zero_stage": 2},
        {"context": 2, "sequence": True},
        {"expert": 2},
        {"pipeline": 1, "tensor": 1, "context": 2, "expert": 2},
    )
}
"""Settings of the knobs besides a strategy's own: tensor x pipeline alone on eight ranks, FSDP2
beside both, over a context axis, a third axis beside both on eight ranks, and the two that cut
what tokens a rank has."""
STATED = {("pipeline_parallel", 1): [1, 3], ("hybrid", 3): [1, 3]}
"""Settings in which the suite states the layers of each stage, and unequal ones."""
OPTIMISER = OptimiserSpec("adamw", 2e-3, 0.9, 0.999, 1e-8, 0.01, 1.0, "linear", warmup_steps=4)

DECAYED = replace(OPTIMISER, weight_decay=10.0, decay_matrices_only=True)
"""Decay of norms would move their weights of 1 by 2 % a step, 200 times what parity allows."""

LAMB = replace(DECAYED, name="lamb", learning_rate=2e-2)
"""Each step moves each matrix by 2 % of its norm."""

MUTATIONS = {
    "annotated": "partial_kept relabelled:1 same_part:1 no_add:1 part_ratio:1 stale_wholes:1",
    "context": "keys_alone ranks_in_order first_positions not_averaged own_share no_reduction:2",
    "ddp": "sum no_clip recomputed_unmasked same_shard own_weight means_of_pieces own_masks "
    "padding_counted one_phase rate_of_all own_balance narrow_reduction",
    "deepspeed": "same_shard",
    "horovod": "optimiser_steps clip_before_synchronise own_weight means_of_pieces own_masks "
    "own_balance narrow_masters",
    "expert": "same_shard part_norm experts_added experts_apart no_way_back over_capacity "
    "own_balance cut_ratio part_norm:2 experts_added:2 no_average:2 stale_rows:2 rows_ratio:2",
    "hybrid": "untied part_norm rest_twice no_enter no_average:1 same_shard:1 stale_rows:1 "
    "uncut_alone:3 narrow_reduction:1 cut_ratio:2 rows_ratio:2 no_reduction:5 keys_alone:6 "
    "first_positions:7 not_averaged:7 no_average:8 experts_added:9 router_alone:9 part_norm:9 "
    "no_way_back:10 stale_rows:11 rows_ratio:11 own_share:17 experts_added:17",
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
    # Of a router: over all tokens of a rank, over its own tokens of each sequence; then their mean.
    "own_balance": {"architecture": MIXTURE},
    "own_share": {"architecture": MIXTURE},
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
OF_FOUR = ("experts_apart",)
"""Mutations that show where the defaults have two axes."""
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
"""Changes of the step by strategy, compressions or `LATE`, each with a mistake that must show.

Other knobs are set in `Case.options`.
"""
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
        # On nodes of two ranks it shows which bytes leave a node.
        per_node = 2 if self.strategy == "hybrid" and world > 2 else 1
        work = WorkloadSpec(
            batch, self.accumulation, self.steps, untimed, "strong", 0, self.recompute, phases
        )
        return RunSpec(
            study="parity", cell=self.name.replace("_", "-"), strategy=self.strategy,
            options=self.options, precision=self.precision, model=self.model, workload=work,
            world=WorldSpec(world // per_node, per_node, "cpu", "gloo", "loopback"),
            repeat=0, seed=11,
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
        """True where a test asks what it sends; counting changes no bit of the training."""
        if self.strategy == REFERENCE or self.replicas or self.mutation or self.accumulation == 1:
            return False
        cut = self.architecture is not None and self.strategy in CUT
        asked = self.brief or self.change or self.recompute or cut
        return bool(asked) and self.precision in ("fp32", "bf16_masters", "bf16_reduced")

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
    chosen = list(filter(None, os.environ.get(CHOSEN, "").split(","))) or strategies.names()
    if strategy == ALONE:
        return [case for name in chosen for case in alone_cases(name)]
    found = longer_cases(strategy, world) + resumed_cases(strategy, world)
    found += [case for case in mutants(strategy) if world == least_world(case)]
    found += overflow_cases(strategy, world) + varied_cases(strategy, world)
    found += phased_cases(strategy, world) + changed_cases(strategy, world)
    found += own_brief_cases(strategy, world) + recomputed_cases(strategy, world)
    found += model_cases(strategy, world)
    found += lamb_models(strategy, world) if world == 2 else []
    if strategy == REFERENCE:
        several = [name for name in chosen if name != REFERENCE and runs_here(name)]
        others = [(name, n) for name, n in launches() if name in several]
        found += [one for name, n in others for one in references(cases_of(name, n), n)]
        found += [*references(cases_of(ALONE, 1), 1), Case(REFERENCE, padded=True)]
    return list(dict.fromkeys(found))


def model_cases(strategy: str, world: int) -> list[Case]:
    """Each of `ARCHITECTURES` on two ranks in fp32; `NARROW` with every setting, in bf16 too.

    In micro-batches where the loss of one depends on the others. Where layers are cut see
    `cut_cases`.
    """
    if strategy in CUT:
        return [case for case in cut_cases(strategy, world) if fits(case, world)]
    if strategy in UNTRIED or world != 2:
        return []
    able, weighed = precisions_of(strategy), (NARROW[1], MIXTURE)
    return [
        Case(strategy, precision, 4 if name in weighed else 1, variant=variant, architecture=name)
        for name in ARCHITECTURES
        for variant in (variants_of(strategy, world) if name in (*NARROW, MIXTURE) else (0,))
        for precision in (("fp32",) if variant or name not in NARROW else ("fp32", MASTERS))
        if precision in able
    ]


def cut_cases(strategy: str, world: int) -> list[Case]:
    """Each class with a plan, those of `PLANNED` in micro-batches, where what is sent is counted.

    `NARROW` also in bf16, recomputed, and with a second axis; BERT under every schedule of a
    pipeline.
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
        Case(strategy, accumulation=2 if name.startswith(PLANNED) else 1, architecture=name)
        for name in CUT[strategy]
    ]
    for case in (one for one in list(found) if one.architecture in NARROW):
        found += [replace(case, recompute=True), replace(case, precision="bf16")]
        found.append(replace(case, recompute=ATTENTION))
    if strategy == "tensor":
        return found
    # BERT's stages hand on weights and padding besides.
    every = [case_of(strategy, world, v, accumulation=2) for v in variants_of(strategy, world) if v]
    return [*found, bert, *(replace(case, architecture=NARROW[1]) for case in every)]


def together(world: int) -> list[Case]:
    """What all strategies train in one launch, for `tests/system/test_parity_matrix.py`.

    Brief cases on 4 and 8 ranks, longer ones on 8; on one rank, what these are held against.
    """
    if world == 1:
        return list(dict.fromkeys(c for w in (4, WIDE) for c in references(together(w), w)))
    names = wide_strategies()
    brief = [case for name in names for case in brief_cases(name, world)]
    if world < WIDE:
        own = [case for name in names for case in own_brief_cases(name, world)]
        return [case for case in brief if case not in own] + models_on_four()
    return wide_cases() + [case for case in brief if on_eight(case)]


def alone_cases(strategy: str) -> list[Case]:
    """One case of it on one rank; late gradients are late there too."""
    if strategy == REFERENCE or not runs_here(strategy):
        return []
    late = [case for case in changed_cases(strategy, 2) if case.change in LATE and case.profiled]
    return [case for case in (case_of(strategy, 1), *late) if fits(case, 1)]


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
    made = [case for case in made if case.strategy not in CUT or fits(case, 4)]
    return made + [case for name in wide_strategies() for case in lamb_models(name, 4)]


def on_eight(case: Case) -> bool:
    """True where eight ranks train it; four train all, and only eight have three axes at once."""
    return not case.variant or (case.precision == "fp32" and case.accumulation > 1)


def longer_cases(strategy: str, world: int) -> list[Case]:
    """What begins a launch: every setting in fp32, the defaults in each precision too.

    Of all steps, but on four ranks for brief ones that resume, see the head of this file.
    """
    if world == WIDE:
        return [case for case in wide_cases() if case.strategy == strategy]
    single = strategy == REFERENCE
    found = [plain_case(strategy, world, v, resume=world > 2) for v in variants_of(strategy, world)]
    if single or world == mutated_world(strategy):
        able = [p for p in precisions_of(strategy) if single or p != "fp32"]
        found += [case_of(strategy, world, 0, p, 2, brief=world > 2) for p in able]
    return found


def plain_case(strategy: str, world: int, variant: int, *, resume: bool) -> Case:
    """A setting in fp32 without micro-batches."""
    return case_of(strategy, world, variant, resume=resume, brief=world > 2)


def resumed_cases(strategy: str, world: int) -> list[Case]:
    """Those that must take the very steps of a run in one go, on one and two ranks.

    Every setting in fp32, the defaults in each precision that keeps a state of its own.
    """
    if world > 2:
        return []
    able = [p for p in RESUMED if p in precisions_of(strategy)]
    return [
        case_of(strategy, world, v, p, 1 if p == "fp32" else 2, resume=True)
        for v in variants_of(strategy, world)
        for p in able
        if p == "fp32" or not v
    ]


def matrix(strategy: str, world: int) -> list[tuple[str, int]]:
    """Precisions and micro-batches that every setting is trained in."""
    least = world == mutated_world(strategy)
    return MATRIX + (LEAST if least else []) + (MOST if world > 2 else [])


def brief_cases(strategy: str, world: int) -> list[Case]:
    """The cells of the matrix that no longer case trains: settings of the knobs x `MATRIX`."""
    if strategy == REFERENCE:
        return []
    longer = {(c.variant, c.precision, c.accumulation) for c in longer_cases(strategy, world)}
    return [
        case_of(strategy, world, v, p, a, brief=True)
        for v in variants_of(strategy, world)
        for p, a in matrix(strategy, world)
        if trains_in(strategy, v, p) and (v, p, a) not in longer
    ]


def own_brief_cases(strategy: str, world: int) -> list[Case]:
    """Those of the strategy's own launch; four ranks train the others together."""
    return [case for case in brief_cases(strategy, world) if case.precision != MASTERS]


def overflow_cases(strategy: str, world: int) -> list[Case]:
    """Every setting with a step that is skipped, where the strategy scales its loss.

    On the least ranks that have the setting, and wherever it has several axes.
    """
    if strategy == REFERENCE or "fp16" not in precisions_of(strategy):
        return []
    made = [
        case_of(strategy, world, variant, "fp16", overflow=True)
        for variant in variants_of(strategy, world)
    ]
    several = [case for case in made if len(axes_of(strategy, world, case.variant)) > 1]
    return [case for case in made if world == least_world(case) or case in several]


def varied_cases(strategy: str, world: int) -> list[Case]:
    """Every setting by LAMB with a padded vocabulary and documents that share a sequence.

    Less of it where that does not fit: without documents, by AdamW with strong decay. The defaults
    in all steps, resumed half-way; these with master weights, too, and with that decay alone. In
    one world, the same code. Of transformers Llama has documents where it is cut.
    """
    if world != mutated_world(strategy):
        return []
    names = ["lamb padded documents", "lamb padded", "decay padded"]
    # An algorithm that is written out takes all tokens alike.
    fitting = names[1:] if Case(strategy).changed else names
    if strategies.load(strategy, {}).example:
        fitting = ["lamb"]
    kinds: list[dict[str, Any]] = [dict.fromkeys(name.split(), True) for name in fitting]
    found = [case_of(strategy, world, decay=True)]
    for v in variants_of(strategy, world):
        made = [case_of(strategy, world, v, brief=v > 0, resume=not v, **kind) for kind in kinds]
        found += [case for case in made if fits(case, world)][:1]
    if MASTERS in precisions_of(strategy):
        found.append(case_of(strategy, world, 0, MASTERS, lamb=True))
    if strategy in CUT:
        packed = case_of(strategy, world, accumulation=2, documents=True)
        found.append(replace(packed, architecture=NARROW[0]))
    return found


def lamb_models(strategy: str, world: int) -> list[Case]:
    """`NARROW` by LAMB, with the defaults and each product of two axes."""
    if strategy in (*UNTRIED, REFERENCE) or Case(strategy).changed:
        return []
    made = [
        case_of(strategy, world, variant, lamb=True, brief=True)
        for variant in variants_of(strategy, world)
        if not variant or len(axes_of(strategy, world, variant)) > 1
    ]
    every = [replace(case, architecture=name) for name in NARROW for case in made]
    return [case for case in every if fits(case, world)]  # these classes cut no sequences


def changed_cases(strategy: str, world: int) -> list[Case]:
    """Each change of `CHANGED` in fp32 with micro-batches, where what is sent is counted.

    On two ranks under autocast too, and those resume that can.
    """
    found = []
    for name, _ in CHANGED.get(strategy, ()):
        case = Case(strategy, accumulation=2, change=name)
        found.append(case)
        if world == 2:
            found.append(replace(case, precision="bf16"))
            if strategies.load(strategy, case.options).resumes:
                found.append(replace(case, resume=True))
    return found


def phased_cases(strategy: str, world: int) -> list[Case]:
    """A run of two phases that goes on in the first one, with other knobs where they fit.

    And one of BERT, with micro-batches, where stages hand on other shapes and padding.
    """
    if world != mutated_world(strategy) or strategy == REFERENCE or Case(strategy).changed:
        return []
    made = [case_of(strategy, world, v, phased=True) for v in variants_of(strategy, world)]
    other = [case.variant for case in made if case.architecture == made[0].architecture][-1]
    case = case_of(strategy, world, other, phased=True, resume=True)
    found = [replace(case, variant=0, resume_variant=other)]
    if strategy == "pipeline_parallel":
        found.append(Case(strategy, accumulation=2, phased=True, architecture=NARROW[1]))
    return found


def references(cases: list[Case], world: int) -> list[Case]:
    """What these cases are held against, each once: a checkpoint against a checkpoint."""
    wanted = [case.reference(world) for case in cases]
    again = [c for c in cases if c.resume and c.precision == "fp32"]
    again = [c for c in again if not (c.change or c.decay or c.lamb or c.phased)]
    wanted += [replace(case.reference(world), resume=True) for case in again]
    return list(dict.fromkeys(wanted))


def recomputed_cases(strategy: str, world: int) -> list[Case]:
    """Every setting in fp32, with the micro-batches of which all that is sent is counted.

    The defaults also with attention alone, which `zero_bubble` takes too, and in fp16, under
    autocast and a loss scale, with one block alone where they can. In one world: it is the same
    code; where that needs four ranks, the defaults in fp32 do.
    """
    if world != mutated_world(strategy) and strategy != REFERENCE:
        return []
    found, few = list[Case](), world <= 2
    for variant in variants_of(strategy, world) if few else (0,):
        kept = case_of(strategy, world, variant, accumulation=4, brief=True)
        if strategy == REFERENCE:
            kept = Case(REFERENCE, accumulation=2)
        found.append(replace(kept, recompute=True))
        if not variant or kept.options.get("schedule") == "zero_bubble":
            found.append(replace(kept, recompute=ATTENTION))
    if few and "fp16" in precisions_of(strategy):
        kept = case_of(strategy, world, 0, "fp16", 2)
        one, every = replace(kept, recompute=(1,)), replace(kept, recompute=True)
        found.append(one if fits(one, world) else every)
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
    """True where its packages are installed, and the suite has what its steps are held against."""
    try:
        strategies.load(strategy, {}).check()
    except UnsupportedError:
        return False
    return not unwritten(strategy)


@cache
def unwritten(strategy: str) -> str:
    """What the suite lacks to check a strategy that changes the step; empty where nothing."""
    from tests.parity.written_out import written_out  # it loads torch

    plain, own = (
        strategies.load(strategy, {}),
        [case.options for case in changed_cases(strategy, 4)],
    )
    if plain.changes_the_step and not (own or plain.algorithm):
        knobs = ", ".join(plain.changes_the_step)
        return (
            f"strategy {strategy} changes the step by {knobs}; name its changes in CHANGED of "
            "tests/parity/cases.py"
        )
    if plain.algorithm:
        own.append({})
    for options in own:
        if written_out(strategies.load(strategy, options), 2) is None:
            with_these = f" with {options}" if options else ""
            return (
                f"strategy {strategy}{with_these} takes another step than `single`; write its "
                "algorithm out in tests/parity/written_out.py, where `written_out` chooses it"
            )
    return ""


def case_of(
    strategy: str,
    world: int,
    variant: int = 0,
    precision: str = "fp32",
    accumulation: int = 1,
    **options: Any,
) -> Case:
    """A case with as many layers as its layout needs, and a model that the strategy trains."""
    made = Case(strategy, precision, accumulation, variant=variant, **options)
    names = [made.architecture]
    if "architecture" not in options and (own := strategies.load(strategy, made.options).example):
        names = [own, UNBALANCED]
    tried = [replace(made, architecture=name, num_layers=n) for name in names for n in LAYERS]
    return next((case for case in tried if fits(case, world)), tried[0])


@cache
def mutated_world(strategy: str) -> int:
    """The least world of several ranks in which the strategy's defaults have a layout."""
    return next(n for n in WORLDS if fits(case_of(strategy, n), n) or n == WORLDS[-1])


def least_world(case: Case) -> int:
    """The same, or the least larger one in which its setting of the knobs is one of its own."""
    least = WORLDS[-1] if case.mutation in OF_FOUR else mutated_world(case.strategy)
    worlds = [n for n in WORLDS if n >= least]
    return next((n for n in worlds if case.variant in variants_of(case.strategy, n)), worlds[-1])


def mutants(strategy: str) -> list[Case]:
    """The cases with a mistake, all of which the comparison must notice."""
    if strategy == REFERENCE or unwritten(strategy):
        return []
    world, found = mutated_world(strategy), list[Case]()
    for name in MUTATIONS.get(strategy, "").split():
        mutation, _, variant = name.partition(":")
        shown = dict(SHOWN.get(mutation, {}))
        if (strategy, mutation) == ("pipeline_parallel", "untied"):
            shown = SHOWN["padding_read"]
        number = int(variant or 0)
        own = strategies.load(strategy, settings_of(strategy)[number]).example
        if mutation in RATIOS and (own or strategy in UNTRIED):
            del shown["architecture"]
        precision = shown.pop("precision", "fp32")
        case = case_of(strategy, world, number, precision, mutation=mutation, **shown)
        found.append(case)
    found += [
        Case(strategy, accumulation=2, change=name, mutation=mutation)
        for name, mutation in CHANGED.get(strategy, ())
        if mutation
    ]
    each = [
        Case(strategy, mutation=mutation, architecture=name)
        for one, mutation in OF_EACH_CLASS
        for name in CUT.get(strategy, ARCHITECTURES)
        if one == strategy
    ]
    found += [case for case in each if strategy not in CUT or fits(case, world)]
    able = precisions_of(strategy) if strategy not in UNSEEN else []
    narrow = [replace(c, precision="bf16") for c in found if c.mutation in NARROWLY]
    found += narrow if "bf16" in able else []
    seen = case_of(strategy, world, mutation=SEEN, padded=True)
    found += [] if seen.architecture else [seen]
    both = [name for name in ("fp32", "bf16") if name in able]
    return found + [case_of(strategy, world, 0, name, mutation=ONE_NORM) for name in both]


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


def precisions_of(strategy: str) -> list[str]:
    """Those of `PRECISIONS` in which it can train."""
    able = strategies.load(strategy, {}).precisions
    return [name for name in PRECISIONS if not able or name in able]


def trains_in(strategy: str, variant: int, precision: str) -> bool:
    """True where that setting of its knobs takes the precision."""
    try:
        strategies.load(strategy, settings_of(strategy)[variant]).check_precision(precision)
    except UnsupportedError:
        return False
    return True


def worlds_of(strategy: str) -> tuple[int, ...]:
    """The worlds a strategy runs in: one rank for `single`, two and four, or four alone.

    Settings of a strategy whose defaults need four ranks have an axis less on two.
    """
    least = mutated_world(strategy)
    return (1,) if strategy == REFERENCE else tuple(n for n in WORLDS if n >= least)


def launches() -> list[tuple[str, int]]:
    """One launch for each strategy and world."""
    return [(s, world) for s in strategies.names() for world in worlds_of(s)]
