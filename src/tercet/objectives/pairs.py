"""Positive pairs as a list, found from ids without the image x caption matrix."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor


class Pairs(NamedTuple):
    """Pair k is (image[k], caption[k]), in the order of `positives.nonzero()`."""

    image: Int[Tensor, " pair"]
    caption: Int[Tensor, " pair"]


def positive_pairs(image_ids: Int[Tensor, " image"], caption_ids: Int[Tensor, " caption"]) -> Pairs:
    order = caption_ids.argsort(stable=True)
    ordered = caption_ids[order]
    first = torch.searchsorted(ordered, image_ids)
    count = torch.searchsorted(ordered, image_ids, right=True) - first
    image = torch.arange(len(image_ids), device=image_ids.device).repeat_interleave(count)
    before = count.cumsum(dim=0) - count
    place = torch.arange(len(image), device=image.device) - before[image]
    return Pairs(image, order[first[image] + place])
