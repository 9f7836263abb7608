"""Annotations of tensors with mesh axes, checked against a model's shapes (no torch).

An annotation names, for each dim of a tensor, the axis over whose ranks that dim is cut, or null:
GSPMD's `mesh_split` (Xu et al. 2021, arXiv 2105.04663). Names may be patterns of `fnmatch`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pipeline.errors import StudyError
from pipeline.parallel.mesh import DATA, nearest

Shape = tuple[int | None, ...]
"""Lengths of the dims; None is the number of sequences, which every axis divides."""

Annotation = tuple[str | None, ...]
"""For each dim the axis that cuts it, or None."""

MAX_AXES = 4


def mesh_axes(axes: Mapping[str, Any], world_size: int) -> tuple[tuple[str, int], ...]:
    """(name, size) of each axis: `data` first, the others by name, the last varies fastest.

    Size 0 is what the others leave of the world. Raises StudyError where they do not multiply up.
    """
    for name, size in axes.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,19}", name) or type(size) is not int or size < 0:
            raise StudyError(
                f"axis {name!r} of size {size!r} is none; name it by small letters and give a "
                "whole number of ranks, or 0 for what the other axes leave"
            )
    sizes = {DATA: 1} | dict(sorted(axes.items()))
    stated = math.prod(size for size in sizes.values() if size)
    rest = [name for name, size in sizes.items() if not size]
    if len(rest) > 1 or len(sizes) > MAX_AXES or world_size % stated:
        raise StudyError(_do_not_fit(sizes, world_size))
    if rest:
        sizes[rest[0]] = world_size // stated
    elif stated != world_size:
        raise StudyError(_do_not_fit(sizes, world_size))
    return tuple(sizes.items())


def _do_not_fit(sizes: Mapping[str, int], world_size: int) -> str:
    factors = " x ".join(f"{name} {size}" for name, size in sizes.items())
    error = f"axes {factors} do not make {world_size} ranks"
    if len(sizes) > MAX_AXES or list(sizes.values()).count(0) > 1:
        return f"{error}; name at most {MAX_AXES}, one of them of size 0 for what the others leave"
    left, fitting = world_size, dict(sizes)
    for name in sorted(sizes, key=lambda name: name == DATA):  # data gets what the others leave
        fitting[name] = left if name == DATA else nearest(max(1, sizes[name]), left)
        left //= fitting[name]
    near = " x ".join(f"{name} {size}" for name, size in fitting.items())
    return f"{error}; the nearest layout is {near}, or set data to 0 for what the others leave"


def resolve(
    annotations: Mapping[str, Any], axes: Sequence[tuple[str, int]], shapes: Mapping[str, Shape]
) -> dict[str, Annotation]:
    """The annotation of each tensor that a pattern names.

    Raises StudyError for one that is no list of axes of the mesh, a pattern that names no tensor,
    two that contradict each other, and a dim that its axis does not divide.
    """
    sizes, chosen = dict(axes), dict[str, Annotation]()
    for pattern, annotation in sorted(annotations.items()):
        if not isinstance(annotation, list | tuple):
            raise StudyError(
                f"annotation of {pattern} is {annotation!r}; give a list with an axis or null for "
                "each dim"
            )
        used = [name for name in annotation if name is not None]
        for name in used:
            if name not in list(sizes):  # which also takes what has no hash
                raise StudyError(
                    f"annotation of {pattern} names the axis {name!r}; use one of "
                    f"{', '.join(sizes)}, or add it to the option axes"
                )
        if len(set(used)) < len(used):
            raise StudyError(
                f"annotation of {pattern} uses an axis for two dims ({', '.join(used)}); use each "
                "once"
            )
        names = [name for name in shapes if fnmatchcase(name, pattern)]
        if not names:
            end = pattern.rpartition(".")[2]
            near = [name for name in shapes if name.endswith(end)] or list(shapes)
            raise StudyError(
                f"annotation of {pattern}: no such tensor; the model has {', '.join(near[:3])} and "
                f"{len(shapes) - len(near[:3])} more"
            )
        for name in names:
            if chosen.setdefault(name, tuple(annotation)) != tuple(annotation):
                earlier = ", ".join(axis or "null" for axis in chosen[name])
                raise StudyError(
                    f"annotation of {pattern} contradicts an earlier one of {name} ([{earlier}]); "
                    "annotate each tensor once"
                )
            _check_shape(name, shapes[name], tuple(annotation), sizes)
    return chosen


def _check_shape(name: str, shape: Shape, annotation: Annotation, sizes: Mapping[str, int]) -> None:
    dims = ", ".join("sequences" if length is None else str(length) for length in shape)
    if len(annotation) != len(shape):
        raise StudyError(
            f"annotation of {name} has {len(annotation)} dims, the tensor ({dims}) has "
            f"{len(shape)}; give an axis or null for each"
        )
    for dim, (length, axis) in enumerate(zip(shape, annotation, strict=True)):
        if length is not None and axis is not None and length % sizes[axis]:
            raise StudyError(
                f"axis {axis} of {sizes[axis]} ranks does not divide dim {dim} of {name} ({dims}); "
                f"set {axis} to a divisor of {length}, or annotate another dim"
            )


def share(shape: Shape, annotation: Annotation, sizes: Mapping[str, int]) -> float:
    """The share of a tensor of that shape that one rank holds."""
    return 1 / math.prod(sizes[axis] for axis in annotation[: len(shape)] if axis is not None)
