"""`converted.json`, the manifest of a folder of `tercet data convert`: what was converted, and checksums."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tercet.data.dataset import DataSet, Split
from tercet.data.image_io import ImageFile, content_checksum
from tercet.data.textio import read_json
from tercet.storage import (
    CHECKSUMS,
    FORMAT_VERSION,
    LOCK,
    atomic_directory,
    check_checksums_once,
    checked_manifest,
    checksums_of,
    sha256_of,
    write_manifest,
)

CONVERTED = "converted.json"


def conversion_of(data: DataSet, to: str, regions: Sequence[Path] = ()) -> dict[str, str]:
    """What identifies a conversion: the format and a checksum of everything that is written.

    `regions`: files of BUTD, for which `data` has the captions.
    """
    digest = hashlib.sha256(sha256_of(regions).encode())
    for name, split in data.splits.items():
        for part in _parts(name, split):
            digest.update(len(part).to_bytes(8, "big") + part)
    return {"to": to, "input": digest.hexdigest()}


def _parts(name: str, split: Split) -> Iterator[bytes]:
    yield json.dumps([name, split.image_names, split.texts, split.owners.tolist()]).encode()
    for array in (split.features, split.boxes, split.caption_features):
        yield b"" if array is None else array.checksum(whole=True).encode()
    lengths = None if split.features is None else split.features.lengths
    yield b"" if lengths is None else lengths.astype("int64").tobytes()
    images = split.image_files or ()
    if not all(isinstance(image, ImageFile) for image in images):  # else they stay where they are, see write_parquet
        yield from map(content_checksum, images)


@contextmanager
def converted_directory(target: Path, conversion: dict[str, str]) -> Iterator[Path]:
    """Yield a folder that gets its manifest and is renamed to the target at the end."""
    with atomic_directory(target) as folder:
        yield folder
        files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        checksums = checksums_of(folder, [name for name in files if name != LOCK])
        write_manifest(folder / CONVERTED, {"format_version": FORMAT_VERSION, CHECKSUMS: checksums} | conversion)


def is_converted(target: Path, conversion: dict[str, str]) -> bool:
    """Whether the target is the result of this conversion; `ValueError` if it is something else, or damaged."""
    if not target.exists():
        return False
    found = _manifest(target) if (target / CONVERTED).is_file() else {}
    if any(found.get(name) != value for name, value in conversion.items()):
        raise ValueError(f"{target} already exists and is not the result of this conversion; nothing is overwritten")
    check_converted(target, target)
    return True


def check_converted(folder: Path, path: Path) -> None:
    """Check the files of a converted dataset against its manifest, or only `path` if it is one of them."""
    checksums = _manifest(folder).get(CHECKSUMS)
    if path != folder and isinstance(checksums, dict):
        if path.name not in checksums:
            return
        checksums = {path.name: checksums[path.name]}
    check_checksums_once(folder, checksums, folder / CONVERTED, _remedy(folder))


def _manifest(folder: Path) -> dict[str, Any]:
    return checked_manifest(read_json(folder / CONVERTED), folder / CONVERTED, _remedy(folder))


def _remedy(folder: Path) -> str:
    return f"remove {folder} and convert again, or remove {CONVERTED} if the change was intended"
