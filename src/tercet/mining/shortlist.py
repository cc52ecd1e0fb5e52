"""Lists of another model in the order of this one: for models too slow to compare everything with everything."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.data.mined import I2T, T2I, MinedTable
from tercet.data.pairs import PairedData
from tercet.mining.best import NOBODY
from tercet.mining.guards import LeftOut, caps_of, counted
from tercet.mining.lists import Lists
from tercet.similarity import Compared

if TYPE_CHECKING:
    from tercet.mining.mine import Wanted

PAIRS = 1 << 16  # of a piece of the lists
PROGRESS = "progress.json"


def reordered(
    compared: Compared,
    data: PairedData,
    folder: Path,
    wanted: "Wanted",
    left_out: LeftOut,
    shortlist: MinedTable,
    advance: Callable[[int, int], None],
) -> dict[str, int]:
    """Each list by itself, a piece at a time: after a kill it goes on with the next piece."""
    caps = caps_of(compared, data, wanted.guards)
    total, captions, skip = len(data.images) + len(data.owners), len(data.owners), wanted.guards.skip
    sides = (I2T, shortlist.captions, wanted.captions), (T2I, shortlist.images, wanted.images)
    both = [Lists(folder, which, len(listed), min(k + skip, listed.shape[1]) - skip) for which, listed, k in sides]
    if any(lists.anew for lists in both):  # what was done is lost
        (folder / PROGRESS).unlink(missing_ok=True)
    progress = _read(folder / PROGRESS)
    for side, (lists, (_, listed, _)) in enumerate(zip(both, sides, strict=True)):
        step = max(1, PAIRS // listed.shape[1])
        for start in range(progress["done"][side], len(listed), step):
            rows = slice(start, min(start + step, len(listed)))
            candidate = torch.from_numpy(listed[rows]).long().sort(dim=1).values  # of equals the lowest number
            anchor = torch.arange(rows.start, rows.stop)[:, None].expand_as(candidate)
            there = candidate >= 0
            image, caption = (anchor[there], candidate[there]) if side == 0 else (candidate[there], anchor[there])
            found = compared.of_pairs(image, caption)
            found[left_out.holds(image, caption, captions)] = -torch.inf
            if caps is not None:
                over = found > caps[side][anchor[there]]
                progress["over"][side] += int(over.sum())
                found[over] = -torch.inf
            progress["over"][2] += lists.write(rows, *_in_order(candidate, there, found), skip=skip)
            lists.flush()
            progress["done"][side] = rows.stop
            _write(folder / PROGRESS, progress)
            advance(sum(progress["done"]), total)
    return counted(left_out, wanted.guards, progress["over"])


def _in_order(
    candidate: Int[Tensor, "anchor k"], there: Tensor, found: Float[Tensor, " pair"]
) -> tuple[Int[Tensor, "anchor k"], Float[Tensor, "anchor k"]]:
    similarity = torch.full(candidate.shape, -torch.inf)
    similarity[there] = found
    similarity, order = similarity.sort(dim=1, descending=True, stable=True)
    return candidate.gather(1, order).masked_fill(similarity == -torch.inf, NOBODY).int(), similarity


def _read(file: Path) -> dict[str, list[int]]:
    if not file.is_file():
        return {"done": [0, 0], "over": [0, 0, 0]}
    content: dict[str, list[int]] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _write(file: Path, progress: dict[str, list[int]]) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(progress), encoding="utf-8")
    os.replace(beside, file)
