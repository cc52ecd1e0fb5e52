"""An index on disk: vectors of pictures, what each is, and a store that finds the nearest.

    INDEX/index.json                 which model, which generation is the present one
    INDEX/generation_000003/         items.jsonl, vectors.npy, the store's files, unreadable.txt; parts.npy of a model
                                     that looks again
    INDEX/unfinished/                what was embedded and is in no generation yet

A generation is written whole before index.json names it: whoever reads sees the old one or the new one. What is
embedded is kept batch by batch, so that a kill costs a batch, and nothing that is known is embedded again.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from tercet.data.lines import read_json
from tercet.data.pictures import Picture, PictureBytes, PictureFile, open_picture
from tercet.data.whole import LOCK, alone
from tercet.runs import write_safely
from tercet.search.items import Item, checksum_of, printable, read_items, write_items
from tercet.search.known import Known
from tercet.search.looks import Kept
from tercet.search.store import FaissStore, Kind, Store, recall_of

MANIFEST, ITEMS, VECTORS, PARTS = "index.json", "items.jsonl", "vectors.npy", "parts.npy"
UNREADABLE, UNFINISHED = "unreadable.txt", "unfinished"
AT_ONCE = 32  # pictures embedded together, and kept together

Pictures = Mapping[str, tuple[Picture, tuple[str, ...]]]
"""Place -> the picture and its captions, in the order of the index."""
Embed = Callable[[list[Image.Image]], Kept]


@dataclass(frozen=True)
class Index:
    folder: Path
    manifest: dict[str, Any]
    items: list[Item]
    vectors: Float[np.ndarray, "item dim"]
    store: Store
    parts: Float[np.ndarray, "item part part_dim"] | None = None
    """Where the model looks again; on disk, read when asked for."""


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
    try:
        return _opened(folder, manifest)
    except ValueError:
        again = _manifest(folder)  # an update may have put a new generation in place of the one that was being read
        if again["generation"] == manifest["generation"]:
            raise
        return _opened(folder, again)


def _opened(folder: Path, manifest: dict[str, Any]) -> Index:
    part = folder / manifest["generation"]
    items, vectors, store = read_items(part / ITEMS), _rows(part / VECTORS), FaissStore.load(part)
    parts = _rows(part / PARTS) if (part / PARTS).exists() else None
    if not len(items) == len(vectors) == len(store) == len(vectors if parts is None else parts):
        raise ValueError(
            f"{part}: {len(items)} items, {len(vectors)} vectors, {len(store)} in the store: it is damaged"
        )
    return Index(folder, manifest, items, vectors, store, parts)


def update_index(
    folder: Path,
    pictures: Pictures,
    embed: Embed,
    model: dict[str, Any],
    *,
    kind: Kind | None = None,
    source: str | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Updated:
    """Make the index hold these pictures and no others; only what is new or changed is embedded.

    `kind` is that of the index as it was, or flat, where none is named. `source` names the data set, for pictures that
    are no files of their own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        before = open_index(folder) if (folder / MANIFEST).is_file() else None
        _check_own(folder)
        kind = kind or (before.manifest["kind"] if before is not None else "flat")
        if before is not None and before.manifest["model"]["weights"] != model["weights"]:
            raise ValueError(
                f"{folder} was made with {before.manifest['model']['path']}, another model: vectors of two models do "
                "not go together; name another folder or remove this one"
            )
        old = {} if before is None else {item.path: item for item in before.items}
        faults: dict[str, str] = {}
        items = dict(_looked_at(pictures, old, faults))
        known = Known(folder / UNFINISHED, model["weights"])
        if before is not None:
            known.add([item.checksum for item in before.items], Kept(before.vectors, before.parts))
        todo = [place for place, item in items.items() if item.checksum not in known]
        _embed(todo, items, pictures, embed, known, faults, advance)
        kept = [item for place, item in items.items() if place not in faults]
        if not kept:
            raise ValueError(f"none of {len(pictures):,} pictures could be read{_first(faults)}")
        recall = _write(folder, before, kept, known, faults, model, kind, source)
        known.forget()
    new = [item for item in kept if item.path not in old]
    changed = [item for item in kept if item.path in old and old[item.path].checksum != item.checksum]
    gone = [place for place in old if place not in {item.path for item in kept}]
    return Updated(
        len(new), len(changed), len(kept) - len(new) - len(changed), len(gone), tuple(faults.values()), recall
    )


