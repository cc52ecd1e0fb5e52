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
    """The thresholds of every line of one axis, and what was counted for them; those of line i begin at `start[i]`."""

    values: Float[np.ndarray, " threshold"]
    start: Int[np.ndarray, " line_and_end"]
    counts: Int[np.ndarray, " threshold"]
    strict: bool
    """Counts what is greater, rather than greater or equal."""

    def of(self, lines: slice) -> tuple[Int[np.ndarray, " line"], Int[np.ndarray, " line"]]:
        """Where the thresholds of each line begin, and how many it has."""
        return self.start[lines.start : lines.stop], np.diff(self.start[lines.start : lines.stop + 1])


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
            start, used = thresholds.of(lines)
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
    start, used = thresholds.of(lines)
    again = np.flatnonzero(extra)
    for slot in range(min(int(used.max(initial=0)), MOST_PASSES)):
        chosen = np.flatnonzero((used > slot) & (used <= MOST_PASSES))
        if not len(chosen):
            break
        part = strip if len(chosen) == len(used) else strip.take(chosen, axis=axis)
        index = start[chosen] + slot
        values = np.expand_dims(thresholds.values[index], 1 - axis)
        found = _count(compare, part, values, axis)
        if len(again):
            reached = compare(part.take(again, axis=1 - axis), values)
            found += reached @ extra[again] if axis == 0 else extra[again] @ reached
        thresholds.counts[index] += found
    for line in np.flatnonzero(used > MOST_PASSES):
        _count_sorted(
            compare, strip.take(line, axis=axis), thresholds, slice(start[line], start[line] + used[line]), extra
        )


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
