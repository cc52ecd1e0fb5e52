"""Feature extraction into a precomp folder with a manifest. An interrupted extraction resumes.

The manifest also tells which encoders to apply to raw texts and images for a model trained on the features.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tercet.console import SILENT, Progress
from tercet.data.bad_items import without_bad_features, without_bad_images
from tercet.data.collate import prefetch
from tercet.data.dataset import DataSet, Split
from tercet.data.encoders.registry import FolderEncoder, ImageEncoder, TextEncoder
from tercet.data.formats import beir
from tercet.data.formats.precomp import (
    MANIFEST,
    PRECOMP_SPLIT_NAMES,
    check_features,
    features_manifest,
    write_rows,
    write_texts,
)
from tercet.data.image_io import ImageFiles, content_checksum
from tercet.data.samplers import by_length
from tercet.data.textio import ErrorPolicy
from tercet.interrupt import Interrupt
from tercet.storage import (
    CHECKSUMS,
    FORMAT_VERSION,
    LOCK,
    allocated_array,
    atomic_path,
    checksums_of,
    resumable_directory,
    seal,
    sealed_content,
    write_manifest,
)

PROGRESS = "progress.json"
SOURCE = "source"  # manifest key: where the images are
IMAGE_CHECKSUMS = "_image_checksums.txt"  # SHA-256 of the image file of each row
IMAGE_BATCH_SIZE, TEXT_BATCH_SIZE = 8, 64
FLUSH_INTERVAL = 16  # batches; kill -9 loses what was encoded since the last flush

Encoded = Callable[[list[Int[Tensor, " _"]]], Iterator[Tensor]]
"""Encodes batches of items."""


class Encoders(NamedTuple):
    """The encoders of a feature folder; None for unknown ones."""

    images: tuple[str | None, bool]
    """Name, and whether it encoded a grid."""
    captions: str | None


def encoders_of(path: Path) -> Encoders:
    """Read the encoders from the manifest of `tercet features`. Captions of scenes are encoded as bag-of-words."""
    if str(path).startswith("scenes"):
        return Encoders((None, False), "bag-of-words")
    content = features_manifest(path) if (path / MANIFEST).is_file() else {}
    images, texts = (_about(content, key) for key in ("image_encoder", "text_encoder"))
    grid = str(images.get("output", "")).startswith(("grid", "81 cells"))
    folders = _about(content, SOURCE)
    return Encoders(
        (_folder(folders.get("image_encoder")) or _name(images), grid),
        _folder(folders.get("text_encoder")) or _name(texts),
    )


def _folder(path: Any) -> str | None:
    """The folder of an encoder, if it is still there."""
    return path if isinstance(path, str) and Path(path).is_dir() else None


def checksums_of_images(folder: Path, split: str) -> list[str]:
    """The SHA-256 of the image file of each row of a split, as far as `tercet features` encoded images."""
    file = folder / f"{PRECOMP_SPLIT_NAMES.get(split, split)}{IMAGE_CHECKSUMS}"
    return file.read_text().split() if file.is_file() else []


def _about(content: Any, key: str) -> dict[str, Any]:
    about = content.get(key) if isinstance(content, dict) else None
    return about if isinstance(about, dict) else {}


def _name(about: dict[str, Any]) -> str | None:
    """The encoder name without the package, which follows in parentheses."""
    name = about.get("encoder")
    return name.split(" (")[0] if isinstance(name, str) else None


def extract(
    data: DataSet,
    target: Path,
    images: ImageEncoder | None,
    texts: TextEncoder | None,
    *,
    dtype: str = "float32",
    errors: ErrorPolicy | None = None,
    progress: Progress = SILENT,
    image_folder: Path | None = None,
) -> bool:
    """Write the features of all splits to `target`. False if it already holds features with the same manifest.

    Without an image encoder, the features of the dataset are copied. `image_folder`: where its images are, if they are
    not beside it; the folder is written to the manifest, for reports. All images are decoded before the first is
    encoded, so that a bad image is reported early.
    """
    errors = errors or ErrorPolicy()
    if target.exists() and not (target / MANIFEST).is_file():
        raise ValueError(f"{target} already exists and is not a feature folder of Tercet; nothing is overwritten")
    if data.sides.image_is_text:
        return _extract_texts(data, target, texts, dtype, progress)
    if images is not None:
        if _is_complete(target, data, images, texts, dtype):
            return False
        data = without_bad_images(data, errors, progress)
    else:
        data = without_bad_features(data, errors)
    manifest = _manifest(data, images, texts, dtype)

    def write(unfinished: Path, position: "_ResumePosition") -> None:
        for name, split in data.splits.items():
            stem = unfinished / PRECOMP_SPLIT_NAMES.get(name, name)
            _extract_split(stem, split, images, texts, dtype, position, progress)

    return _write_folder(target, manifest, {SOURCE: _source(data, image_folder, images, texts)}, write)


def _write_folder(
    target: Path, manifest: dict[str, Any], source: dict[str, Any], write: Callable[[Path, "_ResumePosition"], None]
) -> bool:
    """Write the files into an unfinished folder, resuming. False if the target already holds this manifest."""
    if target.exists():
        _check_manifest(manifest, target)
        check_features(target)
        return False
    with resumable_directory(target) as unfinished:
        if (unfinished / MANIFEST).is_file():
            _check_manifest(manifest, unfinished)
        else:
            write_manifest(unfinished / MANIFEST, manifest | source)
        write(unfinished, _ResumePosition(unfinished / PROGRESS))
        (unfinished / PROGRESS).unlink(missing_ok=True)
        write_manifest(unfinished / MANIFEST, manifest | source | {CHECKSUMS: _checksums(unfinished)})
    return True


def _is_complete(target: Path, data: DataSet, images: ImageEncoder, texts: TextEncoder | None, dtype: str) -> bool:
    """Whether the target holds the features of exactly this data: then its images were decoded before."""
    if not target.exists() or any(split.image_files is None for split in data.splits.values()):
        return False
    try:
        _check_manifest(_manifest(data, images, texts, dtype), target)
    except ValueError:  # reported after the images are checked: a bad one may be why the data differs
        return False
    check_features(target)
    return True


def _extract_texts(data: DataSet, target: Path, texts: TextEncoder | None, dtype: str, progress: Progress) -> bool:
    """Write passages and queries, encoded alike: each once, though splits share the passages."""
    if texts is None:
        raise ValueError(f"{data.path} has passages and queries: a text encoder is needed, not --text-encoder none")
    passages = next(iter(data.splits.values())).image_texts
    assert passages is not None
    sides = {beir.CORPUS: list(passages), beir.QUERIES: list(beir.queries_of(data).values())}
    manifest = {
        "format_version": FORMAT_VERSION,
        "image_encoder": texts.about,
        "text_encoder": texts.about,
        "dtype": dtype,
        "splits": {name: _positives_checksum(split) for name, split in data.splits.items()},
    }

    def write(unfinished: Path, position: "_ResumePosition") -> None:
        beir.write_beir(data, unfinished)
        for stem, items in sides.items():
            batches = by_length(np.array([len(text) for text in items]), TEXT_BATCH_SIZE)
            file = unfinished / f"{stem}.npy"
            _fill(file, len(items), batches, _encoded_texts(items, texts), dtype, position, progress)

    return _write_folder(target, manifest, {SOURCE: _source(data, None, None, texts)}, write)


def _positives_checksum(split: Split) -> str:
    """Checksum of passages, queries and their ids, and of which belong together."""
    texts = (*split.image_names, *(split.image_texts or ()), *(split.caption_names or ()), *split.texts)
    return _checksum(iter([*(text.encode() for text in texts), split.pairs().tobytes()]))


def _extract_split(
    stem: Path,
    split: Split,
    images: ImageEncoder | None,
    texts: TextEncoder | None,
    dtype: str,
    position: "_ResumePosition",
    progress: Progress,
) -> None:
    write_texts(stem, split, repeated=False)
    if images is not None:
        assert split.image_files is not None
        checksums = (content_checksum(source).hex() for source in split.image_files)
        Path(f"{stem}{IMAGE_CHECKSUMS}").write_text("".join(f"{checksum}\n" for checksum in checksums))
        batches = list(torch.arange(len(split.image_files)).split(IMAGE_BATCH_SIZE))
        encoded = _encoded_images(split.image_files, images)
        _fill(Path(f"{stem}_ims.npy"), len(split.image_files), batches, encoded, dtype, position, progress)
    elif split.features is not None:
        write_rows(Path(f"{stem}_ims.npy"), split.features, np.arange(len(split.features)))
        if split.features.lengths is not None:
            np.save(f"{stem}_lengths.npy", split.features.lengths)
        if split.boxes is not None:
            write_rows(Path(f"{stem}_boxes.npy"), split.boxes, np.arange(len(split.boxes)))
    if texts is not None:
        batches = by_length(np.array([len(text) for text in split.texts]), TEXT_BATCH_SIZE)
        encoded = _encoded_texts(split.texts, texts)
        _fill(Path(f"{stem}_txt.npy"), len(split.texts), batches, encoded, dtype, position, progress)


def _encoded_images(image_files: ImageFiles, encoder: ImageEncoder) -> Encoded:
    def load(items: Int[Tensor, " item"]) -> Tensor:
        return torch.stack([encoder.prepare(image_files.open(item)) for item in items.tolist()])

    def run(batches: list[Int[Tensor, " _"]]) -> Iterator[Tensor]:
        yield from map(encoder.encode, prefetch(load, batches, workers=1))

    return run


def _encoded_texts(texts: Sequence[str], encoder: TextEncoder) -> Encoded:
    def run(batches: list[Int[Tensor, " _"]]) -> Iterator[Tensor]:
        yield from (encoder.encode([texts[item] for item in items.tolist()]) for items in batches)

    return run


def _fill(
    file: Path,
    count: int,
    batches: list[Int[Tensor, " _"]],
    encoded: Encoded,
    dtype: str,
    position: "_ResumePosition",
    progress: Progress,
) -> None:
    """Write the encoded items to the file. Batches do not depend on where it resumes: the result is bit-identical."""
    array, done, digest = position.resume(file, batches)
    bar = progress.bar(file.stem, count)
    bar.advance(sum(map(len, batches[:done])))
    with Interrupt() as interrupt:
        for index, features in enumerate(encoded(batches[done:]), start=done):
            values = _as_dtype(features, dtype)
            if not np.isfinite(values).all():
                items = batches[index].tolist()
                raise ValueError(f"{file.stem}: NaN or values too large for {dtype} in the items {items}")
            if array is None:
                array = allocated_array(file, dtype, (count, *values.shape[1:]))
            array[batches[index].numpy()] = values
            digest.update(np.ascontiguousarray(values).data)
            bar.advance(len(features))
            if interrupt.requested or (index + 1) % FLUSH_INTERVAL == 0 or index + 1 == len(batches):
                array.flush()  # before the position is recorded
                position.reached(file.name, index + 1, digest.hexdigest())
            if interrupt.requested:
                interrupt.stop()


def _as_dtype(features: Tensor, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return features.float().numpy().astype(dtype)


class _ResumePosition:
    """The number of batches of each file that have been flushed to disk, and their checksum."""

    def __init__(self, file: Path) -> None:
        self.file = file
        content = sealed_content(file)
        self.done: dict[str, tuple[int, str]] = {} if content is None else json.loads(content)

    def resume(self, file: Path, batches: list[Int[Tensor, " _"]]) -> "tuple[np.memmap | None, int, hashlib._Hash]":
        """The array, the number of its batches that are done and their digest; none if what is there is damaged."""
        done, checksum = self.done.get(file.name, (0, ""))
        digest = hashlib.sha256()
        try:
            if not done:
                return None, 0, digest
            array = np.lib.format.open_memmap(file, mode="r+")
            for batch in batches[:done]:
                digest.update(np.ascontiguousarray(array[batch.numpy()]).data)
        except Exception:  # numpy raises exceptions of many kinds for damaged headers
            return None, 0, hashlib.sha256()
        return (array, done, digest) if digest.hexdigest() == checksum else (None, 0, hashlib.sha256())

    def reached(self, name: str, batches: int, checksum: str) -> None:
        self.done[name] = batches, checksum
        with atomic_path(self.file) as temporary:
            temporary.write_text(json.dumps(self.done), encoding="utf-8")
            seal(temporary)


def _manifest(data: DataSet, images: ImageEncoder | None, texts: TextEncoder | None, dtype: str) -> dict[str, Any]:
    """Everything that the features depend on."""
    splits = {}
    for name, split in data.splits.items():
        about: dict[str, Any] = {"images": len(split.image_names), "captions": len(split.texts)}
        about["texts"] = _checksum(text.encode() for text in (*split.image_names, *split.texts))
        if images is not None:
            assert split.image_files is not None
            about["images"] = _checksum(image_file.content() for image_file in split.image_files)
        elif split.features is not None:
            about["features"] = split.features.checksum(whole=True)
            about["boxes"] = None if split.boxes is None else split.boxes.checksum(whole=True)
        splits[name] = about
    return {
        "format_version": FORMAT_VERSION,
        "image_encoder": None if images is None else images.about,
        "text_encoder": None if texts is None else texts.about,
        "dtype": dtype,
        "splits": splits,
    }


def _source(
    data: DataSet, image_folder: Path | None, images: ImageEncoder | None, texts: TextEncoder | None
) -> dict[str, str | None]:
    """Where the dataset is, so that reports can show its images; and encoders that have a folder, to embed others."""
    generated = not data.path.exists()
    return {
        "path": str(data.path if generated else data.path.resolve()),
        "format": None if generated else data.format,
        "images": None if image_folder is None else str(image_folder.resolve()),
        "image_encoder": images.folder if isinstance(images, FolderEncoder) else None,
        "text_encoder": texts.folder if isinstance(texts, FolderEncoder) else None,
    }


def _checksum(contents: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:32]


def _check_manifest(manifest: dict[str, Any], folder: Path) -> None:
    """Raise `ValueError` if the features in the folder have another manifest."""
    stored = features_manifest(folder)
    for key in (CHECKSUMS, SOURCE):  # the images may have moved: their checksum is part of the manifest
        stored.pop(key, None)
    manifest = json.loads(json.dumps(manifest))
    if stored == manifest:
        return
    differing = [key for key in manifest if manifest[key] != stored.get(key)]
    first = differing[0] if differing else "manifest"
    raise ValueError(
        f"{folder} holds other features: its {first} is {_short(stored.get(first))}, requested is "
        f"{_short(manifest.get(first))}; remove the folder or choose another target"
    )


def _checksums(folder: Path) -> dict[str, str]:
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    return checksums_of(folder, sorted(name for name in names if name not in (MANIFEST, LOCK, PROGRESS)))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 300 else f"{text[:297]}..."
