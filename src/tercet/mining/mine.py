"""Blocks of S -> a table of hard negatives, both directions in one pass. Killed at any moment, it goes on where it was.

A block of images meets all captions before the next one does: the lists of its images are finished then and go to disk,
those of the captions wait for the last. What they are so far is saved now and then, with the number of the next block.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.data.lines import read_json
from tercet.data.mined import CAPTIONS, I2T, IMAGES, MANIFEST, T2I, MinedTable, checksum_of
from tercet.data.pairs import PairedData
from tercet.data.whole import LOCK, alone
from tercet.mining.best import Best
from tercet.mining.guards import Guards, LeftOut, caps_of, counted
from tercet.mining.lists import Lists
from tercet.mining.shortlist import reordered
from tercet.similarity import Compared

ROWS, COLUMNS = 1024, 8192  # of a block: 32 MB of similarities
PROGRESS = "progress.safetensors"
SAVED_EVERY = 60.0  # seconds; what was found since is lost by a kill


@dataclass(frozen=True)
class Wanted:
    captions: int = CAPTIONS
    """Of every image."""
    images: int = IMAGES
    """Of every caption."""
    guards: Guards = field(default_factory=Guards)

    def __post_init__(self) -> None:
        for name in ("captions", "images"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if self.guards.skip < 0:
            raise ValueError(f"--guard-skip must be at least 0, got {self.guards.skip}")


Advance = Callable[[int, int], None]
"""Told how many of how many images are done."""


def mine(
    compare: Callable[[Path], Compared],
    data: PairedData,
    target: Path,
    wanted: Wanted,
    model: dict[str, Any],
    *,
    shortlist: MinedTable | None = None,
    advance: Advance = lambda done, total: None,
    saved_every: float = SAVED_EVERY,
) -> bool:
    """Write the table to `target`; False if it was there already, of the same model and data.

    `compare` may keep what it encodes in the folder it is given, for the next time. `model` says which one it is, for
    the manifest: a table of another is not gone on with. With a `shortlist` only its pairs are compared.
    """
    if shortlist is not None:
        model = model | {"shortlist": shortlist.checksum}
    plan = plan_of(data, wanted, model)
    if target.exists():
        must_equal(plan, target)
        return False
    unfinished = target.with_name(f"{target.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with alone(unfinished):
        if (unfinished / MANIFEST).is_file():
            must_equal(plan, unfinished)
        else:
            _write_json(unfinished / MANIFEST, plan)
        compared = compare(unfinished)
        if shortlist is None:
            counts = _swept(compared, data, unfinished, wanted, advance, saved_every)
        else:
            counts = reordered(compared, data, unfinished, wanted, shortlist, advance)
        finish(unfinished, target, plan | {"left_out": counts})
    return True


def _swept(
    compared: Compared, data: PairedData, folder: Path, wanted: Wanted, advance: Advance, saved_every: float
) -> dict[str, int]:
    images, captions, skip = len(data.images), len(data.owners), wanted.guards.skip
    k, j = min(wanted.captions + skip, captions), min(wanted.images + skip, images)
    left_out = LeftOut(data, wanted.guards)
    caps = caps_of(compared, data, wanted.guards)
    of_captions, start, over = Best(captions, j), 0, [0, 0]
    lists = Lists(folder, I2T, images, k - skip)
    if (folder / PROGRESS).is_file():
        start, over = _restored(folder / PROGRESS, of_captions)
    advance(start, images)
    saved = time.monotonic()
    for top in range(start, images, ROWS):
        rows = slice(top, min(top + ROWS, images))
        of_images = Best(rows.stop - top, k)
        for left in range(0, captions, COLUMNS):
            columns = slice(left, min(left + COLUMNS, captions))
            block = compared.block(rows, columns)
            left_out.hide(block, rows, columns)
            seen = _under(block, None if caps is None else caps[0][rows, None], over, 0)
            of_images.update(seen, slice(0, rows.stop - top), left, images=True)
            seen = _under(block, None if caps is None else caps[1][columns], over, 1)
            of_captions.update(seen, columns, top, images=False)
        lists.write(rows, *of_images.result(), skip=skip)
        if time.monotonic() - saved >= saved_every:
            lists.flush()
            _save(folder / PROGRESS, of_captions, rows.stop, over)
            saved = time.monotonic()
        advance(rows.stop, images)
    lists.flush()
    lists = Lists(folder, T2I, captions, j - skip)
    lists.write(slice(0, captions), *of_captions.result(), skip=skip)
    lists.flush()
    return counted(left_out, wanted.guards, images + captions, over)


def _under(block: Float[Tensor, "image caption"], cap: Tensor | None, over: list[int], side: int) -> Tensor:
    if cap is None:
        return block
    too_similar = block > cap
    over[side] += int(too_similar.sum())
    return block.masked_fill(too_similar, -torch.inf)


def _save(file: Path, best: Best, done: int, over: list[int]) -> None:
    from safetensors.torch import save_file

    beside = file.with_suffix(".new")
    save_file(best.state() | {"done": torch.tensor([done, *over])}, beside)
    with beside.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(beside, file)


def _restored(file: Path, best: Best) -> tuple[int, list[int]]:
    from safetensors.torch import load_file

    state = load_file(file)
    best.restore(state)
    done, *over = state["done"].tolist()
    return done, over


def plan_of(data: PairedData, wanted: Wanted, model: dict[str, Any]) -> dict[str, Any]:
    """What the table is of, ready for JSON."""
    content = {
        "what": "mined",
        "model": model,
        "data": {
            "name": data.name,
            "pairing": data.pairing(),
            "images": len(data.images),
            "captions": len(data.owners),
        },
        "wanted": asdict(wanted),
    }
    kept: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return kept


def must_equal(plan: dict[str, Any], folder: Path) -> None:
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder} is there already and holds no mined table; nothing is overwritten")
    there = read_json(folder / MANIFEST)
    for part, what in (("model", "another model"), ("data", "other data"), ("wanted", "other settings")):
        if there.get(part) != plan[part]:
            raise ValueError(
                f"{folder} is of {what} ({json.dumps(there.get(part))}, not {json.dumps(plan[part])}): "
                "nothing is overwritten; remove it or name another"
            )


def finish(unfinished: Path, target: Path, manifest: dict[str, Any]) -> None:
    """The manifest with a checksum of all lists; then the folder takes its name."""
    lists = [unfinished / f"{which}{tail}.npy" for which in (I2T, T2I) for tail in ("", "_similarity")]
    _write_json(unfinished / MANIFEST, manifest | {"checksum": checksum_of(lists)})
    for file in unfinished.iterdir():
        if file not in lists and file.name not in (MANIFEST, LOCK):
            file.unlink()
    (unfinished / LOCK).unlink()
    os.replace(unfinished, target)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, file)
