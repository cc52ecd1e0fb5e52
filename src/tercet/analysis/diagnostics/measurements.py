"""Measurements of `tercet doctor`: the record of a run, and pure statistics of similarities, embeddings, gradients."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, isnan, nan
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.interfaces import Objective
from tercet.objectives.aoq import BoundAOQ
from tercet.types import IMAGE_TEXT, PairMask, Sides, Similarity

CHANCE_LEVEL = 0.45  # mean share of negatives ranked ahead of a positive; 0.5 is chance
CLEAR_RISE = 0.1  # rise of validation that is more than the noise of one epoch
MAX_FALL_WHILE_RISING = 0.05
NEIGHBORS = 10  # nearest candidates of a query, as in the hubness literature
SILENT_BELOW = 0.01  # share of the gradient that a query has before anything is learned


@dataclass(frozen=True)
class Measurements:
    """All measurements of a run; None where a measurement does not apply."""

    spread: float
    """Standard deviation of a query's similarities, mean over queries, smaller of both directions."""
    hub_captions: float
    """Skewness of how often each caption is among the 10 nearest of an image."""
    hub_images: float
    """Skewness of how often each image is among the 10 nearest of a caption."""
    largest_hub: float
    """Share of the queries of a direction that have its most frequent candidate among their 10 nearest."""
    gap: float
    """Distance between the image centroid and the caption centroid, divided by the width of a modality."""
    separable_share: float
    """Share of embeddings on their modality's side of the plane midway between the centroids; 0.5 is chance."""
    evenness: float | None
    """Normalized entropy of the weights of a query's negatives, for objectives with a temperature."""
    hardest_share: float | None
    """Share of the hardest negative in these weights, above a uniform share."""
    silent: float
    """Share of training queries with (almost) no gradient."""
    duplicates: float
    """Share of training queries whose hardest negative has a near-duplicate caption."""
    leaked: float
    """Share of held-out images that are also training images."""
    ahead_i2t: float
    """Mean share of negatives ranked ahead of a positive."""
    ahead_t2i: float
    images: int
    """Number of held-out images, before sampling."""
    validations: int
    """Number of validated epochs; 0 without a validation split."""
    rise: float | None
    """Rise of validation over the last third of the epochs, divided by its best value."""
    fall: float | None
    """Fall of validation from its best to its last epoch, divided by its best value."""
    train_rsum: float
    """On as many training images as there are held-out images."""
    held_out_rsum: float
    augmentations: tuple[str, ...] = ()
    """Settings that augment the inputs of this model."""
    sides: Sides = IMAGE_TEXT

    def numbers(self) -> dict[str, Any]:
        """Name -> measurement."""
        return {name: value for name, value in asdict(self).items() if name not in ("sides", "augmentations")}

    @property
    def imbalance(self) -> float:
        """Ratio of `ahead` in the worse direction to the better; one rank is added to both, to damp noise near 0."""
        one_rank = 1 / self.images
        worse, better = nan_max(self.ahead_i2t, self.ahead_t2i), min(self.ahead_i2t, self.ahead_t2i)
        return (worse + one_rank) / (better + one_rank)

    @property
    def hubness(self) -> float:
        return nan_max(self.hub_captions, self.hub_images)

    @property
    def is_at_chance(self) -> bool:
        return min(self.ahead_i2t, self.ahead_t2i) > CHANCE_LEVEL

    @property
    def is_rising(self) -> bool:
        """Whether validation rose clearly, ended near its best, and the model is above chance."""
        return not self.is_at_chance and (self.rise or 0) > CLEAR_RISE and (self.fall or 0) <= MAX_FALL_WHILE_RISING

    @property
    def non_finite(self) -> list[str]:
        """Names of the measurements that are NaN or infinite."""
        return [name for name, value in self.numbers().items() if value is not None and not isfinite(value)]


def nan_max(a: float, b: float) -> float:
    """The larger number, or NaN if either is NaN; the result of `max` would depend on their order."""
    return nan if isnan(a) or isnan(b) else max(a, b)


