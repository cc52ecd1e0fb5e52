"""Reading and decoding image files, with limits for untrusted input."""

import hashlib
import io
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif"}
# The formats of these suffixes, and no others: Pillow would pass PostScript on to Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")  # after b"ftyp"
MAX_ASPECT_RATIO = 200
MAX_BYTES = 1 << 30
MAX_PIXELS = 100_000_000  # larger images are treated as decompression bombs


@runtime_checkable
class ImageSource(Protocol):
    """Provides the bytes of an image file; `str()` of it names their location in messages."""

    def content(self) -> bytes: ...


@dataclass(frozen=True)
class ImageFile:
    path: Path

    def content(self) -> bytes:
        try:
            status = self.path.stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe would block, a device may have no end
                raise ValueError(f"{self.path}: not a regular file")
            if status.st_size > MAX_BYTES:
                raise ValueError(f"{self.path}: {status.st_size:,} bytes: at most {MAX_BYTES:,} are allowed")
            return self.path.read_bytes()
        except OSError as error:
            raise ValueError(f"{self.path}: cannot read the file: {error.strerror}") from error

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class ImageBytes:
    """An image file in memory, such as an upload."""

    data: bytes
    name: str = "the image"

    def content(self) -> bytes:
        return self.data

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class PassageText:
    """A text on the image side."""

    text: str
    name: str

    def content(self) -> bytes:
        return self.text.encode()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ImageFiles:
    """The images of a split, in the order of its images."""

    sources: Sequence[ImageSource]

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[ImageSource]:
        return iter(self.sources)

    def open(self, item: int) -> Image.Image:
        return open_image(self.sources[item])

    @staticmethod
    def concatenate(image_files: "Sequence[ImageFiles]") -> "ImageFiles":
        return ImageFiles([source for each in image_files for source in each.sources])


def content_checksum(source: ImageSource) -> bytes:
    """SHA-256 of an image file; files are read once per process, unless they change."""
    if isinstance(source, ImageFile):
        try:
            status = source.path.stat()
        except OSError as error:
            raise ValueError(f"{source.path}: cannot read the file: {error.strerror}") from error
        return _file_checksum(source, status.st_size, status.st_mtime_ns)
    return hashlib.sha256(source.content()).digest()


@lru_cache(maxsize=1_000_000)
def _file_checksum(file: ImageFile, size: int, modified: int) -> bytes:
    return hashlib.sha256(file.content()).digest()


def open_image(source: ImageSource, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image to RGB and apply its EXIF orientation. `ValueError` with its location if it is invalid."""
    content = source.content()
    if not content:
        raise ValueError(f"{source}: empty file (0 bytes)")
    damaged = f"{source}: damaged or unsupported image"  # without the decoder's text: clients of the server see it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the size is checked below, and odd metadata does not matter
        is_heif = content[4:8] == b"ftyp" and content[8:12] in HEIF_BRANDS
        if is_heif:
            _register_heif(source)
        try:
            image = Image.open(io.BytesIO(content), formats=("HEIF",) if is_heif else FORMATS)
        except UnidentifiedImageError as error:
            raise ValueError(f"{source}: not an image in one of the formats {', '.join(FORMATS)}") from error
        except Image.DecompressionBombError as error:
            raise ValueError(f"{source}: too many pixels: at most {max_pixels:,} are allowed") from error
        except Exception as error:  # decoders raise arbitrary exceptions for damaged files
            raise ValueError(damaged) from error
        rejection = _rejection(image, max_pixels)
        if rejection is not None:
            raise ValueError(f"{source}: {rejection}")
        try:
            return _to_rgb(image)
        except Exception as error:
            raise ValueError(damaged) from error


def _register_heif(source: ImageSource) -> None:
    """HEIC, the photos of an iPhone, is decoded by a package of its own."""
    try:
        from pillow_heif import register_heif_opener  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ValueError(f"{source}: a HEIC image: pip install pillow-heif, or save it as JPEG") from error
    register_heif_opener()


def as_rgb(image: Image.Image) -> Image.Image:
    """Check size and aspect ratio, apply the EXIF orientation and convert to RGB."""
    rejection = _rejection(image, MAX_PIXELS)
    if rejection is not None:
        raise ValueError(rejection)
    is_upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    return image if is_upright and image.mode == "RGB" else _to_rgb(image.copy())


def _rejection(image: Image.Image, max_pixels: int) -> str | None:
    """Return why an image is not accepted, before its pixels are decoded."""
    width, height = image.size
    if width * height > max_pixels:
        return f"{width} x {height} pixels: at most {max_pixels:,} pixels are allowed"
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        return f"{width} x {height} pixels: the aspect ratio must be at most {MAX_ASPECT_RATIO}"
    if image.mode == "F":
        return "float images (mode F) are not supported: the value range is unknown"
    return None


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of the caller's own: it is changed in place, since each copy of a large one takes 200 MB."""
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip to 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    ImageOps.exif_transpose(image, in_place=True)
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")
