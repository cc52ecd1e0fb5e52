"""VSRN (Li et al., ICCV 2019): graph reasoning over regions, then a GRU over them; optional caption decoder."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet.interfaces import SystemSpec
from tercet.models.parts.gru_text_encoder import WordGRU
from tercet.models.parts.masking import (
    check_regions,
    checked_lengths,
    full_lengths,
    l2_normalize,
    length_mask,
    normalize_over_regions,
)
from tercet.types import PairMask, Similarity

DROPOUT = 0.2
END, PAD = 2, 0  # token ids


@dataclass(frozen=True)
class VSRNSettings:
    vocab_size: int
    """Size of the vocabulary."""
    image_dim: int = 2048
    embed_dim: int = 2048
    word_dim: int = 300
    layers: int = 1
    variant: Literal["f30k", "coco", "both"] = "f30k"
    """`coco` normalizes right after the projection, `f30k` has BatchNorm at the end, the COCOS study uses both."""
    blocks: int = 4
    """Number of graph blocks."""
    image_norm: bool = True
    absolute: bool = False
    captioner: bool = False
    """Add a decoder that generates the caption from the regions, an auxiliary training loss."""
    caption_dim: int = 512
    caption_word_dim: int = 300
    caption_length: int = 60


class VSRN(nn.Module):
    spec = SystemSpec(VSRNSettings, regions=True)
    dot_product = True
    eval_batch_size = 4096  # captions per evaluation batch: the more, the more share a prefix and its GRU states

    def __init__(self, settings: VSRNSettings) -> None:
        super().__init__()
        self.settings = settings
        dim = settings.embed_dim
        self.region_head = nn.Linear(settings.image_dim, dim)
        nn.init.xavier_uniform_(self.region_head.weight)
        nn.init.zeros_(self.region_head.bias)
        self.blocks = nn.ModuleList(RegionGraph(dim) for _ in range(settings.blocks))
        self.reader = nn.GRU(dim, dim, 1, batch_first=True)
        self.final_norm = None if settings.variant == "coco" else nn.BatchNorm1d(dim)
        self.words = WordGRU(settings.vocab_size, settings.word_dim, dim, settings.layers)
        self.captioner = (
            Captioner(
                dim, settings.vocab_size, settings.caption_dim, settings.caption_word_dim, settings.caption_length
            )
            if settings.captioner
            else None
        )

    def reason(
        self, images: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"]
    ) -> Float[Tensor, "image region embed_dim"]:
        """Regions after the graph blocks; also the input of the captioner."""
        real = length_mask(lengths, images.shape[1])
        regions = torch.where(real[..., None], self.region_head(images), 0)
        if self.settings.variant != "f30k":
            regions = normalize_over_regions(regions)
        for block in self.blocks:
            regions = block(regions, real)
        return normalize_over_regions(regions)

    def encode_images(
        self, images: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image embed_dim"]:
        check_regions(images, "VSRN")
        lengths = checked_lengths(lengths, images, "images")
        return self.aggregate(self.reason(images, lengths), lengths)

    @property
    def auxiliary_loss(self) -> Literal["captioning"] | None:
        return None if self.captioner is None else "captioning"

    def encode_with_auxiliary_loss(
        self,
        images: Float[Tensor, "image region dim"],
        lengths: Int[Tensor, " image"] | None,
        token_ids: Int[Tensor, "caption word"],
        caption_lengths: Int[Tensor, " caption"] | None,
        positives: PairMask | None = None,
    ) -> tuple[Float[Tensor, "image embed_dim"], Float[Tensor, "caption embed_dim"], Float[Tensor, ""]]:
        """Embeddings, and the captioner's loss on the captions of the same rows; the graph runs once for both."""
        if self.captioner is None:
            raise ValueError("this VSRN has no captioner; build it with captioner=True")
        lengths = checked_lengths(lengths, images, "images")
        caption_lengths = checked_lengths(caption_lengths, token_ids, "captions")
        regions = self.reason(images, lengths)
        encoded = self.aggregate(regions, lengths)
        loss = self.captioner.loss(regions, token_ids, caption_lengths, lengths)
        return encoded, self.encode_captions(token_ids, caption_lengths), loss

    def aggregate(
        self, regions: Float[Tensor, "image region embed_dim"], lengths: Int[Tensor, " image"]
    ) -> Float[Tensor, "image embed_dim"]:
        """The GRU's state after the last real region."""
        states, _ = self.reader(regions)
        embedded = states[torch.arange(len(states), device=states.device), lengths - 1]
        if self.final_norm is not None:
            embedded = self.final_norm(embedded)
        embedded = l2_normalize(embedded) if self.settings.image_norm else embedded
        return torch.abs(embedded) if self.settings.absolute else embedded

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption embed_dim"]:
        embedded = l2_normalize(self.words.last(token_ids, lengths))
        return torch.abs(embedded) if self.settings.absolute else embedded

    def similarity(
        self, encoded_images: Float[Tensor, "image embed_dim"], encoded_captions: Float[Tensor, "caption embed_dim"]
    ) -> Similarity:
        return encoded_images @ encoded_captions.T


