"""The optimisation step of DeepSpeed's engine, and its shards as whole tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.parallel.group import Group
from pipeline.parallel.state import read_whole, reading
from pipeline.parallel.step import Stepper, Within
from pipeline.parallel.types import (
    NOT_PROFILED,
    Batch,
    Parts,
    Piece,
    SavedState,
    Shards,
    slot_name,
    weight_name,
)
from pipeline.study.profiling import BACKWARD, FORWARD, OPTIMISER

SLOTS = ("exp_avg", "exp_avg_sq")
"""Tensors that AdamW keeps of each weight, besides the step count."""


def load(device: str) -> Any:
    """The package, without the extension that it would compile on a CPU.

    That is for collectives in shared memory and takes minutes, and a process that is killed
    meanwhile leaves a lock on which later starts wait for ever. `LOCAL_SIZE`, a sign of its
    launcher, is unset. Of GPUs it takes that of LOCAL_RANK, which is 0 on every node, also where
    nodes share a machine: so that is set to this rank's own.
    """
    if device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    else:
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
    os.environ.pop("LOCAL_SIZE", None)
    import deepspeed

    # `import deepspeed.comm.torch as x` gives the torch library; the module is in sys.modules only.
    module: Any = sys.modules["deepspeed.comm.torch"]
    module.build_shm_op = lambda: None
    deepspeed.logger.setLevel("WARNING")
    return deepspeed


class DeepSpeedStepper(Stepper):
    """The engine reduces, clips and steps; loss, order and checkpoints are the shared ones."""

    def __init__(self, parts: Parts, stage: int) -> None:
        """Import DeepSpeed and let its engine wrap model and optimiser. Collective.

        Its batch sizes mean nothing here: `accumulate` says which micro-batch is the last. The
        model enters autocast itself, because the engine leaves the one around it.
        """
        group = Group.join(parts.layout)
        self.deepspeed, self.stage = load(parts.layout.device), stage
        if parts.layout.device == "cuda":
            # Collectives run on streams of their own, which marks between phases do not see.
            parts = replace(parts, phases=NOT_PROFILED)
        prepared = parts.prepare()
        super().__init__(prepared, group)
        self.deepspeed.init_distributed(parts.layout.backend)
        self.engine, *_ = self.deepspeed.initialize(
            model=Within(parts.model, parts.precision.autocast),
            optimizer=prepared.optimiser,
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 1,
                "gradient_clipping": parts.max_grad_norm,
                "steps_per_print": 2**31,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
            },
        )

    def accumulate(self, microbatches: Sequence[Batch]) -> Tensor:
        """Forward and backward passes; the engine reduces in the last, under 2 and 3 in each."""
        count = len(microbatches)
        total = torch.zeros((), device=microbatches[0].inputs.device)
        for index, (inputs, targets, *_) in enumerate(microbatches):
            self.engine.set_gradient_accumulation_boundary(index == count - 1)
            self.phases.begin(FORWARD)
            loss = self.engine(inputs, targets).mean() / count
            total += loss.detach()
            self.phases.begin(BACKWARD)
            self.engine.backward(loss, scale_wrt_gas=False)
        self.phases.begin(OPTIMISER)
        return total

    def update(self) -> Tensor:
        """Clip and step by the engine; returns the norm before clipping."""
        self.engine.step()
        return torch.as_tensor(self.engine.get_global_grad_norm())

    def squares(self) -> dict[str, float]:
        """None: the engine keeps the gradients to itself."""
        return {}

    def shards(self) -> Shards:
        """Rows of all weights and slots, by DeepSpeed's accessors, which give wholes. Collective.

        So tensors are put together one after the other, and each rank keeps its rows on the host; a
        scalar is the root's.
        """
        pieces: list[Piece] = []

        def keep(name: str, whole: Tensor) -> None:
            shape, start, rows = tuple(whole.shape), 0, whole.detach()
            if shape:
                before = rows.tensor_split(self.data_parallel)[: self.group.rank + 1]
                rows, start = before[-1], sum(len(part) for part in before[:-1])
            if rows.numel() and (shape or self.is_root):
                offsets = (start, *(0 for _ in shape[1:])) if shape else ()
                own = rows.to("cpu", copy=True).contiguous()
                pieces.append(Piece(name, shape, offsets, own))

        for name, parameter in self.model.named_parameters():
            # Under stage 3 it has no shape of its own while it is not used.
            shape = getattr(parameter, "ds_shape", parameter.shape)
            keep(weight_name(name), self._whole(parameter).view(shape))
            for slot in SLOTS:
                value = self.deepspeed.utils.safe_get_full_optimizer_state(parameter, slot)
                keep(slot_name(name, slot), value.view(shape))
            # The step count is one for all.
            keep(slot_name(name, "step"), next(iter(self.optimiser.state.values()))["step"])
        return Shards(pieces, {})

    def load(self, state: SavedState) -> None:
        """Continue from weights and slots, of which one is read whole at a time."""
        counts, zero = set[float](), self.engine.optimizer
        # AdamW's slots, which it makes in its first step, for the flat tensors that it steps.
        flat = zero.fp32_partitioned_groups_flat if self.stage == 3 else None
        for tensor in flat or zero.single_partition_of_fp32_groups:
            made = {slot: torch.zeros_like(tensor) for slot in SLOTS}
            self.optimiser.state[tensor] = {"step": torch.zeros((), device=tensor.device), **made}
        if self.stage < 3:
            zero._lazy_init_hp_params_optimizer_state()  # so that its accessors see them
        with reading(state):
            for name, parameter in self.model.named_parameters():
                self._set(parameter, read_whole(state, weight_name(name)))
                for slot in SLOTS:
                    self._set(parameter, read_whole(state, slot_name(name, slot)), slot)
                counts.add(float(read_whole(state, slot_name(name, "step"))))
        for kept in self.optimiser.state.values():
            kept["step"].fill_(max(counts))

    def _set(self, parameter: nn.Parameter, value: Tensor, slot: str | None = None) -> None:
        """Set a weight, or a slot of it, from the whole tensor."""
        utils, value = self.deepspeed.utils, value.to(self.engine.device)
        if self.stage == 3:
            # Each rank has a run of the flattened tensor; the runs are equal, the last one padded.
            held: Any = parameter
            length = held.ds_tensor.numel()
            flat = value.new_zeros(length * self.data_parallel)
            flat[: value.numel()] = value.flatten()
            own = flat.chunk(self.data_parallel)[self.group.rank]
            if slot is None:
                utils.safe_set_local_fp32_param(parameter, own)
                held.ds_tensor.copy_(own)
            else:
                utils.safe_set_local_optimizer_state(parameter, own, slot)
        elif slot is None:
            utils.safe_set_full_fp32_param(parameter, value)
            with torch.no_grad():
                parameter.copy_(value)
        else:
            utils.safe_set_full_optimizer_state(parameter, value, slot)

    def close(self) -> str:
        """Leave the whole final weights in the model, hash them, and leave the ranks."""
        wholes = [self._whole(parameter).clone() for parameter in self.model.parameters()]
        self.engine.destroy()
        for parameter, whole in zip(self.model.parameters(), wholes, strict=True):
            parameter.data = whole
        return super().close()

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        if self.stage < 3:
            return parameter.detach()
        with self.deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
