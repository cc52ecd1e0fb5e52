"""Side by side: queries on which contestants disagree most, with what each of them finds."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from PIL import Image

from tercet.comparison.report.evidence import Embedded
from tercet.data.dataset import Split

SHOWN = 3  # items that each contestant finds
QUERIES = 5  # a direction
SIDE = 132  # pixels of a thumbnail's longer side


@dataclass(frozen=True)
class Example:
    """A query, and for each contestant its best rank and the items in front; own ones are marked."""

    query: str
    """HTML."""
    answers: Sequence[tuple[str, int, Sequence[tuple[str, bool]]]]


def text_examples(embedded: Sequence[Embedded], split: Split) -> list[Example]:
    """Captions that look for their image."""
    ranks = np.stack([_ranks_of_captions(each) for each in embedded])
    found = []
    for caption in _most_disagreed(ranks, split.owners):
        owner = int(split.owners[caption])
        answers = []
        for number, each in enumerate(embedded):
            front = np.argsort(-each.images_for(caption), kind="stable")[:SHOWN]
            answers.append(
                (each.name, int(ranks[number, caption]), [(_image(split, int(i)), bool(i == owner)) for i in front])
            )
        query = f"<q>{escape(split.texts[caption])}</q> {_image(split, owner)}"
        found.append(Example(query, answers))
    return found


def image_examples(embedded: Sequence[Embedded], split: Split) -> list[Example]:
    """Images that look for one of their captions."""
    ranks = np.stack([_ranks_of_images(each) for each in embedded])
    found = []
    for image in _most_disagreed(ranks, np.arange(len(split.image_names))):
        answers = []
        for number, each in enumerate(embedded):
            front = np.argsort(-each.captions_for(image), kind="stable")[:SHOWN]
            texts = [(f"<q>{escape(split.texts[int(c)])}</q>", bool(split.owners[c] == image)) for c in front]
            answers.append((each.name, int(ranks[number, image]), texts))
        found.append(Example(_image(split, image), answers))
    return found


def _ranks_of_captions(embedded: Embedded) -> np.ndarray:
    """Of each caption's own image; ties count against it."""
    owners = embedded.owners.numpy()
    captions = np.arange(len(owners))
    own = np.empty(len(owners), dtype=np.float32)
    for block, S in embedded.blocks():
        inside = (owners >= block.start) & (owners < block.stop)
        own[inside] = S[owners[inside] - block.start, captions[inside]]
    return np.sum([(own <= S).sum(axis=0) for _, S in embedded.blocks()], axis=0)


def _ranks_of_images(embedded: Embedded) -> np.ndarray:
    """Of the nearest of each image's captions."""
    owners = embedded.owners.numpy()
    found = []
    for block, S in embedded.blocks():
        images = np.arange(len(embedded.images))[block]
        mine = owners[None] == images[:, None]
        best = np.where(mine, S, -np.inf).max(axis=1, keepdims=True)
        found.append(1 + ((best <= S) & ~mine).sum(axis=1))
    return np.concatenate(found)


def _most_disagreed(ranks: np.ndarray, owners: np.ndarray) -> list[int]:
    """Where the ratio of the worst to the best rank is largest; one query an image."""
    order = np.argsort(-(np.log(ranks.max(axis=0)) - np.log(ranks.min(axis=0))), kind="stable")
    chosen: dict[int, int] = {}
    for query in order.tolist():
        chosen.setdefault(int(owners[query]), query)
        if len(chosen) == QUERIES:
            break
    return list(chosen.values())


def _image(split: Split, image: int) -> str:
    name = split.image_names[image]
    if split.pictures is None:
        return f'<span class="nameless">{escape(name)}</span>'
    first = next(text for text, owner in zip(split.texts, split.owners, strict=True) if owner == image)
    alt = escape(f"{name}: {first}", quote=True)
    try:
        return f'<img src="{_thumbnail(split.pictures.open(image))}" alt="{alt}">'
    except ValueError:  # gone or damaged since: the numbers are not
        return f'<span class="nameless">{escape(name)}</span>'


def _thumbnail(picture: Image.Image) -> str:
    picture.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    picture.save(content, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
