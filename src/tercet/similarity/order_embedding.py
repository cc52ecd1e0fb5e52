"""Order-embedding similarity (Vendrov et al., ICLR 2016), an option of VSE++."""

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.types import Similarity

# Largest number of elements in the (image, caption, dim) difference tensor of a block.
MAX_BLOCK_ELEMENTS = 1 << 24


def order(images: Float[Tensor, "image dim"], captions: Float[Tensor, "caption dim"]) -> Similarity:
    """- || max(0, caption - image) ||: 0 where the image is at least the caption in every channel.

    The published gradient is NaN at exactly 0; here it is 0. Images are processed in blocks to bound memory.

    >>> order(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.5], [1.0, 4.0]]))
    tensor([[-0., -3.]])
    """
    block_size = max(1, MAX_BLOCK_ELEMENTS // max(1, captions.numel()))
    return torch.cat([_order_block(block, captions) for block in images.split(block_size)])


def order_of_pairs(images: Float[Tensor, "pair dim"], captions: Float[Tensor, "pair dim"]) -> Float[Tensor, " pair"]:
    """Order similarity of image k with caption k."""
    return _order(images, captions)


def _order_block(images: Float[Tensor, "image dim"], captions: Float[Tensor, "caption dim"]) -> Similarity:
    return _order(images[:, None], captions[None])


def _order(images: Float[Tensor, "*#items dim"], captions: Float[Tensor, "*#items dim"]) -> Float[Tensor, "*items"]:
    squares = (captions - images).clamp(min=0).square().sum(dim=-1)
    violated = squares > 0
    # The derivative of the square root is infinite at 0, so it is only evaluated elsewhere.
    return -torch.where(violated, torch.where(violated, squares, 1).sqrt(), 0)
