"""From what a reader finds, image by image or pair by pair, to splits."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tercet.data.dataset import SPLIT_NAMES, Split, split_name
from tercet.data.faults import Faults
from tercet.data.lines import no_caption
from tercet.data.pictures import Picture, PictureFile, Pictures

TRIED = 100  # images that are looked for in the folders where pictures usually are
WITHOUT_SPLITS = "all"  # the one split of data that names none


class PictureFolder:
    """Where the image files are. It must hold all of them; only whether there is one at all is guessed."""

    def __init__(self, named: Path | None, guesses: Iterable[Path], names: Iterable[str]) -> None:
        if named is not None and not named.is_dir():
            raise ValueError(f"{named}: no such folder of images")
        self._listed: dict[Path, set[str]] = {}
        self.folder = named if named is not None else self._best(guesses, list(itertools.islice(names, TRIED)))

    def _best(self, guesses: Iterable[Path], names: list[str]) -> Path | None:
        """The folder that holds most of the first images; a few may be missing, which is then told."""
        found = {folder: sum(self._is_in(folder, name) for name in names) for folder in guesses}
        best = max(found, key=lambda folder: found[folder], default=None)
        return best if best is not None and found[best] else None

    def find(self, name: str) -> PictureFile | None:
        """Listing each folder once is far quicker than asking for every file."""
        assert self.folder is not None
        return PictureFile(self.folder / name) if self._is_in(self.folder, name) else None

    def _is_in(self, folder: Path, name: str) -> bool:
        path = folder / name
        if path.parent not in self._listed:
            try:
                self._listed[path.parent] = {entry.name for entry in path.parent.iterdir()}
            except OSError:  # no such folder, or a name that no folder can have
                self._listed[path.parent] = set()
        return path.name in self._listed[path.parent]


def guessed_folders(beside: Path) -> list[Path]:
    folder = beside if beside.is_dir() else beside.parent
    return [folder / "images", folder / "Images", folder / "flickr30k-images", folder]


class Collector:
    """Gathers captions under their images, in order of appearance; the pairs of an image need not be neighbours."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.found: dict[str, dict[str, list[str]]] = {}  # split -> image -> captions
        self.places: dict[tuple[str, str], str] = {}

    def add(self, split: object, image: object, texts: Iterable[object], place: str) -> bool:
        """False if nothing of it could be used."""
        if not isinstance(image, str) or not image.strip() or "\0" in image:
            self.faults.found(place, f"expected the name of an image, got {image!r}")
            return False
        good = []
        for text in texts:
            why = no_caption(text)
            if why:
                self.faults.found(f"{place}, image {image}", why)
            else:
                good.append(str(text))
        if not good:
            return False
        try:
            split = split_name(split)
        except ValueError as error:
            self.faults.found(place, str(error))
            return False
        self.places.setdefault((split, image), place)
        self.found.setdefault(split, {}).setdefault(image, []).extend(good)
        return True

    def has(self, split: str, image: str) -> bool:
        return image in self.found.get(SPLIT_NAMES.get(split.lower(), split), {})

    def images(self) -> Iterator[str]:
        return (image for images in self.found.values() for image in images)

    def splits(self, folder: PictureFolder) -> dict[str, Split]:
        made = {}
        for split in in_usual_order(self.found):
            images = self.found[split]
            pictures = self._pictures(split, folder) if folder.folder is not None else None
            kept = [image for image in images if pictures is None or image in pictures]
            if not kept:
                continue  # told of above, image by image
            made[split] = Split(
                image_names=tuple(kept),
                texts=tuple(text for image in kept for text in images[image]),
                owners=np.repeat(np.arange(len(kept)), [len(images[image]) for image in kept]).astype(np.int64),
                pictures=None if pictures is None else Pictures([pictures[image] for image in kept]),
            )
        return made

    def _pictures(self, split: str, folder: PictureFolder) -> dict[str, Picture]:
        found: dict[str, Picture] = {}
        for image in self.found[split]:
            picture = folder.find(image)
            if picture is None:
                place = self.places[split, image]
                self.faults.found(place, f"there is no image file {image} in {folder.folder}")
            else:
                found[image] = picture
        return found


def in_usual_order(splits: Iterable[str]) -> list[str]:
    usual = list(dict.fromkeys(SPLIT_NAMES.values()))
    known = {name: usual.index(meant) for name, meant in SPLIT_NAMES.items()}
    return sorted(splits, key=lambda split: known.get(split.lower(), len(usual)))


def split_in_name(name: str) -> str | None:
    """The split that a file's name tells of: `coco_karpathy_train.json`, `train-00000-of-00002.parquet`."""
    words = "".join(sign if sign.isalnum() else " " for sign in name.lower()).split()
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)
