"""Queries as people write them: a caption's words or part of them, an image's name, `caption:17`, `image:3`."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import PurePath
from typing import NamedTuple

from tercet.comparison.report.examples import Side
from tercet.data.dataset import Split

MOST = 5  # captions that hold the same words
NEAR = 3


class Matched(NamedTuple):
    """`more` captions hold the words too."""

    said: str
    side: Side
    queries: list[int]
    more: int = 0


def matched(said: str, split: Split) -> Matched:
    """What is meant; a whole text or name before a part of one. Rows count from 0, in the order of the data."""
    if row := re.fullmatch(r"(caption|image):(\d+)", said.strip()):
        return _by_row(said, row[1], int(row[2]), split)
    wanted = said.strip().casefold()
    if not wanted:
        raise ValueError("a query is empty: expected words of a caption, an image's name, caption:17 or image:3")
    images = [image for image, name in enumerate(split.image_names) if wanted in _called(name)]
    if images:
        return Matched(said, "i2t", images)
    texts = [text.casefold() for text in split.texts]
    captions = [caption for caption, text in enumerate(texts) if text.strip() == wanted]
    captions = captions or [caption for caption, text in enumerate(texts) if wanted in text]
    if not captions:
        raise ValueError(_nothing(said, split))
    return Matched(said, "t2i", captions[:MOST], max(0, len(captions) - MOST))


def _by_row(said: str, kind: str, row: int, split: Split) -> Matched:
    count = len(split.texts) if kind == "caption" else len(split.image_names)
    if row >= count:
        raise ValueError(f"{said}: there are {count:,} {kind}s, {kind}:0 to {kind}:{count - 1}")
    return Matched(said, "t2i" if kind == "caption" else "i2t", [row])


def _called(name: str) -> set[str]:
    """With and without its folder and its ending."""
    file = PurePath(name)
    return {each.casefold() for each in (name, file.name, file.stem)}


def _nothing(said: str, split: Split) -> str:
    names = get_close_matches(said, split.image_names, n=NEAR, cutoff=0.7)
    near = [*names, *(repr(text) for text in _near_texts(said, split.texts))][:NEAR]
    hint = f"; near: {', '.join(near)}" if near else "; give words of a caption, an image's name, caption:17 or image:3"
    return f"no held-out caption holds {said!r} and no held-out image is called so{hint}"


def _near_texts(said: str, texts: Iterable[str]) -> list[str]:
    """Those with most of its words, each taken for the nearest word that occurs."""
    words = {text: set(_words(text)) for text in texts}
    known = sorted(set().union(*words.values()))
    wanted = {near for word in _words(said) for near in get_close_matches(word, known, n=1, cutoff=0.6)}
    shared = {text: len(wanted & held) for text, held in words.items()}
    best = sorted((text for text in shared if shared[text]), key=lambda text: (-shared[text], len(words[text])))
    return best[:NEAR]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
