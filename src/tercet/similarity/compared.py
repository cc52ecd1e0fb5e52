"""Two encoded sides of a whole set, compared a block or a list of pairs at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.contracts import Similarity
from tercet.similarity.ragged import Ragged

PAIRS_AT_ONCE = 4096
ROWS_OF_PARTS = 64
Encoded = Tensor | Ragged


class Compared(NamedTuple):
    block: Callable[[slice, slice], Similarity]
    """Of these images with these captions: a new matrix, which may be written to."""
    of_pairs: Callable[[Int[Tensor, " pair"], Int[Tensor, " pair"]], Float[Tensor, " pair"]]
    """Of image k of the first list with caption k of the second."""
    rows: int = 1024
    """Images of a block: few where comparing takes long, so that little is lost by a kill."""


def _block(model: Any, images: Encoded, captions: Encoded, rows: slice, columns: slice) -> Tensor:
    with torch.inference_mode():
        found = model.similarity(_placed(model, images[rows][:]), _placed(model, captions[columns][:]))
    return found.cpu().float().clone()  # outside, or it could not be written to


def compared(model: Any, images: Encoded, captions: Encoded) -> Compared:
    """By the model's own similarity: dot products, order or cross attention."""
    if model.dot_product and isinstance(images, Tensor) and isinstance(captions, Tensor):
        return compared_by_products(images, captions)

    def of_pairs(image: Tensor, caption: Tensor) -> Tensor:
        parts = zip(image.split(PAIRS_AT_ONCE), caption.split(PAIRS_AT_ONCE), strict=True)
        with torch.inference_mode():
            found = [
                model.similarity_of_pairs(_placed(model, images[i][:]), _placed(model, captions[c][:])).cpu()
                for i, c in parts
            ]
        return torch.cat(found).float().clone() if found else torch.zeros(0)

    return Compared(lambda rows, columns: _block(model, images, captions, rows, columns), of_pairs, ROWS_OF_PARTS)


def compared_by_products(images: Float[Tensor, "image dim"], captions: Float[Tensor, "caption dim"]) -> Compared:
    def of_pairs(image: Tensor, caption: Tensor) -> Tensor:
        parts = zip(image.split(PAIRS_AT_ONCE), caption.split(PAIRS_AT_ONCE), strict=True)
        found = [torch.linalg.vecdot(images[i], captions[c]) for i, c in parts]
        return torch.cat(found) if found else torch.zeros(0)

    images, captions = images.float(), captions.float()
    return Compared(lambda rows, columns: images[rows] @ captions[columns].T, of_pairs)


def _placed(model: Any, encoded: Tensor) -> Tensor:
    return encoded.to(next(model.parameters()).device)
