"""Batches for tests of objectives; none is square unless its name says so."""

from typing import NamedTuple

import torch
from torch import Tensor


class Case(NamedTuple):
    similarity: Tensor
    positives: Tensor
    ignored: Tensor | None = None


def _similarity(images: int, captions: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(images, captions, dtype=torch.float64).uniform_(-0.3, 0.9, generator=generator)


def _by_ids(image_ids: list[int], caption_ids: list[int], seed: int, ignored_share: float = 0.0) -> Case:
    similarity = _similarity(len(image_ids), len(caption_ids), seed)
    positives = torch.tensor(image_ids)[:, None] == torch.tensor(caption_ids)[None, :]
    if not ignored_share:
        return Case(similarity, positives)
    generator = torch.Generator().manual_seed(seed + 1000)
    return Case(similarity, positives, torch.rand(positives.shape, generator=generator) < ignored_share)


HOUSE = [0] * 5 + [1] * 5 + [2] * 5

CASES = {
    "house 3 x 15": _by_ids([0, 1, 2], HOUSE, seed=1),
    "house 3 x 15, ignored pairs": _by_ids([0, 1, 2], HOUSE, seed=2, ignored_share=0.25),
    "ragged 4 x 10": _by_ids([0, 1, 2, 3], [3, 0, 1, 1, 2, 3, 3, 3, 2, 1], seed=3),
    "repeated ids 5 x 7": _by_ids([7, 7, 2, 5, 2], [2, 7, 5, 5, 7, 2, 7], seed=4),
    "queries without a positive 4 x 5": _by_ids([0, 1, 8, 9], [1, 1, 0, 6, 7], seed=5),
    "many ignored 6 x 4": _by_ids([0, 1, 2, 3, 0, 1], [3, 2, 1, 0], seed=6, ignored_share=0.5),
    "square 6 x 6": _by_ids(list(range(6)), list(range(6)), seed=8),
}
for spread in (5, 20, 50):  # exponents reach their bound of 60
    unscaled = _by_ids([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 0, 1, 2, 3], seed=spread)
    CASES[f"spread {spread}, 5 x 9"] = unscaled._replace(similarity=unscaled.similarity * spread)

# Dyadic similarities: sums and differences with a slack or margin of 1/8 are exact, so that every tie is a tie.
_dyadic = _by_ids([0, 1, 2, 3], [0, 1, 2, 3, 0, 1, 2, 3, 3], seed=9)
CASES["ties on a grid 4 x 9"] = _dyadic._replace(similarity=(_dyadic.similarity * 8).round() / 8)
