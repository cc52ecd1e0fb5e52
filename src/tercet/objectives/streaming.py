"""The scalar of an objective on embeddings without ever holding S: exact, tile by tile, gradient included."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.tiles import TiledSimilarity

if TYPE_CHECKING:
    from tercet.objectives.base import RowObjective

Ids = tuple[Int[Tensor, " image"], Int[Tensor, " caption"]]


class EmbeddingGradient:
    """G @ captions, G.T @ images and the sum of G, gathered from tiles and from single entries of G."""

    def __init__(self, tiles: TiledSimilarity) -> None:
        wide = tiles.pair_similarity.dtype
        self.images, self.captions, self.side = tiles.images.to(wide), tiles.captions.to(wide), tiles.side
        self.for_images = torch.zeros_like(self.images)
        self.for_captions = torch.zeros_like(self.captions)
        self.total = self.for_images.new_zeros(())

    def add_tile(self, images: slice, captions: slice, gradient: Float[Tensor, "image caption"]) -> None:
        self.for_images[images].addmm_(gradient, self.captions[captions])
        self.for_captions[captions].addmm_(gradient.T, self.images[images])
        self.total += gradient.sum()

    def add_entries(
        self, image: Int[Tensor, " entry"], caption: Int[Tensor, " entry"], gradient: Float[Tensor, " entry"]
    ) -> None:
        """A gather and a scatter instead of two matrix products: for the entries that are not zero."""
        for i, c, g in zip(*(each.split(self.side) for each in (image, caption, gradient)), strict=True):
            self.for_images.index_add_(0, i, self.captions[c].mul_(g[:, None]))
            self.for_captions.index_add_(0, c, self.images[i].mul_(g[:, None]))
        self.total += gradient.sum()


def streamed_scalar(
    objective: "RowObjective",
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    ids: Ids,
    scale: float | Tensor | None,
    bias: float | Tensor | None,
) -> Float[Tensor, ""]:
    """What `objective` returns on the whole similarity, value and gradients alike."""
    scalar: Tensor = _Streamed.apply(images, captions, scale, bias, objective, ids)  # type: ignore[no-untyped-call]
    return scalar


class _Streamed(torch.autograd.Function):
    """The gradient is found together with the value; backward only scales it by what comes from upstream."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        captions: Tensor,
        scale: float | Tensor | None,
        bias: float | Tensor | None,
        objective: "RowObjective",
        ids: Ids,
    ) -> Tensor:
        tiles = TiledSimilarity(_as_autocast(images), _as_autocast(captions), *ids, scale=scale, bias=bias)
        if not any(ctx.needs_input_grad):
            return objective.stream(tiles, None)
        gradient = EmbeddingGradient(tiles)
        scalar = objective.stream(tiles, gradient)
        for_scale = torch.linalg.vecdot(gradient.images, gradient.for_images).sum()
        factor = 1.0 if scale is None else scale
        gradient.for_images *= factor
        gradient.for_captions *= factor
        ctx.save_for_backward(gradient.for_images, gradient.for_captions, for_scale, gradient.total)
        ctx.dtypes = [each.dtype if isinstance(each, Tensor) else None for each in (images, captions, scale, bias)]
        return scalar

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        found = zip(ctx.saved_tensors, ctx.dtypes, ctx.needs_input_grad[:4], strict=True)
        return *((upstream * each).to(dtype) if needed else None for each, dtype, needed in found), None, None


def _as_autocast(embeddings: Tensor) -> Tensor:
    """The precision in which autocast, where it is on, would have taken the product."""
    device = embeddings.device.type
    if torch.is_autocast_enabled(device) and embeddings.dtype == torch.float32:
        return embeddings.to(torch.get_autocast_dtype(device))
    return embeddings
