"""Similarities on demand, tile by tile: nobody who ranks ever holds the whole of S.

Equal embeddings must tie exactly, and a matrix product does not see to that: equal rows at different places of one
product can differ in the last bit, because its edges go through other kernels. So equal rows are found beforehand, by
their bits, and computed once: `image_groups` and `caption_groups` say which items share a line of the tile space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.contracts import Similarity

TileFunction = Callable[[slice, slice], Tensor]
Order = Int[Tensor, " _line"] | None

# Entries of a tile: products of this size run as quickly as the whole (20 MB of float32), and few are held at a time.
ENTRIES = 5_000_000
HASHED_AT_ONCE = 2048
LOOKED_AT = 16


@runtime_checkable
class Lines(Protocol):
    """Encoded items: a tensor, or anything that can be brought into an order and sliced like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, items: Any) -> Any: ...


@dataclass(frozen=True)
class Tiles:
    """A similarity of images x captions that can be computed in tiles, in any order of its lines.

    `arrange(image_order, caption_order)` gives the function (slice of images, slice of captions) -> tile, over lines
    in that order; None keeps an axis as it is. A tile is the caller's own: it may be written to.
    """

    images: int
    captions: int
    arrange: Callable[[Order, Order], TileFunction]
    image_groups: Int[Tensor, " image"] | None = None
    """Images of equal number have equal similarities to everything; None where none are known to."""
    caption_groups: Int[Tensor, " caption"] | None = None
    entries: int = ENTRIES
    finite: bool = False
    """Known to hold neither NaN nor infinity, so that nobody needs to look."""

    def part(self, images: Int[Tensor, " chosen_image"], captions: Int[Tensor, " chosen_caption"]) -> "Tiles":
        """The similarity of some images and some captions alone: a fold."""
        return Tiles(
            len(images),
            len(captions),
            lambda rows, columns: self.arrange(_chosen(images, rows), _chosen(captions, columns)),
            None if self.image_groups is None else self.image_groups[images],
            None if self.caption_groups is None else self.caption_groups[captions],
            self.entries,
            self.finite,
        )


def tiles_of_matrix(similarity: Similarity) -> Tiles:
    """Tiles of a matrix that exists already."""

    def arrange(rows: Order, columns: Order) -> TileFunction:
        def tile(images: slice, captions: slice) -> Tensor:
            block = similarity[images] if rows is None else similarity[rows[images]]
            return block[:, captions].clone() if columns is None else block[:, columns[captions]]

        return tile

    images, captions = similarity.shape
    return Tiles(images, captions, arrange, finite=bool(similarity.isfinite().all()))


def tiles_of_embeddings(x: Float[Tensor, "image dim"], y: Float[Tensor, "caption dim"]) -> Tiles:
    """Dot products in float32, or float64 where both are: half precision would tie what differs."""
    precision = torch.float64 if x.dtype == y.dtype == torch.float64 else torch.float32
    x, y = x.detach().to(precision), y.detach().to(precision)

    def arrange(rows: Order, columns: Order) -> TileFunction:
        a, b = (x if rows is None else x[rows]), (y if columns is None else y[columns])
        return lambda images, captions: a[images] @ b[captions].T

    # Numbers as small as these cannot overflow in a sum of products; NaN fails every comparison.
    bound = torch.finfo(precision).max / max(1, x.shape[1])
    finite = bool(_largest(x) * _largest(y) < bound)
    return Tiles(len(x), len(y), arrange, equal_rows(x), equal_rows(y), finite=finite)


def tiles_of_blocks(
    similarity: Callable[[Tensor, Tensor], Tensor],
    images: Lines,
    captions: Lines,
    *,
    entries: int = 2**16,
) -> Tiles:
    """Tiles of anything that compares encoded images with encoded captions, `model.similarity` for one."""

    def arrange(rows: Order, columns: Order) -> TileFunction:
        a, b = (images if rows is None else images[rows]), (captions if columns is None else captions[columns])

        def tile(image_slice: slice, caption_slice: slice) -> Tensor:
            with torch.no_grad():
                return similarity(a[image_slice], b[caption_slice])

        return tile

    return Tiles(len(images), len(captions), arrange, entries=entries)


def mean_of_tiles(members: Sequence[Tiles]) -> Tiles:
    """The ensemble of the papers: the mean of several similarities of the same images and captions."""
    shapes = sorted({(member.images, member.captions) for member in members})
    if len(shapes) != 1:
        raise ValueError(f"an ensemble needs members of one shape (images, captions), given {shapes or 'none'}")

    def arrange(rows: Order, columns: Order) -> TileFunction:
        functions = [member.arrange(rows, columns) for member in members]

        def tile(images: slice, captions: slice) -> Tensor:
            total = functions[0](images, captions)
            for function in functions[1:]:
                total = total + function(images, captions)
            return total / len(functions)

        return tile

    return Tiles(
        *shapes[0],
        arrange,
        _equal_in_all([member.image_groups for member in members]),
        _equal_in_all([member.caption_groups for member in members]),
        min(member.entries for member in members),
    )


def equal_rows(x: Float[Tensor, "item dim"]) -> Int[Tensor, " item"] | None:
    """A number for each row, the same for equal rows; None where all rows differ, which is the usual case."""
    rows = torch.arange(len(x), device=x.device)
    groups = rows.clone()
    # Few columns tell most rows apart; only what looks equal there is looked at whole.
    for columns in (slice(None, None, max(1, x.shape[1] // LOOKED_AT)), slice(None)):
        rows = rows[_repeated(_hashes(x[:, columns] if len(rows) == len(x) else x[rows][:, columns]))]
        if not len(rows):
            return None
    groups[rows] = len(x) + x[rows].unique(dim=0, return_inverse=True)[1]
    return groups


def _hashes(x: Float[Tensor, "item dim"]) -> Int[Tensor, " item"]:
    integer = torch.int64 if x.dtype == torch.float64 else torch.int32
    weights = torch.arange(1, 2 * x.shape[1], 2, device=x.device) * 0x9E3779B97F4A7C1  # overflow wraps: it is a hash
    # Adding 0 turns -0 into 0, which it equals.
    return torch.cat([((block + 0.0).view(integer) * weights).sum(dim=1) for block in x.split(HASHED_AT_ONCE)])


def _repeated(hashes: Int[Tensor, " item"]) -> Bool[Tensor, " item"]:
    _, inverse, counts = hashes.unique(return_inverse=True, return_counts=True)
    return counts[inverse] > 1


def _largest(x: Float[Tensor, "item dim"]) -> float:
    return max(-x.min().item(), x.max().item()) if x.numel() else 0.0


def _equal_in_all(groups: list[Tensor | None]) -> Tensor | None:
    known = [each for each in groups if each is not None]
    if len(known) < len(groups):
        return None
    return torch.stack(known, dim=1).unique(dim=0, return_inverse=True)[1]


def _chosen(items: Tensor, order: Tensor | None) -> Tensor:
    return items if order is None else items[order]
