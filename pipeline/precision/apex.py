"""NVIDIA Apex `amp`, levels O1 and O2: only where `apex.amp` imports and CUDA is there.

`apex.amp` was removed upstream in May 2025 and PyPI's `apex` is an unrelated package, so this runs
inside an NVIDIA PyTorch image (up to about 25.05) and nowhere else.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.errors import UnsupportedError
from pipeline.precision import PrecisionInfo
from pipeline.precision.native import Precision


class ApexAmp(Precision):
    """apex_o1 patches functions to cast inputs; apex_o2 keeps fp16 weights and fp32 masters.

    So no autocast is entered here, and `step`, which Apex has patched, skips on overflow by itself.
    """

    def __init__(self, name: str, device: str) -> None:
        if device != "cuda":
            raise UnsupportedError(
                f"precision {name} needs a CUDA device, given {device}; "
                "name amp_o1 or amp_o2 instead"
            )
        try:
            self.amp: Any = importlib.import_module("apex.amp")
        except ImportError as error:
            raise UnsupportedError(
                f"precision {name} needs NVIDIA Apex with apex.amp ({error}); run inside the image "
                "of the Dockerfile, PyPI's apex is another package"
            ) from error
        self.level = name.removeprefix("apex_").upper()
        self.info = PrecisionInfo(
            name=name,
            library="apex",
            compute_dtype="float16",
            weights_dtype="float16" if self.level == "O2" else "float32",
            master_weights=self.level == "O2",
            loss_scaling=True,
        )

    def prepare(self, model: nn.Module, optimiser: Optimizer) -> Optimizer:
        """`amp.initialize` patches model and optimiser in place."""
        self.model = model
        _, patched = self.amp.initialize(model, optimiser, opt_level=self.level, verbosity=0)
        assert isinstance(patched, Optimizer)
        return patched

    def zero_grad(self, optimiser: Optimizer) -> None:
        """Drop the model's gradients, then let Apex drop those of its masters.

        O2 patches `zero_grad` to detach and zero the model's gradients in place. DDP makes them
        views of its buckets, which cannot be detached. Apex finds nothing to do where they are
        None, as it sets them itself before a backward pass.
        """
        self.model.zero_grad(set_to_none=True)
        optimiser.zero_grad()

    @contextmanager
    def scaled(self, loss: Tensor, optimiser: Optimizer, *, last: bool) -> Iterator[Tensor]:
        """Apex's `scale_loss`, which unscales as it ends."""
        with self.amp.scale_loss(loss, optimiser, delay_unscale=not last) as scaled:
            yield scaled

    def clip_parameters(self, optimiser: Optimizer) -> Iterable[Tensor]:
        """Apex's master parameters."""
        return list(self.amp.master_params(optimiser))

    def owners(
        self, model: nn.Module, optimiser: Optimizer
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, weight and owner of the optimiser's state, which under O2 is the master weight."""
        if self.level == "O1":
            yield from super().owners(model, optimiser)
            return
        patched: Any = optimiser
        if not patched._amp_stash.lazy_init_called:
            patched._lazy_init_maybe_master_weights()
            patched._amp_stash.lazy_init_called = True
        stash = patched._amp_stash
        names = {parameter: name for name, parameter in model.named_parameters()}
        narrow = zip(stash.all_fp16_params, stash.all_fp32_from_fp16_params, strict=True)
        for parameter, master in narrow:
            yield names[parameter], parameter, master
        for parameter in stash.all_fp32_from_fp32_params:
            yield names[parameter], parameter, parameter

    def overflowed(self, optimiser: Optimizer, norm: Tensor) -> None:
        """Refuse: Apex decides by a rank's own gradients whether it skips a step."""
        raise UnsupportedError("Apex cannot train weights that are cut over ranks; use amp_o1")

    def scalars(self) -> dict[str, float]:
        """Scale and unskipped count of Apex's single loss scaler."""
        state = self.amp.state_dict()["loss_scaler0"]
        return {key: float(value) for key, value in state.items()}

    def load_scalars(self, scalars: dict[str, float]) -> None:
        """Inverse of `scalars`."""
        self.amp.load_state_dict(
            {"loss_scaler0": {key: int(value) for key, value in scalars.items()}}
        )
