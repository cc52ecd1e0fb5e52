"""Which columns of a table hold the image, the caption and the split: of a CSV, a Parquet file or a DataFrame."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tercet.names import suggest

MAX_SHOWN, MAX_WIDTH = 20, 40  # columns, and characters of each, in a message


@runtime_checkable
class ColumnSettings(Protocol):
    """Settings of a command that reads data."""

    @property
    def image_column(self) -> str | None: ...

    @property
    def caption_column(self) -> str | None: ...

    @property
    def split_column(self) -> str | None: ...


@dataclass(frozen=True)
class Columns:
    """The columns that the user named; None for the usual names."""

    image: str | None = None
    caption: str | None = None
    split: str | None = None

    @staticmethod
    def of(settings: ColumnSettings) -> "Columns":
        return Columns(settings.image_column, settings.caption_column, settings.split_column)

    def __bool__(self) -> bool:
        return any((self.image, self.caption, self.split))


@dataclass(frozen=True)
class FoundColumns:
    """Names as they are in the table; the split is None if there is none."""

    image: Any
    caption: Any
    split: Any


def find_columns(
    names: Iterable[Any],
    given: Columns,
    location: str,
    *,
    usual_images: Sequence[str],
    usual_captions: Sequence[str],
) -> FoundColumns:
    """The columns in a table with these names, without regard to case. `ValueError` lists the names if one is missing.

    Columns are searched by the usual names, the first one that exists, unless they are given.
    """
    names = list(names)
    known = {str(name).strip().lower(): name for name in reversed(names)}
    found = {}
    for kind, usual in (("image", usual_images), ("caption", usual_captions), ("split", ("split",))):
        wanted = getattr(given, kind)
        searched = usual if wanted is None else (wanted.strip().lower(),)
        found[kind] = next((known[name] for name in searched if name in known), None)
        if found[kind] is None and (wanted is not None or kind != "split"):
            raise ValueError(f"{location}: {_missing(kind, wanted, list(map(str, names)), usual)}")
    for name in (found["image"], found["caption"]):
        if names.count(name) > 1:
            raise ValueError(f"{location}: duplicate column {name}")
    if found["image"] == found["caption"]:
        raise ValueError(f"{location}: the column {found['image']} cannot hold both the images and the captions")
    return FoundColumns(**found)


def _missing(kind: str, wanted: str | None, names: list[str], usual: Sequence[str]) -> str:
    shown = [name if len(name) <= MAX_WIDTH else f"{name[:MAX_WIDTH]}..." for name in names[:MAX_SHOWN]]
    columns = f"the columns are {', '.join(shown) or 'none'}" + (", ..." if len(names) > MAX_SHOWN else "")
    if wanted is not None:
        return f"no column {wanted!r}{suggest(wanted, names)}; {columns}"
    return f"no {kind} column: {columns}; name yours with --{kind}-column NAME, or rename it to {usual[0]}"
