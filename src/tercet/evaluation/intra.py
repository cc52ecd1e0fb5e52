"""Recalls within one side, image to image and caption to caption, as CxC annotates them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.evaluation.ahead import count_ahead
from tercet.evaluation.metrics import CUTOFFS
from tercet.evaluation.pairs import Pairs
from tercet.evaluation.tiles import tiles_of_embeddings

# From this rating on, of 0 to 5, two items count as positives of each other.
IMAGE_THRESHOLD, CAPTION_THRESHOLD = 2.5, 3.0


def intra_recalls(
    x: Float[Tensor, "item dim"], positives: Pairs, *, own_similarity: float | None = None
) -> dict[str, float]:
    """R@1, 5 and 10 in percent of items with a positive, every item a query among all the others.

    The item itself is no candidate. The published evaluation gives it similarity 0 instead, ahead of whatever is
    below: `own_similarity=0` is that.
    """
    others = positives.image != positives.caption
    item, other = positives.image[others], positives.caption[others]
    if not len(item):
        raise ValueError("no query has a positive: there is nothing to evaluate")
    own = np.unique(item)
    nothing = Pairs.of([])
    found, _ = count_ahead(tiles_of_embeddings(x, x), Pairs(np.append(item, own), np.append(other, own)), nothing)
    assert found.reaching is not None
    similarity, reaching = found.similarity[: len(item)], found.reaching[: len(item)]
    best = np.lexsort((-similarity, item))[np.searchsorted(np.sort(item), own)]
    ties = np.bincount(item, similarity == similarity[best][np.searchsorted(own, item)])[own]
    itself = found.similarity[len(item) :] >= similarity[best]
    rank = 1 + reaching[best] - ties - itself  # the best positive's own equals are no negatives, and nor is the item
    if own_similarity is not None:
        rank += similarity[best] <= own_similarity
    return {f"r{k}": 100 * float((rank <= k).mean()) for k in CUTOFFS}


def rated_pairs(
    ratings: Mapping[int, Sequence[tuple[int, float]]], ids: Int[np.ndarray, " item"], threshold: float
) -> Pairs:
    """Pairs of rows whose rating reaches the threshold; ids that are not among the rows are left out."""
    row = {each: place for place, each in enumerate(ids.tolist())}
    return Pairs.of(
        (row[each], row[other])
        for each, rated in ratings.items()
        if each in row
        for other, rating in rated
        if other in row and rating >= threshold
    )


def siblings(owners: Int[Tensor, " caption"]) -> Pairs:
    """Every two captions of one image."""
    order = torch.argsort(owners, stable=True).tolist()
    sorted_owners = owners[order].tolist()
    pairs, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or sorted_owners[end] != sorted_owners[start]:
            group = order[start:end]
            pairs += [(a, b) for a in group for b in group if a != b]
            start = end
    return Pairs.of(pairs)
