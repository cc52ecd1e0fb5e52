"""Count, for each positive pair, the candidates whose similarity is >= (or >) that of the pair, over all of S.

`count_above` is the sum in the rank formula of `ranks.py`,

    rank = 1 + (S_negatives >= s_positive).sum()

except that it counts over all candidates, positives included. R@1 is counted from ranks by `metrics.direction_metrics`.

Two passes over tiles. The first computes the tiles that contain the pairs and reads the pairs' similarities. The second
goes over all tiles, writes exactly those values back by index, so that a pair always equals itself, and counts.
Captions are sorted by image first: the pairs then are in the diagonal tiles, which are cached for the second pass up to
a limit. Rows and columns of tile space are called lines; items with equal embeddings share a line.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.evaluation.blocked_similarity import Tiles
from tercet.types import PairMask

# A strip fits in the cache of a core. Boolean bytes are summed eight at a time as 64-bit words, so a strip may have at
# most 255 rows and 255 words.
STRIP_ROWS, STRIP_COLUMNS = 250, 2000
# With more thresholds per line than this, sorting the line once is faster than one pass per threshold.
MAX_PASSES = 16
# Total entries of tiles that the first pass may cache for the second.
MAX_CACHED_ENTRIES = 32_000_000

Counts = Int[np.ndarray, " pair"]
Items = Int[np.ndarray, " pair"]


@dataclass(frozen=True)
class PositivePairs:
    """Unique positive pairs in the order of a mask's `nonzero()`: by image, then by caption."""

    image: Items
    caption: Items

    @staticmethod
    def of(pairs: Iterable[tuple[int, int]] | Int[np.ndarray, "pair 2"]) -> "PositivePairs":
        """Build from (image, caption) pairs in any order; duplicates are removed."""
        array = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=np.int64).reshape(-1, 2)
        unique = np.unique(array, axis=0)
        return PositivePairs(unique[:, 0].copy(), unique[:, 1].copy())

    def __or__(self, other: "PositivePairs") -> "PositivePairs":
        return PositivePairs.of(
            np.column_stack([np.append(self.image, other.image), np.append(self.caption, other.caption)])
        )


@dataclass(frozen=True)
class Positives:
    """Positive pairs per direction: annotations may differ between image queries (i2t) and caption queries (t2i)."""

    i2t: PositivePairs
    t2i: PositivePairs

    @property
    def symmetric(self) -> bool:
        return self.i2t is self.t2i

    @staticmethod
    def of_owners(owners: Int[Tensor, " caption"], more_pairs: Int[Tensor, "pair 2"] | None = None) -> "Positives":
        """Pair every caption with its image, and with the further ones of `more_pairs`: (image, caption) rows."""
        rows = owners.cpu().numpy().astype(np.int64)
        order = np.argsort(rows, kind="stable")
        pairs = PositivePairs(rows[order], order)
        if more_pairs is not None:
            pairs |= PositivePairs.of(more_pairs.cpu().numpy())
        return Positives(pairs, pairs)

    @staticmethod
    def of_mask(positives: PairMask) -> "Positives":
        """Take the pairs of a boolean image x caption mask."""
        image, caption = positives.nonzero(as_tuple=True)
        pairs = PositivePairs(image.cpu().numpy(), caption.cpu().numpy())
        return Positives(pairs, pairs)


@dataclass(frozen=True)
class RankCounts:
    """Per pair: its similarity, and the number of candidates >= it (itself included) and > it.

    Counts that were not requested are None.
    """

    similarity: Float[np.ndarray, " pair"]
    ge: Counts | None
    gt: Counts | None

    def split(self, lists: list[PositivePairs]) -> list["RankCounts"]:
        """Split into the counts of each of the concatenated lists."""
        bounds = np.cumsum([0, *(len(pairs.image) for pairs in lists)])
        return [
            RankCounts(
                self.similarity[start:stop],
                None if self.ge is None else self.ge[start:stop],
                None if self.gt is None else self.gt[start:stop],
            )
            for start, stop in pairwise(bounds)
        ]


