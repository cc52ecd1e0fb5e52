"""Self-contained HTML pages: the templates in `templates/`, and images for them as inline thumbnails."""

import base64
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from tercet.data.dataset import Split

THUMBNAIL_SIZE = 132  # pixels of the longer side


@cache
def environment() -> Environment:
    """The templates; every value is escaped, and a missing one is an error."""
    made = Environment(
        loader=PackageLoader("tercet.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals["style"] = (files(__package__) / "page.css").read_text(encoding="utf-8")
    return made


def render_page(name: str, **values: Any) -> str:
    """The page `name`, as `report.html`, from the template `<name>.j2`."""
    return environment().get_template(f"{name}.j2").render(values)


@dataclass(frozen=True)
class Thumbnail:
    """An image on a page."""

    name: str
    alt: str
    source: str | None
    """Data URI; None if there is no image file: the page shows the name."""
    caption_fallback: str | None = None
    """The first caption, if the data has no image files."""


@dataclass(frozen=True)
class PageItem:
    """A caption, an image, or a caption with its own image."""

    text: str | None
    image: Thumbnail | None


def query_item(split: Split, direction: Literal["i2t", "t2i"], row: int, *, caption_fallback: bool = True) -> PageItem:
    """The image of `row`, or for t2i the caption with its own image."""
    if direction == "i2t":
        return PageItem(None, thumbnail(split, row, caption_fallback=caption_fallback))
    return PageItem(split.texts[row], thumbnail(split, int(split.owners[row]), caption_fallback=False))


def candidate_item(
    split: Split, direction: Literal["i2t", "t2i"], row: int, *, caption_fallback: bool = True
) -> PageItem:
    """The caption of `row`, or for t2i the image."""
    if direction == "i2t":
        return PageItem(split.texts[row], None)
    return PageItem(None, thumbnail(split, row, caption_fallback=caption_fallback))


def thumbnail(split: Split, image: int, *, caption_fallback: bool) -> Thumbnail:
    """With the first caption of the image as alt text."""
    name = split.image_names[image]
    first = split.texts[int(np.searchsorted(split.owners, image))]
    alt = f"{name}: {first}"
    if split.image_files is None:
        return Thumbnail(name, alt, None, first if caption_fallback else None)
    try:
        return Thumbnail(name, alt, _data_uri(split.image_files.open(image)))
    except ValueError:  # the file is missing or damaged by now; the results are still valid
        return Thumbnail(name, alt, None)


def _data_uri(image: Image.Image) -> str:
    image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
