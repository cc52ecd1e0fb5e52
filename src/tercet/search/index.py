"""An index on disk: vectors of pictures, what each is, and a store that finds the nearest.

    INDEX/index.json                 which model, which generation is the present one
    INDEX/generation_000003/         items.jsonl, vectors.npy, the store's files, unreadable.txt
    INDEX/unfinished/                what was embedded and is in no generation yet

A generation is written whole before index.json names it: whoever reads sees the old one or the new one. What is
embedded is kept batch by batch, so that a kill costs a batch, and nothing that is known is embedded again.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from tercet.data.lines import read_json
from tercet.data.pictures import Picture, PictureFile, open_picture
from tercet.data.whole import alone
from tercet.search.items import Item, checksum_of, read_items, write_items
from tercet.search.store import FaissStore, Kind, Store, recall_of

MANIFEST, ITEMS, VECTORS, UNREADABLE, UNFINISHED = (
    "index.json",
    "items.jsonl",
    "vectors.npy",
    "unreadable.txt",
    "unfinished",
)
AT_ONCE = 32  # pictures embedded together, and kept together

Pictures = Mapping[str, tuple[Picture, tuple[str, ...]]]
"""Place -> the picture and its captions, in the order of the index."""
Embed = Callable[[list[Image.Image]], Float[np.ndarray, "picture dim"]]


@dataclass(frozen=True)
class Index:
    folder: Path
    manifest: dict[str, Any]
    items: list[Item]
    vectors: Float[np.ndarray, "item dim"]
    store: Store


@dataclass(frozen=True)
class Updated:
    """What an update did."""

    added: int
    changed: int
    kept: int
    removed: int
    unreadable: tuple[str, ...]
    recall: float | None
    """Of HNSW's ten nearest; None for the exact store."""


def open_index(folder: str | Path) -> Index:
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder}: no index there; `tercet index` writes one")
    manifest = _manifest(folder)
    part = folder / manifest["generation"]
    items, vectors, store = read_items(part / ITEMS), np.load(part / VECTORS, mmap_mode="r"), FaissStore.load(part)
    if not len(items) == len(vectors) == len(store):
        raise ValueError(
            f"{part}: {len(items)} items, {len(vectors)} vectors, {len(store)} in the store: it is damaged"
        )
    return Index(folder, manifest, items, vectors, store)


