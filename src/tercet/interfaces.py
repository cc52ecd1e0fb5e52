"""The protocols of the library: what a model must have, what a model may be able to do besides, what an objective is.

Models compute (S, positives), objectives turn them into dL/dS. Every annotation of a model uses these protocols, and
capabilities are asked for with `isinstance(model, Capability)`: a model from outside needs no base class.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.types import MaskOrWeights, PairGradient, PairMask, Similarity


@dataclass(frozen=True)
class SystemSpec:
    """What a model class reads, and how its inputs are prepared: the class attribute `spec`."""

    settings: type
    """Dataclass of the model's settings, the only argument of its constructor. `image_dim`, `caption_dim` and
    `vocab_size` are filled in from the data."""
    regions: bool = False
    """Images must be sets of region features, not single vectors."""
    caption_features: bool = False
    """Captions are feature vectors; otherwise token ids."""
    vision: str | None = None
    """Name of the setting with a Hugging Face vision model; None if the model cannot take pixels."""
    text: str | None = None
    """Name of the setting with a Hugging Face text model; None if it has none."""
    transform: Literal["settings", "pretrained", "squash"] = "settings"
    """Image preprocessing: that of the training settings, that saved with the vision model, or resized to its input
    size without keeping the aspect ratio."""
    image_texts: bool = False
    """Images are token ids too: both sides are texts."""
    normalize_captions: bool = False
    """Captions are lower-cased, stripped of punctuation and truncated before they are tokenized, as X-VLM does."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Default training settings of a model from outside; those of Tercet's own systems are in `tercet.recipes`."""


@runtime_checkable
class TorchModule(Protocol):
    """The part of `torch.nn.Module` that is used on models."""

    training: bool

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def named_children(self) -> Iterator[tuple[str, nn.Module]]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...

    def to(self, *args: Any, **kwargs: Any) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...


@runtime_checkable
class RetrievalModel(TorchModule, Protocol):
    """A retrieval model: encodes images and captions and computes their similarity, larger is closer.

    A dual encoder (`dot_product` is True) has S = images @ captions.T. `lengths` says what is padding; None: nothing.
    `eval()` makes it deterministic.
    """

    spec: SystemSpec
    settings: Any

    @property
    def dot_product(self) -> bool: ...

    def encode_images(self, images: Tensor, lengths: Tensor | None = None, /) -> Tensor: ...

    def encode_captions(self, captions: Tensor, lengths: Tensor | None = None, /) -> Tensor: ...

    def similarity(self, encoded_images: Tensor, encoded_captions: Tensor, /) -> Similarity: ...


@runtime_checkable
class System(Protocol):
    """A model class: builds a model from its settings."""

    spec: SystemSpec

    def __call__(self, settings: Any, /) -> RetrievalModel: ...


@runtime_checkable
class PairScorer(RetrievalModel, Protocol):
    """Also compares image k with caption k, without the whole matrix: needed for mining where S is no dot product."""

    def similarity_of_pairs(self, encoded_images: Tensor, encoded_captions: Tensor, /) -> Float[Tensor, " pair"]: ...


@runtime_checkable
class LateInteraction(PairScorer, Protocol):
    """Encodes an image or a caption as a set of vectors, with zeros where it is padded (SCAN, BFAN, MaxSim).

    `pool` makes one vector of each set, for the first stage of search; the similarity then re-ranks.
    """

    def pool(self, encoded: Float[Tensor, "item element dim"], /) -> Float[Tensor, "item dim"]: ...


@runtime_checkable
class AttentionMap(LateInteraction, Protocol):
    """Shows the attention of the words of a caption over the regions of an image."""

    def attention_map(
        self, encoded_image: Float[Tensor, "region dim"], encoded_caption: Float[Tensor, "word dim"], /
    ) -> Float[Tensor, "word region"]: ...


@runtime_checkable
class Reranker(RetrievalModel, Protocol):
    """A dual encoder with a matching head that re-ranks its best candidates (X-VLM).

    `encode_images` is `image_features(image_tokens(images))`, `encode_captions` likewise.
    """

    def image_tokens(self, images: Tensor, /) -> Float[Tensor, "image token image_dim"]: ...

    def word_states(self, captions: Tensor, lengths: Tensor | None = None, /) -> Float[Tensor, "caption word dim"]: ...

    def image_features(self, tokens: Tensor, /) -> Float[Tensor, "image embed_dim"]: ...

    def caption_features(self, states: Tensor, /) -> Float[Tensor, "caption embed_dim"]: ...

    def match(
        self,
        image_tokens: Float[Tensor, "pair token image_dim"],
        word_states: Float[Tensor, "pair word dim"],
        word_lengths: Int[Tensor, " pair"],
        /,
    ) -> Float[Tensor, " pair"]: ...


@runtime_checkable
class LogitScale(Protocol):
    """Has a learned scale, perhaps a bias, that replaces the objective's temperature (CLIP, SigLIP, X-VLM)."""

    def scale_and_bias(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""] | None]: ...


@runtime_checkable
class TrainableBackbone(Protocol):
    """May have a vision backbone, which can be frozen and unfrozen during training."""

    @property
    def has_backbone(self) -> bool: ...

    def set_backbone_trained(self, trained: bool, /) -> None: ...


@runtime_checkable
class GridEncoder(TrainableBackbone, Protocol):
    """With a backbone it pools grid cells, so that size augmentation can drop some of them."""

    def grid_cells(self, pixels: Tensor, /) -> Float[Tensor, "image region dim"]: ...

    def encode_regions(self, regions: Tensor, lengths: Tensor | None = None, /) -> Tensor: ...


@runtime_checkable
class AuxiliaryLoss(Protocol):
    """Has a loss of its own that is added to the objective: VSRN generates captions, X-VLM matches pairs."""

    @property
    def auxiliary_loss(self) -> Literal["captioning", "matching"] | None: ...

    def encode_with_auxiliary_loss(
        self,
        images: Tensor,
        image_lengths: Tensor | None,
        captions: Tensor,
        caption_lengths: Tensor | None,
        positives: PairMask,
        /,
    ) -> tuple[Tensor, Tensor, Float[Tensor, ""]]: ...


@runtime_checkable
class CaptionBatchSize(Protocol):
    """Prefers its own number of captions per batch when it encodes a whole split."""

    eval_batch_size: int


@runtime_checkable
class ImageFeatures(Protocol):
    """A Hugging Face model that maps images to a joint space, like CLIP."""

    def get_image_features(self, pixel_values: Tensor) -> Any: ...


@runtime_checkable
class TextFeatures(Protocol):
    """A Hugging Face model that maps texts to a joint space, like CLIP."""

    def get_text_features(self, input_ids: Tensor, **options: Any) -> Any: ...


@runtime_checkable
class Objective(Protocol):
    """An objective: maps (similarity, positives) to the pair gradient G = dL/dS. See `RowObjective` for the methods."""

    @property
    def name(self) -> str: ...

    @property
    def has_value(self) -> bool: ...

    @property
    def reduction(self) -> Literal["sum", "mean"]: ...

    def on_similarity(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]: ...

    def pair_gradient(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> PairGradient: ...

    def pair_gradients(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> tuple[PairGradient, PairGradient]: ...

    def value(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""] | None: ...

    def monitor(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]: ...
