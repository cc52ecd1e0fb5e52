"""What `tercet index`, `tercet search` and `tercet serve` can be told. Imports nothing heavy: help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class IndexSettings:
    """Embed pictures with a trained model and write an index that `tercet search` looks into.

    Called again it brings the index up to date: new and changed pictures are embedded, those that are gone leave it.
    Stopped at any moment it goes on where it was; the index is the old one until the new one is whole.
    """

    model: tyro.conf.Positional[Path]
    """A run or a saved model that reads pictures."""
    images: str = "."
    """A folder of pictures (with those below it), or a data set that `tercet data inspect` knows, with its captions."""
    splits: tuple[str, ...] = ()
    """Only these splits of a data set; all if none is named."""
    out: Path = Path("index")
    """The folder of the index."""
    kind: Literal["flat", "hnsw"] | None = None
    """flat finds exactly; hnsw is quicker from about a million pictures on and misses a few: its recall is printed.
    That of the index as it was, or flat, if none is named."""


@dataclass(frozen=True)
class SearchSettings:
    """Find pictures by words, or by another picture."""

    index: tyro.conf.Positional[Path]
    """A folder that `tercet index` wrote."""
    query: tyro.conf.Positional[str | None] = None
    """Words: "two dogs in snow"."""
    image: Path | None = None
    """A picture to search by, in place of words."""
    k: int = 10
    """How many results."""
    json: bool = False
    """Print JSON instead of a table."""
    model: Path | None = None
    """Where the model of the index lies, if it was moved."""


@dataclass(frozen=True)
class ServeSettings:
    """A page to search pictures, compare models, watch runs and try objectives; with an HTTP API (/openapi.json).

    It answers this machine alone unless --host says otherwise. An index that was brought up to date is seen after a
    restart.
    """

    indexes: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders that `tercet index` wrote; two or three of the same pictures can be compared."""
    runs: Path = Path("runs")
    """Folder of runs and comparisons to show."""
    host: str = "127.0.0.1"
    """Where to listen; 0.0.0.0 lets other machines in."""
    port: int = 8765
    """0 takes any that is free."""
    token: str | None = None
    """A word that visitors must show: it is part of the link that is printed."""
