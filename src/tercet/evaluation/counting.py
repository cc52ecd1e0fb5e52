"""How many entries of a tile reach the thresholds of its lines. The only loop over all of S, so it has to be quick."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    given: Int[np.ndarray, " threshold"]
    """The place that each had when it was given."""
    strict: bool
    """Counts what is greater, rather than greater or equal."""

    @staticmethod
    def of(
        values: Float[np.ndarray, " threshold"], line: Int[np.ndarray, " threshold"], lines: int, strict: bool
    ) -> "Thresholds":
        given = np.lexsort((values, line))
        start = np.searchsorted(line[given], np.arange(lines + 1))
        return Thresholds(values[given], start, np.zeros(len(values), dtype=np.int64), given, strict)

    def used(self, lines: slice) -> tuple[Int[np.ndarray, " line"], Int[np.ndarray, " line"]]:
        """Where the thresholds of each line begin, and how many it has."""
        return self.start[lines.start : lines.stop], np.diff(self.start[lines.start : lines.stop + 1])

    def in_order_given(self) -> Int[np.ndarray, " threshold"]:
        counts = np.empty_like(self.counts)
        counts[self.given] = self.counts
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
    for i in range(0, array.shape[0], STRIP_ROWS):
        for j in range(0, array.shape[1], STRIP_COLUMNS):
            strip = array[i : i + STRIP_ROWS, j : j + STRIP_COLUMNS]
            row_slice = slice(rows.start + i, rows.start + i + strip.shape[0])
            column_slice = slice(columns.start + j, columns.start + j + strip.shape[1])
            for thresholds in row_axis.thresholds:
                _count_strip(strip, row_slice, thresholds, column_axis.extra[column_slice], axis=0)
            for thresholds in column_axis.thresholds:
                _count_strip(strip, column_slice, thresholds, row_axis.extra[row_slice], axis=1)


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
    again = np.flatnonzero(extra)
    chosen = np.flatnonzero((used > 0) & (used <= MOST_PASSES))
    for slot in range(MOST_PASSES):
        chosen = chosen[used[chosen] > slot]
        if not len(chosen):
            break
        index = start[chosen] + slot
        few = 2 * len(chosen) < len(used)  # copying a line costs as much as counting it
        part = strip.take(chosen, axis=axis) if few else strip
        values = thresholds.values[index]
        if not few:
            values = np.full(len(used), np.inf, dtype=strip.dtype)
            values[chosen] = thresholds.values[index]
        values = np.expand_dims(values, 1 - axis)
        found = _count(compare, part, values, axis)
        if len(again):
            reached = compare(part.take(again, axis=1 - axis), values)
            found += reached @ extra[again] if axis == 0 else extra[again] @ reached
        found = found if few else found[chosen]
        thresholds.counts[index] += found
        chosen = chosen[found > 0]  # thresholds ascend: where nothing reaches this one, nothing reaches the next
    for line in np.flatnonzero(used > MOST_PASSES):
        own = slice(start[line], start[line] + used[line])
        _count_sorted(compare, strip.take(line, axis=axis), thresholds, own, extra)


def _count(compare: Callable[..., Any], strip: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    rows, columns = strip.shape
    mask = np.zeros((rows, -(-columns // 8) * 8), dtype=bool)
    compare(strip, values, out=mask[:, :columns])
    # Bytes of 0 and 1, added as words of eight: each byte of the sum is a count of its own and cannot overflow.
    added = mask.view(np.uint64).sum(axis=1 - axis).view(np.uint8)
    return added.reshape(rows, 8).sum(axis=1, dtype=np.int64) if axis == 0 else added[:columns].astype(np.int64)


def _count_sorted(
    compare: Callable[..., Any], entries: np.ndarray, thresholds: Thresholds, index: slice, extra: np.ndarray
) -> None:
    values = thresholds.values[index]
    below = np.searchsorted(np.sort(entries), values, side="right" if thresholds.strict else "left")
    thresholds.counts[index] += len(entries) - below
    again = np.flatnonzero(extra)
    if len(again):
        thresholds.counts[index] += compare(entries[again][None, :], values[:, None]) @ extra[again]
