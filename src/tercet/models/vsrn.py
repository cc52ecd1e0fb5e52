"""VSRN (Li et al., ICCV 2019): regions reason with each other in a graph, a GRU reads them one after the other."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet import similarity
from tercet.contracts import Similarity
from tercet.models.captioner import Captioner
from tercet.models.norms import across_regions, check_lengths, check_regions, full_lengths, real_parts, unit
from tercet.models.words import WordGRU


@dataclass(frozen=True)
class VSRNSettings:
    words: int
    """Size of the vocabulary."""
    image_dim: int = 2048
    joint_dim: int = 2048
    word_dim: int = 300
    layers: int = 1
    variant: Literal["f30k", "coco", "both"] = "f30k"
    """`coco` normalises right after the projection, `f30k` has BatchNorm at the end, the comparison study has both."""
    blocks: int = 4
    """How often regions reason with each other."""
    image_norm: bool = True
    absolute: bool = False
    captioner: bool = False
    """A decoder that learns to write the caption from the regions: a further training signal."""
    caption_dim: int = 512
    caption_word_dim: int = 300
    caption_length: int = 60


class VSRN(nn.Module):
    dot_product = True
    captions_at_once = 4096  # in evaluation; the more there are, the more of them begin alike and share their states

    def __init__(self, settings: VSRNSettings) -> None:
        super().__init__()
        self.settings = settings
        dim = settings.joint_dim
        self.region_head = nn.Linear(settings.image_dim, dim)
        nn.init.xavier_uniform_(self.region_head.weight)
        nn.init.zeros_(self.region_head.bias)
        self.blocks = nn.ModuleList(RegionGraph(dim) for _ in range(settings.blocks))
        self.reader = nn.GRU(dim, dim, 1, batch_first=True)
        self.final_norm = None if settings.variant == "coco" else nn.BatchNorm1d(dim)
        self.words = WordGRU(settings.words, settings.word_dim, dim, settings.layers)
        self.captioner = (
            Captioner(dim, settings.words, settings.caption_dim, settings.caption_word_dim, settings.caption_length)
            if settings.captioner
            else None
        )

    def reason(
        self, images: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"]
    ) -> Float[Tensor, "image region joint"]:
        """Regions after the graph, which the captioner reads too."""
        real = real_parts(lengths, images.shape[1])
        regions = torch.where(real[..., None], self.region_head(images), 0)
        if self.settings.variant != "f30k":
            regions = across_regions(regions)
        for block in self.blocks:
            regions = block(regions, real)
        return across_regions(regions)

    def encode_images(
        self, images: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image joint"]:
        check_regions(images, "VSRN")
        lengths = full_lengths(images) if lengths is None else lengths
        check_lengths(lengths, images, "images")
        return self.read(self.reason(images, lengths), lengths)

    def encode_and_write(
        self,
        images: Float[Tensor, "image region dim"],
        lengths: Int[Tensor, " image"] | None,
        token_ids: Int[Tensor, "image word"],
        caption_lengths: Int[Tensor, " image"],
    ) -> tuple[Float[Tensor, "image joint"], Float[Tensor, ""]]:
        """Embedded images, and the captioner's loss on the captions of the same rows; the graph runs once for both."""
        if self.captioner is None:
            raise ValueError("this VSRN has no captioner: build it with captioner=True")
        lengths = full_lengths(images) if lengths is None else lengths
        check_lengths(lengths, images, "images")
        regions = self.reason(images, lengths)
        return self.read(regions, lengths), self.captioner.loss(regions, token_ids, caption_lengths, lengths)

    def read(
        self, regions: Float[Tensor, "image region joint"], lengths: Int[Tensor, " image"]
    ) -> Float[Tensor, "image joint"]:
        """The state after the last real region."""
        states, _ = self.reader(regions)
        embedded = states[torch.arange(len(states), device=states.device), lengths - 1]
        if self.final_norm is not None:
            embedded = self.final_norm(embedded)
        embedded = unit(embedded) if self.settings.image_norm else embedded
        return torch.abs(embedded) if self.settings.absolute else embedded

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption joint"]:
        embedded = unit(self.words.last(token_ids, lengths))
        return torch.abs(embedded) if self.settings.absolute else embedded

    def similarity(
        self, encoded_images: Float[Tensor, "image joint"], encoded_captions: Float[Tensor, "caption joint"]
    ) -> Similarity:
        return similarity.dot_products(encoded_images, encoded_captions)


class RegionGraph(nn.Module):
    """v + BN(W y), y = R g(v), R = theta(v) phi(v)^T / regions: affinities without a softmax.

    BatchNorm's weight and bias start at 0, so that a block starts as the identity.
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
        """Padding takes no part: not as a neighbour, not in the count, not in BatchNorm's statistics."""
        g = torch.where(real[..., None], self.g(regions), 0)
        affinity = self.theta(regions) @ self.phi(regions).mT / real.sum(dim=1)[:, None, None]
        reasoned = self.out(affinity @ g)
        if real.all():
            return regions + self.norm(reasoned.flatten(0, 1)).view_as(reasoned)
        normed = torch.zeros_like(reasoned)
        normed[real] = self.norm(reasoned[real])
        return regions + normed
