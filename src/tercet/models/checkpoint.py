"""Reading the authors' checkpoint files without executing anything in them.

They are pickles of a dict with a list of state dicts and an argparse namespace, in torch's old stream or its zip
format, many of them written by Python 2. torch's weights-only reader builds tensors and plain containers; here it may
also build a namespace and numpy's scalars, and nothing else.
"""

import argparse
import pickle
import re
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCALARS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "b1": "<?"}  # numpy's names, and how their bytes are read


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
    options = loaded.get("opt") or {}
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    if not isinstance(options, dict):
        raise ValueError(
            f"{path}: expected the options under 'opt' as a namespace or a dict, got {type(options).__name__}"
        )
    plain = {name: value for name, value in options.items() if isinstance(value, (str, int, float, bool))}
    return Checkpoint(states=[_bare(part, path) for part in parts], options=plain)


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


class _Kind:
    """Takes the place of numpy's dtype, whose own state a pickle could forge: a name, and nothing else of it."""

    def __init__(self, name: object, *_: object) -> None:
        if name not in SCALARS:
            raise pickle.UnpicklingError(f"GLOBAL numpy.dtype of {str(name)[:40]!r}")
        self.name = str(name)

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: plain little-endian numbers are all that is read."""


def _scalar(kind: object, content: object) -> int | float | bool:
    """Takes the place of numpy's scalar: the number in these bytes."""
    raw = content.encode("latin1") if isinstance(content, str) else content
    if not isinstance(kind, _Kind) or not isinstance(raw, bytes) or len(raw) != struct.calcsize(SCALARS[kind.name]):
        raise pickle.UnpicklingError("GLOBAL numpy.scalar of another kind")
    number: int | float | bool = struct.unpack(SCALARS[kind.name], raw)[0]
    return number


def _allowed() -> list[Any]:
    """What may be built besides tensors and plain containers; numpy's own functions are never called."""
    return [
        argparse.Namespace,
        _Kind,
        (_Kind, "numpy.dtype"),
        (_scalar, "numpy.core.multiarray.scalar"),
        (_scalar, "numpy._core.multiarray.scalar"),
    ]


def _bare(part: dict[Any, Any], path: Path) -> dict[str, Tensor]:
    """Without the names that DataParallel puts before all others."""
    for key, value in part.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ValueError(f"{path}: expected named tensors, got {key!r}: {type(value).__name__}")
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_complex():
            raise ValueError(f"{path}: {key} is no ordinary tensor of real numbers")
        if not all(value.stride(axis) or value.shape[axis] <= 1 for axis in range(value.ndim)):
            raise ValueError(f"{path}: {key} of shape {tuple(value.shape)} repeats a few numbers; weights do not")
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"{path}: NaN or infinity in {key}")
    while part and all(key.startswith("module.") for key in part):
        part = {key.removeprefix("module."): value for key, value in part.items()}
    return dict(part)
