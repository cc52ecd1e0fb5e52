"""Captions that say almost the same: negatives that are none."""

import re
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from tercet.contracts import PairMask, Similarity
from tercet.objectives.hardest import hardest_negative
from tercet.objectives.masks import as_rows

ALIKE = 0.8  # shared words over all words of both

Words = frozenset[str]


def words_of(caption: str) -> Words:
    """
    >>> sorted(words_of("A dog, a DOG's ball."))
    ['a', 'ball', 'dog', 's']
    """
    return frozenset(re.findall(r"\w+", caption.lower()))


def nearly_equal(one: Words, other: Words) -> bool:
    """
    >>> nearly_equal(words_of("A dog runs on the grass"), words_of("a dog runs on grass."))
    True
    """
    return bool(one or other) and len(one & other) >= ALIKE * len(one | other)


def hardest_is_duplicate(
    similarity: Similarity,
    positives: PairMask,
    captions: Sequence[Words],
    of_images: Sequence[Sequence[Words]],
    ignored: PairMask | None = None,
) -> Bool[Tensor, " query"]:
    """Of the queries of both directions, whether the hardest negative says almost what a caption of the query says.

    `captions` are those of the columns, `of_images` all captions of each row's image. For an image the hardest caption
    is held against its own ones; for a caption, against those of the hardest image.
    """
    rows = as_rows(similarity, positives, ignored)
    caption_of, image_of = hardest_negative(rows), hardest_negative(rows.transposed())
    found = [
        any(nearly_equal(captions[int(caption)], own) for own in of_images[image])
        for image, caption in enumerate(caption_of.candidate)
        if caption_of.exists[image]
    ] + [
        any(nearly_equal(captions[caption], theirs) for theirs in of_images[int(image)])
        for caption, image in enumerate(image_of.candidate)
        if image_of.exists[caption]
    ]
    return torch.tensor(found, dtype=torch.bool)