def count_above(
    tiles: Tiles, i2t: PositivePairs, t2i: PositivePairs, *, ge: bool = True, gt: bool = False
) -> tuple[RankCounts, RankCounts]:
    """Count captions above each pair of `i2t` for its image, and images above each pair of `t2i` for its caption."""
    images, captions = np.append(i2t.image, t2i.image), np.append(i2t.caption, t2i.caption)
    rows = _deduped_axis(tiles.image_groups, np.arange(tiles.images))
    first_image = np.full(tiles.captions, tiles.images)
    first_image[captions[::-1]] = images[::-1]  # the first listed image of a caption: its owner
    columns = _deduped_axis(tiles.caption_groups, first_image)
    # Each (row, column) cell once, in row-major order, however many pairs of items map to it.
    cells, cell_of = np.unique(rows.line[images] * len(columns) + columns.line[captions], return_inverse=True)
    row, column = np.divmod(cells, len(columns))
    grid = _Grid(tiles, rows, columns, row, column)
    values = grid.gather()
    strictness = [strict for strict, requested in ((False, ge), (True, gt)) if requested]
    direction_cells = cell_of[: len(i2t.image)], cell_of[len(i2t.image) :]
    axes = []
    for pair_cells, line, lines in zip(direction_cells, (row, column), (rows, columns), strict=True):
        counted = np.flatnonzero(np.bincount(pair_cells, minlength=len(cells)))
        thresholds = [Thresholds.of(values, line, len(lines), counted, strict) for strict in strictness]
        axes.append(Axis(thresholds, lines.multiplicity))
    grid.count(values, *axes)
    results = []
    for pair_cells, axis in zip(direction_cells, axes, strict=True):
        counts = {each.strict: each.of_cells(len(cells))[pair_cells] for each in axis.thresholds}
        results.append(RankCounts(values[pair_cells], counts.get(False), counts.get(True)))
    return results[0], results[1]


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of every line of one axis, ascending, and their counts."""

    values: Float[np.ndarray, " threshold"]
    start: Int[np.ndarray, " line_and_end"]
    """Index of the first threshold of each line."""
    counts: Int[np.ndarray, " threshold"]
    cell: Int[np.ndarray, " threshold"]
    """The cell of S whose similarity is the threshold."""
    strict: bool
    """Count > instead of >=."""

    @staticmethod
    def of(
        values: Float[np.ndarray, " cell"],
        line: Int[np.ndarray, " cell"],
        lines: int,
        cells: Int[np.ndarray, " threshold"],
        strict: bool,
    ) -> "Thresholds":
        """Build from the similarity and the line of every cell, for the given cells only."""
        cell = cells[np.lexsort((values[cells], line[cells]))]
        start = np.searchsorted(line[cell], np.arange(lines + 1))
        return Thresholds(values[cell], start, np.zeros(len(cell), dtype=np.int64), cell, strict)

    def of_lines(self, lines: slice) -> tuple[Int[np.ndarray, " line"], Int[np.ndarray, " line"]]:
        """Return the index of the first threshold and the number of thresholds of each line."""
        return self.start[lines.start : lines.stop], np.diff(self.start[lines.start : lines.stop + 1])

    def of_cells(self, cells: int) -> Int[np.ndarray, " cell"]:
        """Return the counts by cell; 0 for cells without a threshold."""
        counts = np.zeros(cells, dtype=np.int64)
        counts[self.cell] = self.counts
        return counts


@dataclass(frozen=True)
class Axis:
    """The rows or the columns of tile space: their thresholds, and the number of further equal items of each line."""

    thresholds: list[Thresholds]
    multiplicity: Int[np.ndarray, " line"]


def count_tile(tile: Tensor, rows: slice, columns: slice, row_axis: Axis, column_axis: Axis) -> None:
    """Add this tile's counts to the thresholds of its rows and columns."""
    if tile.device.type != "cpu":
        count_on_device(tile, rows, columns, row_axis, column_axis)
        return
    array = tile.numpy()
    row_strips = [slice(i, min(i + STRIP_ROWS, array.shape[0])) for i in range(0, array.shape[0], STRIP_ROWS)]
    column_strips = [slice(j, min(j + STRIP_COLUMNS, array.shape[1])) for j in range(0, array.shape[1], STRIP_COLUMNS)]

    def count_rows(own: slice) -> None:
        for other, thresholds in product(column_strips, row_axis.thresholds):
            multiplicity = column_axis.multiplicity[_shift(other, columns.start)]
            _count_strip(array[own, other], _shift(own, rows.start), thresholds, multiplicity, axis=0)

    def count_columns(own: slice) -> None:
        for other, thresholds in product(row_strips, column_axis.thresholds):
            multiplicity = row_axis.multiplicity[_shift(other, rows.start)]
            _count_strip(array[other, own], _shift(own, columns.start), thresholds, multiplicity, axis=1)

    if len(row_strips) == len(column_strips) == 1:  # too small for threads
        count_rows(row_strips[0])
        count_columns(column_strips[0])
        return
    # Each call writes the counts of its own lines only, and numpy releases the GIL.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        tasks = [threads.submit(count_rows, own) for own in row_strips]
        tasks += [threads.submit(count_columns, own) for own in column_strips]
        for task in tasks:
            task.result()


