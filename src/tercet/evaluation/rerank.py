"""Re-ranking: a slow matcher scores the top k candidates of a fast similarity, per query and in both directions."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.types import Similarity

Match = Callable[[Int[Tensor, " pair"], Int[Tensor, " pair"]], Float[Tensor, " pair"]]

UNRANKED = -100.0  # value of candidates outside the top k, as published: below every candidate inside


class Reranked(NamedTuple):
    """Both are image x caption. Rows are queries in i2t, columns in t2i; values of the two are not comparable."""

    i2t: Similarity
    t2i: Similarity


def rerank(similarity: Similarity, match: Match, *, k: int, batch_size: int = 256) -> Reranked:
    """Replace the similarity of each query's top k by `match`, and everything else by UNRANKED.

    `match` takes image rows and caption rows, element i of both is a pair. It gets `batch_size` pairs per call; pairs
    in the top k of both their queries are matched once. With fewer than k candidates, all are matched. UNRANKED
    candidates tie: for k >= 10 no recall up to 10 depends on the order of ties; for smaller k the published numbers do.

    >>> similarity = torch.tensor([[0.9, 0.1], [0.8, 0.3]])
    >>> rerank(similarity, lambda images, captions: (images + 10 * captions).float(), k=1).i2t
    tensor([[   0., -100.],
            [   1., -100.]])
    """
    if k < 1:
        raise ValueError(f"k must be at least 1 (candidates to re-rank per query), got {k}")
    in_i2t_top, in_t2i_top = _top_k_mask(similarity, k), _top_k_mask(similarity.T, k).T
    images, captions = (in_i2t_top | in_t2i_top).nonzero(as_tuple=True)
    values = torch.full_like(similarity, UNRANKED)
    with torch.no_grad():
        for rows, columns in zip(images.split(batch_size), captions.split(batch_size), strict=True):
            values[rows, columns] = match(rows, columns).to(values)
    return Reranked(i2t=values.masked_fill(~in_i2t_top, UNRANKED), t2i=values.masked_fill(~in_t2i_top, UNRANKED))


def _top_k_mask(similarity: Float[Tensor, "anchor candidate"], k: int) -> Bool[Tensor, "anchor candidate"]:
    top = similarity.topk(min(k, similarity.shape[1]), dim=1).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, top, True)
