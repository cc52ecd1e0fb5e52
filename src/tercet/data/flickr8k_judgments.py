"""Human relevance judgments of Flickr8k: whether a caption describes an image that it was not written for.

Hodosh, Young and Hockenmaier (JAIR 2013). Three experts rated each pair from 1 to 4; crowd workers voted yes or no.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from tercet.data.dataset import Split
from tercet.data.textio import ErrorPolicy, numbered_lines

EXPERTS, CROWD = "ExpertAnnotations.txt", "CrowdFlowerAnnotations.txt"
DESCRIBES = 3.0  # minimum mean expert rating for "describes the image", possibly with minor errors
UNJUDGED, NO, YES = -1, 0, 1


@dataclass(frozen=True)
class Judgments:
    """The judged captions of a split, and the verdict on each image with each of them."""

    captions: Int[np.ndarray, " judged"]
    """Indices of the split's captions, ascending."""
    verdicts: Int[np.ndarray, "image judged"]
    """YES, NO or UNJUDGED."""


def read_judgments(folder: Path, split: Split) -> Judgments:
    """Read both files. Expert ratings take precedence over crowd votes; pairs of other images are ignored."""
    judgment_files(folder)
    by_index = _by_index(_crowd(folder / CROWD) | _experts(folder / EXPERTS), split)
    if not by_index:
        raise ValueError(f"{folder}: none of the judged pairs are in this split")
    captions = np.unique([caption for _, caption in by_index])
    table = np.full((len(split.image_names), len(captions)), UNJUDGED, dtype=np.int8)
    for (image, caption), yes in by_index.items():
        table[image, np.searchsorted(captions, caption)] = YES if yes else NO
    return Judgments(captions, table)


def graded_pairs(folder: Path, split: Split) -> dict[tuple[int, int], float]:
    """(image, caption) -> weight in 0..1 of every judged pair of the split: (mean expert rating - 1) / 3, or the share
    of yes among crowd votes where there is no expert rating."""
    judgment_files(folder)
    shares = {pair: votes[1] / max(1.0, votes[1] + votes[2]) for pair, votes in _rows(folder / CROWD)}
    ratings = {pair: (float(np.mean(ratings)) - 1) / 3 for pair, ratings in _rows(folder / EXPERTS)}
    return _by_index(shares | ratings, split)


def judgment_files(folder: Path) -> list[Path]:
    """The files of judgments in a folder; `ValueError` if there are none."""
    files = [folder / file for file in (EXPERTS, CROWD) if (folder / file).is_file()]
    if not files:
        raise ValueError(f"{folder}: no judgments found: expected {EXPERTS} or {CROWD}")
    return files


Verdict = TypeVar("Verdict", bool, float)


def _by_index(by_name: dict[tuple[str, str], Verdict], split: Split) -> dict[tuple[int, int], Verdict]:
    """By indices of images and captions; pairs of other images are left out."""
    image_of = {_stem(name): image for image, name in enumerate(split.image_names)}
    starts = np.searchsorted(split.owners, np.arange(len(split.image_names)))
    counts = split.captions_per_image()
    by_index = {}
    for (image_name, caption_name), verdict in by_name.items():
        owner_name, _, number = caption_name.rpartition("#")
        image, owner = image_of.get(_stem(image_name)), image_of.get(_stem(owner_name))
        if image is not None and owner is not None and int(number) < counts[owner]:
            by_index[image, int(starts[owner]) + int(number)] = verdict
    return by_index


def _experts(file: Path) -> dict[tuple[str, str], bool]:
    return {pair: float(np.mean(ratings)) >= DESCRIBES for pair, ratings in _rows(file)}


def _crowd(file: Path) -> dict[tuple[str, str], bool]:
    """Majority vote. The columns are the share of yes, the number of yes and the number of no."""
    return {pair: votes[1] > votes[2] for pair, votes in _rows(file)}


def _rows(file: Path) -> list[tuple[tuple[str, str], list[float]]]:
    if not file.is_file():
        return []
    rows = []
    for number, line in numbered_lines(file, ErrorPolicy()):
        columns = (line or "").split("\t")
        try:
            pair, values = (columns[0], columns[1]), [float(column) for column in columns[2:5]]
            int(columns[1].rpartition("#")[2])
        except (IndexError, ValueError):
            values = []
        if len(values) != 3:
            raise ValueError(f"{file}, line {number}: expected an image, a caption as image#number and three numbers")
        rows.append((pair, values))
    return rows


def _stem(name: str) -> str:
    """Image names are compared without folder and suffix."""
    return Path(name).stem
