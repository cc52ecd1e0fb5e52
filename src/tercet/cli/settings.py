"""Settings of `tercet import`. Imports nothing heavy: `--help` must be fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class ImportSettings:
    """Convert a checkpoint of the original authors to a saved model for `tercet.load`, without executing code in it."""

    system: tyro.conf.Positional[Literal["vsepp", "vsrn", "vse-infinity", "scan", "bfan", "xvlm"]]
    """System that the checkpoint belongs to."""
    file: tyro.conf.Positional[Path]
    """Checkpoint file, for example model_best.pth.tar."""
    target: tyro.conf.Positional[Path]
    """Output folder; it must not exist."""
    vocabulary: Path | None = None
    """The authors' vocabulary file (JSON or pickle); needed to embed texts."""
    tokenizer: str | None = None
    """Name or path of a Hugging Face tokenizer, for models with BERT; needed to embed texts."""
