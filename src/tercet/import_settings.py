"""What `tercet import` can be told. Imports nothing heavy: `--help` must be quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class ImportSettings:
    """Read an authors' checkpoint and write a folder that `tercet.load` takes. Nothing in the file is executed."""

    system: tyro.conf.Positional[Literal["vsepp", "vsrn", "vse-infinity"]]
    file: tyro.conf.Positional[Path]
    """The checkpoint: model_best.pth.tar and its like."""
    target: tyro.conf.Positional[Path]
    """A folder that does not exist yet."""
    vocabulary: Path | None = None
    """The authors' vocabulary, JSON or pickle: with it the model reads plain texts."""
    tokenizer: str | None = None
    """For BERT: name or path of its tokenizer."""
