"""A rank's part of a tensor: its cut, its boxes of the whole, and putting the whole together.

A cut parameter is an ordinary one that holds this rank's part and carries its `Cut`; the optimiser
needs to know nothing of it. The shards of FSDP2 are torch's DTensors, which know it themselves. A
tensor may be cut several times: an expert axis gives a rank its experts and a tensor axis its part
of each (`Cut`), and ZeRO's stage 1 cuts the rows of that part over the data axis (`RowRange`). All
cuts are exact for lengths that the ranks do not divide, where some ranks have one row less, or
none. By boxes a checkpoint knows no layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.parallel.mesh import DATA, TENSOR

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement

NAME, ROWS_NAME = "samestep_cut", "samestep_rows"


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows, from `start` on, of a parameter of this `shape`: ZeRO's stage 1.

    They lie along `dim`, which is the first of the part, and are cut over `axes` of the mesh.
    """

    start: int
    shape: tuple[int, ...]
    ranks: dist.ProcessGroup
    dim: int = 0
    axes: tuple[str, ...] = (DATA,)


@dataclass(frozen=True)
class Cut:
    """`dim` of the whole has length `length`, in `runs` equal runs; each is cut over the ranks.

    A fused projection to query, key and value has three runs, of which each rank has its heads.
    `axis` is that of the mesh along which the ranks lie. `outer` is the cut, along another dim,
    that made the "whole" of this one, as experts are cut before the features of each.
    """

    dim: int
    length: int
    runs: int
    ranks: dist.ProcessGroup
    axis: str = TENSOR
    outer: Cut | None = None

    def part(self, whole: Tensor) -> Tensor:
        """A copy of this rank's part of a tensor that it holds whole; nothing is sent."""
        return torch.cat([whole.narrow(self.dim, *span) for span in self.spans()], self.dim)

    def whole(self, part: Tensor) -> Tensor:
        """The whole of which every rank gives its part, `outer` undone too. Collective."""
        whole = part.new_zeros(_with(tuple(part.shape), self.dim, self.length))
        before = 0  # of this rank's part, what earlier runs take
        for start, length in self.spans():
            whole.narrow(self.dim, start, length).copy_(part.narrow(self.dim, before, length))
            before += length
        dist.all_reduce(whole, group=self.ranks)  # each number is added to zeros
        return whole if self.outer is None else self.outer.whole(whole)

    def spans(self) -> list[tuple[int, int]]:
        """This rank's part, run by run: first place along `dim` of the whole, and length."""
        run, (rank, size) = self.length // self.runs, (self.ranks.rank(), self.ranks.size())
        each, more = divmod(run, size)  # as tensor_split: the first `more` ranks have one more
        start, length = rank * each + min(rank, more), each + (rank < more)
        return [(number * run + start, length) for number in range(self.runs)]


def cut(
    parameter: Tensor, dim: int, runs: int, ranks: dist.ProcessGroup, axis: str = TENSOR
) -> nn.Parameter:
    """This rank's part of a parameter, as a parameter that knows how it was cut."""
    made = Cut(dim, parameter.shape[dim], runs, ranks, axis, cut_of(parameter))
    part = nn.Parameter(made.part(parameter.detach()))
    setattr(part, NAME, made)
    return part


def rows_of(tensor: Tensor) -> RowRange | None:
    """The rows of a parameter that these are; None for all of them."""
    return getattr(tensor, ROWS_NAME, None)


def cut_of(tensor: Tensor) -> Cut | None:
    """The last cut of a parameter; None for a whole one."""
    return getattr(tensor, NAME, None)


def cuts_of(tensor: Tensor) -> Iterator[Cut]:
    """All cuts of a parameter, the last one first."""
    made = cut_of(tensor)
    while made is not None:
        yield made
        made = made.outer


def axes_of(tensor: Tensor) -> frozenset[str]:
    """Axes of the mesh that cut a parameter, or the rows of it; those of FSDP2 are not known."""
    rows = rows_of(tensor)
    return frozenset((*(rows.axes if rows else ()), *(made.axis for made in cuts_of(tensor))))


