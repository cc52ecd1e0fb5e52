"""Near-duplicate captions: negatives that are probably false negatives."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from tercet.data.text.word_sets import Words, is_near_duplicate
from tercet.objectives.inputs import as_rows, hardest_negative
from tercet.types import PairMask, Similarity


def hardest_is_duplicate(
    similarity: Similarity,
    positives: PairMask,
    captions: Sequence[Words],
    image_captions: Sequence[Sequence[Words]],
    ignored: PairMask | None = None,
) -> Bool[Tensor, " query"]:
    """For the queries of both directions (i2t first), whether the hardest negative is a near-duplicate.

    `captions` are the captions of the columns, `image_captions` all captions of each row's image. An image query
    compares its hardest caption with its own captions; a caption query compares itself with those of its hardest image.
    """
    rows = as_rows(similarity, positives, ignored)
    hardest_caption, hardest_image = hardest_negative(rows), hardest_negative(rows.transposed())
    duplicates = [
        any(is_near_duplicate(captions[int(caption)], own) for own in image_captions[image])
        for image, caption in enumerate(hardest_caption.candidate)
        if hardest_caption.exists[image]
    ] + [
        any(is_near_duplicate(captions[caption], other) for other in image_captions[int(image)])
        for caption, image in enumerate(hardest_image.candidate)
        if hardest_image.exists[caption]
    ]
    return torch.tensor(duplicates, dtype=torch.bool)
