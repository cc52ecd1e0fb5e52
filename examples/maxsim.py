"""A model from outside: late interaction (MaxSim) of image patches and words, in the manner of ColBERT.

    tercet train scenes:500 --model examples/maxsim.py:MaxSim --objective nt-xent

Nothing in Tercet knows this class. It trains, is evaluated, mined, analysed, indexed and searched because it has the
methods of `tercet.interfaces.LateInteraction`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.interfaces import SystemSpec


@dataclass(frozen=True)
class MaxSimSettings:
    vocab_size: int
    """Filled in from the training captions."""
    patch: int = 16
    embed_dim: int = 32


class MaxSim(nn.Module):
    """S = mean over the words of a caption of the cosine with the most similar patch."""

    spec = SystemSpec(MaxSimSettings, training={"image_size": 64, "batch_size": 32, "learning_rate": 0.002})
    dot_product = False

    def __init__(self, settings: MaxSimSettings) -> None:
        super().__init__()
        self.settings = settings
        dim = settings.embed_dim
        self.patches = nn.Sequential(
            nn.Conv2d(3, 4 * dim, settings.patch, stride=settings.patch), nn.GELU(), nn.Conv2d(4 * dim, dim, 1)
        )
        self.words = nn.Embedding(settings.vocab_size, settings.embed_dim)

    def encode_images(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        return F.normalize(self.patches(images).flatten(2).transpose(1, 2), dim=-1)  # image patch dim

    def encode_captions(self, captions: Tensor, lengths: Tensor | None = None) -> Tensor:
        encoded = F.normalize(self.words(captions), dim=-1)
        if lengths is not None:
            encoded = encoded * (torch.arange(captions.shape[1], device=captions.device) < lengths[:, None])[..., None]
        return encoded  # caption word dim, zeros where padded

    def similarity(self, images: Tensor, captions: Tensor) -> Tensor:
        best = torch.einsum("ipd,cwd->icwp", images, captions).amax(dim=3)
        return best.sum(dim=2) / _word_counts(captions)

    def similarity_of_pairs(self, images: Tensor, captions: Tensor) -> Tensor:
        best = torch.einsum("kpd,kwd->kwp", images, captions).amax(dim=2)
        return best.sum(dim=1) / _word_counts(captions)

    def pool(self, encoded: Tensor) -> Tensor:
        return F.normalize(encoded.sum(dim=1), dim=-1)


def _word_counts(captions: Tensor) -> Tensor:
    return captions.any(dim=2).sum(dim=1).to(captions.dtype)
