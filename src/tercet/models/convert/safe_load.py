"""Safe loading of the authors' checkpoint files, without executing code from them.

They are pickles of a dict with a list of state dicts and an argparse namespace, in torch's legacy or zip format, many
of them written by Python 2. torch's weights-only loader builds tensors and plain containers; here it may also build a
namespace and numpy scalars, and nothing else.
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

SCALAR_FORMATS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "b1": "<?"}  # numpy dtype -> struct format


@dataclass(frozen=True)
class Checkpoint:
    states: list[dict[str, Tensor]]
    """One state dict per submodel, keys without the `module.` prefix of DataParallel."""
    options: dict[str, Any]
    """Command-line options of the authors' training script."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Load and validate a checkpoint of the authors."""
    loaded = load_untrusted(path)
    states = loaded.get("model") if isinstance(loaded, dict) else None
    if isinstance(states, dict):
        states = [states]
    if not isinstance(states, (list, tuple)) or not states or not all(isinstance(state, dict) for state in states):
        raise ValueError(f"{path}: expected a checkpoint with a list of state dicts under 'model'")
    options = loaded.get("opt") or {}
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    if not isinstance(options, dict):
        raise ValueError(
            f"{path}: expected the options under 'opt' as a namespace or a dict, got {type(options).__name__}"
        )
    plain = {name: value for name, value in options.items() if isinstance(value, (str, int, float, bool))}
    return Checkpoint(states=[_checked_state(state, path) for state in states], options=plain)


def load_untrusted(path: Path) -> Any:
    """Load tensors and plain values; anything else in the file is refused by name."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        with torch.serialization.safe_globals(_allowed()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that `encoding` has no effect, which is wrong
            # Python 2 strings are bytes, arbitrary ones in numpy scalars: Latin-1 decodes all of them without loss.
            return torch.load(path, map_location="cpu", weights_only=True, encoding="latin1")
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise ValueError(f"{path}: refused: it references {refused[1]}, which a checkpoint does not need") from None
        raise ValueError(f"{path}: refused or corrupt: {str(error).strip().splitlines()[-1][:200]}") from None
    except Exception as error:  # a corrupt file may raise anything
        raise ValueError(f"{path}: not a readable checkpoint: {type(error).__name__}: {error}") from error


class _DType:
    """Stand-in for numpy.dtype, whose state a pickle could forge: holds only the name."""

    def __init__(self, name: object, *_: object) -> None:
        if name not in SCALAR_FORMATS:
            raise pickle.UnpicklingError(f"GLOBAL numpy.dtype of {str(name)[:40]!r}")
        self.name = str(name)

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and other state: only little-endian scalars are read."""


def _scalar(dtype: object, data: object) -> int | float | bool:
    """Stand-in for numpy's scalar constructor: decode the bytes."""
    raw = data.encode("latin1") if isinstance(data, str) else data
    if (
        not isinstance(dtype, _DType)
        or not isinstance(raw, bytes)
        or len(raw) != struct.calcsize(SCALAR_FORMATS[dtype.name])
    ):
        raise pickle.UnpicklingError("GLOBAL numpy.scalar of an unsupported dtype")
    value: int | float | bool = struct.unpack(SCALAR_FORMATS[dtype.name], raw)[0]
    return value


def _allowed() -> list[Any]:
    """Globals allowed besides tensors and plain containers; numpy's own functions are never called."""
    return [
        argparse.Namespace,
        _DType,
        (_DType, "numpy.dtype"),
        (_scalar, "numpy.core.multiarray.scalar"),
        (_scalar, "numpy._core.multiarray.scalar"),
    ]


def _checked_state(state: dict[Any, Any], path: Path) -> dict[str, Tensor]:
    """Check that all values are ordinary finite tensors, and strip the `module.` prefixes of DataParallel."""
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ValueError(f"{path}: expected named tensors, got {key!r}: {type(value).__name__}")
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_complex():
            raise ValueError(f"{path}: {key} is not a dense real CPU tensor")
        if not all(value.stride(axis) or value.shape[axis] <= 1 for axis in range(value.ndim)):
            raise ValueError(
                f"{path}: {key} of shape {tuple(value.shape)} is an expanded tensor (stride 0), not weights"
            )
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"{path}: NaN or infinity in {key}")
    while state and all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return dict(state)
