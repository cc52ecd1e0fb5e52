"""Pictures: opened one at a time, and never trusted."""

import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
THINNEST = 200  # times as long as wide
LARGEST = 100_000_000  # pixels; more is a decompression bomb until somebody shows a photo of that size


@runtime_checkable
class Picture(Protocol):
    """Something with the bytes of an image file; its text says where they are."""

    def content(self) -> bytes: ...


@dataclass(frozen=True)
class PictureFile:
    path: Path

    def content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ValueError(f"{self.path}: cannot be read: {error.strerror}") from error

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class PictureBytes:
    """One that somebody sent, or that was read before."""

    data: bytes
    name: str = "the picture"

    def content(self) -> bytes:
        return self.data

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pictures:
    """The pictures of a split, in the order of its images."""

    sources: Sequence[Picture]

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[Picture]:
        return iter(self.sources)

    def open(self, item: int) -> Image.Image:
        return open_picture(self.sources[item])

    @staticmethod
    def joined(parts: "Sequence[Pictures]") -> "Pictures":
        return Pictures([source for part in parts for source in part.sources])


def open_picture(source: Picture, largest: int = LARGEST) -> Image.Image:
    """The picture as RGB, upright, fully decoded. `ValueError` that names it, if it is none or has too many pixels."""
    content = source.content()
    if not content:
        raise ValueError(f"{source}: the file is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked here; odd metadata is no fault of the pixels
            return _decoded(content, largest)
    except UnidentifiedImageError as error:
        raise ValueError(f"{source}: not an image that Pillow knows") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{source}: too many pixels: {error}") from error
    except Exception as error:  # decoders raise whatever comes on damaged files
        raise ValueError(f"{source}: damaged or unfit image: {error or type(error).__name__}") from error


def _decoded(content: bytes, largest: int) -> Image.Image:
    return as_rgb(Image.open(io.BytesIO(content)), largest)


def as_rgb(picture: Image.Image, largest: int = LARGEST) -> Image.Image:
    """Upright, in RGB, of a size and shape that a photo can have."""
    width, height = picture.size
    if width * height > largest:
        raise ValueError(f"{width} x {height} pixels; more than {largest:,} are not decoded")
    if max(width, height) > THINNEST * min(width, height):
        raise ValueError(f"{width} x {height} pixels: a line rather than a picture")
    if picture.mode == "F":
        raise ValueError("its pixels are fractions, of which black and white are not known")
    if picture.mode.startswith("I"):  # 16 bits of grey; Pillow would cut them off at white
        picture = Image.fromarray((np.asarray(picture).clip(0, 65535) >> 8).astype(np.uint8))
    return ImageOps.exif_transpose(picture).convert("RGB")
