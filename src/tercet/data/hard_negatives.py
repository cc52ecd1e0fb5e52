"""Mined hard negatives: tables on disk, and sampling of the negatives of a pair.

A table lists the most similar captions of every training image and the most similar images of every caption.
`tercet mine` writes tables (`src/tercet/mining`); the lists released by the AOQ authors are read as they are. Sampling
follows AOQ (Chen, Deng, Luo, 2020): four offline members of a quintuplet per pair.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.data.dataset import PairedData
from tercet.data.feature_array import map_array
from tercet.data.textio import read_json
from tercet.storage import CHECKSUMS, check_checksums, checked_manifest, sha256_of

MANIFEST, I2T, T2I = "mined.json", "i2t", "t2i"
PAIRS = "filter_pairs.csv"  # copy of the --filter-pairs file
REMEDY = "remove the table and mine again"
CAPTIONS, IMAGES = 2000, 400  # list lengths, as published

Sampling = Literal["uniform", "normal", "similarity"]
NORMAL_STD = 1 / 6  # of normal sampling, relative to the list length: the list spans +-3 standard deviations
TEMPERATURE = 0.1  # of sampling by similarity


@dataclass(frozen=True)
class MinedTable:
    """Row i of `captions`: caption indices, most similar to image i first, padded with -1; `images` likewise."""

    captions: Int[np.ndarray, "image k"]
    images: Int[np.ndarray, "caption j"]
    path: str
    checksum: str
    caption_similarity: Float[np.ndarray, "image k"] | None = None
    """None for the AOQ authors' lists."""
    image_similarity: Float[np.ndarray, "caption j"] | None = None


def open_mined(folder: str | Path, data: PairedData) -> MinedTable:
    """Open the table of this dataset. Raises `ValueError` for a table of another dataset or a damaged one."""
    folder = Path(folder)
    checksum = table_checksum(folder)
    similarities: list[np.ndarray | None] = [None, None]
    if not (folder / MANIFEST).is_file():
        files = [_authors_file(folder, direction) for direction in (I2T, T2I)]
    else:
        manifest = _manifest(folder)
        if manifest["data"]["pairing"] != data.pairing():
            raise ValueError(f"{folder} was mined from another dataset than {data.name}: captions or images differ")
        check_checksums(folder, manifest.get(CHECKSUMS), folder / MANIFEST, REMEDY)
        files = [folder / f"{direction}.npy" for direction in (I2T, T2I)]
        similarities = [
            map_array(folder / f"{direction}_similarity.npy", ["row k"], [np.float32]) for direction in (I2T, T2I)
        ]
    captions, images = (map_array(file, ["row k"], [np.int32]) for file in files)
    for array, similarity, file in zip((captions, images), similarities, files, strict=True):
        if not array.shape[1]:
            raise ValueError(f"{file}: the lists are empty")
        if similarity is not None and similarity.shape != array.shape:
            raise ValueError(
                f"{file}: damaged: shape {array.shape} differs from shape {similarity.shape} of its similarities"
            )
    _check_rows(captions, files[0], len(data.images), len(data.owners), "image", "caption")
    _check_rows(images, files[1], len(data.owners), len(data.images), "caption", "image")
    return MinedTable(captions, images, str(folder), checksum, *similarities)


def table_files() -> list[str]:
    """The names of the files of a table."""
    return [f"{direction}{suffix}.npy" for direction in (I2T, T2I) for suffix in ("", "_similarity")]


def filters_of(folder: str | Path) -> dict[str, Any]:
    """The false-negative filters in the manifest; empty for the AOQ authors' lists."""
    if not (Path(folder) / MANIFEST).is_file():
        return {}
    filters: dict[str, Any] = _manifest(Path(folder)).get("config", {}).get("filters", {})
    return filters


def count_empty_lists(folder: str | Path) -> dict[str, int]:
    """The number of images and captions without any mined negative, from the manifest."""
    return {"images": 0, "captions": 0} | dict(_manifest(Path(folder)).get("empty", {}))


def is_shortlisted(folder: str | Path) -> bool:
    """Whether the table re-ranks the lists of another table."""
    return (Path(folder) / MANIFEST).is_file() and "shortlist" in _manifest(Path(folder)).get("model", {})


