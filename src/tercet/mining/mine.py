"""Blocks of S -> a table of hard negatives, both directions in one pass. Killed at any moment, it goes on where it was.

A block of images meets all captions before the next one does: the lists of its images are finished then and go to disk,
those of the captions wait for the last. What they are so far is saved now and then, with the number of the next block.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tercet.data.lines import read_json
from tercet.data.mined import CAPTIONS, I2T, IMAGES, MANIFEST, PAIRS, T2I, MinedTable, checksum_of, lists_in
from tercet.data.pairs import PairedData
from tercet.data.whole import LOCK, alone
from tercet.mining.best import Best
from tercet.mining.guards import Guards, LeftOut, caps_of, counted
from tercet.mining.lists import Lists, keep_earlier
from tercet.mining.shortlist import reordered
from tercet.similarity import Compared

COLUMNS = 8192  # captions of a block; with 1,024 images, 32 MB of similarities
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
                raise ValueError(f"--top-{name} must be at least 1, got {getattr(self, name)}")
        if self.guards.skip < 0:
            raise ValueError(f"--guard-skip must be at least 0, got {self.guards.skip}")
        if self.guards.margin is not None and not math.isfinite(self.guards.margin):
            raise ValueError(f"--guard-margin must be a number, got {self.guards.margin}")

    def lengths(self, data: PairedData) -> tuple[int, int]:
        """Of the lists of images and of captions, skipped ranks aside: no longer than there are others' items."""
        fewest = int(data.owners.bincount(minlength=len(data.images)).min()) if len(data.owners) else 0
        others = len(data.owners) - fewest, len(data.images) - 1
        wanted, skip = (self.captions, self.images), self.guards.skip
        found = [min(k + skip, there) - skip for k, there in zip(wanted, others, strict=True)]
        if min(found) < 1:
            raise ValueError(
                f"of {len(data.images):,} images and {len(data.owners):,} captions --guard-skip {skip} "
                "leaves no negatives"
            )
        return found[0], found[1]


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
    before: MinedTable | None = None,
    advance: Advance = lambda done, total: None,
    saved_every: float = SAVED_EVERY,
) -> bool:
    """Write the table to `target`; False if it was there already, of the same model and data.

    `compare` may keep what it encodes in the folder it is given, for the next time. `model` says which one it is, for
    the manifest: a table of another is not gone on with. With a `shortlist` only its pairs are compared.
    Anchors of which guards leave nothing keep their lists of the table `before`.
    """
    if shortlist is not None:
        model = model | {"shortlist": shortlist.checksum}
    plan = plan_of(data, wanted, model)
    wanted.lengths(data)
    left_out = LeftOut(data, wanted.guards)  # before anything is written: a wrong guard costs nothing
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
        if wanted.guards.pairs is not None:
            shutil.copyfile(wanted.guards.pairs, unfinished / PAIRS)
        compared = compare(unfinished)
        if shortlist is None:
            counts = _swept(compared, data, unfinished, wanted, left_out, advance, saved_every)
        else:
            counts = reordered(compared, data, unfinished, wanted, left_out, shortlist, advance)
        empty = _empty(unfinished)
        if before is not None:
            keep_earlier(unfinished, I2T, before.captions, before.caption_similarity)
            keep_earlier(unfinished, T2I, before.images, before.image_similarity)
        finish(unfinished, target, plan | {"left_out": counts, "empty": empty})
    return True


def _swept(
    compared: Compared,
    data: PairedData,
    folder: Path,
    wanted: Wanted,
    left_out: LeftOut,
    advance: Advance,
    saved_every: float,
) -> dict[str, int]:
    images, captions, skip = len(data.images), len(data.owners), wanted.guards.skip
    k, j = (length + skip for length in wanted.lengths(data))
    caps = caps_of(compared, data, wanted.guards)
    of_captions, start, over = Best(captions, j), 0, [0, 0, 0]
    lists = Lists(folder, I2T, images, k - skip)
    if (folder / PROGRESS).is_file() and not lists.anew:
        start, over = _restored(folder / PROGRESS, of_captions)
    advance(start, images)
    saved = time.monotonic()
    for top in range(start, images, compared.rows):
        rows = slice(top, min(top + compared.rows, images))
        of_images = Best(rows.stop - top, k)
        for left in range(0, captions, COLUMNS):
            columns = slice(left, min(left + COLUMNS, captions))
            block = compared.block(rows, columns)
            left_out.hide(block, rows, columns)
            seen = _under(block, None if caps is None else caps[0][rows, None], over, 0)
            of_images.update(seen, slice(0, rows.stop - top), left, images=True)
            seen = _under(block, None if caps is None else caps[1][columns], over, 1)
            of_captions.update(seen, columns, top, images=False)
        over[2] += lists.write(rows, *of_images.result(), skip=skip)
        if time.monotonic() - saved >= saved_every:
            lists.flush()
            _save(folder / PROGRESS, of_captions, rows.stop, over)
            saved = time.monotonic()
        advance(rows.stop, images)
    lists.flush()
    lists = Lists(folder, T2I, captions, j - skip)
    over[2] += lists.write(slice(0, captions), *of_captions.result(), skip=skip)
    lists.flush()
    return counted(left_out, wanted.guards, over)


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
    content: dict[str, Any] = {
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
    file = wanted.guards.pairs
    if file is not None and file.is_file():
        # Not where it lies: the checksum says more, and the table keeps a copy.
        content["wanted"]["guards"] |= {"pairs": file.name, "pairs_checksum": checksum_of([file])}
    kept: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return kept


def must_equal(plan: dict[str, Any], folder: Path) -> None:
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder} is there already and holds no mined table; nothing is overwritten")
    there = read_json(folder / MANIFEST)
    # Data first: what a model reads, which stands beside its weights, is other where they are.
    for part, what in (("data", "other data"), ("model", "another model"), ("wanted", "other settings")):
        old, new = there.get(part) or {}, plan[part]
        differ = [name for name in old | new if old.get(name) != new.get(name)]
        if differ:
            what = "other data" if differ == ["reads"] else what
            shown = (f"{name} {json.dumps(old.get(name))}, not {json.dumps(new.get(name))}" for name in differ)
            raise ValueError(
                f"{folder} is of {what} ({'; '.join(shown)}): nothing is overwritten; remove it or name another"
            )


def _empty(folder: Path) -> dict[str, int]:
    """Anchors of which guards left nothing."""
    firsts = {which: np.load(folder / f"{which}.npy", mmap_mode="r")[:, 0] for which in (I2T, T2I)}
    return {"images": int((firsts[I2T] < 0).sum()), "captions": int((firsts[T2I] < 0).sum())}


def finish(unfinished: Path, target: Path, manifest: dict[str, Any]) -> None:
    """The manifest with a checksum of all lists; then the folder takes its name."""
    lists = lists_in(unfinished)
    _write_json(unfinished / MANIFEST, manifest | {"checksum": checksum_of(lists)})
    for file in unfinished.iterdir():
        if file not in lists and file.name not in (MANIFEST, PAIRS, LOCK):
            file.unlink()
    (unfinished / LOCK).unlink()
    os.replace(unfinished, target)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, file)
