"""A search index on disk: image vectors, image metadata, and a nearest-neighbour store.

    INDEX/index.json                 manifest: the model, the current generation, the checksums of its files
    INDEX/generation_000003/         items.jsonl, vectors.npy, the store's files, unreadable.txt; for models that
                                     re-rank also parts.npy, the regions, and parts_crc32.npy, a checksum per row
    INDEX/unfinished/                embedding cache of an interrupted update

Files are checked when the index is opened; regions, which may be many times larger, row by row as they are read.
Updates are atomic: a generation is complete before index.json names it, so readers see the old one or the new one.
Embeddings are cached batch by batch: a kill costs one batch, and no image is embedded twice.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from tercet.console import SILENT, Progress, printable
from tercet.data.collate import prefetch
from tercet.data.feature_array import map_array
from tercet.data.image_io import ImageBytes, ImageFile, ImageSource, PassageText, open_image
from tercet.data.textio import read_json
from tercet.search.embedding_cache import EmbeddingCache
from tercet.search.indexed_regions import REGIONS, ROW_CHECKSUMS, IndexedRegions
from tercet.search.metadata import Item, checksum_of, read_items, write_items
from tercet.search.two_stage import IndexedVectors
from tercet.search.vector_store import Kind, VectorStore, measure_recall, store_type
from tercet.storage import (
    CHECKSUMS,
    FORMAT_VERSION,
    LOCK,
    check_checksums,
    checked_manifest,
    checksums_of,
    exclusive_lock,
    sync_file,
    write_manifest,
)
from tercet.types import IMAGE_TEXT, Sides

MANIFEST, ITEMS, VECTORS = "index.json", "items.jsonl", "vectors.npy"
GENERATION = re.compile(r"generation_\d{6}")
UNREADABLE, UNFINISHED = "unreadable.txt", "unfinished"
EMBED_BATCH_SIZE = 32  # images embedded, and cached, together
KNOWN_BATCH_SIZE = 512  # the same of images whose features are known

ImagesToIndex = Mapping[str, tuple[ImageSource, tuple[str, ...]]]
"""Path -> (image, captions), in index order."""
Embed = Callable[[list[Any]], IndexedVectors]
"""Embeds decoded images, or the texts of passages."""


class _Unreadable(dict[str, str]):
    """Path -> why the image cannot be read; raises instead if such images are not skipped."""

    def __init__(self, *, skip: bool) -> None:
        super().__init__()
        self.skip = skip

    def __setitem__(self, path: str, reason: str) -> None:
        if not self.skip:
            raise ValueError(f"{reason} (--skip-bad skips such images and lists them)")
        super().__setitem__(path, reason)


@runtime_checkable
class KnownImages(Protocol):
    """Embeds images by the SHA-256 of their files, without reading them; see `StoredFeatures`."""

    def __contains__(self, checksum: str) -> bool: ...

    def embed(self, checksums: Sequence[str]) -> IndexedVectors: ...


@dataclass(frozen=True)
class Index:
    folder: Path
    manifest: dict[str, Any]
    items: list[Item]
    vectors: Float[np.ndarray, "item dim"]
    store: VectorStore
    regions: IndexedRegions | None = None
    """Regions or visual tokens, for models that re-rank."""


@dataclass(frozen=True)
class IndexUpdate:
    """What an update changed: image counts."""

    added: int
    changed: int
    unchanged: int
    removed: int
    unreadable: tuple[str, ...]
    """One error message per image that could not be read."""
    recall: float | None
    """Recall of HNSW's ten nearest; None for the exact store."""


def open_index(folder: str | Path) -> Index:
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder}: not an index (no {MANIFEST}); create one with `tercet index`")
    manifest = _read_manifest(folder)
    try:
        return _open_generation(folder, manifest)
    except ValueError:
        current = _read_manifest(folder)  # an update may have replaced the generation while it was being read
        if current["generation"] == manifest["generation"]:
            raise
        return _open_generation(folder, current)


def _open_generation(folder: Path, manifest: dict[str, Any]) -> Index:
    generation = folder / manifest["generation"]
    remedy = f"remove the folder {folder} and run `tercet index` again"
    check_checksums(generation, manifest.get(CHECKSUMS), folder / MANIFEST, remedy)
    items, vectors = read_items(generation / ITEMS), map_array(generation / VECTORS, ["item dim"], [np.float32])
    store = store_type(manifest["store"]).load(generation)
    regions = IndexedRegions.open(generation, remedy) if (generation / ROW_CHECKSUMS).exists() else None
    if not len(items) == len(vectors) == len(store) == len(vectors if regions is None else regions):
        raise ValueError(
            f"{generation}: damaged index: {len(items)} items, {len(vectors)} vectors, {len(store)} in the store"
        )
    return Index(folder, manifest, items, vectors, store, regions)