def holders(tensor: Tensor) -> list[dist.ProcessGroup]:
    """The ranks that together hold the whole of a tensor: a group for each axis that cuts it.

    Axes come in the same order on all of them, and none where this rank holds it all.
    """
    rows = rows_of(tensor)
    groups = [] if rows is None else [rows.ranks]
    groups += [made.ranks for made in cuts_of(tensor)]
    if hasattr(tensor, "full_tensor"):
        shards: Any = tensor
        places = [n for n, placement in enumerate(shards.placements) if placement.is_shard()]
        groups += map(shards.device_mesh.get_group, places)
    return groups


@dataclass(frozen=True)
class Box:
    """`shape` numbers along each dim: from `offsets` on in the whole, from `at` on in a part."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    at: tuple[int, ...]

    def of(self, part: Tensor) -> Tensor:
        """A view of the box in the part."""
        return view(part, self.at, self.shape)


@dataclass(frozen=True)
class Held:
    """This rank's `part` of a tensor, which lies in the whole of this `shape` as `boxes` say.

    `axes` are those of the mesh that cut it: along all others every rank holds the same.
    """

    part: Tensor
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    axes: frozenset[str]

    def fill(self, read: Callable[[Sequence[int], Sequence[int]], Tensor]) -> None:
        """Copy into the part what `read` gives of each box, by its offsets and shape."""
        for box in self.boxes:
            box.of(self.part).copy_(read(box.offsets, box.shape))


def view(tensor: Tensor, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
    """A box of a tensor, which shares its memory."""
    return tensor[tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))]


def held(tensor: Tensor, like: Tensor) -> Held:
    """This rank's part of a tensor that is cut as `like` is. Nothing is sent.

    A scalar, such as AdamW's step counter, belongs to the optimiser and is never cut.
    """
    part, shape, offsets = tensor.detach(), tuple(tensor.shape), (0,) * tensor.dim()
    axes = set[str]()
    if hasattr(tensor, "full_tensor"):
        shards: Any = tensor
        mesh, part = shards.device_mesh, shards.detach().to_local()
        offsets, own = span(shape, shards.placements, mesh.shape, mesh.get_coordinate())
        assert own == tuple(part.shape), f"a part of {tuple(part.shape)}, expected {own}"
        placed = zip(mesh.mesh_dim_names, shards.placements, strict=True)
        # A name may be that of several axes in one, see `Layout.joined`.
        axes.update(*(name.split(" x ") for name, placement in placed if placement.is_shard()))
    if shape and (rows := rows_of(like)) is not None:
        axes.update(rows.axes)
        # In the part they come first, whatever dim of the parameter they are along.
        part, shape = part.movedim(0, rows.dim), rows.shape
        offsets = _with(offsets, rows.dim, rows.start)
    boxes = [Box(offsets, tuple(part.shape), (0,) * part.dim())]
    for cut in cuts_of(like) if shape else ():
        axes.add(cut.axis)
        boxes = [whole for box in boxes for whole in _uncut(box, cut)]
        shape = _with(shape, cut.dim, cut.length)
    return Held(part, shape, tuple(box for box in boxes if 0 not in box.shape), frozenset(axes))


def span(
    shape: Sequence[int], placements: Sequence[Placement], mesh: Sequence[int], place: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and shape of a DTensor's part at this `place` of a mesh of these sizes.

    Axes cut in their order, each what the ones before it left: into equal runs of rows, of which
    the last may be shorter or empty. Raises TypeError for another cut than that.
    """
    from torch.distributed.tensor import Replicate, Shard  # slow, and seldom needed

    offsets, own = [0] * len(shape), list(shape)
    for placement, size, at in zip(placements, mesh, place, strict=True):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard:
            raise TypeError(f"{placement} is no cut into boxes; expected Shard or Replicate")
        each = -(-own[placement.dim] // size)
        start = min(at * each, own[placement.dim])
        offsets[placement.dim] += start
        own[placement.dim] = min(each, own[placement.dim] - start)
    return tuple(offsets), tuple(own)


def _uncut(box: Box, cut: Cut) -> Iterator[Box]:
    """A box of a cut tensor as boxes of the whole, one for each run that it meets."""
    first, last = box.offsets[cut.dim], box.offsets[cut.dim] + box.shape[cut.dim]
    before = 0  # of this rank's part, what earlier runs take
    for start, length in cut.spans():
        low, high = max(first, before), min(last, before + length)
        if low < high:
            yield Box(
                _with(box.offsets, cut.dim, start + low - before),
                _with(box.shape, cut.dim, high - low),
                _with(box.at, cut.dim, low - first),
            )
        before += length


def _with(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim + 1 :])
