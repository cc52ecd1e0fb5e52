"""Settings of `tercet import` and `tercet export`. Imports nothing heavy: `--help` must be fast."""

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


@dataclass(frozen=True)
class ExportSettings:
    """Write a trained model as a folder that other tools load in one line, with a model card.

    hf, sentence-transformers and open-clip take clip models; onnx also heads, together with their frozen encoders.
    """

    model: tyro.conf.Positional[Path]
    """Run folder or saved model."""
    to: Literal["hf", "sentence-transformers", "open-clip", "onnx"]
    """Tool to export to. hf: transformers, for AutoModel and AutoProcessor."""
    out: Path
    """Output folder; it must not exist."""