def _check_own(folder: Path) -> None:
    """What is nobody's business here is neither removed nor written beside."""
    if (folder / MANIFEST).is_file():
        return
    others = [
        each.name for each in folder.iterdir() if each.name not in (LOCK, UNFINISHED) and not _is_generation(each)
    ]
    batches = folder / UNFINISHED
    if batches.is_dir():
        others += [f"{UNFINISHED}/{each.name}" for each in batches.iterdir() if not each.name.startswith("batch_")]
    if others:
        raise ValueError(f"{folder} holds no index but other things ({printable(others[0])}): name a folder of its own")


def _is_generation(path: Path) -> bool:
    return re.fullmatch(r"generation_\d{6}", path.name) is not None


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
        yield place, Item(place, captions, len(content), stamp[1] if stamp else None, checksum_of(content))


def _embed(
    todo: list[str],
    items: dict[str, Item],
    pictures: Pictures,
    embed: Embed,
    known: Known,
    faults: dict[str, str],
    advance: Callable[[int, int], None],
) -> None:
    advance(0, len(todo))
    for start in range(0, len(todo), AT_ONCE):
        opened: dict[str, Image.Image] = {}
        for place in todo[start : start + AT_ONCE]:
            try:
                item, content = _read_again(items[place], pictures[place][0])
                items[place] = item
                if item.checksum not in known and item.checksum not in opened:  # else the same under another name
                    opened[item.checksum] = open_picture(PictureBytes(content, str(pictures[place][0])))
            except ValueError as error:
                faults[place] = str(error)
        if opened:
            known.keep(list(opened), embed(list(opened.values())))
        advance(min(start + AT_ONCE, len(todo)), len(todo))


def _read_again(item: Item, picture: Picture) -> tuple[Item, bytes]:
    """The bytes that are embedded, and the item with their checksum: a file may have changed since it was looked at."""
    stamp, content = _stamp(picture), picture.content()
    checksum = checksum_of(content)
    if checksum == item.checksum:
        return item, content
    return replace(item, size=len(content), modified=stamp[1] if stamp else None, checksum=checksum), content


def _write(
    folder: Path,
    before: Index | None,
    items: list[Item],
    known: Known,
    faults: Mapping[str, str],
    model: dict[str, Any],
    kind: Kind,
    source: str | None,
) -> float | None:
    """A generation, whole, then the word that it is the present one; the one before goes last."""
    number = 1 if before is None else int(before.manifest["generation"].split("_")[1]) + 1
    part = folder / f"generation_{number:06d}"
    shutil.rmtree(part, ignore_errors=True)  # what a kill left behind
    part.mkdir()
    checksums = [item.checksum for item in items]
    vectors = known.vectors(checksums)
    store = FaissStore.of(vectors, kind)
    store.save(part)
    np.save(part / VECTORS, vectors)
    known.write_parts(part / PARTS, checksums)
    write_items(part / ITEMS, items)
    (part / UNREADABLE).write_text("".join(f"{printable(fault)}\n" for fault in faults.values()), encoding="utf-8")
    recall = recall_of(store, vectors) if kind != "flat" else None
    manifest = {"what": "index", "model": model, "generation": part.name, "kind": kind, "recall": recall}
    manifest |= {"items": len(items), "dim": vectors.shape[1], "source": source}
    for file in part.iterdir():
        _to_disk(file)  # before it is named: a power cut must not leave a name without its content
    write_safely(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    for old in folder.iterdir():
        if _is_generation(old) and old != part:
            shutil.rmtree(old, ignore_errors=True)
    return recall


def _to_disk(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _rows(file: Path) -> np.ndarray:
    try:
        rows: np.ndarray = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{file}: damaged or missing: {error}") from error
    return rows


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
