"""Mine a table of hard negatives: one pass over blocks of S fills the lists of both directions. Resumable after a kill.

A block of images is compared with all captions before the next one: the lists of its images are then final and are
written to disk; the lists of the captions are final after the last block. Their current state is saved at intervals,
with the index of the next block and the checksums of what is on disk: what is damaged is mined again.
"""

import hashlib
import json
import math
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

from tercet.console import SILENT, Progress
from tercet.data.dataset import PairedData
from tercet.data.hard_negatives import CAPTIONS, I2T, IMAGES, MANIFEST, PAIRS, REMEDY, T2I, MinedTable, table_files
from tercet.data.textio import read_json
from tercet.interrupt import Interrupt
from tercet.mining.filters import ExcludedPairs, FalseNegativeFilters, excluded_counts, similarity_caps
from tercet.mining.list_store import ListStore, fill_empty_lists
from tercet.mining.rerank_lists import rerank_lists
from tercet.mining.topk import RunningTopK
from tercet.similarity import SplitScorer
from tercet.storage import (
    CHECKSUMS,
    FORMAT_VERSION,
    LOCK,
    atomic_path,
    checked_manifest,
    checksums_of,
    resumable_directory,
    seal,
    sealed_content,
    sha256_of,
    write_manifest,
)

BLOCK_CAPTIONS = 8192  # with 1,024 images a block has 32 MB of similarities
PROGRESS = "progress.safetensors"
SAVE_INTERVAL = 60.0  # seconds; kill -9 loses the work since the last save


@dataclass(frozen=True)
class MiningConfig:
    captions: int = CAPTIONS
    """List length per image."""
    images: int = IMAGES
    """List length per caption."""
    filters: FalseNegativeFilters = field(default_factory=FalseNegativeFilters)

    def __post_init__(self) -> None:
        for name in ("captions", "images"):
            if getattr(self, name) < 1:
                raise ValueError(f"--top-{name} must be at least 1, got {getattr(self, name)}")
        if self.filters.skip < 0:
            raise ValueError(f"--filter-skip-top must be at least 0, got {self.filters.skip}")
        if self.filters.margin is not None and not math.isfinite(self.filters.margin):
            raise ValueError(f"--filter-margin must be a finite number, got {self.filters.margin}")

    def lengths(self, data: PairedData) -> tuple[int, int]:
        """Return the list lengths of images and captions without skipped ranks, at most the number of candidates."""
        own_captions, own_images = (
            int(items.bincount(minlength=count).min()) if len(items) else 0
            for items, count in zip(data.pairs.unbind(dim=1), (len(data.images), len(data.owners)), strict=True)
        )
        candidates = len(data.owners) - own_captions, len(data.images) - own_images
        requested, skip = (self.captions, self.images), self.filters.skip
        lengths = [min(k + skip, available) - skip for k, available in zip(requested, candidates, strict=True)]
        if min(lengths) < 1:
            raise ValueError(
                f"--filter-skip-top {skip} leaves no negatives of {len(data.images):,} {data.sides.images} and "
                f"{len(data.owners):,} {data.sides.captions}"
            )
        return lengths[0], lengths[1]


def mine(
    make_scorer: Callable[[Path], SplitScorer],
    data: PairedData,
    target: Path,
    config: MiningConfig,
    model: dict[str, Any],
    *,
    shortlist: MinedTable | None = None,
    previous: MinedTable | None = None,
    progress: Progress = SILENT,
    save_interval: float = SAVE_INTERVAL,
) -> bool:
    """Write the table to `target`; return False if it exists already, for the same model, data and config.

    `make_scorer` may cache embeddings in the folder it is given. `model` identifies the model in the manifest: a table
    of another model is not resumed. With a `shortlist` only its pairs are compared. Lists that the filters leave empty
    are filled from the table `previous`.
    """
    if shortlist is not None:
        model = model | {"shortlist": shortlist.checksum}
    manifest = make_manifest(data, config, model)
    config.lengths(data)
    excluded = ExcludedPairs(data, config.filters)  # before anything is written: invalid filters fail early
    if target.exists():
        check_manifest(manifest, target)
        return False
    with resumable_directory(target) as unfinished:
        if (unfinished / MANIFEST).is_file():
            check_manifest(manifest, unfinished)
        else:
            write_manifest(unfinished / MANIFEST, manifest)
        if config.filters.pairs is not None:
            shutil.copyfile(config.filters.pairs, unfinished / PAIRS)
        split_scorer = make_scorer(unfinished)
        if shortlist is None:
            counts = _mine_all_pairs(split_scorer, data, unfinished, config, excluded, progress, save_interval)
        else:
            counts = rerank_lists(split_scorer, data, unfinished, config, excluded, shortlist, progress)
        empty = _count_empty(unfinished)
        if previous is not None:
            fill_empty_lists(unfinished, I2T, previous.captions, previous.caption_similarity)
            fill_empty_lists(unfinished, T2I, previous.images, previous.image_similarity)
        finalize(unfinished, manifest | {"excluded": counts, "empty": empty})
    return True


