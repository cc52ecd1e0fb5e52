"""The scalar of an objective on embeddings without ever holding S: exact, tile by tile, gradient included."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from tercet.objectives.entries import sparse_product
from tercet.objectives.tiles import TiledSimilarity

if TYPE_CHECKING:
    from tercet.objectives.base import RowObjective

Ids = tuple[Int[Tensor, " image"], Int[Tensor, " caption"]]


class EmbeddingGradient:
    """The pair gradient on its way to the embeddings: G @ captions and G.T @ images, without G.

    Single entries wait for backward, where a gather and a scatter serve instead of two matrix products. Tiles are
    multiplied at once and forgotten, except an only one, which waits as well.
    """

    def __init__(self, tiles: TiledSimilarity) -> None:
        wide = tiles.pair_similarity.dtype
        self.images, self.captions = tiles.images.to(wide), tiles.captions.to(wide)
        self.total = self.images.new_zeros(())
        self._entries: list[tuple[Tensor, Tensor, Tensor]] = []
        self._whole: Tensor | None = None
        self._products: tuple[Tensor, Tensor] | None = None

    def add_tile(self, images: slice, captions: slice, gradient: Float[Tensor, "image caption"]) -> None:
        self.total += gradient.sum()
        if gradient.shape == (len(self.images), len(self.captions)) and self._whole is None:
            self._whole = gradient
            return
        if self._products is None:
            self._products = torch.zeros_like(self.images), torch.zeros_like(self.captions)
        self._products[0][images].addmm_(gradient, self.captions[captions])
        self._products[1][captions].addmm_(gradient.T, self.images[images])

    def add_entries(
        self, image: Int[Tensor, " entry"], caption: Int[Tensor, " entry"], gradient: Float[Tensor, " entry"]
    ) -> None:
        """Entries of G where the rest is zero; places may repeat."""
        self._entries.append((image, caption, gradient))
        self.total += gradient.sum()

    def products(self, factor: Tensor) -> tuple[Float[Tensor, "image dim"], Float[Tensor, "caption dim"]]:
        """factor x (G @ captions, G.T @ images), given away: what is large is scaled in place, so ask once."""
        parts = [(self._products[0].mul_(factor), self._products[1].mul_(factor))] if self._products else []
        self._products = None
        if self._whole is not None:
            whole = self._whole * factor
            parts.append((whole @ self.captions, whole.T @ self.images))
        if self._entries:
            image, caption, gradient = (torch.cat(parts) for parts in zip(*self._entries, strict=True))
            gradient = gradient * factor
            parts.append(
                (
                    sparse_product(image, caption, gradient, len(self.images), self.captions),
                    sparse_product(caption, image, gradient, len(self.captions), self.images),
                )
            )
        if not parts:
            return torch.zeros_like(self.images), torch.zeros_like(self.captions)
        for_images, for_captions = parts[0]
        for more_images, more_captions in parts[1:]:
            for_images += more_images
            for_captions += more_captions
        return for_images, for_captions


def streamed_scalar(
    objective: "RowObjective",
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    ids: Ids,
    scale: float | Tensor | None = None,
    bias: float | Tensor | None = None,
    *,
    paired_by_rows: bool = False,
    side: int | None = None,
) -> Float[Tensor, ""]:
    """What `objective` returns on the whole similarity, value and gradients alike; `side` is that of a tile."""
    scale, bias = (each.reshape(()) if isinstance(each, Tensor) else each for each in (scale, bias))
    learned = [each.requires_grad for each in (images, captions, scale, bias) if isinstance(each, Tensor)]
    wanted = torch.is_grad_enabled() and any(learned)
    plan = _Plan(objective, ids, paired_by_rows, side, wanted)
    scalar: Tensor = _Streamed.apply(images, captions, scale, bias, plan)  # type: ignore[no-untyped-call]
    return scalar


class _Plan(NamedTuple):
    """What a streamed batch is besides its tensors."""

    objective: "RowObjective"
    ids: Ids
    paired_by_rows: bool
    side: int | None
    wanted: bool

    def stream(
        self, images: Tensor, captions: Tensor, scale: float | Tensor | None, bias: float | Tensor | None
    ) -> tuple[Tensor, EmbeddingGradient | None]:
        with without_autocast(images):
            tiles = TiledSimilarity(
                images,
                captions,
                *self.ids,
                scale=scale,
                bias=bias,
                paired_by_rows=self.paired_by_rows,
                side=self.side,
            )
            gradient = EmbeddingGradient(tiles) if self.wanted else None
            return self.objective.stream(tiles, gradient), gradient


class _Streamed(torch.autograd.Function):
    """The gradient is found together with the value; backward only scales it by what comes from upstream."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        captions: Tensor,
        scale: float | Tensor | None,
        bias: float | Tensor | None,
        plan: _Plan,
    ) -> Tensor:
        given = (images, captions, scale, bias)
        ctx.plan = plan
        ctx.numbers = [None if isinstance(each, Tensor) else each for each in given]
        ctx.save_for_backward(*(each if isinstance(each, Tensor) else None for each in given))
        product_images, product_captions = _as_autocast(images), _as_autocast(captions)
        ctx.product_dtype = product_images.dtype
        scalar, ctx.gradient = plan.stream(product_images, product_captions, scale, bias)
        return scalar

    @staticmethod
    @once_differentiable  # G is a constant to it: a second derivative would be wrong, so there is none
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # Asking for what was saved makes torch say whether it was changed in place since.
        given = [number if each is None else each for each, number in zip(ctx.saved_tensors, ctx.numbers, strict=True)]
        images, captions, scale, bias = given
        gradient, ctx.gradient = ctx.gradient, None
        with without_autocast(upstream):
            if gradient is None:  # a retained graph goes backward again: rather twice the work than the memory
                _, gradient = ctx.plan.stream(images.to(ctx.product_dtype), captions.to(ctx.product_dtype), scale, bias)
            upstream = upstream.to(gradient.total.dtype)
            for_images, for_captions = gradient.products(upstream)
            for_scale = None
            if scale is not None:
                for_scale = torch.dot(gradient.images.flatten(), for_images.flatten())
                for_images, for_captions = for_images.mul_(scale), for_captions.mul_(scale)
        found = (for_images, for_captions, for_scale, upstream * gradient.total)
        wanted = zip(found, given, ctx.needs_input_grad[:4], strict=True)
        return *(each.to(like.dtype) if needed else None for each, like, needed in wanted), None


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """The mathematics keeps its precision; autocast is for the product that makes S."""
    if torch.is_autocast_enabled(like.device.type):
        return torch.autocast(like.device.type, enabled=False)
    return nullcontext()


def _as_autocast(embeddings: Tensor) -> Tensor:
    """The precision in which autocast, where it is on, would have taken the product."""
    device = embeddings.device.type
    if torch.is_autocast_enabled(device) and embeddings.dtype == torch.float32:
        return embeddings.to(torch.get_autocast_dtype(device))
    return embeddings
