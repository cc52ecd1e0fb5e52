"""Builds splits from the images and captions that a reader yields, and locates image files."""

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tercet.data.dataset import SPLIT_NAMES, Split, split_name
from tercet.data.image_io import SUFFIXES, ImageFile, ImageFiles, ImageSource
from tercet.data.textio import ErrorPolicy, caption_error

URL = re.compile(r"(?i)(https?|ftp|s3|gs|data):")
MAX_WALKED = 1_000_000  # files that are looked at to find images in sub-folders
PROBED_IMAGES = 100  # looked up in the candidate folders to find the image folder
DEFAULT_SPLIT = "all"  # the split of data without split names


class ImageFolder:
    """The image folder: the given one, or the best of the candidates, or none. Every image must be in it.

    Names come from data that may have been downloaded: a file that is neither below the given folder nor below a
    candidate is refused, whether `..`, an absolute path or a symbolic link leads there. `anywhere`: for names from the
    user's own program.
    """

    def __init__(
        self, given: Path | None, candidates: Iterable[Path], names: Iterable[str], *, anywhere: bool = False
    ) -> None:
        if given is not None and not given.is_dir():
            raise ValueError(f"{given}: no such image folder")
        self._listed: dict[Path, _Listing] = {}
        self._below: dict[str, list[Path]] | None = None
        self._anywhere, candidates = anywhere, list(candidates)
        self.folder = (
            given if given is not None else self._best(candidates, list(itertools.islice(names, PROBED_IMAGES)))
        )
        self._candidates = candidates
        self.searched = candidates if given is None else [given]
        roots = candidates if given is None else [given, *candidates]
        self._roots = [os.path.realpath(root) for root in roots]

    def _best(self, candidates: list[Path], names: list[str]) -> Path | None:
        """The candidate that holds most of the probed images, or None. Missing images are reported later."""
        counts = {folder: sum(self._path(folder, name) is not None for name in names) for folder in candidates}
        best = max(counts, key=lambda folder: counts[folder], default=None)
        if best is None or counts[best]:
            return best
        for folder in (folder for folder in candidates if folder.is_dir()):  # names of files in sub-folders
            below = files_below(folder)
            if any(name in below for name in names):
                self._below = below
                return folder
        return None

    def _path(self, folder: Path, name: str) -> Path | None:
        """The file of this name, also if it was written on Windows: `photos\\beach.jpg`."""
        spellings = (name, name.replace("\\", "/")) if "\\" in name else (name,)
        return next((folder / each for each in spellings if self._listing(folder / each).holds(each)), None)

    def find(self, name: str) -> ImageFile:
        """The image file of this name; `ValueError` if there is none, or if it is outside the folders."""
        assert self.folder is not None
        # A name with .. cannot be relative to a folder that contains the image: it is relative to the data.
        folders = [self.folder, *(self._candidates if ".." in Path(name).parts else ())]
        path = next((path for folder in folders if (path := self._path(folder, name)) is not None), None)
        path = self._in_a_subfolder(name) if path is None else path
        real = self._listing(path).real_path(path)
        if not self._anywhere and not any(is_below(real, root) for root in self._roots):
            raise ValueError(outside(name, real, self.folder))
        return ImageFile(path)

    def _in_a_subfolder(self, name: str) -> Path:
        """The one file of this name in any sub-folder; `ValueError` if there is none, or if there are several."""
        assert self.folder is not None
        if self._below is None:
            self._below = files_below(self.folder)
        found = [] if "/" in name or "\\" in name else self._below.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"{len(found)} image files {name} in {self.folder}, such as {found[0]} and {found[1]}")
        raise ValueError(f"no image file {name} in {self.folder}{self._hint(name)}")

    def _hint(self, name: str) -> str:
        """Why the file may be missing: an absolute path of another machine, or another case or suffix."""
        if os.path.isabs(name) or re.match(r"[A-Za-z]:[\\/]", name):
            return ": the name is an absolute path; write it relative to the folder of the images"
        assert self.folder is not None
        near = self._listing(self.folder / name).similar(Path(name).name)
        return "" if near is None else f" (did you mean {near}?)"

    def _listing(self, path: Path) -> "_Listing":
        """The folder of this path, listed once: much faster than one system call per file."""
        if path.parent not in self._listed:
            self._listed[path.parent] = _Listing(path.parent)
        return self._listed[path.parent]


class _Listing:
    """The names in a folder, and which of them are symbolic links."""

    def __init__(self, folder: Path) -> None:
        self._links: dict[str, bool] = {}
        self._stems: dict[str, str] | None = None
        with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:  # no such folder, invalid name
            self._links = {entry.name: entry.is_symlink() for entry in entries}
        self._real_folder = os.path.realpath(folder) if self._links else ""

    def similar(self, name: str) -> str | None:
        """A file whose name differs in case or suffix alone."""
        if self._stems is None:
            self._stems = {Path(entry).stem.lower(): entry for entry in self._links}
        return self._stems.get(Path(name).stem.lower())

    def holds(self, name: str) -> bool:
        return Path(name).name in self._links

    def real_path(self, path: Path) -> str:
        return os.path.realpath(path) if self._links[path.name] else os.path.join(self._real_folder, path.name)


def files_below(folder: Path) -> dict[str, list[Path]]:
    """The images in all sub-folders by their name, of the first million files: links to folders are not followed."""
    found: dict[str, list[Path]] = {}
    for seen, (root, name) in enumerate(_walk(folder)):
        if seen == MAX_WALKED:
            break
        if root != str(folder) and os.path.splitext(name)[1].lower() in SUFFIXES:
            found.setdefault(name, []).append(Path(root, name))
    return found


def _walk(folder: Path) -> Iterator[tuple[str, str]]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from ((root, name) for name in sorted(names))


def is_below(path: str, folder: str) -> bool:
    """Whether a path is below a folder; both without links and `..`, as of `os.path.realpath`."""
    return path.startswith(os.path.join(folder, ""))


def outside(name: str, real_path: str, folder: Path) -> str:
    """The message for an image that is outside the folders where images may be."""
    path = name if Path(name) == Path(real_path) else f"{name} ({real_path})"
    how = "name a folder that contains all images with --images (tercet index: --image-folder)"
    return f"the image {path} is outside {folder}: to allow it, {how}"


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
        if URL.match(image):
            self.errors.report(location, f"the image is a URL ({image}): download the images and name their files")
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

    def no_images(self, folder: ImageFolder) -> str:
        """Why no image was found, if the data names images and none of them is in a folder where images may be."""
        if folder.folder is not None or not self.captions:
            return ""
        first = next(self.images())
        places = ", ".join(dict.fromkeys(str(place) for place in folder.searched if place.is_dir()))
        return f"no image was found: {first} and the others are not in {places}; name their folder with --images"

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
            try:
                image_files[image] = folder.find(image)
            except ValueError as error:
                self.errors.report(self.locations[split, image], str(error))
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
