"""The 1-based rank of every positive of every query, both directions, by counting and never by sorting.

For a query with positive similarity s_positive and negatives S_negatives (ties against the positive, the default):

    rank_negatives = 1 + (S_negatives >= s_positive).sum()

`rank`, among all candidates, adds the query's own positives that come earlier. The sums are `rank_counts.count_above`,
over all candidates; `_direction_ranks` subtracts the positives. R@1 is `100 * (best <= 1).mean()` of each query's best
rank, in `metrics.direction_metrics`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from tercet.evaluation.blocked_similarity import Tiles
from tercet.evaluation.rank_counts import Items, PositivePairs, Positives, RankCounts, count_above

TIES = ("against", "expected", "optimistic")


@dataclass(frozen=True)
class DirectionRanks:
    """One direction: 1-based ranks of the candidate of each positive pair; fractional if ties are "expected"."""

    anchor: Items
    candidate: Items
    rank: Float[np.ndarray, " pair"]
    """Among all candidates."""
    rank_negatives: Float[np.ndarray, " pair"]
    """Among this positive and the anchor's negatives."""
    ahead: Int[np.ndarray, " pair"]
    """Number of negatives ranked above it for every order of ties."""
    tied: Int[np.ndarray, " pair"]
    """Number of negatives of equal similarity if ties are "expected", else 0."""
    candidates: int


@dataclass(frozen=True)
class RankTable:
    """The arrays of `ranks.npz`: one value per positive pair, both directions."""

    arrays: Mapping[str, np.ndarray]

    @property
    def symmetric(self) -> bool:
        """Whether both directions have the same pairs."""
        return "image" in self.arrays

    def image(self, direction: str) -> Items:
        """The image of each pair; pairs differ by direction if the positives do."""
        return self.arrays["image"] if self.symmetric else self.arrays[f"{direction}_image"]

    def caption(self, direction: str) -> Items:
        return self.arrays["caption"] if "caption" in self.arrays else self.arrays[f"{direction}_caption"]

    def anchor(self, direction: str) -> Items:
        """The query of each pair."""
        return self.image(direction) if direction == "i2t" else self.caption(direction)

    def rank(self, direction: str) -> np.ndarray:
        """The rank of each pair's candidate among all candidates."""
        return self.arrays[f"{direction}_rank"]

    def rank_negatives(self, direction: str) -> np.ndarray:
        """The same among the negatives of the query."""
        return self.arrays[f"{direction}_rank_negatives"]

    def best(self, direction: str) -> np.ndarray:
        """The rank of each query's best positive; infinity for a query without any."""
        anchor = self.anchor(direction)
        best = np.full(anchor.max() + 1, np.inf)
        np.minimum.at(best, anchor, self.rank(direction))
        return best

    def shares_ahead(self, images: int | None = None, captions: int | None = None) -> tuple[float, float]:
        """Mean share of negatives ranked ahead of a positive, image to text and text to image.

        The numbers of images and captions of the split are taken from the pairs if they are not given.
        """
        image = self.image("i2t")
        images, captions = images or int(image.max()) + 1, captions or int(self.caption("t2i").max()) + 1
        negative_captions = captions - np.bincount(image, minlength=images)[image]
        i2t = (self.rank_negatives("i2t") - 1) / np.maximum(negative_captions, 1)
        return float(np.mean(i2t)), float(np.mean((self.rank_negatives("t2i") - 1) / max(images - 1, 1)))


