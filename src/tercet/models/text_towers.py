"""Two text towers: queries and passages are encoded alike, by a GRU over words or a Hugging Face text model."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.interfaces import SystemSpec
from tercet.models.parts.backbone import config_of, hugging_face_model
from tercet.models.parts.gru_text_encoder import WordGRU
from tercet.models.parts.masking import checked_lengths, l2_normalize, length_mask
from tercet.types import Similarity

GRU_DIM = 512


@dataclass(frozen=True)
class TextTowersSettings:
    vocab_size: int | None = None
    """Size of the vocabulary of the GRU; also of a text model that is given as a configuration."""
    text: str | dict[str, Any] | None = None
    """Hugging Face text model for both sides, fine-tuned: name, path or configuration. None: a GRU."""
    shared: bool = True
    """One tower for both sides; false: each has weights of its own."""
    embed_dim: int | None = None
    """Width of the GRU, 512 if not given; a text model has its own."""
    word_dim: int = 300
    """Of the GRU."""

    def __post_init__(self) -> None:
        if self.text is None and self.vocab_size is None:
            raise ValueError("give vocab_size (a GRU) or text (a Hugging Face model)")
        if self.text is not None and self.embed_dim is not None:
            raise ValueError("embed_dim is the width of the GRU; the text model has its own")


class TextTowers(nn.Module):
    """Passages are on the image side, queries on the caption side; S is the cosine."""

    spec = SystemSpec(TextTowersSettings, text="text", image_texts=True)
    dot_product = True

    def __init__(self, settings: TextTowersSettings) -> None:
        super().__init__()
        self.query_tower = TextTower(settings)
        self.passage_tower = None if settings.shared else TextTower(settings)
        if self.query_tower.text is not None:
            settings = replace(settings, text=config_of(self.query_tower.text))
        self.settings = settings

    @property
    def eval_batch_size(self) -> int:
        """Texts per evaluation batch: the more, the more share a prefix and its GRU states."""
        return 4096 if self.query_tower.text is None else 256

    def encode_images(
        self, images: Int[Tensor, "passage word"], lengths: Int[Tensor, " passage"] | None = None
    ) -> Float[Tensor, "passage embed_dim"]:
        embedded: Tensor = (self.passage_tower or self.query_tower)(images, lengths)
        return embedded

    def encode_captions(
        self, token_ids: Int[Tensor, "query word"], lengths: Int[Tensor, " query"] | None = None
    ) -> Float[Tensor, "query embed_dim"]:
        embedded: Tensor = self.query_tower(token_ids, lengths)
        return embedded

    def similarity(
        self, encoded_images: Float[Tensor, "passage embed_dim"], encoded_captions: Float[Tensor, "query embed_dim"]
    ) -> Similarity:
        return encoded_images @ encoded_captions.T


class TextTower(nn.Module):
    """Token ids -> one vector: the last state of the GRU, or the mean of the text model's states."""

    def __init__(self, settings: TextTowersSettings) -> None:
        super().__init__()
        self.text: Any = None
        if settings.text is not None:
            config = settings.text
            if isinstance(config, dict) and settings.vocab_size is not None:
                config = config | {"vocab_size": settings.vocab_size}
            self.text = hugging_face_model(config)
        else:
            assert settings.vocab_size is not None
            self.words = WordGRU(settings.vocab_size, settings.word_dim, settings.embed_dim or GRU_DIM)

    def forward(
        self, token_ids: Int[Tensor, "text word"], lengths: Int[Tensor, " text"] | None
    ) -> Float[Tensor, "text embed_dim"]:
        if self.text is None:
            return l2_normalize(self.words.last(token_ids, lengths))
        real = length_mask(checked_lengths(lengths, token_ids, "texts"), token_ids.shape[1])
        states = self.text(input_ids=token_ids, attention_mask=real.long()).last_hidden_state
        return l2_normalize(torch.where(real[..., None], states, 0).sum(dim=1))
