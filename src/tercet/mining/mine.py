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

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tercet.data.lines import read_json
from tercet.data.mined import CAPTIONS, I2T, IMAGES, MANIFEST, T2I, checksum_of
from tercet.data.pairs import PairedData
from tercet.data.whole import LOCK, alone
from tercet.mining.best import Best
from tercet.mining.guards import Guards, LeftOut
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
    compared: Compared,
    data: PairedData,
    target: Path,
    wanted: Wanted,
    model: dict[str, Any],
    *,
    advance: Advance = lambda done, total: None,
    saved_every: float = SAVED_EVERY,
) -> bool:
    """Write the table to `target`; False if it was there already, of the same model and data.

    `model` says which one it is, for the manifest: a table of another is not gone on with.
    """
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
        counts = _swept(compared, data, unfinished, wanted, advance, saved_every)
        finish(unfinished, target, plan | {"left_out": counts})
    return True


def _swept(
    compared: Compared, data: PairedData, folder: Path, wanted: Wanted, advance: Advance, saved_every: float
) -> dict[str, int]:
    images, captions, skip = len(data.images), len(data.owners), wanted.guards.skip
    k, j = min(wanted.captions + skip, captions), min(wanted.images + skip, images)
    left_out = LeftOut(data, wanted.guards)
    caps = _caps(compared, data, wanted.guards)
    of_captions, start, over = Best(captions, j), 0, [0, 0]
    lists = _Lists(folder, I2T, images, k - skip)
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
        lists.write(rows, of_images, skip)
        if time.monotonic() - saved >= saved_every:
            lists.flush()
            _save(folder / PROGRESS, of_captions, rows.stop, over)
            saved = time.monotonic()
        advance(rows.stop, images)
    lists.flush()
    lists = _Lists(folder, T2I, captions, j - skip)
    lists.write(slice(0, captions), of_captions, skip)
    lists.flush()
    counts = dict(left_out.counts)
    if skip:
        counts["skip"] = skip * (images + captions)
    return counts if caps is None else counts | {"margin_i2t": over[0], "margin_t2i": over[1]}


def _caps(compared: Compared, data: PairedData, guards: Guards) -> tuple[Tensor, Tensor] | None:
    """What an anchor's negatives may not exceed: its most similar positive, less the margin."""
    if guards.margin is None:
        return None
    positive = compared.of_pairs(data.owners, torch.arange(len(data.owners)))
    best = torch.full((len(data.images),), -torch.inf).scatter_reduce_(0, data.owners, positive, "amax")
    return best - guards.margin, positive - guards.margin


def _under(block: Float[Tensor, "image caption"], cap: Tensor | None, over: list[int], side: int) -> Tensor:
    if cap is None:
        return block
    too_similar = block > cap
    over[side] += int(too_similar.sum())
    return block.masked_fill(too_similar, -torch.inf)


class _Lists:
    """Candidates and similarities of one direction, as .npy files that are filled in place."""

    def __init__(self, folder: Path, which: str, anchors: int, k: int) -> None:
        if k < 1:
            raise ValueError("--guard-skip leaves nothing of the lists: there are not so many candidates")
        self.parts = [
            _opened(folder / f"{which}{tail}.npy", (anchors, k), dtype)
            for tail, dtype in (("", np.int32), ("_similarity", np.float32))
        ]

    def write(self, rows: slice, best: Best, skip: int) -> None:
        for part, found in zip(self.parts, best.result(), strict=True):
            part[rows] = found[:, skip:].numpy()

    def flush(self) -> None:
        for part in self.parts:
            part.flush()


def _opened(file: Path, shape: tuple[int, int], dtype: type) -> np.memmap:
    """What is there already of the same shape is gone on with."""
    there = file.is_file() and file.stat().st_size >= np.prod(shape) * np.dtype(dtype).itemsize
    return np.lib.format.open_memmap(file, mode="r+" if there else "w+", dtype=dtype, shape=shape)


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
