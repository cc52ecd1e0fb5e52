"""`tercet mine`: mine hard negatives with a trained model; and mining again during training (--mine-every)."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tercet import runs
from tercet.console import ConsoleProgress, print_lines
from tercet.data.dataset import PairedData
from tercet.data.formats import open_data
from tercet.data.formats.columns import Columns
from tercet.data.hard_negatives import (
    PAIRS,
    MinedTable,
    count_empty_lists,
    filters_of,
    is_shortlisted,
    open_mined,
)
from tercet.inference import checksum_of_model, load
from tercet.interfaces import RetrievalModel
from tercet.mining.filters import FalseNegativeFilters
from tercet.mining.mine import MiningConfig, mine
from tercet.similarity import SplitScorer, split_scorer
from tercet.storage import atomic_path, is_intact, seal, sha256_of
from tercet.training import runtime
from tercet.training.eval_loop import encode_split
from tercet.training.evaluate_run import preprocess_split, read_split
from tercet.training.settings import MineSettings
from tercet.types import Sides


def mine_table(settings: MineSettings) -> MinedTable:
    """Mine a split, or open the table if it exists, and print what it holds."""
    retriever = load(settings.model)  # before the data, so that a wrong path fails at once
    settings = _with_data(settings)
    assert settings.data is not None
    dataset = open_data(
        settings.data,
        images=settings.images,
        features=settings.features,
        skip_bad=settings.skip_bad,
        columns=Columns.of(settings),
    )
    split = read_split(dataset, settings.split, [retriever], skip_bad=settings.skip_bad)
    data = preprocess_split(retriever, settings.data, split)
    filters = FalseNegativeFilters(
        settings.filter_skip_top,
        settings.filter_near_duplicates,
        settings.filter_known,
        settings.filter_pairs,
        settings.filter_margin,
    )
    config = MiningConfig(settings.top_captions, settings.top_images, filters)
    target = settings.out or Path("mined") / settings.model.resolve().name
    shortlist = None if settings.shortlist is None else open_mined(settings.shortlist, data)
    model = {
        "system": retriever.system,
        "weights": checksum_of_model(settings.model, retriever),
        "data_checksum": data.checksum()[:16],
    }
    with ConsoleProgress() as progress:
        make_scorer = partial(cached_scorer, retriever.model, data, log=progress.log)
        mined = mine(make_scorer, data, target, config, model, shortlist=shortlist, progress=progress)
    table = open_mined(target, data)
    print_lines(f"{target} {'written' if mined else 'already exists'}: {_summary(table, data.sides)}")
    empty = count_empty_lists(target)
    if any(empty.values()):
        print_lines(
            f"filters left no candidates for {_counts(data.sides, empty['images'], empty['captions'])}: training "
            "will refuse this table; mine again with weaker filters",
            to_stderr=True,
        )
    return table


def _with_data(settings: MineSettings) -> MineSettings:
    """With the dataset as given, else that of the run, read as the run read it."""
    if settings.data is not None:
        return settings
    if not (settings.model / runs.SETTINGS).exists():
        raise ValueError(f"{settings.model} is a saved model and does not name its dataset: give it as --data")
    saved = runs.read_settings(settings.model)
    names = ("features", "skip_bad", "image_column", "caption_column", "split_column")
    reading: dict[str, Any] = {name: getattr(settings, name) or saved.get(name) for name in names}
    images = settings.images or (None if saved.get("images") is None else Path(saved["images"]))
    reading["skip_bad"] = bool(reading["skip_bad"])
    return replace(settings, data=str(saved["data"]), images=images, **reading)


def table_of_epoch(
    model: RetrievalModel,
    data: PairedData,
    table: MinedTable,
    epoch: int,
    every: int,
    folder: Path,
    log: Callable[[str], None],
) -> MinedTable:
    """Return the table of an epoch from `every` on: mined again every `every` epochs, at the start of the epoch.

    Tables are kept in `folder`: a run resumed within an epoch opens the table of that epoch again.
    """
    current = epoch - epoch % every
    target, previous = (folder / f"mined_{mined_at}" for mined_at in (current, current - every))
    if runtime.is_main_process() and not target.exists():
        log(f"mining the training split again before epoch {epoch + 1}")
        before = table if current == every else open_mined(previous, data)
        remine(model, data, target, table, f"epoch {current}", before)
        empty = count_empty_lists(target)
        if any(empty.values()):
            log(
                f"filters left no candidates for {_counts(data.sides, empty['images'], empty['captions'])}: "
                "their lists of the previous table are kept"
            )
        for old in range(every, current - every, every):  # a resume may still need the previous table
            shutil.rmtree(folder / f"mined_{old}", ignore_errors=True)
    runtime.barrier()
    return open_mined(target, data)


def remine(
    model: RetrievalModel, data: PairedData, folder: Path, like: MinedTable, weights: str, before: MinedTable
) -> MinedTable:
    """Mine with the current weights and the configuration of the table `like`: list lengths, filters, shortlist.

    `--filter-margin` depends on the weights and may leave a list empty: then the list of `before` is kept.
    """
    config = MiningConfig(like.captions.shape[1], like.images.shape[1], filters_of_table(like.path))
    shortlist = like if is_shortlisted(like.path) else None
    make_scorer = partial(_uncached_scorer, model, data)
    mine(make_scorer, data, folder, config, {"weights": weights}, shortlist=shortlist, previous=before)
    return open_mined(folder, data)


def filters_of_table(folder: str | Path) -> FalseNegativeFilters:
    """Return the filters of a mined table. Raises if its copy of the --filter-pairs file is missing or was changed."""
    filters = dict(filters_of(folder))
    checksum = filters.pop("pairs_checksum", None)
    if filters.get("pairs"):
        filters["pairs"] = file = Path(folder) / PAIRS
        if not file.is_file():
            raise ValueError(f"{file}: no such file; --mine-every needs the pairs of --filter-pairs: mine again")
        if sha256_of([file])[:16] != checksum:
            raise ValueError(
                f"{file}: checksum mismatch: not the pairs that the table was mined with; --mine-every needs those"
            )
    return FalseNegativeFilters(**filters)


def _uncached_scorer(model: RetrievalModel, data: PairedData, folder: Path) -> SplitScorer:
    return split_scorer(model, *encode_split(model, data))


def cached_scorer(
    model: RetrievalModel, data: PairedData, folder: Path, log: Callable[[str], None] = lambda text: None
) -> SplitScorer:
    """Encode the data and return its scorer. Embeddings are cached in the folder for a later call."""
    files = [folder / "encoded_images.npy", folder / "encoded_captions.npy"]
    images, captions = (
        _read_cached(file, count) for file, count in zip(files, (len(data.images), len(data.captions)), strict=True)
    )
    if images is not None and captions is not None:
        return split_scorer(model, images, captions)
    log(f"encoding {_counts(data.sides, len(data.images), len(data.captions))}")
    encoded = encode_split(model, data)
    for name, items in zip((data.sides.image, data.sides.caption), encoded, strict=True):
        if isinstance(items, Tensor) and not items.isfinite().all():
            row = int((~items.isfinite()).any(dim=1).nonzero()[0])
            raise ValueError(f"the embedding of {name} {row} has NaN or infinity: the weights of the model are invalid")
    if all(isinstance(items, Tensor) for items in encoded):
        for items, file in zip(encoded, files, strict=True):
            assert isinstance(items, Tensor)
            with atomic_path(file) as temporary, temporary.open("wb") as stream:
                np.save(stream, items.float().numpy())
                stream.flush()
                seal(temporary)
    return split_scorer(model, *encoded)


def _read_cached(file: Path, rows: int) -> Tensor | None:
    """Return cached embeddings; None if the file is missing or damaged."""
    if not is_intact(file):
        return None
    try:
        embeddings = np.load(file)
    except Exception:  # numpy raises exceptions of many kinds for damaged headers
        return None
    return torch.from_numpy(embeddings) if embeddings.shape[:1] == (rows,) else None


def _summary(table: MinedTable, sides: Sides) -> str:
    images, captions = len(table.captions), len(table.images)
    return (
        f"{images:,} {sides.images} with up to {table.captions.shape[1]:,} {sides.captions} each, {captions:,} "
        f"{sides.captions} with up to {table.images.shape[1]:,} {sides.images} each; use it with tercet train --mined"
    )


def _counts(sides: Sides, images: int, captions: int) -> str:
    return f"{images:,} {sides.images} and {captions:,} {sides.captions}"
