"""Which pairs are positives, which are negatives: from ids or masks, checked once at the door."""

from collections.abc import Callable
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
    ignored: Bool[Tensor, "anchor candidate"] | None = None
    mined: Float[Tensor, "pair 4"] | None = None
    """Of offline members of the positive pairs, in the order of `positives.nonzero()`; the anchor's own in column 0."""

    def transposed(self) -> "Rows":
        turned = self.each(lambda matrix: matrix.T.contiguous())
        if self.mined is None:
            return turned
        order = self.positives.nonzero()[:, 1].argsort(stable=True)  # by candidate, then by anchor
        return turned._replace(mined=swapped(self.mined[order]))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Rows":
        ignored = None if self.ignored is None else change(self.ignored)
        return Rows(change(self.similarity), change(self.positives), change(self.negatives), ignored, self.mined)


def swapped(mined: Float[Tensor, "pair 4"]) -> Float[Tensor, "pair 4"]:
    """As the other side sees its pairs: its own member first."""
    return mined.index_select(1, torch.tensor([1, 0, 2, 3], device=mined.device))


def as_rows(
    similarity: Tensor,
    positives: PairMask | None,
    ignored: PairMask | None,
    mined: Float[Tensor, "pair 4"] | None = None,
) -> Rows:
    """Check what a caller gave, with images as anchors. Half precision is widened: exp(60) must be finite."""
    _check_similarity(similarity)
    positives = _diagonal(similarity) if positives is None else _checked("positives", positives, similarity)
    if mined is not None:
        _check_mined(mined, int(positives.sum()))
        mined = _widened(mined)
    if ignored is None:
        negatives = ~positives
    else:
        ignored = _checked("ignored", ignored, similarity)
        mined = None if mined is None else mined[~ignored[positives]]
        positives, negatives = positives & ~ignored, ~(positives | ignored)
        similarity = similarity.masked_fill(ignored, 0.0)  # what stands there is nobody's business
    return Rows(_widened(similarity), positives, negatives, ignored, mined).each(Tensor.contiguous)


def as_square(similarity: Tensor) -> Float[Tensor, "pair pair"]:
    """The same checks for a similarity whose diagonal is positive."""
    _check_similarity(similarity)
    _check_square(similarity)
    return _widened(similarity)


def positives_from_ids(image_ids: Int[Tensor, " image"], caption_ids: Int[Tensor, " caption"]) -> PairMask:
    """An image and a caption with equal ids belong together."""
    return image_ids[:, None] == caption_ids[None, :]


def check_embeddings(
    images: Tensor, captions: Tensor, scale: float | Tensor | None, bias: float | Tensor | None
) -> None:
    if images.ndim != 2 or captions.ndim != 2 or images.shape[1] != captions.shape[1]:
        raise ValueError(
            f"images {tuple(images.shape)} and captions {tuple(captions.shape)} must be "
            "image x dim and caption x dim with equal dim"
        )
    if images.dtype != captions.dtype and not torch.is_autocast_enabled(images.device.type):
        raise ValueError(f"images are {images.dtype} and captions {captions.dtype}: both must be of one type")
    for name, given in (("scale", scale), ("bias", bias)):
        if torch.is_tensor(given) and given.numel() != 1:
            raise ValueError(f"{name} must be one number, got shape {tuple(given.shape)}")


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
    _check_ids("image_ids", image_ids, len(images))
    _check_ids("caption_ids" if owners is None else "owners", caption_ids, len(captions))
    # A compiled graph cannot look at values; elsewhere owners that are no rows would silently be nobody's captions.
    if owners is not None and len(owners) and not torch.compiler.is_compiling():
        lowest, highest = (int(end) for end in owners.aminmax())
        if lowest < 0 or highest >= len(images):
            raise ValueError(
                f"owners are rows of {len(images)} images, got {lowest} to {highest}: "
                "give ids of a data set as image_ids= and caption_ids="
            )
    return image_ids.long(), caption_ids.long()


def _check_ids(name: str, ids: Tensor, rows: int) -> None:
    if not torch.is_tensor(ids) or ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"{name} must be a tensor of integers, got {getattr(ids, 'dtype', type(ids).__name__)}")
    if ids.ndim != 1 or len(ids) != rows:
        raise ValueError(f"{name} of shape {tuple(ids.shape)} must be one id for each of {rows} rows")


def _diagonal(similarity: Similarity) -> PairMask:
    _check_square(similarity)
    return torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)


def _widened(similarity: Similarity) -> Similarity:
    return similarity.float() if similarity.dtype in (torch.float16, torch.bfloat16) else similarity


def _check_similarity(similarity: Tensor) -> None:
    if not torch.is_tensor(similarity):
        raise ValueError(f"similarity must be a tensor, got {type(similarity).__name__}")
    if similarity.ndim != 2 or not similarity.is_floating_point():
        raise ValueError(
            f"similarity must be a floating-point image x caption matrix, "
            f"got {similarity.dtype} of shape {tuple(similarity.shape)}"
        )


def _check_mined(mined: Tensor, pairs: int) -> None:
    if not torch.is_tensor(mined) or not mined.is_floating_point() or tuple(mined.shape) != (pairs, 4):
        given = f"{mined.dtype} {tuple(mined.shape)}" if torch.is_tensor(mined) else type(mined).__name__
        raise ValueError(
            f"mined must be a floating-point pair x 4 matrix, {(pairs, 4)} here: a row for each positive pair, in the "
            f"order of positives.nonzero(); got {given}"
        )


def _check_square(similarity: Similarity) -> None:
    if similarity.shape[0] != similarity.shape[1]:
        raise ValueError(
            f"positives=None means the diagonal, which needs as many images as captions, "
            f"got {similarity.shape[0]} x {similarity.shape[1]}: give a positives mask"
        )


def _checked(name: str, mask: Tensor, similarity: Similarity) -> PairMask:
    if not torch.is_tensor(mask):
        raise ValueError(f"{name} must be a boolean tensor, got {type(mask).__name__}")
    if mask.shape != similarity.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"{name} {tuple(mask.shape)} {mask.dtype} must be a boolean mask that matches "
            f"similarity {tuple(similarity.shape)}: both are image x caption"
        )
    return mask