class RegionGraph(nn.Module):
    """v + BN(W y), y = R g(v), R = theta(v) phi(v)^T / regions: affinities without a softmax.

    BatchNorm's weight and bias are initialized to 0, so that a block starts as the identity.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.theta, self.phi, self.g, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)

    def forward(
        self, regions: Float[Tensor, "image region dim"], real: Bool[Tensor, "image region"]
    ) -> Float[Tensor, "image region dim"]:
        """Padding is excluded: as a neighbour, from the count, and from BatchNorm's statistics."""
        g = torch.where(real[..., None], self.g(regions), 0)
        affinity = self.theta(regions) @ self.phi(regions).mT / real.sum(dim=1)[:, None, None]
        reasoned = self.out(affinity @ g)
        if real.all():
            return regions + self.norm(reasoned.flatten(0, 1)).view_as(reasoned)
        normed = torch.zeros_like(reasoned)
        normed[real] = self.norm(reasoned[real])
        return regions + normed


class Captioner(nn.Module):
    """Caption decoder for training: a GRU over the regions, then a GRU over the words with additive attention to it."""

    def __init__(
        self, region_dim: int, vocab_size: int, dim: int = 512, word_dim: int = 300, max_length: int = 60
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.region_head = nn.Linear(region_dim, dim)
        nn.init.xavier_normal_(self.region_head.weight)
        self.reader = nn.GRU(dim, dim, batch_first=True)
        self.embedding = nn.Embedding(vocab_size, word_dim)
        self.attention_hidden = nn.Linear(2 * dim, dim)
        self.attention_out = nn.Linear(dim, 1, bias=False)
        self.writer = nn.GRU(dim + word_dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab_size)
        nn.init.xavier_normal_(self.out.weight)

    def loss(
        self,
        regions: Float[Tensor, "image region dim"],
        token_ids: Int[Tensor, "image word"],
        lengths: Int[Tensor, " image"],
        region_lengths: Int[Tensor, " image"] | None = None,
    ) -> Float[Tensor, ""]:
        """Negative log-likelihood of the captions, summed over words, mean over the batch.

        Row i of both is a pair. As published, one position past the end token counts too.
        """
        labels, counted = self.labels(token_ids, lengths)
        predicted = self.log_probabilities(regions, labels, region_lengths)
        steps = predicted.shape[1]
        log_likelihoods = predicted.gather(2, labels[:, 1 : steps + 1, None]).squeeze(2)
        return -(log_likelihoods * counted[:, 1 : steps + 1]).sum() / len(regions)

    def labels(
        self, token_ids: Int[Tensor, "image word"], lengths: Int[Tensor, " image"]
    ) -> tuple[Int[Tensor, "image position"], Float[Tensor, "image position"]]:
        """Captions padded or truncated (with an end token) to `max_length` + 1 positions, and the loss mask."""
        width = self.max_length + 1
        labels = F.pad(token_ids, (0, max(0, width - token_ids.shape[1])), value=PAD)[:, :width]
        position = torch.arange(width, device=token_ids.device)
        labels = labels.masked_fill(position >= lengths[:, None], PAD)
        truncated = lengths > self.max_length - 1
        labels = torch.where(truncated[:, None] & (position == self.max_length - 1), END, labels)
        labels = torch.where(truncated[:, None] & (position >= self.max_length), PAD, labels)
        label_lengths = torch.where(truncated, self.max_length, lengths)
        return labels, (position <= label_lengths[:, None]).float()

    def log_probabilities(
        self,
        regions: Float[Tensor, "image region dim"],
        labels: Int[Tensor, "image position"],
        region_lengths: Int[Tensor, " image"] | None = None,
    ) -> Float[Tensor, "image step word"]:
        """Word log-probabilities with teacher forcing: each step sees the true previous word."""
        region_lengths = full_lengths(regions) if region_lengths is None else region_lengths
        padded = ~length_mask(region_lengths, regions.shape[1])
        states, _ = self._encode_regions(regions)
        hidden = states[torch.arange(len(states), device=states.device), region_lengths - 1][None]
        keys = self._keys(states)
        outputs = []
        for step in range(self.max_length - 1):
            context = self._attend(hidden, states, keys, padded)
            words = self.embedding(labels[:, step])
            inputs = F.dropout(torch.cat([words, context], dim=1), DROPOUT, self.training)
            output, hidden = self.writer(inputs[:, None], hidden)
            outputs.append(output.squeeze(1))
        return self.out(torch.stack(outputs, dim=1)).log_softmax(dim=2)

    def _encode_regions(
        self, regions: Tensor
    ) -> tuple[Float[Tensor, "image region dim"], Float[Tensor, "1 image dim"]]:
        return self.reader(F.dropout(self.region_head(regions), DROPOUT, self.training))

    def _keys(self, states: Tensor) -> Tensor:
        """The part of the attention that is the same for all words."""
        return F.linear(states, self.attention_hidden.weight[:, : states.shape[2]], self.attention_hidden.bias)

    def _attend(self, hidden: Tensor, states: Tensor, keys: Tensor, padded: Tensor) -> Float[Tensor, "image dim"]:
        query = F.linear(hidden[0], self.attention_hidden.weight[:, states.shape[2] :])
        logits = self.attention_out(torch.tanh(keys + query[:, None])).squeeze(2).masked_fill(padded, -torch.inf)
        return torch.einsum("ir,ird->id", logits.softmax(dim=1), states)
