"""Batch -> embeddings -> S: the learned parts. One system now: heads on frozen features."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.contracts import Similarity


class Heads(nn.Module):
    """One linear projection a side into a joint space; S is the cosine there."""

    dot_product = True

    def __init__(self, image_dim: int, caption_dim: int, joint_dim: int) -> None:
        super().__init__()
        self.image_head = nn.Linear(image_dim, joint_dim)
        self.caption_head = nn.Linear(caption_dim, joint_dim)

    def encode_images(
        self, images: Float[Tensor, "image dim"], lengths: Tensor | None = None
    ) -> Float[Tensor, "image joint"]:
        return F.normalize(self.image_head(images), dim=1)

    def encode_captions(
        self, captions: Float[Tensor, "caption word_dim"], lengths: Tensor | None = None
    ) -> Float[Tensor, "caption joint"]:
        return F.normalize(self.caption_head(captions), dim=1)

    def similarity(
        self, encoded_images: Float[Tensor, "image joint"], encoded_captions: Float[Tensor, "caption joint"]
    ) -> Similarity:
        return torch.matmul(encoded_images, encoded_captions.T)
