"""Of given pairs: how many captions are ahead for the image, and how many images for the caption, over all of S.

Two passes over tiles. The first computes the tiles that hold given pairs and reads the pairs' similarities from them.
The second goes over all tiles, writes those very numbers back where they came from, by index, so that a pair always
equals itself, and counts. Captions are brought into the order of their images first: the pairs then lie in the
diagonal tiles, which are kept for the second pass while they are few.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.evaluation.counting import Axis, Thresholds, count_tile
from tercet.evaluation.pairs import Items, Pairs
from tercet.evaluation.tiles import Tiles

# Entries of tiles that the first pass may keep for the second.
KEPT = 32_000_000

Counts = Int[np.ndarray, " pair"]


@dataclass(frozen=True)
class Ahead:
    """For each pair its similarity, and the candidates that reach it (>=, itself among them) and that pass it (>).

    What was not asked for is None.
    """

    similarity: Float[np.ndarray, " pair"]
    reaching: Counts | None
    passing: Counts | None

    def split(self, lists: list[Pairs]) -> list["Ahead"]:
        """The same for each of the lists that were put together."""
        bounds = np.cumsum([0, *(len(each.image) for each in lists)])
        return [
            Ahead(
                self.similarity[start:stop],
                None if self.reaching is None else self.reaching[start:stop],
                None if self.passing is None else self.passing[start:stop],
            )
            for start, stop in pairwise(bounds)
        ]


@dataclass(frozen=True)
class _Lines:
    """One axis of the tile space: equal items share a line."""

    of_item: Int[np.ndarray, " item"]
    order: Tensor | None
    extra: Int[np.ndarray, " line"]

    def __len__(self) -> int:
        return len(self.extra)


def count_ahead(
    tiles: Tiles, i2t: Pairs, t2i: Pairs, *, reaching: bool = True, passing: bool = False
) -> tuple[Ahead, Ahead]:
    """Captions ahead of those of `i2t` for their images, and images ahead of those of `t2i` for their captions."""
    images, captions = np.append(i2t.image, t2i.image), np.append(i2t.caption, t2i.caption)
    rows = _lines(tiles.image_groups, np.arange(tiles.images))
    first_image = np.full(tiles.captions, tiles.images)
    first_image[captions[::-1]] = images[::-1]  # of several, the first that is listed: the owner
    columns = _lines(tiles.caption_groups, first_image)
    # A pair of lines once, row by row, however many pairs of items it stands for.
    cells, cell_of = np.unique(rows.of_item[images] * len(columns) + columns.of_item[captions], return_inverse=True)
    row, column = np.divmod(cells, len(columns))
    grid = _Grid(tiles, rows, columns, row, column)
    values = grid.gather()
    strictness = [strict for strict, asked in ((False, reaching), (True, passing)) if asked]
    halves = cell_of[: len(i2t.image)], cell_of[len(i2t.image) :]
    axes = []
    for half, line, lines in zip(halves, (row, column), (rows, columns), strict=True):
        asked = np.flatnonzero(np.bincount(half, minlength=len(cells)))
        axes.append(
            Axis([Thresholds.of(values, line, len(lines), asked, strict) for strict in strictness], lines.extra)
        )
    grid.count(values, *axes)
    found = []
    for half, axis in zip(halves, axes, strict=True):
        counts = {each.strict: each.of_cells(len(cells))[half] for each in axis.thresholds}
        found.append(Ahead(values[half], counts.get(False), counts.get(True)))
    return found[0], found[1]


class _Grid:
    """Tiles of nearly one shape, as many down as across, and the cells whose similarities are wanted."""

    def __init__(self, tiles: Tiles, rows: _Lines, columns: _Lines, row: Items, column: Items) -> None:
        parts = max(1, round((len(rows) * len(columns) / tiles.entries) ** 0.5))
        self.row_bounds, self.column_bounds = _bounds(len(rows), parts), _bounds(len(columns), parts)
        self.tile, self.finite = tiles.arrange(rows.order, columns.order), tiles.finite
        self.row, self.column = row, column
        across = len(self.column_bounds) - 1
        place = np.searchsorted(self.row_bounds, row, side="right") - 1
        place = place * across + np.searchsorted(self.column_bounds, column, side="right") - 1
        self.by_tile = np.argsort(place, kind="stable")
        edges = np.arange((len(self.row_bounds) - 1) * across + 1)
        self.start = np.searchsorted(place[self.by_tile], edges)
        self.kept: dict[int, Tensor] = {}

    def gather(self) -> Float[np.ndarray, " cell"]:
        """The similarities of the cells, from the very products in which they are counted."""
        found: list[Tensor] = []
        kept = 0
        for number, rows, columns in self._all():
            cells = self._cells(number)
            if len(cells):
                tile = self._checked(rows, columns)
                found.append(tile[self._places(cells, rows, columns)].detach().cpu())
                kept += tile.numel()
                if kept <= KEPT:
                    self.kept[number] = tile
        values = np.empty(len(self.row), dtype=torch.cat(found).numpy().dtype)
        values[self.by_tile] = torch.cat(found).numpy()
        return values

    def count(self, values: Float[np.ndarray, " cell"], row_axis: Axis, column_axis: Axis) -> None:
        for number, rows, columns in self._all():
            tile = self.kept.pop(number) if number in self.kept else self._checked(rows, columns)
            cells = self._cells(number)
            tile[self._places(cells, rows, columns)] = torch.from_numpy(values[cells]).to(tile)
            count_tile(tile, rows, columns, row_axis, column_axis)

    def _all(self) -> list[tuple[int, slice, slice]]:
        rows, columns = _slices(self.row_bounds), _slices(self.column_bounds)
        return [(i * len(columns) + j, each, other) for i, each in enumerate(rows) for j, other in enumerate(columns)]

    def _cells(self, number: int) -> Int[np.ndarray, " cell_of_tile"]:
        return self.by_tile[self.start[number] : self.start[number + 1]]

    def _places(self, cells: np.ndarray, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.row[cells] - rows.start), torch.from_numpy(self.column[cells] - columns.start)

    def _checked(self, rows: slice, columns: slice) -> Tensor:
        tile = self.tile(rows, columns).detach()
        wanted = (rows.stop - rows.start, columns.stop - columns.start)
        if tile.shape != wanted:
            raise ValueError(f"a similarity of {wanted} images x captions was asked for, {tuple(tile.shape)} came back")
        # A sum is one pass; it is infinite too where finite numbers are huge, so that only a second look decides.
        if not self.finite and not tile.sum().isfinite() and not tile.isfinite().all():
            raise ValueError("similarity holds NaN or infinity: nothing can be ranked by it")
        return tile.float() if tile.dtype in (torch.float16, torch.bfloat16) else tile


def _lines(groups: Tensor | None, key: Int[np.ndarray, " item"]) -> _Lines:
    """Equal items in one line; lines by the smallest key of their items, which mostly is the order they have."""
    if groups is None:
        group_of = np.arange(len(key))
        first, sizes = group_of, np.ones(len(key), dtype=np.int64)
    else:
        _, first, group_of, sizes = np.unique(
            groups.cpu().numpy(), return_index=True, return_inverse=True, return_counts=True
        )
    by_key = np.lexsort((first, key[first]))
    order = first[by_key]
    line_of_group = np.argsort(by_key)
    kept = len(order) == len(key) and (order == np.arange(len(key))).all()
    return _Lines(line_of_group[group_of], None if kept else torch.from_numpy(order), sizes[by_key] - 1)


def _bounds(lines: int, parts: int) -> Int[np.ndarray, " bound"]:
    parts = max(1, min(parts, lines))
    return np.arange(parts + 1) * lines // parts


def _slices(bounds: np.ndarray) -> list[slice]:
    return [slice(int(start), int(stop)) for start, stop in pairwise(bounds)]
