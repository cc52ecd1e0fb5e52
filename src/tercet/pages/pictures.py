"""Pictures inside a page."""

import base64
import io
from html import escape

import numpy as np
from PIL import Image

from tercet.data.dataset import Split

SIDE = 132  # pixels of a thumbnail's longer side


def picture_block(split: Split, image: int) -> str:
    """A small picture, its first caption for those who cannot see it; its name where the data has no pictures."""
    name = split.image_names[image]
    if split.pictures is None:
        return f'<span class="nameless">{escape(name)}</span>'
    first = next(text for text, owner in zip(split.texts, split.owners, strict=True) if owner == image)
    alt = escape(f"{name}: {first}", quote=True)
    try:
        return f'<img src="{_thumbnail(split.pictures.open(image))}" alt="{alt}">'
    except ValueError:  # gone or damaged since: the numbers are not
        return f'<span class="nameless">{escape(name)}</span>'


def stand_in(split: Split, image: int) -> str:
    """The first caption of an image where the data has no pictures: a name says little."""
    if split.pictures is not None:
        return ""
    return f' <q class="stand-in">{escape(split.texts[int(np.searchsorted(split.owners, image))])}</q>'


def _thumbnail(picture: Image.Image) -> str:
    picture.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    picture.save(content, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