def _mine_all_pairs(
    split_scorer: SplitScorer,
    data: PairedData,
    folder: Path,
    config: MiningConfig,
    excluded: ExcludedPairs,
    progress: Progress,
    save_interval: float,
) -> dict[str, int]:
    """Fill the lists of both directions from all blocks of S; return the counts of excluded pairs."""
    images, captions, skip = len(data.images), len(data.owners), config.filters.skip
    k, j = (length + skip for length in config.lengths(data))
    caps = similarity_caps(split_scorer, data, config.filters)
    caption_lists, start, over = RunningTopK(captions, j), 0, [0, 0, 0]
    store = ListStore(folder, I2T, images, k - skip)
    if not store.created:
        start, over = _restore(folder / PROGRESS, caption_lists, store)
    bar = progress.bar("mining", images)
    bar.update(start)
    last_save = time.monotonic()
    with Interrupt() as interrupt:
        for top in range(start, images, split_scorer.block_rows):
            rows = slice(top, min(top + split_scorer.block_rows, images))
            image_lists = RunningTopK(rows.stop - top, k)
            for left in range(0, captions, BLOCK_CAPTIONS):
                columns = slice(left, min(left + BLOCK_CAPTIONS, captions))
                block = split_scorer.block(rows, columns)
                excluded.hide(block, rows, columns)
                capped = _apply_cap(block, None if caps is None else caps[0][rows, None], over, 0)
                image_lists.update(capped, slice(0, rows.stop - top), left, images=True)
                capped = _apply_cap(block, None if caps is None else caps[1][columns], over, 1)
                caption_lists.update(capped, columns, top, images=False)
            over[2] += store.write(rows, *image_lists.result(), skip=skip)
            if interrupt.requested or time.monotonic() - last_save >= save_interval:
                store.flush()
                _save(folder / PROGRESS, caption_lists, store, rows.stop, over)
                last_save = time.monotonic()
            if interrupt.requested:
                interrupt.stop()
            bar.update(rows.stop)
    store.flush()
    store = ListStore(folder, T2I, captions, j - skip)
    over[2] += store.write(slice(0, captions), *caption_lists.result(), skip=skip)
    store.flush()
    return excluded_counts(excluded, config.filters, over)


def _apply_cap(block: Float[Tensor, "image caption"], cap: Tensor | None, over: list[int], direction: int) -> Tensor:
    if cap is None:
        return block
    too_similar = block > cap
    over[direction] += int(too_similar.sum())
    return block.masked_fill(too_similar, -torch.inf)


def _save(file: Path, caption_lists: RunningTopK, store: ListStore, done: int, over: list[int]) -> None:
    """Save the position, with the checksums of the lists on disk up to there."""
    from safetensors.torch import save_file

    checksums = [torch.tensor(list(bytes.fromhex(checksum)), dtype=torch.uint8) for checksum in store.checksums()]
    state = caption_lists.state() | {"done": torch.tensor([done, *over]), "lists": torch.stack(checksums)}
    with atomic_path(file) as temporary:
        save_file(state, temporary)
        seal(temporary)


def _restore(file: Path, caption_lists: RunningTopK, store: ListStore) -> tuple[int, list[int]]:
    """Return the next image and the counts so far; from the start if anything on disk is missing or damaged."""
    from safetensors.torch import load

    content = sealed_content(file)
    if content is None:
        return 0, [0, 0, 0]
    state = load(content)
    done, *over = state["done"].tolist()
    if not store.resume(done, [bytes(checksum.tolist()).hex() for checksum in state["lists"]]):
        return 0, [0, 0, 0]
    caption_lists.restore(state)
    return done, over


def make_manifest(data: PairedData, config: MiningConfig, model: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest before mining, as JSON values: model, data and config."""
    content: dict[str, Any] = {
        "what": "mined",
        "format_version": FORMAT_VERSION,
        "model": model,
        "data": {
            "name": data.name,
            "pairing": data.pairing(),
            "images": len(data.images),
            "captions": len(data.owners),
        },
        "config": asdict(config),
    }
    file = config.filters.pairs
    if file is not None and file.is_file():
        # The file name and a checksum instead of the path: the table has its own copy.
        content["config"]["filters"] |= {"pairs": file.name, "pairs_checksum": sha256_of([file])[:16]}
    manifest: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return manifest


def check_manifest(manifest: dict[str, Any], folder: Path) -> None:
    """Raise ValueError unless the table in `folder`, finished or not, is of the same model, data and config."""
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder} exists and is not a mined table; nothing is overwritten")
    existing = checked_manifest(read_json(folder / MANIFEST), folder / MANIFEST, REMEDY)
    # Data first: the checksum of the data that the model reads ("data_checksum") is stored under "model".
    for section, description in (("data", "other data"), ("model", "another model"), ("config", "other settings")):
        old, new = existing.get(section) or {}, manifest[section]
        differing = [name for name in old | new if old.get(name) != new.get(name)]
        if differing:
            description = "other data" if differing == ["data_checksum"] else description
            changes = (f"{name} {json.dumps(old.get(name))}, not {json.dumps(new.get(name))}" for name in differing)
            raise ValueError(
                f"{folder} is of {description} ({'; '.join(changes)}): nothing is overwritten; remove it or choose "
                "another folder"
            )


def _count_empty(folder: Path) -> dict[str, int]:
    """Count the anchors whose lists the filters left empty."""
    first_ranks = {direction: np.load(folder / f"{direction}.npy", mmap_mode="r")[:, 0] for direction in (I2T, T2I)}
    return {"images": int((first_ranks[I2T] < 0).sum()), "captions": int((first_ranks[T2I] < 0).sum())}


def finalize(unfinished: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest with the checksums of all lists and delete temporary files."""
    checksums = checksums_of(unfinished, table_files())
    identity = hashlib.sha256("".join(checksums.values()).encode()).hexdigest()[:16]
    write_manifest(unfinished / MANIFEST, manifest | {"checksum": identity, CHECKSUMS: checksums})
    for file in unfinished.iterdir():
        if file.name not in (*checksums, MANIFEST, PAIRS, LOCK):
            file.unlink()
