"""Encoders of SCAN and BFAN: every region and every word as a vector in one embedding space."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tercet.models.parts.gru_text_encoder import WordGRU
from tercet.models.parts.masking import check_regions, checked_lengths, l2_normalize_eps, length_mask
from tercet.similarity import normalized_mean, zero_pad


@dataclass(frozen=True)
class RegionWordSettings:
    """What SCAN and BFAN have in common."""

    vocab_size: int
    """Size of the vocabulary."""
    image_dim: int
    """Dimension of a region's features."""
    embed_dim: int = 1024
    word_dim: int = 300
    layers: int = 1
    image_norm: bool = True
    text_norm: bool = True


class RegionWordModel(nn.Module):
    """Base of SCAN and BFAN, which only differ in the similarity."""

    dot_product = False

    def __init__(
        self, settings: RegionWordSettings, *, bidirectional: bool = True, weight_normed: bool = False
    ) -> None:
        super().__init__()
        self.regions = RegionSetEncoder(
            settings.image_dim, settings.embed_dim, norm=settings.image_norm, weight_normed=weight_normed
        )
        self.captions = WordSetEncoder(
            settings.vocab_size,
            settings.word_dim,
            settings.embed_dim,
            settings.layers,
            bidirectional=bidirectional,
            norm=settings.text_norm,
        )

    def encode_images(
        self, images: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image longest embed_dim"]:
        """Embed every region; zeros where padded."""
        return self.regions(images, lengths)

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption longest embed_dim"]:
        """Embed every word; zeros where padded."""
        return self.captions(token_ids, lengths)

    def pool(self, encoded: Float[Tensor, "item element embed_dim"]) -> Float[Tensor, "item embed_dim"]:
        """One vector per set, for the first stage of search: the normalized mean."""
        return normalized_mean(encoded)


class RegionSetEncoder(nn.Module):
    """A linear projection of every region."""

    def __init__(self, dim: int, embed_dim: int, *, norm: bool, weight_normed: bool) -> None:
        super().__init__()
        self.norm = norm
        self.linear = nn.Linear(dim, embed_dim)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        if weight_normed:
            weight_norm(self.linear, dim=None)  # type: ignore[arg-type]  # one norm for the whole matrix

    def forward(
        self, regions: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image longest embed_dim"]:
        check_regions(regions, "cross attention")
        lengths = checked_lengths(lengths, regions, "images")
        regions = regions[:, : int(lengths.max())] if len(regions) else regions
        projected = self.linear(regions)
        return zero_pad(l2_normalize_eps(projected) if self.norm else projected, length_mask(lengths, regions.shape[1]))


class WordSetEncoder(nn.Module):
    """GRU states at every word, averaged over both directions."""

    def __init__(
        self,
        vocab_size: int,
        word_dim: int,
        embed_dim: int,
        layers: int,
        *,
        bidirectional: bool,
        norm: bool,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.words = WordGRU(vocab_size, word_dim, embed_dim, layers, bidirectional=bidirectional)

    def forward(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption longest embed_dim"]:
        lengths = checked_lengths(lengths, token_ids, "captions")
        states = self.words.states(token_ids, lengths)
        return zero_pad(l2_normalize_eps(states) if self.norm else states, length_mask(lengths, states.shape[1]))
