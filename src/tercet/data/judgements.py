"""People's word on whether a caption describes an image that it was not written for: Flickr8k's two files.

Hodosh, Young and Hockenmaier (JAIR 2013). Experts gave 1 to 4, three of them to a pair; the crowd said yes or no.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from tercet.data.dataset import Split
from tercet.data.faults import Faults
from tercet.data.lines import numbered_lines

EXPERTS, CROWD = "ExpertAnnotations.txt", "CrowdFlowerAnnotations.txt"
DESCRIBES = 3.0  # experts' mean from which on a caption describes an image, if with minor mistakes
UNJUDGED, NO, YES = -1, 0, 1


@dataclass(frozen=True)
class Judgements:
    """Of a split: its judged captions, and what people say of each image with each of them."""

    captions: Int[np.ndarray, " judged"]
    """Numbers of the split's captions, ascending."""
    said: Int[np.ndarray, "image judged"]
    """YES, NO or UNJUDGED."""


def read_judgements(folder: Path, split: Split) -> Judgements:
    """Where both have looked at a pair, the experts' word counts. Pairs of other images are passed over."""
    if not any((folder / file).is_file() for file in (EXPERTS, CROWD)):
        raise ValueError(f"{folder}: no judgements there; expected {EXPERTS} or {CROWD}")
    said = _crowd(folder / CROWD) | _experts(folder / EXPERTS)
    image_of = {_plain(name): image for image, name in enumerate(split.image_names)}
    starts = np.searchsorted(split.owners, np.arange(len(split.image_names)))
    counts = split.captions_each()
    found: dict[tuple[int, int], bool] = {}
    for (image_name, caption_name), yes in said.items():
        owner_name, _, number = caption_name.rpartition("#")
        image, owner = image_of.get(_plain(image_name)), image_of.get(_plain(owner_name))
        if image is not None and owner is not None and int(number) < counts[owner]:
            found[image, int(starts[owner]) + int(number)] = yes
    if not found:
        raise ValueError(f"{folder}: no judged pair is of the images of this split")
    captions = np.unique([caption for _, caption in found])
    table = np.full((len(split.image_names), len(captions)), UNJUDGED, dtype=np.int8)
    for (image, caption), yes in found.items():
        table[image, np.searchsorted(captions, caption)] = YES if yes else NO
    return Judgements(captions, table)


def _experts(file: Path) -> dict[tuple[str, str], bool]:
    return {pair: float(np.mean(numbers)) >= DESCRIBES for pair, numbers in _rows(file)}


def _crowd(file: Path) -> dict[tuple[str, str], bool]:
    """The majority of yes and no, which follow the share of yes."""
    return {pair: numbers[1] > numbers[2] for pair, numbers in _rows(file)}


def _rows(file: Path) -> list[tuple[tuple[str, str], list[float]]]:
    if not file.is_file():
        return []
    rows = []
    for number, line in numbered_lines(file, Faults()):
        parts = (line or "").split("\t")
        try:
            pair, numbers = (parts[0], parts[1]), [float(part) for part in parts[2:5]]
            int(parts[1].rpartition("#")[2])
        except (IndexError, ValueError):
            numbers = []
        if len(numbers) != 3:
            raise ValueError(f"{file}, line {number}: expected image, caption as image#number, and three numbers")
        rows.append((pair, numbers))
    return rows


def _plain(name: str) -> str:
    """Image names with or without their folder and ending are the same image."""
    return Path(name).stem
