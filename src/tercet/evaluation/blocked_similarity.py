"""The similarity matrix as tiles computed on demand, so that ranking never holds all of S.

Equal embeddings must tie exactly, which a matrix product does not guarantee: equal rows at different positions of one
product can differ in the last bit, because its edges run through other kernels. So rows with equal bits are detected
beforehand and computed once: `image_groups` and `caption_groups` say which items share a row or column of tile space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.types import Similarity

TileFunction = Callable[[slice, slice], Tensor]
Order = Int[Tensor, " _line"] | None

TILE_ENTRIES = 5_000_000  # 20 MB of float32: products of this size run as fast as one large product
HASH_BATCH_ROWS = 2048
HASH_SAMPLED_COLUMNS = 16


@runtime_checkable
class EncodedItems(Protocol):
    """Encoded images or captions: a tensor, or anything that can be indexed and sliced like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, items: Any) -> Any: ...


@dataclass(frozen=True)
class Tiles:
    """An image x caption similarity that is computed in tiles, with rows and columns in any order.

    `arrange(image_order, caption_order)` returns the function (image slice, caption slice) -> tile over items in that
    order; None keeps an axis as it is. The caller may write to the tile it gets.
    """

    images: int
    captions: int
    arrange: Callable[[Order, Order], TileFunction]
    image_groups: Int[Tensor, " image"] | None = None
    """Group id per image; images of one group have equal similarities to every caption. None: no known duplicates."""
    caption_groups: Int[Tensor, " caption"] | None = None
    entries: int = TILE_ENTRIES
    """Entries per tile, approximately."""
    finite: bool = False
    """Known to contain neither NaN nor infinity, so tiles need no check."""

    def subset(self, images: Int[Tensor, " chosen_image"], captions: Int[Tensor, " chosen_caption"]) -> "Tiles":
        """Return the similarity of the given images and captions only, for example of a fold."""
        return Tiles(
            len(images),
            len(captions),
            lambda rows, columns: self.arrange(_reordered(images, rows), _reordered(captions, columns)),
            None if self.image_groups is None else self.image_groups[images],
            None if self.caption_groups is None else self.caption_groups[captions],
            self.entries,
            self.finite,
        )


def tiles_of_matrix(similarity: Similarity) -> Tiles:
    """Return tiles of a matrix that exists already."""

    def arrange(rows: Order, columns: Order) -> TileFunction:
        def tile(images: slice, captions: slice) -> Tensor:
            block = similarity[images] if rows is None else similarity[rows[images]]
            return block[:, captions].clone() if columns is None else block[:, columns[captions]]

        return tile

    images, captions = similarity.shape
    return Tiles(images, captions, arrange, finite=bool(similarity.isfinite().all()))


def tiles_of_embeddings(x: Float[Tensor, "image dim"], y: Float[Tensor, "caption dim"]) -> Tiles:
    """Return tiles of dot products in float32, or in float64 if both inputs are.

    Half precision is converted: it would create ties between different similarities.
    """
    precision = torch.float64 if x.dtype == y.dtype == torch.float64 else torch.float32
    x, y = x.detach().to(precision), y.detach().to(precision)

    def arrange(rows: Order, columns: Order) -> TileFunction:
        a, b = (x if rows is None else x[rows]), (y if columns is None else y[columns])
        return lambda images, captions: a[images] @ b[captions].T

    # Below this bound a sum of products cannot overflow; NaN fails the comparison.
    bound = torch.finfo(precision).max / max(1, x.shape[1])
    finite = bool(_max_abs(x) * _max_abs(y) < bound)
    return Tiles(len(x), len(y), arrange, equal_rows(x), equal_rows(y), finite=finite)


def tiles_of_blocks(
    similarity: Callable[[Tensor, Tensor], Tensor],
    images: EncodedItems,
    captions: EncodedItems,
    *,
    entries: int = 2**16,
) -> Tiles:
    """Return tiles of any function of encoded images and encoded captions, for example `model.similarity`."""

    def arrange(rows: Order, columns: Order) -> TileFunction:
        a, b = (images if rows is None else images[rows]), (captions if columns is None else captions[columns])

        def tile(image_slice: slice, caption_slice: slice) -> Tensor:
            with torch.no_grad():
                return similarity(a[image_slice], b[caption_slice])

        return tile

    return Tiles(len(images), len(captions), arrange, entries=entries)


def mean_of_tiles(members: Sequence[Tiles]) -> Tiles:
    """Return the ensemble used in papers: the mean of several similarities of the same images and captions."""
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
        _intersect_groups([member.image_groups for member in members]),
        _intersect_groups([member.caption_groups for member in members]),
        min(member.entries for member in members),
    )


def equal_rows(x: Float[Tensor, "item dim"]) -> Int[Tensor, " item"] | None:
    """Return a group id per row, the same for equal rows; None if all rows differ, which is the usual case."""
    rows = torch.arange(len(x), device=x.device)
    groups = rows.clone()
    # A few sampled columns distinguish most rows; only rows that look equal there are compared in full.
    for columns in (slice(None, None, max(1, x.shape[1] // HASH_SAMPLED_COLUMNS)), slice(None)):
        rows = rows[_repeated(_hashes(x[:, columns] if len(rows) == len(x) else x[rows][:, columns]))]
        if not len(rows):
            return None
    groups[rows] = len(x) + x[rows].unique(dim=0, return_inverse=True)[1]
    return groups


def _hashes(x: Float[Tensor, "item dim"]) -> Int[Tensor, " item"]:
    integer = torch.int64 if x.dtype == torch.float64 else torch.int32
    weights = torch.arange(1, 2 * x.shape[1], 2, device=x.device) * 0x9E3779B97F4A7C1  # overflow wraps: it is a hash
    # Adding 0 turns -0 into 0, which it equals.
    return torch.cat([((block + 0.0).view(integer) * weights).sum(dim=1) for block in x.split(HASH_BATCH_ROWS)])


def _repeated(hashes: Int[Tensor, " item"]) -> Bool[Tensor, " item"]:
    _, inverse, counts = hashes.unique(return_inverse=True, return_counts=True)
    return counts[inverse] > 1


def _max_abs(x: Float[Tensor, "item dim"]) -> float:
    return max(-x.min().item(), x.max().item()) if x.numel() else 0.0


def _intersect_groups(groups: list[Tensor | None]) -> Tensor | None:
    """Return groups of items that are equal in every member; None if a member has no duplicates."""
    known = [member for member in groups if member is not None]
    if len(known) < len(groups):
        return None
    return torch.stack(known, dim=1).unique(dim=0, return_inverse=True)[1]


def _reordered(items: Tensor, order: Tensor | None) -> Tensor:
    return items if order is None else items[order]
