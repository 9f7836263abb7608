"""Starting weights in safetensors files: the check that they fit, and the parts of a rank.

A rank reads the boxes that it holds and nothing else. Names and shapes stand in the files' headers,
which are read without torch, before any job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from pipeline.errors import StudyError
from pipeline.models import family
from pipeline.study.model_files import weights_files, weights_sha256
from pipeline.study.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

WIDTHS = ("F64", "F32", "F16", "BF16")
"""Types of numbers that may become weights; a run has them in its own precision."""


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def check(model: ModelSpec) -> None:
    """Raise StudyError where starting weights are here and are not those of the model.

    Where they are not here, as beside an archive, nothing is said: its records need none.
    """
    if model.weights is not None and Path(model.weights).exists():
        entries(model)


def check_content(model: ModelSpec) -> None:
    """Raise StudyError where a run's starting weights are not here, or others than its spec has."""
    if model.weights is None:
        return
    if (given := weights_sha256(Path(model.weights))) != model.weights_sha256:
        raise StudyError(
            f"model.weights {model.weights} have the SHA-256 {given[:12]}..., those of this run "
            f"{str(model.weights_sha256)[:12]}...; bring them back, or run snakemake again"
        )
    entries(model)


def reader(model: ModelSpec) -> Callable[[str, Sequence[int], Sequence[int]], Tensor]:
    """A reader of boxes of the starting weights, by a parameter's name, offsets and shape.

    Raises StudyError as `check` does.
    """
    known = entries(model)
    opened: Any = cache(partial(safe_open, framework="pt"))

    def read(name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        box = tuple(slice(at, at + length) for at, length in zip(offsets, shape, strict=True))
        part: Tensor = opened(known[name].file).get_slice(known[name].name)[box]
        return part

    return read


def entries(model: ModelSpec) -> dict[str, StoredTensor]:
    """The tensor of each parameter, by its name; raises StudyError where the files do not fit.

    Parts that the class does not have, such as a second head, are left out, as the library does;
    what lies in its layers, or beside its own parameters, may not be.
    """
    sizes, path = family(model), Path(str(model.weights))
    known, shapes = sizes.file_names(model), sizes.parameter_shapes(model)
    held: dict[str, StoredTensor] = {}
    for file in weights_files(path):
        try:
            with safe_open(file, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118
                    one = opened.get_slice(name)
                    held[name] = StoredTensor(file, name, tuple(one.get_shape()), one.get_dtype())
        except (SafetensorError, OSError) as error:
            raise StudyError(
                f"model.weights {file} cannot be read ({' '.join(str(error).split())[:200]}); give "
                "a whole file of safetensors"
            ) from None
    made = {
        parameter: held[next(name for name in names if name in held)]
        for parameter, names in known.names.items()
        if not held.keys().isdisjoint(names)
    }
    ours = {name for names in known.names.values() for name in names}
    owners = {name.rpartition(".")[0] for name in ours}
    foreign = [
        name
        for name in held.keys() - ours
        if (name.startswith(tuple(known.layers)) or name.rpartition(".")[0] in owners)
        and not any(re.search(pattern, name) for pattern in known.ignored)
    ]
    faults = {
        "lack": [names[0] for parameter, names in known.names.items() if parameter not in made],
        "have besides": sorted(foreign),
        "are of other shapes:": [
            f"{one.name} {one.shape}, expected {shapes[parameter]}"
            for parameter, one in made.items()
            if one.shape != shapes[parameter]
        ],
        "are no floating-point numbers:": [
            f"{one.name} {one.dtype}" for one in made.values() if one.dtype not in WIDTHS
        ],
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise StudyError(
                f"model.weights {path} {fault} {'; '.join(names[:3])}{more}; give those of "
                f"{model.architecture} with the sizes of model and model.config, or other sizes"
            )
    return made
