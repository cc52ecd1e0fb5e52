"""Re-rank the mined lists of a fast model with a slow one, for models too slow to compare all pairs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.console import Progress
from tercet.data.dataset import PairedData
from tercet.data.hard_negatives import I2T, T2I, MinedTable
from tercet.mining.filters import ExcludedPairs, excluded_counts, similarity_caps
from tercet.mining.list_store import ListStore
from tercet.mining.topk import NO_ITEM
from tercet.similarity import SplitScorer
from tercet.storage import atomic_path, seal, sealed_content

if TYPE_CHECKING:
    from tercet.mining.mine import MiningConfig

BATCH_PAIRS = 1 << 16
PROGRESS = "progress.json"


def rerank_lists(
    split_scorer: SplitScorer,
    data: PairedData,
    folder: Path,
    config: "MiningConfig",
    excluded: ExcludedPairs,
    shortlist: MinedTable,
    progress: Progress,
) -> dict[str, int]:
    """Re-rank the lists of both directions in batches, resuming after the last finished one; return excluded counts."""
    caps = similarity_caps(split_scorer, data, config.filters)
    total, captions, skip = len(data.images) + len(data.owners), len(data.owners), config.filters.skip
    directions = (I2T, shortlist.captions, config.captions), (T2I, shortlist.images, config.images)
    stores = [
        ListStore(folder, direction, len(lists), min(k + skip, lists.shape[1]) - skip)
        for direction, lists, k in directions
    ]
    position = _read_progress(folder / PROGRESS, stores)
    bar = progress.bar("re-ranking lists", total)
    for direction, (store, (_, lists, _)) in enumerate(zip(stores, directions, strict=True)):
        step = max(1, BATCH_PAIRS // lists.shape[1])
        for start in range(position["done"][direction], len(lists), step):
            rows = slice(start, min(start + step, len(lists)))
            candidate = torch.from_numpy(lists[rows]).long().sort(dim=1).values  # ties go to the lowest index
            anchor = torch.arange(rows.start, rows.stop)[:, None].expand_as(candidate)
            valid = candidate >= 0
            image, caption = (anchor[valid], candidate[valid]) if direction == 0 else (candidate[valid], anchor[valid])
            similarity = split_scorer.of_pairs(image, caption)
            similarity[excluded.contains(image, caption, captions)] = -torch.inf
            if caps is not None:
                too_similar = similarity > caps[direction][anchor[valid]]
                position["over"][direction] += int(too_similar.sum())
                similarity[too_similar] = -torch.inf
            position["over"][2] += store.write(rows, *_sorted_lists(candidate, valid, similarity), skip=skip)
            store.flush()
            position["done"][direction] = rows.stop
            _write_progress(folder / PROGRESS, position, stores)
            bar.update(sum(position["done"]))
    return excluded_counts(excluded, config.filters, position["over"])


def _sorted_lists(
    candidate: Int[Tensor, "anchor k"], valid: Tensor, pair_similarity: Float[Tensor, " pair"]
) -> tuple[Int[Tensor, "anchor k"], Float[Tensor, "anchor k"]]:
    similarity = torch.full(candidate.shape, -torch.inf)
    similarity[valid] = pair_similarity
    similarity, order = similarity.sort(dim=1, descending=True, stable=True)
    return candidate.gather(1, order).masked_fill(similarity == -torch.inf, NO_ITEM).int(), similarity


def _write_progress(file: Path, position: dict[str, list[int]], stores: Sequence[ListStore]) -> None:
    with atomic_path(file) as temporary:
        content = position | {"checksums": [store.checksums() for store in stores]}
        temporary.write_text(json.dumps(content), encoding="utf-8")
        seal(temporary)


def _read_progress(file: Path, stores: Sequence[ListStore]) -> dict[str, list[int]]:
    """`done`: finished rows per direction; `over`: pairs excluded by margin (i2t, t2i) and entries skipped.

    From the start if the lists or the position are missing or damaged.
    """
    start = {"done": [0, 0], "over": [0, 0, 0]}
    content = sealed_content(file)
    if content is None or any(store.created for store in stores):
        return start
    position = json.loads(content)
    checksums = position.pop("checksums")
    resumed = [store.resume(*found) for store, *found in zip(stores, position["done"], checksums, strict=True)]
    if all(resumed):
        return dict(position)
    for store in stores:
        store.resume(0, [])
    return start
