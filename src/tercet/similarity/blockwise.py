"""Block-by-block similarity in bounded memory: S of a batch of padded sets, and scorers over an encoded split."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.interfaces import PairScorer, RetrievalModel
from tercet.similarity.padded_sets import PaddedSets, RaggedSets
from tercet.single_backward import single_backward
from tercet.types import Similarity

NO_SECOND = "the similarity of a large batch is computed in blocks, which the backward pass computes again"

Compare = Callable[[PaddedSets, PaddedSets], Similarity]
Encoded = Tensor | RaggedSets

# Products of elements (regions x words) per block; on a CPU, as many as fit into its caches.
CPU_BLOCK_PRODUCTS, GPU_BLOCK_PRODUCTS = 1 << 20, 1 << 24
# Up to this many products per batch autograd saves its intermediates (a few hundred megabytes).
MAX_SAVED_PRODUCTS = 1 << 24
PAIRS_PER_BLOCK = 4096
SET_BLOCK_ROWS = 64


def blockwise_similarity(
    compare: Compare,
    images: Float[Tensor, "image region dim"],
    captions: Float[Tensor, "caption word dim"],
    *,
    block_products: int | None = None,
    max_saved_products: int = MAX_SAVED_PRODUCTS,
) -> Similarity:
    """Compute S with a pure `compare`, which is called on blocks of images and captions.

    Captions are sorted by length, so that a block has little padding. Up to `max_saved_products` autograd saves the
    intermediates of every block; beyond that, blocks are recomputed in backward, so that a batch of any size trains in
    the memory of one block.
    """
    if not len(images) or not len(captions):
        return images.sum(dim=(1, 2))[:, None] + captions.sum(dim=(1, 2))
    block_products = block_products or (CPU_BLOCK_PRODUCTS if images.device.type == "cpu" else GPU_BLOCK_PRODUCTS)
    batch, order = _sorted_by_length(PaddedSets.of(images), PaddedSets.of(captions))
    needs_grad = torch.is_grad_enabled() and (images.requires_grad or captions.requires_grad)
    if needs_grad and batch.products() > max_saved_products:
        similarity: Tensor = _Recomputed.apply(*(sets.vectors for sets in batch), batch, compare, block_products)  # type: ignore[no-untyped-call]
    else:
        similarity = batch.similarity(compare, block_products)
    return similarity[:, order.argsort()]


class _SetPair(NamedTuple):
    images: PaddedSets
    captions: PaddedSets

    def products(self) -> int:
        return self.images.real.numel() * self.captions.real.numel()

    def block_side(self, block_products: int) -> int:
        """Images per block, which equals captions per block."""
        words = max(1.0, self.captions.real.sum().item() / len(self.captions.real))
        return max(1, round((block_products / (self.images.real.shape[1] * words)) ** 0.5))

    def similarity(self, compare: Compare, block_products: int) -> Similarity:
        images, captions = (sets.split(self.block_side(block_products)) for sets in self)
        columns = ([compare(rows, block) for rows in images] for block in map(PaddedSets.trimmed, captions))
        return torch.cat([torch.cat(column) for column in columns], dim=1)


def _sorted_by_length(images: PaddedSets, captions: PaddedSets) -> tuple[_SetPair, Int[Tensor, " caption"]]:
    order = captions.real.sum(dim=1).argsort(stable=True)
    return _SetPair(images, PaddedSets(captions.vectors[order], captions.real[order])), order


class _Recomputed(torch.autograd.Function):
    """Saves only the encoded sets and recomputes each block in backward (gradient checkpointing)."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, captions: Tensor, batch: _SetPair, compare: Compare, block_products: int
    ) -> Tensor:
        ctx.save_for_backward(images, captions)
        ctx.real, ctx.compare = (batch.images.real, batch.captions.real), compare
        ctx.block_products = block_products
        return batch.similarity(compare, block_products)

    @staticmethod
    @single_backward(NO_SECOND)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        batch = _SetPair(*(PaddedSets(*sets) for sets in zip(ctx.saved_tensors, ctx.real, strict=True)))
        block_side = batch.block_side(ctx.block_products)
        images, captions = ([_leaf(block) for block in sets.split(block_side)] for sets in batch)
        for words, columns in zip(captions, gradient.split(block_side, dim=1), strict=True):
            for regions, block_gradient in zip(images, columns.split(block_side), strict=True):
                with torch.enable_grad():
                    # New sets per block: their cached properties belong to this block's graph.
                    similarity = ctx.compare(PaddedSets(regions.vectors, regions.real), words.trimmed())
                similarity.backward(block_gradient)
        return *(_concat_gradients(leaves) for leaves in (images, captions)), None, None, None


