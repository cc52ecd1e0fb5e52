"""How many entries of a tile reach the thresholds of its lines. The only loop over all of S, so it has to be quick."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

# A strip fits in the cache of a core. Bytes add up eight at a time in 64-bit words, so neither side may have more
# than 255 words or rows.
STRIP_ROWS, STRIP_COLUMNS = 250, 2000
# With more thresholds on a line than this, sorting the line once is quicker than passing over it for each.
MOST_PASSES = 16


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of every line of one axis, ascending, and what was counted for them."""

    values: Float[np.ndarray, " threshold"]
    start: Int[np.ndarray, " line_and_end"]
    """Where the thresholds of each line begin."""
    counts: Int[np.ndarray, " threshold"]
    cell: Int[np.ndarray, " threshold"]
    """The cell of S that each is the similarity of."""
    strict: bool
    """Counts what is greater, rather than greater or equal."""

    @staticmethod
    def of(
        values: Float[np.ndarray, " cell"],
        line: Int[np.ndarray, " cell"],
        lines: int,
        asked: Int[np.ndarray, " threshold"],
        strict: bool,
    ) -> "Thresholds":
        """Of the cells asked for, each with its similarity and its line."""
        cell = asked[np.lexsort((values[asked], line[asked]))]
        start = np.searchsorted(line[cell], np.arange(lines + 1))
        return Thresholds(values[cell], start, np.zeros(len(cell), dtype=np.int64), cell, strict)

    def used(self, lines: slice) -> tuple[Int[np.ndarray, " line"], Int[np.ndarray, " line"]]:
        """Where the thresholds of each line begin, and how many it has."""
        return self.start[lines.start : lines.stop], np.diff(self.start[lines.start : lines.stop + 1])

    def of_cells(self, cells: int) -> Int[np.ndarray, " cell"]:
        """The counts by cell; 0 where none was asked for."""
        counts = np.zeros(cells, dtype=np.int64)
        counts[self.cell] = self.counts
        return counts


@dataclass(frozen=True)
class Axis:
    """The rows, or the columns, of the tile space: what is counted, and how many more items each line stands for."""

    thresholds: list[Thresholds]
    extra: Int[np.ndarray, " line"]


def count_tile(tile: Tensor, rows: slice, columns: slice, row_axis: Axis, column_axis: Axis) -> None:
    """Add what this tile holds to the counts of its rows' and its columns' thresholds."""
    if tile.device.type != "cpu":
        count_on_device(tile, rows, columns, row_axis, column_axis)
        return
    array = tile.numpy()
    row_strips = [slice(i, min(i + STRIP_ROWS, array.shape[0])) for i in range(0, array.shape[0], STRIP_ROWS)]
    column_strips = [slice(j, min(j + STRIP_COLUMNS, array.shape[1])) for j in range(0, array.shape[1], STRIP_COLUMNS)]

    def count_rows(own: slice) -> None:
        for other, thresholds in product(column_strips, row_axis.thresholds):
            extra = column_axis.extra[_moved(other, columns.start)]
            _count_strip(array[own, other], _moved(own, rows.start), thresholds, extra, axis=0)

    def count_columns(own: slice) -> None:
        for other, thresholds in product(row_strips, column_axis.thresholds):
            extra = row_axis.extra[_moved(other, rows.start)]
            _count_strip(array[other, own], _moved(own, columns.start), thresholds, extra, axis=1)

    if len(row_strips) == len(column_strips) == 1:  # too little to share
        count_rows(row_strips[0])
        count_columns(column_strips[0])
        return
    # Every call has lines of its own to count for, and numpy lets go of the interpreter: threads share the work.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        tasks = [threads.submit(count_rows, own) for own in row_strips]
        tasks += [threads.submit(count_columns, own) for own in column_strips]
        for task in tasks:
            task.result()


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def count_on_device(tile: Tensor, rows: slice, columns: slice, row_axis: Axis, column_axis: Axis) -> None:
    """The same where the tile lives: an accelerator passes over it quickly, whatever the number of thresholds."""
    for axis, lines, own, other in (
        (0, rows, row_axis, column_axis.extra[columns]),
        (1, columns, column_axis, row_axis.extra[rows]),
    ):
        weight = torch.from_numpy(other + 1).to(tile.device).unsqueeze(axis)
        for thresholds in own.thresholds:
            start, used = thresholds.used(lines)
            for slot in range(int(used.max(initial=0))):
                chosen = np.flatnonzero(used > slot)
                index = start[chosen] + slot
                part = tile.index_select(axis, torch.from_numpy(chosen).to(tile.device))
                values = torch.from_numpy(thresholds.values[index]).to(part).unsqueeze(1 - axis)
                reached = part > values if thresholds.strict else part >= values
                thresholds.counts[index] += (reached * weight).sum(dim=1 - axis).cpu().numpy()


