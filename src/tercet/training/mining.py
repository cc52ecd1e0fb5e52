"""`tercet mine`: a trained model over a whole training split, and a model in the middle of its training."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tercet.data.formats import open_data
from tercet.data.mined import PAIRS, MinedTable, checksum_of, guards_of, is_shortlisted, open_mined, read_empty
from tercet.data.pairs import PairedData
from tercet.mining.guards import Guards
from tercet.mining.mine import Advance, Wanted, mine
from tercet.retriever import load
from tercet.similarity import Compared, compared
from tercet.training.evaluating import as_read_by, checksum_of_weights
from tercet.training.mine_settings import MineSettings
from tercet.training.validation import encoded


def mine_table(settings: MineSettings) -> MinedTable:
    retriever = load(settings.model)  # before the data: a wrong path costs nothing
    data = open_data(settings.data, images=settings.images, features=settings.features)
    side = as_read_by(retriever, settings.data, data.split(settings.split))
    guards = Guards(
        settings.guard_skip,
        settings.guard_near_duplicates,
        settings.guard_known,
        settings.guard_pairs,
        settings.guard_margin,
    )
    wanted = Wanted(settings.top_captions, settings.top_images, guards)
    target = settings.out or Path("mined") / settings.model.resolve().name
    shortlist = None if settings.shortlist is None else open_mined(settings.shortlist, side)
    about = {"system": retriever.system, "weights": checksum_of_weights(settings.model), "reads": side.checksum()[:16]}
    with _Bar() as bar:
        compare = partial(compared_sides, retriever.model, side, say=bar.say)
        made = mine(compare, side, target, wanted, about, shortlist=shortlist, advance=bar.advance)
    table = open_mined(target, side)
    print(f"{target} {'is ready' if made else 'was there already'}: {_described(table)}")
    empty = read_empty(target)
    if any(empty.values()):
        print(
            f"guards left nothing for {empty['images']:,} images and {empty['captions']:,} captions: training will "
            "refuse it; mine again with looser ones",
            file=sys.stderr,
        )
    return table


def mine_now(
    model: Any, data: PairedData, folder: Path, like: MinedTable, weights: str, before: MinedTable
) -> MinedTable:
    """As another table was: lists of that length, the same guards; where it was a shortlist's, its own pairs alone.

    Weights move, and guards by similarity may come to leave nothing of a list: then it stays as it was `before`.
    """
    wanted = Wanted(like.captions.shape[1], like.images.shape[1], guards_again(like.place))
    shortlist = like if is_shortlisted(like.place) else None
    compare = partial(_compared_now, model, data)
    mine(compare, data, folder, wanted, {"weights": weights}, shortlist=shortlist, before=before)
    return open_mined(folder, data)


def guards_again(place: str | Path) -> Guards:
    """Those of a table; its pairs must be the ones it was mined with."""
    given = dict(guards_of(place))
    checksum = given.pop("pairs_checksum", None)
    if given.get("pairs"):
        given["pairs"] = file = Path(place) / PAIRS
        if not file.is_file():
            raise ValueError(f"{file}: no such file, and --mine-every needs the pairs of --guard-pairs: mine again")
        if checksum_of([file]) != checksum:
            raise ValueError(f"{file}: not the pairs that the table was mined with, and --mine-every needs those")
    return Guards(**given)


def _compared_now(model: Any, data: PairedData, folder: Path) -> Compared:
    return compared(model, *encoded(model, data))


def compared_sides(
    model: Any, data: PairedData, folder: Path, say: Callable[[str], None] = lambda text: None
) -> Compared:
    """Vectors are kept in the folder, so that a second call need not encode again."""
    files = [folder / f"{side}.npy" for side in ("encoded_images", "encoded_captions")]
    kept = [_read_vectors(*each) for each in zip(files, (len(data.images), len(data.captions)), strict=True)]
    if kept[0] is not None and kept[1] is not None:
        return compared(model, kept[0], kept[1])
    say(f"encodes {len(data.images):,} images and {len(data.captions):,} captions")
    sides = encoded(model, data)
    for name, side in zip(("image", "caption"), sides, strict=True):
        if isinstance(side, Tensor) and not side.isfinite().all():
            bad = int((~side.isfinite()).any(dim=1).nonzero()[0])
            raise ValueError(f"the model gives NaN or infinity for {name} {bad}: its weights are no good")
    if all(isinstance(side, Tensor) for side in sides):
        for side, file in zip(sides, files, strict=True):
            assert isinstance(side, Tensor)
            beside = file.with_suffix(".new")
            with beside.open("wb") as opened:
                np.save(opened, side.float().numpy())
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(beside, file)
    return compared(model, *sides)


def _read_vectors(file: Path, rows: int) -> Tensor | None:
    """None where they are not there, or not whole: they are made again."""
    try:
        vectors = np.load(file)
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(vectors) if vectors.shape[:1] == (rows,) else None


def _described(table: MinedTable) -> str:
    images, captions = len(table.captions), len(table.images)
    return (
        f"up to {table.captions.shape[1]:,} captions of each of {images:,} images, up to {table.images.shape[1]:,} "
        f"images of each of {captions:,} captions; for tercet train --mined"
    )


class _Bar:
    """A bar of images done, on a terminal; lines where there is none."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("mines"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("", total=None)
        self.advance: Advance = lambda done, total: self._progress.update(self._task, completed=done, total=total)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
