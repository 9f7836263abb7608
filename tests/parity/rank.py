"""The ranks of the parity suite: each trains every case of a strategy through the real loop.

`start` forks them, as runs on emulated nodes are, with what torchrun would set; `ask.py` calls it
where torch is loaded already. A rank that fails leaves `rank<r>.error.json`: when, how, and whether
it only lost a peer.
"""

import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn import functional as F

from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.corpus.objectives import Masked, draws
from pipeline.errors import StoppedError
from pipeline.machine.limits import free_port
from pipeline.machine.processes import Child
from pipeline.models.gpt2 import model as gpt2
from pipeline.models.transformers.experts import imbalance
from pipeline.parallel import counted
from pipeline.parallel.cut import Held, cut_of, held, holders, rows_of
from pipeline.parallel.cut import cut as real_cut
from pipeline.parallel.group import ALONE
from pipeline.parallel.mesh import Layout
from pipeline.parallel.reduction import MeanBucket
from pipeline.parallel.state import whole
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import NO_DEFECTS, Batch, Trainable
from pipeline.precision.native import MasterWeights, Precision
from pipeline.strategies.expert.step import ExpertAxis
from pipeline.strategies.local_sgd.step import LocalStepper
from pipeline.strategies.parameter_server.step import LateStar, Star
from pipeline.strategies.pipeline_parallel.plan import Stages
from pipeline.strategies.pipeline_parallel.stages import Stage
from pipeline.strategies.pipeline_parallel.step import PipelineStepper
from pipeline.strategies.sharded.rows import RowBucket
from pipeline.strategies.tensor.step import TensorAxis
from pipeline.training import checkpoint
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop
from pipeline.training.worker import kind_of
from tests.cores import share_a_core
from tests.parity import apex_standin
from tests.parity.cases import OVERFLOW_STEP, REFERENCE, Case, cases_of
from tests.parity.written_out import PlainLamb, written_out

ENTRIES = 2_000
"""Collectives that torch's flight recorder keeps: more than those of one case."""


def start(strategy: str, world: int, tokens: Path, out: Path) -> int:
    """Fork the ranks and wait for them; 1 where one failed, which ends the others."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    share_a_core(world)
    port = free_port()
    ranks = []
    try:
        for rank in range(world):
            work = partial(main, strategy, world, tokens, out, variables(rank, world, port))
            ranks.append(Child(work))
        # After the forks: it has a thread.
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
            time.sleep(0.02)
        del store
        return 1 if any(codes) else 0
    finally:
        for one in ranks:
            one.kill()


def variables(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    return {name: str(value) for name, value in found.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def reuse_groups() -> None:
    """Give cases of the same axes the same groups: with hundreds of them every step takes longer.

    Nothing of a case stays in a group; DTensor keeps meshes that are equal anyway.
    """
    device_mesh.init_device_mesh = cache(device_mesh.init_device_mesh)  # type: ignore[assignment]
    made = cache(dist.new_group)
    dist.new_group = lambda ranks=None, **given: made(ranks and tuple(ranks), **given)


def main(strategy: str, world: int, tokens: Path, out: Path, environment: dict[str, str]) -> int:
    """Leave `<case>.rank<r>.json` for each case, and rank 0's weights where they are wanted."""
    gc.disable()
    os.environ.update(environment)
    vars(os)["fsync"] = lambda descriptor: None  # no machine loses its power here
    # Dumped and read whole for each case that counts: enough for one, not for all before it.
    os.environ[counted.ENTRIES_VARIABLE] = str(ENTRIES)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    # One group for all cases: torch cannot leave torchrun's store and join it again under one name.
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    for case in cases_of(strategy, world):
        gc.freeze()  # what is there stays: after the case only its own objects are walked over
        try:
            with unusual(case):
                checkpoints = out / f"{case.name}.checkpoints"
                steps, loop, kept = train(case, world, tokens, checkpoints, rank)
        except Exception as error:
            error.add_note(f"in the case {case.name}")
            leave_error(error, rank, out)
            raise
        about = {
            "steps": steps,
            "weights_sha256": loop.weights_sha256,
            "tied": is_tied(loop.model),
            "precision": vars(loop.precision.info),
            "sent": loop.sent,
            "kept": kept,
            "phases": [name for name, *_ in loop.phases._marks] if loop.phases else None,
        }
        (out / f"{case.name}.rank{rank}.json").write_text(json.dumps(about))
        if case.weights_wanted:
            weights = {name: whole(p) for name, p in loop.model.named_parameters()}
            if rank == 0:
                save_file(weights, out / f"{case.name}.safetensors")
        del loop
        gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    return 0


