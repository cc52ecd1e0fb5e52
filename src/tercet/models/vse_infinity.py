"""VSE-infinity (Chen et al., CVPR 2021): regions, cells or words pooled by GPO."""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet import similarity
from tercet.contracts import Similarity
from tercet.models.backbone import Backbone, config_of, pretrained
from tercet.models.gpo import GPO
from tercet.models.norms import check_lengths, check_regions, full_lengths, nearly_unit, real_parts
from tercet.models.words import WordGRU


@dataclass(frozen=True)
class VSEInfinitySettings:
    words: int | None = None
    """Size of the vocabulary, for the BiGRU; None where `bert` reads the captions."""
    bert: str | dict[str, Any] | None = None
    """A text model of Hugging Face: a name or path, or a configuration."""
    image_dim: int | None = None
    """Channels of precomputed regions; None where a backbone makes cells from pixels."""
    backbone: str | dict[str, Any] | None = None
    train_backbone: bool = True
    joint_dim: int = 1024
    word_dim: int = 300
    layers: int = 1
    residual: bool = True
    """A hidden layer beside the linear projection of regions; cells have none."""
    image_norm: bool = True
    text_norm: bool = True

    def __post_init__(self) -> None:
        if (self.image_dim is None) == (self.backbone is None):
            raise ValueError("give either image_dim, for precomputed regions, or a backbone, for pixels")
        if (self.words is None) == (self.bert is None):
            raise ValueError("give either words, the size of a vocabulary, or bert, a text model")


class VSEInfinity(nn.Module):
    dot_product = True

    def __init__(self, settings: VSEInfinitySettings) -> None:
        super().__init__()
        self.backbone = None
        image_dim = settings.image_dim
        if settings.backbone is not None:
            self.backbone = Backbone(settings.backbone, trained=settings.train_backbone)
            image_dim = self.backbone.dim
            settings = replace(settings, backbone=self.backbone.config(), residual=False)
        assert image_dim is not None
        self.regions = Regions(image_dim, settings.joint_dim, residual=settings.residual)
        self.captions = BertWords(settings) if settings.bert is not None else GRUWords(settings)
        if isinstance(self.captions, BertWords):
            settings = replace(settings, bert=self.captions.config())
        self.settings = settings

    def encode_images(
        self, images: Float[Tensor, "image *rest"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image joint"]:
        return self.encode_regions(images if self.backbone is None else self.backbone.cells(images), lengths)

    def encode_regions(
        self, regions: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image joint"]:
        """Of regions, or of cells that the backbone has made already."""
        check_regions(regions, "VSE-infinity")
        lengths = full_lengths(regions) if lengths is None else lengths
        check_lengths(lengths, regions, "images")
        pooled = self.regions(regions, lengths)
        return nearly_unit(pooled) if self.settings.image_norm else pooled

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption joint"]:
        pooled = self.captions(token_ids, lengths)
        return nearly_unit(pooled) if self.settings.text_norm else pooled

    def similarity(
        self, encoded_images: Float[Tensor, "image joint"], encoded_captions: Float[Tensor, "caption joint"]
    ) -> Similarity:
        return similarity.dot_products(encoded_images, encoded_captions)


class Regions(nn.Module):
    """Linear, plus a hidden layer with BatchNorm, half as wide as the output; pooled by GPO.

    As published, padding goes through BatchNorm too and counts in its statistics while training.
    """

    def __init__(self, dim: int, joint_dim: int, *, residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, joint_dim)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.hidden = (
            nn.Sequential(
                nn.Linear(dim, joint_dim // 2),
                nn.BatchNorm1d(joint_dim // 2),
                nn.ReLU(),
                nn.Linear(joint_dim // 2, joint_dim),
            )
            if residual
            else None
        )
        self.pool = GPO()

    def forward(
        self, regions: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"]
    ) -> Float[Tensor, "image joint"]:
        projected = self.linear(regions)
        if self.hidden is not None:
            projected = projected + self.hidden(regions.flatten(0, 1)).view_as(projected)
        return self.pool(projected, lengths)


class GRUWords(nn.Module):
    def __init__(self, settings: VSEInfinitySettings) -> None:
        super().__init__()
        assert settings.words is not None
        self.words = WordGRU(
            settings.words, settings.word_dim, settings.joint_dim, settings.layers, both_directions=True
        )
        self.pool = GPO()

    def forward(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption joint"]:
        return self.pool(self.words.states(token_ids, lengths), lengths)


class BertWords(nn.Module):
    """The last layer of BERT, its CLS and SEP included."""

    def __init__(self, settings: VSEInfinitySettings) -> None:
        super().__init__()
        assert settings.bert is not None
        self.bert: Any = pretrained(settings.bert)
        self.linear = nn.Linear(self.bert.config.hidden_size, settings.joint_dim)
        self.pool = GPO()

    def config(self) -> dict[str, Any]:
        return config_of(self.bert)

    def forward(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption joint"]:
        check_lengths(lengths, token_ids, "captions")
        real = real_parts(lengths, token_ids.shape[1])
        states = self.bert(input_ids=token_ids, attention_mask=real.long()).last_hidden_state
        return self.pool(self.linear(states), lengths)
