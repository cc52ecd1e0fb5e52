"""Shapes of a similarity and of two sides of embeddings: what a healthy space has and an ill one has not (pure)."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.contracts import Similarity

K = 10  # nearest candidates of a query, as in the study of hubs


def spread(similarity: Similarity) -> float:
    """How much a query's candidates differ: their standard deviation, mean over queries, of the flatter direction."""
    return min(float(side.std(dim=1, correction=0).mean()) for side in (similarity, similarity.T))


def k_occurrence(similarity: Float[Tensor, "anchor candidate"], k: int = K) -> Int[Tensor, " candidate"]:
    """In how many anchors' k nearest each candidate stands; among equals the lower index is nearer."""
    k = min(k, similarity.shape[1])
    nearest = similarity.argsort(dim=1, descending=True, stable=True)[:, :k]
    return torch.bincount(nearest.flatten(), minlength=similarity.shape[1])


def skewness(numbers: Int[Tensor, " item"]) -> float:
    """Third moment over the cube of the deviation; 0 where all are equal. A few very large ones make it large."""
    centred = numbers.double() - numbers.double().mean()
    deviation = centred.square().mean().sqrt()
    return float((centred**3).mean() / deviation**3) if deviation > 0 else 0.0


class Gap(NamedTuple):
    """Between the centroids of two sides."""

    distance: float
    width: float
    """Root mean square distance of an item from the centroid of its side, over both sides."""
    told_apart: float
    """Share of items that lie on their side of the plane midway between the centroids; 0.5 is chance."""


def modality_gap(x: Float[Tensor, "image dim"], y: Float[Tensor, "caption dim"]) -> Gap:
    """Both sides count alike, however many items they have."""
    between = x.mean(dim=0) - y.mean(dim=0)
    middle = (x.mean(dim=0) + y.mean(dim=0)) / 2
    widths = [(side - side.mean(dim=0)).square().sum(dim=1).mean() for side in (x, y)]
    apart = [((x - middle) @ between > 0).float().mean(), ((y - middle) @ between < 0).float().mean()]
    return Gap(float(between.norm()), float((sum(widths) / 2) ** 0.5), float(sum(apart) / 2))


def directions(items: Float[Tensor, "item dim"], mean: Float[Tensor, " dim"]) -> Float[Tensor, "item dim"]:
    """Of length 1, seen from the mean.

    What all have in common, such as the mean of features that are never negative, would make everything alike.
    """
    return torch.nn.functional.normalize(items - mean, dim=1)


def nearest_cosine(
    x: Float[Tensor, "item dim"], blocks: Iterable[Float[Tensor, "_ dim"]]
) -> tuple[Float[Tensor, " item"], Int[Tensor, " item"]]:
    """Of each item the cosine of the nearest other and its row; the others come in blocks, and all are of length 1."""
    cosine, nearest = torch.full((len(x),), -torch.inf), torch.zeros(len(x), dtype=torch.int64)
    passed = 0
    for block in blocks:
        found, row = (x @ block.T).max(dim=1)
        nearer = found > cosine  # among equals the first stays
        cosine = torch.where(nearer, found, cosine)
        nearest = torch.where(nearer, row + passed, nearest)
        passed += len(block)
    return cosine, nearest