def update_index(
    folder: Path,
    pictures: Pictures,
    embed: Embed,
    model: dict[str, Any],
    *,
    kind: Kind = "flat",
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Updated:
    """Make the index hold these pictures and no others; only what is new or changed is embedded."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        before = open_index(folder) if (folder / MANIFEST).is_file() else None
        if before is not None and before.manifest["model"]["weights"] != model["weights"]:
            raise ValueError(
                f"{folder} was made with {before.manifest['model']['path']}, another model: vectors of two models do "
                "not go together; name another folder or remove this one"
            )
        old = {} if before is None else {item.path: item for item in before.items}
        faults: dict[str, str] = {}
        items = dict(_looked_at(pictures, old, faults))
        known = _Known(folder / UNFINISHED, model["weights"])
        if before is not None:
            known.add([item.checksum for item in before.items], before.vectors)
        todo = [place for place, item in items.items() if item.checksum not in known]
        _embed(todo, items, pictures, embed, known, faults, advance)
        kept = [item for place, item in items.items() if place not in faults]
        if not kept:
            raise ValueError(f"none of {len(pictures):,} pictures could be read{_first(faults)}")
        recall = _write(folder, before, kept, known.vectors(kept), faults, model, kind)
        known.forget()
    new = [item for item in kept if item.path not in old]
    changed = [item for item in kept if item.path in old and old[item.path].checksum != item.checksum]
    gone = [place for place in old if place not in {item.path for item in kept}]
    return Updated(
        len(new), len(changed), len(kept) - len(new) - len(changed), len(gone), tuple(faults.values()), recall
    )


def _looked_at(pictures: Pictures, old: Mapping[str, Item], faults: dict[str, str]) -> Iterator[tuple[str, Item]]:
    """Each with its checksum; a file that was not written to since is not read."""
    for place, (picture, captions) in pictures.items():
        stamp, before = _stamp(picture), old.get(place)
        if before is not None and stamp is not None and stamp == (before.size, before.modified):
            yield place, replace(before, captions=captions)
            continue
        try:
            content = picture.content()
        except ValueError as error:
            faults[place] = str(error)
            continue
        yield place, Item(place, captions, len(content), stamp[1] if stamp else 0, checksum_of(content))


def _embed(
    todo: list[str],
    items: Mapping[str, Item],
    pictures: Pictures,
    embed: Embed,
    known: "_Known",
    faults: dict[str, str],
    advance: Callable[[int, int], None],
) -> None:
    advance(0, len(todo))
    for start in range(0, len(todo), AT_ONCE):
        opened: dict[str, Image.Image] = {}
        for place in todo[start : start + AT_ONCE]:
            if items[place].checksum in known or items[place].checksum in opened:
                continue  # the same picture under another name
            try:
                opened[items[place].checksum] = open_picture(pictures[place][0])
            except ValueError as error:
                faults[place] = str(error)
        if opened:
            known.keep(list(opened), embed(list(opened.values())))
        advance(min(start + AT_ONCE, len(todo)), len(todo))
    for place in todo:  # copies of what could not be read cannot be read either
        if items[place].checksum not in known and place not in faults:
            faults[place] = f"{pictures[place][0]}: the same as another picture that cannot be read"


class _Known:
    """Checksum of a picture -> its vector: of the index as it was, and of an update that was stopped."""

    def __init__(self, folder: Path, weights: str) -> None:
        self.folder, self.weights = folder, weights
        self._vectors: dict[str, np.ndarray] = {}
        self._parts = 0
        for file in sorted(folder.glob("part_*.npz")):
            with np.load(file) as part:
                if str(part["weights"]) == weights:
                    self.add(part["checksums"].tolist(), part["vectors"])
            self._parts = int(file.stem.split("_")[1]) + 1

    def __contains__(self, checksum: str) -> bool:
        return checksum in self._vectors

    def add(self, checksums: list[str], vectors: Float[np.ndarray, "item dim"]) -> None:
        self._vectors.update(zip(checksums, vectors, strict=True))

    def keep(self, checksums: list[str], vectors: Float[np.ndarray, "item dim"]) -> None:
        """On disk before anything else happens."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"part_{self._parts:06d}.npz"
        beside = file.with_suffix(".new")
        with beside.open("wb") as opened:
            np.savez(opened, checksums=np.array(checksums), vectors=vectors, weights=np.array(self.weights))
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(beside, file)
        self._parts += 1
        self.add(checksums, vectors)

    def vectors(self, items: list[Item]) -> Float[np.ndarray, "item dim"]:
        return np.stack([self._vectors[item.checksum] for item in items]).astype(np.float32)

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _write(
    folder: Path,
    before: Index | None,
    items: list[Item],
    vectors: Float[np.ndarray, "item dim"],
    faults: Mapping[str, str],
    model: dict[str, Any],
    kind: Kind,
) -> float | None:
    """A generation, whole, then the word that it is the present one; the one before goes last."""
    number = 1 if before is None else int(before.manifest["generation"].split("_")[1]) + 1
    part = folder / f"generation_{number:06d}"
    shutil.rmtree(part, ignore_errors=True)  # what a kill left behind
    part.mkdir()
    store = FaissStore.of(vectors, kind)
    store.save(part)
    np.save(part / VECTORS, vectors)
    write_items(part / ITEMS, items)
    (part / UNREADABLE).write_text("".join(f"{fault}\n" for fault in faults.values()), encoding="utf-8")
    recall = recall_of(store, vectors) if kind != "flat" else None
    manifest = {"what": "index", "model": model, "generation": part.name, "kind": kind, "recall": recall}
    manifest |= {"items": len(items), "dim": vectors.shape[1]}
    beside = (folder / MANIFEST).with_suffix(".new")
    beside.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, folder / MANIFEST)
    for old in folder.glob("generation_*"):
        if old != part:
            shutil.rmtree(old, ignore_errors=True)
    return recall


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("what") != "index" or "generation" not in manifest:
        raise ValueError(f"{folder / MANIFEST}: not the manifest of an index")
    return manifest


def _stamp(picture: Picture) -> tuple[int, int] | None:
    """Size and time of last writing of a file; None inside a data file."""
    if not isinstance(picture, PictureFile):
        return None
    try:
        found = picture.path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _first(faults: Mapping[str, str]) -> str:
    return f"; the first: {next(iter(faults.values()))}" if faults else ""
