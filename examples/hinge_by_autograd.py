"""A user-defined loss on S, differentiated by autograd: the hinge with the hardest negative, both directions.

tercet train scenes --objective examples/hinge_by_autograd.py:hinge
"""

import torch
from torch import Tensor


def hinge(similarity: Tensor, positives: Tensor, margin: float = 0.2) -> Tensor:
    negatives = similarity.masked_fill(positives, -torch.inf)
    hardest_caption = negatives.max(dim=1, keepdim=True).values
    hardest_image = negatives.max(dim=0, keepdim=True).values
    i2t = (margin + hardest_caption - similarity).clamp(min=0)
    t2i = (margin + hardest_image - similarity).clamp(min=0)
    return (i2t + t2i)[positives].sum()