def is_tied(model: Any) -> bool:
    """Whether embedding and output layer are one tensor, or neither is on this rank."""
    ends = [getattr(model, name, None) for name in ("lm_head", "wte")]
    first, second = (getattr(module, "weight", None) for module in ends)
    return first is second


def leave_error(error: Exception, rank: int, out: Path) -> None:
    """Write it before this process ends, which is what the other ranks notice."""
    about = {
        "rank": rank,
        "kind": kind_of(error),
        "seconds": time.monotonic(),
        "traceback": "".join(traceback.format_exception(error)),
    }
    (out / f"rank{rank}.error.json").write_text(json.dumps(about))


def train(
    case: Case, world: int, tokens: Path, checkpoints: Path, rank: int
) -> tuple[list[dict[str, Any]], Any, list[int]]:
    """All steps of a case, in one go or in two halves with a checkpoint on disk between them.

    Besides, the loop, and how many numbers this rank kept of the state for each checkpoint.
    """
    steps: list[dict[str, Any]] = []
    spec = case.spec(world)

    kept: list[int] = []

    def save(done: int, trainable: Trainable) -> None:
        shards = trainable.shards()
        kept.append(sum(piece.numbers.numel() for piece in shards.pieces))
        checkpoint.save(
            checkpoints, done, shards, "parity",
            rank=rank, size=world, launch="parity", agree=trainable.agree,
        )  # fmt: skip

    def make(options: dict[str, Any] = case.options) -> Loop:
        own = strategies.load(case.strategy, options)
        strategy = written_out(own, case.replicas) if case.replicas else own
        assert strategy is not None  # or the suite leaves it out
        work = spec.workload
        batches = Batches(tokens, spec.model.context, work.global_batch, spec.seed, spec.objective)
        loop = Loop(spec, strategy, batches, rank, Clock(torch.device("cpu")))
        trainable: Any = loop.trainable
        trainable.update = noting(trainable, squares)
        return loop

    squares: list[dict[str, float]] = []

    def run(loop: Loop, **resumed: Any) -> None:
        loop.run(
            lambda step: steps.append(step.to_dict() | {"squares": squares[-1]}),
            save,
            stops=lambda _: case.resume and len(steps) == case.steps // 2,
            **resumed,
        )

    loop = make()
    if not case.resume:
        run(loop)
        return steps, loop, kept
    with suppress(StoppedError):
        run(loop)
    loop.trainable.close()
    if case.replicas:
        return steps, loop, kept  # for its checkpoint
    other = case.resume_variant
    loop = make(case.options if other is None else case.options_of(other))
    half = case.steps // 2
    run(loop, done=half, state=checkpoint.Saved(checkpoints, half))
    return steps, loop, kept


def noting(trainable: Any, squares: list[dict[str, float]]) -> Callable[[], torch.Tensor]:
    """Its `update`, before which the squares of the gradients are added to the list."""
    real = trainable.update

    def update() -> torch.Tensor:
        squares.append(trainable.squares())
        return real()

    return update


@contextmanager
def unusual(case: Case) -> Iterator[None]:
    """What a case asks for besides its spec: stand-ins, a deliberate mistake, an overflow."""
    with ExitStack() as stack:
        if case.precision.startswith("apex_"):
            stack.enter_context(apex_standin.installed())
        if case.strategy == REFERENCE:
            stack.enter_context(mock.patch("pipeline.training.optimiser.Lamb", PlainLamb))
        for name, value in WRONG.get(case.mutation or "", {}).items():
            stack.enter_context(mock.patch(name, value))
        if case.overflow:
            stack.enter_context(overflowing())
        yield


real_norm = torch.nn.utils.get_total_norm
real_all_reduce = dist.all_reduce
real_clip = torch.nn.utils.clip_grad_norm_
real_fill, real_reduced = Held.fill, Stepper.reduced


