"""Encode a data set once, into a precomp folder with a manifest. Killed at any moment, it goes on where it was."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tercet.data.ahead import ahead
from tercet.data.dataset import DataSet, Split, only, without_bad_features
from tercet.data.faults import Faults
from tercet.data.features.encoders import ImageEncoder, TextEncoder
from tercet.data.features.manifest import MANIFEST
from tercet.data.formats.write import LINEAGE_NAMES, write_rows, write_texts
from tercet.data.lines import read_json
from tercet.data.meetings import by_length
from tercet.data.pictures import Picture, Pictures, open_picture
from tercet.data.whole import LOCK, alone

PROGRESS = "progress.json"
FILES = "files"  # in the manifest of a finished folder: checksums of what it holds
PICTURES_AT_ONCE, TEXTS_AT_ONCE = 8, 64
FLUSHED_EVERY = 16  # batches; what was encoded since is lost by a kill


@dataclass(frozen=True)
class Watch:
    """Who is told how far things are."""

    begin: Callable[[str, int], None] = lambda what, total: None
    advance: Callable[[int], None] = lambda items: None


def extract(
    data: DataSet,
    target: Path,
    images: ImageEncoder | None,
    texts: TextEncoder | None,
    *,
    dtype: str = "float32",
    faults: Faults | None = None,
    watch: Watch | None = None,
) -> bool:
    """Write the features of all splits to `target`. False if they were there already, made in the same way.

    Without an image encoder the features that the data has are taken over. Pictures are all decoded before the first
    is encoded: a bad one is better known now than in an hour.
    """
    watch, faults = watch or Watch(), faults or Faults()
    if target.exists() and not (target / MANIFEST).is_file():
        raise ValueError(f"{target} is there already and holds no features of Tercet; nothing is overwritten")
    data = without_bad_pictures(data, faults, watch) if images is not None else without_bad_features(data, faults)
    manifest = _manifest(data, images, texts, dtype)
    if target.exists():
        _must_equal(manifest, target)
        _must_be_whole(target)
        return False
    unfinished = target.with_name(f"{target.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with alone(unfinished):
        if (unfinished / MANIFEST).is_file():
            _must_equal(manifest, unfinished)
        else:
            _write_json(unfinished / MANIFEST, manifest)
        progress = _Progress(unfinished / PROGRESS)
        for name, split in data.splits.items():
            _extract_split(unfinished / LINEAGE_NAMES.get(name, name), split, images, texts, dtype, progress, watch)
        for done_with in (PROGRESS, LOCK):
            (unfinished / done_with).unlink(missing_ok=True)
        _write_json(unfinished / MANIFEST, manifest | {FILES: _digests(unfinished)})
        os.replace(unfinished, target)
    return True


def _extract_split(
    stem: Path,
    split: Split,
    images: ImageEncoder | None,
    texts: TextEncoder | None,
    dtype: str,
    progress: "_Progress",
    watch: Watch,
) -> None:
    write_texts(stem, split, repeated=False)
    if images is not None:
        assert split.pictures is not None
        batches = list(torch.arange(len(split.pictures)).split(PICTURES_AT_ONCE))
        encoded = _encoded_pictures(split.pictures, images)
        _fill(Path(f"{stem}_ims.npy"), len(split.pictures), batches, encoded, dtype, progress, watch)
    elif split.features is not None:
        write_rows(Path(f"{stem}_ims.npy"), split.features, np.arange(len(split.features)))
        if split.features.lengths is not None:
            np.save(f"{stem}_lengths.npy", split.features.lengths)
        if split.boxes is not None:
            write_rows(Path(f"{stem}_boxes.npy"), split.boxes, np.arange(len(split.boxes)))
    if texts is not None:
        batches = by_length(np.array([len(text) for text in split.texts]), TEXTS_AT_ONCE)
        _fill(Path(f"{stem}_txt.npy"), len(split.texts), batches, _encoded_texts(split, texts), dtype, progress, watch)


Encoded = Callable[[list[Int[Tensor, " _"]]], Iterator[Tensor]]


def _encoded_pictures(pictures: Pictures, encoder: ImageEncoder) -> Encoded:
    def prepared(items: Int[Tensor, " item"]) -> Tensor:
        return torch.stack([encoder.prepare(pictures.open(item)) for item in items.tolist()])

    def run(batches: list[Int[Tensor, " _"]]) -> Iterator[Tensor]:
        yield from map(encoder.encode, ahead(prepared, batches, workers=1))

    return run


def _encoded_texts(split: Split, encoder: TextEncoder) -> Encoded:
    def run(batches: list[Int[Tensor, " _"]]) -> Iterator[Tensor]:
        yield from (encoder.encode([split.texts[item] for item in items.tolist()]) for items in batches)

    return run


def _fill(
    file: Path,
    count: int,
    batches: list[Int[Tensor, " _"]],
    encoded: Encoded,
    dtype: str,
    progress: "_Progress",
    watch: Watch,
) -> None:
    """Batches are always the same ones, so that a resumed file equals one that was never stopped, bit by bit."""
    done = progress.batches(file.name)
    watch.begin(file.stem, count)
    watch.advance(sum(map(len, batches[:done])))
    array: np.memmap | None = np.lib.format.open_memmap(file, mode="r+") if done else None
    for number, features in enumerate(encoded(batches[done:]), start=done):
        with np.errstate(over="ignore"):
            numbers = features.float().numpy().astype(dtype)
        if not np.isfinite(numbers).all():
            raise ValueError(f"{file.stem}: NaN, or too large for {dtype}, for the items {batches[number].tolist()}")
        if array is None:
            shape = (count, *numbers.shape[1:])
            array = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        array[batches[number].numpy()] = numbers
        watch.advance(len(features))
        if (number + 1) % FLUSHED_EVERY == 0 or number + 1 == len(batches):
            array.flush()  # the numbers first, then the word that they are there
            progress.reached(file.name, number + 1)


class _Progress:
    """How many batches of each file are safely on disk."""

    def __init__(self, file: Path) -> None:
        self.file = file
        found = read_json(file) if file.is_file() else {}
        self.done: dict[str, int] = found if isinstance(found, dict) else {}

    def batches(self, name: str) -> int:
        return self.done.get(name, 0)

    def reached(self, name: str, batches: int) -> None:
        self.done[name] = batches
        _write_json(self.file, self.done)


def without_bad_pictures(data: DataSet, faults: Faults, watch: Watch) -> DataSet:
    """Every picture is decoded; the ones that cannot be are reported, and left out if that is wanted."""

    def fault_of(picture: Picture) -> str | None:
        try:
            open_picture(picture)
        except ValueError as error:
            return str(error)
        return None

    splits = {}
    for name, split in data.splits.items():
        if split.pictures is None:
            raise ValueError(f"{data.path}: there are no pictures of {name} to encode; give --images FOLDER")
        watch.begin(f"checking pictures of {name}", len(split.pictures))
        good = []
        for image, fault in enumerate(ahead(fault_of, split.pictures, workers=os.cpu_count() or 1)):
            watch.advance(1)
            if fault is None:
                good.append(image)
            else:
                faults.found(f"{name}, image {split.image_names[image]}", fault)
        splits[name] = split if len(good) == len(split.pictures) else only(split, np.array(good, dtype=np.int64))
        if not good:
            raise ValueError(f"{data.path}: no picture of {name} can be read")
    return DataSet(data.path, data.format, splits, faults.listed)


def _manifest(data: DataSet, images: ImageEncoder | None, texts: TextEncoder | None, dtype: str) -> dict[str, Any]:
    """All that the features depend on."""
    splits = {}
    for name, split in data.splits.items():
        about: dict[str, Any] = {"images": len(split.image_names), "captions": len(split.texts)}
        about["texts"] = _digest(text.encode() for text in (*split.image_names, *split.texts))
        if images is not None:
            assert split.pictures is not None
            about["pictures"] = _digest(picture.content() for picture in split.pictures)
        elif split.features is not None:
            about["features"] = split.features.checksum(whole=True)
            about["boxes"] = None if split.boxes is None else split.boxes.checksum(whole=True)
        splits[name] = about
    return {
        "image_encoder": None if images is None else images.about,
        "text_encoder": None if texts is None else texts.about,
        "dtype": dtype,
        "splits": splits,
    }


def _digest(parts: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:32]


def _must_equal(wanted: dict[str, Any], folder: Path) -> None:
    """Features that were made otherwise are never taken for these."""
    found = read_json(folder / MANIFEST)
    if not isinstance(found, dict):
        raise ValueError(f"{folder / MANIFEST}: damaged; remove the folder or choose another")
    found.pop(FILES, None)
    wanted = json.loads(json.dumps(wanted))
    if found == wanted:
        return
    differing = [name for name in wanted if wanted[name] != found.get(name)]
    first = differing[0] if differing else "manifest"
    raise ValueError(
        f"{folder} holds features that were made otherwise: its {first} is {_short(found.get(first))}, asked for is "
        f"{_short(wanted.get(first))}; remove the folder or choose another"
    )


def _digests(folder: Path) -> dict[str, str]:
    files = (file for file in sorted(folder.iterdir()) if file.name not in (MANIFEST, LOCK, PROGRESS))
    return {file.name: _file_digest(file) for file in files}


def _file_digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _must_be_whole(folder: Path) -> None:
    """Every file is there and as it was written."""
    for name, digest in read_json(folder / MANIFEST).get(FILES, {}).items():
        if not (folder / name).is_file() or _file_digest(folder / name) != digest:
            raise ValueError(
                f"{folder / name} is missing or was changed since it was made; remove {folder} and call again"
            )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 300 else f"{text[:297]}..."


def _write_json(file: Path, content: Any) -> None:
    beside = file.with_name(f".{file.name}")
    with beside.open("w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=2, ensure_ascii=False)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, file)
