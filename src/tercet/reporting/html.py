"""Self-contained HTML pages: page frame, figures, wide tables and inline thumbnails."""

import base64
import io
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from PIL import Image

from tercet.data.dataset import Split
from tercet.reporting.svg_figure import Figure

THUMBNAIL_SIZE = 132  # pixels of the longer side


class Section(NamedTuple):
    id: str
    """Lower case, no spaces."""
    heading: str
    content: str
    """HTML."""


def page(title: str, heading: str, lead: str, sections: Sequence[Section]) -> str:
    """A page: heading, lead paragraph, links to the sections, sections. Title, heading and lead are plain text."""
    links = "".join(f'<li><a href="#{section.id}">{section.heading}</a></li>' for section in sections)
    body = "".join(
        f'<section id="{section.id}"><h2>{section.heading}</h2>{section.content}</section>' for section in sections
    )
    style = (files(__package__) / "page.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{style}</style></head><body>'
        f'<a class="skip" href="#{sections[0].id if sections else ""}">Skip to results</a>'
        f'<header><h1>{escape(heading)}</h1><p class="verdict">{escape(lead)}</p></header>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><main>{body}</main></body></html>\n'
    )


def figure_block(figure: Figure) -> str:
    """A figure in the colors of the page, with links to its files in `figures/`, next to the page."""
    return (
        f"<figure><h3>{escape(figure.title)}</h3>{figure.svg}<figcaption>{escape(figure.caption)} "
        f'<a href="figures/{figure.name}.png">PNG</a> <a href="figures/{figure.name}.svg">SVG</a></figcaption></figure>'
    )


def scrollable(label: str, content: str) -> str:
    """Wide content in a container with its own scroll bar, usable by keyboard."""
    text = escape(label, quote=True)
    return f'<p class="note">{text}</p><div class="wide" role="region" tabindex="0" aria-label="{text}">{content}</div>'


def image_block(split: Split, image: int) -> str:
    """A thumbnail with its first caption as alt text; the name of the image if there is no image file."""
    name = split.image_names[image]
    if split.image_files is None:
        return f'<span class="nameless">{escape(name)}</span>'
    first = next(text for text, owner in zip(split.texts, split.owners, strict=True) if owner == image)
    alt = escape(f"{name}: {first}", quote=True)
    try:
        return f'<img src="{_thumbnail(split.image_files.open(image))}" alt="{alt}">'
    except ValueError:  # the file is missing or damaged by now; the results are still valid
        return f'<span class="nameless">{escape(name)}</span>'


def caption_fallback(split: Split, image: int) -> str:
    """The first caption of an image, if the data has no image files."""
    if split.image_files is not None:
        return ""
    return f' <q class="caption-fallback">{escape(split.texts[int(np.searchsorted(split.owners, image))])}</q>'


def _thumbnail(pil_image: Image.Image) -> str:
    pil_image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    buffer = io.BytesIO()
    pil_image.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