def _shift(strip: slice, offset: int) -> slice:
    return slice(strip.start + offset, strip.stop + offset)


def count_on_device(tile: Tensor, rows: slice, columns: slice, row_axis: Axis, column_axis: Axis) -> None:
    """Do the same on the tile's device: an accelerator makes one fast pass per threshold."""
    for axis, lines, own, other in (
        (0, rows, row_axis, column_axis.multiplicity[columns]),
        (1, columns, column_axis, row_axis.multiplicity[rows]),
    ):
        weight = torch.from_numpy(other + 1).to(tile.device).unsqueeze(axis)
        for thresholds in own.thresholds:
            start, per_line = thresholds.of_lines(lines)
            for slot in range(int(per_line.max(initial=0))):
                selected = np.flatnonzero(per_line > slot)
                index = start[selected] + slot
                block = tile.index_select(axis, torch.from_numpy(selected).to(tile.device))
                values = torch.from_numpy(thresholds.values[index]).to(block).unsqueeze(1 - axis)
                above = block > values if thresholds.strict else block >= values
                thresholds.counts[index] += (above * weight).sum(dim=1 - axis).cpu().numpy()


def _count_strip(strip: np.ndarray, lines: slice, thresholds: Thresholds, multiplicity: np.ndarray, axis: int) -> None:
    """Count in one strip; lines are its rows for axis 0 and its columns for axis 1."""
    compare: Callable[..., Any] = np.greater if thresholds.strict else np.greater_equal
    start, per_line = thresholds.of_lines(lines)
    many = np.flatnonzero(per_line > MAX_PASSES)
    if len(many):
        entries = strip.take(many, axis=axis)
        if axis == 1:
            entries = entries.T
        _count_sorted(compare, entries, thresholds, start[many], per_line[many], multiplicity)
    repeated = np.flatnonzero(multiplicity)
    active = (per_line > 0) & (per_line <= MAX_PASSES)
    for slot in range(MAX_PASSES):
        active &= per_line > slot
        remaining = np.count_nonzero(active)
        if not remaining:
            return
        if 2 * remaining < len(active):  # copying a line costs as much as counting it
            strip, start, per_line = strip.take(np.flatnonzero(active), axis=axis), start[active], per_line[active]
            active = np.ones(remaining, dtype=bool)
        values = np.full(len(active), np.inf, dtype=strip.dtype)
        values[active] = thresholds.values[start[active] + slot]
        values = np.expand_dims(values, 1 - axis)
        counts = _count_bytes(compare, strip, values, axis)
        if len(repeated):
            above = compare(strip.take(repeated, axis=1 - axis), values)
            counts += above @ multiplicity[repeated] if axis == 0 else multiplicity[repeated] @ above
        thresholds.counts[start[active] + slot] += counts[active]
        active &= counts > 0  # thresholds ascend: a count of 0 stays 0 for the next threshold


