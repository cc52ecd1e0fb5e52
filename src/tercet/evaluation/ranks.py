"""The rank of every positive of every query, both directions, by counting what is ahead and never by sorting."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from tercet.evaluation.ahead import Ahead, count_ahead
from tercet.evaluation.pairs import Items, Pairs, Positives
from tercet.evaluation.tiles import Tiles

TIES = ("against", "expected", "optimistic")


@dataclass(frozen=True)
class DirectionRanks:
    """One direction: of each positive pair the ranks of its candidate, 1-based; fractions where ties are expected."""

    anchor: Items
    candidate: Items
    rank: Float[np.ndarray, " pair"]
    """Among all candidates."""
    rank_negatives: Float[np.ndarray, " pair"]
    """Among the negatives of the anchor and this positive alone."""
    ahead: Int[np.ndarray, " pair"]
    """Negatives that come before it whatever the ties do."""
    tied: Int[np.ndarray, " pair"]
    """Negatives of equal similarity, where ties are expected; elsewhere 0."""
    candidates: int


@dataclass(frozen=True)
class Ranks:
    """What a run keeps of an evaluation: enough for every metric, and for comparing runs query by query."""

    i2t: DirectionRanks
    t2i: DirectionRanks
    symmetric: bool

    def with_rows(self, images: Int[np.ndarray, " image"], captions: Int[np.ndarray, " caption"]) -> "Ranks":
        """The same ranks, with rows of a whole split in place of the rows of a part of it."""
        i2t, t2i = self.i2t, self.t2i
        return Ranks(
            replace(i2t, anchor=images[i2t.anchor], candidate=captions[i2t.candidate]),
            replace(t2i, anchor=captions[t2i.anchor], candidate=images[t2i.candidate]),
            self.symmetric,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Named arrays, one number a pair: for a file. Where positives differ by direction, each has its own pairs."""
        sides = {"i2t": self.i2t, "t2i": self.t2i}
        pairs = {"i2t": (self.i2t.anchor, self.i2t.candidate), "t2i": (self.t2i.candidate, self.t2i.anchor)}
        arrays: dict[str, np.ndarray] = {}
        if self.symmetric:
            arrays["image"], arrays["caption"] = pairs["i2t"]
        for side, ranks in sides.items():
            if not self.symmetric:
                arrays[f"{side}_image"], arrays[f"{side}_caption"] = pairs[side]
            arrays[f"{side}_rank"] = _whole(ranks.rank)
            arrays[f"{side}_rank_negatives"] = _whole(ranks.rank_negatives)
        return arrays


def joined(parts: list[Ranks]) -> Ranks:
    """Ranks of disjoint folds, one after the other."""
    return Ranks(
        _stacked([each.i2t for each in parts]),
        _stacked([each.t2i for each in parts]),
        all(each.symmetric for each in parts),
    )


def rank_positives(tiles: Tiles, positives: Positives, *, ties: str = "against") -> Ranks:
    """Ranks of all positive pairs. On a tie the negative comes first, so that a collapsed model scores 0, not luck;
    "optimistic" puts the positive first, "expected" gives the mean over all orders of what is tied."""
    return rank_several(tiles, [positives], ties=ties)[0]


def rank_several(tiles: Tiles, annotations: list[Positives], *, ties: str = "against") -> list[Ranks]:
    """Ranks under several annotations of the same items, from one computation of the similarities."""
    if ties not in TIES:
        raise ValueError(f"ties {ties!r} is not one of {', '.join(TIES)}")
    i2t, t2i = [each.i2t for each in annotations], [each.t2i for each in annotations]
    if not any(len(pairs.image) for pairs in (*i2t, *t2i)):
        raise ValueError("no query has a positive: there is nothing to evaluate")
    wanted = {"reaching": ties != "optimistic", "passing": ties != "against"}
    for_images, for_captions = count_ahead(tiles, _chained(i2t), _chained(t2i), **wanted)
    return [
        Ranks(
            _direction(each.i2t.image, each.i2t.caption, for_image, tiles.captions),
            _direction(each.t2i.caption, each.t2i.image, for_caption, tiles.images),
            each.symmetric,
        )
        for each, for_image, for_caption in zip(
            annotations, for_images.split(i2t), for_captions.split(t2i), strict=True
        )
    ]


def _chained(lists: list[Pairs]) -> Pairs:
    return Pairs(np.concatenate([each.image for each in lists]), np.concatenate([each.caption for each in lists]))


def _stacked(parts: list[DirectionRanks]) -> DirectionRanks:
    return DirectionRanks(
        np.concatenate([each.anchor for each in parts]),
        np.concatenate([each.candidate for each in parts]),
        np.concatenate([each.rank for each in parts]),
        np.concatenate([each.rank_negatives for each in parts]),
        np.concatenate([each.ahead for each in parts]),
        np.concatenate([each.tied for each in parts]),
        parts[0].candidates,
    )


def _direction(anchor: Items, candidate: Items, found: Ahead, candidates: int) -> DirectionRanks:
    """From counts over all candidates to counts over negatives: the anchor's own positives are taken out."""
    similarity = found.similarity
    order = np.lexsort((-similarity, anchor))
    first, _ = _runs(anchor[order])
    place = np.arange(len(order)) - first  # 0-based among the anchor's own positives, the most similar first
    group_first, group_end = _runs(anchor[order], similarity[order])
    negatives_reaching = None if found.reaching is None else found.reaching[order] - (group_end - first)
    negatives_passing = None if found.passing is None else found.passing[order] - (group_first - first)
    ahead = negatives_reaching if negatives_passing is None else negatives_passing
    assert ahead is not None
    tied = np.zeros_like(ahead) if negatives_reaching is None else negatives_reaching - ahead
    nth, equals = np.arange(len(order)) - group_first + 1, group_end - group_first
    rank_negatives = 1 + ahead + nth * tied / (equals + 1)
    back = np.argsort(order)
    return DirectionRanks(
        anchor, candidate, (rank_negatives + place)[back], rank_negatives[back], ahead[back], tied[back], candidates
    )


def _runs(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each element of sorted keys: where its run of equal keys begins, and where it ends."""
    changes = np.zeros(len(keys[0]), dtype=bool)
    changes[:1] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    starts = np.flatnonzero(changes)
    run = np.cumsum(changes) - 1
    return starts[run], np.append(starts[1:], len(changes))[run]


def _whole(ranks: np.ndarray) -> np.ndarray:
    """Ranks are whole numbers unless ties are expected; a file need not hold them as fractions."""
    return ranks.astype(np.int64) if (ranks == np.floor(ranks)).all() else ranks
