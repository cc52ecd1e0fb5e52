"""Which feature row and which captions belong to which image of a precomp folder: from the counts, then verified."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

VERIFIED_IMAGES = 16  # when a folder is opened; `tercet data inspect` looks at all


@dataclass(frozen=True)
class Layout:
    """Which image has which name, which feature row, which captions."""

    names: tuple[str, ...]
    owners: Int[np.ndarray, " caption"]
    rows: Int[np.ndarray, " image"]
    repeated: bool
    """Rows stand there once for each caption."""

    def copies(self) -> Int[np.ndarray, " image"]:
        """How many rows each image has, where they are repeated."""
        return np.bincount(self.owners, minlength=len(self.names))


def lay_out(place: str, rows: int | None, captions: int, ids: list[str] | None) -> Layout | None:
    """From the counts alone; None where only the features can tell (as many rows as captions and no ids)."""
    if ids is None:
        if rows is None or rows == captions:
            return None
        return _one_row_an_image(place, rows, captions, [str(row) for row in range(rows)])
    rows = len(ids) if rows is None else rows
    if not ids:
        raise ValueError(f"{place}: no ids in it")
    if rows == captions == len(ids):
        return _grouped(place, ids, rows, captions)
    if len(ids) == rows:
        return _one_row_an_image(place, rows, captions, ids)
    if len(ids) == captions:  # an id a caption, a row an image: any number of captions
        layout = _grouped(place, ids, rows, captions)
        if len(layout.names) == rows:
            return Layout(layout.names, layout.owners, np.arange(rows), repeated=False)
    if rows == captions and captions % len(ids) == 0:  # an id an image, its row for every caption
        each = captions // len(ids)
        owners = np.repeat(np.arange(len(_distinct(place, ids))), each)
        return Layout(tuple(ids), owners, np.arange(len(ids)) * each, repeated=True)
    raise ValueError(f"{place}: {rows} feature rows, {captions} captions and {len(ids)} ids do not fit together")


def _one_row_an_image(place: str, rows: int, captions: int, ids: list[str]) -> Layout:
    _distinct(place, ids)
    if rows == 0 or captions % rows:
        raise ValueError(
            f"{place}: {captions} captions cannot be shared out evenly over {rows} feature rows; expected as many "
            "for each row, or as many rows as captions, or an id for each caption"
        )
    owners = np.repeat(np.arange(rows), captions // rows)
    return Layout(tuple(ids), owners, np.arange(rows), repeated=False)


def _grouped(place: str, ids: list[str], rows: int, captions: int) -> Layout:
    """Neighbours with equal ids are one image."""
    starts = [row for row in range(len(ids)) if row == 0 or ids[row] != ids[row - 1]]
    names = [ids[row] for row in starts]
    _distinct(place, names, [start + 1 for start in starts])
    owners = np.repeat(np.arange(len(names)), np.diff([*starts, len(ids)]))
    return Layout(tuple(names), owners, np.array(starts, dtype=np.int64), repeated=len(names) < rows)


def _distinct(place: str, ids: list[str], lines: list[int] | None = None) -> list[str]:
    seen: dict[str, int] = {}
    for position, name in enumerate(ids):
        line = lines[position] if lines else position + 1
        if name in seen:
            raise ValueError(f"{place}, line {line}: the id {name} came before, in line {seen[name]}")
        seen[name] = line
    return ids


def layout_from_features(file: Path, array: np.ndarray) -> Layout:
    """As many rows as captions and no ids: the features say how often each image stands there."""
    each = 1
    while each < len(array) and np.array_equal(array[each], array[0]):
        each += 1
    if len(array) % each:
        raise ValueError(f"{file}: row 0 stands there {each} times, which does not divide the {len(array)} rows")
    if each == 1 and equal_neighbours(array):
        raise ValueError(f"{file}: some rows are equal to the next and others are not; only ids can tell the images")
    count = len(array) // each
    names = tuple(str(image) for image in range(count))
    return Layout(names, np.repeat(np.arange(count), each), np.arange(count) * each, repeated=each > 1)


def verify(file: Path, array: np.ndarray, layout: Layout) -> None:
    """The layout that the counts tell must be the one that the features have, here and there."""
    if layout.repeated:
        unequal = first_unequal_row(array, layout.rows, layout.copies(), some_images(layout))
        if unequal is not None:
            raise ValueError(
                f"{file}, row {unequal}: ids and counts say that rows are repeated for each caption of an image, "
                "but this one differs from the row before it"
            )
        return
    if len(array) == len(layout.owners) and len(array) >= 10 and equal_neighbours(array) > 0.25:
        raise ValueError(
            f"{file}: every image's row stands there several times, yet each row has an id of its own; "
            "expected equal ids for the rows of one image"
        )


def some_images(layout: Layout) -> Int[np.ndarray, " some"]:
    count = len(layout.names)
    return np.unique(np.linspace(0, count - 1, min(count, VERIFIED_IMAGES)).astype(np.int64))


def first_unequal_row(
    array: np.ndarray,
    first_rows: Int[np.ndarray, " image"],
    copies: Int[np.ndarray, " image"],
    images: Int[np.ndarray, " some"],
) -> int | None:
    """Where rows are repeated: the first that differs from the one before, of these images."""
    for image in images:
        for row in range(first_rows[image] + 1, first_rows[image] + copies[image]):
            if not np.array_equal(array[row], array[row - 1], equal_nan=True):
                return int(row)
    return None


def equal_neighbours(array: np.ndarray) -> float:
    """Share of rows that are equal to the next, of some of them. A photo that is there twice makes a few."""
    places = np.unique(np.linspace(0, len(array) - 2, min(len(array) - 1, 4 * VERIFIED_IMAGES)).astype(np.int64))
    return (
        float(np.mean([np.array_equal(array[place], array[place + 1]) for place in places])) if len(array) > 1 else 0.0
    )
