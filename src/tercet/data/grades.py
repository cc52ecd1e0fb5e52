"""Grades: weights in 0..1 of image-caption pairs of a split, for objectives that take weights of positives.

From a text file, or from the human judgments of Flickr8k. Pairs that are not named have the weight 1 if the caption is
one of the image's own, and 0 otherwise.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data.dataset import Split
from tercet.data.flickr8k_judgments import graded_pairs, judgment_files


@dataclass(frozen=True)
class Grades:
    """The graded pairs of a split: image * captions + caption, ascending, and their weights."""

    captions: int
    pairs: Int[Tensor, " pair"]
    weights: Float[Tensor, " pair"]

    def of(
        self,
        images: Int[Tensor, " image"],
        captions: Int[Tensor, " caption"],
        others: Bool[Tensor, "image caption"],
    ) -> Float[Tensor, "image caption"]:
        """The weights of all pairs of these images and captions; `others` is the mask of those not named."""
        pairs = images[:, None] * self.captions + captions
        position = torch.searchsorted(self.pairs, pairs).clamp(max=len(self.pairs) - 1)
        return torch.where(self.pairs[position] == pairs, self.weights[position], others.float())


def read_grades(path: Path, split: Split) -> Grades:
    """Read a text file of `image caption weight` lines, 0-based indices in the split, or a folder of judgments."""
    found = graded_pairs(path, split) if path.is_dir() else _read(path, split)
    if not found:
        raise ValueError(f"{path}: no graded pairs of this split")
    pairs = np.array([image * len(split.owners) + caption for image, caption in found])
    order = np.argsort(pairs)
    weights = np.array(list(found.values()), dtype=np.float32)[order]
    return Grades(len(split.owners), torch.from_numpy(pairs[order]), torch.from_numpy(weights))


def grades_checksum(path: Path) -> str:
    """Of the content of the file, or of the judgments in the folder."""
    files = judgment_files(path) if path.is_dir() else [path]
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return digest.hexdigest()[:16]


def _read(file: Path, split: Split) -> dict[tuple[int, int], float]:
    images, captions = len(split.image_names), len(split.owners)
    found: dict[tuple[int, int], float] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        fields = line.replace(",", " ").split()
        if not fields or (number == 1 and fields == ["image", "caption", "weight"]):
            continue
        try:
            image, caption, weight = int(fields[0]), int(fields[1]), float(fields[2])
        except (ValueError, IndexError):
            raise ValueError(
                f"{file}, line {number}: expected an image index, a caption index and a weight, got {line.strip()!r}"
            ) from None
        if not (len(fields) == 3 and 0 <= image < images and 0 <= caption < captions and 0 <= weight <= 1):
            raise ValueError(
                f"{file}, line {number}: {line.strip()!r} is no image below {images}, caption below {captions} and "
                "weight in 0..1"
            )
        if found.setdefault((image, caption), weight) != weight:
            raise ValueError(f"{file}, line {number}: image {image} and caption {caption} have two weights")
    return found