def table_checksum(folder: Path) -> str:
    """Checksum of the lists: from the manifest, or computed for the AOQ authors' files."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no mined table: write one with `tercet mine`, or correct --mined")
    if (folder / MANIFEST).is_file():
        return str(_manifest(folder)["checksum"])
    return sha256_of(_authors_file(folder, direction) for direction in (I2T, T2I))[:16]


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / MANIFEST)
    try:
        valid = manifest["what"] == "mined" and manifest["data"]["pairing"] and manifest["checksum"]
    except (KeyError, TypeError):
        valid = False
    if not valid:
        raise ValueError(f"{folder / MANIFEST}: not the manifest of a mined table")
    return checked_manifest(manifest, folder / MANIFEST, REMEDY)


def _authors_file(folder: Path, direction: str) -> Path:
    """A file such as `i2t_coco.npy`."""
    files = sorted(file for file in folder.glob(f"{direction}_*.npy") if file.stem != f"{direction}_similarity")
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise ValueError(
            f"{folder}: expected {MANIFEST}, or one file {direction}_*.npy of the AOQ authors' lists; found {names}"
        )
    return files[0]


def _check_rows(array: np.ndarray, file: Path, rows: int, items: int, row: str, item: str) -> None:
    if len(array) != rows:
        raise ValueError(f"{file}: expected {rows} rows, one per training {row}, got {len(array)}")
    if array.size and not -1 <= int(array.min()) <= int(array.max()) < items:
        raise ValueError(f"{file}: expected {item} indices from -1 to {items - 1}, got {array.min()} to {array.max()}")


class SampledNegatives(NamedTuple):
    """The negatives of each pair (i, t): images i-, i-' and captions t-, t-', as indices."""

    images: Int[Tensor, "pair 2"]
    captions: Int[Tensor, "pair 2"]


@dataclass(frozen=True)
class HardNegativeSampler:
    """Samples one position n per pair for both lists, as published: t- is caption n of i, i- is image n / 5 of t.

    (Instead of 5, the mean number of captions per image.) t-' is a random caption of i-, i-' the image of t-.
    """

    table: MinedTable
    owners: Int[Tensor, " caption"]
    top: int = 300
    """Sample from the first `top` captions of a list, and from the corresponding share of the images."""
    sampling: Sampling = "uniform"
    negative_pairs: int = 2
    """With 1, for objectives that do not use (i-', t-'), it repeats (i-, t-), which adds no items to encode."""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"--mined-top must be at least 1, got {self.top}")
        if self.sampling == "similarity" and self.table.caption_similarity is None:
            raise ValueError(
                f"{self.table.path} holds no similarities: use --mined-draw uniform or normal, or mine again"
            )
        for array, item, negative in (
            (self.table.captions, "image", "caption"),
            (self.table.images, "caption", "image"),
        ):
            empty = np.flatnonzero(array[:, 0] < 0)
            if len(empty):
                raise ValueError(
                    f"{self.table.path}: {item} {empty[0]} has no mined {negative}: the filters removed all of its "
                    "candidates; mine again with weaker filters"
                )

    def draw(
        self, images: Int[Tensor, " pair"], captions: Int[Tensor, " pair"], generator: torch.Generator
    ) -> SampledNegatives:
        """Sample the negatives of each pair."""
        position = self._positions(images, self._caption_counts[images], generator)
        return self.at_positions(images, captions, position, torch.rand(len(images), generator=generator))

    def at_positions(
        self,
        images: Int[Tensor, " pair"],
        captions: Int[Tensor, " pair"],
        position: Int[Tensor, " pair"],
        u: Float[Tensor, " pair"],
    ) -> SampledNegatives:
        """The negatives at these positions of the caption lists; `u` in [0, 1) selects the caption of i-."""
        t = torch.from_numpy(self.table.captions[images.numpy(), position.numpy()]).long()
        # The same relative position in both lists, whatever their lengths.
        image_position = position * self._image_counts[captions] // self._caption_counts[images]
        i = torch.from_numpy(self.table.images[captions.numpy(), image_position.numpy()]).long()
        count = self._captions_per_image[i]
        position_of_other = self._starts[i] + (u * count).long().minimum(count - 1)
        other = self._by_owner[position_of_other.clamp(min=0, max=len(self.owners) - 1)]
        second = (i, t) if self.negative_pairs == 1 else (self.owners[t], other)
        # A distractor i- has no caption: (i-', t-') then repeats (i-, t-).
        second = torch.where(count > 0, second[0], i), torch.where(count > 0, second[1], t)
        return SampledNegatives(torch.stack([i, second[0]], dim=1), torch.stack([t, second[1]], dim=1))

    @property
    def top_images(self) -> int:
        return max(1, round(self.top * len(self.table.captions) / len(self.owners)))

    def _positions(
        self, images: Int[Tensor, " pair"], counts: Int[Tensor, " pair"], generator: torch.Generator
    ) -> Int[Tensor, " pair"]:
        """Random positions in the caption lists, below `counts`."""
        if self.sampling == "similarity":
            assert self.table.caption_similarity is not None
            similarity = torch.from_numpy(self.table.caption_similarity[images.numpy(), : self.top])
            return (similarity / TEMPERATURE).softmax(dim=1).multinomial(1, generator=generator)[:, 0]
        if self.sampling == "normal":
            relative = torch.randn(len(images), generator=generator) * NORMAL_STD + 0.5
            return (relative * counts).long().clamp(min=0).minimum(counts - 1)
        return (torch.rand(len(images), generator=generator) * counts).long().minimum(counts - 1)

    @cached_property
    def _caption_counts(self) -> Int[Tensor, " image"]:
        """Number of captions in the sampled part of each image's list."""
        return torch.from_numpy((self.table.captions[:, : self.top] >= 0).sum(axis=1))

    @cached_property
    def _image_counts(self) -> Int[Tensor, " caption"]:
        return torch.from_numpy((self.table.images[:, : self.top_images] >= 0).sum(axis=1))

    @cached_property
    def _captions_per_image(self) -> Int[Tensor, " image"]:
        return torch.bincount(self.owners, minlength=len(self.table.captions))

    @cached_property
    def _by_owner(self) -> Int[Tensor, " caption"]:
        return self.owners.argsort(stable=True)

    @cached_property
    def _starts(self) -> Int[Tensor, " image"]:
        return self._captions_per_image.cumsum(0) - self._captions_per_image