def one_run(parameter: Any, dim: int, runs: int, ranks: Any) -> Any:
    """Cut query, key and value as if they were one."""
    return real_cut(parameter, dim, 1, ranks)


def summed_once(axis: TensorAxis, x: torch.Tensor) -> torch.Tensor:
    """Add up over the ranks, but not when a block is recomputed."""
    return x.clone() if torch._C._current_graph_task_id() != -1 else real_total(axis, x)


def unmasked_again(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    """See later tokens when attention is recomputed."""
    if torch._C._current_graph_task_id() != -1:
        return F.scaled_dot_product_attention(q, k, v)
    return real_attend(q, k, v, mask)


def without_ddp(model: torch.nn.Module, **_: Any) -> torch.nn.Module:
    """The model itself, whose gradients nobody averages."""
    return model


def first_half_twice(self: PipelineStepper, microbatches: Any) -> torch.Tensor:
    """A micro-batch of the pipeline in place of another."""
    halves = [[torch.cat([part[: len(part) // 2]] * 2) for part in b.given] for b in microbatches]
    return real_accumulate(self, [Batch(*half) for half in halves])


def backwards(self: Stages, stage: int) -> range:
    """The layers of the stage at the other end."""
    return real_layers(self, self.count - 1 - stage)


def first_evenly(self: Stages, stage: int) -> range:
    """Layers as stated, but for the first stage, which takes an equal share."""
    return real_layers(self if stage else replace(self, sizes=()), stage)


def with_the_rest_of_all(self: PipelineStepper, parameters: list[torch.Tensor]) -> torch.Tensor:
    """Every rank of the tensor axis counts what all of them hold."""
    every = frozenset({"tensor", "expert"})
    with mock.patch("pipeline.strategies.pipeline_parallel.step.axes_of", lambda parameter: every):
        return real_pipeline_clip(self, parameters)


def own_weight(self: Stepper, weights: Any) -> torch.Tensor:
    """The count of this rank, before the all-reduce: a mean of means over the ranks."""
    with mock.patch.object(self, "group", ALONE):
        return real_weight(self, weights)


def means_of_pieces(real: Any) -> Any:
    """A mean of means: each micro-batch counts as much as any other."""

    def accumulate(self: Stepper, microbatches: Any) -> torch.Tensor:
        own = torch.stack([batch.weights.sum(dim=(0, 2)) for batch in microbatches])
        factors = (own.mean(dim=0) / own.clamp(min=1)).unsqueeze(-1)
        pairs = zip(microbatches, factors, strict=True)
        return real(self, [b._replace(weights=b.weights * factor) for b, factor in pairs])

    return accumulate


def held_but_for(cut_by: Any) -> Any:
    """The holders of a tensor, as if one way of cutting it were none."""
    return lambda owner: [
        ranks for ranks in holders(owner) if ranks is not getattr(cut_by(owner), "ranks", None)
    ]


def from_narrow_weights(self: MasterWeights, closure: Any = None) -> None:
    """Update what the passes have, as if it were the masters."""
    with torch.no_grad():
        for group in self.param_groups:
            torch._foreach_copy_(group["masters"], group["params"])
    real_update(self)


def backwards_unsent(self: ExpertAxis, rows: Any, given: Any, taken: Any) -> torch.Tensor:
    """Gradients of no use come back from the experts of others."""
    if torch._C._current_graph_task_id() == -1:
        return real_exchange(self, rows, given, taken)
    return rows.new_zeros(sum(taken), *rows.shape[1:])


def within_capacity(self: ExpertAxis, run: Any, own: int, *given: Any) -> torch.Tensor:
    """Each expert takes its even share of a rank's tokens, as GShard's; later ones are dropped."""
    x, chosen, weights = given
    places = F.one_hot(chosen.flatten()).cumsum(0).gather(1, chosen.flatten()[:, None])
    fits = places.view_as(chosen) <= chosen.numel() // (own * self.size)
    return real_routed(self, run, own, x, chosen, weights * fits)


def without_momentum(self: LocalStepper, *, moves: bool = True) -> None:
    """Step by what the ranks have moved by alone, as if it were plain SGD."""
    self.outer.param_groups[0].update(momentum=0.0, nesterov=False)
    real_synchronise(self, moves=moves)


def norm_of_a_stage(owners: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    """One norm of all weights of a rank, and one of their updates, as if each were one tensor."""
    half = len(parts) // 2
    return torch.cat(
        [real_norm(some).double().expand(half) for some in (parts[:half], parts[half:])]
    )


real_weight, real_passes = Stepper.mean_weight, Stepper.accumulate
real_hide, real_stage, real_update = Masked.hide, Stage.forward, MasterWeights.step
real_total, real_slice, real_scaled = TensorAxis.total, Layout.batch_slice, Precision.scaled
real_attend = gpt2.attend
real_exchange, real_routed = ExpertAxis.exchange, ExpertAxis.routed
real_synchronise, real_late = LocalStepper.synchronise, LateStar.__init__
real_accumulate = PipelineStepper.accumulate
real_layers, real_pipeline_clip = Stages.layers_of, PipelineStepper.clip
P, RATIO = "pipeline.parallel.", "pipeline.training.optimiser."
OBJECTIVES = "pipeline.corpus.objectives."
NATIVE = "pipeline.precision.native."
SERVER = "pipeline.strategies.parameter_server."
LOCAL = "pipeline.strategies.local_sgd.step.LocalStepper."
POWERSGD = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState"
TENSOR, CONTEXT, EXPERT, STAGES, SHARDED, ANNOTATED = (
    f"pipeline.strategies.{room}."
    for room in (
        "tensor.step", "context.step", "expert.step", "pipeline_parallel", "sharded",
        "annotated.step",
    )
)  # fmt: skip
WRONG: dict[str, dict[str, Any]] = {
    "no_clip": {"torch.nn.utils.clip_grad_norm_": lambda grads, _: real_clip(grads, 1e9)},
    "same_shard": {P + "mesh.Layout.batch_slice": lambda self, rank, n: real_slice(self, 0, n)},
    "local_norm": {"torch.nn.utils.get_total_norm": lambda *given: own_norm(*given)},
    "no_reduction": {SHARDED + "step.ring_reduce_scatter": lambda *given: own_piece(*given)},
    "same_part": {P + "cut.Held.fill": lambda self, read: first_rows(self, read)},
    "partial_kept": {
        ANNOTATED + "AnnotatedStepper.reduce_gradients": lambda self: keep_partial(self)
    },
    "relabelled": {
        ANNOTATED + "_redistributed": lambda wanted: lambda m, i, output: relabel(output, wanted)
    },
    "stale_wholes": {ANNOTATED + "CutUpdates.gather": lambda self, given: gather_once(self, given)},
    "no_add": {ANNOTATED + "AnnotatedStepper.add": lambda self, tensor, axes: None},
    # As if the gradients of two ranks were added instead of averaged.
    "sum": {
        NATIVE + "Precision.scaled": lambda self, loss, optimiser, *, last: real_scaled(
            self, loss * 2, optimiser, last=last
        )
    },
    "padding_seen": {"torch.Tensor.masked_fill": lambda logits, *_: logits},
    "one_norm": {P + "step.Stepper.reduced": lambda self: one_and_a_half(self)},
    "no_enter": {TENSOR + "TensorAxis.enter": lambda self, x: x},
    "no_leave": {TENSOR + "TensorAxis.total": lambda self, x: x.clone()},
    "part_norm": {
        TENSOR + "whole_norm": lambda parameters, ranks: norm_here(parameters),
        EXPERT + "whole_norm": lambda parameters, ranks: norm_here(parameters),
        EXPERT + "norm_over": lambda parameters: norm_here(parameters),
        STAGES + "step.PipelineStepper.clip": Stepper.clip,
    },
    "recomputed_unmasked": {"pipeline.models.gpt2.model.attend": unmasked_again},
    "recomputed_without_sum": {TENSOR + "TensorAxis.total": summed_once},
    "uncut_alone": {TENSOR + "TensorAxis.add_uncut": lambda self, *given: None},
    "one_run": {TENSOR + "cut": one_run},
    # Gradients of keys and values as if no later token, on another rank, had looked at them.
    "keys_alone": {CONTEXT + "ContextAxis.scatter": lambda self, whole: self.own(whole)},
    # Pieces as the ranks send them: the mask has another offset than the keys.
    "ranks_in_order": {CONTEXT + "ContextAxis.gather": TensorAxis.gather},
    "first_positions": {
        CONTEXT + "OwnPositions.forward": lambda self, positions: F.embedding(
            positions, self.weight
        )
    },
    # Each rank steps by the mean over its own tokens.
    "not_averaged": {
        P + "reduction.DistributedDataParallel": without_ddp,
        STAGES + "step.mean_of": lambda parts, ranks: None,
    },
    # Gradients of experts as if only their replicas had read the batch.
    "experts_added": {
        EXPERT + "MeanBucket": lambda *given: MeanBucket(*given[:3]),
        EXPERT + "RowBucket": lambda *given, **how: RowBucket(*given, **how | {"count": 0}),
    },
    # Each tensor rank's router learns of its own features of the experts alone.
    "router_alone": {
        TENSOR + "TensorAxis.weighted": lambda self, run, x, chosen, weights: self.leave(
            run(self.enter(x), chosen, weights)
        )
    },
    "no_way_back": {EXPERT + "ExpertAxis.exchange": backwards_unsent},
    "over_capacity": {EXPERT + "ExpertAxis.routed": within_capacity},
    # As if no rank shared a weight with another.
    "untied": {STAGES + "step.ends_of": lambda layout, rank: None},
    "tied_twice": {STAGES + "stages.StagedModel.owned": lambda self, name: True},
    "twice": {STAGES + "step.PipelineStepper.accumulate": first_half_twice},
    "stage_order": {STAGES + "plan.Stages.layers_of": backwards},
    "layers_unread": {STAGES + "plan.Stages.layers_of": first_evenly},
    "rest_twice": {STAGES + "step.PipelineStepper.clip": with_the_rest_of_all},
    "no_average": {
        SHARDED + "rows.begin_reduce_scatter": lambda whole, group: partial(own_piece, whole, group)
    },
    "replicas_apart": {
        "torch.distributed.all_reduce": lambda *given, **how: own_replica(*given, **how)
    },
    "stale_rows": {SHARDED + "rows.RowBucket._spread": lambda self, gathered, work: work.wait()},
    "narrow_reduction": {
        NATIVE + "Precision.reduced": property(lambda self: torch.bfloat16, lambda *_: None)
    },
    "narrow_masters": {NATIVE + "MasterWeights.step": from_narrow_weights},
    "own_weight": {P + "step.Stepper.mean_weight": own_weight},
    "means_of_pieces": {
        P + "step.Stepper.accumulate": means_of_pieces(Stepper.accumulate),
        STAGES + "step.PipelineStepper.accumulate": means_of_pieces(PipelineStepper.accumulate),
    },
    "own_masks": {
        OBJECTIVES + "draws": lambda count, seed, step, start: draws(count, seed, step, 0)
    },
    "padding_counted": {
        OBJECTIVES + "Masked.hide": lambda self, *given: real_hide(
            replace(self, special=frozenset()), *given
        )
    },
    "padding_read": {
        STAGES + "stages.Stage.forward": lambda self, x, segments: real_stage(
            self, x, segments if x.dim() == 2 else None
        )
    },
    "one_phase": {"pipeline.study.spec.RunSpec.at": lambda self, step: self.phases()[-1]},
    "rate_of_all": {
        "pipeline.study.spec.RunSpec.rate": lambda self, step: self.optimiser.rate(
            step, self.workload.steps
        )
    },
    "own_balance": {
        "pipeline.models.transformers.model.imbalance": lambda logits, chosen, *_: imbalance(
            logits, chosen, sequences=1
        )
    },
    "own_share": {
        "pipeline.models.transformers.model.imbalance": lambda *given: imbalance(*given[:3])
    },
    "part_ratio": {RATIO + "holders": lambda owner: []},
    "rows_ratio": {RATIO + "holders": held_but_for(rows_of)},
    "cut_ratio": {RATIO + "holders": held_but_for(cut_of)},
    "stage_ratio": {RATIO + "whole_norms": norm_of_a_stage},
    "never_one": {LOCAL + "synchronise": lambda self, moves=True: None},
    "no_momentum": {LOCAL + "synchronise": without_momentum},
    "not_late": {
        SERVER + "plan.ParameterServer.build": lambda self, parts: Star(parts, NO_DEFECTS)
    },
    # The passes wait for the newest weights, as with a staleness of 1.
    "weights_not_late": {
        SERVER + "step.LateStar.__init__": lambda self, parts, defects, _: real_late(
            self, parts, defects, 1
        )
    },
    "no_feedback": {POWERSGD: partial(PowerSGDState, use_error_feedback=False)},
}
"""Replacements that break a step, by mutation; others are knobs of the strategy."""
# The same mistakes, which other cases must show.
WRONG |= {
    "heads_alone": WRONG["uncut_alone"],
    "borders_unread": WRONG["padding_read"],
    "experts_apart": WRONG["replicas_apart"],
}
NORMS = ("h.1.ln_2.weight", "layers.1.post_attention_layernorm.weight")
LARGEST = ("h.1.mlp.c_fc.weight", "layers.1.mlp.experts.gate_up_proj")
"""With which names end in GPT-2, and in the models that a strategy has as its example."""


def overflowing() -> Any:
    """One element of the reduced gradient is infinite in one step, on the ranks that hold it."""
    steps = count()

    def reduced(self: Stepper) -> None:
        real_reduced(self)
        if next(steps) != OVERFLOW_STEP:
            return
        for name, reduced in reduced_by(self):
            if name.endswith(LARGEST):
                own = held(reduced.grad, reduced)
                if own.boxes and not any(own.boxes[0].offsets):
                    own.part[(0,) * own.part.dim()] = torch.inf

    return mock.patch.object(Stepper, "reduced", reduced)


def one_and_a_half(stepper: Stepper) -> None:
    """Reduce, then scale the gradient of one layer norm."""
    real_reduced(stepper)
    for name, reduced in reduced_by(stepper):
        if name.endswith(NORMS):
            reduced.grad *= 1.5


def reduced_by(stepper: Stepper) -> Iterator[tuple[str, Any]]:
    """Names, and the weights or this rank's rows of them that have the mean gradients."""
    for name, *pair in stepper.precision.owners(stepper.model, stepper.optimiser):
        yield from ((name, one) for one in pair[:1] if one.grad is not None)
        yield from ((name, one) for one in pair[1:] if one.grad is not None and one is not pair[0])


def relabel(tensor: Any, wanted: Any) -> Any:
    """The parts of a DTensor under another placement, as if that needed nothing to be sent."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(tensor.to_local(), tensor.device_mesh, wanted)


def keep_partial(self: Any) -> None:
    """Take each rank's own gradient for the sum over the data axis."""
    for parameter in self.model.parameters():
        parameter.grad = relabel(parameter.grad, parameter.placements)


def gather_once(self: Any, precision: Any) -> None:
    """The passes of all steps have the weights of the first one."""
    firsts = vars(self).setdefault("firsts", {})
    for part, wanted, places in self.parts:
        whole = firsts.get(part)
        if whole is None:
            whole = part.detach().redistribute(placements=wanted).clone()
            firsts[part] = whole = torch.nn.Parameter(whole)
        whole.grad = None
        for module, name in places:
            module.register_parameter(name, whole)


def first_rows(self: Held, read: Any) -> None:
    """Give all ranks the rows of the first, where rows are cut."""
    apart = self.part.dim() and len(self.part) < self.shape[0]
    real_fill(self, lambda at, shape: read((0, *at[1:]) if apart else at, shape))


def own_norm(gradients: list[Any]) -> torch.Tensor:
    """The norm over this rank's shards, as if there were no others."""
    return real_norm([gradient.to_local() for gradient in gradients])


def norm_here(parameters: list[torch.Tensor]) -> torch.Tensor:
    """The norm of what this rank has, as if it had all."""
    return real_norm([p.grad for p in parameters if p.grad is not None])


def own_piece(whole: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's piece of its own gradients, as if nothing were sent."""
    return whole.view(group.size(), -1)[group.rank()] * group.size()


def own_replica(tensor: torch.Tensor, op: Any = None, group: Any = None, **how: Any) -> Any:
    """Add up over neighbours, as all ranks and shards are, but not over replicas."""
    ranks = dist.get_process_group_ranks(group)
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return real_all_reduce(tensor, op or dist.ReduceOp.SUM, group, **how)
    return SimpleNamespace(wait=lambda: None)
