"""A model: a projection of image features, and the mean of word vectors."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import nn

from tercet.interfaces import SystemSpec


@dataclass(frozen=True)
class MeanWordsSettings:
    image_dim: int  # filled in from the data, as is vocab_size
    vocab_size: int
    embed_dim: int = 32


class MeanWords(nn.Module):
    spec = SystemSpec(MeanWordsSettings, training={"learning_rate": 0.005, "batch_size": 32})
    dot_product = True

    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.images = nn.Linear(settings.image_dim, settings.embed_dim)
        self.words = nn.EmbeddingBag(settings.vocab_size, settings.embed_dim, padding_idx=0)

    def encode_images(self, images, lengths=None):
        return F.normalize(self.images(images), dim=1)

    def encode_captions(self, token_ids, lengths=None):
        return F.normalize(self.words(token_ids), dim=1)

    def similarity(self, images, captions):
        return images @ captions.T
