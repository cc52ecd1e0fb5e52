"""Order similarity (Vendrov et al., ICLR 2016), an option of VSE++."""

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.contracts import Similarity

# How many numbers the widened difference of images and captions may hold at once.
BLOCK = 1 << 24


def order(images: Float[Tensor, "image dim"], captions: Float[Tensor, "caption dim"]) -> Similarity:
    """- || max(0, caption - image) ||: 0 where the image has at least what the caption asks for, channel by channel.

    The published gradient is NaN at exactly 0; here it is 0. A block of images at a time bounds the memory.

    >>> order(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.5], [1.0, 4.0]]))
    tensor([[-0., -3.]])
    """
    step = max(1, BLOCK // max(1, captions.numel()))
    return torch.cat([_order_block(block, captions) for block in images.split(step)])


def order_of_pairs(images: Float[Tensor, "pair dim"], captions: Float[Tensor, "pair dim"]) -> Float[Tensor, " pair"]:
    """Of image k with caption k."""
    return _order(images, captions)


def _order_block(images: Float[Tensor, "image dim"], captions: Float[Tensor, "caption dim"]) -> Similarity:
    return _order(images[:, None], captions[None])


def _order(images: Float[Tensor, "*#items dim"], captions: Float[Tensor, "*#items dim"]) -> Float[Tensor, "*items"]:
    squares = (captions - images).clamp(min=0).square().sum(dim=-1)
    missing = squares > 0
    # The root's slope at 0 is infinite: it is taken elsewhere only.
    return -torch.where(missing, torch.where(missing, squares, 1).sqrt(), 0)
