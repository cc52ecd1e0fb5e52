"""Autograd of streamed objectives: from tiles and single entries of G to the gradient of embeddings.

`streamed_scalar` computes an objective on embeddings tile by tile, with an exact gradient. `products_of_entries`
computes selected entries of S, for objectives that need only a few pairs.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tercet.objectives.streaming.tiles import EmbeddedBatch, TiledSimilarity
from tercet.single_backward import applied, single_backward

NO_SECOND = (
    "the pair gradient is a constant of the backward pass; objective.value(S, positives), where it exists, can be "
    "differentiated twice"
)

if TYPE_CHECKING:
    from tercet.objectives.base import RowObjective

BLOCK_SIZE = 128  # entries per block


def products_of_entries(
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    rows: Int[Tensor, " entry"],
    columns: Int[Tensor, " entry"],
    known: Float[Tensor, " known"] | None = None,
) -> Float[Tensor, " entry"]:
    """Entries images[rows[k]] . captions[columns[k]] of S; their gradient is a sparse matrix product.

    `known`: values of the first entries, if they are already computed.
    """
    known = images.new_empty(0) if known is None else known.detach()
    return applied(_Entries, images, captions, rows, columns, known)


class _Entries(torch.autograd.Function):
    """A custom backward: that of autograd would hold entries x dim for images and captions."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, captions: Tensor, rows: Tensor, columns: Tensor, known: Tensor) -> Tensor:
        ctx.save_for_backward(images, captions, rows, columns)
        # In small blocks, so that the gathered rows stay in the CPU cache.
        blocks = zip(rows[len(known) :].split(BLOCK_SIZE), columns[len(known) :].split(BLOCK_SIZE), strict=True)
        products = [torch.linalg.vecdot(images.index_select(0, r), captions.index_select(0, c)) for r, c in blocks]
        return torch.cat([known, *products])

    @staticmethod
    @single_backward(NO_SECOND)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        images, captions, rows, columns = ctx.saved_tensors
        # Satisfied hinges have gradient 0: multiply the others only.
        active = gradient.nonzero().flatten()
        rows, columns, gradient = (entries.index_select(0, active) for entries in (rows, columns, gradient))
        image_grad = sparse_product(rows, columns, gradient, len(images), captions)
        return image_grad, sparse_product(columns, rows, gradient, len(captions), images), None, None, None


def sparse_product(
    row: Int[Tensor, " entry"],
    column: Int[Tensor, " entry"],
    value: Float[Tensor, " entry"],
    rows: int,
    dense: Float[Tensor, "column dim"],
) -> Float[Tensor, "row dim"]:
    """(sparse matrix of these entries) @ dense, without a temporary of entries x dim."""
    ordered, order = row.sort(stable=True)
    first = torch.searchsorted(ordered, torch.arange(rows, device=row.device))
    column, value = column.index_select(0, order), value.index_select(0, order)
    return F.embedding_bag(column, dense, first, mode="sum", per_sample_weights=value)


Ids = tuple[Int[Tensor, " image"], Int[Tensor, " caption"]]


class EmbeddingGradient:
    """Accumulates G @ captions and G.T @ images without holding G.

    Tiles of G are multiplied immediately and discarded; if there is one tile only, it is multiplied in backward. Single
    entries are stored and become sparse products in backward.
    """

    def __init__(self, tiles: TiledSimilarity) -> None:
        dtype = tiles.pair_similarity.dtype
        self.images, self.captions = tiles.images.to(dtype), tiles.captions.to(dtype)
        self.total = self.images.new_zeros(()) if tiles.bias is not None else None
        """Sum of G, the gradient of the bias."""
        self._entries: list[tuple[Tensor, Tensor, Tensor]] = []
        self._only_tile: Tensor | None = None
        self._products: tuple[Tensor, Tensor] | None = None

    def add_tile(self, images: slice, captions: slice, gradient: Float[Tensor, "image caption"]) -> None:
        """Add a tile of G."""
        if self.total is not None:
            self.total += gradient.sum()
        if gradient.shape == (len(self.images), len(self.captions)) and self._only_tile is None:
            self._only_tile = gradient
            return
        if self._products is None:
            self._products = torch.zeros_like(self.images), torch.zeros_like(self.captions)
        self._products[0][images].addmm_(gradient, self.captions[captions])
        self._products[1][captions].addmm_(gradient.T, self.images[images])

    def add_entries(
        self, image: Int[Tensor, " entry"], caption: Int[Tensor, " entry"], gradient: Float[Tensor, " entry"]
    ) -> None:
        """Add single entries of G; positions may repeat."""
        self._entries.append((image, caption, gradient))
        if self.total is not None:
            self.total += gradient.sum()

    def add_products(self, other: "EmbeddingGradient", weight: float) -> None:
        """Add weight x the gradient of another objective on the same batch."""
        images, captions = other.products(self.images.new_tensor(weight))
        if self._products is None:
            self._products = images, captions
        else:
            self._products = self._products[0] + images, self._products[1] + captions
        if self.total is not None and other.total is not None:
            self.total += weight * other.total

    def products(self, factor: Tensor) -> tuple[Float[Tensor, "image dim"], Float[Tensor, "caption dim"]]:
        """Return factor x (G @ captions, G.T @ images). Call it once: the accumulated products are scaled in place."""
        terms = [(self._products[0].mul_(factor), self._products[1].mul_(factor))] if self._products else []
        self._products = None
        if self._only_tile is not None:
            tile = self._only_tile * factor
            terms.append((tile @ self.captions, tile.T @ self.images))
        if self._entries:
            image, caption, gradient = (
                column[0] if len(column) == 1 else torch.cat(column) for column in zip(*self._entries, strict=True)
            )
            gradient = gradient * factor
            terms.append(
                (
                    sparse_product(image, caption, gradient, len(self.images), self.captions),
                    sparse_product(caption, image, gradient, len(self.captions), self.images),
                )
            )
        if not terms:
            return torch.zeros_like(self.images), torch.zeros_like(self.captions)
        image_grad, caption_grad = terms[0]
        for more_image_grad, more_caption_grad in terms[1:]:
            image_grad += more_image_grad
            caption_grad += more_caption_grad
        return image_grad, caption_grad


