"""Tables of mined negatives on disk: the top captions of every training image, the top images of every caption.

`tercet mine` writes them (`src/tercet/mining`); the lists that the authors of AOQ released are read as they are.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from tercet.data.lines import read_json
from tercet.data.pairs import PairedData

MANIFEST, I2T, T2I = "mined.json", "i2t", "t2i"
PAIRS = "guard_pairs.csv"  # a copy of the file that --guard-pairs named
CAPTIONS, IMAGES = 2000, 400  # as published


@dataclass(frozen=True)
class MinedTable:
    """Row i of `captions`: numbers of captions, the most similar first, -1 where there are no more."""

    captions: Int[np.ndarray, "image k"]
    images: Int[np.ndarray, "caption j"]
    place: str
    checksum: str
    caption_similarity: Float[np.ndarray, "image k"] | None = None
    """None in the authors' lists."""
    image_similarity: Float[np.ndarray, "caption j"] | None = None


def open_mined(folder: str | Path, data: PairedData) -> MinedTable:
    """Of this very data: a table of another is refused."""
    folder = Path(folder)
    checksum = table_checksum(folder)
    similarities: list[np.ndarray | None] = [None, None]
    if not (folder / MANIFEST).is_file():
        files = [_authors_file(folder, which) for which in (I2T, T2I)]
    else:
        if _manifest(folder)["data"]["pairing"] != data.pairing():
            raise ValueError(f"{folder} was mined from other data than {data.name}: its captions or images are others")
        files = [folder / f"{which}.npy" for which in (I2T, T2I)]
        similarities = [_mapped(folder / f"{which}_similarity.npy", np.float32) for which in (I2T, T2I)]
    captions, images = (_mapped(file, np.int32) for file in files)
    for array, beside, file in zip((captions, images), similarities, files, strict=True):
        if not array.shape[1]:
            raise ValueError(f"{file}: its lists are empty")
        if beside is not None and beside.shape != array.shape:
            raise ValueError(f"{file}: {array.shape}, and its similarities are {beside.shape}: one of them is damaged")
    _check_rows(captions, files[0], len(data.images), len(data.owners), "image", "captions")
    _check_rows(images, files[1], len(data.owners), len(data.images), "caption", "images")
    if (folder / MANIFEST).is_file() and checksum_of(lists_in(folder)) != checksum:
        raise ValueError(f"{folder}: its files are not those it was finished with: they were altered or are damaged")
    return MinedTable(captions, images, str(folder), checksum, *similarities)


def lists_in(folder: Path) -> list[Path]:
    """The files of a table, in the order of its checksum."""
    return [folder / f"{which}{tail}.npy" for which in (I2T, T2I) for tail in ("", "_similarity")]


def guards_of(folder: str | Path) -> dict[str, Any]:
    """What its manifest says of guards; nothing for the authors' lists."""
    if not (Path(folder) / MANIFEST).is_file():
        return {}
    found: dict[str, Any] = _manifest(Path(folder)).get("wanted", {}).get("guards", {})
    return found


def read_empty(folder: str | Path) -> dict[str, int]:
    """How many images and captions have no list, by its manifest."""
    return {"images": 0, "captions": 0} | dict(_manifest(Path(folder)).get("empty", {}))


def is_shortlisted(folder: str | Path) -> bool:
    return (Path(folder) / MANIFEST).is_file() and "shortlist" in _manifest(Path(folder)).get("model", {})


def table_checksum(folder: Path) -> str:
    """Of the lists, whoever wrote them."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no mined table there; `tercet mine` writes one, --mined says where it is")
    if (folder / MANIFEST).is_file():
        return str(_manifest(folder)["checksum"])
    return checksum_of(_authors_file(folder, which) for which in (I2T, T2I))


def _manifest(folder: Path) -> Any:
    manifest = read_json(folder / MANIFEST)
    try:
        whole = manifest["what"] == "mined" and manifest["data"]["pairing"] and manifest["checksum"]
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise ValueError(f"{folder / MANIFEST}: not the manifest of a mined table")
    return manifest


def _authors_file(folder: Path, which: str) -> Path:
    """`i2t_coco.npy` and its like."""
    found = sorted(file for file in folder.glob(f"{which}_*.npy") if file.stem != f"{which}_similarity")
    if len(found) != 1:
        there = ", ".join(file.name for file in found) or "none"
        raise ValueError(
            f"{folder}: expected {MANIFEST}, or one file {which}_*.npy of the authors' lists; found {there}"
        )
    return found[0]


def _mapped(file: Path, dtype: type) -> np.ndarray:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file") from None
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{file}: not a readable .npy array: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype != dtype:
        got = getattr(array, "dtype", "no array")
        raise ValueError(f"{file}: expected a matrix of {np.dtype(dtype)}, got {got} {getattr(array, 'shape', '')}")
    return array


def _check_rows(array: np.ndarray, file: Path, rows: int, numbers: int, row: str, what: str) -> None:
    if len(array) != rows:
        raise ValueError(f"{file}: {len(array)} rows, one for each {row} of the training split ({rows}) is expected")
    if array.size and not -1 <= int(array.min()) <= int(array.max()) < numbers:
        raise ValueError(
            f"{file}: numbers of {what} from -1 to {numbers - 1} expected, got {array.min()} to {array.max()}"
        )


def checksum_of(files: Iterable[Path]) -> str:
    """Of the content of all of them together."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while part := opened.read(1 << 22):
                digest.update(part)
    return digest.hexdigest()[:16]