def _count_bytes(compare: Callable[..., Any], strip: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    rows, columns = strip.shape
    mask = np.zeros((rows, -(-columns // 8) * 8), dtype=bool)
    compare(strip, values, out=mask[:, :columns])
    # Bytes of 0 and 1, summed as words of eight: each byte of the sum is a separate count and cannot overflow.
    sums = mask.view(np.uint64).sum(axis=1 - axis).view(np.uint8)
    return sums.reshape(rows, 8).sum(axis=1, dtype=np.int64) if axis == 0 else sums[:columns].astype(np.int64)


def _count_sorted(
    compare: Callable[..., Any],
    entries: np.ndarray,
    thresholds: Thresholds,
    start: np.ndarray,
    per_line: np.ndarray,
    multiplicity: np.ndarray,
) -> None:
    """Count for lines with many thresholds; each row of `entries` is a line."""
    side: Literal["left", "right"] = "right" if thresholds.strict else "left"
    repeated = np.flatnonzero(multiplicity)
    repeated_entries = entries[:, repeated]
    for line, row in enumerate(np.sort(entries, axis=1)):
        own = slice(start[line], start[line] + per_line[line])
        values = thresholds.values[own]
        thresholds.counts[own] += len(row) - np.searchsorted(row, values, side=side)
        if len(repeated):
            above = compare(repeated_entries[line][None, :], values[:, None])
            thresholds.counts[own] += above @ multiplicity[repeated]


@dataclass(frozen=True)
class _DedupedAxis:
    """One axis of tile space: equal items share a line."""

    line: Int[np.ndarray, " item"]
    """The line of each item."""
    order: Tensor | None
    """The item computed for each line; None if lines are the items in their order."""
    multiplicity: Int[np.ndarray, " line"]

    def __len__(self) -> int:
        return len(self.multiplicity)


def _deduped_axis(groups: Tensor | None, key: Int[np.ndarray, " item"]) -> _DedupedAxis:
    """Merge equal items into one line; lines are sorted by the key of their first item, mostly the given order."""
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
    unchanged = len(order) == len(key) and (order == np.arange(len(key))).all()
    return _DedupedAxis(line_of_group[group_of], None if unchanged else torch.from_numpy(order), sizes[by_key] - 1)


class _Grid:
    """Tiles of nearly equal shape, as many rows of tiles as columns, and the cells whose similarities are needed."""

    def __init__(self, tiles: Tiles, rows: _DedupedAxis, columns: _DedupedAxis, row: Items, column: Items) -> None:
        tiles_per_axis = max(1, round((len(rows) * len(columns) / tiles.entries) ** 0.5))
        self.row_bounds, self.column_bounds = _bounds(len(rows), tiles_per_axis), _bounds(len(columns), tiles_per_axis)
        self.tile, self.finite = tiles.arrange(rows.order, columns.order), tiles.finite
        self.row, self.column = row, column
        tile_columns = len(self.column_bounds) - 1
        tile_index = np.searchsorted(self.row_bounds, row, side="right") - 1
        tile_index = tile_index * tile_columns + np.searchsorted(self.column_bounds, column, side="right") - 1
        self.by_tile = np.argsort(tile_index, kind="stable")
        edges = np.arange((len(self.row_bounds) - 1) * tile_columns + 1)
        self.start = np.searchsorted(tile_index[self.by_tile], edges)
        self.cache: dict[int, Tensor] = {}

    def gather(self) -> Float[np.ndarray, " cell"]:
        """Return the similarities of the cells, read from the same products in which they are counted."""
        similarities: list[Tensor] = []
        cached_entries = 0
        for index, rows, columns in self._all_tiles():
            cells = self._cells(index)
            if len(cells):
                tile = self._compute(rows, columns)
                similarities.append(tile[self._within_tile(cells, rows, columns)].detach().cpu())
                cached_entries += tile.numel()
                if cached_entries <= MAX_CACHED_ENTRIES:
                    self.cache[index] = tile
        gathered = torch.cat(similarities).numpy()
        values = np.empty(len(self.row), dtype=gathered.dtype)
        values[self.by_tile] = gathered
        return values

    def count(self, values: Float[np.ndarray, " cell"], row_axis: Axis, column_axis: Axis) -> None:
        for index, rows, columns in self._all_tiles():
            tile = self.cache.pop(index) if index in self.cache else self._compute(rows, columns)
            cells = self._cells(index)
            tile[self._within_tile(cells, rows, columns)] = torch.from_numpy(values[cells]).to(tile)
            count_tile(tile, rows, columns, row_axis, column_axis)

    def _all_tiles(self) -> list[tuple[int, slice, slice]]:
        pairs = product(_slices(self.row_bounds), _slices(self.column_bounds))
        return [(index, rows, columns) for index, (rows, columns) in enumerate(pairs)]

    def _cells(self, index: int) -> Int[np.ndarray, " cell_of_tile"]:
        return self.by_tile[self.start[index] : self.start[index + 1]]

    def _within_tile(self, cells: np.ndarray, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.row[cells] - rows.start), torch.from_numpy(self.column[cells] - columns.start)

    def _compute(self, rows: slice, columns: slice) -> Tensor:
        tile = self.tile(rows, columns).detach()
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        if tile.shape != shape:
            raise ValueError(
                f"the similarity function must return shape {shape} (images, captions), got {tuple(tile.shape)}"
            )
        # The sum is one pass, but also overflows for large finite values: only then check every entry.
        if not self.finite and not tile.sum().isfinite() and not tile.isfinite().all():
            raise ValueError("similarity contains NaN or infinity and cannot be ranked")
        return tile.float() if tile.dtype in (torch.float16, torch.bfloat16) else tile


def _bounds(lines: int, tiles: int) -> Int[np.ndarray, " bound"]:
    tiles = max(1, min(tiles, lines))
    return np.arange(tiles + 1) * lines // tiles


def _slices(bounds: np.ndarray) -> list[slice]:
    return [slice(int(start), int(stop)) for start, stop in pairwise(bounds)]
