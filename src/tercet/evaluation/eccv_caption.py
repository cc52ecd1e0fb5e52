"""Additional positives of the COCO test images, ECCV Caption and CxC, read from the PyPI package `eccv_caption`.

Also the intra-modal recalls of CxC, image to image and caption to caption.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.evaluation.blocked_similarity import tiles_of_embeddings
from tercet.evaluation.metrics import CUTOFFS
from tercet.evaluation.rank_counts import PositivePairs, Positives, count_above

PACKAGE = "eccv_caption"
# CxC ratings are 0 to 5; from these thresholds on, two items are positives of each other.
IMAGE_THRESHOLD, CAPTION_THRESHOLD = 2.5, 3.0

ImageIds = Int[np.ndarray, " image"]
CaptionIds = Int[np.ndarray, " caption"]


@dataclass(frozen=True)
class CocoTest:
    """COCO ids of the 5,000 test images and their 25,000 captions, in the published order: five folds of 1,000."""

    image_ids: ImageIds
    caption_ids: CaptionIds
    owners: Int[np.ndarray, " caption"]


def is_installed() -> bool:
    return find_spec(PACKAGE) is not None


@cache
def coco_test() -> CocoTest:
    """Return the test split in the order of the package's caption list; the five captions of an image are adjacent."""
    caption_ids = np.load(_folder() / "coco_test_ids.npy").astype(np.int64)
    owner_of = _read("original_caption_to_image.json")
    owner_ids = np.array([owner_of[caption][0] for caption in caption_ids.tolist()])
    image_ids, first, inverse = np.unique(owner_ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return CocoTest(image_ids[order], caption_ids, np.argsort(order)[inverse])


def annotated_positives(name: str, image_ids: ImageIds, caption_ids: CaptionIds) -> Positives:
    """Return the positives of "eccv" or "cxc", one list per direction; pairs with an id not given are dropped."""
    return positives_of_lists(
        _read(f"{name}_image_to_caption.json"), _read(f"{name}_caption_to_image.json"), image_ids, caption_ids
    )


def positives_of_lists(
    captions_of: dict[int, list[int]], images_of: dict[int, list[int]], image_ids: ImageIds, caption_ids: CaptionIds
) -> Positives:
    """Convert lists of ids (captions of each image, images of each caption) to pairs of rows."""
    rows, columns = _row_by_id(image_ids), _row_by_id(caption_ids)
    i2t = [(rows[i], columns[j]) for i, listed in captions_of.items() if i in rows for j in listed if j in columns]
    t2i = [(rows[i], columns[j]) for j, listed in images_of.items() if j in columns for i in listed if i in rows]
    return Positives(PositivePairs.of(i2t), PositivePairs.of(t2i))


def intra_recalls(
    x: Float[Tensor, "item dim"], positives: PositivePairs, *, own_similarity: float | None = None
) -> dict[str, float]:
    """Return R@1, 5 and 10 in percent over items with a positive; each item is a query against all others.

    The item itself is not a candidate. The published evaluation instead gives it similarity 0, which ranks it above
    every candidate below 0: `own_similarity=0` reproduces that.
    """
    not_self = positives.image != positives.caption
    item, other = positives.image[not_self], positives.caption[not_self]
    if not len(item):
        raise ValueError("no query has a positive: there is nothing to evaluate")
    queries = np.unique(item)
    no_pairs = PositivePairs.of([])
    counts, _ = count_above(
        tiles_of_embeddings(x, x), PositivePairs(np.append(item, queries), np.append(other, queries)), no_pairs
    )
    assert counts.ge is not None
    similarity, ge = counts.similarity[: len(item)], counts.ge[: len(item)]
    best = np.lexsort((-similarity, item))[np.searchsorted(np.sort(item), queries)]
    ties = np.bincount(item, similarity == similarity[best][np.searchsorted(queries, item)])[queries]
    itself = counts.similarity[len(item) :] >= similarity[best]
    rank = 1 + ge[best] - ties - itself  # positives tied with the best one and the item itself are not negatives
    if own_similarity is not None:
        rank += similarity[best] <= own_similarity
    return {f"r{k}": 100 * float((rank <= k).mean()) for k in CUTOFFS}


def rated_pairs(
    ratings: Mapping[int, Sequence[tuple[int, float]]], ids: Int[np.ndarray, " item"], threshold: float
) -> PositivePairs:
    """Return pairs of rows with a rating of at least `threshold`; ids that are not among the rows are dropped."""
    rows = _row_by_id(ids)
    return PositivePairs.of(
        (rows[item], rows[other])
        for item, rated in ratings.items()
        if item in rows
        for other, rating in rated
        if other in rows and rating >= threshold
    )


def siblings(owners: Int[Tensor, " caption"]) -> PositivePairs:
    """Return all pairs of captions of the same image."""
    order = torch.argsort(owners, stable=True).tolist()
    sorted_owners = owners[order].tolist()
    pairs, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or sorted_owners[end] != sorted_owners[start]:
            group = order[start:end]
            pairs += [(a, b) for a in group for b in group if a != b]
            start = end
    return PositivePairs.of(pairs)


def _row_by_id(ids: Int[np.ndarray, " item"]) -> dict[int, int]:
    return {item_id: row for row, item_id in enumerate(ids.tolist())}


@cache
def _read(name: str) -> dict[int, list[int]]:
    lists = json.loads((_folder() / name).read_text())
    return {int(key): [int(value) for value in values] for key, values in lists.items()}


def _folder() -> Path:
    # Located without importing it: the import warns about packages that are not needed here.
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(f"this protocol needs the annotations of {PACKAGE}: pip install 'tercet[eccv]'")
    return Path(spec.origin).parent / "data"
