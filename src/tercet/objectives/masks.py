"""Which pairs are positives, which are negatives: from ids or masks, checked once at the door."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.contracts import PairMask, Similarity


class Rows(NamedTuple):
    """One direction of a batch: rows are anchors, columns candidates; an ignored pair is in neither mask."""

    similarity: Float[Tensor, "anchor candidate"]
    positives: Bool[Tensor, "anchor candidate"]
    negatives: Bool[Tensor, "anchor candidate"]

    def transposed(self) -> "Rows":
        return Rows(*(matrix.T.contiguous() for matrix in self))


def as_rows(similarity: Tensor, positives: PairMask | None, ignored: PairMask | None) -> Rows:
    """Check what a caller gave, with images as anchors. Half precision is widened: exp(60) must be finite."""
    if similarity.ndim != 2 or not similarity.is_floating_point():
        raise ValueError(
            f"similarity must be a floating-point image x caption matrix, "
            f"got {similarity.dtype} of shape {tuple(similarity.shape)}"
        )
    positives = _diagonal(similarity) if positives is None else _checked("positives", positives, similarity)
    if ignored is None:
        negatives = ~positives
    else:
        ignored = _checked("ignored", ignored, similarity)
        positives, negatives = positives & ~ignored, ~(positives | ignored)
    if similarity.dtype in (torch.float16, torch.bfloat16):
        similarity = similarity.float()
    return Rows(*(matrix.contiguous() for matrix in (similarity, positives, negatives)))


def positives_from_ids(image_ids: Int[Tensor, " image"], caption_ids: Int[Tensor, " caption"]) -> PairMask:
    """An image and a caption with equal ids belong together."""
    return image_ids[:, None] == caption_ids[None, :]


def ids_of_pairs(
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    owners: Int[Tensor, " caption"] | None,
    image_ids: Int[Tensor, " image"] | None,
    caption_ids: Int[Tensor, " caption"] | None,
) -> tuple[Int[Tensor, " image"], Int[Tensor, " caption"]]:
    """The ids behind the three ways to say which caption belongs to which image."""
    if (image_ids is None) != (caption_ids is None):
        raise ValueError("image_ids and caption_ids go together: give both or neither")
    if owners is not None and image_ids is not None:
        raise ValueError("give owners or image_ids with caption_ids, not both")
    rows = torch.arange(len(images), device=images.device)
    if image_ids is None or caption_ids is None:
        if owners is None and len(images) != len(captions):
            raise ValueError(
                f"{len(images)} images and {len(captions)} captions are not pairs row by row: "
                "say with owners= or image_ids=, caption_ids= which belong together"
            )
        image_ids, caption_ids = rows, rows if owners is None else owners
    for name, ids, expected in (("image_ids", image_ids, images), ("caption_ids", caption_ids, captions)):
        if ids.ndim != 1 or len(ids) != len(expected):
            given = "owners" if owners is not None and name == "caption_ids" else name
            raise ValueError(f"{given} of shape {tuple(ids.shape)} must be one id for each of {len(expected)} rows")
    return image_ids, caption_ids


def _diagonal(similarity: Similarity) -> PairMask:
    if similarity.shape[0] != similarity.shape[1]:
        raise ValueError(
            f"positives=None means the diagonal, which needs as many images as captions, "
            f"got {similarity.shape[0]} x {similarity.shape[1]}: give a positives mask"
        )
    return torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)


def _checked(name: str, mask: Tensor, similarity: Similarity) -> PairMask:
    if mask.shape != similarity.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"{name} {tuple(mask.shape)} {mask.dtype} must be a boolean mask that matches "
            f"similarity {tuple(similarity.shape)}: both are image x caption"
        )
    return mask
