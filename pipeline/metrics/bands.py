"""Bounds within which two trainings count as the same, by number format.

A `Band` is made from a measurement on a CPU, `bench/parity_drift.py`, whose result is
`bench/results/parity_drift.json`: a small GPT-2, three seeds, the same batches in one piece and in
two, so that the same terms are summed in another order. Each bound is at least ten times the
largest deviation found there: other models, more ranks and other processors round differently.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_STEPS = 20
"""Steps that decide; all of a shorter run."""


@dataclass(frozen=True)
class Band:
    """Largest relative deviation that still counts as the same training, and why.

    `first_step` holds for the first step, `first_steps` for the first `FIRST_STEPS`. `measured`
    names the rows of the measurement that it is read from, as `section/precision`.
    """

    name: str
    first_step: float
    first_steps: float
    measured: tuple[str, ...]
    reason: str


FULL = Band(
    "fp32 against fp32", 1e-5, 1e-4, ("order/fp32",),
    "Sharding a batch reorders sums of 32-bit floats, which moves a mean over thousands of terms "
    "by a few units in the seventh digit. Later steps may amplify this, as AdamW divides by the "
    "running size of a gradient: where that is near zero, its sign decides a whole step.",
)  # fmt: skip
SAME_BFLOAT16 = Band(
    "bfloat16 against bfloat16", 1e-2, 2e-2, ("order/bf16", "order/amp_o2", "order/bf16_masters"),
    "A type of 8 significant bits rounds by up to 0.2 %, and each rank rounds its own partial "
    "gradient before the sum.",
)  # fmt: skip
SAME_FLOAT16 = Band(
    "float16 against float16", 1e-3, 5e-3, ("order/fp16",),
    "A type of 11 significant bits rounds eight times finer than bfloat16; the bound leaves room "
    "for weights that are narrow too, which were measured in bfloat16 alone.",
)  # fmt: skip
SAME_TF32 = Band(
    "tf32 against tf32", 1e-3, 5e-3, (),
    "TensorFloat-32 keeps the 11 significant bits of float16, of the factors of products alone. It "
    "needs a GPU and was not measured: the band is that of float16.",
)  # fmt: skip
# On an H100 the norm of a model of 106 M parameters deviated within 20 steps by 5.4e-2 in bfloat16
# and by 9.5e-3 in float16 (study one-gpu).
BFLOAT16 = Band(
    "bfloat16 against fp32", 2e-2, 1e-1,
    ("against_fp32/bf16", "against_fp32/amp_o2", "against_fp32/bf16_masters"),
    "Every product is rounded to 8 significant bits, so the gradient itself differs at the first "
    "step; the two trainings then drift apart while following the same curve.",
)  # fmt: skip
FLOAT16 = Band(
    "float16 against fp32", 2e-3, 2e-2, ("against_fp32/fp16",),
    "Every product is rounded to 11 significant bits; with room for narrow weights.",
)  # fmt: skip
TF32 = Band(
    "tf32 against fp32", 2e-3, 1e-2, (),
    "The factors of products keep the 11 significant bits of float16. It needs a GPU and was not "
    "measured: the band is that of float16.",
)  # fmt: skip
WIRE = Band(
    "gradients sent as float16 against gradients sent in full", 1e-3, 5e-3,
    ("order/fp32 over a float16 wire",),
    "Each rank rounds its partial gradient to 11 significant bits, and the sum is rounded too; "
    "what is under the smallest float16 is lost.",
)  # fmt: skip
BANDS = (FULL, SAME_BFLOAT16, SAME_FLOAT16, SAME_TF32, BFLOAT16, FLOAT16, TF32, WIRE)

_SAME = {"bfloat16": SAME_BFLOAT16, "float16": SAME_FLOAT16, "tf32": SAME_TF32}
_AGAINST_FULL = {"bfloat16": BFLOAT16, "float16": FLOAT16, "tf32": TF32}


def band_of(dtype: str, *, same: bool, wire: bool) -> Band:
    """The band of a cell that computes in `dtype` (as records have it) against its reference.

    `same`: the reference is in the same precision, else in fp32. `wire`: the gradients of one of
    the two lose digits on their way. Where both that and the format differ, the wider band holds.
    """
    band = FULL if dtype == "float32" else (_SAME if same else _AGAINST_FULL)[dtype]
    return max(band, WIRE, key=lambda one: one.first_steps) if wire else band
