"""A model cut into stages, each on its rank: what a rank keeps, and how the whole is put together.

A parameter that first and last stage share (tied embeddings) is on both ranks. The first stage's
copy is its owner: it alone is counted in the norm and saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from pipeline.parallel.cut import held
from pipeline.parallel.state import whole
from pipeline.parallel.types import Phases
from pipeline.strategies.pipeline_parallel.plan import Stages
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, WEIGHTS


class StagedModel:
    """`model` on pipeline rank `rank`: layers that other ranks hold are freed in place.

    `entries` are all parameters of the whole model by name, in its order: the shape, and the rank
    of the pipeline that owns it. `tied` are the names of this rank's parameters of which the other
    end of the pipeline holds a copy.
    """

    def __init__(self, model: nn.Module, stages: Stages, rank: int) -> None:
        any_model: Any = model
        self.model, self.stages, self.rank = any_model, stages, rank
        self.cuts, blocks = any_model.stage_cuts, any_model.blocks
        first, last = stages.rank_of(0), stages.rank_of(stages.count - 1)
        before, after = (
            [p for name in names for p in model.get_submodule(name).parameters()]
            for names in (self.cuts.before, self.cuts.after)
        )
        place = dict.fromkeys(after, last) | dict.fromkeys(before, first)
        for stage in range(stages.count):
            for layer in stages.layers_of(stage):
                place |= dict.fromkeys(blocks[layer].parameters(), stages.rank_of(stage))
        self.entries = {name: (held(p, p).shape, place[p]) for name, p in model.named_parameters()}
        # What this rank runs nothing of goes; a module whose weights are kept anyway stays.
        own = {layer for s in stages.of_rank(rank) for layer in stages.layers_of(s)}
        for layer in set(range(len(blocks))) - own:
            blocks[layer] = Absent()
        kept = {*(before if rank == first else ()), *(after if rank == last else ())}
        for end in (*self.cuts.before, *self.cuts.after):
            # Inner ones first: a tied weight may lie in one of several, whose name it keeps.
            inside = list(model.get_submodule(end).named_modules(prefix=end))
            for name, module in reversed(inside):
                if not kept.issuperset(module.parameters(recurse=False)):
                    model.set_submodule(name, Absent())
        shared = {*before} & {*after} if first != last else set()
        self.tied = [name for name, p in model.named_parameters() if p in shared]

    def stage(self, number: int, autocast: Callable[[], AbstractContextManager[Any]]) -> Stage:
        """One of this rank's stages as a module."""
        layers = self.stages.layers_of(number)
        is_first, is_last = number == 0, number == self.stages.count - 1
        # Of both ends, since a tied weight has a place in each; what is not here is absent.
        ends = (*self.cuts.before, *self.cuts.after) if is_first or is_last else ()
        return Stage(
            [self.model.blocks[n] for n in layers],
            map(self.model.get_submodule, ends),
            self.model.stage(layers, is_first=is_first, is_last=is_last),
            autocast,
        )

    def owned(self, name: str) -> bool:
        """True where this rank holds a parameter, and is the one that counts and saves it."""
        return self.entries[name][1] == self.rank

    def weights(
        self, ranks: dist.ProcessGroup, device: torch.device
    ) -> Iterator[tuple[str, Tensor]]:
        """Names and whole weights of the model, one after the other. Collective.

        Every rank gets each from its owner, but uses its own copy where it has one, so that a copy
        that went astray is seen.
        """
        own = dict(self.model.named_parameters())
        dtype = next(iter(own.values())).dtype
        for name, (shape, owner) in self.entries.items():
            mine = whole(own[name]) if name in own else None
            sent = mine if mine is not None and self.owned(name) else None
            if sent is None:
                sent = torch.empty(shape, dtype=dtype, device=device)
            dist.broadcast(sent, dist.get_global_rank(ranks, owner), ranks)
            yield name, sent if mine is None else mine


class Stage(nn.Module):
    """Consecutive layers of a model, with what comes before them or after where it is an end.

    The first stage takes token ids (sequences, context), the last one gives logits; between them
    are tensors (sequences, context, width).
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        ends: Iterable[nn.Module],
        run: Callable[..., Tensor],
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__()
        # What has its weights. The whole model must not become a part of its stage.
        self.blocks, self.ends = nn.ModuleList(blocks), nn.ModuleList(ends)
        self.run, self.autocast = run, autocast

    def forward(self, x: Tensor, segments: Tensor | None = None) -> Tensor:
        """The pass of one micro-batch."""
        with self.autocast():
            return self.run(x, segments)


class Absent(nn.Module):
    """In place of a module of another stage: hands hidden states on, and makes nothing of ids.

    A model that runs its own code on every stage calls it, where its output counts for nothing.
    """

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """(sequences, context, width) -> same; (sequences, context) -> zero."""
        return x if x.dim() > 2 else torch.zeros((), device=x.device)


class Waits:
    """Communication, but for the passes of micro-batches, which interrupt it."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self._open = ExitStack()

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """The context of a whole schedule."""
        with self._open:
            self.wait()
            yield

    @contextmanager
    def not_while(
        self, phase: str, passing: tuple[str, int, int], *, goes_on: bool = False
    ) -> Iterator[None]:
        """A pass, of this kind, stage and micro-batch: it is paid for before a neighbour sees it.

        Where it `goes_on`, `wait` ends it: after the loss, in that of the last stage.
        """
        self._open.close()
        self.phases.begin(phase)
        self.phases.passing(*passing)
        yield
        if not goes_on:
            self.wait()

    def wait(self) -> None:
        """End a pass: what follows is communication."""
        self._open.enter_context(self.phases.during(COMMUNICATION))


class MarkedStage(PipelineStage):
    """A stage that marks its passes; what lies between them is communication, and waiting for it.

    `waits` is the context of the latter.
    """

    waits: Waits

    def _validate_fwd_outputs(self, outputs: tuple[Any, ...]) -> None:
        """Hold what is sent on against its stated shape; torch before 2.13 calls it.

        The last stage sends nothing, and its stated shape is not that of its logits.
        """
        if not self.is_last:
            super()._validate_fwd_outputs(outputs)  # type: ignore[misc]

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> Any:
        """The tensor for the next stage; the last stage has none, but logits for each head."""
        return [] if self.is_last else super().get_fwd_send_ops(fwd_chunk_id)

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **options: Any) -> Any:
        """The forward pass of a micro-batch, which has been received.

        An error is raised as it was, without torch's wrapping: a record's status is read from it.
        """
        # The pass of the last stage ends with its loss. On emulated nodes another node may run
        # where a pass ends; a loss behind that made the stage look longer (docs/lab-notes.md).
        own = FORWARD, self.stage_index, fwd_chunk_id
        with self.waits.not_while(FORWARD, own, goes_on=self.is_last):
            try:
                return super().forward_one_chunk(fwd_chunk_id, *given, **options)
            except RuntimeError as error:
                raise (error.__cause__ or error) from None

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **options: Any) -> None:
        """The backward pass of a micro-batch, or the half of it that sends a gradient on."""
        with self.waits.not_while(BACKWARD, (BACKWARD, self.stage_index, bwd_chunk_id)):
            super().backward_one_chunk(bwd_chunk_id, *given, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *given: Any, **options: Any) -> None:
        """The half of a backward pass that computes the gradients of the weights."""
        with self.waits.not_while(BACKWARD, (WEIGHTS, self.stage_index, bwd_chunk_id)):
            super().backward_weight_one_chunk(bwd_chunk_id, *given, **options)