def _count_strip(strip: np.ndarray, lines: slice, thresholds: Thresholds, extra: np.ndarray, axis: int) -> None:
    """Lines are the strip's rows for axis 0 and its columns for axis 1."""
    compare: Callable[..., Any] = np.greater if thresholds.strict else np.greater_equal
    start, used = thresholds.used(lines)
    many = np.flatnonzero(used > MOST_PASSES)
    if len(many):
        entries = strip.take(many, axis=axis)
        _count_sorted(compare, entries if axis == 0 else entries.T, thresholds, start[many], used[many], extra)
    again = np.flatnonzero(extra)
    alive = (used > 0) & (used <= MOST_PASSES)
    for slot in range(MOST_PASSES):
        alive &= used > slot
        left = np.count_nonzero(alive)
        if not left:
            return
        if 2 * left < len(alive):  # copying a line costs as much as counting it
            strip, start, used = strip.take(np.flatnonzero(alive), axis=axis), start[alive], used[alive]
            alive = np.ones(left, dtype=bool)
        values = np.full(len(alive), np.inf, dtype=strip.dtype)
        values[alive] = thresholds.values[start[alive] + slot]
        values = np.expand_dims(values, 1 - axis)
        found = _count(compare, strip, values, axis)
        if len(again):
            reached = compare(strip.take(again, axis=1 - axis), values)
            found += reached @ extra[again] if axis == 0 else extra[again] @ reached
        thresholds.counts[start[alive] + slot] += found[alive]
        alive &= found > 0  # thresholds ascend: where nothing reaches this one, nothing reaches the next


def _count(compare: Callable[..., Any], strip: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    rows, columns = strip.shape
    mask = np.zeros((rows, -(-columns // 8) * 8), dtype=bool)
    compare(strip, values, out=mask[:, :columns])
    # Bytes of 0 and 1, added as words of eight: each byte of the sum is a count of its own and cannot overflow.
    added = mask.view(np.uint64).sum(axis=1 - axis).view(np.uint8)
    return added.reshape(rows, 8).sum(axis=1, dtype=np.int64) if axis == 0 else added[:columns].astype(np.int64)


def _count_sorted(
    compare: Callable[..., Any],
    entries: np.ndarray,
    thresholds: Thresholds,
    start: np.ndarray,
    used: np.ndarray,
    extra: np.ndarray,
) -> None:
    """Of lines with many thresholds: `entries` has a line a row."""
    side: Literal["left", "right"] = "right" if thresholds.strict else "left"
    again = np.flatnonzero(extra)
    repeated = entries[:, again]
    for line, row in enumerate(np.sort(entries, axis=1)):
        own = slice(start[line], start[line] + used[line])
        values = thresholds.values[own]
        thresholds.counts[own] += len(row) - np.searchsorted(row, values, side=side)
        if len(again):
            thresholds.counts[own] += compare(repeated[line][None, :], values[:, None]) @ extra[again]