def rise_and_fall(curve: Sequence[float]) -> tuple[float | None, float | None]:
    """Rise of validation over the last third of the epochs, and its fall after its best epoch; see `Measurements`.

    None if there is only one epoch or nothing was learned, NaN if a value is not finite.
    """
    if not all(map(isfinite, curve)):
        return nan, nan
    if len(curve) < 2 or max(curve) <= 0:
        return None, None
    before, best = curve[-1 - -(-len(curve) // 3)], max(curve)
    return (curve[-1] - before) / best, (best - curve[-1]) / best


def spread(similarity: Similarity) -> float:
    """Standard deviation of a query's similarities, mean over queries, smaller of both directions."""
    return min(float(rows.std(dim=1, correction=0).mean()) for rows in (similarity, similarity.T))


def k_occurrence(similarity: Float[Tensor, "anchor candidate"], k: int = NEIGHBORS) -> Int[Tensor, " candidate"]:
    """For each candidate, the number of anchors that have it among their k nearest; ties go to the lower index."""
    k = min(k, similarity.shape[1])
    nearest = similarity.argsort(dim=1, descending=True, stable=True)[:, :k]
    return torch.bincount(nearest.flatten(), minlength=similarity.shape[1])


def skewness(counts: Int[Tensor, " item"]) -> float:
    """Third standardized moment; 0 if all counts are equal. A few very large counts make it large."""
    centred = counts.double() - counts.double().mean()
    deviation = centred.square().mean().sqrt()
    return float((centred**3).mean() / deviation**3) if deviation > 0 else 0.0


class Gap(NamedTuple):
    """Modality gap between image and caption embeddings."""

    distance: float
    """Between the two centroids."""
    width: float
    """Root mean square distance of an embedding from the centroid of its modality, over both modalities."""
    separable_share: float
    """Share of embeddings on their modality's side of the plane midway between the centroids; 0.5 is chance."""


def modality_gap(x: Float[Tensor, "image dim"], y: Float[Tensor, "caption dim"]) -> Gap:
    """Both modalities have equal weight, regardless of their sizes."""
    between = x.mean(dim=0) - y.mean(dim=0)
    middle = (x.mean(dim=0) + y.mean(dim=0)) / 2
    variances = [(items - items.mean(dim=0)).square().sum(dim=1).mean() for items in (x, y)]
    apart = [((x - middle) @ between > 0).float().mean(), ((y - middle) @ between < 0).float().mean()]
    return Gap(float(between.norm()), float((sum(variances) / 2) ** 0.5), float(sum(apart) / 2))


def center_and_normalize(items: Float[Tensor, "item dim"], mean: Float[Tensor, " dim"]) -> Float[Tensor, "item dim"]:
    """Subtract the mean and scale to length 1.

    Without centring, a component shared by all items, such as the mean of non-negative features, would make all
    cosines large.
    """
    return torch.nn.functional.normalize(items - mean, dim=1)


def nearest_cosine(
    x: Float[Tensor, "item dim"], blocks: Iterable[Float[Tensor, "_ dim"]]
) -> tuple[Float[Tensor, " item"], Int[Tensor, " item"]]:
    """For each row of x, the largest cosine with a row of the blocks, and that row's index. All rows have length 1."""
    best, nearest = torch.full((len(x),), -torch.inf), torch.zeros(len(x), dtype=torch.int64)
    offset = 0
    for block in blocks:
        cosine, row = (x @ block.T).max(dim=1)
        is_nearer = cosine > best  # ties go to the first row
        best = torch.where(is_nearer, cosine, best)
        nearest = torch.where(is_nearer, row + offset, nearest)
        offset += len(block)
    return best, nearest


class GradientStats(NamedTuple):
    """Per query; i2t queries first, then t2i queries."""

    silent: Float[Tensor, " query"]
    """1 if the query's gradient is at most 1 % of its gradient at equal similarities, else 0; NaN if not finite."""
    evenness: Float[Tensor, " pushing"]
    """For queries that push negatives: normalized entropy of the negatives' shares; 1 is uniform, 0 is one negative."""
    hardest_share: Float[Tensor, " pushing"]
    """Largest share above a uniform share: 1 is one negative, 0 is uniform, for any number of negatives."""


@torch.no_grad()
def gradient_stats(
    objective: Objective,
    similarity: Similarity,
    positives: PairMask,
    ignored: PairMask | None = None,
) -> GradientStats:
    """Statistics of an objective's pair gradients on one batch."""
    similarity, zeros = similarity.double(), torch.zeros_like(similarity, dtype=torch.float64)
    gradients = objective.pair_gradients(similarity, positives, ignored)
    if isinstance(objective, BoundAOQ):
        objective = objective.objective.bind(torch.zeros_like(objective.mined))
    unlearned = objective.pair_gradients(zeros, positives, ignored)
    negatives = ~positives if ignored is None else ~positives & ~ignored
    i2t = _direction_stats(gradients[0].abs(), unlearned[0].abs(), negatives)
    t2i = _direction_stats(gradients[1].abs().T, unlearned[1].abs().T, negatives.T)
    return GradientStats(*(torch.cat(both) for both in zip(i2t, t2i, strict=True)))


def _direction_stats(
    gradient: Float[Tensor, "anchor candidate"],
    unlearned: Float[Tensor, "anchor candidate"],
    negatives: Bool[Tensor, "anchor candidate"],
) -> GradientStats:
    size, unlearned_size = gradient.sum(dim=1), unlearned.sum(dim=1)
    # Some objectives have no gradient at equal similarities: then compare with the largest query.
    reference = torch.where(unlearned_size > 0, unlearned_size, size.max() if len(size) else 0.0)
    push = gradient * negatives
    pushing = (push.sum(dim=1) > 0) & (negatives.sum(dim=1) > 1)
    shares = push[pushing] / push[pushing].sum(dim=1, keepdim=True)
    count = negatives[pushing].sum(dim=1).to(shares.dtype)
    largest = shares.max(dim=1).values if len(shares) else count
    return GradientStats(
        (size <= SILENT_BELOW * reference).to(gradient.dtype).masked_fill(~size.isfinite(), torch.nan),
        torch.special.entr(shares).sum(dim=1) / count.log(),
        (largest - 1 / count) / (1 - 1 / count),
    )
