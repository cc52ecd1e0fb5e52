"""VSE-infinity (Chen et al., CVPR 2021): regions, grid cells or words pooled by GPO."""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.interfaces import SystemSpec
from tercet.models.parts.backbone import backbone_and_dim, check_image_input, config_of, hugging_face_model
from tercet.models.parts.gpo import GPO
from tercet.models.parts.gru_text_encoder import WordGRU
from tercet.models.parts.masking import check_lengths, check_regions, checked_lengths, l2_normalize_eps, length_mask
from tercet.types import Similarity


@dataclass(frozen=True)
class VSEInfinitySettings:
    vocab_size: int | None = None
    """Size of the vocabulary of the BiGRU; None with `bert`."""
    bert: str | dict[str, Any] | None = None
    """Hugging Face text model: name, path or configuration."""
    image_dim: int | None = None
    """Dimension of precomputed regions; None with a backbone."""
    backbone: str | dict[str, Any] | None = None
    """Hugging Face vision model, whose grid cells are the regions: name, path or configuration."""
    train_backbone: bool = True
    embed_dim: int = 1024
    word_dim: int = 300
    layers: int = 1
    residual: bool = True
    """Add an MLP branch to the linear projection of regions; never used with a backbone."""
    image_norm: bool = True
    text_norm: bool = True

    def __post_init__(self) -> None:
        check_image_input(self.image_dim, self.backbone)
        if (self.vocab_size is None) == (self.bert is None):
            raise ValueError("give either vocab_size (BiGRU) or bert (a text model)")


class VSEInfinity(nn.Module):
    spec = SystemSpec(VSEInfinitySettings, vision="backbone", text="bert")
    dot_product = True

    def __init__(self, settings: VSEInfinitySettings) -> None:
        super().__init__()
        self.backbone, image_dim = backbone_and_dim(
            settings.image_dim, settings.backbone, trained=settings.train_backbone
        )
        if self.backbone is not None:
            settings = replace(settings, backbone=self.backbone.config(), residual=False)
        self.regions = PooledRegionEncoder(image_dim, settings.embed_dim, residual=settings.residual)
        self.captions = PooledBertEncoder(settings) if settings.bert is not None else PooledGRUEncoder(settings)
        if isinstance(self.captions, PooledBertEncoder):
            settings = replace(settings, bert=self.captions.config())
        self.settings = settings

    @property
    def has_backbone(self) -> bool:
        return self.backbone is not None

    def set_backbone_trained(self, trained: bool) -> None:
        if self.backbone is not None:
            self.backbone.set_trained(trained)

    def encode_images(
        self, images: Float[Tensor, "image *rest"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image embed_dim"]:
        return self.encode_regions(images if self.backbone is None else self.backbone.cells(images), lengths)

    def grid_cells(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image region dim"]:
        """The backbone's grid cells, the regions of `encode_regions`."""
        assert self.backbone is not None
        return self.backbone.cells(pixels)

    def encode_regions(
        self, regions: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image embed_dim"]:
        """Embed regions, or grid cells that the backbone has already computed."""
        check_regions(regions, "VSE-infinity")
        pooled = self.regions(regions, checked_lengths(lengths, regions, "images"))
        return l2_normalize_eps(pooled) if self.settings.image_norm else pooled

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption embed_dim"]:
        pooled = self.captions(token_ids, checked_lengths(lengths, token_ids, "captions"))
        return l2_normalize_eps(pooled) if self.settings.text_norm else pooled

    def similarity(
        self, encoded_images: Float[Tensor, "image embed_dim"], encoded_captions: Float[Tensor, "caption embed_dim"]
    ) -> Similarity:
        return encoded_images @ encoded_captions.T


class PooledRegionEncoder(nn.Module):
    """Linear projection plus an MLP with BatchNorm, half as wide as the output; pooled by GPO.

    As published, padding also passes through BatchNorm and enters its statistics in training.
    """

    def __init__(self, dim: int, embed_dim: int, *, residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, embed_dim)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.hidden = (
            nn.Sequential(
                nn.Linear(dim, embed_dim // 2),
                nn.BatchNorm1d(embed_dim // 2),
                nn.ReLU(),
                nn.Linear(embed_dim // 2, embed_dim),
            )
            if residual
            else None
        )
        self.pool = GPO()

    def forward(
        self, regions: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"]
    ) -> Float[Tensor, "image embed_dim"]:
        projected = self.linear(regions)
        if self.hidden is not None:
            projected = projected + self.hidden(regions.flatten(0, 1)).view_as(projected)
        return self.pool(projected, lengths)


class PooledGRUEncoder(nn.Module):
    """BiGRU states pooled by GPO."""

    def __init__(self, settings: VSEInfinitySettings) -> None:
        super().__init__()
        assert settings.vocab_size is not None
        self.words = WordGRU(
            settings.vocab_size, settings.word_dim, settings.embed_dim, settings.layers, bidirectional=True
        )
        self.pool = GPO()

    def forward(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption embed_dim"]:
        return self.pool(self.words.states(token_ids, lengths), lengths)


class PooledBertEncoder(nn.Module):
    """Last layer of BERT, including CLS and SEP, pooled by GPO."""

    def __init__(self, settings: VSEInfinitySettings) -> None:
        super().__init__()
        assert settings.bert is not None
        self.bert: Any = hugging_face_model(settings.bert)
        self.linear = nn.Linear(self.bert.config.hidden_size, settings.embed_dim)
        self.pool = GPO()

    def config(self) -> dict[str, Any]:
        return config_of(self.bert)

    def forward(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption embed_dim"]:
        check_lengths(lengths, token_ids, "captions")
        real = length_mask(lengths, token_ids.shape[1])
        states = self.bert(input_ids=token_ids, attention_mask=real.long()).last_hidden_state
        return self.pool(self.linear(states), lengths)
