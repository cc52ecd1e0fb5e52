"""Settings of `tercet index`, `tercet search` and `tercet serve`. Imports nothing heavy, so that --help is fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class IndexSettings:
    """Embed images, or passages, with a trained model and write a search index.

    Running it again updates the index: new and changed images are embedded, deleted ones are removed. An interrupted
    update resumes at the next batch; the old index stays in use until the new one is complete.
    """

    model: tyro.conf.Positional[Path]
    """Run folder or saved model that takes images; or a CLIP or SigLIP of Hugging Face, by folder or name, as it is."""
    images: str = "."
    """Folder of images, searched recursively, or a dataset that `tercet data inspect` reads, with its captions; for a
    model of two texts, a dataset with the passages."""
    image_folder: Path | None = None
    """Image folder of a dataset, if it is not beside it. Images that are neither below it nor below --images, such as
    by a symbolic link, are not read."""
    skip_bad: bool = False
    """Skip and list invalid captions, images and features instead of stopping at the first."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""
    splits: tuple[str, ...] = ()
    """Splits of a dataset to index; all if none is given."""
    out: Path = Path("index")
    """Index folder."""
    kind: Literal["flat", "hnsw"] | None = None
    """flat: exact; hnsw: approximate, faster from 1M images, prints recall. None: as the existing index, or flat."""
    store: str | None = None
    """Vector store: faiss, or one of an installed package (`tercet list stores`). None: that of the index, or faiss."""
    trust: tuple[Path, ...] = ()
    """Python files that may be run although only a saved model or a run names them (`--model mine.py:Class`)."""


@dataclass(frozen=True)
class SearchSettings:
    """Search an index by text or by image."""

    index: tyro.conf.Positional[Path]
    """Index folder written by `tercet index`."""
    query: tyro.conf.Positional[str | None] = None
    """Query text, for example "two dogs in snow"."""
    image: Path | None = None
    """Query image, instead of a text."""
    k: int = 10
    """Number of results."""
    json: bool = False
    """Print JSON instead of a table."""
    model: Path | None = None
    """Path of the index's model, if it was moved."""
    trust: tuple[Path, ...] = ()
    """Python files that may be run although only a saved model or a run names them (`--model mine.py:Class`)."""


@dataclass(frozen=True)
class ServeSettings:
    """Serve a web page (image search, model comparison, runs, objectives) and an HTTP API (/openapi.json).

    Listens on this machine only, unless --host is set. Restart the server after updating an index.
    """

    indexes: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Index folders written by `tercet index`; two or three over the same images can be compared."""
    runs: Path = Path("runs")
    """Folder with the runs and comparisons to show."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 accepts connections from other machines."""
    port: int = 8765
    """Port to listen on; 0 picks a free one."""
    host_names: tuple[str, ...] = ()
    """Further names in links to this server, such as that of a proxy. Other names in the Host header are rejected,
    which prevents DNS rebinding; addresses, localhost, --host and the name of this machine are accepted."""
    token: str | None = None
    """Access token that clients must send; the printed link contains it. Other users of this machine see arguments of
    commands: --token-file or the environment variable TERCET_TOKEN hide it."""
    token_file: Path | None = None
    """File that contains the access token."""
    trust: tuple[Path, ...] = ()
    """Python files that may be run although only a saved model or a run names them (`--model mine.py:Class`)."""