def streamed_scalar(
    objective: "RowObjective", batch: EmbeddedBatch, *, tile_size: int | None = None
) -> Float[Tensor, ""]:
    """The scalar of `objective`, with the value and gradients of its dense form; tiles are tile_size x tile_size."""
    images, captions = batch.images, batch.captions
    scale, bias = (factor.reshape(()) if isinstance(factor, Tensor) else factor for factor in (batch.scale, batch.bias))
    requires_grad = any(x.requires_grad for x in (images, captions, scale, bias) if isinstance(x, Tensor))
    plan = _Plan(objective, batch.ids, batch.paired_by_rows, tile_size, torch.is_grad_enabled() and requires_grad)
    return applied(_Streamed, images, captions, scale, bias, plan)


class _Plan(NamedTuple):
    """Non-tensor inputs of a streamed batch."""

    objective: "RowObjective"
    ids: Ids
    paired_by_rows: bool
    tile_size: int | None
    needs_gradient: bool

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
                tile_size=self.tile_size,
            )
            gradient = EmbeddingGradient(tiles) if self.needs_gradient else None
            return self.objective.stream(tiles, gradient), gradient


class _Streamed(torch.autograd.Function):
    """Forward computes the value and the gradient; backward scales the gradient by the upstream gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        captions: Tensor,
        scale: float | Tensor | None,
        bias: float | Tensor | None,
        plan: _Plan,
    ) -> Tensor:
        inputs = (images, captions, scale, bias)
        ctx.plan = plan
        ctx.constants = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))
        product_images, product_captions = _as_autocast(images), _as_autocast(captions)
        ctx.product_dtype = product_images.dtype
        scalar, ctx.gradient = plan.stream(product_images, product_captions, scale, bias)
        return scalar

    @staticmethod
    @single_backward(NO_SECOND)
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # Reading saved_tensors makes torch raise an error if an input was modified in place.
        saved = zip(ctx.saved_tensors, ctx.constants, strict=True)
        inputs = [constant if tensor is None else tensor for tensor, constant in saved]
        images, captions, scale, bias = inputs
        gradient, ctx.gradient = ctx.gradient, None
        with without_autocast(upstream):
            if gradient is None:  # second backward of a retained graph: recompute, which costs no memory
                _, gradient = ctx.plan.stream(images.to(ctx.product_dtype), captions.to(ctx.product_dtype), scale, bias)
            upstream = upstream.to(gradient.images.dtype)
            image_grad, caption_grad = gradient.products(upstream)
            scale_grad = None
            if scale is not None:
                scale_grad = torch.dot(gradient.images.flatten(), image_grad.flatten())
                image_grad, caption_grad = image_grad.mul_(scale), caption_grad.mul_(scale)
        bias_grad = None if gradient.total is None else upstream * gradient.total
        outputs = zip((image_grad, caption_grad, scale_grad, bias_grad), inputs, ctx.needs_input_grad[:4], strict=True)
        return *(None if grad is None or not needed else grad.to(x.dtype) for grad, x, needed in outputs), None


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast: it applies to the product that computes S, not to the objective."""
    if torch.is_autocast_enabled(like.device.type):
        return torch.autocast(like.device.type, enabled=False)
    return nullcontext()


def _as_autocast(embeddings: Tensor) -> Tensor:
    """Cast embeddings to the dtype that autocast, if enabled, would use for their product."""
    device = embeddings.device.type
    if torch.is_autocast_enabled(device) and embeddings.dtype == torch.float32:
        return embeddings.to(torch.get_autocast_dtype(device))
    return embeddings
