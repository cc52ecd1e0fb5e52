"""Regions and words as sets of vectors in one space: the encoders that SCAN and BFAN share."""

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tercet.models.norms import check_lengths, check_regions, full_lengths, nearly_unit, real_parts
from tercet.models.words import WordGRU
from tercet.similarity import padded_with_zeros


class PartSetModel(nn.Module):
    """What SCAN and BFAN have in common: all but the similarity."""

    dot_product = False

    def __init__(self, regions: "RegionSet", captions: "WordSet") -> None:
        super().__init__()
        self.regions, self.captions = regions, captions

    def encode_images(
        self, images: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image longest joint"]:
        """Every region; zeros where padded."""
        return self.regions(images, lengths)

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption longest joint"]:
        """Every word; zeros where padded."""
        return self.captions(token_ids, lengths)


class RegionSet(nn.Module):
    """One linear projection of every region."""

    def __init__(self, dim: int, joint_dim: int, *, norm: bool = True, weight_normed: bool = False) -> None:
        super().__init__()
        self.norm = norm
        self.linear = nn.Linear(dim, joint_dim)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        if weight_normed:
            weight_norm(self.linear, dim=None)  # type: ignore[arg-type]  # one length for the whole matrix

    def forward(
        self, regions: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image longest joint"]:
        check_regions(regions, "cross attention")
        lengths = full_lengths(regions) if lengths is None else lengths
        check_lengths(lengths, regions, "images")
        regions = regions[:, : int(lengths.max())] if len(regions) else regions
        projected = self.linear(regions)
        return padded_with_zeros(
            nearly_unit(projected) if self.norm else projected, real_parts(lengths, regions.shape[1])
        )


class WordSet(nn.Module):
    """The state of a GRU at every word, its two directions averaged."""

    def __init__(
        self, words: int, word_dim: int, joint_dim: int, layers: int, *, both_directions: bool = True, norm: bool = True
    ) -> None:
        super().__init__()
        self.norm = norm
        self.words = WordGRU(words, word_dim, joint_dim, layers, both_directions=both_directions)

    def forward(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption longest joint"]:
        states = self.words.states(token_ids, lengths)
        return padded_with_zeros(nearly_unit(states) if self.norm else states, real_parts(lengths, states.shape[1]))