def _leaf(sets: PaddedSets) -> PaddedSets:
    return PaddedSets(sets.vectors.detach().requires_grad_(), sets.real)


def _concat_gradients(leaves: list[PaddedSets]) -> Tensor:
    gradients = (leaf.vectors.grad for leaf in leaves)
    return torch.cat(
        [torch.zeros_like(leaf.vectors) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]
    )


class SplitScorer(NamedTuple):
    """Similarities of an encoded split, by block or by list of pairs."""

    block: Callable[[slice, slice], Similarity]
    """S of a range of images and a range of captions: a new matrix, which the caller may modify."""
    of_pairs: Callable[[Int[Tensor, " pair"], Int[Tensor, " pair"]], Float[Tensor, " pair"]]
    """Similarities of image k of the first list with caption k of the second."""
    block_rows: int = 1024
    """Images per block; few where the comparison is slow, so that an interrupted job loses little work."""


def split_scorer(model: RetrievalModel, images: Encoded, captions: Encoded) -> SplitScorer:
    """A scorer that uses the model's own similarity: dot products, order or cross attention."""
    if model.dot_product and isinstance(images, Tensor) and isinstance(captions, Tensor):
        return dot_product_scorer(images, captions)
    scorer = as_pair_scorer(model)

    def block(rows: slice, columns: slice) -> Tensor:
        with torch.inference_mode():
            similarity = model.similarity(_to_device(model, images[rows][:]), _to_device(model, captions[columns][:]))
        return similarity.cpu().float().clone()  # outside of inference_mode: inference tensors cannot be modified

    def of_pairs(image: Tensor, caption: Tensor) -> Tensor:
        blocks = zip(image.split(PAIRS_PER_BLOCK), caption.split(PAIRS_PER_BLOCK), strict=True)
        with torch.inference_mode():
            similarities = [
                scorer.similarity_of_pairs(_to_device(model, images[i][:]), _to_device(model, captions[c][:])).cpu()
                for i, c in blocks
            ]
        return torch.cat(similarities).float().clone() if similarities else torch.zeros(0)

    return SplitScorer(block, of_pairs, SET_BLOCK_ROWS)


def as_pair_scorer(model: RetrievalModel) -> PairScorer:
    """The model, if it can compare image k with caption k; a `ValueError` otherwise."""
    if not isinstance(model, PairScorer):
        raise ValueError(
            f"{type(model).__name__} has no method similarity_of_pairs, which mining and mined negatives need where "
            "the similarity is not a dot product"
        )
    return model


def dot_product_scorer(images: Float[Tensor, "image dim"], captions: Float[Tensor, "caption dim"]) -> SplitScorer:
    """A scorer for dual encoders: dot products in float32."""

    def of_pairs(image: Tensor, caption: Tensor) -> Tensor:
        blocks = zip(image.split(PAIRS_PER_BLOCK), caption.split(PAIRS_PER_BLOCK), strict=True)
        similarities = [torch.linalg.vecdot(images[i], captions[c]) for i, c in blocks]
        return torch.cat(similarities) if similarities else torch.zeros(0)

    images, captions = images.float(), captions.float()
    return SplitScorer(lambda rows, columns: images[rows] @ captions[columns].T, of_pairs)


def _to_device(model: RetrievalModel, encoded: Tensor) -> Tensor:
    return encoded.to(next(model.parameters()).device)
