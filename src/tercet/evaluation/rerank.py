"""A slow matcher looks again at what a fast similarity found: the top k of each query, in both directions."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.contracts import Similarity

Match = Callable[[Int[Tensor, " pair"], Int[Tensor, " pair"]], Float[Tensor, " pair"]]

UNRANKED = -100.0  # of what is not in the top k, as published: behind everything that is


class Reranked(NamedTuple):
    """Both image x caption. Images are queries of the first, captions of the second; they are not comparable."""

    i2t: Similarity
    t2i: Similarity


def rerank(similarity: Similarity, match: Match, *, k: int, pairs_at_once: int = 256) -> Reranked:
    """The value of `match` in place of the similarity for the top k of each query, and UNRANKED elsewhere.

    `match` takes rows of images and of captions, row i of both a pair. Pairs in the top k of both their queries are
    matched once. Where there are fewer than k candidates, all are matched. What is UNRANKED ties: with k of 10 or more,
    no recall up to 10 depends on how ties are ordered, and with fewer the published numbers do.

    >>> similarity = torch.tensor([[0.9, 0.1], [0.8, 0.3]])
    >>> rerank(similarity, lambda images, captions: (images + 10 * captions).float(), k=1).i2t
    tensor([[   0., -100.],
            [   1., -100.]])
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, the number of candidates to look at again, got {k}")
    for_images, for_captions = _top(similarity, k), _top(similarity.T, k).T
    images, captions = (for_images | for_captions).nonzero(as_tuple=True)
    values = torch.full_like(similarity, UNRANKED)
    with torch.no_grad():
        for rows, columns in zip(images.split(pairs_at_once), captions.split(pairs_at_once), strict=True):
            values[rows, columns] = match(rows, columns).to(values)
    return Reranked(i2t=values.masked_fill(~for_images, UNRANKED), t2i=values.masked_fill(~for_captions, UNRANKED))


def _top(similarity: Float[Tensor, "anchor candidate"], k: int) -> Bool[Tensor, "anchor candidate"]:
    top = similarity.topk(min(k, similarity.shape[1]), dim=1).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, top, True)
