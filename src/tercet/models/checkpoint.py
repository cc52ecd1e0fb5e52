"""Reading the authors' checkpoint files without executing anything in them.

They are pickles of a dict with a list of state dicts and an argparse namespace, in torch's old stream or its zip
format, many of them written by Python 2. torch's weights-only reader builds tensors and plain containers; here it may
also build a namespace and numpy's scalars, and nothing else.
"""

import argparse
import pickle
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Checkpoint:
    states: list[dict[str, Tensor]]
    """One for each part, keys without the `module.` of parallel wrappers."""
    options: dict[str, Any]
    """What the authors' program was called with."""


def read_checkpoint(path: Path) -> Checkpoint:
    loaded = load_untrusted(path)
    parts = loaded.get("model") if isinstance(loaded, dict) else None
    if isinstance(parts, dict):
        parts = [parts]
    if not isinstance(parts, (list, tuple)) or not parts or not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{path}: expected a checkpoint with a list of state dicts under 'model'")
    options = loaded.get("opt", {})
    return Checkpoint(
        states=[_bare(part, path) for part in parts],
        options=vars(options) if isinstance(options, argparse.Namespace) else dict(options or {}),
    )


def load_untrusted(path: Path) -> Any:
    """Tensors and plain values; anything else that the file asks for is refused by name."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        with torch.serialization.safe_globals(_allowed()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the encoding has no effect, which is not so
            # Strings of Python 2 are bytes, in numpy's scalars any bytes: Latin-1 keeps them all.
            return torch.load(path, map_location="cpu", weights_only=True, encoding="latin1")
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        if asked:
            raise ValueError(f"{path}: refused: it asks for {asked[1]}, which weights have no need of") from None
        raise ValueError(f"{path}: refused or damaged: {str(error).strip().splitlines()[-1][:200]}") from None
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"{path}: not a checkpoint that can be read: {type(error).__name__}: {error}") from error


def _allowed() -> list[Any]:
    scalar = np.float64(0).__reduce__()[0]
    kinds = [type(np.dtype(kind)) for kind in ("f8", "f4", "i8", "i4", "?")]
    return [
        argparse.Namespace,
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
        np.dtype,
        *kinds,
    ]


def _bare(part: dict[Any, Any], path: Path) -> dict[str, Tensor]:
    """Without the names that DataParallel puts before all others."""
    for key, value in part.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ValueError(f"{path}: expected named tensors, got {key!r}: {type(value).__name__}")
    wrapped = bool(part) and all(key.startswith("module.") for key in part)
    return {key.removeprefix("module.") if wrapped else key: value for key, value in part.items()}