@dataclass(frozen=True)
class Ranks:
    """The ranks that a run stores: enough for every metric and for comparing runs query by query."""

    i2t: DirectionRanks
    t2i: DirectionRanks
    symmetric: bool

    def with_rows(self, images: Int[np.ndarray, " image"], captions: Int[np.ndarray, " caption"]) -> "Ranks":
        """Return the same ranks with the rows of a subset replaced by rows of the whole split."""
        i2t, t2i = self.i2t, self.t2i
        return Ranks(
            replace(i2t, anchor=images[i2t.anchor], candidate=captions[i2t.candidate]),
            replace(t2i, anchor=captions[t2i.anchor], candidate=images[t2i.candidate]),
            self.symmetric,
        )

    def table(self) -> RankTable:
        return RankTable(self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the named arrays of `ranks.npz`, one value per pair.

        If positives differ by direction, each direction has its own pair arrays.
        """
        directions = {"i2t": self.i2t, "t2i": self.t2i}
        pairs = {"i2t": (self.i2t.anchor, self.i2t.candidate), "t2i": (self.t2i.candidate, self.t2i.anchor)}
        arrays: dict[str, np.ndarray] = {}
        if self.symmetric:
            arrays["image"], arrays["caption"] = pairs["i2t"]
        for direction, ranks in directions.items():
            if not self.symmetric:
                arrays[f"{direction}_image"], arrays[f"{direction}_caption"] = pairs[direction]
            arrays[f"{direction}_rank"] = _as_integers(ranks.rank)
            arrays[f"{direction}_rank_negatives"] = _as_integers(ranks.rank_negatives)
        return arrays


def concat_ranks(folds: list[Ranks]) -> Ranks:
    """Concatenate the ranks of disjoint folds."""
    return Ranks(
        _concat_directions([fold.i2t for fold in folds]),
        _concat_directions([fold.t2i for fold in folds]),
        all(fold.symmetric for fold in folds),
    )


def rank_positives(tiles: Tiles, positives: Positives, *, ties: str = "against") -> Ranks:
    """Return the ranks of all positive pairs.

    On a tie the negative ranks first, so that a collapsed model has recall 0 rather than a random one; "optimistic"
    ranks the positive first, "expected" gives the mean over all orders of tied candidates.
    """
    return rank_annotations(tiles, [positives], ties=ties)[0]


def rank_annotations(tiles: Tiles, annotations: list[Positives], *, ties: str = "against") -> list[Ranks]:
    """Return the ranks under several annotations of the same items, computing the similarities once."""
    if ties not in TIES:
        raise ValueError(f"ties {ties!r} is not one of {', '.join(TIES)}")
    i2t, t2i = [positives.i2t for positives in annotations], [positives.t2i for positives in annotations]
    if not any(len(pairs.image) for pairs in (*i2t, *t2i)):
        raise ValueError("no query has a positive: there is nothing to evaluate")
    comparisons = {"ge": ties != "optimistic", "gt": ties != "against"}
    i2t_counts, t2i_counts = count_above(tiles, _concat_pairs(i2t), _concat_pairs(t2i), **comparisons)
    return [
        Ranks(
            _direction_ranks(positives.i2t.image, positives.i2t.caption, image_counts, tiles.captions),
            _direction_ranks(positives.t2i.caption, positives.t2i.image, caption_counts, tiles.images),
            positives.symmetric,
        )
        for positives, image_counts, caption_counts in zip(
            annotations, i2t_counts.split(i2t), t2i_counts.split(t2i), strict=True
        )
    ]


def _concat_pairs(lists: list[PositivePairs]) -> PositivePairs:
    return PositivePairs(
        np.concatenate([pairs.image for pairs in lists]), np.concatenate([pairs.caption for pairs in lists])
    )


def _concat_directions(folds: list[DirectionRanks]) -> DirectionRanks:
    return DirectionRanks(
        np.concatenate([fold.anchor for fold in folds]),
        np.concatenate([fold.candidate for fold in folds]),
        np.concatenate([fold.rank for fold in folds]),
        np.concatenate([fold.rank_negatives for fold in folds]),
        np.concatenate([fold.ahead for fold in folds]),
        np.concatenate([fold.tied for fold in folds]),
        folds[0].candidates,
    )


def _direction_ranks(anchor: Items, candidate: Items, counts: RankCounts, candidates: int) -> DirectionRanks:
    """Turn counts over all candidates into ranks: subtract the anchor's own positives, then apply ties."""
    similarity = counts.similarity
    order = np.lexsort((-similarity, anchor))
    first, _ = _runs(anchor[order])
    earlier_positives = np.arange(len(order)) - first  # of the same anchor, most similar first
    tie_first, tie_end = _runs(anchor[order], similarity[order])
    negatives_ge = None if counts.ge is None else counts.ge[order] - (tie_end - first)
    negatives_gt = None if counts.gt is None else counts.gt[order] - (tie_first - first)
    ahead = negatives_ge if negatives_gt is None else negatives_gt
    assert ahead is not None
    tied = np.zeros_like(ahead) if negatives_ge is None else negatives_ge - ahead
    nth, tied_positives = np.arange(len(order)) - tie_first + 1, tie_end - tie_first
    rank_negatives = 1 + ahead + nth * tied / (tied_positives + 1)
    rank = rank_negatives + earlier_positives
    inverse = np.argsort(order)
    return DirectionRanks(
        anchor, candidate, rank[inverse], rank_negatives[inverse], ahead[inverse], tied[inverse], candidates
    )


def _runs(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, per element of sorted keys, the start and the end of its run of equal keys."""
    changes = np.zeros(len(keys[0]), dtype=bool)
    changes[:1] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    starts = np.flatnonzero(changes)
    run = np.cumsum(changes) - 1
    return starts[run], np.append(starts[1:], len(changes))[run]


def _as_integers(ranks: np.ndarray) -> np.ndarray:
    """Convert to int64 unless some rank is fractional (ties "expected")."""
    return ranks.astype(np.int64) if (ranks == np.floor(ranks)).all() else ranks