def update_index(
    folder: Path,
    image_files: ImagesToIndex,
    embed: Embed,
    model: dict[str, Any],
    *,
    kind: Kind | None = None,
    store: str | None = None,
    source: str | None = None,
    known: KnownImages | None = None,
    skip_bad: bool = True,
    sides: Sides = IMAGE_TEXT,
    progress: Progress = SILENT,
) -> IndexUpdate:
    """Make the index contain exactly these images; only new and changed ones are embedded, without decoding `known`
    ones.

    `kind` and `store` default to those of the existing index, or flat and faiss. `source` is the dataset, for images
    that are not files of their own. An image that cannot be read is skipped and listed; without `skip_bad`, the first
    raises `ValueError`, and what was embedded before it is kept for the next update.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder):
        existing = open_index(folder) if (folder / MANIFEST).is_file() else None
        _check_folder(folder)
        kind = kind or (existing.manifest["kind"] if existing is not None else "flat")
        store = store or (existing.manifest["store"] if existing is not None else "faiss")
        store_type(store)  # raises before any image is read
        if existing is not None and existing.manifest["model"]["weights"] != model["weights"]:
            raise ValueError(
                f"{folder} was built with another model, {existing.manifest['model']['path']}: an index cannot mix the "
                "vectors of two models; choose another folder or remove this one"
            )
        old_items = {} if existing is None else {item.path: item for item in existing.items}
        errors = _Unreadable(skip=skip_bad)
        items = dict(_scan(image_files, old_items, errors))
        cache = EmbeddingCache(folder / UNFINISHED, model["weights"])
        if existing is not None:
            cache.add([item.checksum for item in existing.items], existing.vectors, existing.regions)
        if known is not None:
            _embed_known(items.values(), known, cache)
        to_embed = [path for path, item in items.items() if item.checksum not in cache]
        _embed(to_embed, items, image_files, embed, cache, errors, progress)
        readable = [item for path, item in items.items() if path not in errors]
        if not readable:
            first_error = f"; first error: {next(iter(errors.values()))}" if errors else ""
            raise ValueError(f"none of {len(image_files):,} {sides.images} could be read{first_error}")
        described = {"source": source, "sides": sides.kind}
        recall = _write_generation(folder, existing, readable, cache, errors, model, kind, store, described)
        cache.delete_files()
    added = [item for item in readable if item.path not in old_items]
    changed = [item for item in readable if item.path in old_items and old_items[item.path].checksum != item.checksum]
    removed = old_items.keys() - {item.path for item in readable}
    unchanged = len(readable) - len(added) - len(changed)
    return IndexUpdate(len(added), len(changed), unchanged, len(removed), tuple(errors.values()), recall)


def _check_folder(folder: Path) -> None:
    """Reject a folder with files of others: nothing is deleted there or written next to them."""
    if (folder / MANIFEST).is_file():
        return
    foreign = [
        path.name for path in folder.iterdir() if path.name not in (LOCK, UNFINISHED) and not _is_generation(path)
    ]
    batches = folder / UNFINISHED
    if batches.is_dir():
        foreign += [f"{UNFINISHED}/{path.name}" for path in batches.iterdir() if not path.name.startswith("batch_")]
    if foreign:
        raise ValueError(
            f"{folder} is not an index and is not empty (contains {printable(foreign[0])}): choose another folder"
        )


def _is_generation(path: Path) -> bool:
    return GENERATION.fullmatch(path.name) is not None


def _scan(
    image_files: ImagesToIndex, old_items: Mapping[str, Item], errors: dict[str, str]
) -> Iterator[tuple[str, Item]]:
    """Yield every readable image with its checksum. Files with the same size and modification time are not read."""
    for path, (image_file, captions) in image_files.items():
        stat, old = _size_and_mtime(image_file), old_items.get(path)
        if old is not None and stat is not None and stat == (old.size, old.modified):
            yield path, replace(old, captions=captions)
            continue
        try:
            content = image_file.content()
        except ValueError as error:
            errors[path] = str(error)
            continue
        text = image_file.text if isinstance(image_file, PassageText) else None
        yield path, Item(path, captions, len(content), stat[1] if stat else None, checksum_of(content), text)


def _embed_known(items: Iterable[Item], known: KnownImages, cache: EmbeddingCache) -> None:
    checksums = list(dict.fromkeys(item.checksum for item in items))
    checksums = [checksum for checksum in checksums if checksum in known and checksum not in cache]
    for start in range(0, len(checksums), KNOWN_BATCH_SIZE):
        batch = checksums[start : start + KNOWN_BATCH_SIZE]
        cache.save(batch, known.embed(batch))


def _embed(
    to_embed: list[str],
    items: dict[str, Item],
    image_files: ImagesToIndex,
    embed: Embed,
    cache: EmbeddingCache,
    errors: dict[str, str],
    progress: Progress,
) -> None:
    def read(paths: list[str]) -> dict[str, tuple[Item, Any] | str]:
        """Path -> the item and its image or text, or the error."""
        found: dict[str, tuple[Item, Any] | str] = {}
        for path in paths:
            try:
                item, content = _read_again(items[path], image_files[path][0])
                of_image = ImageBytes(content, str(image_files[path][0]))
                found[path] = item, open_image(of_image) if item.text is None else item.text
            except ValueError as error:
                found[path] = str(error)
        return found

    bar = progress.bar("embedding", len(to_embed))
    groups = (to_embed[start : start + EMBED_BATCH_SIZE] for start in range(0, len(to_embed), EMBED_BATCH_SIZE))
    for group in prefetch(read, groups, workers=1):  # the next images are decoded while these are encoded
        batch: dict[str, Any] = {}
        for path, result in group.items():
            if isinstance(result, str):
                errors[path] = result
                continue
            items[path], image = result
            if items[path].checksum not in cache:  # else a copy under another name
                batch.setdefault(items[path].checksum, image)
        if batch:
            cache.save(list(batch), embed(list(batch.values())))
        bar.advance(len(group))


def _read_again(item: Item, image_file: ImageSource) -> tuple[Item, bytes]:
    """Return the bytes to embed, and the item with their checksum: the file may have changed since the scan."""
    stat, content = _size_and_mtime(image_file), image_file.content()
    checksum = checksum_of(content)
    if checksum == item.checksum:
        return item, content
    return replace(item, size=len(content), modified=stat[1] if stat else None, checksum=checksum), content


def _write_generation(
    folder: Path,
    existing: Index | None,
    items: list[Item],
    cache: EmbeddingCache,
    errors: Mapping[str, str],
    model: dict[str, Any],
    kind: Kind,
    store_name: str,
    described: Mapping[str, Any],
) -> float | None:
    """Write a generation, then the manifest that names it, then delete the previous one. Return the recall of HNSW."""
    number = 1 if existing is None else int(existing.manifest["generation"].split("_")[1]) + 1
    generation = folder / f"generation_{number:06d}"
    shutil.rmtree(generation, ignore_errors=True)  # left by a killed update
    generation.mkdir()
    checksums = [item.checksum for item in items]
    vectors = cache.vectors(checksums)
    store = store_type(store_name).of(vectors, kind)
    store.save(generation)
    np.save(generation / VECTORS, vectors)
    cache.write_regions(generation, checksums)
    write_items(generation / ITEMS, items)
    unreadable = "".join(f"{printable(error)}\n" for error in errors.values())
    (generation / UNREADABLE).write_text(unreadable, encoding="utf-8")
    recall = measure_recall(store, vectors) if kind != "flat" else None
    manifest = {"what": "index", "model": model, "generation": generation.name, "kind": kind, "recall": recall}
    manifest |= {"store": store_name, "format_version": FORMAT_VERSION}
    manifest |= {"items": len(items), "dim": vectors.shape[1]} | dict(described)
    for file in generation.iterdir():
        sync_file(file)
    manifest[CHECKSUMS] = checksums_of(generation, [file.name for file in generation.iterdir() if file.name != REGIONS])
    write_manifest(folder / MANIFEST, manifest)
    for path in folder.iterdir():
        if _is_generation(path) and path != generation:
            shutil.rmtree(path, ignore_errors=True)
    return recall


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("what") != "index":
        raise ValueError(f"{folder / MANIFEST}: not an index manifest")
    manifest = checked_manifest(manifest, folder / MANIFEST, f"remove the folder {folder} and run `tercet index` again")
    model = manifest.get("model")
    valid = isinstance(model, dict) and all(isinstance(model.get(name), str) for name in ("path", "system", "weights"))
    valid &= all(isinstance(manifest.get(name), str) for name in ("generation", "kind", "store"))
    if not valid or not GENERATION.fullmatch(manifest["generation"]):
        raise ValueError(f"{folder / MANIFEST} is damaged: remove the folder and run `tercet index` again")
    return manifest


def _size_and_mtime(image_file: ImageSource) -> tuple[int, int] | None:
    """Return (bytes, modification time in ns) of a file; None for an image inside a data file."""
    if not isinstance(image_file, ImageFile):
        return None
    try:
        stat = image_file.path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
