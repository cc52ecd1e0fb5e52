"""Builds splits from the images and captions that a reader yields, and locates image files."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tercet.data.dataset import SPLIT_NAMES, Split, split_name
from tercet.data.image_io import ImageFile, ImageFiles, ImageSource
from tercet.data.textio import ErrorPolicy, caption_error

PROBED_IMAGES = 100  # looked up in the candidate folders to find the image folder
DEFAULT_SPLIT = "all"  # the split of data without split names


class ImageFolder:
    """The image folder: the given one, or the best of the candidates, or none. Every image must be in it."""

    def __init__(self, given: Path | None, candidates: Iterable[Path], names: Iterable[str]) -> None:
        if given is not None and not given.is_dir():
            raise ValueError(f"{given}: no such image folder")
        self._listed: dict[Path, set[str]] = {}
        self.folder = (
            given if given is not None else self._best(candidates, list(itertools.islice(names, PROBED_IMAGES)))
        )

    def _best(self, candidates: Iterable[Path], names: list[str]) -> Path | None:
        """The candidate that holds most of the probed images, or None. Missing images are reported later."""
        counts = {folder: sum(self._contains(folder, name) for name in names) for folder in candidates}
        best = max(counts, key=lambda folder: counts[folder], default=None)
        return best if best is not None and counts[best] else None

    def find(self, name: str) -> ImageFile | None:
        """The image file of this name, or None."""
        assert self.folder is not None
        return ImageFile(self.folder / name) if self._contains(self.folder, name) else None

    def _contains(self, folder: Path, name: str) -> bool:
        """Lists each folder once, which is much faster than one system call per file."""
        path = folder / name
        if path.parent not in self._listed:
            try:
                self._listed[path.parent] = {entry.name for entry in path.parent.iterdir()}
            except OSError:  # no such folder, or an invalid name
                self._listed[path.parent] = set()
        return path.name in self._listed[path.parent]


def candidate_folders(path: Path) -> list[Path]:
    """Where images usually are, relative to the data."""
    folder = path if path.is_dir() else path.parent
    return [folder / "images", folder / "Images", folder / "flickr30k-images", folder]


class DatasetBuilder:
    """Groups captions by image, in order of first appearance; the pairs of an image need not be adjacent."""

    def __init__(self, errors: ErrorPolicy) -> None:
        self.errors = errors
        self.captions: dict[str, dict[str, list[str]]] = {}  # split -> image -> captions
        self.locations: dict[tuple[str, str], str] = {}

    def add(self, split: object, image: object, texts: Iterable[object], location: str) -> bool:
        """Add an image with captions. Returns False if none of them is valid and the item was skipped."""
        if not isinstance(image, str) or not image.strip() or "\0" in image:
            self.errors.report(location, f"expected an image name, got {image!r}")
            return False
        valid = []
        for text in texts:
            error = caption_error(text)
            if error:
                self.errors.report(f"{location}, image {image}", error)
            else:
                valid.append(str(text))
        if not valid:
            return False
        try:
            split = split_name(split)
        except ValueError as invalid_name:
            self.errors.report(location, str(invalid_name))
            return False
        self.locations.setdefault((split, image), location)
        self.captions.setdefault(split, {}).setdefault(image, []).extend(valid)
        return True

    def has(self, split: str, image: str) -> bool:
        return image in self.captions.get(SPLIT_NAMES.get(split.lower(), split), {})

    def images(self) -> Iterator[str]:
        return (image for images in self.captions.values() for image in images)

    def splits(self, folder: ImageFolder) -> dict[str, Split]:
        """Build the splits. Images without a file in the image folder are reported."""
        splits = {}
        for split in sort_splits(self.captions):
            images = self.captions[split]
            image_files = self._image_files(split, folder) if folder.folder is not None else None
            kept = [image for image in images if image_files is None or image in image_files]
            if not kept:
                continue  # every image was reported above
            splits[split] = Split(
                image_names=tuple(kept),
                texts=tuple(text for image in kept for text in images[image]),
                owners=np.repeat(np.arange(len(kept)), [len(images[image]) for image in kept]).astype(np.int64),
                image_files=None if image_files is None else ImageFiles([image_files[image] for image in kept]),
            )
        return splits

    def _image_files(self, split: str, folder: ImageFolder) -> dict[str, ImageSource]:
        image_files: dict[str, ImageSource] = {}
        for image in self.captions[split]:
            image_file = folder.find(image)
            if image_file is None:
                self.errors.report(self.locations[split, image], f"no image file {image} in {folder.folder}")
            else:
                image_files[image] = image_file
        return image_files


def sort_splits(splits: Iterable[str]) -> list[str]:
    """Train, restval, val, test, testall, then all others."""
    order = list(dict.fromkeys(SPLIT_NAMES.values()))
    position = {alias: order.index(name) for alias, name in SPLIT_NAMES.items()}
    return sorted(splits, key=lambda split: position.get(split.lower(), len(order)))


def split_in_name(name: str) -> str | None:
    """The split in a file name such as `coco_karpathy_train.json` or `train-00000-of-00002.parquet`, or None."""
    words = "".join(character if character.isalnum() else " " for character in name.lower()).split()
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)
