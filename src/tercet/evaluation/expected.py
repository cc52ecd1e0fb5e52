"""Metrics as exact means over all orders of what is tied, none of which are drawn.

A block is a run of equally similar candidates of one query: p positives and g negatives, after `ahead` negatives and
`before` positives. In a random order each of its places holds a positive with probability p / (p + g).
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Int

PerBlock = Int[np.ndarray, " block"]
PUBLISHED_DEPTH = 5


@dataclass(frozen=True)
class Blocks:
    """All blocks that hold a positive, in order of query (counted from 0) and rank."""

    query: PerBlock
    ahead: PerBlock
    before: PerBlock
    negatives: PerBlock
    positives: PerBlock
    wanted: Int[np.ndarray, " query"]
    """Positives of each query in all."""

    @staticmethod
    def of(query: np.ndarray, ahead: np.ndarray, tied: np.ndarray, wanted: np.ndarray) -> "Blocks":
        """From the positives in order of query and rank. Equal counts ahead and beside: one block, or as good as."""
        changes = np.ones(len(query), dtype=bool)
        changes[1:] = (np.diff(query) != 0) | (np.diff(ahead) != 0) | (np.diff(tied) != 0)
        start = np.flatnonzero(changes)
        first_of_query = np.cumsum(wanted) - wanted
        return Blocks(
            query[start],
            ahead[start],
            start - first_of_query[query[start]],
            tied[start],
            np.diff(np.append(start, len(query))),
            wanted,
        )

    @property
    def skipped(self) -> PerBlock:
        """Candidates that come before the block."""
        return self.ahead + self.before

    @property
    def size(self) -> PerBlock:
        return self.positives + self.negatives

    def recall(self, k: int) -> np.ndarray:
        """Of each query, the probability that any positive is in the top k."""
        first = np.flatnonzero(self.before == 0)  # one block of every query
        p, g, ahead = self.positives[first], self.negatives[first], self.ahead[first]
        missed = np.ones(len(first))
        for t in range(k):
            missed *= np.where(t < k - ahead, np.maximum(g - t, 0) / np.maximum(g + p - t, 1), 1.0)
        return 1 - missed


def expected_hits(blocks: Blocks, candidates: int) -> dict[str, np.ndarray]:
    """Of each query the expected value of every metric that looks deeper than the best positive."""
    wanted = blocks.wanted
    discount = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, candidates + 2))))
    gain = blocks.positives / blocks.size * (discount[blocks.skipped + blocks.size] - discount[blocks.skipped])
    precision_5, _ = _to_depth(blocks, np.full(len(wanted), 5))
    precision_r, hits_r = _to_depth(blocks, wanted)
    return {
        "map5": precision_5 / np.minimum(wanted, 5),
        "map5_published": _published(blocks),
        "rprecision": hits_r / wanted,
        "map_r": precision_r / wanted,
        "ndcg": np.bincount(blocks.query, gain) / discount[wanted],
    }


def _to_depth(blocks: Blocks, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expected sum of precision at hits, and expected hits, within each query's depth."""
    precision, hits = np.zeros(len(blocks.query)), np.zeros(len(blocks.query))
    for rank in range(1, int(depth.max()) + 1):
        place = rank - blocks.skipped  # within the block, from 1
        inside = (place >= 1) & (place <= blocks.size) & (rank <= depth[blocks.query])
        chance = inside * blocks.positives / blocks.size
        # Given a hit here, each earlier place of the block is a hit with probability (p - 1) / (p + g - 1).
        earlier = (place - 1) * (blocks.positives - 1) / np.maximum(blocks.size - 1, 1)
        precision += chance * (blocks.before + 1 + earlier) / rank
        hits += chance
    return np.bincount(blocks.query, precision), np.bincount(blocks.query, hits)


def _published(blocks: Blocks) -> np.ndarray:
    """Precision at hits within 5 over the hits found: no mean of places gives it, so the 32 outcomes are weighed."""
    at = np.full((PUBLISHED_DEPTH, len(blocks.wanted)), -1)  # the block that each rank of each query falls in
    for rank in range(1, PUBLISHED_DEPTH + 1):
        inside = np.flatnonzero((rank > blocks.skipped) & (rank <= blocks.skipped + blocks.size))
        at[rank - 1, blocks.query[inside]] = inside
    total = np.zeros(len(blocks.wanted))
    for outcome in product((0, 1), repeat=PUBLISHED_DEPTH):
        if any(outcome):
            found = np.cumsum(outcome)
            value = sum(found[t] / (t + 1) for t in range(PUBLISHED_DEPTH) if outcome[t]) / found[-1]
            total += value * _chance(blocks, at, outcome)
    return total


def _chance(blocks: Blocks, at: np.ndarray, outcome: tuple[int, ...]) -> np.ndarray:
    """Of each query, the probability of hits at exactly these of the first ranks."""
    chance = np.ones(at.shape[1])
    seen = np.zeros(at.shape[1])  # hits in the present block
    for t, hit in enumerate(outcome):
        inside = at[t] >= 0
        block = np.maximum(at[t], 0)
        seen = np.where(t == blocks.skipped[block], 0, seen)
        left = blocks.size[block] - (t - blocks.skipped[block])
        positive = np.where(inside, (blocks.positives[block] - seen) / np.maximum(left, 1), 0.0)
        chance *= positive if hit else 1 - positive
        seen = seen + hit
    return np.maximum(chance, 0.0)
