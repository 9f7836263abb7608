"""Precision is an axis of a study, not a strategy: number formats, loss scaling, master weights.

| name | library | compute | weights | loss scaling |
|---|---|---|---|---|
| fp32, tf32 | torch | float32 (tf32: TensorFloat-32 products, CUDA only) | float32 | no |
| bf16 | torch autocast | bfloat16 | float32 | no |
| fp16 | torch autocast | float16 | float32 | yes |
| amp_o1 | torch autocast | float16 on CUDA, bfloat16 on a CPU | float32 | where float16 |
| amp_o2 | torch | as amp_o1 | as compute, with float32 master weights | where float16 |
| bf16_masters | torch | bfloat16 | bfloat16, with float32 master weights | no |
| bf16_reduced | torch | bfloat16 | as bf16_masters | no |
| apex_o1, apex_o2 | NVIDIA Apex `amp` | float16 | float32; O2: float16 with masters | yes |

In bf16_masters a pass is bfloat16 but for its loss, without autocast. Gradients add up and are
reduced in float32, as by default in Megatron-LM; in bf16_reduced they travel as bfloat16.

Nothing is substituted: a name that cannot run here raises UnsupportedError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.precision.native import Precision


def make_precision(name: str, device: str) -> Precision:
    """The precision `name` on `cpu` or `cuda`; raises UnsupportedError where it cannot run."""
    if name.startswith("apex_"):
        from pipeline.precision.apex import ApexAmp

        return ApexAmp(name, device)
    from pipeline.precision.native import Precision

    return Precision(name, device)


@dataclass(frozen=True)
class PrecisionInfo:
    """Formats that really run, for the record; dtypes are torch's names without the prefix."""

    name: str
    library: str
    compute_dtype: str
    weights_dtype: str
    master_weights: bool
    loss_scaling: bool
